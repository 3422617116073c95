"""The same requests, sent to a server on any backend, give the same texts.

    python -m tests.backends.same_texts cpu --write texts.json
    python -m tests.backends.same_texts tpu --compare texts.json

The requests are sent all at once, so batches form and dissolve differently on every backend: prompts of one token to
several blocks, greedy and seeded, with stop sequences, penalties, JSON schemas, and clients that leave.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import msgspec

from tests.support.server import ServerProcess

NUM_REQUESTS = 40
_TIMEOUT_S = 600.0
_TEXT = (
    "the river runs past an old mill where two sisters bake bread every morning before the first train leaves for the "
    "city and nobody on the platform knows why it smells of cinnamon in winter"
)
_QUESTIONS = ("Name three colours.", "Count from one to ten.", "What is a river?", "Say hello in French.")
_SCHEMAS: tuple[dict[str, Any], ...] = (
    {
        "type": "object",
        "properties": {"name": {"enum": ["Ann", "Bob"]}, "age": {"type": "integer", "minimum": 0, "maximum": 120}},
        "required": ["name", "age"],
        "additionalProperties": False,
    },
    {"type": "array", "items": {"enum": ["red", "green", "blue"]}, "minItems": 2, "maxItems": 3},
)
_NEEDS_LOGITS = frozenset({"repetition_penalty", "frequency_penalty", "typical_p", "grammar"})


class Asked(msgspec.Struct, frozen=True):
    """One request.

    Attributes:
        prompt: its text.
        parameters: as ``/generate_stream`` takes them.
        leaves_after: tokens after which the client closes the connection; None for one that stays.
    """

    prompt: str
    parameters: dict[str, Any]
    leaves_after: int | None = None


def make_requests() -> list[Asked]:
    """The requests; every third is sampled, every tenth leaves early, two are held to a schema."""
    rng = random.Random(20)
    words = _TEXT.split()
    asked = []
    for number in range(NUM_REQUESTS):
        parameters: dict[str, Any] = {"max_new_tokens": rng.choice((1, 5, 12, 24, 40))}
        prompt = " ".join(rng.choices(words, k=rng.choice((1, 4, 20, 90, 180))))
        if number % 3 == 1:
            parameters |= {"do_sample": True, "seed": number, "temperature": 0.9, "top_k": 30, "top_p": 0.95}
        if number % 7 == 2:
            parameters |= {"repetition_penalty": 1.2, "frequency_penalty": 0.3}
        if number % 11 == 4:
            parameters |= {"do_sample": True, "seed": 2**64 - 1 - number, "typical_p": 0.9}
        if number % 5 == 3:
            parameters["stop"] = [" and", "\n"]
        leaves_after = 3 if number % 10 == 9 else None
        if leaves_after:
            parameters["max_new_tokens"] = 60
        asked.append(Asked(prompt, parameters, leaves_after))
    for place, schema in zip((6, 17), _SCHEMAS, strict=True):
        question = f"<|im_start|>user\n{_QUESTIONS[place % len(_QUESTIONS)]}<|im_end|>\n<|im_start|>assistant\n"
        grammar = {"type": "json", "value": schema}
        asked[place] = Asked(question, {"max_new_tokens": 60, "grammar": grammar})
    return asked


def needs_logits(asked: Asked) -> bool:
    """Whether a device that samples by itself cannot do it: the noise of a seed is the core's own."""
    return bool(_NEEDS_LOGITS & asked.parameters.keys()) or asked.parameters.get("do_sample", False)


def fetch_text(url: str, asked: Asked) -> str:
    """The text of one reply, up to where the client leaves."""
    text, num_tokens = "", 0
    body = {"inputs": asked.prompt, "parameters": asked.parameters}
    with httpx.stream("POST", f"{url}/generate_stream", json=body, timeout=_TIMEOUT_S) as reply:
        if reply.status_code != 200:
            reply.read()
            raise AssertionError(f"{reply.status_code}: {reply.text}")
        for line in reply.iter_lines():
            if not line.startswith("data:"):
                continue
            event = json.loads(line.removeprefix("data:"))
            assert "error" not in event, event
            text += event["token"]["text"]
            num_tokens += 1
            if num_tokens == asked.leaves_after:
                break
    return text


def fetch_texts(url: str, requests: list[Asked]) -> list[str]:
    """The texts of all, asked for at once."""
    with ThreadPoolExecutor(len(requests)) as pool:
        return list(pool.map(lambda asked: fetch_text(url, asked), requests))


def serve_texts(backend: str, requests: list[Asked], *flags: str) -> list[str]:
    """What a server with the demo model on ``backend`` replies; it must have compiled nothing meanwhile."""
    limits = ("--max-batch-size", "8", "--max-total-tokens", "512", "--max-batch-prefill-tokens", "512")
    # Few blocks: some requests have to be computed anew, and stand-ins that copy their caches are not too slow.
    few_blocks = ("--max-batch-total-tokens", "2048")
    settings = ("--model-id", "demo", "--backend", backend, "--dtype", "float32", *limits, *few_blocks, *flags)
    # The largest shapes are compiled first, or a model is exported.
    with (
        tempfile.TemporaryDirectory() as folder,
        ServerProcess(Path(folder) / "log", *settings, start_timeout_s=_TIMEOUT_S) as server,
    ):
        texts = fetch_texts(server.url, requests)
        late = server.gauge("tgi_late_compiles")
        assert late == 0, f"{late:.0f} programs were compiled while requests waited"
        return texts


def main() -> int:
    """Serve, and write the texts or compare them; flags it does not know go to the server."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("backend")
    parser.add_argument("--write", type=Path, help="where to keep the texts")
    parser.add_argument("--compare", type=Path, help="texts that another backend gave")
    parser.add_argument("--without-logits", action="store_true", help="only requests that a sampling device can do")
    options, flags = parser.parse_known_args()
    requests = make_requests()
    places = [n for n, asked in enumerate(requests) if not (options.without_logits and needs_logits(asked))]
    texts = serve_texts(options.backend, [requests[place] for place in places], *flags)
    if options.write:
        options.write.write_text(json.dumps(texts, indent=1))
    if options.compare:
        expected = json.loads(options.compare.read_text())
        different = [place for place, text in zip(places, texts, strict=True) if text != expected[place]]
        for place in different:
            print(f"{requests[place]}\n  expected {expected[place]!r}\n  got      {texts[places.index(place)]!r}")
        print(f"{options.backend}: {len(texts) - len(different)} of {len(texts)} texts are the same")
        return 1 if different else 0
    return 0


if __name__ == "__main__":
    sys.exit(main())
