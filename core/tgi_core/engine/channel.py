"""The engine's end of the ZeroMQ connection to the API processes."""

from __future__ import annotations

import zmq

from tgi_core.engine.frames import Command, EngineMessage, decode_command, encode

HIGH_WATER_MARK = 4096
"""Frames that may wait for one API process before it counts as stuck."""


class EngineChannel:
    """A ROUTER socket: every API process is one peer, named by its ZeroMQ identity."""

    def __init__(self, address: str) -> None:
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.ROUTER)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.setsockopt(zmq.SNDHWM, HIGH_WATER_MARK)
        self._socket.setsockopt(zmq.RCVHWM, 0)
        # A peer that is gone or stuck must be told apart from one that is served.
        self._socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        self._socket.bind(address)
        self._poller = zmq.Poller()
        self._poller.register(self._socket, zmq.POLLIN)

    def receive(self, timeout_ms: int) -> list[tuple[bytes, Command]]:
        """All commands that have arrived; waits up to ``timeout_ms`` for the first one."""
        commands: list[tuple[bytes, Command]] = []
        if timeout_ms and not self._poller.poll(timeout_ms):
            return commands
        while True:
            try:
                worker, frame = self._socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return commands
            commands.append((worker, decode_command(frame)))

    def send(self, worker: bytes, message: EngineMessage) -> bool:
        """Send without ever blocking; false when the peer is gone or does not read."""
        try:
            self._socket.send_multipart((worker, encode(message)), zmq.NOBLOCK)
        except (zmq.Again, zmq.ZMQError):
            return False
        return True

    def close(self) -> None:
        """Close the socket and its context."""
        self._socket.close()
        self._context.term()
