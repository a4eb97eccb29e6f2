"""Compiled work shared out over torch's own threads, the team that its OpenMP keeps.

After each of its operations torch's threads wait for the next one without sleeping. Threads of our
own would have to take the cores from them; so a task runs on the very same threads, handed to
OpenMP as a C function (`GOMP_parallel`, which every OpenMP for Linux has).

A task is a compiled function of one argument, an array of addresses: first that of a list of whole
numbers, then those of its arrays. `floats` and its like give the arrays back. The rows of a batch
come in parts, and each thread does every n-th of them, n being what the size of the team turns out
to be.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from inspect import unwrap
from typing import Any

import numpy as np
import torch
from torch import Tensor

from elman.nn.kernels import mkl
from elman.nn.kernels.loops import inlined, numba, own_cache

MOST_NUMBERS = 1 << 20
"""How far compiled code could look into the list of whole numbers; it is as long as need be."""

Array = Any
Given = Any
"""Inside a compiled function: the array of addresses."""

thread_number = mkl.external("omp_get_thread_num", "int32")
team_size = mkl.external("omp_get_num_threads", "int32")
barrier = mkl.external("GOMP_barrier", "void")
"""Wait until all threads of the team are here."""


class Task:
    """A function of what it is given that is compiled when the team first does it, and cached."""

    def __init__(self, function: Callable[[Given], None]) -> None:
        self.function = unwrap(function)  # the test run wraps functions to check shapes

    @cached_property
    def for_c(self) -> Any:
        """The compiled function, which C code can call by its address."""
        signature = "void(CPointer(voidptr))"
        try:
            with own_cache():
                return numba.cfunc(signature, cache=True)(self.function)
        except RuntimeError:  # there is no folder to cache it in
            return numba.cfunc(signature)(self.function)


@inlined
def numbers(given: Given) -> Array:
    """The number of parts and what they are parts of, then three sizes per array."""
    return numba.carray(given[0], (MOST_NUMBERS,), np.int64)


@inlined
def floats(given: Given, index: int) -> Array:
    """The array at `index` (from 1), float32 and three-dimensional."""
    sizes = numbers(given)[3 * index : 3 * index + 3]
    return numba.carray(given[index], (sizes[0], sizes[1], sizes[2]), np.float32)


@inlined
def wholes(given: Given, index: int) -> Array:
    """The array at `index`, int64, as one row."""
    return numba.carray(given[index], (numbers(given)[3 * index + 2],), np.int64)


@inlined
def small_wholes(given: Given, index: int) -> Array:
    """The array at `index`, int8 and two-dimensional."""
    sizes = numbers(given)[3 * index : 3 * index + 3]
    return numba.carray(given[index], (sizes[1], sizes[2]), np.int8)


@inlined
def doubles(given: Given, index: int) -> Array:
    """The array at `index`, float64 and two-dimensional."""
    sizes = numbers(given)[3 * index : 3 * index + 3]
    return numba.carray(given[index], (sizes[1], sizes[2]), np.float64)


@inlined
def edge(given: Given, part: int) -> Any:
    """Where a part begins; the next one's is where it ends."""
    return numbers(given)[1] * part // numbers(given)[0]


class Job:
    """A task with its arrays, ready to be done many times."""

    def __init__(self, work: Task, num_rows: int, num_parts: int, arrays: Sequence[Tensor]) -> None:
        assert mkl.available()  # which makes its functions known to compiled ones
        numbers = [num_parts, num_rows, 0]
        self._addresses = [0]
        for array in arrays:
            assert array.is_contiguous()
            numbers += (1,) * (3 - array.dim()) + tuple(array.shape)
            self._addresses.append(array.data_ptr())
        self._sizes = (ctypes.c_int64 * len(numbers))(*numbers)
        self._addresses[0] = ctypes.addressof(self._sizes)
        self._given = ctypes.c_int64 * len(self._addresses)
        self._work = ctypes.c_void_p(work.for_c.address)
        self._num_parts = num_parts

    def __call__(self, replaced: Mapping[int, Tensor] | None = None) -> None:
        """Do it, with other arrays of the same sizes where `replaced` has them, by their index."""
        given = self._given(*self._addresses)
        for index, array in (replaced or {}).items():
            given[index] = array.data_ptr()
        team = min(self._num_parts, torch.get_num_threads())
        mkl.library().GOMP_parallel(self._work, given, team, 0)


def share(work: Task, num_rows: int, num_parts: int, arrays: Sequence[Tensor]) -> None:
    """Do `work` on `arrays`, the rows in so many parts, on as many threads at most."""
    Job(work, num_rows, num_parts, arrays)()
