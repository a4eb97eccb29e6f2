"""A task of one's own in one file: predict a number for a text.

    export PYTHONPATH=examples ELMAN_PLUGINS=own_task:TASK
    elman train own_task:TASK lengths.tsv --steps 200 --out runs/numbers
    elman train own_task:TASK --out runs/numbers --steps 400 --resume
    elman evaluate runs/numbers lengths.tsv
    elman number runs/numbers "a text"  # a command of the task's own
    elman serve runs/numbers            # POST /v1/number {"text": "..."}

or from Python, as `python examples/own_task.py` does. Each line of the data is a text, a tab and a
number. A character GRU reads the text; the mean of its states gives the number; the loss is the
squared error, in units of the training data's standard deviation.

A task declares its settings, how data becomes batches, a model, a loss, a metric, a handle, and
what its own command and route do. Everything else is shared: commands, the training loop with exact
resume, run folders, the card, `elman info` and the server. B batch, T time steps.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import torch
from torch import Tensor, nn

import elman
from elman.base.documents import read_json, write_json
from elman.base.errors import ElmanError
from elman.batches.buckets import SentenceBatch, SentenceBatches, pad
from elman.nn.stack import Stack, StackConfig
from elman.nn.state import State
from elman.objectives.outcome import Outcome
from elman.runs.run_folder import about, check_vocabulary, require
from elman.runs.trained_run import TrainedRun
from elman.tasks import Draft, OpenedModel, Proposal, Route, Task
from elman.tasks.handle import Handle
from elman.terminal.console import result, result_json
from elman.terminal.options import Json, argument
from elman.text.sources import Paths, expand, listed
from elman.train.trainable import Trainable, Validation

CHARACTERS_FILE = "characters.json"
Row = tuple[str, float]


@dataclass(frozen=True, kw_only=True)
class RegressorConfig:
    """A character GRU with one output."""

    kind: str = "regressor"
    """The kind of model."""
    hidden_size: int = 32
    """Units of the GRU."""


@dataclass(frozen=True, kw_only=True)
class NumberRun(TrainedRun):
    """A run: data, optimiser, schedule and training come with `TrainedRun`."""

    task: str = "own_task:TASK"
    """The name by which a run folder finds its task again."""
    model: RegressorConfig = field(default_factory=RegressorConfig)
    """The model."""


@dataclass(frozen=True)
class Characters:
    """The vocabulary, with the mean and the deviation of the training numbers."""

    characters: str
    mean: float
    deviation: float

    @property
    def vocab_size(self) -> int:
        return len(self.characters) + 1

    @property
    def hash(self) -> str:
        return json.dumps([self.characters, self.mean, self.deviation])

    def encode(self, text: str) -> list[int]:
        return [self.characters.find(c) + 1 for c in text] or [0]  # 0: unknown


@dataclass(frozen=True, kw_only=True)
class Texts(SentenceBatch):
    """A batch: `SentenceBatch` has the lengths, and what the training loop asks of a batch."""

    tokens_BT: Tensor
    numbers_B: Tensor


class Regressor(nn.Module):
    """Embeddings, a GRU, the mean over its states, one number."""

    def __init__(self, config: RegressorConfig, vocab_size: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, config.hidden_size)
        stack = StackConfig(cell="gru", hidden_size=config.hidden_size)
        self.stack = Stack(stack, config.hidden_size)
        self.output = nn.Linear(config.hidden_size, 1)

    def forward(self, tokens_BT: Tensor, lengths_B: Tensor) -> Tensor:
        states_BTH, _ = self.stack(self.embedding(tokens_BT), None, lengths_B)
        lengths_B1 = lengths_B.to(states_BTH.device).unsqueeze(1)
        numbers_B: Tensor = self.output(states_BTH.sum(dim=1) / lengths_B1).squeeze(1)
        return numbers_B


def read_rows(paths: Sequence[str]) -> list[Row]:
    rows = []
    for path in expand(paths):
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
            text, _, value = line.rpartition("\t")
            try:
                rows.append((text, float(value)))
            except ValueError as error:
                raise ElmanError(f"{path}, line {number}: no number after a tab") from error
    return rows


def num_characters(rows: Sequence[Row]) -> int:
    return sum(len(text) for text, _ in rows)


def make_batch(rows: Sequence[Row], characters: Characters) -> Texts:
    tokens_BT, mask_BT = pad([characters.encode(text) for text, _ in rows])
    numbers = [(number - characters.mean) / characters.deviation for _, number in rows]
    return Texts(tokens_BT=tokens_BT, lengths_B=mask_BT.sum(1), numbers_B=torch.tensor(numbers))


@torch.no_grad()
def mean_error(model: Regressor, characters: Characters, rows: Sequence[Row]) -> float:
    """Mean absolute error, in units of the training numbers' standard deviation."""
    device = str(next(model.parameters()).device)
    batch = make_batch(rows, characters).to(device)
    return float((model(batch.tokens_BT, batch.lengths_B) - batch.numbers_B).abs().mean())


@dataclass(frozen=True)
class NumberData:
    """The data of a run, and how its model is built, trained and measured."""

    config: NumberRun
    characters: Characters
    train: list[Row]
    valid: list[Row]
    tests: list[Row]

    def scale(self) -> str:
        return f"{len(self.train):,} texts to learn from, {len(self.valid):,} to validate on"

    def build(self) -> Regressor:
        return Regressor(self.config.model, self.characters.vocab_size)

    def trainable(self, model: Regressor) -> Trainable:
        def objective(batch: Texts, state: State | None) -> Outcome:
            errors_B = (model(batch.tokens_BT, batch.lengths_B) - batch.numbers_B).square()
            return Outcome(errors_B.mean(), errors_B.sum().detach(), batch.num_targets)

        def validate(limit: int | None) -> Validation:
            model.eval()
            error = mean_error(model, self.characters, self.valid)
            model.train()
            return Validation(None, None, num_characters(self.valid), {"closeness": -error})

        training = self.config.training
        return Trainable(
            model=model,
            objective=objective,
            batches=SentenceBatches(
                [len(self.characters.encode(text)) for text, _ in self.train],
                lambda indices: make_batch([self.train[i] for i in indices], self.characters),
                batch_size=training.batch_size,
                seed=training.seed,
            ),
            validate=validate,
            valid_tokens=num_characters(self.valid),
            probe=lambda: validate(None).num_tokens,
            test_tokens=num_characters(self.tests),
            exact=False,
            about=about(self.characters),
        )

    def test(self, model: Regressor, limit: int | None) -> Mapping[str, Any]:
        error = mean_error(model, self.characters, self.tests)
        return {"closeness": -error, "tokens": num_characters(self.tests)}

    def describe(self) -> str:
        return "A number for a text"


def choose(draft: Draft, machine: Any) -> Proposal:
    """Automatic settings; the user's own override them."""
    settings = {"optimiser": {"kind": "adam", "learning_rate": 0.01}, "training": {"steps": 300}}
    return Proposal({**settings, **draft.base}, draft.asked, lambda config: [])


def set_up(config: NumberRun, out: Path, resume: bool) -> NumberData:
    """Read the data; write the vocabulary, or read it from a run to be resumed."""
    rows = read_rows(config.data.train)
    cut = round(len(rows) * (1 - config.data.valid_fraction))
    train, valid = rows[:cut], rows[cut:]
    if config.data.valid:
        train, valid = rows, read_rows(config.data.valid)
    tests = read_rows(config.data.test) if config.data.test else []
    if resume:
        return NumberData(config, read_characters(out), train, valid, tests)
    numbers = torch.tensor([number for _, number in train])
    found = "".join(sorted({c for text, _ in train for c in text}))
    characters = Characters(found, float(numbers.mean()), float(numbers.std()) or 1.0)
    write_json(out / CHARACTERS_FILE, vars(characters))
    return NumberData(config, characters, train, valid, tests)


def read_characters(path: Path) -> Characters:
    require(path, CHARACTERS_FILE)
    return Characters(**read_json(path / CHARACTERS_FILE))


def open_model(path: Path, config: NumberRun, header: Mapping[str, Any]) -> OpenedModel:
    characters = read_characters(path)
    check_vocabulary(path, characters, header, CHARACTERS_FILE)
    return partial(Regressor, config.model, characters.vocab_size), characters


@dataclass(frozen=True)
class NumberEvaluation:
    """What `elman evaluate` prints."""

    mean_error: float
    """Mean absolute error, in the numbers' own unit."""
    texts: int


class Number(Handle):
    """What `elman.load` returns."""

    what = "a model of numbers"

    @torch.no_grad()
    def number(self, text: str) -> float:
        characters: Characters = self.run.tokenizer
        batch = make_batch([(text, 0.0)], characters)
        found = self.model(
            batch.tokens_BT.to(next(self.model.parameters()).device), batch.lengths_B
        )
        return float(found) * characters.deviation + characters.mean

    def evaluate(self, data: Paths) -> NumberEvaluation:
        rows = read_rows(listed(data))
        error = mean_error(self.model, self.run.tokenizer, rows) * self.run.tokenizer.deviation
        return NumberEvaluation(error, len(rows))

    def info(self) -> dict[str, Any]:
        return self.described("a number for a text")


def show_number(
    handle: Number,
    text: Annotated[str, argument("TEXT", "The text.")],
    json: Json = False,
) -> None:
    """Print the number of a text."""
    number = handle.number(text)
    if json:
        result_json({"number": number})
    else:
        result(f"{number:.2f}")


TASK = Task(
    name="own_task:TASK",
    what="a model of numbers",
    help="Train a model that predicts a number for a text.",
    config=NumberRun,
    handle=Number,
    module="own_task",
    uses=("elman evaluate FOLDER FILE",),
    data_metavar="DATA...",
    data_help="Lines of text, a tab, a number.",
    verbs={"number": show_number},
    routes=(Route(name="number", help="The number of a text."),),
    files=(CHARACTERS_FILE,),
)


def main(folder: str = "runs/numbers", steps: int = 200) -> None:
    """Learn how many letters "a" a text has; train, resume, evaluate and load by ordinary calls."""
    texts = ["".join("ab c"[(i * j) % 4] for j in range(3 + i % 9)) for i in range(400)]
    file = Path(folder).parent / "letters.tsv"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(f"{text}\t{text.count('a')}\n" for text in texts), encoding="utf-8")
    model: Number = elman.train_model("own_task:TASK", str(file), steps=steps, out=folder)
    print(f"mean error {model.evaluate(str(file)).mean_error:.2f}")
    print(f'"abcabca" has about {elman.load(folder).number("abcabca"):.1f} letters a')


if __name__ == "__main__":
    main()
