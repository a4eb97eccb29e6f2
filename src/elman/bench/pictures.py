"""`elman bench pictures`: a captioner beside the same model without access to the pictures.

Each of the two is trained once per attempted setting and seed. The attempt with the lowest mean
surprisal on the part of the table that is held out is then measured on the test table. Rows are
means over seeds; their settings have the single values.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import fmean, pstdev
from typing import Annotated

from typer import Argument, Option

from elman.bench.measuring import Row, less_is_better, more_is_better, train_run
from elman.bench.shared import progress, show, work_folder
from elman.terminal.options import Json, Settings


def pictures(
    table: Annotated[
        str, Argument(metavar="TABLE", help="Images and sentences.", show_default=False)
    ],
    test: Annotated[str, Option(metavar="TABLE", help="Images and sentences to test on.")],
    seeds: Annotated[int, Option(min=1, metavar="N", help="Runs of each model.")] = 3,
    attempts: Annotated[
        list[str] | None,
        Option(
            "--try",
            metavar="KEY=VALUE",
            help="Also try this setting; each model takes its better one. May be repeated.",
        ),
    ] = None,
    settings: Settings = None,
    json: Json = False,
) -> None:
    """Train a captioner, and the same one blind to the pictures, and compare them.

    Means over seeds of surprisal, CIDEr and BLEU. Each model takes the setting that is best on
    sentences held out of TABLE; --test has no part in that choice.
    """

    def compare() -> Iterator[Row]:
        tried = ("", *(attempts or ()))
        seeing, blind = (
            _best(table, test, tried, [*(settings or ()), f"model.blind={value}"], folder, seeds)
            for value in ("false", "true")
        )
        for name, title, unit, row in (
            ("nats_per_token", "surprisal", "nats", less_is_better),
            ("cider", "CIDEr", "CIDEr", more_is_better),
            ("bleu", "BLEU", "BLEU", more_is_better),
        ):
            if name not in seeing[1]:
                continue
            ours, peer = seeing[1][name], blind[1][name]
            about = {
                "seeing": ours,
                "blind": peer,
                "seeing_deviation": pstdev(ours),
                "blind_deviation": pstdev(peer),
                "seeing_setting": seeing[0],
                "blind_setting": blind[0],
                "beside": "the same, blind",
            }
            yield row(title, fmean(ours), fmean(peer), unit, **about)

    with work_folder() as folder:
        show(progress(compare()), json=json)


def _best(
    table: str,
    test: str,
    attempts: Sequence[str],
    settings: Sequence[str],
    folder: Path,
    num_seeds: int,
) -> tuple[str, dict[str, list[float]]]:
    """Train every attempt; return the best one and its test metrics by seed."""
    from elman.base.config import parse_overrides
    from elman.recipes.resolve import resolve
    from elman.tasks.captioning.batches import read_captions
    from elman.tasks.captioning.task import encode_captions, measure, one_table
    from elman.tasks.opening import open_run

    captions = read_captions(one_table(test))
    runs: dict[str, list[tuple[float, Path]]] = {}
    for attempt in attempts:
        asked = parse_overrides([*settings, *filter(None, [attempt])])
        runs[attempt] = []
        for seed in range(1, num_seeds + 1):
            config = resolve("captioner", [table], settings=asked, seed=seed).config
            out = folder / f"{settings[-1]}-{len(runs)}-{seed}"
            summary, _ = train_run(config, out)
            runs[attempt].append((summary["nats_per_token"], out))
    best = min(runs, key=lambda attempt: fmean(nats for nats, _ in runs[attempt]))
    metrics: dict[str, list[float]] = {}
    for _, out in runs[best]:
        run = open_run(out)
        encoded = encode_captions(captions, run.tokenizer, run.config.model)
        for name, value in measure(run.model, run.tokenizer, encoded).items():
            metrics.setdefault(name, []).append(value)
    return best, metrics
