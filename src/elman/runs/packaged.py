"""Small models that come with Elman: run folders in the package, with one byte a weight.

A command without MODEL uses them, and their names are accepted wherever MODEL is. A path of the
same name comes first.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from elman.base.documents import read_json, read_json_lines

FOLDER = Path(__file__).parents[1] / "pretrained"
TALKERS = ("char-lstm", "kneser-ney-5")
"""The first of these in the package generates text if no model is named."""
MEASURERS = ("word-lstm", "kneser-ney-5")
"""The first of these predicts and measures words."""
UNITS = {"char": "character", "word": "word"}
"""What a token is, by the kind of tokenizer."""


def packaged() -> dict[str, Path]:
    """The models, by name."""
    from elman.runs.run_folder import runs_in  # numpy and tokenizers: --help must not wait for them

    return {run.name: run for run in runs_in(FOLDER)}


def first(names: Sequence[str]) -> str:
    """The first of these that is in the package."""
    return next(name for name in names if name in packaged())


def located(model: str | Path) -> Path:
    """The folder of a model that comes with Elman; any other path as it is."""
    path = Path(model)
    return path if path.exists() else packaged().get(str(model), path)


def described(run: Path) -> dict[str, object]:
    """What a model is, its size in bytes, and its perplexity, per token, on its validation text."""
    from elman.runs.run_folder import CARD_FILE, CONFIG_FILE, METRICS_FILE

    lines = (run / CARD_FILE).read_text(encoding="utf-8").splitlines()
    what = next((line for line in lines if line and not line.startswith(("#", "<"))), "")
    summary = read_json_lines(run / METRICS_FILE)[-1].get("summary") or {}
    kind = read_json(run / CONFIG_FILE)["tokenizer"]["kind"]
    return {
        "name": run.name,
        "what": what.removesuffix(", trained with Elman.").removesuffix(", with Elman."),
        "bytes": sum(file.stat().st_size for file in run.iterdir()),
        "perplexity": summary.get("perplexity"),
        "per": UNITS.get(kind, "token"),
    }
