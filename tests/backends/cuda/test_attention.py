"""What providers of prefill attention are handed, and what comes of it; their libraries are stood in for."""

from __future__ import annotations

import pytest
import torch

from tests.backends.cuda.libraries import FlashAttn4, LoggingDevice, flash_attn_2, wrapper_maker
from tests.backends.triton.support import SMALL, assert_close, attention_spec, make_step
from tgi_core.contract import AttentionSpec, AttentionUse
from tgi_core.reference import ReferenceKernels
from tgi_core.shards.attention_providers import PrefillAttention
from tgi_cuda.attention.flash_attention_4 import FlashAttention4Prefill
from tgi_cuda.attention.flash_infer import FlashInferPrefill
from tgi_triton import LibraryPrefillKernels
from tgi_triton.varlen_prefill import VarlenPrefill

# Triton's interpreter stands in for a GPU where there is none.
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")

BATCHES = {
    "first chunks": [(7, 7), (33, 33), (1, 1)],
    "later chunks": [(7, 40), (1, 300), (20, 20), (33, 256)],
    "behind decodes": [(1, 33), (1, 2), (5, 21), (1, 17), (9, 64)],
}
SPECS = {
    "one head a key head": attention_spec(2, 2, 16),
    "two": attention_spec(4, 2, 16),
    "four": attention_spec(4, 1, 16),
    "eight": attention_spec(8, 1, 32),
    "window": attention_spec(4, 2, 16, window=6),
    "window of one": attention_spec(4, 2, 16, window=1),
    "window longer than chunks": attention_spec(4, 2, 16, window=50),
}
BLOCK_SIZES = {"flash-attn-4": (16, 64), "flashinfer": (16, 64), "flash-attn": (256,)}


def open_provider(name: str, spec: AttentionSpec) -> PrefillAttention:
    if name == "flash-attn-4":
        return FlashAttention4Prefill(FlashAttn4())
    if name == "flash-attn":
        return VarlenPrefill(flash_attn_2)
    return FlashInferPrefill(wrapper_maker([]), LoggingDevice(torch.device("cpu"), []), use_of(spec))


def use_of(*specs: AttentionSpec) -> AttentionUse:
    return AttentionUse(specs=specs, dtype="float32", block_size=16)


@pytest.mark.parametrize("batch", list(BATCHES))
@pytest.mark.parametrize("spec", list(SPECS))
@pytest.mark.parametrize("provider", list(BLOCK_SIZES))
def test_prefill_rows_equal_the_reference(provider: str, spec: str, batch: str) -> None:
    attention = SPECS[spec]
    for block_size in BLOCK_SIZES[provider]:
        prefill = open_provider(provider, attention)
        # Twice: another layer of the group, and another step.
        for seed in range(2):
            step = make_step(attention, BATCHES[batch], block_size=block_size, dtype=torch.float32, seed=seed)
            decodes = step.batch.num_decodes
            expected = ReferenceKernels().attention(step.q_THD, step.cache_NP2KD, step.batch, attention)
            prepared = prefill.prepare(step.batch, attention)
            for _ in range(2):
                actual = prefill.attend(step.q_THD[decodes:], step.cache_NP2KD, prepared, attention)
                assert_close(actual, expected[decodes:])


@pytest.mark.parametrize("block_size", [16, 256])
@pytest.mark.parametrize("provided", [True, False])
def test_decodes_stay_with_our_own_kernels(provided: bool, block_size: int) -> None:
    library, spec = FlashAttn4(), SPECS["window"]
    kernels = LibraryPrefillKernels(DEVICE, SMALL, FlashAttention4Prefill(library) if provided else None)
    for lengths in ([(1, 33), (1, 2), (5, 21), (1, 17)], [(1, 33), (1, 2)], [(5, 21), (3, 3)]):
        step = make_step(spec, lengths, block_size=block_size, dtype=torch.float32)
        expected = ReferenceKernels().attention(step.q_THD, step.cache_NP2KD, step.batch, spec)
        batch = step.batch._replace(
            q_starts_B=step.batch.q_starts_B.to(DEVICE),
            kv_lens_B=step.batch.kv_lens_B.to(DEVICE),
            block_tables_BM=step.batch.block_tables_BM.to(DEVICE),
        )
        library.shapes.clear()
        prepared = kernels.prepare_attention(batch, spec)
        actual = kernels.attention(step.q_THD.to(DEVICE), step.cache_NP2KD.to(DEVICE), prepared, spec)
        assert_close(actual.cpu(), expected)
        rows, tokens = len(lengths) - batch.num_decodes, sum(batch.q_lens) - batch.num_decodes
        assert library.shapes[-1:] == ([(rows, tokens)] if provided and rows else [])


def test_flash_attn_4_compiles_all_of_its_code_in_the_first_call_of_a_kind_of_attention() -> None:
    library = FlashAttn4()
    prefill = FlashAttention4Prefill(library)
    for spec in (SPECS["two"], SPECS["window"]):
        library.shapes.clear()
        step = make_step(spec, BATCHES["first chunks"], block_size=16, dtype=torch.float32)
        for _ in range(2):
            prefill.attend(step.q_THD, step.cache_NP2KD, prefill.prepare(step.batch, spec), spec)
        few, many, rows, *calls = library.shapes
        assert few == (1, 1)
        assert many[1] * 2 > 128
        assert rows[0] > 256
        assert calls == [(3, 41)] * 2


def test_flashinfer_plans_a_step_while_the_one_before_waits_and_overwrites_nothing_that_is_read() -> None:
    log: list[str] = []
    full, window = SPECS["two"], SPECS["window"]
    device = LoggingDevice(torch.device("cpu"), log)
    prefill = FlashInferPrefill(wrapper_maker(log), device, use_of(full, window))
    for _ in range(4):
        for spec in (full, window):
            prefill.prepare(make_step(spec, [(4, 9)], block_size=16, dtype=torch.float32).batch, spec)
    assert log == [
        *("plan a", "plan c", "plan b", "plan d"),
        *("wait 1", "plan a", "wait 2", "plan c", "wait 3", "plan b", "wait 4", "plan d"),
    ]
