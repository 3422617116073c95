"""The table of architectures in docs/models.md, out of the specs that the code builds.

``python -m tests.support.model_table`` writes it anew. A cell says what the tested variants of a model type have.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from transformers import AutoConfig

from tests.support import architectures, tiny_models
from tests.support.oracles import baichuan, internlm2
from tgi_core.models import ARCHITECTURES, ArchitectureSpec, HFConfig
from tgi_core.models.spec import Block, Norm, QKNorm

PAGE = Path(__file__).parents[2] / "docs" / "models.md"
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
_QK_NORMS = {None: "", QKNorm.HEAD: "RMS a head", QKNorm.WIDTH: "RMS", QKNorm.HEAD_LAYER: "layer a head"}


def table() -> str:
    """The table in Markdown, one row a model type."""
    rows = [["`model_type`", *_COLUMNS], ["---"] * (len(_COLUMNS) + 1)]
    for model_type, specs in sorted(_specs().items()):
        rows.append([f"`{model_type}`", *(_cell(column, specs) for column in _COLUMNS.values())])
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def _specs() -> Mapping[str, list[ArchitectureSpec]]:
    build = {architecture.model_type: architecture.build for architecture in ARCHITECTURES}
    return {
        model_type: [build[model_type](HFConfig(values)) for values in _configs(model_type)] for model_type in build
    }


def _configs(model_type: str) -> Iterable[Mapping[str, Any]]:
    """Configurations of the tested variants, as they stand in ``config.json``."""
    match model_type:
        case "gemma3":
            return [{"text_config": values} for values in _configs("gemma3_text")]
        case "internlm2":
            return [internlm2().config]
        case "baichuan":
            return [baichuan(alibi=False).config, baichuan(alibi=True).config]
        case "exaone":
            return _configs("llama")
    known = [{**tiny_models.SIZES, **values} for values in tiny_models.CONFIGS.values()]
    known += [{"vocab_size": architectures.VOCAB, **values} for values in architectures.CONFIGS.values()]
    chosen = [values for values in known if values["model_type"] == model_type]
    return [AutoConfig.for_model(**values).to_dict() for values in chosen]


def _cell(column: Callable[[ArchitectureSpec], str], specs: list[ArchitectureSpec]) -> str:
    values = dict.fromkeys(value for value in map(column, specs) if value)
    return " or ".join(values)


def _positions(spec: ArchitectureSpec) -> str:
    if spec.alibi_slopes is not None:
        return "bias"
    if spec.learned_positions is not None:
        return "table"
    somewhere = "rotary, some layers" if any(layer.rope is None for layer in spec.layers) else "rotary"
    return f"{somewhere}, part of a head" if spec.ropes[0].rotary_dim < spec.head_dim else somewhere


def _heads(spec: ArchitectureSpec) -> str:
    if spec.num_kv_heads == spec.num_heads:
        return "each"
    return "one" if spec.num_kv_heads == 1 else "groups"


def _windows(spec: ArchitectureSpec) -> str:
    if spec.windows == (None,):
        return ""
    return "some layers" if None in spec.windows else "all layers"


def _mlp(spec: ArchitectureSpec) -> str:
    if spec.experts is None:
        return "gated" if spec.gated else "plain"
    somewhere = "experts" if all(layer.has_experts for layer in spec.layers) else "experts, some layers"
    return somewhere if spec.experts.shared_size is None else f"{somewhere}, shared one"


_COLUMNS: Mapping[str, Callable[[ArchitectureSpec], str]] = {
    "positions": _positions,
    "norms": lambda spec: _NORMS[spec.norm],
    "norms stand": lambda spec: _BLOCKS[spec.block],
    "q, k norm": lambda spec: _QK_NORMS[spec.qk_norm],
    "key heads": _heads,
    "window": _windows,
    "MLP": _mlp,
}


def main() -> None:
    text = PAGE.read_text()
    before, rest = text.split(START)
    PAGE.write_text(before + START + table() + END + rest.split(END)[1])


if __name__ == "__main__":
    main()
