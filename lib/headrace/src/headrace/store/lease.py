"""A lease: one builder at a time on one output, and a killed builder does not block others for
long.

``<root>/lease.json`` names its owner (host, process, a random id) and counts its heartbeats. While
the lease is held, other processes are refused, with the name of the owner. Once the owner is gone,
the lease can be taken over: at once if it was a process of this machine that no longer runs,
otherwise after ``expiry_s`` without a renewal. A container may have the host name of another one,
where the owner lives: its process number says nothing here, only its heartbeats do.

Step by step; the comments below have the same numbers:

1. **Read** the file. None, or one that is no lease: go to 5.
2. **Is its owner gone?** A process of this machine that no longer runs is: go to 5 without waiting.
3. **Was it renewed lately**, by the times in the file? Refuse, and name the owner. One of this host
   name is watched in any case: it may be this container before it was started anew.
4. **Watch** a lease that seems old for half its expiry, by this machine's own clock. A heartbeat
   comes every quarter, so whoever lives is seen: refuse. Clocks of two machines need not agree; the
   times in the file only decide whether to look this far. A terminal shows the seconds left.
5. **Swap** the file for one's own, if it still is what was read in step 1. Otherwise somebody was
   faster: step 1 again, to say who.
6. **Settle.** Where a swap is no real one (some object stores), look again a second later.
7. **Beat**: a thread swaps the record for a newer one, a quarter of the expiry after the last. A
   swap that fails has been answered too late or has lost: read the file, its owner tells which.
8. **Give up** when no heartbeat got through for the whole expiry: another may be in step 5 now.
9. **Check** before what must not be written twice, and at the end. A lost lease is an error.
10. **Delete** the file at the end, if it is still one's own: the next one starts without waiting.

An owner whose clock is wrong keeps its lease as long as it runs (step 4). One that is suspended for
longer than ``expiry_s`` loses it, and gets an error from :meth:`Lease.check`, or at the end.

Invariant: of any number of contenders, one gets the lease. On a local disk, the file is changed
under a lock of the folder (``flock``: this also works between machines on one NFS server, but not
on file systems without locks); in an object store, by a conditional write. GCS guarantees the
condition; on S3, TensorStore reads the ETag and then writes, and some servers ignore the condition.
A contender therefore checks a second later whether the lease is still its own: two whose check and
write are further apart than that may both start, and the one that wrote first notices at its next
heartbeat. Price: that second, and one small write every ``expiry_s / 4``.

**Deleting** (:func:`remove_tree`) is for whoever can prove that it may: nothing but what lies below
an output that a lease is held for.

1. What is to be deleted is listed, by its exact keys. If there is nothing, nothing is asked.
2. A lease must say that the output is ours: one that this process holds for a folder above, or, in
   a worker, the file of the lease that the process which sent it holds. A lease that was lost
   proves nothing.
3. Each key is compared with the location before it is deleted
   (:func:`headrace.store.remote.delete_keys`).

Price: none in the process that holds the lease; in a worker one small read for each folder between
what is deleted and its output.
"""

from __future__ import annotations

import fcntl
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from queue import Empty, SimpleQueue
from typing import Annotated, Any, Protocol

import msgspec
import tensorstore as ts

from headrace.errors import CacheError, HeadraceError
from headrace.progress import countdown
from headrace.store import files, remote
from headrace.store.failures import reason
from headrace.store.ledger import ATTEMPTS_FOLDER, LEDGER_NAME, TOKENIZER_NAME, Ledger, read_ledger
from headrace.store.ledger_table import TABLE_NAME
from headrace.store.location import Location

LEASE_NAME = "lease.json"
EXPIRY_S = 60.0
LOOK_S = 2.0
GONE_S = 10.0
NEVER_S = 600.0
"""Of :class:`LeaseWatch`."""
_BEATS = 4
_LONGEST_S = 24 * 3600.0
_AHEAD_S = 5.0
_SWAPS = 5
_ANSWER_S = 20.0  # longest wait for a store's answer, including its client's retries

# Threads that end a lease of this process which was handed over, by its output
_ending: dict[str, threading.Thread] = {}


@dataclass(frozen=True)
class LeaseRecord:
    """The content of the file; times are seconds since 1970 by the owner's clock."""

    owner: str
    host: str
    pid: Annotated[int, msgspec.Meta(ge=1, lt=1 << 31)]
    # Names the machine's run since it was started, and the container: process numbers mean nothing
    # in another.
    boot: str
    started: float
    renewed: float
    beats: int
    expiry_s: Annotated[float, msgspec.Meta(gt=0, le=_LONGEST_S)]

    @classmethod
    def from_bytes(cls, raw: bytes) -> LeaseRecord | None:
        """Parses a lease; None if it is invalid, so that nobody can hold it."""
        try:
            return msgspec.json.decode(raw, type=cls)
        except (msgspec.MsgspecError, ValueError, RecursionError):
            return None

    def to_bytes(self) -> bytes:
        return msgspec.json.encode(self)

    @property
    def who(self) -> str:
        return f"process {self.pid} on {self.host}"


class Lease:
    """A lease that is held. Use :func:`lease`."""

    def __init__(self, root: str, record: LeaseRecord, slot: Slot, field: str, cure: str) -> None:
        self.root = root
        self._field = field
        self._cure = cure
        self._record = record
        self._slot = slot
        self._lost = ""
        # What to do before the lease ends. Not an Event: a finalizer may put something there while
        # this thread is inside `get`.
        self._end: SimpleQueue[Callable[[], object]] = SimpleQueue()
        self._renewed = time.monotonic()
        self._thread = threading.Thread(target=self._renew, name="headrace-lease", daemon=True)
        self._thread.start()

    def check(self) -> None:
        """Raises CacheError if the lease was lost: another process may be writing."""
        # 9. From memory, so that it costs nothing after each part; the thread of step 7 notes it.
        if self._lost:
            problem = f"was taken over by another builder while this one stood still ({self._lost})"
            raise CacheError(problem, field=self._field, value=self.root, cure=self._cure)

    def confirm(self) -> None:
        """Like :meth:`check`, but asks the store: everything stored before the call was stored
        under the lease.
        """
        self.check()  # a lease that was lost says why; the look would name whoever has it now
        self._see_holder()
        self.check()

    def close(self) -> None:
        """Ends the lease; if it is still held, the file is deleted."""
        # 10. The thread ends first: a heartbeat after the file is deleted would be seen as lost.
        if self._thread is not threading.current_thread():
            self._end.put(lambda: None)
            self._thread.join()
        if not self._lost:
            with suppress(HeadraceError, OSError):  # a lease that cannot be deleted expires
                # Of another content: taken over, which `check` then says, or a heartbeat whose
                # answer was lost; that one expires.
                if not self._slot.swap(self._record.to_bytes(), None):
                    self._see_holder()

    def hand_over(self, close: Callable[[], object]) -> None:
        """Has the lease's own thread call ``close``, which is to call :meth:`close`, and waits for
        nothing.

        For finalizers: garbage is collected within any call, also one that holds a lock which a
        thread needs to end, such as ``threading.enumerate()``. Who waits there waits for ever.
        """
        _ending[self.root] = self._thread
        self._end.put(close)

    def _see_holder(self) -> LeaseRecord | None:
        """The stored content of this lease; None if it is lost."""
        raw = self._slot.read()
        holder = LeaseRecord.from_bytes(raw or b"")
        if holder is not None and holder.owner == self._record.owner:
            return holder
        self._lost = holder.who if holder is not None else "its file was deleted"
        return None

    def _renew(self) -> None:
        while True:
            try:
                close = self._end.get(timeout=self._record.expiry_s / _BEATS)
            except Empty:
                if not self._lost:
                    self._beat()
                continue
            close()
            return

    def _beat(self) -> None:
        # 7. The beats are counted so that each record differs from the last, also where the clock
        #    stands still or is set back: who watches compares bytes.
        beat = replace(self._record, renewed=_now(), beats=self._record.beats + 1)
        try:
            if not self._slot.swap(self._record.to_bytes(), beat.to_bytes()):
                # Either the file is ours, though not what we remember: a write whose answer was
                # lost. Or the lease is lost, which is noted there.
                beat = self._see_holder()
                if beat is None:
                    return
            self._record = beat
            self._renewed = time.monotonic()
        except (HeadraceError, OSError):  # a store that does not answer; it may come back
            # 8. By the clock that cannot be set. Others wait for this time too, and then watch for
            #    half of it: the owner usually gives up before one of them takes over.
            if time.monotonic() - self._renewed > self._record.expiry_s:
                self._lost = f"it could not be renewed for {self._record.expiry_s:.0f} s"


@contextmanager
def lease(
    root: str,
    *,
    expiry_s: float = EXPIRY_S,
    field: str = "output",
    cure: str = "Run the same command again when the other one is done: finished parts are kept.",
    meanwhile: str = "",
) -> Iterator[Lease]:
    """Holds the lease of an output for as long as the block runs.

    Args:
        root: Folder or URL; a missing folder is made.
        expiry_s: How long the lease outlives its last heartbeat.
        field: Name of the location in errors.
        cure: What to do when the lease was lost.
        meanwhile: What to do while another process holds it, beside waiting.

    Raises:
        CacheError: another process holds it, or it cannot be written; or, at the end of the block,
            it was lost.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder, lease(folder) as held:
        ...     held.check()
        ...     print(sorted(os.listdir(folder)))
        ['lease.json']
    """
    files.check_writable(root, field)
    ending = _ending.pop(root, None)
    if ending is not None:  # of an object of this process that was forgotten just now
        ending.join()
    slot = open_slot(root)
    now = _now()
    record = LeaseRecord(
        uuid.uuid4().hex, socket.gethostname(), os.getpid(), _boot(), now, now, 0, expiry_s
    )
    _take(root, slot, record, field, meanwhile)
    held_lease = Lease(root, record, slot, field, cure)
    try:
        with owning(root, held_lease.check):
            yield held_lease
    finally:
        held_lease.close()
    held_lease.check()  # 9. not in `finally`: an error of the block says more than a lost lease


def end_lease_of_gone(root: str) -> None:
    """Deletes the lease of a local folder whose owner was a process of this machine that no longer
    runs, for a command that has found nothing to do.
    """
    if files.is_local(root):
        slot = _LocalSlot(root)
        raw = slot.read()
        holder = LeaseRecord.from_bytes(raw or b"")
        if holder is not None and is_gone(holder):
            slot.swap(raw, None)


_held_leases: list[tuple[Location, Callable[[], None]]] = []


@contextmanager
def owning(root: str, check: Callable[[], None] = lambda: None) -> Iterator[None]:
    """While the block runs, this process may delete below a folder (:func:`remove_tree`).

    Args:
        root: Folder or URL.
        check: Raises if that is no longer so.
    """
    entry = Location.parse(files.absolute(root)), check
    _held_leases.append(entry)
    try:
        yield
    finally:
        _held_leases.remove(entry)


def remove_tree(url: str) -> None:
    """Deletes a folder with its content, or a file, if it exists.

    Raises:
        CacheError: no lease says that it may be deleted, or it cannot be.

    Example:
        >>> import pathlib, tempfile
        >>> with tempfile.TemporaryDirectory() as folder, lease(folder):
        ...     _ = pathlib.Path(folder, "a").write_text("a")
        ...     remove_tree(f"{folder}/a")
        ...     files.names_in(folder)
        ['lease.json']
    """
    is_local = files.is_local(url)
    if not (os.path.lexists(files.local_path(url)) if is_local else files.exists(url)):
        return
    _prove(url)
    try:
        if is_local:
            files.remove(files.local_path(url))
        else:
            remote.delete_keys(url)
    except OSError as error:
        problem = f"cannot be deleted ({error.strerror or error})"
        raise CacheError(problem, field="file", value=url, cure="Check its permissions.") from error


def _prove(url: str) -> None:
    location = Location.parse(files.absolute(url))
    for root, check in _held_leases:
        if location.is_below(root):
            check()
            return
    for folder in location.folders_above():
        record = LeaseRecord.from_bytes(files.read_bytes(str(folder / LEASE_NAME)) or b"")
        if record is not None and not is_gone(record):
            return
    cure = f"Delete it yourself, if nobody needs it, and run the same command again: {url}"
    problem = "is in the way, and no lease says that it may be deleted"
    raise CacheError(problem, field="file", value=url, cure=cure)


class LeaseWatch:
    """Watches whether any process holds a lease, reading it at most once every ``LOOK_S`` seconds.

    Args:
        root: Folder or URL.

    Attributes:
        holder: The last known holder; None: there has been none.
    """

    def __init__(self, root: str) -> None:
        self._slot = open_slot(root)
        self.holder: LeaseRecord | None = None
        self._raw: bytes | None = None
        self._is_gone = False
        self._held = self._looked = time.monotonic()

    def absence_s(self) -> float:
        """Seconds without a holder; 0 while a process of this machine holds it, or another sends
        heartbeats.
        """
        now = time.monotonic()
        if now - self._looked >= LOOK_S or self._raw is None:
            self._looked = now
            with suppress(HeadraceError, OSError):  # a store that does not answer says nothing
                self._look(now)
        return now - self._held

    @property
    def limit_s(self) -> float:
        """Seconds after which to stop waiting: few once the holder's process has ended or is known
        to be gone, more for one that was never there.
        """
        if self.holder is None:
            return NEVER_S
        return GONE_S if self._is_gone else self.holder.expiry_s

    def _look(self, now: float) -> None:
        raw = self._slot.read()
        record = LeaseRecord.from_bytes(raw or b"")
        if record is not None and not is_gone(record):
            if raw != self._raw or _is_local(record):
                self._held = now
            self.holder = record
            self._is_gone = False
        elif self.holder is not None:
            self._is_gone = True  # it has ended, or has given its lease back
        self._raw = raw or b""


def _take(
    root: str, slot: Slot, mine: LeaseRecord, field: str = "output", meanwhile: str = ""
) -> None:
    for _ in range(_SWAPS):
        # 1. Read. What is no lease can be held by nobody, and is replaced like none.
        raw = slot.read()
        if raw is not None and (holder := LeaseRecord.from_bytes(raw)) is not None:
            problem = _why_held(slot, raw, holder)
            if problem:
                cure = (
                    "That is this process: close the other one first."
                    if (holder.host, holder.boot, holder.pid) == (mine.host, mine.boot, mine.pid)
                    else "Wait until it is done. If it was killed, run this command again in"
                    f" {holder.expiry_s:.0f} s: its lease expires then."
                )
                raise CacheError(
                    f"is being written by {holder.who} ({problem})",
                    field=field,
                    value=root,
                    cure=f"{cure} {meanwhile}".rstrip(),
                )
        # 5. Compared with the bytes of step 1, however long step 4 took: any heartbeat since then,
        #    and any other contender, makes this fail.
        if slot.swap(raw, mine.to_bytes()):
            # 6. Long enough for a swap that was decided before ours to be written after it.
            time.sleep(slot.settle_s)
            if not slot.settle_s or slot.read() == mine.to_bytes():
                return
        # Somebody was faster: look again at who.
    # Nobody is ever there: TensorStore answers as if somebody were where there is no bucket.
    raise CacheError(
        "cannot be written (the store keeps no file there)",
        field=field,
        value=root,
        cure="Check the address: does the bucket exist?",
    )


def _why_held(slot: Slot, raw: bytes, holder: LeaseRecord) -> str:
    """Why a lease counts as held; empty if it is not held."""
    # 2. Is its owner gone?
    if is_gone(holder):
        return ""
    # 3. Was it renewed lately? A clock a little ahead of ours is as good as ours.
    age = _now() - holder.renewed
    is_elsewhere = holder.host != socket.gethostname() or _is_local(holder)
    if -_AHEAD_S <= age <= holder.expiry_s and is_elsewhere:
        return f"its lease was renewed {max(age, 0):.0f} s ago"
    # 4. It seems to be old, or to come from the future: a clock may be wrong. A heartbeat tells: in
    #    half an expiry there are two.
    deadline = time.monotonic() + holder.expiry_s / 2
    what = f"waiting for a heartbeat of {holder.who}, which may have been killed"
    with countdown(what) as show:
        while (seconds := deadline - time.monotonic()) > 0:
            show(seconds)
            time.sleep(min(holder.expiry_s / 20, 1.0))
            if slot.read() != raw:
                return "its lease is being renewed"
    return ""


def _is_local(holder: LeaseRecord) -> bool:
    """Whether the holder is a process of this machine since its last start."""
    return bool(_boot()) and (holder.host, holder.boot) == (socket.gethostname(), _boot())


def is_gone(holder: LeaseRecord) -> bool:
    """Whether the holder was a process of this machine that no longer runs."""
    # Of another boot, it may be a container of that name, where it lives.
    if not _is_local(holder):
        return False
    try:
        # Signal 0 only asks. A process of another user is there, too: "not permitted" is alive.
        os.kill(holder.pid, 0)
    except OSError as error:
        return isinstance(error, ProcessLookupError)
    return False


def _now() -> float:
    return time.time()


def _boot() -> str:
    """Identifies the current boot of this machine or container; empty if unknown."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as f:
            return f"{f.read().strip()}:{os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return ""


class Slot(Protocol):
    """The storage of a lease, or of another small file that several processes change.

    Attributes:
        settle_s: How long after a swap an earlier one may finish.
    """

    settle_s: float

    def read(self) -> bytes | None: ...

    def swap(self, expected: bytes | None, new: bytes | None) -> bool:
        """Replaces the content with ``new`` (None: deletes it) if it is ``expected``; returns
        whether it did.
        """
        ...


def open_slot(root: str, name: str = LEASE_NAME) -> Slot:
    """The file of a name in a folder, or below a URL."""
    return _LocalSlot(root, name) if files.is_local(root) else _RemoteSlot(root, name)


class _LocalSlot:
    """A file, changed under a lock of its folder."""

    settle_s = 0.0

    def __init__(self, root: str, name: str = LEASE_NAME) -> None:
        self._root = root
        self._file = files.join(root, name)

    def read(self) -> bytes | None:
        return files.read_bytes(self._file)

    def swap(self, expected: bytes | None, new: bytes | None) -> bool:
        with self._locked():
            if self.read() != expected:
                return False
            if new is None:
                files.remove(files.local_path(self._file))
            else:
                files.write_atomic(self._file, new)
            return True

    @contextmanager
    def _locked(self) -> Iterator[None]:
        path = files.local_path(self._root)
        try:
            files.make_folder(path)
            folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        except FileExistsError as error:
            cure = "Choose a folder that is new or empty."
            raise CacheError("is a file", field="output", value=self._root, cure=cure) from error
        except OSError as error:
            cure = "Choose a folder that is new or empty, in a place that can be written."
            raise CacheError(
                f"cannot be written ({error.strerror or error})",
                field="output",
                value=self._root,
                cure=cure,
            ) from error
        try:
            # A file system without locks: what is left is to look before writing.
            with suppress(OSError):
                fcntl.flock(folder, fcntl.LOCK_EX)
            yield
        finally:
            os.close(folder)  # which unlocks it


class _RemoteSlot:
    """An object, changed by conditional writes, as far as the server does what it is told."""

    settle_s = 1.0

    def __init__(self, root: str, name: str = LEASE_NAME) -> None:
        self._name = name
        self._url = files.join(root, name)
        self._store: Any = self._wait(
            ts.KvStore.open(files.kvstore_spec(root), context=ts.Context())
        )

    def read(self) -> bytes | None:
        return self._look()[0]

    def swap(self, expected: bytes | None, new: bytes | None) -> bool:
        current, generation = self._look()
        if current != expected:
            return False
        written = self._wait(self._store.write(self._name, new, if_equal=generation))
        # An empty generation says that the condition was not met; some servers ignore the
        # condition, hence the look afterwards.
        return bool(written.generation) and self.read() == new

    def _look(self) -> tuple[bytes | None, bytes]:
        """The stored content, and its generation."""
        result = self._wait(self._store.read(self._name, staleness_bound=time.time()))
        return bytes(result.value) if result.state == "value" else None, result.stamp.generation

    def _wait(self, future: Any) -> Any:
        try:
            return future.result(_ANSWER_S)
        except (ValueError, OSError) as error:
            # Of this wait, the error has no text.
            why = reason(error) if str(error) else f"no answer within {_ANSWER_S:.0f} s"
            raise CacheError(
                f"cannot be written ({why})",
                field="file",
                value=self._url,
                cure="Check the address (does the bucket exist?), the network and the credentials"
                " of this machine.",
            ) from error


@contextmanager
def sole_builder(output: str, *, but: str = "") -> Iterator[tuple[Lease, Ledger | None]]:
    """Within it, nobody else builds in a folder, and what a killed builder left there besides parts
    is gone. Yields the lease, and the ledger of what was begun there.

    Args:
        output: Folder or URL of the cache.
        but: Name of a folder that may be in it before there is a ledger.

    Raises:
        CacheError: the folder has something else, is being written, or cannot be written.
    """
    try:
        if read_ledger(output) is None:
            check_vacant(output, but=but)
        with lease(output) as held_lease:
            if files.is_local(output):  # of an atomic write; object stores have no such files
                for name in (LEDGER_NAME, TABLE_NAME, TOKENIZER_NAME):
                    remove_tree(files.join(output, f"{name}.tmp"))
            remove_tree(files.join(output, ATTEMPTS_FOLDER))  # of a part that was built twice
            yield held_lease, read_ledger(output)
    except OSError as error:  # sources raise SourceError, so this is the output
        raise files.not_written(output, error) from error


def check_vacant(output: str, *, but: str = "") -> None:
    """Raises CacheError if a folder without a ledger has other files, which must never be mixed
    with a cache or deleted.

    It may contain one folder named ``but``, and the rest of a builder that was killed while writing
    its ledger. A folder with a ledger passes: if the caller saw none, another builder has just
    started, and :func:`lease` reports it.
    """
    cure = "Choose a folder that is new or empty."
    if not files.exists(output):
        return
    if files.is_file(output):
        raise CacheError("is a file", field="output", value=output, cure=cure)
    names = set(files.names_in(output))
    others = sorted(names - {LEASE_NAME, f"{LEASE_NAME}.tmp", f"{LEDGER_NAME}.tmp", but})
    if others and LEDGER_NAME not in names:
        listed = ", ".join(others[:4]) + (", ..." if len(others) > 4 else "")
        raise CacheError(
            f"holds other things than a token cache ({listed})",
            field="output",
            value=output,
            cure=cure,
        )
