"""Every built-in recipe: it parses, it builds, and it says what its paper says."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from elman import recipes
from elman.base.config import from_dict, to_dict
from elman.base.errors import ElmanError, UsageError
from elman.recipes.resolve import task_of_recipe
from elman.tasks.language_model import automatic
from elman.tasks.task import follows_corpus
from elman.tokens.choose import TokenizerChoice
from elman.train.optimisers import build
from elman.train.schedules import rate_factor


def config(name: str) -> Any:
    settings = recipes.read(name)
    if follows_corpus(settings):
        settings, _ = automatic.derived(settings, a_text(10**6, "pretokenized"))
    return read(settings)


def read(settings: dict[str, Any]) -> Any:
    return from_dict(task_of_recipe(settings).config_class, settings)


def test_the_list_describes_each() -> None:
    found = recipes.names()
    assert list(found) == sorted(found)
    assert {"ptb-zaremba-large", "ptb-awd-lstm", "char-lstm", "window-bengio"} <= found.keys()
    assert all(len(description) > 20 for description in found.values())


@pytest.mark.parametrize("name", recipes.names())
def test_a_recipe_builds_its_model(name: str) -> None:
    run = config(name)
    assert [run.training.epochs, run.training.steps, run.training.minutes].count(None) == 2
    # Sizes alone matter, so nothing is filled in; a sampled output layer has tables to compute.
    head = run.model.head if hasattr(run.model, "head") else run.model.decoder.head
    with torch.device("cpu" if head.kind == "sampled" else "meta"):
        model = run.model.build(50)
    assert sum(p.numel() for p in model.parameters()) > 1000
    assert build(run.optimiser, list(model.parameters())).param_groups
    assert read(to_dict(run)) == run


def test_the_translator_without_attention_is_otherwise_the_same() -> None:
    """As the recipe's comment says, and nothing else has to give way."""
    settings = recipes.read("multi30k-attention")
    settings["model"]["decoder"] |= {"attention": "none", "input_feeding": False}
    with torch.device("meta"):
        looking = config("multi30k-attention").model.build(50)
        plain = read(settings).model.build(50)
    kept = {name: p.shape for name, p in plain.named_parameters()}
    assert plain.decoder.attention is None
    assert kept.keys() < {name for name, _ in looking.named_parameters()}
    assert kept.keys() == {
        name for name, _ in looking.named_parameters() if "attention" not in name
    } - {"decoder.readout.weight"}


@pytest.mark.parametrize(
    ("name", "clip", "steps", "full_epochs", "divisor", "parameters"),
    [
        ("ptb-zaremba-small", 5, 20, 4, 2.0, 4_650_000),
        ("ptb-zaremba-medium", 5, 35, 6, 1.2, 19_780_000),
        ("ptb-zaremba-large", 10, 35, 14, 1.15, 66_030_000),
    ],
)
def test_zarembas_settings_in_our_units(
    name: str, clip: float, steps: int, full_epochs: int, divisor: float, parameters: int
) -> None:
    """Their loss is summed over a chunk's steps: rate 1 and their norm act on a larger gradient."""
    run = config(name)
    assert run.training.chunk_length == steps
    assert run.optimiser.learning_rate == pytest.approx(1.0 * steps)
    assert run.training.clip_norm == pytest.approx(clip / steps)

    def factor(epoch: int) -> float:
        return rate_factor(run.schedule, progress=0.5, step=10**6, epoch=epoch)

    assert factor(full_epochs - 1) == 1.0
    assert factor(full_epochs) == pytest.approx(1 / divisor)
    with torch.device("meta"):
        model = run.model.build(10_000)
    # The papers' figures are rounded, and count two biases per gate where we have one.
    assert sum(p.numel() for p in model.parameters()) == pytest.approx(parameters, rel=0.003)


@pytest.mark.parametrize(
    ("name", "parameters"),
    [("ptb-awd-lstm", 24_221_600), ("ptb-awd-mos", 22e6), ("ptb-mogrifier", 24e6)],
)
def test_it_has_the_published_size(name: str, parameters: float) -> None:
    with torch.device("meta"):
        model = config(name).model.build(10_000)
    tolerance = 0.003 if parameters % 1e6 else 0.03
    assert sum(p.numel() for p in model.parameters()) == pytest.approx(parameters, rel=tolerance)


def a_text(num_bytes: int, kind: str) -> automatic.Text:
    choice = TokenizerChoice(
        kind=kind, vocab_size=0, reason="", num_bytes=num_bytes, unknown_share=0.0,
        spaced_marks_share=0.0,
    )  # fmt: skip
    return automatic.Text(choice, kind)


def test_awd_lstm_is_the_penn_treebank_s_at_its_size() -> None:
    derived, notes = automatic.derived(recipes.read("awd-lstm"), a_text(5_100_000, "pretokenized"))
    published = recipes.read("ptb-awd-lstm")
    derived["tokenizer"] = published["tokenizer"]
    assert [derived["schedule"].pop(name) for name in ("hold", "final")] == [0.0, 0.0]  # defaults
    assert derived == published
    assert "for about 930,000 tokens: model.hidden_size 1150" in notes[0]
    larger, _ = automatic.derived(recipes.read("awd-lstm"), a_text(10_800_000, "pretokenized"))
    assert larger["training"]["batch_size"] == 64
    characters, _ = automatic.derived(recipes.read("awd-lstm"), a_text(1_100_000, "char"))
    assert read(characters).optimiser.kind == "adam"


def test_other_settings_do_not_follow_from_the_corpus() -> None:
    with pytest.raises(UsageError, match=r"'model\.num_layers' does not follow from the corpus"):
        automatic.derived({"model": {"num_layers": "corpus"}}, a_text(10**6, "char"))


def test_an_unknown_recipe_is_answered_with_the_nearest() -> None:
    with pytest.raises(UsageError) as caught:
        recipes.read("ptb-zaremba-lage")
    assert "ptb-zaremba-large" in caught.value.hint


def test_a_recipe_can_be_a_file(tmp_path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text('description = "mine"\n[model]\nkind = "window"\n')
    assert recipes.read(str(path)) == {"model": {"kind": "window"}}
    with pytest.raises(ElmanError, match="does not exist") as caught:
        recipes.read(str(tmp_path / "other.toml"))
    assert caught.value.hint
