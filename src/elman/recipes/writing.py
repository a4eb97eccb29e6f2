"""Write a configuration as a recipe."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

from elman.base.config import describe, to_dict
from elman.base.files import write_text
from elman.tasks.task import FROM_CORPUS


def toml_lines(
    config: Any, explain: bool = False, table: str = "", derived: Collection[str] = ()
) -> Iterator[str]:
    """Write a config as lines of TOML, without settings that are None: TOML has no null. Those
    called `derived` are marked, since they follow from the corpus.
    """
    prose = {setting.name: setting.prose for setting in describe(type(config))}
    inner = {
        f.name: value for f in fields(config) if is_dataclass(value := getattr(config, f.name))
    }
    for f in fields(config):
        value, mark = to_dict(getattr(config, f.name)), ""
        if f"{table}.{f.name}" in derived:
            value, mark = FROM_CORPUS, "  # follows from the corpus"
        if f.name not in inner and value is not None:
            if explain:
                yield from (f"# {line}" for line in prose.get(f.name, "").splitlines())
            yield f"{f.name} = {_toml(value)}{mark}"
    for name, part in inner.items():
        path = f"{table}.{name}" if table else name
        yield ""
        if explain:
            yield from (f"# {line}" for line in prose.get(name, "").splitlines())
        yield f"[{path}]"
        yield from toml_lines(part, explain, path, derived)


def write_recipe(path: Path, config: Any, told: str) -> None:
    """Write the settings of a run, without its data, after a comment that says what they are."""
    data = replace(config.data, train=(), valid=(), test=())
    lines = toml_lines(replace(config, data=data, recipe="automatic"))
    write_text(path, f"# {told}\n" + "\n".join(lines) + "\n")


def _toml(value: Any) -> str:
    if isinstance(value, Mapping):
        pairs = (f"{json.dumps(key)} = {_toml(inner)}" for key, inner in value.items())
        return "{" + ", ".join(pairs) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_toml, value)) + "]"
    return json.dumps(value, ensure_ascii=False)
