"""The handle of a language model: a model with its tokenizer.

Text is encoded and decoded here; the rest works on ids. T time steps, E embedding, H hidden.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Unpack, overload

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from elman.base.errors import UsageError, check_k, check_text, closest, nearest
from elman.base.files import owned_folder
from elman.base.result_rows import Rows
from elman.batches.encoded import EncodedText, encode_files
from elman.batches.lines import line_end_id
from elman.decode.beam import beam_search
from elman.decode.options import DecodeKeywords, DecodeOptions, read_options
from elman.decode.sample import Step, next_tokens, sample
from elman.decode.speak import Speaker
from elman.decode.stop import StopMatcher
from elman.decode.tree import Tree, decoding_tree
from elman.evaluate.adaptation import Trial
from elman.evaluate.contextual import Layers, layer_vectors
from elman.evaluate.embeddings import (
    contextual_vectors,
    neighbours,
    sequence_vectors,
    word_vectors,
)
from elman.evaluate.inside import Inside, inside
from elman.evaluate.last_tokens import with_context
from elman.evaluate.perplexity import Evaluation, evaluate
from elman.evaluate.pictures import save
from elman.evaluate.sequences import check_number
from elman.evaluate.shown_surprisal import Surprisals, draw_surprisal
from elman.evaluate.suites import SuiteReport, run_suite
from elman.evaluate.surprisal import surprisals
from elman.models.cache import CacheConfig
from elman.models.decoding import for_decoding
from elman.models.dynamic import DynamicConfig
from elman.models.embedder import Embedder
from elman.models.interface import LanguageModel
from elman.models.mixture import Mixture
from elman.models.recurrent import RecurrentLM
from elman.nn.kernels import plans_by_layer, recorded_plans
from elman.tasks import Task, task_named
from elman.tasks.describe import describe_run, describe_tokenizer
from elman.tasks.embeddings import embedder_of
from elman.tasks.opening import OpenedRun
from elman.text.sources import Paths, expand
from elman.tokens.fitting import SAMPLE_LINES, FittedTokenizer, Fitting, first_lines
from elman.tokens.tokenizer import Tokenizer

if TYPE_CHECKING:
    from elman.tasks.adapted_handle import AdaptedLM

Kind = Literal["word", "token", "sequence"]
UNITS = {"2": "bits", "e": "nats", "10": "bans"}
"""What surprisal is measured in, by the base of the logarithm."""
INTERNAL = {
    *("can_be_undefined", "decoding", "embedder", "end_ids", "is_normalised", "kind", "line_end"),
    *("notes_after", "of_run", "parts", "runs", "task", "unit", "what"),
}
"""Names of `LM` that other modules use, which completion does not offer."""
Vectors = NDArray[np.float32]


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


class LM:
    """A language model with its tokenizer."""

    what = "a language model"

    def __init__(
        self,
        name: str,
        model: LanguageModel,
        tokenizer: Tokenizer,
        runs: Sequence[OpenedRun] = (),
        parts: Sequence[LM] = (),
    ) -> None:
        self.name = name
        self.model = model
        self.tokenizer = tokenizer
        self.runs = tuple(runs)
        """Its run folders: one, several of a mixture, none of an ARPA file."""
        self.parts = tuple(parts)
        """The models of a mixture."""

    @classmethod
    def of_run(cls, name: str, run: OpenedRun) -> LM:
        return cls(name, run.model, run.tokenizer, [run])

    def __repr__(self) -> str:
        return f"LM({self.name!r}, {self.tokenizer})"

    def __dir__(self) -> Iterable[str]:
        return sorted(set(super().__dir__()) - INTERNAL)

    @property
    def task(self) -> Task | None:
        """The task of its run; None of a mixture or a model without a run folder."""
        return task_named(self.runs[0].config.task) if len(self.runs) == 1 else None

    @property
    def kind(self) -> str:
        """The kind of its model."""
        if self.parts:
            return "mixture"
        if not self.runs:
            return type(self.model).__name__
        return str(getattr(self.runs[0].config.model, "kind", "model"))

    @property
    def unit(self) -> str:
        """What it reads from a fresh state: the `text`, or each `line`."""
        if self.parts:
            return "line" if any(part.unit == "line" for part in self.parts) else "text"
        return str(getattr(self.runs[0].config.data, "unit", "text")) if self.runs else "text"

    @property
    def line_end(self) -> int | None:
        """The token that ends a line, of a model that reads each line by itself."""
        return line_end_id(self.tokenizer) if self.unit == "line" else None

    @property
    def notes(self) -> list[str]:
        """Caveats about its figures; usually none."""
        return [f"{part.name}: {note}" for part in self.parts for note in part.notes]

    @property
    def is_normalised(self) -> bool:
        """Whether its probabilities sum to one."""
        return True

    @property
    def can_be_undefined(self) -> bool:
        """Whether its estimate can be 0/0: of maximum likelihood, after an unseen context."""
        return False

    def notes_after(self, prefix: str) -> list[str]:
        """Caveats about the prediction after `prefix`; usually none."""
        return []

    # Measuring

    def surprisal(
        self,
        text: str | Iterable[str],
        *,
        unit: str = "token",
        base: str | int = 2,
        boundary: str = "trailing",
        unknown: str = "score",
        carry: bool = False,
        include_end: bool = True,
        context: int | None = None,
        reset: str = "never",
        entropy: bool = False,
        as_is: bool = False,
    ) -> Surprisals:
        """-log P of every token, word or line of `text`, a string or lines.

        Each line is a separate text, unless `carry`. With `context`, each token is predicted from
        at most that many tokens before it. With `reset`, a model that adapts forgets at each
        `blank` line or each `line`. `elman.evaluate.policies` explains the options. Text is read as
        the training text was written (`fitted`), unless `as_is`. The result is a list that a
        notebook shows as shaded text; its `to_pandas()` is a DataFrame.
        """
        policies: dict[str, Any] = {"unit": unit, "base": base, "boundary": boundary}
        policies |= {"unknown": unknown, "carry": carry, "include_end": include_end}
        policies |= {"context": context, "reset": reset, "entropy": entropy}
        tokenizer = self.tokenizer
        if not as_is:
            text = text if isinstance(text, str) or not isinstance(text, Iterable) else [*text]
            tokenizer = self.fitted(text)
        rows = surprisals(self.model, tokenizer, text, **policies)
        return Surprisals(rows, UNITS.get(str(base), f"base {base}"))

    def plot_surprisal(
        self, text: str, *, unit: str = "word", path: Path | str | None = None, **options: Any
    ) -> Any:
        """Draw the surprisal of each token, word or line as bars; return a matplotlib figure.

        With `path`, save it there too (.png, .svg, .pdf). The `options` are those of `surprisal`.
        """
        rows = self.surprisal(text, unit=unit, **options)
        figure = draw_surprisal(rows, rows.unit)
        if path is not None:
            save(figure, Path(path))
        return figure

    def fitted(self, text: str | Sequence[str]) -> Tokenizer:
        """The tokenizer that reads `text`, a string or its first lines, as the training text was
        written; its `reads_as` says how. See `elman.tokens.fitting`."""
        check_text(text, Sequence)
        lines = text.split("\n", SAMPLE_LINES)[:SAMPLE_LINES] if isinstance(text, str) else text
        for line in lines:
            check_text(line)
        return self._fitting.tokenizer_for([line.removesuffix("\n") for line in lines])

    @cached_property
    def _fitting(self) -> Fitting:
        return Fitting(self.tokenizer)

    def logprob(
        self,
        text: str,
        *,
        carry: bool = False,
        include_end: bool = True,
        context: int | None = None,
        as_is: bool = False,
    ) -> float:
        """Natural log P(text); the lines are read as in `surprisal`."""
        return self._logprob(text, carry, include_end, context, as_is)[0]

    def perplexity(
        self,
        text: str,
        *,
        carry: bool = False,
        include_end: bool = True,
        context: int | None = None,
        as_is: bool = False,
    ) -> float:
        """exp of the mean surprisal per token; the lines are read as in `surprisal`."""
        logprob, num_tokens = self._logprob(text, carry, include_end, context, as_is)
        if num_tokens == 0:
            raise UsageError("the text has no tokens to measure", "give a longer text")
        return math.exp(-logprob / num_tokens) if logprob > -700.0 * num_tokens else math.inf

    def evaluate(
        self,
        data: Paths,
        *,
        batch_size: int | None = None,
        context: int | None = None,
        as_is: bool = False,
    ) -> Evaluation:
        """Perplexity and bits per byte of files or built-in corpora, read as in training: as one
        text, or each line by itself.

        With `context`, each token is predicted from at most that many tokens before it. Text is
        read as the training text was written (`fitted`), unless `as_is`.
        """
        if batch_size is not None and self.unit == "line":
            raise UsageError(
                f"{self.name} reads each line by itself, not in lanes", "leave batch_size out"
            )
        text, reads_as = self._encoded(data, as_is)
        found = evaluate(
            self.model,
            text,
            boundary_id=self.tokenizer.boundary_id,
            unknown_id=self.tokenizer.unknown_id,
            batch_size=batch_size,
            context=context,
            line_end=self.line_end,
        )
        check_number(found.nats_per_token)
        return replace(found, reads_as=reads_as)

    def adapting(
        self,
        *,
        adapt: bool | Mapping[str, Any] | DynamicConfig = False,
        cache: bool | Mapping[str, Any] | CacheConfig = False,
        tune: Paths = (),
        on_trial: Callable[[Trial], None] | None = None,
    ) -> AdaptedLM:
        """The model as one that adapts to what it reads: see `elman.tasks.adapted_handle`.

        `adapt` lets networks go on learning (dynamic evaluation), `cache` mixes in the words that
        followed similar contexts; both take settings, such as {"rate": 0.0001}. With `tune`, files
        of validation text, settings are found there; `on_trial` is called with every one tried.
        """
        from elman.tasks.adapted_handle import adapting

        return adapting(self, adapt_with=adapt, cache=cache, tune_on=tune, on_trial=on_trial)

    def _encoded(self, data: Paths, as_is: bool) -> tuple[EncodedText, str]:
        """The ids of files, and how their text was changed."""
        files = expand(data)
        tokenizer = self.tokenizer if as_is else self._fitting.tokenizer_for(first_lines(files))
        if not isinstance(tokenizer, FittedTokenizer):
            return encode_files(files, self.tokenizer), ""
        with owned_folder() as folder:
            num_bytes = tokenizer.rewrite(files, rewritten := folder / "text.txt")
            # Figures per byte are about the text as given.
            ids = encode_files(rewritten, self.tokenizer).ids
        return EncodedText(ids, num_bytes=num_bytes), tokenizer.reads_as

    def judge(
        self, files: Paths, *, suite: str, context: int | None = None, as_is: bool = False
    ) -> SuiteReport:
        """Accuracy on the files of a grammar test suite: `blimp` or `syntaxgym`.

        Sentences are read as the training text was written (`fitted`), unless `as_is`.
        """
        model = with_context(self.model, context)
        fit = None if as_is else self.fitted
        return run_suite(suite, model, self.tokenizer, expand(files), fit=fit)

    def _logprob(
        self, text: str, carry: bool, include_end: bool, context: int | None, as_is: bool
    ) -> tuple[float, int]:
        how: dict[str, Any] = {"carry": carry, "include_end": include_end, "context": context}
        rows = self.surprisal(text, unit="line", base="e", as_is=as_is, **how)
        return -math.fsum(row.surprisal or 0.0 for row in rows), sum(row.num_tokens for row in rows)

    # Continuing

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
                "beam search cannot stream: it has no text before its end",
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
        for step, piece in self._pieces(prompt, speakers, options):
            texts[step.row] += piece
            logprobs[step.row] += step.logprob
        return [
            Completion(text, speaker.tokens, speaker.finish_reason, logprob)
            for speaker, text, logprob in zip(speakers, texts, logprobs, strict=True)
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
                Completion(text, speaker.tokens, speaker.finish_reason, hypothesis.logprob)
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

    def _ids(self, text: str | Sequence[int]) -> list[int]:
        check_text(text, Sequence, np.ndarray)
        ids = self.tokenizer.encode(text) if isinstance(text, str) else text
        try:
            tokens = [operator.index(token) for token in ids]
        except TypeError as error:
            raise UsageError("ids must be whole numbers", "give a text, or its ids") from error
        if not all(0 <= token < self.tokenizer.vocab_size for token in tokens):
            raise UsageError(
                f"ids must be from 0 to {self.tokenizer.vocab_size - 1}",
                "encode the text with the model's own tokenizer",
            )
        return tokens

    def end_ids(self) -> set[int]:
        """The tokens that end a text; a boundary that also ends lines does not, unless each line is
        a text."""
        if (line_end := self.line_end) is not None:
            return {line_end}
        return set() if self.tokenizer.marks_lines else {self.tokenizer.boundary_id}

    # Looking inside

    def inside(
        self,
        text: str | Sequence[int],
        *,
        layer: int = 0,
        part: str = "h",
        target: int | None = None,
    ) -> Inside:
        """States and gates of a layer while the model reads `text`, and gradients of a prediction.

        `part` is a letter of the cell's equations. `target` is the place of the token whose
        prediction the gradients are about, from 1; by default the last one. For recurrent models.
        """
        model = self.model
        if not isinstance(model, RecurrentLM):
            what = "is a mixture" if self.parts else f"is a {self.kind} model"
            raise UsageError(
                f"{self.name} {what}, not a recurrent one: it has no layers to look into",
                "name one of its parts" if self.parts else "train a recurrent one",
            )
        ids = [self.tokenizer.boundary_id, *self._ids(text)]
        spellings = [self.tokenizer.token(token) for token in ids]
        return inside(model, ids, spellings, layer=layer, part=part, target=target)

    def embed(self, text: str, *, kind: Kind = "sequence") -> Vectors:
        """The vector of a text (H,), or of each of its tokens (T, E or H): see `embeddings`."""
        return next(self.embeddings([text], kind=kind))

    def embeddings(self, texts: Iterable[str], *, kind: Kind = "sequence") -> Iterator[Vectors]:
        """One array per text, in order; each text is read separately.

        `word`: a vector per token, independent of context (T, E). `token`: a vector per
        token in its left context (T, H). `sequence`: the vector after the last token (H,).
        """
        boundary_id = self.tokenizer.boundary_id
        sequences = (self._ids(text) for text in texts)
        if kind == "word":
            vectors_VE = word_vectors(self.model).float().cpu().numpy()
            yield from (vectors_VE[ids] for ids in sequences)
        elif kind == "token":
            found = contextual_vectors(self.model, sequences, boundary_id=boundary_id)
            yield from (vectors_TH.numpy() for vectors_TH in found)
        elif kind == "sequence":
            found = sequence_vectors(self.model, sequences, boundary_id=boundary_id)
            yield from (vector_H.numpy() for vector_H in found)
        else:
            raise UsageError(
                f"kind cannot be '{kind}'", nearest(kind, ("word", "token", "sequence"))
            )

    def words(self, line: str) -> list[str]:
        """Split a line into the words that `contextual` takes: with a word tokenizer, else at
        spaces."""
        whole = self.tokenizer.kind in ("word", "pretokenized")
        return self.tokenizer.words(line) if whole else line.split()

    def contextual(
        self,
        sentences: Iterable[Sequence[str]],
        *,
        layers: Layers = "mix",
        carry_state: bool = False,
    ) -> Iterator[Vectors]:
        """One array per sentence of words, in order: a vector per word in its left context.

        `top`: (words, H) of the top layer; `mix`: of the mean of the layers of the same width;
        `all`: (layers, words, H) of these layers.
        """
        found = layer_vectors(self.embedder, sentences, layers=layers, carry_state=carry_state)
        return (vectors.numpy() for vectors in found)

    @cached_property
    def embedder(self) -> Embedder:
        return embedder_of(self.task, self.model, self.tokenizer, self.name)

    def word_vector(self, word: str) -> Vectors:
        """The vector (E,) of one token of the vocabulary."""
        vector: Vectors = word_vectors(self.model)[self._word_id(word)].float().cpu().numpy()
        return vector

    def neighbours(self, word: str, k: int = 10) -> Rows[tuple[str, float]]:
        """The `k` words whose vectors are nearest to the vector of `word`, with their cosines."""
        check_k(k)
        token = self._word_id(word)
        tokenizer = self.tokenizer
        special = [i for i in (tokenizer.boundary_id, tokenizer.unknown_id) if i is not None]
        found = neighbours(word_vectors(self.model), token, k, exclude=special)
        rows = [(self.tokenizer.token(other), cosine) for other, cosine in found]
        return Rows(rows, ("word", "cosine"))

    def _word_id(self, word: str) -> int:
        # A token of a sub-word vocabulary usually starts with the space before the word.
        for spelling in (word, f" {word}"):
            token = self.tokenizer.id(spelling)
            if token is not None:
                return token
        near = closest(word, self.tokenizer.spellings())
        raise UsageError(
            f"'{word}' is not a token of this model",
            "`elman next MODEL` shows how tokens are written"
            if near is None
            else f"did you mean '{near}'?",
        )

    def _generation_plans(self) -> dict[str, str]:
        """The kernel of each layer when generating one text, found by running one step."""
        network = getattr(self.decoding, "model", None)
        if not isinstance(network, nn.Module):
            return {}
        with recorded_plans() as plans:
            device = next(network.parameters()).device
            first = torch.tensor([self.tokenizer.boundary_id], device=device)
            self.decoding.step(first, self.decoding.initial_state(1))
        return plans_by_layer(network, plans)

    def info(self) -> dict[str, Any]:
        """Describe the model as plain values: parts, kernels, tokenizer, training, figures."""
        about: dict[str, Any] = {
            "name": self.name,
            "kind": self.kind,
            "tokenizer": describe_tokenizer(self.tokenizer),
        }
        if isinstance(self.model, Mixture):
            about["parts"] = [
                {"weight": weight, **part.info()}
                for part, weight in zip(self.parts, self.model.weights, strict=True)
            ]
        elif self.runs:
            about |= describe_run(self.runs[0])
            about["generation"] = self._generation_plans()
        return about


def _stops(stop: Sequence[str]) -> list[str]:
    return [stop] if isinstance(stop, str) else list(stop)
