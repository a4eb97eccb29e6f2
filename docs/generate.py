"""Write docs/reference from the code: commands, the library, settings, recipes and corpora; and
src/elman/__init__.pyi, the types of the library.

    make docs        or: python docs/generate.py

A test compares the committed files with the result, so they cannot fall behind.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, fields, is_dataclass
from importlib.resources import files
from math import inf, isinf
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

import elman
from elman import recipes
from elman.base.config import describe, to_dict
from elman.base.tables import imported, look_up
from elman.cli.main import program
from elman.decode.options import DecodeOptions, http_fields
from elman.evaluate.policies import Policies
from elman.runs.run_config import RunConfig
from elman.tasks import built_in_tasks
from elman.tasks.adapted_handle import AdaptedLM
from elman.text.corpora import CORPORA

REFERENCE = Path(__file__).parent / "reference"
STUB = Path(elman.__file__).with_name("__init__.pyi")
NOTE = "<!-- Written by docs/generate.py: change the code, then run make docs. -->"
LAZY = {"AdaptedLM": AdaptedLM}
"""Types that their module imports when they are needed."""
PARTS = ("data", "tokenizer", "model", "objective", "optimiser", "schedule", "training")
"""The parts of a run's configuration, in the order in which data moves."""


def pages() -> dict[str, str]:
    """Return the reference pages by file name."""
    return {
        "cli.md": _page(_commands()),
        "python.md": _page(_library()),
        "config.md": _page(_settings()),
        "recipes.md": _page(_recipes()),
        "corpora.md": _page(_corpora()),
    }


def stub() -> str:
    """Return src/elman/__init__.pyi: what `import elman` offers, for type checkers.

    Its classes and functions come from the tasks, so that no other source file names a task.
    """
    tasks = list(built_in_tasks())
    handles = [imported(task.handle) for task in tasks]
    names = sorted({f"from {h.__module__} import {h.__name__}" for h in handles})
    return "\n".join(
        [
            "# Written by docs/generate.py: change the code, then run make docs.",
            "from collections.abc import Callable, Mapping",
            "from pathlib import Path",
            "from typing import Any, Literal",
            "",
            *(f"from elman.api import {n} as {n}" for n in ("convert", "load", "mix", "quality")),
            "from elman.api import train_model as train_model",
            *(f"from elman.base.errors import {n} as {n}" for n in ("ElmanError", "UsageError")),
            *(f"{name} as {name.rpartition(' ')[2]}" for name in names),
            "from elman.text.converting import Texts",
            "from elman.train.report import Report",
            "",
            "__version__: str",
            "",
            *(line for task in tasks for line in _trainer(f"train_{task.name}")),
            "",
        ]
    )


def _trainer(name: str) -> Iterator[str]:
    """The declaration of a function that trains, without `**options`: every keyword is listed, so
    that type checkers find misspelled ones."""
    signature = inspect.signature(getattr(elman, name))
    yield f"def {name}("
    for parameter in signature.parameters.values():
        if parameter.kind is parameter.VAR_KEYWORD:
            continue
        yield f"    {parameter.name}: {_annotation(parameter.annotation)} = ...,"
        if parameter.kind is parameter.POSITIONAL_OR_KEYWORD:
            yield "    *,"
    yield f") -> {signature.return_annotation.__name__}: ..."


def _annotation(hint: Any) -> str:
    """A type as code; Any if it is of a class that the file does not import."""
    if isinstance(hint, str):
        return hint
    parts = [part for part in get_args(hint) if part is not type(None)]
    if not all(part in (bool, int, float, str) or get_origin(part) is Literal for part in parts):
        return "Any"
    names = [str(part) if get_origin(part) else str(part.__name__) for part in parts]
    return " | ".join([*names, "None"]).replace("typing.", "").replace("'", '"')


def _page(lines: Iterator[str]) -> str:
    return "\n".join([NOTE, "", *lines]) + "\n"


def _commands() -> Iterator[str]:
    yield "# The command line"
    yield ""
    yield "Results go to stdout, messages to stderr. Exit codes: 0 done, 1 failed, 2 used wrongly,"
    yield "130 interrupted. `--json` prints JSON; an error prints a sentence and a hint to stderr."
    yield "Each task declares its `elman train` command and the commands for its models."
    yield from _group(program(), "elman")


def _group(group: Any, path: str) -> Iterator[str]:
    for name in group.list_commands(None):
        command, full = group.commands[name], f"{path} {name}"
        if hasattr(command, "commands"):
            yield from _group(command, full)
        else:
            yield from _command(command, full)


def _command(command: Any, path: str) -> Iterator[str]:
    arguments = [p for p in command.params if p.param_type_name == "argument"]
    options = [
        p
        for p in command.params
        if p.param_type_name == "option" and p.name != "help" and not p.hidden
    ]
    yield ""
    yield f"## {path}"
    yield ""
    yield " ".join([f"    {path}", *(a.metavar for a in arguments), "[OPTIONS]"])
    yield ""
    yield _joined(command.help)
    yield ""
    yield "| | |"
    yield "|---|---|"
    for argument in arguments:
        yield f"| `{_escaped(argument.metavar)}` | {_escaped(argument.help)} |"
    for option in options:
        flag = "/".join((*option.opts, *option.secondary_opts))
        value = "" if option.is_flag else f" {option.metavar}"
        usual = _usual(option)
        yield f"| `{flag}{_escaped(value)}` | {_escaped(_joined(option.help))}{usual} |"


def _usual(option: Any) -> str:
    if option.default is None or option.default is False or "[default" in (option.help or ""):
        return ""
    return f" Default: `{option.default}`."


def _methods(handle: type[Any]) -> Iterator[tuple[str, Any]]:
    """What a handle defines, with the parts that it is made of, in files beside its own."""
    beside = handle.__module__.removesuffix("_handle") + "_"
    for part in reversed(handle.__mro__):
        if part is handle or part.__module__.startswith(beside):
            yield from vars(part).items()


def _library() -> Iterator[str]:
    yield "# The library"
    yield ""
    yield "`import elman` is quick: what needs torch is imported when it is first used."
    for name in ("load", "mix", "train_model"):
        yield from _function(f"elman.{name}", getattr(elman, name))
    yield ""
    yield '`elman.train_NAME(...)` is `elman.train_model("NAME", ...)`. `elman.load` returns an'
    yield "object of the class on the right; the keywords are options of that task."
    yield ""
    yield "| | trains | keywords of its own | class |"
    yield "|---|---|---|---|"
    for task in built_in_tasks():
        own = ", ".join(f"`{o.name}`" for o in task.options if not (o.refusal or o.action))
        handle = imported(task.handle).__name__
        link = f"[{handle}](#elman{handle.lower()})"
        yield f"| `elman.train_{task.name}` | {task.what} | {own} | {link} |"
    yield from _function("elman.convert", elman.convert)
    yield from _function("elman.quality", elman.quality)
    handles = list(dict.fromkeys(imported(task.handle) for task in built_in_tasks()))
    results: dict[type[Any], None] = {}
    for handle in handles:
        yield ""
        yield f"## elman.{handle.__name__}"
        yield ""
        base = handle.__mro__[1]
        if base in handles:
            yield f"{_joined(handle.__doc__)} It has the methods of `{base.__name__}` too."
        else:
            yield _joined(handle.__doc__)
        for name, method in _methods(handle):
            if not name.startswith("_") and inspect.isfunction(method):
                yield from _function(f"{handle.__name__}.{name}", method)
                results |= dict.fromkeys(
                    _dataclasses(get_type_hints(method, localns=LAZY)["return"])
                )
    for function in (elman.mix, elman.quality):
        results |= dict.fromkeys(_dataclasses(get_type_hints(function)["return"]))
    for result in (Policies, *results):
        if result not in handles:
            yield from _result(result)
    yield ""
    yield "## Errors"
    yield ""
    yield f"`elman.ElmanError`: {_joined(elman.ElmanError.__doc__)}"
    yield ""
    yield f"`elman.UsageError`: {_joined(elman.UsageError.__doc__)}"
    yield ""
    yield "Both have a `message` and a `hint`. Any other exception is a bug in Elman."


def _dataclasses(hint: Any) -> Iterator[type[Any]]:
    """The dataclasses in a type."""
    if isinstance(hint, type) and is_dataclass(hint):
        yield hint
    for inner in get_args(hint):
        yield from _dataclasses(inner)


def _result(kind: type[Any]) -> Iterator[str]:
    yield ""
    yield f"## {kind.__name__}"
    yield ""
    if not (doc := _joined(kind.__doc__)).startswith(f"{kind.__name__}("):  # Python's own
        yield doc
        yield ""
    yield "| field | type | what it means |"
    yield "|---|---|---|"
    for setting in describe(kind):
        prose = _escaped(_joined(setting.prose))
        yield f"| `{setting.name}` | `{_escaped(setting.type)}` | {prose} |"


def _function(name: str, function: Any) -> Iterator[str]:
    signature = inspect.signature(function)
    listed = []
    for parameter in signature.parameters.values():
        if parameter.kind is parameter.KEYWORD_ONLY and "*" not in listed:
            listed.append("*")
        stars = "**" if parameter.kind is parameter.VAR_KEYWORD else ""
        usual = "" if parameter.default is parameter.empty else f" = {parameter.default!r}"
        if parameter.name != "self":
            listed.append(f"{stars}{parameter.name}: {parameter.annotation}{usual}")
    yield ""
    yield f"### {name}"
    yield ""
    yield "```"
    yield f"{name}({', '.join(listed)}) -> {signature.return_annotation}"
    yield "```"
    yield ""
    yield inspect.getdoc(function) or ""


class Section:
    """A config class of the page of settings, and the tasks that read it."""

    def __init__(self, config: type[Any], kind: str | None) -> None:
        """`kind` is the value of the setting `kind` that chooses this class, if there is one."""
        self.config = config
        self.kind = kind
        self.places: dict[str, list[str]] = {}
        """Dotted names of the group ("model.head"), with the tasks that have it there."""
        self.values: list[tuple[str, Any]] = []
        """Tasks and the values that they begin with."""

    @property
    def path(self) -> str:
        return next(iter(self.places))

    @property
    def title(self) -> str:
        return f"{self.path}: {self.config.__name__}"

    @property
    def link(self) -> str:
        anchor = "".join(c for c in self.title.lower() if c.isalnum() or c in " -_")
        return f"[{self.kind or self.config.__name__}](#{anchor.replace(' ', '-')})"

    def tasks(self) -> str:
        (first, *others) = self.places.items()
        also = [f"As `{place}`: {_codes(names)}." for place, names in others]
        return " ".join([f"Tasks: {_codes(first[1])}.", *also])


Sections = dict[type[Any], Section]


def _sections() -> Sections:
    """Every config class of every task once, in the order of PARTS."""
    found: Sections = {}
    for task in built_in_tasks():
        for name, value in _groups(task.config_class):
            _add(found, name, value, task.name)
    return dict(sorted(found.items(), key=lambda item: PARTS.index(item[1].path.split(".")[0])))


def _groups(config: type[Any]) -> Iterator[tuple[str, Any]]:
    """The fields of a config that are configs themselves: name and default."""
    for f in fields(config):
        if f.default_factory is not MISSING and is_dataclass(value := f.default_factory()):
            yield f.name, value


def _add(found: Sections, path: str, value: Any, task: str, kind: str | None = None) -> None:
    section = found.setdefault(type(value), Section(type(value), kind))
    section.places.setdefault(path, []).append(task)
    section.values.append((task, value))
    for f in fields(value):
        inner, name = getattr(value, f.name), f"{path}.{f.name}"
        if table := f.metadata.get("table"):
            for other in table:
                chosen = inner if inner.kind == other else look_up(table, other, name)()
                _add(found, name, chosen, task, other)
        elif is_dataclass(inner):
            _add(found, name, inner, task)


def _settings() -> Iterator[str]:
    sections = _sections()
    yield "# Settings"
    yield ""
    yield "The settings of a run by the dotted names that `--set` takes. In a recipe file the part"
    yield "before the dot is a table; in Python, `settings` may be nested or dotted. Each task has"
    yield "exactly the settings that it reads, and refuses others. `elman config show` prints those"
    yield "of a recipe or a run."
    yield ""
    yield "| task | " + " | ".join(PARTS) + " |"
    yield "|---" * (len(PARTS) + 1) + "|"
    for task in built_in_tasks():
        groups = dict(_groups(task.config_class))
        cells = [sections[type(groups[p])].link if p in groups else "none" for p in PARTS]
        yield f"| `{task.name}` | {' | '.join(cells)} |"
    yield from _table("The run", RunConfig, "", leave_out=PARTS)
    for section in sections.values():
        yield from _table(section.title, section.config, f"{section.path}.", sections, section)
    yield ""
    yield from _decoding()


def _decoding() -> Iterator[str]:
    yield "# Decoding options"
    yield ""
    yield _joined(DecodeOptions.__doc__)
    yield "In Python they are keywords of `LM.generate` and `LM.complete`, on the command line"
    yield "options of `elman generate`, over HTTP fields of `/v1/completions`, with the default and"
    yield "the range in brackets where these differ."
    yield ""
    yield "| Python | command line | HTTP | default | range | what it means |"
    yield "|---|---|---|---|---|---|"
    prose = {setting.name: _joined(setting.prose) for setting in describe(DecodeOptions)}
    for option in fields(DecodeOptions):
        facts = option.metadata
        default = DecodeOptions().__dict__[option.name]
        cells = [
            f"`{option.name}`",
            _flag(option.name, facts),
            _http(option.name, facts, default),
            "" if default is None else f"`{_value(default)}`",
            _range(facts["low"], facts["high"]),
            _escaped(prose[option.name]),
        ]
        yield f"| {' | '.join(cells)} |"


def _flag(name: str, facts: Mapping[str, Any]) -> str:
    if facts["command"] is None:
        return ""
    flag = f"`{facts['flag'] or '--' + name.replace('_', '-')}`"
    return flag if facts["command"] == "generate" else f"{flag} of `{facts['command']}`"


def _http(name: str, facts: Mapping[str, Any], default: Any) -> str:
    field = http_fields().get(name)
    if field is None:
        return ""
    differences = []
    if field.default is not None and field.default != default:
        differences.append(f"`{field.default}`")
    limits = _range(field.limits.get("ge", -inf), field.limits.get("le", inf))
    if limits != _range(facts["low"], facts["high"]):
        differences.append(limits or "any")
    return f"`{field.name}`" + (f" ({', '.join(differences)})" if differences else "")


def _range(low: float, high: float) -> str:
    if isinf(low):
        return ""
    return f"{low:g} or more" if isinf(high) else f"{low:g} to {high:g}"


def _table(
    title: str,
    config: type[Any],
    prefix: str,
    sections: Sections | None = None,
    section: Section | None = None,
    *,
    leave_out: tuple[str, ...] = (),
) -> Iterator[str]:
    yield ""
    yield f"## {title}"
    yield ""
    yield _joined(config.__doc__)
    if section is not None:
        yield ""
        yield section.tasks()
    yield ""
    yield "| setting | default | what it means |"
    yield "|---|---|---|"
    for setting in describe(config):
        if setting.name in leave_out:
            continue
        name = f"{prefix}{setting.name}"
        inner = [s.link for s in (sections or {}).values() if name in s.places]
        default = ", ".join(inner) or _default(setting.name, setting.default, section)
        yield f"| `{name}` | {default} | {_escaped(_joined(setting.prose))} |"


def _default(name: str, usual: Any, section: Section | None) -> str:
    """The default of a setting; a task whose default differs is named."""
    values: dict[str, list[str]] = {}
    if section is not None:
        for task, value in section.values:
            tasks = values.setdefault(_code(to_dict(getattr(value, name))), [])
            if task not in tasks:
                tasks.append(task)
    if len(values) < 2:
        return next(iter(values), _code(usual))
    return "; ".join(f"{value} ({', '.join(tasks)})" for value, tasks in values.items())


def _codes(names: list[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _code(value: Any) -> str:
    return "" if value is None or value == "" else f"`{_value(value)}`"


def _recipes() -> Iterator[str]:
    yield "# Recipes"
    yield ""
    yield "Built-in recipes, for `--recipe NAME`. Each is a TOML file whose values override the"
    yield "defaults; `elman config show NAME` prints all settings."
    for name, description in recipes.names().items():
        text = (files("elman.recipes") / f"{name}.toml").read_text(encoding="utf-8")
        yield ""
        yield f"## {name}"
        yield ""
        yield f"{description[:1].upper()}{description[1:]}."
        yield ""
        yield "```toml"
        yield text.partition("\n")[2].strip()
        yield "```"


def _corpora() -> Iterator[str]:
    yield "# Built-in corpora"
    yield ""
    yield "Names to use in place of text files; `package.module:NAME` names a corpus of your own."
    yield "Nothing is downloaded: the text comes with Python or with a small package of the"
    yield "`corpora` extra."
    yield ""
    yield "| name | what it is | comes with |"
    yield "|---|---|---|"
    for name, corpus in CORPORA.items():
        origin = ", ".join(corpus.packages) or "Python"
        yield f"| `{name}` | {_escaped(corpus.description)} | {origin} |"


def _value(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} = {_value(inner)}" for key, inner in value.items()) or "{}"
    return str(value).lower() if isinstance(value, bool) else str(value)


def _joined(text: str | None) -> str:
    """Join lines and paragraphs into one line."""
    return " ".join((text or "").split())


def _escaped(text: str | None) -> str:
    return (text or "").replace("|", "\\|").replace("<", "&lt;")


def main() -> None:
    REFERENCE.mkdir(exist_ok=True)
    for name, text in pages().items():
        (REFERENCE / name).write_text(text, encoding="utf-8")
        print(REFERENCE / name)
    STUB.write_text(stub(), encoding="utf-8")


if __name__ == "__main__":
    main()
