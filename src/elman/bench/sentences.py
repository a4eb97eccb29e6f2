"""Measure training steps of tasks that read sentences, beside the same models in plain torch.

The peer has the same weights and reads the same batches: nn.LSTM over packed sequences, nn.LSTMCell
in a loop for a decoder with attention, torch's cross-entropy, clipping and Adam. The rest of a
model (embeddings, character convolution, pooling, CRF) is torch's on both sides. On a CPU ours is
in the precision that training.precision=auto chooses, and where that is bfloat16, the peer is the
faster of torch in float32 and in bfloat16. On a GPU both compute in bfloat16, and ours replays CUDA
graphs as `elman train` does; there is a row without graphs, too. Without dropout, so that the
losses of the first batch can be compared.

B batch, T time steps, S source steps, C characters.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from elman.base.processor import processor_name
from elman.batches.buckets import pad
from elman.batches.conditional import conditional_batch
from elman.bench import recurrent
from elman.bench.measuring import Work, in_turns
from elman.bench.rows import Row, more_is_better
from elman.models.decoder import DecoderConfig
from elman.nn.character_cnn import CharacterCNNConfig, spelling_table
from elman.nn.graphed import Figures, GraphedUpdate
from elman.nn.layer import RecurrentLayer, halves_pay
from elman.nn.stack import Stack, StackConfig
from elman.nn.state import State
from elman.nn.torch_weights import to_torch
from elman.objectives.likelihood import likelihood
from elman.objectives.objective_config import LikelihoodConfig
from elman.objectives.outcome import Outcome
from elman.tasks.classification.batches import batch_of_rows
from elman.tasks.classification.model import ClassifierConfig
from elman.tasks.classification.objective import ClassificationConfig, classification
from elman.tasks.elmo.batches import Spellings
from elman.tasks.elmo.model import ElmoConfig, spelled
from elman.tasks.elmo.objective import bidirectional_likelihood
from elman.tasks.tagging.batches import EncodedSentence, tagged_batch
from elman.tasks.tagging.model import TaggerConfig
from elman.tasks.tagging.objective import tagging
from elman.tasks.translation.model import SequenceToSequence, SequenceToSequenceConfig
from elman.train.gradients import clip
from elman.train.optimisers import OptimiserConfig, build
from elman.train.training_config import SENTENCE_LENGTH

LENGTHS = (8, 11, 13, 15, 18, 24)
"""The longest sentence of each batch; a work is an update on each."""
SMOOTHING = 0.1
ROUNDS_FIRST = {"cpu": 1, "cuda": 4}
"""Untimed rounds: libraries initialise, graphs are captured."""
TRANSLATOR = (512, 8192, 64)
"""Units, vocabulary and batch of the recipe multi30k-attention."""


@dataclass(frozen=True)
class Compared:
    """A model and its peer, and what both read."""

    model: nn.Module
    objective: Callable[[Any, Any, None], Outcome]
    """Computes the loss of the model on a batch, without a state."""
    peer: nn.Module
    peer_loss: Callable[[Any], Tensor]
    batches: list[Any]
    bucketed: list[Any]
    """The same batches padded to few shapes."""
    unit: str = "words/s"
    may_halve: bool = False
    """Whether training.precision=auto may choose bfloat16 on a CPU."""

    @property
    def num_tokens(self) -> int:
        return sum(batch.num_tokens for batch in self.batches)


def measure(names: Sequence[str], repeat: int, device: str) -> Iterator[Row]:
    """One row per task; on a GPU another without graphs."""
    for name in names:
        torch.manual_seed(1)
        found = TASKS[name](large=device == "cuda")
        for model in (found.model, found.peer):
            model.to(device).train()
        on_gpu = device == "cuda"
        size = found.batches[0].num_rows
        is_half = on_gpu or (found.may_halve and halves_pay(found.model, size, SENTENCE_LENGTH))
        plain = [batch.to(device) for batch in found.batches]
        padded = [batch.to(device) for batch in found.bucketed]
        works = {
            "ours": _ours(found, padded if on_gpu else plain, device, is_half, graphed=on_gpu),
            "peer": _theirs(found, plain, device, on_gpu),
        }
        if on_gpu:
            called = replace(found, model=copy.deepcopy(found.model))
            works["called"] = _ours(called, plain, device, is_half, graphed=False)
        elif is_half:
            works["half peer"] = _theirs(found, plain, device, is_half)
        losses, kernel = recurrent.run_and_name(works["ours"], found.model)
        first = {"ours": losses, "peer": works["peer"]()}
        for _ in range(ROUNDS_FIRST[device]):
            for work in works.values():
                work()
        clock = {"measure": recurrent.by_the_gpu_clock} if on_gpu else {}
        costs = in_turns(works, repeat, **clock)
        peers = {name: costs[name].seconds for name in ("peer", "half peer") if name in costs}
        peer = min(peers, key=lambda name: peers[name])
        about: dict[str, Any] = {
            "device": device,
            "dtype": "bfloat16" if is_half else "float32",
            "kernel": kernel,
            "loss": float(first["ours"]),
            "peer_loss": float(first["peer"]),
            "tokens": found.num_tokens,
        }
        if not on_gpu:
            about["threads"] = torch.get_num_threads()
            about["processor"] = processor_name()
            about["peer_dtype"] = "bfloat16" if peer == "half peer" else "float32"
        for side, title in (("ours", ""), ("called", ", without graphs")):
            if side in costs:
                yield more_is_better(
                    f"{name} training step{title}",
                    found.num_tokens / costs[side].seconds,
                    found.num_tokens / peers[peer],
                    found.unit,
                    **about,
                )


def _precision(device: str, is_half: bool) -> Any:
    if not is_half:
        return nullcontext()
    return torch.autocast(device, dtype=torch.bfloat16, cache_enabled=False)


def _ours(
    found: Compared, batches: Sequence[Any], device: str, is_half: bool, *, graphed: bool
) -> Work:
    """An update on each batch, as the training loop makes it; returns the first loss."""
    parameters = list(found.model.parameters())
    optimiser = build(OptimiserConfig(learning_rate=1e-4), parameters)

    def update(batch: Any, state: State | None) -> tuple[Figures, State | None]:
        optimiser.zero_grad(set_to_none=True)
        with _precision(device, is_half):
            loss = found.objective(found.model, batch, None).loss
        loss.backward()  # type: ignore[no-untyped-call]
        norm, norms_P = clip(parameters, 1.0, optimiser)
        optimiser.step()
        return (loss.detach(), norm, norms_P), None

    advance = GraphedUpdate(update, None, torch.device(device, 0)) if graphed else update

    def work() -> Tensor:
        losses = [advance(batch, None)[0][0] for batch in batches]
        return losses[0]

    return work


def _theirs(found: Compared, batches: Sequence[Any], device: str, is_half: bool) -> Work:
    parameters = list(found.peer.parameters())
    optimiser = torch.optim.Adam(parameters, lr=1e-4)
    precision = torch.autocast(device, dtype=torch.bfloat16) if is_half else nullcontext()

    def work() -> Tensor:
        losses = []
        for batch in batches:
            optimiser.zero_grad(set_to_none=True)
            with precision:
                loss = found.peer_loss(batch)
            loss.backward()  # type: ignore[no-untyped-call]
            nn.utils.clip_grad_norm_(parameters, 1.0)
            optimiser.step()
            losses.append(loss.detach())
        return losses[0]

    return work


class Packed(nn.Module):
    """A torch layer over packed sequences, called as our stacks and layers are."""

    def __init__(self, layers: nn.Module) -> None:
        super().__init__()
        self.layers = layers

    def forward(
        self, inputs_BTI: Tensor, state: State | None = None, lengths_B: Tensor | None = None
    ) -> tuple[Tensor, Any]:
        if lengths_B is None or lengths_B.eq(inputs_BTI.shape[1]).all():
            outputs_BTP, after = self.layers(inputs_BTI)
            return outputs_BTP, after
        packed = pack_padded_sequence(
            inputs_BTI, lengths_B.cpu(), batch_first=True, enforce_sorted=False
        )
        outputs, after = self.layers(packed)
        return pad_packed_sequence(outputs, batch_first=True, total_length=inputs_BTI.shape[1])[
            0
        ], after


class Backwards(nn.Module):
    """A layer that reads whole sequences from right to left."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, inputs_BTI: Tensor, *others: Any) -> tuple[Tensor, Any]:
        outputs_BTP, after = self.layer(inputs_BTI.flip(1))
        return outputs_BTP.flip(1), after


def _torch_layer(layer: RecurrentLayer, input_size: int) -> nn.Module:
    """A single layer of ours as nn.LSTM with the same weights."""
    cell = layer.cell
    projected = cell.output_size if cell.output_size != cell.hidden_size else 0
    config = StackConfig(hidden_size=cell.hidden_size, projection_size=projected)
    stack = Stack(config, input_size)
    stack.layers[0].load_state_dict(layer.state_dict())
    plain = Packed(to_torch(stack))
    return Backwards(plain) if layer.reverse else plain


Moving = tuple[Tensor, Tensor, Tensor]
"""h, c and the last output, which the next step reads (input feeding)."""


class PlainTranslator(nn.Module):
    """What a torch user writes for attention with input feeding (Luong and others, 2015)."""

    def __init__(self, model: SequenceToSequence) -> None:
        super().__init__()
        decoder, settings = model.decoder, model.config.decoder
        assert decoder.attention is not None
        assert decoder.readout is not None
        size, fed_size = settings.hidden_size, decoder.readout_size
        self.embedding = copy.deepcopy(decoder.input.embedding)
        self.encoder = Packed(to_torch(model.encoder))
        self.cell = nn.LSTMCell(settings.embedding_size + fed_size, size)
        self.memory = copy.deepcopy(decoder.attention.memory)
        self.readout = copy.deepcopy(decoder.readout)
        head: Any = decoder.head
        self.bias = nn.Parameter(head.softmax.bias.detach().clone())
        self.scale = decoder.input.scale
        cell: Any = decoder.stack.layers[0]
        with torch.no_grad():
            self.cell.weight_ih.copy_(cell.cell.input_weight)
            self.cell.weight_hh.copy_(cell.cell.recurrent_weight)
            self.cell.bias_ih.copy_(cell.cell.bias)
            self.cell.bias_hh.zero_()

    def encode(self, source_BS: Tensor, mask_BS: Tensor) -> tuple[Tensor, Tensor, Moving]:
        """The encoder's outputs, the attention's keys, and the state before the first step."""
        memory_BSM, (h_DBH, c_DBH) = self.encoder(
            self.embedding(source_BS) * self.scale, None, mask_BS.sum(dim=1)
        )
        h_BH, c_BH = (torch.cat([*part], dim=1) for part in (h_DBH, c_DBH))
        fed_BR = memory_BSM.new_zeros(len(source_BS), self.readout.out_features)
        return memory_BSM, self.memory(memory_BSM), (h_BH, c_BH, fed_BR)

    def advance(
        self,
        embedded_BE: Tensor,
        moving: Moving,
        memory_BSM: Tensor,
        keys_BSH: Tensor,
        mask_BS: Tensor,
    ) -> Moving:
        """Read a token; the new state ends with what the output layer reads."""
        h_BH, c_BH, fed_BR = moving
        joined = torch.cat([embedded_BE, fed_BR.to(embedded_BE.dtype)], dim=1)
        h_BH, c_BH = self.cell(joined, (h_BH, c_BH))
        scores_BS = torch.bmm(keys_BSH, h_BH[:, :, None].to(keys_BSH.dtype))[:, :, 0]
        weights_BS = scores_BS.float().masked_fill(~mask_BS, -torch.inf).softmax(dim=1)
        context_BM = torch.bmm(weights_BS[:, None].to(memory_BSM.dtype), memory_BSM)[:, 0]
        return h_BH, c_BH, torch.tanh(self.readout(torch.cat([context_BM, h_BH], dim=1)))

    def logits(self, fed: Tensor) -> Tensor:
        return F.linear(fed, self.embedding.weight, self.bias)

    def loss(self, batch: Any) -> Tensor:
        source_BS, mask_BS = batch.given
        memory_BSM, keys_BSH, moving = self.encode(source_BS, mask_BS)
        fed = []
        for embedded_BE in (self.embedding(batch.tokens_BT) * self.scale).unbind(1):
            moving = self.advance(embedded_BE, moving, memory_BSM, keys_BSH, mask_BS)
            fed.append(moving[-1])
        logits_BTV = self.logits(torch.stack(fed, dim=1))
        targets_BT = batch.targets_BT.masked_fill(~batch.mask_BT, -100)
        return F.cross_entropy(
            logits_BTV.flatten(0, 1).float(), targets_BT.flatten(), label_smoothing=SMOOTHING
        )


def drawn(random: np.random.Generator, vocab_size: int, length: int) -> NDArray[np.int64]:
    """A sentence of at most `length` words of a Zipfian vocabulary, most of them frequent."""
    size = random.integers(max(1, round(0.9 * length)), length + 1)
    words: NDArray[np.int64] = np.exp(random.random(size) * np.log(vocab_size - 3)).astype(np.int64)
    return words + 2


def translation_model() -> SequenceToSequence:
    size, vocab_size, _ = TRANSLATOR
    decoder = DecoderConfig(
        hidden_size=size,
        embedding_size=size,
        tied=True,
        attention="bilinear",
        input_feeding=True,
    )
    config = SequenceToSequenceConfig(shared_embedding=True, decoder=decoder)
    return config.build(vocab_size)


def translator(large: bool) -> Compared:
    _, vocab_size, batch_size = TRANSLATOR
    model = translation_model()
    random = np.random.default_rng(2)
    batches = []
    for length in LENGTHS:
        sources = [drawn(random, vocab_size, length) for _ in range(batch_size)]
        targets = [drawn(random, vocab_size, length) for _ in range(batch_size)]
        batches.append(conditional_batch(pad(sources, 0), targets, 0, num_padded=2))
    peer = PlainTranslator(model)
    return Compared(
        model,
        partial(likelihood, LikelihoodConfig(label_smoothing=SMOOTHING)),
        peer,
        peer.loss,
        batches,
        [batch.bucketed() for batch in batches],
        "target tokens/s",
        may_halve=True,
    )


def tagger(large: bool) -> Compared:
    vocab_size, num_labels, batch_size = 10_000, 20, 32
    config = TaggerConfig(
        output="crf", word_dropout=0.0, dropout_input=0.0, dropout_hidden=0.0, dropout_output=0.0
    )
    model = config.build(vocab_size, num_labels)
    random = np.random.default_rng(2)
    table_SC = spelling_table([f"word{number}" for number in range(vocab_size)], 32)
    batches = []
    for length in LENGTHS:
        words = [drawn(random, vocab_size, length) for _ in range(batch_size)]
        labels = [random.integers(num_labels, size=len(row)) for row in words]
        rows = [EncodedSentence(w, w, some) for w, some in zip(words, labels, strict=True)]
        batches.append(tagged_batch(rows, table_SC))
    peer = copy.deepcopy(model)
    peer.stack = Packed(to_torch(model.stack))  # type: ignore[assignment]
    return Compared(
        model,
        tagging,
        peer,
        lambda batch: tagging(peer, batch, None).loss,
        batches,
        [batch.bucketed() for batch in batches],
    )


def classifier(large: bool) -> Compared:
    vocab_size, num_labels, batch_size = 10_000, 5, 32
    config = ClassifierConfig(
        hidden_size=64,
        pooling=("max", "mean"),
        dropout_input=0.0,
        dropout_output=0.0,
    )
    model = config.build(vocab_size, num_labels)
    random = np.random.default_rng(2)
    batches = [
        batch_of_rows(
            [[drawn(random, vocab_size, length)] for _ in range(batch_size)],
            random.integers(num_labels, size=batch_size).tolist(),
        )
        for length in LENGTHS
    ]
    settings, peer = ClassificationConfig(), copy.deepcopy(model)
    peer.stack = Packed(to_torch(model.stack))  # type: ignore[assignment]
    return Compared(
        model,
        lambda model, batch, state: classification(settings, model, None, batch, state),
        peer,
        lambda batch: classification(settings, peer, None, batch, None).loss,
        batches,
        [batch.bucketed() for batch in batches],
    )


def elmo(large: bool) -> Compared:
    num_types, num_targets, batch_size = (50_000, 20_000, 128) if large else (5_000, 2_000, 32)
    characters = CharacterCNNConfig(
        filters=(32, 32, 64, 128, 256, 256) if large else (16, 32, 64, 128, 128),
        activation="relu",
        num_highway=2 if large else 1,
        max_characters=50,
        padding="read",
    )
    config = ElmoConfig(
        hidden_size=1024 if large else 256,
        projection_size=256 if large else 0,
        character_cnn=characters,
        dropout=0.0,
    )
    model = config.build(num_targets)
    words = ["<S>", "</S>", "<eos>", "<unk>", *(f"word{number}" for number in range(num_types))]
    table_VC = spelled(words, characters).numpy()
    lengths_V = (table_VC != characters.alphabet.padding).sum(1)
    spellings = Spellings(table_VC, lengths_V, len(characters.filters), num_targets, 0, 1)
    random = np.random.default_rng(2)
    rows = [
        np.exp(random.random((batch_size, length)) * np.log(num_types - 3)).astype(np.int64) + 2
        for length in LENGTHS
    ]
    peer = copy.deepcopy(model)
    for name in ("rightward", "leftward"):
        ours: Any = getattr(model, name)
        layers = [_torch_layer(layer, config.output_size) for layer in ours]
        setattr(peer, name, nn.ModuleList(layers))
    return Compared(
        model,
        bidirectional_likelihood,
        peer,
        lambda batch: _cross_entropy(peer, batch),
        [spellings.batch(tokens_BT) for tokens_BT in rows],
        [spellings.batch(tokens_BT, bucketed=True) for tokens_BT in rows],
    )


def _cross_entropy(model: Any, batch: Any) -> Tensor:
    """The loss of both directions by torch's own softmax."""
    vectors_UE = model.input.spelled(batch.characters_UC, batch.characters_UC.shape[1])
    vectors_BXE = F.embedding(batch.places_BX, vectors_UE)
    softmax = model.head.softmax
    losses = []
    for layers, inputs, targets_BY in (
        (model.rightward, vectors_BXE[:, :-1], batch.targets_BX[:, 1:]),
        (model.leftward, vectors_BXE[:, 1:], batch.targets_BX[:, :-1]),
    ):
        for level, layer in enumerate(layers):
            outputs, _ = layer(inputs)
            inputs = outputs + inputs if level and model.config.residual else outputs
        logits_NV = F.linear(inputs.flatten(0, 1), softmax.weight, softmax.bias)
        losses.append(F.cross_entropy(logits_NV, targets_BY.flatten()))
    return (losses[0] + losses[1]) / 2


TASKS: dict[str, Callable[..., Compared]] = {
    "translator": translator,
    "tagger": tagger,
    "classifier": classifier,
    "elmo": elmo,
}
