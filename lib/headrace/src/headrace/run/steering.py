"""Changes of a run while it trains.

A change is asked for by :meth:`headrace.run.run.Run.amend`, or by ``headrace run amend`` of another
process, which leaves a request in the run's folder. It holds from a step on that no host has
planned yet (:mod:`headrace.feed.horizon`). A thread on each host sees to it:

1. The first host takes the request, makes the run as it would be and what its loaders would
   deliver, and holds its own plan at the step. If that cannot be, it refuses.
2. It proposes the change to the others, in the key-value store of JAX's coordination service. Each
   makes the same run, holds its plan there, and votes; one that has planned the step refuses.
3. If all agree, the first host writes the run's lock. Only then it tells the others, plans end at
   the step, and every iteration goes on with the changed run from there. Else, or if the first host
   ends its iteration before all have voted, all plan on as if nobody had asked.

Proposals are numbered. A host answers them in order, also those of which it hears late.

A host that is killed on the way changes nothing: the lock has the change, or it has not, and all
hosts of the next start read it.

Price: a look at one small file and, with several hosts, one request to the key-value store, every
half second; reads start anew at the step.
"""

from __future__ import annotations

import atexit
import hashlib
import logging
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, Protocol

import msgspec
from msgspec import structs

from headrace.config.component import ComponentConfig
from headrace.config.lm_data import LmDataConfig
from headrace.config.parsing import decode
from headrace.config.writing import given_fields
from headrace.errors import HeadraceError, PlanMismatchError, command_line, printable
from headrace.mix.stage_config import AmendmentConfig, with_amendment
from headrace.run.lock import RunLock
from headrace.store import files
from headrace.store.lease import lease, open_slot
from headrace.store.records import RecordKind

if TYPE_CHECKING:
    from headrace.data.async_dataset import AsyncDataset
    from headrace.feed.loader import DataLoader, Delivery

_LOG = logging.getLogger(__name__)
REQUEST_NAME = "request.json"
_EVERY_S = 0.5
_VOTES_S = 300.0
_LEAVING_S = 5.0
_LEFT_S = 5.0  # after its time, a request is withdrawn, unless who asked was killed


class Request(msgspec.Struct, frozen=True):
    """A change that is asked for.

    Attributes:
        amendment: Fields of an :class:`AmendmentConfig`.
        components: Fields of the components that are new.
        edited: Fields of the user's config, which from now on means this; None: the one that did
            so far.
    """

    amendment: dict[str, Any]
    components: dict[str, Any] = {}
    edited: dict[str, Any] | None = None

    @classmethod
    def of(
        cls,
        amendment: AmendmentConfig,
        components: Mapping[str, ComponentConfig],
        edited: LmDataConfig | None = None,
    ) -> Request:
        """The request for an amendment."""
        fields = {
            "amendment": asdict(amendment),
            "components": {name: given_fields(one) for name, one in components.items()},
            "edited": None if edited is None else given_fields(edited),
        }
        return msgspec.convert(msgspec.to_builtins(fields, str_keys=True), cls)

    @property
    def step(self) -> int:
        """The first step that it changes."""
        return self.amendment["step"]

    def applied(self, config: LmDataConfig) -> LmDataConfig:
        """The config of a run after it."""
        new = {name: decode(ComponentConfig, one) for name, one in self.components.items()}
        amendment = decode(AmendmentConfig, self.amendment)
        return replace(
            config,
            components={**config.components, **new},
            amendments=with_amendment(config.amendments, amendment),
        )


class _Proposal(msgspec.Struct, frozen=True):
    """A request that is put to all hosts.

    Attributes:
        request: The request.
        fingerprint: Fingerprint of the run that is to change.
        asked_at: Steps that the trainer had where the program asks, which all hosts may do; None:
            another process asks.
    """

    request: Request
    fingerprint: str
    asked_at: int | None


class Answer(msgspec.Struct, frozen=True):
    """What became of a request.

    Attributes:
        problem: Why it was refused; empty: the lock has it.
        field: Field that the refusal is about.
        value: Its value; None: it has none.
        cure: What to do.
        fingerprint: Of a vote: that of the run after the change, as this host makes it.
    """

    problem: str = ""
    field: str = ""
    value: str | int | float | None = None
    cure: str = ""
    fingerprint: str = ""

    @classmethod
    def refusing(cls, error: Exception) -> Answer:
        """The refusal that an error is."""
        if not isinstance(error, HeadraceError):
            return cls(f"failed: {type(error).__name__}: {error}", "amend")
        value = error.value
        if not isinstance(value, str | int | float | None):
            value = printable(str(value))
        return cls(error.problem, error.field or "amend", value, error.cure or "")

    def check(self) -> None:
        """Raises PlanMismatchError if the request was refused."""
        if self.problem:
            about: dict[str, Any] = {} if self.value is None else {"value": self.value}
            raise PlanMismatchError(self.problem, field=self.field, cure=self.cure or None, **about)


class _Mail(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The request in the folder of a run.

    Attributes:
        request: The change.
        until: Seconds since 1970, until which somebody waits for the answer.
        is_taken: Whether the job decides on it.
        answer: What it decided; None: nothing yet.
    """

    request: Request
    until: float
    is_taken: bool = False
    answer: Answer | None = None


_REQUEST = RecordKind("request to a run", 1, _Mail, indented=True)


class _Mailbox:
    """The file of a run for one request of another process at a time.

    Who asks puts a request there if there is none, and withdraws it in the end. The job takes it
    before it decides: a request that is withdrawn before changes nothing. Every change of the file
    is a swap, so nobody overwrites or removes what is another's. What a killed process left is of
    no account when its time is over, and soon removed by the job.
    """

    def __init__(self, folder: str) -> None:
        self._url = files.join(folder, REQUEST_NAME)
        self._slot = open_slot(folder, REQUEST_NAME)

    def look(self) -> tuple[bytes | None, _Mail | None]:
        """The bytes of the file, and what they say; None: nothing that can be read."""
        raw = self._slot.read()
        mail = None
        if raw is not None:
            with suppress(HeadraceError):
                mail = _REQUEST.decode(raw, self._url)
        return raw, mail

    def put(self, mail: _Mail) -> bool:
        """Puts a request there; False: another one waits."""
        raw, waiting = self.look()
        is_free = waiting is None or waiting.until < time.time()
        return is_free and self._slot.swap(raw, _REQUEST.encode(mail))

    def answer(self, decide: Callable[[Request], Answer]) -> None:
        """Answers the request there, if there is one; removes what a killed process has left."""
        raw, mail = self.look()
        if mail is not None and mail.until + _LEFT_S < time.time():
            self._slot.swap(raw, None)
            return
        if mail is None or mail.is_taken or mail.until < time.time():
            return
        in_work = structs.replace(mail, is_taken=True)
        if self._slot.swap(raw, _REQUEST.encode(in_work)):
            answered = structs.replace(in_work, answer=decide(mail.request))
            self._slot.swap(_REQUEST.encode(in_work), _REQUEST.encode(answered))

    def withdraw(self, mail: _Mail) -> _Mail:
        """Removes a request; returns what has become of it."""
        raw, now = self.look()
        while now is not None and (now.request, now.until) == (mail.request, mail.until):
            if self._slot.swap(raw, None):
                return now
            raw, now = self.look()
        return mail


def ask(folder: str, request: Request, wait_s: float) -> None:
    """Asks a run that another process trains for a change, and waits until its lock has it.

    Raises:
        PlanMismatchError: it is refused, or there is no answer in this time.
    """
    mailbox = _Mailbox(folder)
    mail = _Mail(request, time.time() + wait_s)
    while not mailbox.put(mail):
        if time.time() > mail.until:
            problem = "has a request of another process, which waits for its answer"
            cure = "Ask again when it has one."
            raise PlanMismatchError(problem, field="run", value=folder, cure=cure)
        time.sleep(_EVERY_S)
    try:
        while time.time() < mail.until:
            time.sleep(_EVERY_S)
            _, now = mailbox.look()
            if now is None or now.answer is not None:
                break
    finally:  # Ctrl-C, too: the next job would take it
        mail = mailbox.withdraw(mail)
    if mail.answer is not None:
        mail.answer.check()
        return
    problem = f"gave no answer in {wait_s:.0f} s"
    command = command_line("run amend", folder, "CONFIG", step=request.step)
    cure = (
        f"If no job trains it, edit its config: {command} (with --going-back, if it is to go on"
        " from an earlier checkpoint than its last)"
    )
    if mail.is_taken:
        problem = f"has not decided in {wait_s:.0f} s"
        cure = "Its log and its lock will say what it decides. Give it longer: --wait 600."
    raise PlanMismatchError(problem, field="run", value=folder, cure=cure)


class Steered(Protocol):
    """A run, as far as it is changed here; see :class:`headrace.run.run.Run`."""

    folder: str
    lock: RunLock
    config: LmDataConfig | None
    trains: bool

    @property
    def fingerprint(self) -> str: ...
    @property
    def dataset(self) -> AsyncDataset[Any]: ...
    def after(self, request: Request) -> Any: ...
    def become(self, other: Any) -> None: ...


@dataclass
class _Asked:
    """A request of this process."""

    request: Request
    asked_at: int
    answer: Answer | None = None
    is_withdrawn: bool = False


@dataclass(frozen=True)
class _Change:
    """A run as it would be, and what its loaders would deliver."""

    run: Steered
    deliveries: Mapping[DataLoader, Delivery]


class Steering:
    """The thread that changes a run, and its loaders, while one of them iterates. In a process
    there is one for each folder, whoever opens the run there, and how often.

    Args:
        folder: The folder of the run.

    Attributes:
        changing: Held while the run changes.
    """

    def __init__(self, folder: str) -> None:
        self.changing = threading.RLock()
        self._folder = folder
        self._runs: weakref.WeakValueDictionary[int, Steered] = weakref.WeakValueDictionary()
        self._loaders: weakref.WeakKeyDictionary[DataLoader, Steered] = weakref.WeakKeyDictionary()
        self._processes: tuple[int, ...] = ()
        self._hosts = _Hosts()
        self._asked: SimpleQueue[_Asked] = SimpleQueue()
        self._answers: dict[bytes, list[Answer]] = {}
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    @staticmethod
    def of(run: Steered) -> Steering:
        """The one of a run, which it changes if this job trains it."""
        steering = _steerings.setdefault(run.folder, Steering(run.folder))
        if run.trains:
            steering._runs[id(run)] = run
        return steering

    def add(self, run: Steered, loader: DataLoader) -> None:
        """Steers a loader of the run, too."""
        # A loader of this host's own devices, for an evaluation, agrees with nobody; the one that
        # trains on all of them does, and may come after it.
        if len(loader.processes) > len(self._processes):
            self._processes = loader.processes
            self._hosts = _Hosts.of(loader.processes, self._folder)
            with self._lock:
                self._thread = None  # one that followed other hosts ends
            if self.is_live:
                self._begin()
        self._loaders[loader] = run
        loader.on_iterate = self._begin

    @property
    def _iterating(self) -> dict[DataLoader, Steered]:
        return {loader: run for loader, run in [*self._loaders.items()] if loader.is_iterating}

    @property
    def is_live(self) -> bool:
        """Whether a loader iterates."""
        return bool(self._iterating)

    @property
    def earliest_step(self) -> int:
        """The first step that no host has planned until the trainer takes another batch."""
        return max((loader.earliest_step for loader in self._iterating), default=0)

    def _begin(self) -> None:
        """Starts the thread, unless it runs."""
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._follow, name="headrace-steering", daemon=True
                )
                _stops[self._thread] = self._stop
                self._thread.start()

    def amend(self, request: Request) -> None:
        """Asks for a change and waits for the answer; all hosts may, at the same place of their
        program, or the first one alone.

        Raises:
            PlanMismatchError: it is refused.
        """
        of_all = [one.step for one in self._iterating if one.processes == self._processes]
        asked_at = max(of_all, default=0)
        if not self._hosts.is_first:
            key = _key(request, asked_at)
            self._await(lambda: bool(self._answers.get(key)))
            self._answers[key].pop(0).check()
            return
        waiting = _Asked(request, asked_at)
        self._asked.put(waiting)
        try:
            self._await(lambda: waiting.answer is not None)
        finally:
            waiting.is_withdrawn = True
        assert waiting.answer is not None
        waiting.answer.check()

    def _await(self, is_answered: Callable[[], bool]) -> None:
        while not is_answered():
            if self._thread is None:
                raise self._ended()
            time.sleep(_EVERY_S / 50)

    def _ended(self) -> PlanMismatchError:
        return PlanMismatchError("has ended its iterations", field="run", value=self._folder)

    def _follow(self) -> None:
        try:
            if self._hosts.is_first:
                self._lead()
            while self._goes_on():
                if (proposal := self._hosts.proposal()) is not None:
                    with self.changing:
                        self._vote(proposal)
                else:
                    time.sleep(_EVERY_S)
        finally:
            _stops.pop(threading.current_thread(), None)
            if self._thread is threading.current_thread():  # it failed: nobody waits for it
                self._thread = None

    def _goes_on(self) -> bool:
        """Whether this thread goes on; if not, another one may begin."""
        with self._lock:
            if self._thread is not threading.current_thread():
                return False
            if not self._is_wanted():
                self._thread = None
            return self._thread is not None

    def _is_wanted(self) -> bool:
        if self._stop.is_set():
            return False
        # Others vote between their iterations, too: the first host may be ahead of them or behind
        return self.is_live if self._hosts.is_first else bool(self._runs)

    def _lead(self) -> None:
        """Takes requests, those of other processes too if this job has the lease of the run: of
        several that iterate it, one has. Where nobody may write, none has.
        """
        logged_problems: set[str] = set()
        cure = f"If that job only reads the run: open_run({self._folder!r}, config, trains=False)."
        while self._takes_next():
            try:
                with lease(self._folder, field="run", cure=cure, meanwhile=cure) as run_lease:
                    mailbox = _Mailbox(self._folder)
                    while self._takes_next():
                        run_lease.check()
                        mailbox.answer(self._settle_request)
            except (HeadraceError, OSError) as error:
                # Of a job that ends, the folder may be gone by now: it would answer nothing anyway
                if not self._goes_on():
                    return
                problem = "This job answers no headrace run amend for now: %s"
                if self._is_changed_by_another():
                    problem = "Another job changed the run, which this one does not follow: %s"
                if problem not in logged_problems:
                    _LOG.warning(problem, error)
                logged_problems.add(problem)

    def _is_changed_by_another(self) -> bool:
        """Whether the lock is of another run than this process has."""
        with suppress(HeadraceError, OSError), self.changing:
            stored = RunLock.load(self._folder)
            fingerprints = {run.fingerprint for run in [*self._runs.values()]}
            return stored is not None and stored.fingerprint not in fingerprints
        return False

    def _takes_next(self) -> bool:
        """Takes the next request of this process, if there is one soon; False: the thread ends."""
        if not self._goes_on():
            return False
        with suppress(Empty):
            asked = self._asked.get(timeout=_EVERY_S)
            if not asked.is_withdrawn:
                asked.answer = self._settle_request(asked.request, asked.asked_at)
        return True

    def _settle_request(self, request: Request, asked_at: int | None = None) -> Answer:
        with self.changing:
            running = {run.fingerprint for run in self._iterating.values()}
            proposal = _Proposal(request, min(running, default=""), asked_at)
            answer = self._put_to_the_vote(proposal)
        try:
            answer.check()
            _LOG.info("%s is amended; its lock has the change", self._folder)
        except PlanMismatchError as refusal:
            _LOG.warning("%s is not amended: %s", self._folder, refusal)
        return answer

    def _put_to_the_vote(self, proposal: _Proposal) -> Answer:
        change, vote = self._prepare(proposal)
        answer = vote
        if not vote.problem:
            answer = self._hosts.ask(proposal, vote, self._is_wanted)
        if change is not None and not answer.problem:
            try:
                self._check_unchanged(proposal.fingerprint)
                change.run.lock.save(self._folder)
            except Exception as error:  # noqa: BLE001 - whatever it is, plans hold until the answer
                answer = Answer.refusing(error)
        self._hosts.tell(proposal, answer)
        self._settle(proposal, change, answer)
        return answer

    def _check_unchanged(self, fingerprint: str) -> None:
        """Raises PlanMismatchError if another process has changed the lock."""
        stored = RunLock.load(self._folder)
        if stored is None or stored.fingerprint != fingerprint:
            raise PlanMismatchError(
                "has another lock than this job began with: another process changed it",
                field="run",
                value=self._folder,
                cure="Start the job again: it goes on with the lock in the folder.",
            )

    def _vote(self, proposal: _Proposal) -> None:
        change, vote = self._prepare(proposal)
        answer = self._hosts.vote(vote, self._stop)
        if answer is None:
            return
        self._settle(proposal, change, answer)
        if proposal.asked_at is not None:
            key = _key(proposal.request, proposal.asked_at)
            self._answers.setdefault(key, []).append(answer)

    def _prepare(self, proposal: _Proposal) -> tuple[_Change | None, Answer]:
        """All that a change needs, with this host's plans held at its step, and the vote for it.
        What can fail does so here, before hosts agree.
        """
        try:
            change = self._make_change(proposal)
            self._hold(proposal.request.step, change)
        except Exception as error:  # noqa: BLE001 - whatever it is, the others wait for the vote
            return None, Answer.refusing(error)
        return change, Answer(fingerprint=change.run.fingerprint)

    def _make_change(self, proposal: _Proposal) -> _Change:
        fingerprint = proposal.fingerprint
        running = {run.fingerprint for run in self._iterating.values()}
        runs = [run for run in [*self._runs.values()] if run.fingerprint == fingerprint]
        if not runs or running - {fingerprint}:
            raise PlanMismatchError(
                "is asked for a change while it comes to another one, or was opened before it",
                field="run",
                value=self._folder,
                cure="Ask again, or close iterations of the run as it was opened earlier.",
            )
        amended = runs[0].after(proposal.request)
        loaders = [one for one, run in [*self._loaders.items()] if run.fingerprint == fingerprint]
        return _Change(amended, {one: one.delivery_of(amended.dataset) for one in loaders})

    def _hold(self, step: int, change: _Change) -> None:
        """Holds this host's plans at a step."""
        held_loaders: list[DataLoader] = []
        for loader in change.deliveries:
            if loader.hold_plans(step):
                held_loaders.append(loader)
                continue
            for one in held_loaders:
                one.go_on()
            earliest = self.earliest_step
            problem = f"is planned already; the first step that can be changed is {earliest}"
            cure = f"Give step {earliest} or a later one."
            config = change.run.config
            steps = None if config is None else config.run_steps
            if steps is not None and earliest >= steps:
                problem += f", and the config ends the run at {steps}"
                cure = f"Stop the job, then: {command_line('run amend', self._folder, 'CONFIG')}"
            raise PlanMismatchError(problem, field="step", value=step, cure=cure)

    def _settle(self, proposal: _Proposal, change: _Change | None, answer: Answer) -> None:
        """Goes on, with the changed run if the change was agreed."""
        if change is None:
            return
        is_agreed = not answer.problem
        for run in [*self._runs.values()]:
            if is_agreed and run.fingerprint == proposal.fingerprint:
                run.become(change.run)
        for loader, delivery in change.deliveries.items():
            loader.go_on(delivery if is_agreed else None)


class _Hosts:
    """The hosts of a job; here for one host alone, which asks nobody."""

    is_first = True

    @staticmethod
    def of(processes: tuple[int, ...], folder: str) -> _Hosts:
        from headrace.feed.host_ledgers import coordination_client

        client = coordination_client() if len(processes) > 1 else None
        return _Hosts() if client is None else _SeveralHosts(client, processes, folder)

    def proposal(self) -> _Proposal | None:
        """The next proposal of the first host; None: there is none yet."""
        return None

    def ask(self, proposal: _Proposal, vote: Answer, goes_on: Callable[[], bool]) -> Answer:
        """Makes a proposal, with the first host's own vote, and collects the others as long as that
        host goes on.
        """
        return Answer()

    def tell(self, proposal: _Proposal, answer: Answer) -> None:
        """Tells the others what becomes of a proposal, of which they may not have heard yet."""

    def vote(self, vote: Answer, stop: threading.Event) -> Answer | None:
        """Votes on a proposal, and waits for the decision; None: the program ends."""
        return None


class _SeveralHosts(_Hosts):
    """Hosts that agree through the key-value store of JAX's coordination service."""

    def __init__(self, client: Any, processes: tuple[int, ...], folder: str) -> None:
        import jax

        self._client = client
        self._others = processes[1:]
        self._process = jax.process_index()
        self.is_first = self._process == processes[0]
        name = f"{','.join(map(str, processes))}/{hashlib.sha256(folder.encode()).hexdigest()[:12]}"
        self._folder = f"headrace/steering/{name}"
        self._number = 0

    def proposal(self) -> _Proposal | None:
        text = self._read().get("proposal")
        return None if text is None else msgspec.json.decode(text, type=_Proposal)

    def ask(self, proposal: _Proposal, vote: Answer, goes_on: Callable[[], bool]) -> Answer:
        self._write("proposal", proposal)
        until = time.monotonic() + _VOTES_S
        while time.monotonic() < until and goes_on():
            entries = self._read()
            others = {
                process: msgspec.json.decode(entries[f"vote {process}"], type=Answer)
                for process in self._others
                if f"vote {process}" in entries
            }
            for process, other in others.items():
                if other.problem:
                    return structs.replace(other, problem=f"{other.problem} (host {process})")
            if len(others) == len(self._others):
                return Answer() if all(one == vote for one in others.values()) else _OTHER_RUNS
            time.sleep(_EVERY_S / 10)
        return Answer(
            "was not agreed: not all hosts answered", "hosts", None, "Ask again when all train."
        )

    def tell(self, proposal: _Proposal, answer: Answer) -> None:
        self._write("proposal", proposal)
        self._write("answer", answer)
        self._number += 1

    def vote(self, vote: Answer, stop: threading.Event) -> Answer | None:
        self._write(f"vote {self._process}", vote)
        while not stop.is_set():
            if (text := self._read().get("answer")) is not None:
                self._number += 1
                return msgspec.json.decode(text, type=Answer)
            time.sleep(_EVERY_S / 10)
        return None

    def _read(self) -> dict[str, str]:
        prefix = f"{self._folder}/{self._number}/"
        entries: list[tuple[str, str]] = []
        with suppress(Exception):  # process 0, which has the store, may be gone: others say so
            entries = self._client.key_value_dir_get(prefix)
        return {key.rpartition("/")[2]: text for key, text in entries}

    def _write(self, name: str, content: msgspec.Struct) -> None:
        text = msgspec.json.encode(content).decode()
        with suppress(Exception):  # it is there already, or the store is gone
            self._client.key_value_set(f"{self._folder}/{self._number}/{name}", text)


_OTHER_RUNS = Answer(
    "would make another run on each host: they find different files",
    "hosts",
    None,
    "Name the snapshot of each cache that comes in, and give all hosts the same files.",
)


def _key(request: Request, asked_at: int) -> bytes:
    return msgspec.json.encode((request, asked_at))


_steerings: dict[str, Steering] = {}
_stops: dict[threading.Thread, threading.Event] = {}


@atexit.register
def _end_with_the_process() -> None:
    """No thread may be in JAX's client when JAX shuts down."""
    for thread, stop in list(_stops.items()):
        stop.set()
        thread.join(_LEAVING_S)
