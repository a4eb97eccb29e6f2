"""A language model that onnxruntime computes, from the step graph of an ONNX file.

B batch, T time steps, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from elman.nn.shapes import Float, Int
from elman.nn.state import State


class OnnxLM:
    """A step graph: "tokens" and "state.*" in, "logprobs" and "next.*" out."""

    def __init__(self, session: Any, initial: Mapping[str, list[Any]]) -> None:
        """`initial` has the parts of the initial state that are not zero: a row of each."""
        self.session = session
        self.initial = initial
        inputs = {one.name: one for one in session.get_inputs()}
        self.parts = {
            name.removeprefix("state."): (one.shape[1:], TYPES[one.type])
            for name, one in inputs.items()
            if name.startswith("state.")
        }
        """The shape of a row and the type of each part of the state."""
        self.outputs = [one.name for one in session.get_outputs()]
        shapes = {one.name: one.shape for one in session.get_outputs()}
        self.vocab_size: int = shapes["logprobs"][1]

    def initial_state(self, batch_size: int) -> State:
        rows = {
            name: torch.as_tensor(self.initial[name], dtype=dtype)
            if name in self.initial
            else torch.zeros(shape, dtype=dtype)
            for name, (shape, dtype) in self.parts.items()
        }
        return State.unflatten(
            {name: row.expand(batch_size, *row.shape).clone() for name, row in rows.items()}
        )

    def step(self, tokens_B: Int[Tensor, "B"], state: State) -> tuple[Float[Tensor, "B V"], State]:
        """Read one token; return the log probability of every possible next one."""
        flat = state.flatten()
        given = {"tokens": tokens_B.long(), **{f"state.{name}": x for name, x in flat.items()}}
        found = self.session.run(self.outputs, {name: x.numpy() for name, x in given.items()})
        results = dict(zip(self.outputs, map(torch.from_numpy, found), strict=True))
        after = {name: results.get(f"next.{name}", x) for name, x in flat.items()}
        return results["logprobs"], State.unflatten(after)

    def logprobs(
        self, tokens_BT: Int[Tensor, "B T"], targets_BT: Int[Tensor, "B T"], state: State
    ) -> tuple[Float[Tensor, "B T"], State]:
        """Read T tokens; return the log probability of each one's target."""
        found = []
        for tokens_B, targets_B in zip(tokens_BT.unbind(1), targets_BT.unbind(1), strict=True):
            logprobs_BV, state = self.step(tokens_B, state)
            found.append(logprobs_BV.gather(1, targets_B.long().unsqueeze(1)))
        return torch.cat(found, dim=1), state


TYPES = {"tensor(float)": torch.float32, "tensor(int64)": torch.int64, "tensor(bool)": torch.bool}
