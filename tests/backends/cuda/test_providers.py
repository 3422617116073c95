"""Every attention provider that this machine has, against the reference and our own kernels, on a real GPU."""

from __future__ import annotations

import pytest
import torch

from tests.backends.cuda.libraries import find_provider
from tests.backends.triton.support import assert_close, attention_spec, make_step
from tgi_core.contract import AttentionChoice, AttentionSpec, AttentionUse
from tgi_core.reference import ReferenceKernels
from tgi_cuda.attention.choose import PROVIDERS
from tgi_cuda.backend import CudaBackend

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")

BATCHES = {
    "first chunks": [(7, 7), (300, 300), (128, 128), (1, 1)],
    "later chunks": [(7, 40), (1, 300), (20, 20), (33, 256), (200, 1000)],
    "behind decodes": [(1, 33), (1, 2), (5, 21), (1, 17), (90, 640)],
    "many short rows": [(2 + row % 5, 2 + row % 5 + row) for row in range(300)],
}
SPECS = {
    "one head a key head": attention_spec(4, 4, 128),
    "two": attention_spec(8, 4, 64),
    "four": attention_spec(16, 4, 128),
    "eight": attention_spec(16, 2, 128),
    "heads of 256": attention_spec(4, 2, 256),
    "window": attention_spec(8, 2, 128, window=150),
}


@pytest.mark.parametrize("block_size", [16, 64, 128, 256])
@pytest.mark.parametrize("spec", list(SPECS))
@pytest.mark.parametrize("name", [provider.name for provider in PROVIDERS])
def test_a_provider_equals_the_reference_and_our_own_kernels(name: str, spec: str, block_size: int) -> None:
    attention = SPECS[spec]
    use = AttentionUse(specs=(attention,), dtype="bfloat16", block_size=block_size)
    obstacle = find_provider(name).obstacle(torch.cuda.get_device_capability(0), use)
    if obstacle is not None:
        pytest.skip(obstacle.reason)
    check(name, attention, use)


def check(name: str, spec: AttentionSpec, use: AttentionUse) -> None:
    backend = CudaBackend()
    device = backend.open_device(0)
    own, provided = backend.kernels(device), backend.kernels_for(device, AttentionChoice(name, "", use))
    # Several times: what one step has left behind must not show in the next.
    for seed, lengths in enumerate([*BATCHES.values()] * 2):
        host = make_step(spec, lengths, block_size=use.block_size, dtype=torch.bfloat16, seed=seed)
        cuda = device.torch_device
        q_THD, cache_NP2KD = host.q_THD.to(cuda), host.cache_NP2KD.to(cuda)
        batch = host.batch._replace(
            q_starts_B=host.batch.q_starts_B.to(cuda),
            kv_lens_B=host.batch.kv_lens_B.to(cuda),
            block_tables_BM=host.batch.block_tables_BM.to(cuda),
        )
        actual = provided.attention(q_THD, cache_NP2KD, provided.prepare_attention(batch, spec), spec)
        assert_close(actual, own.attention(q_THD, cache_NP2KD, own.prepare_attention(batch, spec), spec))
        assert_close(actual, ReferenceKernels().attention(q_THD, cache_NP2KD, batch, spec))
