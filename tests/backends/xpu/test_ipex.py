"""The kernels over intel-extension-for-pytorch, whose operations are stood in for; ``with_ipex`` runs the real ones."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from msgspec.structs import replace
from torch import Tensor

from tests.backends.cuda.libraries import paged_rows
from tests.backends.triton.support import attention_spec
from tests.backends.xpu.with_ipex import check_attention, check_elementwise
from tgi_xpu.ipex import IpexKernels, agrees, open_ipex


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return F.rms_norm(x, x.shape[-1:], weight, eps)


def add_rms_norm(  # noqa: PLR0917 - the library's signature
    residual: Tensor, x: Tensor, weight: Tensor, bias: None, eps: float, add_back: bool = False
) -> Tensor:
    total = residual + x
    if add_back:
        residual.copy_(total)
    return rms_norm(total, weight, eps)


def paged_attention(  # noqa: PLR0917 - the library's signature
    output: Tensor,
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    head_mapping: Tensor,
    scale: float,
    block_tables: Tensor,
    context_lens: Tensor,
    block_size: int,
    max_context_len: int,
    alibi_slopes: None,
    window_size: int = -1,
    k_scale: float = 1.0,
    v_scale: float = 1.0,
    softcap: float = -1.0,
) -> None:
    assert softcap == -1.0, "the stand-in has none"
    assert key_cache.shape[2] == block_size
    assert head_mapping.tolist() == sorted(head_mapping.tolist())
    assert max_context_len == context_lens.max()
    rows = [
        (row, row + 1, table[: -(-kv_len // block_size)], kv_len)
        for row, (table, kv_len) in enumerate(zip(block_tables, context_lens.tolist(), strict=True))
    ]
    left = window_size - 1 if window_size > 0 else None
    keys, values = key_cache.transpose(1, 2), value_cache.transpose(1, 2)
    output.copy_(paged_rows(query, keys, values, rows, scale=scale, left=left))


def fake_llm(paged: Any = paged_attention) -> SimpleNamespace:
    functional = SimpleNamespace(rms_norm=rms_norm, add_rms_norm=add_rms_norm, silu_mul=lambda x, y: F.silu(x) * y)
    modules = SimpleNamespace(PagedAttention=SimpleNamespace(single_query_cached_kv_attention=paged))
    return SimpleNamespace(functional=functional, modules=modules)


def test_fused_operations() -> None:
    check_elementwise(IpexKernels(fake_llm()), torch.float32)


@pytest.mark.parametrize("window", [None, 6])
def test_decodes_and_prompts(window: int | None) -> None:
    check_attention(IpexKernels(fake_llm()), torch.float32, window=window, soft_cap=None)


def test_what_it_takes() -> None:
    kernels, spec = IpexKernels(fake_llm()), attention_spec(4, 2, 64, soft_cap=5.0)
    assert kernels.supports("attention", spec)
    assert not kernels.supports("attention", replace(spec, window=8))
    assert kernels.supports("attention", replace(spec, window=8, soft_cap=None))
    assert not kernels.supports("attention", replace(spec, sinks=True))
    assert not IpexKernels(fake_llm(), pages=False).supports("attention", spec)


def swapped(output: Tensor, query: Tensor, key_cache: Tensor, value_cache: Tensor, *rest: Any) -> None:
    """A build with another layout."""
    paged_attention(output, query, key_cache.flip(2), value_cache, *rest)


def missing(*arguments: Any) -> None:
    raise NotImplementedError("not on this device")


@pytest.mark.parametrize(("paged", "fits"), [(paged_attention, True), (swapped, False), (missing, False)])
def test_a_build_with_another_layout_is_noticed(paged: Any, fits: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    llm = fake_llm(paged)
    assert agrees(IpexKernels(llm), torch.device("cpu")) is fits
    monkeypatch.setitem(sys.modules, "intel_extension_for_pytorch", SimpleNamespace(llm=llm))
    (note,) = open_ipex(torch.device("cpu")).notes
    assert ("is not used" in note) is not fits
