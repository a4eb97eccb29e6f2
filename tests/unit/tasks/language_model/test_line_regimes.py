"""Regimes that draw whole outputs, for a language model of separate lines."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from elman.recipes.resolve import resolve
from elman.tasks.language_model.task import set_up
from elman.testing import TOY_TEXT


def test_outputs_end_with_their_line(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text(TOY_TEXT)
    settings = {"data.unit": "line", "objective.regime": "self_critical"}
    text = [str(tmp_path / "text.txt")]
    config: Any = resolve("lm", text, settings=settings, device="cpu").config
    data = set_up(config, tmp_path, resume=False)
    objective: Any = data.trainable(data.build()).objective
    assert data.line_end is not None
    assert objective.end_id == data.line_end
