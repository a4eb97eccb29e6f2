"""`elman bench kernels`, `scans`, `step`, `generate`, `load`, `equal-time`, `regimes`: rows, errors
and pictures, no speeds."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from elman.base import tensor_files
from elman.bench.loading import without_checksums
from elman.testing import TOY_TEXT

Elman = Callable[..., Any]
QUICK = ("--repeat", 1, "--threads", 1, "--json")
KEYS = {"name", "ours", "peer", "ratio", "unit", "settings", "error", "peer_error"}
ERRORS = {"error", "peer_error"}


def rows(found: Any, keys: set[str] = KEYS) -> list[dict[str, Any]]:
    assert found.code == 0, found.err
    lines = [json.loads(line) for line in found.out.splitlines()]
    assert all(set(line) == keys for line in lines)
    return lines


def test_kernels(elman: Elman, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    plot = tmp_path / "kernels.png"
    sizes = "1x8x2,1x16x2,1x8x4"
    found = rows(elman("bench", "kernels", "--sizes", sizes, "--plot", plot, *QUICK))
    assert len(found) == 9  # three cells
    for row in found:
        assert row["ours"] > 0
        assert row["ratio"] == pytest.approx(row["peer"] / row["ours"])
        assert row["error"] < 1e-5
        assert row["peer_error"] < 1e-3
    assert {row["settings"]["beside"] for row in found} == {"nn.LSTM", "nn.GRU", "log space"}
    assert plot.read_bytes().startswith(b"\x89PNG")


def test_scans(elman: Elman) -> None:
    found = rows(elman("bench", "scans", "--sizes", "1x8x2", *QUICK))
    assert "log space" in {row["settings"]["beside"] for row in found}
    for row in found:
        assert row["name"] == f"scan beside {row['settings']['beside']}"
        assert row["ratio"] == pytest.approx(row["peer"] / row["ours"])
        assert row["error"] < 1e-5


def test_step(elman: Elman) -> None:
    found = rows(elman("bench", "step", "--sizes", "2x8x2", *QUICK))
    assert [row["name"] for row in found] == [
        f"{cell} training step" for cell in ("lstm", "gru", "mingru")
    ]
    for row in found:
        assert row["unit"] == "tokens/s"
        assert row["ratio"] == pytest.approx(row["ours"] / row["peer"])
        assert row["error"] < 1e-5
        assert row["settings"]["kernel"]
    assert found[0]["peer_error"] < 1e-5
    assert found[2]["peer_error"] is None  # an LSTM's gradients are another model's


def test_step_by_threads(elman: Elman) -> None:
    size = ("--sizes", "1x8x2", "--cells", "lstm", "--repeat", 1, "--json")
    found = rows(elman("bench", "step", *size, "--threads", "1,3"))
    names = [f"lstm training step, {of}" for of in ("1 thread", "3 threads")]
    assert [(row["name"], row["settings"]["threads"]) for row in found] == list(
        zip(names, (1, 3), strict=True)
    )
    failed = elman("bench", "step", "--threads", "1,0")
    assert failed.code == 2
    assert "'0' is not a number of threads" in failed.err


def test_scoring(elman: Elman) -> None:
    given = ("bench", "step", "--scoring", "--sizes", "1x8x2", "--cells", "lstm", *QUICK)
    found = rows(elman(*given), KEYS - ERRORS)
    for row, dtype in zip(found, ("float32", "bfloat16"), strict=True):
        assert row["name"] == f"lstm scoring, {dtype}"
        assert row["ratio"] == pytest.approx(row["ours"] / row["peer"])
        assert row["settings"]["dtype"] == dtype
        assert row["settings"]["beside"] == f"nn.LSTM in {dtype}"


def test_generate(elman: Elman) -> None:
    found = rows(elman("bench", "generate", "--cells", "gru", "--sizes", "1x8x1", *QUICK))
    exact, rounded = found
    assert rounded["name"] == "gru generation, int8"
    assert exact["error"] < 1e-5 < rounded["error"] < 0.05


def test_as_a_table(elman: Elman) -> None:
    found = elman("bench", "step", "--sizes", "1x8x2", "--cells", "lstm", "--repeat", 1)
    header, line = found.out.splitlines()
    names = ["what", "ours", "peer", "ratio", "unit", "error", "peer's"]
    assert header.split()[: len(names)] == names
    assert "processor" in header
    assert line.startswith("lstm training step 1x8, batch 2, 128 steps")


def test_equal_time(elman: Elman, toy: Path) -> None:
    small = ("--set", "model.hidden_size=8", "--set", "model.embedding_size=8")
    found = rows(
        elman(
            *("bench", "equal-time", toy, "--steps", 3, "--cells", "lstm,mingru", *small),
            *("--set", "tokenizer.kind=char", "--set", "model.tied=false", "--json"),
        ),
        KEYS - {"error", "peer_error"},
    )
    assert [row["name"] for row in found] == [
        f"{cell}: {what}" for cell in ("lstm", "mingru") for what in ("training", "validation")
    ]
    assert found[0]["ratio"] == found[1]["ratio"] == 1
    assert found[3]["ratio"] == pytest.approx(found[3]["peer"] / found[3]["ours"])


def test_regimes(elman: Elman, tmp_path: Path) -> None:
    """All continue from the same model, so after two small updates they are near it."""
    lines = TOY_TEXT.splitlines()
    turned = [" ".join(line.split()[::-1]) for line in lines]
    for name, text in (("toy.en", lines), ("toy.ne", turned)):
        (tmp_path / name).write_text("\n".join(text) + "\n", encoding="utf-8")
        (tmp_path / f"few.{name}").write_text("\n".join(text[:8]) + "\n", encoding="utf-8")
    data, valid = (
        [tmp_path / f"{part}{name}" for name in ("toy.en", "toy.ne")] for part in ("", "few.")
    )
    small = ("model.decoder.hidden_size=16", "model.decoder.embedding_size=16")
    quick = ("tokenizer.kind=word", "model.decoder.tied=false", "training.sample_length=5")
    settings = (*small, *quick)
    found = rows(
        elman(
            *("bench", "regimes", *data, "--valid", *valid, "--json"),
            *("--first-steps", 20, "--steps", 2, "--device", "cpu"),
            *(part for setting in settings for part in ("--set", setting)),
        ),
        KEYS - {"error", "peer_error"},
    )
    by_name = {row["name"]: row for row in found}
    names = [name.removesuffix(": an update") for name in by_name if name.endswith("update")]
    assert len(names) == 8
    assert names[0] == "teacher_forcing"
    began, peer = by_name["the beginning: surprisal"], by_name["teacher_forcing: surprisal"]
    assert peer["ratio"] == by_name["teacher_forcing: an update"]["ratio"] == 1
    for name in names:
        row = by_name[f"{name}: surprisal"]
        assert row["ours"] == pytest.approx(began["ours"], rel=0.05)  # two small updates away
        assert row["peer"] == peer["ours"]
        assert row["settings"]["regime"] == name
    assert len({by_name[f"{name}: surprisal"]["ours"] for name in names}) >= 6


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("kernels", "--cells", "lstn"), "there is no cell 'lstn' to measure"),
        (("step", "--sizes", "512"), "'512' is not a size"),
        (("kernels", "--dtype", "float16"), "--dtype needs --device cuda"),
        (("step", "--device", "cuda", "--cells", "gru"), "only lstm is measured on cuda"),
        (("sentences", "--tasks", "tagger,elmoo"), "there is no task 'elmoo' to measure"),
        (("beams", "run"), "MODEL and --lines belong together"),
        (
            ("beams", "run", "--lines", "x", "--sentences", "8"),
            "--sentences is for the untrained model",
        ),
        (("serve", "run", "--units", "8"), "--units is for the default model"),
        (("regimes", "--only", "free_runing"), "there is no regime 'free_runing' to measure"),
    ],
)
def test_wrong_arguments(elman: Elman, arguments: tuple[str, ...], message: str) -> None:
    found = elman("bench", *arguments)
    assert found.code == 2
    assert found.error[0] == message


def test_load(elman: Elman) -> None:
    arguments = ("--units", 8, "--repeat", 1, "--json")
    found = rows(elman("bench", "load", *arguments), KEYS - ERRORS)
    assert [row["name"].partition(", ")[2] for row in found] == ["wall time", "CPU time"]
    for row in found:
        assert row["ours"] > 0
        assert row["ratio"] == pytest.approx(row["peer"] / row["ours"])


def test_the_copy_to_compare_with_has_no_checksums(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    tensor_files.write(path, {"step": 3}, {"w": ("F32", [2], [np.ones(2)])})
    without_checksums(path)
    with tensor_files.open_tensors(path) as file:
        assert not file.is_checked
        assert file.header == {"step": 3}
