"""Train translators: pairs of lines, an encoder and a decoder, BLEU.

Pairs with an empty side, or with more than `data.max_length` tokens on one, are left out of
training, not of measuring. The best model is the one whose greedy translations of the validation
text have the highest BLEU, or without sacrebleu the one with the highest accuracy of tokens.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from elman.base.config import merge
from elman.base.counting import counted
from elman.base.errors import UsageError
from elman.batches.lines import line_end_id
from elman.decode.options import CONDITIONAL, DecodeOptions
from elman.models.embedder import Embedder
from elman.runs.card import KINDS
from elman.runs.machine import Machine
from elman.runs.run_folder import MODEL_FILE, TOKENIZER_FILE, check_vocabulary, require
from elman.tasks import Draft, OpenedModel, Proposal, conditioned
from elman.tasks.embeddings import open_kept, set_up_embedder
from elman.tasks.translation.evaluation import measure, translate
from elman.tasks.translation.model import SequenceToSequence
from elman.tasks.translation.pairs import Pairs, read_pairs
from elman.tasks.translation.settings import PairTokenizerConfig, TranslatorRun
from elman.tasks.translation.vocabulary import SOURCE_FILE, TokenizerPair
from elman.text.pairs import check_same_length, lines_of, pair_of_files
from elman.text.repeated import repeated_rows
from elman.text.tables import suffix_of
from elman.tokens.train import train_tokenizer
from elman.train import checkpoint
from elman.train.trainable import Trainable, Validation

GREEDY = DecodeOptions(greedy=True)
"""How validation translates: several times faster than a beam, and nearly as good."""
SOURCE_HASH = "source_tokenizer"
"""Entry of the model's header: the hash of the source's tokenizer."""
FEWEST_PAIRS = 10
"""Less data than this is an error."""
MANY_PAIRS = 200_000
"""From this many pairs on, choose a larger model with less dropout."""


def choose(draft: Draft, machine: Machine) -> Proposal:
    """Choose settings by the number of pairs and the machine."""
    if draft.recipe is not None:
        return Proposal(draft.base, draft.asked, lambda config: [])
    source, target = pair_of_files(draft.data.train)
    num_pairs = sum(1 for _ in lines_of(source))
    check_same_length(source, target, num_pairs, sum(1 for _ in lines_of(target)))
    many = num_pairs >= MANY_PAIRS
    width = (512 if machine.is_gpu else 256) * (2 if many and machine.is_gpu else 1)
    dropout = 0.1 if many else 0.4 if machine.is_gpu else 0.2
    chosen = {
        "data": {"valid_fraction": min(0.1, 2000 / max(1, num_pairs))},
        "tokenizer": {"kind": "bpe", "vocab_size": 32_000 if many else _vocab_size(num_pairs)},
        "model": {
            "shared_embedding": draft.asked.get("tokenizer", {}).get("shared", True),
            "decoder": {
                "hidden_size": width,
                "embedding_size": max(256, width // 2),
                "tied": True,
                "num_layers": 2 if many else 1,
                "attention": "bilinear",
                # Computed step by step: without it a CPU trains on twice as many pairs.
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
            "precision": "auto",
        },
    }
    asked = _fitting(chosen, draft.asked)
    return Proposal(chosen, asked, partial(_notes, num_pairs, machine))


def _vocab_size(num_pairs: int) -> int:
    """The number of word pieces: a power of two from 1,024 to 8,192."""
    return 1 << min(13, max(10, int(np.log2(max(1, num_pairs) / 3))))


def _fitting(chosen: dict[str, Any], asked: dict[str, Any]) -> dict[str, Any]:
    """Add to the user's settings those that override automatic ones which contradict them."""
    decoder = dict(asked.get("model", {}).get("decoder", {}))
    layered = chosen["model"]["decoder"] | decoder
    if layered["attention"] == "none" or decoder.get("attend") == "before":
        width = layered.get("projection_size") or layered["hidden_size"]
        if width != layered["embedding_size"]:
            decoder.setdefault("tied", False)
    if layered.get("weight_drop"):
        decoder.setdefault("input_feeding", False)
    return merge(asked, {"model": {"decoder": decoder}})


def _notes(num_pairs: int, machine: Machine, config: TranslatorRun) -> list[str]:
    decoder, tokenizer = config.model.decoder, config.tokenizer
    layers = counted(decoder.num_layers, "layer")
    attention = f"{decoder.attention} attention {decoder.attend} each step"
    if decoder.attention == "none":
        attention = "no attention"
    return [
        f"{tokenizer.kind}: "
        + (f"{tokenizer.vocab_size:,} word pieces, " if tokenizer.file is None else "")
        + ("shared by both languages" if tokenizer.shared else "for each language"),
        f"{layers} of {decoder.hidden_size} {decoder.cell.upper()} units in encoder and decoder, "
        f"{attention}, for {num_pairs:,} pairs on {machine.description}",
        f"{config.optimiser.kind} at {config.optimiser.learning_rate:g}, "
        f"{config.training.batch_size} pairs a step",
        *config.training.precision_notes(machine.is_gpu),
    ]


def set_up(config: TranslatorRun, out: Path, resume: bool) -> Translating:
    embedder = set_up_embedder(config.model.embeddings, out, resume)
    read = partial(read_pairs, spelled=embedder is not None)
    data = config.data
    files = pair_of_files(data.train)
    if resume:
        tokenizers = TokenizerPair.load(out)
        _check_tokenizers(out, tokenizers, checkpoint.read_header(out / MODEL_FILE))
    else:
        tokenizers = _tokenizers(files, config.tokenizer)
        tokenizers.save(out)
    train = read(files, tokenizers)
    if len(train) < FEWEST_PAIRS:
        raise UsageError(
            f"too little data: {counted(len(train), 'pair')}",
            "give at least a few thousand; `elman corpora` lists built-in texts",
        )
    counts_V = None
    if not resume:
        target = tokenizers.target
        of_text_V: NDArray[np.int64] = train.target.text.counts(target.vocab_size)
        of_text_V[line_end_id(target)] = 0
        counts_V = conditioned.target_counts(target, of_text_V, len(train))
    if data.valid:
        valid = read(pair_of_files(data.valid), tokenizers)
    else:
        cut = min(len(train) - 1, round(len(train) * (1 - data.valid_fraction)))
        train, valid = train.first(cut), train.part(slice(cut, None))
    test = read(pair_of_files(data.test), tokenizers) if data.test else None
    return Translating(
        config, tokenizers.target, train, valid, test, tokenizers, counts_V, embedder
    )


def open_model(path: Path, config: TranslatorRun, header: Mapping[str, Any]) -> OpenedModel:
    require(path, TOKENIZER_FILE)
    tokenizers = TokenizerPair.load(path)
    _check_tokenizers(path, tokenizers, header)
    embedder = open_kept(config.model.embeddings, path)
    return partial(_model, config, tokenizers, embedder=embedder), tokenizers


def _check_tokenizers(path: Path, tokenizers: TokenizerPair, header: Mapping[str, Any]) -> None:
    """Check that the weights were trained with these tokenizers."""
    check_vocabulary(path, tokenizers.target, header)
    if SOURCE_HASH in header:  # earlier versions did not write it
        of_source = {"tokenizer": header[SOURCE_HASH]}
        check_vocabulary(path, tokenizers.source, of_source, SOURCE_FILE)


@dataclass(frozen=True)
class Translating(conditioned.ConditionedData[Pairs]):
    """The pairs of a run."""

    tokenizers: TokenizerPair
    counts_V: Tensor | None
    """How often each target token occurs, for a new model; None if it is resumed."""
    embedder: Embedder | None

    num_probed = 32

    @property
    def about(self) -> dict[str, Any]:
        return super().about | {SOURCE_HASH: self.tokenizers.source.hash}

    @cached_property
    def fitting(self) -> Pairs:
        """The training pairs that are neither empty nor too long."""
        return self.train.at_most(self.config.data.max_length)

    def scale(self) -> str:
        left_out = len(self.train) - len(self.fitting)
        return (
            f"{len(self.train):,} pairs for training"
            + (f" ({left_out:,} empty or too long ones left out)" if left_out else "")
            + f", {len(self.valid):,} for validation, {self.tokenizer.vocab_size:,} types"
        )

    @property
    def caveats(self) -> list[str]:
        """What the user should know of the data."""
        held_out = {"validation": self.valid, "test": self.test_examples}
        notes: list[str] = []
        sources: dict[str, list[str]] = {}
        endings = [*map(suffix_of, self.train.files)]
        for kind, pairs in held_out.items():
            if pairs is None:
                continue
            sources[kind] = [*pairs.sources()]
            if endings[0] != endings[1] and [*map(suffix_of, pairs.files)] == endings[::-1]:
                names = " ".join(file.name for file in pairs.files)
                notes.append(f"the {kind} files {names} seem to be target and source")
        return notes + repeated_rows(self.train.sources(), sources, "sources")

    def build(self) -> SequenceToSequence:
        return _model(self.config, self.tokenizers, self.counts_V, self.embedder)

    def trainable(self, model: Any) -> Trainable:
        if not len(self.fitting):
            raise UsageError("every pair is empty or too long", "raise data.max_length")
        model.embeddings.remember((*self.train.words(), *self.valid.words()))
        return replace(super().trainable(model), unfreezing=model.embeddings.unfreezing())

    def draw(self, model: Any, seed: int) -> str:
        sources, _ = self.valid.first(1).texts()
        limit = self.config.training.sample_length
        ((found,),) = translate(model, self.tokenizers, sources, GREEDY, max_tokens=limit)
        return f"{sources[0]}\n{found.text}"

    def validate(self, model: Any, examples: Pairs) -> Validation:
        found = measure(model, self.tokenizers, examples, GREEDY).figures()
        names = ("bleu", "chrf", "accuracy")
        metrics = {name: found[name] for name in names if name in found}
        return Validation(found["nats_per_token"], None, found["tokens"], metrics)

    def measure(self, model: Any, examples: Pairs) -> dict[str, Any]:
        return measure(model, self.tokenizers, examples, CONDITIONAL).figures()

    def describe(self) -> str:
        source, target = (file.name for file in self.train.files)
        return (
            f"A translator from {source} to {target} over {KINDS[self.tokenizer.kind]} "
            f"({self.tokenizer.vocab_size:,} of them)"
        )


def _tokenizers(files: tuple[Path, Path], config: PairTokenizerConfig) -> TokenizerPair:
    if config.shared:
        both, _ = train_tokenizer(list(files), config)
        return TokenizerPair(both, both)
    source, target = (train_tokenizer([file], config)[0] for file in files)
    return TokenizerPair(source, target)


def _model(
    config: TranslatorRun,
    tokenizers: TokenizerPair,
    counts_V: Tensor | None = None,
    embedder: Embedder | None = None,
) -> SequenceToSequence:
    return config.model.build(
        tokenizers.target.vocab_size,
        source_vocab_size=tokenizers.source.vocab_size,
        counts_V=counts_V,
        boundary_id=tokenizers.source.boundary_id,
        embedder=embedder,
    )
