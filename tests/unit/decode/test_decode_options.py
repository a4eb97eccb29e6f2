from __future__ import annotations

import math
from typing import Any

import pytest

from elman.base.config import describe, from_dict, to_dict
from elman.base.errors import UsageError
from elman.decode.options import DecodeConfig


@pytest.mark.parametrize(
    "settings",
    [
        {"max_tokens": 0},
        {"num_samples": 0},
        {"beam_size": 0},
        {"top_k": -1},
        {"seed": -1},
        {"temperature": -0.1},
        {"temperature": math.nan},
        {"temperature": math.inf},
        {"top_p": 1.5},
        {"min_p": -0.1},
        {"length_penalty": -1.0},
        {"frequency_penalty": 3.0},
        {"presence_penalty": -2.5},
        {"logit_bias": {"a": 1.0}},
        {"logit_bias": {1: math.nan}},
        {"beam_size": 2, "num_samples": 3},
        {"beam_size": 2, "temperature": 0.5},
        {"beam_size": 2, "top_k": 5},
        {"beam_size": 2, "greedy": True},
    ],
)
def test_impossible_settings_are_refused_with_a_hint(settings: dict[str, Any]) -> None:
    with pytest.raises(UsageError) as caught:
        DecodeConfig(**settings)
    assert (
        list(settings)[-1].split("_")[0] in caught.value.message or "beam" in caught.value.message
    )
    assert caught.value.hint


def test_temperature_zero_means_greedy() -> None:
    assert DecodeConfig(temperature=0.0).is_greedy
    assert DecodeConfig(greedy=True).is_greedy
    assert not DecodeConfig().is_greedy


def test_reads_back_what_json_writes() -> None:
    config = DecodeConfig(logit_bias={3: -100.0}, top_p=0.9, seed=1)
    data = to_dict(config)
    data["logit_bias"] = {str(token): value for token, value in data["logit_bias"].items()}
    assert from_dict(DecodeConfig, data) == config


def test_every_setting_is_explained() -> None:
    assert all(setting.prose for setting in describe(DecodeConfig))
