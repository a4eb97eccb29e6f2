"""What models other than language models are asked for: tags, classes, translations.

Each route asks the handle that `elman.load` gave, by `ASK`; models that cannot are refused (see
`served.ABILITIES`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.encoders import jsonable_encoder

from elman.base.errors import UsageError
from elman.serve.http import schema
from elman.serve.http.context import ERRORS, answer, context_of
from elman.serve.http.errors import ApiError

routes = APIRouter()


def _translate(handle: Any, text: str) -> dict[str, Any]:
    """The translation, and where the translator looked, if it has attention."""
    result = {"text": handle.translate(text)}
    try:
        return result | asdict(handle.align(text))
    except UsageError:
        return result


ASK: dict[str, Callable[[Any, str], Any]] = {
    "tag": lambda handle, text: handle.tag(text),
    "classify": lambda handle, text: handle.classify(text),
    "translate": _translate,
}
"""How a handle is asked for each ability."""


async def _ask(request: Request, body: schema.TaskRequest, ability: str) -> Response:
    context = context_of(request)
    served = context.model(body.model, ability)
    most = context.limits.max_prompt_tokens
    if len(body.text) > most:
        message = f"the text has {len(body.text)} characters, and {most} are the most"
        raise ApiError(400, message, param="text", code="context_length_exceeded")
    result = await context.work(lambda: ASK[ability](served.handle, body.text))
    return answer(
        schema.TaskAnswer(object=ability, model=served.name, result=jsonable_encoder(result))
    )


@routes.post("/v1/tag", response_model=schema.TaskAnswer, responses=ERRORS, tags=["tasks"])
async def tag(request: Request, body: schema.TaskRequest) -> Response:
    """The tag of every word."""
    return await _ask(request, body, "tag")


@routes.post("/v1/classify", response_model=schema.TaskAnswer, responses=ERRORS, tags=["tasks"])
async def classify(request: Request, body: schema.TaskRequest) -> Response:
    """The class of a text."""
    return await _ask(request, body, "classify")


@routes.post("/v1/translate", response_model=schema.TaskAnswer, responses=ERRORS, tags=["tasks"])
async def translate(request: Request, body: schema.TaskRequest) -> Response:
    """The translation of a text."""
    return await _ask(request, body, "translate")
