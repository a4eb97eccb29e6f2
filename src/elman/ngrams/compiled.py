"""Compile loops with numba.

Compiled loops release the GIL, so threads run them in parallel (`base/threads.py`). numba is an
optional extra: without it modules still import, and calling a loop raises an error that names the
extra. numba caches machine code beside the source or, if that is read-only, in the user's cache.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from importlib import import_module
from typing import Any, TypeVar

from elman.base.errors import ElmanError

R = TypeVar("R")
Scalar = Any
"""A number inside a compiled loop; numba infers its type."""


def compiled(function: Callable[..., R]) -> Callable[..., R]:
    """Compile `function` on its first call.

    Compiled functions that call each other must be in one file: numba's cache does not notice
    changes in other files. The first one that makes an array or assigns to a slice takes 13 ms more
    to load, as numba imports its arrays: pass it the array, and assign number by number.
    """
    try:
        return _njit(function, cache=True)
    except RuntimeError:  # no writable cache folder: compile in every process
        return _njit(function)


def inlined(function: Callable[..., R]) -> Callable[..., R]:
    """Compile a small helper that is inlined into the compiled loops of the same file.

    A real call that passes arrays would count references, which halves the speed of a short loop.
    """
    return _njit(function, inline="always")


def _intrinsics() -> tuple[Callable[[Scalar], None], Callable[[Scalar, Scalar, Scalar], Scalar]]:
    try:
        numba, ir = _numba(), import_module("llvmlite.ir")
        intrinsic = import_module("numba.extending").intrinsic
    except ImportError:

        def explain(*args: Any) -> Any:
            raise _no_numba()

        return explain, explain
    types = numba.types

    def prefetch(typing: Any, address: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
            number, pointer = ir.IntType(32), ir.IntType(8).as_pointer()
            kind = ir.FunctionType(ir.VoidType(), [pointer, number, number, number])
            function = builder.module.declare_intrinsic("llvm.prefetch", [pointer], kind)
            # To read; into all caches; data.
            hints = [number(0), number(3), number(1)]
            builder.call(function, [builder.inttoptr(values[0], pointer), *hints])
            return context.get_dummy_value()

        return types.void(address), generate

    def choose(typing: Any, condition: Any, one: Any, other: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
            condition = builder.icmp_unsigned("!=", values[0], values[0].type(0))
            chosen = builder.select(condition, *values[1:])
            chosen.set_metadata("unpredictable", builder.module.add_metadata([]))
            return chosen

        return one(types.boolean, one, one), generate

    return intrinsic(prefetch), intrinsic(choose)


def _njit(function: Callable[..., R], **options: Any) -> Callable[..., R]:
    try:
        numba = import_module("numba")
    except ImportError:

        def explain(*args: Any, **kwargs: Any) -> R:
            raise _no_numba()

        return explain
    loop = numba.njit(nogil=True, error_model="numpy", **options)(function)
    if options.get("cache"):
        _load_alone(loop)
    found: Callable[..., R] = loop
    return found


def _no_numba() -> ElmanError:
    return ElmanError("n-gram models need the numba package", "pip install 'elman[ngram]'")


def _numba() -> Any:
    """Import numba in a thread, where calls begin a stack of their own.

    CPython keeps the variables of calls in chunks of 16 KiB, and a chunk goes back to the system
    with the call that began it. Where a loop of the import calls across the end of a chunk, each
    call takes one and gives it back: a fifth of the start-up, if the calls before are as deep as
    those of `python -m elman.cli`.
    """
    with ThreadPoolExecutor(1) as aside:
        return aside.submit(import_module, "numba").result()


def _load_alone(loop: Any) -> None:
    """Load a loop from numba's cache without setting up the compiler.

    Before it loads its first loop, numba sets up all that it can compile, which takes nearly as
    long as importing it. Machine code needs numba's memory management only. Compiling a loop that
    is not in the cache still sets up the rest.
    """
    # Another version of numba, or a loop that NUMBA_DISABLE_JIT left in Python.
    with suppress(ImportError, AttributeError):
        memory, cache = import_module("numba.core.runtime").rtsys, loop._cache
        find, guarded = cache._load_overload, cache._guard_against_spurious_io_errors

        def load(signature: Any, context: Any) -> Any:
            memory.initialize(context)
            with guarded():
                return find(signature, context)

        cache.load_overload = load


# Both take numbers, not arrays, as the inlined helpers do. Inside compiled loops only.
prefetch, choose = _intrinsics()
"""`prefetch(address)` loads the cache line of an address, for a read that comes later.
`choose(condition, one, other)` is `one if condition else other` without a branch: the compiler
makes most selections a branch, which costs more than what it saves if it is unpredictable."""
