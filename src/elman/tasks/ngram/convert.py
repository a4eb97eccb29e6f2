"""Convert n-gram models: run folders and ARPA files into each other, and between layouts.

    n-gram run or ARPA file   ->   model.arpa, model.arpa.gz      for KenLM, SRILM, Kaldi and others
    ARPA file                 ->   a run folder                   opens in milliseconds
    n-gram run or ARPA file   ->   a run folder                   in another layout

A file or folder is written under another name and renamed when complete; nothing that exists is
replaced. torch is not imported.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from elman.base.errors import UsageError, nearest
from elman.ngrams.arpa_files import is_arpa, new_tokenizer_beside, open_arpa, save_arpa
from elman.ngrams.backoff import BackoffModel
from elman.ngrams.compact import Bits, save_compact
from elman.ngrams.storage import MODEL_FILE, open_model, save
from elman.runs.new_folder import filling, new_file
from elman.runs.run_folder import CONFIG_FILE, TOKENIZER_FILE, require
from elman.tasks.counted import write_files
from elman.tasks.ngram.settings import NgramConfig, NgramRun
from elman.tasks.opening import checked_tokenizer, read_config
from elman.tokens.tokenizer import Tokenizer
from elman.tokens.tokenizer_config import TokenizerConfig

Values = dict[str, Any]
LAYOUTS = ("plain", "compact")


def convert(source: Path, target: Path, to_folder: bool) -> Values | None:
    """Write the model `source` as `target`; None if it is not an n-gram model."""
    if is_arpa(source):
        ngrams, tokenizer = open_arpa(source, keep=False)
        ngrams.check()
    elif not to_folder and source.is_dir() and isinstance(read_config(source), NgramRun):
        ngrams, tokenizer = _open_run(source)
    else:
        return None
    notes = list(ngrams.about["notes"])
    if to_folder:
        _save_run(target, ngrams, tokenizer, source)
        written = target / MODEL_FILE
    else:
        with new_file(new_tokenizer_beside(target)):
            notes += save_arpa(target, ngrams, tokenizer)
        written = target
    return _summary(target, ngrams, written, notes)


def convert_layout(source: Path, target: Path, layout: str | None, bits: str | None) -> Values:
    """Write a run folder or ARPA file as a run folder of another layout.

    `bits` are those of log probabilities and of back-off weights, as in "8" or "8,6".
    """
    if layout not in (None, *LAYOUTS):
        raise UsageError(f"n-grams have no layout '{layout}'", nearest(str(layout), LAYOUTS))
    if bits is not None and layout == "plain":
        raise UsageError("--quantise contradicts --layout plain", "use --layout compact")
    if is_arpa(source):
        chosen = None if layout == "plain" else _bits(bits)
        ngrams, tokenizer = open_arpa(source, keep=False)
        ngrams.check()
        _save_run(target, ngrams, tokenizer, source, chosen)
    elif source.is_dir() and isinstance(read_config(source), NgramRun):
        chosen = None if layout == "plain" else _bits(bits)
        ngrams, tokenizer = _open_run(source)
        with filling(target, CONFIG_FILE) as folder:
            for path in source.iterdir():
                if path.is_file() and path.name != MODEL_FILE:
                    shutil.copyfile(path, folder / path.name)
            _save(folder / MODEL_FILE, ngrams, tokenizer, chosen)
    else:
        if layout is None:
            raise UsageError(f"weights cannot be quantised to '{bits}'", "use int8")
        raise UsageError(f"{source} is not an n-gram model", "only those have layouts")
    written, _ = open_model(target / MODEL_FILE)
    notes = list(dict.fromkeys([*ngrams.about["notes"], *written.about["notes"]]))
    found = _summary(target, ngrams, target / MODEL_FILE, notes)
    return {**found, "layout": written.layout}


def _bits(text: str | None) -> Bits:
    """Read "8" or "8,6"."""
    if text is None:
        return Bits()
    numbers = text.split(",")
    if len(numbers) > 2 or not all(number.strip().isdecimal() for number in numbers):
        raise UsageError(
            f"n-grams cannot be quantised to '{text}'",
            "give bits, as in 8, or 8,6 for log probabilities and back-off weights",
        )
    prob, backoff = int(numbers[0]), int(numbers[-1])
    return Bits(prob, backoff)


def _open_run(source: Path) -> tuple[BackoffModel, Tokenizer]:
    require(source, MODEL_FILE)
    ngrams, header = open_model(source / MODEL_FILE)
    return ngrams.plain(), checked_tokenizer(source, header)


def _summary(target: Path, ngrams: BackoffModel, written: Path, notes: list[str]) -> Values:
    return {
        "out": str(target),
        "order": ngrams.order,
        "ngrams": ngrams.num_ngrams,
        "bytes": written.stat().st_size,
        "notes": notes,
    }


def _save(path: Path, model: BackoffModel, tokenizer: Tokenizer, bits: Bits | None) -> None:
    """Write the model's file: compact if `bits` are given."""
    header = {"tokenizer": tokenizer.hash, "vocab_size": tokenizer.vocab_size}
    if bits is None:
        save(path, model, header)
    else:
        save_compact(path, model, bits, header)


def _save_run(
    out: Path, model: BackoffModel, tokenizer: Tokenizer, source: Path, bits: Bits | None = None
) -> None:
    summary = {"out": str(out), "source": source.name, "ngrams": model.num_ngrams}
    tokens = TokenizerConfig(kind=tokenizer.kind, lowercase=tokenizer.lowercase)
    config = NgramRun(recipe="converted", tokenizer=tokens, model=NgramConfig(order=model.order))
    card = [
        f"# {out.name}",
        "",
        f"A {model.order}-gram language model over {tokenizer.vocab_size:,} words, converted from "
        f"{source.name} with Elman.",
        *(f"- {note}" for note in model.about["notes"]),
    ]
    with filling(out.parent, last=out.name) as place:  # so that the whole folder is moved at once
        folder = place / out.name
        _save(folder / MODEL_FILE, model, tokenizer, bits)
        tokenizer.save(folder / TOKENIZER_FILE)
        write_files(folder, config, summary, card)
