"""Recipes: TOML files with a `description` and any part of a `RunConfig`.

The built-in ones are beside this file. Listing them imports nothing heavy.
"""

from __future__ import annotations

import tomllib
from importlib.resources import files
from pathlib import Path
from typing import Any

from elman.base.documents import read_toml
from elman.base.errors import UsageError, nearest


def names() -> dict[str, str]:
    """The built-in recipes and their descriptions, in alphabetical order."""
    return {name: str(_built_in(name)["description"]) for name in _built_in_names()}


def read(recipe: str) -> dict[str, Any]:
    """Read the settings of a built-in recipe or a TOML file."""
    if recipe in _built_in_names():
        settings = _built_in(recipe)
    elif recipe.endswith(".toml") or Path(recipe).is_file() or Path(recipe).is_fifo():
        settings = read_toml(Path(recipe))
    else:
        raise UsageError(
            f"there is no recipe called '{recipe}'", nearest(recipe, _built_in_names())
        )
    settings.pop("description", None)
    return settings


def _built_in_names() -> list[str]:
    names = (entry.name for entry in files(__name__).iterdir())
    return sorted(name.removesuffix(".toml") for name in names if name.endswith(".toml"))


def _built_in(name: str) -> dict[str, Any]:
    return tomllib.loads((files(__name__) / f"{name}.toml").read_text(encoding="utf-8"))
