"""Pre-trained vectors on CUDA give what they give on the CPU, and a run with them works there."""

from __future__ import annotations

import copy
import json
from pathlib import Path

import pytest
import torch

import elman
from elman.base.config import parse_overrides
from elman.batches.wording import NO_WORD, Spelled
from elman.models.embeddings import EmbeddingsConfig
from elman.models.static_vectors import StaticVectors
from elman.recipes.resolve import resolve
from elman.recipes.run import train
from elman.tasks.classification.batches import labelled_batch
from elman.tasks.classification.model import ClassifierConfig
from elman.tasks.classification.objective import ClassificationConfig, classification
from elman.testing import TOY_TREEBANK

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("fine_tuned", [False, True])
def test_the_same_losses_and_gradients(fine_tuned: bool) -> None:
    torch.manual_seed(1)
    settings = EmbeddingsConfig(path="x", dropout=0.0, enters="both", fine_tuned=fine_tuned)
    config = ClassifierConfig(hidden_size=8, embedding_size=6, embeddings=settings)
    words = ["a", "fine", "film"]
    here = config.build(9, 2, embedder=StaticVectors(words, torch.randn(3, 5))).eval()
    there = copy.deepcopy(here).to("cuda")
    there.embeddings.remember([["a", "fine"]])
    spelled = [Spelled.of_words(["a", "fine"]), Spelled(("film",), (0, 0, NO_WORD))]
    batch = labelled_batch([[1, 2], [3, 4, 5]], [0, 1], spelled)
    found = []
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        for model, device in ((here, "cpu"), (there, "cuda")):
            outcome = classification(ClassificationConfig(), model, None, batch.to(device), None)
            outcome.loss.backward()  # type: ignore[no-untyped-call]
            grads = {n: p.grad.cpu() for n, p in model.named_parameters() if p.grad is not None}
            found.append((outcome.loss.detach().cpu(), grads))
    torch.testing.assert_close(found[0][0], found[1][0], rtol=1e-4, atol=1e-5)
    assert found[0][1].keys() == found[1][1].keys()
    for name, gradient in found[0][1].items():
        torch.testing.assert_close(found[1][1][name], gradient, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("fine_tuned", ["false", "true"])
def test_a_run_with_word_vectors(tmp_path: Path, fine_tuned: str) -> None:
    (tmp_path / "toy.conllu").write_text(TOY_TREEBANK)
    (tmp_path / "glove.txt").write_text("the 1 2\nstudent 3 4\nbook -1 0\n")
    overrides = [
        *("model.hidden_size=16", "model.embedding_size=8", "schedule.warmup_steps=0"),
        f"model.embeddings.path={json.dumps(str(tmp_path / 'glove.txt'))}",
        f"model.embeddings.fine_tuned={fine_tuned}",
    ]
    if fine_tuned == "true":
        overrides.append("model.embeddings.unfreeze_epochs=0.5")
    paths = [str(tmp_path / "toy.conllu")]
    config = resolve(
        "tagger", paths, settings=parse_overrides(overrides), steps=40, device="cuda"
    ).config
    *_, last = train(config, tmp_path / "run", device="cuda")
    assert last.summary is not None
    tags = [
        elman.load(tmp_path / "run", device=device).tag("the student opened the book .")
        for device in ("cpu", "cuda")
    ]
    assert tags[0] == tags[1]
