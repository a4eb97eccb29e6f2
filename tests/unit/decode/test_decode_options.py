from __future__ import annotations

import ast
import math
import re
from dataclasses import fields
from pathlib import Path
from typing import Any, get_type_hints

import pytest

import elman
from elman.base.config import describe, from_dict, to_dict
from elman.base.errors import UsageError
from elman.cli.main import program
from elman.decode.options import (
    DecodeKeywords,
    DecodeOptions,
    conditional_options,
    http_fields,
    read_options,
)

SOURCES = Path(elman.__file__).parent
NAMES = {option.name for option in fields(DecodeOptions)}
ELSEWHERE = {"seed", "temperature", "greedy", "max_tokens", "num_samples", "beam_size", "unk"}
"""Names that also mean other things, or that callers set; the others stand in decode/ alone."""
BY_NAME = {"logit_bias": 5}
"""Files outside decode/ that check or set it: the server and two benchmarks."""


@pytest.mark.parametrize(
    "settings",
    [
        {"max_tokens": 0},
        {"num_samples": 0},
        {"beam_size": 0},
        {"top_k": -1},
        {"seed": -1},
        {"temperature": -0.1},
        {"temperature": math.nan},
        {"temperature": math.inf},
        {"top_p": 1.5},
        {"min_p": -0.1},
        {"length_penalty": -1.0},
        {"frequency_penalty": 3.0},
        {"presence_penalty": -2.5},
        {"logit_bias": {"a": 1.0}},
        {"logit_bias": {1: math.nan}},
        {"beam_size": 2, "num_samples": 3},
        {"beam_size": 2, "temperature": 0.5},
        {"beam_size": 2, "top_k": 5},
        {"beam_size": 2, "greedy": True},
    ],
)
def test_impossible_settings_are_refused_with_a_hint(settings: dict[str, Any]) -> None:
    with pytest.raises(UsageError) as caught:
        DecodeOptions(**settings)
    assert (
        list(settings)[-1].split("_")[0] in caught.value.message or "beam" in caught.value.message
    )
    assert caught.value.hint


def test_temperature_zero_means_greedy() -> None:
    assert DecodeOptions(temperature=0.0).is_greedy
    assert DecodeOptions(greedy=True).is_greedy
    assert not DecodeOptions().is_greedy


def test_reads_back_what_json_writes() -> None:
    config = DecodeOptions(logit_bias={3: -100.0}, top_p=0.9, seed=1)
    data = to_dict(config)
    data["logit_bias"] = {str(token): value for token, value in data["logit_bias"].items()}
    assert from_dict(DecodeOptions, data) == config


def test_every_setting_is_explained() -> None:
    assert all(setting.prose for setting in describe(DecodeOptions))


@pytest.mark.parametrize("name", sorted(NAMES - ELSEWHERE))
def test_no_other_file_spells_an_option(name: str) -> None:
    files = [
        str(path.relative_to(SOURCES))
        for path in SOURCES.rglob("*.py")
        if path.relative_to(SOURCES).parts[0] not in ("decode", "lab")  # experiments on decoding
        and path.relative_to(SOURCES).parts[:2] != ("bench", "faults")  # hostile clients
        and re.search(rf"\b{name}\b|--{name.replace('_', '-')}\b", path.read_text("utf-8"))
    ]
    assert len(files) <= BY_NAME.get(name, 0), files


def test_no_other_file_lists_options() -> None:
    """A signature or class body with several of them would be a second copy."""
    copies = []
    for path in SOURCES.rglob("*.py"):
        if path.relative_to(SOURCES).parts[0] == "decode":
            continue
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            found: set[Any] = set()
            if isinstance(node, ast.FunctionDef):
                found = {a.arg for a in (*node.args.args, *node.args.kwonlyargs)}
            elif isinstance(node, ast.ClassDef):
                found = {
                    getattr(s.target, "id", "") for s in node.body if isinstance(s, ast.AnnAssign)
                }
            if len(found & (NAMES - {"seed"})) > 1:
                copies.append((path.name, node.lineno))
    assert not copies


def test_generate_offers_the_options() -> None:
    commands = program().commands
    flags = {param.name: param.opts[0] for param in commands["generate"].params}
    for option in fields(DecodeOptions):
        expected = option.metadata["flag"] or f"--{option.name.replace('_', '-')}"
        wanted = expected if option.metadata["command"] == "generate" else None
        assert flags.get(option.name) == wanted
    assert "coverage_penalty" in {param.name for param in commands["translate"].params}


def test_requests_offer_the_options() -> None:
    from elman.serve.http.schema import CompletionRequest

    properties = CompletionRequest.model_json_schema()["properties"]
    for option, field in http_fields().items():
        described = properties[field.name]
        assert described["default"] == field.default
        limits = described["anyOf"][0]
        assert limits.get("minimum") == field.limits.get("ge"), option
        assert limits.get("maximum") == field.limits.get("le"), option
    body = CompletionRequest.model_validate({"n": 2, "temperature": None, "min_p": 0.5})
    options = body.decoding()
    assert (options["num_samples"], options["temperature"], options["max_tokens"]) == (2, 1.0, 16)
    assert options["min_p"] == 0.5


def test_a_misspelled_option_proposes_the_nearest() -> None:
    with pytest.raises(UsageError) as caught:
        read_options({"temperatur": 0.5})
    assert caught.value.hint == "did you mean 'temperature'?"


def test_options_without_effect_are_refused() -> None:
    with pytest.raises(UsageError, match="greedy"):
        read_options({"greedy": True, "top_p": 0.5})
    with pytest.raises(UsageError, match="length_penalty"):
        conditional_options({"greedy": True, "length_penalty": 0.5})


@pytest.mark.parametrize(
    ("given", "beam_size"),
    [({}, 5), ({"num_samples": 8}, 8), ({"greedy": True}, 1), ({"seed": 1}, 1)],
)
def test_conditional_models_search_unless_they_draw(given: dict[str, Any], beam_size: int) -> None:
    options = conditional_options(given)
    assert options.beam_size == beam_size
    assert options.length_penalty == 1.0


def test_the_keywords_are_the_fields() -> None:
    keywords = get_type_hints(DecodeKeywords)
    assert keywords == get_type_hints(DecodeOptions)
    assert not DecodeKeywords.__required_keys__


def test_unknown_words_are_ruled_out_unless_asked_for() -> None:
    assert DecodeOptions().without_unknown(1).logit_bias == {1: -math.inf}
    for options in (DecodeOptions(unk=True), DecodeOptions(logit_bias={1: 0.0})):
        assert options.without_unknown(1) is options
    options = DecodeOptions()
    assert options.without_unknown(None) is options
