"""Questions to models of single tasks: `POST /v1/NAME` with a text, from the tasks' declarations.

Every known task has its routes, and so has a task of a served model.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.encoders import jsonable_encoder

from elman.serve.http import schema
from elman.serve.http.choice_text import not_a_number
from elman.serve.http.context import ERRORS, answer, context_of, share_of
from elman.serve.http.errors import ApiError
from elman.serve.http.served import Served
from elman.tasks import all_tasks


def task_router(served: Iterable[Served]) -> APIRouter:
    """The routes of all known tasks, and of the tasks of served models.

    Tasks may declare routes of the same name: a model answers as its own task declares.
    """
    declared = {route.name: route for one in served for route in one.routes}
    declared |= {route.name: route for task in all_tasks() for route in task.routes}
    router = APIRouter()
    for route in declared.values():
        router.post(
            f"/v1/{route.name}",
            name=route.name,
            description=route.help,
            response_model=schema.TaskAnswer,
            responses=ERRORS,
            tags=["tasks"],
        )(_endpoint(route.name))
    return router


def _endpoint(name: str) -> Callable[[Request, schema.TaskRequest], Awaitable[Response]]:
    async def ask(request: Request, body: schema.TaskRequest) -> Response:
        context = context_of(request)
        served = context.model(body.model, name)
        route = next(route for route in served.routes if route.name == name)
        limit = context.limits.max_prompt_tokens
        if len(body.text) > limit:
            message = f"too long: {len(body.text):,} characters (limit {limit:,})"
            raise ApiError(400, message, param="text", code="context_length_exceeded")
        share = share_of(request)
        share.take(await context.read(request, lambda: served.reading_bytes(body.text)))
        result = await context.work(share, lambda: route.answer(served.handle, body.text))
        result = jsonable_encoder(result)
        if not _is_finite(result):
            raise not_a_number()
        return answer(
            request,
            schema.TaskAnswer(object=name, model=served.name, result=result),
        )

    return ask


def _is_finite(value: Any) -> bool:
    """Whether a JSON value has no number that JSON cannot represent."""
    if isinstance(value, (list, dict)):
        return all(map(_is_finite, value.values() if isinstance(value, dict) else value))
    return not isinstance(value, float) or math.isfinite(value)
