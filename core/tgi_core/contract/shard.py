"""A model on one device, as the engine drives it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

import msgspec

from tgi_core.contract.attention import AttentionChoice
from tgi_core.contract.plan import LateInputs, StepPlan, StepResult

LoadProgress = Callable[[int, int], None]
"""Called with (bytes loaded, bytes in all) while weights are read."""


class ShardSpec(msgspec.Struct, frozen=True, kw_only=True):
    """What to build.

    Attributes:
        model_dir: a local folder in Hugging Face's layout.
        dtype: name of the weight and activation type, one of the capabilities'.
        load_format: "auto" reads the checkpoint; "dummy" fills random weights on the device, for benchmarks.
        cpu_threads: threads for compute on the host; None leaves the choice to the backend.
        eos_token_ids: tokens that end a sequence; ``min_tokens`` forbids them.
        attention: the implementation of attention; None for the backend's own.
        trust_remote_code: code in ``model_dir`` may run.
        world_size: devices to split the model over, at most the capabilities' ``max_world_size``.
        options: values of the backend's own options that were given, by ``BackendOption.flag``;
            ``BackendOption.value`` reads one.
    """

    model_dir: Path
    dtype: str
    load_format: str = "auto"
    cpu_threads: int | None = None
    eos_token_ids: tuple[int, ...] = ()
    attention: AttentionChoice | None = None
    trust_remote_code: bool = False
    world_size: int = 1
    options: Mapping[str, str] = {}


class ShardLimits(msgspec.Struct, frozen=True, kw_only=True):
    """The sizes a step and a slot may reach; arenas are made for them once.

    Attributes:
        max_slots: rows that can run at once.
        max_total_tokens: longest prompt and output of a slot; None lets model and memory decide.
        max_step_tokens: tokens one step may compute.
        block_size: tokens in a KV block.
        kv_cache_bytes: memory for the KV cache; None takes what is left.
        kv_cache_tokens: most tokens the KV cache may hold, rounded up to whole blocks; None sets no bound of its own.
        memory_fraction: share of the device's memory this server may use.
        max_encoder_tokens: longest input of a model with an encoder; None lets model, memory and step decide.
        strict_shapes: of a shard that compiles: every shape is prepared in warm-up, and a step that needs another one
            fails rather than compile it.
    """

    max_slots: int
    max_step_tokens: int
    block_size: int
    max_total_tokens: int | None = None
    kv_cache_bytes: int | None = None
    kv_cache_tokens: int | None = None
    memory_fraction: float = 0.9
    max_encoder_tokens: int | None = None
    strict_shapes: bool = False


class KVGroup(msgspec.Struct, frozen=True, array_like=True):
    """Layers whose caches grow and shrink together.

    Attributes:
        window: tokens a layer looks back, itself included; None for full attention.
        bytes_per_block: over all layers of the group.
        cross: holds what a decoder sees of its encoder's tokens, and so neither grows nor shrinks: a slot gets all its
            blocks when it is entered.
    """

    window: int | None
    bytes_per_block: int
    cross: bool = False


class KVGroupBudget(msgspec.Struct, frozen=True, array_like=True):
    """A group and how many blocks of it were allocated."""

    group: KVGroup
    blocks: int


class MemoryLine(msgspec.Struct, frozen=True, array_like=True):
    """One row of the memory table printed at start."""

    name: str
    size_bytes: int


class KVBudget(msgspec.Struct, frozen=True, array_like=True):
    """What warm-up measured and allocated.

    Attributes:
        block_size: tokens in a block, the same in every group.
        groups: the KV groups with their blocks.
        max_total_tokens: longest sequence that fits the tables, the model and the cache.
        memory: the table of where memory went.
        has_states: slots keep a state that blocks do not hold. So prefixes are not shared, and no token of a slot is
            computed twice.
        max_encoder_tokens: longest input that fits an encoder, its step and the cache; 0 for a model without encoder.
    """

    block_size: int
    groups: list[KVGroupBudget]
    max_total_tokens: int
    memory: list[MemoryLine]
    has_states: bool = False
    max_encoder_tokens: int = 0


class UnsupportedParameter(msgspec.Struct, frozen=True, array_like=True):
    """A parameter that requests may not set, and why: ends the sentence "`seed` is not supported here: ..."."""

    name: str
    reason: str


class Ticket(Protocol):
    """A launched step. Its tokens are not readable before ``collect``."""

    @property
    def step(self) -> int:
        """Number of the step."""


class ModelShard(ABC):
    """Driven by one thread, in this order: load, warm_up, then (launch, sample, collect) a step, close.

    Steps are collected in the order of their launch. With ``run_ahead`` 1 a second step may be launched before the
    first is collected. A raised exception is a fault of the whole replica.

    Attributes:
        notes: what a user should know, said at start; such as an operation that runs on the slower reference.
        whole_prompts: once it is loaded: all known tokens of a request must be computed in one step.
        extra_parameters: names that ``SamplingParams.extra`` may hold: parameters of plugins' logits rules.
        unsupported_parameters: what this shard cannot do for a request: names of ``SamplingParams``, or "grammar",
            "logprobs" (of chosen tokens) or "prompt_logprobs".
    """

    notes: Sequence[str] = ()
    whole_prompts: bool = False
    extra_parameters: Sequence[str] = ()
    unsupported_parameters: Sequence[UnsupportedParameter] = ()

    @abstractmethod
    def load(self, progress: LoadProgress) -> None:
        """Read the weights onto the device."""

    @abstractmethod
    def warm_up(self, limits: ShardLimits) -> KVBudget:
        """Measure, allocate the KV cache and all arenas, prepare kernels. After it a step allocates nothing lasting.

        Raises:
            StartupError: the limits do not fit; the message holds the memory table and values that would.
        """

    @abstractmethod
    def launch(self, plan: StepPlan) -> Ticket:
        """Start the step's forward and return at once."""

    @abstractmethod
    def sample(self, ticket: Ticket, late: LateInputs | None) -> None:
        """Start the step's sampling. Called once a ticket; at once after ``launch`` when ``plan.late`` is false."""

    @abstractmethod
    def collect(self, ticket: Ticket) -> StepResult:
        """Wait for the step and return its tokens.

        Raises:
            DeviceMemoryError: the step found no memory on the device.
            DeviceLostError: the device has failed.
        """

    @property
    def late_compiles(self) -> int:
        """Programs that steps have compiled since warm-up, for which requests waited; should stay 0."""
        return 0

    def use_idle_time(self) -> bool:
        """Do a little of what makes later steps faster, such as recording a graph; whether more is left to do.

        Called only while no step is in flight; what it does must take less time than a client would notice.
        """
        return False

    @abstractmethod
    def close(self) -> None:
        """Give back device, threads and memory."""
