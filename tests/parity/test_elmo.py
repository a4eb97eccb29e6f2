"""ELMo's published format, held to vectors that another program computed from the same files."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from elman.base.errors import ElmanError, UsageError
from elman.nn.character_cnn import CharacterCNNConfig
from elman.tasks.elmo.files import OPTIONS_FILE, WEIGHTS_FILE, is_elmo, read_elmo, write_elmo
from elman.tasks.elmo.model import BidirectionalLM, ElmoConfig, ElmoEmbedder

h5py = pytest.importorskip("h5py")

TINY = ElmoConfig(
    hidden_size=6,
    projection_size=4,
    cell_clip=0.5,
    projection_clip=0.3,
    character_cnn=CharacterCNNConfig(
        character_size=3, filters=(2, 3), activation="relu", max_characters=8, padding="read"
    ),
)
SENTENCES = [["the", "pupil", "lost", "a", "book"], ["Ångström"], [], ["the", "end"]]


@pytest.fixture
def fixture(shared_data: Path) -> ElmoEmbedder:
    return ElmoEmbedder(read_elmo(shared_data / "elmo")).eval()


@pytest.fixture
def sentences(shared_data: Path) -> list[list[str]]:
    text = (shared_data / "elmo" / "sentences_0.json").read_text()
    return [line.split() for line in json.loads(text)]


def tiny(**settings: object) -> BidirectionalLM:
    torch.manual_seed(0)
    return ElmoConfig(**{**TINY.__dict__, **settings}).build().eval()


@torch.no_grad()
def test_token_vectors_are_the_published_ones(fixture: ElmoEmbedder, shared_data: Path) -> None:
    words = (shared_data / "elmo" / "vocab_test.txt").read_text().splitlines()
    with h5py.File(shared_data / "elmo" / "token_embeddings.hdf5") as file:
        expected = file["embedding"][()]
    np.testing.assert_allclose(fixture.word_vectors(words).numpy(), expected, atol=1e-5)


@torch.no_grad()
def test_top_layer_is_the_published_one(
    fixture: ElmoEmbedder, sentences: list[list[str]], shared_data: Path
) -> None:
    """With the states carried from sentence to sentence, as the program that made them did."""
    state = None
    with h5py.File(shared_data / "elmo" / "lm_embeddings_0.hdf5") as file:
        for index, words in enumerate(sentences):
            layers_LBTD, _, state = fixture.read([words], state)
            expected = np.concatenate(file[str(index)][()], axis=-1)
            np.testing.assert_allclose(layers_LBTD[-1, 0].numpy(), expected, atol=1e-5)


@torch.no_grad()
def test_company_and_order_change_nothing(
    fixture: ElmoEmbedder, sentences: list[list[str]]
) -> None:
    alone = [fixture([words])[0][:, 0] for words in sentences]
    for order in (list(range(10)), [7, 3, 9, 0, 1, 2, 8, 5, 4, 6], [3, 3, 1]):
        layers_LBTD, lengths_B = fixture([sentences[i] for i in order])
        for row, index in enumerate(order):
            length = int(lengths_B[row])
            assert length == len(sentences[index])
            torch.testing.assert_close(layers_LBTD[:, row, :length], alone[index])
            assert not layers_LBTD[:, row, length:].any()


@torch.no_grad()
def test_layers_are_the_words_own_vector_then_the_directions() -> None:
    embedder = ElmoEmbedder(tiny())
    layers_LBTD, lengths_B = embedder(SENTENCES)
    assert (embedder.num_layers, embedder.size) == (3, 8)
    assert layers_LBTD.shape == (3, 4, 5, 8)
    assert lengths_B.tolist() == [5, 1, 0, 2]
    words = embedder.word_vectors(["the", "end"])
    torch.testing.assert_close(layers_LBTD[0, 3, :2], torch.cat([words, words], dim=1))
    # The forward half knows what came before, the backward half what comes after.
    other, _ = embedder([["the", "book"]])
    torch.testing.assert_close(other[1:, 0, 0, :4], layers_LBTD[1:, 3, 0, :4])
    assert (other[1:, 0, 0, 4:] - layers_LBTD[1:, 3, 0, 4:]).abs().max() > 1e-3


def test_kept_vectors_follow_the_weights() -> None:
    embedder = ElmoEmbedder(tiny())
    with torch.no_grad():
        before = embedder.word_vectors(["a"])
        torch.testing.assert_close(embedder.word_vectors(["b", "a"])[1:], before)
        embedder.model.input.projection.bias.add_(1.0)
        torch.testing.assert_close(embedder.word_vectors(["a"]), before + 1)
    embedder([["a"]])[0].sum().backward()
    reached = {id(p) for p in embedder.parameters() if p.grad is not None}
    assert {id(p) for group in embedder.groups() for p in group} == reached


@pytest.mark.parametrize("projection_size", [4, 0])
@torch.no_grad()
def test_saved_and_read_again(tmp_path: Path, projection_size: int) -> None:
    model = tiny(projection_size=projection_size, projection_clip=0.0)
    write_elmo(tmp_path / "mine", model)
    assert is_elmo(tmp_path / "mine")
    expected, _ = ElmoEmbedder(model)(SENTENCES)
    found, _ = ElmoEmbedder(read_elmo(tmp_path / "mine"))(SENTENCES)
    torch.testing.assert_close(found, expected)
    with h5py.File(tmp_path / "mine" / WEIGHTS_FILE) as file:
        bias = file["RNN_0/RNN/MultiRNNCell/Cell0/LSTMCell/B"][()]
    assert not bias.any()  # our forget bias of 1 is what TensorFlow adds by itself


def test_a_word_of_ten_thousand_characters_is_cut() -> None:
    embedder = ElmoEmbedder(tiny())
    with torch.no_grad():
        long, cut = embedder.word_vectors(["x" * 10_000, "x" * 6])
    torch.testing.assert_close(long, cut)


@pytest.mark.parametrize(
    ("group", "key", "value"),
    [
        ("lstm", "n_layers", "two"),
        ("lstm", "n_layers", True),
        ("lstm", "dim", None),
        ("lstm", "dim", 7),
        ("lstm", "n_layers", 3),
        ("char_cnn", "activation", "sine"),
        ("char_cnn", "filters", [[2, 4]]),
        ("char_cnn", "filters", [[1, 4]]),
        ("char_cnn", "n_characters", 261),
        ("char_cnn", "embedding", 4),
    ],
)
def test_wrong_options_are_told(tmp_path: Path, group: str, key: str, value: object) -> None:
    write_elmo(tmp_path, tiny())
    options = json.loads((tmp_path / OPTIONS_FILE).read_text())
    options[group][key] = value
    (tmp_path / OPTIONS_FILE).write_text(json.dumps(options))
    with pytest.raises(ElmanError, match=r"options"):
        read_elmo(tmp_path)


def test_damaged_files_are_told(tmp_path: Path) -> None:
    write_elmo(tmp_path, tiny())
    weights = (tmp_path / WEIGHTS_FILE).read_bytes()
    for size in (0, 100, len(weights) // 2, len(weights) - 1):
        (tmp_path / WEIGHTS_FILE).write_bytes(weights[:size])
        with pytest.raises(ElmanError, match="damaged"):
            read_elmo(tmp_path)
    (tmp_path / WEIGHTS_FILE).unlink()
    with pytest.raises(ElmanError, match="does not exist"):
        read_elmo(tmp_path)


def test_a_model_that_ignores_padding_has_no_published_form(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="reads the padding"):
        write_elmo(tmp_path, tiny(character_cnn=CharacterCNNConfig(filters=(2,))))
