"""Choosing by name through a literal table, without importing what is not chosen.

A table maps a name to `"package.module:attribute"`. It is written out where a reader can see all
of it, and importing it imports nothing: `import elman` stays quick because torch is behind these
strings.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

from elman.base.errors import UsageError, nearest

Table = Mapping[str, str]


def look_up(table: Table, name: str, what: str) -> Any:
    """Import what `table` has under `name`; `what` is the kind of thing, for the error."""
    if name not in table:
        raise UsageError(f"there is no {what} called '{name}'", nearest(name, table))
    module_name, _, attribute = table[name].partition(":")
    return getattr(import_module(module_name), attribute)
