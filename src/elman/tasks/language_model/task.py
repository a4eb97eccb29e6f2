"""Neural language models: choose settings, read the text, train in lanes, measure perplexity."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from elman.base.config import from_dict, merge
from elman.base.counting import counted
from elman.base.errors import ElmanError, UsageError
from elman.batches.batch import Batch
from elman.batches.encoded import EncodedText, encode_files
from elman.batches.lanes import Lanes
from elman.batches.lines import LineBatches, line_end_id, lines_of
from elman.decode.options import DecodeOptions
from elman.decode.sample import sample
from elman.evaluate.perplexity import Evaluation, evaluate
from elman.nn.state import State
from elman.objectives.regimes import training_objective
from elman.runs.card import KINDS
from elman.runs.machine import Machine
from elman.runs.run_folder import MODEL_FILE, TOKENIZER_FILE, about
from elman.tasks import Draft, OpenedModel, Proposal
from elman.tasks.language_model import automatic
from elman.tasks.language_model.settings import LanguageModelRun
from elman.tasks.language_model.starting import Earlier, load_start, propose, starting_point
from elman.tasks.opening import checked_tokenizer
from elman.tasks.task import follows_corpus
from elman.text.sources import expand
from elman.text.word_vectors import vector_size, vectors_of
from elman.tokens import choose as tokenizer_choice
from elman.tokens.tokenizer import Tokenizer
from elman.tokens.tokenizer_config import TokenizerConfig
from elman.tokens.train import train_tokenizer, with_new_words
from elman.train import checkpoint
from elman.train.trainable import Trainable, Validation
from elman.train.training_config import TrainingConfig

LEAST_TOKENS = 100
"""Less text is an error."""
PROBE_LENGTH = 128
"""Tokens per lane in the validation before training."""
SAMPLE_TEMPERATURE = 0.8
"""Temperature of the samples during training."""
Vectors = tuple[Tensor, Tensor]
"""Ids (U,) and the vectors (U, E) with which their embeddings start."""


def choose(draft: Draft, machine: Machine) -> Proposal:
    """Choose settings by the size of the text; with a recipe, at most the tokenizer."""
    if (start := starting_point(draft)) is not None:
        return propose(draft, machine, start)
    base, asked, recipe = draft.base, draft.asked, draft.recipe
    if (vectors := asked.get("model", {}).get("vectors")) and "embedding_size" not in asked[
        "model"
    ]:
        size = vector_size(Path(str(vectors)).expanduser())  # types are checked later
        asked = merge(asked, {"model": {"embedding_size": size}})
    files = expand(draft.data.train)
    tokenizer = from_dict(TokenizerConfig, merge(base, asked).get("tokenizer", {}), "tokenizer")
    kind: str = tokenizer.kind
    file = tokenizer.file
    follows = recipe is not None and follows_corpus(base)
    if recipe is not None and kind != "auto" and not follows:
        read = [] if file is None else [f"tokenizer {kind}: read from {file}"]
        return Proposal(base, asked, lambda config: read)
    choice = tokenizer_choice.choose(files)
    if recipe is not None:
        reasons = [] if file is None else [f"tokenizer {kind}: read from {file}"]
        if kind == "auto":
            found = {"kind": choice.kind, "vocab_size": choice.vocab_size}
            reasons = [choice.reason]
            base, kind = merge(base, {"tokenizer": found}), choice.kind
        base, notes = automatic.derived(base, automatic.Text(choice, kind, file), asked)
        return Proposal(base, asked, lambda config: [*reasons, *notes])
    text = automatic.Text(choice, choice.kind if kind == "auto" else kind, file)
    length = asked.get("training", {})
    machine = machine.timed() if length.get("minutes") else machine
    has_valid = bool(draft.data.valid)
    chosen = automatic.settings(text, machine, has_valid, length, draft.read_recipe)
    model = asked.get("model", {})
    if model.get("vectors"):
        # A tied output layer would need units of the same width.
        chosen["model"]["tied"] = False
    if "hidden_size" in model and "embedding_size" not in model and chosen["model"]["tied"]:
        # Tying, an automatic choice, requires equal sizes.
        chosen["model"]["embedding_size"] = model["hidden_size"]
    plan = automatic.Plan.of(text, machine, has_valid, length)
    return Proposal(chosen, asked, lambda config: automatic.sentences(config, plan))


def set_up(config: LanguageModelRun, out: Path, resume: bool) -> LanguageModelling:
    """Encode the text, with a new tokenizer or the resumed run's."""
    data = config.data
    train_files = expand(data.train)
    if resume:
        header = checkpoint.read_header(out / MODEL_FILE)
        tokenizer, counts = checked_tokenizer(out, header), None
    else:
        header = {}
        tokenizer, counts = train_tokenizer(train_files, config.tokenizer)
        if config.training.new_words:
            tokenizer = with_new_words(tokenizer, train_files, config.training.new_words)
            counts = None
        tokenizer.save(out / TOKENIZER_FILE)
    line_end = line_end_id(tokenizer) if data.unit == "line" else None
    text = encode_files(train_files, tokenizer)
    if counts is None and not resume:
        counts = text.counts(tokenizer.vocab_size)
    if data.valid:
        train_text, valid_text = text, encode_files(expand(data.valid), tokenizer)
    else:
        train_text, valid_text = text.split(1 - data.valid_fraction, line_end)
    test_text = encode_files(expand(data.test), tokenizer) if data.test else None
    if text.num_tokens < LEAST_TOKENS:
        raise UsageError(
            f"too little text: {counted(text.num_tokens, 'token')}",
            "give at least a few thousand words; `elman corpora` lists built-in texts",
        )
    start = None if resume or not config.training.start else Path(config.training.start)
    vectors = None if resume or start else _vectors(config, tokenizer)
    texts = train_text, valid_text, test_text
    return LanguageModelling(
        config, tokenizer, counts, *texts, line_end, start, vectors, header.get("earlier")
    )


def _vectors(config: LanguageModelRun, tokenizer: Tokenizer) -> Vectors | None:
    """Read the vectors to begin with."""
    if not (path := getattr(config.model, "vectors", "")):
        return None
    size: int = getattr(config.model, "embedding_size", 0)
    rows, vectors_UE = vectors_of(Path(path).expanduser(), tokenizer.spellings())
    if vectors_UE.shape[1] != size:
        raise UsageError(
            f"{path} has vectors of {vectors_UE.shape[1]} numbers, the model {size}",
            f"set model.embedding_size={vectors_UE.shape[1]}",
        )
    if not rows:
        raise UsageError(
            f"{path} has none of the {len(tokenizer.spellings()):,} tokens",
            "compare its words with the text's",
        )
    return torch.tensor(rows), torch.from_numpy(vectors_UE)


def open_model(path: Path, config: LanguageModelRun, header: Mapping[str, Any]) -> OpenedModel:
    tokenizer = checked_tokenizer(path, header)
    return partial(_model, config, tokenizer), tokenizer


@dataclass(frozen=True)
class LanguageModelling:
    """The text of a run, encoded."""

    config: LanguageModelRun
    tokenizer: Tokenizer
    counts: Any
    """Frequencies of the tokens, for a new model; None for a resumed run."""
    train: EncodedText
    valid: EncodedText
    test_text: EncodedText | None
    line_end: int | None = None
    """The token that ends a line, if lines are read by themselves."""
    start: Path | None = None
    """The run whose weights a new model starts with."""
    vectors: Vectors | None = None
    """Rows of the embedding and the vectors that they start with."""
    earlier_before: Mapping[str, Any] | None = None
    """Of a resumed run: its figures on the text of the run that it started from."""

    @cached_property
    def earlier(self) -> Earlier | ElmanError | None:
        """The text on which to measure what the model forgets, or why it cannot be read."""
        if not self.config.training.start:
            return None
        try:
            return Earlier.of(Path(self.config.training.start))
        except ElmanError as error:
            return error

    def scale(self) -> str:
        scale = (
            f"{self.train.num_tokens:,} tokens to learn from, "
            f"{self.valid.num_tokens:,} to validate on, "
            f"{self.tokenizer.vocab_size:,} types"
            + (f", {len(self.vectors[0]):,} of them with a vector" if self.vectors else "")
        )
        unknown_id = self.tokenizer.unknown_id
        if self.start is not None and self.config.training.new_words:
            known = Tokenizer.load(self.start / TOKENIZER_FILE).vocab_size
            scale += f", {counted(self.tokenizer.vocab_size - known, 'new word')} among them"
        if isinstance(self.earlier, ElmanError):
            scale += f"; what it forgets is not measured: {self.earlier.message}"
        for name, text in (("validation", self.valid), ("test", self.test_text)):
            if text is None or unknown_id is None:
                continue
            if unknown := int(text.counts(self.tokenizer.vocab_size)[unknown_id]):
                scale += f", {unknown / len(text):.2%} of the {name} tokens unknown"
        if self.start is not None and unknown_id is not None and self.counts[unknown_id]:
            share = self.counts[unknown_id] / sum(self.counts)
            scale += f", {share:.2%} of the tokens unknown to {self.start.name}"
            if not self.config.training.new_words:
                scale += " (--new-words N adds those that are seen N times)"
        return scale

    def build(self) -> nn.Module:
        model = _model(self.config, self.tokenizer, self.counts)
        if self.start is not None:
            load_start(model, self.tokenizer, self.start)
        if self.vectors is not None:
            rows_U, vectors_UE = self.vectors
            embedding: Any = model.get_submodule("input.embedding")
            with torch.no_grad():
                embedding.weight[rows_U] = vectors_UE.to(embedding.weight)
        return model

    def trainable(self, model: Any) -> Trainable:
        training, tokenizer = self.config.training, self.tokenizer

        def validate(limit: int | None) -> Validation:
            with _as_in_training(training, model):
                found = self._evaluate(model, self.valid.beginning(limit))
            nats, bits = found.nats_per_token, found.bits_per_byte
            return Validation(nats, bits, found.tokens, oov=found.oov)

        def probe() -> int:
            text = self.valid.beginning(training.batch_size * PROBE_LENGTH)
            with _as_in_training(training, model):
                return self._evaluate(model, text, batch_size=training.batch_size, overlap=0).tokens

        def draw(seed: int) -> str:
            decoding = DecodeOptions(
                max_tokens=training.sample_length, temperature=SAMPLE_TEMPERATURE, seed=seed
            )
            end_ids = set() if self.line_end is None else {self.line_end}
            boundary_id = tokenizer.boundary_id
            decoding = decoding.without_unknown(tokenizer.unknown_id)
            steps = sample(model, [[]], decoding, boundary_id=boundary_id, end_ids=end_ids)
            return tokenizer.decode([step.token for step in steps])

        def rate_factor(batch: Batch) -> float:
            # The loss is a mean over the chunk: scale it down for short chunks.
            return batch.targets_BT.shape[1] / training.chunk_length

        earlier, found = self.earlier, self.earlier_before
        closing, num_earlier = None, 0
        if isinstance(earlier, Earlier):
            before = found or earlier.before(next(model.parameters()).device)
            found, num_earlier = before, earlier.text.num_tokens

            def closing() -> dict[str, Any]:
                return {"earlier": {**before, "after": earlier.perplexity(model)}}

        objective = self.config.objective
        captured = training.cuda_graph and objective.is_teacher_forcing
        return Trainable(
            model=model,
            objective=training_objective(objective, model, self.line_end),
            batches=self._batches(),
            validate=validate,
            valid_tokens=self.valid.num_tokens,
            probe=probe,
            test_tokens=0 if self.test_text is None else self.test_text.num_tokens,
            closing=closing,
            closing_tokens=num_earlier,
            sample=draw if training.sample_length else None,
            rate_factor=rate_factor if training.vary_chunks else None,
            graphed=captured,
            initial_state=model.initial_state,
            forget=partial(_forget, model, training.reset_state) if training.reset_state else None,
            has_learnt=self.start is not None,
            exact=model.head.exact and objective.reads_truth,
            about=about(tokenizer) | ({} if found is None else {"earlier": found}),
        )

    def test(self, model: Any, limit: int | None) -> dict[str, Any]:
        assert self.test_text is not None
        found = self._evaluate(model, self.test_text.beginning(limit))
        names = ("perplexity", "nats_per_token", "bits_per_byte", "tokens", "oov")
        return {name: getattr(found, name) for name in names}

    def describe(self) -> str:
        tokenizer = self.tokenizer
        kind = KINDS.get(tokenizer.kind, "tokens")
        lines = "" if self.line_end is None else ", of separate lines"
        return f"A language model over {kind} ({tokenizer.vocab_size:,} of them){lines}"

    def _batches(self) -> Lanes | LineBatches:
        training = self.config.training
        how: dict[str, Any] = {
            "boundary_id": self.tokenizer.boundary_id,
            "batch_size": training.batch_size,
            "chunk_length": training.chunk_length,
            "seed": training.seed,
        }
        if self.line_end is not None:
            return LineBatches(lines_of(self.train, self.line_end), **how)
        how |= {"vary_chunks": training.vary_chunks, "shuffle_lanes": training.shuffle_lanes}
        return Lanes(self.train, **how)

    def _evaluate(self, model: Any, text: EncodedText, **lanes: int) -> Evaluation:
        tokenizer = self.tokenizer
        return evaluate(
            model,
            text,
            boundary_id=tokenizer.boundary_id,
            unknown_id=tokenizer.unknown_id,
            line_end=self.line_end,
            **lanes,
        )


def _model(config: LanguageModelRun, tokenizer: Tokenizer, counts: Any = None) -> nn.Module:
    model: nn.Module = config.model.build(
        tokenizer.vocab_size,
        counts_V=None if counts is None else torch.as_tensor(counts),
        spellings=tokenizer.spellings(),
        boundary_id=tokenizer.boundary_id,
    )
    return model


def _forget(model: Any, probability: float, state: State) -> State:
    """Reset the state of each row with this probability."""
    initial = model.initial_state(state.batch_size).flatten()
    rows_B = torch.rand(state.batch_size, device=next(iter(initial.values())).device)
    forgets_B1 = (rows_B < probability).unsqueeze(1)
    return State.unflatten(
        {
            name: torch.where(forgets_B1, initial[name], tensor)
            for name, tensor in state.flatten().items()
        }
    )


def _as_in_training(training: TrainingConfig, model: nn.Module) -> AbstractContextManager[object]:
    """Validate on CUDA in bfloat16 if training does: the kernels that train are several times as
    fast as those for float32, and the perplexity differs by about a hundredth of a percent.
    """
    device = next(model.parameters()).device.type
    if device == "cuda" and training.is_bf16(device):
        return torch.autocast("cuda", torch.bfloat16)
    return nullcontext()
