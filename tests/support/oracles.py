"""Models that transformers lacks, in plain torch and in their own checkpoints' names and layouts."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor

VOCAB, HIDDEN, INNER, LAYERS, HEADS, HEAD = 160, 64, 96, 4, 4, 16

Weights = Mapping[str, Tensor]
Attend = Callable[[Weights, str, Tensor], Tensor]

_SIZES = {
    "vocab_size": VOCAB,
    "hidden_size": HIDDEN,
    "intermediate_size": INNER,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "rms_norm_eps": 1e-6,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
}


class Oracle:
    """One of them: ``save`` writes the folder, a call computes logits [1, T, V] of token ids [1, T] in one go."""

    def __init__(
        self, config: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]], forward: Callable[..., Tensor]
    ):
        generator = torch.Generator().manual_seed(0)
        self.config = {**_SIZES, **config}
        self.weights = {name: torch.randn(shape, generator=generator) * 0.25 for name, shape in shapes.items()}
        for name, tensor in self.weights.items():
            if tensor.dim() == 1 and name.endswith(".weight"):
                tensor.mul_(0.8).add_(1)
            elif tensor.dim() == 1:
                tensor.mul_(0.3)
        self._forward = forward

    def save(self, folder: Path) -> None:
        (folder / "config.json").write_text(json.dumps(self.config))
        save_file({name: tensor.contiguous() for name, tensor in self.weights.items()}, folder / "model.safetensors")

    def __call__(self, ids_1T: Tensor) -> Tensor:
        return self._forward(self.weights, ids_1T[0])[None]


def internlm2() -> Oracle:
    """Queries, key and value of each key head side by side in ``wqkv``; biases in attention."""
    kv_heads = 2

    def attend(weights: Weights, prefix: str, x_TE: Tensor) -> Tensor:
        qkv = F.linear(x_TE, weights[f"{prefix}.attention.wqkv.weight"], weights[f"{prefix}.attention.wqkv.bias"])
        groups = qkv.view(len(x_TE), kv_heads, HEADS // kv_heads + 2, HEAD)
        q = rotate(groups[:, :, :-2].reshape(len(x_TE), HEADS, HEAD))
        k, v = rotate(groups[:, :, -2]), groups[:, :, -1]
        heads = causal(q, k.repeat_interleave(2, dim=1), v.repeat_interleave(2, dim=1), torch.zeros(HEADS))
        return F.linear(heads, weights[f"{prefix}.attention.wo.weight"], weights[f"{prefix}.attention.wo.bias"])

    def forward(weights: Weights, ids_T: Tensor) -> Tensor:
        x = weights["model.tok_embeddings.weight"][ids_T]
        for layer in range(LAYERS):
            prefix = f"model.layers.{layer}"
            x = x + attend(weights, prefix, rms(x, weights[f"{prefix}.attention_norm.weight"]))
            y = rms(x, weights[f"{prefix}.ffn_norm.weight"])
            gate, up, down = (weights[f"{prefix}.feed_forward.{name}.weight"] for name in ("w1", "w3", "w2"))
            x = x + (F.silu(y @ gate.T) * (y @ up.T)) @ down.T
        return rms(x, weights["model.norm.weight"]) @ weights["output.weight"].T

    shapes: dict[str, tuple[int, ...]] = {
        "model.tok_embeddings.weight": (VOCAB, HIDDEN),
        "model.norm.weight": (HIDDEN,),
        "output.weight": (VOCAB, HIDDEN),
    }
    for layer in range(LAYERS):
        prefix = f"model.layers.{layer}"
        shapes |= {
            f"{prefix}.attention_norm.weight": (HIDDEN,),
            f"{prefix}.ffn_norm.weight": (HIDDEN,),
            f"{prefix}.attention.wqkv.weight": ((HEADS + 2 * kv_heads) * HEAD, HIDDEN),
            f"{prefix}.attention.wqkv.bias": ((HEADS + 2 * kv_heads) * HEAD,),
            f"{prefix}.attention.wo.weight": (HIDDEN, HIDDEN),
            f"{prefix}.attention.wo.bias": (HIDDEN,),
            f"{prefix}.feed_forward.w1.weight": (INNER, HIDDEN),
            f"{prefix}.feed_forward.w3.weight": (INNER, HIDDEN),
            f"{prefix}.feed_forward.w2.weight": (HIDDEN, INNER),
        }
    config = {
        "model_type": "internlm2",
        "bias": True,
        "num_key_value_heads": kv_heads,
        "max_position_embeddings": 256,
        "rope_theta": 10_000.0,
        "rope_scaling": {"type": "dynamic", "factor": 2.0},
    }
    return Oracle(config, shapes, forward)


def baichuan(*, alibi: bool, vocab_size: int = VOCAB) -> Oracle:
    """The 7B rotates; the 13B has a bias on distance. The second release, told by its vocabulary, has a unit head."""

    def attend(weights: Weights, prefix: str, x_TE: Tensor) -> Tensor:
        q, k, v = (x_TE @ weights[f"{prefix}.self_attn.W_pack.weight"].T).view(len(x_TE), 3, HEADS, HEAD).unbind(1)
        slopes = torch.tensor([2.0 ** (-2 * head) for head in range(1, HEADS + 1)])
        heads = causal(q, k, v, slopes) if alibi else causal(rotate(q), rotate(k), v, torch.zeros(HEADS))
        return heads @ weights[f"{prefix}.self_attn.o_proj.weight"].T

    def forward(weights: Weights, ids_T: Tensor) -> Tensor:
        x = weights["model.embed_tokens.weight"][ids_T]
        for layer in range(LAYERS):
            prefix = f"model.layers.{layer}"
            x = x + attend(weights, prefix, rms(x, weights[f"{prefix}.input_layernorm.weight"]))
            y = rms(x, weights[f"{prefix}.post_attention_layernorm.weight"])
            gate, up, down = (weights[f"{prefix}.mlp.{name}_proj.weight"] for name in ("gate", "up", "down"))
            x = x + (F.silu(y @ gate.T) * (y @ up.T)) @ down.T
        head = weights["lm_head.weight"]
        if vocab_size != VOCAB:
            head = head / head.square().sum(dim=1, keepdim=True).sqrt()
        return rms(x, weights["model.norm.weight"]) @ head.T

    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (vocab_size, HIDDEN),
        "model.norm.weight": (HIDDEN,),
        "lm_head.weight": (vocab_size, HIDDEN),
    }
    for layer in range(LAYERS):
        prefix = f"model.layers.{layer}"
        shapes |= {
            f"{prefix}.input_layernorm.weight": (HIDDEN,),
            f"{prefix}.post_attention_layernorm.weight": (HIDDEN,),
            f"{prefix}.self_attn.W_pack.weight": (3 * HIDDEN, HIDDEN),
            f"{prefix}.self_attn.o_proj.weight": (HIDDEN, HIDDEN),
            f"{prefix}.mlp.gate_proj.weight": (INNER, HIDDEN),
            f"{prefix}.mlp.up_proj.weight": (INNER, HIDDEN),
            f"{prefix}.mlp.down_proj.weight": (HIDDEN, INNER),
        }
    length = {"model_max_length": 256} if alibi else {"max_position_embeddings": 256}
    return Oracle({"model_type": "baichuan", "vocab_size": vocab_size, **length}, shapes, forward)


def rms(x: Tensor, weight: Tensor) -> Tensor:
    return x / (x.square().mean(-1, keepdim=True) + 1e-6).sqrt() * weight


def rotate(x_THD: Tensor) -> Tensor:
    """Each pair (i, i + 8) as a complex number, turned by its position times its frequency."""
    frequencies = torch.tensor([10_000.0 ** (-2 * pair / HEAD) for pair in range(HEAD // 2)])
    angles = torch.arange(len(x_THD))[:, None] * frequencies
    turned = torch.complex(*x_THD.chunk(2, dim=-1)) * torch.polar(torch.ones_like(angles), angles)[:, None]
    return torch.cat((turned.real, turned.imag), dim=-1)


def causal(q_THD: Tensor, k_THD: Tensor, v_THD: Tensor, slopes_H: Tensor) -> Tensor:
    """Each query looks at itself and what came before; ``slopes`` weigh the distance. Returns [T, H * D]."""
    rows = []
    for position, q_HD in enumerate(q_THD):
        keys, values = k_THD[: position + 1], v_THD[: position + 1]
        distance = torch.arange(position + 1) - position
        scores = (q_HD * keys).sum(-1).T / math.sqrt(HEAD) + slopes_H[:, None] * distance
        rows.append(torch.einsum("hc,chd->hd", scores.softmax(dim=-1), values).flatten())
    return torch.stack(rows)
