"""Scoring with only the last K tokens, against the definition: one window per token."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from elman import testing
from elman.base.errors import UsageError
from elman.batches.encoded import EncodedText
from elman.evaluate import last_tokens
from elman.evaluate.last_tokens import with_context
from elman.evaluate.perplexity import evaluate
from elman.evaluate.sequences import score_tokens
from elman.evaluate.surprisal import surprisals
from elman.models.interface import LanguageModel, reading
from elman.models.mixture import Mixture
from elman.models.recurrent import RecurrentLM
from elman.ngrams.counting import count
from elman.ngrams.smoothing import build
from elman.tasks.counted_model import CountedLM
from elman.tasks.ngram.settings import NgramConfig
from elman.tokens.tokenizer import Tokenizer
from tiny_models import TINY

NAMES = ("lstm", "gru torch", "sru", "rnn sigmoid", "window", "maxent")
VOCAB = 9
IDS = np.random.default_rng(3).integers(1, VOCAB, size=40)


def ngrams(smoothing: str = "kneser-ney", order: int = 4) -> CountedLM[Any]:
    text = np.random.default_rng(1).integers(0, VOCAB, size=400)
    trie = count(text, order, vocab_size=VOCAB, boundary_id=0)
    return CountedLM(build(trie, NgramConfig(order=order, smoothing=smoothing)))  # type: ignore[arg-type]


def network(name: str) -> Any:
    torch.manual_seed(0)
    model = TINY[name].build(VOCAB).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.uniform_(-1, 1)
    return model


def models() -> dict[str, Callable[[], LanguageModel]]:
    found: dict[str, Any] = {
        name: (lambda name=name: network(name)) for name in NAMES if name in TINY
    }
    found["ngram"] = ngrams
    found["mixture"] = lambda: Mixture([network("lstm"), ngrams()], [0.4, 0.6])
    return found


def one_by_one(model: LanguageModel, ids: list[int], context: int) -> list[float]:
    """The definition: for each token a state of its own, and a call."""
    read = [0, *ids]
    found = []
    with reading(model):
        for place in range(1, len(read)):
            state, logprobs_1V = model.initial_state(1), torch.empty(0)
            for token in read[max(0, place - context) : place]:
                logprobs_1V, state = model.step(torch.tensor([token]), state)
            found.append(float(logprobs_1V[0, read[place]]))
    return found


@pytest.mark.parametrize("context", [1, 2, 5])
@pytest.mark.parametrize("name", list(models()))
def test_each_token_is_predicted_from_its_own_window(
    name: str, context: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(last_tokens, "TOKENS_PER_PASS", 64)  # several passes
    model = models()[name]()
    limited = with_context(model, context)
    sequences = [IDS.tolist(), IDS[:3].tolist(), IDS[:21].tolist()]
    found, _ = score_tokens(limited, sequences, previous=0)
    for ids, scores in zip(sequences, found, strict=True):
        assert scores.logprobs == pytest.approx(one_by_one(model, ids, context), abs=1e-4)
    encoded = EncodedText(IDS.astype(np.uint16), num_bytes=100)
    expected = -math.fsum(found[0].logprobs) / len(IDS)
    for batch_size in (None, 1, 3):
        measured = evaluate(model, encoded, boundary_id=0, batch_size=batch_size, context=context)
        assert measured.tokens == len(IDS)
        assert measured.nats_per_token == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("name", list(models()))
def test_a_context_as_long_as_the_text_is_no_limit(name: str) -> None:
    model = models()[name]()
    (usual,), _ = score_tokens(model, [IDS], previous=0)
    for context in (len(IDS), len(IDS) + 1, 10**9):
        (found,), _ = score_tokens(with_context(model, context), [IDS], previous=0)
        assert found.logprobs == pytest.approx(usual.logprobs, abs=1e-5)
    assert with_context(model, None) is model


def test_chunks_and_members_see_the_same_windows() -> None:
    limited = with_context(network("lstm"), 6)
    members_V = torch.arange(VOCAB) % 2 == 0
    (whole,), _ = score_tokens(limited, [IDS], previous=0, members_V=members_V)
    (first,), state = score_tokens(limited, [IDS[:4]], previous=0, members_V=members_V)
    (rest,), _ = score_tokens(
        limited, [IDS[4:]], previous=int(IDS[3]), state=state, members_V=members_V
    )
    assert first.logprobs + rest.logprobs == pytest.approx(whole.logprobs, abs=1e-5)
    assert first.member_logprobs and rest.member_logprobs and whole.member_logprobs
    joined = first.member_logprobs + rest.member_logprobs
    assert joined == pytest.approx(whole.member_logprobs, abs=1e-5)


def test_a_shorter_context_shortens_the_history_of_an_ngram_model() -> None:
    """K = 1 of maximum likelihood is the model of bigrams."""
    long, short = ngrams("maximum-likelihood", 4), ngrams("maximum-likelihood", 2)
    ids = np.random.default_rng(1).integers(0, VOCAB, size=400)[:50]  # seen: no zeros
    (found,), _ = score_tokens(with_context(long, 1), [ids], previous=0)
    (expected,), _ = score_tokens(short, [ids], previous=0)
    assert found.logprobs == pytest.approx(expected.logprobs, abs=1e-5)
    assert with_context(long, 3) is long


def test_wrapping_leaves_the_model_in_its_mode() -> None:
    model = network("lstm")
    for training in (True, False):
        model.train(training)
        score_tokens(with_context(model, 2), [IDS], previous=0)
        assert model.training == training


@pytest.mark.parametrize("unit", ["token", "word", "line"])
@pytest.mark.parametrize("kind", ["char", "byte", "word", "pretokenized", "bpe"])
def test_all_units_of_all_tokenizers(
    kind: str,
    unit: str,
    tokenizers: dict[str, Tokenizer],
    network: Callable[[int], RecurrentLM],
) -> None:
    tokenizer = tokenizers[kind]
    model = network(tokenizer.vocab_size)
    text = "the cats sat on a mat\nthe student opened the books\n"

    def totals(**options: Any) -> list[float]:
        rows = surprisals(model, tokenizer, text, unit=unit, base="e", **options)
        lines: dict[int, list[float]] = {}
        for row in rows:
            lines.setdefault(row.line, []).append(row.surprisal or 0.0)
        return [math.fsum(line) for line in lines.values()]

    assert totals(context=10_000) == pytest.approx(totals(), abs=1e-4)
    tokens = list(surprisals(model, tokenizer, text, unit="token", base="e", context=2))
    expected = [math.fsum(r.surprisal or 0.0 for r in tokens if r.line == n) for n in (1, 2)]
    assert totals(context=2) == pytest.approx(expected, abs=1e-4)
    assert totals(context=2) != pytest.approx(totals(), abs=1e-2)


@pytest.mark.parametrize("context", [0, -1, 2.5, "3"])
def test_a_context_is_a_positive_number(context: Any) -> None:
    with pytest.raises(UsageError):
        with_context(testing.build(TINY["lstm"]), context)
