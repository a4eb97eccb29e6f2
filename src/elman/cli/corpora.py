"""`elman corpora`: the texts that need no download."""

from __future__ import annotations

from elman.terminal.console import result, result_json, table
from elman.terminal.options import Json


def corpora(json: Json = False) -> None:
    """List the built-in corpora.

    Their names can stand wherever DATA is asked for.
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
    rows = [
        (
            name,
            corpus.description,
            "" if corpus.available else "needs: pip install 'elman[corpora]'",
        )
        for name, corpus in CORPORA.items()
    ]
    result(table(rows, header=("name", "what it is", "")))
