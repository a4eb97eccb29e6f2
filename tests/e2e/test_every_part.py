"""Every part of a language model in the forms of other tools: the same numbers, or a refusal.

The weights are random: some of a new model are zero, and would hide that a part is left out.
"""

from __future__ import annotations

import math
import runpy
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from elman.api import convert, load
from elman.base.errors import ElmanError
from elman.models.recurrent import RecurrentLMConfig
from elman.recipes.resolve import resolve
from elman.recipes.run import train
from elman.tasks.language_model.maxent import MaxEntLMConfig
from elman.tasks.language_model.window import WindowLMConfig
from elman.testing import TOY_TEXT
from elman.train import checkpoint
from tiny_models import TINY

KINDS = RecurrentLMConfig | WindowLMConfig | MaxEntLMConfig
MODELS = {name: config for name, config in TINY.items() if isinstance(config, KINDS)}
QUICK = {"lstm peephole", "mogrified", "sum of layers", "character cnn", "rnn and maxent"}
"""The others take a minute together."""
TEXT = "the student opened the book"
REFUSED = {
    "hf": {"rnn and maxent", "sampled and maxent", "maxent", "maxent sampled"}
    | {name for name in MODELS if name.startswith("window")},
}
REFUSED["onnx"] = REFUSED["hf"]
REFUSED["torch"] = REFUSED["hf"] | {
    *("lstm layer norm", "gru layer norm", "mogrified", "highway", "dense", "character cnn"),
    *("adaptive", "adaptive tied", "mixture of softmaxes", "mixture tied"),
    *("mingru", "mingru reference", "minlstm", "sru", "qrnn", "hgrn", "rglru"),
    *("slstm", "slstm dropped"),
}


def trained(name: str, folder: Path) -> Path:
    """A run folder of the model with random weights."""
    (folder / "toy.txt").write_text(TOY_TEXT, encoding="utf-8")
    settings = {"tokenizer.kind": "word", "training.sample_length": 0}
    task = {"window": "window", "maxent": "maxent"}.get(MODELS[name].kind, "lm")
    config = resolve(task, [str(folder / "toy.txt")], steps=1, settings=settings).config
    list(train(replace(config, model=MODELS[name]), folder / "run", device="cpu"))
    tensors, header = checkpoint.read(folder / "run" / "model.safetensors")
    torch.manual_seed(1)
    for tensor in tensors.values():
        if tensor.is_floating_point():
            tensor += 0.3 * torch.randn_like(tensor)
    checkpoint.write(folder / "run" / "model.safetensors", tensors, header)
    return folder / "run"


def in_transformers(run: Path, folder: Path) -> float:
    transformers = pytest.importorskip("transformers")
    import elman.hf  # noqa: F401

    convert(run, folder / "hf", to="hf")
    model = transformers.AutoModelForCausalLM.from_pretrained(folder / "hf")
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder / "hf")
    ids = tokenizer(TEXT, return_tensors="pt").input_ids
    return -model(ids, labels=ids).loss.item() * (ids.shape[1] - 1)


def in_onnx(run: Path, folder: Path) -> float:
    pytest.importorskip("onnxruntime")
    convert(run, folder / "model.onnx")
    return float(load(folder / "model.onnx", device="cpu").logprob(TEXT, include_end=False))


def in_torch(run: Path, folder: Path) -> float:
    convert(run, folder / "model.py")
    program = runpy.run_path(str(folder / "model.py"))
    return math.fsum(program["logprobs"](load(run).tokenizer.encode(TEXT).tolist()))


FORMS: dict[str, Callable[[Path, Path], float]] = {
    "hf": in_transformers,
    "onnx": in_onnx,
    "torch": in_torch,
}


@pytest.mark.parametrize(
    "name",
    [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in MODELS],
)
def test_a_form_has_the_same_numbers_or_is_refused(name: str, tmp_path: Path) -> None:
    run = trained(name, tmp_path)
    expected = load(run, device="cpu").logprob(TEXT, include_end=False)
    for form, measure in FORMS.items():
        before = set(tmp_path.iterdir())
        if name in REFUSED[form]:
            with pytest.raises(ElmanError) as caught:
                measure(run, tmp_path)
            assert caught.value.hint, form
            assert set(tmp_path.iterdir()) == before
        else:
            assert measure(run, tmp_path) == pytest.approx(expected, abs=1e-4), form
