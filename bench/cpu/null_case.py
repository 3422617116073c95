"""The cost of everything above a device: engine, frames, HTTP, on the null backend, which computes nothing."""

from __future__ import annotations

from tgi_api.load import LoadResult, run_load, text_prompts

from .context import Context
from .engine_process import EngineProcess
from .measure import ForeignCpu, Row, alternate
from .prompts import token_prompts
from .serve import start_null_server

_BATCH = 256
_PROMPT_TOKENS = 32
_NEW_TOKENS = 512


def run_null_case(context: Context) -> list[Row]:
    """Rows for the engine process alone and for 256 streams over HTTP."""
    return [_engine_row(context), _http_row(context)]


def _engine_row(context: Context) -> Row:
    foreign = ForeignCpu()

    def tokens_per_s(seed: int) -> float:
        return _BATCH * _NEW_TOKENS / engine.generate(token_prompts(_BATCH, _PROMPT_TOKENS, seed), _NEW_TOKENS)

    with EngineProcess(context.model_dir, backend="null", max_slots=_BATCH) as engine:
        values = alternate(context.rounds, {"ours": tokens_per_s})
    return Row(
        case=f"null backend, engine process, batch {_BATCH}",
        unit="tokens/s",
        ours=values["ours"],
        target=75_000,
        foreign_cores=foreign.cores(),
    )


def _http_row(context: Context) -> Row:
    foreign = ForeignCpu()
    results: list[LoadResult] = []

    def tokens_per_s(seed: int) -> float:
        results.append(run_load(server.port, text_prompts(_BATCH, seed), streams=_BATCH, max_tokens=_NEW_TOKENS))
        return results[-1].tokens_per_s

    with start_null_server(context.model_dir, max_slots=_BATCH) as server:
        values = alternate(context.rounds, {"ours": tokens_per_s})
    return Row(
        case=f"null backend, HTTP, {_BATCH} SSE streams",
        unit="tokens/s",
        ours=values["ours"],
        target=12_000,
        aim=25_000,
        notes=results[-1].latency,
        foreign_cores=foreign.cores(),
    )
