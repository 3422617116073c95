"""The steps of a Llama-3.1-8B, compiled for TPUs that are not here; run by ``make test-backends`` only.

XLA's compiler for TPUs is in libtpu and takes a description of a machine. The model has the real sizes but for its
number of layers and its vocabulary: what more of them take is added up.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy
import pytest
import torch
from jax.experimental import topologies
from jax.sharding import AxisType, Mesh

from tgi_core.contract import AttentionChoice, AttentionUse, Capabilities, DeviceState, ShardSpec
from tgi_core.models.model import LoadOptions
from tgi_core.sampling.params import Tier
from tgi_core.sampling.rules import RuleSet
from tgi_core.shards.device_model import DeviceModel
from tgi_core.shards.slots import SlotTable
from tgi_core.shards.static_steps import Forward, Sample, StaticModel
from tgi_core.shards.tables import make_state
from tgi_tpu.attention import PALLAS
from tgi_tpu.backend import TpuBackend
from tgi_tpu.device import TpuDevice
from tgi_tpu.executor import AXIS, Program
from tgi_tpu.opening import open_executor
from tgi_tpu.ragged import RAGGED_ATTENTION, attend

DEVICES = 4
CARDS = {"v5e:2x2": 16, "v6e:2x2x1": 32, "tpu7x:2x2x1": 96}
"""Topologies, and the memory of a device in GiB."""

HIDDEN, INNER, HEADS, KV_HEADS, HEAD_DIM = 4096, 14336, 32, 8, 128
LAYERS, ALL_LAYERS = 2, 32
VOCAB, WHOLE_VOCAB = 32_064, 128_256
SLOTS, BLOCK_SIZE, TOTAL_TOKENS, CACHE_TOKENS = 64, 64, 8192, 65_536

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": HIDDEN,
    "intermediate_size": INNER,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "head_dim": HEAD_DIM,
    "num_hidden_layers": LAYERS,
    "vocab_size": VOCAB,
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
}
STEPS = {"decode": (SLOTS, 1), "prefill": (1, 2048)}
"""Rows, and tokens of each."""


class Zeros:
    """Weights of nothing but zeros."""

    notes: tuple[str, ...] = ()

    def take(self, name: str, shape: tuple[int, ...], dtype: torch.dtype | None = None) -> torch.Tensor:
        return torch.zeros(shape, dtype=dtype or torch.bfloat16, device="jax")

    def has(self, name: str) -> bool:
        return name.startswith("lm_head")

    def finish(self) -> None:
        pass


class Model(NamedTuple):
    """The model on four devices of the host."""

    device: TpuDevice
    static: StaticModel
    state: DeviceState


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Model]:
    folder = tmp_path_factory.mktemp("llama")
    (folder / "config.json").write_text(json.dumps(CONFIG))
    device = TpuDevice(open_executor(DEVICES))
    # What is kept for later says less about itself.
    jax.config.update("jax_enable_compilation_cache", False)
    use = AttentionUse(specs=(), dtype="bfloat16", block_size=BLOCK_SIZE)
    kernels = TpuBackend().kernels_for(device, AttentionChoice(PALLAS, "", use))
    with torch.inference_mode():
        spec = ShardSpec(model_dir=folder, dtype="bfloat16", world_size=DEVICES)
        holder = DeviceModel(spec, Capabilities(dtypes=("bfloat16",)), device, kernels)
        options = LoadOptions(
            load_format="auto",
            dtype=torch.bfloat16,
            device=device.torch_device,
            kernels=kernels,
            attention_kernels=holder.attention_kernels,
            progress=lambda done, total: None,
            source=Zeros(),
        )
        loaded, rules = holder.model.load(options), RuleSet(())
        blocks, columns = CACHE_TOKENS // BLOCK_SIZE, TOTAL_TOKENS // BLOCK_SIZE
        caches, place = holder.make_caches([blocks], BLOCK_SIZE), device.torch_device
        state = make_state(SLOTS, TOTAL_TOKENS, columns, 0, caches, rules=rules, states=(), device=place)
        static = StaticModel(
            decoder=loaded.model,
            kernels=kernels,
            attention_kernels=holder.attention_kernels,
            attention=holder.model.attention,
            ropes=holder.model.ropes,
            rotary_tables=holder.make_rotary_tables(TOTAL_TOKENS),
            scratch_blocks=[blocks],
            slots=SlotTable(rules, SLOTS, VOCAB, torch.tensor([2], device=place)),
            block_size=BLOCK_SIZE,
            vocab_size=VOCAB,
            top_n=16,
        )
        yield Model(device, static, state)


def compiled(model: Model, work: Any, inputs: tuple[torch.Tensor, ...], topology: str) -> Any:
    """The work as a program for the first devices of a machine."""
    devices = topologies.get_topology_desc(topology_name=topology, platform="tpu").devices[:DEVICES]
    mesh = Mesh(numpy.array(devices), (AXIS,), axis_types=(AxisType.Auto,))
    with torch.inference_mode():
        on_device = tuple(map(model.device.upload, inputs))
        own = {RAGGED_ATTENTION: partial(attend, mesh=mesh)}
        program = Program(work, own, model.state, on_device)
    return program.lower(mesh).compile()


def divided_bytes() -> int:
    """What a device has of the weights and the cache, the caches' scratch blocks and the norms left out."""
    layer = HIDDEN * (HEADS + 2 * KV_HEADS) * HEAD_DIM + HEADS * HEAD_DIM * HIDDEN + 3 * HIDDEN * INNER
    cache = CACHE_TOKENS * 2 * KV_HEADS * HEAD_DIM
    return 2 * (VOCAB * HIDDEN + LAYERS * (layer + cache) // DEVICES)


@pytest.mark.parametrize("topology", list(CARDS))
@pytest.mark.parametrize("step", list(STEPS))
def test_a_forward(model: Model, topology: str, step: str) -> None:
    rows, q_len = STEPS[step]
    tables = torch.zeros((rows, TOTAL_TOKENS // BLOCK_SIZE), dtype=torch.int32)
    inputs = (torch.ones((3, rows), dtype=torch.int64), tables)
    program = compiled(model, Forward(model.static, q_len), inputs, topology)
    text, memory = program.as_text(), program.memory_analysis()
    assert len(re.findall(r"= .* all-reduce(?:-start)?\(", text)) >= 2, "attention and MLP are summed"
    assert text.count('custom_call_target="tpu_custom_call"') == LAYERS
    # Weights and caches are divided, and no step holds a second cache.
    arguments, cache_bytes = memory.argument_size_in_bytes, 2 * CACHE_TOKENS * 2 * KV_HEADS * HEAD_DIM // DEVICES
    assert arguments == pytest.approx(divided_bytes(), rel=0.05)
    assert memory.alias_size_in_bytes >= LAYERS * cache_bytes
    assert memory.temp_size_in_bytes < cache_bytes * LAYERS
    more_layers = (ALL_LAYERS - LAYERS) * (divided_bytes() - 2 * VOCAB * HIDDEN) // LAYERS
    more_vocabulary = 2 * (WHOLE_VOCAB - VOCAB) * HIDDEN
    total = arguments + memory.temp_size_in_bytes + more_layers + more_vocabulary
    print(f"{topology} {step}: {total / 2**30:.1f} GiB, of which {memory.temp_size_in_bytes >> 20} MiB are temporary")
    assert total < 0.9 * CARDS[topology] * 2**30


@pytest.mark.parametrize("tier", list(Tier))
def test_sampling(model: Model, tier: Tier) -> None:
    words = math.ceil(VOCAB / 32)
    inputs = (
        torch.zeros((8, HIDDEN), dtype=torch.bfloat16),
        torch.zeros((2, 8), dtype=torch.int64),
        torch.zeros((8, words), dtype=torch.int32),
    )
    program = compiled(model, Sample(model.static, tier), inputs, "v5e:2x2")
    assert program.memory_analysis().temp_size_in_bytes < 1 << 30
