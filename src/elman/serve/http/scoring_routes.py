"""Routes for surprisal, next tokens, vectors, and the tokenizer."""

from __future__ import annotations

import base64
import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
from fastapi import APIRouter, Request, Response
from numpy.typing import NDArray

from elman.api import LM
from elman.decode.options import DecodeOptions
from elman.decode.sample import drawn_from, most_likely
from elman.evaluate.embeddings import sequence_vectors
from elman.evaluate.surprisal import Row, Totals
from elman.serve.http import schema
from elman.serve.http.choice_text import finite, not_a_number
from elman.serve.http.context import ERRORS, answer, context_of, share_of
from elman.serve.http.errors import ApiError
from elman.serve.http.open_requests import Gone
from elman.serve.http.prompts import most_tokens, prompts_of
from elman.serve.http.served import gives_word_vectors, vector_size
from elman.serve.limits import Limits
from elman.serve.memory import BASE64_BYTES, NUMBER_BYTES, ROW_BYTES
from elman.serve.streams import Continuation
from elman.text.words import split_words

Vector = NDArray[np.float32]

MAX_TEXTS = 2048
"""Limit of the OpenAI API for one request."""

routes = APIRouter()


@routes.post("/v1/score", response_model=schema.Score, responses=ERRORS, tags=["measuring"])
async def score(request: Request, body: schema.ScoreRequest) -> Response:
    """Surprisal of every token, word or line of a text."""
    context = context_of(request)
    served = context.model(body.model, "score", body.label)
    settings = body.model_dump(exclude={"model", "label", "text", "adapt", "cache"})
    handle = served.adapting(adapt=body.adapt, cache=body.cache)

    def compute() -> tuple[list[Row], str]:
        reads_as = "" if body.as_is else handle.fitted(body.text).reads_as
        return handle.surprisal(body.text, **settings), reads_as

    share = share_of(request)
    most = await context.read(
        request, lambda: most_tokens(body.text, handle.tokenizer, context.limits, "text")
    )
    share.take((most + body.text.count("\n") + 1) * ROW_BYTES)
    rows, reads_as = await context.work(share, compute)
    if any(math.isnan(row.surprisal) for row in rows if row.surprisal is not None):
        raise not_a_number()
    totals = Totals(body.base)
    for row in rows:
        totals.add(row)
    return answer(
        request,
        schema.Score(
            model=served.name,
            unit=body.unit,
            base=body.base,
            rows=[
                schema.ScoreRow(**{n: _finite(value) for n, value in asdict(row).items()})
                for row in rows
            ],
            total=_number(totals.surprisal),
            num_tokens=totals.num_tokens,
            perplexity=_number(totals.perplexity),
            num_unknown=totals.num_unknown,
            total_without_unknown=_number(totals.without_unknown),
            perplexity_without_unknown=_number(totals.perplexity_without_unknown),
            reads_as=reads_as,
        ),
    )


@routes.post("/v1/next", response_model=schema.Next, responses=ERRORS, tags=["measuring"])
async def next_token(request: Request, body: schema.NextRequest) -> Response:
    """The most likely tokens after a prefix."""
    context = context_of(request)
    served = context.model(body.model, "next", body.label)
    tokenizer = served.handle.tokenizer
    (prompt,) = await context.read(
        request, lambda: prompts_of([body.prompt], tokenizer, context.limits, "prompt")
    )
    if drawing := body.drawing():
        shaped = await context.work(
            share_of(request),
            lambda: _shaped(served.handle, prompt.unread, body.k, DecodeOptions(**drawing)),
        )
        return answer(request, shaped.model_copy(update={"model": served.name}))
    # One greedy token with alternatives, in the engine, which caches prefixes.
    config = DecodeOptions(max_tokens=1, greedy=True)
    wanted = Continuation(prompt=prompt.unread, config=config, num_alternatives=body.k)
    opened = context.open(served, [wanted], until_finished=True)
    try:
        await opened.watched(request.receive, opened.wait())
    except Gone:
        return Response(status_code=499)
    (stream,) = opened.streams
    if stream.error is not None:
        raise stream.error
    found = stream.alternatives[0]
    probabilities = [math.exp(logprob) for _, logprob in found]
    return answer(
        request,
        schema.Next(
            model=served.name,
            tokens=[
                schema.NextToken(
                    token=tokenizer.token(token),
                    id=token,
                    probability=probability,
                    logprob=finite(logprob),
                )
                for (token, logprob), probability in zip(found, probabilities, strict=True)
            ],
            rest=max(0.0, 1.0 - math.fsum(probabilities)),
        ),
    )


def _shaped(handle: LM, prefix: Sequence[int], k: int, options: DecodeOptions) -> schema.Next:
    """The most likely tokens, each with its probability in a draw with `options`."""
    tokenizer = handle.tokenizer
    logprobs_V, drawn_V = drawn_from(
        handle.decoding, prefix, options, boundary_id=tokenizer.boundary_id
    )
    (found,) = most_likely(logprobs_V[None], k)
    if any(math.isnan(logprob) for _, logprob in found):
        raise not_a_number()
    tokens = [
        schema.NextToken(
            token=tokenizer.token(token),
            id=token,
            probability=math.exp(logprob),
            logprob=finite(logprob),
            drawn=float(drawn_V[token]),
        )
        for token, logprob in found
    ]
    rest = max(0.0, 1.0 - math.fsum(token.probability for token in tokens))
    possible = int((drawn_V > 0).sum())
    return schema.Next(model="", tokens=tokens, rest=rest, possible=possible)


@routes.post(
    "/v1/embeddings", response_model=schema.Embeddings, responses=ERRORS, tags=["embeddings"]
)
async def embeddings(request: Request, body: schema.EmbeddingRequest) -> Response:
    """One vector per text: the top layer's after the last token, or the mean over its words."""
    context = context_of(request)
    served = context.model(body.model, "embed")
    of_texts, share = _last_vectors, share_of(request)
    as_text = body.encoding_format == "base64"
    is_one = isinstance(body.input, str) or all(isinstance(one, int) for one in body.input[:1])
    number = 1 if is_one else min(len(body.input), MAX_TEXTS)
    num_bytes = number * vector_size(served.handle) * (BASE64_BYTES if as_text else NUMBER_BYTES)
    share.take(num_bytes, f"send fewer texts ({number:,})")
    if gives_word_vectors(served.handle):
        of_texts = _word_vectors
        texts = [body.input] if isinstance(body.input, str) else body.input
        longest = max((one for one in texts if isinstance(one, str)), key=len, default="")
        share.take(await context.read(request, lambda: served.reading_bytes(longest)))
    vectors, tokens = await context.work(
        share, lambda: of_texts(served.handle, body, context.limits)
    )
    width = len(vectors[0])
    if not all(np.isfinite(vector).all() for vector in vectors):
        raise not_a_number()
    if body.dimensions not in (None, width):
        message = f"this model's vectors have {width} dimensions and cannot be shortened"
        raise ApiError(400, message, param="dimensions")
    return answer(
        request,
        schema.Embeddings(
            data=[
                schema.Embedding(index=i, embedding=_base64(v) if as_text else v.tolist())
                for i, v in enumerate(vectors)
            ],
            model=served.name,
            usage=schema.PromptUsage(prompt_tokens=tokens, total_tokens=tokens),
        ),
    )


@routes.post("/tokenize", response_model=schema.Tokens, responses=ERRORS, tags=["tokens"])
async def tokenize(request: Request, body: schema.TokenizeRequest) -> Response:
    """The token ids of a text."""
    context = context_of(request)
    tokenizer = context.able(body.model, "complete").handle.tokenizer
    if body.prompt == tokenizer.token(tokenizer.boundary_id):
        # Evaluation harnesses ask this way for the boundary id. Inside a text its spelling is
        # ordinary characters, as in training.
        ids = [tokenizer.boundary_id]
    else:
        ids = (await context.read(request, lambda: tokenizer.encode(body.prompt))).tolist()
        if body.add_special_tokens:
            ids.insert(0, tokenizer.boundary_id)
    return answer(
        request,
        schema.Tokens(count=len(ids), max_model_len=context.limits.max_prompt_tokens, tokens=ids),
    )


@routes.post("/detokenize", response_model=schema.Detokenized, responses=ERRORS, tags=["tokens"])
async def detokenize(request: Request, body: schema.DetokenizeRequest) -> Response:
    """The text of token ids."""
    context = context_of(request)
    tokenizer = context.able(body.model, "complete").handle.tokenizer
    (prompt,) = await context.read(
        request, lambda: prompts_of([body.tokens], tokenizer, context.limits, "tokens")
    )
    return answer(request, schema.Detokenized(prompt=prompt.text))


@routes.get("/tokenizer_info", responses={404: ERRORS[404], 400: ERRORS[400]}, tags=["tokens"])
async def tokenizer_info(request: Request, model: str | None = None) -> schema.TokenizerInfo:
    """What evaluation harnesses need before they send token ids."""
    served = context_of(request).able(model, "complete")
    tokenizer = served.handle.tokenizer
    boundary = tokenizer.token(tokenizer.boundary_id)
    return schema.TokenizerInfo(
        model=served.name,
        tokenizer_class=tokenizer.kind,
        vocab_size=tokenizer.vocab_size,
        eos_token=boundary,
        bos_token=boundary,
        pad_token=None,
        unk_token=None if tokenizer.unknown_id is None else tokenizer.token(tokenizer.unknown_id),
    )


def _last_vectors(
    handle: LM, body: schema.EmbeddingRequest, limits: Limits
) -> tuple[list[Vector], int]:
    """Vectors after each text's last token, and the number of tokens."""
    tokenizer = handle.tokenizer
    prompts = prompts_of(body.input, tokenizer, limits, "input", most=MAX_TEXTS)
    _check_texts(prompts)
    sequences = [prompt.unread for prompt in prompts]
    vectors = sequence_vectors(handle.model, sequences, boundary_id=tokenizer.boundary_id)
    return [vector_H.numpy() for vector_H in vectors], sum(len(prompt.ids) for prompt in prompts)


def _word_vectors(
    handle: Any, body: schema.EmbeddingRequest, limits: Limits
) -> tuple[list[Vector], int]:
    """Means over words and layers, and the number of words."""
    texts = [body.input] if isinstance(body.input, str) else body.input
    _check_texts(texts)
    sentences = []
    for text in texts:
        if not isinstance(text, str):
            raise ApiError(400, "this model reads words: send texts, not token ids", param="input")
        sentences.append(split_words(text))
        if not sentences[-1]:
            raise ApiError(400, "a text has no words")
        if len(sentences[-1]) > (limit := limits.max_prompt_tokens):
            raise ApiError(400, f"too long: {len(sentences[-1]):,} words (limit {limit:,})")
    vectors = [vectors_TD.mean(0) for vectors_TD in handle.contextual(sentences)]
    return vectors, sum(len(sentence) for sentence in sentences)


def _check_texts(texts: Sequence[Any]) -> None:
    if not 1 <= len(texts) <= MAX_TEXTS:
        raise ApiError(400, f"input must have 1 to {MAX_TEXTS:,} texts", param="input")


def _base64(vector: Any) -> str:
    return base64.b64encode(np.asarray(vector, dtype="<f4").tobytes()).decode()


def _number(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else value


def _finite(value: Any) -> Any:
    """Replace a number that JSON does not have by None."""
    return _number(value) if isinstance(value, float) else value
