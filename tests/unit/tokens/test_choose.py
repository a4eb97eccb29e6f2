"""The choice of a tokenizer follows from what the text looks like and how much there is."""

from __future__ import annotations

from pathlib import Path

from elman.tokens.choose import choose, choose_for, fitting_vocab_size

PROSE = "It was cold; the wind, they said, came from the north. Nobody knew why!\n" * 50
SPACED = "It was cold ; the wind , they said , came from the north . Nobody knew why !\n" * 50


def test_text_with_unknowns_in_it_is_pretokenised() -> None:
    choice = choose_for([PROSE + "the <unk> said\n"], 10**9)
    assert choice.kind == "pretokenized"
    assert "<unk>" in choice.reason


def test_spaces_before_punctuation_mean_pretokenised() -> None:
    choice = choose_for([SPACED], 10**9)
    assert choice.kind == "pretokenized"
    assert "100%" in choice.reason


def test_a_few_spaced_marks_do_not() -> None:
    assert choose_for(["one , two . three\n"], 1000).kind == "char"
    assert choose_for([PROSE + "a , b . c\n"], 1000).kind == "char"


def test_small_texts_are_read_by_character_and_large_ones_by_piece() -> None:
    small = choose_for([PROSE], 1_115_394)
    assert (small.kind, small.vocab_size) == ("char", 0)
    assert "1.12 MB" in small.reason
    large = choose_for([PROSE], 2 * 10**9)
    assert (large.kind, large.vocab_size) == ("bpe", 32_768)
    assert "2 GB" in large.reason


def test_the_vocabulary_grows_with_the_text_within_bounds() -> None:
    sizes = [fitting_vocab_size(n << 20) for n in (0, 8, 32, 128, 512, 100_000)]
    assert sizes == [4096, 4096, 8192, 16_384, 32_768, 32_768]


def test_real_corpora(shared_data: Path) -> None:
    assert choose(shared_data / "ptb" / "ptb.train.txt").kind == "pretokenized"
    assert choose(shared_data / "tinyshakespeare" / "input.txt").kind == "char"
    assert choose(shared_data / "news_shards").kind == "pretokenized"
    assert choose("python-docs").kind == "char"
