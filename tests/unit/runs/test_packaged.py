"""The models that come with Elman: small, described, usable, and made by the command they name."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import elman
from elman.base.documents import check_page
from elman.cli.main import run
from elman.runs.packaged import MEASURERS, TALKERS, described, first, located, packaged
from elman.runs.run_folder import CARD_FILE
from elman.text.corpora import CORPORA
from elman.train.int8_files import pack, unpack

LARGEST = 3_000_000
QUICKEST = "kneser-ney-5"


def command(name: str) -> list[str]:
    """The command in the card."""
    found = re.search(r"^    elman (train .*)$", (packaged()[name] / CARD_FILE).read_text(), re.M)
    assert found is not None
    return shlex.split(found[1])


def test_they_are_small() -> None:
    assert set(packaged()) <= {*TALKERS, *MEASURERS}
    assert sum(int(str(described(run)["bytes"])) for run in packaged().values()) <= LARGEST


@pytest.mark.parametrize("name", packaged())
def test_they_are_described_and_used_by_name(name: str) -> None:
    assert check_page(packaged()[name] / CARD_FILE)
    assert command(name)[0] == "train"
    about = described(packaged()[name])
    assert float(str(about["perplexity"])) > 1
    assert about["per"] == ("character" if name == "char-lstm" else "word")
    lm = elman.load(name)
    assert len(lm.next("And God said", k=3)) == 3
    assert "<unk>" not in lm.generate("And", max_tokens=30, seed=1)
    assert lm.perplexity("And God said, Let there be light: and there was light.") < 1000


def test_a_path_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    name = first(TALKERS)
    assert located(name) == packaged()[name]
    (tmp_path / name).mkdir()
    assert located(name) == Path(name)


def test_the_quickest_is_made_again(tmp_path: Path) -> None:
    if not CORPORA["king-james"].available:
        pytest.skip("the corpus is not installed")
    assert run([*command(QUICKEST), "--out", str(tmp_path / "made"), "--json"]) == 0
    made, kept = tmp_path / "made", packaged()[QUICKEST]
    for file in ("ngram.safetensors", "tokenizer.json", "config.json"):
        assert (made / file).read_bytes() == (kept / file).read_bytes(), file
    assert described(made)["perplexity"] == described(kept)["perplexity"]


@given(st.integers(1, 6), st.integers(1, 6), st.integers(0, 99))
def test_weights_of_one_byte(rows: int, columns: int, seed: int) -> None:
    torch.manual_seed(seed)
    tensors = {"weight": torch.randn(rows, columns) * 10, "bias": torch.randn(rows)}
    packed = pack(tensors)
    assert packed["weight"].dtype == torch.int8
    found = unpack(packed)
    assert found.keys() == tensors.keys()
    assert torch.equal(found["bias"], tensors["bias"])
    step = tensors["weight"].abs().amax(dim=1, keepdim=True) / 127
    error = (found["weight"] - tensors["weight"]).abs()
    assert bool((error <= 0.5001 * step).all())
    assert np.allclose(unpack(pack(found))["weight"], found["weight"], rtol=1e-6)
