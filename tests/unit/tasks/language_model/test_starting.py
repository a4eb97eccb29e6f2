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
from elman.batches.encoded import encode_files
from elman.evaluate.perplexity import evaluate
from elman.recipes.resolve import resolve, resolve_resumed
from elman.recipes.run import train
from elman.runs.run_folder import MODEL_FILE, TOKENIZER_FILE, write_config
from elman.tasks.language_model.task import set_up
from elman.tasks.opening import OpenedRun, open_run, read_config
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


def test_the_unit_is_that_of_the_run_also_with_a_recipe(of_lines: Path) -> None:
    recipe = of_lines / "own.toml"
    recipe.write_text('[data]\nunit = "text"\n[training]\nbatch_size = 7\n')
    settings = {"training.start": str(of_lines / "lm")}
    text = [str(of_lines / "new.txt")]
    found = resolve("lm", text, recipe=str(recipe), settings=settings, device="cpu")
    assert found.config.data.unit == "line"
    assert found.config.training.batch_size == 7
    assert "data.unit of the recipe is not used: it is line in" in " ".join(found.notes)
    asked = resolve(
        "lm", text, recipe=str(recipe), settings=settings | {"data.unit": "text"}, device="cpu"
    )
    assert asked.config.data.unit == "text"


@pytest.mark.parametrize("words", [0, 1])
def test_what_it_forgot_is_measured(place: Path, tmp_path: Path, words: int) -> None:
    """On the old validation text, with the tokens of the old vocabulary."""
    settings = {"training.steps": 3, "optimiser.learning_rate": 0.1}
    config = begin(place, **settings, **{"training.new_words": words})
    (*_, last) = train(config, tmp_path / "new", device="cpu")
    assert last.summary is not None
    earlier = last.summary["earlier"]
    old, new = open_run(place / "lm"), open_run(tmp_path / "new")
    text = encode_files([place / "old.txt"], old.tokenizer).split(0.9)[1]

    def perplexity(run: OpenedRun) -> float:
        how = {"boundary_id": 0, "unknown_id": 1}
        return evaluate(run.model, text, **how).perplexity  # type: ignore[arg-type]

    assert earlier["before"] == pytest.approx(perplexity(old), rel=1e-5)
    assert earlier["after"] == pytest.approx(perplexity(new), rel=1e-5)
    assert earlier["tokens"] == text.num_tokens
    assert earlier["run"] == "lm"
    assert "| validation text of lm | perplexity " in (tmp_path / "new" / "card.md").read_text()


def test_without_the_old_text_it_says_so(place: Path, tmp_path: Path) -> None:
    (tmp_path / "old.txt").write_text(TOY_TEXT * 2)
    (tmp_path / "new.txt").write_text(TOY_TEXT[:2500])
    run(tmp_path, "lm", "old.txt", "lm", settings=SMALL["lm"] | QUICK, steps=1)
    (tmp_path / "old.txt").unlink()
    reports = list(train(begin(tmp_path, **{"training.steps": 1}), tmp_path / "new", device="cpu"))
    assert reports[-1].summary is not None
    assert "earlier" not in reports[-1].summary
    assert any("what it forgets is not measured" in (r.note or "") for r in reports)


HEADS = {
    "full": {},
    "untied": {"model.tied": False},
    "sampled": {"model.head.kind": "sampled", "model.head.num_samples": 5},
    "adaptive": {"model.head.kind": "adaptive", "model.head.cutoffs": [5, 12]},
    "spellings": {"model.tied": False, "model.input": "character_cnn"},
}


@pytest.mark.parametrize("head", HEADS)
def test_new_words_join_the_vocabulary(place: Path, tmp_path: Path, head: str) -> None:
    """Old words keep their ids and weights, and new ones share the probability of <unk>."""
    for name in ("old.txt", "new.txt"):
        shutil.copy(place / name, tmp_path)
    small = SMALL["lm"] | QUICK | {"tokenizer.kind": "word"} | HEADS[head]
    run(tmp_path, "lm", "old.txt", "lm", settings=small, steps=3)
    config = begin(tmp_path, **{"training.new_words": 1, "training.steps": 1})
    data = set_up(config, tmp_path, False)
    old = open_run(tmp_path / "lm")
    assert data.tokenizer.spellings()[: old.tokenizer.vocab_size] == old.tokenizer.spellings()
    assert "zebra" in data.tokenizer.spellings()[old.tokenizer.vocab_size :]
    model = data.build().eval()
    if head in ("full", "untied", "sampled"):
        ids = torch.tensor([[0, 5, 2, 7]])
        was, now = (
            torch.stack(
                [
                    m.logprobs(ids[:, :1], ids[:, i : i + 1], m.initial_state(1))[0].squeeze()
                    for i in range(1, 4)
                ]
            )
            for m in (old.model, model)
        )
        torch.testing.assert_close(was, now, rtol=1e-4, atol=1e-4)
    reports = list(train(config, tmp_path / "new", device="cpu"))
    assert f"{data.tokenizer.vocab_size - old.tokenizer.vocab_size} new words" in " ".join(
        report.note or "" for report in reports
    )
    assert open_run(tmp_path / "new").tokenizer.id("zebra") is not None


def test_every_text_has_the_tokens_of_bytes(place: Path, tmp_path: Path) -> None:
    for name in ("old.txt", "new.txt"):
        shutil.copy(place / name, tmp_path)
    small = SMALL["lm"] | QUICK | {"tokenizer.kind": "byte"}
    run(tmp_path, "lm", "old.txt", "lm", settings=small, steps=1)
    config = begin(tmp_path, **{"training.new_words": 1, "training.steps": 1})
    with pytest.raises(UsageError, match="tokenizer of bytes has no unknown words"):
        set_up(config, tmp_path, False)


def test_new_words_need_a_run_to_go_on_from(place: Path) -> None:
    with pytest.raises(UsageError, match=r"training\.new_words"):
        resolve("lm", [str(place / "new.txt")], settings={"training.new_words": 1}, device="cpu")


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
