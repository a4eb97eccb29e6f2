"""Decoding options of a batch whose rows differ in them, as columns.

`processors.process` handles all rows in one operation. A row's choice depends on its own options
alone: a neutral value leaves the row's scores bit for bit unchanged.

B rows, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from operator import attrgetter

import torch
from torch import Tensor

from elman.decode.options import DecodeOptions, names

DRAWING = names(scheme="draw")
PENALTIES = ("frequency_penalty", "presence_penalty")
COLUMNS = (*DRAWING, *PENALTIES)
_NEUTRAL = {name: getattr(DecodeOptions, name) for name in COLUMNS}
_values = attrgetter(*COLUMNS)


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
    most_k: int = 0
    """The largest `top_k`."""
    shared_bias: Mapping[int, float] | None = None
    """The bias as it was given, if all rows have the same."""

    @staticmethod
    def of(rows: Sequence[DecodeOptions], device: torch.device | str = "cpu") -> RowSettings:
        """Collect the options of rows; those that have no effect on a greedy row become neutral."""
        greedy = [options.is_greedy for options in rows]
        num_greedy = sum(greedy)
        columns, most_k = {}, 0
        for name, given in zip(COLUMNS, zip(*map(_values, rows), strict=True), strict=True):
            neutral, values = _NEUTRAL[name], list(given)
            if num_greedy and name in DRAWING:  # the most likely token stays the most likely
                values = [neutral if g else v for g, v in zip(greedy, values, strict=True)]
            # A server's rows change at almost every token and mostly have neutral values: make no
            # tensor for those.
            if values.count(neutral) < len(values):
                if name == "top_k":
                    most_k = max(values)
                dtype = torch.long if isinstance(neutral, int) else torch.float64
                columns[name] = torch.tensor(values, dtype=dtype, device=device).unsqueeze(1)
        bias = [
            (row, token, value)
            for row, options in enumerate(rows)
            for token, value in options.logit_bias.items()
        ]
        first = rows[0].logit_bias if bias else {}
        is_shared = bool(bias) and all(options.logit_bias == first for options in rows)
        return RowSettings(
            columns=columns,
            bias=_transposed(bias, device) if bias else None,
            greedy_B=torch.tensor(greedy, device=device),
            num_greedy=num_greedy,
            most_k=most_k,
            shared_bias=first if is_shared else None,
        )

    def keep(self, rows_B: Tensor, options: Sequence[DecodeOptions]) -> RowSettings | None:
        """The settings of some of the rows, which have these options; None if they are easier made
        anew."""
        shared, number = self.shared_bias, len(rows_B)
        if (self.bias is not None and shared is None) or 0 < self.num_greedy < len(self.greedy_B):
            return None
        bias = self.bias
        if bias is not None and shared is not None:  # rows of equal entries, in their order
            rows, tokens, values = (entry[: number * len(shared)] for entry in bias)
            bias = rows, tokens, values
        return replace(
            self,
            columns={
                name: column_B1[rows_B]
                for name, column_B1 in self.columns.items()
                if any(getattr(one, name) != _NEUTRAL[name] for one in options)
            },
            bias=bias,
            greedy_B=self.greedy_B[rows_B],
            num_greedy=number if self.num_greedy else 0,
        )

    def join(self, other: RowSettings) -> RowSettings | None:
        """The settings of these rows and of others; None if they are easier made anew."""
        if self.shared_bias != other.shared_bias or (self.bias is None) != (other.bias is None):
            return None
        bias = self.bias
        if bias is not None and other.bias is not None:
            if self.shared_bias is None:
                return None
            more = (other.bias[0] + len(self.greedy_B), *other.bias[1:])
            rows, tokens, values = (
                torch.cat([mine, theirs]) for mine, theirs in zip(bias, more, strict=True)
            )
            bias = rows, tokens, values
        columns = {
            name: torch.cat([self._column(name, other), other._column(name, self)])
            for name in COLUMNS
            if name in self.columns or name in other.columns
        }
        return RowSettings(
            columns=columns,
            bias=bias,
            greedy_B=torch.cat([self.greedy_B, other.greedy_B]),
            num_greedy=self.num_greedy + other.num_greedy,
            most_k=max(self.most_k, other.most_k),
            shared_bias=self.shared_bias,
        )

    def _column(self, name: str, other: RowSettings) -> Tensor:
        """A column, neutral if it was left out; `other` has it then."""
        if name in self.columns:
            return self.columns[name]
        neutral = other.columns[name].new_full((1, 1), _NEUTRAL[name])
        return neutral.expand(len(self.greedy_B), 1)

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
