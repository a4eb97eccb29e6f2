"""Check shape annotations once for each combination of types, shapes and dtypes.

jaxtyping's own wrapper checks every call, which takes several times as long as a tiny model's
arithmetic. What it finds depends only on the types, shapes and dtypes of the arguments and of the
result. So a call that looks like an earlier one of the same function is not checked again.
"""

from __future__ import annotations

import functools
import inspect
import threading
import types
from collections.abc import Callable
from itertools import islice
from typing import Any

import jaxtyping

_jaxtyped: Any = jaxtyping.jaxtyped
MOST_ITEMS = 8
"""Of a list or dict: those after it are not looked at. beartype looks at one, at random."""


def install(*packages: str) -> None:
    """Check the annotations of modules in these packages, which are imported later."""
    jaxtyping.jaxtyped = _checked_once
    jaxtyping.install_import_hook(list(packages), "beartype.beartype")


def look(value: Any) -> Any:
    """All of a value that a check depends on, as a key."""
    kind = type(value)
    inside = _LOOKS.get(kind)
    if inside is None:
        is_array = hasattr(kind, "shape") and hasattr(kind, "dtype")
        inside = _LOOKS[kind] = _array if is_array else type
    return inside(value)


def _array(value: Any) -> Any:
    return type(value), value.shape, value.dtype


_LOOKS: dict[type, Callable[[Any], Any]] = {
    str: str,  # there may be a Literal
    tuple: lambda value: (tuple, *map(look, value)),
    list: lambda value: (list, *map(look, value[:MOST_ITEMS])),
    dict: lambda value: (dict, *map(look, islice(value.items(), MOST_ITEMS))),
}


def _checked_once(function: Any = None, *, typechecker: Any = None) -> Any:
    """Takes the place of `jaxtyping.jaxtyped`."""
    if function is None:
        return functools.partial(_checked_once, typechecker=typechecker)
    if not isinstance(function, types.FunctionType):
        return _jaxtyped(function, typechecker=typechecker)
    seen: set[Any] = set()
    lock = threading.Lock()
    held: list[Any] = []
    check = _jaxtyped(_returning(held, function), typechecker=typechecker)

    @functools.wraps(function)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True
        result = function(*args, **kwargs)
        key = (*map(look, args), look(kwargs) if kwargs else None, look(result))
        if key not in seen:
            with lock:
                held[:] = [result]
                check(*args, **kwargs)
                held.clear()
            seen.add(key)
        return result

    return wrapped


def _returning(held: list[Any], function: types.FunctionType) -> Callable[..., Any]:
    """A function with this one's signature and names around it that returns what is held."""

    def stub(*args: Any, **kwargs: Any) -> Any:
        return held[0]

    own = types.FunctionType(stub.__code__, function.__globals__, closure=stub.__closure__)
    functools.update_wrapper(own, function)
    own.__signature__ = inspect.signature(function)  # type: ignore[attr-defined]
    return own
