"""Train bidirectional language models (ELMo), measured by perplexity.

A sentence is a line of the text. Every word type of the training text has an id, which stands for
its spelling; the frequent ones come first and are predicted. Other words are read by their spelling
too, wherever they occur.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from elman.base.config import merge
from elman.base.counting import counted
from elman.base.errors import ElmanError, UsageError
from elman.batches.buckets import beginning
from elman.batches.encoded import EncodedText, encode_files
from elman.runs.machine import Machine
from elman.runs.run_folder import MODEL_FILE, TOKENIZER_FILE, about
from elman.tasks import Draft, OpenedModel, Proposal
from elman.tasks.elmo.batches import SentenceWindows, Spellings, sentences
from elman.tasks.elmo.evaluation import (
    BidirectionalEvaluation,
    evaluate_bidirectional,
    unknown_id,
)
from elman.tasks.elmo.model import MARKS, BidirectionalLM, spelled
from elman.tasks.elmo.objective import bidirectional_likelihood
from elman.tasks.elmo.settings import ElmoRun
from elman.tasks.opening import checked_tokenizer
from elman.text.sources import Paths, expand, file_lines
from elman.tokens import choose as tokenizer_choice
from elman.tokens.tokenizer import Tokenizer
from elman.tokens.train import train_tokenizer
from elman.train import checkpoint
from elman.train.trainable import Trainable, Validation

KINDS = ("pretokenized", "word")
"""Tokenizers that split text into words."""
MOST_TYPES = 1_000_000
"""The most word types that have an id; rarer ones are not trained on."""
LEAST_SENTENCES = 20
"""Less data than this is an error."""
PROBE_TOKENS = 4096
"""Words in the validation batches before the first update."""
BLOCK = 1 << 20
"""Ids of held-out text that are decoded at a time."""

Sentences = Iterable[Sequence[str]]


def choose(draft: Draft, machine: Machine) -> Proposal:
    """Choose a recipe by the machine, and the tokenizer by the text."""
    recipe, name = draft.base, draft.recipe
    if name is None:
        name = "elmo-small" if machine.is_gpu else "elmo-tiny"
        recipe = draft.read_recipe(name)
    tokenizer = merge(recipe, draft.asked).get("tokenizer", {})
    kind = tokenizer.get("kind", "auto")
    reason = None
    if kind == "auto":
        found = tokenizer_choice.choose(expand(draft.data.train))
        kind, reason = "word", "word: punctuation is attached to words, so it is split off"
        if found.kind == "pretokenized":
            kind, reason = found.kind, found.reason
    elif kind not in KINDS:
        raise UsageError(
            f"ELMo reads words, so its tokenizer cannot be {kind}",
            f"set tokenizer.kind to {' or '.join(KINDS)}",
        )
    # All words are read; the model's settings say which ones are predicted.
    usual = {} if tokenizer.get("file") else {"min_count": 1, "vocab_size": MOST_TYPES}
    base = merge(recipe, {"tokenizer": usual | recipe.get("tokenizer", {})})

    def notes(config: ElmoRun) -> list[str]:
        model = config.model
        notes = [] if draft.recipe is not None else [f"recipe {name}, chosen for the machine"]
        notes += [] if reason is None else [reason]
        projected = ""
        if model.output_size != model.hidden_size:
            projected = f" projected to {model.output_size}"
        cell = model.cell.upper()
        notes.append(
            f"{model.num_layers} layers of {model.hidden_size:,} {cell} units{projected} in each "
            "direction, over characters"
        )
        notes += config.training.precision_notes(machine.is_gpu)
        if not config.data.valid:
            notes.append(f"validation on {config.data.held_out}")
        return notes

    return Proposal(base, merge(draft.asked, {"tokenizer": {"kind": kind}}), notes)


def set_up(config: ElmoRun, out: Path, resume: bool) -> Pretraining:
    data = config.data
    files = expand(data.train)
    counts = None
    if resume:
        header = checkpoint.read_header(out / MODEL_FILE)
        tokenizer = checked_tokenizer(out, header)
        num_targets = _num_targets(out, header)
    else:
        tokenizer, counts = train_tokenizer(files, config.tokenizer)
        tokenizer.save(out / TOKENIZER_FILE)
        # After the boundary and the unknown word, ids are sorted by falling frequency.
        frequent = int((counts[2:] >= config.model.min_count).sum())
        num_targets = 2 + min(frequent, config.model.vocab_size)
        counts[1] += counts[num_targets:].sum()
    text = encode_files(files, tokenizer)
    train, held_out = (text, None) if data.valid else text.split(1 - data.valid_fraction)
    valid = (
        partial(decode_sentences, held_out, tokenizer, config.training.chunk_length)
        if held_out is not None
        else partial(read_sentences, data.valid, tokenizer)
    )
    test = partial(read_sentences, data.test, tokenizer) if data.test else list
    starts, _ = sentences(train.slice(0, BLOCK), tokenizer.boundary_id, BLOCK)
    if len(starts) < LEAST_SENTENCES:
        raise UsageError(
            f"too little data: {counted(len(starts), 'sentence')}",
            "give at least a few hundred lines, one sentence per line",
        )
    return Pretraining(config, tokenizer, num_targets, counts, train, valid, test)


def open_model(path: Path, config: ElmoRun, header: Mapping[str, Any]) -> OpenedModel:
    tokenizer = checked_tokenizer(path, header)
    return partial(config.model.build, _num_targets(path, header)), tokenizer


def _num_targets(path: Path, header: Mapping[str, Any]) -> int:
    found = header.get("num_targets")
    if not isinstance(found, int) or found < 0:
        raise ElmanError(
            f"{path / MODEL_FILE} does not say how many words are predicted",
            "copy the whole run folder, or train the model again",
        )
    return found


@dataclass(frozen=True)
class Pretraining:
    """The text of a run."""

    config: ElmoRun
    tokenizer: Tokenizer
    num_targets: int
    """Ids below this are predicted."""
    counts: NDArray[np.int64] | None
    """How often each id occurs, for a new model; None if it is resumed."""
    train: EncodedText
    valid: Callable[[], Sentences]
    """Starts reading the validation sentences."""
    test_sentences: Callable[[], Sentences]

    @cached_property
    def valid_tokens(self) -> int:
        return sum(map(num_tokens, self.valid()))

    def scale(self) -> str:
        return (
            f"{self.train.num_tokens:,} tokens for training, {self.valid_tokens:,} for validation, "
            f"{self.tokenizer.vocab_size:,} word types, {self.num_targets:,} of them predicted"
        )

    def build(self) -> BidirectionalLM:
        counts = None if self.counts is None else torch.as_tensor(self.counts[: self.num_targets])
        return self.config.model.build(self.num_targets, counts_V=counts)

    def trainable(self, model: Any) -> Trainable:
        training = self.config.training
        graphed = training.replays(model)

        def validate(limit: int | None) -> Validation:
            found = self._evaluate(model, self.valid, limit)
            names = ("forward_perplexity", "backward_perplexity")
            return Validation(
                found.nats_per_token,
                found.bits_per_byte,
                found.tokens,
                {name: getattr(found, name) for name in names},
                oov=found.oov,
                by_surprisal=True,
            )

        return Trainable(
            model=model,
            objective=partial(bidirectional_likelihood, model),
            batches=SentenceWindows(
                self.train,
                self._spellings(),
                batch_size=training.batch_size,
                longest=training.chunk_length,
                seed=training.seed,
                bucketed=graphed,
            ),
            validate=validate,
            valid_tokens=self.valid_tokens,
            probe=lambda: self._evaluate(model, self.valid, PROBE_TOKENS).tokens,
            test_tokens=sum(map(num_tokens, self.test_sentences())),
            graphed=graphed,
            exact=model.head.exact,
            about={**about(self.tokenizer), "num_targets": self.num_targets},
        )

    def test(self, model: Any, limit: int | None) -> dict[str, Any]:
        found = self._evaluate(model, self.test_sentences, limit)
        return {name: value for name, value in asdict(found).items() if name != "seconds"}

    def describe(self) -> str:
        return (
            "A bidirectional language model over the characters of words (ELMo), which predicts "
            f"{self.num_targets:,} words"
        )

    def _evaluate(
        self, model: Any, texts: Callable[[], Sentences], limit: int | None
    ) -> BidirectionalEvaluation:
        return evaluate_bidirectional(model, self.tokenizer, beginning(texts(), num_tokens, limit))

    def _spellings(self) -> Spellings:
        characters = self.config.model.character_cnn
        table_VC = spelled([*MARKS, *self.tokenizer.spellings()], characters).numpy()
        return Spellings(
            table_VC=table_VC,
            lengths_V=(table_VC != characters.alphabet.padding).sum(1),
            margin=len(characters.filters),
            num_targets=self.num_targets,
            boundary_id=self.tokenizer.boundary_id,
            unknown_id=unknown_id(self.tokenizer),
        )


def read_sentences(paths: Paths, tokenizer: Tokenizer) -> Iterator[list[str]]:
    """Read sentences from files, one per line, and split them into words by the tokenizer."""
    for path in expand(paths):
        for line in file_lines(path):
            if words := tokenizer.words(line):
                yield words


def decode_sentences(text: EncodedText, tokenizer: Tokenizer, longest: int) -> Iterator[list[str]]:
    """Decode the sentences of a text; long ones are cut as for training."""
    spellings = tokenizer.spellings()
    start = 0
    while start < len(text):
        ids = text.slice(start, start + max(BLOCK, longest))
        if start + len(ids) < len(text):  # leave a sentence that continues beyond the block
            ends = np.flatnonzero(ids == tokenizer.boundary_id)
            ids = ids[: ends[-1] + 1 if len(ends) else len(ids) // longest * longest]
        for begin, length in zip(*sentences(ids, tokenizer.boundary_id, longest), strict=True):
            yield [spellings[i] for i in ids[begin : begin + length].tolist()]
        start += len(ids)


def num_tokens(words: Sequence[str]) -> int:
    """Number of words, and one for the end of the sentence."""
    return len(words) + 1
