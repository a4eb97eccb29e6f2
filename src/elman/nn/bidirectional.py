"""Two layers over the same input in opposite directions, and one output made of theirs.

B batch, T time steps, I inputs, P outputs.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from elman.nn.kernels import cpu_directions, persistent, record_plan
from elman.nn.layer import RecurrentLayer
from elman.nn.shapes import Float, Int
from elman.nn.state import State

Merge = Literal["concat", "mean", "sum"]


class Bidirectional(nn.Module):
    """A left-to-right and a right-to-left layer, each its own (Schuster and Paliwal, 1997)."""

    def __init__(self, forward: RecurrentLayer, backward: RecurrentLayer, merge: Merge) -> None:
        super().__init__()
        self.rightward = forward
        self.leftward = backward
        self.merge = merge
        both = forward.output_size + backward.output_size
        self.output_size = both if merge == "concat" else forward.output_size

    def initial_state(self, batch_size: int) -> State:
        return State(
            {
                "forward": self.rightward.initial_state(batch_size),
                "backward": self.leftward.initial_state(batch_size),
            }
        )

    def forward(
        self,
        inputs_BTI: Float[Tensor, "B T I"],
        state: State | None = None,
        lengths_B: Int[Tensor, "B"] | None = None,
    ) -> tuple[Float[Tensor, "B T P"], State]:
        """Return the merged outputs, and the state in which each direction ended."""
        if state is None:
            state = self.initial_state(inputs_BTI.shape[0])
        layers = {"forward": self.rightward, "backward": self.leftward}
        plan = self.rightward.plan(inputs_BTI, state.part("forward"), directions=2)
        if plan.directions == 2 and plan.kernel == "cpu":
            joint_BTP, after = cpu_directions.run(
                [layer.cell for layer in layers.values()],
                inputs_BTI,
                [state.part(name) for name in layers],
                lengths_B,
                [layer.recurrent_weight() for layer in layers.values()],
                plan,
            )
            for layer in layers.values():
                record_plan(layer, plan)
            state = State(dict(zip(layers, after, strict=True)))
            if self.merge == "concat":
                return joint_BTP, state
            right_BTP, left_BTP = joint_BTP.chunk(2, dim=2)
            return merged(right_BTP, left_BTP, self.merge), state
        if plan.directions == 2:
            found = persistent.run_directions(
                [layer.cell for layer in layers.values()],
                [layer.turned(inputs_BTI, lengths_B) for layer in layers.values()],
                [state.part(name) for name in layers],
                lengths_B,
                [layer.recurrent_weight() for layer in layers.values()],
                plan,
            )
            for layer in layers.values():
                record_plan(layer, plan)
            found = [
                (layer.turned(outputs_BTP, lengths_B), after)
                for layer, (outputs_BTP, after) in zip(layers.values(), found, strict=True)
            ]
        else:
            found = [
                layer(inputs_BTI, state.part(name), lengths_B) for name, layer in layers.items()
            ]
        (right, right_state), (left, left_state) = found
        state = State({"forward": right_state, "backward": left_state})
        return merged(right, left, self.merge), state


def merged(right: Float[Tensor, "*batch P"], left: Float[Tensor, "*batch P"], way: Merge) -> Tensor:
    """Combine vectors of the two directions."""
    if way == "concat":
        return torch.cat([right, left], dim=-1)
    total = right + left
    return total / 2 if way == "mean" else total
