"""`/v1/completions`: from a request on the wire to streams of the engine, and back.

An answer has `n` choices for each prompt. Sampling runs in the engine. Beam search has no text
before its end, and runs in a worker thread.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from json import JSONEncoder
from typing import Any

from elman.base.errors import ElmanError
from elman.decode.options import DecodeOptions
from elman.serve.http import schema
from elman.serve.http.choice_text import ChoiceText, Piece
from elman.serve.http.errors import ApiError
from elman.serve.http.open_requests import OpenRequest
from elman.serve.http.prompts import Prompt, check_ids, prompts_of
from elman.serve.http.served import Served
from elman.serve.limits import Limits
from elman.serve.memory import CELL_BYTES, CHARACTER_BYTES, TOKEN_BYTES
from elman.serve.streams import Continuation

_to_json = JSONEncoder(ensure_ascii=False).encode

UNREAD_TOKENS = 64
UNREAD_CELLS = 4096
"""A stream pauses if this many tokens or log probabilities, whichever are more tokens, are unread;
enough that one whose client reads never does."""
BIAS_BYTES = 384
"""An entry of `logit_bias`, which every continuation has."""
SEARCH_BYTES = 48
"""Scores of a token and a hypothesis in beam search."""
MAX_STOPS = 4
"""Limit of the OpenAI API."""
MAX_STOP_LENGTH = 1000
"""Characters."""


@dataclass(frozen=True)
class CheckedRequest:
    """A valid request, with its prompts encoded."""

    request: schema.CompletionRequest
    served: Served
    prompts: list[Prompt]
    config: DecodeOptions | None
    """None if nothing is generated."""
    n: int
    best_of: int
    stops: list[str]
    id: str
    created: int

    @staticmethod
    def of(request: schema.CompletionRequest, served: Served, limits: Limits) -> CheckedRequest:
        """Check a request; raise an `ApiError` that names the wrong field."""
        options = request.decoding()
        stops = [request.stop] if isinstance(request.stop, str) else list(request.stop or ())
        tokenizer = served.handle.tokenizer
        wants_offsets = bool(request.echo) and request.logprobs is not None
        prompts = prompts_of(
            request.prompt,
            tokenizer,
            limits,
            "prompt",
            most=limits.max_choices,
            with_offsets=wants_offsets,
        )
        _check(request, options, stops, len(prompts), limits)
        n = options["num_samples"]
        bias = {int(token): value for token, value in (options["logit_bias"] or {}).items()}
        check_ids(bias, tokenizer, "logit_bias")
        seed = None if options["seed"] is None else options["seed"] % (1 << 63)
        # Without a beam the engine is asked once for each sample.
        number = n if options["beam_size"] > 1 else 1
        special = {"logit_bias": bias, "seed": seed, "num_samples": number}
        return CheckedRequest(
            request,
            served,
            prompts,
            DecodeOptions(**options | special) if options["max_tokens"] else None,
            n,
            request.best_of or n,
            stops,
            id=f"cmpl-{uuid.uuid4().hex}",
            created=int(time.time()),
        )

    @property
    def uses_beam(self) -> bool:
        return self.config is not None and self.config.beam_size > 1

    @property
    def adapts(self) -> bool:
        return self.config is not None and bool(self.request.adapt or self.request.cache)

    @property
    def handle(self) -> Any:
        """The model, one that adapts if that was asked for."""
        return self.served.adapting(adapt=self.request.adapt, cache=self.request.cache)

    @property
    def num_cells(self) -> int:
        """Log probabilities reported with each token."""
        return 0 if self.request.logprobs is None else 1 + self.request.logprobs

    @property
    def max_unread(self) -> int | None:
        """Tokens of a stream that may wait for its reader."""
        return (
            max(UNREAD_TOKENS, UNREAD_CELLS // max(1, self.num_cells))
            if self.request.stream
            else None
        )

    def memory(self) -> tuple[int, str]:
        """Upper bound of the bytes of the answer, and which numbers to lower."""
        config, echo = self.config or DecodeOptions(max_tokens=1), bool(self.request.echo)
        vocab_size = self.served.handle.tokenizer.vocab_size
        kept = min(config.max_tokens, self.max_unread or config.max_tokens)
        per_choice = config.max_tokens * TOKEN_BYTES + kept * self.num_cells * CELL_BYTES
        per_choice += len(config.logit_bias) * BIAS_BYTES
        num_echoed = sum(len(prompt.ids) for prompt in self.prompts) if echo else 0
        num_characters = sum(len(prompt.text) for prompt in self.prompts) if echo else 0
        total = self.best_of * (
            len(self.prompts) * per_choice
            + num_echoed * self.num_cells * CELL_BYTES
            + num_characters * CHARACTER_BYTES
        )
        if self.uses_beam:
            total += config.beam_size * (vocab_size * SEARCH_BYTES + per_choice)
        numbers = {
            "best_of" if self.best_of > self.n else "n": self.best_of,
            "beam_size": config.beam_size,
            "max_tokens": config.max_tokens,
            "logprobs": self.request.logprobs or 0,
            "the number of prompts": len(self.prompts),
            "the length of logit_bias": len(config.logit_bias),
            "the length of the echoed prompt": num_echoed,
        }
        large = [f"{name} ({value:,})" for name, value in numbers.items() if value > 1]
        return total, f"lower {' or '.join(large)}"

    def continuations(self) -> list[Continuation]:
        """For the engine: `best_of` for each prompt."""
        echo, logprobs = bool(self.request.echo), self.request.logprobs
        continuations = []
        for number, prompt in enumerate(self.prompts):
            unread = prompt.unread
            for sample in range(self.best_of):
                config = self.config
                if config is not None:
                    config = config.without_unknown(self.served.handle.tokenizer.unknown_id)
                if config is not None and config.seed is not None:
                    row = number * self.best_of + sample
                    config = replace(config, seed=config.seed + row)
                continuations.append(
                    Continuation(
                        prompt=unread,
                        config=config,
                        max_unread=self.max_unread,
                        num_alternatives=logprobs or 0,
                        score_prompt=echo and logprobs is not None,
                    )
                )
        return continuations

    def choice_texts(self, opened: OpenRequest) -> list[ChoiceText]:
        return [
            ChoiceText(
                stream,
                self.prompts[i // self.best_of],
                self.served.handle.tokenizer,
                stops=self.stops,
                echo=bool(self.request.echo),
                details=self.request.logprobs is not None,
            )
            for i, stream in enumerate(opened.streams)
        ]

    def usage(self, completion_tokens: int) -> schema.Usage:
        """Count tokens of all choices, including those that `best_of` drops."""
        prompt_tokens = sum(len(prompt.ids) for prompt in self.prompts)
        return schema.Usage(
            prompt_tokens=prompt_tokens,
            completion_tokens=completion_tokens,
            total_tokens=prompt_tokens + completion_tokens,
        )

    def answer(
        self, choices: list[schema.Choice], usage: schema.Usage | None = None
    ) -> schema.Completion:
        """A whole answer, or one event of a stream."""
        return schema.Completion(
            id=self.id, created=self.created, model=self.served.name, choices=choices, usage=usage
        )


def _new_pieces(texts: Sequence[ChoiceText], active: set[int]) -> Iterator[tuple[int, Piece]]:
    """New pieces of active choices, with their numbers; choices that end become inactive."""
    for i in sorted(active):
        piece = texts[i].take()
        if piece is not None:
            if piece.finish_reason is not None:
                texts[i].stream.cancel()  # it may continue past a stop sequence
                active.discard(i)
            yield i, piece


async def whole(checked: CheckedRequest, opened: OpenRequest) -> schema.Completion:
    """The answer when all streams have ended."""
    texts = checked.choice_texts(opened)
    found: list[list[Piece]] = [[] for _ in texts]
    active = set(range(len(texts)))
    while active:
        await opened.wait()
        for i, piece in _new_pieces(texts, active):
            found[i].append(piece)
    choices: list[schema.Choice] = []
    for number in range(len(checked.prompts)):
        mine = list(range(number * checked.best_of, (number + 1) * checked.best_of))
        if checked.best_of > checked.n:
            mine.sort(key=lambda i: -texts[i].mean_logprob)
        for i in mine[: checked.n]:
            choices.append(
                schema.Choice(
                    text="".join(piece.text for piece in found[i]),
                    index=len(choices),
                    logprobs=_joined([p.logprobs for p in found[i] if p.logprobs is not None]),
                    finish_reason=texts[i].finish_reason,
                )
            )
    return checked.answer(choices, checked.usage(sum(text.num_tokens for text in texts)))


async def events(checked: CheckedRequest, opened: OpenRequest) -> AsyncIterator[tuple[bytes, bool]]:
    """The answer as server-sent events: data, and True with the last."""
    texts = checked.choice_texts(opened)
    # Events differ only in their choice, so the rest is serialised once.
    before, after = checked.answer([]).model_dump_json().split('"choices":[]')
    waiting: list[bytes] = []
    try:
        active = set(range(len(texts)))
        while active:
            await opened.wait()
            for i, piece in _new_pieces(texts, active):
                waiting.append(_event(f'{before}"choices":[{_choice(piece, i)}]{after}'))
            if waiting and active:
                yield b"".join(waiting), False
                waiting = []
            for text in texts:
                opened.read(text.stream, text.num_tokens)
    except ElmanError as error:
        # The answer has begun, so its status cannot change; clients look for this event.
        waiting.append(_event(ApiError.of(error).body.decode()))
    else:
        options = checked.request.stream_options
        if options is not None and options.include_usage:
            usage = checked.usage(sum(text.num_tokens for text in texts))
            waiting.append(_event(checked.answer([], usage).model_dump_json()))
    waiting.append(_event("[DONE]"))
    yield b"".join(waiting), True


def search(checked: CheckedRequest) -> schema.Completion:
    """Beam search, or samples of a model that adapts, which the engine does not have."""
    assert checked.config is not None
    choices: list[schema.Choice] = []
    total = 0
    for prompt in checked.prompts:
        found = checked.handle.complete(prompt.unread, stop=checked.stops, **asdict(checked.config))
        for completion in found:
            text = (prompt.text if checked.request.echo else "") + completion.text
            choices.append(
                schema.Choice(text=text, index=len(choices), finish_reason=completion.finish_reason)
            )
            total += completion.tokens
    return checked.answer(choices, checked.usage(total))


def _event(data: str) -> bytes:
    return f"data: {data}\n\n".encode()


def _check(
    request: schema.CompletionRequest,
    options: Mapping[str, Any],
    stops: Sequence[str],
    num_prompts: int,
    limits: Limits,
) -> None:
    n, max_tokens = options["num_samples"], options["max_tokens"]
    best_of, uses_beam = request.best_of or n, options["beam_size"] > 1
    num_choices = num_prompts * best_of
    streams, adapts = bool(request.stream), bool(request.adapt or request.cache)
    wrong: list[tuple[bool, str, str]] = [
        (num_prompts == 0, "prompt", "the list of prompts is empty"),
        (best_of < n, "best_of", f"best_of ({best_of}) is less than n ({n})"),
        (streams and best_of > n, "best_of", "best_of cannot be streamed"),
        (
            num_choices > limits.max_choices,
            "n",
            f"too many continuations: {num_choices:,} (limit {limits.max_choices:,})",
        ),
        (
            max_tokens > limits.max_tokens,
            "max_tokens",
            f"max_tokens is too large: {max_tokens:,} (limit {limits.max_tokens:,})",
        ),
        (len(stops) > MAX_STOPS, "stop", f"too many stop sequences (limit {MAX_STOPS})"),
        (any(not stop for stop in stops), "stop", "a stop sequence is empty"),
        (
            any(len(stop) > MAX_STOP_LENGTH for stop in stops),
            "stop",
            f"a stop sequence is too long (limit {MAX_STOP_LENGTH:,} characters)",
        ),
        (
            request.stream_options is not None and not streams,
            "stream_options",
            "stream_options needs stream",
        ),
        (bool(request.suffix), "suffix", "suffix is not supported: models read left to right"),
        (uses_beam and streams, "stream", "beam search cannot be streamed"),
        (adapts and streams, "stream", "a model that adapts cannot be streamed"),
        (
            adapts and (request.logprobs is not None or best_of > n),
            "logprobs" if request.logprobs is not None else "best_of",
            "a model that adapts reports no log probabilities of tokens",
        ),
        (
            uses_beam and request.logprobs is not None,
            "logprobs",
            "beam search does not report log probabilities of tokens",
        ),
        (uses_beam and best_of > n, "best_of", "beam search returns the best already"),
    ]
    for is_wrong, param, message in wrong:
        if is_wrong:
            raise ApiError(400, message, param=param)


def _choice(piece: Piece, index: int) -> str:
    """The JSON of a piece's `schema.Choice`; building that for every piece takes longer."""
    logprobs = "null" if piece.logprobs is None else piece.logprobs.model_dump_json()
    text, reason = _to_json(piece.text), _to_json(piece.finish_reason)
    return f'{{"text":{text},"index":{index},"logprobs":{logprobs},"finish_reason":{reason}}}'


def _joined(parts: list[schema.Logprobs]) -> schema.Logprobs | None:
    if len(parts) < 2:
        return parts[0] if parts else None
    top = [top for part in parts for top in part.top_logprobs or ()]
    return schema.Logprobs(
        tokens=[token for part in parts for token in part.tokens],
        token_logprobs=[logprob for part in parts for logprob in part.token_logprobs],
        top_logprobs=None if parts[0].top_logprobs is None else top,
        text_offset=[offset for part in parts for offset in part.text_offset],
    )
