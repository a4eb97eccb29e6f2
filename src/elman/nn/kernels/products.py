"""Choose the library that multiplies in compiled loops, MKL or oneDNN, by timing both.

MKL does not use all of an AMD processor, and oneDNN multiplies small matrices faster on some and
slower on others. So each is timed with matrices of the size in question, rounded to a power of two,
on one thread, in a few hundredths of a second. The choice is kept in the cache folder, by what
`mkl.facts` lists, so that another process under the same seed makes the same one; where the folder
cannot be written, a process measures again and may choose otherwise. A train state records choices
(`choices`, `restore`), so that a resumed run multiplies as before where its products are there;
another processor may still round otherwise.

M rows, K inner, N columns.
"""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from typing import Any

import numpy as np
import torch

from elman.base.cache import cache_folder
from elman.base.documents import intact, read_json, write_json
from elman.base.errors import ElmanError
from elman.nn.kernels import cpu_loops, mkl
from elman.nn.kernels.cpu_loops import multiply, row_address
from elman.nn.kernels.mkl import set_threads
from elman.nn.kernels.team import Floats1, Floats2, pooled_loop

MKL, ONEDNN, BFLOAT16 = "MKL", "oneDNN", "bfloat16"
"""Products in float32 by either library, and in bfloat16 with sums in float32 by oneDNN."""
CLEARLY = 1.1
"""How many times as fast as MKL oneDNN must be to be chosen."""
ROUNDS, ROUND_PRODUCTS = 7, 1 << 25
"""How often each is timed, and the multiplications of a round: about a millisecond."""
SMALLEST = 1 << 15
"""Multiplications of a product below which MKL is taken unmeasured."""

OF_LAYERS = "layer "
"""How names of choices between plans begin (`timing.py`)."""

_chosen: dict[str, str] = {}


def fastest(num_rows: int, inner: int, outer: int) -> str:
    """The fastest product of (rows, inner) and (inner, outer) matrices: MKL or oneDNN."""
    if num_rows * inner * outer < SMALLEST or mkl.onednn_problem():
        return MKL
    sizes = tuple(1 << round(math.log2(size)) for size in (num_rows, inner, outer))
    name = "x".join(map(str, sizes))
    return kept_or(name, lambda: _measured(sizes), (MKL, ONEDNN))


def choices() -> dict[str, str]:
    """What was chosen so far, by sizes."""
    return dict(_chosen)


def restore(chosen: Mapping[str, str]) -> None:
    """Choose as an earlier process did, where its products are there. Plans that were made before
    keep their products: call `planning.restore_products`."""
    missing = bool(mkl.onednn_problem())
    for name, product in chosen.items():
        is_product = product in (MKL, ONEDNN) and not (missing and product == ONEDNN)
        if is_product or name.startswith(OF_LAYERS):
            _chosen[str(name)] = str(product)


def kept_or(name: str, choose: Callable[[], str], allowed: Collection[str]) -> str:
    """What was chosen under a name, in this process or an earlier one, if it is `allowed`; else
    choose now and keep it."""
    if _chosen.get(name) not in allowed:
        kept = _kept(name)
        if kept is None or kept not in allowed:
            found = choose()
            # Processes that train together choose at the same time: follow who was first.
            kept = _kept(name)
            if kept is None or kept not in allowed:
                kept = _keep(name, found)
        _chosen[name] = kept
    return _chosen[name]


def _measured(sizes: tuple[int, ...]) -> str:
    num_rows, inner, outer = sizes
    left, out = torch.ones(num_rows, inner), torch.empty(num_rows, outer)
    weight = torch.ones(outer, inner)
    timed = {product: _float_product(left, weight, out, product) for product in (MKL, ONEDNN)}
    times = max(1, ROUND_PRODUCTS // (num_rows * inner * outer))
    found = dict.fromkeys(timed, np.inf)
    for _ in range(ROUNDS):
        for product, run in timed.items():
            before = time.perf_counter()
            run(times)
            found[product] = min(found[product], time.perf_counter() - before)
    return ONEDNN if found[ONEDNN] * CLEARLY <= found[MKL] else MKL


def _float_product(
    left: torch.Tensor, weight: torch.Tensor, out: torch.Tensor, product: str
) -> Callable[[int], None]:
    outer, inner = weight.shape
    target = mkl.room_for(weight, len(left), transposed=True)
    order = (weight.data_ptr(), inner, target.data_ptr(), 1, len(left), outer, inner)
    records = np.array([(*order, product == ONEDNN)], cpu_loops.PACK_ORDER.dtype)
    cpu_loops.pack(num_rows=1, num_parts=1, orders=records)

    def run(times: int) -> None:
        _repeat(num_rows=1, num_parts=1, left=left, right=target, out=out, times=times)

    return run


@pooled_loop
def _repeat(left: Floats2, right: Floats1, out: Floats2, times: int) -> None:
    set_threads(1)
    (rows, inner), outer = left.shape, out.shape[1]
    at, result = row_address(left, 0), row_address(out, 0)
    for _ in range(times):
        multiply(at, inner, right, rows, inner, outer, 0.0, result, outer)
    set_threads(0)


def _file() -> Any:
    key = hashlib.sha256("\n".join(mkl.facts()).encode()).hexdigest()[:16]
    return cache_folder() / "kernels" / f"products-{key}.json"


def _kept(name: str) -> str | None:
    with suppress(ElmanError), intact(_file()):
        found = read_json(_file()).get(name)
        return found if isinstance(found, str) else None
    return None


def _keep(name: str, product: str) -> str:
    """Write a choice to the cache folder, where that is possible."""
    kept: dict[str, Any] = {}
    with suppress(ElmanError), intact(_file()):
        kept = dict(read_json(_file()))
    with suppress(ElmanError):
        write_json(_file(), {**kept, name: product})
    return product
