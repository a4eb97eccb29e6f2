from __future__ import annotations

import gzip
import http.server
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import fsspec
import pytest

from elman.base.errors import ElmanError, UsageError
from elman.text.converting import utf8_files
from elman.text.sources import byte_blocks, expand


@pytest.fixture
def memory() -> Iterator[Any]:
    system = fsspec.filesystem("memory")
    system.pipe("/news/1.txt", b"one\n")
    system.pipe("/news/2.txt.gz", gzip.compress(b"two\n"))
    system.pipe("/news/.hidden", b"secret\n")
    system.pipe("/news/empty.txt", b"")
    system.pipe("/rows.jsonl", b'{"text": "three"}\n')
    yield system
    system.rm("/", recursive=True)


def text_of(files: list[Path]) -> str:
    return "".join(block.text for file in files for block in byte_blocks(file))


def test_files_folders_and_patterns_at_an_address(memory: Any) -> None:
    assert text_of(expand("memory://news/1.txt")) == "one\n"
    assert text_of(expand("memory://news")) == "one\ntwo\n"
    assert text_of(expand("memory://news/*.gz")) == "two\n"
    assert [file.name for file in expand("memory://news")] == ["1.txt", "2.txt.gz"]
    (found,) = utf8_files(["memory://rows.jsonl"], column="text")
    assert Path(found).read_text() == "three\n"
    assert utf8_files(["memory://news/1.txt"], column="text") == ["memory://news/1.txt"]


def test_what_changed_at_an_address_is_read_again(memory: Any) -> None:
    expand("memory://news/1.txt")
    memory.pipe("/news/1.txt", b"other\n")
    assert text_of(expand("memory://news/1.txt")) == "other\n"


def test_local_files_are_not_copied(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("text", encoding="utf-8")
    assert expand(path.as_uri()) == [path]


def test_http(tmp_path: Path) -> None:
    pytest.importorskip("aiohttp")
    (tmp_path / "a.txt").write_text("from a server\n", encoding="utf-8")

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

    handler = partial(Quiet, directory=str(tmp_path))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            address = f"http://127.0.0.1:{server.server_port}"
            assert text_of(expand(f"{address}/a.txt?version=2")) == "from a server\n"
            with pytest.raises(UsageError, match=r"b\.txt does not exist"):
                expand(f"{address}/b.txt")
        finally:
            server.shutdown()
            thread.join()


def test_bad_addresses_are_explained(memory: Any) -> None:
    for address, message in (
        ("memory://missing.txt", "does not exist"),
        ("memory://news/*.csv", "no file matches"),
        ("nonsense://a", "fsspec knows no such address"),
    ):
        with pytest.raises(UsageError, match=message):
            expand(address)
    with pytest.raises(ElmanError, match=r"cannot be read|needs another package"):
        expand("http://127.0.0.1:9/a.txt")
