"""All mutable device state of a shard, in one tuple of tensors.

Shape letters, used all over the kernels: S slots, T tokens of a step, B rows of a step, R some of them, V vocabulary,
H query heads, K key/value heads, D head size, N blocks of a group, P tokens a block holds, M blocks a slot may have. In
the tables of sampling P counts parameters of rules, X entries of a logit bias or allowed tokens, W sequences of tokens
that are forbidden and L their tokens. Layers with slot states: C channels, W taps of a convolution, J = W - 1 inputs
that it keeps, U features of a value, G groups of heads, Z numbers in the state of a channel or of a feature.
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
        temperature_S, top_p_S: float32.
        top_k_S: int32, 0 keeps all.
        do_sample_S, raw_logprobs_S: bool.
        seed_S: int64, the bits of the unsigned seed.
        choice_S: int32, index of the choice among several of one request.
        rule_values_SP: float32, the parameters of the logits rules, one column each.
        bias_ids_SX, bias_values_SX: int32 and float32, the logit bias as a sparse table; unused entries hold token 0
            and -0.0.
        allowed_ids_SX: int32, the only tokens that may be chosen; -1 in unused entries, everywhere when all may be.
        bad_words_SWL: int32, sequences of tokens that the output must not have, each at the end of its row; -1 in
            unused entries.
        block_tables: one int32 [S, M] a KV group.
        kv: one cache a layer that attends, [N, P, 2, K, D]; index 0 of the third axis holds keys, 1 values.
        states: what layers keep of a slot whatever its length, such as the state of a recurrence: [S, ...] each. It
            means nothing before the slot's first token is computed.
    """

    tokens_SL: Tensor
    lengths_S: Tensor
    prompt_lens_S: Tensor
    temperature_S: Tensor
    top_p_S: Tensor
    top_k_S: Tensor
    do_sample_S: Tensor
    raw_logprobs_S: Tensor
    seed_S: Tensor
    choice_S: Tensor
    rule_values_SP: Tensor
    bias_ids_SX: Tensor
    bias_values_SX: Tensor
    allowed_ids_SX: Tensor
    bad_words_SWL: Tensor
    block_tables: tuple[Tensor, ...]
    kv: tuple[Tensor, ...]
    states: tuple[Tensor, ...] = ()
