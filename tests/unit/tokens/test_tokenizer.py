"""Every kind of tokenizer: quick paths equal the saved file's meaning, and text comes back."""

from __future__ import annotations

import json
import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers as hf
from hypothesis import example, given, settings
from hypothesis import strategies as st

from elman.base.errors import ElmanError, UsageError
from elman.tokens import bpe, characters, kind, pretokenized, words
from elman.tokens.tokenizer import Tokenizer
from elman.tokens.tokenizer_config import TokenizerConfig
from elman.tokens.train import train_tokenizer

KINDS = ("char", "byte", "word", "pretokenized", "bpe")
TEXT = (
    "The students opened their books, and the pupils (all of them) opened theirs.\n"
    "Don't shout: the café is 100% full!\n\n"
    "Der Schüler sagt: „Ich weiß nicht.“ 日本語も少し、读书。\n"
    "\tindented  twice   and\ttabbed\n"
) * 3

# Words, marks and white space of many sorts, so that the edges between them are met often.
MIXED = st.lists(
    st.one_of(
        st.sampled_from(
            [
                "the",
                "books",
                "don't",
                "<eos>",
                "<unk>",
                "ﬁ",
                "é",
                "e\u0301",
                "日本",
                "12345",
                "'s",
                "İ",
                "Σ",
            ]
        ),
        st.sampled_from(list(" \n\t\r\x0b\x0c\x1c\x1f\x85\xa0\u2028\u3000.,'’(«%")),
        st.text(max_size=4),
    ),
    max_size=25,
).map("".join)


@pytest.fixture(scope="session")
def tokenizers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Tokenizer]:
    path = tmp_path_factory.mktemp("tokens") / "text.txt"
    path.write_text(TEXT, encoding="utf-8")
    configs = [TokenizerConfig(kind=kind) for kind in KINDS[:-1]]  # type: ignore[arg-type]
    configs.append(TokenizerConfig(kind="bpe", vocab_size=400))
    return {config.kind: train_tokenizer(path, config)[0] for config in configs}


@pytest.mark.parametrize("name", KINDS)
@given(text=MIXED)
@example(text="a \n b  \n\n  c")
@example(text="")
@settings(max_examples=150)
def test_quick_ids_are_those_of_the_file(
    tokenizers: dict[str, Tokenizer], name: str, text: str
) -> None:
    tokenizer = tokenizers[name]
    ids = tokenizer.encode(text)
    assert ids.dtype == np.int32
    assert ids.tolist() == tokenizer.backend.encode(text, add_special_tokens=False).ids


@pytest.mark.parametrize("name", ["byte", "bpe"])
@given(text=MIXED)
@settings(max_examples=150)
def test_any_text_comes_back_exactly(
    tokenizers: dict[str, Tokenizer], name: str, text: str
) -> None:
    tokenizer = tokenizers[name]
    assert tokenizer.decode(tokenizer.encode(text)) == text


@given(text=st.text(alphabet=sorted(set(TEXT)), max_size=60))
def test_known_characters_come_back_exactly(tokenizers: dict[str, Tokenizer], text: str) -> None:
    tokenizer = tokenizers["char"]
    ids = tokenizer.encode(text)
    assert len(ids) == len(text)
    assert tokenizer.decode(ids) == text


@pytest.mark.parametrize("name", ["word", "pretokenized"])
@given(text=MIXED)
@settings(max_examples=150)
def test_words_come_back_but_for_spaces(
    tokenizers: dict[str, Tokenizer], name: str, text: str
) -> None:
    tokenizer = tokenizers[name]
    ids = tokenizer.encode(text)
    written = tokenizer.decode(ids)
    assert tokenizer.encode(written).tolist() == ids.tolist()
    if "<eos>" in text:
        return
    assert written.count("\n") == text.count("\n")
    if tokenizer.unknown_id not in ids:
        assert "".join(written.split()) == "".join(text.split())


@given(data=st.data())
def test_whatever_words_a_model_writes_can_be_read_again(
    tokenizers: dict[str, Tokenizer], data: st.DataObject
) -> None:
    for name in ("word", "pretokenized"):
        tokenizer = tokenizers[name]
        ids = data.draw(st.lists(st.integers(0, tokenizer.vocab_size - 1), max_size=20))
        assert tokenizer.encode(tokenizer.decode(ids)).tolist() == ids


@pytest.mark.parametrize("name", KINDS)
@given(first=MIXED, second=MIXED)
@settings(max_examples=60)
def test_a_text_may_be_cut_at_any_line_end(
    tokenizers: dict[str, Tokenizer], name: str, first: str, second: str
) -> None:
    tokenizer = tokenizers[name]
    whole = tokenizer.encode(first + "\n" + second).tolist()
    assert whole == [*tokenizer.encode(first + "\n").tolist(), *tokenizer.encode(second).tolist()]


@pytest.mark.parametrize("name", KINDS)
@given(text=MIXED)
@settings(max_examples=60)
def test_streaming_gives_the_same_text(
    tokenizers: dict[str, Tokenizer], name: str, text: str
) -> None:
    tokenizer = tokenizers[name]
    ids = tokenizer.encode(text).tolist()
    stream = tokenizer.stream()
    pieces = [stream.push(i) for i in ids]
    assert "".join(pieces) + stream.finish() == tokenizer.decode(ids)


def test_a_stream_holds_back_unfinished_characters_and_goes_on_after_a_prompt(
    tokenizers: dict[str, Tokenizer],
) -> None:
    tokenizer = tokenizers["byte"]
    stream = tokenizer.stream()
    assert [stream.push(i) for i in tokenizer.encode("é!").tolist()] == ["", "é", "!"]
    stream.push(tokenizer.encode("é").tolist()[0])
    assert stream.finish() == "�"
    tokenizer = tokenizers["word"]
    the, comma, books = (tokenizer.encode(word).tolist()[0] for word in ("the", ",", "opened"))
    stream = tokenizer.stream(after=the)
    assert [stream.push(i) for i in (books, comma, tokenizer.boundary_id, the)] == [
        " opened",
        ",",
        "\n",
        "the",
    ]


@pytest.mark.parametrize("name", KINDS)
def test_spans_cover_what_each_token_spells(tokenizers: dict[str, Tokenizer], name: str) -> None:
    tokenizer = tokenizers[name]
    text = "the café opened,\n  the books"
    ids, spans = tokenizer.encode_spans(text)
    assert ids.tolist() == tokenizer.encode(text).tolist()
    newline = text.index("\n")
    assert (newline, newline + 1) in spans
    for i, (start, end) in zip(ids.tolist(), spans, strict=True):
        if i == tokenizer.boundary_id:
            assert (start, end) == (newline, newline + 1)
        elif i != tokenizer.unknown_id and not tokenizer.token(i).startswith("<0x"):
            assert text[start:end] == tokenizer.token(i)


@pytest.mark.parametrize("name", KINDS)
def test_a_saved_tokenizer_is_the_same(
    tokenizers: dict[str, Tokenizer], name: str, tmp_path: Path
) -> None:
    tokenizer = tokenizers[name]
    tokenizer.save(tmp_path / "tokenizer.json")
    loaded = Tokenizer.load(tmp_path / "tokenizer.json")
    assert (loaded.kind, loaded.hash, loaded.vocab_size) == (
        name,
        tokenizer.hash,
        tokenizer.vocab_size,
    )
    assert loaded.encode(TEXT).tolist() == tokenizer.encode(TEXT).tolist()
    assert loaded.spellings() == tokenizer.spellings()
    assert len({t.hash for t in tokenizers.values()}) == len(KINDS)


def test_the_hash_is_of_the_meaning_not_of_the_file(tokenizers: dict[str, Tokenizer]) -> None:
    tokenizer = tokenizers["bpe"]
    spec = json.loads(tokenizer.to_json())
    spec["model"]["merges"] = [" ".join(pair) for pair in spec["model"]["merges"]]  # older versions
    spec["truncation"] = {
        "direction": "Right",
        "max_length": 9,
        "strategy": "LongestFirst",
        "stride": 0,
    }
    assert Tokenizer.from_json(json.dumps(spec)).hash == tokenizer.hash
    spec["model"]["merges"].pop()
    assert Tokenizer.from_json(json.dumps(spec)).hash != tokenizer.hash
    lowercase = {**json.loads(tokenizer.to_json()), "normalizer": {"type": "Lowercase"}}
    assert Tokenizer.from_json(json.dumps(lowercase)).hash != tokenizer.hash


@pytest.mark.parametrize("name", KINDS)
def test_the_vocabulary_can_be_looked_at(tokenizers: dict[str, Tokenizer], name: str) -> None:
    tokenizer = tokenizers[name]
    spellings = tokenizer.spellings()
    assert len(spellings) == tokenizer.vocab_size == len(tokenizer.starts_word())
    assert tokenizer.token(tokenizer.boundary_id) == "<eos>"
    assert tokenizer.boundary_id == 0
    assert all(tokenizer.id(spelling) == i for i, spelling in enumerate(spellings))
    assert tokenizer.id("no such token") is None
    assert (tokenizer.unknown_id is None) == (name in ("byte", "bpe"))
    assert tokenizer.marks_lines == (name in ("word", "pretokenized"))


def test_where_words_start(tokenizers: dict[str, Tokenizer]) -> None:
    pieces = tokenizers["bpe"]
    starts = pieces.starts_word()
    spelled = {pieces.token(i) for i in np.flatnonzero(starts)}
    assert " the" in spelled
    assert "\n" in spelled
    assert "the" not in spelled
    letters = tokenizers["char"]
    assert {letters.token(i) for i in np.flatnonzero(letters.starts_word())} == {" ", "\n", "\t"}
    assert tokenizers["word"].starts_word().all()


def test_unknown_characters_and_words() -> None:
    letters = Tokenizer(characters.build(["a", "b"]))
    assert letters.encode("abc").tolist() == [2, 3, 1]
    assert letters.decode([2, 3, 1]) == "ab�"
    whole = Tokenizer(pretokenized.build(["a", "b"]))
    assert whole.encode("a c\n<unk> b").tolist() == [2, 1, 0, 1, 3]
    assert whole.decode([2, 1, 0, 1, 3]) == "a <unk>\n<unk> b"


@pytest.mark.parametrize("name", KINDS)
def test_half_characters_are_explained(tokenizers: dict[str, Tokenizer], name: str) -> None:
    with pytest.raises(UsageError, match="not UTF-8"):
        tokenizers[name].encode_spans("a \udcff b")
    if name != "pretokenized":  # there it is one more unknown word
        with pytest.raises(UsageError, match="not UTF-8"):
            tokenizers[name].encode("a \udcff b")


def test_words_lean_on_their_marks() -> None:
    tokenizer = Tokenizer(words.build(["Yes", ",", "(", "don't", ")", ".", "'"]))
    text = "Yes, (don't)."
    ids = tokenizer.encode("Yes , ( don't ) .").tolist()
    assert ids == tokenizer.encode(text).tolist()
    assert tokenizer.decode(ids) == text


@pytest.mark.parametrize("build", [characters.build, words.build, pretokenized.build])
@given(text=MIXED)
@settings(max_examples=60)
def test_lower_case(build, text: str) -> None:  # type: ignore[no-untyped-def]
    tokenizer = Tokenizer(build(["a", "the", "t", "h", "e", "books", "σ"], lowercase=True))
    assert tokenizer.encode("THE").tolist() == tokenizer.encode("the").tolist()
    assert tokenizer.unknown_id not in tokenizer.encode("THE")
    encoded = tokenizer.backend.encode(text, add_special_tokens=False)
    assert tokenizer.encode(text).tolist() == encoded.ids


def test_the_table_of_pieces_forgets(
    tokenizers: dict[str, Tokenizer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kind.PieceTable, "LIMIT", 5)
    tokenizer = Tokenizer.from_json(tokenizers["bpe"].to_json())
    for text in TEXT.splitlines():
        assert tokenizer.decode(tokenizer.encode(text)) == text


def test_the_table_of_pieces_survives_an_error(tokenizers: dict[str, Tokenizer]) -> None:
    for name in ("word", "bpe"):
        tokenizer = Tokenizer.from_json(tokenizers[name].to_json())
        with pytest.raises(UsageError):
            tokenizer.encode("new words and \udcff half a character")
        assert tokenizer.encode(TEXT).tolist() == tokenizers[name].encode(TEXT).tolist()


def test_many_threads_may_encode(tokenizers: dict[str, Tokenizer]) -> None:
    tokenizer = Tokenizer.from_json(tokenizers["bpe"].to_json())
    texts = [f"text {i} of {i * 7} " + TEXT[i : i + 60] for i in range(200)] * 3
    expected = [tokenizers["bpe"].encode(text).tolist() for text in texts]
    with ThreadPoolExecutor(8) as pool:
        found = [ids.tolist() for ids in pool.map(tokenizer.encode, texts)]
    assert found == expected


def test_tokenizers_of_other_toolkits_load(tmp_path: Path) -> None:
    """A GPT-2 style file: other splitting, its own end of text, the boundary not at 0."""
    backend = hf.Tokenizer(hf.models.BPE())
    backend.pre_tokenizer = hf.pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = hf.trainers.BpeTrainer(
        vocab_size=300,
        initial_alphabet=sorted(hf.pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    backend.train_from_iterator([TEXT], trainer)
    backend.add_special_tokens(["<|endoftext|>"])
    backend.save(str(tmp_path / "tokenizer.json"))
    tokenizer = Tokenizer.load(tmp_path / "tokenizer.json")
    assert tokenizer.kind == "bpe"
    assert tokenizer.token(tokenizer.boundary_id) == "<|endoftext|>"
    assert tokenizer.boundary_id == tokenizer.vocab_size - 1
    assert tokenizer.decode(tokenizer.encode(TEXT)) == TEXT
    assert tokenizer.decode([tokenizer.boundary_id]) == ""


def test_unusable_files_are_explained(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    with pytest.raises(ElmanError, match="does not exist"):
        Tokenizer.load(path)
    path.write_text('{"version": "1.0", "model"')
    with pytest.raises(ElmanError, match=r"tokenizer\.json is not a tokenizer\.json"):
        Tokenizer.load(path)
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(ElmanError, match="is not a tokenizer"):
        Tokenizer.load(path)
    hf.Tokenizer(hf.models.WordPiece({"a": 0}, unk_token="a")).save(str(path))
    with pytest.raises(UsageError, match="WordPiece"):
        Tokenizer.load(path)
    spec = json.loads(bpe.train(["text"], 260).to_str())
    spec["model"]["vocab"]["<weird>"] = spec["model"]["vocab"].pop("<eos>")
    path.write_text(json.dumps(spec))
    with pytest.raises(UsageError, match="no token that begins or ends a text"):
        Tokenizer.load(path)


@pytest.mark.parametrize("name", KINDS)
def test_a_flip_in_the_file_changes_the_hash_or_nothing(
    tokenizers: dict[str, Tokenizer], tmp_path: Path, name: str
) -> None:
    tokenizer, path = tokenizers[name], tmp_path / "tokenizer.json"
    text = TEXT + "Unseen: ÆØÅ <eos> xyzzy\n"
    expected = tokenizer.encode(text).tolist(), tokenizer.encode_spans(text), tokenizer.spellings()
    tokenizer.save(path)
    whole, draw = path.read_bytes(), random.Random(7)
    # The settings, which are few, and as much of the vocabulary.
    small = [*range(600), *range(len(whole) - 100, len(whole))]
    for place in draw.sample(small, 60) + draw.choices(range(len(whole)), k=60):
        data = bytearray(whole)
        data[place] ^= 1 << draw.randrange(8)
        path.write_bytes(data)
        try:
            found = Tokenizer.load(path)
        except ElmanError:
            continue
        if found.hash == tokenizer.hash:
            ids, (others, spans) = found.encode(text).tolist(), found.encode_spans(text)
            assert (ids, spans, found.spellings()) == (
                expected[0],
                expected[1][1],
                expected[2],
            ), data[max(0, place - 20) : place + 20]
            assert others.tolist() == expected[1][0].tolist()


def _changed(spec: dict[str, Any], change: str) -> dict[str, Any]:
    model, vocab = spec["model"], spec["model"]["vocab"]
    last = max(vocab, key=vocab.__getitem__)
    if change == "shared id":
        vocab[last] = 3
    elif change == "huge id":
        vocab[last] = 4_000_000_000
    elif change == "no vocabulary":
        model["vocab"] = {}
    elif change == "no unknown":
        del vocab["<unk>"]
    elif change == "many digits":
        vocab[last] = 10**4000
    elif change == "no model":
        spec["model"] = None
    elif change == "stride":
        model["unk_token"] = "<missing>"
    return spec


@pytest.mark.parametrize(
    "change",
    ["shared id", "huge id", "no vocabulary", "no unknown", "many digits", "no model", "stride"],
)
def test_a_vocabulary_that_cannot_work_is_one_sentence(
    tokenizers: dict[str, Tokenizer], tmp_path: Path, change: str
) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(_changed(json.loads(tokenizers["word"].to_json()), change)))
    with pytest.raises(ElmanError) as caught:
        Tokenizer.load(path).encode_spans("unseen xyzzy")
    assert "\n" not in caught.value.message


@pytest.mark.parametrize("content", ["[" * 100_000, '{"elman_kind": ' * 100_000, "[]", "null"])
def test_a_document_that_is_no_tokenizer_is_one_sentence(tmp_path: Path, content: str) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_text(content)
    with pytest.raises(ElmanError, match=r"is not a tokenizer\.json that works"):
        Tokenizer.load(path)


def test_a_file_that_would_cut_every_text_does_not(tokenizers: dict[str, Tokenizer]) -> None:
    backend = hf.Tokenizer.from_str(tokenizers["bpe"].to_json())
    backend.enable_truncation(9)
    backend.enable_padding(length=5000)
    found = Tokenizer.from_json(backend.to_str())
    assert len(found.encode_spans(TEXT)[0]) == len(tokenizers["bpe"].encode(TEXT))
