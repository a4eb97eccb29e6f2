"""A run on disk: writing what describes it, and opening it again to use the model.

    config.json        the resolved configuration, with a format number
    model.safetensors  the best weights; the header says how good, and for which tokenizer
    tokenizer.json     the vocabulary
    metrics.jsonl      one line per report
    card.md            what it is, how it was trained, how well it does
    train/             what resuming needs

Nothing in the folder executes when it is opened.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from elman.base.config import from_dict, to_dict
from elman.base.errors import ElmanError, UsageError, closest
from elman.base.files import read_json, write_json
from elman.tasks.ngram import model as ngram
from elman.tasks.snm import model as snm
from elman.tasks.elmo.files import is_elmo, read_elmo
from elman.ngrams import storage
from elman.tasks.snm import sparse_matrix
from elman.runs.run_config import FORMAT, RunConfig
from elman.tasks import task_module
from elman.tokens.tokenizer import TOKENIZER_FILE, Tokenizer
from elman.train import checkpoint
from elman.train.loop import MODEL_FILE

CONFIG_FILE = "config.json"
CARD_FILE = "card.md"

MOST_NAMED = 5
"""Run folders that a hint lists."""

LIFTS: dict[int, Callable[[dict[str, Any]], dict[str, Any]]] = {}
"""For each past format, a function that turns its config.json into that of the next format."""

COUNTED: dict[str, tuple[str, Callable[[Path], tuple[Any, dict[str, Any]]]]] = {
    "ngram": (storage.MODEL_FILE, ngram.load_ngram),
    "snm": (sparse_matrix.MODEL_FILE, snm.load_snm),
}
"""The models that are counted: the file of each, and what opens it."""


@dataclass(frozen=True)
class Run:
    """An opened run: all that is needed to use its model."""

    path: Path
    config: RunConfig
    tokenizer: Any
    """What turns text into ids and back: the tokenizer, or what a task has in its place."""
    model: Any
    """A network in evaluation mode on the device asked for, or n-grams."""
    header: dict[str, Any]
    """What model.safetensors says about itself: step and validation figures."""


def open_run(path: Path | str, device: str = "cpu") -> Run:
    """Open a run folder; each way in which it can be incomplete or damaged has its own sentence.

    A folder of ELMo's published files is opened too, as a run without a vocabulary.
    """
    path = Path(path)
    if is_elmo(path) and not (path / CONFIG_FILE).is_file():
        elmo = read_elmo(path)
        config = RunConfig(task="elmo", recipe="published weights", model=elmo.config)
        return Run(path, config, None, elmo.to(device), {})
    config = read_config(path)
    if config.model.kind in COUNTED:
        file, load = COUNTED[config.model.kind]
        require(path, TOKENIZER_FILE, file)
        tokenizer = Tokenizer.load(path / TOKENIZER_FILE)
        counted, header = load(path)
        check_vocabulary(path, tokenizer, header)
        return Run(path, config, tokenizer, counted, header)
    require(path, MODEL_FILE)
    tensors, header = checkpoint.read(path / MODEL_FILE)
    model, tokenizer = task_module(config.task).open_model(path, config, header)
    checkpoint.load_weights(model, tensors, path / MODEL_FILE)
    return Run(path, config, tokenizer, model.to(device).eval(), header)


def require(path: Path, *names: str) -> None:
    """See that the files `names` are in the run folder `path`."""
    for name in names:
        if not (path / name).is_file():
            raise ElmanError(
                f"{path} has no {name}", "copy the whole run folder, or train the model again"
            )


def read_config(path: Path) -> RunConfig:
    """The configuration of a run folder, lifted to the present format."""
    if path.is_file():
        raise UsageError(
            f"{path} is neither a run folder nor an ARPA file: no line of it says \\data\\",
            "name the folder that `elman train` wrote, or a model in ARPA format",
        )
    if not path.is_dir():
        near = closest(path.name, [run.name for run in _runs_in(path.parent)])
        raise UsageError(
            f"there is no run folder {path}",
            "`elman train lm` makes one"
            if near is None
            else f"did you mean '{path.parent / near}'?",
        )
    if not (path / CONFIG_FILE).is_file():
        runs = [str(run) for run in _runs_in(path)[:MOST_NAMED]]
        raise UsageError(
            f"{path} is not a run folder: it has no {CONFIG_FILE}",
            f"it holds runs: name one of them, as {', '.join(runs)}"
            if runs
            else "name the folder that `elman train` wrote",
        )
    data = read_json(path / CONFIG_FILE)
    found = data.get("format") if isinstance(data, dict) else None
    while found in LIFTS:
        data = LIFTS[found](data)
        found = data["format"]
    if found != FORMAT:
        raise ElmanError(
            f"{path / CONFIG_FILE} has format {found}, and this version reads up to {FORMAT}",
            "upgrade elman, or train the model again",
        )
    return from_dict(RunConfig, data)


def _runs_in(folder: Path) -> list[Path]:
    """The run folders that lie in a folder."""
    try:
        return sorted(file.parent for file in folder.glob(f"*/{CONFIG_FILE}"))
    except OSError:
        return []


def write_config(path: Path, config: RunConfig) -> None:
    """Write config.json."""
    write_json(path / CONFIG_FILE, to_dict(config))


class Vocabulary(Protocol):
    """What gives a model's ids their meaning: a tokenizer, or what a task has in its place."""

    @property
    def hash(self) -> str:
        """Of everything that matters."""
        ...

    @property
    def vocab_size(self) -> int:
        """How many ids there are."""
        ...


def about(vocabulary: Vocabulary) -> dict[str, Any]:
    """What the weights' header says about the tokenizer they belong to."""
    return {"format": FORMAT, "tokenizer": vocabulary.hash, "vocab_size": vocabulary.vocab_size}


def check_vocabulary(
    path: Path, vocabulary: Vocabulary, header: Mapping[str, Any], file: str = TOKENIZER_FILE
) -> None:
    """The weights must have been trained with this very tokenizer: ids would mean other words."""
    if header.get("tokenizer", vocabulary.hash) == vocabulary.hash:
        return
    sizes = (header.get("vocab_size"), vocabulary.vocab_size)
    detail = "other tokens" if sizes[0] == sizes[1] else f"{sizes[1]} tokens instead of {sizes[0]}"
    what = "tokenizer" if file == TOKENIZER_FILE else "vocabulary"
    raise ElmanError(
        f"{path / file} is not the {what} of {path / MODEL_FILE}: it has {detail}",
        f"put back the {file} that the run was trained with",
    )
