"""Sound files of every format that Elman reads, small, and the commands that read them.

`make_specimens` fills a folder with data files and with a run of every task. A `Reading` names one
file in it and the commands that read this file; the campaign damages the file in a copy and runs
one of the commands there. Paths in commands are relative to the folder.
"""

from __future__ import annotations

import gzip
import json
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from elman.testing import TOY_LABELLED, TOY_TEXT, TOY_TREEBANK

Command = tuple[str, ...]

CACHE = "cache"
"""The folder of encoded texts among the specimens (ELMAN_CACHE)."""

LINES = TOY_TEXT.splitlines()[:48]
WORDS = sorted(set(TOY_TEXT.split()))


def _set(**settings: object) -> tuple[str, ...]:
    pairs = [(name.replace("__", "."), value) for name, value in settings.items()]
    return tuple(part for name, value in pairs for part in ("--set", f"{name}={value}"))


_QUICK = (
    *_set(optimiser__learning_rate=0.02, schedule__warmup_steps=0),
    *("--steps", "4", "--seed", "1", "--device", "cpu"),
)
_NETWORK = (*_set(model__hidden_size=8, model__embedding_size=8), *_QUICK)
_LM = (*_NETWORK, *_set(training__batch_size=4, training__chunk_length=8, model__tied="false"))
_DECODER = (
    *_set(model__decoder__hidden_size=8, model__decoder__embedding_size=8),
    *_set(training__batch_size=8, training__sample_length=4),
    *_QUICK,
)

TRAINED: dict[str, Command] = {
    "chars": ("lm", "text.txt", *_LM, *_set(tokenizer__kind="char")),
    "words": ("lm", "text.txt", *_LM, *_set(tokenizer__kind="word")),
    "bytes": ("lm", "text.txt", *_LM, *_set(tokenizer__kind="byte")),
    "bpe": ("lm", "text.txt", *_LM, *_set(tokenizer__kind="bpe", tokenizer__vocab_size=300)),
    "window": ("window", "text.txt", *_LM[:-2], *_set(tokenizer__kind="word")),
    "maxent": ("maxent", "text.txt", *_QUICK, *_set(model__size=211, tokenizer__kind="word")),
    "ngram": ("ngram", "text.txt", *_set(model__order=3, tokenizer__kind="word")),
    "snm": ("snm", "text.txt", "--valid", "text.txt", *_set(tokenizer__kind="word")),
    "infinigram": ("infinigram", "text.txt", *_set(model__order=3, tokenizer__kind="word")),
    "tagger": ("tagger", "bank.conllu", *_NETWORK, *_set(model__character_size=4)),
    "classifier": ("classifier", "table.tsv", *_NETWORK),
    "vectors": ("classifier", "table.tsv", "--embeddings", "glove.txt", *_NETWORK),
    "translator": (
        *("translator", "pairs.en", "pairs.ne", "--valid", "pairs.en", "pairs.ne"),
        *(*_DECODER, *_set(tokenizer__kind="word", tokenizer__min_count=1)),
    ),
    "captioner": (
        *("captioner", "walls.tsv", "--valid", "walls.tsv", *_DECODER),
        *_set(model__channels="[4]"),
    ),
    "conditional": ("conditional", "names", *_DECODER, *_set(model__label_size=4)),
    "elmo": (
        *("elmo", "text.txt", *_QUICK, *_set(model__hidden_size=8, training__batch_size=8)),
        *_set(model__character_cnn__filters="[4]", model__head__num_samples=10),
    ),
}
"""Arguments of `elman train` for each run among the specimens."""

_SCORE = ("some.txt", "--device", "cpu")
USES: dict[str, tuple[Command, ...]] = {
    **{
        name: (
            ("score", name, *_SCORE),
            ("evaluate", name, *_SCORE, "--json"),
            ("generate", name, "the", "--greedy", "--max-tokens", "5"),
            ("info", name, "--device", "cpu"),
        )
        for name in ("chars", "words", "bytes", "bpe", "window", "maxent", "ngram", "snm")
    },
    "infinigram": (
        ("score", "infinigram", *_SCORE, "--why"),
        ("evaluate", "infinigram", *_SCORE, "--json"),
        ("find", "infinigram", "the", "--json"),
        ("info", "infinigram", "--device", "cpu"),
    ),
    "tagger": (("tag", "tagger", "some.txt"), ("evaluate", "tagger", "bank.conllu", "--json")),
    "classifier": (
        ("classify", "classifier", "some.txt", "--jsonl"),
        ("evaluate", "classifier", "table.tsv", "--json"),
    ),
    "vectors": (("classify", "vectors", "some.txt", "--jsonl"),),
    "translator": (
        ("translate", "translator", "some.txt"),
        ("evaluate", "translator", "pairs.en", "pairs.ne", "--json"),
    ),
    "captioner": (
        ("caption", "captioner", "walls_images/0.png", "walls_images/1.png"),
        ("evaluate", "captioner", "walls.tsv", "--json"),
    ),
    "conditional": (
        ("score", "conditional", *_SCORE, "--label", "Upper"),
        ("evaluate", "conditional", "names", "--json"),
    ),
    "elmo": (
        ("evaluate", "elmo", "some.txt", "--json"),
        ("neighbours", "elmo", "some.txt", "book", "--json"),
    ),
}
"""Commands that read each run, to be compared with what they print about the sound one."""

RESUMED = {
    name: (
        *("train", arguments[0], "--out", name, "--resume", "--trust-data"),
        *("--steps", "6", "--json"),
    )
    for name, arguments in TRAINED.items()
    if "--steps" in arguments
}
"""Commands that continue a run."""


@dataclass(frozen=True)
class Reading:
    """One file, and the commands that read it."""

    file: str
    commands: tuple[Command, ...]
    kind: str
    """What is known about its structure: the mutations that suit it."""
    needs: tuple[str, ...]
    """The files and folders that the commands need, this one among them."""
    own: bool = False
    """Whether Elman writes such files, so that damage must be noticed; a data file that is legal
    after the damage may give other output."""


def make_specimens(
    folder: Path, run: Callable[[Path, Command], None], runs: Sequence[str] = tuple(TRAINED)
) -> None:
    """Write the data files, and call `run(folder, command)` for each command that makes a run."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in _data_files():
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content)
    for name in runs:
        run(folder, ("train", *TRAINED[name], "--out", name))
    if "ngram" in runs:
        run(folder, ("convert", "ngram", "model.arpa"))
        text = (folder / "model.arpa").read_bytes()
        (folder / "model.arpa.gz").write_bytes(gzip.compress(text, mtime=0))
        (folder / "model.arpa.zst").write_bytes(compress_zst(text))
    if "elmo" in runs:
        run(folder, ("convert", "elmo", "published"))


def compress_zst(data: bytes) -> bytes:
    import zstandard

    return zstandard.ZstdCompressor(write_checksum=True).compress(data)


def _data_files() -> Iterator[tuple[str, bytes]]:
    text = "".join(f"{line}\n" for line in LINES).encode()
    some = b"the student opened the book .\nthe old professor lost her laptop .\n"
    for name, data in (("text.txt", text), ("some.txt", some)):
        yield name, data
        yield f"{name}.gz", gzip.compress(data, mtime=0)
        yield f"{name}.zst", compress_zst(data)
    yield "bank.conllu", "".join(TOY_TREEBANK.split("\n\n")[i] + "\n\n" for i in range(24)).encode()
    yield "columns.conll", b"Ann I-PER\nlives O\nin O\nRome I-LOC\n. O\n\n" * 12
    labelled = TOY_LABELLED.splitlines()[:40]
    pairs = [line.split("\t") for line in labelled]
    yield "table.tsv", "".join(f"{line}\n" for line in labelled).encode()
    yield "table.csv", "".join(f'{label},"{words}"\n' for label, words in pairs).encode()
    objects = [json.dumps({"label": label, "text": words}) for label, words in pairs]
    yield "table.jsonl", "".join(f"{line}\n" for line in objects).encode()
    yield "pairs.en", text
    yield "pairs.ne", "".join(" ".join(line.split()[::-1]) + "\n" for line in LINES).encode()
    yield "names/Upper.txt", b"ABBA\nABA\nBABA\n" * 8
    yield "names/Lower.txt", b"cdd\ncdcd\nddc\n" * 8
    vectors = [(word, [len(word), word.count("e"), i % 7 - 3]) for i, word in enumerate(WORDS)]
    rows = "".join(f"{word} {' '.join(map(str, vector))}\n" for word, vector in vectors)
    yield "glove.txt", rows.encode()
    header = f"{len(WORDS)} 3\n"
    yield "word2vec.txt", (header + rows).encode()
    packed = [f"{word} ".encode() + struct.pack("<3f", *vector) + b"\n" for word, vector in vectors]
    yield "word2vec.bin", header.encode() + b"".join(packed)
    yield "recipe.toml", RECIPE.encode()
    yield "pairs.jsonl", "".join(json.dumps(pair) + "\n" for pair in _minimal_pairs()).encode()
    yield "suite.json", json.dumps(SYNTAXGYM, indent=1).encode()
    yield from _pictures()


def _pictures() -> Iterator[tuple[str, bytes]]:
    rows = ["image\tlabel\tsentence"]
    formats = ("png", "png", "jpeg", "gif", "bmp", "webp")
    for number, form in enumerate(formats * 2):
        colour = ("red", "lime", "blue")[number % 3]
        name = f"{number}.{form}"
        rows.append(f"{name}\ttrue\tThere is a {colour} wall.")
        yield f"walls_images/{name}", picture(form, colour)
    yield "walls.tsv", ("\n".join(rows) + "\n").encode()


def picture(form: str, colour: str) -> bytes:
    import io

    from PIL import Image

    buffer = io.BytesIO()
    Image.new("RGB", (12, 8), colour).save(buffer, form)
    return buffer.getvalue()


RECIPE = """\
task = "lm"

[tokenizer]
kind = "word"

[model]
cell = "lstm"
hidden_size = 8
embedding_size = 8
num_layers = 1
tied = false

[training]
steps = 2
batch_size = 4
chunk_length = 8
seed = 1

[optimiser]
learning_rate = 0.02

[schedule]
warmup_steps = 0
"""

SYNTAXGYM = {
    "meta": {"name": "toy", "metric": "sum"},
    "predictions": [{"type": "formula", "formula": "[(2;%a%) < (2;%b%)] & [(*;%a%) < (*;%b%)]"}],
    "items": [
        {
            "item_number": number,
            "conditions": [
                {
                    "condition_name": name,
                    "regions": [
                        {"region_number": 1, "content": "the student"},
                        {"region_number": 2, "content": verb},
                        {"region_number": 3, "content": "the book ."},
                    ],
                }
                for name, verb in (("a", "opened"), ("b", "book"))
            ],
        }
        for number in (1, 2)
    ],
}


def _minimal_pairs() -> Iterator[dict[str, object]]:
    for line in LINES[:6]:
        words = line.split()
        yield {"sentence_good": line, "sentence_bad": " ".join(words[::-1]), "UID": "toy"}


MIXTURES = (
    *(
        "inf*words+1*words",
        "nan*words+1*words",
        "-1*words+2*words",
        "0*words+0*words",
        "1e400*words",
    ),
    *("1e-400*words+1*words", "1e308*words+1e308*words", "*words", "words+", "+", "1*"),
    *("+".join(["words"] * 200), "+" * 10_000, "1" * 5_000 + "*words", "0.5*words+0.5*ngram"),
    *("1_0*words+1*words", "１*words+1*words", "0x1p3*words", "1*nowhere+1*words", "1**words"),
    *("words" * 1_000, "words/../words", "", " ", "1*words + 1*words", "1e-320*words+1*words"),
    *("0.5*+0.5*words", "\0"),
)
"""Names of mixtures, few of them sound."""

SET_IN = {
    "lm": ("text.txt",),
    "maxent": ("text.txt",),
    "ngram": ("text.txt",),
    "snm": ("text.txt",),
    "infinigram": ("text.txt",),
    "tagger": ("bank.conllu",),
    "classifier": ("table.tsv",),
    "translator": ("pairs.en", "pairs.ne"),
    "conditional": ("names",),
    "elmo": ("text.txt",),
}
"""Tasks in which odd values of settings are tried, and their data."""


def readings(folder: Path) -> list[Reading]:
    """What can be damaged among these specimens, with the commands that read it."""
    return [*_data_readings(), *run_readings(folder), *_cache_readings(folder)]


def _cache_readings(folder: Path) -> Iterator[Reading]:
    """The encoded text that the runs over words share; @ stands for the folder of specimens."""
    train = TRAINED["words"]
    command = ("train", train[0], "@text.txt", *train[2:], "--out", "new", "--json")
    for path in sorted((folder / CACHE / "encoded").rglob("*")):
        if path.is_file() and not path.name.startswith("."):
            kind = "json" if path.suffix == ".json" else "bytes"
            yield Reading(str(path.relative_to(folder)), (command,), kind, (CACHE,), own=True)


def run_readings(folder: Path) -> list[Reading]:
    """Every file of every run folder."""
    found = []
    for name, commands in USES.items():
        for path in sorted((folder / name).rglob("*")):
            if not path.is_file() or path.name.startswith("."):
                continue
            file = str(path.relative_to(folder))
            read_by = commands
            if "train/" in file or path.name == "metrics.jsonl":
                read_by = (RESUMED[name],) if name in RESUMED else commands
                if path.name == "metrics.jsonl":
                    read_by = (*read_by, ("info", name, "--device", "cpu"))
            found.append(Reading(file, read_by, kind_of(path), _needs(name, read_by), own=True))
    return found


def kind_of(path: Path) -> str:
    """The mutations that suit a file, by its name."""
    if path.name == "tokenizer.json" or path.name.endswith("_tokenizer.json"):
        return "tokenizer"
    return {".json": "json", ".jsonl": "jsonl", ".safetensors": "safetensors", ".md": "lines"}.get(
        path.suffix, "lines"
    )


def _needs(name: str, commands: Sequence[Command]) -> tuple[str, ...]:
    """The specimens that the commands name, and those that the run was trained on."""
    words = [word for command in commands for word in command]
    if any("--resume" in command for command in commands):
        words += TRAINED[name]
    return tuple(dict.fromkeys((name, *data_of(words))))


def data_of(words: Sequence[str]) -> tuple[str, ...]:
    """The specimens among these words: files, or the folders that they are in."""
    firsts = dict.fromkeys(word.split("/")[0] for word in words)
    return tuple(word for word in firsts if word in DATA or word in TRAINED)


DATA = (
    *("text.txt", "some.txt", "text.txt.gz", "text.txt.zst", "some.txt.gz", "some.txt.zst"),
    *("bank.conllu", "columns.conll", "table.tsv", "table.csv", "table.jsonl", "pairs.en"),
    *("pairs.ne", "names", "glove.txt", "word2vec.txt", "word2vec.bin", "recipe.toml"),
    *("pairs.jsonl", "suite.json", "walls.tsv", "walls_images", "model.arpa", "model.arpa.gz"),
    *("model.arpa.zst", "model.tokenizer.json", "published"),
)


def _data_readings() -> Iterator[Reading]:
    out = ("--out", "new", "--json")

    def reading(file: str, kind: str, *commands: Command, also: tuple[str, ...] = ()) -> Reading:
        words = [file, *(word for command in commands for word in command), *also]
        return Reading(file, commands, kind, data_of(words))

    for suffix, kind in (("", "lines"), (".gz", "gz"), (".zst", "zst")):
        text, some = f"text.txt{suffix}", f"some.txt{suffix}"
        yield reading(
            *(some, kind, ("score", "words", some), ("evaluate", "chars", some, "--json")),
            *((("score", "words", "-"), ("tag", "tagger", "-")) if not suffix else ()),
            *(("tag", "tagger", some), ("embed", "words", some, "--kind", "sequence", "--json")),
            *(("translate", "translator", some), ("classify", "classifier", some)),
        )
        train = TRAINED["words"]
        yield reading(
            *(text, kind, ("train", train[0], text, *train[2:], *out)),
            *(("data", "check", text), ("train", "ngram", text, *TRAINED["ngram"][2:], *out)),
        )
        arpa = f"model.arpa{suffix}"
        yield reading(
            *(arpa, "arpa" if not suffix else kind, ("score", arpa, "some.txt")),
            *(("evaluate", arpa, "some.txt", "--json"), ("convert", arpa, "new.arpa")),
        )
    yield reading("model.tokenizer.json", "tokenizer", ("score", "model.arpa", "some.txt"))
    for file in ("bank.conllu", "columns.conll"):
        yield reading(
            *(file, "columns", ("train", "tagger", file, *TRAINED["tagger"][2:], *out)),
            *(("tag", "tagger", file), ("data", "words", file)),
            # The tagger knows the tags of the first alone.
            *((("evaluate", "tagger", file, "--json"),) if file == "bank.conllu" else ()),
        )
    for file, kind in (
        ("table.tsv", "columns"),
        ("table.csv", "columns"),
        ("table.jsonl", "jsonl"),
    ):
        yield reading(
            *(file, kind, ("train", "classifier", file, *TRAINED["classifier"][2:], *out)),
            ("classify", "classifier", file),
            # The classifier knows the columns of the first two.
            *((("evaluate", "classifier", file, "--json"),) if kind == "columns" else ()),
        )
    pairs = TRAINED["translator"][6:]
    for file in ("pairs.en", "pairs.ne"):
        yield reading(
            *(file, "lines", ("train", "translator", "pairs.en", "pairs.ne", *pairs, *out)),
            ("evaluate", "translator", "pairs.en", "pairs.ne", "--json"),
        )
    yield reading(
        *("names/Upper.txt", "lines", ("evaluate", "conditional", "names", "--json")),
        ("train", "conditional", "names", *TRAINED["conditional"][2:], *out),
    )
    for file, kind in (
        ("glove.txt", "columns"),
        ("word2vec.txt", "columns"),
        ("word2vec.bin", "word2vec"),
    ):
        settings = TRAINED["classifier"][2:]
        command = ("train", "classifier", "table.tsv", "--embeddings", file, *settings, *out)
        yield reading(file, kind, command)
    for file, kind in (("published/options.json", "json"), ("published/lm_weights.hdf5", "hdf5")):
        yield reading(
            *(
                file,
                kind,
                ("embed", "published", "some.txt", "--layers", "all", "--out", "new.npz"),
            ),
            *(("info", "published", "--device", "cpu"),),
            ("neighbours", "published", "some.txt", "book", "--json"),
        )
    yield reading(
        *("recipe.toml", "toml", ("train", "lm", "text.txt", "--recipe", "recipe.toml", *out)),
        also=("text.txt",),
    )
    yield reading(
        "pairs.jsonl", "jsonl", ("evaluate", "words", "pairs.jsonl", "--suite", "blimp", "--json")
    )
    yield reading(
        "suite.json", "json", ("evaluate", "words", "suite.json", "--suite", "syntaxgym", "--json")
    )
    yield reading(
        *("walls.tsv", "columns", ("evaluate", "captioner", "walls.tsv", "--json")),
        ("train", "captioner", "walls.tsv", *TRAINED["captioner"][4:], *out),
        also=("walls_images",),
    )
    for name in ("0.png", "2.jpeg", "3.gif", "4.bmp", "5.webp"):
        file = f"walls_images/{name}"
        yield reading(
            *(file, "picture", ("caption", "captioner", file)),
            *(("evaluate", "captioner", "walls.tsv", "--json"),),
        )
