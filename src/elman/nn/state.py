"""The state of a language model, as a value.

A state is a small tree of tensors whose first axis is the batch: `{"h": (B, H), "c": (B, H)}` for
an LSTM layer, a dictionary of layers for a stack, the last n - 1 tokens for an n-gram model. Only
this class knows its structure; picking and repeating rows is all that beam search, batching and
prefix reuse need.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Union

import torch
from torch import Tensor

Leaf = Union[Tensor, "State"]


class State(Mapping[str, Any]):
    """An immutable tree of batch-first tensors."""

    def __init__(self, parts: Mapping[str, Leaf]) -> None:
        self._parts = dict(parts)

    def __getitem__(self, key: str | Tensor | Sequence[int] | slice) -> Leaf:
        """`state["h"]` is a part; `state[rows]` selects batch rows."""
        return self._parts[key] if isinstance(key, str) else self.select(key)

    def __iter__(self) -> Iterator[str]:
        return iter(self._parts)

    def __len__(self) -> int:
        return len(self._parts)

    def __repr__(self) -> str:
        inside = ", ".join(
            f"{k}: {tuple(v.shape) if isinstance(v, Tensor) else v!r}"
            for k, v in self._parts.items()
        )
        return f"State({inside})"

    @property
    def batch_size(self) -> int:
        return next(iter(self.flatten().values())).shape[0]

    def tensor(self, key: str) -> Tensor:
        part = self._parts[key]
        assert isinstance(part, Tensor)
        return part

    def part(self, key: str) -> State:
        part = self._parts[key]
        assert isinstance(part, State)
        return part

    def select(self, rows: Tensor | Sequence[int] | slice) -> State:
        """Select batch rows in the given order, with repeats allowed."""
        if isinstance(rows, slice):
            return self.map(lambda tensor: tensor[rows])
        index = rows if isinstance(rows, Tensor) else torch.as_tensor(rows, dtype=torch.long)
        on: dict[torch.device, Tensor] = {}

        def pick(tensor: Tensor) -> Tensor:
            if tensor.device not in on:  # copy the rows once, not for every tensor
                on[tensor.device] = index.to(tensor.device)
            return tensor[on[tensor.device]]

        return self.map(pick)

    def detach(self) -> State:
        """Detach from the graph: the truncation in truncated BPTT."""
        return self.map(lambda tensor: tensor.detach())

    def to(self, device: torch.device | str) -> State:
        return self.map(lambda tensor: tensor.to(device))

    def map(self, function: Callable[[Tensor], Tensor]) -> State:
        """Apply `function` to every tensor."""
        return State(
            {
                k: function(v) if isinstance(v, Tensor) else v.map(function)
                for k, v in self._parts.items()
            }
        )

    def flatten(self, prefix: str = "") -> dict[str, Tensor]:
        """Return all tensors under dotted names, for saving."""
        flat: dict[str, Tensor] = {}
        for key, value in self._parts.items():
            if isinstance(value, Tensor):
                flat[prefix + key] = value
            else:
                flat.update(value.flatten(f"{prefix}{key}."))
        return flat

    @staticmethod
    def unflatten(flat: Mapping[str, Tensor]) -> State:
        """Undo `flatten`."""
        parts: dict[str, Leaf] = {}
        groups: dict[str, dict[str, Tensor]] = {}
        for name, tensor in flat.items():
            head, dot, rest = name.partition(".")
            if dot:
                groups.setdefault(head, {})[rest] = tensor
                parts[head] = State({})
            else:
                parts[head] = tensor
        parts.update({head: State.unflatten(group) for head, group in groups.items()})
        return State(parts)

    @staticmethod
    def cat(states: Sequence[State]) -> State:
        """Concatenate states of the same structure along the batch."""
        first = states[0]
        return State(
            {
                key: torch.cat([s.tensor(key) for s in states])
                if isinstance(value, Tensor)
                else State.cat([s.part(key) for s in states])
                for key, value in first.items()
            }
        )
