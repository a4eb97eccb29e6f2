"""Routes of the lab: the claims, and experiments that run while the studio draws them.

An experiment is a process, `elman lab run CLAIM --stream`, whose rows are gathered here. Every half
second the figure and the findings of the rows so far are sent. The process is ended with the
connection. One experiment runs at a time.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import asdict
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from elman.base.errors import UsageError
from elman.lab.claims import experiment_named, experiments
from elman.lab.experiment import Experiment
from elman.lab.pages import code_of, source_of
from elman.lab.results import remembered
from elman.lab.verdicts import answers, joint
from elman.serve.http import lab_schema as schema
from elman.serve.http.context import ERRORS, Context, context_of
from elman.serve.http.errors import ApiError
from elman.terminal.console import finite

EVERY_SECONDS = 0.5
"""Between two figures of a running experiment."""

routes = APIRouter()


@routes.get("/v1/lab", responses={s: ERRORS[s] for s in (401, 404)}, tags=["lab"])
async def claims(request: Request) -> schema.Claims:
    """List the claims; empty if the server was not started with --lab."""
    found = await asyncio.to_thread(lambda: [_about(each) for each in experiments()])
    return schema.Claims(data=found if context_of(request).lab else [])


@routes.post("/v1/lab/{claim}", responses=ERRORS, tags=["lab"])
async def run(request: Request, claim: str, body: schema.LabRequest) -> Response:
    """Run the experiment of a claim: server-sent events with figures, findings, and the result."""
    if not context_of(request).lab:
        raise ApiError(404, "this server runs no experiments; start it with --lab")
    try:
        experiment = experiment_named(claim[:100])
        knob = experiment.knob.parse(str(body.knob)) if body.knob is not None else None
    except UsageError as error:
        raise ApiError(400, f"{error.message}; {error.hint}") from error
    context = context_of(request)
    if context.experiment_runs:
        raise ApiError(429, "another experiment is running here", code="busy")
    arguments = ["run", experiment.id, "--seeds", str(body.seeds), "--size", body.size, "--stream"]
    if knob is not None:
        arguments += ["--knob", str(knob)]
    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    context.experiment_runs = True
    events = _events(experiment, arguments)
    return _Stream(context, events, media_type="text/event-stream", headers=headers)


class _Stream(StreamingResponse):
    """A stream after which another experiment may run."""

    def __init__(self, context: Context, *arguments: Any, **keywords: Any) -> None:
        super().__init__(*arguments, **keywords)
        self._context = context

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._context.experiment_runs = False


async def _events(experiment: Experiment, arguments: list[str]) -> AsyncIterator[bytes]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "elman.cli", "lab", *arguments),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    told = asyncio.create_task(process.stderr.read())
    rows: list[dict[str, Any]] = []
    ended: set[int] = set()
    drawn = time.monotonic()
    try:
        while line := await process.stdout.readline():
            found = json.loads(line)
            if "row" in found:
                rows.append(found["row"])
            elif "ended" in found:
                ended.add(found["ended"])
            if "verdict" in found:
                so_far = await asyncio.to_thread(_so_far, experiment, rows, ended)
                yield _event({"result": found, **so_far})
            elif time.monotonic() > drawn + EVERY_SECONDS:
                yield _event(await asyncio.to_thread(_so_far, experiment, rows, ended))
                drawn = time.monotonic()
        if await process.wait() != 0:
            last = (await told).decode(errors="replace").strip().splitlines()
            yield _event({"error": {"message": last[-1] if last else "it failed"}})
        yield b"data: [DONE]\n\n"
    finally:
        if process.returncode is None:
            process.terminate()
            await process.wait()
        told.cancel()


def _so_far(experiment: Experiment, rows: list[dict[str, Any]], ended: set[int]) -> dict[str, Any]:
    """The figure of all rows, and what the seeds that are complete say."""
    found: dict[str, Any] = {"rows": len(rows), "seeds": len(ended)}
    # Too few rows for a figure. A StopIteration from a thread would never reach its future.
    with suppress(LookupError, ValueError, ArithmeticError, StopIteration):
        found["figure"] = asdict(experiment.figure(rows))
    if ended:
        findings = answers(experiment, [row for row in rows if row["seed"] in ended])
        found |= {"findings": list(map(asdict, findings)), "verdict": joint(findings)}
    return found


def _event(value: dict[str, Any]) -> bytes:
    return f"data: {json.dumps(finite(value))}\n\n".encode()


def _about(experiment: Experiment) -> schema.Claim:
    noted = remembered(experiment)
    knob = experiment.knob
    return schema.Claim(
        id=experiment.id,
        title=experiment.title,
        claim=experiment.claim,
        sources=list(experiment.sources),
        design=experiment.design,
        breaks=experiment.breaks,
        limits=experiment.limits,
        questions=[
            schema.LabQuestion(
                name=each.name, unit=each.unit, prediction=each.prediction, rule=each.says()
            )
            for each in experiment.questions
        ],
        knob=schema.LabKnob(
            name=knob.name,
            meaning=knob.meaning,
            values=list(knob.values),
            default=knob.default,
            broken=knob.broken,
        ),
        code=[
            schema.LabCode(name=place, file=file, line=line, text=code_of(place))
            for place in experiment.equations
            for file, line in [source_of(place)]
        ],
        reading=list(experiment.reading),
        seconds=noted.get("seconds", experiment.seconds),
        verdict=noted.get("verdict"),
    )
