"""Record what a network computes as an ONNX graph.

The network runs once, on examples; each operation of torch that depends on an input becomes a node
(`operators.py`), and everything else is a constant. A recurrent layer becomes a Scan: its cell is
recorded for one step, so that any cell, join and output layer can be converted and a sequence may
have any length.

Sizes that vary, such as the batch, are prime numbers in the examples that divide no size of
the network. A number that one of them divides is computed from the shapes of the inputs.

T time steps, B batch, G columns computed from the input.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from elman.base.errors import ElmanError
from elman.nn.along_time import LOOP, Step, carry_along, loop
from elman.nn.layer import RecurrentLayer
from elman.nn.state import State

OPSET = 18
LARGEST_SIZE = 1 << 31
"""Larger numbers are no sizes: torch's mark for "up to the end", for example."""


SMALLEST_PRIME = 11
MOST_SIZES = 8
"""Sizes of a function that vary, at most."""
REPORT_IT = "keep the run folder, and report the settings in its config.json"
"""The hint for models that cannot be converted to ONNX."""
DECISIONS = ("_local_scalar_dense", "all")
"""Operations from tensors to numbers, by which Python decides what to compute. What it decides for
the examples holds for the graph; `files.difference` checks it."""


@dataclass(frozen=True)
class Input:
    """An input of a graph."""

    name: str
    sizes: tuple[int | str, ...]
    """Its shape: a number, or the name of a size that varies."""
    dtype: torch.dtype = torch.float32
    limit: int = 2
    """Ids are below it."""


@dataclass(frozen=True)
class Function:
    """What becomes a graph: a function of tensors, by name, in a module."""

    name: str
    module: nn.Module
    inputs: Sequence[Input]
    call: Callable[[dict[str, Tensor]], Mapping[str, Tensor]]
    lengths: Mapping[str, str] | None = None
    """For inputs with the lengths of rows: the size that is their limit."""

    def examples(self, sizes: Mapping[str, int], seed: int = 0) -> dict[str, Tensor]:
        """Random inputs; of lengths, the first is the longest."""
        generator = torch.Generator().manual_seed(seed)
        found = {}
        for one in self.inputs:
            shape = [size if isinstance(size, int) else sizes[size] for size in one.sizes]
            if self.lengths is not None and one.name in self.lengths:
                most = sizes[self.lengths[one.name]]
                value = torch.randint(1, most + 1, shape, generator=generator)
                value[0] = most
            elif one.dtype.is_floating_point:
                # Away from 0, as the divisors among the parts of a state are.
                value = torch.rand(shape, generator=generator, dtype=one.dtype) * 0.9 + 0.1
            elif one.dtype == torch.bool:  # a mask: the first row is whole
                value = torch.rand(shape, generator=generator) < 0.7
                value[0] = True
                value[:, 0] = True
            else:
                value = torch.randint(0, one.limit, shape, generator=generator).to(one.dtype)
            found[one.name] = value
        return found

    def sizes(self, values: Callable[[int], int]) -> dict[str, int]:
        """A value for each size that varies, from its number."""
        names = dict.fromkeys(s for one in self.inputs for s in one.sizes if isinstance(s, str))
        return {name: values(number) for number, name in enumerate(names)}


class Graph:
    """The nodes of a graph or, in a Scan, of its body."""

    def __init__(self, root: Graph | None = None) -> None:
        self.root = self if root is None else root
        self.nodes: list[Any] = []
        self.names: dict[int, str] = {}
        """The names of recorded tensors, by identity."""
        self.kept: list[Tensor] = []
        """All tensors with a name, so that no identity is used twice."""
        if root is None:
            self.constants: dict[int, str] = {}
            self.initializers: dict[str, Tensor] = {}
            self.transposed: dict[int, Tensor] = {}
            """Transposed views of constants, and the constants."""
            self.weights: dict[int, str] = {}
            self.sizes: dict[int, tuple[str, int]] = {}
            """For each prime, an input and an axis that has this size."""
            self.vectors: dict[int, str] = {}
            """Names of sizes, as vectors of one number."""
            self.count = 0

    def new_name(self, stem: str) -> str:
        self.root.count += 1
        return f"{stem}_{self.root.count}"

    def bind(self, tensor: Tensor, name: str) -> str:
        self.names[id(tensor)] = name
        self.kept.append(tensor)
        return name

    def is_recorded(self, tensor: Tensor) -> bool:
        return id(tensor) in self.names or (self.root is not self and self.root.is_recorded(tensor))

    def name(self, tensor: Tensor) -> str:
        """The name of a tensor; one that depends on no input becomes a constant."""
        found = self.names.get(id(tensor)) or self.root.names.get(id(tensor))
        return found or self.constant(tensor)

    def constant(self, tensor: Tensor) -> str:
        root = self.root
        if id(tensor) not in root.constants:
            if any(self.varies(size) for size in tensor.shape):
                raise ElmanError(
                    "a part of the model depends on its input in a way that ONNX cannot follow",
                    REPORT_IT,
                )
            name = root.weights.get(id(tensor)) or self.new_name("constant")
            root.constants[id(tensor)] = name
            root.initializers[name] = tensor.detach()
            root.kept.append(tensor)
        return root.constants[id(tensor)]

    def number(self, value: int | float, dtype: torch.dtype) -> str:
        return self.constant(torch.tensor(value, dtype=dtype))

    def numbers(self, values: Sequence[int]) -> str:
        return self.constant(torch.tensor(values, dtype=torch.int64))

    def node(self, kind: str, inputs: Sequence[str], **attributes: Any) -> str:
        """Add a node; return the name of its output."""
        (name,) = self.outputs(kind, inputs, 1, **attributes)
        return name

    def outputs(
        self, kind: str, inputs: Sequence[str], number: int, **attributes: Any
    ) -> list[str]:
        """Add a node with some outputs; return their names."""
        from onnx import helper

        names = [self.new_name(kind.lower()) for _ in range(number)]
        self.nodes.append(helper.make_node(kind, inputs, names, name=names[0], **attributes))
        return names

    # Sizes that vary

    def varies(self, number: Any) -> bool:
        return (
            isinstance(number, int)
            and 0 < number < LARGEST_SIZE
            and any(number % prime == 0 for prime in self.root.sizes)
        )

    def size(self, number: int) -> str:
        """The name of a vector with one size."""
        root = self.root
        if number not in root.vectors:
            rest, parts = number, []
            for prime, (name, axis) in root.sizes.items():
                while rest % prime == 0:
                    rest //= prime
                    parts.append(root.node("Shape", [name], start=axis, end=axis + 1))
            parts += [root.numbers([rest])] if rest != 1 or not parts else []
            product = parts[0]
            for part in parts[1:]:
                product = root.node("Mul", [product, part])
            root.vectors[number] = product
        return root.vectors[number]

    def shape(self, sizes: Sequence[int]) -> str:
        """The name of a shape."""
        if not any(map(self.varies, sizes)):
            return self.numbers(sizes)
        return self.node("Concat", [self.size(size) for size in sizes], axis=0)


class Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records operations into `graph`, the body of a Scan while its cell runs."""

    def __init__(self, graph: Graph) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.graph = graph
        self.paused = False

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Never import torch's compiler, which takes seconds: nothing is compiled here."""
        return False

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        from elman.nn.onnx.operators import OPERATORS, Call

        result = function(*args, **(kwargs or {}))
        if self.paused:
            return result
        leaves = list(_leaves([*args, *(kwargs or {}).values()]))
        graph = self.graph
        depends = any(isinstance(x, Tensor) and graph.is_recorded(x) for x in leaves)
        if not depends and not any(map(graph.varies, leaves)):
            return self._constant(function, args, result)
        kind = function.overloadpacket.__name__
        if kind in DECISIONS:
            return result
        write = OPERATORS.get(kind)
        if write is None:
            raise ElmanError(
                f"the operation {kind} of this model cannot be converted to ONNX", REPORT_IT
            )
        names = write(Call(graph, args, kwargs or {}, result))
        for tensor, name in zip(
            [result] if isinstance(result, Tensor) else result,
            [names] if isinstance(names, str) else names,
            strict=False,
        ):
            graph.bind(tensor, name)
        return result

    def _constant(self, function: Any, args: Any, result: Any) -> Any:
        """Remember the transpose of a matrix: it needs no memory of its own."""
        if function.overloadpacket.__name__ == "t" and args[0].dim() == 2:
            self.graph.root.transposed[id(result)] = args[0]
            self.graph.root.kept.append(result)
        return result

    @contextmanager
    def pausing(self) -> Iterator[None]:
        self.paused = True
        try:
            yield
        finally:
            self.paused = False

    def scan(
        self,
        body: Step,
        carried: Sequence[Tensor],
        scanned: Sequence[Tensor],
    ) -> tuple[list[Tensor], list[Tensor]]:
        """`carry_along` as one node."""
        from onnx import helper

        outer, inner = self.graph, Graph(self.graph.root)
        with self.pausing():
            firsts = [tensor.clone() for tensor in [*carried, *(rows[0] for rows in scanned)]]
        entering = [inner.bind(tensor, inner.new_name("step")) for tensor in firsts]
        self.graph = inner
        after, outputs = body(firsts[: len(carried)], firsts[len(carried) :])
        leaving = [inner.node("Identity", [inner.name(x)]) for x in [*after, *outputs]]
        self.graph = outer

        def values(names: Sequence[str], tensors: Sequence[Tensor]) -> list[Any]:
            return [
                helper.make_tensor_value_info(name, element_type(tensor.dtype), None)
                for name, tensor in zip(names, tensors, strict=True)
            ]

        graph = helper.make_graph(
            inner.nodes,
            outer.new_name("body"),
            values(entering, firsts),
            values(leaving, [*after, *outputs]),
        )
        with self.pausing():
            state, found = loop(body, carried, scanned)
            results = [*state, *found]
        given = [outer.name(x) for x in [*carried, *scanned]]
        names = outer.outputs("Scan", given, len(results), body=graph, num_scan_inputs=len(scanned))
        for tensor, name in zip(results, names, strict=True):
            outer.bind(tensor, name)
        return results[: len(carried)], results[len(carried) :]


class _FlatProducts(TorchFunctionMode):
    """Computes W x + b of many vectors as one product of matrices."""

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if function is F.linear and args[0].dim() > 2:
            inputs = args[0]
            outputs = F.linear(inputs.flatten(0, -2), *args[1:], **(kwargs or {}))
            return outputs.unflatten(0, inputs.shape[:-1])
        return function(*args, **(kwargs or {}))


def element_type(dtype: torch.dtype) -> int:
    from onnx import helper

    array = torch.empty(0, dtype=dtype).numpy()
    return int(helper.np_dtype_to_tensor_dtype(array.dtype))


def record(function: Function) -> tuple[Graph, list[Any], list[Any]]:
    """Record a function; return its graph, and the descriptions of its inputs and outputs."""
    from onnx import helper

    graph = Graph()
    tensors = [*function.module.named_parameters(), *function.module.named_buffers()]
    graph.weights = {id(tensor): name for name, tensor in tensors}
    ids = [one for one in function.inputs if not one.dtype.is_floating_point]
    fixed = [size for one in ids for size in one.sizes if isinstance(size, int)]
    taken = [size for _, tensor in tensors for size in tensor.shape]
    sizes = function.sizes(_primes(taken, above=max(fixed, default=0)))
    graph.sizes = {
        prime: next(
            (one.name, one.sizes.index(name)) for one in function.inputs if name in one.sizes
        )
        for name, prime in sizes.items()
    }
    examples = function.examples(sizes)
    for name, tensor in examples.items():
        graph.bind(tensor, name)
    recorder = Recorder(graph)
    module = function.module
    with plain_torch(module), _as_scans(module, recorder), _FlatProducts(), recorder:
        results = function.call(dict(examples))
    outputs = []
    for name, tensor in results.items():
        graph.nodes.append(helper.make_node("Identity", [graph.name(tensor)], [name], name=name))
        shape = [_size_name(size, sizes) for size in tensor.shape]
        outputs.append(helper.make_tensor_value_info(name, element_type(tensor.dtype), shape))
    inputs = [
        helper.make_tensor_value_info(one.name, element_type(one.dtype), list(one.sizes))
        for one in function.inputs
    ]
    return graph, inputs, outputs


def _size_name(size: int, sizes: Mapping[str, int]) -> int | str | None:
    names = {prime: name for name, prime in sizes.items()}
    if size in names:
        return names[size]
    return None if any(size % prime == 0 for prime in names) else size


def _primes(taken: Sequence[int], above: int) -> Callable[[int], int]:
    """Primes that divide none of the sizes `taken`, by number, beginning after `above`, the fixed
    length of sequences: no window over them has such a size."""
    found: list[int] = []
    candidate = max(SMALLEST_PRIME, above + 1)
    while len(found) < MOST_SIZES:
        is_prime = all(candidate % n for n in range(2, int(candidate**0.5) + 1))
        if is_prime and not any(size and size % candidate == 0 for size in set(taken)):
            found.append(candidate)
        candidate += 1
    return found.__getitem__


@contextmanager
def plain_torch(module: nn.Module) -> Iterator[None]:
    """Let torch compute everything, and no compiled kernel, which could not be recorded."""
    trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
    layers = [layer for layer in module.modules() if isinstance(layer, RecurrentLayer)]
    kernels = [layer.kernel for layer in layers]
    for parameter in trained:
        parameter.requires_grad_(False)
    for layer in layers:
        layer.kernel = "reference"
    try:
        with torch.enable_grad():  # without gradients, output layers use compiled code
            yield
    finally:
        for parameter in trained:
            parameter.requires_grad_(True)
        for layer, kernel in zip(layers, kernels, strict=True):
            layer.kernel = kernel


@contextmanager
def _as_scans(module: nn.Module, recorder: Recorder) -> Iterator[None]:
    """Let recurrent layers run step by step, and let each loop along time be one node."""
    changed = []
    for layer in module.modules():
        if isinstance(layer, RecurrentLayer):
            layer.__dict__["forward"] = partial(_carry, layer)
            layer.__dict__["step"] = layer.cell.forward
            changed.append(layer)
    token = LOOP.set(recorder.scan)
    try:
        yield
    finally:
        LOOP.reset(token)
        for layer in changed:
            del layer.__dict__["forward"], layer.__dict__["step"]


def _carry(
    layer: RecurrentLayer,
    inputs_BTI: Tensor,
    state: State | None = None,
    lengths_B: Tensor | None = None,
) -> tuple[Tensor, State]:
    """`RecurrentLayer.forward` as a Scan."""
    cell = layer.cell
    if state is None:
        state = layer.initial_state(inputs_BTI.shape[0])
    parts = list(state)
    projected_TBG = cell.project(layer.turned(inputs_BTI, lengths_B).transpose(0, 1))
    scanned = [projected_TBG]
    if lengths_B is not None:
        time_T1 = torch.arange(inputs_BTI.shape[1]).unsqueeze(1)
        scanned.append((time_T1 < lengths_B).unsqueeze(2))

    def step(carried: list[Tensor], rows: list[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        before = State(dict(zip(parts, carried, strict=True)))
        output, after = cell.step(rows[0], before)
        new = [after.tensor(part) for part in parts]
        if lengths_B is not None:
            real = rows[1]
            output = torch.where(real, output, torch.zeros_like(output))
            new = [torch.where(real, a, b) for a, b in zip(new, carried, strict=True)]
        return new, [output]

    last, (outputs_TBP,) = carry_along(step, [state.tensor(part) for part in parts], scanned)
    outputs_BTP = layer.turned(outputs_TBP.transpose(0, 1), lengths_B)
    return outputs_BTP, State(dict(zip(parts, last, strict=True)))


def _leaves(values: Sequence[Any]) -> Iterator[Any]:
    for value in values:
        if isinstance(value, (list, tuple)):
            yield from _leaves(value)
        else:
            yield value
