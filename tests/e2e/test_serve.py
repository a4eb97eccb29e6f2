"""The server as programs use it: the official `openai` client, and plain HTTP for what it hides."""

from __future__ import annotations

import base64
import http.client
import itertools
import json
import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import openai
import pytest
from live import Live, call, serving

from elman import api
from elman.base.errors import UsageError
from elman.serve.http.served import split_name
from elman.tasks import task_named

Elman = Any


@pytest.fixture(scope="module")
def lms(model: Path, words: Path, words_too: Path, elman: Elman, toy: Path) -> dict[str, api.LM]:
    counted = toy.parent / "runs" / "counted"
    tokenizer = f"tokenizer.file={words / 'tokenizer.json'}"
    result = elman("train", "ngram", toy, "--out", counted, "--set", tokenizer)
    assert result.code == 0, result.err
    return {
        "chars": api.load(model),
        "words": api.load(words),
        "counted": api.load(counted),
        "mixed": api.load(f"0.6*{words}+0.4*{words_too}"),
    }


@pytest.fixture(scope="module")
def live(lms: dict[str, api.LM]) -> Iterator[Live]:
    with serving(lms) as live:
        yield live


@pytest.fixture(scope="module")
def client(live: Live) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{live.address}/v1", api_key="none", max_retries=0) as client:
        yield client


# What the official client asks for


def test_models(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["chars", "words", "counted", "mixed"]
    assert client.models.retrieve("words").owned_by == "elman"


@pytest.mark.parametrize("name", ["chars", "words", "counted", "mixed"])
def test_a_completion_is_what_the_library_generates(
    client: openai.OpenAI, lms: dict[str, api.LM], name: str
) -> None:
    settings: dict[str, Any] = {"max_tokens": 12, "temperature": 0.8, "top_p": 0.9, "seed": 5}
    answer = client.completions.create(model=name, prompt="the student", n=3, **settings)
    expected = lms[name].complete("the student", num_samples=3, **settings)
    assert [choice.text for choice in answer.choices] == [c.text for c in expected]
    assert [choice.finish_reason for choice in answer.choices] == [
        c.finish_reason for c in expected
    ]
    assert answer.usage is not None
    assert answer.usage.completion_tokens == sum(c.tokens for c in expected)
    assert answer.usage.prompt_tokens == len(lms[name].tokenizer.encode("the student"))


@pytest.mark.parametrize("name", ["chars", "words"])
def test_a_stream_adds_up_to_the_completion(client: openai.OpenAI, name: str) -> None:
    settings: dict[str, Any] = {
        "model": name,
        "prompt": ["the student", "her"],
        "max_tokens": 25,
        "seed": 1,
        "n": 2,
        "logprobs": 2,
        "stop": ["\n", "lap"],
    }
    whole = client.completions.create(**settings)
    texts, tokens, reasons = [""] * 4, [[] for _ in range(4)], [None] * 4  # type: ignore[var-annotated]
    usage = None
    for chunk in client.completions.create(
        **settings, stream=True, stream_options={"include_usage": True}
    ):
        usage = chunk.usage
        for choice in chunk.choices:
            texts[choice.index] += choice.text
            assert choice.logprobs is not None
            tokens[choice.index] += zip(
                choice.logprobs.tokens or (), choice.logprobs.text_offset or (), strict=True
            )
            reasons[choice.index] = choice.finish_reason or reasons[choice.index]
    assert texts == [choice.text for choice in whole.choices]
    assert reasons == [choice.finish_reason for choice in whole.choices]
    assert tokens == [
        list(zip(c.logprobs.tokens or (), c.logprobs.text_offset or (), strict=True))
        for c in whole.choices
        if c.logprobs is not None
    ]
    assert usage == whole.usage


@pytest.mark.parametrize("name", ["chars", "words", "counted"])
@pytest.mark.parametrize("as_ids", [False, True])
def test_the_prompts_own_tokens_are_scored_as_a_harness_asks(
    client: openai.OpenAI, lms: dict[str, api.LM], name: str, as_ids: bool
) -> None:
    lm = lms[name]
    text = "the teacher closed the window"
    ids = [int(token) for token in lm.tokenizer.encode(text)]
    prompt: Any = [lm.tokenizer.boundary_id, *ids] if as_ids else text
    choice = client.completions.create(
        model=name, prompt=prompt, max_tokens=1, temperature=0, echo=True, logprobs=1, seed=1
    ).choices[0]
    details = choice.logprobs
    assert details is not None
    assert details.token_logprobs is not None
    assert details.text_offset is not None
    assert details.tokens is not None
    first = 1 if as_ids else 0
    scored = details.token_logprobs[first:-1]
    rows = lm.surprisal(text, unit="token", base="e", include_end=False)
    assert [-value for value in scored if value is not None] == pytest.approx(
        [row.surprisal for row in rows], abs=1e-4
    )
    if as_ids:
        assert details.token_logprobs[0] is None
    for token, offset in zip(details.tokens[first:], details.text_offset[first:], strict=True):
        assert choice.text[offset : offset + len(token)] == token
    for logprob, top in zip(scored, (details.top_logprobs or [])[first:-1], strict=True):
        assert logprob in top.values()
        assert max(top.values()) >= logprob
        assert len(top) <= 2


def test_scoring_alone_generates_nothing(client: openai.OpenAI) -> None:
    answer = client.completions.create(
        model="words", prompt=["the book", "her exam"], max_tokens=0, echo=True, logprobs=0
    )
    assert [choice.text for choice in answer.choices] == ["the book", "her exam"]
    assert [len(c.logprobs.token_logprobs or ()) for c in answer.choices if c.logprobs] == [2, 2]
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 0


def test_settings_are_applied(client: openai.OpenAI, lms: dict[str, api.LM]) -> None:
    ask: dict[str, Any] = {"model": "words", "prompt": "the", "max_tokens": 6}
    greedy = client.completions.create(**ask, temperature=0).choices[0].text
    assert greedy == lms["words"].generate("the", max_tokens=6, greedy=True)
    the = lms["words"].tokenizer.id("the")
    banned = client.completions.create(**ask, n=20, logit_bias={str(the): -100})
    assert not any("the" in choice.text.split() for choice in banned.choices)
    wanted = client.completions.create(**ask, temperature=2, logit_bias={str(the): 100})
    assert wanted.choices[0].text.split() == ["the"] * 6
    for penalty in ("presence_penalty", "frequency_penalty"):
        changed: Any = {penalty: 2}
        again = client.completions.create(**ask, temperature=0, **changed)
        expected = lms["words"].generate("the", max_tokens=6, greedy=True, **changed)
        assert again.choices[0].text == expected != greedy
    assert client.completions.create(**ask, top_p=0).choices[0].text == greedy
    for extension in ({"top_k": 1}, {"min_p": 1.0}):
        answer = client.completions.create(**ask, extra_body=extension)
        assert answer.choices[0].text == greedy
    beam = client.completions.create(**ask, n=2, extra_body={"beam_size": 3})
    found = lms["words"].complete("the", max_tokens=6, beam_size=3, num_samples=2)
    assert [choice.text for choice in beam.choices] == [completion.text for completion in found]


def test_the_best_of_many_is_the_likeliest_per_token(client: openai.OpenAI) -> None:
    ask: dict[str, Any] = {"model": "words", "prompt": "her", "max_tokens": 8, "seed": 3}
    everything = client.completions.create(**ask, n=10, logprobs=0)
    best = client.completions.create(**ask, n=1, best_of=10)

    def mean(choice: Any) -> float:
        values = choice.logprobs.token_logprobs
        return math.fsum(values) / len(values)

    assert best.choices[0].text == max(everything.choices, key=mean).text
    assert best.usage == everything.usage


def test_embeddings(client: openai.OpenAI, lms: dict[str, api.LM]) -> None:
    texts = ["the book", "her exam paper"]
    expected = [lms["words"].embed(text) for text in texts]
    # The client asks for base64 unless it is told otherwise.
    for settings in ({}, {"encoding_format": "float"}):
        answer = client.embeddings.create(model="words", input=texts, **settings)  # type: ignore[arg-type]
        for found, vector in zip(answer.data, expected, strict=True):
            np.testing.assert_allclose(found.embedding, vector, atol=1e-6)
    ids = [int(token) for token in lms["words"].tokenizer.encode(texts[0])]
    answer = client.embeddings.create(model="words", input=ids, dimensions=len(expected[0]))
    np.testing.assert_allclose(answer.data[0].embedding, expected[0], atol=1e-6)
    assert answer.usage.prompt_tokens == answer.usage.total_tokens == len(ids)
    with pytest.raises(openai.BadRequestError, match="32 dimensions") as caught:
        client.embeddings.create(model="words", input="a", dimensions=8)
    assert caught.value.param == "dimensions"


def test_embeddings_of_words_in_context(elman: Elman, toy: Path, tmp_path: Path) -> None:
    small = ("hidden_size=24", "character_cnn.filters=[4,8]", "head.num_samples=10")
    settings = [word for setting in small for word in ("--set", f"model.{setting}")]
    result = elman("train", "elmo", toy, "--out", tmp_path / "run", "--steps", 2, *settings)
    assert result.code == 0, result.err
    elmo = api.load(tmp_path / "run")
    with (
        serving({"elmo": elmo}) as live,
        openai.OpenAI(base_url=f"{live.address}/v1", api_key="none", max_retries=0) as client,
    ):
        answer = client.embeddings.create(model="elmo", input=["the book.", "her exam"])
        words = [["the", "book", "."], ["her", "exam"]]
        for found, vectors_TD in zip(answer.data, elmo.contextual(words), strict=True):
            np.testing.assert_allclose(found.embedding, vectors_TD.mean(0), atol=1e-6)
        assert answer.usage.prompt_tokens == 5
        for wrong in ([1, 2], [[1, 2]], "", [" "], []):
            with pytest.raises(openai.BadRequestError):
                client.embeddings.create(model="elmo", input=wrong)


def test_errors_are_the_ones_the_client_knows(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as missing:
        client.completions.create(model="wrods", prompt="a")
    assert (missing.value.type, missing.value.code) == ("invalid_request_error", "model_not_found")
    assert "did you mean 'words'?" in str(missing.value)
    for wrong, param in (
        ({"temperature": 3}, "temperature"),
        ({"temperature": "warm"}, "temperature"),
        ({"n": 0}, "n"),
        ({"best_of": 1, "n": 2}, "best_of"),
        ({"stop": ["a"] * 5}, "stop"),
        ({"stop": [""]}, "stop"),
        ({"logit_bias": {"x": 1}}, "logit_bias"),
        ({"logit_bias": {"5": 101}}, "logit_bias"),
        ({"logit_bias": {"999999": 1}}, "logit_bias"),
        ({"suffix": "a"}, "suffix"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"best_of": 2, "stream": True}, "best_of"),
        ({"logprobs": 99}, "logprobs"),
        ({"prompt": []}, "prompt"),
        ({"prompt": [10**6]}, "prompt"),
        ({"prompt": ["a", [1]]}, "prompt"),
        ({"max_tokens": 10**9}, "max_tokens"),
        ({"extra_body": {"temprature": 1}}, "temprature"),
        ({"extra_body": {"beam_size": 2}, "stream": True}, "stream"),
    ):
        with pytest.raises(openai.BadRequestError) as caught:
            settings: dict[str, Any] = {"model": "words", "prompt": "a", **wrong}
            client.completions.create(**settings)
        assert caught.value.param == param, wrong
        assert caught.value.type == "invalid_request_error"
    with pytest.raises(openai.BadRequestError, match="cannot embed; ask chars, words"):
        client.embeddings.create(model="counted", input="a")


def test_what_is_wrong_has_a_code(client: openai.OpenAI) -> None:
    for wrong, code, message in (
        ({"temprature": 1}, "unknown_parameter", "there is no field 'temprature'"),
        ({"prompt": ["a", [1]]}, "invalid_type", "must be a text, a list of token ids, or"),
        ({"max_tokens": "many"}, "invalid_type", "valid integer"),
        ({"temperature": 3}, "invalid_value", "less than or equal to 2"),
        ({"logit_bias": {"x": 1}}, "invalid_value", "logit_bias has a key that is no token id"),
    ):
        with pytest.raises(openai.BadRequestError) as caught:
            client.post("/completions", body={"model": "words", **wrong}, cast_to=object)
        assert caught.value.code == code, wrong
        assert message in str(caught.value)
    with pytest.raises(openai.BadRequestError) as caught:
        client.post("/embeddings", body={"model": "words"}, cast_to=object)
    assert (caught.value.code, caught.value.param) == ("missing_required_parameter", "input")
    with pytest.raises(openai.NotFoundError, match="do not chat: POST /v1/completions"):
        client.chat.completions.create(model="words", messages=[{"role": "user", "content": "a"}])


# What a harness, a shell and a monitor ask for


class Harness:
    """The calls that lm-evaluation-harness makes (`local-completions`), one model served."""

    def __init__(self, live: Live) -> None:
        self.live = live
        _, info = call(live, "/tokenizer_info")
        (self.prefix,) = self.encode(info["bos_token"])

    def encode(self, text: str) -> list[int]:
        body = {"prompt": text, "add_special_tokens": False}
        tokens: list[int] = call(self.live, "/tokenize", body)[1]["tokens"]
        return tokens

    def logprobs(self, texts: list[str]) -> list[float]:
        """The log probability of each text, asked for in one batch."""
        body = {
            "model": "served",
            "prompt": [[self.prefix, *self.encode(text)] for text in texts],
            "temperature": 0,
            "max_tokens": 1,
            "logprobs": 1,
            "seed": 1234,
            "echo": True,
        }
        _, answer = call(self.live, "/v1/completions", body)
        choices = sorted(answer["choices"], key=lambda choice: choice["index"])
        return [math.fsum(choice["logprobs"]["token_logprobs"][1:-1]) for choice in choices]


@pytest.mark.parametrize("name", ["chars", "words", "counted", "mixed"])
def test_a_harness_would_find_the_accuracy_that_is_computed_directly(
    lms: dict[str, api.LM], toy: Path, tmp_path: Path, name: str
) -> None:
    lines = toy.read_text(encoding="utf-8").splitlines()
    sentences = list(dict.fromkeys(lines))[:21]
    path = tmp_path / "pairs.jsonl"
    pairs = [
        {"sentence_good": good, "sentence_bad": bad} for good, bad in itertools.pairwise(sentences)
    ]
    path.write_text("\n".join(json.dumps(pair) for pair in pairs), encoding="utf-8")
    with serving({"served": lms[name]}) as live:
        harness = Harness(live)
        right = 0
        for pair in pairs:
            good, bad = harness.logprobs([pair["sentence_good"], pair["sentence_bad"]])
            right += good >= bad  # the first of equals
    (part,) = lms[name].judge(path, suite="blimp", as_is=True).parts
    assert round(part.accuracy * part.items + part.ties / 2) == right
    assert (part.ties > 0) == (name == "counted")  # counts of a few sentences are often equal
    assert 0 < right < len(pairs)


def test_the_tokenizer_over_http(live: Live, lms: dict[str, api.LM]) -> None:
    for name in ("chars", "words"):
        tokenizer = lms[name].tokenizer
        status, info = call(live, f"/tokenizer_info?model={name}")
        assert status == 200
        _, begin = call(live, "/tokenize", {"model": name, "prompt": info["bos_token"]})
        assert begin["tokens"] == [tokenizer.boundary_id]
        ids = [int(token) for token in tokenizer.encode("the book")]
        body = {"model": name, "prompt": "the book", "add_special_tokens": True}
        _, found = call(live, "/tokenize", body)
        assert found["tokens"] == [tokenizer.boundary_id, *ids]
        _, text = call(live, "/detokenize", {"model": name, "tokens": ids})
        assert text == {"prompt": "the book"}


def test_scores_and_next_tokens_are_the_librarys(live: Live, lms: dict[str, api.LM]) -> None:
    text = "the book\nher exam"
    _, scored = call(live, "/v1/score", {"model": "mixed", "text": text, "base": "e"})
    rows = lms["mixed"].surprisal(text, unit="word", base="e")
    assert [row["text"] for row in scored["rows"]] == [row.text for row in rows]
    assert scored["total"] == pytest.approx(sum(row.surprisal or 0.0 for row in rows))
    assert scored["perplexity"] == pytest.approx(lms["mixed"].perplexity(text), rel=1e-4)
    _, found = call(live, "/v1/next", {"model": "counted", "prompt": "the", "k": 4})
    expected = lms["counted"].next("the", k=4)
    assert [(t["token"], pytest.approx(t["probability"])) for t in found["tokens"]] == expected
    assert found["rest"] == pytest.approx(1 - sum(probability for _, probability in expected))


def test_models_without_the_ability_are_refused(live: Live) -> None:
    for path in ("/v1/tag", "/v1/classify", "/v1/translate"):
        status, answer = call(live, path, {"text": "a"})
        assert status == 400
        assert "no served model can" in answer["error"]["message"]
    _, answer = call(live, "/v1/inside", {"model": "counted", "text": "a"})
    assert answer["error"]["message"].startswith("the model 'counted' cannot be looked into; ask ")


class Fake:
    """A model that is no language model, of a task with three routes."""

    kind = "fake"
    tasks = tuple(map(task_named, ("tagger", "classifier", "translator")))
    task = replace(tasks[0], routes=[route for task in tasks for route in task.routes])

    def tag(self, text: str) -> list[tuple[str, str]]:
        return [(word, "X") for word in text.split()]

    def classify(self, text: str) -> dict[str, Any]:
        return {"label": "long" if len(text) > 9 else "short", "probability": 1.0}

    def translate(self, text: str) -> str:
        return text.upper()

    def align(self, text: str) -> Any:
        raise UsageError("this translator has no attention", "train one that has")


def test_other_models_plug_in_where_they_are_served(lms: dict[str, api.LM]) -> None:
    models: dict[str, Any] = {"words": lms["words"], "fake": Fake()}
    with serving(models) as live:
        _, listed = call(live, "/v1/models")
        abilities = ["tag", "tag/probabilities", "classify", "classify/words", "translate"]
        assert listed["data"][1]["abilities"] == abilities
        asked = {"model": "fake", "text": "her book"}
        _, tagged = call(live, "/v1/tag", asked)
        assert tagged["result"] == [["her", "X"], ["book", "X"]]
        assert call(live, "/v1/classify", asked)[1]["result"]["label"] == "short"
        assert call(live, "/v1/translate", asked)[1]["result"] == {"text": "HER BOOK"}
        status, answer = call(live, "/v1/completions", {"model": "fake", "prompt": "a"})
        assert status == 400
        assert "ask words" in answer["error"]["message"]


def test_health_metrics_and_description(live: Live, lms: dict[str, api.LM]) -> None:
    health = {"status": "ok", "models": list(lms), "problems": [], "workers": []}
    assert call(live, "/health") == (200, health)
    call(live, "/v1/completions", {"model": "mixed", "max_tokens": 3, "prompt": "the"})
    _, text = call(live, "/metrics")
    assert 'elman_requests_total{path="/v1/completions",status="200"}' in text
    assert 'elman_generated_tokens_total{model="mixed"}' in text
    status, description = call(live, "/openapi.json")
    assert status == 200
    assert {"/v1/completions", "/v1/score", "/v1/embeddings"} <= set(description["paths"])


def test_no_page_of_another_origin_is_let_in(live: Live, lms: dict[str, api.LM]) -> None:
    connection = http.client.HTTPConnection(urlsplit(live.address).netloc)
    connection.request("GET", "/v1/models", headers={"Origin": "http://elsewhere"})
    response = connection.getresponse()
    response.read()
    connection.close()
    assert "access-control-allow-origin" not in response.headers
    with serving({"words": lms["words"]}, cors=["http://elsewhere"]) as other:
        connection = http.client.HTTPConnection(urlsplit(other.address).netloc)
        connection.request("GET", "/v1/models", headers={"Origin": "http://elsewhere"})
        response = connection.getresponse()
        response.read()
        connection.close()
    assert response.headers["access-control-allow-origin"] == "http://elsewhere"


def test_base64_is_little_endian_float32(live: Live, lms: dict[str, api.LM]) -> None:
    body = {"model": "words", "input": "the", "encoding_format": "base64"}
    _, answer = call(live, "/v1/embeddings", body)
    vector = np.frombuffer(base64.b64decode(answer["data"][0]["embedding"]), dtype="<f4")
    np.testing.assert_allclose(vector, lms["words"].embed("the"), atol=1e-6)


@pytest.mark.parametrize(
    ("text", "name", "path"),
    [
        ("runs/mine", "mine", "runs/mine"),
        ("runs/mine/", "mine", "runs/mine/"),
        ("small=runs/mine", "small", "runs/mine"),
        ("models/kn.arpa.gz", "kn", "models/kn.arpa.gz"),
        ("0.7*runs/a+0.3*runs/b", "0.7*a+0.3*b", "0.7*runs/a+0.3*runs/b"),
        ("both=0.7*runs/a+0.3*runs/b", "both", "0.7*runs/a+0.3*runs/b"),
    ],
)
def test_served_names(text: str, name: str, path: str) -> None:
    assert split_name(text) == (name, path)
