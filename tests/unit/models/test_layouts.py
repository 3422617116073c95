"""Weights in the orders and under the names that checkpoints have them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from msgspec.structs import replace
from safetensors.torch import load_file, save_file

from tests.support.architectures import VOCAB, make_model, unavailable
from tests.support.greedy import assert_greedy, make_prompts, reply_under_pressure
from tests.support.shards import WatchedReference, start_shard
from tgi_core.errors import StartupError
from tgi_core.models.families.base import alibi_slopes, mpt_alibi_slopes
from tgi_core.models.layouts import arrange_qkv, split_last_pairs, split_pairs, unit_rows
from tgi_core.models.names import WeightNames
from tgi_core.models.ropes import RopeSpec
from tgi_core.models.spec import ArchitectureSpec, LatentSpec, LayerSpec

SPEC = ArchitectureSpec(
    vocab_size=10,
    hidden_size=8,
    intermediate_size=8,
    num_heads=4,
    num_kv_heads=2,
    head_dim=4,
    max_positions=16,
    layers=(LayerSpec(None, 0),),
    ropes=(RopeSpec(theta=1e4, rotary_dim=4),),
    norm_eps=1e-5,
    activation="silu",
    attention_scale=0.5,
)


def test_groups_of_query_heads_with_their_key_and_value() -> None:
    rows = ["q0", "q1", "k0", "v0", "q2", "q3", "k1", "v1"]
    wanted = ["q0", "q1", "q2", "q3", "k0", "k1", "v0", "v1"]
    stored = torch.arange(len(rows)).repeat_interleave(4)[:, None]
    arranged = arrange_qkv(stored, SPEC, WeightNames(qkv_by_group=True))
    assert [rows[row] for row in arranged[::4, 0].tolist()] == wanted


@pytest.mark.parametrize(("rotary_dim", "order"), [(4, [0, 2, 1, 3]), (2, [0, 1, 2, 3])])
def test_adjacent_pairs_become_halves(rotary_dim: int, order: list[int]) -> None:
    spec = replace(SPEC, ropes=(RopeSpec(theta=1e4, rotary_dim=rotary_dim),))
    names = WeightNames(adjacent_pairs=True)
    heads = torch.arange(4).repeat(2, 1)
    assert split_pairs(heads, spec, names).tolist() == [order, order]
    bias = torch.arange(4).repeat(8)
    assert arrange_qkv(bias, spec, names).view(8, 4).tolist() == [order] * 6 + [[0, 1, 2, 3]] * 2


@pytest.mark.parametrize(("adjacent", "order"), [(True, [0, 1, 2, 4, 3, 5]), (False, [0, 1, 2, 3, 4, 5])])
def test_adjacent_pairs_at_the_end_become_halves(adjacent: bool, order: list[int]) -> None:
    latent = LatentSpec(
        rank=8,
        unrotated_dim=2,
        rotated_dim=4,
        value_dim=2,
        query_rank=None,
        norm_eps=1e-6,
        adjacent_pairs=adjacent,
    )
    assert split_last_pairs(torch.arange(6).repeat(2, 1), latent).tolist() == [order, order]


def test_unit_rows() -> None:
    torch.testing.assert_close(unit_rows(torch.tensor([[3.0, 4.0]])), torch.tensor([[0.6, 0.8]]))


def test_slopes() -> None:
    assert alibi_slopes(4) == (2**-2, 2**-4, 2**-6, 2**-8)
    assert alibi_slopes(6) == (*alibi_slopes(4), 2**-1, 2**-3)
    assert mpt_alibi_slopes(4, 8) == alibi_slopes(4)
    assert mpt_alibi_slopes(3, 8) == (2**-4, 2**-8, 2**-2)


OLD_PREFIXES = {
    "gpt2": ("transformer.", ""),
    "bloom": ("transformer.", ""),
    "opt": ("model.decoder.", "decoder."),
}


@pytest.mark.parametrize("variant", list(OLD_PREFIXES))
def test_first_releases_have_other_prefixes(variant: str, tmp_path: Path) -> None:
    model = make_model(variant, tmp_path)
    new, old = OLD_PREFIXES[variant]
    tensors = {name.replace(new, old, 1): tensor for name, tensor in load_file(tmp_path / "model.safetensors").items()}
    if variant == "gpt2":
        tensors |= {"h.0.attn.bias": torch.ones(1, 1, 256, 256), "h.3.attn.masked_bias": torch.tensor(-1e4)}
    save_file(tensors, tmp_path / "model.safetensors")
    replies = reply_under_pressure(tmp_path, WatchedReference(), make_prompts(VOCAB))
    assert_greedy(replies, lambda ids_1T: model(ids_1T, use_cache=False).logits)


def spoilt(variant: str, name: str, edit: Callable[[torch.Tensor], torch.Tensor], folder: Path) -> str:
    make_model(variant, folder)
    tensors = load_file(folder / "model.safetensors")
    save_file({**tensors, name: edit(tensors[name]).contiguous()}, folder / "model.safetensors")
    with pytest.raises(StartupError) as caught:
        start_shard(folder, WatchedReference())
    return caught.value.cause


@pytest.mark.parametrize(
    ("variant", "name", "shape"),
    [
        ("gpt2", "transformer.h.1.attn.c_attn.weight", [64, 192]),
        ("mixtral", "model.layers.2.block_sparse_moe.experts.4.w2.weight", [64, 96]),
        ("granitemoe", "model.layers.0.block_sparse_moe.input_linear.weight", [5, 192, 64]),
        ("dbrx", "transformer.blocks.3.ffn.experts.mlp.w2", [480, 64]),
        ("gpt_oss", "model.layers.1.mlp.experts.gate_up_proj", [5, 64, 192]),
        ("gpt_oss", "model.layers.1.self_attn.sinks", [4]),
    ],
)
def test_a_misshaped_tensor_is_named(variant: str, name: str, shape: list[int], tmp_path: Path) -> None:
    if reason := unavailable(variant):
        pytest.skip(reason)
    cause = spoilt(variant, name, lambda tensor: tensor[:-1], tmp_path)
    assert f"`{name}`" in cause
    assert str(shape) in cause
    assert str([shape[0] - 1, *shape[1:]]) in cause
