"""The operations of a step: their costs counted by hand, and each of them run."""

from __future__ import annotations

import pytest
import torch
from msgspec.structs import replace

from tgi_core.benchmark.figures import Ceilings, Kind, kernel_figure, step_figure
from tgi_core.benchmark.operations import Operation, StepOperations, visible_keys, visible_pairs
from tgi_core.contract.experts import RoutingSpec
from tgi_core.models.ropes import RopeSpec
from tgi_core.models.spec import ArchitectureSpec, Block, ExpertsSpec, LayerSpec, Norm, QKNorm
from tgi_core.reference import ReferenceKernels
from tgi_core.shards.binding import bind_attention

SPEC = ArchitectureSpec(
    vocab_size=50,
    hidden_size=32,
    intermediate_size=24,
    num_heads=4,
    num_kv_heads=2,
    head_dim=8,
    max_positions=64,
    layers=(LayerSpec(None, 0), LayerSpec(6, 0), LayerSpec(6, 0)),
    ropes=(RopeSpec(theta=10_000.0, rotary_dim=8),),
    norm_eps=1e-5,
    activation="silu",
    attention_scale=8**-0.5,
)
EXPERTS = ExpertsSpec(num_experts=3, intermediate_size=12, routing=RoutingSpec(top_k=2), expert_bias=True)
BLOCK_SIZE = 4


def make(spec: ArchitectureSpec = SPEC, dtype: torch.dtype = torch.bfloat16) -> StepOperations:
    kernels = ReferenceKernels()
    return StepOperations(
        spec, kernels, (kernels, kernels), device=torch.device("cpu"), dtype=dtype, block_size=BLOCK_SIZE
    )


def by_name(operations: StepOperations, rows: int, context: int) -> dict[str, Operation]:
    return {operation.name: operation for operation in operations.decode(rows, context)}


def test_the_cost_of_a_decode_step() -> None:
    found = by_name(make(), rows=3, context=10)
    costs = {name: (operation.moved_bytes, operation.flops) for name, operation in found.items()}
    assert costs == {
        "rms_norm": (2 * (2 * 3 * 32 + 32), 0),
        "add_rms_norm": (2 * (4 * 3 * 32 + 32), 0),
        "qkv": (2 * (3 * 32 + 3 * 64 + 64 * 32), 2 * 3 * 64 * 32),
        # Read and written once each; cos, sin and the place in the cache are wider than the model's type.
        "rope_write_kv": (2 * 2 * 3 * 64 + 3 * (8 * 4 + 8), 0),
        "o": (2 * (3 * 32 + 3 * 32 + 32 * 32), 2 * 3 * 32 * 32),
        "gate_up, gated": (2 * (3 * 32 + 3 * 24 + 48 * 32), 2 * 3 * 48 * 32),
        "down": (2 * (3 * 24 + 3 * 32 + 32 * 24), 2 * 3 * 32 * 24),
        "attention": (2 * (2 * 3 * 32 + 3 * 10 * 2 * 16), 3 * 10 * 4 * 32),
        "attention, window 6": (2 * (2 * 3 * 32 + 3 * 6 * 2 * 16), 3 * 6 * 4 * 32),
        "head": (2 * (3 * 32 + 3 * 50 + 50 * 32), 2 * 3 * 50 * 32),
        "sample, greedy": (2 * 3 * 50, 0),
        "sample, top-k and top-p": (2 * 3 * 50, 0),
    }


def test_how_often_a_step_runs_each_operation() -> None:
    launches = {name: operation.launches for name, operation in by_name(make(), 1, 1).items()}
    assert launches["rms_norm"] == 1
    assert launches["add_rms_norm"] == 2 * 3
    assert (launches["attention"], launches["attention, window 6"]) == (1, 2)
    assert (launches["head"], launches["sample, greedy"], launches["sample, top-k and top-p"]) == (1, 1, 0)
    assert by_name(make(replace(SPEC, block=Block.SANDWICH)), 1, 1)["rms_norm"].launches == 1 + 2 * 3


@pytest.mark.parametrize(
    ("changes", "launches"),
    [
        ({"block": Block.OUT}, {"rms_norm": 6, "add_rms_norm": 1}),
        ({"block": Block.PARALLEL}, {"rms_norm": 1, "add_rms_norm": 3}),
        ({"block": Block.PARALLEL_TWO_NORMS, "norm": Norm.LAYER_BIAS}, {"layer_norm": 1 + 3 + 3}),
        ({"gated": False, "activation": "relu", "ropes": ()}, {"up": 3, "activation": 3, "down": 3}),
        ({"layers": (LayerSpec(None, 0), LayerSpec(6, 0, True)), "experts": EXPERTS}, {"experts": 1, "down": 1}),
    ],
)
def test_other_kinds_of_layers(changes: dict[str, object], launches: dict[str, int]) -> None:
    found = by_name(make(replace(SPEC, **changes)), 2, 3)
    assert {name: found[name].launches for name in launches} == launches
    with torch.inference_mode():
        for operation in found.values():
            operation.make()()


def test_the_cost_of_experts() -> None:
    spec = replace(SPEC, layers=(LayerSpec(None, 0, True), LayerSpec(6, 0, True)), experts=EXPERTS)
    found = by_name(make(spec), 1, 3)
    assert "gate_up, gated" not in found
    # One token goes through two of the three experts.
    weights = 2 * (3 * 12 * 32 + 2 * 12 + 32)
    assert found["experts"].moved_bytes == 2 * (2 * 32 + weights)
    assert found["experts"].flops == 2 * 2 * 3 * 12 * 32


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_every_operation_runs(dtype: torch.dtype, biased: bool) -> None:
    spec = replace(SPEC, qk_norm=QKNorm.HEAD if biased else None, qkv_bias=biased, o_bias=biased, mlp_bias=biased)
    operations = make(spec, dtype)
    steps = [*operations.decode(3, 10), *operations.prefill(9)]
    assert len(steps) == 12 + 9
    with torch.inference_mode():
        for operation in steps:
            launch = operation.make()
            for _ in range(2):
                output = launch()
                first = output[0] if isinstance(output, tuple) else output
                assert isinstance(first, torch.Tensor)
                assert bool(first.isfinite().all()), operation.name


def test_a_prefill_counts_causal_pairs() -> None:
    found = {operation.name: operation for operation in make().prefill(9)}
    assert found["attention"].flops == 4 * 32 * (9 * 10 // 2)
    assert found["attention, window 6"].flops == 4 * 32 * sum(min(position + 1, 6) for position in range(9))


@pytest.mark.parametrize("window", [None, 1, 4, 100])
@pytest.mark.parametrize(("q_len", "kv_len"), [(1, 1), (1, 9), (5, 5), (3, 9)])
def test_what_queries_see(q_len: int, kv_len: int, window: int | None) -> None:
    pairs = [
        (query, key)
        for query in range(kv_len - q_len, kv_len)
        for key in range(kv_len)
        if key <= query and (window is None or key > query - window)
    ]
    assert visible_pairs(q_len, kv_len, window) == len(pairs)
    assert visible_keys(q_len, kv_len, window) == len({key for _, key in pairs})


def test_only_the_own_attention_of_decodes_may_be_recorded() -> None:
    kernels, other = ReferenceKernels(), ReferenceKernels()
    operations = StepOperations(
        SPEC, kernels, (kernels, other), device=torch.device("cpu"), dtype=torch.float32, block_size=BLOCK_SIZE
    )
    found = by_name(operations, 1, 4)
    assert (found["attention"].captures, found["attention, window 6"].captures) == (True, False)
    prefill = {operation.name: operation for operation in operations.prefill(4)}
    assert (prefill["attention"].captures, prefill["qkv"].captures) == (False, True)
    assert (found["sample, greedy"].captures, found["sample, top-k and top-p"].captures) == (True, False)


def test_the_ceiling_that_allows_less_binds() -> None:
    ceilings = Ceilings(copy_tb_per_s=2.0, matrix_tflop_per_s=100.0)

    def figure(moved_bytes: int, flops: int) -> tuple[str, float]:
        made = kernel_figure(
            operation="x",
            kind=Kind.MATRIX,
            launches=3,
            time_s=1e-3,
            moved_bytes=moved_bytes,
            flops=flops,
            ceilings=ceilings,
        )
        return made.ceiling, made.ceiling_share

    assert figure(10**9, 10**9) == ("copy", pytest.approx(0.5))
    assert figure(10**9, 8 * 10**10) == ("matrix product", pytest.approx(0.8))


def test_a_step_is_the_sum_of_its_operations_by_kind() -> None:
    ceilings = Ceilings(copy_tb_per_s=1.0, matrix_tflop_per_s=1.0)
    operations = [
        kernel_figure(
            operation="x", kind=kind, launches=launches, time_s=1e-3, moved_bytes=1, flops=0, ceilings=ceilings
        )
        for kind, launches in ((Kind.MATRIX, 4), (Kind.MATRIX, 1), (Kind.ATTENTION, 2), (Kind.OTHER, 0))
    ]
    step = step_figure("decode", 1, 1, operations)
    assert step.total_ms == pytest.approx(7)
    assert list(step.kinds_ms.values()) == pytest.approx([5, 2, 0])


def test_what_the_kernels_cannot_attend_is_the_references() -> None:
    class NoWindows(ReferenceKernels):
        def supports(self, operation: str, spec: object) -> bool:
            return getattr(spec, "window", None) is None

    kernels = NoWindows()
    from tgi_core.models.decoder import attention_specs

    bound = bind_attention(kernels, attention_specs(SPEC))
    assert [own is kernels for own in bound.kernels] == [True, False]
    assert len(bound.notes) == 1
    assert "a window of 6" in bound.notes[0]
