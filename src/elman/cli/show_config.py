"""`elman config show`: the resolved configuration of a recipe or of a run, as TOML."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from elman.base.config import to_dict
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
    from elman.recipes.writing import toml_lines
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
