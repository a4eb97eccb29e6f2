"""`elman lab` and its routes: lists, runs, pages, exports, errors."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from live import call, serving

from elman.base.cache import cache_folder
from elman.base.errors import ElmanError
from elman.lab.claims import CLAIMS

Elman = Callable[..., Any]
TINY = ("--size", "tiny", "--seeds", 2)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache without results; the self-test of the kernels need not be run again."""
    if (tested := cache_folder() / "kernels").is_dir():
        shutil.copytree(tested, tmp_path / "cache" / "kernels")
    monkeypatch.setenv("ELMAN_CACHE", str(tmp_path / "cache"))


def test_the_list_has_every_claim(elman: Elman) -> None:
    found = elman("lab", "--json").json
    assert [claim["id"] for claim in found] == list(CLAIMS)
    assert set(found[0]) >= {"id", "claim", "source", "verdict", "seconds"}
    assert all(claim["verdict"] is None for claim in found)
    assert (found[0]["id"], found[0]["published"]) == ("C1", "holds")
    listed = elman("lab")
    assert re.search(r"what it says +lecture: slide +published +here +time\n", listed.out)
    assert re.search(r"\nC2 .* does not hold here +not run +[\dms]", listed.out)
    assert "published: five seeds on two cores" in listed.err


def test_a_run_ends_with_a_verdict_and_files(elman: Elman, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    out, page, notebook = tmp_path / "out", tmp_path / "c3.html", tmp_path / "c3.ipynb"
    told = elman("lab", "run", "C3", *TINY, "--out", out, "--export", page, "--json")
    assert told.code == 0, told.err
    found = told.json
    assert found["id"] == "C3"
    assert found["verdict"] == "holds"
    assert found["interval"][0] <= found["effect"] <= found["interval"][1]
    assert set(found) >= {"id", "prediction", "effect", "interval", "seeds", "verdict"}
    own = out / "C3" / "tiny"
    assert {path.name for path in own.iterdir()} >= {"data.jsonl", "result.json"}
    assert page.read_text().count("data:image/svg+xml") == 2
    told = elman("lab", "run", "c3", *TINY, "--export", notebook, "--knob", 5)
    assert told.code == 0, told.err
    assert "does not hold here" in told.out
    cells = json.loads(notebook.read_text())["cells"]
    for cell in cells:
        if cell["cell_type"] == "code":
            compile("".join(cell["source"]), "cell", "exec")


def test_the_list_does_not_note_a_run_with_fewer_seeds(elman: Elman) -> None:
    assert elman("lab", "run", "C3", "--seeds", 1).code == 0
    assert all(claim["verdict"] is None for claim in elman("lab", "--json").json)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("lab", "run"), "name one claim, or give --all"),
        (("lab", "run", "C99"), "there is no claim 'C99'"),
        (("lab", "run", "C3", "--knob", "x"), "the knob 'bias' cannot be 'x'"),
        (("lab", "run", "C3", "--knob", "1000"), "the knob 'bias' cannot be '1000'"),
        (("lab", "run", "C3", "--export", "x.pdf"), "x.pdf is neither a notebook nor a page"),
        (("lab", "run", "C3", "--minutes", "nan"), "--minutes cannot be nan"),
        (("lab", "run", "C3", "--minutes", "-1"), "--minutes cannot be -1"),
        (("lab", "run", "--all", "--knob", "1"), "--knob and --export are for one claim"),
    ],
)
def test_wrong_usage_gets_a_sentence(elman: Elman, arguments: tuple[str, ...], says: str) -> None:
    told = elman(*arguments)
    assert told.code == 2
    assert told.error[0] == says


def test_a_server_runs_experiments_only_if_told_to() -> None:
    with serving({}) as live:
        assert call(live, "/v1/lab")[1]["data"] == []
        assert call(live, "/v1/lab/C3", {})[0] == 404


def test_one_experiment_at_a_time_over_http() -> None:
    with serving({}, lab=True) as live:
        assert [claim["id"] for claim in call(live, "/v1/lab")[1]["data"]] == list(CLAIMS)
        assert call(live, "/v1/lab/C99", {})[0] == 400
        assert call(live, "/v1/lab/C3", {"knob": "x"})[0] == 400
        assert call(live, "/v1/lab/C3", {"seeds": 0})[0] == 400
        assert call(live, "/v1/completions", {"prompt": "a"})[0] == 404  # no model
        answers: list[tuple[int, Any]] = []
        body = {"seeds": 2, "size": "tiny"}
        clients = [
            threading.Thread(target=lambda: answers.append(call(live, "/v1/lab/C3", body)))
            for _ in range(2)
        ]
        for client in clients:
            client.start()
        for client in clients:
            client.join()
        (status, text), (refused, _) = sorted(answers, key=lambda answer: answer[0])
        assert (status, refused) == (200, 429)
        events = [part.removeprefix("data: ") for part in text.split("\n\n") if part]
        assert events[-1] == "[DONE]"
        last = json.loads(events[-2])
        assert last["verdict"] == last["result"]["verdict"] == "holds"
        assert last["figure"]["panels"]


def test_the_progress_is_closed_after_a_failure(
    elman: Elman, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a terminal it hides the cursor."""
    closed = []

    class Display:
        def close(self) -> None:
            closed.append(True)

    def fail(*_: object) -> None:
        raise ElmanError("out of seeds", "sow some")

    monkeypatch.setattr("elman.terminal.progress.display", Display)
    monkeypatch.setattr("elman.lab.running.run", fail)
    assert elman("lab", "run", "C3").error[0] == "out of seeds"
    assert closed == [True]


def test_places_for_results_are_checked_before_the_run(
    elman: Elman, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    (tmp_path / "folder.html").mkdir()
    monkeypatch.setattr("elman.lab.running.run", lambda *_: pytest.fail("it ran"))
    wrong = (("--out", "file"), ("--export", "file/x.html"), ("--export", "folder.html"))
    for option, place in wrong:
        assert str(tmp_path) in elman("lab", "run", "C3", option, tmp_path / place).error[0]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_run_that_is_ended_while_it_trains_leaves_nothing(
    number: signal.Signals, tmp_path: Path
) -> None:
    (tmp_path / "temporary").mkdir()
    arguments = ("lab", "run", "C9", "--seeds", "2", "--jobs", "2", "--stream")
    process = subprocess.Popen(
        [sys.executable, "-m", "elman.cli", *arguments],
        stdout=subprocess.PIPE,
        env={**os.environ, "TMPDIR": str(tmp_path / "temporary")},
    )
    assert process.stdout is not None
    assert b"stack" in process.stdout.readline()
    time.sleep(2)  # until the first network learns
    workers = children(process.pid)
    assert workers
    process.send_signal(number)
    assert process.wait(60) != 0
    process.stdout.close()
    until = time.monotonic() + 60
    while (left := [pid for pid in workers if is_running(pid)]) and time.monotonic() < until:
        time.sleep(0.1)
    assert not left
    if number != signal.SIGKILL:
        assert not list((tmp_path / "temporary").glob("elman-lab-*"))


def children(pid: int) -> list[int]:
    return list(map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split()))


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
