"""Which worker gets a request. Requests that begin the same way go to the same worker, whose prefix
cache then has the state after the beginning, unless it has far more to do than another."""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Iterable, Mapping

SHORTEST, LONGEST = 8, 4096
"""Bytes of a prompt that are compared: the first 8, 16, 32 and so on, up to `LONGEST`. Less than 8
bytes are read again in no time."""
MAX_BEGINNINGS = 1 << 16
"""Beginnings to remember; the least recently used are forgotten."""
SPARE = 8
"""A worker with more than twice as many open requests as another, and this many more, gets none for
their beginning."""

_PROMPT = re.compile(rb'"prompt"\s*:\s*')
_MODEL = re.compile(rb'"model"\s*:\s*("[^"]*")')
_LABEL = re.compile(rb'"label"\s*:\s*("[^"]*")')


def beginnings(body: bytes) -> list[int]:
    """Hashes of the beginnings of a request's prompt, shortest first; none if it has no prompt.

    `body` is JSON, which may be cut off. Only requests with a prompt use the prefix cache.
    """
    found = _PROMPT.search(body)
    if found is None:
        return []
    prompt = body[found.end() : found.end() + LONGEST]
    names = [match and match[1] for match in (_MODEL.search(body), _LABEL.search(body))]
    lengths = (SHORTEST << shift for shift in range(LONGEST.bit_length()))
    return [hash((*names, prompt[:length])) for length in lengths if length <= len(prompt)]


class Routing:
    """Chooses workers by number."""

    def __init__(self) -> None:
        self._workers: OrderedDict[int, int] = OrderedDict()
        """The worker that had each beginning last."""
        self._chosen: OrderedDict[int, None] = OrderedDict()
        """Workers in the order in which they were chosen last."""

    def choose(self, loads: Mapping[int, int], begins: Iterable[int] = ()) -> int:
        """Choose one of the workers in `loads`, which has the number of open requests of each."""
        begins = list(begins)
        order = {worker: place for place, worker in enumerate(self._chosen)}
        least = min(loads, key=lambda worker: (loads[worker], order.get(worker, -1)))
        known = (self._workers.get(hashed, -1) for hashed in reversed(begins))
        chosen = next((worker for worker in known if worker in loads), least)
        if loads[chosen] > 2 * loads[least] + SPARE:
            chosen = least
        self._chosen[chosen] = None
        self._chosen.move_to_end(chosen)
        for hashed in begins:
            self._workers[hashed] = chosen
            self._workers.move_to_end(hashed)
        while len(self._workers) > MAX_BEGINNINGS:
            self._workers.popitem(last=False)
        return chosen
