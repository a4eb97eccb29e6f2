"""`elman serve` and `elman bench serve` as commands, and a harness against the server."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from live import serving

from elman import api

Elman = Callable[..., Any]


def test_serving_from_start_to_stop(words: Path) -> None:
    command = [sys.executable, "-m", "elman.cli", "serve", f"mine={words}", "--port", "0"]
    server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert server.stderr is not None
    said = server.stderr.readline()
    assert said.startswith("serving mine at http://127.0.0.1:")
    server.send_signal(signal.SIGTERM)
    _, rest = server.communicate()
    assert rest == ""
    assert server.returncode in (0, -signal.SIGTERM)


def test_all_runs_of_a_folder_are_served_with_rounded_weights(words: Path, tmp_path: Path) -> None:
    for name in ("one", "two"):
        shutil.copytree(words, tmp_path / "runs" / name)
    (tmp_path / "runs" / "begun").mkdir()
    shutil.copy(words / "config.json", tmp_path / "runs" / "begun")
    options = ("--quantise", "int8", "--device", "cpu", "--port", "0")
    command = [sys.executable, "-m", "elman.cli", "serve", "runs", *options]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=tmp_path) as server:
        assert server.stderr is not None
        said = server.stderr.readline()
        try:
            assert said.startswith("serving one, two at http://127.0.0.1:")
            address = said.split()[-1].rstrip("/")
            body = json.dumps({"model": "two", "text": "the student"}).encode()
            headers = {"Content-Type": "application/json"}
            request = urllib.request.Request(f"{address}/v1/score", body, headers)
            found = json.load(urllib.request.urlopen(request))
        finally:
            server.send_signal(signal.SIGTERM)
    total, exact = (
        sum(row.surprisal for row in api.load(words, quantise=how).surprisal("the student"))
        for how in ("int8", None)
    )
    assert found["total"] == pytest.approx(total, abs=1e-5)
    assert found["total"] != pytest.approx(exact, abs=1e-5)


def test_what_is_odd_in_a_model_is_told(tmp_path: Path) -> None:
    odd = "\\data\\\nngram 1=2\n\n\\1-grams:\n-0.5\t</s>\n-0.5\tword\n\n\\end\\\n"
    (tmp_path / "odd.arpa").write_text(odd, encoding="utf-8")
    command = [sys.executable, "-m", "elman.cli", "serve", "odd.arpa", "--port", "0"]
    server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=tmp_path)
    assert server.stderr is not None
    assert server.stderr.readline().startswith("serving odd at ")
    server.send_signal(signal.SIGINT)
    _, rest = server.communicate()
    assert rest.startswith("· odd: no <unk> in the file")


def test_a_port_that_is_taken(elman: Elman, words: Path) -> None:
    with serving({"words": api.load(words)}) as live:
        port = live.address.rsplit(":", 1)[1]
        result = elman("serve", words, "--port", port)
    assert result.code == 1
    message = f"cannot listen at 127.0.0.1:{port}: Address already in use"
    assert result.err == f"error: {message}\nhint: choose another --port; 0 takes a free one\n"


def test_a_host_that_is_none(elman: Elman, words: Path) -> None:
    for host in ("nowhere.invalid", "192.0.2.1"):
        message, hint = elman("serve", words, "--host", host).error
        assert f"'{host}' is no address of this machine" in message
        assert "--host" in hint


def test_two_models_of_one_name(elman: Elman, words: Path) -> None:
    result = elman("serve", words, f"words={words}")
    assert result.code == 2
    assert result.error[0] == "two models would be served as 'words'"


def test_a_model_that_is_not_there(elman: Elman) -> None:
    result = elman("serve", "nothing/here", "--runs", "no/runs")
    assert "there is no folder no/runs yet" in result.err
    assert result.code == 2
    assert "nothing/here" in result.err


def test_bench_prints_rows_beside_one_at_a_time(elman: Elman, words: Path) -> None:
    result = elman(
        "bench", "serve", words, "--streams", "2", "--tokens", 3, "--repeat", 1, "--json"
    )
    assert result.code == 0, result.err
    rows = [json.loads(line) for line in result.out.splitlines()]
    assert [row["name"] for row in rows] == ["2 streams", "2 streams, first token"]
    assert all(row["ours"] > 0 and row["peer"] > 0 for row in rows)
    assert [row["unit"] for row in rows] == ["tokens/s", "ms"]


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="--workers needs Linux")
def test_bench_measures_workers_beside_one_process(elman: Elman, words: Path) -> None:
    counts = ("--streams", "2", "--tokens", 3, "--repeat", 1)
    result = elman("bench", "serve", words, *counts, "--workers", 2, "--json")
    assert result.code == 0, result.err
    rows = [json.loads(line) for line in result.out.splitlines()]
    names = ["2 streams, 2 workers", "2 streams, 2 workers, first token", "memory, 2 workers"]
    assert [row["name"] for row in rows] == names
    assert all(row["ours"] > 0 and row["peer"] > 0 for row in rows)
    assert [row["unit"] for row in rows] == ["tokens/s", "ms", "MB"]
    assert rows[-1]["ratio"] > 1


def test_a_short_soak_loses_no_stream(elman: Elman, words: Path) -> None:
    result = elman("bench", "serve", words, "--soak", 0.02, "--json")
    assert result.code == 0, result.err
    rows = {row["name"]: row["ours"] for row in map(json.loads, result.out.splitlines())}
    assert rows["soak: finished"] > 0
    assert rows["soak: lost"] == rows["soak: failed"] == 0


def test_a_suite_is_judged(elman: Elman, words: Path, tmp_path: Path) -> None:
    pairs = [("the student opened the book", "the the opened book student"), ("her", "her")]
    path = tmp_path / "toy.jsonl"
    lines = [json.dumps({"sentence_good": good, "sentence_bad": bad}) for good, bad in pairs]
    path.write_text("\n".join(lines), encoding="utf-8")
    result = elman("evaluate", words, path, "--suite", "blimp", "--json")
    assert result.code == 0, result.err
    (part,) = result.json["parts"]
    assert part["accuracy"] == 0.75  # a tie is a half
    assert (part["items"], part["ties"], part["accuracy_without_ties"]) == (2, 1, 1.0)
    printed = elman("evaluate", words, path, "--suite", "blimp")
    assert "toy" in printed.out
    assert printed.err.startswith("· 0 of 12 tokens are unknown to the model (0.0%)\n")
    assert "1 tie" in printed.err


TASK = """
task: local_blimp
dataset_path: json
dataset_kwargs: {{data_files: {{train: {file}}}}}
output_type: multiple_choice
validation_split: train
doc_to_text: ""
target_delimiter: ""
doc_to_target: 0
doc_to_choice: "{{{{[sentence_good, sentence_bad]}}}}"
num_fewshot: 0
metric_list: [{{metric: acc, aggregation: mean, higher_is_better: true}}]
"""


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("lm_eval") is None, reason="lm_eval is not on the PATH")
def test_a_harness_finds_what_is_computed_directly(
    model: Path, shared_data: Path, tmp_path: Path
) -> None:
    lines = (shared_data / "blimp_sample" / "wh_island.jsonl").read_text().splitlines()[:100]
    file = tmp_path / "pairs.jsonl"
    file.write_text("\n".join(lines) + "\n")
    (tmp_path / "task.yaml").write_text(TASK.format(file=file))
    lm = api.load(model)
    with serving({"chars": lm}) as live:
        arguments = f"model=chars,base_url={live.address}/v1/completions,num_concurrent=4"
        done = subprocess.run(
            [
                "lm_eval",
                "--model",
                "local-completions",
                "--model_args",
                arguments,
                "--include_path",
                tmp_path,
                "--tasks",
                "local_blimp",
                "--output_path",
                tmp_path,
            ],
            capture_output=True,
            text=True,
        )
    assert done.returncode == 0, done.stderr[-2000:]
    (found,) = tmp_path.rglob("results*.json")
    accuracy = json.loads(found.read_text())["results"]["local_blimp"]["acc,none"]
    assert accuracy == pytest.approx(lm.judge(file, suite="blimp", as_is=True).accuracy)
