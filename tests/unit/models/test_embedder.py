"""A causal language model as a source of word vectors."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from elman.models.embedder import LeftContext
from elman.models.recurrent import RecurrentLMConfig
from elman.tasks.language_model.window import WindowLMConfig
from elman.testing import TOY_TEXT
from elman.tokens import characters, pretokenized
from elman.tokens.tokenizer import Tokenizer


def embedder(tokenizer: Tokenizer, **settings: int) -> LeftContext:
    torch.manual_seed(0)
    config = RecurrentLMConfig(
        **{"num_layers": 2, "hidden_size": 8, "embedding_size": 8} | settings
    )
    return LeftContext(config.build(tokenizer.vocab_size), tokenizer).eval()


WORDS = Tokenizer(pretokenized.build(sorted(set(TOY_TEXT.split()))))
CHARACTERS = Tokenizer(characters.build(sorted(set(TOY_TEXT))))
SENTENCES = [["the", "pupil", "lost", "her", "book"], [], ["the", "book"]]


@pytest.mark.parametrize("tokenizer", [WORDS, CHARACTERS], ids=["words", "characters"])
def test_a_sentence_has_the_same_vectors_beside_others(tokenizer: Tokenizer) -> None:
    layers = embedder(tokenizer)
    together_LBTD, lengths_B = layers(SENTENCES)
    assert together_LBTD.shape == (3, 3, 5, 8)
    assert lengths_B.tolist() == [5, 0, 2]
    alone_LBTD, _ = layers([SENTENCES[2]])
    torch.testing.assert_close(together_LBTD[:, 2, :2], alone_LBTD[:, 0])
    assert not together_LBTD[:, 2, 2:].any()


@pytest.mark.parametrize("tokenizer", [WORDS, CHARACTERS], ids=["words", "characters"])
def test_a_word_is_the_top_layer_after_its_last_token(tokenizer: Tokenizer) -> None:
    layers = embedder(tokenizer)
    found_LBTD, _ = layers([["the", "book"]])
    ids = [tokenizer.boundary_id, *tokenizer.encode("the book").tolist()]
    hidden, _ = layers.model.hidden(torch.tensor([ids]), layers.model.initial_state(1))
    torch.testing.assert_close(found_LBTD[-1, 0, -1], hidden.raw_BTH[0, -1])


def test_states_can_be_carried_to_the_next_sentence() -> None:
    layers = embedder(WORDS)
    _, _, state = layers.read([SENTENCES[0]])
    carried_LBTD, _, _ = layers.read([SENTENCES[2]], state)
    fresh_LBTD, _ = layers([SENTENCES[2]])
    assert (carried_LBTD[-1] - fresh_LBTD[-1]).abs().max() > 1e-3
    torch.testing.assert_close(carried_LBTD[0], fresh_LBTD[0])  # the input knows no context


def test_only_layers_of_the_top_ones_width_are_given() -> None:
    layers = embedder(WORDS, embedding_size=6)
    assert (layers.num_layers, layers.size) == (2, 8)
    assert layers(SENTENCES)[0].shape == (2, 3, 5, 8)


def test_groups_are_all_that_the_vectors_depend_on() -> None:
    layers = embedder(WORDS)
    layers(SENTENCES)[0].sum().backward()
    reached = {id(p) for p in layers.parameters() if p.grad is not None}
    assert {id(p) for group in layers.groups() for p in group} == reached
    assert len(layers.groups()) == 3


def window_embedder(**settings: int) -> LeftContext:
    torch.manual_seed(0)
    sizes = {"window_size": 3, "embedding_size": 6, "num_layers": 2, "hidden_size": 8} | settings
    config = WindowLMConfig(**sizes)
    model = config.build(WORDS.vocab_size, boundary_id=WORDS.boundary_id)
    return LeftContext(model, WORDS).eval()


@pytest.mark.parametrize("sizes", [{}, {"embedding_size": 11}], ids=["narrow", "wide"])
def test_a_window_gives_its_word_vectors_and_every_hidden_layer(sizes: dict[str, int]) -> None:
    """Zeros fill up the narrower ones."""
    layers = window_embedder(**sizes)
    model: Any = layers.model
    found_LBTD, lengths_B = layers(SENTENCES)
    assert found_LBTD.shape == (3, 3, 5, max(8, sizes.get("embedding_size", 6)))
    assert lengths_B.tolist() == [5, 0, 2]
    book = WORDS.encode("book").tolist()
    width = model.config.embedding_size
    torch.testing.assert_close(found_LBTD[0, 2, 1, :width], model.input.embedding.weight[book[0]])
    ids = [WORDS.boundary_id, *WORDS.encode("the book").tolist()]
    hidden, _ = model.hidden(torch.tensor([ids]), model.initial_state(1))
    torch.testing.assert_close(found_LBTD[-1, 2, 1, :8], hidden.raw_BTH[0, -1])
    assert not found_LBTD[0, ..., width:].any()
    assert not found_LBTD[1:, ..., 8:].any()


def test_a_window_carries_its_last_words_to_the_next_sentence() -> None:
    """Of each sentence its own, whatever the length of the longest."""
    layers = window_embedder(window_size=4)
    _, _, together = layers.read(SENTENCES)
    for row, words in enumerate(SENTENCES):
        _, _, alone = layers.read([words])
        assert torch.equal(together.tensor("tokens")[row], alone.tensor("tokens")[0])
    carried_LBTD, _, _ = layers.read([SENTENCES[2]], alone)
    assert not torch.allclose(carried_LBTD[-1], layers([SENTENCES[2]])[0][-1])


def test_groups_of_a_window_are_all_that_the_vectors_depend_on() -> None:
    layers = window_embedder()
    layers(SENTENCES)[0].sum().backward()
    reached = {id(p) for p in layers.parameters() if p.grad is not None}
    assert {id(p) for group in layers.groups() for p in group} == reached
    assert len(layers.groups()) == 3
