"""Decoding options of a batch whose rows differ in them, as columns.

`processors.process` handles all rows in one operation. A row's choice depends on its own options
alone: a neutral value leaves the row's scores bit for bit unchanged.

B rows, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from elman.decode.options import DecodeOptions


@dataclass(frozen=True)
class RowSettings:
    """The options of B rows; a single row applies to any number of rows. Columns are float64."""

    temperature_B1: Tensor | None
    """None, here and below, if every row has the neutral value."""
    top_k_B1: Tensor | None
    """Integers; 0 keeps every token."""
    top_p_B1: Tensor | None
    min_p_B1: Tensor | None
    frequency_penalty_B1: Tensor | None
    presence_penalty_B1: Tensor | None
    bias: tuple[Tensor, Tensor, Tensor] | None
    """Rows, tokens and the numbers added to their log probabilities."""
    greedy_B: Tensor
    num_greedy: int

    @staticmethod
    def of(rows: Sequence[DecodeOptions], device: torch.device | str = "cpu") -> RowSettings:
        """Collect the options of rows; those that have no effect on a greedy row become neutral."""
        # A server's rows change at almost every token and mostly have neutral values: make no
        # tensor for those.
        columns = list(zip(*map(_numbers, rows), strict=True))

        def column(index: int, neutral: float, dtype: torch.dtype = torch.float64) -> Tensor | None:
            values = columns[index]
            if values.count(neutral) == len(values):
                return None
            return torch.tensor(values, dtype=dtype, device=device).unsqueeze(1)

        bias = [
            (row, token, value)
            for row, options in enumerate(rows)
            for token, value in options.logit_bias.items()
        ]
        greedy = [options.is_greedy for options in rows]
        return RowSettings(
            temperature_B1=column(0, 1.0),
            top_k_B1=column(1, 0.0, torch.long),
            top_p_B1=column(2, 1.0),
            min_p_B1=column(3, 0.0),
            frequency_penalty_B1=column(4, 0.0),
            presence_penalty_B1=column(5, 0.0),
            bias=_columns(bias, device) if bias else None,
            greedy_B=torch.tensor(greedy, device=device),
            num_greedy=sum(greedy),
        )

    @property
    def all_greedy(self) -> bool:
        return self.num_greedy == len(self.greedy_B)

    @property
    def has_penalties(self) -> bool:
        """Whether any row's choice depends on how often a token was generated before."""
        return self.frequency_penalty_B1 is not None or self.presence_penalty_B1 is not None


def _numbers(options: DecodeOptions) -> tuple[float, ...]:
    penalties = (options.frequency_penalty, options.presence_penalty)
    if options.is_greedy:  # the most likely token stays the most likely
        return (1.0, 0.0, 1.0, 0.0, *penalties)
    return (options.temperature, options.top_k, options.top_p, options.min_p, *penalties)


def _columns(
    entries: list[tuple[int, int, float]], device: torch.device | str
) -> tuple[Tensor, Tensor, Tensor]:
    rows, tokens, values = (torch.tensor(c, device=device) for c in zip(*entries, strict=True))
    return rows, tokens, values
