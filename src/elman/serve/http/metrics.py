"""Figures of a running server, in Prometheus' text format."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable

from elman.serve.http.served import Served

BUCKETS = (0.005, 0.02, 0.1, 0.5, 2.0, 10.0, 60.0)
"""Upper bounds of the durations that are told apart, in seconds."""


class Metrics:
    """Counts of requests; the engines keep their own figures."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._requests: Counter[tuple[str, int]] = Counter()
        self._durations: Counter[float] = Counter()
        self._seconds = 0.0

    def request(self, path: str, status: int, seconds: float) -> None:
        """One request has been answered."""
        bucket = next((bound for bound in BUCKETS if seconds <= bound), float("inf"))
        with self._lock:
            self._requests[path, status] += 1
            self._durations[bucket] += 1
            self._seconds += seconds

    def text(self, served: Iterable[Served]) -> str:
        """Everything, one figure a line."""
        lines: list[str] = []

        def add(name: str, kind: str, about: str, rows: Iterable[tuple[str, float]]) -> None:
            lines.append(f"# HELP elman_{name} {about}")
            lines.append(f"# TYPE elman_{name} {kind}")
            lines.extend(f"elman_{name}{labels} {value:g}" for labels, value in rows)

        with self._lock:
            requests, durations = dict(self._requests), dict(self._durations)
            seconds = self._seconds
        add(
            "requests_total",
            "counter",
            "Requests that were answered.",
            [
                (f'{{path="{path}",status="{status}"}}', count)
                for (path, status), count in sorted(requests.items())
            ],
        )
        lines.append("# HELP elman_request_seconds Time from a request to the end of its answer.")
        lines.append("# TYPE elman_request_seconds histogram")
        total = 0
        for bound in (*BUCKETS, float("inf")):
            total += durations.get(bound, 0)
            label = "+Inf" if bound == float("inf") else f"{bound:g}"
            lines.append(f'elman_request_seconds_bucket{{le="{label}"}} {total}')
        lines.append(f"elman_request_seconds_sum {seconds:g}")
        lines.append(f"elman_request_seconds_count {total}")

        engines = [
            (f'model="{_escaped(one.name)}"', one.engine)
            for one in served
            if one.engine is not None
        ]

        def each(name: str, kind: str, about: str, value: str) -> None:
            rows = []
            for label, engine in engines:
                thing: object = engine
                for part in value.split("."):
                    thing = getattr(thing, part)
                rows.append((f"{{{label}}}", float(thing)))  # type: ignore[arg-type]
            add(name, kind, about, rows)

        each("streams", "gauge", "Streams that have a place.", "num_streams")
        each("streams_waiting", "gauge", "Streams that wait for one.", "num_waiting")
        each("steps_total", "counter", "Steps of the batch.", "figures.steps")
        each("prompt_tokens_total", "counter", "Prompt tokens read.", "figures.prompt_tokens")
        each("generated_tokens_total", "counter", "Tokens generated.", "figures.generated_tokens")
        each(
            "prefix_cache_hits_total", "counter", "Prompts whose beginning was known.", "cache.hits"
        )
        each("prefix_cache_misses_total", "counter", "Prompts that were new.", "cache.misses")
        each("prefix_cache_bytes", "gauge", "Memory of known prefixes.", "cache.num_bytes")
        add(
            "streams_finished_total",
            "counter",
            "Streams that ended, by reason.",
            [
                (f'{{{label},reason="{reason}"}}', count)
                for label, engine in engines
                for reason, count in sorted(dict(engine.figures.finished).items())
            ],
        )
        return "\n".join(lines) + "\n"


def _escaped(label: str) -> str:
    return label.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
