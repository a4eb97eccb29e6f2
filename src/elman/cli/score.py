"""`elman score`: surprisal of a text or a table, as a table for statistics programs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import fields
from itertools import chain, islice
from typing import Annotated, Any

from elman.base.counting import counted
from elman.base.errors import UsageError
from elman.cli.default_model import MaybeModel, model_or_default
from elman.cli.provenance import Index, Why, cells, explainer
from elman.cli.sentences import (
    Column,
    Regions,
    Separator,
    With,
    check_separator,
    in_utf8,
    no_sentences,
    open_readers,
    opened,
    regions_of,
)
from elman.evaluate.policies import Policies
from elman.runs.packaged import MEASURERS
from elman.terminal.adapting import adapted, ways_to_adapt
from elman.terminal.console import (
    reading_notes,
    result,
    result_json_list,
    talk_notes,
    unknown_note,
)
from elman.terminal.options import (
    Adapt,
    AdaptSettings,
    AsIs,
    Cache,
    Device,
    DropoutScale,
    Encoding,
    Json,
    Label,
    Samples,
    Shown,
    Temperature,
    Tune,
    argument,
    option,
    with_options,
)
from elman.terminal.stdin import EMPTY, Lines

COLUMNS = ("line", "index", "text", "surprisal", "unknown", "start", "end", "num_tokens")
ENTROPY = ("entropy", "entropy_reduction")
LONGEST_SCORED = 1 << 27
"""Default limit on the bytes of a line: long lines are scored in pieces, but read whole."""
ESCAPES = {"\\": "\\\\", "\t": "\\t", "\n": "\\n", "\r": "\\r"}


@with_options(Policies, *(f.name for f in fields(Policies)), include_end=Shown(default="end"))
def score(
    model: MaybeModel = None,
    file: Annotated[
        str | None, argument("[FILE|-]", "Text, one item per line, or a table; - reads stdin.")
    ] = None,
    *,
    options: dict[str, Any],
    column: Column = None,
    regions: Regions = None,
    separator: Separator = None,
    beside: With = None,
    frequency: Annotated[
        str | None, option("TEXT", "Add the log frequency of words in this text.")
    ] = None,
    spillover: Annotated[
        int, option("K", "Add the predictors of the K words or regions before.", min=0)
    ] = 0,
    prefix: Annotated[str, option("TEXT", "Prefix for the names of new columns.")] = "",
    why: Why = False,
    index: Index = None,
    as_is: AsIs = False,
    adapt: Adapt = False,
    cache: Cache = False,
    temperature: Temperature = None,
    samples: Samples = None,
    dropout_scale: DropoutScale = None,
    tune: Tune = None,
    settings: AdaptSettings = None,
    label: Label = None,
    encoding: Encoding = None,
    device: Device = "auto",
    max_line: Annotated[
        int | None, option("BYTES", f"Refuse longer lines. [default: {LONGEST_SCORED}]", min=1)
    ] = None,
    json: Json = False,
) -> None:
    """Print the surprisal of each token, word or line.

    The table is tab-separated, with a header. With --json, a list of objects with the same keys. A
    model of maximum likelihood has one more column: whether its estimate is undefined (0/0). Of a
    table, the other columns are carried through; a row is a word or a region, or with --unit line a
    sentence, and the ends of sentences are counted with --end alone.

    With --adapt or --cache the lines are read in order and change the predictions of those after
    them. With --why, more columns say where in the training text each token comes from.
    """
    model, file = model_or_default(model, file, MEASURERS, reads_tables=True)
    file = in_utf8(file or "-", encoding)
    if index is not None and not why:
        raise UsageError("--index has no effect without --why", "add --why, or drop it")
    check_separator(separator)
    ways = ways_to_adapt(
        adapt=adapt,
        cache=cache,
        settings=settings,
        temperature=temperature,
        samples=samples,
        dropout_scale=dropout_scale,
    )
    longest = LONGEST_SCORED if max_line is None else max_line
    if column or regions or separator or beside or frequency or spillover or prefix:
        if why:
            raise UsageError("--why is about lines of text, not a table", "leave one of them out")
        if max_line is not None and (column or regions):
            raise UsageError("--max-line is about lines of text, not a table", "drop it")
        if adapt or cache or samples is not None or temperature is not None or tune:
            raise UsageError(
                "--adapt, --cache, --temperature, --samples and --tune read lines of text, not a "
                "table",
                "leave one of them out",
            )
        _score_sentences(
            [model, *(beside or ())],
            file,
            options,
            column=column,
            regions=regions,
            separator=separator,
            frequency=frequency,
            spillover=spillover,
            prefix=prefix,
            as_is=as_is,
            label=label,
            device=device,
            longest=longest,
            json=json,
        )
        return
    from elman.api import LM, load
    from elman.evaluate.surprisal import Totals, surprisals
    from elman.text.records import plain_sheets
    from elman.tokens.fitting import SAMPLE_LINES, count_unknown

    policies = Policies(**options)  # report a wrong option before reading a large model
    lm = adapted(load(model, device=device, kind=LM, label=label), ways, tune)
    explain = explainer(lm, index) if why else None
    talk_notes(plain_sheets([file]))
    with Lines(file, longest) as lines:
        is_empty = not any(True for _ in lines)
        tokenizer = lm.tokenizer if as_is else lm.fitted(list(islice(lines, SAMPLE_LINES)))
        if tokenizer.unknown_id is not None:
            found = count_unknown(tokenizer, lines, include_end=policies.include_end)
            talk_notes([] if is_empty else [unknown_note(*found)])
        talk_notes([*reading_notes(tokenizer.reads_as), *lm.notes])
        rows = surprisals(lm.model, tokenizer, lines, **options)
        explained: Iterator[tuple[Any, Any]] = ((row, None) for row in rows)
        if explain is not None:
            own = explain.indexed
            same = own.tokenizer.hash == lm.tokenizer.hash
            how: dict[str, Any] = {"unit": policies.unit, "carry": policies.carry}
            spelling = tokenizer if same else own.tokenizer
            explained = explain.with_sources(rows, lines, spelling, **how)
        sources = [] if explain is None else explain.columns
        columns = [*COLUMNS, *(ENTROPY if policies.entropy else ())]
        columns += ["undefined"] if lm.can_be_undefined else []
        undefined, totals = 0, Totals(policies.base)

        def shown() -> Iterator[dict[str, Any]]:
            nonlocal undefined
            for row, source in explained:
                undefined += row.undefined
                totals.add(row)
                found = {column: getattr(row, column) for column in columns}
                yield found | cells(source, sources)

        show([*columns, *sources], shown(), json=json)
    talk_notes([EMPTY if is_empty else str(totals)])
    if undefined:
        from elman.ngrams.smoothing import UNDEFINED

        talk_notes([f"{counted(undefined, 'row')} with undefined estimates: {UNDEFINED}"])


def _score_sentences(
    models: Sequence[str],
    file: str,
    options: dict[str, Any],
    *,
    column: str | None,
    regions: str | None,
    separator: str | None,
    frequency: str | None,
    spillover: int,
    prefix: str,
    as_is: bool,
    label: str | None,
    device: str,
    longest: int,
    json: bool,
) -> None:
    """Score the sentences of a table, or the lines of a text as if they were one."""
    from elman.evaluate.predictors import Asked, Frequencies, Item, measure
    from elman.text.sources import expand

    has_regions = bool(regions or separator)
    unit = options.pop("unit", "region" if has_regions else "word")
    policies = {"include_end": False, **options}
    Policies(**policies, unit="word" if unit == "region" else unit)
    asked = Asked(
        unit=unit,
        policies=policies,
        spillover=spillover,
        frequencies=None if frequency is None else Frequencies(expand(frequency)),
    )
    with ExitStack() as stack:
        if column or regions:
            table = stack.enter_context(opened(file))
            parts = regions_of(table, column, regions, separator)
            # A whole story need not be repeated beside each of its words.
            scored = {column, *(regions or "").split(",")} if unit != "line" else set()
            carried = [name for name in table.names if name not in scored]

            def items() -> Iterator[Item]:
                for number, row in table:
                    yield Item({name: row[name] for name in carried}, number, parts(row))

        else:
            lines = stack.enter_context(Lines(file, longest))
            carried = []

            def items() -> Iterator[Item]:
                for number, line in enumerate(lines, start=1):
                    texts = [line] if separator is None else line.split(separator)
                    names = [""] if separator is None else map(str, range(1, len(texts) + 1))
                    stripped = (text.strip() for text in texts)
                    yield Item({}, number, list(zip(names, stripped, strict=True)))

        if (column or regions) and unit != "region":
            texts = [bool(item.text) for item in items()]
            if missing := texts.count(False):
                what = f"{missing:,} of {counted(len(texts), 'row')}"
                has = "has no sentence, and is" if missing == 1 else "have no sentence, and are"
                talk_notes([f"{what} {has} left out"] if missing < len(texts) else [])
        readers = open_readers(models, file, items, device=device, as_is=as_is, label=label)
        rows = measure(items(), readers, asked)
        first = list(islice(rows, 1))
        if not first:  # lines, but all of them blank
            raise no_sentences(file)
        new = [f"{prefix}{name}" for name in first[0][1]]
        if taken := [name for name in new if name in carried]:
            raise UsageError(
                f"{file} already has a column '{taken[0]}'",
                "rename it, or begin the new names with --prefix",
            )
        columns = [*carried, *new]
        renamed = (
            dict(zip(columns, (*item.carried.values(), *row.values()), strict=True))
            for item, row in chain(first, rows)
        )
        show(columns, renamed, json=json)


def show(columns: Sequence[str], rows: Iterator[dict[str, Any]], *, json: bool) -> None:
    """Print rows as a tab-separated table, or as a JSON list."""
    if json:
        result_json_list(rows)
        return
    first = list(islice(rows, 1))  # raise errors before anything is printed
    result("\t".join(map(_cell, columns)))  # a name in a table may have line ends
    for row in chain(first, rows):
        result("\t".join(map(_cell, row.values())))


def _cell(value: object) -> str:
    """Format a TSV cell: escape tabs and line ends, booleans as 0 and 1, six decimals."""
    if isinstance(value, bool):
        return str(int(value))
    if isinstance(value, float):
        return f"{value:.6f}"
    if value is None:
        return ""
    return "".join(ESCAPES.get(c, c) for c in str(value))
