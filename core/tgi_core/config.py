"""The one immutable configuration of a server, made once from command line, environment, model and defaults."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec

from tgi_core.contract import UnsupportedParameter


class ModelConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Which model.

    Attributes:
        model_id: what the user asked for and what the API reports.
        model_dir: the local folder it was resolved to.
        revision: commit or branch of a hub repository.
        chat_template: a template file that replaces the model's own; None keeps it.
        tokenizer_config_path: a file that replaces the model's ``tokenizer_config.json``; None keeps it.
        trust_remote_code: code in ``model_dir`` may run.
    """

    model_id: str
    model_dir: Path
    revision: str | None = None
    chat_template: Path | None = None
    tokenizer_config_path: Path | None = None
    trust_remote_code: bool = False


class EngineConfig(msgspec.Struct, frozen=True, kw_only=True):
    """How a replica runs.

    Attributes:
        backend: name of the backend, never "auto" here.
        dtype: name of the weight and activation type; "auto" takes the checkpoint's where the backend has it, and else
            the backend's preferred one.
        load_format: "auto" or "dummy".
        max_slots: requests that run at once.
        max_step_tokens: token budget of a step (TGI: max_batch_prefill_tokens).
        max_input_tokens, max_total_tokens: limits of one request; None lets model and memory decide.
        block_size: tokens in a KV block; None takes the backend's preferred one.
        kv_cache_bytes: memory for the KV cache; None takes what is left.
        kv_cache_tokens: most tokens the KV cache may hold (TGI: max_batch_total_tokens); None sets no bound of its own.
        memory_fraction: share of the device's memory this server may use.
        prefix_cache, chunked_prefill: switches, both on by default.
        run_ahead: steps launched before the oldest is collected; None takes the backend's.
        cpu_threads: compute threads on the host; None lets the backend choose.
        attention: name of the implementation of attention; "auto" leaves the choice to the backend.
        grammar_engine: name of the engine of structured output; None refuses requests that constrain their output.
        strict_shapes: of a backend that compiles shapes: all of them before serving, and none later.
        world_size: devices to split the model over.
        backend_options: values of the backend's own options that were given, by flag.
    """

    backend: str
    dtype: str
    load_format: str = "auto"
    max_slots: int = 64
    max_step_tokens: int = 2048
    max_input_tokens: int | None = None
    max_total_tokens: int | None = None
    block_size: int | None = None
    kv_cache_bytes: int | None = None
    kv_cache_tokens: int | None = None
    memory_fraction: float = 0.9
    prefix_cache: bool = True
    chunked_prefill: bool = True
    run_ahead: int | None = None
    cpu_threads: int | None = None
    attention: str = "auto"
    grammar_engine: str | None = "llguidance"
    strict_shapes: bool = False
    world_size: int = 1
    backend_options: Mapping[str, str] = {}


class ApiConfig(msgspec.Struct, frozen=True, kw_only=True):
    """How the HTTP side runs; names and defaults are TGI's.

    Attributes:
        max_concurrent_requests: beyond it a request gets 429.
        max_best_of, max_stop_sequences, max_top_n_tokens, max_client_batch_size: limits of one request.
        generation_config: "auto" takes what the model's ``generation_config.json`` says of sampling for parameters that
            a request does not name, "none" the API's own defaults.
        watermark_gamma, watermark_delta: share of green tokens and what is added to their logits, for requests that
            ask for a watermark.
        tool_call_parser: name of what reads the calls in replies; "auto" goes by the chat template.
        reasoning_parser: name of what reads the reasoning in replies; "auto" goes by the chat template, "none" leaves
            it in the content.
        validation_workers: threads that tokenize.
        payload_limit: largest body in bytes.
        api_key: bearer token that protected routes ask for; None leaves them open.
        served_model_names: what the model is called beside its id.
        compute_type: value of the ``x-compute-type`` header; None describes the device.
        predict_route, health_route: further paths of the Vertex route and of health; None for none.
        cors_allow_origin: allowed origins; empty allows any.
        graceful_termination_timeout_s: how long running requests may take to finish after a stop signal.
        json_output, log_level: of the log lines of every process, as ``tgi_core.logs.configure_logging`` takes them.
    """

    hostname: str = "0.0.0.0"
    port: int = 3000
    max_concurrent_requests: int = 128
    max_best_of: int = 2
    max_stop_sequences: int = 4
    max_top_n_tokens: int = 5
    max_client_batch_size: int = 4
    generation_config: str = "none"
    watermark_gamma: float = 0.5
    watermark_delta: float = 2.0
    tool_call_parser: str = "auto"
    reasoning_parser: str = "auto"
    validation_workers: int = 2
    payload_limit: int = 2_000_000
    api_key: str | None = None
    served_model_names: tuple[str, ...] = ()
    compute_type: str | None = None
    predict_route: str | None = None
    health_route: str | None = None
    cors_allow_origin: tuple[str, ...] = ()
    graceful_termination_timeout_s: float = 90.0
    json_output: bool = False
    log_level: str = "info"

    def __repr__(self) -> str:
        """The fields, the API key hidden: a configuration may end up in a log."""
        key = None if self.api_key is None else "<hidden>"
        fields = msgspec.structs.asdict(self) | {"api_key": key}
        return f"ApiConfig({', '.join(f'{name}={value!r}' for name, value in fields.items())})"


class ServerConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Everything a server needs to know."""

    model: ModelConfig
    engine: EngineConfig
    api: ApiConfig


class EngineInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What a started engine tells the rest: the limits that came out of model, memory and configuration.

    Attributes:
        max_input_tokens, max_total_tokens: of one request.
        max_step_tokens, max_slots: of a step.
        kv_tokens: tokens the KV cache holds.
        block_size: tokens in a KV block.
        vocab_size: width of the logits.
        dtype, device: names, for people.
        load_seconds, warm_up_seconds: how long start-up took.
        memory: rows of the memory table, (name, bytes).
        notes: what a user should know, such as operations bound to the reference.
        extra_parameters: names of the parameters of plugins' logits rules, which requests may set.
        decoder_prompt: of a model with an encoder, the tokens that every output follows: prompts go to the encoder, and
            ``max_total_tokens`` is the decoder's. Empty for other models.
        unsupported_parameters: what requests may not set here, and why; see ``ModelShard.unsupported_parameters``.
    """

    max_input_tokens: int
    max_total_tokens: int
    max_step_tokens: int
    max_slots: int
    kv_tokens: int
    block_size: int
    vocab_size: int
    dtype: str
    device: str
    load_seconds: float
    warm_up_seconds: float
    memory: list[tuple[str, int]]
    notes: list[str] = []
    extra_parameters: list[str] = []
    decoder_prompt: list[int] = []
    unsupported_parameters: list[UnsupportedParameter] = []
