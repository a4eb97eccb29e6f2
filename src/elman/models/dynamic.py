"""Dynamic evaluation (Krause and others, 2018): a network that keeps training while it reads.

The text is read in segments of `chunk_length` tokens. After each segment, with g the gradient of
its mean surprisal, every weight moves:

    w <- w - rate g / (RMS + epsilon) + decay min(1 / decay, RMS / mean RMS) (w_0 - w)

w_0 is the trained weight and RMS its root mean squared gradient over training text, measured by
`evaluate/adaptation.py`. The mean of RMS is over the means of the weights' tensors, as in the
authors' program. A segment is predicted before it is learnt from, so nothing is seen early.

The weights are part of the `State`, so reading is a function as for any other model: an older state
is the model before it learnt. A state of B rows has B sets of weights, which learn one by one.

B batch, T time steps, V vocabulary, H hidden, C tokens of a segment, W all weights in one row.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn

from elman.base.config import at_least
from elman.base.errors import UsageError
from elman.batches.batch import Batch
from elman.models.decoding import for_decoding
from elman.models.interface import LanguageModel, NeuralLanguageModel, is_neural
from elman.nn.graphed import Figures, GraphedUpdate
from elman.nn.heads.full import Full
from elman.nn.inputs import Lookup
from elman.nn.kernels import adaptation, stepwise
from elman.nn.layer import RecurrentLayer
from elman.nn.shapes import Float, Int
from elman.nn.state import State

NOTHING = -1
"""Instead of a token in a segment that is not full."""
ALIGNED = 16
"""Parameters begin at multiples of this many numbers."""


@dataclass(frozen=True, kw_only=True)
class DynamicConfig:
    """Dynamic evaluation."""

    rate: float = 0.00005
    """Learning rate, in units of a weight's root mean squared gradient."""
    decay: float = 0.002
    """How fast weights go back to what they were after training."""
    epsilon: float = 0.00002
    """Added to the root mean squared gradient."""
    chunk_length: int = 5
    """Tokens after which the weights are updated."""
    statistics: str = ""
    """Text on which gradients are measured; empty for the training text."""

    def __post_init__(self) -> None:
        for name in ("rate", "decay", "epsilon"):
            at_least(f"adapt.{name}", getattr(self, name), 0)
        at_least("adapt.chunk_length", self.chunk_length, 1)


@dataclass(frozen=True)
class GradientScale:
    """The root mean squared gradient of each weight, by the name of its tensor."""

    rms: Mapping[str, Tensor]

    @property
    def mean(self) -> float:
        # A maximum-entropy model has a matrix without columns.
        means = [float(one.double().mean()) for one in self.rms.values() if one.numel()]
        return sum(means) / len(means)


class Dynamic:
    """A network under dynamic evaluation."""

    def __init__(
        self,
        model: NeuralLanguageModel,
        scale: GradientScale,
        config: DynamicConfig | None = None,
        memory: State | None = None,
    ) -> None:
        """`memory`, of one row, has the weights at the beginning of a text; None: `model`'s."""
        self.model, self.scale, self.config = model, scale, config or DynamicConfig()
        weights = _Weights(model, scale)
        config = self.config
        step = adaptation.Step(config.rate, config.epsilon, config.decay / (scale.mean or 1.0))
        kinds: tuple[type[_Learner], ...] = (_CompiledLearner, _GraphedLearner, _Learner)
        self._learner = next(kind for kind in kinds if kind.serves(weights))(weights, step)
        self._memory = State({"weights": weights.trained[None]}) if memory is None else memory
        self._lock = threading.Lock()

    @property
    def vocab_size(self) -> int:
        return self.model.vocab_size

    @property
    def adapts(self) -> bool:
        return True

    @property
    def learns(self) -> bool:
        return True

    @property
    def warm_up(self) -> int:
        return 0

    @property
    def head(self) -> Any:
        """The trained output layer, not the adapted one."""
        return self.model.head

    def for_decoding(self, *, share_weights: bool = False) -> LanguageModel:
        """The network with the weights at the beginning of a text: it no longer learns."""
        with self._lock:
            self._learner.load(self._memory.tensor("weights")[0])
            return for_decoding(copy.deepcopy(self._learner.ready()))

    def initial_state(self, batch_size: int) -> State:
        return self._begun(self._memory.tensor("weights").expand(batch_size, -1))

    def memory(self, state: State) -> State:
        return State({"weights": state.tensor("weights")})

    def with_memory(self, memory: State) -> Dynamic:
        return Dynamic(self.model, self.scale, self.config, memory)

    def next_text(self, state: State, last_B: Int[Tensor, "B"]) -> State:
        rows = []
        with self._lock:
            for row in range(len(last_B)):
                one = state.select([row])
                if pending := self._pending(one):
                    self._learner.load(one.tensor("weights")[0])
                    tokens_1T = torch.tensor([pending], device=last_B.device)
                    next_1T = torch.cat([tokens_1T[:, 1:], last_B[row : row + 1, None]], dim=1)
                    self._learner.learn(tokens_1T, next_1T, one.part("anchor"))
                    rows.append(self._learner.copy())
                else:
                    rows.append(one.tensor("weights"))
        return self._begun(torch.cat(rows))

    def step(self, tokens_B: Int[Tensor, "B"], state: State) -> tuple[Float[Tensor, "B V"], State]:
        """Read one token; return the log probability of every possible next one."""
        logprobs_BV, _, state = self.step_with_hidden(tokens_B, state)
        return logprobs_BV, state

    def step_with_hidden(self, tokens_B: Tensor, state: State) -> tuple[Tensor, Tensor, State]:
        """As `step`, with the vectors (B, H) that entered the output layer."""
        found = self._rows(tokens_B[:, None], None, state)
        return found[0][:, 0], found[1][:, 0], found[2]

    def logprobs(
        self, tokens_BT: Int[Tensor, "B T"], targets_BT: Int[Tensor, "B T"], state: State
    ) -> tuple[Float[Tensor, "B T"], State]:
        """Read T tokens; return the log probability of each one's target."""
        logprobs_BT, _, state = self.logprobs_with_hidden(tokens_BT, targets_BT, state)
        return logprobs_BT, state

    def logprobs_with_hidden(
        self, tokens_BT: Tensor, targets_BT: Tensor, state: State
    ) -> tuple[Tensor, Tensor, State]:
        """As `logprobs`, with the vectors (B, T, H) that entered the output layer."""
        if torch.equal(targets_BT[:, :-1], tokens_BT[:, 1:]):
            return self._rows(tokens_BT, targets_BT, state)
        # Segments give the probabilities of the tokens that come next; others take steps.
        logprobs, hiddens = [], []
        for tokens_B, targets_B in zip(tokens_BT.unbind(1), targets_BT.unbind(1), strict=True):
            logprobs_BV, hidden_BH, state = self.step_with_hidden(tokens_B, state)
            logprobs.append(logprobs_BV.gather(1, targets_B[:, None])[:, 0])
            hiddens.append(hidden_BH)
        return torch.stack(logprobs, dim=1), torch.stack(hiddens, dim=1), state

    def _begun(self, weights_BW: Tensor) -> State:
        inner = self.model.initial_state(len(weights_BW))
        shape = (len(weights_BW), self.config.chunk_length)
        tokens_BC = torch.full(shape, NOTHING, device=weights_BW.device)
        return State({"model": inner, "anchor": inner, "tokens": tokens_BC, "weights": weights_BW})

    def _pending(self, state: State) -> list[int]:
        """The tokens of a segment that is not full; their network state before is the anchor."""
        return [token for token in state.tensor("tokens")[0].tolist() if token != NOTHING]

    def _rows(
        self, tokens_BT: Tensor, targets_BT: Tensor | None, state: State
    ) -> tuple[Tensor, Tensor, State]:
        """Read rows one by one; without targets, all log probabilities (B, T, V)."""
        found = []
        with self._lock:
            for row in range(len(tokens_BT)):
                rows = slice(row, row + 1)
                targets_1T = None if targets_BT is None else targets_BT[rows]
                found.append(self._row(tokens_BT[rows], targets_1T, state.select(rows)))
        if len(found) == 1:
            return found[0]
        logprobs, hidden, states = zip(*found, strict=True)
        return torch.cat(logprobs), torch.cat(hidden), State.cat(states)

    def _row(
        self, tokens_1T: Tensor, targets_1T: Tensor | None, state: State
    ) -> tuple[Tensor, Tensor, State]:
        pending, length = self._pending(state), self.config.chunk_length
        device, num_new = tokens_1T.device, tokens_1T.shape[1]
        pending_1P = torch.tensor([pending], dtype=torch.long, device=device)
        all_1N = torch.cat([pending_1P, tokens_1T], dim=1)
        self._learner.load(state.tensor("weights")[0])
        logprobs, hiddens = [], []
        position, anchor = 0, state.part("anchor")
        # A segment is learnt from when the token after it is there, before that one is read.
        while all_1N.shape[1] - position > length:
            segment = slice(position, position + length)
            next_1C = all_1N[:, position + 1 : position + length + 1]
            found_1C, vectors_1CH, anchor = self._learner.learn(all_1N[:, segment], next_1C, anchor)
            first = max(0, len(pending) - position)  # those before it were returned earlier
            if first < length:
                logprobs.append(found_1C[:, first:])
                hiddens.append(vectors_1CH[:, first:])
            position += length
        if position:
            anchor = anchor.map(torch.clone)  # a graph has written it, and will again
        rest_1R = all_1N[:, position:] if position else tokens_1T
        with torch.no_grad():
            network = self._learner.ready(rest_1R)
            before = anchor if position else state.part("model")
            hidden, after = network.hidden(rest_1R, before)
            vectors, contexts = hidden.dropped_BTH, hidden.contexts_BTO
            if targets_1T is None:
                logprobs.append(network.head.logprobs_all(vectors, contexts))
            else:
                targets_1R = targets_1T[:, num_new - rest_1R.shape[1] :]
                logprobs.append(network.head.logprobs(vectors, targets_1R, contexts))
        hiddens.append(vectors)
        kept = all_1N[0, position:].tolist()
        tokens_1C = torch.tensor([kept + [NOTHING] * (length - len(kept))], device=device)
        weights_1W = self._learner.copy() if position else state.tensor("weights")
        parts: dict[str, Tensor | State] = {
            "model": after,
            "anchor": anchor,
            "tokens": tokens_1C,
            "weights": weights_1W,
        }
        return torch.cat(logprobs, dim=1), torch.cat(hiddens, dim=1), State(parts)


def network_of(model: LanguageModel) -> nn.Module:
    """The module with the weights of a network, which may be wrapped (a fixed condition)."""
    module = model if isinstance(model, nn.Module) else getattr(model, "model", None)
    if not is_neural(model) or not isinstance(module, nn.Module):
        raise UsageError("only neural networks can adapt their weights", "use a cache instead")
    if any(getattr(part, "int8", None) is not None for part in module.modules()):
        raise UsageError("int8 weights cannot be adapted", "drop --quantise")
    return module


class _Views(NamedTuple):
    """A parameter's weights, trained weights and root mean squared gradients, in its shape."""

    now: Tensor
    trained: Tensor
    rms: Tensor


class _Weights:
    """A copy of a network whose weights are one row in memory."""

    def __init__(self, model: NeuralLanguageModel, scale: GradientScale) -> None:
        self.model = copy.deepcopy(model)
        self.module = network_of(self.model).eval()
        parameters = dict(self.module.named_parameters())
        sizes = [-(-one.numel() // ALIGNED) * ALIGNED for one in parameters.values()]
        self.now = next(iter(parameters.values())).new_zeros(sum(sizes)).detach()
        self.trained, self.rms = torch.zeros_like(self.now), torch.zeros_like(self.now)
        self.parameters: dict[nn.Parameter, _Views] = {}
        self.places: dict[nn.Parameter, slice] = {}
        start = 0
        for (name, parameter), size in zip(parameters.items(), sizes, strict=True):
            place = slice(start, start + parameter.numel())
            if name not in scale.rms or scale.rms[name].shape != parameter.shape:
                raise UsageError(
                    f"the gradients that were measured do not fit the model: {name} differs",
                    "measure them with this model",
                )
            self.now[place] = parameter.detach().flatten()
            self.rms[place] = scale.rms[name].flatten().to(self.now)
            parameter.data = self.now[place].view(parameter.shape)
            parameter.requires_grad_(True)
            self.parameters[parameter] = _Views(
                *(one[place].view(parameter.shape) for one in (self.now, self.trained, self.rms))
            )
            self.places[parameter] = place
            start += size
        self.trained.copy_(self.now)


class _Learner:
    """Learns from segments with gradients by autograd."""

    def __init__(self, weights: _Weights, step: adaptation.Step) -> None:
        self.weights, self.step = weights, step
        self._held: Tensor | None = None
        """The weights as they are, in a tensor that was loaded or made by `copy`."""

    @staticmethod
    def serves(weights: _Weights) -> bool:
        return True

    def load(self, weights_W: Tensor) -> None:
        """Take over weights; nothing is copied if they are the last ones."""
        if self._held is None or self._held.data_ptr() != weights_W.data_ptr():
            self.weights.now.copy_(weights_W)
            self._held = weights_W

    def ready(self, tokens: Tensor | None = None) -> NeuralLanguageModel:
        """The network, with at least the weights up to date that it needs to read `tokens` (None:
        anything)."""
        return self.weights.model

    def copy(self) -> Tensor:
        """(1, W) the weights, as a value."""
        self.ready()
        self._held = self.weights.now.clone()
        return self._held[None]

    def learn(self, tokens_1C: Tensor, next_1C: Tensor, state: State) -> _Read:
        """Read a segment, update the weights, and return what was read before the update."""
        self._held = None
        model = self.ready(tokens_1C)
        with torch.enable_grad():
            hidden, after = model.hidden(tokens_1C, state)
            logprobs_1C = model.head.logprobs(hidden.dropped_BTH, next_1C, hidden.contexts_BTO)
            loss = -logprobs_1C.mean()
        gradients = torch.autograd.grad(loss, list(self.weights.parameters), allow_unused=True)
        self.move(dict(zip(self.weights.parameters, gradients, strict=True)))
        return logprobs_1C.detach(), hidden.dropped_BTH.detach(), after.detach()

    @torch.no_grad()
    def move(self, gradients: Mapping[nn.Parameter, Tensor | None]) -> None:
        """Update parameters; one without a gradient still goes back to what it was."""
        for parameter, gradient in gradients.items():
            now, trained, rms = self.weights.parameters[parameter]
            gradient = torch.zeros_like(now) if gradient is None else gradient
            adaptation.move(now, gradient, trained, rms, self.step)


class _GraphedLearner(_Learner):
    """Learns on a GPU, from a segment in one CUDA graph: called one by one, the small kernels of
    the forward and the backward pass and of the update would mostly wait for their launches."""

    def __init__(self, weights: _Weights, step: adaptation.Step) -> None:
        super().__init__(weights, step)
        # Computed once, so that an update reads and writes as little as it can.
        self._pulls_W = (step.pull * weights.rms).clamp_(max=1.0)
        rates_W = step.rate / (weights.rms + step.epsilon)
        self._rates = {one: rates_W[place].view(one.shape) for one, place in weights.places.items()}
        self._graphed = GraphedUpdate(
            self._learn_batch,
            weights.model.initial_state,
            weights.now.device,
            what="updates of dynamic evaluation",
        )

    @staticmethod
    def serves(weights: _Weights) -> bool:
        return weights.now.is_cuda

    def learn(self, tokens_1C: Tensor, next_1C: Tensor, state: State) -> _Read:
        (logprobs_1C, hidden_1CH), after = self._graphed(Batch(tokens_1C, next_1C), state)
        assert after is not None
        self._held = None
        return logprobs_1C, hidden_1CH, after

    def _learn_batch(self, batch: Batch, state: State | None) -> tuple[Figures, State]:
        assert state is not None
        logprobs_1C, hidden_1CH, after = super().learn(batch.tokens_BT, batch.targets_BT, state)
        return (logprobs_1C, hidden_1CH), after

    @torch.no_grad()
    def move(self, gradients: Mapping[nn.Parameter, Tensor | None]) -> None:
        # Two launches for all parameters, not two for each.
        self.weights.now.lerp_(self.weights.trained, self._pulls_W)
        given = {one: gradient for one, gradient in gradients.items() if gradient is not None}
        weights = [self.weights.parameters[one].now for one in given]
        rates = [self._rates[one] for one in given]
        torch._foreach_addcmul_(weights, list(given.values()), rates, value=-1)


class _CompiledLearner(_Learner):
    """Learns with compiled loops, for a lookup, recurrent layers and a full softmax on a CPU.

    Gradients of the output matrix, and of LSTMs' matrices where the kernel `stepwise` computes
    them, are never stored: an update multiplies their factors. Rows of an input matrix of its own
    have a gradient only when they are read; in between they go back towards the trained ones,
    (1 - pull) to the number of updates, when they are next needed.
    """

    def __init__(self, weights: _Weights, step: adaptation.Step) -> None:
        super().__init__(weights, step)
        model: Any = weights.model
        self._softmax = model.head.softmax
        self._matrix: nn.Parameter = self._softmax.weight
        self._embedding: nn.Parameter = model.input.embedding.weight
        model.input.embedding.sparse = True
        own = (self._matrix, self._softmax.bias)
        self._others = [one for one in weights.parameters if not any(one is part for part in own)]
        if not any(one is self._embedding for one in self._others):
            self._others.append(self._embedding)
        self._is_tied = self._matrix is self._embedding
        layers = [part for part in model.modules() if isinstance(part, RecurrentLayer)]
        self._stepwise = [
            layer for layer in layers if layer.kernel == "auto" and stepwise.serves(layer.cell)
        ]
        self._num_updates = 0
        self._updated_V = torch.zeros(len(self._embedding), dtype=torch.long)
        self._left: adaptation.Factors | None = None
        """Factors of the last update of the output matrix, which is still to make."""
        self._moved_V = torch.zeros(len(self._matrix), dtype=torch.long)
        """Rows of it for which it is made."""

    @staticmethod
    def serves(weights: _Weights) -> bool:
        model: Any = weights.model
        return (
            isinstance(getattr(model, "input", None), Lookup)
            and isinstance(model.head, Full)
            and model.head.softmax.ngrams is None
            and adaptation.serves(weights.now)
        )

    def load(self, weights_W: Tensor) -> None:
        super().load(weights_W)
        self._forget_updates()

    def copy(self) -> Tensor:
        found = super().copy()
        self._forget_updates()
        return found

    def _forget_updates(self) -> None:
        """All rows are up to date."""
        self._left = None
        if self._num_updates:
            self._num_updates = 0
            self._updated_V.zero_()

    @torch.no_grad()
    def ready(self, tokens: Tensor | None = None) -> NeuralLanguageModel:
        if self._left is not None:
            now, trained, rms = self.weights.parameters[self._matrix]
            moved = self._moved_V.nonzero()[:, 0]
            kept = now[moved]
            adaptation.move_product(now, *self._left, trained, rms, self.step)
            now[moved] = kept
            self._left = None
        if not self._is_tied and self._num_updates:
            everything = torch.arange(len(self._updated_V))
            self._catch_up(everything if tokens is None else tokens.flatten())
        return self.weights.model

    def _catch_up(self, rows: Tensor) -> None:
        """Bring rows of the embedding up to date."""
        now, trained, rms = self.weights.parameters[self._embedding]
        if not self._is_tied:
            missed = self._num_updates - self._updated_V[rows]
            pull = (self.step.pull * rms[rows]).clamp_(max=1.0)
            first = trained[rows]
            # Duplicate rows are written twice with the same values.
            now[rows] = first + (now[rows] - first) * (1 - pull) ** missed[:, None]
            self._updated_V[rows] = self._num_updates
        elif self._left is not None:
            rows = rows[self._moved_V[rows] == 0]
            slopes_CV, vectors_CH = self._left
            moved = now[rows]
            factors = (slopes_CV[:, rows].contiguous(), vectors_CH)
            adaptation.move_product(moved, *factors, trained[rows], rms[rows], self.step)
            now[rows] = moved
            self._moved_V[rows] = 1

    def learn(self, tokens_1C: Tensor, next_1C: Tensor, state: State) -> _Read:
        """The output matrix is updated when it is next read, in the same pass over memory; those of
        its rows that are also read as vectors of words, before."""
        self._held = None
        with torch.no_grad():
            self._catch_up(tokens_1C[0])
        with torch.enable_grad(), self._step_by_step(), stepwise.unmultiplied() as factors:
            hidden, after = self.weights.model.hidden(tokens_1C, state)
        vectors_CH = hidden.dropped_BTH.detach()[0].contiguous()
        with torch.no_grad():
            if self._left is None:
                nothing = vectors_CH.new_empty(0, len(self._matrix))
                self._left = adaptation.Factors(nothing, vectors_CH[:0])
                self._moved_V.fill_(1)
            now, trained, rms = self.weights.parameters[self._matrix]
            logprobs_C, slopes_CV, to_vectors_CH = adaptation.read_softmax(
                *(now, trained, rms, self._softmax.bias.detach(), self._left, self._moved_V),
                *(vectors_CH, next_1C[0], self.step),
            )
            self._left = adaptation.Factors(slopes_CV, vectors_CH)
            self._moved_V.zero_()
        gradients = torch.autograd.grad(
            hidden.dropped_BTH, self._others, to_vectors_CH[None], allow_unused=True
        )
        found = dict(zip(self._others, gradients, strict=True))
        rows = found.pop(self._embedding, None)
        with torch.no_grad():
            for matrix, (slopes_NG, vectors_NI, bias) in factors.items():
                del found[cast(nn.Parameter, matrix)]
                now, trained, rms = self.weights.parameters[cast(nn.Parameter, matrix)]
                adaptation.move_product(now, slopes_NG, vectors_NI, trained, rms, self.step)
                if bias is not None:
                    found[cast(nn.Parameter, bias)] = slopes_NG.sum(0)
            found[self._softmax.bias] = slopes_CV.sum(0)
            self.move(found)
            self._num_updates += 1
            if rows is not None:
                self._move_rows(rows)
        return logprobs_C[None], hidden.dropped_BTH.detach(), after.detach()

    @contextmanager
    def _step_by_step(self) -> Iterator[None]:
        """Let the kernel `stepwise` compute the layers that it serves."""
        for layer in self._stepwise:
            layer.kernel = "stepwise"
        try:
            yield
        finally:
            for layer in self._stepwise:
                layer.kernel = "auto"

    def _move_rows(self, gradient: Tensor) -> None:
        """Update the rows of the embedding that were read."""
        gradient = gradient.coalesce()
        rows, values = gradient.indices()[0], gradient.values()
        now, trained, rms = self.weights.parameters[self._embedding]
        scale = rms[rows]
        if self._is_tied:
            self._catch_up(rows)
        change = values.mul_(-self.step.rate).div_(scale + self.step.epsilon)
        if not self._is_tied:  # else the other part of its gradient has brought it back
            change += (self.step.pull * scale).clamp_(max=1.0) * (trained[rows] - now[rows])
            self._updated_V[rows] = self._num_updates
        now[rows] += change


_Read = tuple[Tensor, Tensor, State]
"""Log probabilities (1, C) of the next tokens, hidden vectors (1, C, H), and the state."""
