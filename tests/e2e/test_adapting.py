"""Models that adapt, through the command line, Python and HTTP."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from live import call, serving

import elman as library
from elman.base.errors import ElmanError, UsageError

Elman = Callable[..., Any]


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A text that is unlike the training text, and says the same over and over."""
    path = tmp_path_factory.mktemp("other") / "other.txt"
    path.write_text("her old professor lost the exam paper .\n" * 12, encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def counted(toy: Path, words: Path, elman: Elman) -> Path:
    out = toy.parent / "runs" / "counted-to-adapt"
    tokenizer = f"tokenizer.file={words / 'tokenizer.json'}"
    elman("train", "ngram", toy, "--out", out, "--set", tokenizer).ok()
    return out


def test_evaluate(elman: Elman, words: Path, other: Path) -> None:
    static = elman("evaluate", words, other, "--json").ok().json
    for way in (["--adapt"], ["--dynamic"], ["--cache"], ["--adapt", "--cache"]):
        found = elman("evaluate", words, other, *way, "--json").ok().json
        assert found["perplexity"] < static["perplexity"]
        assert set(found) == {*static, "adaptation"}
    slow = elman("evaluate", words, other, "--adapt", "--set", "adapt.rate=0", "--json").ok().json
    assert slow["perplexity"] == pytest.approx(static["perplexity"], rel=1e-5)
    assert "tokens/s" in elman("evaluate", words, other).ok().out


def test_tune(elman: Elman, words: Path, other: Path) -> None:
    before = elman("evaluate", words, other, "--cache", "--json").ok().json
    done = elman("evaluate", words, other, "--cache", "--tune", other, "--json").ok()
    assert done.json["perplexity"] < before["perplexity"]
    (found,) = [line for line in done.err.splitlines() if "found: --set" in line]
    given = found.partition("found: ")[2].split()
    again = elman("evaluate", words, other, "--cache", *given, "--json").ok().json
    assert again["perplexity"] == pytest.approx(done.json["perplexity"], rel=1e-3)


def test_rounding_is_compared_at_the_same_settings(elman: Elman, words: Path, other: Path) -> None:
    for model in (words, f"0.5*{words}+0.5*{words}"):
        told = elman("evaluate", model, other, "--tune", other, "--quantise", "int8", "--json")
        found = told.ok().json
        temperature = found["adaptation"][0]["temperature"]
        assert temperature != 1
        exact = elman("evaluate", model, other, "--temperature", temperature, "--json").ok().json
        assert found["exact_perplexity"] == pytest.approx(exact["perplexity"], rel=1e-6)


def test_temperature_and_samples(elman: Elman, words: Path, counted: Path, other: Path) -> None:
    before = elman("evaluate", words, other, "--json").ok().json
    done = elman("evaluate", words, other, "--tune", other, "--json").ok()
    assert done.json["perplexity"] < before["perplexity"]
    (found,) = [line for line in done.err.splitlines() if "found: --temperature" in line]
    given = found.partition("found: ")[2].split()
    again = elman("evaluate", words, other, *given, "--json").ok().json
    assert again["perplexity"] == pytest.approx(done.json["perplexity"], rel=1e-4)
    assert again["adaptation"] == [{"temperature": float(given[1])}]
    scored = elman("score", words, other, "--unit", "line", "--base", "e", "--json", *given).ok()
    lines = (
        library.load(words)
        .adapting(temperature=float(given[1]))
        .surprisal(other.read_text(encoding="utf-8"), unit="line", base="e")
    )
    assert scored.json[0]["surprisal"] == pytest.approx(lines[0].surprisal, rel=1e-4)
    sampled = elman("evaluate", words, other, "--samples", 2, "--json").ok().json
    assert set(sampled) == {*before, "adaptation"}
    done = elman("evaluate", words, other, "--samples", 2, "--tune", other, "--json").ok()
    (found,) = [line for line in done.err.splitlines() if "found: --dropout-scale" in line]
    given = found.partition("found: ")[2].split()
    again = elman("evaluate", words, other, "--samples", 2, *given, "--json").ok().json
    assert again["perplexity"] == pytest.approx(done.json["perplexity"], rel=1e-4)
    assert "--samples" in elman("evaluate", words, other, "--dropout-scale", 0.5).error[1]
    assert "no dropout" in elman("evaluate", counted, other, "--samples", 2).error[0]
    assert "softmax" in elman("evaluate", counted, other, "--tune", other).error[0]


def test_mixtures_and_counts(elman: Elman, words: Path, counted: Path, other: Path) -> None:
    mixture = f"0.5*{words}+0.5*{counted}"
    for model, ways in ((counted, ["--cache"]), (mixture, ["--adapt", "--cache"])):
        static = elman("evaluate", model, other, "--json").ok().json["perplexity"]
        assert elman("evaluate", model, other, *ways, "--json").ok().json["perplexity"] < static
    message, hint = elman("evaluate", counted, other, "--adapt").error
    assert "no weights" in message
    assert "--cache" in hint


def test_measuring_gradients_is_said(
    elman: Elman, words: Path, other: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ELMAN_CACHE", str(tmp_path))
    said = [elman("score", words, other, "--adapt").ok().err for _ in range(2)]
    assert ["measuring the gradients" in err for err in said] == [True, False]


def test_score_line_after_line(elman: Elman, words: Path, other: Path) -> None:
    def lines(*options: str) -> list[float]:
        found = elman("score", words, other, "--unit", "line", "--json", *options).ok().json
        return [row["surprisal"] for row in found]

    static, adapted = lines(), lines("--adapt")
    assert adapted[-1] < adapted[0]
    assert adapted[-1] < static[-1]
    reset = lines("--adapt", "--reset", "line")
    assert reset == pytest.approx([adapted[0]] * len(static), rel=1e-4)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--temperature", "0"], "temperature cannot be 0"),
        (["--samples", "2", "--cache"], "neither learns nor has a cache"),
        (["--set", "cache.window=3"], "settings of cache need --cache"),
        (["--cache", "--set", "cache.windw=3"], "windw"),
        (["--cache", "--set", "cash.window=3"], "no setting 'cash'"),
        (["--cache", "--set", "cache.weight=2"], "cache.weight cannot be 2"),
        (["--adapt", "--batch-size", "4"], "one lane"),
    ],
)
def test_wrong_options(
    elman: Elman, words: Path, other: Path, options: list[str], message: str
) -> None:
    result = elman("evaluate", words, other, *options)
    assert result.code == 2
    assert message in result.error[0]


def test_generate(elman: Elman, words: Path) -> None:
    prompt = "her old professor lost the exam paper . " * 5
    for way in ("--adapt", "--cache"):
        done = elman("generate", words, prompt, way, "--max-tokens", 5, "--seed", 1, "--json").ok()
        assert done.json[0]["tokens"] == 5


def test_memory_is_a_value(words: Path, other: Path, tmp_path: Path) -> None:
    text = other.read_text(encoding="utf-8")
    lm = library.load(words)
    reader = lm.adapting(adapt=True, cache={"window": 50})
    later = reader.after(text)
    assert later.perplexity(text) < reader.perplexity(text) < lm.perplexity(text)
    assert later.perplexity(text) == later.perplexity(text)  # measuring changes nothing
    later.save(tmp_path / "memory.safetensors")
    again = lm.adapting(adapt=True, cache={"window": 50}).restored(tmp_path / "memory.safetensors")
    assert again.perplexity(text) == pytest.approx(later.perplexity(text), rel=1e-6)
    assert again.next("the", k=3) == later.next("the", k=3)
    assert later.after("") is later
    with pytest.raises(ElmanError, match="another cache"):
        lm.adapting(adapt=True, cache=True).restored(tmp_path / "memory.safetensors")
    with pytest.raises(ElmanError, match="not a memory"):
        reader.restored(words / "model.safetensors")
    with pytest.raises(UsageError, match="no way to adapt"):
        lm.adapting()


def test_a_continuation_learns_from_its_prompt(words: Path, other: Path) -> None:
    prompt = other.read_text(encoding="utf-8") + "her old professor"
    lm = library.load(words)
    reader = lm.adapting(adapt={"rate": 0.0005})
    assert dict(reader.next(prompt, 50))["lost"] > dict(lm.next(prompt, 50))["lost"]
    assert reader.generate(prompt, greedy=True, max_tokens=4)


def test_server(words: Path, counted: Path, other: Path) -> None:
    text = other.read_text(encoding="utf-8")
    models = {"words": library.load(words), "counted": library.load(counted)}
    with serving(models, ways={"adapt": True, "cache": True}) as live:

        def asked(route: str, **body: Any) -> tuple[int, Any]:
            return call(live, f"/v1/{route}", body)

        totals = [
            asked("score", model="words", text=text, **ways)[1]["total"]
            for ways in ({}, {"adapt": True}, {"cache": True}, {"adapt": True, "cache": True})
        ]
        assert totals[0] > max(totals[1:])
        assert all(math.isfinite(total) for total in totals)
        status, found = asked("score", model="counted", text=text, adapt=True)
        assert (status, found["error"]["param"]) == (400, "adapt")
        assert asked("score", model="counted", text=text, cache=True)[0] == 200
        how: dict[str, Any] = {"model": "words", "prompt": text, "max_tokens": 3, "adapt": True}
        status, found = asked("completions", **how)
        assert status == 200
        assert found["usage"]["completion_tokens"] == 3
        assert asked("completions", **how, stream=True)[0] == 400
    with serving(models) as live:
        body = {"model": "words", "text": text, "cache": True}
        assert call(live, "/v1/score", body)[0] == 400
