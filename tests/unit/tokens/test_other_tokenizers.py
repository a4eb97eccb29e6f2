"""Tokenizers of SentencePiece and tiktoken, converted, give the ids of the real packages."""

from __future__ import annotations

import io
import json
import unicodedata
from functools import cache
from itertools import product
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import numpy as np
import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import normalizers

from elman.base.errors import ElmanError, UsageError
from elman.recipes.convert import convert
from elman.tokens.bytes import byte_spellings
from elman.tokens.sentence_piece_limits import hidden_names, tied_run
from elman.tokens.sentence_piece_rules import rewriting
from elman.tokens.sentence_pieces import _parsed, pair_of, read_model
from elman.tokens.tiktoken_encodings import from_encoding, pattern_for_oniguruma, read_encoding
from elman.tokens.tokenizer import Tokenizer
from elman.tokens.tokenizer_config import TokenizerConfig
from elman.tokens.train import train_on_texts

ENGLISH = "\n".join(topics[name] for name in ("atom-identifiers", "booleans", "for", "while", "if"))
LINES = [*ENGLISH.splitlines(), "Crème brûlée & naïve façade, 1234 ½ ﬁ é Å 日本 한국 <sep>!"]
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "identity": {"normalization_rule_name": "identity"},
    "bytes": {"byte_fallback": True},
    "symbols": {"user_defined_symbols": ["<sep>", "ab"]},
    "spaces kept": {
        "add_dummy_prefix": False,
        "remove_extra_whitespaces": False,
        "normalization_rule_name": "nfkc",
    },
    "lower case, no marks": {"normalization_rule_name": "nmt_nfkc_cf", "eos_id": -1, "bos_id": -1},
    "across words": {"split_by_whitespace": False},
    "symbols across words": {"split_by_whitespace": False, "user_defined_symbols": ["<sep>"]},
}
# No line ends: SentencePiece takes lines.
ANY = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\n"))
FAMILIAR = st.lists(
    st.sampled_from(
        [
            *"abcdest  ,.é½▁日ﬁｶﾊﾞﾟㄱㅏ가\u11a8eo\u0301\u0323\u0302\u0345ω",
            *"\ufff0\ufff1\ufff2\ufff3\x01",
            *(
                "the ",
                "student",
                "ab",
                "\u00a0",
                "<s>",
                "</s>",
                "<unk>",
                "<0x41>",
                "<sep>",
                "<",
                ">",
            ),
        ]
    )
).map("".join)
TEXT = st.one_of(ANY, FAMILIAR, ANY.map(lambda text: unicodedata.normalize("NFC", text)))


@cache
def trained(kind: str, name: str) -> bytes:
    sentencepiece = pytest.importorskip("sentencepiece")
    written = io.BytesIO()
    options = OPTIONS[name] | ({"hard_vocab_limit": False} if kind == "unigram" else {})
    size = 600 if name == "bytes" else 400
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(LINES),
        model_writer=written,
        model_type=kind,
        vocab_size=size,
        minloglevel=2,
        **options,
    )
    return written.getvalue()


@cache
def both(kind: str, name: str, folder: Path) -> tuple[Any, Tokenizer]:
    sentencepiece = pytest.importorskip("sentencepiece")
    path = folder / f"{kind}-{name}.model"
    path.write_bytes(trained(kind, name))
    return sentencepiece.SentencePieceProcessor(model_file=str(path)), Tokenizer.load(path)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


@pytest.mark.parametrize("kind", ["unigram", "bpe"])
@pytest.mark.parametrize("name", OPTIONS)
def test_the_ids_are_those_of_sentencepiece(kind: str, name: str, folder: Path) -> None:
    theirs, ours = both(kind, name, folder)
    reread = Tokenizer.from_json(ours.to_json())

    @settings(max_examples=60, deadline=None)
    @given(TEXT)
    def check(text: str) -> None:
        expected = theirs.encode(text)
        assert ours.encode(text).tolist() == expected
        assert reread.backend.encode(text, add_special_tokens=False).ids == expected

    check()
    for line in LINES:
        assert ours.encode(line).tolist() == theirs.encode(line)


def test_every_character_is_rewritten_as_sentencepiece_does(folder: Path) -> None:
    theirs, ours = both("unigram", "bytes", folder)
    points = [*range(1, 0xD800), *range(0xE000, 0x30000)]
    points = [p for p in points if p != 10][::37]
    for point in points:
        for text in (f"a{chr(point)}b", unicodedata.normalize("NFD", f"x{chr(point)}")):
            assert ours.encode(text).tolist() == theirs.encode(text), hex(point)


def test_a_table_of_its_own_is_refused(tmp_path: Path) -> None:
    """Its sequences may overlap; before, they were left as they are."""
    sentencepiece = pytest.importorskip("sentencepiece")
    (tmp_path / "rules.tsv").write_text("6B 6D\t6B 69 6C 6F\n")  # km: kilo
    written = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(LINES),
        model_writer=written,
        vocab_size=200,
        minloglevel=2,
        normalization_rule_tsv=str(tmp_path / "rules.tsv"),
    )
    (tmp_path / "own.model").write_bytes(written.getvalue())
    with pytest.raises(UsageError, match="table of characters of its own"):
        read_model(tmp_path / "own.model")


NAMES = ["<s>", "</s>", "<unk>", "<0x41>", "<", ">", "s", "/", "\u0434", "\u0436", " ", "<sep>"]


def made(tmp_path: Path, lines: list[str], **options: Any) -> Path:
    sentencepiece = pytest.importorskip("sentencepiece")
    path = tmp_path / "made.model"
    with path.open("wb") as file:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(lines), model_writer=file, minloglevel=2, **options
        )
    return path


@pytest.mark.parametrize("kind", ["unigram", "bpe"])
@pytest.mark.parametrize("symbols", [[], ["<sep>"], ["<s"]], ids=["none", "sep", "part"])
@pytest.mark.parametrize("has_bytes", [False, True], ids=["unknown", "bytes"])
@pytest.mark.parametrize(
    "letters", ["\u0434\u0430", "s\u0434", "<s>\u0434"], ids=["none", "s", "all"]
)
def test_a_name_in_a_text_is_text(
    letters: str, has_bytes: bool, symbols: list[str], kind: str, tmp_path: Path
) -> None:
    """It became the token where the vocabulary has not all of its characters, or after a symbol."""
    sentencepiece = pytest.importorskip("sentencepiece")
    path = made(
        tmp_path,
        [" ".join(letters[i:] + letters[:i] for i in range(len(letters)))] * 4,
        model_type=kind,
        vocab_size=300 if has_bytes else 30,
        hard_vocab_limit=False,
        byte_fallback=has_bytes,
        user_defined_symbols=symbols,
        **({"character_coverage": 1.0} if kind == "bpe" else {}),
    )
    theirs = sentencepiece.SentencePieceProcessor(model_file=str(path))
    ours = Tokenizer.load(path)
    for text in map("".join, product(NAMES, repeat=3)):
        assert ours.encode(text).tolist() == theirs.encode(text), text


def test_a_name_that_cannot_be_kept_from_text_is_refused() -> None:
    with pytest.raises(UsageError, match="'x' as text cannot be kept apart"):
        hidden_names(["x"], ["a"], has_bytes=False, always=False)
    with pytest.raises(UsageError, match="'<s>' as text cannot be kept apart"):
        hidden_names(["<s>"], ["a<s>b"], has_bytes=True, always=False)
    assert hidden_names(["<s>"], [*"<s>", "<s"], has_bytes=False, always=False) == ([], [])


def test_texts_with_two_equally_likely_splits_are_found() -> None:
    assert tied_run({"-": -3.0, "----": -2.0, "a": -4.0}) == "-----"
    assert tied_run({"-": -3.0, "--": -7.0}) is None  # never used
    assert tied_run({"a": -1.0, "b": -1.0, "ab": -1.5}) is None
    assert tied_run({"ab": -2.0, "abab": -2.5, "a": -9.0}) == "ababab"


def test_a_conversion_tells_of_equally_likely_splits(tmp_path: Path) -> None:
    path = made(tmp_path, ["=" * 12, "a=b"] * 40, vocab_size=12, hard_vocab_limit=False)
    written = convert(str(path), str(tmp_path / "tokenizer.json"))
    (note,) = written["notes"]
    assert note.startswith("SentencePiece may split a text such as '==")
    path = made(tmp_path, ["a b"] * 20, vocab_size=6, hard_vocab_limit=False)
    assert convert(str(path), str(tmp_path / "other.json"))["notes"] == []


def test_a_sequence_of_a_table_is_not_a_pattern(tmp_path: Path) -> None:
    rules = tmp_path / "rules.tsv"
    rules.write_text("2E 2B\t78\n28 61\t79\n")  # .+ becomes x, (a becomes y
    path = made(tmp_path, ["a b c"] * 9, vocab_size=7, normalization_rule_tsv=str(rules))
    table = _parsed(path.read_bytes()).table
    steps = rewriting(table, "nfkc")
    assert steps is not None
    assert normalizers.Sequence(list(steps)).normalize_str("b.+ (a .c+") == "bx y .c+"


def test_lines_end_with_the_boundary_token(folder: Path) -> None:
    theirs, ours = both("unigram", "plain", folder)
    lines = ["the value of the condition", "and it is false."]
    text = f"{lines[0]}\n\n{lines[1]}\n"
    first, second = (theirs.encode(line) for line in lines)
    end = theirs.eos_id()
    assert ours.boundary_id == end
    assert ours.encode(text).tolist() == [*first, end, end, *second, end]
    assert ours.decode(ours.encode(text)) == text
    ids, spans = ours.encode_spans(text)
    assert ids.tolist() == ours.encode(text).tolist()
    assert "".join(text[start:end] for start, end in spans) == text
    assert ours.names()[first[0]] == theirs.id_to_piece(first[0])
    assert ours.unknown_id == theirs.unk_id()


def test_unigram_models_are_trained(tmp_path: Path) -> None:
    tokenizer = train_on_texts(LINES, TokenizerConfig(kind="sentencepiece", vocab_size=500))
    assert (tokenizer.kind, tokenizer.unknown_id, tokenizer.boundary_id) == ("sentencepiece", 0, 1)
    assert 350 < tokenizer.vocab_size <= 501
    for text in (
        *(" ".join(line.split()) for line in LINES),
        "Ελληνικά 🎉",
    ):  # bytes for what the text lacks
        ids = tokenizer.encode(text)
        assert tokenizer.decode(ids) == text
        assert tokenizer.unknown_id not in ids
    assert len(tokenizer.encode(LINES[4])) < len(LINES[4]) / 2
    tokenizer.save(tmp_path / "tokenizer.json")
    again = Tokenizer.load(tmp_path / "tokenizer.json")
    assert np.array_equal(again.encode(LINES[0]), tokenizer.encode(LINES[0]))


def test_other_models_are_refused(folder: Path) -> None:
    sentencepiece = pytest.importorskip("sentencepiece")
    path = folder / "other.model"
    for options, message in (
        ({"model_type": "char"}, "of the kind char"),
        ({"treat_whitespace_as_suffix": True}, "with spaces at the ends of words"),
    ):
        written = io.BytesIO()
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(LINES),
            model_writer=written,
            vocab_size=200,
            hard_vocab_limit=False,
            minloglevel=2,
            **options,
        )
        path.write_bytes(written.getvalue())
        with pytest.raises(UsageError, match=message):
            read_model(path)
    for damage in (b"", b"text\n", trained("bpe", "plain")[:5000]):
        path.write_bytes(damage)
        with pytest.raises(ElmanError, match="not a model of SentencePiece"):
            read_model(path)


PATTERNS = {
    "gpt2": r"'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s",
    "cl100k_base": r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+"
    r"| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]|\s+(?!\S)|\s",
    "o200k_base": r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+"
    r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
}
"""The patterns of tiktoken's own encodings, whose ranks are a download."""
SPECIAL = "<|endoftext|>"
FOR_TIKTOKEN = st.one_of(
    st.text(st.characters(exclude_categories=["Cs"])),
    st.lists(
        st.sampled_from([*"abcdest  ,.é日0123456789\n\t", "the ", "'ll", "'S", " zqxzqx", SPECIAL])
    ).map("".join),
)


@cache
def ranks() -> dict[bytes, int]:
    """Ranks of a small byte-level BPE, and of a token that no merge makes."""
    backend = tokenizers.Tokenizer(tokenizers.models.BPE())
    backend.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=500, initial_alphabet=byte_spellings(), show_progress=False
    )
    backend.train_from_iterator(LINES, trainer)
    byte_of = {spelling: byte for byte, spelling in enumerate(byte_spellings())}
    vocab = json.loads(backend.to_str())["model"]["vocab"]
    found = {bytes(byte_of[c] for c in token): rank for token, rank in vocab.items()}
    return found | {b" zqxzqx": len(found)}


@pytest.mark.parametrize("name", PATTERNS)
@pytest.mark.parametrize("special", [{}, {SPECIAL: 600, "<|fim|>": 601}], ids=["none", "two"])
def test_the_ids_are_those_of_tiktoken(name: str, special: dict[str, int]) -> None:
    tiktoken = pytest.importorskip("tiktoken")
    theirs = tiktoken.Encoding(
        name, pat_str=PATTERNS[name], mergeable_ranks=ranks(), special_tokens=special
    )
    ours = Tokenizer(from_encoding(theirs))
    reread = Tokenizer.from_json(ours.to_json())
    assert ours.boundary_id == special.get(SPECIAL, len(ranks()))

    @settings(max_examples=100, deadline=None)
    @given(FOR_TIKTOKEN)
    def check(text: str) -> None:
        expected = theirs.encode_ordinary(text)
        assert ours.encode(text).tolist() == expected == reread.encode(text).tolist()
        assert ours.decode(expected) == text

    check()
    assert ours.decode([ours.boundary_id]) == ""


def test_encodings_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    tiktoken = pytest.importorskip("tiktoken")
    with pytest.raises(UsageError, match="tiktoken knows no encoding 'cl100k'"):
        read_encoding("tiktoken:cl100k")
    made = tiktoken.Encoding(
        "gpt2", pat_str=PATTERNS["gpt2"], mergeable_ranks=ranks(), special_tokens={SPECIAL: 900}
    )
    monkeypatch.setattr(tiktoken, "get_encoding", {"gpt2": made}.__getitem__)
    assert Tokenizer(read_encoding("tiktoken:gpt2")).vocab_size == 901


def test_a_possessive_interval_is_written_as_an_atomic_group() -> None:
    found = pattern_for_oniguruma(r"\p{N}{1,3}+|[a\]]{2}+|x{2,}+|y++|z{3}")
    assert found == r"(?>\p{N}{1,3})|(?>[a\]]{2})|(?>x{2,})|y++|z{3}"


def test_the_pair_that_makes_a_token() -> None:
    ranks = {"ab": 1.0, "bc": 0.0, "abc": 2.0, "xyz": 3.0}
    assert pair_of("abc", ranks, "".join) == ("a", "bc")
    assert pair_of("xyz", ranks, "".join) is None
