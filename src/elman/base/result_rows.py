"""Lists of results that notebooks show as a table, and that become a DataFrame on request."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import fields, is_dataclass
from html import escape
from importlib import import_module
from typing import Any, TypeVar

from elman.base.errors import ElmanError

R = TypeVar("R")
MOST_SHOWN = 200
"""Rows of a table in a notebook."""


class Rows(list[R]):
    """A list of tuples or dataclasses; `columns` are the names of their parts."""

    def __init__(self, rows: Iterable[R] = (), columns: Sequence[str] = ()) -> None:
        super().__init__(rows)
        self._columns = tuple(columns)

    @property
    def columns(self) -> tuple[str, ...]:
        if self._columns or not self:
            return self._columns
        first: Any = self[0]
        return tuple(f.name for f in fields(first)) if is_dataclass(first) else ()

    def to_pandas(self) -> Any:
        """A pandas DataFrame, one row for each result."""
        try:
            pandas: Any = import_module("pandas")
        except ImportError as error:
            raise ElmanError(
                "DataFrames need the pandas package", "pip install 'elman[notebook]'"
            ) from error
        return pandas.DataFrame([self._cells(row) for row in self], columns=list(self.columns))

    def _cells(self, row: Any) -> tuple[Any, ...]:
        return (
            tuple(getattr(row, name) for name in self.columns) if is_dataclass(row) else tuple(row)
        )

    def _repr_html_(self) -> str:
        head = "".join(f"<th>{escape(name)}</th>" for name in self.columns)
        body = "".join(
            "<tr>" + "".join(f"<td>{_shown(cell)}</td>" for cell in self._cells(row)) + "</tr>"
            for row in self[:MOST_SHOWN]
        )
        more = f"<p>{len(self):,} rows</p>" if len(self) > MOST_SHOWN else ""
        return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{more}"


def _shown(cell: Any) -> str:
    return f"{cell:.4g}" if isinstance(cell, float) else escape("" if cell is None else str(cell))
