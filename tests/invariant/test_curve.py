"""A reference curve: a refactoring that changes what is learnt, however little, is noticed here.

Every kernel that this machine can execute follows the same curve, repeats under its seed, and
resumes exactly. Where a change is meant to alter training (a new initialisation, say), replace the
figures by what the failing test prints, and say so in the commit.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from elman.nn.kernels import mkl, recorded_plans
from elman.recipes.resolve import resolve
from elman.recipes.run import train
from elman.testing import TOY_TEXT

RECIPE = """
[tokenizer]
kind = "char"

[model]
kind = "recurrent"
num_layers = 2
hidden_size = 16
embedding_size = 16
tied = false
dropout_input = 0.1
dropout_hidden = 0.1
dropout_output = 0.1
weight_drop = 0.1

[objective]
activation_penalty = 0.1
change_penalty = 0.1

[optimiser]
kind = "adam"
learning_rate = 0.03

[schedule]
kind = "cosine"
warmup_steps = 5

[training]
batch_size = 4
chunk_length = 32
steps = 60
report_every = 10
validate_every = 20
clip_norm = 0.5
sample_length = 20
seed = 11
"""

LOSSES = [2.70574, 2.40975, 1.97942, 1.75954, 1.66496, 1.55114]
VALID_LOSSES = [2.21668, 1.73483, 1.62319]


KERNELS = ["auto", "reference", "torch", "cpu"]


@pytest.fixture(params=KERNELS)
def config(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    """The recipe on one kernel, which every layer has executed in the end."""
    if request.param == "cpu" and not mkl.available():
        pytest.skip("compiled loops are off here")
    text, recipe = tmp_path / "toy.txt", tmp_path / "recipe.toml"
    text.write_text(TOY_TEXT)
    recipe.write_text(RECIPE.replace("[objective]", f'kernel = "{request.param}"\n[objective]'))
    with recorded_plans() as plans:
        yield resolve("lm", [str(text)], recipe=str(recipe)).config
    executed = {plan.kernel for found in plans.values() for plan in found}
    if request.param == "auto":  # such small layers train on torch's; samples are compiled steps
        assert "torch" in executed
        assert executed <= {"torch", "cpu"}
    else:
        assert executed == {request.param}


def test_the_toy_corpus_is_learnt_along_the_same_curve(config: Any, tmp_path: Path) -> None:
    reports = list(train(config, tmp_path / "run", device="cpu"))
    losses = [r.loss for r in reports if r.kind == "step"]
    valid_losses = [r.valid_loss for r in reports if r.kind == "valid"]
    # Kernels of other processors round otherwise; 60 steps do not let that grow beyond this.
    assert losses == pytest.approx(LOSSES, rel=2e-3)
    assert valid_losses == pytest.approx(VALID_LOSSES, rel=2e-3)


def test_a_resumed_run_equals_an_uninterrupted_one(config: Any, tmp_path: Path) -> None:
    """To the last bit: so runs repeat under their seed, too."""
    training = replace(config.training, steps=20, checkpoint_seconds=0)
    config = replace(config, training=training)
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    expected = {r.step: r.loss for r in train(config, whole, device="cpu") if r.kind == "step"}
    for report in train(config, broken, device="cpu"):
        if report.kind == "step":
            break  # as if killed here: the last checkpoint is all that is left
    resumed = list(train(config, broken, device="cpu", resume=True))
    assert any(r.kind == "resume" for r in resumed)
    assert {r.step: r.loss for r in resumed if r.kind == "step"}.items() <= expected.items()
    assert (broken / "model.safetensors").read_bytes() == (whole / "model.safetensors").read_bytes()
