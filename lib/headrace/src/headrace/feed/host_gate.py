"""Hosts wait for each other on the host, before a batch is delivered, rather than inside a
collective of the devices.

A device that waits in a collective for a late host cannot name that host and cannot be interrupted,
and after some time its runtime gives up with an error of its own. So each host that has its next
batch first meets the others. They use connections of their own (:mod:`headrace.feed.host_links`),
for which they exchange invitations through JAX's coordination service. If a host is late, the
others name it and what it is doing; if it has failed, it tells them why; if it is dead, they name
it and end. Hosts that cannot connect meet at a barrier of that service, at many times the price.

Price: about 20 us of CPU per batch and host, and the round trip of a message
(scripts/bench/bench_hosts.py). Off if the mesh is within one process.

Limits: if a host is late after it got its batch, the devices wait for it until the other hosts ask
for their next batch. Process 0 runs the coordination service: when it dies, JAX ends all other
processes within a second.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from queue import Empty, SimpleQueue

from headrace.errors import ConfigError, HostError, check_at_least, check_whole
from headrace.feed.host_board import (
    GateEntry,
    HostBoard,
    HostEntry,
    Verdict,
    coordinator_address,
    describe_error,
    name_hosts,
    user_line,
)
from headrace.feed.host_ledgers import coordination_client
from headrace.feed.host_links import HostLinks, NeighbourGoneError, own_address
from headrace.feed.host_watch import HostWatch
from headrace.metrics import LEAST_S, IterationStats, Wait

_LOG = logging.getLogger(__name__)
_SOON_S = 1.0
_LAST_WORD_S = 5.0
_ANSWER_MS = 10_000
_WEEK_MS = 7 * 24 * 3600 * 1000
_PROCESSES_A_SECOND = 64


@dataclass(frozen=True)
class HostBarrier:
    """How the hosts of a run wait for each other before each batch.

    Attributes:
        warn_after_s: A wait that lasts longer is logged (logger ``headrace.feed.host_gate``), with
            the late hosts and what they are doing, and again whenever it has doubled. Seconds.
        lost_after_s: A host that the others wait for is taken for dead if it has shown no sign of
            life for this long: all others raise HostError. If its process has ended, its closed
            connection reveals that after 5 s. Keep this below JAX's own
            ``heartbeat_timeout_seconds`` (100 s), after which JAX aborts them. A separate thread
            gives a sign of life every second. Seconds.
        end_after_s: Once a host is known to be dead, this process, whose main thread may wait for
            it in a collective for ever, is ended with status 1 after this time, if its program has
            not ended by then. Increase it if your program saves something when it gets HostError.
            None: the dead host is only logged. The setting of the first iteration holds. Seconds.
        every: Batches from one meeting to the next, the same on all hosts. Use more than 1 if a
            request to process 0 takes long compared to a step. A host may then be up to this many
            batches ahead of a late one.

    Raises:
        ConfigError: a value is not above 0, ``lost_after_s`` is below 6, or ``end_after_s`` is
            negative.

    Example:
        >>> HostBarrier(lost_after_s=60).warn_after_s
        5.0
    """

    warn_after_s: float = 5.0
    lost_after_s: float = 30.0
    end_after_s: float | None = 5.0
    every: int = 1

    def __post_init__(self) -> None:
        if not self.warn_after_s > 0:
            raise ConfigError(
                "must be above 0", field="host_barrier.warn_after_s", value=self.warn_after_s
            )
        check_at_least(
            "host_barrier.lost_after_s",
            self.lost_after_s,
            6,
            "Signs of life come every second; try 30.",
        )
        if self.end_after_s is not None:
            check_at_least("host_barrier.end_after_s", self.end_after_s, 0)
        check_whole("host_barrier.every", self.every)
        check_at_least("host_barrier.every", self.every)


class HostGate:
    """The gate of one iteration on this host.

    Args:
        board: The board of this process.
        processes: Processes of the loader's mesh, ascending.
        first_step: First step of the iteration.
        setting: When to warn, and when to give up.
        stats: Counters of the iteration, to which waits are added.
    """

    def __init__(
        self,
        board: HostBoard,
        processes: tuple[int, ...],
        first_step: int,
        setting: HostBarrier,
        stats: IterationStats,
    ) -> None:
        self._board = board
        self._processes = processes
        self._setting = setting
        self._stats = stats
        self._first_step = first_step
        self._entry = GateEntry()
        self._asked = False
        self._asked_at = time.monotonic()
        self._trainer = threading.get_ident()
        self._late: list[str] = []
        self._dead = False
        self.name = board.add_gate(processes, self._describe)
        self._links = HostLinks(processes, board.process)
        self._barrier = _Barrier(board, f"{self.name}/{setting.every}", processes, self._links)
        self._meeting: _Barrier | HostLinks = self._barrier

    def begin(self) -> None:
        """Waits until all hosts begin the iteration, and connects to them.

        Raises:
            HostError: as for :meth:`cross`.
        """
        invitation = f"headrace/links/{self.name}/"
        refusal = f"headrace/no links/{self.name}/"
        store = self._board.client
        try:
            store.key_value_set(
                invitation + str(self._board.process), self._links.listen(self._board.address)
            )
            self.cross()
            above = self._links.above
            self._links.connect(None if above is None else self._read(f"{invitation}{above}"))
        except OSError as error:
            _LOG.warning(
                "hosts meet at a barrier of JAX's, which is slower: no connection: %s",
                describe_error(error),
            )
            store.key_value_set(refusal + str(self._board.process), describe_error(error))
        self.cross()
        store.key_value_delete(invitation + str(self._board.process))
        if not store.key_value_dir_get(refusal):
            self._meeting = self._links
        self._board.renew_soon()

    def _read(self, key: str) -> str:
        """A value that another host has set already; a busy machine may take seconds to answer.

        Raises:
            TimeoutError: the coordination service did not answer.
        """
        try:
            return self._board.client.blocking_key_value_get(key, _ANSWER_MS)
        except Exception as error:  # JAX's errors have no common base
            raise TimeoutError(f"{key}: {error}") from error

    def ask(self) -> None:
        """Records that the trainer asks for its next batch."""
        self._asked, self._asked_at, self._trainer = True, time.monotonic(), threading.get_ident()

    def cross(self) -> None:
        """Declares this host ready and waits until all are.

        Raises:
            HostError: another host has failed, has ended its iteration, or is dead.
        """
        began = time.perf_counter()
        self._entry.crossing += 1
        if self._entry.crossing > 0 and self._entry.crossing % self._setting.every:
            self._asked, self._asked_at = False, time.monotonic()
            return
        self._entry.waits = True
        self._meeting.begin()
        try:
            self._wait(time.monotonic())
        except NeighbourGoneError as gone:
            raise self._explain(gone.process) from gone
        finally:
            self._entry.waits = self._asked = False
            self._asked_at = time.monotonic()
            self._record(began)

    def leave(self, error: BaseException | None = None) -> None:
        """Ends the iteration on this host and tells the others why. A waiting
        thread gets an error.
        """
        entry = self._entry
        if entry.left:
            return
        if isinstance(error, HostError):
            entry.error = error.problem
            entry.culprit = error.process
        elif error is not None and (verdict := self._board.await_verdict()) is not None:
            entry.error = verdict.problem
            entry.culprit = verdict.process
            self._dead = True
        elif error is not None:
            entry.error = describe_error(error)
            entry.culprit = self._board.process
        entry.dead = self._dead
        entry.left = True
        self._barrier.end()

    def _record(self, began: float) -> None:
        ended = time.perf_counter()
        self._stats.host_wait_s += ended - began
        if ended - began >= LEAST_S:
            self._stats.waits.add(Wait("hosts", began, ended, detail="; ".join(self._late)))
        self._stats.late_hosts += bool(self._late)
        self._late = []

    def _wait(self, since: float) -> None:
        """Waits for the others; after the first second, also watches their entries."""
        if self._meeting.meet(_SOON_S):
            return
        self._board.renew_soon()
        warn_after_s = self._setting.warn_after_s
        poll_s = max(len(self._processes) / _PROCESSES_A_SECOND, _SOON_S)
        while not self._meeting.meet(poll_s):
            if self._entry.left:
                raise _host_error("was closed while it waited for other hosts", self._board.process)
            entries = self._board.read()
            self._check(entries)
            waited_s = time.monotonic() - since
            if waited_s >= warn_after_s:
                warn_after_s = 2 * waited_s
                self._warn(entries, waited_s)

    def _explain(self, process: int) -> HostError:
        """Why a neighbour has closed its connection: the reason in its entry, or else that it is
        dead.
        """
        entries = self._board.read()
        until = time.monotonic() + _LAST_WORD_S
        beat = entries[process].beat if process in entries else -1
        while time.monotonic() < until:
            self._check(entries)
            if process in entries and entries[process].beat > beat + 1:
                return _host_error(
                    f"{name_hosts([process], entries)} has closed its connection", process
                )
            time.sleep(_SOON_S / 5)
            entries = self._board.read()
        doing = "and its connection is closed"
        return self._dead_host(process, entries, doing)

    def _dead_host(self, process: int, entries: dict[int, HostEntry], why: str) -> HostError:
        self._dead = self._board.has_dead = True
        entry = entries.get(process)
        gate = GateEntry() if entry is None else entry.gates.get(self.name, GateEntry())
        pid, silent_s = (
            ("unknown", 0.0) if entry is None else (entry.pid or "unknown", entry.silent_s)
        )
        silent = f"process {pid}, has shown no sign of life for {silent_s:.0f} s {why}".rstrip()
        last = f"; at last it {gate.doing}" if gate.doing else ""
        problem = f"{name_hosts([process], entries)}, {silent}{last}"
        self._board.declare_dead(Verdict(process, problem))  # some may wait in a collective
        return _host_error(problem, process)

    def _check(self, entries: dict[int, HostEntry]) -> None:
        """Raises HostError if one of the others will not come."""
        if (verdict := self._board.verdict) is not None:
            self._dead = True
            raise _host_error(verdict.problem, verdict.process)
        for process in self._processes:
            entry = entries.get(process)
            if entry is None or process == self._board.process:
                continue
            gate = entry.gates.get(self.name, GateEntry())
            named = name_hosts([process], entries)
            if gate.error is not None:
                self._dead = gate.dead
                self._board.has_dead |= gate.dead
                problem = f"{named} failed: {gate.error}" if gate.culprit == process else gate.error
                raise _host_error(problem, gate.culprit)
            if gate.left:
                raise _host_error(
                    f"{named} ended its iteration before step {self._first_step + gate.crossing}",
                    process,
                )
            if entry.silent_s > self._setting.lost_after_s:
                raise self._dead_host(process, entries, "")

    def _missing(self, entries: dict[int, HostEntry]) -> list[int]:
        gates = {
            process: entries[process].gates.get(self.name)
            for process in self._processes
            if process in entries
        }
        return [
            process
            for process in self._processes
            if (gate := gates.get(process)) is None
            or gate.crossing < self._entry.crossing
            or not gate.waits
        ]

    def _warn(self, entries: dict[int, HostEntry], waited_s: float) -> None:
        self._late = []
        missing = self._missing(entries)
        for process in missing[:5]:
            gate = entries[process].gates.get(self.name) if process in entries else None
            doing = "has not begun this iteration" if gate is None else gate.doing
            silent_s = entries[process].silent_s if process in entries else 0.0
            quiet = (
                f" (no sign of life for {silent_s:.0f} s)"
                if silent_s > self._setting.lost_after_s / 3
                else ""
            )
            self._late.append(f"{name_hosts([process], entries)} {doing}{quiet}")
        more = f"; and {len(missing) - 5} more hosts" if len(missing) > 5 else ""
        if missing:
            _LOG.warning(
                "step %d waits for %.0f s: %s%s", self._step, waited_s, "; ".join(self._late), more
            )

    @property
    def _step(self) -> int:
        return self._first_step + max(self._entry.crossing - 1, 0)

    def _describe(self) -> GateEntry:
        """The state of this host, for the others."""
        entry = self._entry
        step = self._first_step + max(self._entry.crossing, 0)
        waiting = self._stats.queue.explain_wait()
        if entry.waits:
            doing = f"waits for other hosts at step {self._step}"
        elif self._asked:
            doing = f"reads: {waiting}" if waiting is not None else f"reads step {step}"
        else:
            line = user_line(self._trainer)
            away_s = time.monotonic() - self._asked_at
            doing = f"has not asked for step {step} for {away_s:.0f} s" + (
                f", at {line}" if line else ""
            )
        return replace(entry, doing=doing)


def _host_error(problem: str, process: int) -> HostError:
    cure = "See that host's log, and restart the job from its last checkpoint."
    error = HostError(problem, field="hosts", cure=cure)
    error.process = process
    return error


class _Barrier:
    """A barrier of JAX's coordination service, called from a thread because the call cannot be
    interrupted.

    At the end the thread first tells the others why and only then closes the connections, so that
    they find the reason.
    """

    def __init__(
        self, board: HostBoard, name: str, processes: tuple[int, ...], links: HostLinks
    ) -> None:
        self._board = board
        self._processes = list(processes)
        self._links = links
        self._wait: Callable[[int, list[int]], None] = partial(
            board.client.wait_at_barrier, f"headrace/gate/{name}"
        )
        self._go: SimpleQueue[bool] = SimpleQueue()  # False: no more meetings
        self._failures: SimpleQueue[Exception | None] = SimpleQueue()
        board.add_thread(self._run)

    def begin(self) -> None:
        self._go.put(True)

    def meet(self, timeout_s: float) -> bool:
        try:
            failure = self._failures.get(timeout=timeout_s)
        except Empty:
            return False
        if failure is not None:  # most likely, another host has ended
            raise NeighbourGoneError(0) from failure
        return True

    def end(self) -> None:
        self._go.put(False)

    def _run(self) -> None:
        try:
            while self._go.get():
                self._wait(_WEEK_MS, self._processes)
                self._failures.put(None)
        except Exception as error:  # noqa: BLE001  # whatever JAX raises is passed to the trainer
            self._failures.put(error)
            while self._go.get():
                pass
        self._board.renew()  # the others find the reason there
        self._links.close()
        # Waiting hosts get an error at once: all must pass the same processes.
        with suppress(Exception):
            self._wait(1000, [self._board.process])


_board: HostBoard | None = None
"""One per process."""
_board_lock = threading.Lock()


def open_gate(
    processes: tuple[int, ...], first_step: int, setting: HostBarrier | None, stats: IterationStats
) -> HostGate | None:
    """The gate of a new iteration; None if it is off, the mesh is within one process, or JAX has no
    coordination service.

    Args:
        processes: Processes of the loader's mesh.
        first_step: First step of the iteration.
        setting: When to warn and to give up; None: off.
        stats: Counters of the iteration.
    """
    global _board
    import jax

    if setting is None or len(processes) < 2:
        return None
    client = coordination_client()
    if client is None:
        _LOG.info("hosts do not wait for each other: jax.distributed.initialize was not called")
        return None
    with _board_lock:
        if _board is None:
            _board = HostBoard(client, jax.process_index(), own_address(coordinator_address()))
            _watch(_board, setting)
    return HostGate(_board, processes, first_step, setting, stats)


def _watch(board: HostBoard, setting: HostBarrier) -> None:
    """Begins to watch the other processes, until jax.distributed is shut down."""

    def is_up() -> bool:
        return coordination_client() is board.client

    try:
        HostWatch(board, setting.lost_after_s, setting.end_after_s, is_up).start()
    except OSError as error:
        _LOG.warning(
            "this host cannot listen, so a dead host is noticed only between steps: %s",
            describe_error(error),
        )
