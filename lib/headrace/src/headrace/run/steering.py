"""Changes of a run while it trains.

A change is asked for by :meth:`headrace.run.run.Run.amend`, or by ``headrace run amend`` of another
process, which leaves a request in the run's folder. It holds from a step on that no host has
planned yet (:mod:`headrace.feed.horizon`). A thread on each host sees to it:

1. The first host takes the request, makes the run as it would be, and holds its own plan at the
   step. If that cannot be, it refuses.
2. It proposes the change to the others, in the key-value store of JAX's coordination service. Each
   makes the same run, holds its plan there, and votes; one that has planned the step refuses.
3. If all agree, the first host writes the run's lock. Only then it tells the others, plans end at
   the step, and every iteration goes on with the changed run from there. Else all plan on as if
   nobody had asked.

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
from dataclasses import asdict, replace
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
from msgspec import structs

from headrace.config.component import ComponentConfig
from headrace.config.lm_data import LmDataConfig
from headrace.config.parsing import decode
from headrace.config.writing import given_fields
from headrace.errors import HeadraceError, PlanMismatchError, printable
from headrace.mix.stage_config import AmendmentConfig, with_amendment
from headrace.run.lock import RunLock
from headrace.store import files
from headrace.store.lease import lease, open_slot
from headrace.store.records import RecordKind

if TYPE_CHECKING:
    from headrace.data.async_dataset import AsyncDataset
    from headrace.feed.loader import DataLoader

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


class Answer(msgspec.Struct, frozen=True):
    """What became of a request.

    Attributes:
        problem: Why it was refused; empty: the lock has it.
        field: Field that the refusal is about.
        value: Its value; None: it has none.
        cure: What to do.
        fingerprint: Of a vote: that of the run after the change, as this host makes it.
        pending: Of a vote: the step of an earlier change that this host has not come to; 0: none.
    """

    problem: str = ""
    field: str = ""
    value: str | int | float | None = None
    cure: str = ""
    fingerprint: str = ""
    pending: int = 0

    @classmethod
    def refusing(cls, error: HeadraceError) -> Answer:
        """The refusal that an error is."""
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
        while now is not None and now.until == mail.until:
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
    cure = f"If no job trains it, edit its config: headrace run amend {folder} CONFIG."
    if mail.is_taken:
        problem = f"has not decided in {wait_s:.0f} s"
        cure = "Its log and its lock will say what it decides. Give it longer: --wait 600."
    raise PlanMismatchError(problem, field="run", value=folder, cure=cure)


class Change(NamedTuple):
    """What a request makes of a run.

    Attributes:
        lock: The lock after it, which is not written yet.
        dataset: The dataset after it.
        apply: Lets the run go on so.
    """

    lock: RunLock
    dataset: AsyncDataset[Any]
    apply: Callable[[], None]


class Steering:
    """The thread that changes a run, and its loaders, while one of them iterates.

    Args:
        folder: The run's folder.
        changing: Held while the run changes.
        change_for: Returns the change for a request; it raises if that cannot be, and writes
            nothing.
    """

    def __init__(
        self, folder: str, changing: threading.Lock, change_for: Callable[[Request], Change]
    ) -> None:
        self._folder = folder
        self._changing = changing
        self._change_for = change_for
        self._loaders: weakref.WeakSet[DataLoader] = weakref.WeakSet()
        self._processes: tuple[int, ...] = ()
        self._hosts = _Hosts()
        self._requests: SimpleQueue[tuple[Request, SimpleQueue[Answer]]] = SimpleQueue()
        self._answers: dict[bytes, Answer] = {}
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def add(self, loader: DataLoader) -> None:
        """Steers a loader of the run, too."""
        # A loader of this host's own devices, for an evaluation, agrees with nobody; the one that
        # trains on all of them does, and may come after it.
        if not self._loaders or len(loader.processes) > len(self._processes):
            self._processes = loader.processes
            self._hosts = _Hosts.of(loader.processes, self._folder)
            with self._lock:
                self._thread = None  # one that followed other hosts ends
            if self.is_live:
                self._begin()
        self._loaders.add(loader)
        loader.on_iterate = self._begin

    @property
    def is_live(self) -> bool:
        """Whether a loader iterates."""
        return any(loader.is_iterating for loader in list(self._loaders))

    @property
    def earliest_step(self) -> int:
        """The first step that no host has planned until the trainer takes another batch."""
        return max(loader.earliest_step for loader in list(self._loaders))

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
        key = _key(request)
        if self._hosts.is_first:
            answer: SimpleQueue[Answer] = SimpleQueue()
            self._requests.put((request, answer))
            self._await(lambda: not answer.empty())
            answer.get().check()
            return
        self._await(lambda: key in self._answers)
        self._answers.pop(key).check()

    def _await(self, is_answered: Callable[[], bool]) -> None:
        while not is_answered():
            if self._thread is None:
                raise PlanMismatchError("has ended its iterations", field="run", value=self._folder)
            time.sleep(_EVERY_S / 50)

    def _follow(self) -> None:
        try:
            if self._hosts.is_first:
                self._lead()
            while self._goes_on():
                if (proposal := self._hosts.proposal()) is not None:
                    with self._changing:
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
            if self._stop.is_set() or not self.is_live:
                self._thread = None
            return self._thread is not None

    def _lead(self) -> None:
        """Takes requests, those of other processes too if this job has the lease of the run: of
        several that iterate it, such as an evaluation, one has. Where nobody may write, none has.
        """
        while self._takes_next():
            with (
                suppress(HeadraceError, OSError),
                lease(self._folder, field="run") as run_lease,
            ):
                mailbox = _Mailbox(self._folder)
                while self._takes_next():
                    run_lease.check()
                    mailbox.answer(self._decide)

    def _takes_next(self) -> bool:
        """Takes the next request of this process, if there is one soon; False: the thread ends."""
        if not self._goes_on():
            return False
        with suppress(Empty):
            request, answer = self._requests.get(timeout=_EVERY_S)
            answer.put(self._decide(request))
        return True

    def _decide(self, request: Request) -> Answer:
        with self._changing:
            answer = self._decided(request)
        self._say(answer)
        return answer

    def _decided(self, request: Request) -> Answer:
        try:
            change = self._change_for(request)
            self._hold(request)
        except HeadraceError as error:
            self._hosts.refuse(request, answer := Answer.refusing(error))
            return answer
        answer = self._hosts.ask(request, self._agreeing(change))
        try:
            if not answer.problem:
                self._check_unchanged(change)
                change.lock.save(self._folder)
        except HeadraceError as error:
            answer = Answer.refusing(error)
        except OSError as error:
            answer = Answer(f"cannot be written: {error}", "lock", self._folder)
        self._hosts.tell(answer)
        self._settle(change, answer)
        return answer

    def _say(self, answer: Answer) -> None:
        """Logs what became of a request."""
        try:
            answer.check()
            _LOG.info("%s is amended; its lock has the change", self._folder)
        except PlanMismatchError as refusal:
            _LOG.warning("%s is not amended: %s", self._folder, refusal)

    def _check_unchanged(self, change: Change) -> None:
        """Raises PlanMismatchError if another process has changed the lock."""
        stored = RunLock.load(self._folder)
        if stored is None or stored.fingerprint != change.lock.history[-1]["fingerprint"]:
            raise PlanMismatchError(
                "has another lock than this job began with: another process changed it",
                field="run",
                value=self._folder,
                cure="Start the job again: it goes on with the lock in the folder.",
            )

    def _vote(self, request: Request) -> None:
        change = None
        try:
            change = self._change_for(request)
            self._hold(request)
            vote = self._agreeing(change)
        except HeadraceError as error:
            vote = Answer.refusing(error)
        answer = self._hosts.vote(vote, self._stop)
        if answer is None:
            return
        self._settle(change, answer)
        self._answers[_key(request)] = answer

    def _agreeing(self, change: Change) -> Answer:
        """The vote for a change, of a host whose plans hold."""
        pending = max((loader.step_of_change or 0 for loader in list(self._loaders)), default=0)
        return Answer(fingerprint=change.lock.fingerprint, pending=pending)

    def _hold(self, request: Request) -> None:
        """Holds this host's plans at the step of a request."""
        held_loaders: list[DataLoader] = []
        for loader in list(self._loaders):
            if loader.hold_plans(request.step):
                held_loaders.append(loader)
                continue
            for one in held_loaders:
                one.go_on()
            earliest = self.earliest_step
            raise PlanMismatchError(
                f"is planned already; the first step that can be changed is {earliest}",
                field="step",
                value=request.step,
                cure=f"Give step {earliest} or a later one.",
            )

    def _settle(self, change: Change | None, answer: Answer) -> None:
        """Goes on, with the changed run if the change was agreed."""
        dataset = None
        if change is not None and not answer.problem:
            change.apply()
            dataset = change.dataset
        for loader in list(self._loaders):
            loader.go_on(dataset)


class _Hosts:
    """The hosts of a job; here for one host alone, which asks nobody."""

    is_first = True

    @staticmethod
    def of(processes: tuple[int, ...], folder: str) -> _Hosts:
        from headrace.feed.host_board import coordination_client

        client = coordination_client() if len(processes) > 1 else None
        return _Hosts() if client is None else _SeveralHosts(client, processes, folder)

    def proposal(self) -> Request | None:
        """The next request of the first host; None: there is none yet."""
        return None

    def ask(self, request: Request, vote: Answer) -> Answer:
        """Proposes a change, with the first host's own vote, and collects the others."""
        return Answer()

    def refuse(self, request: Request, answer: Answer) -> None:
        """Tells the others of a request that is refused."""

    def tell(self, answer: Answer) -> None:
        """Tells the others the decision."""

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
        nth = _nth.get(name, 0)
        _nth[name] = nth + 1
        self._folder = f"headrace/steering/{name}/{nth}"
        self._number = 0

    def proposal(self) -> Request | None:
        text = self._read().get("request")
        return None if text is None else msgspec.json.decode(text, type=Request)

    def refuse(self, request: Request, answer: Answer) -> None:
        self._write("request", request)
        self.tell(answer)

    def ask(self, request: Request, vote: Answer) -> Answer:
        self._write("request", request)
        until = time.monotonic() + _VOTES_S
        while time.monotonic() < until:
            entries = self._read()
            votes = [entries.get(f"vote {process}") for process in self._others]
            others = [msgspec.json.decode(text, type=Answer) for text in votes if text is not None]
            if refusals := [other for other in others if other.problem]:
                return refusals[0]
            if len(others) == len(self._others):
                if any(other.fingerprint != vote.fingerprint for other in others):
                    return _OTHER_RUNS
                # Hosts that have come to an earlier change planned on from there without this one.
                # Where rows are exchanged, all must plan alike: so all have, or none.
                return Answer() if all(other == vote for other in others) else _PASSING
            time.sleep(_EVERY_S / 10)
        return Answer(
            "was not agreed: not all hosts answered", "hosts", None, "Ask again when all train."
        )

    def tell(self, answer: Answer) -> None:
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
        with suppress(Exception):
            self._client.key_value_set(f"{self._folder}/{self._number}/{name}", text)


_OTHER_RUNS = Answer(
    "would make another run on each host: they find different files",
    "hosts",
    None,
    "Name the snapshot of each cache that comes in, and give all hosts the same files.",
)
_PASSING = Answer("was asked for while hosts come to an earlier change", "step", None, "Ask again.")


def _key(request: Request) -> bytes:
    return msgspec.json.encode(request)


_nth: dict[str, int] = {}
"""How many loaders of a run there were in this process: each has decisions of its own."""
_stops: dict[threading.Thread, threading.Event] = {}


@atexit.register
def _end_with_the_process() -> None:
    """No thread may be in JAX's client when JAX shuts down."""
    for thread, stop in list(_stops.items()):
        stop.set()
        thread.join(_LEAVING_S)
