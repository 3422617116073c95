"""All mutable device state of a shard, in one tuple of tensors.

Shape letters, used all over the kernels: S slots, T tokens of a step, B rows of a step, V vocabulary, H query heads,
K key/value heads, D head size, N blocks of a group, P tokens a block holds, M blocks a slot may have.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from torch import Tensor


class DeviceState(NamedTuple):
    """``step(weights, state, plan) -> (state, outputs)``: eager devices write in place, compiled ones donate it.

    Row ``max_slots`` of every slot table is a scratch row, the last block of every cache a scratch block: padding goes
    there. The scheduler knows neither.

    Attributes:
        tokens_SL: int32, every token of a slot, prompt and output; column p holds the token of position p.
        lengths_S: int32, how many tokens of the slot are known (prompt and output so far).
        prompt_lens_S: int32, how many of them belong to the prompt.
        temperature_S, top_p_S, repetition_penalty_S: float32.
        top_k_S: int32, 0 keeps all.
        do_sample_S: bool.
        seed_S: int64, the bits of the unsigned seed.
        block_tables: one int32 [S, M] a KV group.
        kv: one cache a layer, [N, P, 2, K, D]; index 0 of the third axis holds keys, 1 values.
    """

    tokens_SL: Tensor
    lengths_S: Tensor
    prompt_lens_S: Tensor
    temperature_S: Tensor
    top_p_S: Tensor
    top_k_S: Tensor
    repetition_penalty_S: Tensor
    do_sample_S: Tensor
    seed_S: Tensor
    block_tables: tuple[Tensor, ...]
    kv: tuple[Tensor, ...]
