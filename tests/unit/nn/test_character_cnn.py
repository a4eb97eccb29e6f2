"""Word vectors from spellings: the table, the convolution worked out, one computation per type."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from elman.base.errors import UsageError
from elman.nn.character_cnn import KIM, CharacterCNN, CharacterCNNConfig, spelling_table

CONFIG = CharacterCNNConfig(character_size=3, filters=(2, 3), num_highway=1, max_characters=6)
BEGIN, END = KIM.begin, KIM.end
WORDS = ["a", "abc", "", "é", "abcdefgh", "abcdXYZ"]


def make(config: CharacterCNNConfig = CONFIG, **options: float) -> CharacterCNN:
    torch.manual_seed(0)
    return CharacterCNN(config, len(WORDS), 5, spellings=WORDS, **options)  # type: ignore[arg-type]


def test_spelling_table() -> None:
    a = ord("a") + 1
    assert spelling_table(WORDS, 6).tolist() == [
        [BEGIN, a, END, 0, 0, 0],
        [BEGIN, a, a + 1, a + 2, END, 0],
        [BEGIN, END, 0, 0, 0, 0],
        [BEGIN, 0xC3 + 1, 0xA9 + 1, END, 0, 0],
        [BEGIN, a, a + 1, a + 2, a + 3, END],  # cut to fit
        [BEGIN, a, a + 1, a + 2, a + 3, END],
    ]


def test_one_word_by_hand() -> None:
    """Filters at every place within the word, the highest response, the highway, the projection."""
    cnn = make()
    characters_C = spelling_table(["abc"], 6)[0, :5].long()
    vectors_CD = cnn.characters.weight[characters_C]
    responses = []
    for width in (1, 2):
        convolution = cnn.convolutions[width - 1]
        windows = [vectors_CD[i : i + width] for i in range(5 - width + 1)]
        each = [
            torch.einsum("fdw,wd->f", convolution.weight, window) + convolution.bias
            for window in windows
        ]
        responses.append(torch.stack(each).amax(0).tanh())
    y = torch.cat(responses)
    highway = cnn.highways[0]
    gate = torch.sigmoid(highway.gate(y))  # type: ignore[operator]
    y = gate * torch.relu(highway.transform(y)) + (1 - gate) * y  # type: ignore[operator]
    torch.testing.assert_close(cnn(torch.tensor([1]))[0], cnn.projection(y))


def test_each_type_is_computed_once() -> None:
    cnn = make()
    seen: list[int] = []
    cnn.projection.register_forward_pre_hook(lambda module, given: seen.append(len(given[0])))
    tokens_BT = torch.tensor([[0, 1, 1, 1], [1, 0, 3, 3]])
    vectors = cnn(tokens_BT)
    assert seen == [3]
    assert vectors.shape == (2, 4, 5)
    torch.testing.assert_close(vectors, F.embedding(tokens_BT, cnn.all_types()))


def test_company_does_not_change_a_word() -> None:
    """Short words among long ones are padded, and do not notice."""
    cnn = make(CharacterCNNConfig(character_size=3, filters=(2, 2, 2, 2), max_characters=12))
    together = cnn(torch.arange(len(WORDS)))
    for word in range(len(WORDS)):
        torch.testing.assert_close(cnn(torch.tensor([word]))[0], together[word])


def test_same_spelling_same_vector_and_words_beyond_the_vocabulary() -> None:
    cnn = make()
    vectors = cnn.all_types()
    torch.testing.assert_close(vectors[4], vectors[5])  # alike where they are read
    assert not torch.allclose(vectors[0], vectors[1])
    torch.testing.assert_close(cnn.spelled(spelling_table(["abc"], 6))[0], vectors[1])


def test_dropout_takes_whole_words() -> None:
    cnn = make(dropout=0.5)
    tokens_BT = torch.arange(len(WORDS)).repeat(2, 3)
    dropped = cnn(tokens_BT)
    gone = dropped.eq(0).all(-1)
    assert torch.equal(gone, gone[:1, :6].repeat(2, 3))
    assert 0 < int(gone[0, :6].sum()) < 6
    kept = ~gone[0, :6]
    torch.testing.assert_close(dropped[0, :6][kept], 2 * cnn.eval()(tokens_BT)[0, :6][kept])


def test_relu_and_no_highway() -> None:
    config = CharacterCNNConfig(filters=(4,), activation="relu", num_highway=0, max_characters=6)
    cnn = make(config)
    assert not cnn.highways
    assert cnn(torch.tensor([0, 1])).shape == (2, 5)


def test_too_few_characters_for_the_filters() -> None:
    with pytest.raises(UsageError, match="too small for the widest filter"):
        make(CharacterCNNConfig(filters=(1,) * 7, max_characters=6))
