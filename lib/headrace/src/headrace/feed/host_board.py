"""Status of each process of a job, for the others to read: who waits, who reads, who is gone.

Each process keeps one small JSON entry in the key-value store of JAX's coordination service, which
``jax.distributed.initialize`` starts in process 0. A thread renews the entry every :data:`BEAT_S`
seconds, whatever the trainer does, so an entry that no longer changes means that its process is
dead or frozen. A process reads entries only after it has waited for a second.

Price: one request of about 300 bytes per process and second. A waiting process reads all entries
about once a second with up to 64 processes, and less often with more (every 16 s with 1,024), so
that requests to the store stay within some megabytes a second.
"""

from __future__ import annotations

import atexit
import ctypes
import gc
import json
import os
import socket
import sys
import sysconfig
import threading
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from queue import Empty, SimpleQueue
from types import FrameType
from typing import Any

from headrace.errors import redact
from headrace.feed.host_ledgers import jax_service

BEAT_S = 1.0
_LAST_GATES = 16
_FAREWELL_S = 10.0
_SOON_S = 1.0
_ANSWER_S = 3.0
_VERDICT_S = 3.0
_FOLDER = "headrace/hosts/"
_VERDICT = "headrace/verdict/"
_LONGEST_TEXT = 500
_NOT_THE_USERS = tuple(
    {sysconfig.get_path(name) + os.sep for name in ("stdlib", "platstdlib", "purelib", "platlib")}
)
_OWN_FOLDER = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_frames_lock = threading.Lock()


@dataclass
class GateEntry:
    """Status of one iteration in one process.

    Attributes:
        crossing: The meeting that it has reached: -1 and 0 are those at the start, 1 is that of its
            first batch.
        waits: Whether it has its batch and waits for the others.
        doing: What it is doing, in words.
        error: Why this process will not continue; None: it will.
        culprit: The process that caused this error.
        left: Whether the iteration has ended here.
        dead: Whether the culprit is dead.
    """

    crossing: int = -2
    waits: bool = False
    doing: str = ""
    error: str | None = None
    culprit: int = -1
    left: bool = False
    dead: bool = False


@dataclass
class HostEntry:
    """Status of one process.

    Attributes:
        name: Name of its host.
        pid: Process ID on that host; 0: unknown.
        beat: How often it has renewed its entry.
        address: Address of its machine.
        port: Where the others connect to it to notice its end; 0: nowhere yet.
        ended: Whether its program has ended.
        gates: Its iterations, by the name that they have on all hosts.
        silent_s: Seconds since it last renewed its entry, as far as this process has looked.
    """

    name: str
    pid: int
    beat: int
    address: str = ""
    port: int = 0
    ended: bool = False
    gates: dict[str, GateEntry] = field(default_factory=dict[str, GateEntry])
    silent_s: float = 0.0


@dataclass(frozen=True)
class Verdict:
    """What all processes of the job are told of a death.

    Attributes:
        process: The process that is dead.
        problem: Which host it is, and how it is known, in words.
    """

    process: int
    problem: str


class HostBoard:
    """This process's entry, and access to the others' entries.

    Args:
        client: JAX's client of its coordination service.
        process: Index of this process.
        address: Address of this machine, for the others.
    """

    def __init__(self, client: Any, process: int, address: str = "127.0.0.1") -> None:
        self.client = client
        self.process = process
        self.address = address
        self.has_dead = (
            False  # whether a process of the job is dead: JAX's shutdown would wait for it
        )
        self.answered_at = time.monotonic()  # when the store, in process 0, last answered
        self.ended = False
        self._beat = 0
        self._port = 0
        self._watch: threading.Thread | None = None
        self._wake_watch: Callable[[], None] = lambda: None
        self._verdict: Verdict | None = None
        self._judged = threading.Event()
        self._entries = list[tuple[str, str]]()
        self._gates: dict[str, Callable[[], GateEntry]] = {}
        self._iterations: dict[tuple[int, ...], int] = {}
        self._last_seen: dict[int, tuple[int, float]] = {}
        self._lock = threading.Lock()
        self._due: SimpleQueue[None] = SimpleQueue()  # a finaliser may put, from any thread
        self._threads: list[threading.Thread] = []
        self._thread = threading.Thread(target=self._renew, name="headrace-host-board", daemon=True)
        atexit.register(self._end)  # before JAX's own, which was registered first
        self._thread.start()

    def add_gate(self, processes: tuple[int, ...], entry: Callable[[], GateEntry]) -> str:
        """Names the next iteration of these processes; the name is the same on all of them.

        Args:
            processes: Processes of the iteration's mesh.
            entry: Returns its status; called from another thread.
        """
        with self._lock:
            number = self._iterations.get(processes, 0)
            self._iterations[processes] = number + 1
            every = processes[-1] - processes[0] + 1 == len(processes)
            members = f"{processes[0]}-{processes[-1]}" if every else ",".join(map(str, processes))
            name = f"{members}/{number}"
            self._gates[name] = entry
            while len(self._gates) > _LAST_GATES:
                oldest = next((old for old in self._gates if self._gates[old]().left), None)
                if oldest is None:
                    break
                del self._gates[oldest]
        return name

    def add_watch(self, port: int, watch: threading.Thread, wake: Callable[[], None]) -> None:
        """Tells the others where to connect to notice the end of this process, and starts the
        thread that watches them.
        """
        self._port = port
        self._watch = watch
        self._wake_watch = wake
        watch.start()
        self.renew_soon()

    def declare_dead(self, verdict: Verdict) -> None:
        """Tells all processes that one of them is dead. The first verdict of a job holds."""
        text = json.dumps(asdict(verdict))
        # Refused if there is one.
        self._ask(lambda: self.client.key_value_set(f"{_VERDICT}first", text))

    @property
    def verdict(self) -> Verdict | None:
        """The verdict of the job, if this process has read one."""
        return self._verdict

    def read_verdict(self) -> Verdict | None:
        """The verdict of the job; None: all live, as far as is known."""
        texts = self._ask(lambda: self.client.key_value_dir_get(_VERDICT))
        if texts and self._verdict is None:
            self.has_dead = True
            self._verdict = Verdict(**json.loads(texts[0][1]))
            self._judged.set()
        return self._verdict

    def await_verdict(self) -> Verdict | None:
        """The verdict of the job, for which a process waits some seconds before it reports an
        error: devices raise one because another process died, and before that is known.
        """
        if self._port:
            self._judged.wait(_VERDICT_S)
        return self._verdict

    def renew_soon(self) -> None:
        """Requests that the entry is written now, not at the next beat. Does not wait for it."""
        self._due.put(None)

    def renew(self) -> None:
        """Writes this process's entry; ignores a store that does not answer."""
        with self._lock:
            self._beat += 1
            gates = {name: vars(entry()) for name, entry in self._gates.items()}
            text = json.dumps(
                {
                    "name": socket.gethostname(),
                    "pid": os.getpid(),
                    "beat": self._beat,
                    "address": self.address,
                    "port": self._port,
                    "ended": self.ended,
                    "gates": gates,
                }
            )
            self._ask(
                lambda: self.client.key_value_set(
                    f"{_FOLDER}{self.process}", text, allow_overwrite=True
                )
            )

    def _ask(self, request: Callable[[], Any]) -> Any:
        """The store's answer, if it comes within some seconds; else None: process 0, which holds
        the store, may be frozen.
        """
        answer = SimpleQueue[Any]()

        def ask() -> None:
            reply = None
            with suppress(Exception):
                reply = request()
                self.answered_at = time.monotonic()
            answer.put(reply)

        try:
            threading.Thread(target=ask, name="headrace-host-store", daemon=True).start()
        except (
            RuntimeError
        ):  # Python 3.12 starts no thread during shutdown: ask here, unless the store is silent
            if time.monotonic() - self.answered_at > 3 * BEAT_S:
                return None
            ask()
        with suppress(Empty):
            return answer.get(timeout=_ANSWER_S)

    def read(self) -> dict[int, HostEntry]:
        """The entries of all processes that have one, by process; if the store does not answer,
        process 0 counts as silent.
        """
        asked_at = time.monotonic()
        self._entries = self._ask(lambda: self.client.key_value_dir_get(_FOLDER)) or self._entries
        now = time.monotonic()
        entries = dict[int, HostEntry]()
        unanswered_s = 0.0 if self.answered_at >= asked_at else now - self.answered_at
        for key, text in self._entries:
            values = json.loads(text)
            gates = {name: GateEntry(**gate) for name, gate in values.pop("gates").items()}
            process = int(key.rsplit("/", 1)[1])
            entry = HostEntry(**values, gates=gates)
            beat, since = self._last_seen.get(process, (-1, now))
            if beat != entry.beat:
                since = now
            self._last_seen[process] = entry.beat, since
            entry.silent_s = max(now - since - unanswered_s, 0)
            entries[process] = entry
        if unanswered_s:
            first = entries.get(0, HostEntry("which has JAX's coordination service", 0, -1))
            entries[0] = replace(first, silent_s=unanswered_s)
        return entries

    def add_thread(self, run: Callable[[], None]) -> None:
        """Starts a thread that calls JAX's client."""
        self._threads = [thread for thread in self._threads if thread.is_alive()]
        self._threads.append(threading.Thread(target=run, name="headrace-host-gate", daemon=True))
        self._threads[-1].start()

    def _renew(self) -> None:
        while not self.ended:
            self.renew()
            with suppress(Empty):
                self._due.get(timeout=BEAT_S)
                while True:
                    self._due.get_nowait()

    def close(self) -> None:
        """Ends the threads, as far as possible."""
        self.ended = True
        self._due.put(None)
        self._wake_watch()
        for thread in (self._thread, *self._threads, *([self._watch] if self._watch else [])):
            thread.join(_SOON_S)

    def _end(self) -> None:
        raised: BaseException | None = getattr(sys, "last_value", None)
        with self._lock:
            gates = {name: entry() for name, entry in self._gates.items()}
        silent = [
            gate
            for gate in gates.values()
            if gate.error is None and (raised is not None or not gate.left)
        ]
        verdict = self.await_verdict() if silent and raised is not None else self._verdict
        self.close()
        for entry in silent:
            if verdict is not None:
                entry.error = verdict.problem
                entry.culprit = verdict.process
                entry.dead = True
                continue
            entry.error = (
                f"its program ended{'' if raised is None else ': ' + describe_error(raised)}"
            )
            entry.culprit = self.process
        self._gates = {name: lambda entry=entry: entry for name, entry in gates.items()}
        self.renew()
        if self.has_dead or any(thread.is_alive() for thread in self._threads):
            self._let_others_leave()
            _abandon_jax_service()

    def _let_others_leave(self) -> None:
        """Process 0 holds the store, without which JAX aborts the others: it waits until they have
        their error, but not long.
        """
        until = time.monotonic() + _FAREWELL_S
        while self.process == 0 and time.monotonic() < until:
            with suppress(Exception):
                others = [
                    e
                    for process, e in self.read().items()
                    if process != 0 and e.silent_s < 3 * BEAT_S
                ]
                if all(any(gate.error for gate in entry.gates.values()) for entry in others):
                    break
            time.sleep(0.2)
        if self.process == 0:
            time.sleep(_SOON_S)  # they post their error before they end


def _abandon_jax_service() -> None:
    """Skips JAX's own shutdown, which waits minutes for all processes and then aborts with a stack
    dump.

    The service is removed from JAX's exit handler and kept alive until the process ends, since a
    thread that waits in it would wake after Python has shut down too far. Other exit handlers are
    not affected.
    """
    known_to_jax = jax_service()
    for name in ("preemption_sync_manager", "client", "service"):
        service = getattr(known_to_jax, name, None)
        if service is not None:
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(service))  # its destructor would wait, too
            setattr(known_to_jax, name, None)


def coordinator_address() -> str | None:
    """Address and port of JAX's coordination service."""
    return getattr(jax_service(), "coordinator_address", None)


def describe_error(error: BaseException) -> str:
    """Type and message of an error, on one line and without credentials."""
    text = redact(" ".join(f"{type(error).__name__}: {error}".split()))
    return text if len(text) <= _LONGEST_TEXT else text[: _LONGEST_TEXT - 3] + "..."


def user_line(thread: int) -> str | None:
    """A thread's place in the user's own code: file, line and function of the innermost frame
    outside libraries.
    """
    frame = _frame_of(thread)
    while frame is not None:
        path = os.path.abspath(frame.f_code.co_filename)
        library = path.startswith(
            (*_NOT_THE_USERS, _OWN_FOLDER)
        ) or frame.f_code.co_filename.startswith("<frozen")
        if not library:
            return f"{os.path.basename(path)}:{frame.f_lineno} in {frame.f_code.co_name}"
        frame = frame.f_back
    return None


def _frame_of(thread: int) -> FrameType | None:
    """The innermost frame of a thread, read while no garbage collection can begin.

    CPython 3.11 holds a lock while it gathers the frames. A collection that begins there and
    deletes a ``threading.local`` waits for this lock for ever, and the whole process with it
    (CPython issue 106883).
    """
    with _frames_lock:
        collects = gc.isenabled()
        gc.disable()
        try:
            return sys._current_frames().get(thread)  # pyright: ignore[reportPrivateUsage]
        finally:
            if collects:
                gc.enable()


def name_hosts(processes: Collection[int], entries: dict[int, HostEntry]) -> str:
    """Hosts by number and name, five at most.

    Example:
        >>> name_hosts([3], {3: HostEntry("node-7", 11, 1)}), name_hosts(range(9), {})
        ('host 3 (node-7)', 'hosts 0, 1, 2, 3, 4 and 4 more')
    """
    names = [f"{p} ({entries[p].name})" if p in entries else str(p) for p in sorted(processes)[:5]]
    more = f" and {len(processes) - 5} more" if len(processes) > 5 else ""
    return f"host{'s' if len(processes) > 1 else ''} {', '.join(names)}{more}"
