"""Decode and prefill of our engine without HTTP against transformers' ``generate``, same weights, same threads."""

from __future__ import annotations

from functools import partial

from .context import Context
from .engine_process import EngineProcess, start_cpu_engine
from .measure import ForeignCpu, Row, alternate
from .prompts import token_prompts
from .transformers_worker import TransformersWorker

Engine = EngineProcess | TransformersWorker

_PROMPT_TOKENS = 32
_NEW_TOKENS = 64
_PREFILL_TOKENS = 512
_MAX_SLOTS = 16


def decode_tokens_per_s(engine: Engine, batch: int, seed: int) -> float:
    """Tokens a second of ``batch`` rows, prefill taken out: (N+1 tokens' time less 1 token's time) for N tokens."""
    one_s = engine.generate(token_prompts(batch, _PROMPT_TOKENS, 2 * seed), 1)
    all_s = engine.generate(token_prompts(batch, _PROMPT_TOKENS, 2 * seed + 1), _NEW_TOKENS + 1)
    return batch * _NEW_TOKENS / (all_s - one_s)


def prefill_tokens_per_s(engine: Engine, seed: int) -> float:
    """Prompt tokens a second of one prompt, until its first token."""
    return _PREFILL_TOKENS / engine.generate(token_prompts(1, _PREFILL_TOKENS, seed), 1)


def run_engine_case(context: Context) -> list[Row]:
    """Rows for decode at batch 1 and 16 and for prefill."""
    foreign = ForeignCpu()
    threads = context.threads
    with (
        start_cpu_engine(context.model_dir, max_slots=_MAX_SLOTS, threads=threads) as ours,
        TransformersWorker(context.peers.python, context.model_dir, threads) as peer,
    ):
        engines: dict[str, Engine] = {"ours": ours, "peer": peer}
        decodes = {
            batch: alternate(
                context.rounds,
                {name: partial(decode_tokens_per_s, engine, batch) for name, engine in engines.items()},
            )
            for batch in (1, 16)
        }
        prefill = alternate(
            context.rounds, {name: partial(prefill_tokens_per_s, engine) for name, engine in engines.items()}
        )
    foreign_cores = foreign.cores()
    rows = [
        Row(
            case=f"decode, batch {batch}, {_PROMPT_TOKENS} + {_NEW_TOKENS} tokens, {threads} threads",
            unit="tokens/s",
            ours=decodes[batch]["ours"],
            peer=decodes[batch]["peer"],
            peer_name=peer.name,
            target=target,
            aim=2.0,
            foreign_cores=foreign_cores,
        )
        for batch, target in ((1, 1.2), (16, 1.3))
    ]
    rows.append(
        Row(
            case=f"prefill, {_PREFILL_TOKENS} tokens, {threads} threads",
            unit="tokens/s",
            ours=prefill["ours"],
            peer=prefill["peer"],
            peer_name=peer.name,
            target=1.0,
            aim=1.3,
            foreign_cores=foreign_cores,
        )
    )
    return rows
