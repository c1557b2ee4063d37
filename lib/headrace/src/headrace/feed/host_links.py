"""Connections between the hosts of one iteration, over which they meet: a tree of sockets, one byte
up and one byte down.

A host that is ready waits for those below it, tells the one above, waits for its answer, and passes
it on. A meeting at a barrier of JAX's coordination service would cost twenty times as much CPU, all
of it in process 0. A process that ends closes its connections, so its neighbours notice at once.

Price: 2 bytes per host and meeting, 10 us of CPU for each neighbour; a host has at most one
neighbour above and 16 below. Two levels of the tree reach 273 hosts, three 4,369.
"""

from __future__ import annotations

import secrets
import select
import socket
import time
from collections.abc import Sequence
from contextlib import suppress

ARITY = 16
_CONNECT_S = 10.0
_TOKEN_BYTES = 16


class NeighbourGoneError(ConnectionError):
    """A neighbour has closed its connection.

    Attributes:
        process: Index of the neighbour.
    """

    def __init__(self, process: int) -> None:
        super().__init__(f"process {process} has closed its connection")
        self.process = process


def family_of(processes: Sequence[int], process: int) -> tuple[int | None, list[int]]:
    """The process above this one in the tree, and those below it.

    Example:
        >>> family_of(range(40), 0), family_of(range(40), 2), family_of([3, 7], 7)
        ((None, [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16]),
         (0, [33, 34, 35, 36, 37, 38, 39]), (3, []))
    """
    rank = list(processes).index(process)
    above = None if rank == 0 else processes[(rank - 1) // ARITY]
    return above, list(processes[rank * ARITY + 1 : (rank + 1) * ARITY + 1])


class HostLinks:
    """This process's connections to its neighbours. First :meth:`listen`, then, when all have done
    so, :meth:`connect`.

    Args:
        processes: Processes of the iteration, ascending.
        process: This one.
    """

    def __init__(self, processes: Sequence[int], process: int) -> None:
        self._process = process
        (self.above, self.below) = family_of(processes, process)
        self._listener: socket.socket | None = None
        self._token = secrets.token_bytes(_TOKEN_BYTES)
        self._neighbours: dict[int, socket.socket] = {}
        self._by_file: dict[int, int] = {}
        self._poll = select.poll()
        self._waited_for: set[int] = set()
        self._asked_above = False

    def listen(self, address: str) -> str:
        """Accepts connections from below at this address of the machine; returns the invitation to
        connect.
        """
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        self._listener = socket.create_server((address, 0), family=family, backlog=ARITY)
        return f"{address} {self._listener.getsockname()[1]} {self._token.hex()}"

    def connect(self, invitation: str | None) -> None:
        """Connects to all neighbours.

        Args:
            invitation: Result of :meth:`listen` in the process above; None: there is none above.

        Raises:
            OSError: a neighbour cannot be reached, or did not connect.
        """
        until = time.monotonic() + _CONNECT_S
        if invitation is not None and self.above is not None:
            address, port, token = invitation.split()
            above = socket.create_connection((address, int(port)), timeout=_CONNECT_S)
            above.sendall(bytes.fromhex(token) + self._process.to_bytes(4, "big"))
            self._add(self.above, above)
        while self._neighbours.keys() < {
            *self.below,
            *([] if self.above is None else [self.above]),
        }:
            if self._listener is None or time.monotonic() > until:
                raise TimeoutError("a host did not connect")
            self._listener.settimeout(max(until - time.monotonic(), 0.01))
            visitor, _ = self._listener.accept()
            visitor.settimeout(1.0)
            greeting = b""
            with suppress(OSError):
                while len(greeting) < _TOKEN_BYTES + 4 and (
                    part := visitor.recv(_TOKEN_BYTES + 4 - len(greeting))
                ):
                    greeting += part
            process = int.from_bytes(greeting[_TOKEN_BYTES:], "big")
            if (
                secrets.compare_digest(greeting[:_TOKEN_BYTES], self._token)
                and process in self.below
            ):
                self._add(process, visitor)
            else:
                visitor.close()  # not one of ours

    def begin(self) -> None:
        """Declares this host ready for the next meeting."""
        self._waited_for = set(self.below)
        self._asked_above = False

    def meet(self, timeout_s: float) -> bool:
        """Whether all hosts are there within ``timeout_s`` seconds; to be called again until they
        are.

        Raises:
            NeighbourGoneError: a neighbour has ended.
        """
        until = time.monotonic() + timeout_s
        while True:
            if not self._waited_for:
                if self.above is None:
                    break
                if not self._asked_above:
                    self._asked_above = True
                    self._send(self.above)
            events = self._poll.poll(max(until - time.monotonic(), 0) * 1000)
            if not events:
                return False
            heard = [process for file, _ in events if self._hear(process := self._by_file[file])]
            self._waited_for -= set(heard)
            if self.above in heard:
                break
        for process in self.below:
            self._send(process)
        return True

    def close(self) -> None:
        """Ends all connections; the neighbours notice."""
        for connection in (self._listener, *self._neighbours.values()):
            if connection is not None:
                with suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)
                connection.close()

    def _add(self, process: int, connection: socket.socket) -> None:
        connection.settimeout(_CONNECT_S)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        self._neighbours[process] = connection
        self._by_file[connection.fileno()] = process
        self._poll.register(connection, select.POLLIN)

    def _hear(self, process: int) -> bool:
        try:
            if self._neighbours[process].recv(1):
                return True
        except OSError as error:
            raise NeighbourGoneError(process) from error
        raise NeighbourGoneError(process)

    def _send(self, process: int) -> None:
        try:
            self._neighbours[process].sendall(b".")
        except OSError as error:
            raise NeighbourGoneError(process) from error


def own_address(coordinator: str | None) -> str:
    """The address of this machine as seen on the way to another.

    Args:
        coordinator: ``host:port`` of the other machine; None: this machine only.

    Example:
        >>> own_address("127.0.0.1:8476")
        '127.0.0.1'
    """
    if coordinator is None:
        return "127.0.0.1"
    host, _, port = coordinator.rpartition(":")
    family, kind, protocol, _, address = socket.getaddrinfo(
        host.strip("[]"), int(port), type=socket.SOCK_DGRAM
    )[0]
    with socket.socket(family, kind, protocol) as probe:
        probe.connect(address)  # sends nothing
        return str(probe.getsockname()[0])
