"""Folders from elsewhere, as a user opens and resumes them."""

from __future__ import annotations

import http.client
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import pytest
from live import serving

from elman.api import load
from elman.base.documents import read_json
from elman.runs import origin

Elman = Callable[..., Any]


@pytest.fixture
def foreign(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of a run whose signature was made with another key; the text is elsewhere."""
    shutil.copytree(model, tmp_path / "runs" / "foreign")
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    monkeypatch.setattr(origin, "_key", lambda: b"the key of another user")
    return tmp_path / "runs" / "foreign"


def test_resuming_asks_before_it_reads(foreign: Path, elman: Elman) -> None:
    before = {path: path.read_bytes() for path in foreign.rglob("*") if path.is_file()}
    longer = ("--resume", "--steps", 41, "--device", "cpu")
    train = ("train", "lm", "--out", foreign, *longer)
    text = read_json(foreign / "config.json")["data"]["train"][0]
    message, hint = elman(*train).error
    assert text in message
    assert "--trust-data" in hint
    assert {path: path.read_bytes() for path in foreign.rglob("*") if path.is_file()} == before
    shutil.copytree(foreign, foreign.parent / "named")
    elman(*train, "--trust-data").ok()
    elman("train", "lm", text, "--out", foreign.parent / "named", *longer).ok()
    elman(*train[:-3], 42, "--device", "cpu").ok()  # now it is a run of this user


def test_trust_needs_something_to_trust(toy: Path, elman: Elman) -> None:
    assert "--resume" in elman("train", "lm", toy, "--trust-data").error[0]


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("task", "trap:TASK"),
        ("model.kind", "trap:Model"),
        ("model.cell", "trap:Cell"),
        ("model.kernel", "trap:kernel"),
        ("model.head.kind", "trap:Head"),
        ("tokenizer.kind", "trap:Kind"),
        ("data.train", ["trap:CORPUS"]),
        ("model.cell", "torch.utils.collect_env:main"),
        ("model.cell", "torch.hub:load"),
        ("task", "typer:launch"),
        ("data.train", ["numpy.f2py.crackfortran:crackline"]),
    ],
)
def test_no_module_that_a_folder_names_is_imported(
    foreign: Path, elman: Elman, setting: str, value: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither by opening the folder nor by resuming it."""
    (foreign.parent / "trap.py").write_text(
        f"open({str(foreign.parent / 'executed')!r}, 'w').close()\n"
    )
    monkeypatch.syspath_prepend(foreign.parent)
    config = read_json(foreign / "config.json")
    config.pop("check", None)
    *groups, name = setting.split(".")
    part = config
    for group in groups:
        part = part[group]
    part[name] = value
    (foreign / "config.json").write_text(json.dumps(config))
    for command in (
        ("info", foreign),
        ("generate", foreign, "a", "--max-tokens", 1),
        ("train", "lm", "--out", foreign, "--resume", "--trust-data"),
    ):
        assert "Traceback" not in elman(*command).err
    assert not (foreign.parent / "executed").exists()


@pytest.mark.parametrize("kind", ["torch.hub:load", "elman.base.errors:UsageError"])
def test_a_tokenizer_calls_nothing_but_tokenizers(
    foreign: Path, elman: Elman, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither a function of an imported module nor, of a trusted package, another class."""
    import torch.hub

    called: list[object] = []
    monkeypatch.setattr(torch.hub, "load", lambda *given: called.append(given))
    content = read_json(foreign / "tokenizer.json")
    (foreign / "tokenizer.json").write_text(json.dumps(content | {"elman_kind": kind}))
    assert "code from outside Elman" in elman("info", foreign).error[0]
    monkeypatch.setenv("ELMAN_PLUGINS", kind.partition(".")[0])
    assert "is not a tokenizer" in elman("info", foreign).error[0]
    assert not called


def test_no_client_of_the_server_names_a_file(words: Path, tmp_path: Path) -> None:
    """A model, a run and a page are found by their names in a table, never by a path."""
    secret = tmp_path / "private" / "metrics.jsonl"
    secret.parent.mkdir()
    secret.write_text('{"secret": "diary"}\n')
    (tmp_path / "runs").mkdir()
    escaped = quote("../private", safe="")
    paths = [
        f"/v1/runs/{escaped}",
        "/v1/runs/../private",
        f"/v1/runs/{quote(str(secret.parent), safe='')}",
        f"/studio/{quote('../' * 20, safe='')}{quote(str(secret)[1:], safe='')}",
        f"/studio/{'../' * 20}{str(secret)[1:]}",
        f"/studio/{secret}",
    ]
    with serving({"words": load(words)}, runs=tmp_path / "runs") as live:
        address = urlsplit(live.address)
        assert address.hostname
        connection = http.client.HTTPConnection(address.hostname, address.port, timeout=60)
        for path in paths:
            connection.request("GET", path)
            answer = connection.getresponse()
            assert b"diary" not in answer.read(), path
            assert answer.status in (400, 404), path
        for name in (str(words), f"../runs/{words.name}", f"words={words}"):
            body = json.dumps({"model": name, "prompt": "the", "max_tokens": 1})
            headers = {"Content-Type": "application/json"}
            connection.request("POST", "/v1/completions", body, headers)
            answer = connection.getresponse()
            answer.read()
            assert answer.status == 404, name
        connection.close()
