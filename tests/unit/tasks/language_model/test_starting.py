"""A language model that goes on learning on a new text: what it takes over, and what it refuses."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from elman.base.config import to_dict
from elman.base.documents import read_json_lines
from elman.base.errors import ElmanError, UsageError
from elman.recipes.resolve import resolve, resolve_resumed
from elman.recipes.run import train
from elman.runs.run_folder import MODEL_FILE, TOKENIZER_FILE, write_config
from elman.tasks.opening import open_run, read_config
from elman.testing import TOY_TEXT
from elman.tokens.train import train_tokenizer

SMALL = {
    "lm": {"model.hidden_size": 12, "model.embedding_size": 12, "model.dropout_output": 0.1},
    "window": {"model.hidden_size": 12, "model.embedding_size": 6, "model.num_layers": 2},
    "maxent": {"model.order": 3, "model.size": 999},
}
QUICK = {"training.sample_length": 0, "training.batch_size": 4, "training.chunk_length": 16}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two texts with different vocabularies, and a run of each task on the first."""
    folder = tmp_path_factory.mktemp("starting")
    (folder / "old.txt").write_text(TOY_TEXT * 2)
    (folder / "new.txt").write_text(TOY_TEXT.replace("student", "zebra")[:2500])
    for task, settings in SMALL.items():
        run(folder, task, "old.txt", task, settings=settings | QUICK, steps=5)
    return folder


def run(folder: Path, task: str, text: str, out: str, **arguments: Any) -> Path:
    config = resolve(task, [str(folder / text)], device="cpu", **arguments).config
    list(train(config, folder / out, device="cpu"))
    return folder / out


def begin(place: Path, task: str = "lm", start: str | None = None, **settings: Any) -> Any:
    settings = {"training.start": str(place / (start or task)), **settings}
    return resolve(task, [str(place / "new.txt")], settings=settings, device="cpu").config


@pytest.mark.parametrize("task", SMALL)
def test_weights_tokenizer_and_settings_are_those_of_the_run(
    place: Path, task: str, tmp_path: Path
) -> None:
    old = open_run(place / task)
    config = begin(place, task, **{"training.steps": 2})
    assert config.model == old.config.model
    assert config.objective == old.config.objective
    assert config.optimiser == old.config.optimiser
    assert config.schedule == old.config.schedule
    reports = list(train(config, tmp_path / "new", device="cpu"))
    first = next(r for r in reports if r.kind == "valid")
    assert first.step == 0
    new = open_run(tmp_path / "new")
    assert new.tokenizer.hash == old.tokenizer.hash
    kept = new.model.state_dict()
    changed = [n for n, tensor in old.model.state_dict().items() if not tensor.equal(kept[n])]
    assert bool(changed) == (new.header["step"] > 0)


def test_the_first_validation_is_that_of_the_old_model(place: Path, tmp_path: Path) -> None:
    """And if no update improves on it, its weights are the result."""
    config = begin(place, **{"training.steps": 3, "optimiser.learning_rate": 1e5})
    reports = list(train(config, tmp_path / "new", device="cpu"))
    losses = [r.valid_loss for r in reports if r.kind == "valid"]
    assert losses[0] is not None
    assert losses[0] < losses[-1]
    old, new = open_run(place / "lm"), open_run(tmp_path / "new")
    assert new.header["step"] == 0
    for name, tensor in old.model.state_dict().items():
        assert torch.equal(tensor, new.model.state_dict()[name])
    assert reports[-1].summary is not None
    assert reports[-1].summary["best_step"] == 0


def test_the_card_and_the_config_say_where_it_came_from(place: Path, tmp_path: Path) -> None:
    config = begin(place, **{"training.steps": 1})
    list(train(config, tmp_path / "new", device="cpu"))
    assert "| weights at the start | those of lm |" in (tmp_path / "new" / "card.md").read_text()
    found: Any = read_config(tmp_path / "new")
    assert found.training.start == str(place / "lm")
    assert found == config


def test_it_is_resumed_without_the_old_run(place: Path, tmp_path: Path) -> None:
    shutil.copytree(place / "lm", tmp_path / "lm")
    shutil.copy(place / "new.txt", tmp_path)
    config = begin(tmp_path, **{"training.steps": 2})
    list(train(config, tmp_path / "new", device="cpu"))
    shutil.rmtree(tmp_path / "lm")
    longer = resolve_resumed(tmp_path / "new", steps=4).config
    reports = list(train(longer, tmp_path / "new", device="cpu", resume=True))
    assert reports[-1].step == 4
    steps = [r["step"] for r in read_json_lines(tmp_path / "new" / "metrics.jsonl")]
    assert steps.count(0) == 2  # the start and the first validation, once


def test_words_that_the_old_vocabulary_lacks_are_told(place: Path, tmp_path: Path) -> None:
    reports = train(begin(place, **{"training.steps": 1}), tmp_path / "new", device="cpu")
    told = [r.note for r in reports if r.note is not None and "unknown to lm" in r.note]
    assert len(told) == 1


def test_dropout_may_change(place: Path) -> None:
    model = begin(place, **{"model.dropout_output": 0.6, "model.kernel": "reference"}).model
    assert (model.dropout_output, model.kernel) == (0.6, "reference")


def test_settings_that_agree_may_be_repeated(place: Path) -> None:
    old = to_dict(read_config(place / "lm"))
    same = {"model.hidden_size": 12, "tokenizer.kind": old["tokenizer"]["kind"]}
    assert begin(place, **same) == begin(place)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"model.hidden_size": 13}, "model.hidden_size cannot be 13: it is 12 in"),
        ({"model.cell": "gru"}, "model.cell cannot be gru: it is lstm in"),
        ({"tokenizer.kind": "byte"}, "tokenizer.kind cannot be byte"),
        ({"tokenizer.lowercase": True}, "tokenizer.lowercase cannot be True"),
    ],
)
def test_settings_that_contradict_are_refused(
    place: Path, settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        begin(place, **settings)


def test_what_is_no_start_is_refused(place: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is a run of `elman train window`"):
        begin(place, "lm", "window")
    with pytest.raises(UsageError, match="there is no run folder"):
        begin(place, "lm", "nothing")
    shutil.copy(place / "new.txt", tmp_path)
    shutil.copytree(place / "lm", tmp_path / "half")
    (tmp_path / "half" / "model.safetensors").unlink()
    with pytest.raises(ElmanError, match=r"has no model\.safetensors"):
        begin(tmp_path, "lm", "half")


def test_a_small_text_gets_fewer_lanes(place: Path, tmp_path: Path) -> None:
    assert begin(place).training.batch_size == 4
    (tmp_path / "new.txt").write_text(TOY_TEXT[:900])
    shutil.copytree(place / "lm", tmp_path / "lm")
    assert begin(tmp_path).training.batch_size == 2
    assert begin(tmp_path).training.epochs == 40


def test_a_recipe_gives_all_but_model_and_tokenizer(place: Path) -> None:
    settings = {"training.start": str(place / "window")}
    config = resolve(
        "window",
        [str(place / "new.txt")],
        recipe="window-bengio",
        settings=settings,
        device="cpu",
    ).config
    assert config.model.hidden_size == 12
    assert config.optimiser.learning_rate == 0.001
    assert config.training.batch_size == 32


@pytest.fixture
def of_lines(tmp_path: Path) -> Path:
    """A folder with a text and a run on its lines that began with word vectors, without weights."""
    text = tmp_path / "new.txt"
    text.write_text(TOY_TEXT)
    (tmp_path / "words.vec").write_text("the 0.5 1\n")
    settings = {"data.unit": "line", "model.vectors": str(tmp_path / "words.vec")}
    config: Any = resolve("lm", [str(text)], settings=settings, device="cpu").config
    (tmp_path / "lm").mkdir()
    write_config(tmp_path / "lm", config, None)
    train_tokenizer([text], config.tokenizer)[0].save(tmp_path / "lm" / TOKENIZER_FILE)
    (tmp_path / "lm" / MODEL_FILE).touch()
    return tmp_path


def test_a_model_of_lines_goes_on_with_lines(of_lines: Path) -> None:
    assert begin(of_lines).data.unit == "line"
    assert begin(of_lines, **{"data.unit": "text"}).data.unit == "text"


def test_word_vectors_that_nothing_reads_are_not_recorded(of_lines: Path) -> None:
    assert begin(of_lines).model.vectors == ""
    assert begin(of_lines).model.embedding_size == 2
    with pytest.raises(UsageError, match=r"model\.vectors are not read"):
        begin(of_lines, **{"model.vectors": str(of_lines / "words.vec")})
