"""The step of a whole model in one compiled call, in its three ways: as reading whole texts."""

from __future__ import annotations

import copy
import inspect
import pickle
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from elman import testing
from elman.decode.options import DecodeOptions
from elman.decode.sample import sample
from elman.models.decoding import Decoding, for_decoding
from elman.models.interface import LanguageModel
from elman.models.mixture import Mixture
from elman.models.recurrent import RecurrentLM, RecurrentLMConfig
from elman.nn.kernels import (
    KernelLimits,
    cpu_loops,
    cpu_planner,
    mkl,
    model_step,
    plans_by_layer,
    recorded_plans,
)
from elman.nn.kernels.products import ONEDNN
from elman.nn.quantise import quantise
from elman.nn.state import State
from stack_results import CELLS
from tiny_models import TINY

pytest.importorskip("numba")
needs_mkl = pytest.mark.skipif(not mkl.available(), reason="torch has no MKL here")
both_weights = pytest.mark.parametrize("int8", [None, "int8"], ids=["float32", "int8"])

ON_THREADS = KernelLimits(shared_bytes=1, num_threads=3)
UNPACKED = replace(ON_THREADS, packed_bytes=0)
needs_onednn = pytest.mark.skipif(bool(mkl.onednn_problem()), reason=mkl.onednn_problem())
IN_PLACE, THREADS, PACKED = "one call", "one call, 3 parts", "one call, packed weights"
DIVIDED = f"{PACKED}, 3 parts"


@torch.no_grad()
def way(decoding: Decoding, num_rows: int) -> str:
    """How a step of this number of rows was computed: the plan that was executed."""
    tokens_B = torch.zeros(num_rows, dtype=torch.long)
    with recorded_plans() as plans:
        decoding.step(tokens_B, decoding.initial_state(num_rows))
    ((executed,), *others) = plans.values()
    assert all(other == [executed] for other in others)
    parts = f", {executed.num_parts} parts" if executed.num_parts > 1 else ""
    return executed.variant.replace("whole model in ", "") + parts


def stepped(model: LanguageModel, tokens_BT: Tensor) -> tuple[Tensor, State]:
    """Log probabilities of each next token, a step at a time, and the last state."""
    state, found = model.initial_state(len(tokens_BT)), []
    for tokens_B, targets_B in zip(tokens_BT[:, :-1].T, tokens_BT[:, 1:].T, strict=True):
        logprobs_BV, state = model.step(tokens_B, state)
        found.append(logprobs_BV.gather(1, targets_B[:, None])[:, 0])
    return torch.stack(found, dim=1), state


@both_weights
@pytest.mark.parametrize("ratio", [0, 100], ids=["embeddings", "table"])
@pytest.mark.parametrize("tied", [False, True], ids=["own matrix", "tied"])
@pytest.mark.parametrize("name", CELLS)
@torch.no_grad()
def test_in_place(name: str, tied: bool, ratio: int, int8: Any) -> None:
    """Layers of different widths, a few rows."""
    torch.manual_seed(0)
    config = RecurrentLMConfig(
        num_layers=3, hidden_size=9, embedding_size=5, tied=tied, **CELLS[name]
    )
    limits = KernelLimits(table_ratio=ratio, packed_bytes=0, num_threads=1)
    decoding = testing.build(config).for_decoding(quantise=int8, limits=limits)
    assert way(decoding, 3) == IN_PLACE
    assert "one call" not in way(decoding, 20)
    testing.check_shapes(decoding)
    testing.check_stepwise_equals_whole(decoding)
    testing.check_state_is_a_value(decoding)


@needs_mkl
@both_weights
@pytest.mark.parametrize("name", ["lstm", "gru torch", "mingru", "sru"])
@torch.no_grad()
def test_on_all_threads(name: str, int8: Any) -> None:
    """Units and words that do not divide evenly by three threads."""
    torch.manual_seed(0)
    config = RecurrentLMConfig(num_layers=3, hidden_size=10, embedding_size=5, **CELLS[name])
    model = testing.build(config)
    for parameter in model.parameters():
        parameter.copy_(torch.randn_like(parameter))
    decoding = model.for_decoding(quantise=int8, limits=UNPACKED)
    assert way(decoding, 3) == THREADS
    testing.check_stepwise_equals_whole(decoding)
    testing.check_rows_are_independent(decoding)
    testing.check_state_is_a_value(decoding)
    _refuses_unknown_tokens(decoding, 1)
    token, state = torch.tensor([1]), decoding.initial_state(1).map(torch.rand_like)
    expected, _ = decoding.step(token, state)
    found, _ = decoding.step(token, state.map(Tensor.double))  # other numbers than the weights'
    torch.testing.assert_close(found, expected)


@needs_mkl
@pytest.mark.parametrize("batch_size", [2, 16, 17, 49, 64, 130])
@pytest.mark.parametrize("ratio", [0, 100], ids=["embeddings", "table"])
@pytest.mark.parametrize("name", ["lstm", "gru torch", "minlstm", "sru"])
@torch.no_grad()
def test_packed(name: str, ratio: int, batch_size: int) -> None:
    """Chunks of both sizes, full and padded; layers of different widths."""
    torch.manual_seed(0)
    config = RecurrentLMConfig(
        num_layers=3, hidden_size=9, embedding_size=5, tied=True, **CELLS[name]
    )
    decoding = testing.build(config).for_decoding(limits=KernelLimits(table_ratio=ratio))
    _equals_whole(decoding, batch_size)


@needs_mkl
@pytest.mark.parametrize("batch_size", [16, 33, 65, 200])
@torch.no_grad()
def test_chunks_of_packed_rows_on_threads(batch_size: int) -> None:
    """Fewer and more chunks than threads, and the same numbers run after run."""
    torch.manual_seed(0)
    limits = KernelLimits(num_threads=3)
    model = testing.build(RecurrentLMConfig(num_layers=2, hidden_size=9, embedding_size=5))
    decoding = model.for_decoding(limits=limits)
    _equals_whole(decoding, batch_size)
    tokens_BT = torch.randint(0, testing.VOCAB_SIZE, (batch_size, 5))
    assert stepped(decoding, tokens_BT)[0].equal(stepped(decoding, tokens_BT)[0])
    _refuses_unknown_tokens(decoding, batch_size)


@needs_onednn
@pytest.mark.parametrize("num_threads", [1, 3])
@pytest.mark.parametrize("ratio", [0, 100], ids=["embeddings", "table"])
@pytest.mark.parametrize("name", ["lstm", "gru torch", "minlstm", "sru"])
@torch.no_grad()
def test_packed_in_panels(
    name: str, ratio: int, num_threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Panels narrower than a part and parts without units; all threads divide the units, or one
    has all of them."""
    monkeypatch.setattr(cpu_planner, "fastest", lambda *sizes: ONEDNN)
    torch.manual_seed(0)
    for size in (9, 33):
        config = RecurrentLMConfig(
            num_layers=2, hidden_size=size, embedding_size=5, tied=True, **CELLS[name]
        )
        limits = KernelLimits(table_ratio=ratio, num_threads=num_threads, step_work=1)
        decoding = testing.build(config).for_decoding(limits=limits)
        for batch_size in (2, 5, 17, 130):
            _equals_whole(decoding, batch_size, PACKED if num_threads == 1 else DIVIDED)
        _refuses_unknown_tokens(decoding, 5)


@needs_onednn
def test_threads_divide_the_units_where_there_is_enough_to_do() -> None:
    model = testing.build(RecurrentLMConfig(hidden_size=64, embedding_size=8))
    decoding = model.for_decoding(limits=KernelLimits(num_threads=2))
    assert [way(decoding, n) for n in (2, 512)] == [PACKED, DIVIDED.replace("3", "2")]


@needs_mkl
@torch.no_grad()
def test_rounded_weights_are_packed_too() -> None:
    torch.manual_seed(0)
    model = testing.build(RecurrentLMConfig(hidden_size=9, embedding_size=5))
    _equals_whole(model.for_decoding(quantise="int8"), 20)
    _refuses_unknown_tokens(model.for_decoding(), 20)


def _equals_whole(decoding: Decoding, batch_size: int, expected_way: str = "") -> None:
    assert way(decoding, batch_size) == (expected_way or PACKED)
    tokens_BT = torch.randint(0, testing.VOCAB_SIZE, (batch_size, 5))
    before = decoding.initial_state(batch_size)
    expected, after = decoding.logprobs(tokens_BT[:, :-1], tokens_BT[:, 1:], before)
    found, state = stepped(decoding, tokens_BT)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(state.flatten(), after.flatten(), rtol=1e-4, atol=1e-5)


def _refuses_unknown_tokens(model: LanguageModel, batch_size: int) -> None:
    for token in (-1, testing.VOCAB_SIZE):
        with pytest.raises(IndexError, match="not in the vocabulary"):
            model.step(torch.full((batch_size,), token), model.initial_state(batch_size))


def test_parts_cover_all_units_and_are_found_without_compiling() -> None:
    assert inspect.isfunction(model_step.edge)  # numba would compile it in every process
    for size in (1, 8, 9, 33, 100):
        for num_parts in (1, 2, 5, 16):
            edges = [model_step.edge(size, part, num_parts) for part in range(num_parts + 1)]
            assert edges == sorted(edges)
            assert (edges[0], edges[-1]) == (0, size)


@pytest.mark.parametrize("num_threads", [1, 2, 16])
def test_chunks_cover_all_rows(num_threads: int) -> None:
    for num_rows in range(1, 300):
        found = list(model_step._chunks(num_rows, num_threads))
        rows = [row for first, last, _ in found for row in range(first, last)]
        assert rows == list(range(num_rows))
        assert all(last - first == size for first, last, size in found[:-1])
        assert all(last - first <= size for first, last, size in found)


def test_the_way_follows_the_rows() -> None:
    model = testing.build(TINY["lstm"])
    if mkl.available():
        rows = (1, 4, 5)
        large, rounded = model.for_decoding(limits=ON_THREADS), model.for_decoding(quantise="int8")
        assert [way(model.for_decoding(), n) for n in rows] == [IN_PLACE, PACKED, PACKED]
        assert [way(rounded, n) for n in rows] == [IN_PLACE, IN_PLACE, PACKED]
        few = THREADS if mkl.onednn_problem() else PACKED
        assert [way(large, n) for n in rows] == [THREADS, few, PACKED]
        unpacked = model.for_decoding(limits=UNPACKED)
        assert [way(unpacked, n) for n in (1, 4)] == [THREADS, THREADS]
    lecture = testing.build(TINY["gru lecture"]).for_decoding(limits=ON_THREADS)
    assert [way(lecture, n) for n in (1, 4)] == [IN_PLACE, IN_PLACE]
    assert "one call" not in way(lecture, 5)


@needs_onednn
@torch.no_grad()
def test_weights_are_packed_for_threads_that_are_not_started(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As in a process that is forked before it has threads."""
    model = testing.build(RecurrentLMConfig(hidden_size=33, embedding_size=5))
    decoding, before = model.for_decoding(limits=KernelLimits(step_work=1)), torch.get_num_threads()
    packing, used = cpu_loops.pack, set[int]()

    def recorded(*, num_parts: int, **options: Any) -> None:
        used.add(num_parts)
        packing(num_parts=num_parts, **options)

    monkeypatch.setattr(cpu_loops, "pack", recorded)
    try:
        torch.set_num_threads(1)
        decoding.prepare(5, 3)
        assert used == {1}
        torch.set_num_threads(3)
        monkeypatch.setattr(model_step, "pack", None)
        _equals_whole(decoding, 5, DIVIDED)
    finally:
        torch.set_num_threads(before)


@needs_onednn
def test_weights_are_packed_once_for_all_numbers_of_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = list[tuple[int, ...]]()
    monkeypatch.setattr(cpu_planner, "fastest", lambda *sizes: asked.append(sizes) or ONEDNN)
    decoding = testing.build(TINY["lstm"]).for_decoding(limits=KernelLimits(num_threads=1))
    assert [way(decoding, n) for n in (2, 9, 40, 200)] == [PACKED] * 4
    assert len(set(asked)) == 1


@needs_mkl
def test_one_stream_does_not_wait_for_the_test_of_onednn(monkeypatch: pytest.MonkeyPatch) -> None:
    def asked() -> str:
        raise AssertionError("its self-test takes seconds")

    monkeypatch.setattr(mkl, "onednn_problem", asked)
    limits = replace(ON_THREADS, shared_bytes=7)  # plans are cached by it
    assert way(testing.build(TINY["lstm"]).for_decoding(limits=limits), 1) == THREADS


@pytest.mark.parametrize("num_rows", [1, 8])
@pytest.mark.parametrize(
    ("kernel", "expected"),
    [("torch", "torch: its LSTM cell"), ("reference", "reference: one step of the cell")],
)
@torch.no_grad()
def test_a_kernel_asked_for_by_name_is_used(kernel: str, expected: str, num_rows: int) -> None:
    model = testing.build(replace(TINY["lstm"], kernel=kernel))
    tokens_B, state = torch.zeros(num_rows, dtype=torch.long), model.initial_state(num_rows)
    decoding = model.for_decoding()
    with recorded_plans() as plans:
        logprobs_BV, _ = decoding.step(tokens_B, state)
    assert plans_by_layer(decoding.model, plans) == dict.fromkeys(  # type: ignore[arg-type]
        ["stack.layers.0", "stack.layers.1"], expected
    )
    automatic, _ = testing.build(TINY["lstm"]).for_decoding().step(tokens_B, state)
    torch.testing.assert_close(logprobs_BV, automatic, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "name", ["residual", "adaptive", "character cnn", "lstm peephole", "sampled and maxent"]
)
@torch.no_grad()
def test_models_that_step_part_by_part(name: str) -> None:
    decoding = testing.build(TINY[name]).for_decoding()
    assert "one call" not in way(decoding, 1)
    testing.check_stepwise_equals_whole(decoding)


def test_sampling_while_training_uses_the_current_weights() -> None:
    model = testing.build(TINY["lstm"]).train()
    greedy = DecodeOptions(max_tokens=8, greedy=True)

    def said() -> list[float]:
        return [step.logprob for step in sample(model, [[1]], greedy, boundary_id=0)]

    before = said()
    with torch.no_grad():
        _trained(model)
    after = said()
    assert before != after
    assert model.training
    fresh = testing.build(TINY["lstm"])
    fresh.load_state_dict(model.state_dict())
    again = [step.logprob for step in sample(fresh, [[1]], greedy, boundary_id=0)]
    assert after == pytest.approx(again)


@pytest.mark.parametrize("tied", [False, True], ids=["own matrix", "tied"])
@torch.no_grad()
def test_a_quantised_model_is_one_model(tied: bool) -> None:
    """Its int8 steps, its whole sequences and its weights all give the same."""
    config = RecurrentLMConfig(num_layers=2, hidden_size=24, embedding_size=24, tied=tied)
    model, exact = testing.build(config), testing.build(config)
    quantise(model)
    for quantised in (model, model.for_decoding(), exact.for_decoding(quantise="int8")):
        testing.check_stepwise_equals_whole(quantised)
        testing.check_rows_are_independent(quantised)
    tokens_BT = testing.some_tokens(2, 9)
    rounded, before = testing.whole(model, tokens_BT), testing.whole(exact, tokens_BT)
    assert not torch.equal(rounded, before)
    torch.testing.assert_close(rounded, before, rtol=0.02, atol=0.02)
    same = testing.whole(exact.for_decoding(quantise="int8"), tokens_BT)
    torch.testing.assert_close(same, rounded)
    for name, weight in model.named_parameters():
        if weight.dim() == 2 and ("cell" in name or "softmax" in name or tied):
            levels = weight / weight.abs().amax(1, keepdim=True) * 127
            torch.testing.assert_close(levels, levels.round(), rtol=0, atol=1e-3)


# The object is a snapshot, and the model a plain module


@pytest.mark.parametrize("num_rows", [1, 8])
@torch.no_grad()
def test_later_changes_of_the_weights_are_not_seen(num_rows: int) -> None:
    model = testing.build(TINY["lstm"])
    tokens_B = torch.arange(num_rows) % 3
    decoding, state = model.for_decoding(), model.initial_state(num_rows)
    before, _ = decoding.step(tokens_B, state)
    whole, _ = decoding.logprobs(tokens_B[:, None], tokens_B[:, None], state)
    for change in CHANGES:
        change(model)
        torch.testing.assert_close(decoding.step(tokens_B, state)[0], before, rtol=0, atol=0)
        again, _ = decoding.logprobs(tokens_B[:, None], tokens_B[:, None], state)
        torch.testing.assert_close(again, whole, rtol=0, atol=0)
        anew, _ = model.for_decoding().step(tokens_B, state)
        assert not torch.allclose(anew, before)
        torch.testing.assert_close(anew, model.step(tokens_B, state)[0], rtol=1e-4, atol=1e-5)


def _in_place(model: RecurrentLM) -> None:
    for parameter in model.parameters():
        parameter.mul_(1.5)


def _replaced(model: RecurrentLM) -> None:
    for parameter in model.parameters():  # as weight averaging does
        parameter.data = parameter.data / 2


def _assigned(model: RecurrentLM) -> None:
    model.load_state_dict({k: 2 * v for k, v in model.state_dict().items()}, assign=True)


@torch.enable_grad()
def _trained(model: RecurrentLM) -> None:
    optimiser = torch.optim.Adam(model.parameters(), lr=0.1, fused=True)
    tokens_BT = testing.some_tokens(2, 5)
    model.logprobs(tokens_BT, tokens_BT, model.initial_state(2))[0].sum().backward()  # type: ignore[no-untyped-call]
    optimiser.step()


CHANGES: tuple[Callable[[RecurrentLM], None], ...] = (_in_place, _replaced, _assigned, _trained)


def test_models_stay_plain_modules() -> None:
    """Decoding leaves nothing on a model, and does not change its mode or its gradients."""
    model = testing.build(TINY["lstm"]).train()
    fresh = {name: set(vars(part)) for name, part in model.named_modules()}
    for share_weights in (False, True):
        decoding = model.for_decoding(share_weights=share_weights)
        for num_rows in (1, 8):
            tokens_B = torch.zeros(num_rows, dtype=torch.long)
            logprobs_BV, _ = decoding.step(tokens_B, decoding.initial_state(num_rows))
            assert not logprobs_BV.requires_grad
    assert model.training
    assert all(parameter.requires_grad for parameter in model.parameters())
    assert {name: set(vars(part)) for name, part in model.named_modules()} == fresh
    for own in ("train", "__getstate__"):
        assert own not in vars(RecurrentLM)
    tokens_BT = testing.some_tokens(2, 5)
    model.eval()
    for same in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        torch.testing.assert_close(
            testing.whole(same, tokens_BT), testing.whole(model, tokens_BT), rtol=0, atol=0
        )


@torch.no_grad()
def test_shared_weights_are_not_copied() -> None:
    model = testing.build(TINY["lstm"])
    decoding = model.for_decoding(share_weights=True)
    shared = {p.data_ptr() for p in decoding.model.parameters()}  # type: ignore[attr-defined]
    assert shared == {p.data_ptr() for p in model.parameters()}
    testing.check_stepwise_equals_whole(decoding)


@torch.no_grad()
def test_dropout_is_off() -> None:
    model = testing.build(
        RecurrentLMConfig(hidden_size=8, embedding_size=8, dropout_input=0.5, weight_drop=0.5)
    ).train()
    testing.check_stepwise_equals_whole(model.for_decoding())


@torch.no_grad()
def test_other_models_are_decoded_as_they_are() -> None:
    model = testing.build(TINY["lstm"])
    decoding = model.for_decoding()
    assert for_decoding(decoding) is decoding
    mixture = for_decoding(Mixture([model, decoding], [1.0, 3.0]))
    assert isinstance(mixture, Mixture)
    assert isinstance(mixture.models[0], Decoding)
    assert mixture.models[1] is decoding
    testing.check_stepwise_equals_whole(mixture)


@torch.no_grad()
def test_other_numbers_than_float32() -> None:
    decoding = testing.build(TINY["lstm"]).double().for_decoding()
    double, _ = decoding.step(torch.tensor([3]), decoding.initial_state(1))
    assert double.dtype == torch.float64
    with torch.inference_mode():
        testing.check_stepwise_equals_whole(testing.build(TINY["lstm"]).for_decoding())


def test_threads_that_begin_together_use_the_same_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """Addresses that one of them uses must not be freed when another has found its own."""
    step = model_step.ModelStep([testing.build(TINY["lstm"]).stack.layers[0].cell])
    own, together = step._own_records, threading.Barrier(2)
    found: list[Any] = []

    def slowly() -> Any:
        together.wait()
        return own()

    monkeypatch.setattr(step, "_own_records", slowly)
    threads = [
        threading.Thread(target=lambda: found.append(step._model("", 0, 1))) for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found[0] is found[1]


@pytest.mark.parametrize("num_rows", [1, 20])
def test_steps_in_threads_do_not_disturb_each_other(num_rows: int) -> None:
    """Memory of one step must not be given away while it is read."""
    torch.manual_seed(0)
    model = testing.build(RecurrentLMConfig(hidden_size=300, embedding_size=20))
    decoding = model.for_decoding()
    found: dict[int, Tensor] = {}

    def greedy(start: int) -> Tensor:
        state, tokens_B, said = decoding.initial_state(num_rows), torch.arange(num_rows) % 9, []
        tokens_B = tokens_B + start
        for _ in range(60):
            logprobs_BV, state = decoding.step(tokens_B, state)
            tokens_B = logprobs_BV.argmax(1)
            said.append(logprobs_BV)
        return torch.stack(said)

    expected = [greedy(start) for start in range(4)]
    threads = [
        threading.Thread(target=lambda i=i: found.__setitem__(i, greedy(i))) for i in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for start in range(4):
        torch.testing.assert_close(found[start], expected[start], rtol=0, atol=0)
