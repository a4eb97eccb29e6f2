"""Compiled loops that run on torch's own thread pool (its OpenMP threads).

After each operation torch's threads spin while they wait for the next one, so threads of our own
would compete with them for the cores. A pooled loop runs on the same threads: it is handed to
OpenMP as a C function (`GOMP_parallel`, which every OpenMP for Linux has). The team has all of
torch's threads, also where there are fewer parts: those without a part have nothing to do. Decoding
one stream or a few (`model_step.py`) is the exception.

    @pooled_loop
    def scale(rows: Floats2, factors: Floats1, first: int, last: int) -> None:
        for row in range(first, last):
            rows[row] *= factors[row]

    scale(num_rows=len(rows), num_parts=4, rows=rows, factors=factors)

Arguments are passed by name in one record (address and sizes of each array). A name that is missing
or unknown, a wrong dtype or a wrong number of axes raises before anything runs. A loop that takes
`first` and `last` is called once for each part of the rows; any other is called once by each thread
and divides the work itself (`thread_number`, `team_size`, `barrier`). `num_parts` and `part` are
also available as parameters.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from inspect import signature, unwrap
from typing import Annotated, Any, get_type_hints

import numpy as np
import torch
from torch import Tensor

from elman.nn.kernels import mkl
from elman.nn.kernels.loops import Array, compiled, inlined, numba, with_cache

thread_number = mkl.external("omp_get_thread_num", "int32")
team_size = mkl.external("omp_get_num_threads", "int32")
barrier = mkl.external("GOMP_barrier", "void")
"""Wait until all threads of the team are here."""


@dataclass(frozen=True)
class Field:
    """The dtype and number of axes of an array that a loop takes."""

    dtype: Any
    num_axes: int
    packed: bool = False


Floats1 = Annotated[Any, Field(np.dtype(np.float32), 1)]
Floats2 = Annotated[Any, Field(np.dtype(np.float32), 2)]
Floats3 = Annotated[Any, Field(np.dtype(np.float32), 3)]
Halves2 = Annotated[Any, Field(np.dtype(np.uint16), 2)]
Halves3 = Annotated[Any, Field(np.dtype(np.uint16), 3)]
"""bfloat16, which loops see as the upper half of the bits of a float32."""
Doubles2 = Annotated[Any, Field(np.dtype(np.float64), 2)]
Int64s = Annotated[Any, Field(np.dtype(np.int64), 1)]
Int64s2 = Annotated[Any, Field(np.dtype(np.int64), 2)]
Packed = Annotated[Any, Field(np.dtype(np.float32), 1, packed=True)]
"""A matrix packed for products with the rows of a part. The caller passes two tensors, packed for
the smaller and for the larger number of rows; the loop gets the one that fits its part."""


class Records(Field):
    """An array of numpy records of whole numbers: the loop reads `array[i].name`."""

    def __init__(self, *names: str) -> None:
        super().__init__(np.dtype([(name, np.int64) for name in names], align=True), 1)


def _address_to_pointer(context: Any, address: Any) -> Any:
    """For numba: the type of the function `_pointer`, and its machine code."""

    def cast(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], context.get_value_type(numba.types.voidptr))

    return numba.types.voidptr(numba.types.int64), cast


_pointer: Any = None
if numba is not None:
    _pointer = import_module("numba.extending").intrinsic(unwrap(_address_to_pointer))


@inlined
def view(address: int, shape: Any, dtype: Any) -> Array:
    """The array at an address, inside a compiled loop."""
    return numba.carray(_pointer(address), shape, dtype)


_RESERVED = ("part", "num_parts", "first", "last")


class PooledLoop:
    """A compiled loop with named arguments. It is compiled, and cached, at its first call."""

    def __init__(self, function: Callable[..., None]) -> None:
        self.function = unwrap(function)  # the test run wraps functions to check shapes
        self.name = self.function.__name__

    def __call__(
        self, *, num_rows: int, num_parts: int, num_threads: int | None = None, **arguments: Any
    ) -> None:
        """Run the loop over `num_rows` rows in `num_parts` parts, on all of torch's threads.

        One part runs on the calling thread. `num_threads` asks for a team of another size, which
        slows down the next loop with the usual one: GOMP ends threads that a smaller team leaves
        out, and starts others later, for which oneDNN has to generate its code again. A decoding
        step asks for as many threads as its weights are worth waking (`step_parts` in
        `cpu_planner.py`): it does little else, and its threads meet after each layer.
        """
        if arguments.keys() != self.fields.keys():
            raise self._misnamed(arguments)
        values = [num_rows, num_parts]
        for name, field in self.fields.items():
            value = arguments[name]
            if field is None:
                values.append(value)
            elif field.packed:
                for own, tensor in zip((name, f"{name}_larger"), value, strict=True):
                    values += _address_and_sizes(self.name, own, field, tensor)
            else:
                values += _address_and_sizes(self.name, name, field, value)
        record = self.record(*values)
        team = 1 if num_parts == 1 else num_threads or torch.get_num_threads()
        entry = ctypes.c_void_p(self.for_c.address)
        mkl.library().GOMP_parallel(entry, ctypes.byref(record), team, 0)

    def _misnamed(self, arguments: Mapping[str, Any]) -> TypeError:
        if missing := [name for name in self.fields if name not in arguments]:
            return TypeError(f"the loop {self.name} needs {', '.join(missing)}")
        unknown = next(name for name in arguments if name not in self.fields)
        return TypeError(f"the loop {self.name} takes no '{unknown}'")

    @cached_property
    def fields(self) -> dict[str, Field | None]:
        """The arguments that a caller passes by name; None for whole numbers."""
        hints = get_type_hints(self.function, include_extras=True)
        return {
            name: next(iter(getattr(hints[name], "__metadata__", ())), None)
            for name in signature(self.function).parameters
            if name not in _RESERVED
        }

    @cached_property
    def record(self) -> type[ctypes.Structure]:
        """The record that carries the arguments: numbers, addresses and sizes, by name."""
        names = ["num_rows", "num_parts"]
        for name, field in self.fields.items():
            names.append(name)
            if field is not None:
                names += [f"{name}_{axis}" for axis in range(field.num_axes)]
                if field.packed:
                    names += [f"{name}_larger", f"{name}_larger_0"]
        layout = [(name, ctypes.c_int64) for name in names]
        return type(f"{self.name}_record", (ctypes.Structure,), {"_fields_": layout})

    @cached_property
    def for_c(self) -> Any:
        """The compiled function, which C code can call by its address."""
        mkl.bind()
        # Numba caches by file, name and line. The entry takes the loop's file and a name of its
        # own; `with_cache` notices changes of the sources.
        code = compile(self._entry_source(), self.function.__code__.co_filename, "exec")
        known: dict[str, Any] = {
            **{f"{name}_dtype": field.dtype for name, field in self.fields.items() if field},
            "view": view,
            "carray": numba.carray,
            "loop": compiled(self.function),
            "thread_number": thread_number,
            "team_size": team_size,
            "__name__": self.function.__module__,
        }
        exec(code, known)
        entry = known[f"{self.name}_entry"]
        record = numba.from_dtype(np.dtype(self.record))
        c_signature = numba.types.void(numba.types.CPointer(record))
        return with_cache(lambda on: numba.cfunc(c_signature, cache=on)(entry))

    def _entry_source(self) -> str:
        """Python text of a function that reads the record and calls the loop."""
        lines = [f"def {self.name}_entry(pointer):", "    record = carray(pointer, (1,))[0]"]
        for name, field in self.fields.items():
            if field is None:
                lines.append(f"    {name} = record.{name}")
                continue
            for own in [name, f"{name}_larger"] if field.packed else [name]:
                sizes = "".join(f"record.{own}_{axis}, " for axis in range(field.num_axes))
                lines.append(f"    {own} = view(record.{own}, ({sizes}), {name}_dtype)")
        lines.append("    num_parts = record.num_parts")
        parameters = list(signature(self.function).parameters)
        if "first" not in parameters:
            return "\n".join([*lines, f"    loop({', '.join(parameters)})", ""])
        chosen = [
            f"{name} if is_smaller else {name}_larger" if field and field.packed else name
            for name, field in ((name, self.fields.get(name)) for name in parameters)
        ]
        lines += [
            "    num_rows = record.num_rows",
            "    for part in range(thread_number(), num_parts, team_size()):",
            "        first = num_rows * part // num_parts",
            "        last = num_rows * (part + 1) // num_parts",
            "        is_smaller = last - first == num_rows // num_parts",
            f"        loop({', '.join(chosen)})",
        ]
        return "\n".join([*lines, ""])


def _address_and_sizes(loop: str, name: str, field: Field, array: Any) -> tuple[int, ...]:
    if isinstance(array, Tensor):
        dtype, address, contiguous = _DTYPES[array.dtype], array.data_ptr(), array.is_contiguous()
    else:
        dtype, address, contiguous = array.dtype, array.ctypes.data, array.flags.c_contiguous
    shape = array.shape
    if dtype != field.dtype or len(shape) != field.num_axes or not contiguous:
        raise TypeError(
            f"'{name}' of the loop {loop} is a contiguous array of {field.num_axes} axes and "
            f"{field.dtype}, not {tuple(shape)} of {dtype}{'' if contiguous else ' with gaps'}"
        )
    return address, *shape


_DTYPES = {
    torch.float32: np.dtype(np.float32),
    torch.float64: np.dtype(np.float64),
    torch.bfloat16: np.dtype(np.uint16),
    torch.int64: np.dtype(np.int64),
}


pooled_loop = PooledLoop
"""The decorator that turns a function of arrays into a loop on torch's threads."""
