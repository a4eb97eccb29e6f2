"""Whole runs on the toy corpus, and run folders in every state they can be found in."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from elman.base.config import merge, parse_overrides
from elman.base.documents import read_json_lines
from elman.base.errors import ElmanError, UsageError
from elman.recipes.resolve import resolve, resolve_resumed
from elman.recipes.run import train
from elman.tasks.opening import open_run, read_config
from elman.testing import TOY_TEXT
from elman.train import checkpoint
from elman.train.gradients import worse_than_chance
from elman.train.report import Report

TEXT = TOY_TEXT.replace(" .", ".")  # ordinary text, not a pre-tokenised one

SMALL = [
    "model.hidden_size=24",
    "model.embedding_size=12",
    "training.batch_size=8",
    "training.chunk_length=16",
    "training.report_every=5",
    "schedule.warmup_steps=0",
    "training.sample_length=20",
    "optimiser.learning_rate=0.02",
]


WORDS: dict[str, Any] = {"tokenizer": {"kind": "word"}, "model": {"tied": False}}


def config(text: Path, **arguments: Any) -> Any:
    settings = merge(parse_overrides(SMALL), arguments.pop("settings", {}))
    return resolve(
        "lm",
        [str(text)],
        settings=settings,
        device="cpu",
        **{"steps": 20, **arguments},
    ).config


@pytest.fixture(scope="session")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("text") / "toy.txt"
    path.write_text(TEXT)
    return path


@pytest.fixture(scope="session")
def finished(toy: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Report]]:
    out = tmp_path_factory.mktemp("runs") / "toy"
    reports = list(train(config(toy, test=[str(toy)]), out, device="cpu"))
    return out, reports


@pytest.fixture
def copy(finished: tuple[Path, list[Report]], tmp_path: Path) -> Path:
    """A run folder that a test may spoil."""
    return Path(shutil.copytree(finished[0], tmp_path / "copy"))


def test_a_run_ends_with_a_summary(finished: tuple[Path, list[Report]]) -> None:
    out, reports = finished
    last = reports[-1]
    assert last.kind == "done"
    assert last.summary is not None
    expected = {"out", "perplexity", "steps", "tokens", "seconds", "tokens_per_second"}
    assert expected <= last.summary.keys()
    assert last.summary["out"] == str(out)
    assert last.summary["steps"] == 20
    assert last.summary["tokens"] == reports[-2].tokens > 2000
    best = min(r.valid_perplexity for r in reports if r.kind == "valid" and r.valid_perplexity)
    assert last.summary["perplexity"] == pytest.approx(best)
    assert last.summary["test_tokens"] == len(TEXT)


def test_the_summary_says_where_the_best_model_is_from(toy: Path, tmp_path: Path) -> None:
    """On a text of rare letters, the model gets worse."""
    rare = tmp_path / "rare.txt"
    rare.write_text("kvkbkwk" * 30)
    settings = ["training.validate_every=5", "optimiser.learning_rate=0.1"]
    asked = config(toy, valid=[str(rare)], settings=parse_overrides(settings))
    reports = list(train(asked, tmp_path / "run", device="cpu"))
    best = [r for r in reports if r.kind == "valid" and r.best][-1]
    assert best.step < 20
    summary = reports[-1].summary
    assert summary is not None
    assert summary["best_step"] == best.step
    assert summary["best_epoch"] == best.epoch
    assert summary["best_seconds"] == round(best.seconds, 3) < summary["seconds"]
    later = [r for r in reports if r.kind == "valid" and r.step > best.step]
    assert summary["later_validations"] == len(later) > 0


def test_the_folder_holds_everything(finished: tuple[Path, list[Report]]) -> None:
    out, reports = finished
    names = {str(path.relative_to(out)) for path in out.rglob("*") if path.is_file()}
    assert names == {
        "config.json",
        "model.safetensors",
        "tokenizer.json",
        "metrics.jsonl",
        "card.md",
        "train/state.safetensors",
    }
    lines = read_json_lines(out / "metrics.jsonl")
    logged = [r.to_dict() for r in reports if r.kind != "note" or r.step]  # notes of the loop too
    assert lines == logged
    assert json.loads((out / "config.json").read_text())["format"] == 2


def test_the_card_tells_what_the_summary_tells(finished: tuple[Path, list[Report]]) -> None:
    out, reports = finished
    card = (out / "card.md").read_text()
    summary = reports[-1].summary
    assert summary is not None
    assert f"perplexity {summary['perplexity']:.2f}" in card
    assert f"perplexity {summary['test_perplexity']:.2f}" in card
    assert "toy.txt" in card
    assert "| hidden_size | 24 |" in card


def test_an_opened_run_is_the_model_that_was_trained(finished: tuple[Path, list[Report]]) -> None:
    from elman.batches.encoded import encode_files
    from elman.evaluate.perplexity import evaluate

    out, reports = finished
    run = open_run(out)
    assert not run.model.training
    text = encode_files([Path(run.config.data.test[0])], run.tokenizer)
    found = evaluate(run.model, text, boundary_id=run.tokenizer.boundary_id)
    assert reports[-1].summary is not None
    assert found.perplexity == pytest.approx(reports[-1].summary["test_perplexity"])


def test_a_used_folder_is_not_overwritten(copy: Path, toy: Path) -> None:
    with pytest.raises(UsageError, match="already holds a run") as caught:
        next(train(config(toy), copy, device="cpu"))
    assert "--resume" in caught.value.hint
    with pytest.raises(UsageError, match="is a file"):
        next(train(config(toy), copy / "card.md", device="cpu"))


def test_a_run_that_cannot_begin_leaves_nothing_behind(toy: Path, tmp_path: Path) -> None:
    few = tmp_path / "few.txt"
    few.write_text("a sentence\n" * 5)
    asked = resolve("elmo", [str(few)], steps=2, device="cpu").config
    with pytest.raises(UsageError, match="too little data"):
        list(train(asked, tmp_path / "runs" / "elmo", device="cpu"))
    # Too late: the weights that training was to begin with had been written already.
    late = config(toy, steps=None, minutes=0.01)
    with pytest.raises(ElmanError, match="no time is left to train in"):
        list(train(late, tmp_path / "runs" / "lm", device="cpu", started=-1000.0))
    assert not (tmp_path / "runs").exists()
    kept = tmp_path / "kept"
    kept.mkdir()
    (kept / "notes.txt").write_text("mine")
    with pytest.raises(ElmanError, match="no time is left to train in"):
        list(train(late, kept, device="cpu", started=-1000.0))
    assert [path.name for path in kept.iterdir()] == ["notes.txt"]


def test_a_run_says_how_much_of_its_texts_is_unknown(toy: Path, tmp_path: Path) -> None:
    """Few types make a low perplexity, as most tokens are then the unknown one."""
    valid = tmp_path / "valid.txt"
    valid.write_text("the student xylophone quagmire\n" * 20)
    few = config(toy, valid=[str(valid)], settings=WORDS, steps=1)
    said = [report.note or "" for report in train(few, tmp_path / "few", device="cpu")]
    assert any("40.00% of the validation tokens unknown" in note for note in said)


def test_what_others_write_meanwhile_stays(toy: Path, tmp_path: Path) -> None:
    late = config(toy, steps=None, minutes=0.01)
    running = train(late, tmp_path / "runs", device="cpu", started=-1000.0)
    next(running)
    (tmp_path / "runs" / "other").mkdir(parents=True)
    (tmp_path / "runs" / "other" / "model.safetensors").write_text("theirs")
    with pytest.raises(ElmanError, match="no time is left to train in"):
        list(running)
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["other"]
    assert (tmp_path / "runs" / "other" / "model.safetensors").read_text() == "theirs"


def test_resuming_a_finished_run_sums_it_up_again(
    finished: tuple[Path, list[Report]], copy: Path
) -> None:
    before = {path: path.read_bytes() for path in copy.rglob("*") if path.is_file()}
    reports = list(train(read_config(copy), copy, device="cpu", resume=True))
    assert {path: path.read_bytes() for path in copy.rglob("*") if path.is_file()} == before
    (report,) = reports
    assert report.kind == "done"
    assert report.note is not None
    assert "already finished (20 updates): nothing was changed" in report.note
    assert "--steps" in report.note
    summary = finished[1][-1].summary
    assert summary is not None
    assert report.summary == {**summary, "out": str(copy)}


def test_a_shorter_length_does_not_change_a_finished_run(copy: Path) -> None:
    before = (copy / "metrics.jsonl").read_bytes()
    shorter = read_config(copy)
    shorter = replace(shorter, training=replace(shorter.training, steps=10))
    list(train(shorter, copy, device="cpu", resume=True))
    minutes = replace(shorter, training=replace(shorter.training, steps=None, minutes=1e-5))
    list(train(minutes, copy, device="cpu", resume=True))
    assert (copy / "metrics.jsonl").read_bytes() == before
    assert read_config(copy).training.steps == 20


def unended(copy: Path) -> list[str]:
    """Remove the last report: the run was killed after its last update."""
    lines = (copy / "metrics.jsonl").read_text().splitlines(keepends=True)
    (copy / "metrics.jsonl").write_text("".join(lines[:-1]))
    return lines


def test_a_run_goes_on_after_a_line_that_a_power_cut_left(copy: Path) -> None:
    """Its reports were read before the part after the last checkpoint was cut off."""
    unended(copy)
    with (copy / "metrics.jsonl").open("ab") as file:
        file.write(b"\0" * 20)
    *_, last = train(read_config(copy), copy, device="cpu", resume=True)
    assert last.kind == "done"


def test_a_run_killed_at_its_end_is_summed_up(copy: Path) -> None:
    before = unended(copy)
    reports = list(train(read_config(copy), copy, device="cpu", resume=True))
    assert [r.kind for r in reports] == ["note", "note", "resume", "done"]
    after = (copy / "metrics.jsonl").read_text().splitlines(keepends=True)
    assert after[:-1] == before[:-1]
    assert json.loads(after[-1])["valid_loss"] == json.loads(before[-1])["valid_loss"]


def test_a_run_resumed_after_its_last_sample_has_it_in_its_card(copy: Path) -> None:
    samples = [(copy / "card.md").read_text().split("## Sample")[1].split("## Use")[0]]
    unended(copy)
    list(train(read_config(copy), copy, device="cpu", resume=True))
    samples.append((copy / "card.md").read_text().split("## Sample")[1].split("## Use")[0])
    assert samples[0] == samples[1]


def test_a_finished_run_can_be_continued(copy: Path) -> None:
    longer = read_config(copy)
    longer = replace(longer, training=replace(longer.training, steps=30))
    reports = list(train(longer, copy, device="cpu", resume=True))
    assert reports[-1].step == 30
    assert read_config(copy) == longer


@pytest.mark.parametrize(
    ("kind", "told"),
    [
        (
            "cosine",
            "continuing after step 20; the cosine schedule is spread over the new length: the "
            "learning rate goes on at 0.01 (before: 0.00012); for another schedule, start a new "
            "run from this one: elman train lm TEXT --from",
        ),
        (
            "constant",
            "continuing after step 20; the learning rate goes on at 0.02 (constant schedule); for "
            "another schedule, start a new run from this one: elman train lm TEXT --from",
        ),
    ],
)
def test_a_run_that_is_made_longer_says_its_learning_rate(
    toy: Path, tmp_path: Path, kind: str, told: str
) -> None:
    out = tmp_path / "run"
    settings = config(toy, settings=parse_overrides([f"schedule.kind={kind}"]))
    list(train(settings, out, device="cpu"))
    longer = replace(settings, training=replace(settings.training, steps=40))
    reports = list(train(longer, out, device="cpu", resume=True))
    (note,) = (r.note for r in reports if r.kind == "resume")
    assert note == f"{told} {out}"
    rates = [r.learning_rate for r in reports if r.kind == "step"]
    assert rates[0] == pytest.approx(0.02 if kind == "constant" else 0.01, rel=0.35)


def test_a_run_that_goes_on_as_planned_says_nothing_of_its_rate(copy: Path) -> None:
    unended(copy)
    reports = list(train(read_config(copy), copy, device="cpu", resume=True))
    assert [r.note for r in reports if r.kind == "resume"] == ["continuing after step 20"]


def test_a_run_whose_continuation_was_killed_early_is_not_finished(copy: Path) -> None:
    longer = read_config(copy)
    longer = replace(longer, training=replace(longer.training, steps=30))
    for report in train(longer, copy, device="cpu", resume=True):
        if report.note and "parameters" in report.note:  # before it has continued
            break
    reports = list(train(longer, copy, device="cpu", resume=True))
    assert reports[-1].step == 30


@pytest.mark.parametrize("last", [0, 15])
def test_a_run_without_a_checkpoint_begins_again(toy: Path, tmp_path: Path, last: int) -> None:
    """Killed before its first checkpoint, after a validation has saved a model or before."""
    settings = config(toy, settings=parse_overrides(["training.validate_every=5"]))
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    list(train(settings, whole, device="cpu"))
    for report in train(settings, killed, device="cpu"):
        if report.step == last and (killed / "config.json").exists():
            break
    state = killed / "train" / "state.safetensors"
    assert state.exists() == (last > 0)
    assert not last or checkpoint.read_header(state)["progress"]["step"] == 0
    list(train(settings, killed, device="cpu", resume=True))
    assert losses(killed) == losses(whole)


def losses(folder: Path) -> list[tuple[int, float]]:
    lines = read_json_lines(folder / "metrics.jsonl")
    return [(line["step"], line["loss"]) for line in lines if line["kind"] == "step"]


def test_a_folder_in_which_nothing_was_trained_can_be_used_again(toy: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    for report in train(config(toy), out, device="cpu"):
        if report.kind == "note" and (out / "config.json").exists():
            break
    assert list(train(config(toy), out, device="cpu"))[-1].kind == "done"


def test_resuming_what_was_killed_before_it_saved(tmp_path: Path) -> None:
    """A temporary folder is no run to resume instead."""
    out = tmp_path / "out"
    (out / ".elman-00000000").mkdir(parents=True)
    (out / ".elman-00000000" / "config.json").touch()
    with pytest.raises(UsageError, match="no run to resume"):
        resolve_resumed(out)
    (out / "a").mkdir()
    (out / "a" / "config.json").touch()
    with pytest.raises(UsageError) as caught:
        resolve_resumed(out)
    assert caught.value.hint == f"it holds runs: name one of them, as {out / 'a'}"
    with pytest.raises(UsageError, match=r"no run to resume in .*elsewhere"):
        resolve_resumed(out / "elsewhere")
    (out / "a").rename(out / "elsewhere")
    with pytest.raises(UsageError) as caught:
        resolve_resumed(out / "elsewher")
    assert caught.value.hint == f"did you mean '{out / 'elsewhere'}'?"


def test_a_lost_train_state_does_not_start_a_trained_run_again(copy: Path, toy: Path) -> None:
    unended(copy)
    model = (copy / "model.safetensors").read_bytes()
    (copy / "train" / "state.safetensors").unlink()
    with pytest.raises(ElmanError, match=r"state\.safetensors is missing"):
        list(train(config(toy, test=[str(toy)]), copy, device="cpu", resume=True))
    assert (copy / "model.safetensors").read_bytes() == model


def test_resuming_with_other_settings_is_refused(copy: Path, toy: Path, tmp_path: Path) -> None:
    other = config(toy, test=[str(toy)], settings=parse_overrides(["model.num_layers=2"]))
    with pytest.raises(UsageError, match=r"model\.num_layers=1, not 2"):
        next(train(other, copy, device="cpu", resume=True))
    with pytest.raises(UsageError, match="no run to resume"):
        next(train(other, tmp_path / "nowhere", device="cpu", resume=True))


def test_too_little_text_is_a_sentence(tmp_path: Path) -> None:
    path = tmp_path / "word.txt"
    path.write_text("word")
    with pytest.raises(UsageError, match="too little text") as caught:
        list(train(config(path), tmp_path / "run", device="cpu"))
    assert caught.value.hint


def test_the_state_of_a_model_with_another_tokenizer_is_refused(copy: Path) -> None:
    spec = json.loads((copy / "tokenizer.json").read_text())
    vocab = spec["model"]["vocab"]
    vocab["☃"] = len(vocab)
    (copy / "tokenizer.json").write_text(json.dumps(spec))
    with pytest.raises(ElmanError, match=r"is not the tokenizer of .* tokens instead of") as caught:
        open_run(copy)
    assert "tokenizer.json" in caught.value.hint


@pytest.mark.parametrize("name", ["tokenizer.json", "model.safetensors"])
def test_a_missing_file_is_named(copy: Path, name: str) -> None:
    (copy / name).unlink()
    with pytest.raises(ElmanError, match=f"has no {name}") as caught:
        open_run(copy)
    assert caught.value.hint


def test_folders_that_are_no_runs(copy: Path, tmp_path: Path) -> None:
    (copy / "config.json").unlink()
    with pytest.raises(UsageError, match="is not a run folder"):
        open_run(copy)
    with pytest.raises(UsageError, match="there is no run folder"):
        open_run(tmp_path / "nowhere")


def test_a_truncated_model_is_a_sentence(copy: Path) -> None:
    path = copy / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(ElmanError, match="damaged or cut short") as caught:
        open_run(copy)
    assert caught.value.hint


@pytest.mark.parametrize("content", ["{", "[]", '{"format": 99}', '{"format": 1, "modle": {}}'])
def test_a_damaged_or_foreign_config_is_a_sentence(copy: Path, content: str) -> None:
    (copy / "config.json").write_text(content)
    with pytest.raises(ElmanError) as caught:
        open_run(copy)
    assert caught.value.message
    assert caught.value.hint


def test_a_run_learns_the_toy_corpus(toy: Path, tmp_path: Path) -> None:
    *_, last = train(
        config(toy, steps=120, settings=parse_overrides(["model.dropout_output=0"])), tmp_path / "r"
    )
    assert last.summary is not None
    assert last.summary["nats_per_token"] < 1.5  # a uniform guess among 27 characters: 3.3


@pytest.mark.parametrize(
    "settings",
    [
        ["tokenizer.kind=word", "model.tied=false", "model.head.kind=adaptive"],
        ["tokenizer.kind=word", "model.tied=false", "model.head.kind=sampled"],
        ["tokenizer.kind=bpe", "tokenizer.vocab_size=300", "model.embedding_size=24"],
        ["tokenizer.kind=byte", "model.cell=gru", "training.accumulate=2"],
        ["tokenizer.kind=word", "model.input=character_cnn", "model.tied=false"],
    ],
)
def test_other_models_train_and_open_again(toy: Path, tmp_path: Path, settings: list[str]) -> None:
    *_, last = train(
        config(toy, steps=3, settings=parse_overrides(settings)), tmp_path / "run", device="cpu"
    )
    assert last.kind == "done"
    run = open_run(tmp_path / "run")
    tokens = torch.tensor([run.tokenizer.boundary_id])
    logprobs_BV, _ = run.model.step(tokens, run.model.initial_state(1))
    assert float(logprobs_BV.detach().exp().sum()) == pytest.approx(1.0, abs=1e-4)


@pytest.mark.parametrize(
    "regime",
    ["scheduled_sampling", "free_running", "professor_forcing", "minimum_risk", "self_critical"],
)
def test_every_regime_trains_and_resumes_exactly(toy: Path, tmp_path: Path, regime: str) -> None:
    small = {
        "professor_forcing": ["objective.judge_size=8"],
        "minimum_risk": ["objective.num_candidates=2"],
    }
    overrides = [f"objective.regime={regime}", "training.checkpoint_seconds=0"]
    overrides += small.get(regime, [])
    settings = config(toy, steps=10, settings=parse_overrides(overrides))
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    reports = list(train(settings, whole, device="cpu"))
    assert reports[-1].summary["perplexity"] < 60  # of 25 characters or so: it has not diverged
    for report in train(settings, killed, device="cpu"):
        if report.kind == "step":
            break  # as if killed here: the last checkpoint is all that is left
    list(train(settings, killed, device="cpu", resume=True))
    assert losses(killed) == losses(whole)
    assert (killed / "model.safetensors").read_bytes() == (whole / "model.safetensors").read_bytes()


@pytest.mark.parametrize("task", ["lm", "ngram"])
@pytest.mark.parametrize("replaced", [False, True])
def test_a_folder_deleted_or_replaced_in_mid_run_ends_the_run(
    toy: Path, tmp_path: Path, task: str, replaced: bool
) -> None:
    out = tmp_path / "out"
    settings = config(toy) if task == "lm" else resolve(task, [str(toy)]).config
    with pytest.raises(ElmanError, match=r"out was deleted or replaced while") as caught:
        for report in train(settings, out, device="cpu"):
            if report.step == 5 or (task == "ngram" and not (tmp_path / "moved").exists()):
                out.rename(tmp_path / "moved")
                if replaced:
                    out.mkdir()
    assert type(caught.value) is ElmanError
    assert out.exists() == replaced
    assert not list(out.rglob("*"))


def test_a_folder_deleted_before_the_card_is_written_ends_the_run(
    toy: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    with pytest.raises(ElmanError, match="deleted or replaced"):
        for report in train(config(toy), out, device="cpu"):
            if report.kind == "valid":
                shutil.rmtree(out)
    assert not out.exists()


def test_a_validation_loss_without_bounds_ends_the_run(toy: Path, tmp_path: Path) -> None:
    settings = parse_overrides(["optimiser.learning_rate=1e9"])
    with pytest.raises(ElmanError, match="the validation loss became") as caught:
        list(train(config(toy, settings=settings), tmp_path / "out", device="cpu"))
    assert "optimiser.learning_rate" in caught.value.hint


def test_a_model_that_is_worse_than_guessing_is_said(toy: Path, tmp_path: Path) -> None:
    settings = parse_overrides(["optimiser.learning_rate=30"])
    done = list(train(config(toy, settings=settings), tmp_path / "out", device="cpu"))[-1]
    assert done.note is not None
    assert done.note.startswith("training diverged: the perplexity is")
    assert "lower optimiser.learning_rate" in done.note


def test_a_continued_model_that_is_worse_than_guessing_has_not_diverged() -> None:
    note = worse_than_chance(9.0, 50, continued=True)
    assert note is not None
    assert note.startswith("the model has not yet adapted")
    assert note.endswith("train it for longer")
    assert worse_than_chance(4.0, 50, continued=True) is None
