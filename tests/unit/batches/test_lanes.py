"""Lanes: side by side they are the text, once an epoch, from whatever batch one goes on."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from elman.base.errors import ElmanError, UsageError
from elman.batches.batch import Batch
from elman.batches.encoded import EncodedText, encode_files
from elman.batches.lanes import Lanes, scoring_lanes
from elman.tokens import bytes as all_bytes
from elman.tokens.tokenizer import Tokenizer

BOUNDARY = 10**6


def text_of(num_tokens: int) -> EncodedText:
    """Ids that all differ, so that a token in the wrong place is seen."""
    return EncodedText(np.arange(1, num_tokens + 1, dtype=np.int32), num_bytes=num_tokens)


def make(num_tokens: int, batch_size: int, chunk_length: int, **settings: object) -> Lanes:
    return Lanes(
        text_of(num_tokens),
        boundary_id=BOUNDARY,
        batch_size=batch_size,
        chunk_length=chunk_length,
        **settings,  # type: ignore[arg-type]
    )


def epoch_of(lanes: Lanes) -> list[Batch]:
    batches = [next(lanes)]
    while lanes.position:
        batches.append(next(lanes))
    return batches


SIZES = {
    "num_tokens": st.integers(20, 400),
    "batch_size": st.integers(1, 12),
    "chunk_length": st.integers(1, 40),
    "vary_chunks": st.booleans(),
    "seed": st.integers(0, 5),
}


@given(**SIZES)
@settings(max_examples=150)
def test_an_epoch_of_lanes_is_the_text(
    num_tokens: int, batch_size: int, chunk_length: int, vary_chunks: bool, seed: int
) -> None:
    lanes = make(num_tokens, batch_size, chunk_length, vary_chunks=vary_chunks, seed=seed)
    for epoch in range(2):
        assert lanes.epoch == epoch
        batches = epoch_of(lanes)
        assert lanes.position == 0
        assert lanes.epoch == epoch + 1
        assert [batch.fresh for batch in batches] == [True] + [False] * (len(batches) - 1)
        targets = torch.cat([batch.targets_BT for batch in batches], dim=1)
        tokens = torch.cat([batch.tokens_BT for batch in batches], dim=1)
        assert targets.dtype == tokens.dtype == torch.int64
        length = num_tokens // batch_size
        whole = np.arange(1, length * batch_size + 1)
        assert targets.flatten().tolist() == whole.tolist()
        assert tokens.flatten().tolist() == [BOUNDARY, *whole[:-1].tolist()]
        assert targets.numel() == lanes.tokens_per_epoch
        assert all(batch.mask_BT is None for batch in batches)
        longest = chunk_length + (20 if vary_chunks else 0)
        assert all(batch.targets_BT.shape[1] <= max(5, longest) for batch in batches)


@given(**SIZES, taken=st.integers(0, 60))
@settings(max_examples=100)
def test_going_on_from_any_batch_gives_the_same_batches(
    num_tokens: int, batch_size: int, chunk_length: int, vary_chunks: bool, seed: int, taken: int
) -> None:
    lanes = make(num_tokens, batch_size, chunk_length, vary_chunks=vary_chunks, seed=seed)
    for _ in range(taken):
        next(lanes)
    saved = json.loads(json.dumps(lanes.state_dict()))
    resumed = make(num_tokens, batch_size, chunk_length, vary_chunks=vary_chunks, seed=seed)
    resumed.load_state_dict(saved)
    assert (resumed.epoch, resumed.position) == (lanes.epoch, lanes.position)
    for _ in range(20):
        expected, got = next(lanes), next(resumed)
        assert torch.equal(expected.tokens_BT, got.tokens_BT)
        assert torch.equal(expected.targets_BT, got.targets_BT)
        assert expected.fresh == got.fresh


def test_chunks_vary_with_seed_and_epoch_as_in_awd_lstm() -> None:
    lanes = make(200_000, 1, 70, vary_chunks=True, seed=1)
    lengths = [batch.targets_BT.shape[1] for batch in epoch_of(lanes)]
    second = [batch.targets_BT.shape[1] for batch in epoch_of(lanes)]
    again = make(200_000, 1, 70, vary_chunks=True, seed=1)
    other = make(200_000, 1, 70, vary_chunks=True, seed=2)
    assert lengths == [next(again).targets_BT.shape[1] for _ in range(len(lengths))]
    assert lengths != second[: len(lengths)]
    assert lengths[:20] != [next(other).targets_BT.shape[1] for _ in range(20)]
    assert all(n % 5 == 0 for n in lengths[:-1])  # few shapes: a CUDA graph is captured for each
    halved = np.mean(np.array(lengths[:-1]) < 53)
    assert 0.03 < halved < 0.07
    full = [n for n in lengths[:-1] if n >= 53]
    assert 68.5 < np.mean(full) < 70.5
    assert 4.5 < np.std(full) < 5.5


def test_too_little_text_is_said() -> None:
    with pytest.raises(ElmanError, match="only 5 tokens, too few for a batch of 6") as caught:
        make(5, 6, 7)
    assert "batch_size" in caught.value.hint
    assert next(make(6, 6, 7)).targets_BT.shape == (6, 1)
    with pytest.raises(UsageError, match="at least 1"):
        make(5, 0, 7)


def test_going_on_over_another_text_or_setting_is_refused() -> None:
    state = make(300, 6, 7).state_dict()
    with pytest.raises(ElmanError, match="num_tokens was 300 and is now 301"):
        make(301, 6, 7).load_state_dict(state)
    with pytest.raises(ElmanError, match="chunk_length"):
        make(300, 6, 8).load_state_dict(state)


def test_going_on_over_a_changed_text_of_the_same_length_is_refused(tmp_path: Path) -> None:
    def over(text: EncodedText) -> Lanes:
        return Lanes(text, boundary_id=0, batch_size=2, chunk_length=3)

    def encoded(content: str) -> EncodedText:
        file = tmp_path / f"{content[:3]}.txt"
        file.write_text(content)
        return encode_files(file, Tokenizer(all_bytes.build()), cache=tmp_path).split(0.9)[0]

    for one, other in [
        (text_of(50), EncodedText(np.arange(50), num_bytes=50)),
        (encoded("one text here\n"), encoded("two text here\n")),
    ]:
        state = json.loads(json.dumps(over(one).state_dict()))
        over(one).load_state_dict(state)
        with pytest.raises(ElmanError, match=r"text_hash was .* and is now"):
            over(other).load_state_dict(state)


@given(
    num_tokens=st.integers(0, 200),
    batch_size=st.integers(1, 20),
    chunk_length=st.integers(1, 30),
    overlap=st.integers(0, 40),
)
@settings(max_examples=200)
def test_scoring_counts_every_token_once_with_its_context(
    num_tokens: int, batch_size: int, chunk_length: int, overlap: int
) -> None:
    batches = list(
        scoring_lanes(
            text_of(num_tokens),
            boundary_id=BOUNDARY,
            batch_size=batch_size,
            chunk_length=chunk_length,
            overlap=overlap,
        )
    )
    counted: list[int] = []
    for batch in batches:
        assert batch.mask_BT is not None
        assert batch.targets_BT.shape == batch.tokens_BT.shape == batch.mask_BT.shape
        assert batch.targets_BT.shape[1] <= chunk_length
        counted += batch.targets_BT[batch.mask_BT].tolist()
        before = batch.tokens_BT[batch.mask_BT].tolist()
        after = batch.targets_BT[batch.mask_BT].tolist()
        assert before == [target - 1 if target > 1 else BOUNDARY for target in after]
    assert sorted(counted) == list(range(1, num_tokens + 1))
    assert sum(batch.num_tokens for batch in batches) == num_tokens
    assert [batch.fresh for batch in batches] == [i == 0 for i in range(len(batches))]
    if not batches:
        return
    tokens = torch.cat([batch.tokens_BT for batch in batches], dim=1)
    mask = torch.cat([batch.mask_BT for batch in batches if batch.mask_BT is not None], dim=1)
    for lane, row in zip(tokens, mask, strict=True):
        first = int(row.int().argmax())
        start = int(lane[first]) % BOUNDARY
        # Each lane reads up to `overlap` tokens before the first that counts, in their order.
        assert first == min(overlap, start)
        expected = [BOUNDARY if n == 0 else n for n in range(start - first, start)]
        assert lane[:first].tolist() == expected


def test_one_scoring_lane_is_the_text_in_order() -> None:
    batches = list(
        scoring_lanes(text_of(50), boundary_id=BOUNDARY, batch_size=1, chunk_length=8, overlap=5)
    )
    targets = torch.cat([batch.targets_BT for batch in batches], dim=1)
    assert targets.tolist() == [list(range(1, 51))]
    assert all(batch.mask_BT is not None and batch.mask_BT.all() for batch in batches)


def test_reading_does_not_fill_the_memory(tmp_path: Path) -> None:
    status = Path("/proc/self/status")
    if not status.exists():
        pytest.skip("resident memory is read from /proc")

    def resident() -> int:
        line = next(line for line in status.read_text().splitlines() if "RssFile" in line)
        return int(line.split()[1]) << 10

    path = tmp_path / "text.txt"
    path.write_bytes((b"x" * 99 + b"\n") * 600_000)
    text = encode_files(path, Tokenizer(all_bytes.build()), cache=tmp_path / "cache", workers=1)
    assert text.ids.nbytes == 120_000_000
    lanes = Lanes(text, boundary_id=0, batch_size=32, chunk_length=4000)
    before, most = resident(), 0
    for batch in lanes:
        most = max(most, resident())
        assert batch.num_tokens
        if lanes.position == 0:
            break
    assert most - before < 50 << 20


@given(num_tokens=st.integers(20, 200), batch_size=st.integers(1, 6), seed=st.integers(0, 3))
@settings(max_examples=60)
def test_shuffled_lanes_are_rotated_lanes(num_tokens: int, batch_size: int, seed: int) -> None:
    """Press (2019): each lane is cut at a random point and its halves change places."""
    lanes = make(num_tokens, batch_size, 7, shuffle_lanes=True, vary_chunks=True, seed=seed)
    length = num_tokens // batch_size
    text = np.arange(1, num_tokens + 1)
    cuts = []
    for _ in range(4):
        batches = epoch_of(lanes)
        targets = torch.cat([batch.targets_BT for batch in batches], dim=1).numpy()
        tokens = torch.cat([batch.tokens_BT for batch in batches], dim=1).numpy()
        np.testing.assert_array_equal(tokens[:, 1:], targets[:, :-1])
        for lane in range(batch_size):
            own = text[lane * length : (lane + 1) * length]
            cut = int(targets[lane, 0]) - int(own[0])
            np.testing.assert_array_equal(targets[lane], np.roll(own, -cut))
            before = own[cut - 1] if cut else (own[0] - 1 if lane else BOUNDARY)
            assert tokens[lane, 0] == before
            cuts.append(cut)
    assert length * batch_size < 60 or len(set(cuts)) > 1


def test_shuffled_lanes_go_on_where_they_stopped() -> None:
    whole, broken = (make(300, 4, 7, shuffle_lanes=True, seed=3) for _ in range(2))
    for _ in range(15):
        next(whole)
    broken.load_state_dict(json.loads(json.dumps(whole.state_dict())))
    for _ in range(15):
        torch.testing.assert_close(next(whole).targets_BT, next(broken).targets_BT)
    with pytest.raises(ElmanError, match="shuffle_lanes"):
        make(300, 4, 7, seed=3).load_state_dict(whole.state_dict())
