"""Sentence tasks on CUDA give what they give on the CPU: losses, gradients, tags, beams, runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import elman
from elman import testing
from elman.base.config import parse_overrides
from elman.base.documents import read_json_lines
from elman.batches.conditional import conditional_batch
from elman.decode.conditional import decode
from elman.decode.options import DecodeOptions
from elman.nn.character_cnn import spelling_table
from elman.objectives.objective_config import RegimeConfig
from elman.objectives.outcome import Outcome
from elman.objectives.regimes import training_objective
from elman.recipes.resolve import resolve
from elman.recipes.run import train
from elman.tasks.classification.batches import labelled_batch
from elman.tasks.classification.model import ClassifierConfig
from elman.tasks.classification.objective import ClassificationConfig, classification
from elman.tasks.tagging.batches import encode_tagged, tagged_batch
from elman.tasks.tagging.model import TaggerConfig
from elman.tasks.tagging.objective import tagging
from elman.tasks.tagging.vocabulary import make_vocabulary
from tiny_models import TINY

pytestmark = pytest.mark.gpu

DEVICE = "cuda"
ROWS = [
    (["the", "dog", "sees", "the", "cat"], ["D", "N", "V", "D", "N"]),
    (["dogs", "run"], ["N", "V"]),
    (["New York"], ["N"]),
]
REGIMES = [
    *("teacher_forcing", "scheduled_sampling", "free_running", "professor_forcing"),
    *("minimum_risk", "self_critical"),
]


@pytest.fixture(autouse=True)
def _exact_products() -> Any:
    """cuDNN's layers use TensorFloat-32 unless told otherwise: ten bits are too few to compare."""
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        yield


def gradients(model: nn.Module, outcome: Outcome) -> dict[str, torch.Tensor]:
    model.zero_grad()
    outcome.loss.backward()  # type: ignore[no-untyped-call]
    return {n: p.grad.cpu().clone() for n, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("output", ["softmax", "crf"])
@pytest.mark.parametrize("characters", ["cnn", "lstm"])
def test_taggers(output: Any, characters: Any) -> None:
    vocabulary, counts = make_vocabulary(ROWS)
    data = encode_tagged(ROWS, vocabulary)
    batch = tagged_batch(data.sentences, spelling_table(data.spellings, 32))
    config = TaggerConfig(
        hidden_size=8, embedding_size=6, character_size=6, output=output, characters=characters
    )
    torch.manual_seed(1)
    model = config.build(
        vocabulary.vocab_size, len(vocabulary.labels), counts_V=torch.tensor(counts)
    ).eval()
    found = []
    for device in ("cpu", DEVICE):
        model, moved = model.to(device), batch.to(device)
        outcome = tagging(model, moved, None)
        emissions_BTN = model.emissions(
            moved.words_BT, moved.spellings_BT, moved.characters_UC, moved.lengths_B
        )
        mask_BT = moved.mask()
        found.append(
            (
                outcome.loss.detach().cpu(),
                gradients(model, outcome),
                model.best(emissions_BTN, mask_BT).cpu(),
                model.marginals(emissions_BTN, mask_BT).detach().cpu(),
            )
        )
    torch.testing.assert_close(found[1], found[0], rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("pooling", ["last", "mean", "max", "attention"])
def test_classifiers(pooling: Any) -> None:
    torch.manual_seed(1)
    model = ClassifierConfig(hidden_size=8, embedding_size=6, pooling=(pooling,)).build(9, 3).eval()
    batch = labelled_batch([[1, 2, 3, 4], [5], [6, 7]], [0, 2, 1])
    found = []
    for device in ("cpu", DEVICE):
        model = model.to(device)
        outcome = classification(ClassificationConfig(), model, None, batch.to(device), None)
        found.append((outcome.loss.detach().cpu(), gradients(model, outcome)))
    torch.testing.assert_close(found[1], found[0], rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("name", ["attention bilinear", "input feeding", "sequence to sequence"])
@pytest.mark.parametrize("beam_size", [1, 4])
def test_translations(name: str, beam_size: int) -> None:
    """The same hypotheses, ragged sources side by side."""
    model = testing.build(TINY[name])
    source_BS = testing.some_tokens(3, 6, seed=3)
    mask_BS = torch.arange(6) < torch.tensor([[6], [2], [4]])
    config = DecodeOptions(beam_size=beam_size, greedy=beam_size == 1, max_tokens=12)
    found = []
    for device in ("cpu", DEVICE):
        model = model.to(device)
        with torch.no_grad():
            state = model.condition(source_BS.to(device), mask_BS.to(device))
        found.append(decode(model, state, config, boundary_id=2, limits=[12, 5, 9]))
    for here, there in zip(*found, strict=True):
        assert [h.tokens for h in here] == [h.tokens for h in there]
        for one, other in zip(here, there, strict=True):
            assert one.logprob == pytest.approx(other.logprob, abs=1e-4)


@pytest.mark.parametrize("regime", REGIMES)
@pytest.mark.parametrize("name", ["attention bilinear", "input feeding"])
def test_regimes(name: str, regime: Any) -> None:
    """What is drawn differs between devices; that all of it is finite and learns does not."""
    torch.manual_seed(0)
    model = testing.build(TINY[name]).train().to(DEVICE)
    source_BS = testing.some_tokens(2, 4, seed=3)
    mask_BS = torch.tensor([[True] * 4, [True, True, False, False]])
    batch = conditional_batch((source_BS, mask_BS), [[4, 5, 6], [7]], boundary_id=2).to(DEVICE)
    few = {"num_candidates": 2} if regime == "minimum_risk" else {}
    config = RegimeConfig(regime=regime, label_smoothing=0.1, **few)
    outcome = training_objective(config, model, end_id=2)(batch, None)
    found = gradients(model, outcome)
    assert all(bool(gradient.isfinite().all()) for gradient in found.values())
    assert any(bool(found[key].abs().sum() > 0) for key in found if key.startswith("encoder"))


def test_a_translator_learns_and_is_resumed(tmp_path: Path) -> None:
    """A whole run by the commands' own way, to the test and to a translation."""
    source, target = tmp_path / "toy.en", tmp_path / "toy.ne"
    lines = testing.TOY_TEXT.splitlines()
    source.write_text("\n".join(lines) + "\n", encoding="utf-8")
    target.write_text("".join(" ".join(line.split()[::-1]) + "\n" for line in lines))
    settings = [
        *("model.decoder.hidden_size=48", "model.decoder.embedding_size=48"),
        *(f"model.decoder.dropout_{name}=0" for name in ("embedding", "input", "hidden", "output")),
        *("tokenizer.kind=word", "optimiser.learning_rate=0.01", "schedule.warmup_steps=0"),
        *("training.batch_size=32", "training.checkpoint_seconds=0", "training.validate_every=50"),
    ]
    pair = [str(source), str(target)]
    config = resolve(
        "translator",
        pair,
        valid=pair,
        test=pair,
        settings=parse_overrides(settings),
        steps=150,
        device=DEVICE,
    ).config
    out = tmp_path / "run"
    reports = train(config, out, device=DEVICE)
    while next(reports).step < 60:
        pass
    reports.close()
    *_, last = train(config, out, device=DEVICE, resume=True)
    assert last.summary is not None
    assert last.summary["test_perplexity"] < 3
    translator: Any = elman.load(out, device=DEVICE)
    here: Any = elman.load(out, device="cpu")
    assert translator.translate(lines[0]) == here.translate(lines[0])
    rows = read_json_lines(out / "metrics.jsonl")
    steps = [row["step"] for row in rows if row["kind"] == "step"]
    assert steps == sorted(set(steps))
