"""A beam search as a tree: the wire format and the route."""

from __future__ import annotations

from dataclasses import asdict
from typing import Literal

from fastapi import APIRouter, Request, Response
from pydantic import Field

from elman.decode.options import SEARCHING
from elman.serve.http import schema
from elman.serve.http.context import ERRORS, answer, context_of, share_of
from elman.serve.http.errors import ApiError
from elman.serve.http.schema import Answer, Number, Text

routes = APIRouter()


@schema.with_decoding_fields(
    SEARCHING,
    beam_size=(int, Field(4, ge=2, le=12)),
    max_tokens=(int, Field(12, ge=1, le=60)),
)
class TreeRequest(schema.Request):
    text: Text = Field("", description="The text to continue, or to translate.")
    samples: int = Field(3, ge=0, le=12, description="Paths to draw beside the search.")
    temperature: Number = Field(1.0, ge=0, le=2, description="Of the sampled paths.")
    seed: int | None = Field(None, ge=0, description="Of the sampled paths.")


class TreeNode(Answer):
    """A hypothesis that the search kept for a step, or one that ended."""

    parent: int | None = Field(description="Its place in the list; null for a first token.")
    token: str
    logprob: float = Field(description="Of this token, natural.")
    total: float = Field(description="Of all tokens up to this one.")
    step: int = Field(description="How many tokens it has.")
    ends: bool = Field(description="Whether the text ends with this token.")
    score: float | None = Field(
        description="Of a result: `total` with the length penalty, what the search compares."
    )


class TreePath(Answer):
    tokens: list[str]
    logprobs: list[float]


class Tree(Answer):
    """All steps of a beam search, and sampled paths."""

    object: Literal["tree"] = "tree"
    model: str
    nodes: list[TreeNode]
    best: list[int] = Field(description="The results, best first: places in `nodes`.")
    samples: list[TreePath]


@routes.post("/v1/tree", response_model=Tree, responses=ERRORS, tags=["decoding"])
async def tree(request: Request, body: TreeRequest) -> Response:
    """Every step of a beam search after a text, and sampled paths beside it."""
    context = context_of(request)
    served = context.model(body.model, "tree", body.label)
    limit = context.limits.max_prompt_tokens
    if len(body.text) > limit:
        message = f"too long: {len(body.text):,} characters (limit {limit:,})"
        raise ApiError(400, message, param="text", code="context_length_exceeded")
    options = body.model_dump(include=set(SEARCHING), exclude_none=True)
    options["num_samples"] = options["beam_size"]  # all that the beam holds in the end

    def search() -> Tree:
        found, tokenizer = served.handle.beam_tree(
            body.text,
            options=options,
            num_samples=body.samples,
            temperature=body.temperature,
            seed=body.seed,
        )
        return Tree(
            model=served.name,
            nodes=[
                TreeNode(**{**asdict(node), "token": tokenizer.token(node.token)})
                for node in found.nodes
            ],
            best=found.best,
            samples=[
                TreePath(
                    tokens=[tokenizer.token(token) for token, _ in path],
                    logprobs=[logprob for _, logprob in path],
                )
                for path in found.samples
            ],
        )

    share = share_of(request)
    share.take(await context.read(request, lambda: served.reading_bytes(body.text)))
    return answer(request, await context.work(share, search))
