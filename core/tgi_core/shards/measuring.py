"""What a step takes of a device's memory, found by running the largest one."""

from __future__ import annotations

import torch

from tgi_core.contract import Device, LateInputs, NewSlot, ShardLimits, StepPlan
from tgi_core.reference.sampling import WHOLE_ROWS
from tgi_core.sampling.params import Tier
from tgi_core.sampling.rules import RuleSet
from tgi_core.shards.device_model import DeviceModel
from tgi_core.shards.eager_runner import EagerRunner
from tgi_core.shards.prompts import PIECE_ROWS, next_logprobs

_HOST_WARM_UP_TOKENS = 256
"""A step of this size is measured on the host, where a real one takes seconds; activations grow with the tokens."""


class StepMeasure:
    """The largest step, and the sizes of tables that it needs.

    Args:
        model: loaded.
        limits: of the shard.
        encoder_tokens: longest input of the encoder; 0 without one.
        on_host: steps run on the host.

    Attributes:
        num_rows: rows of the step, and slots that its tables have.
        num_tokens: tokens of the step.
    """

    def __init__(self, model: DeviceModel, limits: ShardLimits, *, encoder_tokens: int, on_host: bool) -> None:
        self._model = model
        self._limits = limits
        self.num_tokens = limits.max_step_tokens
        if on_host:
            self.num_tokens = min(self.num_tokens, max(_HOST_WARM_UP_TOKENS, limits.max_slots))
        self.num_rows = min(limits.max_slots, self.num_tokens)
        self._q_lens = _long_rows(self.num_tokens, self.num_rows, model.model.max_positions)
        self._inputs = [0] * self.num_rows
        if encoder_tokens:
            self._inputs = _long_rows(self.num_tokens, self.num_rows, encoder_tokens)

    def run(self, runner: EagerRunner, device: Device, rules: RuleSet) -> int:
        """Run the step over a cache of one block; returns the memory it took beyond what lasts, in bytes."""
        for state in runner.state.states:
            # A device may take memory when it is first written: not as part of the step.
            state.zero_()
        device.synchronize()
        device.reset_peak()
        before_bytes = device.memory().peak_bytes
        plan = self._plan(rules)
        forward = runner.forward(plan)
        device.synchronize()
        # Layers need more the more tokens there are; sampling goes by rows, of which there are as many as there can be.
        layers_bytes = (device.memory().peak_bytes - before_bytes) * self._limits.max_step_tokens // self.num_tokens
        mask = b"\xff" * (4 * -(-self._model.model.vocab_size // 32))
        runner.sample(plan, forward, LateInputs(list(range(self.num_rows)), mask * self.num_rows))
        if self._model.own_cache is not None:
            self._model.own_cache.free(plan.slots)
        self._score_prompt_piece()
        device.synchronize()
        return max(0, layers_bytes, device.memory().peak_bytes - before_bytes)

    def _plan(self, rules: RuleSet) -> StepPlan:
        # Whole distributions are looked at in pieces, so more such rows would take more time but no more memory.
        wanted = [rules.demand_all(whole=slot < WHOLE_ROWS) for slot in range(self.num_rows)]
        return StepPlan(
            step=0,
            slots=list(range(self.num_rows)),
            epochs=[0] * self.num_rows,
            q_lens=self._q_lens,
            kv_lens=self._q_lens,
            samples=[True] * self.num_rows,
            num_decodes=self._q_lens.count(1),
            tier=Tier.FULL,
            new_slots=[
                NewSlot(slot, [0] * q_len, q_len, wanted[slot], encoder_ids=[0] * self._inputs[slot])
                for slot, q_len in enumerate(self._q_lens)
            ],
        )

    def _score_prompt_piece(self) -> None:
        """Run the piece of a prompt's log-probabilities that takes the most memory."""
        decoder = self._model.decoder
        hidden_RE = decoder.hidden_E.repeat(min(self.num_tokens, PIECE_ROWS), 1)
        next_logprobs(hidden_RE, torch.zeros(len(hidden_RE), dtype=torch.int32, device=hidden_RE.device), decoder)


def _long_rows(num_tokens: int, num_rows: int, longest: int) -> list[int]:
    """Lengths of rows that have ``num_tokens`` together, or as many as there can be: as few and as long ones as
    possible, at the end."""
    lens = [1] * num_rows
    left = num_tokens - num_rows
    for row in reversed(range(num_rows)):
        more = min(left, longest - 1)
        lens[row] += more
        left -= more
    return lens
