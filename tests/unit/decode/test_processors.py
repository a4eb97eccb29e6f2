"""The definitions worked by hand; `tests/parity` compares with Hugging Face."""

from __future__ import annotations

import math

import pytest
import torch

from elman.base.errors import UsageError
from elman.decode import processors
from elman.decode.options import DecodeOptions
from elman.decode.rows import RowSettings

PROBABILITIES = torch.tensor([[0.5, 0.25, 0.15, 0.1]])


def kept(scores_BV: torch.Tensor) -> list[list[int]]:
    return [row.isfinite().nonzero()[:, 0].tolist() for row in scores_BV]


def biased(logprobs_BV: torch.Tensor, logit_bias: dict[int, float]) -> torch.Tensor:
    tensors = processors.bias_tensors(logit_bias, logprobs_BV.shape[-1], logprobs_BV.device)
    return processors.bias(logprobs_BV, *tensors)


def test_temperature_raises_probabilities_to_the_power_one_over_temperature() -> None:
    sharp_BV = processors.temperature(PROBABILITIES.log(), 0.5).softmax(dim=-1)
    squares_BV = PROBABILITIES**2
    torch.testing.assert_close(sharp_BV, squares_BV / squares_BV.sum())


@pytest.mark.parametrize("temperature", [1e-60, 1e-30, 1e-8, 1e30])
def test_extreme_temperatures_give_no_nan(temperature: float) -> None:
    scores_BV = processors.temperature(torch.tensor([[-700.0, -701.0, -math.inf]]), temperature)
    probabilities_BV = scores_BV.softmax(dim=-1)
    assert probabilities_BV.sum() == pytest.approx(1.0)
    assert probabilities_BV[0, 2] == 0.0


def test_top_k_keeps_the_k_most_likely_and_ties_with_the_last() -> None:
    assert kept(processors.top_k(PROBABILITIES.log(), 2)) == [[0, 1]]
    assert kept(processors.top_k(PROBABILITIES.log(), 99)) == [[0, 1, 2, 3]]
    tied_BV = torch.tensor([[0.4, 0.3, 0.3, 0.0]]).log()
    assert kept(processors.top_k(tied_BV, 2)) == [[0, 1, 2]]


@pytest.mark.parametrize(
    ("p", "tokens"),
    [(0.0, [0]), (1e-9, [0]), (0.5, [0]), (0.6, [0, 1]), (0.8, [0, 1, 2]), (0.95, [0, 1, 2, 3])],
)
def test_top_p_keeps_the_smallest_set_with_probability_p(p: float, tokens: list[int]) -> None:
    assert kept(processors.top_p(PROBABILITIES.log(), p)) == [tokens]


@pytest.mark.parametrize(
    ("p", "tokens"), [(0.0, [0, 1, 2, 3]), (0.3, [0, 1, 2]), (0.4, [0, 1]), (1.0, [0])]
)
def test_min_p_is_relative_to_the_most_likely(p: float, tokens: list[int]) -> None:
    assert kept(processors.min_p(PROBABILITIES.log(), p)) == [tokens]


def test_penalties_follow_openais_formula() -> None:
    counts_BV = torch.tensor([[0.0, 1.0, 3.0, 0.0]])
    penalised_BV = processors.penalties(
        PROBABILITIES.log(), counts_BV, frequency=0.5, presence=0.25
    )
    taken_BV = PROBABILITIES.log() - penalised_BV
    torch.testing.assert_close(taken_BV, torch.tensor([[0.0, 0.75, 1.75, 0.0]]))


def test_bias_is_added_to_single_tokens() -> None:
    biased_BV = biased(torch.zeros(2, 4), {1: 2.0, 3: -math.inf})
    assert biased_BV.tolist() == [[0.0, 2.0, 0.0, -math.inf]] * 2
    with pytest.raises(UsageError, match="token 4"):
        biased(torch.zeros(1, 4), {4: 1.0})


def test_the_order_is_bias_penalties_temperature_then_truncation() -> None:
    config = DecodeOptions(
        logit_bias={3: 5.0}, frequency_penalty=2.0, temperature=2.0, top_k=3, top_p=0.7, min_p=0.1
    )
    counts_BV = torch.tensor([[1.0, 0.0, 0.0, 0.0]])
    expected_BV = biased(PROBABILITIES.log(), {3: 5.0})
    expected_BV = processors.penalties(expected_BV, counts_BV, frequency=2.0, presence=0.0)
    expected_BV = processors.temperature(expected_BV, 2.0)
    for function, value in (
        (processors.top_k, 3),
        (processors.top_p, 0.7),
        (processors.min_p, 0.1),
    ):
        expected_BV = function(expected_BV, value)
    torch.testing.assert_close(
        processors.process(PROBABILITIES.log(), RowSettings.of([config]), counts_BV), expected_BV
    )


def test_half_precision_is_processed_in_float32() -> None:
    scores_BV = processors.process(
        PROBABILITIES.log().bfloat16(), RowSettings.of([DecodeOptions(top_p=0.9)])
    )
    assert scores_BV.dtype == torch.float32


SETTINGS = [
    DecodeOptions(),
    DecodeOptions(temperature=0.7, top_p=0.9),
    DecodeOptions(greedy=True, presence_penalty=1.0),
    DecodeOptions(top_k=2, logit_bias={0: 3.0, 3: -100.0}),
    DecodeOptions(min_p=0.2, frequency_penalty=0.5, temperature=1.3),
    DecodeOptions(temperature=0.0, logit_bias={2: 1.0}),
]


def test_rows_with_different_settings_come_out_as_each_would_alone() -> None:
    generator = torch.Generator().manual_seed(0)
    logprobs_BV = (2 * torch.randn(len(SETTINGS), 9, generator=generator)).log_softmax(dim=-1)
    counts_BV = torch.randint(0, 3, logprobs_BV.shape, generator=generator).float()
    together_BV = processors.process(logprobs_BV, RowSettings.of(SETTINGS), counts_BV)
    for row, config in enumerate(SETTINGS):
        one = slice(row, row + 1)
        alone_BV = processors.process(logprobs_BV[one], RowSettings.of([config]), counts_BV[one])
        assert torch.equal(together_BV[one], alone_BV)


@pytest.mark.parametrize("scale", [0.01, 3.0])
def test_the_quick_way_to_a_nucleus_finds_what_sorting_finds(scale: float) -> None:
    """One scale needs all but a few of the tokens, the other few of them."""
    generator = torch.Generator().manual_seed(1)
    logits_BV = scale * torch.randn(5, 10 * processors.NUCLEUS_SIZE, generator=generator)
    p_B1 = torch.tensor([[0.0], [0.3], [0.9], [0.999], [1.0]], dtype=torch.float64)
    quick_BV = processors.top_p(logits_BV, p_B1)
    sorted_BV = processors._top_p_by_sorting(logits_BV, p_B1)
    assert kept(quick_BV) == kept(sorted_BV)
    assert torch.equal(quick_BV.nan_to_num(neginf=-99), sorted_BV.nan_to_num(neginf=-99))
