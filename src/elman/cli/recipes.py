"""`elman recipes`: the built-in recipes."""

from __future__ import annotations

from elman.terminal.console import result, result_json, table
from elman.terminal.options import Json


def recipes(json: Json = False) -> None:
    """List the built-in recipes.

    Give one to --recipe; `elman config show NAME` prints it.
    """
    from elman.recipes import names

    rows = list(names().items())
    if json:
        result_json([{"name": name, "description": description} for name, description in rows])
    else:
        result(table(rows, header=("name", "what it is")))
