from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from elman.base.errors import UsageError
from elman.evaluate import surprisal
from elman.evaluate.surprisal import Row, surprisals
from elman.models.recurrent import RecurrentLM
from elman.nn.state import State
from elman.tokens.tokenizer import Tokenizer

Build = Callable[[int], RecurrentLM]
Tokenizers = dict[str, Tokenizer]

KINDS = ["char", "byte", "word", "pretokenized", "bpe"]
LINES = ["the cat sat on the mat", "", "a student  opened the café books ", "  and", "the"]


def manual(
    model: RecurrentLM, tokenizer: Tokenizer, text: str
) -> tuple[list[int], list[float], torch.Tensor]:
    """Ids, surprisals in nats and distributions of `text`, read from the boundary token."""
    ids = tokenizer.encode(text).tolist()
    with torch.no_grad():
        tokens_BT = torch.tensor([[tokenizer.boundary_id, *ids]])
        hidden, _ = model.hidden(tokens_BT, model.initial_state(1))
        logprobs_TV = model.head.logprobs_all(hidden.dropped_BTH[0, :-1])
    return ids, [-float(logprobs_TV[i, token]) for i, token in enumerate(ids)], logprobs_TV


def total(rows: list[Row]) -> float:
    assert all(row.surprisal is not None for row in rows)
    return sum(row.surprisal or 0.0 for row in rows)


@pytest.mark.parametrize("kind", KINDS)
def test_tokens_are_scored_by_the_chain_rule_from_the_boundary(
    network: Build, tokenizers: Tokenizers, kind: str
) -> None:
    tokenizer = tokenizers[kind]
    model = network(tokenizer.vocab_size)
    rows = list(surprisals(model, tokenizer, LINES, unit="token", base="e"))
    for number, line in enumerate(LINES, start=1):
        ids, values, _ = manual(model, tokenizer, line + "\n")
        found = [row for row in rows if row.line == number]
        assert [row.surprisal for row in found] == pytest.approx(values, abs=1e-5)
        assert [row.text for row in found] == [tokenizer.token(i) for i in ids]
        assert [row.index for row in found] == list(range(1, len(ids) + 1))
        assert all(0 <= row.start <= row.end <= len(line) for row in found)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("boundary", ["trailing", "leading"])
@pytest.mark.parametrize("carry", [False, True])
def test_words_and_lines_have_together_what_the_tokens_have(
    network: Build, tokenizers: Tokenizers, kind: str, boundary: Any, carry: bool
) -> None:
    tokenizer = tokenizers[kind]
    model = network(tokenizer.vocab_size)

    def rows(unit: Any) -> list[Row]:
        return list(surprisals(model, tokenizer, LINES, unit=unit, boundary=boundary, carry=carry))

    tokens, words, lines = rows("token"), rows("word"), rows("line")
    assert [row.text for row in lines] == LINES
    for number, line in enumerate(LINES, start=1):
        of_line = [[row for row in some if row.line == number] for some in (tokens, words, lines)]
        sums = [total(some) for some in of_line]
        assert sums[1] == pytest.approx(sums[0], abs=1e-5)
        assert sums[2] == pytest.approx(sums[0], abs=1e-5)
        counts = [sum(row.num_tokens for row in some) for some in of_line]
        assert counts[0] == counts[1] == counts[2]
        texts = [row.text for row in of_line[1] if row.text not in ("\n", "<eos>")]
        assert texts == line.split()
        assert all(line[row.start : row.end] == row.text for row in of_line[1][: len(texts)])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("policies", [{}, {"boundary": "leading"}, {"carry": True}])
def test_a_line_in_pieces_is_scored_like_a_whole_one(
    network: Build,
    tokenizers: Tokenizers,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    policies: dict[str, Any],
) -> None:
    tokenizer = tokenizers[kind]
    model = network(tokenizer.vocab_size)
    texts = ["the", "the cat  sat on the mat and opened the café books of a student", "", "on the"]

    def rows(unit: str, **more: Any) -> list[Row]:
        found = surprisals(model, tokenizer, texts, unit=unit, base="e", **policies, **more)
        return list(found)

    asked = [("token", {}), ("word", {}), ("line", {}), ("word", {"include_end": False})]
    whole = [rows(unit, **more) for unit, more in asked]
    monkeypatch.setattr(surprisal, "WINDOW_CHARACTERS", 20)
    for (unit, more), expected in zip(asked, whole, strict=True):
        found = rows(unit, **more)
        assert [row.surprisal for row in found] == pytest.approx(
            [row.surprisal for row in expected], abs=1e-4
        )
        places, others = (
            [replace(row, surprisal=0.0, without_unknown=0.0) for row in one]
            for one in (found, expected)
        )
        assert places == others


def test_a_word_that_is_longer_than_a_window_is_cut(
    network: Build, tokenizers: Tokenizers, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer = tokenizers["char"]
    model = network(tokenizer.vocab_size)
    whole = list(surprisals(model, tokenizer, "e" * 50, unit="token"))
    monkeypatch.setattr(surprisal, "WINDOW_CHARACTERS", 20)
    found = list(surprisals(model, tokenizer, "e" * 50, unit="token"))
    assert [row.start for row in found] == [row.start for row in whole]
    assert total(found) == pytest.approx(total(whole), abs=1e-4)


@pytest.mark.parametrize("kind", ["char", "byte"])
def test_the_space_after_a_word_counts_on_that_word(
    network: Build, tokenizers: Tokenizers, kind: str
) -> None:
    tokenizer = tokenizers[kind]
    model = network(tokenizer.vocab_size)
    _, s, _ = manual(model, tokenizer, "the  cat\n")

    def words(**settings: Any) -> list[Row]:
        return list(surprisals(model, tokenizer, "the  cat", unit="word", base="e", **settings))

    trailing = words()
    assert [row.text for row in trailing] == ["the", "cat"]
    assert [row.surprisal for row in trailing] == pytest.approx([sum(s[:5]), sum(s[5:])], abs=1e-5)
    without = words(include_end=False)
    assert [r.surprisal for r in without] == pytest.approx([sum(s[:5]), sum(s[5:8])], abs=1e-5)
    leading = words(boundary="leading")
    assert [row.text for row in leading] == ["the", "cat", "\n"]
    expected = [sum(s[:3]), sum(s[3:8]), s[8]]
    assert [row.surprisal for row in leading] == pytest.approx(expected, abs=1e-5)


def test_letters_of_several_bytes_belong_to_their_word(
    network: Build, tokenizers: Tokenizers
) -> None:
    tokenizer = tokenizers["byte"]
    rows = list(surprisals(network(tokenizer.vocab_size), tokenizer, "né à", unit="word"))
    assert [(row.text, row.num_tokens) for row in rows] == [("né", 4), ("à", 3)]


def test_word_tokenizers_put_punctuation_on_the_word_it_touches(
    network: Build, tokenizers: Tokenizers
) -> None:
    tokenizer = tokenizers["word"]
    model = network(tokenizer.vocab_size)
    _, s, _ = manual(model, tokenizer, "the cat, sat\n")
    rows = list(surprisals(model, tokenizer, "the cat, sat", unit="word", base="e"))
    assert [row.text for row in rows] == ["the", "cat,", "sat", "<eos>"]
    expected = [s[0], s[1] + s[2], s[3], s[4]]
    assert [row.surprisal for row in rows] == pytest.approx(expected, abs=1e-5)


def test_sub_words_are_corrected_for_their_leading_space(
    network: Build, tokenizers: Tokenizers
) -> None:
    tokenizer = tokenizers["bpe"]
    model = network(tokenizer.vocab_size)
    line = "the students opened"
    ids, s, distributions = manual(model, tokenizer, line + "\n")
    starts = tokenizer.starts_word()
    starts[tokenizer.boundary_id] = True
    # -log P(a word has ended) before each token.
    ended = [-float(d[torch.from_numpy(starts)].logsumexp(0)) for d in distributions]
    firsts = [i for i, token in enumerate(ids) if i == 0 or starts[token]]  # 3 words, then the end
    assert len(firsts) == 4
    assert len(ids) > 4  # some word has several pieces
    expected = []
    for begin, end in itertools.pairwise([*firsts, len(ids)]):
        value = sum(s[begin:end])
        value -= ended[begin] if begin > 0 else 0.0
        value += ended[end] if end < len(ids) else 0.0
        expected.append(value)
    rows = list(surprisals(model, tokenizer, line, unit="word", base="e"))
    assert [row.text for row in rows] == ["the", "students", "opened", "\n"]
    assert [row.surprisal for row in rows] == pytest.approx(expected, abs=1e-4)
    without = list(surprisals(model, tokenizer, line, unit="word", base="e", include_end=False))
    assert without == rows[:3]


class FakeTokenizer:
    """Pieces " a", " b" and "b": a word is one of the first two and any number of the third."""

    kind = "bpe"
    marks_lines = False
    boundary_id = 0
    unknown_id = None
    pieces = ("<eos>", " a", " b", "b", "\n")

    def starts_word(self) -> np.ndarray:
        return np.array([False, True, True, False, True])

    def token(self, id: int) -> str:
        return self.pieces[id]

    def encode(self, text: str) -> np.ndarray:
        return self.encode_spans(text)[0]

    def encode_spans(self, text: str) -> tuple[np.ndarray, list[tuple[int, int]]]:
        ids, spans, at = [], [], 0
        while at < len(text):
            piece = max((p for p in self.pieces if text.startswith(p, at)), key=len)
            ids.append(self.pieces.index(piece))
            spans.append((at, at + len(piece)))
            at += len(piece)
        return np.array(ids, np.int32), spans


class Bigrams:
    """Next-piece distributions given the last piece."""

    vocab_size = 5

    def __init__(self) -> None:
        logits_VV = torch.randn(5, 5, generator=torch.Generator().manual_seed(1))
        logits_VV[:, 3] -= 1.0  # words end soon
        self.logprobs_VV = logits_VV.double().log_softmax(dim=-1)

    def initial_state(self, batch_size: int) -> State:
        return State({"nothing": torch.zeros(batch_size)})

    def step(self, tokens_B: torch.Tensor, state: State) -> tuple[torch.Tensor, State]:
        return self.logprobs_VV[tokens_B], state

    def logprobs(self, tokens_BT: Any, targets_BT: Any, state: State) -> tuple[torch.Tensor, State]:
        return self.logprobs_VV[tokens_BT, targets_BT], state


def test_corrected_probabilities_of_all_next_words_add_up_to_one() -> None:
    model: Any = Bigrams()
    tokenizer: Any = FakeTokenizer()

    def probability(line: str, boundary: Any) -> float:
        """Of what follows the first word."""
        row = list(surprisals(model, tokenizer, line, unit="word", base="e", boundary=boundary))[1]
        assert row.surprisal is not None
        return math.exp(-row.surprisal)

    words = [first + "b" * n for first in (" a", " b") for n in range(80)]
    # After the first word comes another word, the end of the line, or the boundary token.
    ended_V = model.logprobs_VV[1, [0, 1, 2, 4]].exp()
    boundary_token = float(ended_V[0] / ended_V.sum())
    totals = {
        boundary: sum(probability(" a" + word, boundary) for word in words)
        + probability(" a", boundary)
        for boundary in ("trailing", "leading")
    }
    assert totals["trailing"] + boundary_token == pytest.approx(1.0, abs=1e-9)
    # The plain sum of pieces is not even a distribution.
    assert abs(totals["leading"] + boundary_token - 1.0) > 0.02


def test_an_impossible_word_is_infinite_and_its_neighbours_are_numbers() -> None:
    model: Any = Bigrams()
    tokenizer: Any = FakeTokenizer()
    model.logprobs_VV[1, [0, 1, 2, 4]] = -math.inf  # after " a" only "b" can follow
    rows = list(surprisals(model, tokenizer, " b a b", unit="word", base="e"))
    assert [row.text for row in rows] == ["b", "a", "b", "\n"]
    assert rows[1].surprisal == math.inf
    assert all(math.isfinite(rows[i].surprisal or 0.0) for i in (0, 2, 3))


@pytest.mark.parametrize("kind", KINDS)
def test_carried_lines_are_one_text(
    network: Build, tokenizers: Tokenizers, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("elman.evaluate.surprisal.WINDOW_LINES", 2)
    tokenizer = tokenizers[kind]
    model = network(tokenizer.vocab_size)
    rows = list(surprisals(model, tokenizer, LINES, unit="token", base="e", carry=True))
    _, values, _ = manual(model, tokenizer, "\n".join(LINES) + "\n")
    assert [row.surprisal for row in rows] == pytest.approx(values, abs=1e-4)
    assert [row.line for row in rows] == sorted(row.line for row in rows)


@pytest.mark.parametrize("kind", ["char", "bpe", "pretokenized"])
def test_the_window_changes_nothing_but_memory(
    network: Build, tokenizers: Tokenizers, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer = tokenizers[kind]
    model = network(tokenizer.vocab_size)
    whole = list(surprisals(model, tokenizer, LINES * 3, unit="word"))
    monkeypatch.setattr("elman.evaluate.surprisal.WINDOW_LINES", 2)
    monkeypatch.setattr("elman.evaluate.surprisal.TOKENS_PER_BATCH", 1)
    small = list(surprisals(model, tokenizer, LINES * 3, unit="word"))
    assert [(r.line, r.index, r.text) for r in small] == [(r.line, r.index, r.text) for r in whole]
    assert [r.surprisal for r in small] == pytest.approx([r.surprisal for r in whole], abs=1e-4)


def test_input_is_read_as_rows_are_asked_for(network: Build, tokenizers: Tokenizers) -> None:
    taken = 0

    def endless() -> Iterator[str]:
        nonlocal taken
        while True:
            taken += 1
            yield "the cat\n"

    rows = surprisals(network(tokenizers["char"].vocab_size), tokenizers["char"], endless())
    assert [row.text for row in itertools.islice(rows, 8)] == list("the cat\n")
    assert taken <= 1024


def test_a_string_is_its_lines(network: Build, tokenizers: Tokenizers) -> None:
    tokenizer = tokenizers["char"]
    model = network(tokenizer.vocab_size)
    assert list(surprisals(model, tokenizer, "a\n\nb\n")) == list(
        surprisals(model, tokenizer, ["a\n", "\n", "b"])
    )


@pytest.mark.parametrize(("base", "unit"), [(2, math.log(2)), ("10", math.log(10)), ("e", 1.0)])
def test_bases(network: Build, tokenizers: Tokenizers, base: Any, unit: float) -> None:
    tokenizer = tokenizers["word"]
    model = network(tokenizer.vocab_size)
    _, values, _ = manual(model, tokenizer, "the cat\n")
    rows = list(surprisals(model, tokenizer, "the cat", base=base))
    assert [row.surprisal for row in rows] == pytest.approx([v / unit for v in values], rel=1e-4)


def test_unknown_words_are_flagged_and_scored_or_marked(
    network: Build, tokenizers: Tokenizers
) -> None:
    tokenizer = tokenizers["pretokenized"]
    model = network(tokenizer.vocab_size)
    _, s, _ = manual(model, tokenizer, "the zebra sat\n")

    def rows(unit: Any, unknown: Any) -> list[Row]:
        return list(
            surprisals(model, tokenizer, "the zebra sat", unit=unit, base="e", unknown=unknown)
        )

    for unit in ("token", "word"):
        scored, marked = rows(unit, "score"), rows(unit, "mark")
        assert [row.text for row in scored] == ["the", "zebra", "sat", "<eos>"]
        assert [row.unknown for row in scored] == [False, True, False, False]
        assert [row.surprisal for row in scored] == pytest.approx(s, abs=1e-5)
        assert marked[1].surprisal is None
        assert [marked[i] for i in (0, 2, 3)] == [scored[i] for i in (0, 2, 3)]
    (scored_line,), (marked_line,) = rows("line", "score"), rows("line", "mark")
    assert scored_line.surprisal == pytest.approx(sum(s), abs=1e-5)
    assert scored_line.num_tokens == 4
    assert marked_line.surprisal == pytest.approx(s[0] + s[2] + s[3], abs=1e-5)
    assert marked_line.num_tokens == 3
    assert marked_line.unknown


def test_without_a_newline_in_the_vocabulary_the_boundary_ends_lines(network: Build) -> None:
    from elman.tokens import characters

    tokenizer = Tokenizer(characters.build(["a", "b", " "]))
    rows = list(surprisals(network(tokenizer.vocab_size), tokenizer, "a b", unit="token"))
    assert [row.text for row in rows] == ["a", " ", "b", "<eos>"]
    assert not any(row.unknown for row in rows)


@pytest.mark.parametrize("kind", KINDS)
@given(lines=st.lists(st.text("the caté. \t", max_size=12), max_size=5))
@settings(max_examples=8)
def test_any_text_telescopes(
    network: Build, tokenizers: Tokenizers, kind: str, lines: list[str]
) -> None:
    tokenizer = tokenizers[kind]
    model = network(tokenizer.vocab_size)
    tokens = list(surprisals(model, tokenizer, lines, unit="token"))
    boundaries: list[Any] = ["trailing", "leading"]
    for boundary in boundaries:
        words = list(surprisals(model, tokenizer, lines, unit="word", boundary=boundary))
        assert total(words) == pytest.approx(total(tokens), abs=1e-3)


@pytest.mark.parametrize(
    "setting", [{"unit": "sentence"}, {"base": 3}, {"boundary": "both"}, {"unknown": "drop"}]
)
def test_an_unknown_policy_is_refused(
    network: Build, tokenizers: Tokenizers, setting: dict[str, Any]
) -> None:
    with pytest.raises(UsageError, match=next(iter(setting))):
        list(surprisals(network(3), tokenizers["char"], "a", **setting))
