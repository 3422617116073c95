"""The table of architectures in docs/models/README.md, out of the specs that the code builds.

``python -m tests.support.model_table`` writes it anew. A cell says what the tested variants of a model type have.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from transformers import AutoConfig

from tests.support import architectures, tiny_models
from tests.support.generated import replace_part
from tests.support.oracles import baichuan, internlm2
from tgi_core.models import ARCHITECTURES, Architecture, ArchitectureSpec, HFConfig, ModuleArchitecture
from tgi_core.models.encoder_decoder import ENCODER_DECODERS
from tgi_core.models.family import ModelFamily
from tgi_core.models.names import ExpertLayout
from tgi_core.models.spec import Block, Norm, QKNorm
from tgi_core.models.state_space import STATE_SPACE
from tgi_core.weights.gguf.tensors import GGUF_MODEL_TYPES

PAGE = Path(__file__).parents[2] / "docs" / "models" / "README.md"
START, END = "<!-- table: python -m tests.support.model_table -->\n", "<!-- end of table -->\n"

_NORMS = {
    Norm.RMS: "RMS",
    Norm.LAYER: "layer",
    Norm.LAYER_BIAS: "layer, bias",
    Norm.LAYER_PLAIN: "layer, no weight",
}
_BLOCKS = {
    Block.PRE: "before",
    Block.SANDWICH: "before and after",
    Block.OUT: "after, before the sum",
    Block.POST: "after the sum",
    Block.PARALLEL: "before, parallel",
    Block.PARALLEL_TWO_NORMS: "before, parallel, two norms",
}
_QK_NORMS = {
    None: "",
    QKNorm.HEAD: "RMS a head",
    QKNorm.HEAD_PLAIN: "RMS a head, no weight",
    QKNorm.WIDTH: "RMS",
    QKNorm.HEAD_LAYER: "layer a head",
}
_LIKE = {"exaone": "llama", "kimi_k2": "deepseek_v3"}
"""Types that transformers lacks and whose configuration is read as another's."""

_KINDS: Mapping[tuple[ModuleArchitecture, ...], str] = {
    STATE_SPACE: "states",
    ENCODER_DECODERS: "attention, attention to the encoder",
}
"""What the layers of modules do."""

_OTHERS = "[transformers' own model](fallback.md), over our attention or with its own cache"


def table() -> str:
    """The table in Markdown: one row a model type, and one for all others."""
    blank = [""] * (len(_COLUMNS) - 1)
    rows = {
        module.model_type: ["module", _KINDS[modules], *blank, _quantizations(module)]
        for modules in _KINDS
        for module in modules
    }
    for architecture in ARCHITECTURES:
        specs = _specs(architecture)
        cells = [_cell(column, specs) for column in _COLUMNS.values()]
        rows[architecture.model_type] = ["spec", *cells, _quantizations(architecture)]
    head = ["`model_type`", "runs as", *_COLUMNS, "quantized"]
    lines = [head, ["---"] * len(head)]
    lines += [[f"`{model_type}`", *cells] for model_type, cells in sorted(rows.items())]
    lines.append(["any other", _OTHERS, "attention, or what it brings", *blank, ""])
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _quantizations(family: ModelFamily) -> str:
    """The quantized checkpoints that load, dequantized."""
    formats = ["fp8"]
    if isinstance(family, Architecture) and family.names.experts.layout is ExpertLayout.INTERLEAVED:
        formats.append("mxfp4")
    if any(family.model_type in model_types for model_types in GGUF_MODEL_TYPES.values()):
        formats.append("GGUF")
    return ", ".join(formats)


def _specs(architecture: Architecture) -> list[ArchitectureSpec]:
    specs = [architecture.build(HFConfig(values)) for values in _configs(architecture.model_type)]
    assert specs, f"no tested variant is of the type {architecture.model_type}"
    return specs


def _configs(model_type: str) -> Iterable[Mapping[str, Any]]:
    """Configurations of the tested variants, as they stand in ``config.json``."""
    if model_type in _LIKE:
        return _configs(_LIKE[model_type])
    match model_type:
        case "internlm2":
            return [internlm2().config]
        case "baichuan":
            return [baichuan(alibi=False).config, baichuan(alibi=True).config]
    known = [{**tiny_models.SIZES, **values} for values in tiny_models.CONFIGS.values()]
    known += [{"vocab_size": architectures.VOCAB, **values} for values in architectures.CONFIGS.values()]
    chosen = [values for values in known if values["model_type"] == model_type]
    if not chosen and any(values["model_type"] == f"{model_type}_text" for values in known):
        # The configuration of a model that sees, too, holds the text model's.
        return [{"text_config": values} for values in _configs(f"{model_type}_text")]
    return [AutoConfig.for_model(**values).to_dict() for values in chosen]


def _cell(column: Callable[[ArchitectureSpec], str], specs: list[ArchitectureSpec]) -> str:
    values = dict.fromkeys(value for value in map(column, specs) if value)
    return " or ".join(values)


def _mixers(spec: ArchitectureSpec) -> str:
    attention = "attention" if spec.latent is None else "latent attention"
    return attention if spec.delta_net is None else f"delta nets, {attention}"


def _positions(spec: ArchitectureSpec) -> str:
    if spec.alibi_slopes is not None:
        return "bias"
    if spec.learned_positions is not None:
        return "table"
    attending = [layer for layer in spec.layers if not layer.has_delta_net]
    somewhere = "rotary, some layers" if any(layer.rope is None for layer in attending) else "rotary"
    return f"{somewhere}, part of a head" if spec.ropes[0].rotary_dim < spec.head_dim else somewhere


def _heads(spec: ArchitectureSpec) -> str:
    if spec.num_kv_heads == spec.num_heads:
        return "each"
    return "one" if spec.num_kv_heads == 1 else "groups"


def _windows(spec: ArchitectureSpec) -> str:
    if spec.windows == (None,):
        return ""
    somewhere = "some layers" if None in spec.windows else "all layers"
    return f"{somewhere}, chunks" if spec.chunked else somewhere


def _mlp(spec: ArchitectureSpec) -> str:
    if spec.experts is None:
        return "gated" if spec.gated else "plain"
    somewhere = "experts" if all(layer.has_experts for layer in spec.layers) else "experts, some layers"
    return somewhere if spec.experts.shared_size is None else f"{somewhere}, shared one"


_COLUMNS: Mapping[str, Callable[[ArchitectureSpec], str]] = {
    "tokens are mixed by": _mixers,
    "positions": _positions,
    "norms": lambda spec: _NORMS[spec.norm],
    "norms stand": lambda spec: _BLOCKS[spec.block],
    "q, k norm": lambda spec: _QK_NORMS[spec.qk_norm],
    "key heads": _heads,
    "window": _windows,
    "MLP": _mlp,
}


if __name__ == "__main__":
    replace_part(PAGE, START, END, table())
