"""16 streams over HTTP: tgi-serve against llama-server, and against our own engine without HTTP.

Server and client share the machine, so every engine is measured with each number of compute threads, and each side is
judged by its best.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from contextlib import ExitStack

from tokenizers import Tokenizer

from tgi_api.load import LoadResult, run_load, text_prompts

from .context import Context
from .engine_process import EngineProcess, start_cpu_engine
from .llama_peer import start_llama_server
from .measure import ForeignCpu, Row, alternate
from .serve import start_cpu_server
from .server import Server

_STREAMS = 16
_REQUESTS_PER_STREAM = 3
_NEW_TOKENS = 64
_THREADS = (1, 2)


def run_http_case(context: Context) -> list[Row]:
    """Rows for tgi-serve against llama-server and against our engine alone."""
    foreign = ForeignCpu()
    tokenizer = Tokenizer.from_file(str(context.model_dir / "tokenizer.json"))
    loads: dict[str, LoadResult] = {}
    measures: dict[str, Callable[[int], float]] = {}

    def through_http(name: str, server: Server) -> Callable[[int], float]:
        def measure(seed: int) -> float:
            prompts = text_prompts(_STREAMS * _REQUESTS_PER_STREAM, seed)
            loads[name] = run_load(server.port, prompts, streams=_STREAMS, max_tokens=_NEW_TOKENS)
            return loads[name].tokens_per_s

        return measure

    def without_http(engine: EngineProcess) -> Callable[[int], float]:
        def measure(seed: int) -> float:
            texts = text_prompts(_STREAMS * _REQUESTS_PER_STREAM, seed)
            prompts = [encoding.ids for encoding in tokenizer.encode_batch(texts)]
            return len(prompts) * _NEW_TOKENS / engine.generate(prompts, _NEW_TOKENS, _STREAMS)

        return measure

    with ExitStack() as stack:
        for threads in _THREADS:
            serve = stack.enter_context(start_cpu_server(context.model_dir, max_slots=_STREAMS, threads=threads))
            llama_server = start_llama_server(context.peers.llama_server, context.model_gguf, threads)
            llama = stack.enter_context(llama_server)
            engine_process = start_cpu_engine(context.model_dir, max_slots=_STREAMS, threads=threads)
            engine = stack.enter_context(engine_process)
            measures[f"serve {threads}"] = through_http(f"serve {threads}", serve)
            measures[f"llama {threads}"] = through_http(f"llama {threads}", llama)
            measures[f"engine {threads}"] = without_http(engine)
        values = alternate(context.rounds, measures)
    foreign_cores = foreign.cores()

    ours, peer = _best_threads(values, "serve"), _best_threads(values, "llama")
    workload = f"{_STREAMS} streams, ~32 + {_NEW_TOKENS} tokens"
    return [
        Row(
            case=f"HTTP, {workload}; threads ours {ours}, peer {peer}",
            unit="tokens/s",
            ours=values[f"serve {ours}"],
            peer=values[f"llama {peer}"],
            peer_name=f"llama-server {context.peers.llama_cpp_version}",
            target=0.9,
            aim=1.5,
            notes=f"ours {loads[f'serve {ours}'].latency}; peer {loads[f'llama {peer}'].latency}",
            foreign_cores=foreign_cores,
        ),
        Row(
            case=f"HTTP against the engine alone, {workload}, {ours} threads",
            unit="tokens/s",
            ours=values[f"serve {ours}"],
            peer=values[f"engine {ours}"],
            peer_name="our engine without HTTP",
            target=0.85,
            foreign_cores=foreign_cores,
        ),
    ]


def _best_threads(values: dict[str, list[float]], engine: str) -> int:
    return max(_THREADS, key=lambda threads: statistics.median(values[f"{engine} {threads}"]))
