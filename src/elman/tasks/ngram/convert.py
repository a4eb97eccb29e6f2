"""Convert n-gram models: run folders and ARPA files into each other.

    n-gram run or ARPA file   ->   model.arpa, model.arpa.gz      for KenLM, SRILM, Kaldi and others
    ARPA file                 ->   a run folder                   opens in milliseconds

What is written appears at once and whole, and nothing that exists is replaced. Networks are
imported where they are needed: an ARPA file is read without torch.
"""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any

from elman.base.config import from_dict
from elman.base.files import explain, write_text
from elman.ngrams.arpa_files import is_arpa, open_arpa, save_arpa
from elman.ngrams.backoff import BackoffModel
from elman.ngrams.storage import MODEL_FILE, load, save
from elman.runs.run_folder import CARD_FILE, METRICS_FILE, TOKENIZER_FILE, write_config
from elman.tasks.counted import open_tokenizer
from elman.tasks.ngram.settings import NgramConfig, NgramRun
from elman.tasks.opening import read_config
from elman.tokens.tokenizer import Tokenizer
from elman.tokens.tokenizer_config import TokenizerConfig


def convert(source: Path, target: Path, to_folder: bool) -> dict[str, Any] | None:
    """Write the model `source` as `target`; None where it is no n-gram model."""
    if is_arpa(source):
        ngrams, tokenizer = open_arpa(source, keep=False)
    elif not to_folder and source.is_dir() and isinstance(read_config(source), NgramRun):
        tokenizer = open_tokenizer(source, MODEL_FILE)
        ngrams, _ = load(source / MODEL_FILE)
    else:
        return None
    notes = list(ngrams.about["notes"])
    if to_folder:
        _save_run(target, ngrams, tokenizer, source)
        written = target / MODEL_FILE
    else:
        ngrams.check()
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
    """Write a run folder beside its place, then move it there in one step."""
    summary = {"out": str(out), "source": source.name, "ngrams": model.num_ngrams}
    tokens = from_dict(TokenizerConfig, {"kind": tokenizer.kind, "lowercase": tokenizer.lowercase})
    config = NgramRun(recipe="converted", tokenizer=tokens, model=NgramConfig(order=model.order))
    header = {"tokenizer": tokenizer.hash, "vocab_size": tokenizer.vocab_size}
    card = [
        f"# {out.name}",
        "",
        f"A {model.order}-gram language model over {tokenizer.vocab_size:,} words, converted from "
        f"{source.name} with Elman.",
        *(f"- {note}" for note in model.about["notes"]),
    ]
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{out.name}.", dir=out.parent) as temporary:
            folder = Path(temporary) / out.name
            save(folder / MODEL_FILE, model, header)
            tokenizer.save(folder / TOKENIZER_FILE)
            report = {"kind": "done", "tokens": 0, "seconds": 0.0, "summary": summary}
            write_text(folder / METRICS_FILE, json.dumps(report) + "\n")
            write_text(folder / CARD_FILE, "\n".join(card) + "\n")
            write_config(folder, config)
            os.replace(folder, out)
    except OSError as error:
        raise explain(error, out) from error
