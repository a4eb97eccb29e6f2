"""From nothing to a language model in two minutes: what `make demo` runs.

Every line that begins with a dollar sign is a command to copy. The text is Python's own manual.
"""

from __future__ import annotations

import shlex
import sys

from elman.api import new_run_folder
from elman.cli.main import run

TEXT = "python-docs"


def main(text: str = TEXT, length: tuple[str, ...] = ("--minutes", "2")) -> int:
    """Train on a built-in corpus, measure, and let the model talk; the result is the exit code."""
    folder = str(new_run_folder("demo", [text]))
    commands = [
        ["train", "lm", text, *length, "--out", folder],
        ["info", folder],
        ["next", folder, "The return stat", "-k", "5"],
        ["generate", folder, "The ", "--max-tokens", "200", "--temperature", "0.8", "--seed", "1"],
        ["generate", folder, "If ", "--max-tokens", "100", "--greedy", "--stop", "\n\n"],
    ]
    for command in commands:
        print(f"\n$ elman {shlex.join(command)}", flush=True)
        code = run(command)
        if code:
            return code
    print(f"\nThe model is in {folder}. Now try: elman train lm my.txt --minutes 5")
    return 0


if __name__ == "__main__":
    sys.exit(main())
