"""The bidirectional language model: what each direction sees, and that it learns."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from elman.batches.wording import Spelled, Wording
from elman.models.embeddings import Embeddings, EmbeddingsConfig
from elman.nn.character_cnn import CharacterCNNConfig
from elman.nn.heads.sampled import SampledConfig
from elman.tasks.elmo.model import BidirectionalLM, ElmoConfig, ElmoEmbedder, spelled

CONFIG = ElmoConfig(
    hidden_size=10,
    projection_size=6,
    dropout=0.0,
    character_cnn=CharacterCNNConfig(
        character_size=4, filters=(3, 4), activation="relu", max_characters=9, padding="read"
    ),
)
VARIANTS = {
    "plain": CONFIG,
    "clipped": replace(CONFIG, cell_clip=0.8, projection_clip=0.6),
    "no projection": replace(CONFIG, projection_size=0),
    "two softmaxes": replace(CONFIG, shared_softmax=False),
    "sampled": replace(CONFIG, head=SampledConfig(num_samples=6)),
    "peephole, layer norm": replace(CONFIG, peephole=True, layer_norm=True),
    "gru of the lecture": replace(
        CONFIG, cell="gru", gru_form="reset_before", projection_size=ElmoConfig.projection_size
    ),
    "padding ignored": replace(CONFIG, character_cnn=CharacterCNNConfig(filters=(2, 3))),
}
WORDS = ["<S>", "</S>", "a", "bc", "def", "ghij"]
PLACES = torch.tensor([[0, 2, 3, 4, 1], [0, 5, 5, 2, 1]])
TARGETS = torch.where(PLACES < 2, 0, PLACES)


def build(config: ElmoConfig) -> BidirectionalLM:
    torch.manual_seed(0)
    return config.build(6, counts_V=torch.tensor([2, 0, 2, 1, 1, 2]))


def losses(model: BidirectionalLM, places: Tensor = PLACES) -> tuple[Tensor, Tensor]:
    right, left = model.losses(spelled(WORDS, model.config.character_cnn), places, TARGETS)
    return right, left


@torch.no_grad()
def mean_losses(model: BidirectionalLM) -> tuple[float, float]:
    right, left = losses(model.eval())
    return right.mean().item(), left.mean().item()


@pytest.mark.parametrize("name", VARIANTS)
def test_learns_sentences_by_heart(name: str) -> None:
    model = build(VARIANTS[name])
    optimiser = torch.optim.Adam(model.parameters(), lr=0.02)
    for step in range(100):
        optimiser.zero_grad()
        total = sum(part.mean() for part in losses(model.train()))
        assert isinstance(total, Tensor)
        total.backward()
        optimiser.step()
        # The first word of a sentence is one of two in each direction: ln 2 / 4 remains.
        if step % 10 == 9 and max(mean_losses(model)) < 0.3:
            break
    assert max(mean_losses(model)) < 0.3
    assert all(p.grad is not None for p in model.parameters())


def test_each_direction_is_blind_to_what_it_predicts() -> None:
    model = build(CONFIG).eval()
    right, left = losses(model)
    changed = PLACES.clone()
    changed[:, 2] = 4  # the word read; the targets stay as they were
    right_after, left_after = losses(model, changed)
    # Forward, position 1 and 2 are predicted without having read position 2; from 3 on with it.
    torch.testing.assert_close(right[:, :2], right_after[:, :2])
    assert (right[:, 2:] - right_after[:, 2:]).abs().min() > 1e-6
    # Backward losses are those of positions 0 to 3: 2 and 3 are predicted from what comes later.
    torch.testing.assert_close(left[:, 2:], left_after[:, 2:])
    assert (left[:, :2] - left_after[:, :2]).abs().min() > 1e-6


def test_losses_are_surprisals_over_the_vocabulary() -> None:
    """The forward half by hand: vectors of the top layer, the softmax, minus the log."""
    model = build(replace(CONFIG, head=SampledConfig(num_samples=3))).eval()
    right, left = losses(model)
    vectors_UE = model.input.spelled(spelled(WORDS, CONFIG.character_cnn))
    layers_LBXD, _ = model.vectors(vectors_UE[PLACES])
    top_BXE, bottom_BXE = layers_LBXD[-1].chunk(2, dim=-1)
    assert model.head is not None
    forward = model.head.logprobs_all(top_BXE[:, :-1]).gather(2, TARGETS[:, 1:, None])
    backward = model.head.logprobs_all(bottom_BXE[:, 1:]).gather(2, TARGETS[:, :-1, None])
    torch.testing.assert_close(right, -forward.squeeze(2))
    torch.testing.assert_close(left, -backward.squeeze(2))


def test_residual_adds_the_layer_below() -> None:
    config = replace(CONFIG, cell_clip=0.0)
    plain, residual = build(replace(config, residual=False)), build(config)
    vectors_BXE = torch.randn(2, 5, 6)
    with_LBXD, _ = residual.vectors(vectors_BXE)
    without_LBXD, _ = plain.vectors(vectors_BXE)
    torch.testing.assert_close(with_LBXD[:2], without_LBXD[:2])
    torch.testing.assert_close(with_LBXD[2], without_LBXD[2] + without_LBXD[1])


def test_dropout_is_for_training_alone() -> None:
    for setting in ("dropout", "dropout_words"):
        model = build(replace(CONFIG, **{setting: 0.5}))
        first, second = (losses(model.train())[0] for _ in range(2))
        assert (first - second).abs().max() > 1e-3
        torch.testing.assert_close(losses(model.eval()), losses(build(CONFIG).eval()))


def test_spellings_are_as_wide_as_the_convolution_reads() -> None:
    """Words beside a longer one have the vectors that they have at full width."""
    cnn = build(CONFIG).input
    words = ["a", "ghij", "x" * 20]
    wide_UE = cnn.spelled(spelled(words, CONFIG.character_cnn))
    for word, vector_E in zip(words, wide_UE, strict=True):
        torch.testing.assert_close(cnn.spelled(spelled([word], CONFIG.character_cnn))[0], vector_E)
    assert spelled(["a"], CONFIG.character_cnn).shape == (1, 3 + 2)


def test_threads_share_the_vectors_of_word_types() -> None:
    """A server's threads: each word keeps its own vector, whoever asked first."""
    embedder = ElmoEmbedder(build(CONFIG)).eval()
    lists = [[f"w{number % 7}{number}{side}" for number in range(300)] for side in "abcd"]
    with torch.no_grad():
        expected = [ElmoEmbedder(embedder.model).word_vectors(words) for words in lists]
        for _ in range(3):
            embedder.forget()
            with ThreadPoolExecutor(4) as pool:
                pieces = [
                    words[start : start + 10] for start in range(0, 300, 10) for words in lists
                ]
                list(pool.map(embedder.word_vectors, pieces))
            found = [embedder.word_vectors(words) for words in lists]
            torch.testing.assert_close(found, expected)


def test_the_vectors_are_float32_whoever_asked_first() -> None:
    embedder = ElmoEmbedder(build(CONFIG)).eval()
    with torch.no_grad():
        with torch.autocast("cpu", dtype=torch.bfloat16):
            embedder.word_vectors(["some", "words"])
        assert embedder.word_vectors(["some", "more"]).dtype == torch.float32


def test_vectors_of_word_types_are_cached_until_they_are_forgotten() -> None:
    embedder = ElmoEmbedder(build(CONFIG)).eval()
    with torch.no_grad():
        first_UE = embedder.word_vectors(["some", "words"])
        embedder.model.input.projection.bias.add_(1.0)
        torch.testing.assert_close(embedder.word_vectors(["some", "words"]), first_UE)
        embedder.forget()
        torch.testing.assert_close(embedder.word_vectors(["some", "words"]), first_UE + 1)


def test_nothing_is_cached_in_training_mode() -> None:
    embedder = ElmoEmbedder(build(CONFIG)).train()
    with torch.no_grad():
        first_UE = embedder.word_vectors(["some"])
        embedder.model.input.projection.bias.add_(1.0)
        torch.testing.assert_close(embedder.word_vectors(["some"]), first_UE + 1)


def test_a_fine_tuned_embedder_forgets_when_it_is_trained_or_loaded() -> None:
    embedder = ElmoEmbedder(build(CONFIG))
    embeddings = Embeddings(EmbeddingsConfig(path="elmo", fine_tuned=True), embedder)
    wording = Wording.of([Spelled.of_words(["some", "words"])])

    def read() -> torch.Tensor:
        with torch.no_grad():
            layers_LBTD = embeddings.eval().read(wording, 2)
        assert layers_LBTD is not None
        return layers_LBTD[0]

    before, weights = read(), {k: v.clone() for k, v in embeddings.state_dict().items()}
    embeddings.train()
    with torch.no_grad():
        embedder.model.input.projection.bias.add_(1.0)
    torch.testing.assert_close(read(), before + 1)
    embeddings.load_state_dict(weights)
    torch.testing.assert_close(read(), before)
