"""`elman models`: the models that come with Elman."""

from __future__ import annotations

from elman.terminal.console import number, result, result_json, size, table, talk_notes
from elman.terminal.options import Json


def models(json: Json = False) -> None:
    """List the models that come with Elman.

    Their names are accepted wherever MODEL is; `elman info NAME` explains one.
    """
    from elman.runs.packaged import described, packaged

    found = [described(run) for run in packaged().values()]
    if json:
        result_json(found)
        return
    rows = [
        (
            one["name"],
            one["what"],
            size(int(str(one["bytes"]))),
            f"{number(float(str(one['perplexity'])))} per {one['per']}"
            if one["perplexity"]
            else "",
        )
        for one in found
    ]
    result(table(rows, header=("name", "what it is", "size", "perplexity")))
    talk_notes(
        [
            "perplexity on the last 10% of the text, which was held out; figures of "
            "different tokens or vocabularies cannot be compared"
        ]
    )
