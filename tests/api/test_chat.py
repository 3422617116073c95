"""``/v1/chat/completions``, plain, and ``/chat_tokenize``."""

from __future__ import annotations

import re
from typing import Any

import msgspec
import pytest

from tests.support.api import Api, error_message, make_state, open_api
from tests.support.text_tokenizers import encode
from tgi_api.schemas.chat import ChatCompletion, ChatRequest
from tgi_core.requests import TextTokenizer

HELLO = [{"role": "user", "content": "hello"}]


def chat(api: Api, **body: Any) -> Any:
    """POST a chat; ``messages`` unless given say hello."""
    return api.post("/v1/chat/completions", {"messages": HELLO, **body})


def prompt_of(api: Api) -> str:
    """The rendered prompt of the latest request."""
    return api.state.tokenizer.decode(api.engine.submitted[-1].prompt, skip_special_tokens=False)


def test_golden_body(api: Api) -> None:
    reply = chat(api)
    text = re.sub(r'"chatcmpl-[0-9a-f]{32}"', '"ID"', reply.text)
    text = re.sub(r'"created":1\d{9}', '"created":0', text)
    prompt_tokens = len(api.engine.submitted[0].prompt)
    assert text == (
        '{"object":"chat.completion","id":"ID","created":0,"model":"tests/tiny","system_fingerprint":"0.1.0-native",'
        '"choices":[{"index":0,"message":{"role":"assistant","content":" fox jumps"},"logprobs":null,'
        '"finish_reason":"stop"}],'
        f'"usage":{{"prompt_tokens":{prompt_tokens},"completion_tokens":3,"total_tokens":{prompt_tokens + 3},'
        '"prompt_tokens_details":{"cached_tokens":7}}}'
    )
    msgspec.json.decode(reply.content, type=ChatCompletion)


def test_the_template_makes_the_prompt_without_added_tokens(api: Api) -> None:
    chat(api)
    assert api.engine.submitted[0].prompt == encode(api.state.tokenizer, "<user>hello\n<assistant>")


@pytest.mark.parametrize(
    ("sent", "answered"),
    [("dummy", "dummy"), ("gpt-4o", "gpt-4o"), ("tgi", "tests/tiny"), (None, "tests/tiny"), ("", "tests/tiny")],
)
def test_any_model_name_is_echoed(api: Api, sent: str | None, answered: str) -> None:
    assert chat(api, model=sent).json()["model"] == answered


def test_ids_differ(api: Api) -> None:
    assert chat(api).json()["id"] != chat(api).json()["id"]


def test_it_samples_unless_temperature_is_zero(api: Api) -> None:
    chat(api)
    chat(api, temperature=0)
    assert [submitted.sampling.do_sample for submitted in api.engine.submitted] == [True, False]


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
def test_both_names_of_the_limit(api: Api, name: str) -> None:
    reply = chat(api, **{name: 2}).json()
    assert reply["choices"][0]["finish_reason"] == "length"
    assert reply["usage"]["completion_tokens"] == 2


@pytest.mark.parametrize("stop", [" jum", [" jum"]])
def test_stop_text_is_left_out(api: Api, stop: Any) -> None:
    choice = chat(api, stop=stop).json()["choices"][0]
    assert choice["message"]["content"] == " fox"
    assert choice["finish_reason"] == "stop"


def test_logprobs(api: Api) -> None:
    content = chat(api, logprobs=True).json()["choices"][0]["logprobs"]["content"]
    assert content[0] == {"token": " fox", "logprob": -0.1, "bytes": list(b" fox"), "top_logprobs": []}
    assert [entry["token"] for entry in content] == [" fox", " jumps", "</s>"]
    assert chat(api, logprobs=False).json()["choices"][0]["logprobs"] is None


def test_golden_logprobs(api: Api) -> None:
    """The chosen token's text is that of the reply."""
    fox, jumps = api.engine.reply
    api.engine.tops = ([fox, jumps], [-0.1, -2.0])
    reply = chat(api, logprobs=True, top_logprobs=2, stop="ox")
    logprobs = reply.text.partition('"logprobs":')[2].partition(',"finish_reason"')[0]
    assert logprobs == (
        '{"content":[{"token":" f","logprob":-0.1,"bytes":[32,102],"top_logprobs":['
        '{"token":" f","logprob":-0.1,"bytes":[32,102]},'
        '{"token":" jumps","logprob":-2.0,"bytes":[32,106,117,109,112,115]}]}]}'
    )
    msgspec.json.decode(reply.content, type=ChatCompletion)


def test_the_engine_is_asked_for_the_models_own_logprobs(api: Api) -> None:
    chat(api)
    chat(api, logprobs=True, top_logprobs=4)
    samplings = [submitted.sampling for submitted in api.engine.submitted]
    assert [(sampling.raw_logprobs, sampling.top_n) for sampling in samplings] == [(False, 0), (True, 4)]


def test_n_choices_of_one_prompt(api: Api) -> None:
    api.engine.replies = [api.engine.reply, api.engine.reply[:1], ()]
    reply = chat(api, n=3, seed=5)
    body = reply.json()
    assert [(choice["index"], choice["message"]["content"]) for choice in body["choices"]] == [
        (0, " fox jumps"),
        (1, " fox"),
        (2, ""),
    ]
    prompt_tokens = len(api.engine.submitted[0].prompt)
    assert body["usage"] == {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": 6,
        "total_tokens": prompt_tokens + 6,
        "prompt_tokens_details": {"cached_tokens": 7},
    }
    samplings = [submitted.sampling for submitted in api.engine.submitted]
    assert [(sampling.seed, sampling.choice) for sampling in samplings] == [(5, 0), (5, 1), (5, 2)]
    assert reply.headers["x-prompt-tokens"] == str(prompt_tokens)
    assert reply.headers["x-generated-tokens"] == "6"
    assert float(reply.headers["x-compute-time"]) > 0


def test_without_a_seed_the_choices_share_a_random_one(api: Api) -> None:
    chat(api, n=2)
    chat(api, n=2)
    seeds = [submitted.sampling.seed for submitted in api.engine.submitted]
    assert seeds[0] == seeds[1] != seeds[2] == seeds[3]


def test_the_stop_may_be_kept(api: Api) -> None:
    reply = chat(api, stop="jum", include_stop_str_in_output=True).json()
    assert reply["choices"][0]["message"]["content"] == " fox jum"


def test_content_in_parts(api: Api) -> None:
    parts = [{"type": "text", "text": "see "}, {"type": "text", "text": "this"}]
    chat(api, messages=[{"role": "user", "content": parts}])
    assert prompt_of(api) == "<user>see this\n<assistant>"


def test_images_are_refused(api: Api) -> None:
    image = {"type": "image_url", "image_url": {"url": "http://a/b.png", "detail": "low"}}
    reply = chat(api, messages=[{"role": "user", "content": [{"type": "text", "text": "see"}, image]}])
    assert reply.status_code == 422
    assert "`messages[0].content[1]` is of type `image_url`" in error_message(reply)


@pytest.mark.parametrize("content", [{}, {"content": None}])
@pytest.mark.parametrize("arguments", ['{"city":"Rome"}', {"city": "Rome"}])
def test_a_round_trip_of_tool_calls(api: Api, content: Any, arguments: Any) -> None:
    call = {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": arguments}}
    messages = [
        *HELLO,
        {"role": "assistant", "tool_calls": [call], **content},
        {"role": "tool", "tool_call_id": "call_1", "name": "weather", "content": "20"},
    ]
    assert chat(api, messages=messages).status_code == 200
    assert prompt_of(api) == "<user>hello\n<assistant>[weather(Rome)]\n<tool>20\n<assistant>"


def test_the_last_assistant_message_is_continued(api: Api) -> None:
    chat(api, messages=[*HELLO, {"role": "assistant", "content": "I say"}])
    assert prompt_of(api) == "<user>hello\n<assistant>I say"


def test_template_variables(api: Api) -> None:
    chat(api, chat_template_kwargs={"mood": "merry"}, documents=[{"text": "facts"}], add_generation_prompt=False)
    assert prompt_of(api) == "<user>hello\nmerryfacts"


def test_explicit_nulls_mean_not_given(api: Api) -> None:
    nulls = dict.fromkeys(name for name in ChatRequest.__struct_fields__ if name != "messages")
    assert chat(api, **nulls).json()["choices"][0]["message"]["content"] == " fox jumps"


def test_extra_fields_are_ignored(api: Api) -> None:
    reply = chat(api, user="me", metadata={"a": 1}, store=False, messages=[{**HELLO[0], "odd": 1}])
    assert reply.status_code == 200


def test_what_the_template_refuses(api: Api) -> None:
    reply = chat(api, messages=[{"role": "refuse", "content": "x"}])
    assert (reply.status_code, reply.json()["error_type"]) == (422, "template_error")
    assert error_message(reply) == "Template error: no such role"
    assert api.metric('tgi_request_failure{err="template"}') == 1


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/chat_tokenize"])
def test_a_model_without_a_template_refuses_chat_only(tokenizer: TextTokenizer, path: str) -> None:
    with open_api(make_state(tokenizer, template=None)) as api:
        reply = api.post(path, {"messages": HELLO})
        assert (reply.status_code, reply.json()["error_type"]) == (422, "template_error")
        assert api.post("/generate", {"inputs": "x"}).status_code == 200


@pytest.mark.parametrize(
    ("messages", "field"),
    [
        ([], "`messages`"),
        ([{"role": "user"}], "messages[0]"),
        ([*HELLO, {"role": "assistant", "content": None}], "messages[1]"),
        ([{"content": "x"}], "role"),
        ([{"role": "user", "content": [{"type": "video"}]}], "video"),
        ([{"role": "user", "content": 3}], "$.messages[0].content"),
    ],
)
def test_messages_that_are_refused(api: Api, messages: Any, field: str) -> None:
    reply = chat(api, messages=messages)
    assert reply.status_code == 422
    assert reply.json()["error_type"] == "validation"
    assert field in error_message(reply)


@pytest.mark.parametrize(
    "body",
    [
        {"n": 129},
        {"top_logprobs": 21, "logprobs": True},
        {"top_logprobs": 1},
        {"best_of": 1, "n": 2},
        {"echo": True},
        {"presence_penalty": 2.5},
        {"logit_bias": {"5": 1e39}},
        {"logit_bias": [1.0]},
        {"max_tokens": 0},
    ],
)
def test_what_is_not_served_is_refused(api: Api, body: Any) -> None:
    reply = chat(api, **body)
    assert reply.status_code == 422
    assert next(iter(body)) in error_message(reply)


def test_chat_tokenize(api: Api) -> None:
    reply = api.post("/chat_tokenize", {"messages": HELLO}).json()
    assert reply["templated_text"] == "<user>hello\n<assistant>"
    chat(api)
    assert [token["id"] for token in reply["tokenize_response"]] == api.engine.submitted[0].prompt


def test_chat_tokenize_shows_tools(api: Api) -> None:
    body: dict[str, Any] = {"messages": HELLO, "tools": [{"type": "function", "function": {"name": "weather"}}]}
    assert api.post("/chat_tokenize", body).json()["templated_text"] == "<user>hello\ntools:weather\n<assistant>"
    body["tool_choice"] = "none"
    assert api.post("/chat_tokenize", body).json()["templated_text"] == "<user>hello\n<assistant>"


def test_headers_of_a_plain_chat(api: Api) -> None:
    headers = chat(api).headers
    assert headers["x-compute-characters"] == str(len("<user>hello\n<assistant>"))
    assert headers["x-generated-tokens"] == "3"
    assert float(headers["x-compute-time"]) > 0
