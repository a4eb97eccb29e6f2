"""`elman config show`: the resolved configuration of a recipe or of a run, as TOML."""

from __future__ import annotations

import json as json_module
from collections.abc import Collection, Iterator, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from elman.base.config import describe, to_dict
from elman.tasks.task import FROM_CORPUS, follows_corpus
from elman.terminal.console import result, result_json
from elman.terminal.options import Json, argument, option

app = typer.Typer(help="Show configurations.", no_args_is_help=True)


@app.command()
def show(
    name: Annotated[str, argument("RECIPE|RUN", "A built-in recipe, a TOML file or a run folder.")],
    explain: Annotated[bool, option(None, "Explain each setting above it.", "--explain")] = False,
    json: Json = False,
) -> None:
    """Print a configuration with all defaults.

    The output is a recipe: save it, edit it, and give it to --recipe. Settings
    that training derives from the corpus are marked.
    """
    from elman import recipes
    from elman.base.config import from_dict
    from elman.recipes.resolve import task_of_recipe
    from elman.tasks.opening import read_config

    folder = Path(name)
    derived: list[str] = []
    if folder.is_dir():
        config: Any = read_config(folder)
    else:
        settings = {"recipe": name, **recipes.read(name)}
        derived = follows_corpus(settings)
        kept = {
            group: {n: v for n, v in part.items() if f"{group}.{n}" not in derived}
            if isinstance(part, Mapping)
            else part
            for group, part in settings.items()
        }
        config = from_dict(task_of_recipe(settings).config_class, kept)
    if json:
        values = to_dict(config)
        for group, setting in (path.split(".") for path in derived):
            values[group][setting] = FROM_CORPUS
        result_json(values)
    else:
        result("\n".join(toml_lines(config, explain, derived=derived)))


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


def _toml(value: Any) -> str:
    if isinstance(value, Mapping):
        pairs = (f"{json_module.dumps(key)} = {_toml(inner)}" for key, inner in value.items())
        return "{" + ", ".join(pairs) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_toml, value)) + "]"
    return json_module.dumps(value, ensure_ascii=False)
