"""How the KV cache is sized, and the refusal when it does not fit."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from tgi_core.contract import KVGroup, MemoryLine, ShardLimits
from tgi_core.errors import ExitCode, StartupError
from tgi_core.shards.memory import (
    ACTIVATIONS,
    STATES,
    KVSizes,
    check_states,
    decoder_limits,
    longest_encoder_input,
    size_kv_cache,
)

FULL = KVGroup(None, 1000)
WINDOW = KVGroup(100, 300)


def size(
    groups: list[KVGroup],
    *,
    available_bytes: int = 10**12,
    max_slots: int = 4,
    max_total_tokens: int | None = None,
    kv_cache_bytes: int | None = None,
    kv_cache_tokens: int | None = None,
    activations: int = 0,
    model_max_tokens: int = 4096,
) -> KVSizes:
    limits = ShardLimits(
        max_slots=max_slots,
        max_step_tokens=64,
        block_size=16,
        max_total_tokens=max_total_tokens,
        kv_cache_bytes=kv_cache_bytes,
        kv_cache_tokens=kv_cache_tokens,
    )
    memory = [MemoryLine("weights", 5 << 20), MemoryLine(ACTIVATIONS, activations)]
    return size_kv_cache(groups, limits, model_max_tokens, available_bytes, memory)


def blocks(sizes: KVSizes) -> list[int]:
    return [budget.blocks for budget in sizes.groups]


def test_never_more_than_all_slots_can_use() -> None:
    sizes = size([FULL], max_total_tokens=100)
    assert blocks(sizes) == [4 * 7]
    assert sizes.max_total_tokens == 100


def test_takes_what_is_there() -> None:
    sizes = size([FULL], available_bytes=50_999)
    assert blocks(sizes) == [50]
    assert sizes.size_bytes == 50_000
    assert sizes.max_total_tokens == 800


def test_the_users_size_goes_before_what_is_there() -> None:
    assert blocks(size([FULL], kv_cache_bytes=20_000)) == [20]


def test_a_number_of_tokens_bounds_the_cache_in_whole_blocks() -> None:
    assert blocks(size([FULL], kv_cache_tokens=320)) == [20]
    assert blocks(size([FULL], kv_cache_tokens=321)) == [21]
    assert blocks(size([FULL], kv_cache_tokens=320, kv_cache_bytes=10_000)) == [10]
    assert blocks(size([FULL], kv_cache_tokens=10**6, available_bytes=50_999)) == [50]
    assert size([FULL], kv_cache_tokens=100, max_total_tokens=100).max_total_tokens == 100


def test_the_model_bounds_the_length() -> None:
    assert size([FULL], model_max_tokens=333).max_total_tokens == 333


def test_window_groups_have_the_same_capacity_until_they_need_no_more() -> None:
    sizes = size([FULL, WINDOW], available_bytes=26_000)
    assert blocks(sizes) == [20, 20]
    # 100 + 64 tokens and one block that is begun, twice over, for each of four slots.
    sizes = size([FULL, WINDOW], available_bytes=500_000)
    assert blocks(sizes) == [500 - 29, 2 * 4 * 12]
    assert sizes.size_bytes <= 500_000


def test_only_windows_do_not_bound_the_length() -> None:
    sizes = size([WINDOW], available_bytes=100 * 300, model_max_tokens=100_000)
    assert blocks(sizes) == [96]
    assert sizes.max_total_tokens == 100_000


def test_refusal_shows_the_table_and_what_would_fit() -> None:
    with pytest.raises(StartupError) as caught:
        size([FULL], available_bytes=50_000, max_total_tokens=2000)
    assert caught.value.exit_code is ExitCode.MEMORY
    text = str(caught.value)
    assert "2000 tokens" in text
    assert "weights" in text
    assert "5.0 MiB" in text
    assert "125000 bytes" in text
    assert "--max-total-tokens to 800" in text
    # Both remedies work.
    assert size([FULL], kv_cache_bytes=125_000, max_total_tokens=2000).max_total_tokens == 2000
    assert size([FULL], available_bytes=50_000, max_total_tokens=800).max_total_tokens == 800


def test_refusal_names_the_step_where_its_activations_take_the_room() -> None:
    def fix(activations: int, **given: int) -> str:
        with pytest.raises(StartupError) as caught:
            size([FULL], available_bytes=50_000, max_total_tokens=2000, activations=activations, **given)
        return caught.value.fix

    # 75,000 bytes are missing.
    assert "--max-batch-prefill-tokens (64)" in fix(75_000)
    assert "--max-batch-prefill-tokens" not in fix(74_999)
    assert "--max-batch-prefill-tokens" not in fix(75_000, kv_cache_bytes=50_000)


def test_refusal_without_room_for_one_block() -> None:
    with pytest.raises(StartupError) as caught:
        size([FULL], available_bytes=999)
    assert caught.value.exit_code is ExitCode.MEMORY
    assert "--max-total-tokens" not in str(caught.value)


def test_longer_than_the_model() -> None:
    with pytest.raises(StartupError, match="4096 tokens the model was made for") as caught:
        size([FULL], max_total_tokens=4097)
    assert caught.value.exit_code is ExitCode.USAGE


def test_without_layers_that_attend_only_the_model_bounds_the_length() -> None:
    sizes = size([], available_bytes=0, model_max_tokens=333)
    assert blocks(sizes) == []
    assert sizes.size_bytes == 0
    assert sizes.max_total_tokens == 333
    assert size([], available_bytes=0, max_total_tokens=100).max_total_tokens == 100


def stateful(max_slots: int, activations: int = 0) -> tuple[ShardLimits, list[MemoryLine]]:
    """Slots with states of 1000 bytes, one more than there are."""
    limits = ShardLimits(max_slots=max_slots, max_step_tokens=64, block_size=16, kv_cache_bytes=1)
    states = MemoryLine(STATES, (max_slots + 1) * 1000)
    return limits, [MemoryLine("weights", 5 << 20), MemoryLine(ACTIVATIONS, activations), states]


def test_slot_states_that_do_not_fit_name_how_many_slots_would() -> None:
    with pytest.raises(StartupError) as caught:
        check_states(*stateful(32, activations=4000), free_bytes=20_000)
    assert caught.value.exit_code is ExitCode.MEMORY
    text = str(caught.value)
    assert "32 requests" in text
    assert STATES in text
    assert "--max-batch-size to 15 or less" in caught.value.fix
    check_states(*stateful(15, activations=4000), free_bytes=20_000)
    with pytest.raises(StartupError):
        check_states(*stateful(16, activations=4000), free_bytes=20_000)


def test_slot_states_of_which_not_even_one_fits() -> None:
    for free_bytes in (1999, -5):
        with pytest.raises(StartupError) as caught:
            check_states(*stateful(4), free_bytes=free_bytes)
        assert "--max-batch-size" not in caught.value.fix
    check_states(*stateful(1), free_bytes=2000)


def test_a_cache_that_states_leave_no_room_for_names_the_batch_size() -> None:
    limits, memory = stateful(32)
    with pytest.raises(StartupError) as caught:
        size_kv_cache([FULL], replace(limits, kv_cache_bytes=None), 4096, 0, memory)
    assert "--max-batch-size (32), which sizes the slot states" in caught.value.fix


CROSS = KVGroup(None, 1000, cross=True)


def size_with_encoder(
    *, available_bytes: int = 10**12, max_encoder_tokens: int | None = None, max_total_tokens: int = 32
) -> KVSizes:
    limits = ShardLimits(
        max_slots=4,
        max_step_tokens=64,
        block_size=16,
        max_total_tokens=max_total_tokens,
        max_encoder_tokens=max_encoder_tokens,
    )
    longest = longest_encoder_input(limits, 100)
    return size_kv_cache([FULL, CROSS], limits, 4096, available_bytes, [], encoder_tokens=longest)


def test_an_encoders_tokens_have_blocks_of_their_own() -> None:
    sizes = size_with_encoder()
    # Inputs are bounded by the step, which is shorter than the model's 100 tokens.
    assert (blocks(sizes), sizes.max_total_tokens, sizes.max_encoder_tokens) == ([4 * 2, 4 * 4], 32, 64)
    assert size_with_encoder(max_encoder_tokens=20).max_encoder_tokens == 20


def test_a_small_cache_bounds_the_encoders_inputs() -> None:
    sizes = size_with_encoder(available_bytes=6000)
    assert (blocks(sizes), sizes.max_encoder_tokens) == ([3, 3], 48)
    with pytest.raises(StartupError) as caught:
        size_with_encoder(available_bytes=6000, max_encoder_tokens=50)
    assert "needed" in str(caught.value)


def test_tgis_total_of_input_and_output_is_no_mistake() -> None:
    limits = ShardLimits(max_slots=4, max_step_tokens=64, block_size=16, max_total_tokens=1500)
    assert decoder_limits(limits, 1000, 500).max_total_tokens == 1000
    assert decoder_limits(limits, 1600, 500).max_total_tokens == 1500
    assert decoder_limits(limits, 1000, 499).max_total_tokens == 1500, "which is refused"


def test_inputs_that_no_step_or_encoder_holds() -> None:
    with pytest.raises(StartupError, match="--max-batch-prefill-tokens 65"):
        size_with_encoder(max_encoder_tokens=65)
    with pytest.raises(StartupError, match="100 tokens that the model's encoder reads"):
        size_with_encoder(max_encoder_tokens=101)
