"""``bench http``: how fast a running server answers many streams at once."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec

from tgi_api.cli.arguments import Arguments
from tgi_api.cli.bench_run import run_bench
from tgi_api.cli.options import Group, Option
from tgi_api.cli.values import any_path, integer, text
from tgi_api.load import LoadError, LoadResult, percentile, run_load, text_prompts
from tgi_core.errors import ExitCode, StartupError


class BenchHttpSettings(msgspec.Struct, frozen=True, kw_only=True):
    """One field for each option of the same name."""

    url: str = "http://127.0.0.1:3000"
    streams: int = 16
    requests: int = 3
    input: int = 32
    output: int = 64
    processes: int = 1
    seed: int = 0
    json: Path | None = None


class HttpReport(msgspec.Struct, frozen=True, kw_only=True):
    """What a run measured: throughput of all streams together, and latencies as percentiles in milliseconds."""

    date: str
    command: str
    streams: int
    requests: int
    input_words: int
    output_tokens: int
    client_processes: int
    tokens_per_s: float
    ttft_p50_ms: float
    ttft_p99_ms: float
    gap_p50_ms: float
    gap_p99_ms: float


def _option(flag: str, metavar: str, read: Any, help: str) -> Option:
    return Option(flag=flag, metavar=metavar, read=read, help=help, group=Group.OPERATION)


BENCH_HTTP_OPTIONS: tuple[Option, ...] = (
    _option("--url", "URL", text, "The server; http://127.0.0.1:3000 by default"),
    _option("--streams", "N", integer(1), "Requests that are open at once"),
    _option("--requests", "N", integer(1), "Requests of each stream, one after the other"),
    _option("--input", "WORDS", integer(1), "Words of a prompt, each a token or two; every prompt is new"),
    _option("--output", "N", integer(1), "Tokens of an answer; EOS is ignored"),
    _option("--processes", "N", integer(1), "Client processes that share the streams"),
    _option("--seed", "N", integer(0), "Of the prompts; another seed makes others, so that no prefix cache helps"),
    _option("--json", "FILE", any_path, "Where to write the figures"),
)


def bench_http(arguments: Arguments) -> int:
    """Run the load and print its figures; returns the exit code."""
    return run_bench(arguments, BenchHttpSettings, _measure)


def _measure(settings: BenchHttpSettings) -> HttpReport:
    address = urlsplit(settings.url)
    if address.scheme != "http" or not address.hostname:
        raise StartupError(f"`{settings.url}` is no address.", "Use one like http://127.0.0.1:3000.", ExitCode.USAGE)
    prompts = text_prompts(settings.streams * settings.requests, settings.seed, words=settings.input)
    try:
        result: LoadResult = run_load(
            address.port or 80,
            prompts,
            host=address.hostname,
            streams=settings.streams,
            max_tokens=settings.output,
            processes=min(settings.processes, settings.streams),
        )
    except LoadError as error:
        raise StartupError(
            f"The load did not run through: {error}.", f"Is a server healthy at {settings.url}?", ExitCode.FAILURE
        ) from error
    report = HttpReport(
        date=time.strftime("%Y-%m-%d"),
        command=" ".join(["tgi-serve", *sys.argv[1:]]),
        streams=settings.streams,
        requests=settings.requests,
        input_words=settings.input,
        output_tokens=settings.output,
        client_processes=min(settings.processes, settings.streams),
        tokens_per_s=result.tokens_per_s,
        ttft_p50_ms=percentile(result.ttft_ms, 50),
        ttft_p99_ms=percentile(result.ttft_ms, 99),
        gap_p50_ms=percentile(result.gap_ms, 50),
        gap_p99_ms=percentile(result.gap_ms, 99),
    )
    print(
        f"{report.tokens_per_s:,.0f} tokens/s over {report.streams} streams; "
        f"first token p50 {report.ttft_p50_ms:,.0f} ms, p99 {report.ttft_p99_ms:,.0f} ms; "
        f"gap p50 {report.gap_p50_ms:.1f} ms, p99 {report.gap_p99_ms:.1f} ms"
    )
    return report
