"""Texts encoded on disk: the right ids, reused when nothing changed, made anew when damaged."""

from __future__ import annotations

import errno
import gzip
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from elman.base import files
from elman.base.errors import ElmanError
from elman.batches import encoded
from elman.batches.encoded import EncodedText, encode_files
from elman.tokens.tokenizer import Tokenizer
from elman.tokens.tokenizer_config import TokenizerConfig
from elman.tokens.train import train_tokenizer

KINDS = ("char", "byte", "word", "pretokenized", "bpe")
TEXT = "".join(
    f"Line {i}: the café, number {i * i}, opened <unk> at {i % 24} o'clock.\n  indented\n\n"
    for i in range(400)
)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Tokenizer]:
    path = tmp_path_factory.mktemp("encoded") / "text.txt"
    path.write_text(TEXT[: len(TEXT) // 2], encoding="utf-8")
    return {
        kind: train_tokenizer(
            path, TokenizerConfig(kind=kind, vocab_size=350 if kind == "bpe" else 0)
        )[0]  # type: ignore[arg-type]
        for kind in KINDS
    }


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "text.txt"
    file.write_text(TEXT, encoding="utf-8")
    return file


@pytest.fixture
def encodings(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Grows by one whenever something is really encoded."""
    done: list[str] = []
    real = encoded.map_blocks

    def spy(function, setup, blocks, workers):  # type: ignore[no-untyped-def]
        done.append(function)
        return real(function, setup, blocks, workers)

    monkeypatch.setattr(encoded, "map_blocks", spy)
    return done


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("workers", [1, 2])
def test_the_ids_are_those_of_the_whole_text(
    made: dict[str, Tokenizer],
    kind: str,
    workers: int,
    path: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(encoded, "BLOCK_SIZE", 2000)
    tokenizer = made[kind]
    text = encode_files(path, tokenizer, cache=tmp_path / "cache", workers=workers)
    expected = tokenizer.encode(TEXT)
    assert text.ids.dtype == np.uint16
    assert text.ids.tolist() == expected.tolist()
    assert text.num_tokens == len(text) == len(expected)
    assert text.num_bytes == len(TEXT.encode())
    assert text.slice(5, 9).tolist() == expected[5:9].tolist()
    assert text.slice(5, 9).dtype == np.int64
    counts = np.bincount(expected, minlength=tokenizer.vocab_size)
    assert text.counts(tokenizer.vocab_size).tolist() == counts.tolist()


def test_penn_treebank_has_its_published_sizes(shared_data: Path, tmp_path: Path) -> None:
    folder = shared_data / "ptb"
    tokenizer, _ = train_tokenizer(folder / "ptb.train.txt", TokenizerConfig())
    sizes = [
        encode_files(folder / f"ptb.{part}.txt", tokenizer, cache=tmp_path).num_tokens
        for part in ("train", "valid", "test")
    ]
    assert sizes == [929_589, 73_760, 82_430]


def test_a_line_end_that_is_missing_is_marked_all_the_same(
    shared_data: Path, tmp_path: Path
) -> None:
    """The news shards: 25,276 words, 1,000 lines, 10 files that do not end their last line."""
    tokenizer, _ = train_tokenizer(shared_data / "news_shards", TokenizerConfig())
    text = encode_files(shared_data / "news_shards", tokenizer, cache=tmp_path)
    assert text.num_tokens == 26_276
    assert int((text.ids == tokenizer.boundary_id).sum()) == 1_000


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("fraction", [0.0, 0.013, 0.5, 0.9, 1.0])
def test_the_parts_of_a_split_know_their_bytes(
    made: dict[str, Tokenizer],
    kind: str,
    fraction: float,
    path: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(encoded, "BLOCK_SIZE", 2000)
    tokenizer = made[kind]
    text = encode_files(path, tokenizer, cache=tmp_path / "cache")
    first, rest = text.split(fraction)
    assert np.concatenate([first.ids, rest.ids]).tolist() == text.ids.tolist()
    assert abs(first.num_tokens - fraction * text.num_tokens) < 30
    assert first.num_bytes + rest.num_bytes == text.num_bytes
    data = TEXT.encode()
    before = data[: first.num_bytes].decode()  # the cut is not inside a character
    assert tokenizer.encode(before).tolist() == first.ids.tolist()
    if tokenizer.marks_lines:
        assert before == "" or before.endswith("\n")
    elif kind in ("char", "byte") and 0 < fraction < 1:
        assert abs(first.num_tokens - int(fraction * text.num_tokens)) <= 1


def test_a_text_is_encoded_once(
    made: dict[str, Tokenizer], path: Path, tmp_path: Path, encodings: list[str]
) -> None:
    cache = tmp_path / "cache"
    encode_files(path, made["char"], cache=cache)
    assert len(encodings) == 1
    encode_files([path], made["char"], cache=cache)
    copy = tmp_path / "copy.txt"
    copy.write_text(TEXT, encoding="utf-8")
    os.utime(path, ns=(1, 1))
    encode_files(path, made["char"], cache=cache)
    encode_files(copy, made["char"], cache=cache)
    assert len(encodings) == 1
    encode_files(path, made["byte"], cache=cache)
    assert len(encodings) == 2
    path.write_text(TEXT + "more", encoding="utf-8")
    text = encode_files(path, made["char"], cache=cache)
    assert len(encodings) == 3
    assert text.num_bytes == len(TEXT.encode()) + 4


LEFT = f".elman-{files._HOST}00000"


def test_a_reader_removes_what_killed_programs_left(
    made: dict[str, Tokenizer], path: Path, tmp_path: Path
) -> None:
    encode_files(path, made["char"], cache=tmp_path)
    for left in (tmp_path / LEFT, tmp_path / "index" / LEFT):
        left.mkdir()
        (left / "a.ids").touch()
    encode_files(path, made["char"], cache=tmp_path)
    assert not list(tmp_path.rglob(".elman-*"))


def test_an_untouched_file_is_not_even_read(
    made: dict[str, Tokenizer], path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    encode_files(path, made["char"], cache=tmp_path)

    def never(files: list[Path]) -> str:
        raise AssertionError

    monkeypatch.setattr(encoded, "_content_hash", never)
    assert encode_files(path, made["char"], cache=tmp_path).num_tokens == len(TEXT)


@pytest.mark.parametrize(
    "damage", ["truncated", "flipped", "no ids", "header", "blocks", "index", "emptied"]
)
def test_a_damaged_entry_is_encoded_anew(
    made: dict[str, Tokenizer], path: Path, tmp_path: Path, encodings: list[str], damage: str
) -> None:
    cache = tmp_path / "cache"
    expected = encode_files(path, made["bpe"], cache=cache).ids.tolist()
    (ids,) = cache.glob("*.ids")
    (header,) = cache.glob("*.json")
    (index,) = (cache / "index").glob("*.json")
    data = bytearray(ids.read_bytes())
    match damage:
        case "truncated":
            ids.write_bytes(data[:-10])
        case "flipped":
            data[1000] ^= 1
            ids.write_bytes(data)
        case "no ids":
            ids.unlink()
        case "header":
            header.write_text('{"format": 1')
        case "blocks":
            found = json.loads(header.read_text())
            del found["check"]
            header.write_text(json.dumps(found | {"blocks": [[[], 1]]}))
        case "index":
            index.write_text("../../etc/passwd")
        case "emptied":
            ids.write_bytes(b"")
    assert encode_files(path, made["bpe"], cache=cache).ids.tolist() == expected
    assert len(encodings) == (1 if damage == "index" else 2)


def test_large_entries_are_checked_in_places(tmp_path: Path) -> None:
    path = tmp_path / "big.ids"
    size = 100 << 20
    with path.open("wb") as handle:
        handle.truncate(size)
    whole = encoded._fingerprint(path)
    with path.open("r+b") as handle:
        handle.seek(size - 1)
        handle.write(b"x")
    assert encoded._fingerprint(path) != whole


def test_two_programs_may_encode_the_same_text(
    made: dict[str, Tokenizer], path: Path, tmp_path: Path
) -> None:
    made["word"].save(tmp_path / "tokenizer.json")
    program = (
        "import sys; from pathlib import Path\n"
        "from elman.batches.encoded import encode_files\n"
        "from elman.tokens.tokenizer import Tokenizer\n"
        "tokenizer = Tokenizer.load(Path(sys.argv[1]))\n"
        "print(encode_files(sys.argv[2], tokenizer, cache=Path(sys.argv[3])).ids.sum())\n"
    )
    arguments = [str(tmp_path / "tokenizer.json"), str(path), str(tmp_path / "cache")]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    programs = [
        subprocess.Popen(
            [sys.executable, "-c", program, *arguments], stdout=subprocess.PIPE, env=environment
        )
        for _ in range(3)
    ]
    outputs = {process.communicate()[0] for process in programs}
    assert all(process.returncode == 0 for process in programs)
    assert outputs == {b"%d\n" % made["word"].encode(TEXT).sum()}
    assert not list((tmp_path / "cache").glob(".elman-*"))


def test_compressed_and_many_files(made: dict[str, Tokenizer], path: Path, tmp_path: Path) -> None:
    zipped = tmp_path / "other.txt.gz"
    zipped.write_bytes(gzip.compress(TEXT.encode()))
    text = encode_files([path, zipped, path], made["char"], cache=tmp_path / "c")
    assert text.num_bytes == 2 * len(TEXT.encode())


def test_windows_text_is_the_same_text(made: dict[str, Tokenizer], tmp_path: Path) -> None:
    path = tmp_path / "dos.txt"
    path.write_bytes(b"\xef\xbb\xbf" + TEXT.replace("\n", "\r\n").encode())
    text = encode_files(path, made["char"], cache=tmp_path / "cache")
    assert text.ids.tolist() == made["char"].encode(TEXT).tolist()
    assert text.num_bytes == len(TEXT.encode())


def test_errors_are_clear_and_leave_nothing_behind(
    made: dict[str, Tokenizer], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad = tmp_path / "bad.txt"
    bad.write_bytes(b"fine\nn\xe9\n")
    nothing = tmp_path / "nothing.gz"
    nothing.write_bytes(gzip.compress(b""))
    cache = tmp_path / "cache"
    for file, message in [
        (bad, "line 2"),
        (nothing, "has no text"),
        (tmp_path / "x.txt", "exist"),
    ]:
        with pytest.raises(ElmanError, match=message) as caught:
            encode_files(file, made["char"], cache=cache)
        assert caught.value.hint
    good = tmp_path / "good.txt"
    good.write_text("text")

    def full(*arguments: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(encoded, "map_blocks", lambda *arguments: iter(full, None))
    with pytest.raises(ElmanError, match="disk is full"):
        encode_files(good, made["char"], cache=cache)
    assert not list(cache.rglob("*.json"))
    assert not list(cache.glob(".elman-*"))


def test_a_cache_that_cannot_be_made_is_said(
    made: dict[str, Tokenizer], path: Path, tmp_path: Path
) -> None:
    with pytest.raises(ElmanError, match="cache"):
        encode_files(path, made["char"], cache=path / "cache")


def test_an_index_that_cannot_be_written_does_no_harm(
    made: dict[str, Tokenizer], path: Path, tmp_path: Path, encodings: list[str]
) -> None:
    (tmp_path / "index").write_text("in the way")
    for _ in range(2):
        assert encode_files(path, made["char"], cache=tmp_path).num_tokens == len(TEXT)
    assert len(encodings) == 1


def test_a_file_that_changes_meanwhile_is_noticed(
    made: dict[str, Tokenizer], path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = encoded._content_hash

    def hash_and_change(files: list[Path]) -> str:
        digest = real(files)
        files[0].write_text("something else")
        return digest

    monkeypatch.setattr(encoded, "_content_hash", hash_and_change)
    with pytest.raises(ElmanError, match="changed while it was being read"):
        encode_files(path, made["char"], cache=tmp_path / "cache")
    assert not list((tmp_path / "cache").glob("*.json"))


def test_large_vocabularies_take_wider_ids(tmp_path: Path) -> None:
    from elman.tokens import pretokenized

    words = [f"w{i}" for i in range(70_000)]
    path = tmp_path / "text.txt"
    path.write_text("w3 w69999\n")
    text = encode_files(path, Tokenizer(pretokenized.build(words)), cache=tmp_path / "cache")
    assert text.ids.dtype == np.int32
    assert text.ids.tolist() == [5, 70_001, 0]


@pytest.mark.parametrize("kind", ["word", "pretokenized"])
def test_a_text_of_one_line_is_split_within_it(
    kind: str, made: dict[str, Tokenizer], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(encoded, "BLOCK_SIZE", 200)
    path = tmp_path / "line.txt"
    path.write_text("the number opened at " * 50, encoding="utf-8")
    text = encode_files(path, made[kind], cache=tmp_path / "cache")
    first, rest = text.split(0.9)
    assert first.num_tokens == int(0.9 * text.num_tokens)
    assert rest.num_tokens > 0
    assert 0 < rest.num_bytes < first.num_bytes < text.num_bytes


@pytest.mark.parametrize("kind", KINDS)
def test_a_part_is_split_like_a_text(
    kind: str,
    made: dict[str, Tokenizer],
    path: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(encoded, "BLOCK_SIZE", 2000)
    tokenizer = made[kind]
    text = encode_files(path, tokenizer, cache=tmp_path / "cache")
    first, second = text.split(0.5)
    parts = [*first.split(0.3), *second.split(0.6)]
    start = 0
    for part in parts:
        piece = TEXT.encode()[start : start + part.num_bytes].decode()
        assert part.num_tokens > 0
        assert part.ids.tolist() == tokenizer.encode(piece).tolist()
        start += part.num_bytes
    assert start == text.num_bytes
    for fraction, whole in [(0.0, 1), (1.0, 0)]:
        halves = second.split(fraction)
        assert halves[whole].num_bytes == second.num_bytes
        assert halves[1 - whole].num_bytes == 0


def test_ids_from_memory_are_a_text_too() -> None:
    text = EncodedText(np.arange(10), num_bytes=30)
    first, rest = text.split(0.9)
    assert (first.num_tokens, first.num_bytes) == (9, 27)
    assert (rest.num_tokens, rest.num_bytes) == (1, 3)
