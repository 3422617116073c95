from __future__ import annotations

import socket

import pytest

from tgi_api.cli.listener import allow_successor, bind_port
from tgi_core.errors import ExitCode, StartupError


def test_a_bound_port_refuses_clients_until_it_listens() -> None:
    with bind_port("127.0.0.1", 0) as listener:
        address = listener.getsockname()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(address, timeout=5)
        listener.listen()
        socket.create_connection(address, timeout=5).close()


@pytest.mark.parametrize("listens", [False, True])
def test_a_taken_port_is_refused_whether_it_listens_or_not(listens: bool) -> None:
    with bind_port("127.0.0.1", 0) as listener:
        port = listener.getsockname()[1]
        if listens:
            listener.listen()
            allow_successor(listener)
        with pytest.raises(StartupError, match=f"Port {port} of 127.0.0.1 is already in use") as refusal:
            bind_port("127.0.0.1", port)
    assert refusal.value.exit_code is ExitCode.PORT
    assert "--port" in refusal.value.fix


def test_connections_left_behind_do_not_keep_the_next_server_from_the_port() -> None:
    with bind_port("127.0.0.1", 0) as listener:
        address = listener.getsockname()
        allow_successor(listener)
        listener.listen()
        with socket.create_connection(address, timeout=5) as client:
            # The side that closes first keeps the connection for a while.
            listener.accept()[0].close()
            assert client.recv(1) == b""
    bind_port("127.0.0.1", address[1]).close()


def test_an_address_of_another_machine_is_refused() -> None:
    with pytest.raises(StartupError, match=r"no address 192\.0\.2\.1") as refusal:
        bind_port("192.0.2.1", 0)
    assert "--hostname" in refusal.value.fix
