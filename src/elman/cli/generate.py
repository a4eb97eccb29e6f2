"""`elman generate`: continue a text."""

from __future__ import annotations

import sys
from typing import Annotated, Any

from elman.base.errors import UsageError
from elman.cli.default_model import MaybeModel, model_or_default
from elman.cli.provenance import Index, Why, explainer, sources_table
from elman.decode.options import DecodeOptions, names, read_options
from elman.runs.packaged import TALKERS
from elman.terminal.adapting import adapted, ways_to_adapt
from elman.terminal.console import result, result_json, talk, talk_notes, write
from elman.terminal.options import (
    Adapt,
    AdaptSettings,
    Cache,
    Device,
    Json,
    Label,
    MaxLine,
    Quantise,
    argument,
    option,
    with_options,
)
from elman.terminal.stdin import read_stdin


@with_options(DecodeOptions, *names(command="generate"))
def generate(
    model: MaybeModel = None,
    prompt: Annotated[
        str | None, argument("[PROMPT|-]", "The text to continue; - reads it from stdin.")
    ] = None,
    *,
    stop: Annotated[
        list[str] | None, option("S", "End before this text appears; may be repeated.")
    ] = None,
    echo: Annotated[
        bool, option(None, "Print the prompt before each continuation.", "--echo")
    ] = False,
    why: Why = False,
    index: Index = None,
    adapt: Adapt = False,
    cache: Cache = False,
    settings: AdaptSettings = None,
    quantise: Quantise = None,
    label: Label = None,
    device: Device = "auto",
    max_line: MaxLine = None,
    json: Json = False,
    **options: Any,
) -> None:
    """Continue a text by sampling, greedily or by beam search.

    The continuation is printed as it is generated. Several samples follow one another, with
    their log probabilities on stderr. With --adapt the model learns from the prompt first; with
    --cache it tends to repeat words of the prompt and of what it has generated. With --why, a table
    of the generated tokens says where in the training text each comes from.
    """
    from elman.api import LM, load

    model, prompt = model_or_default(model, prompt, TALKERS)
    text = read_stdin() if prompt == "-" else prompt or ""
    stops = [unescape(s) for s in stop or ()]
    options = {name: value for name, value in options.items() if value is not None}
    decoding = read_options(options)  # report a wrong option before reading a large model
    ways = ways_to_adapt(adapt=adapt, cache=cache, settings=settings)
    lm = adapted(load(model, device=device, kind=LM, label=label, quantise=quantise), ways)
    if index is not None and not why:
        raise UsageError("--index has no effect without --why", "add --why, or drop it")
    explain = explainer(lm, index) if why else None
    talk_notes([*lm.notes_after(text), *lm.notes])
    beginning = text if echo else ""
    if json or explain is not None:
        answers = []
        for one in lm.complete(text, stop=stops, **options):
            answer = {**vars(one), "text": beginning + one.text}
            del answer["ids"]
            if explain is not None:
                sources = explain.of_completion(text, one, lm.tokenizer)
                answer["why"] = [vars(source) for source in sources]
                if not json:
                    result(beginning + one.text)
                    exact = explain.predicted is not None
                    result(f"\n{sources_table(sources, exact=exact)}")
            answers.append(answer)
        if json:
            result_json(answers)
    elif decoding.num_samples == 1 and decoding.beam_size == 1:
        write(beginning)
        for piece in lm.generate(text, stop=stops, stream=True, **options):
            write(piece)
            sys.stdout.flush()
        result("")
    else:
        for number, completion in enumerate(lm.complete(text, stop=stops, **options), start=1):
            figures = f"{completion.finish_reason}, log probability {completion.logprob:.2f}"
            talk(f"--- {number}: {figures}")
            result(beginning + completion.text)


def unescape(text: str) -> str:
    r"""Replace the escapes `\n`, `\t` and `\\`."""
    return text.replace("\\\\", "\0").replace("\\n", "\n").replace("\\t", "\t").replace("\0", "\\")
