"""Configuration: frozen, keyword-only dataclasses that read from and write to plain dictionaries.

A config class documents each field with a string literal under it:

    @dataclass(frozen=True, kw_only=True)
    class OptimiserConfig:
        kind: str = "adam"
        \"\"\"Which optimiser: sgd, adam or adamw.\"\"\"

That prose feeds the help text, the reference page and the studio form (`describe`). A field whose
class is chosen by name has its table in the metadata, `field(metadata={"table": MODELS})`; the
dictionary's `kind` selects the config class.

Reading is strict: for an unknown key, the error proposes the nearest spelling or the group that has
this name; for a value of the wrong type, it names the expected type.
"""

from __future__ import annotations

import ast
import functools
import inspect
import math
import sys
import types
import typing
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from datetime import date, time
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, get_args, get_origin

from elman.base.documents import parse_toml
from elman.base.errors import UsageError, closest, in_words, nearest
from elman.base.tables import look_up

C = TypeVar("C")

LARGEST = 2**64 - 1
"""Limit on the size of whole numbers: a larger one is neither a size nor a seed."""
LONGEST_SHOWN = 100
"""Limit on the characters of a value in a message."""

SYNONYMS = {
    "lr": "learning_rate",
    "bptt": "chunk_length",
    "batch": "batch_size",
    "layers": "num_layers",
    "units": "hidden_size",
}
"""Names of settings in other programs."""


class UnknownSetting(UsageError):
    """An unknown setting: `path` is its dotted name, `place` that of the first unknown part of it,
    `beside` are the keys that exist there.
    """

    def __init__(self, path: str, place: str, beside: Iterable[str]) -> None:
        super().__init__(f"unknown setting '{path}'")
        self.path, self.place, self.beside = path, place, list(beside)


class UnreadSetting(UsageError):
    """A setting that nothing reads, because of the other settings; `path` is its dotted name."""

    def __init__(self, path: str, hint: str) -> None:
        super().__init__(f"'{path}' is set, but nothing reads it", hint)
        self.path = path


def from_dict(cls: type[C], data: Mapping[str, Any], where: str = "") -> C:
    """Build a `cls` from a dictionary; `where` is the dotted path so far, for errors."""
    try:
        return _read(cls, data, where)
    except UnknownSetting as error:
        error.hint = _hint(error.place, error.beside, list(setting_names(cls, data, where)))
        raise


def without_unknown(cls: type[Any], data: Mapping[str, Any]) -> dict[str, Any]:
    """Drop the keys that `cls` does not have, at any depth.

    A part chosen by kind is left unchanged if `data` does not have its kind.
    """
    kept = {}
    chosen = {f.name for f in fields(cls) if "table" in f.metadata}
    for name, inner in _parts(cls, data):
        if name in data:
            value = data[name]
            known = isinstance(value, Mapping) and (name not in chosen or "kind" in value)
            kept[name] = without_unknown(inner, value) if inner and known else value
    return kept


def setting_names(cls: type[Any], data: Mapping[str, Any], where: str = "") -> Iterator[str]:
    """Yield the dotted names of all settings of `cls`; `data` says the kinds of chosen parts."""
    for name, inner in _parts(cls, data):
        path = f"{where}.{name}" if where else name
        if inner is None:
            yield path
        else:
            value = data.get(name)
            yield from setting_names(inner, value if isinstance(value, Mapping) else {}, path)


def _parts(cls: type[Any], data: Mapping[str, Any]) -> Iterator[tuple[str, type[Any] | None]]:
    """Yield each field's name and, if it is a config, its class: for one chosen from a table, that
    of the kind in `data` or by default.
    """
    hints = typing.get_type_hints(cls)
    for f in fields(cls):
        inner, value = hints[f.name], data.get(f.name)
        if table := f.metadata.get("table"):
            default = f.default_factory().kind if f.default_factory is not MISSING else None
            kind = str(value.get("kind", default) if isinstance(value, Mapping) else default)
            inner = look_up(table, kind, f.name) if kind in table else None
        yield f.name, inner if isinstance(inner, type) and is_dataclass(inner) else None


def same_setting(name: str, names: Iterable[str]) -> list[str]:
    """Return the dotted `names` that end in `name` or its synonym."""
    wanted = (name, SYNONYMS.get(name))
    return [path for path in names if path.rpartition(".")[2] in wanted]


def _hint(path: str, beside: list[str], names: list[str]) -> str:
    """Propose settings for the unknown `path`."""
    group, _, name = path.rpartition(".")
    here = [f"{group}.{other}" if group else other for other in beside]
    alike = [other for other in here if name in other.rpartition(".")[2].split("_")]
    elsewhere = same_setting(name, names)
    if group and len(elsewhere) > 1:  # such as `kind`, which many groups have: none is near
        elsewhere = []
    if found := elsewhere or alike:
        *others, last = [f"'{other}'" for other in found]
        return f"did you mean {', '.join(others)}{' or ' if others else ''}{last}?"
    if (close := closest(name, beside)) is not None:
        return f"did you mean '{f'{group}.{close}' if group else close}'?"
    return f"choose one of: {', '.join(sorted(here))}"


def _read(cls: type[C], data: Mapping[str, Any], where: str) -> C:
    hints = typing.get_type_hints(cls)
    known = {f.name: f for f in fields(cls)}  # type: ignore[arg-type]
    values = {}
    for key, value in data.items():
        path = f"{where}.{key}" if where else key
        if key not in known:
            raise UnknownSetting(_first_leaf(path, value), path, known)
        if "table" in known[key].metadata:
            values[key] = _chosen(known[key], value, path)
        else:
            values[key] = _convert(hints[key], value, path)
    for name, f in known.items():
        if name not in values and f.default is MISSING and f.default_factory is MISSING:
            path = f"{where}.{name}" if where else name
            raise UsageError(f"setting '{path}' is missing", f"set {path}")
    return cls(**values)


def _first_leaf(path: str, value: Any) -> str:
    """The dotted name of the first setting in `value`, a group of settings at `path`."""
    while isinstance(value, Mapping) and value:
        key = next(iter(value))
        path, value = f"{path}.{key}", value[key]
    return path


def to_dict(config: Any) -> Any:
    """Undo `from_dict`: plain dictionaries (`kind` first), lists and values, with defaults."""
    if is_dataclass(config) and not isinstance(config, type):
        return {f.name: to_dict(getattr(config, f.name)) for f in _kind_first(config)}
    if isinstance(config, (list, tuple)):
        return [to_dict(item) for item in config]
    if isinstance(config, Mapping):
        return {key: to_dict(value) for key, value in config.items()}
    return str(config) if isinstance(config, Path) else config


def _kind_first(config: Any) -> list[Field[Any]]:
    """The fields of a config or its class, `kind` before those that it inherits."""
    return sorted(fields(config), key=lambda f: f.name != "kind")


def merge(base: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """Override values of `base` by those of `other`; nested dictionaries are merged key by key.

    A dictionary of another `kind` replaces the whole dictionary: settings of one kind of model or
    tokenizer mean nothing to another kind.
    """
    merged = dict(base)
    for key, value in other.items():
        old = merged.get(key)
        if isinstance(old, Mapping) and isinstance(value, Mapping):
            same = "kind" not in value or "kind" not in old or value["kind"] == old["kind"]
            merged[key] = merge(old, value) if same else dict(value)
        else:
            merged[key] = value
    return merged


def parse_overrides(assignments: Iterable[str]) -> dict[str, Any]:
    """Parse `["model.hidden_size=512", ...]` as a nested dictionary; values are TOML or text."""
    values = {}
    for assignment in assignments:
        key, equals, text = assignment.partition("=")
        if not equals or not key.strip():
            raise UsageError(
                f"'{assignment}' is not of the form key=value", "write --set model.hidden_size=512"
            )
        values[key.strip()] = _parse_value(text.strip())
    return nested(values)


def nested(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Turn settings with dotted names, nested dictionaries, or both, into nested dictionaries."""
    result: dict[str, Any] = {}
    for key, value in settings.items():
        *parents, leaf = key.split(".")
        node = result
        for parent in parents:
            node = node.setdefault(parent, {})
            if not isinstance(node, dict):
                raise UsageError(
                    f"'{key}' is inside '{parent}', which was given a single value",
                    "leave out one of the two",
                )
        if isinstance(value, Mapping) and isinstance(node.get(leaf, {}), dict):
            value = merge(node.get(leaf, {}), nested(value))
        node[leaf] = value
    return result


def flat(settings: Mapping[str, Any], group: str = "") -> dict[str, Any]:
    """Undo `nested`: settings by their dotted names, in their order."""
    result: dict[str, Any] = {}
    for key, value in settings.items():
        result |= (
            flat(value, f"{group}{key}.") if isinstance(value, Mapping) else {group + key: value}
        )
    return result


def at_least(name: str, value: float, least: float, hint: str = "") -> None:
    """Refuse a value of the setting `name` that is below `least`, infinite or NaN."""
    if not least <= value < math.inf:
        raise UsageError(f"{name} cannot be {value}", hint or f"use {least} or more")


def between(name: str, value: float, low: float, high: float, *, below: bool = False) -> None:
    """Refuse a value of the setting `name` outside [low, high]; `below`: outside [low, high)."""
    if not low <= value <= high or math.isinf(value) or (below and value == high):
        end = f"below {high:g}" if below else f"at most {high:g}"
        raise UsageError(f"{name} cannot be {value}", f"use {low:g} or more, and {end}")


def refuse_unread(config: Any, where: str, names: Collection[str], needs: str) -> None:
    """Refuse those settings among `names` that differ from their defaults, because nothing reads
    them; `needs` is the setting, at `where`, that would change this.
    """
    for f in fields(config):
        default = f.default if f.default_factory is MISSING else f.default_factory()
        if f.name in names and getattr(config, f.name) != default:
            raise UnreadSetting(f"{where}.{f.name}", f"leave it out, or set {where}.{needs}")


def check_reads(config: Any, where: str, choice: str, reads: Mapping[str, Collection[str]]) -> None:
    """Refuse settings that the value of the setting `choice` does not read; `reads` lists, for each
    value, those that it reads and others may not.
    """
    for name in {name: None for names in reads.values() for name in names}:
        values = [value for value, names in reads.items() if name in names]
        if getattr(config, choice) not in values:
            refuse_unread(config, where, [name], f"{choice} to {' or '.join(values)}")


def without_unread(
    read: Callable[[dict[str, Any]], C], data: dict[str, Any]
) -> tuple[C, list[str]]:
    """Call `read` with `data`, without the settings in it that `read` refuses as unread; return
    the result and the names of these settings.
    """
    unread: list[str] = []
    while True:
        try:
            return read(data), unread
        except UnreadSetting as error:
            try:
                data = without(data, error.path)
            except KeyError:  # it is not in `data`
                raise error from None
            unread.append(error.path)


def without(data: Mapping[str, Any], path: str) -> dict[str, Any]:
    """Copy nested dictionaries without the setting of this dotted name."""
    name, dot, rest = path.partition(".")
    kept = dict(data)
    if dot:
        kept[name] = without(kept[name], rest)
    else:
        del kept[name]
    return kept


@dataclass(frozen=True)
class Setting:
    """A field of a config, for documentation."""

    name: str
    type: str
    default: Any
    prose: str


def describe(cls: type[Any]) -> list[Setting]:
    """List the fields of a config class with the prose under each.

    `kind` is first; without prose of its own it has the docstring of the class.
    """
    prose = {"kind": inspect.getdoc(cls) or ""}
    prose |= {name: text for c in reversed(cls.__mro__) for name, text in _prose(c).items()}
    settings = []
    for f in _kind_first(cls):
        default = None if f.default is MISSING else f.default
        if f.default_factory is not MISSING:
            default = to_dict(f.default_factory())
        kind = f.type if isinstance(f.type, str) else getattr(f.type, "__name__", str(f.type))
        settings.append(Setting(f.name, kind, default, prose.get(f.name, "")))
    return settings


@functools.cache
def _classes(module: str) -> dict[str, list[ast.stmt]]:
    """Parse the classes of a module: their names and statements."""
    try:
        tree = ast.parse(inspect.getsource(sys.modules[module]))
    except (KeyError, OSError, TypeError):  # no source, as for built-in types
        return {}
    return {node.name: node.body for node in tree.body if isinstance(node, ast.ClassDef)}


def _prose(cls: type[Any]) -> dict[str, str]:
    prose = {}
    for statement, following in pairwise(_classes(cls.__module__).get(cls.__qualname__, [])):
        if (
            isinstance(statement, ast.AnnAssign)
            and isinstance(statement.target, ast.Name)
            and isinstance(following, ast.Expr)
            and isinstance(following.value, ast.Constant)
            and isinstance(following.value.value, str)
        ):
            prose[statement.target.id] = inspect.cleandoc(following.value.value)
    return prose


def _parse_value(text: str) -> Any:
    try:
        value = parse_toml(f"value = {text}")["value"]
        # No setting is a date: 2020-01-01 is the name of a file.
        return text if isinstance(value, (date, time)) else value
    except RecursionError as error:
        raise UsageError(f"'{text[:20]}...' is nested too deeply", "check the value") from error
    except ValueError:
        return text


def _chosen(field: Field[Any], value: Any, path: str) -> Any:
    """Read `value` as the config class of its kind, or of the default's kind."""
    table = field.metadata["table"]
    if is_dataclass(value):
        return value
    if isinstance(value, Mapping) and "kind" not in value and callable(field.default_factory):
        value = {"kind": field.default_factory().kind, **value}
    if not isinstance(value, Mapping) or not isinstance(value.get("kind"), str):
        raise UsageError(
            f"'{path}' needs a kind", f"set {path}.kind to one of: {', '.join(sorted(table))}"
        )
    chosen = look_up(table, value["kind"], path)
    if not (isinstance(chosen, type) and is_dataclass(chosen)):
        raise UsageError(
            f"{path}.kind: {value['kind']} is not a dataclass", "name a class of settings"
        )
    return _read(chosen, value, path)


def _convert(hint: Any, value: Any, path: str) -> Any:
    """Convert `value` to the type `hint`; raise an error that names it if that is impossible."""
    origin = get_origin(hint)
    if hint is Any:
        return value
    if origin in (Union, types.UnionType):
        options = get_args(hint)
        if value is None and type(None) in options:
            return None
        errors = []
        for option in (o for o in options if o is not type(None)):
            try:
                return _convert(option, value, path)
            except UsageError as error:
                errors.append(error)
        raise errors[0]
    if origin is Literal:
        if value not in get_args(hint):
            allowed = [str(a) for a in get_args(hint)]
            shown = _shown(value)
            raise UsageError(f"'{path}' cannot be {shown}", nearest(shown.strip("'"), allowed))
        return value
    if origin in (tuple, list):
        item = get_args(hint)[0]
        if isinstance(value, str) and item in (int, float):
            value = [_parse_value(part.strip()) for part in value.split(",")]
        elif isinstance(value, str) or not isinstance(value, Iterable):
            value = [value]
        return origin(_convert(item, v, f"{path}[{i}]") for i, v in enumerate(value))
    if origin in (dict, Mapping) and isinstance(value, Mapping):
        return dict(value)
    if isinstance(hint, type) and is_dataclass(hint):
        if isinstance(value, hint):
            return value
        if isinstance(value, Mapping):
            return _read(hint, value, path)
    elif hint is float and type(value) is float and not math.isfinite(value):
        raise UsageError(f"{path} cannot be {value}", "use a finite number")
    elif hint in (int, float) and type(value) is int and abs(value) > LARGEST:
        raise UsageError(f"{path} cannot be {_shown(value)}", "use a smaller number")
    elif hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    elif hint is int and isinstance(value, float) and value.is_integer():
        return int(value)
    elif (
        isinstance(hint, type)
        and isinstance(value, hint)
        and (hint is bool or not isinstance(value, bool))
    ):
        return value
    elif hint is Path and isinstance(value, str):
        return Path(value)
    expected = "a group of settings" if is_dataclass(hint) else in_words(origin or hint)
    raise UsageError(
        f"'{path}' should be {expected}, not {_shown(value)}",
        "check the value and its quotes",
    )


def _shown(value: Any) -> str:
    """The beginning of a value in a message."""
    try:
        text = repr(value)
    except ValueError:  # Python converts no number of more than 4,300 digits
        return "a number of thousands of digits"
    return text if len(text) <= LONGEST_SHOWN else f"{text[:LONGEST_SHOWN]}..."
