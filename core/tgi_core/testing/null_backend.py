"""A backend without arithmetic: it costs the time it is told to and makes tokens that anyone can predict.

It is asynchronous as a real device is: ``launch`` returns at once, the tokens of a step exist only once its time has
passed and ``collect`` was called. No torch. Schedulers, the engine and the API are tested and timed on it.
"""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING

import msgspec

from tgi_core.contract import (
    Backend,
    BackendInfo,
    Capabilities,
    Device,
    DeviceInfo,
    DeviceMemory,
    KVBudget,
    KVGroup,
    KVGroupBudget,
    LateInputs,
    LoadProgress,
    MemoryLine,
    ModelShard,
    Probe,
    PromptLogprobs,
    ShapeMode,
    ShardLimits,
    ShardSpec,
    StepPlan,
    StepResult,
    Ticket,
    TopTokens,
)

if TYPE_CHECKING:
    import torch

NULL_BLOCK_BYTES = 4096
"""What a block counts as against ``--kv-cache-memory``; nothing is allocated."""

NULL_LOGPROB = -0.5
"""Log-probability of every token; each alternative is less likely than the one before by as much."""

_DEFAULT_TOTAL_TOKENS = 8192
_MOST_BLOCKS = 1 << 20


class NullCosts(msgspec.Struct, frozen=True, kw_only=True):
    """Milliseconds a step costs: ``step_ms + tokens * token_ms`` on the device, ``host_ms`` on the host to launch."""

    step_ms: float = 0.0
    token_ms: float = 0.0
    host_ms: float = 0.0


def null_token(last_prompt_token: int, position: int, vocab_size: int) -> int:
    """The token the null model puts at ``position`` after that prompt; not an id below 100, where specials live."""
    low = min(100, vocab_size - 1)
    return low + (last_prompt_token * 31 + position * 7919) % (vocab_size - low)


class UnreadTokens:
    """Stands where the tokens of a launched step will be; touching it before ``collect`` is the engine's bug."""

    def __iter__(self) -> UnreadTokens:
        raise AssertionError("token ids were read before the step was collected")

    __next__ = __getitem__ = __len__ = __iter__


def allowed_token(wanted: int, mask: bytes, vocab_size: int) -> int:
    """The token itself if the mask allows it, else the next one that is, around the end of the vocabulary.

    Raises:
        ValueError: the mask allows none.
    """
    bits = int.from_bytes(mask, "little") & ((1 << vocab_size) - 1)
    from_wanted = bits >> wanted << wanted
    candidates = from_wanted or bits
    if not candidates:
        raise ValueError("the mask allows no token")
    return (candidates & -candidates).bit_length() - 1


class NullTicket:
    """A launched step of the null shard."""

    __slots__ = ("_result", "done_at", "step", "token_ids")

    def __init__(self, result: StepResult, done_at: float) -> None:
        self.step = result.step
        self.done_at = done_at
        self.token_ids = UnreadTokens()
        self._result = result

    def sample(self, late: LateInputs, vocab_size: int) -> None:
        """Let masks and missing masks change the tokens."""
        self._result = _with_late_inputs(self._result, late, vocab_size)

    def reveal(self) -> StepResult:
        """The step's tokens; the shard calls it when the device's time has passed."""
        return self._result


class NullShard(ModelShard):
    """One stream that runs the launched steps one after the other, each for the time of the cost model."""

    def __init__(self, spec: ShardSpec, costs: NullCosts) -> None:
        self.costs = costs
        self._spec = spec
        self._vocab_size = 0
        self._device_free_at = 0.0
        self._last_prompt_tokens: dict[int, int] = {}
        self._prompt_lens: dict[int, int] = {}
        self._top_ns: dict[int, int] = {}

    def load(self, progress: LoadProgress) -> None:
        """Read the size of the vocabulary; there are no weights."""
        config = json.loads((self._spec.model_dir / "config.json").read_text())
        self._vocab_size = int(config["vocab_size"])
        progress(1, 1)

    def warm_up(self, limits: ShardLimits) -> KVBudget:
        """Room for every slot at full length."""
        max_total_tokens = limits.max_total_tokens or _DEFAULT_TOTAL_TOKENS
        blocks = limits.max_slots * -(-max_total_tokens // limits.block_size)
        if limits.kv_cache_bytes is not None:
            blocks = limits.kv_cache_bytes // NULL_BLOCK_BYTES
        if limits.kv_cache_tokens is not None:
            blocks = min(blocks, -(-limits.kv_cache_tokens // limits.block_size))
        # Nothing is allocated for a block here, but the scheduler keeps a list of them.
        blocks = min(blocks, _MOST_BLOCKS)
        max_total_tokens = min(max_total_tokens, blocks * limits.block_size)
        group = KVGroupBudget(KVGroup(None, NULL_BLOCK_BYTES), blocks)
        return KVBudget(
            limits.block_size, [group], max_total_tokens, [MemoryLine("kv cache", blocks * NULL_BLOCK_BYTES)]
        )

    def launch(self, plan: StepPlan) -> Ticket:
        """Append the step to the stream."""
        now = time.perf_counter()
        if self.costs.host_ms:
            _spin_until(now + self.costs.host_ms / 1000)
            now = time.perf_counter()
        cost_ms = self.costs.step_ms + self.costs.token_ms * sum(plan.q_lens)
        self._device_free_at = max(now, self._device_free_at) + cost_ms / 1000
        return NullTicket(self._compute(plan), self._device_free_at)

    def sample(self, ticket: Ticket, late: LateInputs | None) -> None:
        """Sampling is part of the step's cost."""
        assert isinstance(ticket, NullTicket)
        if late is not None:
            ticket.sample(late, self._vocab_size)

    def collect(self, ticket: Ticket) -> StepResult:
        """Wait until the stream has passed the step."""
        assert isinstance(ticket, NullTicket)
        _sleep_until(ticket.done_at)
        return ticket.reveal()

    def close(self) -> None:
        """There is nothing to give back."""

    def _compute(self, plan: StepPlan) -> StepResult:
        for new in plan.new_slots:
            self._last_prompt_tokens[new.slot] = new.token_ids[new.prompt_len - 1]
            self._prompt_lens[new.slot] = new.prompt_len
            self._top_ns[new.slot] = new.sampling.top_n
        slots, epochs, token_ids = [], [], []
        for slot, epoch, kv_len, samples in zip(plan.slots, plan.epochs, plan.kv_lens, plan.samples, strict=True):
            if samples:
                slots.append(slot)
                epochs.append(epoch)
                token_ids.append(null_token(self._last_prompt_tokens[slot], kv_len, self._vocab_size))
        return StepResult(
            step=plan.step,
            slots=slots,
            epochs=epochs,
            token_ids=token_ids,
            logprobs=[NULL_LOGPROB] * len(slots),
            tops=self._tops(slots, token_ids),
            prompt_logprobs=[self._prompt_logprobs(plan, row) for row in plan.prompt_logprobs],
        )

    def _tops(self, slots: list[int], token_ids: list[int]) -> list[TopTokens | None]:
        """The chosen token first, then those that follow it in the vocabulary."""
        counts = [self._top_ns[slot] for slot in slots]
        if not any(counts):
            return []
        return [
            TopTokens(
                [(token_id + rank) % self._vocab_size for rank in range(count)],
                [NULL_LOGPROB * (rank + 1) for rank in range(count)],
            )
            if count
            else None
            for token_id, count in zip(token_ids, counts, strict=True)
        ]

    def _prompt_logprobs(self, plan: StepPlan, row: int) -> PromptLogprobs:
        slot, q_len = plan.slots[row], plan.q_lens[row]
        start = plan.kv_lens[row] - q_len + 1
        count = max(0, min(q_len, self._prompt_lens[slot] - start))
        return PromptLogprobs(slot, plan.epochs[row], start, [NULL_LOGPROB] * count)


class NullDevice(Device):
    """A device that holds nothing."""

    @property
    def torch_device(self) -> torch.device:
        """There is no torch behind this device."""
        raise NotImplementedError("the null backend brings its own shard and has no torch device")

    def memory(self) -> DeviceMemory:
        """Nothing, of nothing."""
        return DeviceMemory(0, 0, 0)

    def synchronize(self) -> None:
        """Nothing runs."""


class NullBackend(Backend):
    """``--backend null``: for tests and benchmarks of everything above a device."""

    def __init__(self, costs: NullCosts | None = None) -> None:
        self._costs = costs if costs is not None else NullCosts()

    @property
    def info(self) -> BackendInfo:
        """Never chosen by ``--backend auto``."""
        return BackendInfo(name="null", title="no arithmetic, for tests and benchmarks", priority=-1, simulated=True)

    def probe(self) -> Probe:
        """Always there."""
        return Probe(devices=(DeviceInfo(0, "null", 0),))

    def capabilities(self) -> Capabilities:
        """Takes any plan."""
        return Capabilities(
            shape_mode=ShapeMode.WHOLE_MODEL,
            dtypes=("float32", "bfloat16", "float16"),
            asynchronous=True,
            batch_invariant_dtypes=("float32", "bfloat16", "float16"),
            computes=False,
        )

    def open_device(self, local_index: int) -> Device:  # noqa: ARG002 - there is only one
        """The device that holds nothing."""
        return NullDevice()

    def create_shard(self, spec: ShardSpec) -> ModelShard:
        """The shard of the cost model."""
        return NullShard(spec, self._costs)


def _with_late_inputs(result: StepResult, late: LateInputs, vocab_size: int) -> StepResult:
    token_ids = list(result.token_ids)
    size_bytes = len(late.masks) // max(1, len(late.mask_rows))
    for index, row in enumerate(late.mask_rows):
        mask = late.masks[index * size_bytes : (index + 1) * size_bytes]
        token_ids[row] = allowed_token(token_ids[row], mask, vocab_size)
    rows = sorted(set(range(len(token_ids))) - set(late.skipped_rows))
    return msgspec.structs.replace(
        result,
        slots=[result.slots[row] for row in rows],
        epochs=[result.epochs[row] for row in rows],
        token_ids=[token_ids[row] for row in rows],
        logprobs=[result.logprobs[row] for row in rows],
        tops=[result.tops[row] for row in rows] if result.tops else [],
    )


def _sleep_until(moment: float) -> None:
    # time.sleep overshoots by a scheduler tick; the last fraction is spun, or short steps would cost twice their time.
    remaining = moment - time.perf_counter()
    if remaining > 0.0005:
        time.sleep(remaining - 0.0003)
    _spin_until(moment)


def _spin_until(moment: float) -> None:
    while time.perf_counter() < moment:
        pass
