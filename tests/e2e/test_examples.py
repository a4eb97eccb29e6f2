"""The examples run, on the toy corpus and for a few updates."""

from __future__ import annotations

import importlib
import os
import runpy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from live import call, serving

from elman import api
from elman.base.errors import ElmanError
from elman.serve.http.served import Served
from elman.serve.limits import Limits
from elman.tasks import Route

EXAMPLES = Path(__file__).parents[2] / "examples"


def main_of(name: str) -> Callable[..., Any]:
    main: Callable[..., Any] = runpy.run_path(str(EXAMPLES / f"{name}.py"))["main"]
    return main


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_every_example_is_tested() -> None:
    tested = Path(__file__).read_text(encoding="utf-8")
    names = [path.stem for path in EXAMPLES.glob("*.py")]
    assert len(names) >= 4
    assert all(f'main_of("{name}")' in tested for name in names)


def test_train_and_sample(
    toy: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    train_lm = api.train_lm

    def quick(text: str, *, minutes: float, **kwargs: Any) -> api.LM:
        assert minutes == 2.0
        return train_lm(text, steps=3, settings={"model.hidden_size": 16}, **kwargs)

    monkeypatch.setattr(api, "train_lm", quick)
    main_of("train_and_sample")(str(toy))
    printed = capsys.readouterr().out
    assert "step 3: validation perplexity" in printed
    assert "runs/lm-toy: validation perplexity" in printed
    assert "a sample:" in printed


def test_surprisal_of_sentences(words: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main_of("surprisal_of_sentences")(str(words))
    printed = capsys.readouterr().out
    assert printed.count("bits") == 15
    ranked = printed.split("from likely to unlikely:")[1].strip().split("\n")
    logprobs = [float(line.split()[0]) for line in ranked]
    assert logprobs == sorted(logprobs, reverse=True)


def test_own_cell(toy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main_of("own_cell")(str(toy), 30)
    printed = capsys.readouterr().out
    assert "the contract holds" in printed
    perplexity = float(printed.split("perplexity of the text: ")[1].split()[0])
    assert perplexity < 15  # it learns: there are 27 characters


def test_demo(toy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    length = ("--steps", "3", "--set", "model.hidden_size=16")
    assert main_of("demo")(str(toy), length) == 0
    printed = capsys.readouterr().out
    ran, next_commands = printed.split("Now try:")
    assert ran.count("$ elman") == 6
    assert "$ elman train lm" in next_commands
    assert "validation perplexity" in printed
    assert "bits per byte" in printed


def test_own_task(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    main_of("own_task")("runs/numbers", 30)
    printed = capsys.readouterr().out
    assert "mean error" in printed
    assert "letters a" in printed


def numbers(folder: Path) -> Path:
    """Texts, each with its number of letters a."""
    data = folder / "letters.tsv"
    data.write_text("".join(f"{'ab' * (i % 7)}c\t{i % 7}\n" for i in range(200)))
    return data


def test_own_task_by_the_ordinary_commands(
    tmp_path: Path, elman: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Trained, resumed, measured, asked, explained, loaded and served; a folder runs no code."""
    data, out = numbers(tmp_path), str(tmp_path / "run")
    monkeypatch.syspath_prepend(str(EXAMPLES))
    trained = elman("train", "own_task:TASK", data, "--steps", "20", "--out", out, "--json")
    assert trained.code == 0, trained.err
    more = elman("train", "own_task:TASK", "--out", out, "--steps", "40", "--resume", "--json")
    assert more.code == 0, more.err
    assert more.json["steps"] == 40
    assert "| validation | closeness " in (tmp_path / "run" / "card.md").read_text()
    assert elman("evaluate", out, data, "--json").json["texts"] == 200
    assert "a number for a text" in elman("info", out).out
    assert elman("number", out, "aba").error[0] == "there is no command 'elman number'"
    monkeypatch.setenv("ELMAN_PLUGINS", "own_task:TASK")
    assert "own_task:TASK" in elman("train", "--help").out
    asked = elman("number", out, "aba", "--json")
    assert asked.code == 0, asked.err
    handle = api.load(out)
    assert asked.json == {"number": pytest.approx(handle.number("aba"), abs=1e-6)}
    assert handle.task.name == "own_task:TASK"
    with serving({"numbers": handle}) as live:
        (about,) = call(live, "/v1/models")[1]["data"]
        assert about["abilities"] == ["number"]
        status, answer = call(live, "/v1/number", {"text": "aba"})
    assert status == 200
    assert answer["result"] == pytest.approx(asked.json["number"], abs=1e-6)


OPEN = """
import os, sys
import elman

for plugins in ("", "own_task", "", "other, own_task:TASK"):
    os.environ["ELMAN_PLUGINS"] = plugins
    try:
        print(elman.load("run"))
    except elman.ElmanError as error:
        print(error.message, "own_task" in sys.modules)
"""


def test_opening_a_run_folder_imports_no_code_unasked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    api.train_model("own_task:TASK", str(numbers(tmp_path)), out="run", steps=1)
    path = os.pathsep.join([str(EXAMPLES), str(EXAMPLES.parent / "src")])
    environment = {**os.environ, "PYTHONPATH": path}
    command = [sys.executable, "-c", OPEN]
    opened = subprocess.run(command, capture_output=True, text=True, env=environment)
    first, named, again, listed = opened.stdout.splitlines()
    assert "code from outside Elman" in first, opened.stderr
    assert first.endswith("False")  # nothing was imported
    assert "code from outside Elman" in again
    assert "Number" in named
    assert "Number" in listed


PLUGIN = """
from dataclasses import replace
import own_task
from elman.tasks.task import EvaluateOption, Option

def convert(source, target, to_folder):
    if target.suffix == ".number":
        target.write_text(source.name)
        return {"bytes": 3, "notes": []}

def draw(evaluations, path):
    path.write_text(str(len(evaluations)))

def shout():
    "Shout."
    print("LETTERS")

TASK = replace(
    own_task.TASK,
    convert=convert,
    convert_help="a model of numbers becomes a .number file",
    convert_suffixes=(".number",),
    data_commands={"shout": shout},
    evaluate_options=(EvaluateOption(name="scatter", help="Draw.", draw=draw),),
    options=(
        Option(name="width", setting="model.hidden_size", type=int, metavar="N", help="Units."),
    ),
)
"""


def test_a_task_from_outside_takes_part_in_every_command(
    tmp_path: Path, elman: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, out = numbers(tmp_path), tmp_path / "run"
    (tmp_path / "wide_task.py").write_text(PLUGIN)
    for folder in (EXAMPLES, tmp_path):
        monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setenv("ELMAN_PLUGINS", "wide_task:TASK")
    trained = elman("train", "wide_task:TASK", data, "--steps", "1", "--width", "8", "--out", out)
    assert trained.code == 0, trained.err
    assert api.load(out).run.config.model.hidden_size == 8
    drawn = elman("evaluate", out, data, "--scatter", tmp_path / "picture.svg")
    assert (drawn.code, (tmp_path / "picture.svg").read_text()) == (0, "1"), drawn.err
    assert elman("convert", out, tmp_path / "run.number").code == 0
    assert (tmp_path / "run.number").read_text() == "run"
    assert "becomes a .number file" in elman("convert", "--help").out
    assert elman("data", "shout").out == "LETTERS\n"
    assert elman("number", out, "aba").code == 0


BROKEN = {
    "no_such_module:TASK": ("", "No module named 'no_such_module'"),
    ":TASK": ("", "Empty module name"),
    "raising:TASK": ("raise RuntimeError('a reason')", "RuntimeError: a reason"),
    "leaving:TASK": ("raise SystemExit(3)", "SystemExit: 3"),
    "other_value:TASK": ("TASK = 3", "is not a task"),
    "drawing:TASK": (
        "option = EvaluateOption(name='confusion', help='Draw.', draw=print)\n"
        "TASK = replace(own_task.TASK, evaluate_options=(option,))",
        "duplicate parameter name: 'confusion'",
    ),
    "stepping:TASK": (
        "TASK = replace(own_task.TASK, options=(Option(name='steps', help='', metavar='N'),))",
        "duplicate parameter name: 'steps'",
    ),
    "asking:TASK": (
        "TASK = replace(own_task.TASK, verbs={'ask': 'own_task:nothing'})",
        "no attribute 'nothing'",
    ),
}
"""Tasks that cannot be used: their code, and the reason."""
IMPORTS = """
from dataclasses import replace
import own_task
from elman.tasks.task import EvaluateOption, Option
"""


@pytest.fixture
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
    """Writes the module of a task, and adds the task to ELMAN_PLUGINS."""
    for folder in (EXAMPLES, tmp_path):
        monkeypatch.syspath_prepend(str(folder))

    def write(name: str, code: str) -> None:
        if module := name.partition(":")[0] if code else "":
            (tmp_path / f"{module}.py").write_text(IMPORTS + code + "\n")
            importlib.invalidate_caches()
            sys.modules.pop(module, None)
        monkeypatch.setenv("ELMAN_PLUGINS", f"{os.environ.get('ELMAN_PLUGINS', '')} {name}")

    return write


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_plugin_is_left_out_with_one_note(name: str, elman: Any, plugin: Any) -> None:
    code, reason = BROKEN[name]
    plugin(name, code)
    plugin("own_task:TASK", "")
    shown = elman("--version").ok()
    (note,) = shown.err.splitlines()
    assert all(part in note for part in ("ELMAN_PLUGINS", f"'{name}'", reason)), note
    assert "own_task:TASK" in elman("train", "--help").ok().out
    with pytest.raises(ElmanError, match="no_such_folder"):
        api.load("no_such_folder")
    if name not in ("drawing:TASK", "asking:TASK"):  # these can be trained
        message, hint = elman("train", name, "no_such_file").error
        assert f"'{name}'" in message
        assert reason in message
        assert hint


def test_the_name_of_a_command_is_not_taken_twice(elman: Any, plugin: Any) -> None:
    usual = {name: elman(*name.split(), "--help").out for name in ("generate", "data check")}
    verbs = "{'generate': own_task.show_number, 'data': own_task.show_number, 'number': shout}"
    declared = f"verbs={verbs}, data_commands={{'check': shout, 'shout': shout}}"
    code = f"def shout(handle):\n    'Shout.'\nTASK = replace(own_task.TASK, {declared})"
    plugin("own_task:TASK", "")
    plugin("taking:TASK", code)
    notes = elman("--version").ok().err.splitlines()
    assert len(notes) == 4
    for note, name in zip(notes, ("check", "generate", "data", "number"), strict=True):
        assert all(part in note for part in ("ELMAN_PLUGINS", f"'{name}'", "taking:TASK")), note
    assert {name: elman(*name.split(), "--help").out for name in usual} == usual
    assert "Print the number of a text." in elman("number", "--help").out
    assert "Shout." in elman("data", "shout", "--help").out


def test_a_model_whose_config_has_no_kind_is_served(tmp_path: Path, plugin: Any) -> None:
    code = """
from dataclasses import dataclass, field

@dataclass(frozen=True, kw_only=True)
class Config:
    hidden_size: int = 4

@dataclass(frozen=True, kw_only=True)
class Run(own_task.NumberRun):
    task: str = "kindless:TASK"
    model: Config = field(default_factory=Config)

TASK = replace(own_task.TASK, config=Run)
"""
    plugin("kindless:TASK", code)
    handle = api.train_model("kindless:TASK", str(numbers(tmp_path)), steps=1, out=tmp_path / "run")
    assert handle.info()["kind"] == "model"
    with serving({"numbers": handle}) as live:
        (about,) = call(live, "/v1/models")[1]["data"]
    assert about["abilities"] == ["number"]


def test_a_route_named_like_a_built_in_one_leaves_that_one_to_its_models() -> None:
    specimen = EXAMPLES.parent / "tests/unit/runs/specimens/format-1-tagger"
    tagger = api.load(specimen, device="cpu")
    shout = Route(name="tag", help="Shout.", ask=lambda handle, text: text.upper())
    other = SimpleNamespace(task=SimpleNamespace(routes=(shout,)))
    with serving({"tagger": tagger, "other": other}) as live:
        tagged = call(live, "/v1/tag", {"model": "tagger", "text": "a b"})
        shouted = call(live, "/v1/tag", {"model": "other", "text": "a b"})
    assert tagged[0] == shouted[0] == 200
    assert [row[0] for row in tagged[1]["result"]] == ["a", "b"]
    assert shouted[1]["result"] == "A B"


def test_a_route_named_like_an_ability_of_language_models_is_left_out() -> None:
    routes = [Route(name=name, help="", ask=lambda handle, text: text) for name in ("score", "say")]
    served = Served("own", SimpleNamespace(task=SimpleNamespace(routes=routes)), Limits())
    assert served.abilities == ["say"]
    assert served.notes == [
        "own: the server has another route 'score', so that of the model is left out"
    ]
