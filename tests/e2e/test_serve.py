"""The server as programs use it: the official `openai` client, and plain HTTP for what it hides."""

from __future__ import annotations

import base64
import http.client
import json
import math
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import openai
import pytest
from live import Live, serving

from elman import api
from elman.base.errors import UsageError
from elman.serve.http.served import Limits, split_name

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


def call(
    live: Live, path: str, body: Any = None, *, method: str = "", headers: Any = None
) -> tuple[int, Any]:
    """One request over plain HTTP; a body that is bytes is sent as it is."""
    connection = http.client.HTTPConnection(urlsplit(live.address).netloc)
    try:
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        kind = {} if body is None else {"Content-Type": "application/json"}
        connection.request(
            method or ("GET" if body is None else "POST"), path, data, {**kind, **(headers or {})}
        )
        response = connection.getresponse()
        text = response.read().decode()
        is_json = "json" in response.headers.get("content-type", "")
        return response.status, json.loads(text) if is_json else text
    finally:
        connection.close()


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
    again = client.completions.create(**ask, temperature=0, presence_penalty=2)
    expected = lms["words"].generate("the", max_tokens=6, greedy=True, presence_penalty=2)
    assert again.choices[0].text == expected
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
    (found,) = client.embeddings.create(model="words", input=ids).data
    np.testing.assert_allclose(found.embedding, expected[0], atol=1e-6)


def test_errors_are_the_ones_the_client_knows(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as missing:
        client.completions.create(model="wrods", prompt="a")
    assert missing.value.code == "model_not_found"
    assert "did you mean 'words'?" in str(missing.value)
    for wrong, param in (
        ({"temperature": 3}, "temperature"),
        ({"n": 0}, "n"),
        ({"best_of": 1, "n": 2}, "best_of"),
        ({"stop": ["a"] * 5}, "stop"),
        ({"stop": [""]}, "stop"),
        ({"logit_bias": {"x": 1}}, "logit_bias"),
        ({"logprobs": 99}, "logprobs"),
        ({"prompt": []}, "prompt"),
        ({"prompt": [10**6]}, "prompt"),
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


# What a harness, a shell and a monitor ask for


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
        assert "no model that is served here can" in answer["error"]["message"]


class Fake:
    """A model that is no language model."""

    def info(self) -> dict[str, Any]:
        return {"kind": "fake"}

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
        assert listed["data"][1]["abilities"] == ["tag", "classify", "translate"]
        asked = {"model": "fake", "text": "her book"}
        _, tagged = call(live, "/v1/tag", asked)
        assert tagged["result"] == [["her", "X"], ["book", "X"]]
        assert call(live, "/v1/classify", asked)[1]["result"]["label"] == "short"
        assert call(live, "/v1/translate", asked)[1]["result"] == {"text": "HER BOOK"}
        status, answer = call(live, "/v1/completions", {"model": "fake", "prompt": "a"})
        assert status == 400
        assert "ask words" in answer["error"]["message"]


def test_health_metrics_and_description(live: Live, lms: dict[str, api.LM]) -> None:
    assert call(live, "/health") == (200, {"status": "ok", "models": list(lms)})
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


# What is refused


def test_garbage_is_refused_in_words(live: Live) -> None:
    json_type = {"Content-Type": "application/json"}
    for body, status in (
        (b"{", 400),
        (b"\xff\xfe\x00", 400),
        (b"[" * 100_000, 400),
        (b'{"prompt": ' + b"[" * 2000 + b"]" * 2000 + b"}", 400),
        (b'{"prompt": "\\ud800"}', 400),
        (b'{"temperature": NaN}', 400),
        (b'{"seed": 1e999}', 400),
        (b"null", 400),
        (b"", 400),
    ):
        code, answer = call(live, "/v1/completions", body, headers=json_type)
        assert code == status, body[:40]
        assert set(answer["error"]) == {"message", "type", "param", "code"}
    code, _ = call(live, "/v1/completions", b"{}", headers={"Content-Type": "text/plain"})
    assert code == 415
    assert call(live, "/v1/completions")[0] == 405
    code, answer = call(live, "/v1/nothing")
    assert (code, answer["error"]["type"]) == (404, "not_found_error")


def test_limits_of_size(lms: dict[str, api.LM]) -> None:
    limits = Limits(max_body_bytes=2000, max_prompt_tokens=10, max_choices=3)
    with serving({"words": lms["words"]}, limits=limits) as live:
        assert call(live, "/v1/completions", {"prompt": "a" * 3000})[0] == 413
        status, answer = call(live, "/v1/completions", {"prompt": "the " * 20})
        assert (status, answer["error"]["code"]) == (400, "context_length_exceeded")
        assert call(live, "/v1/score", {"text": "the " * 20})[0] == 400
        assert call(live, "/v1/completions", {"n": 4})[0] == 400
        address = urlsplit(live.address)
        with socket.create_connection((address.hostname, address.port or 80)) as endless:
            endless.sendall(
                b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
                b"Transfer-Encoding: chunked\r\n\r\n" + (b"400\r\n" + b" " * 1024 + b"\r\n") * 3
            )
            assert b" 413 " in endless.recv(100)


def test_limits_of_time(lms: dict[str, api.LM]) -> None:
    limits = Limits(max_seconds=0.2, max_tokens=10_000_000)
    with serving({"words": lms["words"]}, limits=limits) as live:
        status, answer = call(live, "/v1/completions", {"max_tokens": 10_000_000})
        assert (status, answer["error"]["type"]) == (408, "timeout_error")
        status, text = call(live, "/v1/completions", {"max_tokens": 10_000_000, "stream": True})
        assert status == 200
        assert '"timeout_error"' in text
        assert text.endswith("data: [DONE]\n\n")


def test_a_body_that_never_arrives_is_not_waited_for(lms: dict[str, api.LM]) -> None:
    with serving({"words": lms["words"]}, limits=Limits(max_body_seconds=0.1)) as live:
        address = urlsplit(live.address)
        for head in (b"Content-Length: 100", b"Transfer-Encoding: chunked"):
            with socket.create_connection((address.hostname, address.port or 80)) as slow:
                slow.sendall(
                    b"POST /v1/completions HTTP/1.1\r\nHost: x\r\n"
                    b"Content-Type: application/json\r\n" + head + b"\r\n\r\n"
                )
                assert b" 408 " in slow.recv(100)


def test_more_than_can_wait_is_turned_away(lms: dict[str, api.LM]) -> None:
    limits = Limits(max_streams=1, max_waiting=2, max_tokens=10_000_000)
    with serving({"words": lms["words"]}, limits=limits) as live:
        status, answer = call(live, "/v1/completions", {"n": 3})
        assert (status, answer["error"]["code"]) == (429, "rate_limit_exceeded")
        assert call(live, "/v1/completions", {"n": 2, "max_tokens": 2})[0] == 200


def test_a_key_is_asked_for_and_compared(lms: dict[str, api.LM]) -> None:
    with serving({"words": lms["words"]}, api_key="sesame") as live:
        for path in ("/v1/models", "/metrics", "/tokenizer_info"):
            status, answer = call(live, path)
            assert (status, answer["error"]["code"]) == (401, "invalid_api_key")
            assert call(live, path, headers={"Authorization": "Bearer sesam"})[0] == 401
            assert call(live, path, headers={"Authorization": "Bearer sesame"})[0] == 200
        assert call(live, "/health")[0] == 200
        with (
            openai.OpenAI(base_url=f"{live.address}/v1", api_key="wrong", max_retries=0) as client,
            pytest.raises(openai.AuthenticationError),
        ):
            client.models.list()


# Coming and going


def open_stream(live: Live, **settings: Any) -> tuple[socket.socket, Any]:
    """A stream of which the first piece has arrived."""
    body = json.dumps({"prompt": "the", "stream": True, **settings}).encode()
    address = urlsplit(live.address)
    connection = socket.create_connection((address.hostname, address.port or 80))
    connection.sendall(
        b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        b"Content-Length: %d\r\n\r\n%s" % (len(body), body)
    )
    file = connection.makefile("rb")
    while not file.readline().startswith(b"data: "):
        pass
    return connection, file


def test_clients_that_vanish_free_their_places(lms: dict[str, api.LM]) -> None:
    limits = Limits(max_streams=2, max_waiting=2, max_tokens=10_000_000)
    with serving({"words": lms["words"]}, limits=limits) as live:
        for _ in range(3):
            pair = [open_stream(live, max_tokens=10_000_000) for _ in range(2)]
            for connection, file in pair:
                file.close()
                connection.close()
            # With both places taken for hours, this could not be answered.
            assert call(live, "/v1/completions", {"max_tokens": 3})[0] == 200
        engine = live.served["words"].engine
        assert engine is not None
    assert engine.figures.finished["cancelled"] == 6


def test_a_client_that_gives_up_on_a_whole_answer_frees_its_place(lms: dict[str, api.LM]) -> None:
    limits = Limits(max_streams=1, max_tokens=10_000_000)
    with serving({"words": lms["words"]}, limits=limits) as live:
        address = urlsplit(live.address)
        body = b'{"max_tokens": 10000000}'
        with socket.create_connection((address.hostname, address.port or 80)) as connection:
            connection.sendall(
                b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
                b"Content-Length: %d\r\n\r\n%s" % (len(body), body)
            )
        assert call(live, "/v1/completions", {"max_tokens": 3})[0] == 200


def test_a_slow_reader_does_not_hold_the_others(lms: dict[str, api.LM]) -> None:
    limits = Limits(max_tokens=10_000_000)
    with serving({"words": lms["words"]}, limits=limits) as live:
        connection, file = open_stream(live, max_tokens=10_000_000)  # and never reads again
        for _ in range(3):
            assert call(live, "/v1/completions", {"max_tokens": 20})[0] == 200
        file.close()
        connection.close()


def test_stopping_ends_streams_in_words(lms: dict[str, api.LM]) -> None:
    with serving({"words": lms["words"]}, limits=Limits(max_tokens=10_000_000), grace=0.1) as live:
        connection, file = open_stream(live, max_tokens=10_000_000)
        lines: list[bytes] = []
        reader = threading.Thread(target=lambda: lines.extend(file))
        reader.start()
    reader.join()
    file.close()
    connection.close()
    events = [line for line in lines if line.startswith(b"data: ")]
    assert b"shutting down" in events[-2]
    assert events[-1] == b"data: [DONE]\n"


def test_stopping_lets_short_streams_finish(lms: dict[str, api.LM]) -> None:
    lines: list[bytes] = []
    with serving({"words": lms["words"]}, grace=60) as live:
        connection, file = open_stream(live, max_tokens=300)
        reader = threading.Thread(target=lambda: lines.extend(file))
        reader.start()
    reader.join()
    file.close()
    connection.close()
    events = [line for line in lines if line.startswith(b"data: ")]
    assert json.loads(events[-2][6:])["choices"][0]["finish_reason"] == "length"
    assert events[-1] == b"data: [DONE]\n"


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
