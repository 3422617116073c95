"""A tiny T5 with a tokenizer, served over HTTP, answers as transformers does."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
from tokenizers import Tokenizer, processors

from tests.support.encoder_decoders import NEW_TOKENS, START, generate, make_model
from tests.support.server import ServerProcess
from tests.support.text_tokenizers import EOS, unigram_json

TEXTS = ["The quick brown fox", "jumps over the lazy dog, and the other foxes look on. " * 2, "a"]


def test_generate_plain_and_streamed(tmp_path: Path) -> None:
    folder = tmp_path / "t5"
    model = make_model("t5", folder)
    tokenizer = Tokenizer.from_str(unigram_json(vocab_size=150))
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"$A {EOS}", special_tokens=[(EOS, tokenizer.token_to_id(EOS))]
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    flags = ("--model-id", str(folder), "--max-input-tokens", "90", "--max-total-tokens", "99", "--dtype", "float32")
    with ServerProcess(tmp_path / "log", *flags) as server, ThreadPoolExecutor(len(TEXTS)) as pool:

        def ask(text: str) -> tuple[list[int], str, str]:
            parameters = {"max_new_tokens": NEW_TOKENS, "details": True, "decoder_input_details": True}
            body = {"inputs": text, "parameters": parameters}
            plain = httpx.post(f"{server.url}/generate", json=body, timeout=60).json()
            assert [token["id"] for token in plain["details"]["prefill"]] == [START]
            parameters["decoder_input_details"] = False
            streamed = httpx.post(f"{server.url}/generate_stream", json=body, timeout=60).text
            last = json.loads(streamed.strip().rpartition("data:")[2])
            return (
                [token["id"] for token in plain["details"]["tokens"]],
                plain["generated_text"],
                last["generated_text"],
            )

        for text, (token_ids, plain, streamed) in zip(TEXTS, pool.map(ask, TEXTS), strict=True):
            expected = generate(model, tokenizer.encode(text).ids)[1:]
            assert token_ids == expected
            assert plain == streamed == tokenizer.decode(expected, skip_special_tokens=True)
        refused = httpx.post(f"{server.url}/generate", json={"inputs": "fox " * 200}, timeout=60)
        assert refused.status_code == 422
        assert "--max-input-tokens" in refused.json()["error"]
