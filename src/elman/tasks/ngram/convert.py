"""Convert n-gram models: run folders and ARPA files into each other.

    n-gram run or ARPA file   ->   model.arpa, model.arpa.gz      for KenLM, SRILM, Kaldi and others
    ARPA file                 ->   a run folder                   opens in milliseconds

A file or folder is written under another name and renamed when complete; nothing that exists is
replaced. torch is not imported.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from elman.ngrams.arpa_files import is_arpa, open_arpa, save_arpa
from elman.ngrams.backoff import BackoffModel
from elman.ngrams.storage import MODEL_FILE, load, save
from elman.runs.new_folder import filling
from elman.runs.run_folder import TOKENIZER_FILE, require
from elman.tasks.counted import write_files
from elman.tasks.ngram.settings import NgramConfig, NgramRun
from elman.tasks.opening import checked_tokenizer, read_config
from elman.tokens.tokenizer import Tokenizer
from elman.tokens.tokenizer_config import TokenizerConfig


def convert(source: Path, target: Path, to_folder: bool) -> dict[str, Any] | None:
    """Write the model `source` as `target`; None if it is not an n-gram model."""
    if is_arpa(source):
        ngrams, tokenizer = open_arpa(source, keep=False)
    elif not to_folder and source.is_dir() and isinstance(read_config(source), NgramRun):
        require(source, MODEL_FILE)
        ngrams, header = load(source / MODEL_FILE)
        tokenizer = checked_tokenizer(source, header)
    else:
        return None
    ngrams.check()
    notes = list(ngrams.about["notes"])
    if to_folder:
        _save_run(target, ngrams, tokenizer, source)
        written = target / MODEL_FILE
    else:
        notes += save_arpa(target, ngrams, tokenizer)
        written = target
    return {
        "out": str(target),
        "order": ngrams.order,
        "ngrams": ngrams.num_ngrams,
        "bytes": written.stat().st_size,
        "notes": notes,
    }


def _save_run(out: Path, model: BackoffModel, tokenizer: Tokenizer, source: Path) -> None:
    summary = {"out": str(out), "source": source.name, "ngrams": model.num_ngrams}
    tokens = TokenizerConfig(kind=tokenizer.kind, lowercase=tokenizer.lowercase)
    config = NgramRun(recipe="converted", tokenizer=tokens, model=NgramConfig(order=model.order))
    header = {"tokenizer": tokenizer.hash, "vocab_size": tokenizer.vocab_size}
    card = [
        f"# {out.name}",
        "",
        f"A {model.order}-gram language model over {tokenizer.vocab_size:,} words, converted from "
        f"{source.name} with Elman.",
        *(f"- {note}" for note in model.about["notes"]),
    ]
    with filling(out.parent, last=out.name) as place:  # so that the whole folder is moved at once
        folder = place / out.name
        save(folder / MODEL_FILE, model, header)
        tokenizer.save(folder / TOKENIZER_FILE)
        write_files(folder, config, summary, card)
