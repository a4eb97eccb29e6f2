"""Classifiers of texts for Hugging Face's transformers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import nn

from elman.base.documents import read_json
from elman.base.errors import UsageError
from elman.runs.run_folder import CONFIG_FILE
from elman.tasks.classification.settings import ClassifierRun
from elman.tasks.classification.vocabulary import LabelVocabulary
from elman.tasks.hugging_face import restore_tokenizer, tokenizer_files
from elman.tasks.opening import OpenedRun
from elman.tasks.task import HuggingFaceForm


def entries(run: OpenedRun) -> dict[str, Any]:
    model, vocabulary = run.model, run.tokenizer
    if model.joint is not None:
        raise UsageError(
            f"{run.path} labels pairs of texts, which has no form for transformers",
            "convert a classifier of single texts",
        )
    if model.embeddings.wanted:
        raise UsageError(
            f"{run.path} reads the vectors of another model, which has no form for transformers",
            "train without --embeddings",
        )
    tokenizer = vocabulary.tokenizer
    return {
        "vocab_size": tokenizer.vocab_size,
        "hidden_size": run.config.model.hidden_size,
        "num_hidden_layers": run.config.model.num_layers,
        "pad_token_id": tokenizer.boundary_id,
        "id2label": dict(enumerate(vocabulary.labels)),
        "label2id": vocabulary.label_ids,
    }


def build(config: ClassifierRun, entries: Mapping[str, Any]) -> nn.Module:
    return config.model.build(entries["vocab_size"], len(entries["id2label"]))


def files(vocabulary: LabelVocabulary) -> dict[str, Any]:
    return tokenizer_files(vocabulary.tokenizer, begins=False)


def restore(folder: Path, run: Path) -> LabelVocabulary:
    names = read_json(folder / CONFIG_FILE)["id2label"]
    labels = tuple(names[number] for number in sorted(names, key=int))
    vocabulary = LabelVocabulary(restore_tokenizer(folder, run), labels)
    vocabulary.save(run)
    return vocabulary


FORM = HuggingFaceForm(
    architecture="ElmanForSequenceClassification",
    pipeline="text-classification",
    example='print(pipe("The text to classify."))',
    entries=entries,
    build=build,
    files=files,
    restore=restore,
)
