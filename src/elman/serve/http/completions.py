"""`/v1/completions`: from a request on the wire to streams of the engine, and back.

An answer is made of choices, `n` for each prompt. Sampling goes through the engine; beam search,
which has nothing to say before its end, runs beside it.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Sequence
from dataclasses import asdict, dataclass, replace
from json import JSONEncoder
from typing import Any

from elman.base.errors import ElmanError
from elman.decode.options import DecodeOptions
from elman.serve.http import schema
from elman.serve.http.errors import ApiError
from elman.serve.http.jobs import Job, Waker
from elman.serve.http.prompts import Prompt, check_ids, prompts_of
from elman.serve.http.served import Limits, Served
from elman.serve.http.speaking import Piece, Voice
from elman.serve.streams import Request

_to_json = JSONEncoder(ensure_ascii=False).encode

MAX_STOPS = 4
"""As the OpenAI API has it."""


@dataclass(frozen=True)
class Plan:
    """A request, read and checked."""

    request: schema.CompletionRequest
    served: Served
    prompts: list[Prompt]
    config: DecodeOptions | None
    """None where nothing is generated."""
    n: int
    best_of: int
    stops: list[str]
    id: str
    created: int

    @staticmethod
    def of(request: schema.CompletionRequest, served: Served, limits: Limits) -> Plan:
        """What a request comes to, or an error that says which part of it is wrong."""
        options = request.decoding()
        n, max_tokens = options["num_samples"], options["max_tokens"]
        uses_beam = options["beam_size"] > 1
        best_of = request.best_of or n
        stops = [request.stop] if isinstance(request.stop, str) else list(request.stop or ())
        tokenizer = served.handle.tokenizer
        wants_offsets = bool(request.echo) and request.logprobs is not None
        prompts = prompts_of(
            request.prompt, tokenizer, limits, "prompt", with_offsets=wants_offsets
        )
        _check(request, n, best_of, stops, max_tokens, uses_beam, len(prompts), limits)
        bias = {int(token): value for token, value in (options["logit_bias"] or {}).items()}
        check_ids(bias, tokenizer, "logit_bias")
        seed = None if options["seed"] is None else options["seed"] % (1 << 63)
        # Without a beam the engine is asked once for each sample.
        special = {"logit_bias": bias, "seed": seed, "num_samples": n if uses_beam else 1}
        config = DecodeOptions(**options | special) if max_tokens else None
        return Plan(
            request,
            served,
            prompts,
            config,
            n,
            best_of,
            stops,
            id=f"cmpl-{uuid.uuid4().hex}",
            created=int(time.time()),
        )

    @property
    def uses_beam(self) -> bool:
        """Whether it is a beam search."""
        return self.config is not None and self.config.beam_size > 1

    def requests(self) -> list[Request]:
        """What the engine is asked: `best_of` streams for each prompt."""
        echo, logprobs = bool(self.request.echo), self.request.logprobs
        requests = []
        for number, prompt in enumerate(self.prompts):
            for sample in range(self.best_of):
                config = self.config
                if config is not None and config.seed is not None:
                    row = number * self.best_of + sample
                    config = replace(config, seed=config.seed + row)
                requests.append(
                    Request(
                        prompt=prompt.unread,
                        config=config,
                        num_alternatives=logprobs or 0,
                        score_prompt=echo and logprobs is not None,
                    )
                )
        return requests

    def voices(self, job: Job) -> list[Voice]:
        """The choices, `best_of` for each prompt."""
        return [
            Voice(
                stream,
                self.prompts[i // self.best_of],
                self.served.handle.tokenizer,
                stops=self.stops,
                echo=bool(self.request.echo),
                details=self.request.logprobs is not None,
            )
            for i, stream in enumerate(job.streams)
        ]

    def usage(self, completion_tokens: int) -> schema.Usage:
        """How many tokens there were, in all choices that were made."""
        prompt_tokens = sum(len(prompt.ids) for prompt in self.prompts)
        return schema.Usage(
            prompt_tokens=prompt_tokens,
            completion_tokens=completion_tokens,
            total_tokens=prompt_tokens + completion_tokens,
        )

    def answer(
        self, choices: list[schema.Choice], usage: schema.Usage | None = None
    ) -> schema.Completion:
        """An answer, or a piece of one."""
        return schema.Completion(
            id=self.id,
            created=self.created,
            model=self.served.name,
            choices=choices,
            usage=usage,
        )


def start(plan: Plan, waker: Waker, limits: Limits) -> Job:
    """Give the request to the engine."""
    assert plan.served.engine is not None
    return Job(
        waker,
        plan.served.engine,
        plan.requests(),
        seconds=limits.max_seconds,
        until_finished=not plan.request.stream and not plan.stops,
    )


async def whole(plan: Plan, job: Job) -> schema.Completion:
    """The answer at once, when everything is said."""
    voices = plan.voices(job)
    texts = [""] * len(voices)
    details: list[list[schema.Logprobs]] = [[] for _ in voices]
    speaking = set(range(len(voices)))
    while speaking:
        await job.wait()
        for i in sorted(speaking):
            voice = voices[i]
            piece = voice.take()
            if piece is None:
                continue
            texts[i] += piece.text
            if piece.logprobs is not None:
                details[i].append(piece.logprobs)
            if voice.finish_reason is not None:
                voice.stream.cancel()  # it may have gone on past a stop sequence
                speaking.discard(i)
    choices: list[schema.Choice] = []
    for number in range(len(plan.prompts)):
        mine = range(number * plan.best_of, (number + 1) * plan.best_of)
        ranked = (
            sorted(mine, key=lambda i: -_mean_logprob(voices[i])) if plan.best_of > plan.n else mine
        )
        for i in list(ranked)[: plan.n]:
            choices.append(
                schema.Choice(
                    text=texts[i],
                    index=len(choices),
                    logprobs=_joined(details[i]),
                    finish_reason=voices[i].finish_reason,
                )
            )
    return plan.answer(choices, plan.usage(sum(voice.num_tokens for voice in voices)))


async def pieces(plan: Plan, job: Job) -> AsyncIterator[tuple[bytes, bool]]:
    """The answer as server-sent events, each as soon as there is something to say; with those that
    come last, True."""
    voices = plan.voices(job)
    speaking = set(range(len(voices)))
    # All pieces are alike but for their choice, so the rest is written once.
    before, after = plan.answer([]).model_dump_json().split('"choices":[]')
    events: list[bytes] = []
    try:
        while speaking:
            await job.wait()
            for i in sorted(speaking):
                piece = voices[i].take()
                if piece is None:
                    continue
                events.append(event(f'{before}"choices":[{_choice(piece, i)}]{after}'))
                if voices[i].finish_reason is not None:
                    voices[i].stream.cancel()
                    speaking.discard(i)
            if events and speaking:
                yield b"".join(events), False
                events = []
    except ElmanError as error:
        # The answer has begun, so its status cannot change; clients look for this event.
        events.append(event(ApiError.of(error).body.decode()))
    else:
        options = plan.request.stream_options
        if options is not None and options.include_usage:
            usage = plan.usage(sum(voice.num_tokens for voice in voices))
            events.append(event(plan.answer([], usage).model_dump_json()))
    events.append(event("[DONE]"))
    yield b"".join(events), True


def search(plan: Plan) -> schema.Completion:
    """Beam search: the best hypotheses of each prompt."""
    assert plan.config is not None
    choices: list[schema.Choice] = []
    total = 0
    for prompt in plan.prompts:
        found = plan.served.handle.complete(prompt.unread, stop=plan.stops, **asdict(plan.config))
        for completion in found:
            text = (prompt.text if plan.request.echo else "") + completion.text
            choices.append(
                schema.Choice(text=text, index=len(choices), finish_reason=completion.finish_reason)
            )
            total += completion.tokens
    return plan.answer(choices, plan.usage(total))


def event(data: str) -> bytes:
    """One server-sent event."""
    return f"data: {data}\n\n".encode()


def _check(
    request: schema.CompletionRequest,
    n: int,
    best_of: int,
    stops: Sequence[str],
    max_tokens: int,
    uses_beam: bool,
    num_prompts: int,
    limits: Limits,
) -> None:
    wrong: list[tuple[bool, str, str]] = [
        (num_prompts == 0, "prompt", "the list of prompts is empty"),
        (best_of < n, "best_of", f"best_of is {best_of}, less than n, which is {n}"),
        (
            bool(request.stream) and best_of > n,
            "best_of",
            "the best can only be told at the end, so best_of does not go with stream",
        ),
        (
            num_prompts * best_of > limits.max_choices,
            "n",
            f"{num_prompts * best_of} continuations are asked for, and {limits.max_choices} are "
            "the most",
        ),
        (
            max_tokens > limits.max_tokens,
            "max_tokens",
            f"max_tokens is {max_tokens}, and {limits.max_tokens} is the most",
        ),
        (len(stops) > MAX_STOPS, "stop", f"at most {MAX_STOPS} stop sequences can be given"),
        (any(not stop for stop in stops), "stop", "a stop sequence cannot be empty"),
        (any(len(stop) > 1000 for stop in stops), "stop", "a stop sequence is too long"),
        (
            request.stream_options is not None and not request.stream,
            "stream_options",
            "stream_options can only be given with stream",
        ),
        (bool(request.suffix), "suffix", "models here read from left to right, without a suffix"),
        (uses_beam and bool(request.stream), "stream", "beam search has nothing to stream"),
        (
            uses_beam and request.logprobs is not None,
            "logprobs",
            "beam search does not tell log probabilities of tokens",
        ),
        (uses_beam and best_of > n, "best_of", "beam search already returns the best"),
    ]
    for is_wrong, param, message in wrong:
        if is_wrong:
            raise ApiError(400, message, param=param)


def _choice(piece: Piece, index: int) -> str:
    """A piece as its `Choice` would be written, which for every piece of a stream takes longer."""
    logprobs = "null" if piece.logprobs is None else piece.logprobs.model_dump_json()
    text, reason = _to_json(piece.text), _to_json(piece.finish_reason)
    return f'{{"text":{text},"index":{index},"logprobs":{logprobs},"finish_reason":{reason}}}'


def _mean_logprob(voice: Voice) -> float:
    return voice.total_logprob / max(1, voice.num_tokens)


def _joined(parts: list[schema.Logprobs]) -> schema.Logprobs | None:
    if not parts:
        return None
    has_top = parts[0].top_logprobs is not None
    return schema.Logprobs(
        tokens=[token for part in parts for token in part.tokens],
        token_logprobs=[logprob for part in parts for logprob in part.token_logprobs],
        top_logprobs=[top for part in parts for top in part.top_logprobs or ()]
        if has_top
        else None,
        text_offset=[offset for part in parts for offset in part.text_offset],
    )


async def leave_with(job: Job, receive: Any) -> None:
    """Tell the job when the client has gone."""
    while (await receive())["type"] != "http.disconnect":
        pass
    job.leave()


async def watched(job: Job, receive: Any, work: Any) -> Any:
    """Do `work`, unless the client goes away first; end the job in any case."""
    watcher = asyncio.ensure_future(leave_with(job, receive))
    try:
        return await work
    finally:
        watcher.cancel()
        job.close()
