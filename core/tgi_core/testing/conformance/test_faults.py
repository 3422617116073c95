"""Level engine: what goes wrong on the device is told by a typed error, and takes no other shard with it."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import pytest
import torch

from tgi_core.errors import DeviceLostError, DeviceMemoryError, TgiServeError
from tgi_core.testing.conformance.comparison import ConformanceError
from tgi_core.testing.conformance.models import model_configs, write_checkpoint
from tgi_core.testing.conformance.running import make_asks, start
from tgi_core.testing.conformance.subject import Subject
from tgi_core.testing.conformance.wrapping import COMPILED_STEP, wrap_backend
from tgi_core.testing.levels import Level

pytestmark = pytest.mark.tgi_level(Level.ENGINE)

_FAULTS: dict[str, tuple[RuntimeError, type[TgiServeError]]] = {
    "a lost device": (torch.AcceleratorError("the device fell off the bus"), DeviceLostError),
    "a step without memory": (torch.OutOfMemoryError("no memory for 1 GiB"), DeviceMemoryError),
}


@pytest.mark.parametrize("fault", list(_FAULTS))
def test_a_fault_is_typed(with_kernels: Subject, tmp_path: Path, fault: str) -> None:
    """An operation or a compiled step raises what torch raises; ``collect`` makes an error of ours of it.

    ``close`` still works.
    """
    raised, expected = _FAULTS[fault]
    armed = False

    def around(name: str) -> AbstractContextManager[object]:
        return _Raising(raised) if armed and name in ("embedding", COMPILED_STEP) else nullcontext()

    write_checkpoint(tmp_path, model_configs(with_kernels.head_dim)["llama"])
    backend = wrap_backend(with_kernels.backend, around)
    with start(backend, tmp_path, with_kernels.exact_dtype) as running:
        asks = make_asks(running)
        armed = True
        try:
            running.serve(asks)
        except expected as error:
            if str(raised) not in str(error):
                raise ConformanceError(
                    f"The error of {fault} does not say what the device has said: {error}"
                ) from error
        except Exception as error:
            raise ConformanceError(
                f"{fault} ends in {type(error).__name__} and not in {expected.__name__}: {error}"
            ) from error
        else:
            raise ConformanceError(f"{fault} goes unnoticed.")
    # The next shard on the device works.
    armed = False
    with start(with_kernels.backend, tmp_path, with_kernels.exact_dtype) as running:
        running.serve(asks)


class _Raising:
    """Raises when it is entered."""

    def __init__(self, error: RuntimeError) -> None:
        self._error = error

    def __enter__(self) -> None:
        raise self._error

    def __exit__(self, *_: object) -> None:
        """Never entered, never left."""
