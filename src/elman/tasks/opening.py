"""Open a run folder: read its configuration and its model, whatever its task.

Each kind of damage has its own error. Nothing in the folder is executed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from elman.base.config import from_dict, without_unknown, without_unread
from elman.base.documents import intact, read_json
from elman.base.errors import ElmanError, UsageError
from elman.base.tables import imported
from elman.base.tensor_files import open_tensors
from elman.runs.run_config import FORMAT, RunConfig
from elman.runs.run_folder import (
    CONFIG_FILE,
    MODEL_FILE,
    ORIGIN,
    TOKENIZER_FILE,
    check_run_folder,
    check_vocabulary,
    require,
)
from elman.tasks import task_named
from elman.tokens.tokenizer import Tokenizer


@dataclass(frozen=True)
class OpenedRun:
    """A run folder opened to use its model."""

    path: Path
    config: Any
    """The `RunConfig` of its task."""
    tokenizer: Any
    """A tokenizer, or the vocabulary of the task."""
    model: Any
    """A network in evaluation mode on the device asked for, or a model of counts."""
    header: dict[str, Any]
    """The header of the model file: step and validation figures."""


def open_run(path: Path | str, device: str = "cpu") -> OpenedRun:
    path = Path(path)
    config = read_config(path)
    task = task_named(config.task)
    if task.open_fitted is not None:
        model, tokenizer, header = imported(task.open_fitted)(path, config)
        return OpenedRun(path, config, tokenizer, model, header)
    from elman.train import checkpoint

    require(path, MODEL_FILE)
    with open_tensors(path / MODEL_FILE) as file:
        build, tokenizer = task.functions.open_model(path, config, file.header)
        if hasattr(build, "state_dict"):
            raise ElmanError(
                f"the task {config.task} returns a model from open_model",
                "let it return a function that builds the model",
            )
        model = checkpoint.build_to_fit(build, file.path, checkpoint.table_of(file))
        checkpoint.load_weights(model, checkpoint.read_tensors(file), file.path, assign=True)
    return OpenedRun(path, config, tokenizer, model.to(device).eval(), file.header)


def checked_tokenizer(path: Path, header: Mapping[str, Any]) -> Tokenizer:
    """Load the tokenizer of a run folder, checked against the header of its weights."""
    require(path, TOKENIZER_FILE)
    tokenizer = Tokenizer.load(path / TOKENIZER_FILE)
    check_vocabulary(path, tokenizer, header)
    return tokenizer


def read_config(path: Path) -> RunConfig:
    """Read the configuration of a run folder; convert older formats to the current one."""
    check_run_folder(path)
    with intact(path / CONFIG_FILE):
        data = read_json(path / CONFIG_FILE)
        if isinstance(data, dict) and "model_type" in data:
            raise UsageError(
                f"{path} is a folder for transformers, not a run folder",
                f"make a run folder of it: elman convert {path} runs/NAME",
            )
        return run_config(data, path / CONFIG_FILE)


def run_config(data: Any, path: Path | str) -> RunConfig:
    """Read the settings of a run, of any format; `path` is for the error."""
    found = None
    if isinstance(data, dict):
        data = {name: value for name, value in data.items() if name != ORIGIN}
        found = data.get("format")
    while found in LIFTS:
        data = LIFTS[found](data)
        found = data["format"]
    if found != FORMAT:
        raise ElmanError(
            f"{path} has format {found}; this version reads up to {FORMAT}",
            "upgrade elman, or train the model again",
        )
    config_class = task_named(str(data.get("task"))).config_class
    # Earlier versions accepted and recorded settings that nothing reads.
    return without_unread(partial(from_dict, config_class), data)[0]


def _lift_1(data: dict[str, Any]) -> dict[str, Any]:
    """Drop settings that the task does not read: format 1 recorded those of all tasks."""
    kept = without_unknown(task_named(str(data.get("task"))).config_class, data)
    return kept | {"format": 2}


LIFTS: dict[int, Callable[[dict[str, Any]], dict[str, Any]]] = {1: _lift_1}
"""For each old format, a function that converts config.json to the next format."""
