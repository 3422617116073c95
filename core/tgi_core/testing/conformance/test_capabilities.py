"""Level shard: what is declared holds, and what is not is refused with a reason."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from tgi_core.contract import AttentionChoice, GraphMode
from tgi_core.engine.attention import AUTO, list_attention
from tgi_core.errors import StartupError
from tgi_core.testing.conformance.cases import Scope
from tgi_core.testing.conformance.cases.attention import attention
from tgi_core.testing.conformance.comparison import ConformanceError, check_case
from tgi_core.testing.conformance.models import model_configs, write_checkpoint
from tgi_core.testing.conformance.models.sizes import WINDOW
from tgi_core.testing.conformance.oracle import Oracle, check_same
from tgi_core.testing.conformance.refusal import may_refuse
from tgi_core.testing.conformance.running import Ask, make_asks, start
from tgi_core.testing.conformance.subject import Subject
from tgi_core.testing.conformance.tolerance import TOLERANCES
from tgi_core.testing.levels import Level

pytestmark = pytest.mark.tgi_level(Level.SHARD)

_DTYPES = ("float32", "bfloat16", "float16", "float64")
_ODD_BLOCK_SIZE = 24
_ODD_HEAD_DIM = 48
_PROBED_BYTES = 64 << 20


@pytest.fixture
def folder(computing: Subject, tmp_path: Path) -> Path:
    """A tiny model with full attention."""
    write_checkpoint(tmp_path, model_configs(computing.head_dim)["llama"])
    return tmp_path


def check_model(subject: Subject, folder: Path, dtype: str, what: str, *, block_size: int | None = None) -> None:
    """Refuse a shard that is not the reference's."""
    with start(subject.backend, folder, dtype, block_size=block_size) as running:
        replies = running.serve(make_asks(running))
    Oracle(folder).check(replies, TOLERANCES[dtype].logprob, what)


@contextmanager
def refused(what: str) -> Iterator[None]:
    """Something that is not declared."""
    try:
        yield
    except StartupError as error:
        if not error.cause or not error.fix:
            raise ConformanceError(f"{what} is refused, and no cause or no fix is given.") from error
    else:
        raise ConformanceError(f"{what} is not declared, and not refused.")


def test_declared_dtypes(computing: Subject, folder: Path) -> None:
    """Each runs a model."""
    for dtype in computing.capabilities.dtypes:
        check_model(computing, folder, dtype, f"declared type {dtype}")


def test_other_dtypes_are_refused(computing: Subject, folder: Path) -> None:
    """Before a step runs."""
    dtype = next(dtype for dtype in _DTYPES if dtype not in computing.capabilities.dtypes)
    with refused(f"dtype {dtype}"), start(computing.backend, folder, dtype):
        pass


def test_declared_block_sizes(computing: Subject, folder: Path) -> None:
    """Each runs a model."""
    for block_size in computing.capabilities.block_sizes:
        check_model(
            computing, folder, computing.exact_dtype, f"declared block size {block_size}", block_size=block_size
        )


def test_other_block_sizes_are_refused(computing: Subject, folder: Path) -> None:
    """Before a step runs."""
    if _ODD_BLOCK_SIZE in computing.capabilities.block_sizes:
        pytest.skip("the kit's odd block size is declared")
    with (
        refused(f"a block size of {_ODD_BLOCK_SIZE}"),
        start(computing.backend, folder, computing.exact_dtype, block_size=_ODD_BLOCK_SIZE),
    ):
        pass


def test_declared_head_sizes(computing: Subject, tmp_path: Path) -> None:
    """Each runs a model; without a declaration some usual ones do."""
    for head_dim in computing.capabilities.head_dims or (64, 80):
        folder = tmp_path / str(head_dim)
        folder.mkdir()
        write_checkpoint(folder, model_configs(head_dim)["llama"])
        check_model(computing, folder, computing.exact_dtype, f"heads of {head_dim} features")


def test_other_head_sizes_are_refused(computing: Subject, tmp_path: Path) -> None:
    """Where there is a declaration."""
    head_dims = computing.capabilities.head_dims
    if not head_dims or _ODD_HEAD_DIM in head_dims:
        pytest.skip("any head size is declared, or the kit's odd one is")
    write_checkpoint(tmp_path, model_configs(_ODD_HEAD_DIM)["llama"])
    with (
        refused(f"a model with heads of {_ODD_HEAD_DIM} features"),
        start(computing.backend, tmp_path, computing.exact_dtype),
    ):
        pass


def test_windows(computing: Subject, tmp_path: Path) -> None:
    """With ``sliding_window`` the cache of a window is given back; without, blocks stay, and the window still holds."""
    write_checkpoint(tmp_path, model_configs(computing.head_dim)["mistral"])
    dtype = computing.exact_dtype
    with may_refuse(computing, "a model with a window"), start(computing.backend, tmp_path, dtype) as running:
        windows = [group.group.window for group in running.budget.groups]
        declared = computing.capabilities.sliding_window
        if windows != [WINDOW if declared else None]:
            raise ConformanceError(
                f"sliding_window is {declared}, and a model with a window of {WINDOW} has groups of windows {windows}."
            )
        # Long enough to leave the window, and a block with it, behind.
        new_tokens = min(running.budget.block_size + 8, running.budget.max_total_tokens - 40)
        replies = running.serve([Ask(list(range(3, 43)), new_tokens)])
    Oracle(tmp_path).check(replies, TOLERANCES[dtype].logprob, f"a window of {WINDOW}")


@torch.inference_mode()
def test_every_attention(computing: Subject, folder: Path) -> None:
    """Each declared implementation runs or says what stands in its way; others are refused."""
    backend, dtype = computing.backend, computing.exact_dtype
    names, block_size = computing.capabilities.attention, computing.capabilities.block_sizes[0]
    use, options = list_attention(backend, folder, dtype, block_size)
    if sorted(option.name for option in options) != sorted(names):
        raise ConformanceError(f"attention is {names}, attention_options() knows {[one.name for one in options]}.")
    if not any(option.automatic and not option.obstacle for option in options):
        raise ConformanceError("No attention can be taken by `--attention auto` for a plain model.")
    for option in options:
        if not option.obstacle and computing.has_kernels:
            kernels = backend.kernels_for(computing.device, AttentionChoice(option.name, "", use))
            for case in attention(Scope(computing.capabilities, quick=True)):
                if case.spec is not None and kernels.supports("attention", case.spec):
                    check_case(case, kernels, computing.torch_device, dtype)
    with refused("an attention of an unknown name"), start(backend, folder, dtype, attention="no-such-attention"):
        pass
    assert AUTO not in names, "`auto` is no implementation"


def test_graphs(computing: Subject) -> None:
    """What is captured runs again on what its tensors then hold; where no graphs are declared none are made."""
    if computing.capabilities.graph is GraphMode.NONE or not computing.has_kernels:
        pytest.skip("no graphs are declared")
    device = computing.device
    source = torch.zeros(1000, device=device.torch_device)
    target = torch.zeros_like(source)

    def work() -> None:
        torch.add(source, source, out=target)

    graph = device.capture(work)
    for value in (1.0, 2.0, 5.0):
        source.fill_(value)
        target.zero_()
        graph.replay()
        device.synchronize()
        if not bool((target == 2 * value).all()):
            raise ConformanceError(
                f"A captured graph gives {target[0].item()} for {value} + {value}: it does not run on the tensors "
                "that it was recorded with."
            )


@pytest.mark.parametrize("index", range(3))
def test_batch_invariant_dtypes(computing: Subject, tmp_path: Path, index: int) -> None:
    """In these types a reply has the same bits alone, among others, and cut into chunks."""
    dtypes = computing.capabilities.batch_invariant_dtypes
    if index >= len(dtypes):
        pytest.skip("no such type is declared")
    write_checkpoint(tmp_path, model_configs(computing.head_dim)["gemma3_text"])
    with start(computing.backend, tmp_path, dtypes[index]) as running:
        asks = make_asks(running)
        alone = [running.serve([ask])[0] for ask in asks]
        what = f"{dtypes[index]} is declared batch-invariant"
        check_same(running.serve(asks), alone, 0, f"{what}, together and alone")
        check_same(running.serve(asks, step_tokens=13), alone, 0, f"{what}, in chunks and whole")


def test_memory_of_the_device(computing: Subject) -> None:
    """Free memory lies within the total, and a peak, where one is kept, holds at least what is allocated."""
    if not computing.has_kernels:
        pytest.skip("a device of whole models holds no tensors of ours")
    device = computing.device
    memory = device.memory()
    if not 0 < memory.free_bytes <= memory.total_bytes:
        raise ConformanceError(f"{memory.free_bytes} of {memory.total_bytes} bytes of device memory are free.")
    tensor = torch.ones(_PROBED_BYTES, dtype=torch.uint8, device=device.torch_device)
    device.synchronize()
    device.record_event().synchronize()
    peak_bytes = device.memory().peak_bytes
    if 0 < peak_bytes < tensor.nbytes:
        raise ConformanceError(f"{tensor.nbytes} bytes are allocated, and the peak of the device is {peak_bytes}.")
