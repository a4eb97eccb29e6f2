"""The wire format: every request and every answer.

`/v1/completions`, `/v1/embeddings` and `/v1/models` are OpenAI's, with marked extensions;
`/tokenize`, `/detokenize` and `/tokenizer_info` are vLLM's, for evaluation harnesses; the rest is
Elman's own. Unknown fields are refused, so that misspelled settings are not ignored.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Any, Literal, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    StringConstraints,
    ValidationInfo,
    create_model,
    model_validator,
)

from elman.decode.options import DRAWING, http_fields
from elman.evaluate.surprisal import Row

Text = Annotated[str, StringConstraints(strict=True)]
TokenId = Annotated[int, Field(strict=True, ge=0, lt=1 << 31)]
# The first error ends the check: a list of a million texts, checked as token ids, has as many.
Texts = Annotated[list[Text], Field(fail_fast=True)]
TokenIds = Annotated[list[TokenId], Field(fail_fast=True)]
Prompts = Text | Texts | TokenIds | Annotated[list[TokenIds], Field(fail_fast=True)]
Number = Annotated[float, Field(allow_inf_nan=False)]


MAX_FIELDS = 100
"""Fields of a request, wrong ones included, of which each is an error of its own."""


class Request(BaseModel):
    model_config = ConfigDict(extra="forbid")

    @model_validator(mode="before")
    @classmethod
    def _check_number(cls, value: Any) -> Any:
        if isinstance(value, dict) and len(value) > MAX_FIELDS:
            raise ValueError(f"the body has too many fields (limit {MAX_FIELDS})")
        return value

    model: str | None = Field(
        None, description="The served name of a model; the first one by default."
    )
    label: str | None = Field(
        None, description="Of a model that takes a label: one of its `labels` in /v1/models."
    )


class Answer(BaseModel):
    model_config = ConfigDict(extra="forbid")


# Completions


class StreamOptions(BaseModel):
    model_config = ConfigDict(extra="ignore")

    include_usage: bool = Field(False, description="End with a chunk that has the usage.")


def _check_bias(value: dict[str, float], info: ValidationInfo) -> dict[str, float]:
    for token, bias in value.items():
        if not (token.isdecimal() and token.isascii() and len(token) < 10):
            raise ValueError(f"{info.field_name} has a key that is no token id: {token[:20]!r}")
        if not -100 <= bias <= 100:
            raise ValueError(f"{info.field_name} has a value that is not between -100 and 100")
    return value


MAX_BIASES = 1 << 14
"""Entries of `logit_bias`."""
WIRE_TYPES: dict[str, Any] = {
    "int": int,
    "bool": bool,
    "float": Number,
    "int | None": int,
    "dict[int, float]": Annotated[
        dict[str, Number], AfterValidator(_check_bias), Field(max_length=MAX_BIASES)
    ],
}
"""Types of options in a request, by their types in Python. null stands for the default."""
Body = TypeVar("Body", bound=Request)


def with_decoding_fields(
    options: Sequence[str] | None = None, **others: Any
) -> Callable[[type[Body]], type[Body]]:
    """Add fields for all of `DecodeOptions`, or for these; null is their default then.

    `others` are fields, by option, that differ: (type, Field).
    """

    def add(body: type[Body]) -> type[Body]:
        added: dict[str, Any] = {}
        for option, f in http_fields().items():
            if options is None or option in options:
                default = f.default if options is None else None
                low, high = f.limits.get("ge"), f.limits.get("le")
                own = Field(default, ge=low, le=high, description=f.prose)
                added[f.name] = others.get(option, (WIRE_TYPES[f.type] | None, own))
        return create_model(
            body.__name__, __base__=body, __doc__=body.__doc__, __module__=body.__module__, **added
        )

    return add


@with_decoding_fields()
class CompletionRequest(Request):
    prompt: Prompts = Field("", description="A text, token ids, or a list of either.")
    best_of: int | None = Field(
        None, ge=1, description="Generate this many and return the `n` most likely per token."
    )
    stop: Text | Texts | None = Field(
        None, description="Texts before which a continuation ends; at most four."
    )
    echo: bool | None = Field(False, description="Return the prompt before the continuation.")
    logprobs: int | None = Field(
        None,
        ge=0,
        le=20,
        description="Return log probabilities of tokens, with this many of the most likely ones.",
    )
    stream: bool | None = Field(False, description="Send pieces as they are generated.")
    stream_options: StreamOptions | None = Field(None, description="With `stream` only.")
    suffix: str | None = Field(
        None, description="Not supported: models here read from left to right."
    )
    user: str | None = Field(None, description="Accepted, not used.")
    adapt: bool | None = Field(
        False, description="Learn from the prompt first; for models served with --adapt."
    )
    cache: bool | None = Field(
        False, description="Mix in words after similar contexts; if served with --cache."
    )

    def decoding(self) -> dict[str, Any]:
        """The decoding options by their names in Python, with the defaults of a request."""
        given = {option: getattr(self, f.name) for option, f in http_fields().items()}
        return {
            option: http_fields()[option].default if value is None else value
            for option, value in given.items()
        }


class Logprobs(Answer):
    """Natural log probabilities of tokens, of the model's own distribution."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None] | None
    text_offset: list[int]
    """Where each token begins, in characters from the start of the choice's text."""


class Choice(Answer):
    """One continuation."""

    text: str
    index: int
    logprobs: Logprobs | None = None
    finish_reason: str | None = None


class PromptUsage(Answer):
    prompt_tokens: int
    total_tokens: int


class Usage(PromptUsage):
    completion_tokens: int


class Completion(Answer):
    """Continuations of one or more prompts, or one event of a stream."""

    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    choices: list[Choice]
    usage: Usage | None = None


# Embeddings


class EmbeddingRequest(Request):
    input: Prompts = Field(description="A text, token ids, or a list of either.")
    encoding_format: Literal["float", "base64"] | None = Field(
        "float", description="Numbers, or the base64 of little-endian float32."
    )
    dimensions: int | None = Field(
        None, ge=1, description="The model's width: vectors cannot be shortened."
    )
    user: str | None = None


class Embedding(Answer):
    """The vector of one text."""

    object: Literal["embedding"] = "embedding"
    index: int
    embedding: list[float] | str
    """Numbers, or the base64 of little-endian float32."""


class Embeddings(Answer):
    """Vectors, in the order of the texts."""

    object: Literal["list"] = "list"
    data: list[Embedding]
    model: str
    usage: PromptUsage


# Tokens


class TokenizeRequest(Request):
    prompt: Text
    add_special_tokens: bool = Field(False, description="Put the boundary token in front.")


class Tokens(Answer):
    count: int
    max_model_len: int
    tokens: list[int]


class DetokenizeRequest(Request):
    tokens: TokenIds


class Detokenized(Answer):
    prompt: str


class TokenizerInfo(Answer):
    model: str
    tokenizer_class: str
    vocab_size: int
    eos_token: str
    bos_token: str
    pad_token: str | None
    unk_token: str | None
    chat_template: None = None


# Measuring


class ScoreRequest(Request):
    text: Text
    unit: Literal["token", "word", "line"] = "word"
    base: Literal["2", "e", "10"] = "2"
    boundary: Literal["trailing", "leading"] = "trailing"
    unknown: Literal["score", "mark"] = "score"
    carry: bool = Field(False, description="Lines are one continuous text.")
    include_end: bool = Field(True, description="Score the end of each line too.")
    adapt: bool = Field(
        False, description="Keep training while reading; for models served with --adapt."
    )
    cache: bool = Field(
        False, description="Mix in words after similar contexts; if served with --cache."
    )
    reset: Literal["never", "blank", "line"] = Field(
        "never", description="Where to forget what was learnt or cached."
    )
    entropy: bool = Field(False, description="Add the entropy of the next token to each row.")
    as_is: bool = Field(
        False, description="Do not lower-case or tokenise the text as the training text was."
    )


class ScoreRow(Row):
    """The surprisal of one token, word or line."""

    __pydantic_config__ = ConfigDict(extra="forbid")


class Score(Answer):
    object: Literal["score"] = "score"
    model: str
    unit: str
    base: str
    rows: list[ScoreRow]
    total: float | None = Field(description="The sum of the rows' surprisal.")
    num_tokens: int
    perplexity: float | None = Field(description="Per token; null if infinite.")
    num_unknown: int = Field(description="How many tokens are unknown to the model.")
    total_without_unknown: float | None = Field(description="The sum without unknown tokens.")
    perplexity_without_unknown: float | None = Field(
        description="Per known token; null if infinite or if there is none."
    )
    reads_as: str = Field(
        description="How the text was changed to the form of the training text; empty: not at all."
    )


@with_decoding_fields(DRAWING)
class NextRequest(Request):
    """With any option of drawing, the answer also has what a draw is from."""

    prompt: Text | TokenIds = ""
    k: int = Field(10, ge=1, le=1000)

    def drawing(self) -> dict[str, Any]:
        """The decoding options that were sent, by name."""
        given = {name: getattr(self, name) for name in DRAWING}
        return {name: value for name, value in given.items() if value is not None}


class NextToken(Answer):
    token: str
    id: int
    probability: float = Field(description="Of the model's own distribution.")
    logprob: float | None
    drawn: float | None = Field(
        default=None,
        description="The probability after temperature and truncation; 0 if ruled out.",
    )


class Next(Answer):
    """The most likely next tokens, best first."""

    object: Literal["next"] = "next"
    model: str
    tokens: list[NextToken]
    rest: float = Field(description="The probability of all other tokens together.")
    possible: int | None = Field(
        default=None, description="How many tokens can be drawn, after temperature and truncation."
    )


class InsideRequest(Request):
    text: Text
    layer: int = Field(0, ge=0, description="The layer, from 0 at the bottom.")
    part: str = Field("h", description="A letter of the cell's equations: h, c, i, f, g, o, r, u.")
    max_units: int = Field(64, ge=1, le=512, description="Return the units that vary most.")
    target: int | None = Field(
        None, ge=1, description="The token whose prediction is examined; the last by default."
    )


class PartOfLayer(Answer):
    part: str
    name: str


class Inside(Answer):
    """Activations of a layer over a text."""

    object: Literal["inside"] = "inside"
    model: str
    tokens: list[str] = Field(description="The first is the boundary token.")
    layers: int
    layer: int
    parts: list[PartOfLayer]
    part: str
    units: list[int] = Field(description="Indices of the units, those that vary most first.")
    values: list[list[float]] = Field(description="Of each unit, after each token.")
    target: int = Field(description="The token whose prediction `gradient` is about.")
    gradient: list[float] = Field(
        description="Norm of the prediction's gradient at each token before it."
    )
    state_gradients: dict[str, list[list[float]]] = Field(
        description="By part of the state and layer: norm of the prediction's gradient for the "
        "state after each token before it."
    )
    surprisal: float | None = Field(description="Of that token, in bits.")


class RunSummary(Answer):
    name: str
    kind: str | None
    settings: dict[str, Any] = Field(description="The resolved configuration, with dotted keys.")
    best: dict[str, float] = Field(description="The best validation figures so far, by name.")
    status: Literal["running", "done", "stopped", "silent"] = Field(
        description="silent: no report for a while, and no end."
    )
    updated: float = Field(description="Time of the last report, in seconds since 1970.")
    size: int = Field(description="Bytes of reports.")


class RunList(Answer):
    """The runs in the folder, latest first."""

    object: Literal["list"] = "list"
    data: list[RunSummary]


class RunReports(Answer):
    """Reports of a run."""

    object: Literal["reports"] = "reports"
    name: str
    reports: list[dict[str, Any]]
    next: int = Field(description="`after` for the next request, to get only new reports.")


class TaskRequest(Request):
    """A text for the route of a task."""

    text: Text


class TaskAnswer(Answer):
    object: str
    model: str
    result: Any


# What is served


class ModelCard(Answer):
    """What a model is, and how it was made."""

    what: str
    settings: dict[str, Any] = Field(description="Of the network or the counts.")
    parameters: int | None
    trained_on: list[str] = Field(
        description="Names of the training files; of parallel text the source, then the target."
    )
    labels: list[str] = Field(
        default=[],
        description="The labels or tags that the model gives, or the labels that it takes.",
    )
    figures: dict[str, float] = Field(description="Results on the validation text.")
    sample: str | None = Field(description="What it wrote in training.")


class ServedModel(Answer):
    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: Literal["elman"] = "elman"
    kind: str
    vocab_size: int | None
    tokenizer: str | None
    abilities: list[str]
    labels: list[str] = Field(default=[], description="Of a model that takes a label.")
    card: ModelCard


class ServedModels(Answer):
    object: Literal["list"] = "list"
    data: list[ServedModel]


class WorkerHealth(Answer):
    worker: int
    pid: int
    ready: bool = Field(description="False while it starts.")
    requests: int = Field(description="Open ones.")
    restarts: int = Field(description="How often it was started again after it had died.")


class Health(Answer):
    status: Literal["ok", "degraded"] = "ok"
    models: list[str]
    problems: list[str] = Field(
        default=[],
        description="Models whose files were changed while they were in use; workers that are not "
        "ready.",
    )
    workers: list[WorkerHealth] = Field(default=[], description="The processes of --workers.")


class Ready(Answer):
    ready: Literal[True] = True
