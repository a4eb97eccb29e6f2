"""Print the table of docs/guides/at-home.md: the figures of Elman and of other tools, side by side.

Language models are measured with `word-lstm` of the package, the rest with toy models and counts.
`python docs/at_home.py speed` prints the time of lm-evaluation-harness's requests in this process
and through `elman serve` instead.

Run it in an environment with the extras hf, harness, onnx, track, search, data, ngram and corpora,
and with datasets, minicons, sentencepiece, tiktoken and kenlm; `speed` needs lm_eval[api].
"""

from __future__ import annotations

import json
import math
import os
import runpy
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import median
from typing import Any

import elman
from elman.recipes.search import open_search
from elman.recipes.search import run as run_search
from elman.runs.packaged import located
from elman.runs.trackers import track
from elman.testing import TOY_TEXT, TOY_TREEBANK
from elman.text.corpora import materialise
from elman.tokens.bytes import byte_spellings
from elman.tokens.tiktoken_encodings import from_encoding
from elman.tokens.tokenizer import Tokenizer

RUN = "word-lstm"
TEXT = "the function returns a list of strings .\nif the file is missing , an error is raised .\n"
LINE = TEXT.splitlines()[0]
PATTERN = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s"
"""How tiktoken's gpt2 splits a text."""


def rows(folder: Path) -> Iterator[tuple[str, str, str, float, float]]:
    """(package, command, figure, of Elman, of the other)."""
    lm = elman.load(RUN, device="cpu")
    elman.convert(RUN, folder / "hf", to="hf")
    logprob = lm.logprob(LINE, include_end=False)
    how = "nats of a sentence"
    yield "transformers", "elman convert RUN DIR --to hf", how, -logprob, in_transformers(folder)
    yield "minicons", "IncrementalLMScorer(DIR)", how, -logprob, in_minicons(folder)
    (folder / "text.txt").write_text(TEXT, encoding="utf-8")
    evaluated = lm.evaluate(folder / "text.txt", batch_size=1)
    total = evaluated.nats_per_token * evaluated.tokens
    yield "lm_eval", "--model elman", "nats of a text", total, in_harness()
    elman.convert(RUN, folder / "model.py")
    program = runpy.run_path(str(folder / "model.py"))
    found = -math.fsum(program["logprobs"](lm.tokenizer.encode(LINE).tolist()))
    yield "torch", "elman convert RUN model.py", how, -logprob, found
    elman.convert(RUN, folder / "model.onnx")
    of_file = elman.load(folder / "model.onnx", device="cpu").logprob(LINE, include_end=False)
    yield "onnxruntime", "elman convert RUN model.onnx", how, -logprob, -of_file


def tagged(folder: Path) -> Iterator[tuple[str, str, str, float, float]]:
    """The probability of a tag, in transformers."""
    from transformers import pipeline

    import elman.hf

    (folder / "train.conllu").write_text(TOY_TREEBANK, encoding="utf-8")
    small = {"model.hidden_size": 16, "model.embedding_size": 16}
    tagger = elman.train_tagger(
        folder / "train.conllu", steps=30, out=folder / "tagger", settings=small
    )
    elman.convert(folder / "tagger", folder / "hf-tagger", to="hf")
    found = pipeline("token-classification", str(folder / "hf-tagger"))("the book fell")[0]
    ours = tagger.probabilities("the book fell")[0][found["entity"]]
    figure = "probability of a tag"
    yield "transformers", "elman convert TAGGER DIR --to hf", figure, ours, float(found["score"])


def searched(folder: Path) -> Iterator[tuple[str, str, str, float, float]]:
    """The loss of the best trial in Optuna's own reading of the journal."""
    import optuna

    (folder / "my.txt").write_text(TOY_TEXT, encoding="utf-8")
    quiet: dict[str, Any] = {"tell": lambda text: None}
    out = folder / "search"
    how = {"trial_minutes": 1.0, "steps": 16, "device": "cpu"}
    search = open_search(out, "lm", [str(folder / "my.txt")], **how, **quiet)
    summary = run_search(search, minutes=5, trials=3, **quiet)
    backend = optuna.storages.journal.JournalFileBackend(str(out / "journal.log"))
    storage = optuna.storages.JournalStorage(backend)
    found = optuna.load_study(study_name="lm", storage=storage).best_value
    ours = summary["best_figures"]["valid_loss"]
    yield "optuna", "elman search lm FILE", "validation loss of the best trial", ours, found


def counted(folder: Path) -> Iterator[tuple[str, str, str, float, float]]:
    """Sub-words of SentencePiece counted by Elman, in kenlm; text of three sources."""
    import datasets
    import fsspec
    import kenlm
    import pyarrow
    import pyarrow.parquet
    import sentencepiece

    lines = materialise("king-james")[0].read_text(encoding="utf-8").splitlines()[:2000]
    table, model, arpa = (folder / name for name in ("text.parquet", "asr.model", "lm.arpa"))
    pyarrow.parquet.write_table(pyarrow.table({"text": lines}), table)
    with model.open("wb") as file:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(lines), model_writer=file, vocab_size=1000, minloglevel=2
        )
    lm = elman.train_ngram(
        table, order=4, tokenizer=str(model), arpa=arpa, out=folder / "counted", progress=False
    )
    pieces = sentencepiece.SentencePieceProcessor(model_file=str(model))
    num_pieces = sum(map(len, pieces.encode(lines)))
    ours = sum(len(lm.tokenizer.encode(line)) for line in lines)
    yield "sentencepiece", "--tokenizer asr.model", "pieces of 2,000 lines", ours, num_pieces
    theirs = kenlm.Model(str(arpa)).score(" ".join(pieces.encode(lines[0], out_type=str)))
    ours = lm.logprob(lines[0], as_is=True)
    yield "kenlm", "--arpa lm.arpa", "nats of a line", -ours, -theirs * math.log(10)
    plain = folder / "text.txt"
    plain.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    expected = lm.evaluate(plain).perplexity
    sources = {
        "pyarrow": ("elman evaluate RUN text.parquet", table),
        "datasets": ("lm.evaluate(datasets.Dataset)", datasets.Dataset.from_dict({"text": lines})),
        "fsspec": ("lm.evaluate('memory://text.txt')", "memory://text.txt"),
    }
    fsspec.filesystem("memory").pipe("/text.txt", plain.read_bytes())
    for name, (command, data) in sources.items():
        yield name, command, "perplexity", expected, lm.evaluate(data).perplexity


def encoded(folder: Path) -> Iterator[tuple[str, str, str, float, float]]:
    """The ids of an encoding of tiktoken that is made here: its own ones are downloads."""
    import tiktoken
    import tokenizers

    lines = materialise("king-james")[0].read_text(encoding="utf-8").splitlines()[:2000]
    made = tokenizers.ByteLevelBPETokenizer()
    made.train_from_iterator(lines, vocab_size=1000, show_progress=False)
    byte_of = {spelling: byte for byte, spelling in enumerate(byte_spellings())}
    ranks = {bytes(map(byte_of.__getitem__, t)): i for t, i in made.get_vocab().items()}
    encoding = tiktoken.Encoding(
        "king-james", pat_str=PATTERN, mergeable_ranks=ranks, special_tokens={}
    )
    ours = Tokenizer(from_encoding(encoding))
    figure = "sum of the ids of 2,000 lines"
    sums = [
        float(sum(int(sum(encode(line))) for line in lines))
        for encode in (ours.encode, encoding.encode_ordinary)
    ]
    yield "tiktoken", "from_encoding(ENCODING)", figure, *sums


def in_transformers(folder: Path) -> float:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    import elman.hf  # noqa: F401

    model = AutoModelForCausalLM.from_pretrained(folder / "hf")
    ids = AutoTokenizer.from_pretrained(folder / "hf")(LINE, return_tensors="pt").input_ids
    return float(model(ids, labels=ids).loss) * (ids.shape[1] - 1)


def in_minicons(folder: Path) -> float:
    from minicons.scorer import IncrementalLMScorer

    scorer = IncrementalLMScorer(str(folder / "hf"), "cpu")
    return -float(scorer.sequence_score([LINE], reduction=lambda x: x.sum().item())[0])


def in_harness() -> float:
    from lm_eval.api.instance import Instance
    from lm_eval.api.registry import get_model

    import elman.harness  # noqa: F401

    model = get_model("elman")(path=RUN, device="cpu")
    return -float(
        model.loglikelihood_rolling([Instance("loglikelihood_rolling", {}, (TEXT,), 0)])[0]
    )


def tracked(folder: Path) -> Iterator[tuple[str, str, str, float, float]]:
    """The best validation loss in each tracker."""
    run = folder / "run"
    elman.train_lm("king-james", steps=20, out=run, settings={"model.hidden_size": 32})
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    expected = [line["valid_loss"] for line in lines if "valid_loss" in line][-1]
    os.environ |= {"MLFLOW_TRACKING_URI": (folder / "mlruns").as_uri()}
    os.environ |= {"MLFLOW_ALLOW_FILE_STORE": "true", "WANDB_SILENT": "true"}
    readers: dict[str, Callable[[], Any]] = {"mlflow": lambda: of_mlflow(run)}
    readers["tensorboard"] = lambda: of_tensorboard(run)
    readers["wandb"] = lambda: of_wandb(run)
    for name, read in readers.items():
        track(run, name)
        yield name, f"elman track RUN {name}", "last validation loss", expected, read()


def of_mlflow(run: Path) -> float:
    from mlflow.tracking import MlflowClient

    id = json.loads((run / "track.json").read_text())["mlflow"]
    return float(MlflowClient().get_metric_history(id, "valid_loss")[-1].value)


def of_tensorboard(run: Path) -> float:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(run / "tensorboard"))
    events.Reload()
    return float(events.Scalars("valid_loss")[-1].value)


def of_wandb(run: Path) -> float:
    """From the file that `wandb sync` sends, read as the test of it does."""
    test = Path(__file__).parents[1] / "tests" / "e2e" / "test_trackers.py"
    return float(runpy.run_path(str(test))["of_wandb"](run, "valid_loss")[-1][1])


TASKS = {
    "sentences": (
        "acc",
        "output_type: multiple_choice\ndoc_to_text: ''\ndoc_to_target: 0\n"
        "target_delimiter: ''\ndoc_to_choice: '{{[good, bad]}}'\n",
    ),
    "texts": (
        "bits_per_byte",
        "output_type: loglikelihood_rolling\ndoc_to_text: ''\ndoc_to_target: '{{good}}'\n",
    ),
    "continued": (
        "chrf",
        "output_type: generate_until\ndoc_to_text: '{{start}}'\ndoc_to_target: '{{good}}'\n"
        'generation_kwargs: {until: ["\\n"], max_gen_toks: 20}\n',
    ),
}
"""Tasks of lm-evaluation-harness: sentences of which one is to be preferred, texts, prompts."""
ROUNDS = 3


def write_tasks(folder: Path, number: int) -> None:
    """Tasks on the verses of a built-in corpus; a bad sentence has its words turned round."""
    verses = materialise("king-james")[0].read_text(encoding="utf-8").splitlines()[:number]
    rows = [
        {"good": verse, "bad": " ".join(words[::-1]), "start": " ".join(words[:5])}
        for verse in verses
        if (words := verse.split())
    ]
    data = folder / "verses.jsonl"
    data.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    for name, (metric, lines) in TASKS.items():
        head = f"task: {name}\ndataset_path: json\ntest_split: test\n"
        head += f"dataset_kwargs: {{data_files: {{test: {data}}}}}\n"
        head += f"metric_list: [{{metric: {metric}}}]\n"
        (folder / f"{name}.yaml").write_text(head + lines)


def print_speed(folder: Path, number: int = 50) -> None:
    """The seconds of the requests of each task, and the figures, which agree."""
    import lm_eval
    import lm_eval.models
    from lm_eval.api.registry import get_model
    from lm_eval.tasks import TaskManager

    import elman.harness  # noqa: F401

    write_tasks(folder, number)
    tasks = TaskManager(include_path=str(folder), include_defaults=False)
    with served(RUN) as address:
        url = f"{address}/v1/completions"
        remote: dict[str, Any] = {"model": RUN, "base_url": url, "tokenizer_backend": "remote"}
        models = {
            "--model elman": get_model("elman")(path=RUN, device="cpu", as_is=True),
            "local-completions": get_model("local-completions")(**remote),
            "local-completions, num_concurrent=8": get_model("local-completions")(
                **remote, num_concurrent=8
            ),
        }
        print("| task | requests of | seconds | figure | times |\n|---|---|---|---|---|")
        for task, (metric, _) in TASKS.items():
            seconds: dict[str, list[float]] = {name: [] for name in models}
            figures: dict[str, str] = {}
            for _ in range(ROUNDS):
                for name, model in models.items():
                    with timed(model, seconds[name]):
                        found = lm_eval.simple_evaluate(
                            model, tasks=[task], task_manager=tasks, bootstrap_iters=0
                        )
                    values = found["results"][task].items()
                    value = next(v for k, v in values if k.startswith(f"{metric},"))
                    figures[name] = f"{metric} {value:.5f}"
            least = median(seconds["--model elman"])
            for name in models:
                took = median(seconds[name])
                cells = (task, name, f"{took:.2f}", figures[name], f"{took / least:.1f}")
                print("| " + " | ".join(cells) + " |")


@contextmanager
def served(run: str) -> Iterator[str]:
    """The address of a server of this model."""
    command = [sys.executable, "-m", "elman", "serve", run, "--port", "0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as server:
        try:
            assert server.stderr is not None
            yield server.stderr.readline().split()[-1].rstrip("/")
        finally:
            server.terminate()


@contextmanager
def timed(model: Any, seconds: list[float]) -> Iterator[None]:
    """Add the time that the model's requests take."""
    kinds = ("loglikelihood", "loglikelihood_rolling", "generate_until")
    own = {kind: getattr(model, kind) for kind in kinds}

    def clocked(ask: Callable[..., Any]) -> Callable[..., Any]:
        def asked(*given: Any, **how: Any) -> Any:
            begun = time.perf_counter()
            found = ask(*given, **how)
            seconds.append(time.perf_counter() - begun)
            return found

        return asked

    for kind, ask in own.items():
        setattr(model, kind, clocked(ask))
    try:
        yield
    finally:
        for kind in kinds:
            delattr(model, kind)


def main() -> None:
    if sys.argv[1:] == ["speed"]:
        with tempfile.TemporaryDirectory() as name:
            print_speed(Path(name))
        return
    assert located(RUN).exists()
    print("| tool | version | command | figure | Elman | the tool |\n|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as name:
        for make in (rows, tagged, counted, encoded, tracked, searched):
            for package, command, figure, ours, theirs in make(Path(name)):
                distribution = {"mlflow": "mlflow-skinny"}.get(package, package)
                try:
                    number = version(distribution)
                except PackageNotFoundError:
                    number = version(package)
                both = (f"{x:,.0f}" if x == int(x) else f"{x:.5f}" for x in (ours, theirs))
                cells = (package, number, f"`{command}`", figure, *both)
                print("| " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
