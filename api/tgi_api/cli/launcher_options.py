"""The table of every option of `tgi-serve`: TGI's launcher flags and variables, and a few of our own.

Names, variables and meanings are TGI's. Our own options read variables that begin with ``TGI_SERVE_``, so that a
variable which a deployment happens to have cannot change a server.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from tgi_api.cli.options import Effect, Group, Option
from tgi_api.cli.values import (
    Reader,
    any_path,
    attention,
    boolean,
    choice,
    existing_directory,
    existing_file,
    fraction,
    header_text,
    integer,
    ip_address,
    number_from,
    route_path,
    seconds,
    size_bytes,
    text,
)

LOG_LEVELS = ("error", "warn", "info", "debug", "trace")


def _variable(flag: str) -> str:
    return flag.removeprefix("--").replace("-", "_").upper()


def _used(
    group: Group, flag: str, metavar: str, read: Reader, help: str, *, also: tuple[str, ...] = (), **more: Any
) -> Option:
    """A TGI option that works here; ``also`` names further variables."""
    env = (_variable(flag), *also)
    return Option(flag=flag, env=env, metavar=metavar, read=read, help=help, group=group, **more)


def _own(group: Group, flag: str, metavar: str, read: Reader, help: str) -> Option:
    """An option that TGI does not have."""
    return Option(flag=flag, env=(f"TGI_SERVE_{_variable(flag)}",), metavar=metavar, read=read, help=help, group=group)


def _variable_only(group: Group, variable: str, metavar: str, read: Reader, help: str, **more: Any) -> Option:
    """An option that only the environment sets."""
    return Option(env=(variable,), metavar=metavar, read=read, help=help, group=group, **more)


def _satisfied(flag: str, metavar: str, read: Reader, reason: str, **more: Any) -> Option:
    """A TGI option that asks for what is always so."""
    return _used(Group.OPERATION, flag, metavar, read, reason, reason=reason, effect=Effect.SATISFIED, **more)


def _satisfied_variable(variable: str, metavar: str, reason: str, **more: Any) -> Option:
    """A variable that asks for what is always so."""
    more |= {"reason": reason, "effect": Effect.SATISFIED}
    return _variable_only(Group.OPERATION, variable, metavar, text, reason, **more)


def _ignored(flag: str, metavar: str, reason: str, **more: Any) -> Option:
    """A TGI option without a meaning here."""
    more = {"env": (_variable(flag),), "effect": Effect.IGNORED, "group": Group.IGNORED} | more
    if not metavar:
        more |= {"read": boolean, "neutral": (False,)}
    return Option(flag=flag, metavar=metavar, help=reason, reason=reason, **more)


def _refused(flag: str, metavar: str, read: Reader, help: str, fix: str, **more: Any) -> Option:
    """A TGI option whose feature is not built; its ``neutral`` values are accepted."""
    return _used(Group.REFUSED, flag, metavar, read, help, reason=fix, effect=Effect.REFUSED, **more)


_model = partial(_used, Group.MODEL)
_device = partial(_used, Group.DEVICE)
_scheduling = partial(_used, Group.SCHEDULING)
_limit = partial(_used, Group.LIMITS)
_generation = partial(_used, Group.GENERATION)
_http = partial(_used, Group.HTTP)
_operation = partial(_used, Group.OPERATION)

_dtype = choice("auto", "float16", "bfloat16", "float32")
_kv_dtype = choice("auto", "fp8_e4m3fn", "fp8_e5m2")

_EVERY_STEP = "Every step takes all work that fits; prefill never waits for decode."
_NO_SHARD_SOCKET = "There are no shard processes to reach at an address."
_NO_RANKS = "One process drives the device; there are no ranks."
_NO_DEBUG_GROUP = "There is no process group to replace; LOG_LEVEL=debug shows more."
_NO_KERNEL_CHOICE = "The backend chooses its kernels."
_NO_TUNNEL = "No tunnel is opened; publish the port with a proxy of your own."
_NO_SCALING = "Leave it out; the scaling in the model's config.json is applied."
_DENSE = "Leave it out and choose a checkpoint in float16, bfloat16 or float32."

MOST_TOKENS = 1 << 27
"""No model and no memory reaches it; a larger number is a slip of the hand."""

LAUNCHER_OPTIONS: tuple[Option, ...] = (
    _model("--model-id", "ID", text, "Hub repository, local directory, GGUF file, or demo", also=("HF_MODEL_ID",)),
    _model("--revision", "NAME", text, "Branch, tag or commit of the repository", also=("HF_MODEL_REVISION",)),
    Option(
        flag="--served-model-name",
        env=("TGI_SERVE_SERVED_MODEL_NAME",),
        metavar="NAME",
        group=Group.MODEL,
        read=text,
        repeated=True,
        help="Another name of the model; repeatable",
    ),
    _model("--huggingface-hub-cache", "DIR", any_path, "Where downloads are kept"),
    _model("--weights-cache-override", "DIR", existing_directory, "Directory with the weights, or the whole model"),
    _model("--tokenizer-config-path", "FILE", existing_file, "Replaces the model's tokenizer_config.json"),
    _own(Group.MODEL, "--chat-template", "FILE", existing_file, "Replaces the model's chat template"),
    _own(Group.MODEL, "--load-format", "auto|dummy", choice("auto", "dummy"), "dummy: random weights, for benchmarks"),
    _model(
        "--trust-remote-code",
        "",
        boolean,
        "Run code from the model's folder where nothing else knows the model",
        also=("HF_MODEL_TRUST_REMOTE_CODE",),
    ),
    # Device and memory
    _own(Group.DEVICE, "--backend", "NAME", text, "Backend to run on; auto: the best one that finds a device"),
    _device("--dtype", "TYPE", _dtype, "Type of weights and activations; auto: the checkpoint's where possible"),
    _device(
        "--cuda-memory-fraction",
        "SHARE",
        fraction,
        "Share of the device's memory to use",
        also=("XPU_MEMORY_FRACTION",),
    ),
    _own(Group.DEVICE, "--kv-cache-memory", "SIZE", size_bytes, "Memory for the KV cache, such as 2GiB"),
    _device("--max-batch-total-tokens", "N", integer(1, MOST_TOKENS), "Most tokens the KV cache may hold"),
    _own(Group.DEVICE, "--block-size", "N", integer(1), "Tokens in a KV block"),
    Option(
        flag="--attention",
        env=("ATTENTION",),
        metavar="NAME",
        group=Group.DEVICE,
        read=attention,
        help="Implementation of attention; auto: the backend's choice",
    ),
    _own(Group.DEVICE, "--cpu-threads", "N", integer(1, 1024), "Compute threads on the host"),
    _device("--num-shard", "N", integer(1), "Devices to split the model over; 1 if left out", also=("SM_NUM_GPUS",)),
    _device("--sharded", "true|false", boolean, "true without --num-shard: split over all devices that are found"),
    _own(
        Group.DEVICE,
        "--strict-shapes",
        "",
        boolean,
        "Prepare every static shape before serving; a step that would compile fails",
    ),
    # Scheduling
    _scheduling("--max-batch-size", "N", integer(1, 65_536), "Requests that run at once"),
    _scheduling("--max-batch-prefill-tokens", "N", integer(1, MOST_TOKENS), "Tokens one step may compute"),
    _scheduling("--max-concurrent-requests", "N", integer(1), "Requests waiting or running; beyond it 429"),
    _scheduling("--prefix-caching", "", boolean, "Share the KV cache of equal beginnings", negatable=True),
    _scheduling("--prefill-chunking", "", boolean, "Compute long prompts over several steps", negatable=True),
    # Limits of a request
    _limit("--max-input-tokens", "N", integer(1, MOST_TOKENS), "Longest prompt"),
    _limit("--max-input-length", "N", integer(1, MOST_TOKENS), "Old name of --max-input-tokens"),
    _limit("--max-total-tokens", "N", integer(2, MOST_TOKENS), "Longest prompt and output together"),
    _limit("--max-best-of", "N", integer(1), "Largest best_of; 1 disables it"),
    _limit("--max-stop-sequences", "N", integer(0), "Stop sequences of one request"),
    _limit("--max-top-n-tokens", "N", integer(0), "Largest top_n_tokens"),
    _limit("--max-client-batch-size", "N", integer(1), "Prompts in one /v1/completions call"),
    _limit("--payload-limit", "BYTES", integer(1), "Largest body of a request"),
    # What a request gets
    _own(
        Group.GENERATION,
        "--generation-config",
        "none|auto",
        choice("none", "auto"),
        "auto: sampling of the model's generation_config.json for what a request does not name",
    ),
    _generation("--watermark-gamma", "GAMMA", fraction, "Watermark: share of green tokens"),
    _generation("--watermark-delta", "DELTA", number_from(0, 100), "Watermark: added to green tokens' logits"),
    _own(
        Group.GENERATION, "--tool-call-parser", "NAME", text, "How the model writes calls; auto: as its template says"
    ),
    _own(
        Group.GENERATION,
        "--reasoning-parser",
        "NAME",
        text,
        "How the model marks its reasoning; auto: as its template says, none: it stays in the content",
    ),
    _own(Group.GENERATION, "--grammar-engine", "NAME", text, "Engine of structured output"),
    _generation("--disable-grammar-support", "", boolean, "Refuse requests that constrain their output"),
    # HTTP
    _http("--hostname", "ADDRESS", ip_address, "IP address to listen on", lenient_env=True),
    Option(
        flag="--port",
        short="-p",
        # What a platform says about its own probes goes before what an image has set for all platforms.
        env=("AIP_HTTP_PORT", "SAGEMAKER_BIND_TO_PORT", "PORT"),
        metavar="N",
        group=Group.HTTP,
        read=integer(0, 65535),
        help="Port to listen on; 0: a free one",
    ),
    _variable_only(Group.HTTP, "AIP_PREDICT_ROUTE", "PATH", route_path, "Further path of POST /vertex"),
    _variable_only(Group.HTTP, "AIP_HEALTH_ROUTE", "PATH", route_path, "Further path of GET /health"),
    _http("--api-key", "KEY", text, "Bearer token that requests must carry", secret=True),
    _http("--cors-allow-origin", "ORIGIN", text, "Origin browsers may call from; repeatable", repeated=True),
    _http("--validation-workers", "N", integer(1), "Threads that tokenize"),
    _http("--graceful-termination-timeout", "SECONDS", seconds, "Time for running requests at shutdown", short="-g"),
    _variable_only(Group.HTTP, "COMPUTE_TYPE", "NAME", header_text, "Value of the x-compute-type header"),
    # Logs and operation
    _operation("--json-output", "", boolean, "Log lines in JSON"),
    _variable_only(
        Group.OPERATION,
        "LOG_LEVEL",
        "LEVEL",
        choice(*LOG_LEVELS),
        f"One of {', '.join(LOG_LEVELS)}",
        lenient_env=True,
    ),
    Option(
        flag="--env",
        short="-e",
        read=boolean,
        group=Group.OPERATION,
        help="Print versions, devices and arguments, then start",
    ),
    _satisfied("--usage-stats", "on|off|no-stack", choice("on", "off", "no-stack"), "No statistics are ever sent."),
    _satisfied(
        "--enable-prefill-logprobs",
        "",
        boolean,
        "Log-probabilities of a prompt come when asked for.",
        also=("REQUEST_LOGPROBS",),
    ),
    _satisfied_variable("HF_API_TOKEN", "TOKEN", "Taken as HF_TOKEN where that is not set.", secret=True),
    _satisfied_variable("MESSAGES_API_ENABLED", "BOOL", "/invocations always takes chats beside TGI's requests."),
    # Without effect
    _ignored("--waiting-served-ratio", "RATIO", _EVERY_STEP),
    _ignored("--max-waiting-tokens", "N", _EVERY_STEP),
    _ignored("--cuda-graphs", "SIZES", "The backend decides which steps are captured as graphs."),
    _ignored("--disable-custom-kernels", "", "Which kernels run follows from --backend alone."),
    _ignored("--shard-uds-path", "PATH", _NO_SHARD_SOCKET),
    _ignored("--master-addr", "ADDRESS", _NO_SHARD_SOCKET),
    _ignored("--master-port", "PORT", _NO_SHARD_SOCKET),
    _ignored("--prometheus-port", "PORT", "Metrics are on /metrics of the main port."),
    _ignored("--otlp-service-name", "NAME", "No traces are exported."),
    _ignored("--ngrok", "", _NO_TUNNEL),
    _ignored("--ngrok-authtoken", "TOKEN", _NO_TUNNEL, secret=True),
    _ignored("--ngrok-edge", "EDGE", _NO_TUNNEL),
    _ignored("--ngrok-domain", "DOMAIN", _NO_TUNNEL),
    _ignored("--ngrok-username", "NAME", _NO_TUNNEL),
    _ignored("--ngrok-password", "WORD", _NO_TUNNEL, secret=True),
    _ignored("", "BOOL", "Attention is always paged.", env=("USE_FLASH_ATTENTION",)),
    _ignored("", "SHARE", "Memory is measured; --cuda-memory-fraction leaves some free.", env=("TGI_WIGGLE_ROOM",)),
    _ignored("", "BYTES", "No images are fetched.", env=("MAX_IMAGE_FETCH_SIZE",)),
    _ignored("", "BOOL", "A terminal's colours follow NO_COLOR; log lines have none.", env=("LOG_COLORIZE",)),
    _ignored("", "BOOL", _NO_DEBUG_GROUP, env=("DEBUG",), neutral=("0", "false")),
    _ignored("", "N", _NO_RANKS, env=("RANK",), neutral=("0",)),
    _ignored("", "N", _NO_RANKS, env=("WORLD_SIZE",), neutral=("1",)),
    _ignored("", "N", _NO_KERNEL_CHOICE, env=("EXLLAMA_VERSION",)),
    _ignored("", "BOOL", _NO_KERNEL_CHOICE, env=("DISABLE_EXLLAMA",)),
    _ignored("", "BOOL", _NO_KERNEL_CHOICE, env=("USE_CUTLASS_W8A8",)),
    _ignored("", "BOOL", _NO_KERNEL_CHOICE, env=("ROCM_USE_FLASH_ATTN_V2_TRITON",)),
    _ignored("", "BOOL", _NO_KERNEL_CHOICE, env=("ROCM_USE_CUSTOM_PAGED_ATTN",)),
    _ignored("", "BOOL", _NO_KERNEL_CHOICE, env=("ROCM_USE_SKINNY_GEMM",)),
    _ignored("", "TASK", "Every model that is served generates text.", env=("HF_TASK",), neutral=("text-generation",)),
    # Not built
    _refused("--quantize", "METHOD", text, "Quantized weights", _DENSE, also=("HF_MODEL_QUANTIZE",)),
    _refused("--speculate", "N", integer(0), "Speculative decoding; 0 is fine", "Use --speculate 0.", neutral=(0,)),
    _refused(
        "--kv-cache-dtype", "TYPE", _kv_dtype, "Type of the KV cache; auto is fine", "Leave it out.", neutral=("auto",)
    ),
    _refused("--rope-scaling", "KIND", text, "Another scaling of positions", _NO_SCALING),
    _refused("--rope-factor", "FACTOR", text, "Factor of that scaling", _NO_SCALING),
    _refused("--lora-adapters", "IDS", text, "LoRA adapters", "Leave it out; merge the adapter into the model."),
    _refused("--otlp-endpoint", "URL", text, "Export of traces", "Leave it out; metrics are on /metrics."),
)
