"""A causal language model as a source of word vectors."""

from __future__ import annotations

import pytest
import torch

from elman.models.embedder import LeftContext
from elman.models.recurrent import RecurrentLMConfig
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
