from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from elman.base.errors import ElmanError, UsageError
from elman.batches.conditional import conditional_batch
from elman.decode.options import DecodeOptions
from elman.evaluate import conditional
from elman.evaluate.conditional import predict
from elman.evaluate.generated_text import score
from elman.models.decoder import DecoderConfig
from elman.models.interface import reading
from elman.tasks.translation import evaluation as translation
from elman.tasks.translation.evaluation import (
    Alignment,
    LengthGroup,
    alignment,
    longest_translation,
    score_by_length,
    translate,
)
from elman.tasks.translation.model import SequenceToSequence, SequenceToSequenceConfig
from elman.tasks.translation.pictures import draw_alignment, draw_by_length
from elman.tasks.translation.vocabulary import TokenizerPair
from elman.tokens.tokenizer_config import TokenizerConfig
from elman.tokens.train import train_tokenizer

LINES = ["two dogs run", "", "a man", "a  woman sees two dogs and a man", "   "]


@pytest.fixture(scope="module")
def tokenizers(tmp_path_factory: pytest.TempPathFactory) -> TokenizerPair:
    """Bytes to read, characters to write: two vocabularies that nobody could confuse."""
    path = tmp_path_factory.mktemp("text") / "target.txt"
    path.write_text("zwei Hunde rennen\nein Mann\neine Frau\n", encoding="utf-8")
    byte, char = (
        train_tokenizer([path], TokenizerConfig(kind=kind))[0]  # type: ignore[arg-type]
        for kind in ("byte", "char")
    )
    return TokenizerPair(byte, char)


@pytest.fixture(scope="module")
def model(tokenizers: TokenizerPair) -> SequenceToSequence:
    torch.manual_seed(0)
    decoder = DecoderConfig(hidden_size=8, embedding_size=6, attention="bilinear")
    model = SequenceToSequenceConfig(decoder=decoder).build(
        tokenizers.target.vocab_size, source_vocab_size=tokenizers.source.vocab_size
    )
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.7)
    return model.eval()


@pytest.mark.parametrize(
    "config",
    [
        DecodeOptions(beam_size=3, num_samples=2),
        DecodeOptions(greedy=True),
        DecodeOptions(seed=4, num_samples=2),
    ],
)
def test_lines_together_are_translated_as_each_alone(
    model: SequenceToSequence, tokenizers: TokenizerPair, config: DecodeOptions
) -> None:
    together = translate(model, tokenizers, LINES, config)
    assert [len(each) for each in together] == [config.num_samples] * len(LINES)
    assert [t.text for t in together[1] + together[4]] == [""] * 2 * config.num_samples
    for line, found in zip(LINES, together, strict=True):
        limit = longest_translation(len(tokenizers.encode_source(line)))
        assert all(t.tokens <= limit for t in found)
        if config.seed is None:
            (alone,) = translate(model, tokenizers, [line], config)
            assert [t.text for t in alone] == [t.text for t in found]
            assert [t.score for t in alone] == pytest.approx([t.score for t in found], rel=1e-4)
    assert together == translate(model, tokenizers, LINES, config)


def test_the_log_probability_is_that_of_the_words(
    model: SequenceToSequence, tokenizers: TokenizerPair
) -> None:
    ((best,),) = translate(model, tokenizers, ["a man"], DecodeOptions(beam_size=4), max_tokens=6)
    ids = tokenizers.target.encode(best.text).tolist()
    ended = [*ids, 0] if best.finish_reason == "stop" else ids
    tokens_BT, targets_BT = torch.tensor([[0, *ended[:-1]]]), torch.tensor([ended])
    with reading(model):
        state = model.condition(torch.tensor([tokenizers.encode_source("a man")]))
        logprobs_BT, _ = model.logprobs(tokens_BT, targets_BT, state)
    assert best.logprob == pytest.approx(float(logprobs_BT.sum()), rel=1e-4)
    assert best.tokens == len(ended) <= 6


def test_a_very_long_line_gets_a_translation(
    model: SequenceToSequence, tokenizers: TokenizerPair
) -> None:
    """Ten thousand words, fifty thousand bytes: the translation is cut off, memory is not."""
    ((best,),) = translate(
        model, tokenizers, ["long " * 10_000], DecodeOptions(beam_size=2), max_tokens=5
    )
    assert best.tokens <= 5
    assert longest_translation(50_000) == translation.MOST_TOKENS


def test_prediction_by_hand(model: SequenceToSequence, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nats and hits over padded batches, long texts in chunks, equal the sums row by row."""
    sources = [[3, 4, 0], [5, 0], [6, 7, 8, 9, 0]]
    texts = [[2, 3], [4, 5, 6, 7, 8], [9]]

    def make(indices: list[int]) -> object:
        rows = [torch.tensor(sources[i]) for i in indices]
        padded = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
        lengths = torch.tensor([len(row) for row in rows])
        mask_BS = torch.arange(padded.shape[1]) < lengths[:, None]
        return conditional_batch((padded, mask_BS), [texts[i] for i in indices], 0)

    nats, correct = 0.0, 0
    with reading(model):
        for source, text in zip(sources, texts, strict=True):
            state = model.condition(torch.tensor([source]))
            for token, target in zip([0, *text], [*text, 0], strict=True):
                logprobs_BV, state = model.step(torch.tensor([token]), state)
                nats -= float(logprobs_BV[0, target])
                correct += int(logprobs_BV[0].argmax()) == target
    monkeypatch.setattr(conditional, "CHUNK_LENGTH", 2)
    monkeypatch.setattr(conditional, "DISTRIBUTION_SIZE", 3 * model.vocab_size)
    found = predict(model, [make([0, 2]), make([1])])  # type: ignore[list-item]
    assert found.tokens == 11
    assert found.nats_per_token == pytest.approx(nats / 11, rel=1e-5)
    assert found.accuracy == pytest.approx(correct / 11)
    assert found.perplexity == pytest.approx(math.exp(nats / 11), rel=1e-5)
    with pytest.raises(ElmanError, match="nothing to evaluate"):
        predict(model, [])


def test_scores_are_sacrebleus() -> None:
    pytest.importorskip("sacrebleu")
    references = ["Zwei Hunde rennen über die Wiese.", "Ein Mann sitzt auf einer Bank."]
    same = score(references, references)
    assert same.bleu == pytest.approx(100)
    assert same.chrf == pytest.approx(100)
    assert "tok:13a" in same.bleu_signature
    assert same.chrf_signature.startswith("nrefs:1")
    worse = score(
        ["Zwei Hunde rennen über die Wiese", "Ein Mann sitzt auf einer Wiese."], references
    )
    assert 0 < worse.bleu < 100


def test_groups_by_length_have_every_sentence_once() -> None:
    pytest.importorskip("sacrebleu")
    lengths = [3] * 4 + [8] * 30 + [13] * 20 + [17] * 2 + [60]
    sources = [" ".join(["w"] * length) for length in lengths]
    targets = [" ".join(f"t{i}" for i in range(length)) for length in lengths]
    groups = score_by_length(sources, targets, targets)
    assert [(g.shortest, g.longest, g.sentences) for g in groups] == [(3, 8, 34), (13, 60, 23)]
    assert [g.bleu for g in groups] == pytest.approx([100, 100])


def test_alignments_are_distributions_over_the_source(
    model: SequenceToSequence, tokenizers: TokenizerPair, tmp_path: Path
) -> None:
    found = alignment(model, tokenizers, "a man", DecodeOptions(beam_size=2))
    assert found.source == ["a", " ", "m", "a", "n", "<eos>"]
    assert len(found.weights) == len(found.target)
    for row in found.weights:
        assert len(row) == 6
        assert math.fsum(row) == pytest.approx(1, abs=1e-5)
    pytest.importorskip("matplotlib")
    draw_alignment(found, tmp_path / "a.png")
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(UsageError, match=r"a\.xyz"):
        draw_alignment(found, tmp_path / "a.xyz")
    draw_by_length({"a": []}, tmp_path / "new" / "b.png")
    assert (tmp_path / "new" / "b.png").is_file()
    with pytest.raises(ElmanError, match=r"a\.png"):
        draw_by_length({"a": []}, tmp_path / "a.png" / "b.png")


def test_lengths_in_a_picture_are_those_of_the_groups(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    found = [
        LengthGroup(shortest=low, longest=high, sentences=20, bleu=30.0)
        for low, high in ((4, 10), (11, 15))
    ]
    draw_by_length({"a": found, "b": found}, tmp_path / "a.svg")
    drawn = (tmp_path / "a.svg").read_text(encoding="utf-8")
    assert drawn.count("4 to 10") == drawn.count("11 to 15") == 1


def test_a_line_end_in_a_picture_is_spelled(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    draw_alignment(Alignment(["a", "\n"], ["b"], [[0.5, 0.5]]), tmp_path / "a.svg")
    assert (tmp_path / "a.svg").stat().st_size > 0
