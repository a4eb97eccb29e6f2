"""`elman generate`: what a continuation is, however it is made."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import elman as library
from elman.evaluate.sequences import score_tokens

Elman = Callable[..., Any]


def test_json_shape(elman: Elman, model: Path) -> None:
    found = elman("generate", model, "the ", "--max-tokens", 12, "--num-samples", 3, "--json").json
    assert len(found) == 3
    for entry in found:
        assert set(entry) == {"text", "tokens", "finish_reason", "logprob"}
        assert entry["tokens"] == 12
        assert len(entry["text"]) == 12
        assert entry["finish_reason"] == "length"
        assert entry["logprob"] < 0


def test_one_seed_one_text(elman: Elman, model: Path) -> None:
    command = ("generate", model, "the ", "--max-tokens", 40)
    first, second = (elman(*command, "--seed", 7).out for _ in range(2))
    other = elman(*command, "--seed", 8).out
    assert first == second
    assert first != other
    assert elman(*command, "--seed", 7, "--json").json[0]["text"] + "\n" == first


def test_a_row_does_not_depend_on_the_batch(elman: Elman, model: Path) -> None:
    command = ("generate", model, "the ", "--max-tokens", 20, "--json")
    several = elman(*command, "--seed", 7, "--num-samples", 3).json
    alone = elman(*command, "--seed", 8).json
    assert several[1]["text"] == alone[0]["text"]


def test_logprob_is_that_of_scoring(elman: Elman, model: Path) -> None:
    entry = elman("generate", model, "the ", "--max-tokens", 10, "--seed", 1, "--json").json[0]
    lm = library.load(model)
    ids = lm.tokenizer.encode("the " + entry["text"])
    (scores,), _ = score_tokens(lm.model, [ids], previous=lm.tokenizer.boundary_id)
    assert entry["logprob"] == pytest.approx(sum(scores.logprobs[len("the ") :]), abs=1e-4)


def test_greedy_is_beam_of_one_is_temperature_zero(elman: Elman, model: Path) -> None:
    command = ("generate", model, "the ", "--max-tokens", 15)
    greedy = elman(*command, "--greedy").out
    assert elman(*command, "--temperature", 0).out == greedy
    assert elman(*command, "--top-k", 1).out == greedy


def test_beam_finds_something_at_least_as_probable(elman: Elman, model: Path) -> None:
    command = ("generate", model, "the ", "--max-tokens", 8, "--json")
    greedy = elman(*command, "--greedy").json[0]
    beams = elman(*command, "--beam", 4, "--num-samples", 2).json
    assert len(beams) == 2
    assert beams[0]["logprob"] >= greedy["logprob"] - 1e-4
    assert beams[0]["logprob"] >= beams[1]["logprob"] - 1e-4


def test_stop_sequences_reach_across_tokens(elman: Elman, model: Path) -> None:
    command = ("generate", model, "the ", "--max-tokens", 60, "--seed", 3, "--json")
    whole = elman(*command).json[0]["text"]
    stop = whole[20:23]  # three characters, that is three tokens
    cut = elman(*command, "--stop", stop).json[0]
    assert cut["finish_reason"] == "stop"
    assert cut["text"] == whole[: whole.index(stop)]
    assert cut["tokens"] == whole.index(stop) + 3
    streamed = elman("generate", model, "the ", "--max-tokens", 60, "--seed", 3, "--stop", stop)
    assert streamed.out == cut["text"] + "\n"


def test_stop_knows_escapes(elman: Elman, words: Path) -> None:
    entry = elman("generate", words, "the", "--stop", r"\n", "--seed", 1, "--json").json[0]
    assert "\n" not in entry["text"]
    assert entry["finish_reason"] == "stop"


def test_a_beam_ends_at_a_stop_sequence(elman: Elman, words: Path) -> None:
    command = ("generate", words, "the", "--beam", 3, "--max-tokens", 40, "--json")
    entry = elman(*command, "--stop", r"\n").json[0]
    assert entry["finish_reason"] == "stop"
    assert "\n" not in entry["text"]


def test_words_join_the_prompt_with_a_space(elman: Elman, words: Path) -> None:
    entry = elman("generate", words, "the", "--max-tokens", 1, "--greedy", "--json").json[0]
    assert entry["text"].startswith((" ", "\n"))
    echoed = elman("generate", words, "the", "--max-tokens", 1, "--greedy", "--echo").out
    assert echoed == f"the{entry['text']}\n"


def test_streaming_gives_the_same_pieces_joined(model: Path) -> None:
    lm = library.load(model)
    pieces = list(lm.generate("the ", max_tokens=30, seed=5, stream=True))
    assert len(pieces) > 5
    assert "".join(pieces) == lm.generate("the ", max_tokens=30, seed=5)


def test_prompt_from_stdin(elman: Elman, model: Path) -> None:
    command = ("--max-tokens", 10, "--seed", 1)
    given = elman("generate", model, "the student", *command).out
    assert elman("generate", model, "-", *command, stdin="the student\n").out == given


def test_several_samples_keep_figures_off_stdout(elman: Elman, model: Path) -> None:
    result = elman("generate", model, "--max-tokens", 5, "--num-samples", 2, "--seed", 1)
    assert "log probability" in result.err
    assert "log probability" not in result.out


def test_penalties_forbid_repetition(elman: Elman, words: Path) -> None:
    command = ("generate", words, "--max-tokens", 10, "--greedy", "--json")
    ids = library.load(words).tokenizer.encode(
        elman(*command, "--presence-penalty", 2, "--frequency-penalty", 2).json[0]["text"]
    )
    plain = library.load(words).tokenizer.encode(elman(*command).json[0]["text"])
    assert len(set(ids.tolist())) >= len(set(plain.tolist()))


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (("--top-p", "1.5"), "top_p"),
        (("--temperature", "-1"), "temperature"),
        (("--beam", "3", "--top-k", "5"), "beam"),
        (("--num-samples", "0"), "num_samples"),
        (("--stop", ""), "stop"),
        (("--max-tokens", "many"), "--max-tokens"),
    ],
)
def test_wrong_settings(elman: Elman, model: Path, arguments: tuple[str, ...], word: str) -> None:
    result = elman("generate", model, "the", *arguments)
    assert result.code == 2
    sentence, hint = result.error
    assert word in sentence
    assert hint


def test_quantised(elman: Elman, model: Path, toy: Path) -> None:
    """Weights of one byte: nearly the same model, and `evaluate` says how nearly."""
    said = elman("generate", model, "the ", "--max-tokens", 20, "--greedy", "--quantise", "int8")
    assert said.out.strip()
    exact = elman("evaluate", model, toy, "--json").json["perplexity"]
    both = elman("evaluate", model, toy, "--quantise", "int8", "--json").json
    assert both["exact_perplexity"] == exact != both["perplexity"]
    assert abs(both["perplexity"] / exact - 1) < 0.02
    shown = elman("evaluate", model, toy, "--quantise", "int8").out
    assert "perplexity before rounding" in shown
    wrong = elman("generate", model, "--quantise", "int3")
    assert wrong.code == 2
    assert wrong.error == ("weights cannot be quantised to 'int3'", "use int8")
