"""What a task declares, and what it gives to the runner.

A task is a folder below `tasks/` with its data reading, settings, model, loss, metrics, handle and
commands. Its `__init__.py` declares a `Task`, from which the command line, the Python API, the
server, the card and the reference pages are derived. Declarations import nothing heavy: parts are
named as "package.module:attribute" (or given as objects) and imported when they are used.

A task that is trained by the loop has a module with the functions of `TaskFunctions`. A task that
is fitted in one go, such as by counting, names a function `fit` instead, and `open_fitted`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypeVar

from elman.base.config import nested
from elman.base.errors import UsageError
from elman.base.tables import imported
from elman.runs.run_config import RunConfig, TextData

if TYPE_CHECKING:
    from torch import Tensor, nn

    from elman.models.embedder import Embedder
    from elman.nn.onnx.tracing import Function
    from elman.runs.machine import Machine
    from elman.tasks.opening import OpenedRun
    from elman.train.report import Report
    from elman.train.trainable import Trainable

T = TypeVar("T")
Part: TypeAlias = str | T
"""A part of a task: an object, or "package.module:attribute", which `imported` imports."""
Values = dict[str, Any]
Rows = Sequence[tuple[str, str]]
WordTable: TypeAlias = "tuple[Sequence[str], Tensor]"
"""Words or other tokens, and their vectors (V, E) in the same order."""


@dataclass(frozen=True, kw_only=True)
class Option:
    """An option of `elman train TASK`."""

    name: str
    """Its name in Python; dashes replace underscores on the command line."""
    help: str
    metavar: str
    flag: str | None = None
    """Its name on the command line, if it is another."""
    setting: str | None = None
    """The setting that it sets; None: it is an argument of `fit`, or the column of the text."""
    file_setting: str | None = None
    """The setting that a value sets instead that names a .json or .model file."""
    type: type = str
    minimum: int | None = None
    refusal: tuple[str, str] | None = None
    """The error message and hint, for an option that only other tasks support."""
    action: Part[Callable[[Any, Any], None]] | None = None
    """A function (training, value) that replaces the one training run: cross-validation."""


@dataclass(frozen=True, kw_only=True)
class EvaluateOption:
    """An option of `elman evaluate` for models of one task."""

    name: str
    help: str
    metavar: str = "FILE"
    draw: Part[Callable[[Mapping[str, Any], Path], None]] | None = None
    """Draws a picture (.png, .svg, .pdf) from evaluations by model name; None: the option is an
    argument of the handle's `evaluate`."""
    rows: Part[Callable[[Any], tuple[Sequence[Any], Sequence[str]]]] | None = None
    """Makes the rows and the header of a table to print beside it, from one evaluation."""


@dataclass(frozen=True, kw_only=True)
class Shortcut:
    """A command of its own that trains a task with other defaults."""

    name: str
    help: str
    settings: Mapping[str, Any]
    """Dotted names and values, which the user's own settings override. Options of the task that
    set one of them are left out."""


@dataclass(frozen=True, kw_only=True)
class Route:
    """A question to a served model: `POST /v1/NAME` with a text."""

    name: str
    help: str
    ask: Part[Callable[[Any, str], Any]] | None = None
    """A function (handle, text) -> result; None: the handle's method of this name."""

    def answer(self, handle: Any, text: str) -> Any:
        if self.ask is None:
            return getattr(handle, self.name)(text)
        return imported(self.ask)(handle, text)


@dataclass(frozen=True, kw_only=True)
class HuggingFaceForm:
    """How the models of a task are written as a folder for Hugging Face's transformers."""

    architecture: str
    """The class in `elman.hf` that reads them."""
    pipeline: str
    """Their pipeline in transformers."""
    example: str
    """A line of Python that uses the object `pipe`, for the card."""
    entries: Callable[[OpenedRun], Values]
    """Makes the entries of config.json that the run's settings lack. Raises an error that names a
    part of the model that has no such form."""
    build: Callable[[Any, Mapping[str, Any]], nn.Module]
    """A function (config, entries) -> network, without its weights."""
    files: Callable[[Any], Mapping[str, Any]]
    """Makes the files of the vocabulary, by name: what is written as JSON."""
    restore: Callable[[Path, Path], Any]
    """A function (folder, run): write the vocabulary of a run folder, and return it."""


@dataclass(frozen=True, kw_only=True)
class OnnxForm:
    """A model as ONNX graphs."""

    graphs: Sequence[Function]
    """The first is written under the name that was asked for, the others beside it."""
    entries: Mapping[str, Any]
    """Metadata of the first: the vocabulary, and what else its users need."""


@dataclass(frozen=True, kw_only=True)
class Task:
    """The declaration of a task."""

    name: str
    """What `elman train NAME` and config.json call it: package.module:NAME for a task from
    outside."""
    what: str
    """What its model is, with an article: "a language model"."""
    help: str
    """The help of its training command."""
    config: Part[type[RunConfig]]
    """Its `RunConfig` class: composed of exactly the parts that it reads."""
    handle: Part[type[Any]]
    """The class that `elman.load` returns for its runs."""
    module: Part[TaskFunctions] | None = None
    """The module with `choose`, `set_up` and `open_model`; None where `fit` is given."""
    uses: Sequence[str] = ()
    """Commands that use a model, for the card."""
    fit: Part[Callable[..., Iterator[Report]]] | None = None
    """A function (config, out, **options) that fits the model in one go."""
    open_fitted: Part[Callable[[Path, Any], tuple[Any, Any, Values]]] | None = None
    """Of a task with `fit`: a function (path, config) -> (model, tokenizer, header)."""
    data_metavar: str = "[DATA...]"
    data_help: str = (
        "Text files (also .gz, .zst), tables (.jsonl, .parquet, .csv, .tsv), folders, addresses, "
        "-, or built-in names; none: python-docs."
    )
    files_per_text: int = 1
    """Files per text: 2 for a source and its target."""
    corpus: str | None = None
    """The default data, a built-in corpus; None: data must be given."""
    recipe: str | None = None
    """The default recipe; None: automatic choices."""
    options: Sequence[Option] = ()
    verbs: Mapping[str, Part[Callable[..., None]]] = field(default_factory=dict)
    """Commands for its models: the name, and a function whose first argument is the handle."""
    shortcuts: Sequence[Shortcut] = ()
    resumes: bool = False
    """Of a task with `fit`: whether it takes `resume`, to continue a run in `STAGES_FOLDER`."""
    commands: Mapping[str, Part[Callable[..., None]]] = field(default_factory=dict)
    """Commands below `elman NAME`."""
    commands_help: str = ""
    data_commands: Mapping[str, Part[Callable[..., None]]] = field(default_factory=dict)
    """Commands below `elman data`."""
    routes: Sequence[Route] = ()
    evaluate_options: Sequence[EvaluateOption] = ()
    files: Sequence[str] = ()
    """Files that it adds to a run folder."""
    opens: Part[Callable[[Path, str, str], Any]] | None = None
    """A function (path, name, device) -> handle of a published file or folder; None if `path` is
    not one."""
    published_files: Sequence[str] = ()
    """The files of a published folder."""
    convert: Part[Callable[[Path, Path, bool], Values | None]] | None = None
    """A function (source, target, to_folder) -> summary; None if `source` is of another task."""
    convert_layout: Part[Callable[[Path, Path, str | None, str | None], Values]] | None = None
    """Writes a model as a run folder of another layout, with some bits for each number."""
    convert_help: str = ""
    """What its models convert to: a sentence without its capital and full stop."""
    convert_suffixes: Sequence[str] = ()
    """Suffixes of the files that it converts to."""
    hugging_face: Part[HuggingFaceForm] | None = None
    """How its models are written for transformers; None: they cannot be."""
    onnx: Part[Callable[[OpenedRun], OnnxForm]] | None = None
    """Makes the graphs of a model; None: its models cannot be ONNX files. Raises an error that
    names a part of the model that ONNX does not have."""
    embedder: Part[Callable[[Any, Any], Embedder]] | None = None
    """A function (model, tokenizer) -> Embedder, if its models give vectors of words in context."""
    word_vectors: Part[Callable[[Any, Any], Mapping[str, WordTable]]] | None = None
    """A function (model, vocabulary) -> tables of the vectors of words at its input, by name, if
    its models have any: see `tasks/word_tables.py`."""
    describe: Part[Callable[[OpenedRun], Values]] | None = None
    """Makes the values of `elman info`; None: those of a network."""
    info_rows: Part[Callable[[Values], Rows]] | None = None
    """Makes the rows that `elman info` prints, from the values; None: those of a network."""
    summary_rows: Part[Callable[[Values], Rows]] | None = None
    """Makes the rows that training prints, from the summary; None: those of a network."""

    @property
    def config_class(self) -> type[RunConfig]:
        return imported(self.config)

    @property
    def functions(self) -> TaskFunctions:
        assert self.module is not None, "a task with `fit` has no such functions"
        return imported(self.module)

    @property
    def reads_columns(self) -> bool:
        """Whether it reads running text, which may be a column of a table."""
        return any(one.name == "column" and one.setting is None for one in self.options)

    def divide(self, options: Mapping[str, Any]) -> tuple[Values, Values]:
        """Divide options into settings, nested, and arguments of `fit`.

        A name that is not one of the task's options is a setting of the model.
        """
        own = {option.name: option for option in self.options}
        settings, passed = {}, {}
        for name, value in options.items():
            option = own.get(name)
            if option is not None and option.refusal is not None:
                raise UsageError(*option.refusal)
            if option is not None and option.action is not None:
                raise UsageError(f"'{name}' is for the command line only", "use elman train")
            setting = f"model.{name}" if option is None else option.setting
            if option is not None and option.file_setting and _is_file_name(value):
                setting = option.file_setting
            if setting is None:
                passed[name] = value
            else:
                settings[setting] = value
        return nested(settings), passed


def _is_file_name(value: Any) -> bool:
    return Path(str(value)).suffix.lower() in (".json", ".model")


def texts_of(
    task: Task, texts: Sequence[Any], passed: Values, encoding: str | None
) -> list[list[str]]:
    """Return the names of UTF-8 files for the data of a run: training, validation and test.

    Takes the column of the text from `passed`. Tasks without such an option read tables themselves.
    """
    from elman.text.converting import named_texts, utf8_files
    from elman.text.records import TEXT
    from elman.text.sources import listed

    if not task.reads_columns:
        return [utf8_files(listed(names), encoding) for names in texts]
    column = passed.pop("column", None)
    names = [named_texts(given, column) for given in texts]
    return [utf8_files(one, encoding, column=column or TEXT) for one in names]


def conversions(tasks: Iterable[Task]) -> list[str]:
    """What models convert to: sentences without their capital and full stop."""
    tasks = list(tasks)
    vectors = "a model with word vectors becomes a .vec or .txt file of them, as word2vec's text"
    folders = ", ".join(task.name for task in tasks if task.hugging_face is not None)
    transformers = (
        f"--to hf makes a folder for transformers ({folders}), and a run of such a folder"
    )
    tokenizer = (
        "a .model of SentencePiece, or tiktoken:NAME, becomes a tokenizer.json with the same ids"
    )
    graphs = ", ".join(task.name for task in tasks if task.onnx is not None)
    onnx = f"a .onnx file is for onnxruntime ({graphs})"
    own = [task.convert_help for task in tasks if task.convert_help]
    return [*own, vectors, onnx, transformers, tokenizer]


@dataclass(frozen=True)
class Draft:
    """What is known of a run before its settings are chosen."""

    task: str
    data: TextData
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
    """The recipe's or automatic settings, which the user's override."""
    asked: dict[str, Any]
    """The user's settings, and those that they imply."""
    notes: Callable[[Any], Sequence[str]]
    """Return notes about the resolved config."""


class TaskData(Protocol):
    """A run's data, and how its model is built, trained and measured.

    It may have `caveats`, sentences that the user should know of the data.
    """

    def scale(self) -> str:
        """Describe the amount of data in a phrase."""

    def build(self) -> nn.Module:
        """Build a new model; the caller seeds the random numbers."""

    def trainable(self, model: Any) -> Trainable: ...

    def test(self, model: Any, limit: int | None) -> Mapping[str, Any]:
        """Measure on the first `limit` test tokens (None: all); `tokens` is their number."""

    def describe(self) -> str:
        """Describe the model for the card: "A language model over characters (65 of them)"."""


class TaskFunctions(Protocol):
    """The module of a trained task."""

    def choose(self, draft: Draft, machine: Machine) -> Proposal:
        """Choose settings automatically, with notes about them."""

    def set_up(self, config: Any, out: Path, resume: bool) -> TaskData:
        """Read and encode the data; write vocabularies to the run folder `out`."""

    def open_model(self, path: Path, config: Any, header: Mapping[str, Any]) -> OpenedModel:
        """Open the run folder `path`: return a function that builds its model, to load weights
        into, and its vocabulary. The function is called twice, first on the meta device."""


OpenedModel = tuple[Callable[[], "nn.Module"], Any]
"""A function that builds a model without its weights, and the model's tokenizer or vocabulary."""


FROM_CORPUS = "corpus"
"""The value of a setting in a recipe that follows from the corpus."""


def follows_corpus(recipe: Mapping[str, Any]) -> list[str]:
    """The settings of a recipe that are to follow from the corpus."""
    return [
        f"{group}.{name}"
        for group, settings in recipe.items()
        if isinstance(settings, Mapping)
        for name, value in settings.items()
        if value == FROM_CORPUS
    ]
