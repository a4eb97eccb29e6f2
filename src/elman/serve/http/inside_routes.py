"""Routes that look inside: activations of a layer, and reports of training runs."""

from __future__ import annotations

import json
import math
import time
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from fastapi import APIRouter, Query, Request, Response
from numpy.typing import NDArray

from elman.base.documents import intact, parse_line, read_json
from elman.base.errors import ElmanError
from elman.evaluate.inside import PART_NAMES, Inside, alike, layer_steps, parts_of
from elman.runs.card import FIGURES
from elman.runs.run_folder import CONFIG_FILE, METRICS_FILE
from elman.serve.http import inside_schema, schema
from elman.serve.http.choice_text import not_a_number
from elman.serve.http.context import ERRORS, answer, context_of, share_of
from elman.serve.http.errors import ApiError
from elman.serve.http.served import Served
from elman.terminal.console import finite

MAX_TOKENS = 512
"""Maximum length of a text: each token is a column of a picture."""
MAX_READ = 8 << 20
"""Maximum bytes of reports in one answer."""

MAX_SETTING = 200
"""Longest setting in the list of runs, in characters."""
SILENT_SECONDS = 300.0
"""A run without reports for this long is not called running."""
HIGHER = ("cider", "bleu", "chrf", "f1", "accuracy", "balanced_accuracy", "macro_f1")
"""Figures of which more is better."""

routes = APIRouter()


@routes.post("/v1/inside", response_model=schema.Inside, responses=ERRORS, tags=["inside"])
async def inside(request: Request, body: schema.InsideRequest) -> Response:
    """Units or gates of one layer over a text, and the gradient of one prediction."""
    context = context_of(request)
    served = context.model(body.model, "inside")
    _, *ids = await _ids(request, served, body.text)
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


@routes.post(
    "/v1/inside/unit", response_model=inside_schema.Unit, responses=ERRORS, tags=["inside"]
)
async def unit(request: Request, body: inside_schema.UnitRequest) -> Response:
    """Everything that one unit of a layer computes over a text: its state and its gates."""
    context = context_of(request)
    served = context.model(body.model, "inside")
    ids = await _ids(request, served, body.text)

    def look() -> inside_schema.Unit:
        steps = layer_steps(served.handle.model, ids, body.layer)
        width = steps["c" if "c" in steps else "h"].shape[1]
        if body.unit >= width:
            raise ApiError(400, f"layer {body.layer} has no unit {body.unit}", param="unit")
        cell = type(served.handle.model.stack.layers[body.layer].cell).__name__
        return inside_schema.Unit(
            model=served.name,
            tokens=_spelled(served, ids),
            layer=body.layer,
            unit=body.unit,
            num_units=width,
            cell=cell.removesuffix("Cell").lower(),
            steps={
                name: _rounded(values[:, body.unit])
                for name, values in steps.items()
                if values.shape[1] == width
            },
        )

    return answer(request, await context.work(share_of(request), look))


@routes.post(
    "/v1/inside/alike", response_model=inside_schema.Alike, responses=ERRORS, tags=["inside"]
)
async def alike_places(request: Request, body: inside_schema.AlikeRequest) -> Response:
    """Units that stay on in a span of a text, and the other places where they are on."""
    context = context_of(request)
    served = context.model(body.model, "inside")
    ids = await _ids(request, served, body.text)
    if not body.first <= body.last < len(ids):
        raise ApiError(400, f"the text has no tokens {body.first} to {body.last}", param="last")

    def look() -> inside_schema.Alike:
        known = parts_of(served.handle.model, body.layer)
        if body.part not in known:
            message = f"layer {body.layer} has no part '{body.part[:20]}'; ask {', '.join(known)}"
            raise ApiError(400, message, param="part")
        values_TH = layer_steps(served.handle.model, ids, body.layer)[body.part]
        found = alike(values_TH, body.first, body.last, threshold=body.threshold)
        return inside_schema.Alike(
            model=served.name,
            tokens=_spelled(served, ids),
            units=[
                inside_schema.AlikeUnit(
                    unit=u, sign=sign, contrast=contrast, values=_rounded(values_TH[:, u])
                )
                for u, sign, contrast in found.units
            ],
            places=[
                inside_schema.AlikePlace(first=first, last=last, share=share)
                for first, last, share in found.places
            ],
        )

    return answer(request, await context.work(share_of(request), look))


async def _ids(request: Request, served: Served, text: str) -> list[int]:
    """The boundary token and the tokens of a text that is short enough for a picture."""
    tokenizer = served.handle.tokenizer
    encoded = await context_of(request).read(request, lambda: tokenizer.encode(text))
    ids = [tokenizer.boundary_id, *encoded.tolist()]
    if len(ids) > MAX_TOKENS:
        message = f"too long: {len(ids):,} tokens (limit {MAX_TOKENS})"
        raise ApiError(400, message, param="text")
    return ids


def _spelled(served: Served, ids: list[int]) -> list[str]:
    return [served.handle.tokenizer.token(token) for token in ids]


def _rounded(values: NDArray[np.float32]) -> list[float]:
    if not np.isfinite(values).all():
        raise not_a_number()
    return [round(float(value), 4) for value in values]


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
    kind, settings = None, {}
    try:
        with intact(folder / CONFIG_FILE):
            config = read_json(folder / CONFIG_FILE)
            kind, settings = str(config["model"]["kind"]), _flat(config)
    except ElmanError:
        pass  # the run has just started
    best, last = _figures(folder / METRICS_FILE, stat.st_mtime_ns, stat.st_size)
    status: Any = last if last in ("done", "stopped") else "running"
    if status == "running" and time.time() - stat.st_mtime > SILENT_SECONDS:
        status = "silent"
    return schema.RunSummary(
        name=folder.name,
        kind=kind,
        settings=settings,
        best=best,
        status=status,
        updated=stat.st_mtime,
        size=stat.st_size,
    )


def _flat(config: dict[str, Any], before: str = "") -> dict[str, Any]:
    """Settings with dotted keys; of the data's paths only the names."""
    found: dict[str, Any] = {}
    for name, value in config.items():
        if isinstance(value, dict):
            found |= _flat(value, f"{before}{name}.")
        elif before == "data." and isinstance(value, list):
            found[f"{before}{name}"] = ", ".join(Path(str(path)).name for path in value)
        elif len(str(value)) <= MAX_SETTING:
            found[f"{before}{name}"] = finite(value) if isinstance(value, float) else value
    return found


@lru_cache(maxsize=256)
def _figures(path: Path, _time: int, _size: int) -> tuple[dict[str, float], str]:
    """The best validation figures of a run, and the kind of its last report."""
    best: dict[str, float] = {}
    kind = ""
    with path.open("rb") as file:
        file.seek(max(0, file.seek(0, 2) - MAX_READ))
        lines = file.read().split(b"\n")
    for line in lines:
        try:
            report = json.loads(line)
            summary = report.get("summary") or {}
            valid = [name for name in report if name.startswith("valid_")]
            found = [(name.removeprefix("valid_"), report[name]) for name in valid]
            found += [(name, summary.get(name)) for name in FIGURES]
            kind = str(report.get("kind", ""))
        except (ValueError, AttributeError, TypeError):
            continue  # a damaged line
        for name, value in found:
            if isinstance(value, (int, float)) and math.isfinite(value):
                better = max if name in HIGHER else min
                best[name] = better(best.get(name, value), float(value))
    return best, kind
