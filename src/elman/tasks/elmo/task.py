"""Bidirectional language models (ELMo) as a task: sentences in both directions, judged by
perplexity.

A sentence is a line of the text. Every word type of the training text has an id, by which its
spelling is found; the frequent ones, which come first, are the words that are predicted. Words that
the training text does not have are read by their spelling as well, wherever they occur.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property, partial
from itertools import takewhile
from pathlib import Path
from typing import Any

import numpy as np
import torch

from elman.base.config import merge
from elman.base.counting import counted
from elman.base.errors import ElmanError, UsageError
from elman.batches.encoded import EncodedText, encode_files
from elman.recipes import read as read_recipe
from elman.runs.machine import Machine
from elman.runs.run_config import RunConfig
from elman.runs.run_folder import about, check_vocabulary, require
from elman.tasks import Choice, Opened, Request
from elman.tasks.elmo.batches import SentenceWindows, Spellings, sentences
from elman.tasks.elmo.evaluation import BidirectionalEvaluation, evaluate_bidirectional
from elman.tasks.elmo.model import MARKS, BidirectionalLM, spelled
from elman.tasks.elmo.objective import bidirectional_likelihood
from elman.text.sources import Paths, expand, file_lines
from elman.tokens import choose as tokenizer_choice
from elman.tokens.tokenizer import TOKENIZER_FILE, Tokenizer
from elman.tokens.train import train_tokenizer
from elman.train import checkpoint
from elman.train.loop import MODEL_FILE, Task, Validation

KINDS = ("pretokenized", "word")
"""Tokenizers that cut text into words."""
MOST_TYPES = 1_000_000
"""Word types that are read by their ids; the spellings of rarer ones are not learnt from."""
LEAST_SENTENCES = 20
"""Less text than this is a mistake."""
PROBE_TOKENS = 4096
"""Words in the validation batches that go before training."""
BLOCK = 1 << 20
"""Ids of held-out text that are turned back into words at a time."""

Sentences = Iterable[Sequence[str]]


def choose(request: Request, machine: Machine) -> Choice:
    """A recipe by the machine where none is given; words as the text separates them, or cut."""
    recipe = request.base
    name = request.recipe
    if name is None:
        name = "elmo-small" if machine.is_gpu else "elmo-tiny"
        recipe = read_recipe(name)
    asked = merge(recipe, request.asked).get("tokenizer", {})
    kind, reason = asked.get("kind", "auto"), None
    if kind == "auto":
        found = tokenizer_choice.choose(expand(request.data.train))
        kind = "pretokenized" if found.kind == "pretokenized" else "word"
        reason = (
            found.reason
            if kind == "pretokenized"
            else "word: marks stand close to words, so they are cut off"
        )
    elif kind not in KINDS:
        raise UsageError(
            f"ELMo reads words, and a {kind} tokenizer gives none",
            f"set tokenizer.kind to {' or '.join(KINDS)}",
        )
    # Every word is read; which of them are predicted, the model's settings say.
    usual = {"min_count": 1, "vocab_size": MOST_TYPES}
    base = merge(recipe, {"tokenizer": usual | recipe.get("tokenizer", {})})
    own = {**request.asked.get("tokenizer", {}), "kind": kind}

    def notes(config: RunConfig) -> list[str]:
        model = config.model
        said = [] if request.recipe is not None else [f"recipe {name}, by the machine"]
        said += [] if reason is None else [reason]
        projected = f" projected to {model.projection_size}" if model.projection_size else ""
        said.append(
            f"{model.num_layers} layers of {model.hidden_size:,} LSTM units{projected} in each "
            "direction, over characters"
        )
        if not config.data.valid:
            said.append(
                f"the last {config.data.valid_fraction:.0%} of the text is held out for validation"
            )
        return said

    return Choice(base, {**request.asked, "tokenizer": own}, notes)


def set_up(config: RunConfig, out: Path, resume: bool) -> Pretraining:
    """Encode the text, with a new vocabulary unless the run has one."""
    data = config.data
    files = expand(data.train)
    counts = None
    if resume:
        header = checkpoint.read_header(out / MODEL_FILE)
        tokenizer = Tokenizer.load(out / TOKENIZER_FILE)
        check_vocabulary(out, tokenizer, header)
        num_targets = int(header["num_targets"])
    else:
        tokenizer, counts = train_tokenizer(files, config.tokenizer)
        tokenizer.save(out / TOKENIZER_FILE)
        # Ids fall in frequency after those of the boundary and the unknown word.
        frequent = int((counts[2:] >= config.model.min_count).sum())
        num_targets = 2 + min(frequent, config.model.vocab_size)
        counts[1] += counts[num_targets:].sum()
    text = encode_files(files, tokenizer)
    train, held_out = (text, None) if data.valid else text.split(1 - data.valid_fraction)
    valid = (
        partial(of_ids, held_out, tokenizer, config.training.chunk_length)
        if held_out is not None
        else partial(of_files, data.valid, tokenizer)
    )
    test = partial(of_files, data.test, tokenizer) if data.test else None
    starts, _ = sentences(train.slice(0, BLOCK), tokenizer.boundary_id, BLOCK)
    if len(starts) < LEAST_SENTENCES:
        raise UsageError(
            f"there is too little text to learn from: {counted(len(starts), 'sentence')}",
            "give it some hundred lines at the least, a sentence each",
        )
    return Pretraining(config, tokenizer, num_targets, counts, train, valid, test)


def open_model(path: Path, config: RunConfig, header: Mapping[str, Any]) -> Opened:
    """The network of a run folder, weights to be loaded, and its vocabulary."""
    require(path, TOKENIZER_FILE)
    tokenizer = Tokenizer.load(path / TOKENIZER_FILE)
    check_vocabulary(path, tokenizer, header)
    if not isinstance(header.get("num_targets"), int):
        raise ElmanError(
            f"{path / MODEL_FILE} does not say how many words are predicted",
            "copy the whole run folder, or train the model again",
        )
    return config.model.build(header["num_targets"]), tokenizer


@dataclass(frozen=True)
class Pretraining:
    """The text of a run."""

    config: RunConfig
    tokenizer: Tokenizer
    num_targets: int
    """Ids below this are predicted."""
    counts: Any
    """How often each id occurs, for a new model; None where the model is there already."""
    train: EncodedText
    valid: Callable[[], Sentences]
    """The sentences to validate on, from the first."""
    test_sentences: Callable[[], Sentences] | None

    @cached_property
    def valid_tokens(self) -> int:
        """Words to validate on, and sentence ends."""
        return num_tokens(self.valid())

    @cached_property
    def test_tokens(self) -> int:
        """Words to test on, and sentence ends."""
        return 0 if self.test_sentences is None else num_tokens(self.test_sentences())

    def scale(self) -> str:
        """Tokens and types."""
        return (
            f"{self.train.num_tokens:,} tokens to learn from, {self.valid_tokens:,} to validate "
            f"on, {self.tokenizer.vocab_size:,} word types, {self.num_targets:,} of them predicted"
        )

    def build(self) -> BidirectionalLM:
        """A model as it is at the start."""
        counts = None if self.counts is None else torch.as_tensor(self.counts[: self.num_targets])
        model: BidirectionalLM = self.config.model.build(self.num_targets, counts_V=counts)
        return model

    def task(self, model: Any) -> Task:
        """Sentences of one length side by side, the likelihood in both directions."""
        training = self.config.training

        def validate(limit: int | None) -> Validation:
            found = self._evaluate(model, beginning(self.valid(), limit))
            names = ("forward_perplexity", "backward_perplexity")
            return Validation(
                found.nats_per_token,
                found.bits_per_byte,
                found.tokens,
                {name: getattr(found, name) for name in names},
                by_surprisal=True,
            )

        return Task(
            model=model,
            objective=partial(bidirectional_likelihood, model),
            batches=SentenceWindows(
                self.train,
                self._spellings(),
                batch_size=training.batch_size,
                longest=training.chunk_length,
                seed=training.seed,
            ),
            validate=validate,
            valid_tokens=self.valid_tokens,
            probe=lambda: self._evaluate(model, beginning(self.valid(), PROBE_TOKENS)).tokens,
            test_tokens=self.test_tokens,
            exact=model.head.exact,
            about={**about(self.tokenizer), "num_targets": self.num_targets},
        )

    def test(self, model: Any, limit: int | None) -> dict[str, Any]:
        """The perplexities."""
        assert self.test_sentences is not None
        found = self._evaluate(model, beginning(self.test_sentences(), limit))
        return {name: value for name, value in asdict(found).items() if name != "seconds"}

    def describe(self) -> str:
        """What is read and predicted."""
        return (
            "A bidirectional language model over the characters of words (ELMo), which predicts "
            f"{self.num_targets:,} words"
        )

    def uses(self) -> tuple[str, ...]:
        """Vectors of words in context, and what else they are for."""
        return (
            "elman embed FOLDER FILE --out vectors.npz",
            "elman train tagger DATA --embeddings FOLDER",
            "elman convert FOLDER OUT",
        )

    def _evaluate(self, model: Any, texts: Sentences) -> BidirectionalEvaluation:
        return evaluate(model, self.tokenizer, texts)

    def _spellings(self) -> Spellings:
        """The spelling of every id, in the order of the table's rows."""
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


def evaluate(
    model: BidirectionalLM, tokenizer: Tokenizer, texts: Sentences
) -> BidirectionalEvaluation:
    """The perplexities of sentences."""
    unknown = unknown_id(tokenizer)

    def target(word: str) -> int:
        found = tokenizer.id(word)
        return unknown if found is None or found >= model.num_targets else found

    return evaluate_bidirectional(
        model, texts, target, boundary_id=tokenizer.boundary_id, unknown_id=unknown
    )


def unknown_id(tokenizer: Tokenizer) -> int:
    """The id of words that are not predicted."""
    assert tokenizer.unknown_id is not None, "a vocabulary of words has one"
    return tokenizer.unknown_id


def of_files(paths: Paths, tokenizer: Tokenizer) -> Iterator[list[str]]:
    """The sentences of files, a line each, in words as the tokenizer cuts them."""
    for path in expand(paths):
        for line in file_lines(path):
            if words := tokenizer.words(line):
                yield words


def of_ids(text: EncodedText, tokenizer: Tokenizer, longest: int) -> Iterator[list[str]]:
    """The sentences of an encoded text, long ones cut as for training."""
    spellings = tokenizer.spellings()
    start = 0
    while start < len(text):
        ids = text.slice(start, start + max(BLOCK, longest))
        if start + len(ids) < len(text):  # what goes on beyond the block is left for the next one
            ends = np.flatnonzero(ids == tokenizer.boundary_id)
            ids = ids[: ends[-1] + 1 if len(ends) else len(ids) // longest * longest]
        for begin, length in zip(*sentences(ids, tokenizer.boundary_id, longest), strict=True):
            yield [spellings[i] for i in ids[begin : begin + length].tolist()]
        start += len(ids)


def beginning(texts: Sentences, limit: int | None) -> Iterator[Sequence[str]]:
    """The first sentences with about so many tokens; all where it is None."""
    left = np.inf if limit is None else limit

    def fits(words: Sequence[str]) -> bool:
        nonlocal left
        before, left = left, left - len(words) - 1
        return before > 0

    return takewhile(fits, texts)


def num_tokens(texts: Sentences) -> int:
    """Words and sentence ends."""
    return sum(len(words) + 1 for words in texts)
