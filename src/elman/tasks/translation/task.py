"""Translating: pairs of lines, an encoder and a decoder, BLEU.

Pairs with an empty side, or with more than `data.max_length` tokens on one, are left out of
training; nothing is left out of what is measured. The best model is the one with the highest BLEU
of greedy translations of the validation text, or where sacrebleu is not installed the one that
predicts the most of its tokens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from elman.base.config import from_dict, merge
from elman.base.counting import counted
from elman.base.errors import UsageError
from elman.batches.buckets import SentenceBatches, pad
from elman.batches.conditional import ConditionalBatch, conditional_batch
from elman.batches.lines import Lines, encode_lines, line_end_id
from elman.batches.wording import Spelled, Wording
from elman.decode.options import CONDITIONAL, DecodeOptions
from elman.evaluate.conditional import Prediction, evaluation_batches, predict
from elman.evaluate.generated_text import can_score, score
from elman.models.embedder import Embedder
from elman.objectives.regimes import training_objective
from elman.runs.card import KINDS
from elman.runs.machine import Machine
from elman.runs.run_config import RunConfig
from elman.runs.run_folder import about, check_vocabulary, require
from elman.tasks import Choice, Opened, Request
from elman.tasks.embeddings import open_kept, set_up_embedder
from elman.tasks.translation.evaluation import translate
from elman.tasks.translation.vocabulary import TokenizerPair
from elman.text.pairs import check_same_length, lines_of, pair_of_files
from elman.tokens.tokenizer import TOKENIZER_FILE, Tokenizer
from elman.tokens.tokenizer_config import TokenizerConfig
from elman.tokens.train import train_tokenizer
from elman.train import checkpoint
from elman.train.loop import MODEL_FILE
from elman.train.trainable import Trainable, Validation

GREEDY = DecodeOptions(greedy=True)
"""How it translates during training: several times quicker, and nearly as good."""
PROBED = 32
"""Pairs that go through before training."""
FEWEST_PAIRS = 10
"""Fewer than this is a mistake."""
MANY_PAIRS = 200_000
"""From here on there is enough text for a larger model with less dropout."""


def choose(request: Request, machine: Machine) -> Choice:
    """Settings by the number of pairs and the machine."""
    if request.recipe is not None:
        return Choice(request.base, request.asked, lambda config: [])
    source, target = pair_of_files(request.data.train)
    num_pairs = sum(1 for _ in lines_of(source))
    check_same_length(source, target, num_pairs, sum(1 for _ in lines_of(target)))
    tokenizer = from_dict(TokenizerConfig, request.asked.get("tokenizer", {}), "tokenizer")
    many = num_pairs >= MANY_PAIRS
    width = (512 if machine.is_gpu else 256) * (2 if many and machine.is_gpu else 1)
    embedding_size = max(256, width // 2)
    dropout = 0.1 if many else 0.4 if machine.is_gpu else 0.2
    shared = tokenizer.shared
    chosen = {
        "data": {"valid_fraction": min(0.1, 2000 / max(1, num_pairs))},
        "tokenizer": {"kind": "bpe", "vocab_size": 32_000 if many else _vocab_size(num_pairs)},
        "model": {
            "kind": "sequence_to_sequence",
            "shared_embedding": shared,
            "decoder": {
                "hidden_size": width,
                "embedding_size": embedding_size,
                "tied": True,
                "num_layers": 2 if many else 1,
                "attention": "bilinear",
                # Step by step: on a processor without it twice as many pairs are read in the time.
                "input_feeding": machine.is_gpu,
                "dropout_embedding": 0.0 if many else 0.1,
                "dropout_input": dropout,
                "dropout_hidden": dropout,
                "dropout_output": dropout,
            },
        },
        "objective": {"label_smoothing": 0.1},
        "optimiser": {"kind": "adam", "learning_rate": 0.001},
        "schedule": {"kind": "cosine", "warmup_steps": 200},
        "training": {
            "batch_size": 128 if machine.is_gpu else 64,
            "epochs": 10 if many else 30 if machine.is_gpu else 15,
            "clip_norm": 1.0,
        },
    }
    asked = _fitting(chosen, request.asked)
    return Choice(chosen, asked, partial(_sentences, num_pairs, machine))


def _vocab_size(num_pairs: int) -> int:
    """Word pieces for so many pairs: a power of two, from 1,024 to 8,192."""
    return 1 << min(13, max(10, int(np.log2(max(1, num_pairs) / 3))))


def _fitting(chosen: dict[str, Any], asked: dict[str, Any]) -> dict[str, Any]:
    """The user's settings, and where one of them contradicts our own, ours given up for it."""
    model = asked.get("model", {})
    decoder = dict(model.get("decoder", {}))
    ours = chosen["model"]["decoder"]
    looks = decoder.get("attention", ours["attention"]) != "none"
    if not looks or decoder.get("attend") == "before":
        decoder.setdefault("input_feeding", False)
        sizes = (
            decoder.get("hidden_size", ours["hidden_size"]),
            decoder.get("embedding_size", ours["embedding_size"]),
        )
        if sizes[0] != sizes[1]:
            decoder.setdefault("tied", False)
    return merge(asked, {"model": {"decoder": decoder}})


def _sentences(num_pairs: int, machine: Machine, config: RunConfig) -> list[str]:
    decoder, training = config.model.decoder, config.training
    layers = counted(decoder.num_layers, "layer")
    looks = "no attention" if decoder.attention == "none" else f"{decoder.attention} attention"
    return [
        f"{config.tokenizer.kind}: {config.tokenizer.vocab_size:,} word pieces, "
        + ("shared by both languages" if config.tokenizer.shared else "for each language"),
        f"{layers} of {decoder.hidden_size} {decoder.cell.upper()} units on either side, {looks}, "
        f"for {num_pairs:,} pairs on {machine.description}",
        f"{config.optimiser.kind} at {config.optimiser.learning_rate:g}, "
        f"{training.batch_size} pairs a step",
    ]


def set_up(config: RunConfig, out: Path, resume: bool) -> Translating:
    """Encode the pairs, with new tokenizers unless the run has them."""
    embedder = set_up_embedder(config.model.embeddings, out, resume)
    read = partial(read_pairs, spelled=embedder is not None)
    data = config.data
    files = pair_of_files(data.train)
    if resume:
        tokenizers = TokenizerPair.load(out)
        check_vocabulary(out, tokenizers.target, checkpoint.read_header(out / MODEL_FILE))
    else:
        tokenizers = _tokenizers(files, config.tokenizer)
        tokenizers.save(out)
    train = read(files, tokenizers)
    counts = None if resume else _counts(train, tokenizers.target)
    if len(train) < FEWEST_PAIRS:
        raise UsageError(
            f"there is too little text to learn from: {counted(len(train), 'pair')}",
            "give it some thousand at the least; `elman corpora` lists built-in texts",
        )
    if data.valid:
        valid = read(pair_of_files(data.valid), tokenizers)
    else:
        cut = min(len(train) - 1, round(len(train) * (1 - data.valid_fraction)))
        train, valid = train.part(0, cut), train.part(cut, len(train))
    test = read(pair_of_files(data.test), tokenizers) if data.test else None
    return Translating(config, tokenizers, counts, train, valid, test, embedder)


def open_model(path: Path, config: RunConfig, header: Mapping[str, Any]) -> Opened:
    """The network of a run folder, weights to be loaded, and its tokenizers."""
    require(path, TOKENIZER_FILE)
    tokenizers = TokenizerPair.load(path)
    check_vocabulary(path, tokenizers.target, header)
    embedder = open_kept(config.model.embeddings, path)
    return _model(config, tokenizers, embedder=embedder), tokenizers


@dataclass(frozen=True)
class Pairs:
    """Lines of two files that belong together."""

    files: tuple[Path, Path]
    source: Lines
    target: Lines
    first: int = 0
    """The number of the first of them in the files, from 0."""
    spelled: list[Spelled] | None = None
    """The sources as words, where the model looks words up."""

    def __len__(self) -> int:
        return len(self.source)

    @property
    def num_tokens(self) -> int:
        """Target tokens, the mark that ends each text included."""
        return int(self.target.lengths.sum()) + len(self)

    def part(self, start: int, stop: int) -> Pairs:
        """The pairs from `start` to before `stop`."""
        return Pairs(
            self.files,
            self.source.part(start, stop),
            self.target.part(start, stop),
            self.first + start,
            None if self.spelled is None else self.spelled[start:stop],
        )

    def beginning(self, num_tokens: int | None) -> Pairs:
        """The first pairs with about so many target tokens; None: all."""
        if num_tokens is None or num_tokens >= self.num_tokens:
            return self
        counts = np.cumsum(self.target.lengths + 1)
        return self.part(0, max(1, int(np.searchsorted(counts, num_tokens, side="right"))))

    def texts(self) -> tuple[list[str], list[str]]:
        """The lines as the files have them."""
        sources, targets = (
            list(islice(lines_of(file), self.first, self.first + len(self))) for file in self.files
        )
        return sources, targets

    def batch(self, tokenizers: TokenizerPair, indices: Sequence[int]) -> ConditionalBatch:
        """Some of the pairs side by side."""
        end = tokenizers.source.boundary_id
        sources = [np.append(self.source[index], end) for index in indices]
        words: tuple[Wording, ...] = ()
        if self.spelled is not None:
            words = (Wording.of([self.spelled[index] for index in indices]),)
        return conditional_batch(
            (*pad(sources, end), *words),
            [self.target[index] for index in indices],
            tokenizers.target.boundary_id,
        )


def read_pairs(
    files: tuple[Path, Path], tokenizers: TokenizerPair, *, spelled: bool = False
) -> Pairs:
    """Both files, encoded, and if asked for with the sources as words; they must have as many
    lines.
    """
    source = encode_lines(files[0], tokenizers.source)
    target = encode_lines(files[1], tokenizers.target)
    check_same_length(*files, len(source), len(target))
    words = None
    if spelled:
        words = [Spelled.of_text(line, tokenizers.source) for line in lines_of(files[0])]
    return Pairs(files, source, target, spelled=words)


@dataclass(frozen=True)
class Translating:
    """The pairs of a run, encoded."""

    config: RunConfig
    tokenizers: TokenizerPair
    counts: Any
    """How often each target token occurs, for a new model; None where the model is there."""
    train: Pairs
    valid: Pairs
    test_pairs: Pairs | None
    embedder: Embedder | None = None
    """Pre-trained vectors, where the model reads some."""

    @property
    def valid_tokens(self) -> int:
        """Target tokens to validate on."""
        return self.valid.num_tokens

    @property
    def test_tokens(self) -> int:
        """Target tokens to test on."""
        return 0 if self.test_pairs is None else self.test_pairs.num_tokens

    def scale(self) -> str:
        """Pairs and types, and what is left out."""
        left_out = len(self.train) - len(self._trainable())
        return (
            f"{len(self.train):,} pairs to learn from"
            + (f" ({left_out:,} empty or too long ones left out)" if left_out else "")
            + f", {len(self.valid):,} to validate on, "
            f"{self.tokenizers.target.vocab_size:,} types"
        )

    def build(self) -> nn.Module:
        """A model as it is at the start."""
        return _model(self.config, self.tokenizers, self.counts, self.embedder)

    def task(self, model: Any) -> Trainable:
        """Pairs of like length side by side, their likelihood, BLEU."""
        training, kept = self.config.training, self._trainable()
        if not len(kept):
            raise UsageError(
                "every pair is empty or too long to learn from", "raise data.max_length"
            )
        lengths = (self.train.target.lengths[kept] + 1).tolist()
        spelled = (*(self.train.spelled or ()), *(self.valid.spelled or ()))
        model.embeddings.remember(sentence.words for sentence in spelled)

        def make(indices: Sequence[int]) -> ConditionalBatch:
            return self.train.batch(self.tokenizers, [int(kept[i]) for i in indices])

        def draw(seed: int) -> str:
            sources, _ = self.valid.part(0, 1).texts()
            limit = training.sample_length
            ((found,),) = translate(model, self.tokenizers, sources, GREEDY, max_tokens=limit)
            return f"{sources[0]}\n{found.text}"

        boundary_id = self.tokenizers.target.boundary_id
        objective = self.config.objective
        return Trainable(
            model=model,
            objective=training_objective(objective, model, end_id=boundary_id),
            unfreezing=model.embeddings.unfreezing(),
            batches=SentenceBatches(
                lengths, make, batch_size=training.batch_size, seed=training.seed
            ),
            validate=lambda limit: self._validate(model, self.valid.beginning(limit)),
            valid_tokens=self.valid_tokens,
            probe=lambda: self._validate(model, self.valid.part(0, PROBED)).num_tokens,
            test_tokens=self.test_tokens,
            sample=draw if training.sample_length else None,
            exact=model.head.exact and objective.reads_truth,
            about=about(self.tokenizers.target),
        )

    def test(self, model: Any, limit: int | None) -> dict[str, Any]:
        """BLEU and chrF of the beam's translations, and the likelihood of the true ones."""
        assert self.test_pairs is not None
        return measure(
            model, self.tokenizers, self.test_pairs.beginning(limit), CONDITIONAL
        ).figures()

    def describe(self) -> str:
        """What is translated into what, and in which units."""
        source, target = (file.name for file in self.train.files)
        return (
            f"A translator from {source} to {target} over {KINDS[self.tokenizers.target.kind]} "
            f"({self.tokenizers.target.vocab_size:,} of them)"
        )

    def uses(self) -> tuple[str, ...]:
        """Translate, measure."""
        return ("elman translate FOLDER SOURCE", "elman evaluate FOLDER SOURCE TARGET")

    def _trainable(self) -> Any:
        """The numbers of the pairs that have two sides, neither too long."""
        source, target = self.train.source.lengths, self.train.target.lengths
        longest = self.config.data.max_length
        return np.flatnonzero(
            (source > 0) & (target > 0) & (source <= longest) & (target <= longest)
        )

    def _validate(self, model: Any, pairs: Pairs) -> Validation:
        found = measure(model, self.tokenizers, pairs, GREEDY).figures()
        names = ("bleu", "chrf", "accuracy")
        metrics = {name: found[name] for name in names if name in found}
        return Validation(found["nats_per_token"], None, found["tokens"], metrics)


@dataclass(frozen=True)
class Measured:
    """What measuring a translator on pairs of lines found."""

    prediction: Prediction
    sources: list[str]
    references: list[str]
    translations: list[str]
    """None were made where sacrebleu is not there to judge them."""

    def figures(self) -> dict[str, Any]:
        """By name: BLEU and chrF where sacrebleu is installed, accuracy and likelihood."""
        found = self.prediction
        figures: dict[str, Any] = {}
        if self.translations:
            scores = score(self.translations, self.references)
            figures = {"bleu": scores.bleu, "chrf": scores.chrf}
        names = ("accuracy", "perplexity", "nats_per_token", "tokens")
        return figures | {name: getattr(found, name) for name in names}


def measure(model: Any, tokenizers: TokenizerPair, pairs: Pairs, config: DecodeOptions) -> Measured:
    """Predict the true translations, and make others."""
    lengths = np.maximum(pairs.source.lengths, pairs.target.lengths) + 1
    make = partial(pairs.batch, tokenizers)
    found = predict(model, evaluation_batches(make, lengths.tolist()))
    if not can_score():
        return Measured(found, [], [], [])
    sources, references = pairs.texts()
    translations = [best.text for best, *_ in translate(model, tokenizers, sources, config)]
    return Measured(found, sources, references, translations)


def _tokenizers(files: tuple[Path, Path], config: TokenizerConfig) -> TokenizerPair:
    if config.shared:
        both, _ = train_tokenizer(list(files), config)
        return TokenizerPair(both, both)
    source, target = (train_tokenizer([file], config)[0] for file in files)
    return TokenizerPair(source, target)


def _counts(pairs: Pairs, tokenizer: Tokenizer) -> Any:
    """(V,) how often each target token is to be predicted: a text's end for every line's."""
    counts_V = pairs.target.text.counts(tokenizer.vocab_size)
    counts_V[line_end_id(tokenizer)] = 0
    counts_V[tokenizer.boundary_id] = len(pairs)
    return counts_V


def _model(
    config: RunConfig,
    tokenizers: TokenizerPair,
    counts: Any = None,
    embedder: Embedder | None = None,
) -> nn.Module:
    model: nn.Module = config.model.build(
        tokenizers.target.vocab_size,
        source_vocab_size=tokenizers.source.vocab_size,
        counts_V=None if counts is None else torch.as_tensor(counts),
        boundary_id=tokenizers.target.boundary_id,
        source_boundary_id=tokenizers.source.boundary_id,
        embedder=embedder,
    )
    return model
