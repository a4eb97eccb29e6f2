"""Reasons to refuse a request that is valid. `http/errors.py` gives each its status."""

from __future__ import annotations

from elman.base.errors import ElmanError


class Busy(ElmanError):
    """The queue is full."""


class Overloaded(ElmanError):
    """All requests together take too much memory."""


class TimeUp(ElmanError):
    """A request took longer than its limit."""


class Unavailable(ElmanError):
    """The model cannot answer, because its file was changed."""
