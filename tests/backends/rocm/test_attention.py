"""Optional libraries of attention on AMD GPUs: which may be used, and what they are handed."""

from __future__ import annotations

import itertools
import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from msgspec.structs import replace
from torch import Tensor

from tests.backends.cuda.libraries import LoggingDevice, check_paged_call, paged_rows
from tests.backends.rocm.test_backend import fake_torch
from tests.backends.triton.support import SMALL, assert_close, attention_spec, make_step
from tgi_core.contract import AttentionChoice, AttentionOption, AttentionUse
from tgi_core.reference import ReferenceKernels
from tgi_rocm.attention import PROVIDERS
from tgi_rocm.backend import ATTENTION, RocmBackend
from tgi_triton import kernels_with

USE = AttentionUse(
    specs=(attention_spec(32, 8, 128), attention_spec(32, 8, 128, window=1024)), dtype="bfloat16", block_size=128
)


class Varlen:
    """``flash_attn_varlen_func`` of aiter 0.1.7 and of flash-attn 2.8 over Composable Kernel.

    Attributes:
        longest: ``max_seqlen_q`` of each call.
    """

    def __init__(self) -> None:
        self.longest: list[int] = []

    def __call__(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        cu_seqlens_q: Tensor,
        cu_seqlens_k: Tensor,
        max_seqlen_q: int,
        max_seqlen_k: int,
        softmax_scale: float,
        causal: bool,
        window_size: tuple[int, int],
        block_table: Tensor,
    ) -> Tensor:
        assert causal
        assert k.shape[1] % 128 == 0, "Paged KV cache block size must be divisible by 128"
        int32s = {"cu_seqlens_q": cu_seqlens_q, "cu_seqlens_k": cu_seqlens_k, "block_table": block_table}
        check_paged_call(q, k, v, int32s)
        q_starts, k_starts = cu_seqlens_q.tolist(), cu_seqlens_k.tolist()
        assert (q_starts[0], q_starts[-1], k_starts[0]) == (0, len(q), 0)
        kv_lens = [end - begin for begin, end in itertools.pairwise(k_starts)]
        assert max_seqlen_q >= max(end - begin for begin, end in itertools.pairwise(q_starts))
        assert max_seqlen_k == max(kv_lens)
        self.longest.append(max_seqlen_q)
        rows = [
            (begin, end, table[: -(-kv_len // k.shape[1])], kv_len)
            for (begin, end), table, kv_len in zip(itertools.pairwise(q_starts), block_table, kv_lens, strict=True)
        ]
        return paged_rows(q, k, v, rows, scale=softmax_scale, left=window_size[0] if window_size[0] >= 0 else None)


def options(monkeypatch: pytest.MonkeyPatch, architecture: str, use: AttentionUse = USE) -> dict[str, AttentionOption]:
    monkeypatch.setattr(torch, "cuda", fake_torch(architecture).cuda)
    return {option.name: option for option in RocmBackend().attention_options(use)}


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both libraries are there."""
    for provider in PROVIDERS:
        monkeypatch.setattr(type(provider), "missing", lambda self: None)


def test_every_name_has_its_option_and_our_own_comes_last(monkeypatch: pytest.MonkeyPatch) -> None:
    names = list(options(monkeypatch, "gfx942"))
    assert sorted(names) == sorted(ATTENTION)
    assert names[-1] == ATTENTION[0]


def test_without_a_library_our_own_kernels_are_all_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    found = options(monkeypatch, "gfx942")
    own = found.pop("triton")
    assert (own.obstacle, own.automatic) == ("", True)
    for option in found.values():
        assert "not installed" in option.obstacle
        assert option.fix
        assert not option.automatic


@pytest.mark.usefixtures("installed")
def test_no_library_is_taken_by_itself_before_it_was_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    found = options(monkeypatch, "gfx942")
    assert [name for name, option in found.items() if option.automatic] == ["triton"]
    assert "not known to be faster than our own kernels on gfx942" in found["aiter"].remark


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize(
    ("name", "architecture", "change", "obstacle"),
    [
        ("aiter", "gfx90a", {}, "not for gfx90a"),
        ("aiter", "gfx1100", {}, "not for gfx1100"),
        ("flash-attn", "gfx1201", {}, "not for gfx1201"),
        ("aiter", "gfx950", {"block_size": 64}, "KV blocks of 128 tokens, and they have 64"),
        ("flash-attn", "gfx90a", {"dtype": "float32"}, "does not compute in float32"),
        ("flash-attn", "gfx90a", {"specs": (attention_spec(8, 4, 512),)}, "heads of 512"),
        ("aiter", "gfx942", {"specs": (attention_spec(8, 4, 128, soft_cap=50.0),)}, "soft cap"),
    ],
)
def test_what_a_library_does_not_take(
    monkeypatch: pytest.MonkeyPatch, name: str, architecture: str, change: dict[str, Any], obstacle: str
) -> None:
    assert obstacle in options(monkeypatch, architecture, replace(USE, **change))[name].obstacle
    assert options(monkeypatch, "gfx942")[name].obstacle == ""


@pytest.mark.parametrize("name", ["aiter", "flash-attn"])
@pytest.mark.parametrize("spec", [attention_spec(4, 2, 16), attention_spec(4, 2, 16, window=6)])
@pytest.mark.parametrize("lengths", [[(7, 40), (1, 300), (33, 256)], [(1, 33), (1, 2), (5, 21), (1, 17)], [(1, 9)]])
def test_prefill_rows_equal_the_reference(
    monkeypatch: pytest.MonkeyPatch, name: str, spec: Any, lengths: list[tuple[int, int]]
) -> None:
    library = Varlen()
    monkeypatch.setitem(
        sys.modules,
        {"aiter": "aiter", "flash-attn": "flash_attn"}[name],
        SimpleNamespace(flash_attn_varlen_func=library),
    )
    step = make_step(spec, lengths, block_size=128, dtype=torch.float32)
    device = LoggingDevice(torch.device("cpu"), [])
    kernels = kernels_with(device, SMALL, AttentionChoice(name, "it was asked for", USE), PROVIDERS)
    assert kernels.notes == (f"prompts attend through {name}: it was asked for",)
    actual = kernels.attention(step.q_THD, step.cache_NP2KD, kernels.prepare_attention(step.batch, spec), spec)
    assert_close(actual, ReferenceKernels().attention(step.q_THD, step.cache_NP2KD, step.batch, spec))
    assert len(library.longest) == (step.batch.num_decodes < len(lengths))


def test_chunks_of_one_query_ask_aiter_for_no_other_code(monkeypatch: pytest.MonkeyPatch) -> None:
    library, spec = Varlen(), attention_spec(4, 2, 16)
    monkeypatch.setitem(sys.modules, "aiter", SimpleNamespace(flash_attn_varlen_func=library))
    prefill = PROVIDERS[0].open(LoggingDevice(torch.device("cpu"), []), USE)
    step = make_step(spec, [(1, 9), (1, 12)], block_size=128, dtype=torch.float32)
    batch = step.batch._replace(num_decodes=1)
    prefill.attend(step.q_THD[1:], step.cache_NP2KD, prefill.prepare(batch, spec), spec)
    assert library.longest == [2]
