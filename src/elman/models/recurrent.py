"""The recurrent language model: embeddings, a stack of recurrent layers, an output layer.

    x_t = E w_t          h_t = layers(x_t, h_{t-1})          y_t = softmax(V h_t)

With `maxent_order`, a maximum-entropy model of hashed n-grams is trained jointly (RNNME, Mikolov
and others, 2011): its scores are added before the softmax, and the state also has the last words.

B batch, T time steps, V vocabulary, E embedding, H hidden.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from torch import Tensor, nn

from elman.base.config import at_least, check_reads, refuse_unread
from elman.base.errors import UsageError
from elman.models.decoding import Decoding, decoding_of, snapshot
from elman.models.interface import Hidden, NetworkLM
from elman.nn.character_cnn import CharacterCNN, CharacterCNNConfig
from elman.nn.dropout import Dropout
from elman.nn.hashed_ngrams import Contexts
from elman.nn.heads import HEADS, Head, HeadConfig
from elman.nn.heads.full import FullConfig
from elman.nn.initial import uniform_matrices
from elman.nn.inputs import Lookup
from elman.nn.kernels import KernelLimits
from elman.nn.quantise import Quantise
from elman.nn.shapes import Float, Int
from elman.nn.stack import Stack, StackConfig
from elman.nn.state import State


@dataclass(frozen=True, kw_only=True)
class RecurrentLMConfig(StackConfig):
    """A recurrent language model."""

    kind: Literal["recurrent"] = "recurrent"
    embedding_size: int = 256
    """Size of the token embeddings."""
    vectors: str = ""
    """A file of word vectors (word2vec, GloVe) from which the embeddings of its words start; empty
    for none. It is read once: the run folder does not need it later."""
    tied: bool = False
    """Whether the output layer uses the embedding matrix; the last layer then has its width."""
    last_size: int = 0
    """Units of the last layer; 0: embedding_size if an output layer that does not project is tied,
    else hidden_size."""
    input: Literal["lookup", "character_cnn"] = "lookup"
    """How tokens become vectors: lookup in a matrix, or a convolution over their spelling."""
    character_cnn: CharacterCNNConfig = field(default_factory=CharacterCNNConfig)
    """The convolution, if input is character_cnn."""
    head: HeadConfig = field(default_factory=FullConfig, metadata={"table": HEADS})
    """The output layer."""
    maxent_order: int = 0
    """Add the scores of hashed n-grams up to this length (RNN + MaxEnt); 0 for none."""
    maxent_size: int = 1 << 22
    """Slots of the table in which those n-grams share their weights."""
    dropout_embedding: float = 0.0
    """Fraction of words whose whole embedding is dropped for a batch (Gal and Ghahramani, 2016)."""
    dropout_input: float = 0.0
    """Dropout on the input of the first layer."""
    dropout_output: float = 0.0
    """Dropout on the input of the output layer."""
    init_range: float = 0.0
    """Matrices start uniform within plus or minus this; 0 for each layer's own choice."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_dropout_hidden()
        at_least("model.embedding_size", self.embedding_size, 1)
        at_least("model.init_range", self.init_range, 0)
        at_least("model.last_size", self.last_size, 0)
        if self.last_size and self.projection_size:
            raise UsageError(
                "model.last_size and model.projection_size both say how wide the last layer's "
                "output is",
                "give one of them",
            )
        check_reads(
            self, "model", "input", {"character_cnn": ["character_cnn"], "lookup": ["vectors"]}
        )
        if self.maxent_order:
            at_least("model.maxent_order", self.maxent_order, 2)
        else:
            refuse_unread(self, "model", ["maxent_size"], "maxent_order to 2 or more")

    def build(
        self,
        vocab_size: int,
        *,
        counts_V: Tensor | None = None,
        spellings: list[str] | None = None,
        boundary_id: int = 0,
    ) -> RecurrentLM:
        """Build a new model; what it needs later of counts and spellings is kept in buffers."""
        return RecurrentLM(self, vocab_size, counts_V=counts_V, spellings=spellings)


class RecurrentLM(NetworkLM):
    """Embeddings, recurrent layers and an output layer."""

    def __init__(
        self,
        config: RecurrentLMConfig,
        vocab_size: int,
        *,
        counts_V: Tensor | None = None,
        spellings: list[str] | None = None,
    ) -> None:
        super().__init__()
        self.config = config
        self.vocab_size = vocab_size
        self.input = self._make_input(spellings)
        self.dropout_input = Dropout(config.dropout_input, locked=config.locked)
        self.stack = Stack(config, config.embedding_size, last_size=self._last_size())
        self.dropout_output = Dropout(config.dropout_output, locked=config.locked)
        self.head: Head = config.head.build(
            self.stack.output_size,
            vocab_size,
            tied_to=self.input.embedding
            if isinstance(self.input, Lookup) and config.tied
            else None,
            counts_V=counts_V,
        )
        self.contexts: Contexts | None = None
        if config.maxent_order:
            self.contexts = Contexts(config.maxent_order, config.maxent_size, vocab_size)
            self.head.connect_ngrams(config.maxent_size)
        if config.init_range:
            uniform_matrices(self, config.init_range)

    def initial_state(self, batch_size: int) -> State:
        """Return the state of the empty prefix: zeros in every layer, and no last words."""
        state = self.stack.initial_state(batch_size)
        if self.contexts is None:
            return state
        device = next(self.parameters()).device
        return State({**state, "tokens": self.contexts.initial(batch_size, device)})

    def hidden(self, tokens_BT: Int[Tensor, "B T"], state: State) -> tuple[Hidden, State]:
        """Read T tokens; return the last layer's vector after each of them."""
        embedded_BTE = self.dropout_input(self.input(tokens_BT))
        raw_BTH, after = self.stack(embedded_BTE, state)
        contexts_BTO, after = self._read(tokens_BT, state, after)
        hidden = Hidden(
            dropped_BTH=self.dropout_output(raw_BTH), raw_BTH=raw_BTH, contexts_BTO=contexts_BTO
        )
        return hidden, after

    def step(self, tokens_B: Int[Tensor, "B"], state: State) -> tuple[Float[Tensor, "B V"], State]:
        """Read one token; return the log probability of every possible next one."""
        embedded_BE = self.dropout_input(self.input(tokens_B))
        hidden_BH, after = self.stack.step(embedded_BE, state)
        contexts_B1O, after = self._read(tokens_B.unsqueeze(1), state, after)
        contexts_BO = None if contexts_B1O is None else contexts_B1O.squeeze(1)
        return self.head.logprobs_all(self.dropout_output(hidden_BH), contexts_BO), after

    @property
    def widths(self) -> list[int]:
        """Numbers per token of the input vectors and of each layer's."""
        return self.stack.widths

    def all_layers(
        self, tokens_BT: Int[Tensor, "B T"], state: State | None, lengths_B: Int[Tensor, "B"]
    ) -> tuple[list[Tensor], State]:
        """Read T tokens; return the vectors of each layer, the input's first, and the state of the
        layers after each row's last real token.
        """
        embedded_BTE = self.dropout_input(self.input(tokens_BT))
        outputs, state = self.stack.all_layers(embedded_BTE, state, lengths_B)
        return [embedded_BTE, *outputs], state

    def groups(self) -> list[list[nn.Parameter]]:
        """Return the parameters of the input and of each layer, with its join."""
        groups = [list(self.input.parameters())]
        for level, layer in enumerate(self.stack.layers):
            join = list(self.stack.joins[level].parameters()) if self.stack.joins else []
            groups.append([*layer.parameters(), *join])
        return groups

    def for_decoding(
        self,
        *,
        quantise: Quantise | None = None,
        share_weights: bool = False,
        limits: KernelLimits | None = None,
    ) -> Decoding:
        """Return the model as it is now, without dropout, with compiled steps: see `Decoding`.

        Later changes of the weights are not seen. `quantise` rounds the copy's weights to int8;
        `share_weights` uses this model's memory if possible: for a model that will not change.
        """
        model = snapshot(self, quantise=quantise, share_weights=share_weights)
        return decoding_of(model, model.input, model.stack, limits)

    def _read(self, tokens_BT: Tensor, before: State, after: State) -> tuple[Tensor | None, State]:
        """Return the hashed contexts, if there are any, and `after` with the last words."""
        if self.contexts is None:
            return None, after
        contexts_BTO, last_BC = self.contexts.read(tokens_BT, before.tensor("tokens"))
        return contexts_BTO, State({**after, "tokens": last_BC})

    def _make_input(self, spellings: list[str] | None) -> Lookup | CharacterCNN:
        config = self.config
        if config.input == "lookup":
            return Lookup(
                self.vocab_size,
                config.embedding_size,
                dropout=config.dropout_embedding,
                tied=config.tied,
            )
        if config.tied:
            raise UsageError(
                "tied embeddings need an embedding matrix, which a character_cnn does not have",
                "set tied to false, or input to lookup",
            )
        return CharacterCNN(
            config.character_cnn,
            self.vocab_size,
            config.embedding_size,
            spellings=spellings,
            dropout=config.dropout_embedding,
        )

    def _last_size(self) -> int:
        """Return the number of units of the last layer, 0 for hidden_size.

        If tied, the embedding's width, as in AWD-LSTM (Merity and others, 2018), unless the output
        layer projects to it.
        """
        config = self.config
        tied = config.tied and not config.head.own_width
        if tied and config.last_size not in (0, config.embedding_size):
            raise UsageError(
                f"tied embeddings need last_size {config.embedding_size}, the embedding_size",
                "leave last_size out, set tied to false, or head.kind to mixture",
            )
        if tied and config.projection_size not in (0, config.embedding_size):
            raise UsageError(
                f"tied embeddings need projection_size {config.embedding_size}, the embedding_size",
                "make the two equal, or set tied to false",
            )
        if (
            tied
            and config.num_layers == 1
            and not config.projection_size
            and config.hidden_size != config.embedding_size
        ):
            raise UsageError(
                "a tied model of one layer has embedding_size units",
                "set model.embedding_size too, or model.tied=false",
            )
        return config.embedding_size if tied and not config.projection_size else config.last_size
