"""What models other than language models are asked for: tags, classes, translations.

Each route asks the handle that `elman.load` gave for the method of the same name; models that have
none are refused (see `served.ABILITIES`).
"""

from __future__ import annotations

from fastapi import APIRouter, Request, Response
from fastapi.encoders import jsonable_encoder

from elman.serve.http import schema
from elman.serve.http.context import ERRORS, answer, context_of

routes = APIRouter()


async def _ask(request: Request, body: schema.TaskRequest, ability: str) -> Response:
    context = context_of(request)
    served = context.model(body.model, ability)
    result = await context.work(lambda: getattr(served.handle, ability)(body.text))
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
