"""Notices that a process of the job is gone, and ends this one, whatever its main thread waits for.

A collective of the devices that waits for a dead process cannot be interrupted, and an error that
the devices raise names whoever was next to it. So a thread of each process holds a connection to
the next process of the board and one to process 0, over which nothing is ever sent. The kernel
closes the connections of a process that was killed, however busy everybody is, and keeps those of
one that is only slow: a process that compiles, saves, or holds the interpreter's lock is never
taken for dead here.

1. A connection closes. If it can be made again, nothing has happened.
2. If it is refused, the process is gone, unless its entry says that it ended. If the machine does
   not answer either, the process is gone once its entry has stood still for some seconds.
3. Whoever noticed writes so to the store, where the first word holds: those that die because of a
   death come later. All read that word within a second, log it, and give their program some seconds
   to end before they end it.

Process 0 has the store. When it dies, JAX aborts the others within some tenths of a second, so each
of them has a thread that only waits for that, logs it at once and ends the process.

Price: one request of some bytes for each process and second, the whole board once a second with up
to 16 processes and less often with more, and two connections.
"""

from __future__ import annotations

import errno
import logging
import os
import selectors
import socket
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from headrace.feed.host_board import BEAT_S, HostBoard, HostEntry, Verdict, name_hosts, user_line

_LOG = logging.getLogger(__name__)
_CONNECT_S = 3.0
_SILENT_S = 5.0
_FLUSH_S = 1.0
_STORE_STAYS_S = 2.0
"""Process 0, which has the store, ends so much later than the others, which JAX would abort."""
_ORDERLY_S = 0.05
"""An orderly end of the job, which closes the store as well, is known after this time."""
_PROCESSES_A_SECOND = 16
_BACKLOG = 128


class HostWatch:
    """The watch of this process over others. Its thread keeps no process alive.

    Args:
        board: The board of this process; from now on it tells the others where to connect.
        lost_after_s: A process that no connection reaches is dead after this silence. Seconds.
        end_after_s: This process ends so long after a death became known; None: it only logs it.
        is_up: Whether this process still takes part in the job.

    Raises:
        OSError: this machine does not let it listen.
    """

    def __init__(
        self,
        board: HostBoard,
        lost_after_s: float,
        end_after_s: float | None,
        is_up: Callable[[], bool],
    ) -> None:
        self._board = board
        self._lost_after_s = lost_after_s
        self._end_after_s = end_after_s
        self._is_up = is_up
        self._connections: dict[int, socket.socket] = {}
        self._met: set[int] = set()  # processes that a connection has reached
        self._entries: dict[int, HostEntry] = {}
        self._selector = selectors.DefaultSelector()
        self._sockets: set[socket.socket] = set()
        family = socket.AF_INET6 if ":" in board.address else socket.AF_INET
        self._listener = socket.create_server((board.address, 0), family=family, backlog=_BACKLOG)
        self._listener.setblocking(False)
        self._add(self._listener, self._accept)
        self._alarm, self._alarm_bell = socket.socketpair()
        self._add(self._alarm, lambda: None)

    def start(self) -> None:
        """Starts the thread and tells the others where to connect."""
        # a child would keep the connections open after the death of this process
        os.register_at_fork(after_in_child=self.close)
        watch = threading.Thread(target=self._run, name="headrace-host-watch", daemon=True)
        port = int(self._listener.getsockname()[1])
        self._board.add_watch(port, watch, lambda: self._alarm_bell.sendall(b"."))

    def close(self) -> None:
        """Closes all connections of this process; those of a process it was forked from stay."""
        for one in (*self._sockets, self._alarm_bell):
            one.close()
        self._selector.close()

    def _run(self) -> None:
        """Watches until the program ends. Connections stay open until the process ends, when the
        board says so to the others.
        """
        read_at = 0.0
        guard = threading.Thread(target=self._guard, name="headrace-host-guard", daemon=True)
        while self._is_in_job:
            verdict = self._board.read_verdict()
            if verdict is not None:
                self._obey(verdict)
                return
            if time.monotonic() >= read_at:
                self._entries = self._board.read()
                read_at = time.monotonic() + max(len(self._entries) / _PROCESSES_A_SECOND, BEAT_S)
            if guard.ident is None and self._has_door(0):
                guard.start()
            for process in self._wards() - self._connections.keys():
                self._find_out(process)
                read_at = 0.0
            for key, _ in self._selector.select(BEAT_S):
                key.data()

    @property
    def _is_in_job(self) -> bool:
        """Whether neither the job nor the program of this process comes to its end."""
        return self._is_up() and not self._board.ended

    def _has_door(self, process: int) -> bool:
        """Whether another process can be connected to."""
        entry = self._entries.get(process)
        is_other = process != self._board.process
        return is_other and entry is not None and entry.port > 0 and not entry.ended

    def _wards(self) -> set[int]:
        """The process that this one watches, besides process 0: the next one, in a ring."""
        own_process = self._board.process
        others = sorted(filter(self._has_door, self._entries))
        following = [process for process in others if process > own_process] or others
        return set(following[:1]) - {0}

    def _find_out(self, process: int) -> None:
        """Connects to a process, or else declares it dead if it is."""
        entry = self._entries[process]
        try:
            connection = socket.create_connection((entry.address, entry.port), timeout=_CONNECT_S)
        except ConnectionRefusedError:
            self._judge(process, is_refused=True)
        except OSError:
            self._judge(process, is_refused=False)
        else:
            _keep_alive(connection)
            self._met.add(process)
            self._connections[process] = connection
            self._add(connection, partial(self._lose, process))

    def _judge(self, process: int, *, is_refused: bool) -> None:
        """Declares a process dead that no connection reaches, if this is proof enough."""
        asked_at = time.monotonic()
        self._entries = self._board.read()
        entry = self._entries[process]
        # without an answer of the store, an entry may be older than an orderly end
        is_current = self._board.answered_at >= asked_at
        is_closed = is_refused and process in self._met
        patience_s = _SILENT_S if process in self._met else self._lost_after_s
        is_gone = is_closed or entry.silent_s > patience_s
        if is_current and is_gone and not entry.ended and self._is_up():
            self._board.declare_dead(self._verdict(process))

    def _guard(self) -> None:
        """Waits for the end of process 0, in a thread that does nothing else."""
        entry = self._entries[0]
        has_met = False
        is_gone = False
        while not is_gone and self._is_in_job:
            try:
                with socket.create_connection((entry.address, entry.port), _CONNECT_S) as life:
                    has_met = True
                    life.settimeout(None)
                    _keep_alive(life)
                    life.recv(1)
            except ConnectionResetError:
                continue
            except OSError as error:
                silent_s = time.monotonic() - self._board.answered_at
                is_refused = has_met and error.errno == errno.ECONNREFUSED
                is_gone = is_refused or silent_s > self._lost_after_s
                if not is_gone:
                    time.sleep(BEAT_S)
        self._end_without_store()

    def _verdict(self, process: int) -> Verdict:
        entry = self._entries[process]
        address = f"process {entry.pid} at {entry.address}"
        doing = [gate.doing for gate in entry.gates.values() if gate.doing and not gate.left]
        last = f"; at last it {doing[-1]}" if doing else ""
        named = name_hosts([process], self._entries)
        return Verdict(process, f"{named}, {address}, is gone: its connections are closed{last}")

    def _lose(self, process: int) -> None:
        """Finds out why a connection was closed."""
        self._remove(self._connections.pop(process))
        self._find_out(process)

    def _accept(self) -> None:
        """Takes the connection of a process that watches this one, until that one closes it."""
        with suppress(OSError):
            visitor, _ = self._listener.accept()
            _keep_alive(visitor)
            self._add(visitor, partial(self._remove, visitor))

    def _add(self, connection: socket.socket, react: Callable[[], None]) -> None:
        self._sockets.add(connection)
        self._selector.register(connection, selectors.EVENT_READ, react)

    def _remove(self, connection: socket.socket) -> None:
        self._selector.unregister(connection)
        self._sockets.discard(connection)
        connection.close()

    def _end_without_store(self) -> None:
        """Ends this process because process 0 is gone, before JAX aborts it."""
        is_orderly = self._entries[0].ended or not self._is_in_job
        if is_orderly or self._board.verdict is not None:
            return
        problem = self._verdict(0).problem
        _LOG.error("%s; JAX's coordination service is gone with it: this process ends", problem)
        time.sleep(_ORDERLY_S)
        if self._is_in_job and self._end_after_s is not None:
            _end_process()

    def _obey(self, verdict: Verdict) -> None:
        """Logs who is dead and ends this process if its program does not end by itself."""
        if self._end_after_s is None:
            _LOG.error("%s", verdict.problem)
            return
        _LOG.error(
            "%s; this process ends in %g s if its program has not ended by then. Restart the job"
            " from its last checkpoint",
            verdict.problem,
            self._end_after_s,
        )
        time.sleep(self._end_after_s + (_STORE_STAYS_S if self._board.process == 0 else 0))
        main = threading.main_thread().ident
        line = user_line(main) if main is not None else None
        where = f" Its program was at {line}." if line else ""
        _LOG.error("this process ends, because host %d is gone.%s", verdict.process, where)
        _end_process()


def _keep_alive(connection: socket.socket) -> None:
    """Has the kernel ask a silent machine for a sign of life: it is gone after 11 s without one."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if sys.platform == "linux":
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 5)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 2)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)


def _end_process() -> None:
    """Ends this process, whatever its threads wait for; what was printed is written before, if no
    thread holds the stream.
    """
    flush = threading.Thread(target=_flush, name="headrace-flush", daemon=True)
    flush.start()
    flush.join(_FLUSH_S)
    os._exit(1)


def _flush() -> None:
    with suppress(OSError, ValueError):
        sys.stdout.flush()
        sys.stderr.flush()
