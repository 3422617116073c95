"""The model of docs/models/add-an-architecture.md, in a plugin that is installed as the page says."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor

from tests.support.architectures import VOCAB
from tests.support.greedy import assert_greedy, make_prompts, reply_under_pressure
from tests.support.oracles import causal
from tests.support.plugins import write_distribution
from tests.support.shards import KERNELS
from tgi_core.errors import StartupError
from tgi_core.models.architecture import find_decoder
from tgi_core.models.hf_config import HFConfig

PAGE = (Path(__file__).parents[3] / "docs/models/add-an-architecture.md").read_text()

WIDTH, DEPTH, HEADS, SIZE = 64, 3, 4, 16
CONFIG = {
    "model_type": "lantern",
    "width": WIDTH,
    "depth": DEPTH,
    "heads": HEADS,
    "vocab_size": VOCAB,
    "max_position_embeddings": 256,
    "layer_norm_eps": 1e-5,
}


@pytest.fixture(autouse=True)
def _plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (source,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    (project,) = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
    described = tomllib.loads(project)["project"]
    ((name, module),) = described["entry-points"]["tgi_serve"].items()
    assert name == module == "lantern_plugin"
    monkeypatch.syspath_prepend(write_distribution(tmp_path / "site", described["name"], module, source))


def _weights() -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)

    def random(*shape: int, mean: float = 0.0) -> Tensor:
        return torch.randn(shape, generator=generator) * 0.25 + mean

    weights = {"embed.weight": random(VOCAB, WIDTH), "head.weight": random(VOCAB, WIDTH)}
    for name in ("norm", *(f"layers.{layer}.norm" for layer in range(DEPTH))):
        weights |= {f"{name}.weight": random(WIDTH, mean=1.0), f"{name}.bias": random(WIDTH)}
    for layer in range(DEPTH):
        weights |= {
            f"layers.{layer}.qkv.weight": random(3 * WIDTH, WIDTH),
            f"layers.{layer}.out.weight": random(WIDTH, WIDTH),
            f"layers.{layer}.up.weight": random(4 * WIDTH, WIDTH),
            f"layers.{layer}.up.bias": random(4 * WIDTH),
            f"layers.{layer}.down.weight": random(WIDTH, 4 * WIDTH),
            f"layers.{layer}.down.bias": random(WIDTH),
        }
    return weights


def _lantern(weights: dict[str, Tensor], ids_1T: Tensor) -> Tensor:
    def norm(x: Tensor, name: str) -> Tensor:
        return F.layer_norm(x, (WIDTH,), weights[f"{name}.weight"], weights[f"{name}.bias"], 1e-5)

    def turn(x_THD: Tensor) -> Tensor:
        angles = torch.arange(len(x_THD))[:, None] * torch.tensor([1.0, 0.01])
        pairs = torch.complex(x_THD[..., :2], x_THD[..., 2:4])
        turned = pairs * torch.polar(torch.ones_like(angles), angles)[:, None]
        return torch.cat((turned.real, turned.imag, x_THD[..., 4:]), dim=-1)

    x = weights["embed.weight"][ids_1T[0]]
    for layer in range(DEPTH):
        name = f"layers.{layer}"
        y = norm(x, f"{name}.norm")
        q, k, v = (y @ weights[f"{name}.qkv.weight"].T).view(-1, 3, HEADS, SIZE).unbind(1)
        attended = causal(turn(q), turn(k), v, torch.zeros(HEADS)) @ weights[f"{name}.out.weight"].T
        inner = F.gelu(F.linear(y, weights[f"{name}.up.weight"], weights[f"{name}.up.bias"]))
        x = x + attended + F.linear(inner, weights[f"{name}.down.weight"], weights[f"{name}.down.bias"])
    return (norm(x, "norm") @ weights["head.weight"].T)[None]


@pytest.mark.parametrize("prefix", ["lantern.", "module."])
def test_it_computes_what_its_authors_meant(prefix: str, tmp_path: Path) -> None:
    weights = _weights()
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    save_file({prefix + name: tensor for name, tensor in weights.items()}, tmp_path / "model.safetensors")
    replies = reply_under_pressure(tmp_path, KERNELS["cpu"](), make_prompts(VOCAB))
    assert_greedy(replies, lambda ids_1T: _lantern(weights, ids_1T))


def test_it_refuses_what_it_does_not_do() -> None:
    config = HFConfig({**CONFIG, "lantern_oil": 3})
    with pytest.raises(StartupError, match="`lantern_oil`"):
        find_decoder(config).build(config)
