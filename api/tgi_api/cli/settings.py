"""What the command line and the environment ask for, checked, and the server's configuration made from it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec

from tgi_core.config import ApiConfig, EngineConfig, ModelConfig, ServerConfig
from tgi_core.errors import ExitCode, StartupError

_API = ApiConfig()
_ENGINE = EngineConfig(backend="auto", dtype="auto")

REQUESTS_PER_SLOT = 4
"""How many requests are admitted for each slot: one runs, the others wait for it in the queue."""


class ServeSettings(msgspec.Struct, frozen=True, kw_only=True):
    """One field for each used option of the same name; None leaves the choice to model, memory or backend."""

    model_id: str | None = None
    revision: str | None = None
    served_model_name: tuple[str, ...] = ()
    huggingface_hub_cache: Path | None = None
    weights_cache_override: Path | None = None
    tokenizer_config_path: Path | None = None
    chat_template: Path | None = None
    trust_remote_code: bool = False
    load_format: str = _ENGINE.load_format
    backend: str = _ENGINE.backend
    dtype: str = _ENGINE.dtype
    cuda_memory_fraction: float = _ENGINE.memory_fraction
    kv_cache_memory: int | None = None
    max_batch_total_tokens: int | None = None
    block_size: int | None = None
    attention: str = _ENGINE.attention
    cpu_threads: int | None = None
    strict_shapes: bool = _ENGINE.strict_shapes
    num_shard: int | None = None
    sharded: bool | None = None
    max_batch_size: int = _ENGINE.max_slots
    max_batch_prefill_tokens: int = _ENGINE.max_step_tokens
    max_concurrent_requests: int | None = None
    prefix_caching: bool = _ENGINE.prefix_cache
    prefill_chunking: bool = _ENGINE.chunked_prefill
    max_input_tokens: int | None = None
    max_input_length: int | None = None
    max_total_tokens: int | None = None
    max_best_of: int = _API.max_best_of
    max_stop_sequences: int = _API.max_stop_sequences
    max_top_n_tokens: int = _API.max_top_n_tokens
    max_client_batch_size: int = _API.max_client_batch_size
    payload_limit: int = _API.payload_limit
    generation_config: str = _API.generation_config
    watermark_gamma: float = _API.watermark_gamma
    watermark_delta: float = _API.watermark_delta
    tool_call_parser: str = _API.tool_call_parser
    reasoning_parser: str = _API.reasoning_parser
    grammar_engine: str | None = _ENGINE.grammar_engine
    disable_grammar_support: bool = False
    hostname: str = _API.hostname
    port: int = _API.port
    aip_predict_route: str | None = None
    aip_health_route: str | None = None
    api_key: str | None = None
    cors_allow_origin: tuple[str, ...] = ()
    validation_workers: int = _API.validation_workers
    compute_type: str | None = None
    graceful_termination_timeout: float = _API.graceful_termination_timeout_s
    json_output: bool = _API.json_output
    log_level: str = _API.log_level
    env: bool = False

    @property
    def longest_input(self) -> int | None:
        """Longest prompt in tokens, under its new or its old name."""
        return self.max_input_tokens if self.max_input_tokens is not None else self.max_input_length

    @property
    def used_grammar_engine(self) -> str | None:
        """Name of the engine of structured output; None when it is switched off."""
        return None if self.disable_grammar_support else self.grammar_engine

    @property
    def admitted_requests(self) -> int:
        """Requests waiting or running beyond which one gets 429."""
        if self.max_concurrent_requests is not None:
            return self.max_concurrent_requests
        return max(_API.max_concurrent_requests, REQUESTS_PER_SLOT * self.max_batch_size)


def check_settings(settings: ServeSettings) -> list[StartupError]:
    """Everything that does not fit together, as TGI's launcher checks it; empty when all is well."""
    problems = []
    longest, total = settings.longest_input, settings.max_total_tokens
    if settings.model_id is None and settings.weights_cache_override is None:
        problems.append(
            _usage("No model is given.", "Add --model-id ID; --model-id demo serves a small packaged model.")
        )
    if settings.max_input_tokens is not None and settings.max_input_length is not None:
        problems.append(
            _usage(
                "Both --max-input-tokens and its old name --max-input-length are set.",
                "Keep --max-input-tokens (MAX_INPUT_TOKENS) and drop the other.",
            )
        )
    if longest is not None and total is not None and longest >= total:
        problems.append(
            _usage(
                f"--max-input-tokens ({longest}) must be below --max-total-tokens ({total}).",
                f"Use --max-total-tokens {longest + 1} or more, or leave one of them out.",
            )
        )
    count = settings.num_shard
    if count is not None and settings.sharded is not None and settings.sharded != (count > 1):
        problems.append(
            _usage(
                f"--sharded {str(settings.sharded).lower()} and --num-shard {count} contradict each other.",
                "Leave out --sharded: --num-shard says it all.",
            )
        )
    budget = settings.max_batch_prefill_tokens
    if longest is not None and not settings.prefill_chunking and longest > budget:
        problems.append(
            _usage(
                f"Without prefill chunking a prompt of --max-input-tokens ({longest}) must fit into "
                f"--max-batch-prefill-tokens ({budget}).",
                f"Use --max-batch-prefill-tokens {longest} or more, or allow prefill chunking.",
            )
        )
    cache = settings.max_batch_total_tokens
    longest_sequence = total if total is not None else longest and longest + 1
    if cache is not None and longest_sequence is not None and longest_sequence > cache:
        name = "--max-total-tokens" if total is not None else "--max-input-tokens and one more"
        problems.append(
            _usage(
                f"{name} ({longest_sequence}) must be at most --max-batch-total-tokens ({cache}), the KV cache's size.",
                f"Use --max-batch-total-tokens {longest_sequence} or more, or leave it out: the cache takes what fits.",
            )
        )
    return problems


def make_config(
    settings: ServeSettings,
    *,
    backend: str,
    model_dir: Path,
    port: int,
    world_size: int = 1,
    backend_options: Mapping[str, str] | None = None,
) -> ServerConfig:
    """The configuration of the server.

    Args:
        settings: checked settings.
        backend: name of the chosen backend.
        model_dir: the folder the model was resolved to.
        port: the port that was bound.
        world_size: devices to split the model over.
        backend_options: values of the backend's own options, by flag.
    """
    return ServerConfig(
        model=ModelConfig(
            model_id=settings.model_id or str(model_dir),
            model_dir=model_dir,
            revision=settings.revision,
            chat_template=settings.chat_template,
            tokenizer_config_path=settings.tokenizer_config_path,
            trust_remote_code=settings.trust_remote_code,
        ),
        engine=EngineConfig(
            backend=backend,
            dtype=settings.dtype,
            load_format=settings.load_format,
            max_slots=settings.max_batch_size,
            max_step_tokens=settings.max_batch_prefill_tokens,
            max_input_tokens=settings.longest_input,
            max_total_tokens=settings.max_total_tokens,
            kv_cache_bytes=settings.kv_cache_memory,
            kv_cache_tokens=settings.max_batch_total_tokens,
            block_size=settings.block_size,
            attention=settings.attention,
            memory_fraction=settings.cuda_memory_fraction,
            prefix_cache=settings.prefix_caching,
            chunked_prefill=settings.prefill_chunking,
            cpu_threads=settings.cpu_threads,
            grammar_engine=settings.used_grammar_engine,
            strict_shapes=settings.strict_shapes,
            world_size=world_size,
            backend_options=backend_options or {},
        ),
        api=ApiConfig(
            hostname=settings.hostname,
            port=port,
            max_concurrent_requests=settings.admitted_requests,
            max_best_of=settings.max_best_of,
            max_stop_sequences=settings.max_stop_sequences,
            max_top_n_tokens=settings.max_top_n_tokens,
            max_client_batch_size=settings.max_client_batch_size,
            generation_config=settings.generation_config,
            watermark_gamma=settings.watermark_gamma,
            watermark_delta=settings.watermark_delta,
            tool_call_parser=settings.tool_call_parser,
            reasoning_parser=settings.reasoning_parser,
            validation_workers=settings.validation_workers,
            payload_limit=settings.payload_limit,
            api_key=settings.api_key,
            served_model_names=settings.served_model_name,
            compute_type=settings.compute_type,
            predict_route=settings.aip_predict_route,
            health_route=settings.aip_health_route,
            cors_allow_origin=settings.cors_allow_origin,
            graceful_termination_timeout_s=settings.graceful_termination_timeout,
            json_output=settings.json_output,
            log_level=settings.log_level,
        ),
    )


def _usage(cause: str, fix: str) -> StartupError:
    return StartupError(cause, fix, ExitCode.USAGE)
