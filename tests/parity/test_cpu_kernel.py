"""The compiled CPU loops against the cells' equations: float32 beside a float64 reference."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import Tensor

from elman.nn.kernels import (
    blocks,
    cpu_planner,
    kernel_limits,
    memory,
    mkl,
    planning,
    recorded_plans,
)
from elman.nn.stack import Stack, StackConfig
from stack_results import CELLS as OPTIONS
from stack_results import relative_errors, results, set_kernel

pytestmark = pytest.mark.skipif(
    not mkl.available(), reason="numba is missing, or torch has no MKL here"
)

CELLS = ("lstm", "gru lecture", "gru torch")
SIZES = [
    *((1, 1, 1), (3, 3, 7), (20, 33, 5), (33, 257, 3), (1, 3, 1000), (20, 3, 70), (16, 40, 9)),
    *((33, 1, 70), (1, 257, 70), (20, 1, 70), (20, 3, 1000), (33, 1150, 2), (1, 1150, 3)),
]
"""Batch, hidden units, steps."""


def assert_as_exact_as_torch(
    stack: Stack, inputs_BTI: Tensor, lengths_B: Tensor | None = None
) -> None:
    """Every result is close to float64's, beside its own size."""
    ours = results(stack, "cpu", inputs_BTI, lengths_B)
    exact = results(stack.double(), "reference", inputs_BTI.double(), lengths_B)
    for name, error in relative_errors(ours, exact).items():
        assert error < 5e-6, f"{name}: {error:.1e}"


@pytest.fixture
def _two_threads() -> Iterator[None]:
    """Rows divided over two threads, whatever the rest of torch may use."""
    with kernel_limits(num_threads=2):
        yield


@pytest.mark.usefixtures("_two_threads")
@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("name", CELLS)
def test_cpu_equals_reference(name: str, size: tuple[int, int, int]) -> None:
    batch_size, hidden_size, num_steps = size
    torch.manual_seed(0)
    stack = Stack(StackConfig(hidden_size=hidden_size, **OPTIONS[name]), 4)
    bound = min(0.5, hidden_size**-0.5)  # large matrices of large numbers are chaotic
    for parameter in stack.parameters():  # biases away from zero too
        torch.nn.init.uniform_(parameter, -bound, bound)
    assert_as_exact_as_torch(stack, torch.randn(batch_size, num_steps, 4))


@pytest.mark.usefixtures("_two_threads")
@pytest.mark.parametrize("name", CELLS)
def test_ragged_rows_in_both_directions(name: str) -> None:
    torch.manual_seed(0)
    config = StackConfig(hidden_size=7, num_layers=2, **OPTIONS[name])
    stack, lengths_B = Stack(config, 4, bidirectional=True), torch.arange(17) % 9 + 1
    assert_as_exact_as_torch(stack, torch.randn(17, 9, 4), lengths_B)


@pytest.mark.skipif(bool(mkl.onednn_problem()), reason="no block products of oneDNN here")
@pytest.mark.parametrize("num_threads", [1, 2, 5])
@pytest.mark.parametrize("ragged", [False, True])
@pytest.mark.parametrize("size", [(1, 1, 1), (5, 9, 7), (33, 17, 9), (13, 24, 30)], ids=str)
def test_both_directions_at_once(
    size: tuple[int, int, int], ragged: bool, num_threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More and fewer rows than a chunk, a thread per direction or several."""
    batch_size, hidden_size, num_steps = size
    torch.manual_seed(0)
    stack = Stack(StackConfig(hidden_size=hidden_size, num_layers=2), 4, bidirectional=True)
    inputs_BTI = torch.randn(batch_size, num_steps, 4)
    lengths_B = torch.arange(batch_size) % num_steps + 1 if ragged else None
    monkeypatch.setattr(cpu_planner, "fastest", lambda *sizes: "oneDNN")
    planning._decide.cache_clear()
    try:
        with kernel_limits(num_threads=num_threads, fewest_rows=1):
            first, second = (results(stack, "cpu", inputs_BTI, lengths_B) for _ in range(2))
            with recorded_plans() as plans:
                stack(inputs_BTI, stack.initial_state(batch_size), lengths_B)
            assert {plan.directions for found in plans.values() for plan in found} == {2}
            torch.testing.assert_close(first, second, rtol=0, atol=0)
            assert_as_exact_as_torch(stack, inputs_BTI, lengths_B)
    finally:
        planning._decide.cache_clear()


@pytest.mark.skipif(bool(mkl.onednn_problem()), reason="no block products of oneDNN here")
def test_texts_without_tokens_leave_the_state_of_both_directions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stack = Stack(StackConfig(hidden_size=3, kernel="cpu"), 4, bidirectional=True)
    before = stack.initial_state(5).map(torch.ones_like)
    monkeypatch.setattr(cpu_planner, "fastest", lambda *sizes: "oneDNN")
    planning._decide.cache_clear()
    try:
        with kernel_limits(fewest_rows=1):
            _, after = stack(torch.randn(5, 0, 4), before)
    finally:
        planning._decide.cache_clear()
    for name, tensor in after.flatten().items():
        assert tensor.eq(1.0).all(), name


@pytest.mark.skipif(bool(blocks.problem()), reason="no products in bfloat16 here")
@pytest.mark.parametrize("by_units", [False, True])
@pytest.mark.parametrize("size", [(1, 1, 2), (5, 41, 9), (20, 33, 4), (17, 130, 6)], ids=str)
def test_products_in_bfloat16(size: tuple[int, int, int], by_units: bool) -> None:
    """Odd sizes, ragged rows: near float64, state and results float32, the same run after run."""
    batch_size, hidden_size, num_steps = size
    torch.manual_seed(0)
    stack = Stack(StackConfig(hidden_size=hidden_size, num_layers=2), 5)
    inputs_BTI = torch.randn(batch_size, num_steps, 5)
    lengths_B = torch.arange(batch_size) % num_steps + 1
    limits: dict[str, Any] = {"num_threads": 2, "fewest_rows": 1}
    limits["row_groups"] = 1 if by_units else 2
    with kernel_limits(**limits), torch.autocast("cpu", torch.bfloat16):
        first, second = (results(stack, "cpu", inputs_BTI, lengths_B) for _ in range(2))
        with recorded_plans() as plans:
            outputs, after = stack(inputs_BTI, stack.initial_state(batch_size), lengths_B)
    executed = {plan for found in plans.values() for plan in found}
    by_units = (by_units or batch_size == 1) and hidden_size > planning.UNITS_APART
    assert {(plan.products, plan.by_units) for plan in executed} == {("bfloat16", by_units)}
    assert {tensor.dtype for tensor in (outputs, *after.flatten().values())} == {torch.float32}
    assert all(first[name].equal(second[name]) for name in first)
    exact = results(stack.double(), "reference", inputs_BTI.double(), lengths_B)
    for name, error in relative_errors(first, exact).items():
        assert error < 0.03, f"{name}: {error:.1e}"


@pytest.mark.usefixtures("_two_threads")
@pytest.mark.parametrize("product", ["MKL", "oneDNN"])
@pytest.mark.parametrize("name", CELLS)
def test_either_product(name: str, product: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if product == "oneDNN" and mkl.onednn_problem():
        pytest.skip(mkl.onednn_problem())
    monkeypatch.setattr(cpu_planner, "fastest", lambda *sizes: product)
    planning._decide.cache_clear()
    torch.manual_seed(0)
    stack = Stack(StackConfig(hidden_size=75, **OPTIONS[name]), 4)
    try:
        assert_as_exact_as_torch(stack, torch.randn(9, 5, 4))
        set_kernel(stack.float(), "cpu")
        with recorded_plans() as plans:
            stack(torch.randn(9, 5, 4), stack.initial_state(9), None)
        loops = [plan for found in plans.values() for plan in found if plan.kernel == "cpu"]
        assert loops
        assert all(f"products by {product}" in plan.describe() for plan in loops)
    finally:
        planning._decide.cache_clear()


@pytest.mark.parametrize("by_units", [False, True])
@pytest.mark.parametrize("product", ["MKL", "oneDNN", "bfloat16"])
@pytest.mark.parametrize("size", [(1, 1, 1), (5, 41, 9), (20, 33, 8), (17, 130, 21)], ids=str)
def test_scoring_computes_the_same_and_keeps_less(
    size: tuple[int, int, int], product: str, by_units: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More and fewer steps than W x is computed ahead of, ragged rows, inputs of odd width."""
    half = product == "bfloat16"
    problem = blocks.problem() if half else mkl.onednn_problem()
    if product != "MKL" and problem:
        pytest.skip(problem)
    batch_size, hidden_size, num_steps = size
    torch.manual_seed(0)
    stack = Stack(StackConfig(hidden_size=hidden_size, num_layers=2, kernel="cpu"), 5)
    inputs_BTI = torch.randn(batch_size, num_steps, 5)
    lengths_B = torch.arange(batch_size) % num_steps + 1
    state = stack.initial_state(batch_size).map(torch.randn_like)
    limits: dict[str, Any] = {"num_threads": 2, "fewest_rows": 1, "cache_bytes": 0}
    limits |= {"few_rows_per_part": 100 if by_units else 0, "row_groups": 1 if by_units else 2}
    monkeypatch.setattr(cpu_planner, "fastest", lambda *sizes: product)
    planning._decide.cache_clear()
    try:
        with kernel_limits(**limits), torch.autocast("cpu", torch.bfloat16, enabled=half):
            trained, after = stack(inputs_BTI, state, lengths_B)
            with torch.no_grad():
                first, scored_after = stack(inputs_BTI, state, lengths_B)
                second, _ = stack(inputs_BTI, state, lengths_B)
        assert first.equal(second)
        tolerance = {"rtol": 0.02, "atol": 0.01} if half else {"rtol": 1e-5, "atol": 1e-6}
        torch.testing.assert_close(first.float(), trained, **tolerance)
        for name, tensor in scored_after.flatten().items():
            assert tensor.dtype == torch.float32
            torch.testing.assert_close(tensor, after.flatten()[name], **tolerance)
        set_kernel(stack, "reference")
        given = (inputs_BTI.double(), state.map(torch.Tensor.double), lengths_B)
        with torch.no_grad():
            exact, _ = stack.double()(*given)
        assert float((first - exact).norm() / exact.norm()) < (0.03 if half else 5e-6)
    finally:
        planning._decide.cache_clear()


@pytest.mark.parametrize("num_threads", [2, 3])
@pytest.mark.parametrize("size", [(1, 1, 2), (5, 40, 9), (20, 33, 1), (17, 257, 6)], ids=str)
def test_threads_that_divide_the_units(size: tuple[int, int, int], num_threads: int) -> None:
    """Ragged rows, units that do not divide evenly; the same to the last bit, run after run."""
    batch_size, hidden_size, num_steps = size
    torch.manual_seed(0)
    stack = Stack(StackConfig(hidden_size=hidden_size, num_layers=2), 4)
    inputs_BTI = torch.randn(batch_size, num_steps, 4)
    lengths_B = torch.arange(batch_size) % num_steps + 1
    with kernel_limits(cache_bytes=0, num_threads=num_threads):
        first, second = (results(stack, "cpu", inputs_BTI, lengths_B) for _ in range(2))
        layer: Any = stack.layers[0]
        assert layer.plan(inputs_BTI, layer.initial_state(batch_size)).by_units
        torch.testing.assert_close(first, second, rtol=0, atol=0)
        assert_as_exact_as_torch(stack, inputs_BTI, lengths_B)


@pytest.mark.parametrize("name", CELLS)
def test_threads_change_nothing(name: str) -> None:
    """Rows belong to one thread each: the same numbers, to the last bit, run after run. With
    another number of threads sums over the batch have another order, and nothing else changes."""
    torch.manual_seed(0)
    stack = Stack(StackConfig(hidden_size=24, **OPTIONS[name]), 4)
    inputs_BTI = torch.randn(32, 6, 4)
    with kernel_limits(num_threads=4):
        first, second = (results(stack, "cpu", inputs_BTI, None) for _ in range(2))
    torch.testing.assert_close(first, second, rtol=0, atol=0)
    with kernel_limits(num_threads=1):
        alone = results(stack, "cpu", inputs_BTI, None)
    torch.testing.assert_close(alone, first, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("by_units", [False, True])
@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("num_threads", [3, 5, 16])
def test_any_number_of_threads(num_threads: int, half: bool, by_units: bool) -> None:
    """More threads than cores, than parts, and numbers that divide nothing evenly."""
    if half and (problem := blocks.problem()):
        pytest.skip(problem)
    torch.manual_seed(0)
    stack = Stack(StackConfig(hidden_size=70, num_layers=2, kernel="cpu"), 5)
    inputs_BTI, lengths_B = torch.randn(21, 6, 5), torch.arange(21) % 6 + 1
    limits: dict[str, Any] = {"cache_bytes": 0, "fewest_rows": 1}
    limits["few_rows_per_part"] = 100 if by_units else 0
    limits["row_groups"] = 1 if by_units else 16
    before, found = torch.get_num_threads(), []
    try:
        for number in (1, num_threads, num_threads):
            torch.set_num_threads(number)
            with kernel_limits(**limits), torch.autocast("cpu", torch.bfloat16, enabled=half):
                found.append(results(stack, "cpu", inputs_BTI, lengths_B))
                layer: Any = stack.layers[0]
                planned = layer.plan(inputs_BTI, layer.initial_state(len(inputs_BTI)))
                assert planned.by_units == (by_units and number > 1)
    finally:
        torch.set_num_threads(before)
    torch.testing.assert_close(found[1], found[2], rtol=0, atol=0)
    for name, error in relative_errors(found[1], found[0]).items():
        assert error < (0.01 if half else 5e-6), f"{name}: {error:.1e}"


@pytest.mark.skipif(bool(blocks.problem()), reason="no products in bfloat16 here")
@pytest.mark.parametrize(("row_groups", "num_threads"), [(2, 5), (3, 13), (4, 16)])
def test_groups_of_rows_and_of_units(row_groups: int, num_threads: int) -> None:
    """Threads that divide rows and units: the same as one thread to rounding, run after run."""
    torch.manual_seed(0)
    stack = Stack(StackConfig(hidden_size=70, num_layers=2, kernel="cpu"), 5)
    inputs_BTI, lengths_B = torch.randn(21, 6, 5), torch.arange(21) % 6 + 1
    before, found = torch.get_num_threads(), []
    try:
        for number in (1, num_threads, num_threads):
            torch.set_num_threads(number)
            groups = min(row_groups, number)
            limits: dict[str, Any] = {"fewest_rows": 1, "row_groups": groups}
            with kernel_limits(**limits), torch.autocast("cpu", torch.bfloat16):
                found.append(results(stack, "cpu", inputs_BTI, lengths_B))
                layer: Any = stack.layers[0]
                planned = layer.plan(inputs_BTI, layer.initial_state(len(inputs_BTI)))
                assert planned.num_parts == groups * (number // groups)
    finally:
        torch.set_num_threads(before)
    torch.testing.assert_close(found[1], found[2], rtol=0, atol=0)
    for name, error in relative_errors(found[1], found[0]).items():
        assert error < 0.01, f"{name}: {error:.1e}"


@pytest.mark.parametrize("name", CELLS)
def test_what_memory_held_before_does_not_matter(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every array comes from memory full of NaN the second time."""
    monkeypatch.setattr(memory, "SMALLEST_BYTES", 1)
    torch.manual_seed(0)
    stack = Stack(StackConfig(hidden_size=24, num_layers=2, **OPTIONS[name]), 4)
    inputs_BTI, lengths_B = torch.randn(9, 12, 4), torch.arange(9) + 3
    first = results(stack, "cpu", inputs_BTI, lengths_B)
    assert memory._kept
    for block in memory._kept.values():
        block.fill(float("nan"))
    second = results(stack, "cpu", inputs_BTI, lengths_B)
    torch.testing.assert_close(first, second, rtol=0, atol=0)


def test_callers_in_threads_do_not_disturb_each_other() -> None:
    torch.manual_seed(0)
    stack = Stack(StackConfig(hidden_size=24, kernel="cpu"), 4)
    inputs = [torch.randn(16, 8, 4) for _ in range(6)]

    def outputs(inputs_BTI: Tensor) -> Tensor:
        with kernel_limits(num_threads=2):  # a thread does not inherit them
            found: Tensor = stack(inputs_BTI)[0]
            return found.detach()

    expected = [outputs(x) for x in inputs]
    with ThreadPoolExecutor(3) as pool:
        found = list(pool.map(outputs, inputs))
    torch.testing.assert_close(found, expected, rtol=0, atol=0)


@pytest.mark.parametrize("name", CELLS)
def test_a_step_with_gradients_is_a_sequence_of_one(name: str) -> None:
    torch.manual_seed(0)
    stack = Stack(StackConfig(hidden_size=7, kernel="cpu", **OPTIONS[name]), 4)
    state = stack.initial_state(5).map(torch.randn_like)
    inputs_BI = torch.randn(5, 4)
    with recorded_plans() as plans:
        output_BP, _ = stack.step(inputs_BI, state)
    ((plan,),) = plans.values()
    assert plan.describe().startswith("cpu: compiled loop, one thread, products by ")
    (found,) = torch.autograd.grad(output_BP.square().sum(), stack.layers[0].cell.bias)  # type: ignore[union-attr, arg-type]
    set_kernel(stack, "reference")
    exact_BP, _ = stack.step(inputs_BI, state)
    (exact,) = torch.autograd.grad(exact_BP.square().sum(), stack.layers[0].cell.bias)  # type: ignore[union-attr, arg-type]
    torch.testing.assert_close((output_BP, found), (exact_BP, exact))


def test_weight_drop_reaches_the_loop() -> None:
    torch.manual_seed(0)
    stack = Stack(StackConfig(hidden_size=5, weight_drop=0.5, kernel="cpu"), 4)
    inputs_BTI = torch.randn(2, 3, 4)
    torch.manual_seed(1)
    ours, _ = stack(inputs_BTI)
    set_kernel(stack, "reference")
    torch.manual_seed(1)
    torch.testing.assert_close(ours, stack(inputs_BTI)[0])
