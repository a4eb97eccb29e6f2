"""Taggers for Hugging Face's transformers.

A tagger reads the spelling of every word, of unknown words too, so transformers gives it bytes: the
tokenizer splits a text into words as `elman tag` does, and each word into its bytes, of which the
first is marked. Every byte of a word gets the label of the word; `aggregation_strategy="first"` of
the pipeline puts words together. The labels of entities are in BIO, which the pipeline understands:
the probability of B-PER is that of B-PER and S-PER in BIOES, that of I-PER is that of I-PER and
E-PER.

B batch, T bytes, W words, N labels of the tagger, M labels of the folder.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import tokenizers
import torch
from tokenizers import decoders, models, pre_tokenizers
from torch import Tensor, nn

from elman.base.documents import read_json
from elman.base.errors import UsageError
from elman.nn.character_cnn import spelling_table
from elman.runs.run_folder import CONFIG_FILE, TOKENIZER_FILE
from elman.tasks.hugging_face import TOKENIZER_CONFIG_FILE, tokenizer_config
from elman.tasks.opening import OpenedRun
from elman.tasks.tagging.batches import encode_tagged, tagged_batch
from elman.tasks.tagging.model import Tagger
from elman.tasks.tagging.settings import TaggerRun
from elman.tasks.tagging.task import VOCABULARY_FILE, allowed_labels
from elman.tasks.tagging.vocabulary import TagVocabulary
from elman.tasks.task import HuggingFaceForm
from elman.tokens.bytes import byte_spellings

PADDING, UNKNOWN = "<pad>", "<unk>"
FIRST = 2
"""The ids of bytes begin here: 256 that begin a word, then 256 that continue one."""
CONTINUED = "##"
WORDS = r"[\p{L}\p{N}_]+(?:[-'’][\p{L}\p{N}_]+)*|[^\p{L}\p{N}_\s\x1c-\x1f]"
"""`text.words.split_words`, in the syntax of tokenizers."""


class ByteTagger(Tagger):
    """A tagger that reads the bytes of texts."""

    vocabulary: TagVocabulary

    def forward(self, tokens_BT: Tensor, lengths_B: Tensor) -> Tensor:
        """The log probability (B, T, M) of every label at every byte; 0 for padding."""
        device = tokens_BT.device
        words, places_BT = [], torch.zeros_like(tokens_BT)
        lengths = lengths_B.tolist()
        for row, length in enumerate(lengths):
            found, places = _words(tokens_BT[row, :length].tolist())
            words.append(found)
            places_BT[row, :length] = torch.tensor(places, device=device)
        data = encode_tagged(((some, [None] * len(some)) for some in words), self.vocabulary)
        spellings_SC = spelling_table(data.spellings, self.config.character_cnn.max_characters)
        batch = tagged_batch(data.sentences, spellings_SC).to(str(device))
        emissions_BWN = self.emissions(
            batch.words_BT, batch.spellings_BT, batch.characters_UC, batch.lengths_B
        )
        if self.crf is None:
            logprobs_BWN = emissions_BWN.log_softmax(2)
        else:
            smallest = torch.finfo(emissions_BWN.dtype).tiny
            logprobs_BWN = self.marginals(emissions_BWN, batch.mask()).clamp(min=smallest).log()
        logprobs_BWM = torch.stack(
            [logprobs_BWN[:, :, group].logsumexp(2) for group in _groups(self.vocabulary).values()],
            dim=2,
        )
        real_BT = torch.arange(tokens_BT.shape[1], device=device) < lengths_B.to(device)[:, None]
        places_BTM = places_BT.unsqueeze(2).expand(-1, -1, logprobs_BWM.shape[2])
        return logprobs_BWM.gather(1, places_BTM) * real_BT.unsqueeze(2)


def _words(tokens: list[int]) -> tuple[list[str], list[int]]:
    """The words that bytes spell, and the number of the word of each byte."""
    words, places = list[bytearray](), []
    for token in tokens:
        number = token - FIRST
        if number < 256 or not words:
            words.append(bytearray())
        if number >= 0:
            words[-1].append(number % 256)
        places.append(len(words) - 1)
    return [word.decode("utf-8", "replace") for word in words], places


def _groups(vocabulary: TagVocabulary) -> dict[str, list[int]]:
    """The labels of the folder: each with the ids of those of the tagger that it stands for."""
    found: dict[str, list[int]] = {}
    for index, label in enumerate(vocabulary.labels):
        if vocabulary.scheme is not None:
            part, dash, kind = label.partition("-")
            label = {"S": "B", "E": "I"}.get(part, part) + dash + kind
        found.setdefault(label, []).append(index)
    return found


def entries(run: OpenedRun) -> dict[str, Any]:
    if run.model.embeddings.wanted:
        raise UsageError(
            f"{run.path} reads the vectors of another model, which has no form for transformers",
            "train without --embeddings",
        )
    labels = list(_groups(run.tokenizer))
    return {
        "vocab_size": FIRST + 512,
        "hidden_size": run.config.model.hidden_size,
        "num_hidden_layers": run.config.model.num_layers,
        "pad_token_id": 0,
        "id2label": dict(enumerate(labels)),
        "label2id": {label: index for index, label in enumerate(labels)},
        "vocabulary": asdict(run.tokenizer),
    }


def build(config: TaggerRun, entries: Mapping[str, Any]) -> nn.Module:
    vocabulary = TagVocabulary.of(entries["vocabulary"], Path(CONFIG_FILE))
    sizes = vocabulary.vocab_size, len(vocabulary.labels)
    model = ByteTagger(config.model, *sizes, allowed=allowed_labels(config, vocabulary))
    model.vocabulary = vocabulary
    return model


def files(vocabulary: TagVocabulary) -> dict[str, Any]:
    # ByteLevel spells each byte as one character, so WordPiece finds no longer piece than a byte.
    spellings = byte_spellings()
    names = [PADDING, UNKNOWN, *spellings, *(CONTINUED + spelling for spelling in spellings)]
    backend = tokenizers.Tokenizer(
        models.WordPiece(
            {name: index for index, name in enumerate(names)},
            unk_token=UNKNOWN,
            continuing_subword_prefix=CONTINUED,
            max_input_chars_per_word=1 << 30,
        )
    )
    split = pre_tokenizers.Split(tokenizers.Regex(WORDS), "removed", invert=True)
    in_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.pre_tokenizer = pre_tokenizers.Sequence([split, in_bytes])
    joined = decoders.WordPiece(CONTINUED, cleanup=False)
    space = decoders.Replace(" ", spellings[ord(" ")])
    backend.decoder = decoders.Sequence([joined, space, decoders.ByteLevel()])
    settings = tokenizer_config({"pad_token": PADDING, "unk_token": UNKNOWN}, padding_side="right")
    return {TOKENIZER_FILE: json.loads(backend.to_str()), TOKENIZER_CONFIG_FILE: settings}


def restore(folder: Path, run: Path) -> TagVocabulary:
    content = read_json(folder / CONFIG_FILE)["vocabulary"]
    vocabulary = TagVocabulary.of(content, folder / CONFIG_FILE)
    vocabulary.save(run / VOCABULARY_FILE)
    return vocabulary


FORM = HuggingFaceForm(
    architecture="ElmanForTokenClassification",
    pipeline="token-classification",
    example='print(pipe("The text to tag.", aggregation_strategy="first"))',
    entries=entries,
    build=build,
    files=files,
    restore=restore,
)
