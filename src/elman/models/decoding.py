"""Models prepared for decoding: `for_decoding(model)` wherever tokens are generated one by one.

A network gives a `Decoding`: a snapshot of its weights, laid out for steps that are one compiled
call (`nn/kernels/model_step.py`). The model itself stays a plain module. Other models are decoded
as they are.

B batch, T time steps, V vocabulary.
"""

from __future__ import annotations

import copy
from typing import Protocol, TypeVar, runtime_checkable

import torch
from torch import Tensor, nn

from elman.models.interface import Hidden, LanguageModel, NeuralLanguageModel
from elman.nn.heads import Head
from elman.nn.heads.full import Full
from elman.nn.heads.sampled import Sampled
from elman.nn.inputs import Lookup
from elman.nn.kernels.loops import numba
from elman.nn.kernels.model_step import ModelStep, Output, StepLimits, kind_of
from elman.nn.layer import RecurrentLayer
from elman.nn.quantise import Quantise
from elman.nn.quantise import quantise as quantise_weights
from elman.nn.shapes import Float, Int
from elman.nn.stack import Stack
from elman.nn.state import State

M = TypeVar("M", bound=nn.Module)


@runtime_checkable
class Decodable(Protocol):
    """A model that has a faster form for decoding."""

    def for_decoding(self, *, share_weights: bool = False) -> LanguageModel:
        """A snapshot of the model, without dropout; see `Decoding`."""
        ...


def for_decoding(model: LanguageModel, *, share_weights: bool = False) -> LanguageModel:
    """The model in its form for decoding, or itself if it has no other.

    Later changes of the weights are not seen: call it where decoding begins. With `share_weights`
    nothing is copied that need not be, for models that do not change while they are decoded.
    """
    if isinstance(model, Decodable):
        return model.for_decoding(share_weights=share_weights)
    return model


class Decoding:
    """A network as it was when this object was made: without dropout or gradients.

    `step` is one compiled call for models of plain parts: a lookup, layers of a cell that has a
    compiled step, joined plainly, and a full softmax. Others step part by part.
    """

    def __init__(self, model: NeuralLanguageModel, compiled: ModelStep | None) -> None:
        """`model` is a copy that nobody changes (`snapshot`), `compiled` its step."""
        self._model = model
        self._compiled = compiled

    @property
    def vocab_size(self) -> int:
        return self._model.vocab_size

    @property
    def head(self) -> Head:
        return self._model.head

    def initial_state(self, batch_size: int) -> State:
        return self._model.initial_state(batch_size)

    @torch.no_grad()
    def hidden(self, tokens_BT: Int[Tensor, "B T"], state: State) -> tuple[Hidden, State]:
        return self._model.hidden(tokens_BT, state)

    @torch.no_grad()
    def logprobs(
        self, tokens_BT: Int[Tensor, "B T"], targets_BT: Int[Tensor, "B T"], state: State
    ) -> tuple[Float[Tensor, "B T"], State]:
        return self._model.logprobs(tokens_BT, targets_BT, state)

    def step(self, tokens_B: Int[Tensor, "B"], state: State) -> tuple[Float[Tensor, "B V"], State]:
        """Read one token; return the log probability of every possible next one."""
        compiled = self._compiled
        if compiled is not None and compiled.way(len(tokens_B)) is not None:
            logprobs_BV, after = compiled(tokens_B, [state.part(str(i)) for i in range(len(state))])
            return logprobs_BV, State({str(i): new for i, new in enumerate(after)})
        with torch.no_grad():
            return self._model.step(tokens_B, state)


def snapshot(model: M, *, quantise: Quantise | None = None, share_weights: bool = False) -> M:
    """A copy of a module for use only: no dropout, no gradients, weights rounded to `quantise`.

    With `share_weights` it uses the module's own memory.
    """
    share = share_weights and quantise is None
    known: dict[int, object] = {}
    for tensor in (*model.parameters(), *model.buffers()):
        own = tensor.detach() if share else tensor.detach().clone()
        is_parameter = isinstance(tensor, nn.Parameter)
        known[id(tensor)] = nn.Parameter(own, requires_grad=False) if is_parameter else own
    copied = copy.deepcopy(model, known).eval()
    if quantise is not None:
        quantise_weights(copied, quantise)
    return copied


def compiled_step(
    source: nn.Module, stack: Stack, head: nn.Module, limits: StepLimits | None = None
) -> ModelStep | None:
    """The step of a model of these parts as one compiled call, if they are plain."""
    cells = [layer.cell for layer in stack.layers if isinstance(layer, RecurrentLayer)]
    if (
        numba is None
        or not isinstance(source, Lookup)
        or source.scale != 1.0
        or not isinstance(head, (Full, Sampled))
        or head.softmax.ngrams is not None
        or stack.config.join != "plain"
        or stack.config.kernel in ("torch", "reference")
        or any(kind_of(cell) is None for cell in cells)
    ):
        return None
    softmax = head.softmax
    output = Output(softmax.weight, softmax.int8, softmax.bias)
    return ModelStep(cells, source.embedding.weight, output, limits)
