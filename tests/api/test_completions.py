"""``/v1/completions``."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.support.api import BOS_ID, Api, error_message, events, make_state, open_api
from tests.support.text_tokenizers import BOS, encode, load, metaspace_json
from tgi_api.schemas.completions import Completion, CompletionChunk, CompletionRequest


def complete(api: Api, prompt: Any = "The quick", **body: Any) -> Any:
    """POST a completion."""
    return api.post("/v1/completions", {"prompt": prompt, **body})


def test_golden_body(api: Api) -> None:
    reply = complete(api)
    text = re.sub(r'"cmpl-[0-9a-f]{32}"', '"ID"', reply.text)
    text = re.sub(r'"created":1\d{9}', '"created":0', text)
    prompt_tokens = len(api.engine.submitted[0].prompt)
    assert text == (
        '{"object":"text_completion","id":"ID","created":0,"model":"tests/tiny","system_fingerprint":"0.1.0-native",'
        '"choices":[{"index":0,"text":" fox jumps","logprobs":null,"finish_reason":"stop"}],'
        f'"usage":{{"prompt_tokens":{prompt_tokens},"completion_tokens":3,"total_tokens":{prompt_tokens + 3},'
        '"prompt_tokens_details":{"cached_tokens":7}}}'
    )
    msgspec.json.decode(reply.content, type=Completion)


def test_prompts_get_special_tokens(api: Api) -> None:
    complete(api)
    assert api.engine.submitted[0].prompt == [BOS_ID, *encode(api.state.tokenizer, "The quick")]


def test_several_prompts_come_in_order_and_usage_is_their_sum(api: Api) -> None:
    reply = complete(api, ["a", "b c", "d"], max_tokens=1)
    body = reply.json()
    assert [(choice["index"], choice["text"], choice["finish_reason"]) for choice in body["choices"]] == [
        (0, " fox", "length"),
        (1, " fox", "length"),
        (2, " fox", "length"),
    ]
    prompt_tokens = sum(len(submitted.prompt) for submitted in api.engine.submitted)
    assert body["usage"] == {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": 3,
        "total_tokens": prompt_tokens + 3,
        "prompt_tokens_details": {"cached_tokens": 21},
    }
    assert reply.headers["x-prompt-tokens"] == str(prompt_tokens)
    assert reply.headers["x-generated-tokens"] == "3"
    assert reply.headers["x-queue-time"] == "750"
    assert "x-compute-time" not in reply.headers


def test_one_seed_for_all_prompts(api: Api) -> None:
    complete(api, ["a", "b"])
    first, second = api.engine.submitted
    assert first.sampling.seed == second.sampling.seed


def test_golden_stream(api: Api) -> None:
    reply = complete(api, stream=True, stream_options={"include_usage": True})
    text = re.sub(r'"cmpl-[0-9a-f]{32}"', '"ID"', reply.text)
    text = re.sub(r'"created":1\d{9}', '"created":0', text)
    start = (
        'data: {"object":"text_completion","id":"ID","created":0,"model":"tests/tiny",'
        '"system_fingerprint":"0.1.0-native","choices":['
    )
    prompt_tokens = len(api.engine.submitted[0].prompt)
    assert text.split("\n\n") == [
        start + '{"index":0,"text":" fox","logprobs":null,"finish_reason":null}],"usage":null}',
        start + '{"index":0,"text":" jumps","logprobs":null,"finish_reason":null}],"usage":null}',
        start + '{"index":0,"text":"","logprobs":null,"finish_reason":"stop"}],"usage":null}',
        start + f'],"usage":{{"prompt_tokens":{prompt_tokens},"completion_tokens":3,'
        f'"total_tokens":{prompt_tokens + 3},"prompt_tokens_details":{{"cached_tokens":7}}}}}}',
        "data: [DONE]",
        "",
    ]


def test_streamed_prompts_are_told_apart_and_end_once(api: Api) -> None:
    *chunks, done = events(complete(api, ["a", "b"], stream=True, stream_options={"include_usage": True}).text)
    assert done == "[DONE]"
    usage = chunks.pop()
    assert usage["choices"] == []
    assert usage["usage"]["completion_tokens"] == 6
    texts = {0: "", 1: ""}
    finished = {0: [], 1: []}
    for chunk in chunks:
        msgspec.convert(chunk, CompletionChunk)
        (choice,) = chunk["choices"]
        texts[choice["index"]] += choice["text"]
        finished[choice["index"]] += [choice["finish_reason"]] if choice["finish_reason"] else []
    assert texts == {0: " fox jumps", 1: " fox jumps"}
    assert finished == {0: ["stop"], 1: ["stop"]}


def test_token_ids_are_taken_as_they_are(api: Api) -> None:
    ids = encode(api.state.tokenizer, "The quick")
    reply = complete(api, ids, echo=True)
    assert api.engine.submitted[0].prompt == ids
    assert reply.json()["choices"][0]["text"] == "The quick fox jumps"
    assert reply.headers["x-compute-characters"] == "9"
    reply = complete(api, [ids, [BOS_ID, *ids]], truncate_prompt_tokens=1)
    assert [submitted.prompt for submitted in api.engine.submitted[1:]] == [ids[-1:], ids[-1:]]
    assert [choice["text"] for choice in reply.json()["choices"]] == [" fox jumps"] * 2


def test_texts_without_special_tokens(api: Api) -> None:
    complete(api, add_special_tokens=False)
    assert api.engine.submitted[0].prompt == encode(api.state.tokenizer, "The quick")


@pytest.mark.parametrize("stream", [False, True])
def test_max_tokens_0_scores_an_echoed_prompt(api: Api, stream: bool) -> None:
    body = {"echo": True, "max_tokens": 0, "logprobs": 1, "stream_options": {"include_usage": True}}
    reply = complete(api, stream=stream, **body)
    found = events(reply.text)[:-1] if stream else [reply.json()]
    assert api.engine.submitted[0].max_new_tokens == 1
    assert "".join(choice["text"] for part in found for choice in part["choices"]) == "The quick"
    choice = found[0]["choices"][0]
    assert choice["logprobs"]["token_logprobs"] == [None, *[-0.5] * (len(api.engine.submitted[0].prompt) - 1)]
    last = found[-2]["choices"][0] if stream else choice
    assert last["finish_reason"] == "length"
    assert found[-1]["usage"]["completion_tokens"] == 0


def test_usage_of_every_chunk(api: Api) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    chunks = events(complete(api, stream=True, stream_options=options).text)[:-1]
    prompt_tokens = len(api.engine.submitted[0].prompt)
    assert [chunk["usage"]["completion_tokens"] for chunk in chunks] == [1, 2, 3, 3]
    assert {chunk["usage"]["prompt_tokens"] for chunk in chunks} == {prompt_tokens}
    assert chunks[0]["usage"]["total_tokens"] == prompt_tokens + 1


def test_special_tokens_are_shown_when_asked_for(api: Api) -> None:
    words = encode(api.state.tokenizer, " fox")
    api.engine.reply = [*words, BOS_ID, *words]
    assert complete(api).json()["choices"][0]["text"] == " fox fox"
    text = complete(api, skip_special_tokens=False).json()["choices"][0]["text"]
    assert text == f" fox{BOS} fox"


def test_what_the_engine_is_asked_for(api: Api) -> None:
    complete(api, stop_token_ids=[3, 4, 3], allowed_token_ids=[5, 6], bad_words=["fox"])
    submitted = api.engine.submitted[0]
    assert submitted.stop_token_ids == (3, 4)
    assert submitted.sampling.allowed_token_ids == (5, 6)
    plain, spaced = encode(api.state.tokenizer, "fox"), encode(api.state.tokenizer, " fox")
    assert submitted.sampling.bad_words == (tuple(plain), tuple(spaced))


@pytest.mark.parametrize("include", [False, True])
def test_a_stop_token_is_left_out_unless_wanted(api: Api, include: bool) -> None:
    (last,) = encode(api.state.tokenizer, " jumps")
    (choice,) = complete(api, stop_token_ids=[last], include_stop_str_in_output=include).json()["choices"]
    assert choice["text"] == (" fox jumps" if include else " fox")
    assert choice["finish_reason"] == "stop"


def test_harmless_fields_of_other_servers(api: Api) -> None:
    body = {"user": "me", "priority": 0, "spaces_between_special_tokens": False, "use_beam_search": False}
    assert complete(api, **body, modalities=["text"], service_tier="auto", return_token_ids=False).status_code == 200


@pytest.mark.parametrize(
    ("body", "part"),
    [
        ({"priority": 1}, "`priority` must be 0"),
        ({"stop_token_ids": [500]}, "`stop_token_ids`"),
        ({"stop_token_ids": [-1]}, "`stop_token_ids`"),
        ({"stop_token_ids": list(range(129))}, "at most 128"),
        ({"allowed_token_ids": []}, "`allowed_token_ids`"),
        ({"allowed_token_ids": [500]}, "`allowed_token_ids`"),
        ({"allowed_token_ids": [1] * 1025}, "at most 1024"),
        ({"allowed_token_ids": [1], "guided_regex": "a"}, "cannot be combined"),
        ({"bad_words": [" "]}, "`bad_words`"),
        ({"bad_words": ["x"] * 65}, "at most 64"),
        ({"bad_words": ["zq" * 40]}, "at most 16 tokens"),
        ({"truncate_prompt_tokens": 0}, "`truncate_prompt_tokens`"),
        ({"truncate_prompt_tokens": 101}, "at most 100"),
        ({"request_id": "a b"}, "`request_id`"),
        ({"request_id": ""}, "`request_id`"),
        ({"use_beam_search": True}, "`n` and `best_of`"),
        ({"prompt_logprobs": 0}, "`echo`"),
        ({"return_token_ids": True}, "`return_token_ids`"),
        ({"return_tokens_as_token_ids": True}, "`return_tokens_as_token_ids`"),
        ({"cache_salt": "x"}, "`cache_salt`"),
        ({"prompt_embeds": "x"}, "`prompt_embeds`"),
        ({"logits_processors": ["x"]}, "`logits_rules`"),
        ({"modalities": ["text", "audio"]}, "`modalities`"),
        ({"audio": {}}, "`audio`"),
        ({"web_search_options": {}}, "`web_search_options`"),
    ],
)
@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_fields_of_other_servers_that_would_change_the_result(shared_api: Api, path: str, body: Any, part: str) -> None:
    prompt = {"prompt": "x", "messages": [{"role": "user", "content": "x"}]}
    reply = shared_api.post(path, {**prompt, **body})
    assert reply.status_code == 422
    assert part in error_message(reply)
    assert shared_api.state.permits.taken == 0


def test_usage_only_when_asked_for(api: Api) -> None:
    *chunks, _ = events(complete(api, stream=True).text)
    assert {chunk["usage"] for chunk in chunks} == {None}


def test_logprobs_zero_lists_the_chosen_tokens(api: Api) -> None:
    logprobs = complete(api, logprobs=0).json()["choices"][0]["logprobs"]
    assert logprobs == {
        "tokens": [" fox", " jumps", "</s>"],
        "token_logprobs": [-0.1, -0.1, -0.1],
        "top_logprobs": None,
        "text_offset": [0, 4, 10],
    }


def test_streamed_logprobs_are_the_plain_ones(api: Api) -> None:
    plain = complete(api, logprobs=0).json()["choices"][0]["logprobs"]
    *chunks, _ = events(complete(api, logprobs=0, stream=True).text)
    found = [chunk["choices"][0]["logprobs"] for chunk in chunks[:-1]]
    for key in ("tokens", "token_logprobs", "text_offset"):
        assert [value for entry in found for value in entry[key]] == plain[key]


def test_golden_logprobs(api: Api) -> None:
    """The chosen token is among the alternatives, although it is less likely than those asked for."""
    api.engine.tops = ([api.engine.reply[0]], [-0.05])
    reply = complete(api, logprobs=1, max_tokens=2)
    logprobs = reply.text.partition('"logprobs":')[2].partition(',"finish_reason"')[0]
    assert logprobs == (
        '{"tokens":[" fox"," jumps"],"token_logprobs":[-0.1,-0.1],'
        '"top_logprobs":[{" fox":-0.05},{" fox":-0.05," jumps":-0.1}],"text_offset":[0,4]}'
    )
    msgspec.json.decode(reply.content, type=Completion)
    *chunks, _ = events(complete(api, logprobs=1, max_tokens=2, stream=True).text)
    tops = [entry for chunk in chunks[:-1] for entry in chunk["choices"][0]["logprobs"]["top_logprobs"]]
    assert tops == reply.json()["choices"][0]["logprobs"]["top_logprobs"]


@pytest.mark.parametrize("stream", [False, True])
def test_choices_of_several_prompts(api: Api, stream: bool) -> None:
    api.engine.replies = [api.engine.reply[:1], api.engine.reply[1:], api.engine.reply, ()]
    reply = complete(api, ["a", "b c"], n=2, seed=3, stream=stream, stream_options={"include_usage": True})
    expected = {0: " fox", 1: " jumps", 2: " fox jumps", 3: ""}
    if stream:
        *chunks, _ = events(reply.text)
        usage = chunks.pop()["usage"]
        found = dict.fromkeys(expected, "")
        for choice in (chunk["choices"][0] for chunk in chunks):
            found[choice["index"]] += choice["text"]
    else:
        usage = reply.json()["usage"]
        found = {choice["index"]: choice["text"] for choice in reply.json()["choices"]}
    assert found == expected
    first, second, third, _ = api.engine.submitted
    assert first.prompt == second.prompt != third.prompt
    assert [submitted.sampling.choice for submitted in api.engine.submitted] == [0, 1, 0, 1]
    assert usage["prompt_tokens"] == len(first.prompt) + len(third.prompt)
    assert usage["completion_tokens"] == 8


def test_the_best_n_of_more(api: Api) -> None:
    api.engine.replies = [api.engine.reply, api.engine.reply[:1], api.engine.reply[1:]]
    api.engine.logprobs = [-3.0, -1.0, -2.0]
    reply = complete(api, n=2, best_of=3)
    assert [(choice["index"], choice["text"]) for choice in reply.json()["choices"]] == [(0, " fox"), (1, " jumps")]
    assert reply.json()["usage"]["completion_tokens"] == 7
    assert reply.headers["x-generated-tokens"] == "7"
    assert reply.headers["x-prompt-tokens"] == str(len(api.engine.submitted[0].prompt))


def test_an_output_without_tokens_is_the_least_likely(api: Api) -> None:
    api.engine.replies = [api.engine.reply[1:], api.engine.reply[:1]]
    api.engine.logprobs = [-1.0, -9.0]
    assert complete(api, best_of=2, stop=" jumps").json()["choices"][0]["text"] == " fox"


class TestEcho:
    @pytest.mark.parametrize("stream", [False, True])
    def test_the_prompt_comes_first(self, api: Api, stream: bool) -> None:
        reply = complete(api, ["The quick", "a"], n=2, echo=True, stream=stream)
        texts = dict.fromkeys(range(4), "")
        if stream:
            *chunks, _ = events(reply.text)
            for choice in (chunk["choices"][0] for chunk in chunks):
                texts[choice["index"]] += choice["text"]
        else:
            texts = {choice["index"]: choice["text"] for choice in reply.json()["choices"]}
        quick, a = "The quick fox jumps", "a fox jumps"
        assert texts == {0: quick, 1: quick, 2: a, 3: a}
        assert not api.engine.submitted[0].prompt_logprobs

    def test_with_the_log_probabilities_of_its_tokens(self, api: Api) -> None:
        api.engine.tops = ([5], [-0.05])
        (choice,) = complete(api, echo=True, logprobs=1, max_tokens=1).json()["choices"]
        assert choice["text"] == "The quick fox"
        columns = choice["logprobs"]
        assert "".join(columns["tokens"]) == "<s>The quick fox"
        assert columns["token_logprobs"] == [None, *[-0.5] * (len(columns["tokens"]) - 2), -0.1]
        assert columns["top_logprobs"][:-1] == [None] * (len(columns["tokens"]) - 1)
        assert columns["top_logprobs"][-1] == {api.state.tokenizer.token_text(5): -0.05, " fox": -0.1}
        ends = [*columns["text_offset"][1:], len(choice["text"])]
        pieces = [choice["text"][start:end] for start, end in zip(columns["text_offset"], ends, strict=True)]
        assert pieces == ["", *columns["tokens"][1:]]

    def test_a_stream_has_the_same_columns(self, api: Api) -> None:
        plain = complete(api, echo=True, logprobs=0).json()["choices"][0]
        *chunks, _ = events(complete(api, echo=True, logprobs=0, stream=True).text)
        choices = [chunk["choices"][0] for chunk in chunks]
        assert choices[0]["text"] == "The quick"
        assert "".join(choice["text"] for choice in choices) == plain["text"]
        for key in ("tokens", "token_logprobs", "text_offset"):
            found = [value for choice in choices[:-1] for value in choice["logprobs"][key]]
            assert found == plain["logprobs"][key]
        for chunk in chunks:
            msgspec.convert(chunk, CompletionChunk)

    def test_a_space_that_the_tokenizer_adds_is_not_of_the_prompt(self, tmp_path: Path) -> None:
        tokenizer = load(tmp_path, metaspace_json())
        with open_api(make_state(tokenizer)) as api:
            api.engine.say("the fox")
            (choice,) = complete(api, "the quick", echo=True, logprobs=0, max_tokens=1).json()["choices"]
            tokens, offsets = choice["logprobs"]["tokens"], choice["logprobs"]["text_offset"]
            assert "".join(tokens) == "<s>" + choice["text"]
            assert offsets[:2] == [0, 0]
            assert offsets[-1] == len("the quick")
        tokenizer.close()


def test_stop_text_is_left_out(api: Api) -> None:
    (choice,) = complete(api, stop="jum").json()["choices"]
    assert (choice["text"], choice["finish_reason"]) == (" fox ", "stop")


def test_explicit_nulls_mean_not_given(api: Api) -> None:
    nulls = dict.fromkeys(name for name in CompletionRequest.__struct_fields__ if name != "prompt")
    assert complete(api, **nulls).json()["choices"][0]["text"] == " fox jumps"


@pytest.mark.parametrize(
    ("body", "error_type", "part"),
    [
        ({"prompt": "x", "suffix": "y"}, "suffix not supported", "Suffix"),
        ({"prompt": ["a"] * 5}, "batch size exceeded", "4"),
        ({"prompt": []}, "validation", "`prompt`"),
        ({"prompt": ""}, "validation", "empty"),
        ({"prompt": ["a", ""]}, "validation", "empty"),
        ({"prompt": [1, -2]}, "validation", "below 500"),
        ({"prompt": [[1], [2, 500]]}, "validation", "below 500"),
        ({"prompt": [[1], []]}, "validation", "empty"),
        ({"prompt": [1, "x"]}, "validation", "only"),
        ({"prompt": ["x", [1]]}, "validation", "only"),
        ({"prompt": [1.5]}, "validation", "$.prompt[0]"),
        ({"prompt": [[10**30]]}, "validation", "`prompt`"),
        ({}, "validation", "prompt"),
        ({"prompt": "x", "best_of": 1, "n": 2}, "validation", "`best_of`"),
        ({"prompt": "x", "best_of": 129}, "validation", "`best_of`"),
        ({"prompt": "x", "n": 129}, "validation", "`n`"),
        ({"prompt": "x", "logprobs": 21}, "validation", "`logprobs`"),
        ({"prompt": "x", "max_tokens": 0}, "validation", "`max_tokens`"),
        ({"prompt": "x", "echo": True, "max_tokens": -1}, "validation", "`max_tokens`"),
        ({"prompt": "x", "logprobs": 1, "top_logprobs": 1}, "validation", "`top_logprobs`"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_what_is_not_served_is_refused(shared_api: Api, body: Any, error_type: str, part: str, stream: bool) -> None:
    reply = shared_api.post("/v1/completions", {**body, "stream": stream})
    assert reply.status_code == 422
    assert reply.json()["error_type"] == error_type
    assert part in error_message(reply)
    assert shared_api.state.permits.taken == 0


@pytest.mark.parametrize("stream", [False, True])
def test_one_failing_prompt_fails_all_and_frees_all(api: Api, stream: bool) -> None:
    api.engine.fail_after = 1
    reply = complete(api, ["a", "b", "c"], stream=stream)
    if stream:
        found = events(reply.text)
        assert found[-1] == "[DONE]"
        assert found[-2]["error"]["http_status_code"] == 424
        assert sum("error" in event for event in found) == 1
    else:
        assert reply.status_code == 424
        assert reply.json()["error_type"] == "generation"
    assert api.engine.in_flight == 0
    assert api.state.permits.taken == 0
