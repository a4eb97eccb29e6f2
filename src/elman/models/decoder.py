"""The decoder: a conditional language model, P(y | X) = prod P(y_i | y_<i, X).

The input X (a sentence, a picture, a label) arrives as a `Condition`: vectors to attend to, a
summary c, and initial states of the recurrent layers. `start` turns it into a `State`; from there
on the decoder is an ordinary language model. The condition is part of the state, so `state[rows]`
selects and repeats it with the rest. In equations,

    h_0 = c                                     context: start
    h_i = g(y_{i-1}, h_{i-1}, c)                context: every_step (both: the two together)
    y_i = softmax(V h_i)

With attention, each step has its own context c_i, in one of two places:

    attend: before      c_i from h_{i-1};  h_i = g(y_{i-1}, h_{i-1}, c_i)        (Bahdanau
                                                                                  and others, 2015)
    attend: after       h_i = g(y_{i-1}, h_{i-1});  c_i from h_i;                (Luong and
                        y_i = softmax(V tanh(W [c_i; h_i]))                       others, 2015)

With input feeding, tanh(W [c_i; h_i]) also enters the next step, so that the decoder knows where it
has looked. Attention after, without input feeding, reads a whole text in one pass; the other two go
step by step, in training as well.

B batch, T time steps, S source steps, V vocabulary, E embedding, H hidden, M memory, R input size
of the output layer.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import ClassVar, Literal, cast

import torch
from torch import Tensor, nn

from elman.base.config import at_least, check_reads
from elman.base.errors import UsageError
from elman.models.interface import Hidden, NetworkLM
from elman.nn.attention import Attention
from elman.nn.dropout import Dropout
from elman.nn.heads import HEADS, Head, HeadConfig
from elman.nn.heads.full import FullConfig
from elman.nn.inputs import Lookup
from elman.nn.kernels import feeding, record_plan
from elman.nn.layer import RecurrentLayer
from elman.nn.shapes import Float, Int
from elman.nn.stack import Stack, StackConfig, make_cell
from elman.nn.state import Leaf, State


@dataclass(frozen=True, kw_only=True)
class DecoderConfig(StackConfig):
    """A recurrent decoder."""

    where: ClassVar[str] = "model.decoder"

    hidden_size: int = 512
    embedding_size: int = 512
    """Size of the token embeddings."""
    tied: bool = False
    """Whether the output layer uses the embedding matrix; it then reads vectors of that width."""
    context: Literal["start", "every_step", "both"] = "start"
    """Where the summary of the input enters: as the initial state (start), into every_step, or
    both."""
    attention: Literal["none", "dot", "bilinear", "additive"] = "additive"
    """Attention over the input: dot, bilinear, additive or none."""
    attend: Literal["before", "after"] = "after"
    """When to attend: before a step, from the state before it, into the step (Bahdanau and
    others, 2015), or after it, into the output (Luong and others, 2015; faster)."""
    attention_size: int = 0
    """Hidden units of additive attention; 0 for the width of a layer's output."""
    input_feeding: bool = False
    """Whether the result of attention after a step also enters the next one."""
    head: HeadConfig = field(default_factory=FullConfig, metadata={"table": HEADS})
    """The output layer."""
    dropout_embedding: float = 0.0
    """Fraction of words whose whole embedding is dropped for a batch."""
    dropout_input: float = 0.0
    """Dropout on the input of the first layer."""
    dropout_hidden: float = 0.0
    """Dropout between layers, and on the vectors that attention looks at."""
    dropout_output: float = 0.0
    """Dropout on the input of the output layer."""

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(f"{self.where}.embedding_size", self.embedding_size, 1)
        at_least(f"{self.where}.attention_size", self.attention_size, 0)
        reads = {
            "dot": ["attend", "input_feeding"],
            "bilinear": ["attend", "input_feeding"],
            "additive": ["attend", "input_feeding", "attention_size"],
        }
        check_reads(self, self.where, "attention", reads)
        check_reads(self, self.where, "attend", {"after": ["input_feeding"]})
        if self.stepwise and self.weight_drop:
            raise UsageError(
                "weight_drop needs a decoder that reads a text in one pass",
                "set attend to after and input_feeding to false, or weight_drop to 0",
            )

    @property
    def stepwise(self) -> bool:
        """Whether each step reads the attention of this or an earlier one."""
        return self.input_feeding or (self.attention != "none" and self.attend == "before")


@dataclass(frozen=True)
class Condition:
    """The input of a decoder, encoded."""

    memory_BSM: Float[Tensor, "B S M"]
    """Vectors to attend to."""
    mask_BS: Tensor
    """True for real positions."""
    summary_BM: Float[Tensor, "B M"]
    """The context c."""
    layers: State
    """Initial states of the recurrent layers, if they start from the summary."""


class Decoder(NetworkLM):
    """Embeddings, recurrent layers, attention and an output layer, over states made by `start`."""

    def __init__(
        self,
        config: DecoderConfig,
        vocab_size: int,
        memory_size: int,
        *,
        counts_V: Tensor | None = None,
    ) -> None:
        """`memory_size` is the width of the condition's vectors and of its summary."""
        super().__init__()
        self.config = config
        self.vocab_size = vocab_size
        hidden_size = config.output_size
        after = config.attention != "none" and config.attend == "after"
        readout_size = config.embedding_size if config.tied else hidden_size
        if not after and readout_size != hidden_size:
            raise UsageError(
                "a tied decoder without attention after its steps needs layers as wide as its "
                f"embeddings, not {hidden_size} and {config.embedding_size}",
                "set projection_size or hidden_size to embedding_size, or tied to false",
            )
        self.every_step = config.context != "start"
        # A tied matrix starts small; as input it is scaled up (Vaswani and others, 2017). Without
        # this a translation model is 0.9 nats worse after 120 updates.
        self.input = Lookup(
            vocab_size,
            config.embedding_size,
            dropout=config.dropout_embedding,
            tied=config.tied,
            scale=math.sqrt(config.embedding_size) if config.tied else 1.0,
        )
        self.dropout_input = Dropout(config.dropout_input, locked=config.locked)
        width = config.embedding_size
        width += memory_size if self.every_step else 0
        width += memory_size if config.attend == "before" else 0
        width += readout_size if config.input_feeding else 0
        self.stack = Stack(config, width)
        self.attention: Attention | None = None
        self.readout: nn.Linear | None = None
        if config.attention != "none":
            self.attention = Attention(
                config.attention, hidden_size, memory_size, config.attention_size
            )
        if after:
            self.readout = nn.Linear(memory_size + hidden_size, readout_size, bias=False)
        self.dropout_output = Dropout(config.dropout_output, locked=config.locked)
        self.readout_size = readout_size
        self.head: Head = config.head.build(
            readout_size,
            vocab_size,
            tied_to=self.input.embedding if config.tied else None,
            counts_V=counts_V,
        )

    def start(self, condition: Condition) -> State:
        """Return the state of the empty prefix, given the condition."""
        memory_BSM, mask_BS = condition.memory_BSM, condition.mask_BS
        batch_size = len(memory_BSM)
        if self.config.context == "every_step":
            layers = self.stack.initial_state(batch_size)
        else:
            layers = self.stack.begun(condition.layers)
        parts: dict[str, Leaf] = {"layers": layers}
        if self.every_step:
            parts["summary"] = condition.summary_BM
        if self.attention is not None:
            parts["memory"] = memory_BSM
            parts["keys"] = self.attention.keys(memory_BSM)
            parts["mask"] = mask_BS
            # Total attention to each position so far, for the coverage penalty.
            parts["attended"] = self._new(batch_size, memory_BSM.shape[1])
        if self.config.input_feeding:
            parts["fed"] = self._new(batch_size, self.readout_size)
        return State(parts)

    def hidden(self, tokens_BT: Int[Tensor, "B T"], state: State) -> tuple[Hidden, State]:
        """Read T tokens; return the input of the output layer after each."""
        raw_BTR, _, state = self._read(tokens_BT, state)
        return Hidden(dropped_BTH=self.dropout_output(raw_BTR), raw_BTH=raw_BTR), state

    def step(self, tokens_B: Int[Tensor, "B"], state: State) -> tuple[Float[Tensor, "B V"], State]:
        """Read one token; return the log probability of every possible next one."""
        raw_BR, _, state = self._step(self.dropout_input(self.input(tokens_B)), state)
        return self.head.logprobs_all(self.dropout_output(raw_BR)), state

    def weights(
        self, tokens_BT: Int[Tensor, "B T"], state: State
    ) -> tuple[Float[Tensor, "B T S"], State]:
        """Read T tokens; return the attention weights of each step."""
        if self.attention is None:
            raise UsageError("this model has no attention", "train one with attention")
        _, weights, state = self._read(tokens_BT, state)
        return torch.stack(weights, dim=1) if isinstance(weights, list) else weights, state

    def _read(self, tokens_BT: Tensor, state: State) -> tuple[Tensor, Tensor | list[Tensor], State]:
        """Return the input of the output layer, the attention weights, and the new state."""
        embedded_BTE = self.dropout_input(self.input(tokens_BT))
        if not self.config.stepwise:
            return self._pass(embedded_BTE, state)
        if self._is_fed:
            return self._feed(embedded_BTE, state)
        vectors, weights = [], []
        for embedded_BE in embedded_BTE.unbind(1):
            vector_BR, weights_BS, state = self._step(embedded_BE, state)
            vectors.append(vector_BR)
            weights.append(weights_BS)
        return torch.stack(vectors, dim=1), weights, state

    def _pass(self, embedded_BTE: Tensor, state: State) -> tuple[Tensor, Tensor, State]:
        """Compute all steps at once; no step reads an earlier step's attention."""
        if self.every_step:
            embedded_BTE = self._with_summary(embedded_BTE, state)
        outputs_BTH, layers = self.stack(embedded_BTE, state.part("layers"))
        if self.attention is None:
            return outputs_BTH, outputs_BTH[..., :0], State({**state, "layers": layers})
        vectors_BTR, weights_BTS = self._look_after(outputs_BTH, state)
        attended_BS = state.tensor("attended") + weights_BTS.sum(dim=1)
        state = State({**state, "layers": layers, "attended": attended_BS})
        return vectors_BTR, weights_BTS, state

    @property
    def _is_fed(self) -> bool:
        """Whether one kernel computes all steps with attention and input feeding."""
        config = self.config
        return (
            config.input_feeding
            and config.attention in ("dot", "bilinear")
            and config.num_layers == 1
            and config.kernel == "auto"
            and not (config.dropout_state or self.stack.joins)
            and feeding.serves(self._first.cell)
        )

    @property
    def _first(self) -> RecurrentLayer:
        return cast(RecurrentLayer, self.stack.layers[0])

    def _feed(self, embedded_BTE: Tensor, state: State) -> tuple[Tensor, Tensor, State]:
        """Compute the same as `_step` one after the other, in fewer and larger pieces."""
        assert self.readout is not None
        if self.every_step:
            embedded_BTE = self._with_summary(embedded_BTE, state)
        layer, before = self._first, state.part("layers").part("0")
        vectors_BTR, weights_BTS, h_BH, c_BH, plan = feeding.run(
            layer.cell,
            embedded_BTE,
            *(before.tensor("h"), before.tensor("c"), state.tensor("fed")),
            *(state.tensor("keys"), state.tensor("memory"), state.tensor("mask")),
            self.readout.weight,
        )
        record_plan(layer, plan)
        parts: dict[str, Leaf] = dict(state)
        parts["layers"] = State({"0": State({"h": h_BH, "c": c_BH})})
        parts["attended"] = state.tensor("attended") + weights_BTS.sum(dim=1)
        parts["fed"] = vectors_BTR[:, -1].to(state.tensor("fed").dtype)
        return vectors_BTR, weights_BTS, State(parts)

    def _step(self, embedded_BE: Tensor, state: State) -> tuple[Tensor, Tensor, State]:
        """Compute one step: the same as `_pass`, plus what cannot be done in one pass."""
        inputs = [embedded_BE]
        parts: dict[str, Leaf] = dict(state)
        weights_BS = embedded_BE[:, :0]
        if self.every_step:
            inputs.append(state.tensor("summary"))
        if self.attention is not None and self.config.attend == "before":
            top = str(self.config.num_layers - 1)
            query_BH = state.part("layers").part(top).tensor("h")
            context_B1M, weights_B1S = self._look(query_BH[:, None], state)
            inputs.append(context_B1M[:, 0])
            weights_BS = weights_B1S[:, 0]
        if self.config.input_feeding:
            inputs.append(state.tensor("fed"))
        entering = [tensor.to(embedded_BE.dtype) for tensor in inputs]
        vector_BR, parts["layers"] = self.stack.step(
            torch.cat(entering, dim=1), state.part("layers")
        )
        if self.readout is not None:
            vector_B1R, weights_B1S = self._look_after(vector_BR[:, None], state)
            vector_BR, weights_BS = vector_B1R[:, 0], weights_B1S[:, 0]
        if self.attention is not None:
            parts["attended"] = state.tensor("attended") + weights_BS
        if self.config.input_feeding:
            parts["fed"] = vector_BR.to(state.tensor("fed").dtype)
        return vector_BR, weights_BS, State(parts)

    def _look(self, queries_BTH: Tensor, state: State) -> tuple[Tensor, Tensor]:
        assert self.attention is not None
        memory_BSM = state.tensor("memory")
        contexts_BTM, weights_BTS = self.attention(
            queries_BTH.to(memory_BSM.dtype), state.tensor("keys"), memory_BSM, state.tensor("mask")
        )
        return contexts_BTM, weights_BTS

    def _look_after(self, outputs_BTH: Tensor, state: State) -> tuple[Tensor, Tensor]:
        """tanh(W [c; h]) and the attention weights."""
        assert self.readout is not None
        contexts_BTM, weights_BTS = self._look(outputs_BTH, state)
        joined = torch.cat([contexts_BTM, outputs_BTH.to(contexts_BTM.dtype)], dim=-1)
        return torch.tanh(self.readout(joined)), weights_BTS

    def _with_summary(self, embedded_BTE: Tensor, state: State) -> Tensor:
        summary_BTM = state.tensor("summary")[:, None].expand(-1, embedded_BTE.shape[1], -1)
        return torch.cat([embedded_BTE, summary_BTM.to(embedded_BTE.dtype)], dim=2)

    def _new(self, batch_size: int, width: int) -> Tensor:
        return self.input.embedding.weight.new_zeros(batch_size, width)


class Bridge(nn.Module):
    """Compute initial layer states from a summary that is not a recurrent state: tanh(W c + b)."""

    def __init__(self, config: DecoderConfig, memory_size: int) -> None:
        super().__init__()
        with torch.device("meta"):  # a cell without memory, for its sizes alone
            self.sizes = make_cell(config, 1, config.hidden_size).memory_sizes
        self.num_layers = config.num_layers
        self.linear = nn.Linear(memory_size, self.num_layers * sum(self.sizes.values()))

    def forward(self, summary_BM: Float[Tensor, "B M"]) -> State:
        states = {}
        layers = torch.tanh(self.linear(summary_BM)).chunk(self.num_layers, dim=1)
        for level, layer_BX in enumerate(layers):
            parts = torch.split(layer_BX, list(self.sizes.values()), dim=1)
            states[str(level)] = State(dict(zip(self.sizes, parts, strict=True)))
        return State(states)


class DecoderModel(nn.Module):
    """A model that writes text with its `decoder`; subclasses define the input."""

    decoder: Decoder

    @property
    def vocab_size(self) -> int:
        return self.decoder.vocab_size

    @property
    def head(self) -> Head:
        return self.decoder.head

    def hidden(self, tokens_BT: Int[Tensor, "B T"], state: State) -> tuple[Hidden, State]:
        return self.decoder.hidden(tokens_BT, state)

    def logprobs(
        self, tokens_BT: Int[Tensor, "B T"], targets_BT: Int[Tensor, "B T"], state: State
    ) -> tuple[Float[Tensor, "B T"], State]:
        return self.decoder.logprobs(tokens_BT, targets_BT, state)

    def step(self, tokens_B: Int[Tensor, "B"], state: State) -> tuple[Float[Tensor, "B V"], State]:
        return self.decoder.step(tokens_B, state)
