"""``/generate`` and ``/``, plain."""

from __future__ import annotations

import json
from typing import Any, ClassVar

import msgspec
import pytest
from msgspec.structs import replace

from tests.support.api import BOS_ID, EOS_ID, INFO, LOGPROB, Api, error_message, make_state, open_api
from tests.support.text_tokenizers import encode
from tgi_api.schemas.generate import GenerateParameters, GenerateResponse
from tgi_core.requests import TextTokenizer


def test_golden_body_without_details(api: Api) -> None:
    reply = api.post("/generate", {"inputs": "The quick"})
    assert reply.status_code == 200
    assert reply.headers["content-type"] == "application/json"
    assert reply.text == '{"generated_text":" fox jumps"}'


def test_golden_body_with_details(api: Api) -> None:
    reply = api.post("/generate", {"inputs": "The quick", "parameters": {"details": True}})
    fox, jumps = api.engine.reply
    assert reply.text == (
        '{"generated_text":" fox jumps","details":{"finish_reason":"eos_token","generated_tokens":3,"seed":null,'
        '"prefill":[],"tokens":['
        f'{{"id":{fox},"text":" fox","logprob":-0.1,"special":false}},'
        f'{{"id":{jumps},"text":" jumps","logprob":-0.1,"special":false}},'
        f'{{"id":{EOS_ID},"text":"</s>","logprob":-0.1,"special":true}}]}}}}'
    )
    msgspec.json.decode(reply.content, type=GenerateResponse)


def test_golden_prefill(api: Api) -> None:
    """The first token of a prompt has no log-probability."""
    api.engine.reply = ()
    reply = api.post("/generate", {"inputs": "Q", "parameters": {"decoder_input_details": True}})
    token_id = encode(api.state.tokenizer, "Q")[0]
    assert reply.text == (
        '{"generated_text":"","details":{"finish_reason":"eos_token","generated_tokens":1,"seed":null,"prefill":['
        f'{{"id":{BOS_ID},"text":"<s>","logprob":null}},{{"id":{token_id},"text":"Q","logprob":-0.5}}],'
        f'"tokens":[{{"id":{EOS_ID},"text":"</s>","logprob":-0.1,"special":true}}]}}}}'
    )
    assert api.engine.submitted[0].prompt_logprobs


def test_the_prefill_is_that_of_the_truncated_prompt(api: Api) -> None:
    body = {"inputs": "one two three four", "parameters": {"decoder_input_details": True, "truncate": 2}}
    prefill = api.post("/generate", body).json()["details"]["prefill"]
    assert [token["id"] for token in prefill] == api.engine.submitted[0].prompt
    assert [token["logprob"] for token in prefill] == [None, -0.5]


def test_golden_top_tokens(api: Api) -> None:
    """Tokens as likely as the last one asked for come too, and those cut off have no log-probability."""
    fox, jumps = api.engine.reply
    api.engine.tops = ([fox, EOS_ID, jumps], [-0.1, -2.5, float("-inf")])
    body = {"inputs": "x", "parameters": {"details": True, "top_n_tokens": 2, "stop": [" f"]}}
    reply = api.post("/generate", body)
    assert reply.text.partition('"tokens":')[2] == (
        f'[{{"id":{fox},"text":" f","logprob":-0.1,"special":false}}],'
        f'"top_tokens":[[{{"id":{fox},"text":" f","logprob":-0.1,"special":false}},'
        f'{{"id":{EOS_ID},"text":"</s>","logprob":-2.5,"special":true}},'
        f'{{"id":{jumps},"text":" jumps","logprob":null,"special":false}}]]}}}}'
    )
    msgspec.json.decode(reply.content, type=GenerateResponse)


class TestBestOf:
    BODY: ClassVar[dict[str, Any]] = {
        "inputs": "The quick",
        "parameters": {"best_of": 2, "do_sample": True, "details": True, "top_n_tokens": 1},
    }

    @pytest.fixture
    def best(self, api: Api) -> Api:
        """A server whose second sequence is the most likely one by token."""
        api.engine.replies = [api.engine.reply[:1], api.engine.reply]
        api.engine.logprobs = [-2.0, -1.0]
        api.engine.tops = ([5], [-0.25])
        return api

    def test_golden_body(self, best: Api) -> None:
        reply = best.post("/generate", self.BODY)
        first, second = best.engine.submitted
        fox, jumps = best.engine.reply
        five = best.state.tokenizer.token_text(5)
        top = f'[{{"id":5,"text":{json.dumps(five)},"logprob":-0.25,"special":false}}]'
        assert reply.text == (
            '{"generated_text":" fox jumps","details":{"finish_reason":"eos_token","generated_tokens":3,'
            f'"seed":{second.sampling.seed},"prefill":[],"tokens":['
            f'{{"id":{fox},"text":" fox","logprob":-1.0,"special":false}},'
            f'{{"id":{jumps},"text":" jumps","logprob":-1.0,"special":false}},'
            f'{{"id":{EOS_ID},"text":"</s>","logprob":-1.0,"special":true}}],'
            '"best_of_sequences":[{"generated_text":" fox","finish_reason":"eos_token","generated_tokens":2,'
            f'"seed":{first.sampling.seed},"prefill":[],"tokens":['
            f'{{"id":{fox},"text":" fox","logprob":-2.0,"special":false}},'
            f'{{"id":{EOS_ID},"text":"</s>","logprob":-2.0,"special":true}}],'
            f'"top_tokens":[{top},{top}]}}],"top_tokens":[{top},{top},{top}]}}}}'
        )
        msgspec.json.decode(reply.content, type=GenerateResponse)

    def test_each_sequence_has_a_seed_of_its_own(self, best: Api) -> None:
        best.post("/generate", self.BODY)
        first, second = best.engine.submitted
        assert first.prompt == second.prompt
        assert first.sampling.seed != second.sampling.seed
        assert first.sampling.choice == second.sampling.choice == 0

    def test_headers_are_those_of_the_winner(self, best: Api) -> None:
        headers = best.post("/generate", self.BODY).headers
        assert headers["x-generated-tokens"] == "3"
        assert headers["x-prompt-tokens"] == str(len(best.engine.submitted[0].prompt))
        assert headers["x-queue-time"] == "250"

    def test_the_full_text_of_all(self, best: Api) -> None:
        (reply,) = best.post("/", self.BODY).json()
        assert reply["generated_text"] == "The quick fox jumps"
        assert reply["details"]["best_of_sequences"][0]["generated_text"] == "The quick fox"

    def test_without_details_only_the_winner(self, best: Api) -> None:
        body = {"inputs": "x", "parameters": {"best_of": 2, "temperature": 0.5}}
        assert best.post("/generate", body).json() == {"generated_text": " fox jumps"}

    def test_one_failure_fails_all(self, best: Api) -> None:
        best.engine.fail_after = 2
        assert best.post("/generate", self.BODY).status_code == 424
        assert best.engine.in_flight == 0


def test_the_watermark_has_the_servers_settings(tokenizer: TextTokenizer) -> None:
    with open_api(make_state(tokenizer, watermark_gamma=0.25, watermark_delta=4.0)) as api:
        api.post("/generate", {"inputs": "x", "parameters": {"watermark": True}})
        api.post("/generate", {"inputs": "x", "parameters": {"watermark": False}})
        samplings = [submitted.sampling for submitted in api.engine.submitted]
        assert (samplings[0].watermark_gamma, samplings[0].watermark_delta) == (0.25, 4.0)
        assert samplings[1].watermark_delta == 0.0


def test_parameters_of_plugins_rules(tokenizer: TextTokenizer) -> None:
    with open_api(make_state(tokenizer, info=replace(INFO, extra_parameters=["strength"]))) as api:
        body = {"inputs": "x", "parameters": {"logits_rules": {"strength": 0.5}}}
        assert api.post("/generate", body).status_code == 200
        assert api.engine.submitted[0].sampling.extra == {"strength": 0.5}
        body["parameters"]["logits_rules"] = {"weakness": 0.5}
        assert "`strength`" in error_message(api.post("/generate", body))


def test_an_id_beyond_the_models_vocabulary_has_no_bias(api: Api) -> None:
    body = {"inputs": "x", "parameters": {"logit_bias": {"499": 1}}}
    assert api.post("/generate", body).status_code == 200
    body["parameters"]["logit_bias"] = {"500": 1}
    assert "token ids below 500" in error_message(api.post("/generate", body))


def test_root_answers_with_a_list_and_the_full_text(api: Api) -> None:
    assert api.post("/", {"inputs": "The quick"}).text == '[{"generated_text":"The quick fox jumps"}]'
    body = {"inputs": "The quick", "stream": False, "parameters": {"return_full_text": False}}
    assert api.post("/", body).json() == [{"generated_text": " fox jumps"}]


def test_full_text_is_the_prompt_as_sent_not_as_truncated(api: Api) -> None:
    body = {"inputs": "one two three four", "parameters": {"return_full_text": True, "truncate": 2}}
    assert api.post("/generate", body).json() == {"generated_text": "one two three four fox jumps"}
    assert len(api.engine.submitted[-1].prompt) == 2


def test_prompt_reaches_the_engine_with_special_tokens(api: Api) -> None:
    api.post("/generate", {"inputs": "The quick", "parameters": {"max_new_tokens": 5}})
    (submitted,) = api.engine.submitted
    assert submitted.prompt == [BOS_ID, *encode(api.state.tokenizer, "The quick")]
    assert submitted.max_new_tokens == 5


def test_max_new_tokens_defaults_to_the_rest_of_the_context(api: Api) -> None:
    api.post("/generate", {"inputs": "The quick"})
    (submitted,) = api.engine.submitted
    assert submitted.max_new_tokens == api.state.info.max_total_tokens - len(submitted.prompt)


@pytest.mark.parametrize(
    ("body", "samples"),
    [
        ({"inputs": "x"}, True),
        ({"inputs": "x", "parameters": None}, True),
        ({"inputs": "x", "parameters": {}}, False),
        ({"inputs": "x", "parameters": {"temperature": 1.0}}, False),
        ({"inputs": "x", "parameters": {"temperature": 0.5}}, True),
        ({"inputs": "x", "parameters": {"do_sample": True}}, True),
    ],
)
def test_absent_parameters_sample_and_empty_ones_do_not(api: Api, body: Any, samples: bool) -> None:
    assert api.post("/generate", body).status_code == 200
    assert api.engine.submitted[0].sampling.do_sample is samples


def test_a_seed_of_64_bits_comes_back_whole(api: Api) -> None:
    seed = 2**64 - 1
    body = {"inputs": "x", "parameters": {"do_sample": True, "seed": seed, "details": True}}
    reply = api.post("/generate", body)
    assert reply.json()["details"]["seed"] == seed
    assert api.engine.submitted[0].sampling.seed == seed


def test_explicit_nulls_mean_not_given(api: Api) -> None:
    nulls = dict.fromkeys(GenerateParameters.__struct_fields__)
    reply = api.post("/", {"inputs": "The quick", "stream": None, "parameters": nulls})
    assert reply.json() == [{"generated_text": "The quick fox jumps"}]
    assert api.engine.submitted[0].sampling.do_sample is False


def test_unknown_fields_are_ignored(api: Api) -> None:
    body = {"inputs": "x", "what": [1], "parameters": {"more": {"a": 1}}}
    assert api.post("/generate", body).json() == {"generated_text": " fox jumps"}


def test_stop_text_stays_and_ends_the_engine_request(api: Api) -> None:
    body = {"inputs": "x", "parameters": {"stop": ["fo"], "details": True}}
    reply = api.post("/generate", body).json()
    assert reply["generated_text"] == " fo"
    assert reply["details"]["finish_reason"] == "stop_sequence"
    assert reply["details"]["generated_tokens"] == 1
    assert api.engine.finished == [(1, 1)]


def test_length_is_reported(api: Api) -> None:
    body = {"inputs": "x", "parameters": {"max_new_tokens": 1, "details": True}}
    reply = api.post("/generate", body).json()
    assert reply["generated_text"] == " fox"
    assert reply["details"]["finish_reason"] == "length"


def test_logits_that_are_not_numbers_fail_the_request(api: Api) -> None:
    api.engine.logprob = float("nan")
    reply = api.post("/generate", {"inputs": "x"})
    assert reply.status_code == 424
    assert "not numbers" in error_message(reply)


def test_a_token_that_the_model_lacks_fails_alone(tokenizer: TextTokenizer) -> None:
    """A tokenizer may know more tokens than the model has rows for."""
    with open_api(make_state(tokenizer, info=replace(INFO, vocab_size=3))) as api:
        reply = api.post("/generate", {"inputs": "the quick fox"})
        assert reply.status_code == 422
        assert "vocabulary" in error_message(reply)


@pytest.mark.parametrize("logprob", [float("inf"), float("-inf")])
def test_a_logprob_that_is_not_finite_is_null(api: Api, logprob: float) -> None:
    api.engine.logprob = logprob
    reply = api.post("/generate", {"inputs": "x", "parameters": {"details": True}})
    assert {token["logprob"] for token in reply.json()["details"]["tokens"]} == {None}


def test_logprobs_are_the_shortest_float32_text(api: Api) -> None:
    api.engine.logprob = LOGPROB
    text = api.post("/generate", {"inputs": "x", "parameters": {"details": True}}).text
    assert '"logprob":-0.1,' in text


def test_timing_headers_are_numbers(api: Api) -> None:
    headers = api.post("/generate", {"inputs": "The quick"}).headers
    assert headers["x-compute-type"] == "1-test-device"
    assert headers["x-compute-characters"] == "9"
    assert headers["x-prompt-tokens"] == str(len(api.engine.submitted[0].prompt))
    assert headers["x-generated-tokens"] == "3"
    assert headers["x-queue-time"] == "250"
    assert float(headers["x-compute-time"]) > 0
    for name in ("total-time", "validation-time", "inference-time", "time-per-token"):
        assert headers[f"x-{name}"].isdigit()


def test_a_nul_character_and_emoji_are_served(api: Api) -> None:
    assert api.post("/generate", {"inputs": "a\0b 👍🏽"}).status_code == 200
