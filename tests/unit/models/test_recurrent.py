"""The recurrent language model: its parts in their places."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from elman.base.config import describe, from_dict, to_dict
from elman.base.errors import UsageError
from elman.models.recurrent import RecurrentLM, RecurrentLMConfig
from elman.nn.heads.mixture import MixtureConfig

TINY = RecurrentLMConfig(num_layers=2, hidden_size=12, embedding_size=8)


def build(**options: Any) -> RecurrentLM:
    torch.manual_seed(0)
    return replace(TINY, **options).build(20)


def test_the_lecture_written_out() -> None:
    """x = E w, h = sigmoid(W x + U h + b), y = softmax(V h + b), two steps of it."""
    model = build(cell="rnn", nonlinearity="sigmoid", num_layers=1)
    cell = model.stack.layers[0].cell
    softmax = model.head.softmax
    h = torch.zeros(12)
    for word in (3, 7):
        x = model.input.embedding.weight[word]  # type: ignore[union-attr]
        h = torch.sigmoid(cell.input_weight @ x + cell.recurrent_weight @ h + cell.bias)  # type: ignore[operator, union-attr]
        y = torch.softmax(softmax.weight @ h + softmax.bias, dim=0)  # type: ignore[operator, union-attr]
    logprobs_BT, state = model.logprobs(
        torch.tensor([[3, 7]]), torch.tensor([[7, 1]]), model.initial_state(1)
    )
    torch.testing.assert_close(logprobs_BT[0, 1], y[1].log())
    torch.testing.assert_close(state.part("0").tensor("h")[0], h)


def test_tied_models_share_one_matrix() -> None:
    untied, tied = build(), build(tied=True)
    assert untied.stack.output_size == 12
    assert tied.stack.output_size == 8  # the embedding's width, as in AWD-LSTM
    names = [name for name, tensor in tied.state_dict().items() if tensor.shape == (20, 8)]
    assert names == ["input.embedding.weight"]
    assert tied.head.softmax.weight is tied.input.embedding.weight  # type: ignore[union-attr]


def test_tied_survives_copying_and_moving() -> None:
    import copy

    model = copy.deepcopy(build(tied=True)).double()
    assert model.head.softmax.weight is model.input.embedding.weight  # type: ignore[union-attr]


def test_tied_with_a_projection_or_a_mixture() -> None:
    assert build(tied=True, projection_size=8).stack.output_size == 8
    assert build(tied=True, head=MixtureConfig()).stack.output_size == 12
    with pytest.raises(UsageError, match="projection_size 8"):
        build(tied=True, projection_size=7)
    with pytest.raises(UsageError, match="character_cnn does not have"):
        build(tied=True, input="character_cnn")


def test_dropouts_are_where_they_should_be() -> None:
    tokens_BT = torch.arange(20).view(2, 10)
    for name in ("dropout_embedding", "dropout_input", "dropout_hidden", "dropout_output"):
        model = build(**{name: 0.5})
        state = model.initial_state(2)
        first, _ = model.hidden(tokens_BT, state)
        second, _ = model.hidden(tokens_BT, state)
        assert not torch.equal(first.dropped_BTH, second.dropped_BTH), name
        # The output's dropout comes after the vectors that activation regularisation wants raw.
        assert torch.equal(first.raw_BTH, second.raw_BTH) == (name == "dropout_output"), name


def test_raw_and_dropped_differ_by_the_output_mask() -> None:
    model = build(dropout_output=0.5)
    hidden, _ = model.hidden(torch.arange(20).view(2, 10), model.initial_state(2))
    ratios = (hidden.dropped_BTH / hidden.raw_BTH).round(decimals=3)
    assert set(ratios.unique().tolist()) == {0.0, 2.0}
    assert torch.equal(ratios, ratios[:, :1].expand_as(ratios))  # locked in time


def test_a_small_start() -> None:
    model = build(init_range=0.01, forget_bias=0.0)
    for name, parameter in model.named_parameters():
        values = parameter.detach().abs()
        if parameter.dim() > 1:
            assert 0.005 < float(values.max()) <= 0.01, name
        else:
            assert float(values.max()) == 0, name


def test_embeddings_start_small_only_where_they_are_an_output_matrix() -> None:
    untied, tied = (build(tied=tied).input.all_types().detach() for tied in (False, True))
    assert 0.7 < float(untied.std()) < 1.3
    assert float(tied.abs().max()) <= 0.1


def test_nothing_is_copied_between_embedding_layers_and_softmax() -> None:
    """Vectors are batch first to the eye and time first in memory, all the way."""
    model = build(dropout_input=0.1, dropout_hidden=0.1, dropout_output=0.1)
    hidden, _ = model.hidden(torch.arange(20).view(2, 10), model.initial_state(2))
    assert hidden.dropped_BTH.transpose(0, 1).is_contiguous()
    assert model.input(torch.arange(20).view(2, 10)).transpose(0, 1).is_contiguous()


def test_every_setting_has_prose() -> None:
    settings = describe(RecurrentLMConfig)
    assert len(settings) > 20
    assert all(setting.prose for setting in settings)


def test_reads_from_plain_values() -> None:
    config = from_dict(
        RecurrentLMConfig, {"cell": "gru", "head": {"kind": "adaptive", "cutoffs": [5, 9]}}
    )
    assert config.head.cutoffs == (5, 9)  # type: ignore[attr-defined]
    with pytest.raises(UsageError, match=r"unknown setting 'head.cutofs'"):
        from_dict(RecurrentLMConfig, {"head": {"kind": "adaptive", "cutofs": [5]}})


def test_a_tied_model_of_one_layer_has_one_width() -> None:
    with pytest.raises(UsageError, match="embedding_size units") as caught:
        build(tied=True, num_layers=1)
    assert "model.tied=false" in caught.value.hint
    assert build(tied=True, num_layers=1, hidden_size=8).stack.output_size == 8
    assert build(tied=True, num_layers=1, projection_size=8).stack.output_size == 8
    assert build(tied=True, num_layers=1, head=MixtureConfig()).stack.output_size == 12


def test_settings_begin_with_kind_cell_and_sizes() -> None:
    names = list(to_dict(RecurrentLMConfig()))
    assert names[:2] == ["kind", "cell"]
    assert names.index("layer_norm") < names.index("num_layers") < names.index("embedding_size")
