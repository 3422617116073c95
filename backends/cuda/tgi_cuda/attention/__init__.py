"""Other libraries' attention for the prefill rows of a step, each optional; decodes stay with our own kernels."""

OWN = "triton"
"""Our own kernels, for prefill rows too."""

NAMES = (OWN, "flash-attn-4", "flashinfer", "flash-attn")
"""What ``--attention`` takes."""

__all__ = ["NAMES", "OWN"]
