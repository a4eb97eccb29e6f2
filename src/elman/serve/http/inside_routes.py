"""Routes that look inside: activations of a layer, and reports of training runs."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
from fastapi import APIRouter, Query, Request, Response

from elman.base.documents import intact, parse_line, read_json
from elman.base.errors import ElmanError
from elman.evaluate.inside import PART_NAMES, Inside
from elman.runs.run_folder import CONFIG_FILE, METRICS_FILE
from elman.serve.http import schema
from elman.serve.http.choice_text import not_a_number
from elman.serve.http.context import ERRORS, answer, context_of, share_of
from elman.serve.http.errors import ApiError
from elman.terminal.console import finite

MAX_TOKENS = 512
"""Maximum length of a text: each token is a column of a picture."""
MAX_READ = 8 << 20
"""Maximum bytes of reports in one answer."""

routes = APIRouter()


@routes.post("/v1/inside", response_model=schema.Inside, responses=ERRORS, tags=["inside"])
async def inside(request: Request, body: schema.InsideRequest) -> Response:
    """Units or gates of one layer over a text, and the gradient of one prediction."""
    context = context_of(request)
    served = context.model(body.model, "inside")
    encoded = await context.read(request, lambda: served.handle.tokenizer.encode(body.text))
    ids = encoded.tolist()
    if len(ids) + 1 > MAX_TOKENS:
        message = f"too long: {len(ids) + 1:,} tokens (limit {MAX_TOKENS})"
        raise ApiError(400, message, param="text")
    if body.target is not None and body.target > len(ids):
        raise ApiError(400, f"the text has no token {body.target}", param="target")

    def look() -> schema.Inside:
        found: Inside = served.handle.inside(
            ids, layer=body.layer, part=body.part, target=body.target
        )
        if not np.isfinite(found.values).all():
            raise not_a_number()
        order = found.units(body.max_units)
        surprisal = found.surprisal[found.target]
        return schema.Inside(
            model=served.name,
            tokens=found.tokens,
            layers=found.num_layers,
            layer=found.layer,
            parts=[
                schema.PartOfLayer(part=part, name=PART_NAMES.get(part, part))
                for part in found.parts
            ],
            part=found.part,
            units=order,
            values=[[round(x, 4) for x in row] for row in found.values[:, order].T.tolist()],
            target=found.target,
            gradient=found.gradient,
            state_gradients=found.state_gradients,
            surprisal=surprisal if surprisal is not None and math.isfinite(surprisal) else None,
        )

    return answer(request, await context.work(share_of(request), look))


@routes.get("/v1/runs", responses={401: ERRORS[401]}, tags=["runs"])
async def runs(request: Request) -> schema.RunList:
    """Runs in the folder of `--runs`, latest first."""
    found = [_summary(folder) for folder in _folders(context_of(request).runs).values()]
    return schema.RunList(data=sorted(found, key=lambda run: -run.updated))


@routes.get("/v1/runs/{name}", responses={s: ERRORS[s] for s in (400, 401, 404)}, tags=["runs"])
async def reports(
    request: Request, name: str, after: int = Query(0, ge=0, lt=1 << 62)
) -> schema.RunReports:
    """Reports of a run, from byte `after` of its file."""
    # Looking up the name among existing runs keeps requests from reaching other paths.
    folder = _folders(context_of(request).runs).get(name)
    if folder is None:
        raise ApiError(404, f"there is no run '{name[:100]}'", code="run_not_found")
    with (folder / METRICS_FILE).open("rb") as file:
        size = file.seek(0, 2)
        start = after if after <= size else 0  # resuming truncated the file: start over
        file.seek(start)
        data = file.read(MAX_READ)
    whole = data[: data.rfind(b"\n") + 1]
    found: list[dict[str, Any]] = []
    for number, line in enumerate(whole.split(b"\n")[:-1], start=1):
        try:
            found.append(finite(parse_line(line, folder / METRICS_FILE, number)))
        except ElmanError:
            found.append({"kind": "note", "note": f"a line of {METRICS_FILE} is damaged"})
    return schema.RunReports(name=name, reports=found, next=start + len(whole))


def _folders(runs: Path | None) -> dict[str, Path]:
    if runs is None or not runs.is_dir():
        return {}
    folders = sorted(runs.iterdir())
    return {folder.name: folder for folder in folders if (folder / METRICS_FILE).is_file()}


def _summary(folder: Path) -> schema.RunSummary:
    stat = (folder / METRICS_FILE).stat()
    kind = None
    try:
        with intact(folder / CONFIG_FILE):
            kind = str(read_json(folder / CONFIG_FILE)["model"]["kind"])
    except ElmanError:
        pass  # the run has just started
    return schema.RunSummary(name=folder.name, kind=kind, updated=stat.st_mtime, size=stat.st_size)
