from __future__ import annotations

import pytest

from elman.serve.http import completions, schema
from elman.serve.http.choice_text import Piece
from elman.serve.http.errors import ApiError
from elman.serve.http.prompts import prompts_of
from elman.serve.limits import Limits
from elman.testing import TOY_TEXT
from elman.tokens.tokenizer import Ids, Tokenizer
from elman.tokens.tokenizer_config import TokenizerConfig
from elman.tokens.train import train_tokenizer

LOGPROBS = schema.Logprobs(
    tokens=["a", "\n"], token_logprobs=[None, -0.5], top_logprobs=None, text_offset=[0, 1]
)


@pytest.mark.parametrize("logprobs", [None, LOGPROBS])
@pytest.mark.parametrize("reason", [None, "stop"])
@pytest.mark.parametrize("text", ["", 'say "a\\b"\n\t\x00\x7f', "é 漢\u2028🙂"])
def test_pieces_are_written_as_their_choice(
    text: str, reason: str | None, logprobs: schema.Logprobs | None
) -> None:
    choice = schema.Choice(text=text, index=7, logprobs=logprobs, finish_reason=reason)
    written = completions._choice(Piece(text, logprobs, reason), 7)
    assert schema.Choice.model_validate_json(written) == choice
    assert written == choice.model_dump_json()


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    path = tmp_path_factory.mktemp("toy") / "toy.txt"
    path.write_text(TOY_TEXT)
    return train_tokenizer(path, TokenizerConfig(kind="char"))[0]


@pytest.mark.parametrize("length", [3, 100, 101])
def test_prompts_are_cut_into_tokens_once(
    length: int, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Short ones, those as long as may be, and those that are refused."""
    encode, calls = tokenizer.encode, []

    def counted(text: str) -> Ids:
        calls.append(text)
        return encode(text)

    monkeypatch.setattr(tokenizer, "encode", counted)
    text, limits = TOY_TEXT[:length], Limits(max_prompt_tokens=100)
    if length > 100:
        with pytest.raises(ApiError, match="101 tokens"):
            prompts_of(text, tokenizer, limits, "prompt")
    else:
        (prompt,) = prompts_of(text, tokenizer, limits, "prompt")
        assert prompt.ids == tuple(encode(text).tolist())
    assert calls == [text]


def test_long_texts_are_refused_before_it_is_looked_where_tokens_begin(
    tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = Limits(max_prompt_tokens=100)
    (prompt,) = prompts_of(TOY_TEXT[:100], tokenizer, limits, "prompt", with_offsets=True)
    assert prompt.offsets == tuple(range(100))
    monkeypatch.setattr(tokenizer, "encode_spans", None)
    with pytest.raises(ApiError, match="101 tokens"):
        prompts_of(TOY_TEXT[:101], tokenizer, limits, "prompt", with_offsets=True)
