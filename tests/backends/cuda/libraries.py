"""Stand-ins for the providers' libraries: their signatures and checks, and plain torch behind them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from tgi_core.contract import Device, DeviceEvent, DeviceMemory
from tgi_core.shards.attention_providers import Provider
from tgi_cuda.attention.choose import PROVIDERS


def find_provider(name: str) -> Provider[tuple[int, int]]:
    """The provider called ``name``."""
    return next(provider for provider in PROVIDERS if provider.name == name)


def check_paged_call(q: Tensor, k: Tensor, v: Tensor, int32s: dict[str, Tensor]) -> None:
    """What all of the libraries ask of their tensors."""
    assert q.is_contiguous()
    assert k.shape == v.shape
    assert k.shape[-1] == q.shape[-1]
    assert k.stride() == v.stride()
    assert k.stride(-1) == 1
    assert k.untyped_storage().data_ptr() == v.untyped_storage().data_ptr(), "the cache is not copied"
    for name, tensor in int32s.items():
        assert tensor.dtype == torch.int32, name
        assert tensor.is_contiguous(), name


def paged_rows(
    q: Tensor, k: Tensor, v: Tensor, rows: list[tuple[int, int, Tensor, int]], *, scale: float, left: int | None
) -> Tensor:
    """Causal attention, aligned at the end, of rows (first query, end, blocks, keys) that see ``left`` keys back."""
    output = torch.full_like(q, float("nan"))
    group = q.shape[1] // k.shape[2]
    for begin, end, blocks, kv_len in rows:
        queries = q[begin:end].float()
        keys = k[blocks.long()].flatten(0, 1)[:kv_len].float().repeat_interleave(group, dim=1)
        values = v[blocks.long()].flatten(0, 1)[:kv_len].float().repeat_interleave(group, dim=1)
        scores = torch.einsum("qhd,khd->hqk", queries, keys) * scale
        distances = torch.arange(kv_len - (end - begin), kv_len, device=q.device)[:, None]
        distances = distances - torch.arange(kv_len, device=q.device)
        hidden = distances < 0
        if left is not None:
            hidden |= distances > left
        weights = scores.masked_fill(hidden, float("-inf")).softmax(-1)
        output[begin:end] = torch.einsum("hqk,khd->qhd", weights, values).to(q.dtype)
    return output


class FlashAttn4:
    """``flash_attn.cute.flash_attn_varlen_func`` of 4.0.0b36, as far as a paged forward goes.

    Attributes:
        shapes: of each call the rows and all of their queries.
    """

    def __init__(self) -> None:
        self.shapes: list[tuple[int, int]] = []

    def __call__(  # noqa: PLR0917 - the library's signature
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        qv: None = None,
        cu_seqlens_q: Tensor | None = None,
        cu_seqlens_k: None = None,
        max_seqlen_q: int | None = None,
        max_seqlen_k: int | None = None,
        min_seqlen_k: int | None = None,
        seqused_q: None = None,
        seqused_k: Tensor | None = None,
        gather_kv_indices: None = None,
        page_table: Tensor | None = None,
        softmax_scale: float | None = None,
        causal: bool = False,
        window_size: tuple[int | None, int | None] = (None, None),
    ) -> tuple[Tensor, None]:
        assert cu_seqlens_k is None, "page_table is not supported with cu_seqlens_k"
        assert cu_seqlens_q is not None
        assert seqused_k is not None
        assert page_table is not None
        assert softmax_scale is not None
        assert causal
        check_paged_call(q, k, v, {"cu_seqlens_q": cu_seqlens_q, "seqused_k": seqused_k, "page_table": page_table})
        assert page_table.shape[0] == len(seqused_k) == len(cu_seqlens_q) - 1
        left, right = window_size
        assert right in {None, 0}
        self.shapes.append((len(seqused_k), len(q)))
        starts, block_size = cu_seqlens_q.tolist(), k.shape[1]
        assert starts[0] == 0
        assert starts[-1] == len(q)
        rows = [
            (begin, end, table[: -(-kv_len // block_size)], kv_len)
            for (begin, end), table, kv_len in zip(
                itertools.pairwise(starts), page_table, seqused_k.tolist(), strict=True
            )
        ]
        return paged_rows(q, k, v, rows, scale=softmax_scale, left=left), None


def flash_attn_2(  # noqa: PLR0917 - the library's signature
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
    block_table: Tensor | None = None,
) -> Tensor:
    """``flash_attn.flash_attn_varlen_func`` of 2.8."""
    assert block_table is not None
    assert softmax_scale is not None
    assert causal
    check_paged_call(q, k, v, {"cu_seqlens_q": cu_seqlens_q, "cu_seqlens_k": cu_seqlens_k, "block_table": block_table})
    assert k.shape[1] % 256 == 0, "Paged KV cache block size must be divisible by 256"
    q_starts, k_starts = cu_seqlens_q.tolist(), cu_seqlens_k.tolist()
    assert (q_starts[0], q_starts[-1], k_starts[0]) == (0, len(q), 0)
    kv_lens = [end - begin for begin, end in itertools.pairwise(k_starts)]
    q_lens = [end - begin for begin, end in itertools.pairwise(q_starts)]
    assert (max_seqlen_q, max_seqlen_k) == (max(q_lens), max(kv_lens))
    rows = [
        (begin, end, table[: -(-kv_len // k.shape[1])], kv_len)
        for (begin, end), table, kv_len in zip(itertools.pairwise(q_starts), block_table, kv_lens, strict=True)
    ]
    return paged_rows(q, k, v, rows, scale=softmax_scale, left=window_size[0] if window_size[0] >= 0 else None)


class FlashInferWrapper:
    """``flashinfer.BatchPrefillWithPagedKVCacheWrapper`` for one device; ``log`` is told of every plan."""

    def __init__(self, log: list[str], name: str) -> None:
        self._log = log
        self._name = name
        self._planned: Callable[[Tensor, Tensor, Tensor], Tensor] | None = None

    def plan(  # noqa: PLR0917 - the library's signature
        self,
        qo_indptr: Tensor,
        paged_kv_indptr: Tensor,
        paged_kv_indices: Tensor,
        paged_kv_last_page_len: Tensor,
        num_qo_heads: int,
        num_kv_heads: int,
        head_dim_qk: int,
        page_size: int,
        *,
        causal: bool = False,
        sm_scale: float | None = None,
        window_left: int = -1,
        q_data_type: str | torch.dtype = "float16",
        kv_data_type: str | torch.dtype | None = None,
        seq_lens: Tensor | None = None,
        disable_split_kv: bool = False,
    ) -> None:
        self._log.append(f"plan {self._name}")
        assert causal
        assert seq_lens is not None
        assert sm_scale is not None
        scale = sm_scale
        for host in (qo_indptr, paged_kv_indptr, paged_kv_last_page_len, seq_lens):
            assert host.is_cpu, "reading it from the device would wait"
            assert host.dtype == torch.int32
        assert paged_kv_indices.dtype == torch.int32
        pages = paged_kv_indptr.tolist()
        assert pages[-1] == len(paged_kv_indices)
        lengths = [
            (end - begin - 1) * page_size + last
            for (begin, end), last in zip(itertools.pairwise(pages), paged_kv_last_page_len.tolist(), strict=True)
        ]
        assert lengths == seq_lens.tolist()
        starts, left = qo_indptr.tolist(), window_left if window_left >= 0 else None
        rows = [
            (starts[row], starts[row + 1], paged_kv_indices[pages[row] : pages[row + 1]], kv_len)
            for row, kv_len in enumerate(lengths)
        ]

        def run(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            check_paged_call(q, k, v, {})
            assert q.dtype == q_data_type == kv_data_type
            assert q.shape == (starts[-1], num_qo_heads, head_dim_qk)
            assert k.shape[1:] == (page_size, num_kv_heads, head_dim_qk)
            return paged_rows(q, k, v, rows, scale=scale, left=left)

        self._planned = run

    def run(self, q: Tensor, paged_kv_cache: tuple[Tensor, Tensor], *, out: Tensor, enable_pdl: bool) -> Tensor:
        assert self._planned is not None, "plan comes before run"
        assert not enable_pdl
        return out.copy_(self._planned(q, *paged_kv_cache))


def wrapper_maker(log: list[str]) -> Callable[[], Any]:
    """Makes wrappers called a, b, c and so on."""
    names: Iterator[str] = iter("abcdefgh")
    return lambda: FlashInferWrapper(log, next(names))


class LoggingDevice(Device):
    """A device that writes down which of its events is waited for."""

    def __init__(self, torch_device: torch.device, log: list[str]) -> None:
        self._torch_device = torch_device
        self._log = log
        self._events = 0

    @property
    def torch_device(self) -> torch.device:
        return self._torch_device

    def memory(self) -> DeviceMemory:
        raise NotImplementedError

    def synchronize(self) -> None:
        raise AssertionError("nothing may wait for the whole device")

    def record_event(self) -> DeviceEvent:
        self._events += 1
        return _Event(self._events, self._log)


class _Event:
    def __init__(self, number: int, log: list[str]) -> None:
        self._number = number
        self._log = log

    def synchronize(self) -> None:
        self._log.append(f"wait {self._number}")
