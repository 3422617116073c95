"""Which checkpoint tensor each GGUF tensor becomes, and what llama.cpp's conversion did to it that has to be undone.

llama.cpp's converter changes two things. For ``llama`` it reorders the rows of the query and key projections, because
its rotary embedding pairs neighbouring features where Hugging Face's pairs the halves. For ``gemma*`` it stores every
norm weight plus one, because Gemma's norm multiplies by (1 + weight).
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import msgspec
import numpy as np
from numpy.typing import NDArray

from tgi_core.weights.gguf.metadata import CONVERT_AGAIN, GgufMetadata, refuse
from tgi_core.weights.gguf.reader import GgufFile, GgufTensor

_DECODER_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_ONE_NORM_LAYER = {module: name for module, name in _DECODER_LAYER.items() if module != "ffn_norm"}
_QK_NORMS = {"attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm"}
_SANDWICH_NORMS = {
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
_MERGED_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_qkv": "self_attn.qkv_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_up": "mlp.gate_up_proj",
    "ffn_down": "mlp.down_proj",
}
_ATTENTION = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
}
_OLMO2_LAYER = {
    **_ATTENTION,
    **_QK_NORMS,
    "post_attention_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "post_ffw_norm": "post_feedforward_layernorm",
}
_PLAIN_MLP_LAYER = {
    **_ATTENTION,
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_up": "mlp.c_fc",
    "ffn_down": "mlp.c_proj",
}
_GLM4_LAYER = {
    **_ATTENTION,
    "attn_norm": "input_layernorm",
    "post_attention_norm": "post_self_attn_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_up": "mlp.gate_up_proj",
    "ffn_down": "mlp.down_proj",
    "post_ffw_norm": "post_mlp_layernorm",
}
_NORMS = {"attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm"}
_QWEN_EXPERTS = {
    "ffn_gate_inp": "mlp.gate",
    "ffn_gate_exps": "mlp.experts.{}.gate_proj",
    "ffn_up_exps": "mlp.experts.{}.up_proj",
    "ffn_down_exps": "mlp.experts.{}.down_proj",
}
_QWEN_SHARED_EXPERT = {
    "ffn_gate_shexp": "mlp.shared_expert.gate_proj",
    "ffn_up_shexp": "mlp.shared_expert.up_proj",
    "ffn_down_shexp": "mlp.shared_expert.down_proj",
    "ffn_gate_inp_shexp": "mlp.shared_expert_gate",
}
_MIXTRAL_EXPERTS = {
    "ffn_gate_inp": "block_sparse_moe.gate",
    "ffn_gate_exps": "block_sparse_moe.experts.{}.w1",
    "ffn_up_exps": "block_sparse_moe.experts.{}.w3",
    "ffn_down_exps": "block_sparse_moe.experts.{}.w2",
}
_OUTSIDE_LAYERS = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output_norm.bias": "model.norm.bias",
    "output.weight": "lm_head.weight",
}
_ONE_OUTPUT = "shared_expert_gate.weight"
_ROPE_FACTORS = ("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight")
_LAYER_TENSOR = re.compile(r"blk\.(\d+)\.(\w+)\.(weight|bias)")


class GgufLayout(msgspec.Struct, frozen=True):
    """How one family is stored.

    Attributes:
        layer: llama.cpp's name of each module of a layer -> Hugging Face's; ``{}`` stands for an expert's number, and
            the file stores all experts in one tensor.
        interleaved_rope: rows of the query and key projections are reordered.
        norm_offset: what was added to every norm weight.
    """

    layer: dict[str, str]
    interleaved_rope: bool = False
    norm_offset: float = 0.0


_MIXTRAL = GgufLayout(_NORMS | _ATTENTION | _MIXTRAL_EXPERTS, interleaved_rope=True)

LAYOUTS = {
    "llama": GgufLayout(_DECODER_LAYER, interleaved_rope=True),
    "qwen2": GgufLayout(_DECODER_LAYER),
    "qwen3": GgufLayout(_DECODER_LAYER | _QK_NORMS),
    "qwen2moe": GgufLayout(_NORMS | _ATTENTION | _QWEN_EXPERTS | _QWEN_SHARED_EXPERT),
    "qwen3moe": GgufLayout(_NORMS | _ATTENTION | _QK_NORMS | _QWEN_EXPERTS),
    "phi3": GgufLayout(_MERGED_LAYER),
    "granite": GgufLayout(_DECODER_LAYER, interleaved_rope=True),
    "smollm3": GgufLayout(_DECODER_LAYER, interleaved_rope=True),
    "olmo2": GgufLayout(_OLMO2_LAYER),
    "olmoe": GgufLayout(_NORMS | _ATTENTION | _QK_NORMS | _QWEN_EXPERTS),
    "starcoder2": GgufLayout(_PLAIN_MLP_LAYER),
    "command-r": GgufLayout(_ONE_NORM_LAYER),
    "cohere2": GgufLayout(_ONE_NORM_LAYER),
    "glm4": GgufLayout(_GLM4_LAYER),
    "gemma": GgufLayout(_DECODER_LAYER, norm_offset=1.0),
    "gemma2": GgufLayout(_DECODER_LAYER | _SANDWICH_NORMS, norm_offset=1.0),
    "gemma3": GgufLayout(_DECODER_LAYER | _SANDWICH_NORMS | _QK_NORMS, norm_offset=1.0),
}

GGUF_MODEL_TYPES: Mapping[str, tuple[str, ...]] = {
    "llama": ("llama", "mixtral"),
    "qwen2": ("qwen2",),
    "qwen3": ("qwen3",),
    "qwen2moe": ("qwen2_moe",),
    "qwen3moe": ("qwen3_moe",),
    "phi3": ("phi3",),
    "granite": ("granite",),
    "smollm3": ("smollm3",),
    "olmo2": ("olmo2",),
    "olmoe": ("olmoe",),
    "starcoder2": ("starcoder2",),
    "command-r": ("cohere",),
    "cohere2": ("cohere2",),
    "glm4": ("glm4",),
    "gemma": ("gemma",),
    "gemma2": ("gemma2",),
    "gemma3": ("gemma3_text",),
}
"""The model types that a file of an architecture may become."""


class TensorPlan(msgspec.Struct, frozen=True):
    """How one tensor is converted.

    Attributes:
        source: the GGUF tensor.
        name: its name in the checkpoint.
        interleaved_heads: number of heads whose rows have to be put back in order; 0 for rows that are in order.
        norm_offset: what to subtract.
        expert: which part of the first axis this is; None for all of the tensor.
    """

    source: GgufTensor
    name: str
    interleaved_heads: int = 0
    norm_offset: float = 0.0
    expert: int | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape in the checkpoint."""
        shape = self.source.shape if self.expert is None else self.source.shape[1:]
        # llama.cpp drops the axis of a linear's only output.
        return (1, *shape) if self.name.endswith(_ONE_OUTPUT) and len(shape) == 1 else shape


def plan_tensors(file: GgufFile) -> list[TensorPlan]:
    """Plans for all tensors, in the file's order.

    Raises:
        StartupError: a tensor of the family is missing, or there is one the family does not have.
    """
    layout = layout_of(file.metadata)
    tensors = [tensor for tensor in file.tensors.values() if tensor.name not in _ROPE_FACTORS]
    plans = [plan for tensor in tensors for plan in _plans(file, layout, tensor)]
    layers = file.metadata.need_of_model("block_count", int)
    needed = [f"blk.{layer}.{module}.weight" for layer in range(layers) for module in layout.layer]
    needed += ["token_embd.weight", "output_norm.weight"]
    missing = [name for name in needed if name not in file.tensors]
    if missing:
        raise refuse(file.path, f"lacks {len(missing)} tensors, such as `{missing[0]}`", CONVERT_AGAIN)
    return plans


def layout_of(metadata: GgufMetadata) -> GgufLayout:
    """The layout of the file's family.

    Raises:
        StartupError: the family is not supported.
    """
    layout = LAYOUTS.get(metadata.architecture)
    if metadata.architecture == "llama" and (metadata.find_of_model("expert_count", int) or 0) > 0:
        layout = _MIXTRAL
    if layout is None:
        raise refuse(
            metadata.path,
            f"holds a model of architecture `{metadata.architecture}`; supported in GGUF are {', '.join(LAYOUTS)}",
            "Serve the original model in safetensors instead.",
        )
    return layout


def restore_rows(raw_rows: NDArray[np.uint8], heads: int) -> NDArray[np.uint8]:
    """Undo the reordering for interleaved rope: within each head, row (i, half) goes back to (half, i).

    ``raw_rows`` is [heads * D, row bytes]. Rows are quantized one by one, so they move without being decoded.
    """
    rows, row_bytes = raw_rows.shape
    return raw_rows.reshape(heads, rows // heads // 2, 2, row_bytes).swapaxes(1, 2).reshape(rows, row_bytes)


def _plans(file: GgufFile, layout: GgufLayout, tensor: GgufTensor) -> list[TensorPlan]:
    """A plan for each tensor that the stored one becomes."""
    if tensor.name in _OUTSIDE_LAYERS:
        name = _OUTSIDE_LAYERS[tensor.name]
        return [TensorPlan(tensor, name, norm_offset=layout.norm_offset if name.endswith("norm.weight") else 0.0)]
    match = _LAYER_TENSOR.fullmatch(tensor.name)
    if match is None or match[2] not in layout.layer:
        raise refuse(
            file.path,
            f"has a tensor `{tensor.name}`, which the `{file.metadata.architecture}` family does not",
            "Serve the original model in safetensors instead.",
        )
    layer, module, kind = match.groups()
    name = f"model.layers.{layer}.{layout.layer[module]}.{kind}"
    if "{}" in name:
        return [
            TensorPlan(tensor, name.format(expert), expert=expert)
            for expert in range(tensor.shape[0] if len(tensor.shape) == 3 else 0)
        ]
    heads = _interleaved_heads(file.metadata, module) if layout.interleaved_rope else 0
    if heads and tensor.shape[0] % (2 * heads):
        raise refuse(file.path, f"has {tensor.shape[0]} rows in `{tensor.name}`, which {heads} heads cannot share")
    return [TensorPlan(tensor, name, heads, layout.norm_offset if module.endswith("norm") else 0.0)]


def _interleaved_heads(metadata: GgufMetadata, module: str) -> int:
    heads = metadata.need_of_model("attention.head_count", int)
    if module == "attn_q":
        return heads
    if module == "attn_k":
        return metadata.find_of_model("attention.head_count_kv", int) or heads
    return 0
