"""Measures an engine in one process: token ids in, token ids out, greedy, without tokenizer, prefix cache and EOS.

The loop, the scheduler, sampling and the host's work are all in the figures; only the sockets are left out.
"""

from __future__ import annotations

import random
import re
import time

import msgspec

from tgi_core.config import EngineConfig
from tgi_core.contract import Backend, KVBudget, ShardLimits, ShardSpec
from tgi_core.engine.attention import choose_attention
from tgi_core.engine.frames import (
    Command,
    EngineMessage,
    Finish,
    RequestFailed,
    StepFrame,
    Submit,
    pack_ids,
)
from tgi_core.engine.limits import find_decoder_prompt, may_chunk_prefill
from tgi_core.engine.loop import EngineLoop
from tgi_core.errors import ExitCode, StartupError
from tgi_core.model_folder import ModelFolder
from tgi_core.sampling.params import SamplingParams
from tgi_core.scheduler import Scheduler, SchedulerConfig

_CASE = re.compile(r"n(\d+)_i(\d+)_o(\d+)")
_WORKER = b"benchmark"
_ITEM_BYTES = {"bfloat16": 2, "float16": 2, "float32": 4}
_WARM_UP_REQUESTS, _WARM_UP_TOKENS = 8, 8
_STEP_INPUT, _STEP_SHORT, _STEP_LONG = 128, 64, 192


class BenchCase(msgspec.Struct, frozen=True):
    """``requests`` prompts of ``input_tokens`` each, all there at the start, with ``output_tokens`` each."""

    requests: int
    input_tokens: int
    output_tokens: int

    @classmethod
    def parse(cls, text: str) -> BenchCase:
        """Read a case such as ``n256_i512_o256``; raises ValueError."""
        match = _CASE.fullmatch(text)
        if match is None or "0" in match.groups():
            raise ValueError("a case such as n256_i512_o256: requests, input tokens, output tokens")
        return cls(*map(int, match.groups()))

    def __str__(self) -> str:
        return f"n{self.requests}_i{self.input_tokens}_o{self.output_tokens}"


class CaseResult(msgspec.Struct, frozen=True, kw_only=True):
    """What a case took; the rates count all requests together."""

    case: str
    seconds: float
    input_tokens_per_s: float
    output_tokens_per_s: float
    steps: int


class StepResult(msgspec.Struct, frozen=True, kw_only=True):
    """One decode step, isolated as the difference of two output lengths.

    Attributes:
        requests: rows of the step.
        context_tokens: of each row, on average.
        step_ms: time of a step.
        read_bytes: weights (without the embedding table, of which a step reads single rows) and cache that it reads.
        read_tb_per_s: ``read_bytes`` over the time.
    """

    requests: int
    context_tokens: int
    step_ms: float
    read_bytes: int
    read_tb_per_s: float


class EngineBenchmark:
    """An engine under measurement.

    Args:
        backend: where to run.
        folder: the model; with ``load_format`` "dummy" its config.json is enough.
        config: how the engine runs; its prefix cache is left out.
        dtype: weights' and activations' type.

    Attributes:
        load_seconds, warm_up_seconds: start-up.
        memory: the memory table, (name, bytes).

    Raises:
        StartupError: the model cannot be served so.
    """

    def __init__(self, backend: Backend, folder: ModelFolder, config: EngineConfig, dtype: str) -> None:
        capabilities = backend.capabilities()
        block_size = config.block_size or capabilities.block_sizes[0]
        attention = choose_attention(backend, config.attention, folder.path, dtype, block_size)
        self.attention = attention.name
        started = time.monotonic()
        self._folder = folder
        self._config = config
        self._item_bytes = _ITEM_BYTES[dtype]
        self._shard = backend.create_shard(
            ShardSpec(
                model_dir=folder.path,
                dtype=dtype,
                load_format=config.load_format,
                cpu_threads=config.cpu_threads,
                attention=attention,
            )
        )
        self._shard.load(_ignore_progress)
        loaded = time.monotonic()
        self._budget = self._shard.warm_up(
            ShardLimits(
                max_slots=config.max_slots,
                max_step_tokens=config.max_step_tokens,
                block_size=block_size,
                max_total_tokens=config.max_total_tokens,
                kv_cache_bytes=config.kv_cache_bytes,
                memory_fraction=config.memory_fraction,
            )
        )
        self.load_seconds = loaded - started
        self.warm_up_seconds = time.monotonic() - loaded
        # What a server does before its first request, and between them.
        while self._shard.use_idle_time():
            pass
        self.memory = [(line.name, line.size_bytes) for line in self._budget.memory]
        self._run_ahead = capabilities.run_ahead if config.run_ahead is None else config.run_ahead
        self._chunked_prefill = may_chunk_prefill(config, capabilities) and not self._shard.whole_prompts
        self._mixed_batches = capabilities.mixed_batches
        self._random = random.Random(0)

    def run(self, case: BenchCase) -> CaseResult:
        """Measure a case, after a short one of the same kind."""
        self._check(case)
        requests, output_tokens = min(_WARM_UP_REQUESTS, case.requests), min(_WARM_UP_TOKENS, case.output_tokens)
        self._generate(BenchCase(requests, case.input_tokens, output_tokens))
        seconds, steps = self._generate(case)
        return CaseResult(
            case=str(case),
            seconds=seconds,
            input_tokens_per_s=case.requests * case.input_tokens / seconds,
            output_tokens_per_s=case.requests * case.output_tokens / seconds,
            steps=steps,
        )

    def decode_step(self, requests: int) -> StepResult:
        """Measure a decode step of ``requests`` rows."""
        short = BenchCase(requests, _STEP_INPUT, _STEP_SHORT)
        long = BenchCase(requests, _STEP_INPUT, _STEP_LONG)
        self._check(long)
        self._generate(BenchCase(requests, _STEP_INPUT, _WARM_UP_TOKENS))
        step_s = (self._generate(long)[0] - self._generate(short)[0]) / (_STEP_LONG - _STEP_SHORT)
        context_tokens = _STEP_INPUT + (_STEP_SHORT + _STEP_LONG) // 2
        read_bytes = self._weights_read() + requests * context_tokens * _token_bytes(self._budget)
        return StepResult(
            requests=requests,
            context_tokens=context_tokens,
            step_ms=step_s * 1e3,
            read_bytes=read_bytes,
            read_tb_per_s=read_bytes / step_s / 1e12,
        )

    def close(self) -> None:
        """Give back the device."""
        self._shard.close()

    def _check(self, case: BenchCase) -> None:
        needed, most = case.input_tokens + case.output_tokens, self._budget.max_total_tokens
        if longest := self._budget.max_encoder_tokens:
            needed = case.output_tokens + len(find_decoder_prompt(self._folder, self._budget))
            if case.input_tokens > longest:
                raise StartupError(
                    f"{case} needs inputs of {case.input_tokens} tokens, and the encoder reads {longest} at once.",
                    "Raise --max-step-tokens, or choose a shorter case.",
                    ExitCode.USAGE,
                )
        if needed > most:
            raise StartupError(
                f"{case} needs sequences of {needed} tokens, and {most} fit.",
                "Raise --max-total-tokens or the memory of the KV cache.",
                ExitCode.USAGE,
            )

    def _generate(self, case: BenchCase) -> tuple[float, int]:
        """Seconds and steps from the first request to the last token."""
        scheduler = Scheduler(
            SchedulerConfig(
                max_slots=self._config.max_slots,
                max_step_tokens=self._config.max_step_tokens,
                eos_token_ids=frozenset(),
                prefix_cache=False,
                chunked_prefill=self._chunked_prefill,
                mixed_batches=self._mixed_batches,
            ),
            self._budget,
        )
        vocab_size, pick = self._folder.vocab_size, self._random.randrange
        prompts = [pack_ids(pick(vocab_size) for _ in range(case.input_tokens)) for _ in range(case.requests)]
        channel = _CountingChannel(
            [
                Submit(number, prompt, case.output_tokens, SamplingParams(), ignore_eos=True)
                for number, prompt in enumerate(prompts)
            ]
        )
        loop = EngineLoop(
            self._shard,
            scheduler,
            channel,
            run_ahead=self._run_ahead,
            max_total_tokens=self._budget.max_total_tokens,
            decoder_prompt=find_decoder_prompt(self._folder, self._budget),
            max_encoder_tokens=self._budget.max_encoder_tokens,
        )
        started = time.perf_counter()
        while channel.unfinished or loop.has_work:
            loop.iterate()
        seconds = time.perf_counter() - started
        assert channel.tokens == case.requests * case.output_tokens, "every token has been delivered"
        return seconds, loop.num_steps

    def _weights_read(self) -> int:
        text_config = self._folder.text_config
        weights_bytes = dict(self.memory)["weights"]
        if text_config.get("tie_word_embeddings", False):
            return weights_bytes
        width: int = text_config.get("hidden_size") or text_config["d_model"]
        embedding_bytes = self._folder.vocab_size * width * self._item_bytes
        return weights_bytes - embedding_bytes


def _ignore_progress(done_bytes: int, total_bytes: int) -> None:
    """Random weights are there at once, and a benchmark of real ones times the whole."""


class _CountingChannel:
    """Hands in all requests at once and counts what comes back."""

    def __init__(self, submits: list[Submit]) -> None:
        self.unfinished = len(submits)
        self.tokens = 0
        self._submits = submits

    def receive(self, timeout_ms: int) -> list[tuple[bytes, Command]]:  # noqa: ARG002 - nothing is waited for
        submits, self._submits = self._submits, []
        return [(_WORKER, submit) for submit in submits]

    def send(self, worker: bytes, message: EngineMessage) -> bool:  # noqa: ARG002 - there is one
        if isinstance(message, RequestFailed):
            raise RuntimeError(message.message)
        assert isinstance(message, StepFrame)
        self.tokens += len(message.finishes)
        self.unfinished -= len(message.finishes) - message.finishes.count(Finish.NOT)
        return True


def _token_bytes(budget: KVBudget) -> int:
    """Cache of one token over all layers, windows not counted."""
    return sum(group.group.bytes_per_block for group in budget.groups) // budget.block_size
