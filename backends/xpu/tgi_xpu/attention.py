"""Which kernels run on an Intel GPU: Intel's own attention where it is installed, else Triton's, else the reference."""

from __future__ import annotations

import torch

from tgi_core.contract import AttentionChoice, AttentionOption, AttentionSpec, AttentionUse, Device, Kernels
from tgi_core.reference import ReferenceKernels
from tgi_core.shards.attention_providers import (
    Obstacle,
    PrefillAttention,
    Provider,
    has_module,
    installed_version,
    unfit_model,
)

_NO_TRITON = Obstacle("Triton is not installed", "Install torch from PyTorch's xpu index, which brings triton-xpu.")


class VllmXpuKernels(Provider[None]):
    """Intel's flash attention for the prefill rows; decodes stay with Triton, which recorded steps hold."""

    name = "vllm-xpu-kernels"
    distribution = "vllm-xpu-kernels"

    def missing(self) -> Obstacle | None:
        if not has_module("vllm_xpu_kernels"):
            return Obstacle("vllm-xpu-kernels is not installed", 'Install it: pip install "tgi-serve[xpu-kernels]".')
        return None if has_module("triton") else _NO_TRITON

    def unfit(self, hardware: None, use: AttentionUse) -> Obstacle | None:  # noqa: ARG002 - all Intel GPUs
        windowed = any(spec.window is not None for spec in use.specs)
        # What its wheels hold compiled code for; others fall back to slow code of its own.
        return unfit_model(use, (96, 128, 256) if windowed else (64, 96, 128, 192, 256))

    def open(self, device: Device, use: AttentionUse) -> PrefillAttention:  # noqa: ARG002 - it needs neither
        from vllm_xpu_kernels.flash_attn_interface import flash_attn_varlen_func

        from tgi_triton.varlen_prefill import VllmVarlenPrefill

        return VllmVarlenPrefill(flash_attn_varlen_func)


def list_options(use: AttentionUse) -> tuple[AttentionOption, ...]:
    """See ``Backend.attention_options``: Intel's current library, its former one, our own kernels, the reference."""
    vllm = VllmXpuKernels()
    ipex = "intel-extension-for-pytorch"
    return (
        _option(vllm.name, vllm.obstacle(None, use), _installed(vllm.distribution)),
        _option("ipex", _ipex_obstacle(), _installed(ipex)),
        _option("triton", None if has_module("triton") else _NO_TRITON, "our own kernels"),
        _option("reference", None, "plain torch, slow"),
    )


def open_kernels(device: Device, attention: AttentionChoice | None) -> Kernels:
    """The operations with the chosen attention; with None our own kernels, or the reference without Triton."""
    if attention is not None and attention.name == "ipex":
        from tgi_xpu.ipex import open_ipex

        return open_ipex(device.torch_device)
    if not has_module("triton") or (attention is not None and attention.name == "reference"):
        return SlowKernels()
    from tgi_triton import kernels_with, xpu_tuning

    cores = torch.xpu.get_device_properties(device.torch_device).gpu_subslice_count
    return kernels_with(device, xpu_tuning(cores), attention, (VllmXpuKernels(),))


class SlowKernels(ReferenceKernels):
    """The reference, said so; its attention reads lengths on the host, so that no step with it is recorded."""

    def supports(self, operation: str, spec: AttentionSpec) -> bool:  # noqa: ARG002 - whatever the spec
        return operation != "attention"


def _option(name: str, obstacle: Obstacle | None, remark: str) -> AttentionOption:
    if obstacle is None:
        return AttentionOption(name=name, remark=remark)
    return AttentionOption(name=name, obstacle=obstacle.reason, fix=obstacle.fix, automatic=False)


def _installed(distribution: str) -> str:
    return f"{distribution} {installed_version(distribution)} is installed; not compared with our own kernels so far"


def _ipex_obstacle() -> Obstacle | None:
    if not has_module("intel_extension_for_pytorch"):
        return Obstacle("intel-extension-for-pytorch is not installed", "Without torch 2.8 there is no need for it.")
    if not torch.__version__.startswith("2.8."):
        return Obstacle(
            f"intel-extension-for-pytorch needs torch 2.8, and this is {torch.__version__}",
            "Uninstall it: newer torch supports Intel GPUs by itself.",
        )
    return None
