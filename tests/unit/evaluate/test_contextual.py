"""Vectors of words in context, streamed: in order, in bounded windows, and the nearest of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from elman.base.errors import UsageError
from elman.evaluate import contextual
from elman.evaluate.contextual import layer_vectors, nearest_in_context
from elman.evaluate.vector_files import write_vectors
from elman.nn.character_cnn import CharacterCNNConfig
from elman.tasks.elmo.model import ElmoConfig, ElmoEmbedder


@pytest.fixture(scope="module")
def embedder() -> ElmoEmbedder:
    torch.manual_seed(0)
    characters = CharacterCNNConfig(
        character_size=3, filters=(4, 5), activation="relu", max_characters=9, padding="read"
    )
    config = ElmoConfig(hidden_size=6, projection_size=4, cell_clip=3.0, character_cnn=characters)
    return ElmoEmbedder(config.build()).eval()


SENTENCES = [["a", "b", "c"], [], ["d"], ["b", "a"], ["c", "c", "c", "a", "b", "d"], ["d"], []]


@pytest.mark.parametrize("layers", ["all", "mix", "top"])
def test_vectors_come_in_order(embedder: ElmoEmbedder, layers: contextual.Layers) -> None:
    found = list(layer_vectors(embedder, SENTENCES, layers=layers))
    assert len(found) == len(SENTENCES)
    for words, vectors in zip(SENTENCES, found, strict=True):
        if not words:
            assert vectors.shape == ((3, 0, 8) if layers == "all" else (0, 8))
            continue
        expected_LTD = embedder([words])[0][:, 0].detach()
        reduced = {"all": expected_LTD, "mix": expected_LTD.mean(0), "top": expected_LTD[-1]}
        torch.testing.assert_close(vectors, reduced[layers])


@settings(max_examples=15)
@given(st.lists(st.lists(st.sampled_from("abcdé"), max_size=6), max_size=12), st.integers(1, 400))
def test_windows_change_nothing(
    embedder: ElmoEmbedder, sentences: list[list[str]], window_bytes: int
) -> None:
    whole = list(layer_vectors(embedder, sentences))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(contextual, "WINDOW_BYTES", window_bytes)
        patch.setattr(contextual, "WINDOW_SENTENCES", 1 + window_bytes % 5)
        torch.testing.assert_close(list(layer_vectors(embedder, sentences)), whole)


def test_a_file_is_not_read_ahead(embedder: ElmoEmbedder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contextual, "WINDOW_SENTENCES", 4)
    read = 0

    def sentences() -> Iterator[list[str]]:
        nonlocal read
        while True:
            read += 1
            yield ["a"]

    stream = layer_vectors(embedder, sentences())
    for _ in range(10):
        next(stream)
    assert read == 13  # three windows of four, and the one that showed that the third was full


def test_carried_states(embedder: ElmoEmbedder) -> None:
    carried = list(layer_vectors(embedder, [["a"], [], ["a"]], layers="top", carry_state=True))
    alone = list(layer_vectors(embedder, [["a"]], layers="top"))
    torch.testing.assert_close(carried[0], alone[0])
    assert carried[1].shape == (0, 8)
    assert (carried[2] - alone[0]).abs().max() > 1e-4


def test_nearest_words_by_hand(embedder: ElmoEmbedder) -> None:
    query = (["b", "a"], 1)
    (found,) = nearest_in_context(embedder, [query], SENTENCES, k=100)
    vectors = list(layer_vectors(embedder, SENTENCES, layers="top"))
    wanted = vectors[3][1]
    cosines = {
        (line, place): torch.cosine_similarity(vectors[line - 1][place], wanted, dim=0).item()
        for line, words in enumerate(SENTENCES, start=1)
        for place in range(len(words))
        if (line, place) != (4, 1)  # itself
    }
    assert {(n.line, n.place) for n in found} == set(cosines)
    for neighbour in found:
        expected = cosines[neighbour.line, neighbour.place]
        assert neighbour.cosine == pytest.approx(expected, abs=1e-5)
    order = [neighbour.cosine for neighbour in found]
    assert order == sorted(order, reverse=True)
    (best,) = nearest_in_context(embedder, [query], SENTENCES, k=2)
    assert best == found[:2]
    (same,) = nearest_in_context(
        embedder, [query], SENTENCES, keep=lambda words, place: words[place] == "a"
    )
    assert {n.word for n in same} == {"a"}
    assert len(same) == 2


def test_queries_do_not_disturb_each_other(embedder: ElmoEmbedder) -> None:
    queries = [(["b", "a"], 1), (["b", "a"], 0), (["c", "c", "c", "a", "b", "d"], 3), (["e"], 0)]
    together = nearest_in_context(embedder, queries, SENTENCES, k=3)
    for query, found in zip(queries, together, strict=True):
        (alone,) = nearest_in_context(embedder, [query], SENTENCES, k=3)
        assert [(n.line, n.place) for n in found] == [(n.line, n.place) for n in alone]


def test_layers_have_names(embedder: ElmoEmbedder) -> None:
    with pytest.raises(UsageError, match="layers cannot be 'tip'"):
        next(layer_vectors(embedder, SENTENCES, layers="tip"))  # type: ignore[arg-type]


@pytest.mark.parametrize("suffix", [".npz", ".h5", ".safetensors"])
def test_files_of_vectors(tmp_path: Path, suffix: str) -> None:
    arrays = [np.random.default_rng(i).random((3, i, 2), np.float32) for i in range(12)]
    path = tmp_path / f"vectors{suffix}"
    assert write_vectors(path, iter(arrays)) == 12
    found: dict[str, np.ndarray]
    if suffix == ".npz":
        with np.load(path) as archive:
            found = dict(archive)
    elif suffix == ".h5":
        h5py = pytest.importorskip("h5py")
        with h5py.File(path) as file:
            found = {name: file[name][()] for name in file}
    else:
        from safetensors.numpy import load_file

        found = load_file(path)
    assert sorted(found, key=int) == [str(i) for i in range(12)]
    for index, array in enumerate(arrays):
        np.testing.assert_array_equal(found[str(index)], array)
    assert [p.name for p in tmp_path.iterdir()] == [path.name]


def test_a_failure_leaves_no_file(tmp_path: Path) -> None:
    def vectors() -> Iterator[np.ndarray]:
        yield np.zeros((1, 2), np.float32)
        raise UsageError("no more")

    for suffix in (".npz", ".safetensors", ".h5"):
        with pytest.raises(UsageError, match="no more"):
            write_vectors(tmp_path / f"v{suffix}", vectors())
    assert not list(tmp_path.iterdir())
    with pytest.raises(UsageError, match="unknown format"):
        write_vectors(tmp_path / "v.csv", vectors())
