"""Write the tokenizer's files in a folder for Hugging Face's transformers, and read them back.

tokenizer.json is the run's own, with what transformers reads there and Elman does not: the
boundary token in front of every text, and how words are joined again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from elman.base.documents import read_json
from elman.base.errors import UsageError
from elman.runs.run_folder import TOKENIZER_FILE
from elman.tokens.tokenizer import Tokenizer
from elman.tokens.words import CLOSING, OPENING

TOKENIZER_CONFIG_FILE = "tokenizer_config.json"


def tokenizer_files(tokenizer: Tokenizer, *, begins: bool) -> dict[str, Any]:
    """The files of a tokenizer; if `begins`, every text gets the boundary token in front."""
    if ":" in tokenizer.kind:
        raise UsageError(
            f"the tokenizer {tokenizer.kind} is code from outside Elman, which cannot be "
            "converted for transformers",
            "train with a tokenizer of Elman's: char, byte, bpe, word or pretokenized",
        )
    content = json.loads(tokenizer.to_json())
    boundary = str(tokenizer.backend.id_to_token(tokenizer.boundary_id))
    if begins:
        content["post_processor"] = _begin_with(boundary, tokenizer.boundary_id)
    if tokenizer.kind in ("word", "pretokenized"):
        content["decoder"] = _joined_words(boundary, marks=tokenizer.kind == "word")
    names = {"bos_token": boundary, "eos_token": boundary, "pad_token": boundary}
    if tokenizer.unknown_id is not None:
        names["unk_token"] = str(tokenizer.backend.id_to_token(tokenizer.unknown_id))
    settings = tokenizer_config(names, padding_side="left")
    return {TOKENIZER_FILE: content, TOKENIZER_CONFIG_FILE: settings}


def tokenizer_config(names: Mapping[str, str], *, padding_side: str) -> dict[str, Any]:
    """tokenizer_config.json, with the names of special tokens."""
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        **names,
        # As in Elman, the names of special tokens are ordinary text.
        "split_special_tokens": True,
        "clean_up_tokenization_spaces": False,
        "model_input_names": ["input_ids", "attention_mask"],
        "model_max_length": 1 << 40,
        "padding_side": padding_side,
    }


def restore_tokenizer(folder: Path, run: Path) -> Tokenizer:
    """Write the tokenizer.json of a run folder from one for transformers, and return it."""
    content: Any = read_json(folder / TOKENIZER_FILE)
    if isinstance(content, dict):
        content["post_processor"] = None
    tokenizer = Tokenizer.from_json(json.dumps(content), folder / TOKENIZER_FILE)
    tokenizer.save(run / TOKENIZER_FILE)
    return tokenizer


def _begin_with(token: str, id: int) -> Mapping[str, Any]:
    first = {"SpecialToken": {"id": token, "type_id": 0}}
    pieces = [{"Sequence": {"id": name, "type_id": 0}} for name in "AB"]
    return {
        "type": "TemplateProcessing",
        "single": [first, pieces[0]],
        "pair": [first, *pieces],
        "special_tokens": {token: {"id": token, "ids": [id], "tokens": [token]}},
    }


def _joined_words(boundary: str, *, marks: bool) -> Mapping[str, Any]:
    """A decoder that writes words as Elman does: a space between two, none at a line end and, with
    `marks`, none before a closing mark or after an opening one. A space begins the text, as a
    continuation needs it."""
    rules = [("^", " "), None, (f" ?{boundary} ?", "\n")]
    if marks:
        closing, opening = (
            "".join(f"\\{mark}" if mark in r"[]\^-" else mark for mark in sorted(found))
            for found in (CLOSING, OPENING)
        )
        rules += [(f" (?=[{closing}](?: |\n|$))", ""), (f"(?<=[ \n][{opening}]) ", "")]
    steps = [
        {"type": "Fuse"}
        if rule is None
        else {"type": "Replace", "pattern": {"Regex": rule[0]}, "content": rule[1]}
        for rule in rules
    ]
    return {"type": "Sequence", "decoders": steps}
