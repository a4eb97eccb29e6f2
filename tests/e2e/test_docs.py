"""Whatever a reader may copy from the README and the guides works.

Blocks marked `console` are run line by line, on the toy corpus: a line that begins with `$` is a
command, the lines after it are its output, of which the first words must appear. Training commands
get a length of a few updates and a small model in place of their minutes. Blocks marked `python`
are executed, blocks marked `r` are run by Rscript where it is installed, blocks marked `toml` are
read as recipes. What `torchrun` starts is run in one process. `elman serve` is started on a free
port, which takes the place of port 8000 in the rest of the page. An HTML comment
`<!-- output varies -->` before a block says that its output is not to be compared. The pages of the
tour begin in the folder that its first page has left.
"""

from __future__ import annotations

import contextlib
import gzip
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import PIL.Image
import pytest
from torch.distributed.run import parse_args

import elman as library
from elman import api
from elman.base.config import from_dict
from elman.base.documents import read_toml
from elman.bench.faults.command import chosen
from elman.lab import running
from elman.recipes.resolve import task_of_recipe
from elman.tasks.task import follows_corpus
from elman.testing import TOY_LABELLED, TOY_PAIRS, TOY_TEXT, TOY_TREEBANK

Elman = Callable[..., Any]
ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
TOUR = ROOT / "docs" / "tour" / "README.md"
NOT_OURS = {"pip", "git", "make", "cd", "python", "source", "tensorboard"}
"""First words of commands that are not run here."""
LENGTHS = {"--minutes", "--epochs", "--steps"}
WITH_A_DECODER = {"translator", "captioner", "conditional"}
DRAWS_SAMPLES = {"lm", "window", "maxent", *WITH_A_DECODER}
"""Tasks that draw a sample at each validation, which takes as long as the training here."""
MOST_STEPS = 8
"""A page's own number of updates is kept up to this."""

BLOCK = re.compile(
    r"^(?P<varies><!-- output varies -->\n+)?"
    r"^```(?P<kind>console|python|toml|r)\n(?P<body>.*?)^```$",
    re.M | re.S,
)


def blocks(page: Path) -> list[re.Match[str]]:
    return list(BLOCK.finditer(page.read_text(encoding="utf-8")))


@pytest.fixture
def place(
    tmp_path: Path,
    toy: Path,
    model: Path,
    words: Path,
    words_too: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Path:
    """A folder with everything that the pages talk about."""
    shutil.copy(toy, tmp_path / "my.txt")
    (tmp_path / "train.txt").write_text(TOY_TEXT, encoding="utf-8")
    for name in ("valid.txt", "test.txt"):
        some = "".join(TOY_TEXT.splitlines(keepends=True)[:12])
        (tmp_path / name).write_text(some, encoding="utf-8")
    lines = toy.read_text(encoding="utf-8").splitlines(keepends=True)
    (tmp_path / "sentences.txt").write_text("".join(lines[:3]), encoding="utf-8")
    for name, number in (("train", 64), ("valid", 12), ("test", 12)):
        some = "".join(lines[:number])
        (tmp_path / f"{name}.en").write_text(some, encoding="utf-8")
        (tmp_path / f"{name}.de").write_text(some.upper(), encoding="utf-8")
    (tmp_path / "images").mkdir()
    (tmp_path / "names").mkdir()
    for number in range(12):
        picture = PIL.Image.new("RGB", (12, 8), ("red", "blue")[number % 2])
        picture.save(tmp_path / "images" / f"{number}.png")
    rows = [f"{number}.png\tThis is picture {number % 2}.\n" for number in range(12)]
    (tmp_path / "pictures.tsv").write_text("".join(rows), encoding="utf-8")
    for label, name in (("Italian", "Rossi\n"), ("Irish", "Murphy\n")):
        (tmp_path / "names" / f"{label}.txt").write_text(name * 20, encoding="utf-8")
    (tmp_path / "news").mkdir()
    for number in range(2):
        path = tmp_path / "news" / f"{number}.txt.gz"
        path.write_bytes(gzip.compress(toy.read_bytes()))
    for name in ("labelled.tsv", "heldout.tsv"):
        (tmp_path / name).write_text(TOY_LABELLED, encoding="utf-8")
    (tmp_path / "pairs.tsv").write_text(TOY_PAIRS, encoding="utf-8")
    write_experiments(tmp_path)
    for name in ("train.conllu", "dev.conllu", "test.conllu"):
        (tmp_path / name).write_text(TOY_TREEBANK, encoding="utf-8")
    for name, run in (("mine", model), ("words", words), ("words-2", words_too)):
        shutil.copytree(run, tmp_path / "runs" / name)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write_experiments(folder: Path) -> None:
    """Tables of experiments: sentences in regions, conditions and pairs, and invented reading times
    in the form of the Natural Stories corpus, whose licence keeps it out of here."""
    words = TOY_TEXT.replace(" .", ".").split()[:240]
    times = [
        f"{w}\t{i % 60 + 1}\t{i // 60 + 1}\t{300 + 7 * len(w) + i * i % 31}"
        for i, w in enumerate(words)
    ]
    (folder / "processed_wordinfo.tsv").write_text(
        "word\tzone\titem\tmeanItemRT\n" + "\n".join(times) + "\n", encoding="utf-8"
    )
    (folder / "conditions.csv").write_text(
        "item,condition,sentence\n"
        "1,plausible,The student / opened / the book.\n"
        "1,implausible,The book / opened / the pupil.\n"
        "2,plausible,The pupil / lost / her exam.\n"
        "2,implausible,The exam / lost / her pupil.\n",
        encoding="utf-8",
    )
    (folder / "regions.csv").write_text(
        "item,subject,verb,object\n1,The student,opened,the book.\n", encoding="utf-8"
    )
    (folder / "minimal.csv").write_text(
        "phenomenon,good,bad\norder,the old professor lost,the professor old lost\n",
        encoding="utf-8",
    )


@pytest.fixture(scope="session")
def tour(tmp_path_factory: pytest.TempPathFactory, elman: Elman) -> Path:
    """A folder with the texts and models of the tour: what its first page leaves."""
    folder = tmp_path_factory.mktemp("tour")
    with contextlib.chdir(folder):
        try_page(TOUR, folder, elman)
    return folder


@pytest.mark.parametrize(
    "page",
    [page for page in PAGES if blocks(page)],
    ids=lambda page: str(page.relative_to(ROOT).with_suffix("")),
)
def test_what_can_be_copied_works(
    page: Path,
    place: Path,
    elman: Elman,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> None:
    monkeypatch.setattr(api, "train_lm", quick_training(api.train_lm))
    monkeypatch.setattr(running, "default_threads", lambda: 1)  # one process for all seeds
    if page.parent == TOUR.parent:
        shutil.copytree(request.getfixturevalue("tour"), place, dirs_exist_ok=True)
    if page != TOUR:
        try_page(page, place, elman)


def try_page(page: Path, place: Path, elman: Elman) -> None:
    names: dict[str, Any] = {"__name__": "page"}
    with contextlib.ExitStack() as stack:
        servers = Servers(stack)
        for block in blocks(page):
            try_block(page, block, place, elman, names, servers)
    if shutil.which("Rscript") is None and any(block["kind"] == "r" for block in blocks(page)):
        pytest.skip("Rscript is not on this machine: all but the blocks of R were run")


def try_block(
    page: Path,
    block: re.Match[str],
    place: Path,
    elman: Elman,
    names: dict[str, Any],
    servers: Servers,
) -> None:
    if block["kind"] == "python":
        exec(compile(servers.here(block["body"]), str(page), "exec"), names)
    elif block["kind"] == "r":
        if shutil.which("Rscript") is not None:
            script = place / "page.R"
            script.write_text(block["body"], encoding="utf-8")
            done = subprocess.run(["Rscript", "--vanilla", script], capture_output=True, text=True)
            assert done.returncode == 0, done.stderr
            assert "gain in log likelihood" in done.stdout
    elif block["kind"] == "toml":
        recipe = place / "recipe.toml"
        recipe.write_text(block["body"], encoding="utf-8")
        settings = read_toml(recipe)
        settings.pop("description", None)
        for setting in follows_corpus(settings):
            group, name = setting.split(".", 1)
            del settings[group][name]
        from_dict(task_of_recipe(settings).config_class, settings)
    else:
        for command, output in commands(block["body"]):
            if command.startswith("elman serve "):
                printed: str | None = servers.start(command)
            elif command.startswith("curl "):
                printed = fetch(servers.here(command))
            else:
                printed = run_line(command, elman)
            if printed is not None and not block["varies"]:
                missing = [word for word in first_words(output) if word not in printed]
                assert not missing, f"{command}\n{printed}"


class Servers:
    """The server that a page has started."""

    def __init__(self, stack: contextlib.ExitStack) -> None:
        self._stack = stack
        self._address = ""

    def start(self, command: str) -> str:
        """Start `elman serve` as the page has it, on a free port; what it says."""
        words = [sys.executable, "-m", "elman.cli", *shlex.split(command)[1:], "--port", "0"]
        server = subprocess.Popen(words, stderr=subprocess.PIPE, text=True)
        self._stack.callback(stop, server)
        assert server.stderr is not None
        said = server.stderr.readline()
        self._address = said.split()[-1]
        return said

    def here(self, text: str) -> str:
        """The text with the server's own address in it."""
        return re.sub(r"(http://)?localhost:8000", self._address, text)


def stop(server: subprocess.Popen[str]) -> None:
    server.send_signal(signal.SIGINT)
    _, rest = server.communicate()
    assert server.returncode in (0, 130), rest


def fetch(command: str) -> str:
    if shutil.which("curl") is None:
        pytest.skip("curl is not on this machine")
    done = subprocess.run(shlex.split(command), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert not done.stdout.startswith('{"error"'), done.stdout
    return done.stdout


def commands(body: str) -> Iterator[tuple[str, str]]:
    """(command, the output that the page shows for it)."""
    for part in re.split(r"^\$ ", body, flags=re.M)[1:]:
        command, _, output = part.partition("\n")
        yield command, output


def first_words(output: str) -> list[str]:
    return [line.split()[0] for line in output.splitlines() if line.split() and line != "..."]


def run_line(line: str, elman: Elman) -> str | None:
    """Run a command line with at most a pipe into `elman` and a redirection; None if not ours."""
    words = shlex.split(line)
    if words[0] in NOT_OURS:
        return None
    if words[0] == "torchrun":  # test_torchrun runs several processes; here the command is read
        given = parse_args(words[1:])
        assert given.module
        words = [given.training_script, *given.training_script_args]
    stdin = ""
    if "|" in words:
        bar = words.index("|")
        stdin = subprocess.run(words[:bar], check=True, capture_output=True, text=True).stdout
        words = words[bar + 1 :]
    file = None
    if ">" in words:
        *words, _, file = words
    assert words[0] == "elman", line
    arguments = words[1:]
    if arguments[0] == "train" and arguments[1] not in ("ngram", "snm", "infinigram"):
        arguments = shortened(arguments)
    if arguments[0] == "search":
        arguments = [*shortened(arguments), "--trials", "1"]
    result = elman(*arguments, stdin=stdin)
    assert result.code == 0, f"{line}\n{result.err}"
    if file is not None:
        Path(file).write_text(result.out, encoding="utf-8")
    return str(result.out + result.err)


def shortened(arguments: list[str]) -> list[str]:
    """The same training with a small model and few updates."""
    kept = list(arguments)
    steps = 3
    for word in LENGTHS & set(kept):
        place = kept.index(word)
        length = kept.pop(place + 1)
        kept.pop(place)
        if word == "--steps":
            steps = min(int(length), MOST_STEPS)
    kept += ["--steps", str(steps)]
    if "--resume" in kept:
        return kept
    if arguments[1] == "lm" and "--from" not in kept:
        kept += ["--set", "model.hidden_size=24"]
        if "--vectors" not in kept:  # the width is that of the vectors
            kept += ["--set", "model.embedding_size=24"]
    if arguments[1] in WITH_A_DECODER:
        kept += [
            "--set",
            "model.decoder.hidden_size=24",
            "--set",
            "model.decoder.embedding_size=24",
        ]
    if arguments[1] in DRAWS_SAMPLES:
        kept += ["--set", "training.sample_length=10"]
    return kept


def quick_training(train_lm: Callable[..., Any]) -> Callable[..., Any]:
    def train(*args: Any, **kwargs: Any) -> Any:
        settings = kwargs.pop("settings", {})
        if "start" not in kwargs:
            settings |= {"model.hidden_size": 24, "model.embedding_size": 8}
        kwargs.pop("minutes", None)
        return train_lm(*args, **kwargs, steps=3, settings=settings)

    return train


def test_links_lead_somewhere() -> None:
    broken = []
    for page in PAGES:
        for link in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text(encoding="utf-8")):
            if "://" not in link and not (page.parent / link).exists():
                broken.append(f"{page.relative_to(ROOT)}: {link}")
    assert not broken


def test_tests_and_targets_that_pages_name_exist() -> None:
    """[`test_name`](path) names a test of that file, and `elman bench faults NAME` a target."""
    named = re.compile(r"\[`(test_\w+)`\]\(([^)#]+)\)")
    for page in PAGES:
        for name, link in named.findall(page.read_text(encoding="utf-8")):
            assert f"\ndef {name}(" in (page.parent / link).read_text(encoding="utf-8"), name
    promises = (ROOT / "docs" / "concepts" / "promises.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| [A-Z].* \| (.*) \| *(.*?) *\|$", promises, re.M)
    assert len(rows) > 20
    assert all(named.search(tests) for tests, _ in rows)
    targets = re.findall(r"^ +elman bench faults ([\w-]+)", promises, re.M)
    assert chosen([*targets, *(target.strip("`") for _, target in rows if target)])


def test_the_library_lists_what_the_readme_uses() -> None:
    used = set(re.findall(r"\belman\.(\w+)\(", (ROOT / "README.md").read_text(encoding="utf-8")))
    assert used
    assert all(hasattr(library, name) for name in used)
