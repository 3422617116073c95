"""The server's socket, bound early: a taken port is told before weights are loaded."""

from __future__ import annotations

import errno
import socket

from tgi_core.errors import ExitCode, StartupError


def bind_port(hostname: str, port: int) -> socket.socket:
    """Bind without listening: until the server is ready clients are refused, as orchestrators expect.

    Args:
        hostname: an IPv4 or IPv6 address.
        port: 0 takes a free one.

    Raises:
        StartupError: the port is taken or may not be used, or the address is not this machine's.
    """
    listener = socket.socket(socket.AF_INET6 if ":" in hostname else socket.AF_INET, socket.SOCK_STREAM)
    try:
        # Connections that a former server left behind must not keep this one from the port. Taken back after binding,
        # or a second server that starts now could bind the port too, and would fail only when it listens.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((hostname, port))
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 0)
    except OSError as error:
        listener.close()
        raise _refusal(error, hostname, port) from None
    return listener


def allow_successor(listener: socket.socket) -> None:
    """Called about when it starts to listen, which by itself keeps a second server out.

    Connections inherit the option, and those that this server leaves behind must not keep the next from the port.
    """
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)


def _refusal(error: OSError, hostname: str, port: int) -> StartupError:
    if error.errno == errno.EADDRINUSE:
        cause = f"Port {port} of {hostname} is already in use."
        fix = "Stop the program that uses it, or choose another with --port (PORT)."
    elif error.errno in {errno.EACCES, errno.EPERM}:
        cause = f"This user may not open port {port}."
        fix = "Choose a port from 1024 on with --port (PORT)."
    elif error.errno == errno.EADDRNOTAVAIL:
        cause = f"This machine has no address {hostname}."
        fix = "Use --hostname 0.0.0.0 for every address, or 127.0.0.1 for local clients only."
    else:
        cause = f"Port {port} of {hostname} cannot be opened: {error.strerror}."
        fix = "Choose another with --port (PORT) or --hostname."
    return StartupError(cause, fix, ExitCode.PORT)
