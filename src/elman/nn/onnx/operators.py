"""How ONNX writes torch's operations: for each, a function that adds nodes to a graph and returns
the name of the result.

Operations are those below torch's autograd ("aten"): `F.linear` arrives as products and sums.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from elman.nn.onnx.tracing import LARGEST_SIZE, Graph, element_type


@dataclass(frozen=True)
class Call:
    """An operation that was executed."""

    graph: Graph
    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    result: Any

    def arg(self, place: int, name: str, default: Any = None) -> Any:
        if place < len(self.args):
            return self.args[place]
        return self.kwargs.get(name, default)

    def node(self, kind: str, names: Sequence[str], **attributes: Any) -> str:
        return self.graph.node(kind, names, **attributes)

    def name(self, place: int) -> str:
        return self.graph.name(self.args[place])

    def operand(self, value: Any, dtype: torch.dtype) -> str:
        """A tensor or a number, as this type."""
        if not isinstance(value, Tensor):
            return self.graph.number(value, dtype)
        name = self.graph.name(value)
        return name if value.dtype == dtype else self.cast(name, dtype)

    def cast(self, name: str, dtype: torch.dtype) -> str:
        return self.node("Cast", [name], to=element_type(dtype))

    def axis(self, place: int) -> int:
        """The argument `dim`, counted from the front."""
        dims: int = self.args[0].dim()
        return int(self.arg(place, "dim", 0)) % max(1, dims)

    def axes(self) -> list[int]:
        """The second argument, `dim`: one axis or several; all of them without it."""
        given = self.arg(1, "dim")
        given = [given] if isinstance(given, int) else given
        return [axis % self.args[0].dim() for axis in given or range(self.args[0].dim())]


Write = Callable[[Call], str | list[str]]


def _one(kind: str) -> Write:
    """An operation of one tensor that ONNX has too."""
    return lambda call: call.node(kind, [call.name(0)])


def _two(kind: str, call: Call) -> str:
    """An operation of two tensors or numbers, of which one broadcasts."""
    a, b = call.args[:2]
    dtype = torch.result_type(a, b)
    right = call.operand(b, dtype)
    alpha = call.kwargs.get("alpha", 1)
    if alpha != 1:
        right = call.node("Mul", [right, call.graph.number(alpha, dtype)])
    return call.node(kind, [call.operand(a, dtype), right])


def _not_equal(call: Call) -> str:
    return call.node("Not", [_two("Equal", call)])


def _divided(call: Call) -> str:
    return call.node("Div", [call.operand(value, call.result.dtype) for value in call.args[:2]])


def _reversed_difference(call: Call) -> str:
    a, b = call.args[:2]
    dtype = torch.result_type(a, b)
    return call.node("Sub", [call.operand(b, dtype), call.operand(a, dtype)])


def _product(call: Call, bias: Tensor | None, a: Tensor, b: Tensor) -> str:
    graph = call.graph
    original = graph.root.transposed.get(id(b))
    names = [graph.name(a), graph.name(b if original is None else original)]
    names += [] if bias is None else [graph.name(bias)]
    return graph.node("Gemm", names, transB=int(original is not None))


def _mm(call: Call) -> str:
    return _product(call, None, *call.args)


def _addmm(call: Call) -> str:
    return _product(call, *call.args)


def _bmm(call: Call) -> str:
    return call.node("MatMul", [call.name(0), call.name(1)])


def _reshape(call: Call) -> str:
    """Any view of the same numbers."""
    shape = list(call.result.shape)
    varying = [place for place, size in enumerate(shape) if call.graph.varies(size)]
    if len(varying) == 1:
        shape[varying[0]] = -1
        return call.node("Reshape", [call.name(0), call.graph.numbers(shape)])
    return call.node("Reshape", [call.name(0), call.graph.shape(shape)])


def _expand(call: Call) -> str:
    return call.node("Expand", [call.name(0), call.graph.shape(call.result.shape)])


def _transpose(call: Call) -> str:
    order = list(range(call.args[0].dim()))
    a, b = (0, len(order) - 1) if len(call.args) == 1 else (call.axis(1), call.axis(2))
    order[a], order[b] = order[b], order[a]
    return call.node("Transpose", [call.name(0)], perm=order)


def _permute(call: Call) -> str:
    return call.node("Transpose", [call.name(0)], perm=call.axes())


def _cat(call: Call) -> str:
    tensors = call.args[0]
    axis = int(call.arg(1, "dim", 0)) % tensors[0].dim()
    names = [call.operand(tensor, call.result.dtype) for tensor in tensors]
    return call.node("Concat", names, axis=axis)


def _stack(call: Call) -> str:
    tensors = call.args[0]
    axis = int(call.arg(1, "dim", 0)) % call.result.dim()
    where = call.graph.numbers([axis])
    names = [call.node("Unsqueeze", [call.graph.name(x), where]) for x in tensors]
    return call.node("Concat", names, axis=axis)


def _split(call: Call) -> list[str]:
    axis = call.axis(2)
    sizes = [part.shape[axis] for part in call.result]
    if len(sizes) == 1:
        return [call.node("Identity", [call.name(0)])]
    names = [call.name(0), call.graph.shape(sizes)]
    return call.graph.outputs("Split", names, len(sizes), axis=axis)


def _unbind(call: Call) -> list[str]:
    axis = call.axis(1)
    return [
        call.node("Gather", [call.name(0), call.graph.number(place, torch.int64)], axis=axis)
        for place in range(len(call.result))
    ]


def _slice(call: Call) -> str:
    axis, size = call.axis(1), call.args[0].shape[call.axis(1)]
    start, end = call.arg(2, "start", 0) or 0, call.arg(3, "end")
    step = call.arg(4, "step", 1)
    if call.result.shape == call.args[0].shape and step == 1:
        return call.name(0)
    end = LARGEST_SIZE if end is None or end >= size else end

    def bound(number: int) -> str:
        graph = call.graph
        return graph.size(number) if graph.varies(number) else graph.numbers([number])

    where = [bound(start), bound(end), call.graph.numbers([axis]), call.graph.numbers([step])]
    return call.node("Slice", [call.name(0), *where])


def _select(call: Call) -> str:
    axis, place = call.axis(1), call.args[2]
    place = place - call.args[0].shape[axis] if place == call.args[0].shape[axis] - 1 else place
    index = call.graph.number(place, torch.int64)
    return call.node("Gather", [call.name(0), index], axis=axis)


def _unsqueeze(call: Call) -> str:
    axis = call.args[1] % call.result.dim()
    return call.node("Unsqueeze", [call.name(0), call.graph.numbers([axis])])


def _squeeze(call: Call) -> str:
    given = call.args[0]
    axes = range(given.dim()) if len(call.args) == 1 else call.axes()
    ones = [axis for axis in axes if given.shape[axis] == 1]
    if not ones:
        return call.name(0)
    return call.node("Squeeze", [call.name(0), call.graph.numbers(ones)])


def _embedding(call: Call) -> str:
    return call.node("Gather", [call.name(0), call.name(1)], axis=0)


def _gather(call: Call) -> str:
    names = [call.name(0), call.name(2)]
    return call.node("GatherElements", names, axis=call.axis(1))


def _index_select(call: Call) -> str:
    return call.node("Gather", [call.name(0), call.name(2)], axis=call.axis(1))


def _index(call: Call) -> str:
    """x[i], x[:, i] and x[i, j], with tensors of indices."""
    graph, places = call.graph, list(call.args[1])
    used = [axis for axis, index in enumerate(places) if index is not None]
    if len(used) == 1:
        index = graph.name(places[used[0]])
        return graph.node("Gather", [call.name(0), index], axis=used[0])
    assert used == list(range(len(used)))
    shape = np.broadcast_shapes(*(tuple(index.shape) for index in places))
    columns = []
    for index in places:
        wide = graph.node("Expand", [graph.name(index), graph.shape(shape)])
        columns.append(graph.node("Unsqueeze", [wide, graph.numbers([-1])]))
    joined = graph.node("Concat", columns, axis=-1)
    return graph.node("GatherND", [call.name(0), joined])


def _reduce(kind: str, call: Call) -> str:
    keep = bool(call.arg(2, "keepdim", False))
    given = call.args[0]
    name = call.name(0)
    wanted = call.result.dtype
    if given.dtype != wanted:
        name = call.cast(name, wanted)
    return call.node(kind, [name, call.graph.numbers(call.axes())], keepdims=int(keep))


def _arg_max(call: Call) -> str:
    keep = bool(call.arg(2, "keepdim", False))
    return call.node("ArgMax", [call.name(0)], axis=call.axis(1), keepdims=int(keep))


def _max(call: Call) -> str | list[str]:
    """The largest number, or the largest numbers along an axis, and where they are."""
    if len(call.args) == 1:
        return call.node("ReduceMax", [call.name(0)], keepdims=0)
    keep, axis = int(bool(call.arg(2, "keepdim", False))), call.axis(1)
    most = call.node("ReduceMax", [call.name(0), call.graph.numbers([axis])], keepdims=keep)
    return [most, call.node("ArgMax", [call.name(0)], axis=axis, keepdims=keep)]


def _log_sum_exp(call: Call) -> str:
    return _reduce("ReduceLogSumExp", call)


def _log_add_exp(call: Call) -> str:
    graph, (a, b) = call.graph, call.args
    most = graph.node("Max", [call.name(0), call.name(1)])
    terms = [graph.node("Exp", [graph.node("Sub", [graph.name(x), most])]) for x in (a, b)]
    return graph.node("Add", [most, graph.node("Log", [graph.node("Add", terms)])])


def _softmax(kind: str, call: Call) -> str:
    name = call.operand(call.args[0], call.result.dtype)
    return call.node(kind, [name], axis=call.axis(1))


def _log_sigmoid(call: Call) -> str:
    return call.node("Neg", [call.node("Softplus", [call.node("Neg", [call.name(0)])])])


def _silu(call: Call) -> str:
    gate = call.node("Sigmoid", [call.name(0)])
    return call.node("Mul", [call.name(0), gate])


def _expm1(call: Call) -> str:
    one = call.graph.number(1.0, call.result.dtype)
    return call.node("Sub", [call.node("Exp", [call.name(0)]), one])


def _clamp(call: Call) -> str:
    given = call.args[0]
    ends = [call.arg(1, "min"), call.arg(2, "max")]
    names = ["" if end is None else call.graph.number(end, given.dtype) for end in ends]
    return call.node("Clip", [call.name(0), *names])


def _lerp(call: Call) -> str:
    graph = call.graph
    a, b, weight = (call.name(place) for place in range(3))
    moved = graph.node("Mul", [weight, graph.node("Sub", [b, a])])
    return graph.node("Add", [a, moved])


def _where(call: Call) -> str:
    condition, *values = call.args
    names = [call.operand(value, call.result.dtype) for value in values]
    return call.node("Where", [call.graph.name(condition), *names])


def _masked_fill(call: Call) -> str:
    filling = call.operand(call.args[2], call.result.dtype)
    return call.node("Where", [call.name(1), filling, call.name(0)])


def _layer_norm(call: Call) -> str:
    given, shape, weight, bias, epsilon = call.args[:5]
    graph = call.graph
    scale = graph.name(torch.ones(tuple(shape)) if weight is None else weight)
    names = [graph.name(given), scale, *([] if bias is None else [graph.name(bias)])]
    axis = given.dim() - len(shape)
    return graph.node("LayerNormalization", names, axis=axis, epsilon=epsilon)


def _convolution(call: Call) -> str:
    given, weight, bias, stride, padding, dilation, _, _, groups = call.args[:9]
    names = [call.graph.name(x) for x in (given, weight, bias) if x is not None]
    return call.node(
        "Conv",
        names,
        kernel_shape=list(weight.shape[2:]),
        strides=list(stride),
        pads=[*padding, *padding],
        dilations=list(dilation),
        group=groups,
    )


def _flip(call: Call) -> str:
    graph, axes = call.graph, call.axes()
    ends = [graph.numbers([value] * len(axes)) for value in (-1, -LARGEST_SIZE, -1)]
    names = [call.name(0), ends[0], ends[1], graph.numbers(axes), ends[2]]
    return graph.node("Slice", names)


def _copy_as(call: Call) -> str:
    dtype = call.result.dtype
    if dtype == call.args[0].dtype:
        return call.name(0)
    return call.cast(call.name(0), dtype)


def _arange(call: Call) -> str:
    """0, 1, ... below a size."""
    graph = call.graph
    given = [value for value in call.args if isinstance(value, int)]
    start, end = (0, given[0]) if len(given) == 1 else given[:2]
    ends = [
        graph.node("Squeeze", [graph.size(number)])
        if graph.varies(number)
        else graph.number(number, torch.int64)
        for number in (start, end)
    ]
    name = graph.node("Range", [*ends, graph.number(1, torch.int64)])
    return name if call.result.dtype == torch.int64 else call.cast(name, call.result.dtype)


def _filled(value: int | float | None, call: Call) -> str:
    """A tensor of one number; None: the one that the call gives."""
    from onnx import helper

    dtype = call.result.dtype
    if value is None:
        value = next(
            x for x in reversed(call.args) if isinstance(x, (int, float)) and x is not None
        )
    whole = int(value) if not dtype.is_floating_point else float(value)
    tensor = helper.make_tensor("value", element_type(dtype), [1], [whole])
    shape = call.graph.shape(call.result.shape)
    return call.node("ConstantOfShape", [shape], value=tensor)


def _same(call: Call) -> str:
    return call.name(0)


OPERATORS: Mapping[str, Write] = {
    **{
        name: _one(kind)
        for name, kind in {
            "abs": "Abs",
            "bitwise_not": "Not",
            "ceil": "Ceil",
            "exp": "Exp",
            "floor": "Floor",
            "log": "Log",
            "logical_not": "Not",
            "neg": "Neg",
            "relu": "Relu",
            "sigmoid": "Sigmoid",
            "softplus": "Softplus",
            "sqrt": "Sqrt",
            "tanh": "Tanh",
        }.items()
    },
    **{
        name: partial(_two, kind)
        for name, kind in {
            "add": "Add",
            "bitwise_and": "And",
            "bitwise_or": "Or",
            "eq": "Equal",
            "ge": "GreaterOrEqual",
            "gt": "Greater",
            "le": "LessOrEqual",
            "logical_and": "And",
            "lt": "Less",
            "maximum": "Max",
            "minimum": "Min",
            "mul": "Mul",
            "sub": "Sub",
        }.items()
    },
    **{
        name: partial(_reduce, kind)
        for name, kind in {"amax": "ReduceMax", "mean": "ReduceMean", "sum": "ReduceSum"}.items()
    },
    **dict.fromkeys(("_reshape_alias", "_unsafe_view", "reshape", "view"), _reshape),
    **dict.fromkeys(("_to_copy", "to"), _copy_as),
    **dict.fromkeys(("alias", "clone", "detach", "lift_fresh"), _same),
    **dict.fromkeys(("split", "split_with_sizes"), _split),
    **dict.fromkeys(("t", "transpose"), _transpose),
    **dict.fromkeys(("full", "full_like", "new_full"), partial(_filled, None)),
    **dict.fromkeys(("zeros", "zeros_like", "new_zeros"), partial(_filled, 0)),
    **dict.fromkeys(("ones", "ones_like", "new_ones"), partial(_filled, 1)),
    "_log_softmax": partial(_softmax, "LogSoftmax"),
    "_softmax": partial(_softmax, "Softmax"),
    "addmm": _addmm,
    "arange": _arange,
    "argmax": _arg_max,
    "bmm": _bmm,
    "cat": _cat,
    "clamp": _clamp,
    "convolution": _convolution,
    "div": _divided,
    "embedding": _embedding,
    "expand": _expand,
    "expm1": _expm1,
    "flip": _flip,
    "gather": _gather,
    "index": _index,
    "index_select": _index_select,
    "lerp": _lerp,
    "log_sigmoid_forward": _log_sigmoid,
    "logaddexp": _log_add_exp,
    "logsumexp": _log_sum_exp,
    "masked_fill": _masked_fill,
    "max": _max,
    "mm": _mm,
    "native_layer_norm": _layer_norm,
    "ne": _not_equal,
    "permute": _permute,
    "rsub": _reversed_difference,
    "select": _select,
    "silu": _silu,
    "slice": _slice,
    "squeeze": _squeeze,
    "stack": _stack,
    "unbind": _unbind,
    "unsqueeze": _unsqueeze,
    "where": _where,
}
