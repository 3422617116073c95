"""Starts jax for this process."""

from __future__ import annotations

import jax

from tgi_core.cache_dir import default_cache_dir
from tgi_core.errors import ExitCode, StartupError
from tgi_tpu.executor import JaxExecutor
from tgi_tpu.probe import runs_on_host


def open_executor(num_devices: int) -> JaxExecutor:
    """jax's first devices, and torchax's tensors on them.

    Raises:
        StartupError: jax does not find them.
    """
    # Seeds are 64 bits wide.
    jax.config.update("jax_enable_x64", True)
    # float32 is float32: by default a TPU multiplies it as bfloat16.
    jax.config.update("jax_default_matmul_precision", "highest")
    if jax.config.jax_compilation_cache_dir is None:
        jax.config.update("jax_compilation_cache_dir", str(default_cache_dir() / "jax"))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    platform = "cpu" if runs_on_host() else "tpu"
    try:
        devices = jax.local_devices(backend=platform)
    except RuntimeError as error:
        raise StartupError(
            f"jax finds no TPU: {error}.",
            "Check that no other process uses the TPU (only one can), and that libtpu fits it.",
            ExitCode.BACKEND,
        ) from error
    if len(devices) < num_devices:
        raise StartupError(
            f"The model is to be divided among {num_devices} devices, and jax finds {len(devices)}.",
            f"Use {len(devices)} or fewer.",
            ExitCode.BACKEND,
        )
    return JaxExecutor(devices[:num_devices])
