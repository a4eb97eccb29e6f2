"""Models prepared for decoding: `for_decoding(model)` wherever tokens are generated one by one.

A network gives a `Decoding`: a snapshot of its weights, laid out for steps that are one compiled
call (`nn/kernels/model_step.py`). The model itself stays a plain module. Other models are decoded
as they are.

B batch, T time steps, V vocabulary.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol, TypeVar, runtime_checkable

import torch
from torch import Tensor, nn

from elman.models.interface import Hidden, LanguageModel, NeuralLanguageModel
from elman.nn.heads import Head
from elman.nn.heads.full import Full
from elman.nn.inputs import Lookup
from elman.nn.kernels import KernelLimits, KernelPlan, Purpose, plan, record_plan
from elman.nn.kernels.model_step import ModelStep, Output, kind_of
from elman.nn.kernels.planning import PACKED_MODEL, WHOLE_MODEL, current_limits
from elman.nn.kernels.products import ONEDNN
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
    compiled step, joined plainly, and a full softmax. Others step part by part, and so do all if
    the plan says so (another kernel was asked for, or torch is faster for this number of rows).
    """

    def __init__(
        self,
        model: NeuralLanguageModel,
        layers: Sequence[RecurrentLayer],
        compiled: ModelStep | None,
        limits: KernelLimits | None = None,
    ) -> None:
        """`model` is a copy that nobody changes (`snapshot`), `compiled` the step of its parts."""
        self.model = model
        self._layers = layers
        self._compiled = compiled
        self._limits = limits
        self._plans: dict[tuple[int, int, bool], KernelPlan | None] = {}
        """By number of rows, threads and autocast; None to step part by part."""

    @property
    def vocab_size(self) -> int:
        return self.model.vocab_size

    @property
    def head(self) -> Head:
        return self.model.head

    def initial_state(self, batch_size: int) -> State:
        return self.model.initial_state(batch_size)

    @torch.no_grad()
    def hidden(self, tokens_BT: Int[Tensor, "B T"], state: State) -> tuple[Hidden, State]:
        return self.model.hidden(tokens_BT, state)

    @torch.no_grad()
    def logprobs(
        self, tokens_BT: Int[Tensor, "B T"], targets_BT: Int[Tensor, "B T"], state: State
    ) -> tuple[Float[Tensor, "B T"], State]:
        return self.model.logprobs(tokens_BT, targets_BT, state)

    def step(self, tokens_B: Int[Tensor, "B"], state: State) -> tuple[Float[Tensor, "B V"], State]:
        """Read one token; return the log probability of every possible next one."""
        chosen = self._plan(len(tokens_B))
        if chosen is None or self._compiled is None:
            with torch.no_grad():
                return self.model.step(tokens_B, state)
        before = [state.part(str(level)) for level in range(len(state))]
        logprobs_BV, after = self._compiled(
            tokens_B, before, num_parts=chosen.num_parts, products=chosen.products
        )
        for layer in self._layers:
            record_plan(layer, chosen)
        return logprobs_BV, State({str(level): new for level, new in enumerate(after)})

    def prepare(self, num_rows: int, num_threads: int) -> None:
        """Pack the weights for steps of so many rows on so many threads, and start none of them: a
        process that has threads cannot be forked."""
        chosen = self._plan(num_rows, num_threads)
        if chosen is not None and self._compiled is not None and chosen.products == ONEDNN:
            self._compiled.prepare(chosen.num_parts)

    def _plan(self, num_rows: int, num_threads: int | None = None) -> KernelPlan | None:
        """The plan of all layers, if it is one call for the whole model."""
        num_threads = num_threads or torch.get_num_threads()
        key = (num_rows, num_threads, torch.is_autocast_enabled("cpu"))
        if self._compiled is not None and key not in self._plans:
            limits = self._limits or current_limits()
            limits = replace(limits, num_threads=limits.num_threads or num_threads)
            with torch.no_grad():
                plans = [
                    plan(
                        layer.cell,
                        device=layer.cell.bias.device,
                        dtype=layer.cell.bias.dtype,
                        shape=(num_rows, 1, layer.cell.input_size),
                        purpose=Purpose.ONE_STREAM if num_rows == 1 else Purpose.MANY_STREAMS,
                        kernel=layer.kernel,
                        limits=limits,
                        model=self._compiled.weights,
                    )
                    for layer in self._layers
                ]
            whole = all(found.variant in (WHOLE_MODEL, PACKED_MODEL) for found in plans)
            self._plans[key] = plans[0] if whole else None
        return self._plans.get(key)


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


def decoding_of(
    model: NeuralLanguageModel,
    source: nn.Module,
    stack: Stack,
    limits: KernelLimits | None = None,
) -> Decoding:
    """The decoding of a snapshot that is made of `source`, `stack` and its head."""
    layers = [layer for layer in stack.layers if isinstance(layer, RecurrentLayer)]
    cells, head = [layer.cell for layer in layers], model.head
    compiled = None
    if (
        isinstance(source, Lookup)
        and source.scale == 1.0
        and isinstance(head, Full)
        and head.softmax.ngrams is None
        and stack.config.join == "plain"
        and not stack.config.sum_layers
        and all(kind_of(cell) is not None for cell in cells)
    ):
        softmax = head.softmax
        output = Output(softmax.weight, softmax.int8, softmax.bias)
        compiled = ModelStep(cells, source.embedding.weight, output, limits)
    return Decoding(model, layers, compiled, limits)
