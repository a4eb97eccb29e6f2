"""Make the models that come with Elman: python docs/pretrained.py [NAME...]

Each is trained by one command on a built-in corpus, then written with one byte a weight to
src/elman/pretrained/NAME. Its card has the command.
"""

from __future__ import annotations

import json
import shlex
import shutil
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from elman.base.documents import read_json_lines, sealed, sealed_page
from elman.cli.main import run
from elman.recipes.convert import convert
from elman.runs.packaged import FOLDER
from elman.runs.run_folder import CARD_FILE, METRICS_FILE, MODEL_FILE, write_config
from elman.tasks.opening import read_config

NETWORK = "elman train lm king-james --device cpu --num-layers 1 --seed 1"
COMMANDS = {
    "char-lstm": f"{NETWORK} --minutes 8 --tokenizer char --hidden-size 384 --embedding-size 32 "
    "--batch-size 32 --learning-rate 0.004",
    "word-lstm": f"{NETWORK} --minutes 7 --tokenizer word --vocab-size 4000 --hidden-size 128 "
    "--embedding-size 128 --set model.head.kind=full",
    "kneser-ney-5": "elman train ngram king-james --order 5 --prune 0,5,8,8,8 "
    "--set data.valid_fraction=0.1",
}


def make(name: str) -> None:
    with TemporaryDirectory() as folder:
        trained = Path(folder) / name
        code = run([*shlex.split(COMMANDS[name])[1:], "--out", str(trained)])
        if code:
            sys.exit(code)
        add(name, trained)


def add(name: str, trained: Path) -> None:
    """Write a trained model to the package."""
    out = FOLDER / name
    shutil.rmtree(out, ignore_errors=True)
    if (trained / MODEL_FILE).exists():
        convert(str(trained), str(out), quantise="int8")
    else:
        shutil.copytree(trained, out)
    write_config(out, read_config(out))  # without the signature of the user who made it
    done = read_json_lines(out / METRICS_FILE)[-1]
    done["summary"]["out"] = name
    (out / METRICS_FILE).write_text(sealed(json.dumps(done)) + "\n", encoding="utf-8")
    page = (out / CARD_FILE).read_text(encoding="utf-8").rpartition("<!-- check")[0].rstrip()
    page = page.replace(f"# {trained.name}\n", f"# {name}\n", 1)
    made = ["", "", "## Made by", "", f"    {COMMANDS[name]}", ""]
    if (out / MODEL_FILE).exists():
        made.insert(-1, "    elman convert RUN OUT --quantise int8")
    (out / CARD_FILE).write_text(sealed_page(page + "\n".join(made)), encoding="utf-8")


if __name__ == "__main__":
    for name in sys.argv[1:] or COMMANDS:
        make(name)
