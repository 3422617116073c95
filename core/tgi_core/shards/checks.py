"""What every shard refuses before it builds anything."""

from __future__ import annotations

from tgi_core.contract import Capabilities, ShardLimits, ShardSpec
from tgi_core.errors import ExitCode, StartupError


def check_dtype(spec: ShardSpec, capabilities: Capabilities) -> None:
    """Refuse a type that the device does not compute in.

    Raises:
        StartupError: it does not.
    """
    if spec.dtype not in capabilities.dtypes:
        raise StartupError(
            f"The device does not compute in {spec.dtype}.",
            f"Choose one of {', '.join(capabilities.dtypes)}.",
            ExitCode.BACKEND,
        )


def check_block_size(limits: ShardLimits, capabilities: Capabilities) -> None:
    """Refuse KV blocks that the device does not take.

    Raises:
        StartupError: it does not.
    """
    if limits.block_size not in capabilities.block_sizes:
        raise StartupError(
            f"The device does not take KV blocks of {limits.block_size} tokens.",
            f"Choose one of {', '.join(map(str, capabilities.block_sizes))}.",
            ExitCode.BACKEND,
        )
