"""A run folder: names of its files, and checks.

config.json        the resolved configuration, with a format number
model.safetensors  the best weights; the header has validation figures and the tokenizer's hash
tokenizer.json     the vocabulary; tokenizer-words.safetensors, if it is large, to open it at once
metrics.jsonl      one line per report
card.md            description, training, figures
train/             the state for resuming
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from elman.base.config import to_dict
from elman.base.documents import write_json
from elman.base.errors import ElmanError, UsageError, closest
from elman.runs.packaged import packaged
from elman.runs.run_config import FORMAT, RunConfig
from elman.tokens.tokenizer import TOKENIZER_FILE as TOKENIZER_FILE
from elman.tokens.tokenizer import TOKENIZER_FILES as TOKENIZER_FILES
from elman.train.files import METRICS_FILE as METRICS_FILE
from elman.train.files import MODEL_FILE as MODEL_FILE
from elman.train.files import STATE_FILE as STATE_FILE

CONFIG_FILE = "config.json"
CARD_FILE = "card.md"
EMBEDDINGS_FOLDER = "embeddings"
STAGES_FOLDER = "stages"
"""What an unfinished run needs that is made in stages; it has a config.json."""
ORIGIN = "origin"
"""The entry of config.json that `origin.py` writes; not a setting."""

RUN_FILES = (CONFIG_FILE, CARD_FILE, MODEL_FILE, METRICS_FILE, STATE_FILE.partition("/")[0])
"""Files and folders of every trained run; tasks declare their own."""
MOST_NAMED = 5
"""Limit on the run folders listed in a hint."""


def require(path: Path, *names: str) -> None:
    for name in names:
        if not (path / name).is_file():
            raise ElmanError(
                f"{path} has no {name}", "copy the whole run folder, or train the model again"
            )


def check_run_folder(path: Path) -> None:
    """Check that `path` is a run folder; propose one in the error's hint."""
    if path.is_file():
        from elman.ngrams.arpa_files import is_arpa

        if is_arpa(path):
            raise UsageError(
                f"{path} is an ARPA file, not a run folder", "name the folder of a run"
            )
        raise UsageError(
            f"{path} is neither a run folder nor an ARPA file: no line of it says \\data\\",
            "name the folder that `elman train` wrote, or a model in ARPA format",
        )
    if not path.is_dir():
        beside = {run.name: str(run) for run in runs_in(path.parent)}
        if path.parent == Path():
            beside = {name: name for name in packaged()} | beside
        near = closest(path.name, beside)
        raise UsageError(
            f"there is no run folder {path}",
            "`elman train` makes one, and `elman models` lists those that come with Elman"
            if near is None
            else f"did you mean '{beside[near]}'?",
        )
    if not (path / CONFIG_FILE).is_file():
        runs = [str(run) for run in runs_in(path)[:MOST_NAMED]]
        raise UsageError(
            f"{path} is not a run folder: it has no {CONFIG_FILE}",
            f"it holds runs: name one of them, as {', '.join(runs)}"
            if runs
            else "name the folder that `elman train` wrote",
        )


def runs_in(folder: Path) -> list[Path]:
    """The run folders in a folder, without the hidden ones that runs are written in."""
    try:
        runs = (file.parent for file in folder.glob(f"*/{CONFIG_FILE}"))
        return sorted(run for run in runs if not run.name.startswith("."))
    except OSError:
        return []


def write_config(path: Path, config: RunConfig, origin: str | None = None) -> None:
    """Write config.json; `origin` is the signature of a run that can be resumed."""
    settings = to_dict(config)
    if origin is not None:
        settings = {**settings, ORIGIN: origin}
    write_json(path / CONFIG_FILE, settings, seal=True)


class Vocabulary(Protocol):
    """A tokenizer, or the vocabulary of a task."""

    @property
    def hash(self) -> str: ...

    @property
    def vocab_size(self) -> int: ...


def about(vocabulary: Vocabulary) -> dict[str, Any]:
    """Entries about the vocabulary for the header of the model file."""
    return {"format": FORMAT, "tokenizer": vocabulary.hash, "vocab_size": vocabulary.vocab_size}


def check_vocabulary(
    path: Path, vocabulary: Vocabulary, header: Mapping[str, Any], file: str = TOKENIZER_FILE
) -> None:
    """Check that the weights were trained with this vocabulary.

    A vocabulary whose hash has changed has the one of earlier versions as `old_hash`.
    """
    hashes = vocabulary.hash, getattr(vocabulary, "old_hash", vocabulary.hash)
    if header.get("tokenizer", vocabulary.hash) in hashes:
        return
    sizes = (header.get("vocab_size"), vocabulary.vocab_size)
    detail = "other tokens" if sizes[0] == sizes[1] else f"{sizes[1]} tokens instead of {sizes[0]}"
    what = "tokenizer" if file.endswith(TOKENIZER_FILE) else "vocabulary"
    raise ElmanError(
        f"{path / file} is not the {what} of the model in {path}: it has {detail}",
        f"put back the {file} that the run was trained with",
    )
