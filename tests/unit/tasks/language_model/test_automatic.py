"""Automatic settings follow from the text, the machine and the minutes together."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elman import recipes
from elman.base.config import from_dict, merge, without_unread
from elman.runs.machine import Machine, machine
from elman.tasks.language_model import automatic
from elman.tasks.language_model.settings import LanguageModelRun
from elman.tokens.choose import choose_for

TWO_CORES, H200 = Machine("cpu", "2 cores"), Machine("cuda", "an H200")
PLAIN = "The quick brown fox jumps over the lazy dog. It was not amused, was it?\n" * 50
KINDS = st.sampled_from(["char", "word", "bpe", "pretokenized"])
SIZES = st.floats(3, 11).map(lambda digits: int(10**digits))
MINUTES = st.floats(0.1, 1000)
MACHINES = st.builds(
    Machine, st.sampled_from(["cpu", "cuda"]), st.just("a machine"), st.floats(0.05, 20)
)


def a_text(num_bytes: int, kind: str = "char") -> automatic.Text:
    return automatic.Text(choose_for([PLAIN], num_bytes), kind)


def chosen(
    text: automatic.Text, where: Machine, own: dict[str, Any] | None = None, **length: Any
) -> LanguageModelRun:
    """The automatic settings; `own` are the user's."""
    settings = merge(automatic.settings(text, where, True, length, recipes.read), own or {})
    if length:
        settings["training"] = {**settings["training"], "epochs": None, **length}
    config, _ = without_unread(lambda kept: from_dict(LanguageModelRun, kept), settings)
    assert isinstance(config, LanguageModelRun)
    return config


def expected(text: automatic.Text, where: Machine, **length: Any) -> automatic.Plan:
    return automatic.Plan.of(text, where, True, length)


@given(SIZES, KINDS, MACHINES, MINUTES)
def test_every_text_machine_and_time_has_settings(
    num_bytes: int, kind: str, where: Machine, minutes: float
) -> None:
    text = a_text(num_bytes, kind)
    config = chosen(text, where, minutes=minutes)
    assert config.training.minutes == minutes
    assert config.training.is_bf16(where.device) == where.is_gpu
    plan = expected(text, where, minutes=minutes)
    assert automatic.sentences(config, plan)
    lanes = config.training.batch_size * config.training.chunk_length
    assert config.training.batch_size == 1 or lanes * 4 <= text.num_tokens


@given(SIZES, KINDS, MINUTES, st.floats(1, 100))
def test_more_time_or_a_faster_machine_never_means_less(
    num_bytes: int, kind: str, minutes: float, times: float
) -> None:
    text = a_text(num_bytes, kind)
    less = expected(text, TWO_CORES, minutes=minutes)
    for more in (
        expected(text, TWO_CORES, minutes=minutes * times),
        expected(text, Machine("cpu", "many cores", times), minutes=minutes),
    ):
        assert more.width >= less.width
        if more.width == less.width:
            assert more.epochs >= less.epochs
            assert more.dropout >= less.dropout


@given(KINDS, MINUTES, SIZES, SIZES)
def test_a_larger_text_never_means_a_smaller_model_or_more_dropout(
    kind: str, minutes: float, one: int, other: int
) -> None:
    small, large = (
        expected(a_text(n, kind), TWO_CORES, minutes=minutes) for n in sorted((one, other))
    )
    assert small.width <= large.width
    if small.width == large.width:
        assert small.dropout >= large.dropout


@pytest.mark.parametrize(("minutes", "least"), [(0.5, 500), (1, 1000), (5, 3000), (30, 5000)])
@pytest.mark.parametrize("num_bytes", [500_000, 1_100_000, 5_000_000, 10**9])
def test_short_runs_make_many_small_updates(minutes: float, least: int, num_bytes: int) -> None:
    """It was 182 updates of 32 x 128 characters in a minute."""
    for kind in ("char", "pretokenized"):
        text = a_text(num_bytes, kind)
        training = chosen(text, TWO_CORES, minutes=minutes).training
        updates = expected(text, TWO_CORES, minutes=minutes).tokens
        updates /= training.batch_size * training.chunk_length
        assert updates >= least


def test_dropout_follows_the_epochs() -> None:
    once = chosen(a_text(10**9), TWO_CORES, minutes=30).model
    often = chosen(a_text(10**5), TWO_CORES, minutes=30).model
    assert (once.dropout_output, often.dropout_output) == (0.0, 0.5)
    text = a_text(10**6, "word")
    assert chosen(text, TWO_CORES, epochs=1).model.dropout_output == 0.0
    assert chosen(text, TWO_CORES, epochs=40).model.dropout_output >= 0.3


def test_a_text_of_few_words_has_a_full_softmax() -> None:
    """1,024 sampled words of 36 took longer than all of them."""
    heads = [chosen(a_text(n, "word"), TWO_CORES, minutes=1).model.head for n in (10**4, 10**6)]
    assert [head.kind for head in heads] == ["full", "sampled"]


def test_words_that_are_read_often_are_regularised_as_awd_lstm() -> None:
    """Python's manual had one layer of 192 units with dropout alone, and was 6 % behind."""
    cores = Machine("cpu", "2 cores", 6.3)
    manual, treebank = (chosen(a_text(n, "word"), cores, minutes=5) for n in (470_000, 5_100_000))
    assert (manual.model.hidden_size, manual.model.weight_drop) == (384, 0.5)
    assert manual.model.dropout_output == 0.5
    assert (manual.objective.activation_penalty, manual.objective.change_penalty) == (2.0, 1.0)
    assert manual.training.shuffle_lanes
    assert treebank.model.weight_drop == treebank.objective.activation_penalty == 0.0
    assert not treebank.training.shuffle_lanes
    notes = automatic.sentences(manual, expected(a_text(470_000, "word"), cores, minutes=5))
    assert any("dropout 0.5, weight drop 0.5, penalties on activations" in note for note in notes)


def test_weights_are_dropped_where_characters_are_read_often() -> None:
    cores = Machine("cpu", "2 cores", 6.3)
    often, seldom = (chosen(a_text(470_000), cores, minutes=minutes).model for minutes in (5, 1))
    assert (often.weight_drop, seldom.weight_drop) == (0.4, 0.0)
    assert often.dropout_embedding == 0.0


@pytest.mark.parametrize("where", [TWO_CORES, H200])
def test_cells_without_a_recurrent_matrix_have_settings(where: Machine) -> None:
    """Dropout of weights was chosen for them as for an LSTM, and then refused."""
    text = a_text(100_000, "word")
    assert chosen(text, where, epochs=60).model.weight_drop == 0.5
    config = chosen(text, where, {"model": {"cell": "mingru"}}, epochs=60)
    assert config.model.weight_drop == 0.0


def test_two_million_words_on_a_gpu_become_an_awd_lstm_in_bfloat16() -> None:
    """It was a 2x650 LSTM in float32."""
    text = a_text(10_800_000, "pretokenized")
    config = chosen(text, H200, minutes=8)
    model, training = config.model, config.training
    assert (model.num_layers, model.hidden_size, model.embedding_size) == (3, 1150, 400)
    assert model.tied
    assert model.locked
    assert 0.3 < model.weight_drop <= 0.5
    assert config.optimiser.kind == "sgd"
    assert training.is_bf16("cuda")
    assert training.shuffle_lanes
    notes = "\n".join(automatic.sentences(config, expected(text, H200, minutes=8)))
    assert "bfloat16" in notes
    assert "CUDA graphs" in notes
    shorter = chosen(text, H200, minutes=1).model
    assert 0 < shorter.weight_drop < model.weight_drop


def test_a_rate_stays_constant_on_a_gpu_that_reads_words_often() -> None:
    """It fell, which left the Penn Treebank 11 % behind the recipe after 100 epochs."""
    text = a_text(5_100_000, "pretokenized")
    often, seldom = (chosen(text, H200, minutes=minutes) for minutes in (3, 0.6))
    assert often.schedule.kind == "constant"
    assert often.optimiser.average == "two_tailed"
    assert often.model.weight_drop == 0.5
    assert often.training.vary_chunks
    assert seldom.schedule.kind == "cosine"
    assert seldom.optimiser.average == "none"
    assert seldom.model.weight_drop < 0.5
    assert not seldom.training.vary_chunks


def test_a_text_that_a_gpu_reads_once_needs_no_regularisation() -> None:
    model = chosen(a_text(10**10, "bpe"), H200, minutes=10).model
    assert model.weight_drop == model.dropout_output == 0.0
    assert model.hidden_size >= 1024


def test_the_reasons_name_the_time_and_the_epochs() -> None:
    text = a_text(1_100_000)
    config = chosen(text, TWO_CORES, minutes=1)
    notes = "\n".join(automatic.sentences(config, expected(text, TWO_CORES, minutes=1)))
    assert f"of {config.model.hidden_size} LSTM units" in notes
    assert "1,100,000 tokens in 1 minute on 2 cores" in notes
    assert "no dropout" in notes


@pytest.mark.parametrize(
    ("kind", "cores", "width", "measured"),
    [
        ("char", 3.85, 256, 141_807),
        ("char", 3.85, 512, 48_386),
        ("char", 6.3, 512, 83_636),
        ("pretokenized", 3.85, 384, 26_784),
        ("pretokenized", 3.85, 768, 9_709),
        ("pretokenized", 6.3, 384, 39_825),
    ],
)
def test_the_expected_speed_is_that_of_a_measured_processor(
    kind: str, cores: float, width: int, measured: float
) -> None:
    """Words were expected to be read 1.4 times as fast as a Zen 5 core reads them."""
    plan = expected(a_text(5_000_000, kind), Machine("cpu", "cores", cores), minutes=5)
    assert plan.tokens_read(width) / plan.seconds == pytest.approx(measured, rel=0.12)


def test_five_minutes_on_one_core_choose_what_was_measured() -> None:
    """docs/log/2026-11-16-automatic.md has the perplexities."""
    core = Machine("cpu", "1 core", 3.85)
    words = chosen(a_text(5_100_000, "pretokenized"), core, minutes=5)
    assert (words.model.hidden_size, words.model.dropout_output) == (384, 0.35)
    assert words.optimiser.kind == "sgd"
    characters = chosen(a_text(1_000_000), core, minutes=5)
    assert (characters.model.hidden_size, characters.model.dropout_output) == (512, 0.3)
    small = chosen(a_text(420_000), core, minutes=5)
    assert (small.model.hidden_size, small.model.dropout_output) == (512, 0.4)


def test_the_speed_of_this_machine_is_a_number() -> None:
    speed = machine("cpu").timed().speed
    assert 0 < speed < math.inf
