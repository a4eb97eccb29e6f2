"""What a task declares, and what it hands to the runner.

A task is a folder below `tasks/` with everything particular about it: how data is read, its
settings, model, loss, measure, handle and commands. Its `__init__.py` declares a `Task`; the
command line, the Python API, the server, the card and the reference pages are derived from that
declaration. Declarations import nothing heavy: parts are named as "package.module:attribute" (or
given as objects) and imported when they are used.

A task that the training loop fits has a module with three functions:

    choose(draft, machine) -> Proposal             automatic settings, and notes about them
    set_up(config, out, resume) -> TaskData        read and encode the data, write vocabularies
    open_model(path, config, header) -> (model, tokenizer)     a model to load weights into

A task that is fitted in one go, by counting say, names a function `fit` instead, and one that opens
what it wrote.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from elman.runs.run_config import RunConfig, TextData

if TYPE_CHECKING:
    from torch import nn

    from elman.models.embedder import Embedder
    from elman.runs.machine import Machine
    from elman.train.report import Report
    from elman.train.trainable import Trainable

Part = str | Any
"""A part of a task: the thing itself, or "package.module:attribute"."""


@dataclass(frozen=True, kw_only=True)
class Option:
    """An option of `elman train TASK`."""

    name: str
    """Its name in Python; on the command line with dashes."""
    help: str
    metavar: str
    setting: str | None = None
    """The setting that it writes; None: `fit` receives it by its name."""
    type: type = str
    minimum: int | None = None
    refusal: tuple[str, str] | None = None
    """A message and a hint, for an option that other tasks have and this one cannot."""
    action: Part | None = None
    """A function (training, value) that replaces the one training run: cross-validation."""


@dataclass(frozen=True, kw_only=True)
class EvaluateOption:
    """An option of `elman evaluate` for models of one task."""

    name: str
    help: str
    metavar: str = "FILE"
    draw: Part
    """A function ({model name: evaluation}, path) that draws a picture."""
    rows: Part | None = None
    """A function (evaluation) -> (rows, header) of a table to print beside it."""


@dataclass(frozen=True, kw_only=True)
class Route:
    """A question to a served model: `POST /v1/NAME` with a text."""

    name: str
    help: str
    ask: Part
    """A function (handle, text) -> result."""


@dataclass(frozen=True, kw_only=True)
class Task:
    """The declaration of a task."""

    name: str
    """What `elman train NAME` and config.json call it."""
    what: str
    """What its model is, with an article: "a tagger"."""
    help: str
    """The help of its training command."""
    config: Part
    """Its `RunConfig` class: composed of exactly the parts that it reads."""
    handle: Part
    """The class that `elman.load` returns for its runs."""
    module: Part | None = None
    """The module with `choose`, `set_up` and `open_model`; None where `fit` is given."""
    fit: Part | None = None
    """A function (config, out, **options) -> iterator of reports: fits the model in one go."""
    open_fitted: Part | None = None
    """Of a task with `fit`: a function (path, config) -> (model, tokenizer, header)."""
    data_metavar: str = "[DATA...]"
    data_help: str = "Text files (also .gz, .zst), folders, or built-in names; none: python-docs."
    files_per_text: int = 1
    """Files that make up one text: 2 for a source and its target."""
    corpus: str | None = None
    """The built-in corpus to use where no data is given; None: data must be given."""
    recipe: str | None = None
    """The recipe to start from where none is given; None: automatic choices."""
    options: Sequence[Option] = ()
    verbs: Mapping[str, Part] = field(default_factory=dict)
    """Commands for its models: the name, and a function whose first argument is the handle."""
    routes: Sequence[Route] = ()
    evaluate_options: Sequence[EvaluateOption] = ()
    files: Sequence[str] = ()
    """Names of files that it writes into a run folder beside those of every run."""
    opens: Part | None = None
    """A function (path, name, device) -> handle of a published file or folder that is no run
    folder, or None where `path` is not one of those."""
    published_files: Sequence[str] = ()
    """The files that make up such a folder."""
    convert: Part | None = None
    """A function (source, target, to_folder) -> summary, or None where `source` is not its own."""
    convert_help: str = ""
    """What its models can be converted to, as a sentence without a full stop."""
    convert_suffixes: Sequence[str] = ()
    """Ends of the names of files that it converts to."""
    embedder: Part | None = None
    """A function (model, tokenizer) -> Embedder: its models give vectors of words in context."""
    describe: Part | None = None
    """A function (run) -> values for `elman info`; None: those of a network."""
    info_rows: Part | None = None
    """A function (values) -> rows that `elman info` prints; None: those of a network."""
    summary_rows: Part | None = None
    """A function (summary) -> rows that training prints in the end; None: those of a network."""

    def part(self, name: str) -> Any:
        """A part, imported where it is named by a string; None where the task has none."""
        value = getattr(self, name)
        return imported(value) if value is not None else None

    @property
    def config_class(self) -> type[RunConfig]:
        found: type[RunConfig] = self.part("config")
        return found

    @property
    def functions(self) -> Any:
        """The module with `choose`, `set_up` and `open_model`."""
        return import_module(self.module) if isinstance(self.module, str) else self.module


def imported(part: Part) -> Any:
    """A part itself: strings of the form package.module:attribute are imported."""
    if not isinstance(part, str):
        return part
    module, _, attribute = part.partition(":")
    return getattr(import_module(module), attribute)


@dataclass(frozen=True)
class Draft:
    """What is known of a run before its settings are chosen."""

    task: str
    data: TextData
    """The data, as far as the user or the recipe named it."""
    base: dict[str, Any]
    """The recipe's settings; empty without a recipe."""
    asked: dict[str, Any]
    """The user's own settings, which override everything else."""
    recipe: str | None
    """The recipe's name; None: choose automatically."""
    read_recipe: Callable[[str], dict[str, Any]]
    """Reads another recipe, for automatic choices that start from one."""


@dataclass(frozen=True)
class Proposal:
    """Settings for a run, and notes about them."""

    base: dict[str, Any]
    """What the user's settings override: the recipe's settings, or automatic ones."""
    asked: dict[str, Any]
    """The user's settings, completed where one of them determines another."""
    notes: Callable[[Any], Sequence[str]]
    """Sentences about the resolved config."""


class TaskData(Protocol):
    """A run's data, and how its model is built, trained and measured."""

    @property
    def valid_tokens(self) -> int: ...

    @property
    def test_tokens(self) -> int:
        """0 without test data."""
        ...

    def scale(self) -> str:
        """How much data there is, as a phrase."""
        ...

    def build(self) -> nn.Module:
        """Build a new model; the runner has seeded the random numbers."""
        ...

    def trainable(self, model: Any) -> Trainable:
        """What the training loop works on."""
        ...

    def test(self, model: Any, limit: int | None) -> Mapping[str, Any]:
        """Measure on the first `limit` test tokens (None: all); `tokens` is how many."""
        ...

    def describe(self) -> str:
        """What the model is, for the card: "A language model over characters (65 of them)"."""
        ...

    def uses(self) -> Sequence[str]:
        """Commands that use it, for the card."""
        ...


class TaskFunctions(Protocol):
    """What the module of a trained task offers."""

    def choose(self, draft: Draft, machine: Machine) -> Proposal: ...

    def set_up(self, config: Any, out: Path, resume: bool) -> TaskData: ...

    def open_model(self, path: Path, config: Any, header: Mapping[str, Any]) -> OpenedModel: ...


OpenedModel = tuple["nn.Module", Any]
"""A model without its weights, and its tokenizer or vocabulary."""
Fit = Callable[..., "Iterator[Report]"]
MakeEmbedder = Callable[[Any, Any], "Embedder"]
