"""Writes docs/reference from the code: commands, the library, settings, recipes and corpora.

    make docs        or: python docs/generate.py

A test compares the committed pages with what this would write, so they cannot fall behind.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from dataclasses import fields
from importlib.resources import files
from math import inf, isinf
from pathlib import Path
from typing import Any

import typer

import elman
from elman import recipes
from elman.api import Completion
from elman.base.config import describe
from elman.base.tables import look_up
from elman.cli.main import ORDER, app
from elman.decode.options import DecodeOptions, http_fields
from elman.evaluate.mixture_weights import MixtureFit
from elman.evaluate.perplexity import Evaluation
from elman.evaluate.surprisal import Row
from elman.models import MODELS
from elman.nn.character_cnn import CharacterCNNConfig
from elman.nn.heads import HEADS
from elman.runs.run_config import DataConfig, ObjectiveConfig, RunConfig
from elman.text.corpora import CORPORA
from elman.tokens.tokenizer_config import TokenizerConfig
from elman.train.optimisers import OptimiserConfig
from elman.train.schedules import ScheduleConfig
from elman.train.training_config import LaneTrainingConfig

REFERENCE = Path(__file__).parent / "reference"
HANDLES = (elman.LM, elman.Tagger, elman.Classifier)
"""What `elman.load` hands back."""
NOTE = "<!-- Written by docs/generate.py: change the code, then run make docs. -->"


def pages() -> dict[str, str]:
    """The reference pages by file name."""
    return {
        "cli.md": _page(_commands()),
        "python.md": _page(_library()),
        "config.md": _page(_settings()),
        "recipes.md": _page(_recipes()),
        "corpora.md": _page(_corpora()),
    }


def _page(lines: Iterator[str]) -> str:
    return "\n".join([NOTE, "", *lines]) + "\n"


def _commands() -> Iterator[str]:
    yield "# The command line"
    yield ""
    yield "Results go to stdout, talk to stderr. Exit codes: 0 done, 1 failed, 2 used wrongly,"
    yield "130 interrupted. `--json` prints JSON; an error is a sentence and a hint on stderr."
    yield from _group(typer.main.get_command(app), "elman", list(ORDER))


def _group(group: Any, path: str, first: list[str]) -> Iterator[str]:
    names = [*first, *sorted(set(group.commands) - set(first))]
    for name in names:
        command, full = group.commands[name], f"{path} {name}"
        if hasattr(command, "commands"):
            yield from _group(command, full, list(command.commands))
        else:
            yield from _command(command, full)


def _command(command: Any, path: str) -> Iterator[str]:
    arguments = [p for p in command.params if p.param_type_name == "argument"]
    options = [
        p
        for p in command.params
        if p.param_type_name == "option" and p.name != "help" and not p.hidden
    ]
    yield ""
    yield f"## {path}"
    yield ""
    yield " ".join([f"    {path}", *(a.metavar for a in arguments), "[OPTIONS]"])
    yield ""
    yield _joined(command.help)
    yield ""
    yield "| | |"
    yield "|---|---|"
    for argument in arguments:
        yield f"| `{_escaped(argument.metavar)}` | {_escaped(argument.help)} |"
    for option in options:
        flag = "/".join((*option.opts, *option.secondary_opts))
        value = "" if option.is_flag else f" {option.metavar}"
        usual = _usual(option)
        yield f"| `{flag}{_escaped(value)}` | {_escaped(_joined(option.help))}{usual} |"


def _usual(option: Any) -> str:
    if option.default is None or option.default is False or "[default" in (option.help or ""):
        return ""
    return f" Default: `{option.default}`."


def _library() -> Iterator[str]:
    yield "# The library"
    yield ""
    yield "`import elman` is quick: what needs torch is imported when it is first used."
    yield from _function("elman.load", elman.load)
    yield from _function("elman.mix", elman.mix)
    yield from _function("elman.train_lm", elman.train_lm)
    yield from _function("elman.train_model", elman.train_model)
    yield from _function("elman.train_ngram", elman.train_ngram)
    yield from _function("elman.convert", elman.convert)
    for handle in HANDLES:
        yield ""
        yield f"## elman.{handle.__name__}"
        yield ""
        yield _joined(handle.__doc__)
        for name, method in vars(handle).items():
            if not name.startswith("_") and inspect.isfunction(method):
                yield from _function(f"{handle.__name__}.{name}", method)
    for result in (Completion, Row, Evaluation, MixtureFit):
        yield from _table(result.__name__, result, "", header="field", defaults=False)
    yield ""
    yield "## Errors"
    yield ""
    yield f"`elman.ElmanError`: {_joined(elman.ElmanError.__doc__)}"
    yield ""
    yield f"`elman.UsageError`: {_joined(elman.UsageError.__doc__)}"
    yield ""
    yield "Both have a `message` and a `hint`. Anything else that is raised is a bug in Elman."


def _function(name: str, function: Any) -> Iterator[str]:
    signature = inspect.signature(function)
    listed = []
    for parameter in signature.parameters.values():
        if parameter.kind is parameter.KEYWORD_ONLY and "*" not in listed:
            listed.append("*")
        stars = "**" if parameter.kind is parameter.VAR_KEYWORD else ""
        usual = "" if parameter.default is parameter.empty else f" = {parameter.default!r}"
        if parameter.name != "self":
            listed.append(f"{stars}{parameter.name}: {parameter.annotation}{usual}")
    yield ""
    yield f"### {name}"
    yield ""
    yield "```"
    yield f"{name}({', '.join(listed)}) -> {signature.return_annotation}"
    yield "```"
    yield ""
    yield inspect.getdoc(function) or ""


def _settings() -> Iterator[str]:
    yield "# Settings"
    yield ""
    yield "Every setting of a run, by the dotted name that `--set` takes. In a recipe file the"
    yield "part before the dot is a table. `elman config show` prints them for a recipe or a run."
    yield from _table("The run", RunConfig, "", leave_out=PARTS)
    yield from _table("data", DataConfig, "data.")
    yield from _table("tokenizer", TokenizerConfig, "tokenizer.")
    for kind in MODELS:
        config = look_up(MODELS, kind, "model")
        yield from _table(f"model, kind = {kind}", config, "model.")
    yield from _table("model.character_cnn", CharacterCNNConfig, "model.character_cnn.")
    for kind in HEADS:
        config = look_up(HEADS, kind, "head")
        yield from _table(f"model.head, kind = {kind}", config, "model.head.")
    yield from _table("objective", ObjectiveConfig, "objective.")
    yield from _table("optimiser", OptimiserConfig, "optimiser.")
    yield from _table("schedule", ScheduleConfig, "schedule.")
    yield from _table("training", LaneTrainingConfig, "training.")
    yield ""
    yield from _decoding()


def _decoding() -> Iterator[str]:
    yield "# Decoding options"
    yield ""
    yield _joined(DecodeOptions.__doc__)
    yield "In Python they are keywords of `LM.generate` and `LM.complete`, on the command line"
    yield "options of `elman generate`, over HTTP fields of `/v1/completions`, with the default and"
    yield "the range in brackets where these differ."
    yield ""
    yield "| Python | command line | HTTP | default | range | what it means |"
    yield "|---|---|---|---|---|---|"
    prose = {setting.name: _joined(setting.prose) for setting in describe(DecodeOptions)}
    for option in fields(DecodeOptions):
        facts = option.metadata
        default = DecodeOptions().__dict__[option.name]
        cells = [
            f"`{option.name}`",
            _flag(option.name, facts),
            _http(option.name, facts, default),
            "" if default is None else f"`{_value(default)}`",
            _range(facts["low"], facts["high"]),
            _escaped(prose[option.name]),
        ]
        yield f"| {' | '.join(cells)} |"


def _flag(name: str, facts: Mapping[str, Any]) -> str:
    if facts["command"] is None:
        return ""
    flag = f"`{facts['flag'] or '--' + name.replace('_', '-')}`"
    return flag if facts["command"] == "generate" else f"{flag} of `{facts['command']}`"


def _http(name: str, facts: Mapping[str, Any], default: Any) -> str:
    field = http_fields().get(name)
    if field is None:
        return ""
    differences = []
    if field.default is not None and field.default != default:
        differences.append(f"`{field.default}`")
    limits = _range(field.limits.get("ge", -inf), field.limits.get("le", inf))
    if limits != _range(facts["low"], facts["high"]):
        differences.append(limits or "any")
    return f"`{field.name}`" + (f" ({', '.join(differences)})" if differences else "")


def _range(low: float, high: float) -> str:
    if isinf(low):
        return ""
    return f"{low:g} or more" if isinf(high) else f"{low:g} to {high:g}"


PARTS = ("data", "tokenizer", "model", "objective", "optimiser", "schedule", "training")


def _table(
    title: str,
    config: type[Any],
    prefix: str,
    *,
    leave_out: tuple[str, ...] = (),
    header: str = "setting",
    defaults: bool = True,
) -> Iterator[str]:
    yield ""
    yield f"## {title}"
    yield ""
    yield _joined(config.__doc__)
    yield ""
    yield f"| {header} |{' default |' if defaults else ''} what it means |"
    yield "|---|---|---|" if defaults else "|---|---|"
    for setting in describe(config):
        if setting.name not in leave_out:
            default = "" if setting.default is None else f"`{_value(setting.default)}`"
            middle = f" {default} |" if defaults else ""
            yield f"| `{prefix}{setting.name}` |{middle} {_escaped(_joined(setting.prose))} |"


def _recipes() -> Iterator[str]:
    yield "# Recipes"
    yield ""
    yield "Built-in recipes, for `--recipe NAME`. Each is a TOML file whose values lie over the"
    yield "defaults; `elman config show NAME` prints the whole."
    for name, description in recipes.names().items():
        text = (files("elman.recipes") / f"{name}.toml").read_text(encoding="utf-8")
        yield ""
        yield f"## {name}"
        yield ""
        yield f"{description[:1].upper()}{description[1:]}."
        yield ""
        yield "```toml"
        yield text.partition("\n")[2].strip()
        yield "```"


def _corpora() -> Iterator[str]:
    yield "# Built-in corpora"
    yield ""
    yield "Names that can stand wherever text files are asked for. Nothing is downloaded: the text"
    yield "comes with Python or with a small package of the `corpora` extra."
    yield ""
    yield "| name | what it is | comes with |"
    yield "|---|---|---|"
    for name, corpus in CORPORA.items():
        origin = ", ".join(corpus.packages) or "Python"
        yield f"| `{name}` | {_escaped(corpus.description)} | {origin} |"


def _value(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} = {_value(inner)}" for key, inner in value.items()) or "{}"
    return str(value).lower() if isinstance(value, bool) else str(value)


def _joined(text: str | None) -> str:
    """Text without its line breaks; paragraphs become sentences that follow each other."""
    return " ".join((text or "").split())


def _escaped(text: str | None) -> str:
    return (text or "").replace("|", "\\|").replace("<", "&lt;")


def main() -> None:
    """Write the pages."""
    REFERENCE.mkdir(exist_ok=True)
    for name, text in pages().items():
        (REFERENCE / name).write_text(text, encoding="utf-8")
        print(REFERENCE / name)


if __name__ == "__main__":
    main()
