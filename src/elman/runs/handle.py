"""What every handle of a run folder is made of: a name, the opened run, its model.

A language model is not always a run folder (an ARPA file, a mixture), and has its own (`LM`).
"""

from __future__ import annotations

from typing import Any, ClassVar, Self

from elman.runs.describe import describe_run
from elman.runs.run_folder import Run


class Handle:
    """An opened run folder, ready to be asked."""

    what: ClassVar[str]
    """What such a handle is, in a sentence to the user."""
    model: Any

    def __init__(self, name: str, run: Run) -> None:
        self.name = name
        self.run = run
        self.model = run.model

    @classmethod
    def of_run(cls, name: str, run: Run) -> Self:
        """The handle of an opened run folder."""
        return cls(name, run)

    def described(self, what: str, **details: Any) -> dict[str, Any]:
        """What the model is, as plain values: `what` in a phrase, `details`, and the run's own."""
        kind = self.run.config.model.kind
        return {"name": self.name, "kind": kind, "what": what, **details, **describe_run(self.run)}
