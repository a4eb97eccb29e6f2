"""Decoding options of a batch whose rows differ in them, as columns.

`processors.process` handles all rows in one operation. A row's choice depends on its own options
alone: a neutral value leaves the row's scores bit for bit unchanged.

B rows, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from elman.decode.options import DecodeOptions, names

DRAWING = names(scheme="draw")
PENALTIES = ("frequency_penalty", "presence_penalty")


@dataclass(frozen=True)
class RowSettings:
    """The options of B rows; a single row applies to any number of rows."""

    columns: dict[str, Tensor]
    """(B, 1) an option's value in each row, float64 or integer as the option is. Options
    without effect in every row, such as those with default values, are left out."""
    bias: tuple[Tensor, Tensor, Tensor] | None
    """Rows, tokens and the numbers added to their log probabilities."""
    greedy_B: Tensor
    num_greedy: int

    @staticmethod
    def of(rows: Sequence[DecodeOptions], device: torch.device | str = "cpu") -> RowSettings:
        """Collect the options of rows; those that have no effect on a greedy row become neutral."""
        greedy = [options.is_greedy for options in rows]
        columns = {}
        for name in (*DRAWING, *PENALTIES):
            neutral = getattr(DecodeOptions, name)
            values = [getattr(options, name) for options in rows]
            if name in DRAWING:  # a greedy row's most likely token stays the most likely
                values = [neutral if g else v for g, v in zip(greedy, values, strict=True)]
            # A server's rows change at almost every token and mostly have neutral values: make no
            # tensor for those.
            if values.count(neutral) < len(values):
                dtype = torch.long if isinstance(neutral, int) else torch.float64
                columns[name] = torch.tensor(values, dtype=dtype, device=device).unsqueeze(1)
        bias = [
            (row, token, value)
            for row, options in enumerate(rows)
            for token, value in options.logit_bias.items()
        ]
        return RowSettings(
            columns=columns,
            bias=_transposed(bias, device) if bias else None,
            greedy_B=torch.tensor(greedy, device=device),
            num_greedy=sum(greedy),
        )

    @property
    def all_greedy(self) -> bool:
        return self.num_greedy == len(self.greedy_B)

    @cached_property
    def only_rules_out(self) -> bool:
        """Whether the bias applies to all rows and rules tokens out, as it mostly does."""
        return (
            self.bias is not None
            and len(self.greedy_B) == 1
            and bool((self.bias[2] == -torch.inf).all())
        )

    @property
    def has_penalties(self) -> bool:
        """Whether any row's choice depends on how often a token was generated before."""
        return not self.columns.keys().isdisjoint(PENALTIES)


def _transposed(
    entries: list[tuple[int, int, float]], device: torch.device | str
) -> tuple[Tensor, Tensor, Tensor]:
    rows, tokens, values = (torch.tensor(c, device=device) for c in zip(*entries, strict=True))
    return rows, tokens, values
