"""`elman convert RUN model.onnx`: a model as ONNX graphs, each checked with onnxruntime.

    model.onnx                 the graph that a task's models are used with, and the vocabulary
    model.sequence.onnx, ...   further graphs of the same model

The metadata of a file are strings: "elman" names the graph, the others are the task's entries.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from elman.base.errors import ElmanError, UsageError
from elman.base.files import explained
from elman.base.tables import imported
from elman.runs.new_folder import check_free, filling
from elman.tasks import all_tasks, task_named
from elman.tasks.opening import OpenedRun, open_run

ONNX_FILE = ".onnx"
MOST_APART = 1e-4
"""The largest difference between file and model, of numbers beyond 1 in proportion, that can be
rounding; it is about 1e-6 as a rule."""


def write_onnx(source: Path, target: Path, quantise: str | None) -> dict[str, Any]:
    """Write the graphs of a run, and check each with onnxruntime on random input."""
    from elman.nn.onnx.files import difference, model_bytes, need_onnx  # imports torch
    from elman.nn.onnx.tracing import REPORT_IT
    from elman.tasks.onnx_files import FORMAT
    from elman.train import int8_files

    if quantise not in (None, "int8"):
        raise UsageError(f"weights cannot be quantised to '{quantise}'", "use int8")
    need_onnx()
    run = open_run(source)
    task = task_named(run.config.task)
    if task.onnx is None:
        names = [other.name for other in all_tasks() if other.onnx is not None]
        raise UsageError(
            f"{source} is {task.what} ({task.name}), which cannot be converted to ONNX",
            f"models of these tasks can be: {', '.join(names)}",
        )
    int8 = quantise is not None or int8_files.is_packed(run.header)
    if quantise is not None:
        _round(run)
    form = imported(task.onnx)(run)
    paths = [target, *(target.with_suffix(f".{g.name}{ONNX_FILE}") for g in form.graphs[1:])]
    for path in paths:
        check_free(path)
    apart = 0.0
    with filling(target.parent, target.name) as folder:
        for graph, path in zip(form.graphs, paths, strict=True):
            about = {"format": FORMAT, "task": task.name, "graph": graph.name}
            entries = {"elman": about, **(form.entries if path is target else {})}
            metadata = {key: json.dumps(value) for key, value in entries.items()}
            content = model_bytes(graph, metadata, int8=int8)
            found = max(difference(graph, content, size) for size in (1, 3))
            if not found <= MOST_APART:
                raise ElmanError(
                    f"onnxruntime computes other numbers than the model (difference {found:.1g}) "
                    f"from the {graph.name} graph",
                    REPORT_IT,
                )
            apart = max(apart, found)
            with explained(path):
                (folder / path.name).write_bytes(content)
    others = list(zip(form.graphs, paths, strict=True))[1:]
    notes = [f"onnxruntime agrees with the model to {apart:.0e}"]
    notes += [f"the {g.name} graph is in {p.name}" for g, p in others]
    notes += ["weights are rounded to one byte each"] if int8 else []
    return {"bytes": target.stat().st_size, "notes": notes}


def _round(run: OpenedRun) -> None:
    """Round the matrices of a model to what `int8_files` stores."""
    from elman.train import int8_files

    run.model.load_state_dict(int8_files.unpack(int8_files.pack(run.model.state_dict())))
