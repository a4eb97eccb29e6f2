"""The same logits give the same choices as Hugging Face's processors."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from torch import Tensor
from transformers import (
    LogitsProcessorList,
    MinPLogitsWarper,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from elman.decode import processors
from elman.decode.options import DecodeOptions
from elman.decode.rows import RowSettings

NO_IDS = torch.zeros(1, 0, dtype=torch.long)

# Few distinct values make many ties; -inf is a token that was ruled out before.
TIED = st.sampled_from([-math.inf, -5.0, -1.0, 0.0, 0.5, 3.0])
SPREAD = st.floats(-30, 30, width=32)


@st.composite
def logits(draw: st.DrawFn) -> Tensor:
    shape = (draw(st.integers(1, 3)), draw(st.integers(2, 40)))
    logits_BV = draw(hnp.arrays(np.float32, shape, elements=draw(st.sampled_from([TIED, SPREAD]))))
    # A row without any possible token has no distribution.
    logits_BV[~np.isfinite(logits_BV).any(axis=1), 0] = 0.0
    # Rounding decides between numbers that differ by 1e-38, such as 0 and the next one.
    return torch.from_numpy(logits_BV.round(3))


def same_choices(ours_BV: Tensor, theirs_BV: Tensor) -> None:
    assert torch.equal(ours_BV.isfinite(), theirs_BV.isfinite())
    torch.testing.assert_close(ours_BV.softmax(dim=-1), theirs_BV.softmax(dim=-1))
    assert not ours_BV.softmax(dim=-1).isnan().any()


@given(logits(), st.sampled_from([0.05, 0.3, 0.7, 1.0, 1.3, 10.0]))
def test_temperature(logits_BV: Tensor, temperature: float) -> None:
    theirs_BV = TemperatureLogitsWarper(temperature)(NO_IDS, logits_BV)
    same_choices(processors.temperature(logits_BV, temperature), theirs_BV)


@given(logits(), st.integers(1, 50))
def test_top_k(logits_BV: Tensor, k: int) -> None:
    same_choices(processors.top_k(logits_BV, k), TopKLogitsWarper(k)(NO_IDS, logits_BV))


@given(logits(), st.sampled_from([0.0, 1e-10, 1e-4, 0.1, 0.5, 0.9, 0.999, 1.0]) | st.floats(0, 1))
def test_top_p(logits_BV: Tensor, p: float) -> None:
    same_choices(processors.top_p(logits_BV, p), TopPLogitsWarper(p)(NO_IDS, logits_BV))


@given(logits(), st.sampled_from([0.0, 0.05, 0.5, 1.0]) | st.floats(0, 1))
def test_min_p(logits_BV: Tensor, p: float) -> None:
    same_choices(processors.min_p(logits_BV, p), MinPLogitsWarper(p)(NO_IDS, logits_BV))


@given(
    logits(),
    st.sampled_from([0.3, 1.0, 1.7]),
    st.integers(1, 50),
    st.sampled_from([0.2, 0.9, 0.99]),
    st.sampled_from([0.01, 0.3]),
)
def test_all_together(
    logits_BV: Tensor, temperature: float, k: int, p: float, min_p: float
) -> None:
    def theirs(shift: float) -> Tensor:
        processed: Tensor = LogitsProcessorList(
            [
                TemperatureLogitsWarper(temperature),
                TopKLogitsWarper(k),
                TopPLogitsWarper(min(1.0, p * shift)),
                MinPLogitsWarper(min(1.0, min_p * shift)),
            ]
        )(NO_IDS, logits_BV)
        return processed

    # At a border, rounding decides: leave out cases in which a slightly other p or min_p would.
    kept = [theirs(shift).isfinite() for shift in (1.0, 1 - 1e-5, 1 + 1e-5)]
    assume(torch.equal(kept[0], kept[1]) and torch.equal(kept[0], kept[2]))
    config = DecodeOptions(temperature=temperature, top_k=k, top_p=p, min_p=min_p)
    same_choices(processors.process(logits_BV, RowSettings.of([config])), theirs(1.0))


@pytest.mark.parametrize("vocab_size", [10_000, 50_257])
def test_a_real_vocabulary(vocab_size: int) -> None:
    logits_BV = 3 * torch.randn(4, vocab_size, generator=torch.Generator().manual_seed(0))
    theirs = LogitsProcessorList(
        [
            TemperatureLogitsWarper(0.8),
            TopKLogitsWarper(5000),
            TopPLogitsWarper(0.95),
            MinPLogitsWarper(0.001),
        ]
    )
    config = DecodeOptions(temperature=0.8, top_k=5000, top_p=0.95, min_p=0.001)
    same_choices(processors.process(logits_BV, RowSettings.of([config])), theirs(NO_IDS, logits_BV))


@pytest.mark.parametrize("p", [1e-12, 0.3, 1.0])
def test_equal_logits(p: float) -> None:
    logits_BV = torch.zeros(2, 17)
    same_choices(processors.top_p(logits_BV, p), TopPLogitsWarper(p)(NO_IDS, logits_BV))
    same_choices(processors.min_p(logits_BV, p), MinPLogitsWarper(p)(NO_IDS, logits_BV))
