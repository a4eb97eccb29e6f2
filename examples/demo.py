"""From nothing to a language model in two minutes: what `make demo` runs.

Every line that begins with a dollar sign is a command to copy. The text is Python's own manual; its
last tenth is kept apart, and both models are judged on it.
"""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

from elman.api import new_run_folder
from elman.cli.main import run
from elman.text.sources import expand

TEXT = "python-docs"
HELD_OUT = 0.1


def main(text: str = TEXT, length: tuple[str, ...] = ("--minutes", "2")) -> int:
    """Train, measure beside an n-gram model, and let the network talk; the exit code."""
    folder = new_run_folder("demo", [text])
    train, valid = divided("\n".join(path.read_text() for path in expand([text])), folder)
    network, ngrams = str(folder / "lstm"), str(folder / "kneser-ney")
    same_tokens = ["--order", "5", "--set", f"tokenizer.file={network}/tokenizer.json"]
    commands = [
        ["train", "lm", train, "--valid", valid, *length, "--out", network],
        ["train", "ngram", train, "--valid", valid, *same_tokens, "--out", ngrams],
        ["evaluate", f"0.9*{network}+0.1*{ngrams}", valid],
        ["next", network, "The return stat", "-k", "5"],
        ["generate", network, "The ", "--max-tokens", "200", "--temperature", "0.8", "--seed", "1"],
        ["generate", network, "If ", "--max-tokens", "100", "--greedy", "--stop", "\n\n"],
    ]
    for command in commands:
        line = shlex.join(command).replace("'\n\n'", "$'\\n\\n'")
        print(f"\n$ elman {line}", flush=True)
        code = run(command)
        if code:
            return code
    print(f"\nThe models are in {folder}. Now try:")
    print("\n$ source .venv/bin/activate\n$ elman train lm my.txt --minutes 5")
    return 0


def divided(text: str, folder: Path) -> tuple[str, str]:
    """Write the text as two files, cut at the end of a line."""
    cut = text.index("\n", int(len(text) * (1 - HELD_OUT))) + 1
    folder.mkdir(parents=True)
    paths = folder / "train.txt", folder / "valid.txt"
    for path, part in zip(paths, (text[:cut], text[cut:]), strict=True):
        path.write_text(part)
    return str(paths[0]), str(paths[1])


if __name__ == "__main__":
    sys.exit(main())
