"""How a handle of a language model continues a text: samples, streams, beams."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, Unpack, overload

from elman.base.errors import UsageError
from elman.base.result_rows import Rows
from elman.decode.beam import beam_search
from elman.decode.options import DecodeKeywords, DecodeOptions, read_options
from elman.decode.sample import Step, next_tokens, sample
from elman.decode.speak import Speaker
from elman.decode.stop import StopMatcher
from elman.decode.tree import Tree, decoding_tree
from elman.evaluate.sequences import check_number
from elman.models.decoding import for_decoding
from elman.models.interface import LanguageModel
from elman.tasks.language_model_base import TextModel
from elman.tokens.tokenizer import Tokenizer


@dataclass(frozen=True)
class Completion:
    """One continuation of a prompt."""

    text: str
    """The continuation, up to a stop sequence."""
    tokens: int
    """Generated tokens, including those of a stop sequence."""
    finish_reason: str
    """`stop` after a stop sequence or the end of the text, `length` at `max_tokens`."""
    logprob: float
    """The natural log probability of the generated tokens."""
    ids: tuple[int, ...] = field(default=(), repr=False, compare=False)
    """The generated tokens."""


class Continuing(TextModel):
    """Tokens are drawn or searched for, and spelled as soon as their text is final."""

    @cached_property
    def decoding(self) -> LanguageModel:
        """The model's form for decoding, made at first use."""
        return for_decoding(self.model, share_weights=True)

    def next(self, prefix: str, k: int = 10) -> Rows[tuple[str, float]]:
        """The `k` most likely next tokens after `prefix`, and their probabilities."""
        found = next_tokens(
            self.decoding, self._ids(prefix), k, boundary_id=self.tokenizer.boundary_id
        )
        check_number(sum(probability for _, probability in found))
        rows = [(self.tokenizer.token(token), probability) for token, probability in found]
        return Rows(rows, ("token", "probability"))

    @overload
    def generate(
        self,
        prompt: str = "",
        *,
        stop: Sequence[str] = (),
        stream: Literal[False] = False,
        **options: Unpack[DecodeKeywords],
    ) -> str: ...

    @overload
    def generate(
        self,
        prompt: str = "",
        *,
        stop: Sequence[str] = (),
        stream: Literal[True],
        **options: Unpack[DecodeKeywords],
    ) -> Iterator[str]: ...

    def generate(
        self,
        prompt: str = "",
        *,
        stop: Sequence[str] = (),
        stream: bool = False,
        **options: Unpack[DecodeKeywords],
    ) -> str | Iterator[str]:
        """Continue `prompt`; with `stream`, as pieces of text, each as soon as it is final.

        The texts in `stop` end the continuation and are not part of it. The `options` are those of
        `DecodeOptions`: temperature, seed and others.
        """
        decoding = read_options(options)
        if decoding.num_samples > 1:
            raise UsageError("generate returns one text", "use complete for several samples")
        if not stream:
            return self._complete(prompt, stop, decoding)[0].text
        if decoding.beam_size > 1:
            raise UsageError(
                "beam search cannot stream: its text is known only at the end",
                "drop stream or beam_size",
            )
        pieces = self._pieces(prompt, [self._speaker(prompt, stop)], decoding)
        return (piece for _, piece in pieces if piece)

    def complete(
        self,
        prompt: str | Sequence[int] = "",
        *,
        stop: Sequence[str] = (),
        **options: Unpack[DecodeKeywords],
    ) -> Rows[Completion]:
        """Continue `prompt`, a text or ids, `num_samples` times; arguments as in `generate`."""
        return Rows(self._complete(prompt, stop, read_options(options)))

    def _complete(
        self, prompt: str | Sequence[int], stop: Sequence[str], options: DecodeOptions
    ) -> list[Completion]:
        if options.beam_size > 1:
            return self._beam(prompt, stop, options)
        speakers = [self._speaker(prompt, stop) for _ in range(options.num_samples)]
        texts = [""] * len(speakers)
        logprobs = [0.0] * len(speakers)
        ids: list[list[int]] = [[] for _ in speakers]
        for step, piece in self._pieces(prompt, speakers, options):
            texts[step.row] += piece
            logprobs[step.row] += step.logprob
            ids[step.row].append(step.token)
        return [
            Completion(text, speaker.tokens, speaker.finish_reason, logprob, tuple(tokens))
            for speaker, text, logprob, tokens in zip(speakers, texts, logprobs, ids, strict=True)
        ]

    def _pieces(
        self, prompt: str | Sequence[int], speakers: Sequence[Speaker], options: DecodeOptions
    ) -> Iterator[tuple[Step, str]]:
        """Yield tokens, each with the text that it completes, until a row meets a stop sequence."""
        stopped: set[int] = set()
        for step in sample(
            self.decoding,
            [self._ids(prompt)],
            options.without_unknown(self.tokenizer.unknown_id),
            boundary_id=self.tokenizer.boundary_id,
            end_ids=self.end_ids(),
            stopped=stopped,
        ):
            if step.row in stopped:
                continue
            speaker = speakers[step.row]
            piece = speaker.push(step.token, step.finish_reason)
            if speaker.finished:
                stopped.add(step.row)
            yield step, piece

    def _beam(
        self, prompt: str | Sequence[int], stop: Sequence[str], options: DecodeOptions
    ) -> list[Completion]:
        """Search with a beam; a stop sequence of one token ends a hypothesis in the search."""
        single = [self.tokenizer.encode(text) for text in _stops(stop)]
        (found,) = beam_search(
            self.decoding,
            [self._ids(prompt)],
            options.without_unknown(self.tokenizer.unknown_id),
            boundary_id=self.tokenizer.boundary_id,
            end_ids=self.end_ids() | {int(ids[0]) for ids in single if len(ids) == 1},
        )
        completions = []
        for hypothesis in found:
            speaker = self._speaker(prompt, stop)
            text = speaker.push_all(hypothesis.tokens, hypothesis.finish_reason)
            completions.append(
                Completion(
                    text,
                    speaker.tokens,
                    speaker.finish_reason,
                    hypothesis.logprob,
                    tuple(hypothesis.tokens),
                )
            )
        return completions

    def beam_tree(self, prompt: str = "", **sampled: Any) -> tuple[Tree, Tokenizer]:
        """Every step of a beam search after `prompt`, with sampled paths, and the tokenizer that
        spells it; `options` (beam_size and others) and arguments of `decoding_tree`."""
        options = read_options(sampled.pop("options", {}))
        found = decoding_tree(
            self.decoding,
            self._ids(prompt),
            options.without_unknown(self.tokenizer.unknown_id),
            boundary_id=self.tokenizer.boundary_id,
            end_ids=self.end_ids(),
            **sampled,
        )
        return found, self.tokenizer

    def _speaker(self, prompt: str | Sequence[int], stop: Sequence[str]) -> Speaker:
        ids = self._ids(prompt)
        decoder = self.tokenizer.stream(after=ids[-1] if ids else None)
        return Speaker(decoder, StopMatcher(_stops(stop)))


def _stops(stop: Sequence[str]) -> list[str]:
    return [stop] if isinstance(stop, str) else list(stop)
