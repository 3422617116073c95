"""Which attention fits a model: jax's Pallas kernel on a TPU, else the padded reference."""

from __future__ import annotations

from tgi_core.contract import AttentionOption, AttentionUse

PALLAS = "pallas"
PADDED = "padded"

_KERNEL_FEATURES = {"a soft cap"}
_PACKED = {"bfloat16": 2, "float32": 1}
"""Numbers that share a word of the vector unit."""


def list_options(use: AttentionUse, *, on_host: bool) -> tuple[AttentionOption, ...]:
    """See ``Backend.attention_options``."""
    obstacle = "it is compiled for TPUs alone, and jax runs on the host here" if on_host else unfit(use, devices=1)
    return (
        AttentionOption(name=PALLAS, obstacle=obstacle, remark="jax's ragged paged attention"),
        AttentionOption(name=PADDED, remark="looks at every column of the block tables, slow"),
    )


def unfit(use: AttentionUse, devices: int) -> str:
    """Why the kernel cannot compute this model on so many devices; "" when it can."""
    for spec in use.specs:
        asked = spec.features - _KERNEL_FEATURES
        if asked:
            return f"it has no place for what this model asks: {', '.join(sorted(asked))}"
        if spec.head_dim % 128:
            return f"its heads have a multiple of 128 features, and this model's have {spec.head_dim}"
        words, rest = divmod(2 * spec.num_kv_heads, devices * _PACKED[use.dtype])
        if rest or (words not in (1, 2, 4) and words % 8):
            return f"it does not take {spec.num_kv_heads} key heads in {use.dtype} on {devices} devices"
    return ""
