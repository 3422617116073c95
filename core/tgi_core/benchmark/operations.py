"""The operations of a step of a model, each on random buffers of the model's shapes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from tgi_core.benchmark.figures import Kind
from tgi_core.benchmark.timing import Launch
from tgi_core.contract import AttentionBatch, HeadNorms, Kernels, SampleInputs
from tgi_core.contract.experts import ExpertWeights, Routed
from tgi_core.models.decoder import attention_specs
from tgi_core.models.rotary import rotary_table
from tgi_core.models.spec import ArchitectureSpec, Block, ExpertsSpec, Norm, QKNorm
from tgi_core.sampling.params import Tier


class Operation(NamedTuple):
    """One operation with its least cost.

    Attributes:
        name, kind, launches, moved_bytes, flops: as in ``KernelFigure``.
        captures: whether it may be recorded.
        make: fresh buffers; returns what launches the operation on them.
    """

    name: str
    kind: Kind
    launches: int
    moved_bytes: int
    flops: int
    captures: bool
    make: Callable[[], Launch]


class StepOperations:
    """The operations of one model on one device.

    Args:
        spec: the model.
        kernels: every operation but attention.
        attention_kernels: for each window of ``spec.windows`` the kernels that attend.
        device: where the buffers lie.
        dtype: of weights and activations.
        block_size: tokens in a KV block.
    """

    def __init__(
        self,
        spec: ArchitectureSpec,
        kernels: Kernels,
        attention_kernels: tuple[Kernels, ...],
        *,
        device: torch.device,
        dtype: torch.dtype,
        block_size: int,
    ) -> None:
        self._spec = spec
        self._kernels = kernels
        self._attention_kernels = attention_kernels
        self._attention_specs = attention_specs(spec)
        self._device = device
        self._dtype = dtype
        self._block_size = block_size
        self._generator = torch.Generator(device).manual_seed(0)

    def decode(self, rows: int, context: int) -> Iterator[Operation]:
        """A step of ``rows`` decodes that each see ``context`` tokens."""
        yield from self._layers(rows)
        for index in range(len(self._attention_specs)):
            yield self._attention([1] * rows, [context] * rows, rows, index)
        spec = self._spec
        yield self._linear("head", rows, spec.hidden_size, spec.vocab_size, bias=False, launches=1)
        yield self._sample("sample, greedy", rows, Tier.GREEDY, launches=1)
        yield self._sample("sample, top-k and top-p", rows, Tier.SAMPLED, launches=0)

    def prefill(self, tokens: int) -> Iterator[Operation]:
        """A step that computes one prompt of ``tokens`` tokens, without head and choice of its one new token."""
        yield from self._layers(tokens)
        for index in range(len(self._attention_specs)):
            yield self._attention([tokens], [tokens], 0, index)

    def _layers(self, tokens: int) -> Iterator[Operation]:
        """What every layer does to each of ``tokens`` tokens, attention left out."""
        spec = self._spec
        hidden, layers = spec.hidden_size, len(spec.layers)
        q_size, kv_size = spec.num_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim
        yield from self._norms(tokens)
        yield self._linear("qkv", tokens, hidden, q_size + 2 * kv_size, bias=spec.qkv_bias, launches=layers)
        yield self._rope_write_kv(tokens, launches=layers)
        yield self._linear("o", tokens, q_size, hidden, bias=spec.o_bias, launches=layers)
        dense = sum(not layer.has_experts for layer in spec.layers)
        if dense:
            yield from self._dense_mlp(tokens, launches=dense)
        if spec.experts is not None:
            yield from self._expert_mlp(tokens, spec.experts, launches=layers - dense)

    def _dense_mlp(self, tokens: int, *, launches: int) -> Iterator[Operation]:
        spec = self._spec
        hidden, inner, bias = spec.hidden_size, spec.intermediate_size, spec.mlp_bias
        if spec.gated:
            yield self._gated_linear(tokens, launches=launches)
        else:
            yield self._linear("up", tokens, hidden, inner, bias=bias, launches=launches)
            yield self._activation(tokens, launches=launches)
        yield self._linear("down", tokens, inner, hidden, bias=bias, launches=launches)

    def _expert_mlp(self, tokens: int, experts: ExpertsSpec, *, launches: int) -> Iterator[Operation]:
        """Router and experts; an MLP that is shared is left out."""
        spec = self._spec
        hidden, inner, count = spec.hidden_size, experts.intermediate_size, experts.num_experts
        chosen = experts.routing.top_k

        def make() -> Launch:
            weights = ExpertWeights(
                self._kernels.pack_experts(self._random(count, 2 * inner, hidden, scale=hidden**-0.5)),
                self._random(count, 2 * inner) if experts.expert_bias else None,
                self._kernels.pack_experts(self._random(count, hidden, inner, scale=inner**-0.5)),
                self._random(count, hidden) if experts.expert_bias else None,
            )
            experts_TR = torch.arange(tokens * chosen, device=self._device).view(tokens, chosen) % count
            routed = Routed(torch.full((tokens, chosen), 1 / chosen, device=self._device), experts_TR)
            return partial(self._kernels.experts, self._random(tokens, hidden), weights, routed, spec.activation)

        yield self._linear("router", tokens, hidden, count, bias=experts.router_bias, launches=launches)
        used = min(count, tokens * chosen)
        items = 2 * tokens * hidden + used * (3 * inner * hidden + experts.expert_bias * (2 * inner + hidden))
        flops = 6 * tokens * chosen * inner * hidden
        operation = self._operation("experts", Kind.MATRIX, make, launches=launches, items=items, flops=flops)
        yield operation._replace(captures=self._kernels.captures_experts)

    def _norms(self, tokens: int) -> Iterator[Operation]:
        spec, layers = self._spec, len(self._spec.layers)
        alone = {Block.PARALLEL_TWO_NORMS: 1 + layers, Block.SANDWICH: 1 + 2 * layers, Block.OUT: 2 * layers}
        summed = {Block.PARALLEL: layers, Block.PARALLEL_TWO_NORMS: layers, Block.OUT: 1}
        if spec.norm is Norm.RMS:
            yield self._rms_norm(tokens, launches=alone.get(spec.block, 1))
            yield self._add_rms_norm(tokens, launches=summed.get(spec.block, 2 * layers))
        else:
            launches = alone.get(spec.block, 1) + summed.get(spec.block, 2 * layers)
            yield self._layer_norm(tokens, launches=launches)

    def _linear(self, name: str, tokens: int, inputs: int, outputs: int, *, bias: bool, launches: int) -> Operation:
        def make() -> Launch:
            x_TK = self._random(tokens, inputs)
            weight = self._kernels.pack_linear(self._random(outputs, inputs, scale=inputs**-0.5))
            return partial(self._kernels.linear, x_TK, weight, self._random(outputs) if bias else None)

        items = tokens * (inputs + outputs) + outputs * (inputs + bias)
        flops = 2 * tokens * inputs * outputs
        return self._operation(name, Kind.MATRIX, make, launches=launches, items=items, flops=flops)

    def _gated_linear(self, tokens: int, *, launches: int) -> Operation:
        spec = self._spec
        inputs, inner = spec.hidden_size, spec.intermediate_size

        def make() -> Launch:
            x_TK = self._random(tokens, inputs)
            weight = self._kernels.pack_linear(self._random(2 * inner, inputs, scale=inputs**-0.5))
            bias_N = self._random(2 * inner) if spec.mlp_bias else None
            return partial(self._kernels.gated_linear, x_TK, weight, bias_N, spec.activation)

        items = tokens * (inputs + inner) + 2 * inner * (inputs + spec.mlp_bias)
        flops = 4 * tokens * inputs * inner
        return self._operation("gate_up, gated", Kind.MATRIX, make, launches=launches, items=items, flops=flops)

    def _rms_norm(self, tokens: int, *, launches: int) -> Operation:
        spec = self._spec
        size = spec.hidden_size

        def make() -> Launch:
            x_TE, weight_E = self._random(tokens, size), self._random(size)
            return partial(self._kernels.rms_norm, x_TE, weight_E, spec.norm_eps, spec.norm_offset)

        return self._operation("rms_norm", Kind.OTHER, make, launches=launches, items=2 * tokens * size + size)

    def _add_rms_norm(self, tokens: int, *, launches: int) -> Operation:
        spec = self._spec
        size = spec.hidden_size

        def make() -> Launch:
            x_TE, residual_TE, weight_E = self._random(tokens, size), self._random(tokens, size), self._random(size)
            return partial(self._kernels.add_rms_norm, x_TE, residual_TE, weight_E, spec.norm_eps, spec.norm_offset)

        return self._operation("add_rms_norm", Kind.OTHER, make, launches=launches, items=4 * tokens * size + size)

    def _layer_norm(self, tokens: int, *, launches: int) -> Operation:
        spec = self._spec
        size, has_bias = spec.hidden_size, spec.norm is Norm.LAYER_BIAS

        def make() -> Launch:
            x_TE, weight_E, bias_E = self._random(tokens, size), self._random(size), self._random(size)
            return partial(self._kernels.layer_norm, x_TE, weight_E, bias_E if has_bias else None, spec.norm_eps)

        items = 2 * tokens * size + size * (1 + has_bias)
        return self._operation("layer_norm", Kind.OTHER, make, launches=launches, items=items)

    def _activation(self, tokens: int, *, launches: int) -> Operation:
        spec = self._spec

        def make() -> Launch:
            return partial(self._kernels.activation, self._random(tokens, spec.intermediate_size), spec.activation)

        items = 2 * tokens * spec.intermediate_size
        return self._operation("activation", Kind.OTHER, make, launches=launches, items=items)

    def _rope_write_kv(self, tokens: int, *, launches: int) -> Operation:
        spec, attention = self._spec, self._attention_specs[0]
        size = (spec.num_heads + 2 * spec.num_kv_heads) * spec.head_dim
        half = spec.ropes[0].rotary_dim // 2 if spec.ropes else 0

        def make() -> Launch:
            blocks = -(-tokens // self._block_size)
            cache_NP2KD = self._cache(blocks)
            slot_mapping_T = torch.randperm(blocks * self._block_size, generator=self._generator, device=self._device)
            rotary = None
            if spec.ropes:
                cos_sin_T2R = rotary_table(spec.ropes[0], tokens, self._device)
                rotary = (cos_sin_T2R[:, :half], cos_sin_T2R[:, half:])
            arguments = (
                self._random(tokens, size),
                attention,
                rotary,
                cache_NP2KD,
                slot_mapping_T[:tokens].contiguous(),
            )
            if spec.qk_norm is not QKNorm.HEAD:
                return partial(self._attention_kernels[0].rope_write_kv, *arguments)
            q_norm_D, k_norm_D = self._random(spec.head_dim), self._random(spec.head_dim)
            norms = HeadNorms(q_norm_D, k_norm_D, spec.norm_eps, spec.norm_offset)
            return partial(self._attention_kernels[0].norm_rope_write_kv, *arguments, norms=norms)

        name = "norm_rope_write_kv" if spec.qk_norm is QKNorm.HEAD else "rope_write_kv"
        operation = self._operation(name, Kind.OTHER, make, launches=launches, items=2 * tokens * size)
        # cos and sin are float32, an entry of the slot mapping is int64.
        return operation._replace(moved_bytes=operation.moved_bytes + tokens * (4 * 2 * half + 8))

    def _attention(self, q_lens: list[int], kv_lens: list[int], num_decodes: int, index: int) -> Operation:
        """Attention of the layers with window ``index``; rows' blocks lie anywhere in the cache."""
        spec = self._attention_specs[index]
        kernels, window = self._attention_kernels[index], self._spec.windows[index]
        tokens = sum(q_lens)

        def make() -> Launch:
            columns = -(-max(kv_lens) // self._block_size)
            blocks = len(kv_lens) * columns
            tables_BM = torch.randperm(blocks, generator=self._generator, device=self._device)
            batch = AttentionBatch(
                q_lens=q_lens,
                kv_lens=kv_lens,
                num_decodes=num_decodes,
                q_starts_B=torch.tensor([0, *q_lens]).cumsum(0).to(self._device),
                kv_lens_B=torch.tensor(kv_lens, dtype=torch.int32).to(self._device),
                block_tables_BM=tables_BM.int().view(len(kv_lens), columns),
                slot_mapping_T=torch.zeros(tokens, dtype=torch.int64, device=self._device),
                block_size=self._block_size,
                window=window,
            )
            q_THD = self._random(tokens, spec.num_heads, spec.head_dim)
            return partial(kernels.attention, q_THD, self._cache(blocks), kernels.prepare_attention(batch, spec), spec)

        pairs = sum(map(partial(visible_pairs, window=window), q_lens, kv_lens))
        seen = sum(map(partial(visible_keys, window=window), q_lens, kv_lens))
        items = 2 * tokens * spec.num_heads * spec.head_dim + 2 * seen * spec.num_kv_heads * spec.head_dim
        flops = 4 * pairs * spec.num_heads * spec.head_dim
        name = "attention" if window is None else f"attention, window {window}"
        launches = sum(layer.window == window for layer in self._spec.layers)
        operation = self._operation(name, Kind.ATTENTION, make, launches=launches, items=items, flops=flops)
        # Devices record steps of decodes, and the reference, where it stands in, reads lengths on the host.
        return operation._replace(captures=num_decodes == len(q_lens) and kernels is self._kernels)

    def _sample(self, name: str, rows: int, tier: Tier, *, launches: int) -> Operation:
        """The choice of tokens; beyond greedy with both cuts, which is what most clients ask for."""
        vocab_size, device = self._spec.vocab_size, self._device

        def make() -> Launch:
            inputs = SampleInputs(
                slots_B=torch.arange(rows, device=device),
                positions_B=torch.zeros(rows, dtype=torch.int32, device=device),
                temperature_B=torch.full((rows,), 0.8, device=device),
                top_p_B=torch.full((rows,), 0.95, device=device),
                top_k_B=torch.full((rows,), 50, dtype=torch.int32, device=device),
                do_sample_B=torch.full((rows,), tier is not Tier.GREEDY, device=device),
                seed_B=torch.arange(rows, device=device),
                choice_B=torch.zeros(rows, dtype=torch.int32, device=device),
                tier=tier,
            )
            return partial(self._kernels.sample, self._random(rows, vocab_size, scale=5), inputs)

        operation = self._operation(name, Kind.OTHER, make, launches=launches, items=rows * vocab_size)
        return operation._replace(captures=self._kernels.captures(tier))

    def _operation(
        self, name: str, kind: Kind, make: Callable[[], Launch], *, launches: int, items: int, flops: int = 0
    ) -> Operation:
        """``items`` counts the elements of the model's type that are read or written."""
        return Operation(name, kind, launches, items * self._dtype.itemsize, flops, True, make)

    def _cache(self, blocks: int) -> Tensor:
        spec = self._spec
        return self._random(blocks, self._block_size, 2, spec.num_kv_heads, spec.head_dim)

    def _random(self, *shape: int, scale: float = 1) -> Tensor:
        """Values between plus and minus ``scale``: zeros would cost a device less power, and so less time."""
        tensor = torch.empty(shape, dtype=self._dtype, device=self._device)
        return tensor.uniform_(-scale, scale, generator=self._generator)


def visible_keys(q_len: int, kv_len: int, window: int | None) -> int:
    """Keys that a row reads."""
    return kv_len if window is None else min(kv_len, window + q_len - 1)


def visible_pairs(q_len: int, kv_len: int, window: int | None) -> int:
    """Pairs of a query and a key that it sees."""
    positions = range(kv_len - q_len, kv_len)
    return sum(position + 1 if window is None else min(position + 1, window) for position in positions)
