"""`elman corpora`: the built-in corpora."""

from __future__ import annotations

from elman.terminal.console import result, result_json, table
from elman.terminal.options import Json


def corpora(json: Json = False) -> None:
    """List the built-in corpora.

    Their names are accepted wherever DATA is.
    """
    from elman.text.corpora import CORPORA

    if json:
        result_json(
            [
                {
                    "name": name,
                    "description": corpus.description,
                    "files": len(corpus.files),
                    "available": corpus.available,
                }
                for name, corpus in CORPORA.items()
            ]
        )
        return
    missing = "needs: pip install 'elman[corpora]'"
    rows = [(name, c.description, "" if c.available else missing) for name, c in CORPORA.items()]
    result(table(rows, header=("name", "what it is", "")))
