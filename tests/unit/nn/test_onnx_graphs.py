"""Networks as ONNX graphs: onnxruntime computes the numbers of torch, for every recurrent part."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from elman.base.errors import ElmanError, UsageError
from elman.models.recurrent import RecurrentLMConfig
from elman.nn.stack import CELLS
from elman.tasks.language_model import onnx as language_models
from tiny_models import TINY

onnx = pytest.importorskip("onnx", reason="onnx is not installed")
pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")

from elman.models.onnx_model import OnnxLM  # noqa: E402
from elman.nn.onnx.files import difference, model_bytes, session  # noqa: E402
from elman.nn.onnx.tracing import Function, Input, plain_torch  # noqa: E402

SIZE = 20
RECURRENT = {
    name: config
    for name, config in TINY.items()
    if isinstance(config, RecurrentLMConfig)
    and not config.maxent_order
    and name not in ("lstm reference", "mingru reference", "slstm dropped", "regularised")
}
"""Those that compute nothing else than another of the table are left out."""


FAST = {
    *("lstm peephole", "gru lecture", "rnn relu", "qrnn", "slstm", "hgrn", "mogrified"),
    *("highway", "adaptive tied", "mixture tied", "character cnn"),
}


def form(config: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(language_models, "tokenizer_entries", lambda tokenizer: {})
    torch.manual_seed(1)
    spellings = [str(number) for number in range(SIZE)]
    model = config.build(SIZE, counts_V=torch.arange(SIZE) + 1, spellings=spellings).eval()
    tokenizer = SimpleNamespace(vocab_size=SIZE, boundary_id=0, unknown_id=1, marks_lines=False)
    settings = SimpleNamespace(data=SimpleNamespace(unit="text"))
    run = SimpleNamespace(model=model, tokenizer=tokenizer, path="run", config=settings)
    return model, language_models.form(run)  # type: ignore[arg-type]


def test_every_cell_is_among_them() -> None:
    assert {config.cell for config in RECURRENT.values()} == set(CELLS)


@pytest.mark.parametrize(
    "name",
    [name if name in FAST else pytest.param(name, marks=pytest.mark.slow) for name in RECURRENT],
)
def test_step_and_sequence_give_the_numbers_of_torch(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, made = form(RECURRENT[name], monkeypatch)
    assert [graph.name for graph in made.graphs] == ["step", "sequence"]
    for graph in made.graphs:
        content = model_bytes(graph, {})
        for size in (1, 5):
            assert difference(graph, content, size) < 1e-5


def test_a_step_graph_is_a_language_model(monkeypatch: pytest.MonkeyPatch) -> None:
    model, made = form(TINY["lstm"], monkeypatch)
    found = OnnxLM(session(model_bytes(made.graphs[0], {})), {})
    assert found.vocab_size == SIZE
    tokens, targets = torch.randint(0, SIZE, (2, 3, 6))
    with plain_torch(model):
        expected, state = model.logprobs(tokens, targets, model.initial_state(3))
    logprobs, after = found.logprobs(tokens, targets, found.initial_state(3))
    assert torch.allclose(logprobs, expected, atol=1e-5)
    for part, tensor in state.flatten().items():
        assert torch.allclose(after.flatten()[part], tensor, atol=1e-5)


def test_one_byte_a_weight(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rounded matrices are stored as integers, and give the same numbers."""
    from elman.train import int8_files

    model, made = form(RecurrentLMConfig(num_layers=1, hidden_size=64), monkeypatch)
    model.load_state_dict(int8_files.unpack(int8_files.pack(model.state_dict())))
    whole = model_bytes(made.graphs[1], {})
    packed = model_bytes(made.graphs[1], {}, int8=True)
    assert len(packed) < len(whole) / 3
    assert difference(made.graphs[1], packed, 4) < 1e-5


def test_weights_that_are_not_rounded_stay_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    _, made = form(RecurrentLMConfig(hidden_size=8), monkeypatch)
    assert model_bytes(made.graphs[0], {}, int8=True) == model_bytes(made.graphs[0], {})


def test_a_tied_matrix_is_stored_once(monkeypatch: pytest.MonkeyPatch) -> None:
    _, made = form(TINY["tied"], monkeypatch)
    made_of = onnx.load_from_string(model_bytes(made.graphs[0], {})).graph
    names = [one.name for one in made_of.initializer]
    assert names.count("input.embedding.weight") == 1
    sizes = [list(one.dims) for one in made_of.initializer]
    assert sizes.count([SIZE, 10]) == 1
    assert [10, SIZE] not in sizes


def test_a_layer_of_ngrams_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="MaxEnt"):
        form(TINY["rnn and maxent"], monkeypatch)


def one_input(call: Any) -> Function:
    return Function("step", torch.nn.Identity(), [Input("x", ("batch", 3))], call)


def test_an_operation_without_a_form_is_named() -> None:
    graph = one_input(lambda values: {"y": torch.erfinv(values["x"])})
    with pytest.raises(ElmanError, match="erfinv") as caught:
        model_bytes(graph, {})
    assert caught.value.hint


def test_what_left_torch_on_its_way_is_refused() -> None:
    """A result that went through numpy would be a constant of the examples."""
    graph = one_input(lambda values: {"y": torch.from_numpy(values["x"].numpy() * 2)})
    with pytest.raises(ElmanError, match="ONNX cannot follow") as caught:
        model_bytes(graph, {})
    assert caught.value.hint


def test_recording_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    model, made = form(TINY["gru torch"], monkeypatch)
    model_bytes(made.graphs[1], {})
    assert all(parameter.requires_grad for parameter in model.parameters())
    assert all("forward" not in layer.__dict__ for layer in model.modules())
