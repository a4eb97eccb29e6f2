"""ELMo on CUDA beside the CPU: losses, gradients, autocast, and vectors."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from elman.evaluate.contextual import layer_vectors
from elman.nn.character_cnn import CharacterCNNConfig
from elman.tasks.elmo.model import BidirectionalLM, ElmoConfig, ElmoEmbedder, spelled

pytestmark = pytest.mark.gpu

CONFIG = ElmoConfig(
    hidden_size=24,
    projection_size=16,
    dropout=0.0,
    character_cnn=CharacterCNNConfig(
        character_size=4, filters=(8, 8), activation="relu", max_characters=12, padding="read"
    ),
)
VARIANTS = {
    "projected": CONFIG,
    "clipped": replace(CONFIG, cell_clip=0.3, projection_clip=0.2),
    "plain": replace(CONFIG, projection_size=0),
}
WORDS = ["<S>", "</S>", "a", "bc", "def", "ghij"]
PLACES = torch.tensor([[0, 2, 3, 4, 1], [0, 5, 5, 2, 1], [0, 4, 2, 3, 1]])
SENTENCES = [["a", "bc"], [], ["ghij", "a", "def", "a"], ["x" * 100], ["a", "é"]]


def build(config: ElmoConfig) -> BidirectionalLM:
    torch.manual_seed(0)
    return config.build(6, counts_V=torch.ones(6))


def gradients(model: BidirectionalLM, device: str) -> tuple[torch.Tensor, list[torch.Tensor]]:
    characters_UC = spelled(WORDS, model.config.character_cnn).to(device)
    places_BX = PLACES.to(device)
    right, left = model.losses(characters_UC, places_BX, places_BX.clamp(min=1))
    loss = right.mean() + left.mean()
    model.zero_grad()
    loss.backward()
    return loss.detach().cpu(), [
        p.grad.float().cpu().clone() for p in model.parameters() if p.grad is not None
    ]


@pytest.mark.parametrize("name", VARIANTS)
def test_losses_and_gradients(name: str) -> None:
    model = build(VARIANTS[name])
    expected = gradients(model, "cpu")
    found = gradients(model.cuda(), "cuda")
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-4)
    with torch.autocast("cuda", dtype=torch.bfloat16, cache_enabled=False):
        rounded = gradients(model, "cuda")
    torch.testing.assert_close(rounded, expected, rtol=0.1, atol=0.05)


@pytest.mark.parametrize("name", VARIANTS)
@pytest.mark.parametrize("carry_state", [False, True])
def test_vectors(name: str, carry_state: bool) -> None:
    embedder = ElmoEmbedder(build(VARIANTS[name])).eval()
    expected = list(layer_vectors(embedder, SENTENCES, layers="all", carry_state=carry_state))
    embedder.cuda()
    found = list(layer_vectors(embedder, SENTENCES, layers="all", carry_state=carry_state))
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-4)
