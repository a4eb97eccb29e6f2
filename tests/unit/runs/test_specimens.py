"""Run folders of past formats open, and their models answer as they always did.

`specimens/` has small run folders that earlier versions wrote, named `format-N-TASK[-VARIANT]`.
They are never written again. Beside the files of the run each has an `expected.json`:

    task    the task of the run
    info    the top-level keys of `elman info --json`
    asked   questions: what is called, with which arguments, and the answer when it was trained
    resume  only where train/ was kept: the metrics of the whole run, of which the folder has half
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import elman
from elman.cli.main import run

SPECIMENS = Path(__file__).parent / "specimens"
FOLDERS = sorted(path.parent for path in SPECIMENS.glob("*/expected.json"))
LANGUAGE_MODELS = {"lm", "window", "maxent", "ngram", "snm", "infinigram"}
OTHERS = {"tagger", "classifier", "translator", "captioner", "conditional", "elmo"}
TOLERANCE = 1e-3


def _caption(captioner: Any, folder: Path, picture: str) -> str:
    pytest.importorskip("PIL")
    caption: str = captioner.caption(folder / picture)
    return caption


def _captions(captioner: Any, folder: Path, picture: str) -> list[tuple[str, float]]:
    pytest.importorskip("PIL")
    (found,) = captioner.captions([folder / picture], num_samples=2)
    return [(each.text, each.logprob) for each in found]


def _translations(translator: Any, _: Path, text: str) -> list[tuple[str, float]]:
    (found,) = translator.translations([text], num_samples=2)
    return [(each.text, each.logprob) for each in found]


def _find(indexed: Any, _: Path, text: str) -> list[Any]:
    found = indexed.find(text, k=3, num_places=2)
    places = [[place.file, place.line, place.position] for place in found.places]
    continuations = [list(row[:2]) for row in found.continuations]
    return [found.count, found.num_continuations, continuations, places]


def _vectors(elmo: Any, _: Path, sentence: str) -> list[float]:
    (vectors_LTD,) = elmo.contextual([sentence.split()], layers="all")
    return [round(float(layer.sum()), 4) for layer in vectors_LTD]


ASK: Mapping[str, Callable[..., Any]] = {
    "logprob": lambda lm, _, text: lm.logprob(text),
    "next": lambda lm, _, prefix: lm.next(prefix, k=3),
    "find": _find,
    "tag": lambda tagger, _, sentence: tagger.tag(sentence),
    "probabilities": lambda tagger, _, sentence: tagger.probabilities(sentence),
    "classify": lambda classifier, _, text: classifier.classify(text).probabilities,
    "translate": lambda translator, _, text: translator.translate(text),
    "translations": _translations,
    "caption": _caption,
    "captions": _captions,
    "logprob given": lambda model, _, label, text: model.given(label).logprob(text),
    "next given": lambda model, _, label, prefix: model.given(label).next(prefix, k=3),
    "vectors": _vectors,
}
"""What is asked of a handle, by its name in expected.json."""


@cache
def _opened(folder: Path) -> Any:
    return elman.load(folder, device="cpu")


def _expected(folder: Path) -> dict[str, Any]:
    expected: dict[str, Any] = json.loads((folder / "expected.json").read_text(encoding="utf-8"))
    return expected


def _assert_same(found: Any, expected: Any) -> None:
    """Compare nested values: numbers within the tolerance, all else exactly."""
    if isinstance(expected, float):
        assert found == pytest.approx(expected, abs=TOLERANCE)
    elif isinstance(expected, dict):
        assert found.keys() == expected.keys()
        for key, value in expected.items():
            _assert_same(found[key], value)
    elif isinstance(expected, list):
        assert isinstance(found, Sequence)
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            _assert_same(one, other)
    else:
        assert found == expected


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda path: path.name)
def test_a_specimen_answers_as_it_always_did(folder: Path) -> None:
    handle = _opened(folder)
    for question in _expected(folder)["asked"]:
        found = ASK[question["call"]](handle, folder, *question["with"])
        _assert_same(found, question["answer"])


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda path: path.name)
def test_info_still_has_every_key(folder: Path) -> None:
    missing = set(_expected(folder)["info"]) - _opened(folder).info().keys()
    assert not missing


def test_every_task_has_a_specimen() -> None:
    assert {_expected(folder)["task"] for folder in FOLDERS} == LANGUAGE_MODELS | OTHERS


@pytest.mark.parametrize(
    "folder",
    [folder for folder in FOLDERS if "resume" in _expected(folder)],
    ids=lambda path: path.name,
)
def test_a_specimen_is_resumed(
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The second half of the run goes as it would have gone without the break."""
    task, expected = _expected(folder)["task"], _expected(folder)["resume"]
    shutil.copytree(folder, tmp_path / "run")
    shutil.move(tmp_path / "run" / expected["data"], tmp_path)
    monkeypatch.chdir(tmp_path)
    arguments = ["--out", "run", "--resume", "--steps", str(expected["steps"]), "--device", "cpu"]
    assert run(["train", task, *arguments]) == 0, capsys.readouterr().err
    lines = map(json.loads, Path("run/metrics.jsonl").read_text(encoding="utf-8").splitlines())
    losses = [[line["step"], line["loss"]] for line in lines if line["kind"] == "step"]
    _assert_same(losses, expected["losses"])
    handle = elman.load("run", device="cpu")
    _assert_same(handle.logprob(expected["text"]), expected["logprob"])
