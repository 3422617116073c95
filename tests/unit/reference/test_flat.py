"""Attention of decodes over one list of blocks gives what the reference gives row by row."""

from __future__ import annotations

import pytest
import torch
from msgspec.structs import replace

from tgi_core.contract import AttentionSpec
from tgi_core.reference.padded import PaddedKernels
from tgi_core.testing.conformance.cases import Bench
from tgi_core.testing.conformance.cases.attention_steps import Rows, attend_flat, attention_spec, make_step
from tgi_core.testing.conformance.cases.case import OracleKernels
from tgi_core.testing.stand_ins.static_shapes import StaticShapesOnly

BLOCK = 8
ROWS: dict[str, Rows] = {
    "one token": [(1, 1)],
    "one block, full": [(1, BLOCK)],
    "around a block's border": [(1, BLOCK - 1), (1, BLOCK), (1, BLOCK + 1), (1, 2 * BLOCK + 1)],
    "very different lengths": [(1, 20 * BLOCK), (1, 1), (1, 9 * BLOCK + 3), (1, 2)],
}
PLAIN = attention_spec(4, 2, 16)
SPECS: dict[str, AttentionSpec] = {
    "plain": PLAIN,
    "one key head": replace(PLAIN, num_kv_heads=1),
    "a window": replace(PLAIN, window=BLOCK + 2),
    "a window of one token": replace(PLAIN, window=1),
    "chunks": replace(PLAIN, chunk=BLOCK + 3, window=BLOCK + 3),
    "a soft cap and sinks": replace(PLAIN, soft_cap=2.0, sinks=True),
    "alibi": replace(PLAIN, alibi_slopes=(0.5, 0.25, 0.1, 0.0), window=2 * BLOCK),
    "a bias on distance": replace(PLAIN, distances=6),
    "latent values": replace(PLAIN, num_kv_heads=1, latent_values=10),
}


@pytest.mark.parametrize("spec", list(SPECS))
@pytest.mark.parametrize("rows", list(ROWS))
@torch.inference_mode()
def test_equals_the_reference(rows: str, spec: str) -> None:
    """Beside rows and blocks that pad the step."""
    expected = _attend(OracleKernels(), rows, spec)
    found = _attend(PaddedKernels(), rows, spec)
    for name, tensor in expected.items():
        torch.testing.assert_close(found[name], tensor, rtol=1e-5, atol=1e-5)


@torch.inference_mode()
def test_large_scores_do_not_overflow() -> None:
    """Each row is weighed against its own largest score, which differs by hundreds between rows."""
    step = make_step(Bench(torch.device("cpu"), torch.float32), PLAIN, ROWS["very different lengths"], BLOCK)
    step.q_THD.mul_(torch.tensor([1e3, 1e-3, -2e3, 0.0])[:, None, None])
    bench = Bench(torch.device("cpu"), torch.float32)
    expected, found = (attend_flat(kernels, bench, step)["result"] for kernels in (OracleKernels(), PaddedKernels()))
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


@torch.inference_mode()
def test_no_shape_depends_on_a_value() -> None:
    step = make_step(Bench(torch.device("cpu"), torch.float32), PLAIN, ROWS["around a block's border"], BLOCK)
    kernels = WatchedKernels()
    attend_flat(kernels, Bench(torch.device("cpu"), torch.float32), step)
    assert kernels.calls == 1


class WatchedKernels(PaddedKernels):
    """Attends where no operation may ask for values."""

    calls = 0

    def attention(self, *args: object, **kwargs: object) -> torch.Tensor:
        self.calls += 1
        with StaticShapesOnly():
            return super().attention(*args, **kwargs)


def _attend(kernels: PaddedKernels | OracleKernels, rows: str, spec: str) -> dict[str, torch.Tensor]:
    bench = Bench(torch.device("cpu"), torch.float32)
    return dict(attend_flat(kernels, bench, make_step(bench, SPECS[spec], ROWS[rows], BLOCK)))
