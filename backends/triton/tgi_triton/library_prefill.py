"""Triton's kernels beside another library's attention, which takes the prefill rows of a step."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tgi_core.contract import AttentionBatch, AttentionChoice, AttentionSpec, Device
from tgi_core.contract.kernels import PreparedAttention
from tgi_core.shards.attention_providers import PrefillAttention, PreparedPrefill, Provider
from tgi_triton.attention import PreparedBatch, attend_decodes
from tgi_triton.kernels import TritonKernels
from tgi_triton.tuning import Tuning


class LibraryPrefillKernels(TritonKernels):
    """Decodes stay with our own kernels, which recorded steps hold.

    Args:
        device: where the tensors are.
        tuning: of our own kernels.
        prefill: the library's attention for prefill rows; None for our own.
        notes: said at start.
    """

    def __init__(
        self,
        device: torch.device,
        tuning: Tuning,
        prefill: PrefillAttention | None = None,
        notes: tuple[str, ...] = (),
    ) -> None:
        super().__init__(device, tuning)
        self._prefill = prefill
        self._notes = notes

    @property
    def notes(self) -> tuple[str, ...]:
        return self._notes

    def prepare_attention(self, batch: AttentionBatch, spec: AttentionSpec) -> PreparedAttention:
        prepared: PreparedBatch = super().prepare_attention(batch, spec)
        if self._prefill is None or not prepared.prefill_tokens:
            return prepared
        return _SharedStep(prepared, self._prefill.prepare(batch, spec))

    def attention(
        self,
        q_THD: Tensor,
        cache_NP2KD: Tensor,
        prepared: PreparedAttention,
        spec: AttentionSpec,
        sinks_H: Tensor | None = None,
        *,
        distance_bias_HX: Tensor | None = None,
    ) -> Tensor:
        if self._prefill is None or not isinstance(prepared, _SharedStep):
            return super().attention(q_THD, cache_NP2KD, prepared, spec, sinks_H, distance_bias_HX=distance_bias_HX)
        decodes = prepared.step.batch.num_decodes
        prefill_THD = self._prefill.attend(q_THD[decodes:], cache_NP2KD, prepared.prefill, spec)
        if not decodes:
            return prefill_THD
        output_THD = torch.empty_like(q_THD)
        attend_decodes(q_THD, cache_NP2KD, output_THD, prepared.step, spec, self._tuning)
        output_THD[decodes:] = prefill_THD
        return output_THD


def kernels_with(
    device: Device, tuning: Tuning, attention: AttentionChoice | None, providers: Iterable[Provider[Any]]
) -> LibraryPrefillKernels:
    """The kernels with the chosen implementation of attention: our own, unless it is one of ``providers``."""
    chosen = None if attention is None else next((each for each in providers if each.name == attention.name), None)
    if attention is None or chosen is None:
        return LibraryPrefillKernels(device.torch_device, tuning)
    note = f"prompts attend through {attention.name}: {attention.reason}"
    return LibraryPrefillKernels(device.torch_device, tuning, chosen.open(device, attention.use), (note,))


class _SharedStep(NamedTuple):
    """A step whose prefill rows are a library's."""

    step: PreparedBatch
    prefill: PreparedPrefill
