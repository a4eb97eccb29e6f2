"""Sequence to sequence: an encoder reads the source, a decoder generates the target.

    e_j = encoder(x_j, e_{j-1})         c = e_n              (Sutskever and others, 2014)
    h_0 = c                             y_i = decoder(y_{i-1}, h_{i-1}, c or attention over e)

The encoder is bidirectional or not. Both directions together are as wide as the decoder (side by
side, each has half the units), so that the decoder starts from the encoder's last state, layer by
layer. Attention is over the encoder's outputs.

B batch, S source steps, T time steps, V vocabulary, H hidden.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
from torch import Tensor

from elman.base.errors import UsageError
from elman.batches.wording import Spelled, Wording
from elman.models.decoder import Condition, Decoder, DecoderConfig, DecoderModel
from elman.models.embedder import Embedder
from elman.models.embeddings import Embeddings, EmbeddingsConfig
from elman.nn.bidirectional import Merge, merged
from elman.nn.dropout import Dropout
from elman.nn.inputs import Lookup
from elman.nn.shapes import Bool, Int
from elman.nn.stack import DirectionsConfig, Stack
from elman.nn.state import State


@dataclass(frozen=True, kw_only=True)
class SequenceToSequenceConfig(DirectionsConfig):
    """An encoder and a decoder."""

    kind: Literal["sequence_to_sequence"] = "sequence_to_sequence"
    bidirectional: bool = True
    """Whether the encoder reads in both directions; if not, from left to right."""
    merge: Merge = "concat"
    """How its two directions are combined: concat (each has half the units), mean or sum."""
    shared_embedding: bool = False
    """Whether encoder and decoder share the embedding matrix; needs a shared vocabulary."""
    decoder: DecoderConfig = field(default_factory=DecoderConfig)
    """The decoder; the encoder has the same layers, sizes and dropout."""
    embeddings: EmbeddingsConfig = field(default_factory=EmbeddingsConfig)
    """Pre-trained vectors beside those of the source, at the encoder's input."""

    def __post_init__(self) -> None:
        if self.embeddings.enters != "input":
            raise UsageError(
                f"embeddings cannot enter a translator at its {self.embeddings.enters}: the words "
                "that the decoder generates are not known beforehand",
                "set model.embeddings.enters to input",
            )
        self.check_directions()
        for name in ("hidden_size", "projection_size"):
            size = getattr(self.decoder, name)
            if size % self.num_parts:
                raise UsageError(
                    f"model.decoder.{name} {size} cannot be split into two directions",
                    "make it even, or set model.merge to mean, or model.bidirectional to false",
                )

    @property
    def num_parts(self) -> int:
        """The directions that share the units of a layer."""
        return 2 if self.bidirectional and self.merge == "concat" else 1

    def build(
        self, vocab_size: int, source_vocab_size: int | None = None, **given: Any
    ) -> SequenceToSequence:
        """Build a new model with the arguments of its constructor; the source has the target's
        vocabulary unless its size is given.
        """
        return SequenceToSequence(self, vocab_size, source_vocab_size or vocab_size, **given)


class SequenceToSequence(DecoderModel):
    boundary: Tensor

    def __init__(
        self,
        config: SequenceToSequenceConfig,
        vocab_size: int,
        source_vocab_size: int,
        *,
        counts_V: Tensor | None = None,
        boundary_id: int = 0,
        embedder: Embedder | None = None,
    ) -> None:
        """`boundary_id` ends a source; `embedder` is what `embeddings` names."""
        super().__init__()
        self.config = config
        settings = config.decoder
        self.decoder = Decoder(settings, vocab_size, settings.output_size, counts_V=counts_V)
        self.input: Lookup | None = None
        if not config.shared_embedding:
            self.input = Lookup(
                source_vocab_size, settings.embedding_size, dropout=settings.dropout_embedding
            )
        elif source_vocab_size != vocab_size:
            raise UsageError(
                f"a shared embedding needs one vocabulary, not {source_vocab_size} source tokens "
                f"and {vocab_size} target tokens",
                "set model.shared_embedding to false, or tokenizer.shared to true",
            )
        self.dropout_input = Dropout(settings.dropout_input, locked=settings.locked)
        self.dropout_memory = Dropout(settings.dropout_hidden, locked=settings.locked)
        self.embeddings = Embeddings(config.embeddings, embedder)
        self.encoder = Stack(
            replace(
                settings,
                hidden_size=settings.hidden_size // config.num_parts,
                projection_size=settings.projection_size // config.num_parts,
            ),
            settings.embedding_size + self.embeddings.size("input"),
            bidirectional=config.bidirectional,
            merge=config.merge,
        )
        self.register_buffer("boundary", torch.tensor(boundary_id))

    def condition(
        self,
        source_BS: Int[Tensor, "B S"],
        mask_BS: Bool[Tensor, "B S"] | None = None,
        wording: Wording | None = None,
    ) -> State:
        """Encode sources, padded where the mask is False; return the state of the empty target.

        The `wording` of the sources is for pre-trained embeddings; None: they have no words.
        """
        lengths_B = None if mask_BS is None else mask_BS.sum(dim=1)
        if mask_BS is None:
            mask_BS = torch.ones_like(source_BS, dtype=torch.bool)
        lookup = self.decoder.input if self.input is None else self.input
        embedded_BSE = self.dropout_input(lookup(source_BS))
        if wording is None and self.embeddings.wanted:
            wording = Wording.of([Spelled((), ())] * source_BS.shape[0])
        layers_LBSD = self.embeddings.read(wording, source_BS.shape[1])
        embedded_BSE = self.embeddings.beside(embedded_BSE, layers_LBSD, "input")
        memory_BSH, state = self.encoder(embedded_BSE, None, lengths_B)
        memory_BSH = self.dropout_memory(memory_BSH)
        layers = State({level: _joined(state.part(level), self.config.merge) for level in state})
        summary_BH = layers.part(str(len(layers) - 1)).tensor("h")
        return self.decoder.start(Condition(memory_BSH, mask_BS, summary_BH, layers))

    def initial_state(self, batch_size: int) -> State:
        """The state of the empty target for an empty source: the boundary token alone."""
        return self.condition(self.boundary.expand(batch_size, 1))


def _joined(state: State, merge: Merge) -> State:
    """Combine the last states of a layer's two directions; a single direction stays as is."""
    if "forward" not in state:
        return state
    right, left = state.part("forward"), state.part("backward")
    return State({key: merged(right.tensor(key), left.tensor(key), merge) for key in right})
