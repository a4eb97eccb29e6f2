"""`elman track`: send a finished run to a tracker."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from elman.terminal.console import number, result, result_json, table
from elman.terminal.options import Json, argument

NAMES = ("wandb", "mlflow", "tensorboard")


def track(
    run: Annotated[Path, argument("RUN", "A run folder, finished or not.")],
    name: Annotated[str, argument("|".join(NAMES), "The tracker.")],
    json: Json = False,
) -> None:
    """Send the reports of a run to W&B, MLflow or TensorBoard.

    `elman train --track NAME` sends them while the model trains. Weights & Biases (W&B) is used
    offline unless the environment variable WANDB_MODE says otherwise.
    """
    from elman.runs.trackers import track as send

    where, num_reports = send(run, name)
    if json:
        result_json({"tracker": name, "where": where, "reports": num_reports})
    else:
        result(table([("reports", number(num_reports)), ("look at", where)]))
