"""Metrics of a running server, in Prometheus' text format."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable

from elman.serve.engine import Engine
from elman.serve.http.served import Served

BUCKETS = (0.005, 0.02, 0.1, 0.5, 2.0, 10.0, 60.0)
"""Upper bounds of the duration histogram, in seconds."""

OF_ENGINE: tuple[tuple[str, str, str, Callable[[Engine], int]], ...] = (
    ("streams", "gauge", "Streams in the batch.", lambda e: e.num_streams),
    ("streams_paused", "gauge", "Streams that wait for their readers.", lambda e: e.num_paused),
    ("streams_waiting", "gauge", "Streams in the queue.", lambda e: e.num_waiting),
    ("steps_total", "counter", "Steps of the batch.", lambda e: e.statistics.steps),
    ("prompt_tokens_total", "counter", "Prompt tokens read.", lambda e: e.statistics.prompt_tokens),
    (
        "generated_tokens_total",
        "counter",
        "Tokens generated.",
        lambda e: e.statistics.generated_tokens,
    ),
    ("prefix_cache_hits_total", "counter", "Prompts with a cached prefix.", lambda e: e.cache.hits),
    ("prefix_cache_misses_total", "counter", "Prompts without one.", lambda e: e.cache.misses),
    ("prefix_cache_bytes", "gauge", "Memory of cached prefixes.", lambda e: e.cache.num_bytes),
)


class Metrics:
    """Counts of requests; the engines keep their own statistics."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._requests: Counter[tuple[str, int]] = Counter()
        self._durations: Counter[float] = Counter()
        self._seconds = 0.0

    def request(self, path: str, status: int, seconds: float) -> None:
        """Record an answered request."""
        bucket = next((bound for bound in BUCKETS if seconds <= bound), float("inf"))
        with self._lock:
            self._requests[path, status] += 1
            self._durations[bucket] += 1
            self._seconds += seconds

    def text(self, served: Iterable[Served]) -> str:
        lines: list[str] = []

        def add(name: str, kind: str, about: str, rows: Iterable[tuple[str, float]]) -> None:
            lines.append(f"# HELP elman_{name} {about}")
            lines.append(f"# TYPE elman_{name} {kind}")
            lines.extend(f"elman_{name}{labels} {value:g}" for labels, value in rows)

        with self._lock:
            requests, durations = dict(self._requests), dict(self._durations)
            seconds = self._seconds
        rows = [
            (f'{{path="{path}",status="{status}"}}', count)
            for (path, status), count in sorted(requests.items())
        ]
        add("requests_total", "counter", "Requests that were answered.", rows)
        rows, total = [], 0
        for bound in (*BUCKETS, float("inf")):
            total += durations.get(bound, 0)
            label = "+Inf" if bound == float("inf") else f"{bound:g}"
            rows.append((f'_bucket{{le="{label}"}}', total))
        about = "Time from a request to the end of its answer."
        add("request_seconds", "histogram", about, [*rows, ("_sum", seconds), ("_count", total)])
        engines = [
            (f'model="{_escaped(one.name)}"', one.engine)
            for one in served
            if one.engine is not None
        ]
        for name, kind, about, value in OF_ENGINE:
            add(name, kind, about, [(f"{{{label}}}", value(engine)) for label, engine in engines])
        rows = [
            (f'{{{label},reason="{reason}"}}', count)
            for label, engine in engines
            for reason, count in sorted(dict(engine.statistics.finished).items())
        ]
        add("streams_finished_total", "counter", "Streams that ended, by reason.", rows)
        return "\n".join(lines) + "\n"


def _escaped(label: str) -> str:
    return label.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
