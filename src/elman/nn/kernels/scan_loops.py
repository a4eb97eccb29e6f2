"""The scan h = keep * h + add over time on CUDA, in Triton: one launch.

A program takes some units through all steps, a tile of steps at a time. Within a tile, lines are
composed in parallel: (keep, add) after (keep', add') is (keep keep', keep add' + add). Between
tiles only the state is carried.
"""

from __future__ import annotations

from elman.nn.kernels.persistent_loops import tl, triton


@triton.jit
def _compose(keep_1, add_1, keep_2, add_2):
    return keep_2 * keep_1, keep_2 * add_1 + add_2


@triton.jit(do_not_specialize=["num_steps"])
def scan(
    keep,
    add,
    initial,
    states,
    num_steps,
    width,
    STEPS: tl.constexpr,
    UNITS: tl.constexpr,
):
    """`keep`, `add` and `states` are (num_steps, width), `initial` is (width)."""
    units = tl.program_id(0) * UNITS + tl.arange(0, UNITS)
    is_unit = units < width
    rows = tl.arange(0, STEPS)
    zero = tl.full((), 0, tl.int64)  # offsets in time outgrow 32 bits
    carried = tl.load(initial + units, mask=is_unit, other=0)
    for first in range(0, num_steps, STEPS):
        time = zero + first + rows
        at = time[:, None] * width + units[None, :]
        real = (time < num_steps)[:, None] & is_unit[None, :]
        # Beyond the end, lines that change nothing.
        keep_tile = tl.load(keep + at, mask=real, other=1)
        add_tile = tl.load(add + at, mask=real, other=0)
        kept, added = tl.associative_scan((keep_tile, add_tile), 0, _compose)
        found = kept * carried[None, :] + added
        tl.store(states + at, found, mask=real)
        carried = tl.sum(tl.where((rows == STEPS - 1)[:, None], found, 0), axis=0)
