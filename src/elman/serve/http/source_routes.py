"""Where in a training text the tokens of a text come from: the wire format and the route.

A model that predicts from an index of its text explains its predictions.
For any other model, an index that is served beside it shows the longest stretch of the indexed text
that each token ends.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from fastapi import APIRouter, Request, Response
from pydantic import Field

from elman.evaluate.provenance import IndexedText, Source
from elman.serve.http import schema
from elman.serve.http.context import ERRORS, Context, answer, context_of, share_of
from elman.serve.http.errors import ApiError
from elman.serve.http.prompts import most_tokens
from elman.serve.http.schema import Answer, Text
from elman.serve.http.served import Served
from elman.serve.memory import ROW_BYTES
from elman.tokens.tokenizer import Tokenizer

MAX_TOKENS = 4096
"""Limit on the tokens of one request: each is looked up, and its place is quoted."""

LONGEST_QUOTED = 100
"""Limit on the tokens of a stretch that are quoted, its last ones."""

routes = APIRouter()


class SourcesRequest(schema.Request):
    text: Text = Field(description="The text whose tokens are explained.")
    prompt: Text = Field("", description="What stands before the text.")
    lines: bool = Field(
        False, description="Read each line from its beginning, as /v1/score does; without a prompt."
    )
    index: str | None = Field(
        None,
        description="A served model with an index; by default the model itself, or the first one.",
    )


class TokenSource(Answer):
    token: str
    start: int = Field(description="Where the token begins in the text, in characters.")
    end: int = Field(description="Where it ends.")
    unknown: bool = Field(
        description="Whether the vocabulary of the index lacks it, so that <unk> was looked up."
    )
    length: int = Field(
        description="Tokens of the longest stretch: that before the token if `exact`, else the one "
        "that the token ends. 0: none."
    )
    match: str = Field(description="The stretch; the end of a long one.")
    count: int = Field(description="How often the indexed text has the stretch.")
    share: float | None = Field(description="If `exact`: how often the token follows the stretch.")
    weight: float | None = Field(
        description="If `exact`: the weight of `share` in the token's probability."
    )
    seen: int | None = Field(
        description="If `exact`: tokens of the longest context that the text has the token after."
    )
    file: str | None = Field(description="A file with the token after that context or stretch.")
    line: int | None = Field(description="The line of the token there.")
    before: str = Field(description="The text before the stretch at that place.")
    found: str = Field(description="The stretch there, up to and with the token.")
    after: str = Field(description="The text after it.")


class Sources(Answer):
    """Where each token of a text comes from."""

    object: Literal["sources"] = "sources"
    model: str
    index: str = Field(description="The model whose indexed text was searched.")
    exact: bool = Field(
        description="Whether the model predicts from this index, so that these are its reasons."
    )
    tokens: list[TokenSource]


@routes.post("/v1/sources", response_model=Sources, responses=ERRORS, tags=["measuring"])
async def sources(request: Request, body: SourcesRequest) -> Response:
    """Where in the training text each token of a text comes from."""
    context = context_of(request)
    served = context.model(body.model, "score", body.label)
    index = _index(context, served, body.index)
    if body.lines and body.prompt:
        raise ApiError(400, "a prompt stands before one text, not before lines", param="prompt")
    share = share_of(request)
    most = await context.read(
        request,
        lambda: most_tokens(
            body.prompt + body.text, index.handle.tokenizer, context.limits, "text"
        ),
    )
    share.take(most * ROW_BYTES)
    exact = index is served and hasattr(served.handle, "why")
    found = await context.work(share, lambda: list(_explained(index, body, exact=exact)))
    return answer(request, Sources(model=served.name, index=index.name, exact=exact, tokens=found))


def _index(context: Context, served: Served, name: str | None) -> Served:
    """The model whose index is searched."""
    if name is not None:
        found = context.named(name)
        if not hasattr(found.handle, "indexed"):
            raise ApiError(400, f"the model '{name}' has no index of a text", param="index")
        return found
    if hasattr(served.handle, "indexed"):
        return served
    for one in context.served.values():
        if hasattr(one.handle, "indexed"):
            return one
    message = (
        "no served model has an index of a text; `elman index TEXT --out DIR` makes one, "
        "which `elman serve` takes beside other models"
    )
    raise ApiError(400, message, param="index")


def _explained(index: Served, body: SourcesRequest, *, exact: bool) -> Iterator[TokenSource]:
    indexed: IndexedText = index.handle.indexed
    whole = body.prompt + body.text
    # A prompt is read as it is when it is continued; /v1/score fits a text to the training text.
    as_is = exact and not body.lines
    tokenizer: Tokenizer = index.handle.tokenizer if as_is else index.handle.fitted(whole)
    explain = index.handle.why if exact else indexed.shared
    texts = [f"{line}\n" for line in whole.split("\n")] if body.lines else [whole]
    offset, left = -len(body.prompt), MAX_TOKENS
    for text in texts:
        ids, spans = tokenizer.encode_spans(text)
        # A token that the prompt begins belongs to the prompt.
        first = next((i for i, (start, _) in enumerate(spans) if start + offset >= 0), len(spans))
        left -= len(ids) - first
        if left < 0:
            raise ApiError(400, f"too long to explain (limit {MAX_TOKENS:,} tokens)", param="text")
        given, asked = ids[:first].tolist(), ids[first:].tolist()
        if asked:
            found = explain(asked, [tokenizer.boundary_id, *given])
            for id_, source, (start, end) in zip(asked, found, spans[first:], strict=True):
                about = _about(indexed, source, exact=exact)
                is_unknown = id_ == tokenizer.unknown_id
                yield TokenSource(
                    **about, start=start + offset, end=end + offset, unknown=is_unknown
                )
        offset += len(text)


def _about(indexed: IndexedText, source: Source, *, exact: bool) -> dict[str, Any]:
    """The fields of an answer about a source, with the text around its place."""
    before, found, after = "", "", ""
    if source.position is not None:
        length = min((source.seen or 0) + 1 if exact else source.length, LONGEST_QUOTED)
        first = max(1, source.position - length + 1)  # without the boundary token in front
        place = indexed.occurrence(first, source.position - first + 1)
        before, found, after = place.before, place.text, place.after
    shown = {
        name: value for name, value in vars(source).items() if name in TokenSource.model_fields
    }
    file = None if source.file is None else Path(source.file).name
    return {**shown, "file": file, "before": before, "found": found, "after": after}
