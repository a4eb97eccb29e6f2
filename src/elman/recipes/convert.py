"""`elman convert`: a model in another form.

    n-gram run or ARPA file   ->   model.arpa, model.arpa.gz      for KenLM, SRILM, Kaldi and others
    ARPA file                 ->   a run folder                   opens in milliseconds
    ELMo run                  ->   options.json, lm_weights.hdf5  for other programs that read ELMo

What is written appears at once and whole, and nothing that is there already is replaced. Networks
are imported where they are needed: an ARPA file is read without torch.
"""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any

from elman.base.config import from_dict
from elman.base.errors import UsageError
from elman.base.files import explain, write_json, write_text
from elman.ngrams.arpa_files import is_arpa, open_arpa, save_arpa
from elman.ngrams.backoff import BackoffModel
from elman.ngrams.storage import MODEL_FILE, save
from elman.runs.new_folder import filling
from elman.tasks.ngram.settings import NgramConfig
from elman.tasks.ngram.task import (
    CARD_FILE,
    CONFIG_FILE,
    METRICS_FILE,
    check_free,
    config_of,
)
from elman.tokens.tokenizer import TOKENIZER_FILE, Tokenizer
from elman.tokens.tokenizer_config import TokenizerConfig

ARPA = (".arpa", ".arpa.gz")
FILES = (".bin", ".fst", ".gz", ".json", ".lm", ".onnx", ".pt", ".safetensors", ".txt", ".zst")
"""Names of files that nothing here writes; any other name is that of a folder."""
POSSIBLE = (
    "an n-gram run becomes an .arpa or .arpa.gz file; an ARPA file becomes another, or a run "
    "folder; an ELMo run becomes a folder of its published format"
)


def convert(model: str, out: str) -> dict[str, Any]:
    """Write `model` as `out`, whose name says what it shall be; return what was written."""
    source, target = Path(model), Path(out)
    to_arpa = out.lower().endswith(ARPA)
    to_run = not to_arpa and (out.endswith("/") or target.suffix.lower() not in FILES)
    if not (to_arpa or to_run):
        raise UsageError(f"nothing can be converted to '{target.suffix}', as in {out}", POSSIBLE)
    if not (to_run and target.is_dir() and not any(target.iterdir())):
        check_free(target)
    from_arpa = is_arpa(source)
    if to_run and not from_arpa and source.is_dir():
        return _save_elmo(target, source)
    if to_run and not from_arpa:
        raise UsageError(f"{model} is not an ARPA file, so it cannot become a run", POSSIBLE)
    if from_arpa:
        ngrams, tokenizer = open_arpa(source, keep=False)
    else:
        ngrams, tokenizer = _ngrams_of(model)
    notes = list(ngrams.about["notes"])
    if to_arpa:
        ngrams.check()
        notes += save_arpa(target, ngrams, tokenizer)
        written = target
    else:
        _save_run(target, ngrams, tokenizer, source)
        written = target / MODEL_FILE
    return {
        "out": out,
        "order": ngrams.order,
        "ngrams": ngrams.num_ngrams,
        "bytes": written.stat().st_size,
        "notes": notes,
    }


def _save_elmo(out: Path, source: Path) -> dict[str, Any]:
    """ELMo's two files of a run, in a folder of their own."""
    from elman.runs.run_folder import open_run
    from elman.tasks.elmo.files import WEIGHTS_FILE, write_elmo
    from elman.tasks.elmo.model import BidirectionalLM

    run = open_run(source)
    if not isinstance(run.model, BidirectionalLM):
        said = f"{source} is not an ARPA file, nor an ELMo run, so it cannot become a folder"
        raise UsageError(said, POSSIBLE)
    with filling(out, WEIGHTS_FILE) as folder:
        write_elmo(folder, run.model)
    return {
        "out": str(out),
        "layers": run.model.config.num_layers,
        "size": run.model.config.output_size,
        "bytes": (out / WEIGHTS_FILE).stat().st_size,
        "notes": ["the output layer is not part of the format"] if run.model.head else [],
    }


def _ngrams_of(model: str) -> tuple[BackoffModel, Tokenizer]:
    """The model in a run folder, which must be one of n-grams."""
    if {"*", "+"} & set(model) and not Path(model).exists():
        raise UsageError("a mixture cannot be converted", POSSIBLE)
    from elman.runs.run_folder import open_run
    from elman.tasks.ngram.model import NgramLM

    run = open_run(model)
    if not isinstance(run.model, NgramLM):
        raise UsageError(f"{model} is not an n-gram model, and cannot be converted", POSSIBLE)
    return run.model.ngrams, run.tokenizer


def _save_run(out: Path, model: BackoffModel, tokenizer: Tokenizer, source: Path) -> None:
    """A run folder, made beside its place and then put there in one step."""
    summary = {"out": str(out), "source": source.name, "ngrams": model.num_ngrams}
    tokens = {"kind": tokenizer.kind, "lowercase": tokenizer.lowercase}
    config = config_of(
        (), (), (), from_dict(TokenizerConfig, tokens), NgramConfig(order=model.order)
    )
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
            write_json(folder / CONFIG_FILE, config | {"recipe": "converted"})
            os.replace(folder, out)
    except OSError as error:
        raise explain(error, out) from error
