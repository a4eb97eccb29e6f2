"""`--model elman` of lm-evaluation-harness: the figures are those of Elman's own commands."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any

import pytest

import elman
from elman.base.documents import read_toml

harness = pytest.importorskip("elman.harness")
pytest.importorskip("lm_eval")

Elman = Callable[..., Any]
CONTEXT, CONTINUATIONS = "the student opened", [" the book.", " her window.", " the", " zebra"]


def requests(kind: str, rows: list[tuple[Any, ...]]) -> list[Any]:
    from lm_eval.api.instance import Instance

    return [Instance(kind, {}, row, number) for number, row in enumerate(rows)]


@pytest.fixture(params=["model", "words"])
def run(request: pytest.FixtureRequest) -> Path:
    found: Path = request.getfixturevalue(request.param)
    return found


def test_the_registry_knows_the_class() -> None:
    from lm_eval.api.registry import get_model

    assert get_model("elman") is harness.ElmanLM


@pytest.mark.parametrize("batch_size", [None, 1])
def test_continuations_have_the_probabilities_of_elman_score(run: Path, batch_size: Any) -> None:
    lm = elman.load(run)
    model = harness.ElmanLM(path=str(run), batch_size=batch_size, device="cpu")
    rows = [(CONTEXT, text) for text in CONTINUATIONS]
    rows += [("", text.strip()) for text in CONTINUATIONS] + [(CONTEXT + " ", "the book.")]
    found = model.loglikelihood(requests("loglikelihood", rows))
    whole = [lm.logprob(context + text, include_end=False) for context, text in rows]
    before = [
        lm.logprob(context.rstrip(), include_end=False) if context else 0 for context, _ in rows
    ]
    expected = [w - b for w, b in zip(whole, before, strict=True)]
    assert [logprob for logprob, _ in found] == pytest.approx(expected, abs=1e-4)
    assert found[-1] == found[0]


def test_a_greedy_continuation_is_known(run: Path) -> None:
    lm = elman.load(run)
    model = harness.ElmanLM(path=str(run), device="cpu", as_is=True)
    best = lm.generate(CONTEXT, max_tokens=3, temperature=0)
    rows = [(CONTEXT, best), (CONTEXT, " zebra")]
    found = model.loglikelihood(requests("loglikelihood", rows))
    assert [greedy for _, greedy in found] == [True, False]


def test_whole_texts_have_the_probabilities_of_elman_evaluate(run: Path, toy: Path) -> None:
    lm = elman.load(run)
    model = harness.ElmanLM(path=str(run), device="cpu")
    text = toy.read_text(encoding="utf-8")
    (found,) = model.loglikelihood_rolling(requests("loglikelihood_rolling", [(text,)]))
    expected = lm.evaluate(toy, batch_size=1)
    assert -found / expected.tokens == pytest.approx(expected.nats_per_token, abs=1e-5)


def test_lines_by_themselves(elman_lines: Path, toy: Path) -> None:
    model = harness.ElmanLM(path=str(elman_lines), device="cpu")
    text = toy.read_text(encoding="utf-8")
    (found,) = model.loglikelihood_rolling(requests("loglikelihood_rolling", [(text,)]))
    expected = elman.load(elman_lines).evaluate(toy)
    assert -found / expected.tokens == pytest.approx(expected.nats_per_token, abs=1e-5)


@pytest.fixture(scope="module")
def elman_lines(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run: Elman = request.getfixturevalue("elman")
    out = tmp_path_factory.mktemp("lines") / "run"
    small = request.getfixturevalue("small")
    toy = request.getfixturevalue("toy")
    how = ("--steps", 3, "--set", "data.unit=line", "--set", "tokenizer.kind=word")
    run("train", "lm", toy, "--out", out, *small, *how).ok()
    return out


def test_continues_to_a_stop(run: Path) -> None:
    lm = elman.load(run)
    model = harness.ElmanLM(path=str(run), device="cpu")
    rows = [
        (CONTEXT, {"until": ["."], "max_gen_toks": 20}),
        ("her", {"until": ["."], "max_gen_toks": 20}),
        (CONTEXT, {"until": [], "max_gen_toks": 5, "num_beams": 2}),
        (CONTEXT, {"max_gen_toks": 5, "do_sample": True, "temperature": 0.7, "top_k": 3}),
    ]
    found = model.generate_until(requests("generate_until", rows))
    greedy = {"max_tokens": 20, "temperature": 0, "stop": ["."]}
    assert found[:2] == [lm.generate(prompt, **greedy) for prompt in (CONTEXT, "her")]
    assert found[2] == lm.generate(CONTEXT, max_tokens=5, beam_size=2)
    drawn = lm.generate(CONTEXT, max_tokens=5, temperature=0.7, top_k=3, seed=1234)
    assert found[3] == drawn


def test_no_sampling_is_greedy_at_any_temperature(words: Path) -> None:
    model = harness.ElmanLM(path=str(words), device="cpu")
    settings = {"until": None, "max_gen_toks": 20, "do_sample": False, "temperature": 1.5}
    rows = [(CONTEXT, settings), (CONTEXT, {"max_gen_toks": 20, "temperature": None})]
    found = model.generate_until(requests("generate_until", rows))
    assert found == [elman.load(words).generate(CONTEXT, max_tokens=20, temperature=0)] * 2


def test_wrong_arguments_are_refused(words: Path) -> None:
    with pytest.raises(elman.ElmanError, match="pretrained"):
        harness.ElmanLM(path=str(words), pretrained="x")


@pytest.fixture
def task(toy: Path, tmp_path: Path) -> list[str]:
    """Arguments that choose a task of our own: the bits per byte of the toy corpus."""
    text = toy.read_text(encoding="utf-8")
    (tmp_path / "text.jsonl").write_text(json.dumps({"text": text}) + "\n")
    (tmp_path / "toy_text.yaml").write_text(
        "task: toy_text\ndataset_path: json\n"
        f"dataset_kwargs: {{data_files: {{test: {tmp_path / 'text.jsonl'}}}}}\n"
        "output_type: loglikelihood_rolling\ntest_split: test\ndoc_to_text: ''\n"
        "doc_to_target: '{{text}}'\nmetric_list:\n- metric: bits_per_byte\n"
    )
    return ["--tasks", "toy_text", "--include_path", str(tmp_path)]


def check_figures(results: dict[str, Any], run: Path, toy: Path) -> None:
    expected = elman.load(run).evaluate(toy, batch_size=1).bits_per_byte
    assert results["toy_text"]["bits_per_byte,none"] == pytest.approx(expected, rel=1e-4)


@pytest.mark.filterwarnings("ignore")
def test_a_task_of_the_harness(words: Path, toy: Path, task: list[str], tmp_path: Path) -> None:
    """As its command line runs one, without reading the thousands of tasks that it has."""
    lm_eval = pytest.importorskip("lm_eval")
    tasks = pytest.importorskip("lm_eval.tasks")
    found = lm_eval.simple_evaluate(
        "elman",
        model_args=f"path={words}",
        tasks=["toy_text"],
        device="cpu",
        bootstrap_iters=0,
        task_manager=tasks.TaskManager(include_path=str(tmp_path), include_defaults=False),
    )
    check_figures(found["results"], words, toy)


def test_the_entry_point_is_the_class() -> None:
    """The group and the value, as the registry of lm_eval resolves them."""
    from lm_eval.api.registry import Registry

    project = read_toml(Path(__file__).parents[2] / "pyproject.toml")["project"]
    declared = project["entry-points"]["lm_eval.models"]
    registry: Any = Registry("model")
    for name, value in declared.items():
        registry.register(name, target=EntryPoint(name, value, "lm_eval.models"))
    assert registry.get("elman") is harness.ElmanLM


@pytest.mark.slow
def test_the_command_of_the_harness(
    words: Path, toy: Path, task: list[str], tmp_path: Path
) -> None:
    """`lm_eval` where it looks for plug-ins and Elman is installed, `elman.harness` where not."""
    from lm_eval.api import registry

    finds = hasattr(registry, "load_plugins") and entry_points(group="lm_eval.models", name="elman")
    command = [sys.executable, "-m", "lm_eval" if finds else "elman.harness", "run"]
    command += ["--model", "elman", "--model_args", f"path={words}", "--device", "cpu", *task]
    command += ["--output_path", str(tmp_path / "out")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (report,) = (tmp_path / "out").rglob("results*.json")
    check_figures(json.loads(report.read_text())["results"], words, toy)
