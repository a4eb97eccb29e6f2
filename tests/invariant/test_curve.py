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

from elman.nn.kernels import recorded_plans
from elman.recipes.resolve import resolve
from elman.recipes.run import train
from elman.testing import TOY_TEXT
from kernels_here import KernelCase, kernels_here

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

CURVES = {
    "lstm": (
        [2.70574, 2.40975, 1.97942, 1.75954, 1.66496, 1.55114],
        [2.21668, 1.73483, 1.62319],
    ),
    "mingru": (
        [2.73606, 2.62992, 2.51298, 2.37320, 2.26199, 2.28660],
        [2.57397, 2.36056, 2.31929],
    ),
}
"""Training and validation losses, by cell."""


@pytest.fixture(
    params=[pytest.param(case, marks=case.marks, id=case.name) for case in kernels_here()]
)
def case(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.fixture
def config(case: KernelCase, tmp_path: Path) -> Iterator[Any]:
    """The recipe on one kernel, which every layer has executed in the end."""
    text, recipe = tmp_path / "toy.txt", tmp_path / "recipe.toml"
    text.write_text(TOY_TEXT)
    settings = f'kernel = "{case.kernel}"\ncell = "{case.cell}"\n'
    settings += "" if case.cell == "mingru" else "weight_drop = 0.1\n"
    layers = RECIPE
    if case.kernel == "wave":  # it draws the masks between layers before all others
        layers = RECIPE.replace("dropout_hidden = 0.1", "dropout_hidden = 0")
    recipe.write_text(layers.replace("[objective]", f"{settings}[objective]"))
    with case.executed() as plans:
        yield resolve("lm", [str(text)], recipe=str(recipe)).config
    if case.kernel == "auto":  # such small layers train on torch's; samples are compiled steps
        executed = {plan.kernel for found in plans.values() for plan in found}
        assert "torch" in executed
        assert executed <= {"torch", "cpu"}


def curve(config: Any, folder: Path, device: str) -> tuple[list[float], list[float]]:
    reports = list(train(config, folder, device=device))
    losses = [r.loss for r in reports if r.kind == "step"]
    return losses, [r.valid_loss for r in reports if r.kind == "valid"]  # type: ignore[return-value]


def test_the_toy_corpus_is_learnt_along_the_same_curve(
    case: KernelCase, config: Any, tmp_path: Path
) -> None:
    losses, valid_losses = curve(config, tmp_path / "run", case.device)
    # Kernels of other processors round otherwise; 60 steps do not let that grow beyond this.
    (expected, expected_valid), tolerance = CURVES[case.cell], 2e-3
    if case.device == "cuda" or case.kernel == "wave":
        on_torch = replace(config, model=replace(config.model, kernel="torch"))
        with recorded_plans():
            expected, expected_valid = curve(on_torch, tmp_path / "torch", case.device)
    if case.device == "cuda":  # other dropout masks, and products in TensorFloat-32
        tolerance = 2e-2
    assert losses == pytest.approx(expected, rel=tolerance)
    assert valid_losses == pytest.approx(expected_valid, rel=tolerance)


def test_a_resumed_run_equals_an_uninterrupted_one(
    case: KernelCase, config: Any, tmp_path: Path
) -> None:
    """To the last bit on a CPU: so runs repeat under their seed, too."""
    training = replace(config.training, steps=20, checkpoint_seconds=0)
    config, device = replace(config, training=training), case.device
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    expected = {r.step: r.loss for r in train(config, whole, device=device) if r.kind == "step"}
    for report in train(config, broken, device=device):
        if report.kind == "step":
            break  # as if killed here: the last checkpoint is all that is left
    resumed = list(train(config, broken, device=device, resume=True))
    assert any(r.kind == "resume" for r in resumed)
    found = {r.step: r.loss for r in resumed if r.kind == "step"}
    if device == "cuda":  # torch's sums on a GPU have no fixed order
        assert found == pytest.approx({step: expected[step] for step in found}, rel=1e-3)
        return
    assert found.items() <= expected.items()
    assert (broken / "model.safetensors").read_bytes() == (whole / "model.safetensors").read_bytes()
