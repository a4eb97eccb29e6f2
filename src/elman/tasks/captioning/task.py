"""Captioning: pictures with sentences, a convolutional network and a decoder, CIDEr.

The best model is the one that finds the validation sentences the least surprising.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from elman.base.counting import counted
from elman.base.errors import UsageError
from elman.batches.conditional import ConditionalBatch, conditional_batch
from elman.decode.options import CONDITIONAL
from elman.evaluate.generated_text import can_score, score
from elman.runs.card import KINDS
from elman.runs.machine import Machine
from elman.runs.run_config import RunConfig
from elman.runs.run_folder import check_vocabulary
from elman.tasks import Choice, Request
from elman.tasks import conditioned as given
from elman.tasks.captioning.batches import Captions, Pictures, picture_shape, read_captions
from elman.tasks.captioning.evaluation import caption, cider
from elman.text.sources import Paths, expand
from elman.tokens.tokenizer import TOKENIZER_FILE, Tokenizer
from elman.tokens.tokenizer_config import TokenizerConfig
from elman.tokens.train import train_tokenizer
from elman.train import checkpoint
from elman.train.loop import MODEL_FILE
from elman.train.trainable import Trainable

BEAM = replace(CONDITIONAL, max_tokens=60)
"""How captions are written unasked."""
MOST_PIXELS = 3_000
"""Pictures are made smaller until they have about so many."""
PROBED = 16
"""Captions that go through before training."""
FEWEST = 10
"""Fewer captions than this are a mistake."""


def choose(request: Request, machine: Machine) -> Choice:
    """Settings by the shape of the pictures and the number of sentences."""
    if request.recipe is not None:
        return Choice(request.base, request.asked, lambda config: [])
    table = one_table(request.data.train)
    number = len(read_captions(table))
    height, width = picture_shape(table)
    scale = min(1.0, math.sqrt(MOST_PIXELS / (height * width)))
    few = number < 20_000
    units = (128 if few else 512) if not machine.is_gpu else (256 if few else 512)
    chosen = {
        "tokenizer": {"kind": "word", "lowercase": True},
        "model": {
            "kind": "captioner",
            "height": max(8, round(height * scale)),
            "width": max(8, round(width * scale)),
            "decoder": {
                "hidden_size": units,
                "embedding_size": units // 2,
                "attention": "additive",
                "dropout_input": 0.3,
                "dropout_output": 0.5 if few else 0.3,
            },
        },
        "optimiser": {"kind": "adam", "learning_rate": 0.004},
        "schedule": {"kind": "cosine", "warmup_steps": 50},
        "training": {"batch_size": 16 if few else 64, "epochs": 12},
    }
    return Choice(chosen, request.asked, partial(_sentences, number, (height, width), machine))


def _sentences(
    number: int, shape: tuple[int, int], machine: Machine, config: RunConfig
) -> list[str]:
    model = config.model
    return [
        f"{number:,} sentences about pictures of {shape[1]} x {shape[0]} points, "
        f"brought to {model.width} x {model.height}",
        f"convolutions of {', '.join(map(str, model.channels))} channels, a decoder of "
        f"{model.decoder.hidden_size} {model.decoder.cell.upper()} units, on {machine.description}",
        *(["blind: the pictures are kept from it"] if model.blind else []),
    ]


def one_table(paths: Paths) -> Path:
    """The table that `paths` stand for."""
    files = expand(paths)
    if len(files) != 1:
        raise UsageError(
            f"captions are one table of images and sentences, not {len(files)} files",
            "name a TSV; its pictures are found beside it",
        )
    return files[0]


def set_up(config: RunConfig, out: Path, resume: bool) -> Captioning:
    """Read the tables, with a new tokenizer unless the run has one."""
    data = config.data
    train = read_captions(one_table(data.train))
    if len(train) < FEWEST:
        raise UsageError(
            f"there is too little to learn from: {counted(len(train), 'sentence')}",
            "give it some hundred at the least",
        )
    if data.valid:
        valid = read_captions(one_table(data.valid))
    else:
        train, valid = train.split(1 - data.valid_fraction)
    test = read_captions(one_table(data.test)) if data.test else None
    if resume:
        tokenizer = Tokenizer.load(out / TOKENIZER_FILE)
        check_vocabulary(out, tokenizer, checkpoint.read_header(out / MODEL_FILE))
    else:
        tokenizer = _tokenizer(train, config.tokenizer)
        tokenizer.save(out / TOKENIZER_FILE)
    return Captioning(
        config,
        tokenizer,
        encode_captions(train, tokenizer, config.model),
        encode_captions(valid, tokenizer, config.model),
        None if test is None else encode_captions(test, tokenizer, config.model),
    )


open_model = given.open_model


@dataclass(frozen=True)
class EncodedCaptions:
    """Sentences as ids, and their pictures."""

    captions: Captions
    pictures: Pictures
    ids: list[NDArray[np.int32]]

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def lengths(self) -> list[int]:
        """Tokens of each sentence, the mark that ends it included."""
        return [len(each) + 1 for each in self.ids]

    def first(self, number: int) -> EncodedCaptions:
        """The first so many."""
        return EncodedCaptions(self.captions.part(0, number), self.pictures, self.ids[:number])

    def batch(self, boundary_id: int, indices: Sequence[int]) -> ConditionalBatch:
        """Some of the sentences and their pictures."""
        pixels = [self.pictures.pixels(self.captions.names[index]) for index in indices]
        given = (torch.from_numpy(np.stack(pixels)),)
        return conditional_batch(given, [self.ids[index] for index in indices], boundary_id)


def encode_captions(captions: Captions, tokenizer: Tokenizer, model: Any) -> EncodedCaptions:
    """Sentences as ids; pictures of the size that `model`, a captioner's config, asks for."""
    pictures = Pictures(captions.table, model.height, model.width)
    return EncodedCaptions(captions, pictures, [tokenizer.encode(s) for s in captions.sentences])


@dataclass(frozen=True)
class Captioning:
    """The captions of a run, encoded."""

    config: RunConfig
    tokenizer: Tokenizer
    train: EncodedCaptions
    valid: EncodedCaptions
    test_captions: EncodedCaptions | None

    @property
    def valid_tokens(self) -> int:
        """Tokens to validate on."""
        return given.num_tokens(self.valid)

    @property
    def test_tokens(self) -> int:
        """Tokens to test on."""
        return given.num_tokens(self.test_captions)

    def scale(self) -> str:
        """Sentences and types."""
        return (
            f"{len(self.train):,} sentences to learn from, {len(self.valid):,} to validate on, "
            f"{self.tokenizer.vocab_size:,} types"
        )

    def build(self) -> nn.Module:
        """A model as it is at the start."""
        counts_V = np.bincount(np.concatenate(self.train.ids), minlength=self.tokenizer.vocab_size)
        return given.build(self.config, self.tokenizer, counts_V, len(self.train))

    def task(self, model: Any) -> Trainable:
        """Sentences of like length side by side, their likelihood."""

        def draw(seed: int) -> str:
            pixels = self.valid.pictures.pixels(self.valid.captions.names[0])
            limit = min(BEAM.max_tokens, self.config.training.sample_length)
            decoding = replace(BEAM, max_tokens=limit)
            ((best,),) = caption(model, self.tokenizer, [pixels], decoding)
            return best.text

        return given.task(
            self.config,
            self.tokenizer,
            model,
            train=self.train,
            valid=self.valid,
            test=self.test_captions,
            num_probed=PROBED,
            sample=draw,
        )

    def test(self, model: Any, limit: int | None) -> dict[str, Any]:
        """CIDEr and BLEU of the beam's captions, and the likelihood of the true ones."""
        assert self.test_captions is not None
        return measure(model, self.tokenizer, given.beginning(self.test_captions, limit))

    def describe(self) -> str:
        """What is told about what, and in which units."""
        blind = "A blind captioner" if self.config.model.blind else "A captioner"
        kind = KINDS[self.tokenizer.kind]
        return f"{blind} of pictures over {kind} ({self.tokenizer.vocab_size:,} of them)"

    def uses(self) -> tuple[str, ...]:
        """Tell about pictures, measure."""
        return ("elman caption FOLDER IMAGE...", "elman evaluate FOLDER TABLE")


def measure(model: Any, tokenizer: Tokenizer, captions: EncodedCaptions) -> dict[str, Any]:
    """By name: CIDEr and BLEU of a beam's captions, and the likelihood of the true ones."""
    found = given.likelihood(model, tokenizer, captions)
    return _quality(model, tokenizer, captions) | given.figures(found)


def _quality(model: Any, tokenizer: Tokenizer, captions: EncodedCaptions) -> dict[str, float]:
    """CIDEr of a beam's captions, all the sentences about a picture being its references, and BLEU
    where sacrebleu is installed."""
    names = captions.captions.names
    references: dict[str, list[str]] = {}
    for name, sentence in zip(names, captions.captions.sentences, strict=True):
        references.setdefault(name, []).append(sentence)
    pixels = [captions.pictures.pixels(name) for name in references]
    texts = [best.text for best, *_ in caption(model, tokenizer, pixels, BEAM)]
    figures = {"cider": cider(texts, list(references.values()))}
    if can_score():
        by_name = dict(zip(references, texts, strict=True))
        lowered = [sentence.lower() for sentence in captions.captions.sentences]
        figures["bleu"] = score([by_name[name].lower() for name in names], lowered).bleu
    return figures


def _tokenizer(captions: Captions, config: TokenizerConfig) -> Tokenizer:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "sentences.txt"
        path.write_text("".join(f"{s}\n" for s in captions.sentences), encoding="utf-8")
        return train_tokenizer([path], config)[0]
