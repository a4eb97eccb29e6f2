"""`elman bench beams`: both sides find the same texts."""

from __future__ import annotations

import pytest
import torch

from elman.bench import beams as bench
from elman.bench import sentences
from elman.bench.sentences import PlainTranslator, translation_model
from small_tasks import uncompiled

SMALL = (32, 64, 8)


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (bench, sentences):
        monkeypatch.setattr(module, "LENGTHS", (3, 9, 5))
        monkeypatch.setattr(module, "TRANSLATOR", SMALL)


@pytest.mark.parametrize("beam", [4, 1])
def test_both_sides_find_the_same_texts(beam: int) -> None:
    torch.manual_seed(0)
    model = uncompiled(translation_model()).double().eval()
    with torch.no_grad():
        for weights in model.parameters():  # so that the best hypotheses differ
            weights.mul_(3)
    peer = PlainTranslator(model).double().eval()
    sources = bench.random_sentences(11)
    ours, plain = (
        search(one, sources, beam) for search, one in ((bench.ours, model), (bench.plain, peer))
    )
    assert [tokens for tokens, _ in ours] == [tokens for tokens, _ in plain]
    assert [len(tokens) for tokens, _ in ours] == [len(source) for source in sources]
    assert [logprob for _, logprob in ours] == pytest.approx([logprob for _, logprob in plain])


def test_rows() -> None:
    found = list(bench.measure(5, 3, 1, "cpu"))
    assert [row.name for row in found] == ["beam of 3", "greedy search"]
    for row in found:
        assert row.unit == "sentences/s"
        assert row.ratio == pytest.approx(row.ours / row.peer)
        assert row.settings["logprob"] == pytest.approx(row.settings["peer_logprob"], rel=1e-3)


@pytest.mark.gpu
def test_rows_on_a_gpu() -> None:
    for row in bench.measure(5, 3, 1, "cuda"):
        assert row.settings["logprob"] == pytest.approx(row.settings["peer_logprob"], rel=1e-2)
        assert "replayed" in row.settings["steps"]
