"""A run: a folder with a lock. It is opened first, and what it loads is built from it.

run = open_run("runs/1", load_config("run.yaml"))
loader = run.loader(mesh=mesh)
...
checkpoint["data"] = run.state(step).to_dict()
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Unpack, cast

from headrace.config.component import ComponentConfig
from headrace.config.lm_data import LmDataConfig
from headrace.errors import ConfigError, PlanMismatchError, check_path, command_line
from headrace.mix.stage_config import AmendmentConfig, last_change, with_amendment
from headrace.run.anchors import Anchors, last_checkpoint
from headrace.run.changes import (
    alters_earlier,
    check_declared_late,
    config_of_run,
    only_declares,
    order_of,
    order_over,
)
from headrace.run.lock import Described, RunLock
from headrace.run.state import LoaderState, steps_done
from headrace.run.steering import Request, Steering
from headrace.store import files

if TYPE_CHECKING:
    from jax.sharding import Mesh, NamedSharding

    from headrace.batch.packed_batch import PackedBatch
    from headrace.data.async_dataset import AsyncDataset
    from headrace.data.mixture import MixtureDataset
    from headrace.data.phased import RunDataset
    from headrace.feed.loader import DataLoader, LoaderOptions


@dataclass
class Run:
    """An opened run.

    Attributes:
        folder: Path or URL of its folder.
        lock: What it reads, in which order.
        config: The config with which it goes on; None: it was opened with a loader.
        fn: Function that its batches pass through on the host; None: none.
        trains: Whether this job trains it, and so writes its folder and can change it.
    """

    folder: str
    lock: RunLock
    config: LmDataConfig | None
    fn: Callable[[PackedBatch], Any] | None
    _source: Any = field(compare=False, repr=False)
    _anchors: Anchors = field(compare=False, repr=False)
    trains: bool = True

    def __post_init__(self) -> None:
        self._steering = Steering.of(self)

    @property
    def changing(self) -> threading.RLock:
        """Held while it changes."""
        return self._steering.changing

    @property
    def fingerprint(self) -> str:
        """Fingerprint of the run's plan, which its checkpoints name."""
        return self.lock.fingerprint

    @property
    def history(self) -> tuple[dict[str, Any], ...]:
        """Earlier plans of the run; see :class:`RunLock`."""
        return self.lock.history

    @property
    def last_checkpoint(self) -> int | None:
        """Steps that were done at the last checkpoint that the folder knows of; None: it knows of
        none.
        """
        return last_checkpoint(self.folder, self.lock)

    def loader(
        self,
        mesh: Mesh | None = None,
        *,
        batch_axis: str | Sequence[str] | None = None,
        sharding: NamedSharding | None = None,
        **options: Unpack[LoaderOptions],
    ) -> DataLoader:
        """A loader of the run; the arguments are those of :meth:`headrace.LmDataConfig.loader`.

        Raises:
            ConfigError: the run was opened with a loader, which is the one to use.
        """
        # Not while the run changes: the loader would be of the run before, and miss the change.
        with self.changing:
            config = self._with_config("loader()")
            loader = config.loader_of(
                self.dataset, mesh, batch_axis=batch_axis, sharding=sharding, **options
            )
            if self.trains:
                self._steering.add(self, loader)
        return loader

    @property
    def dataset(self) -> AsyncDataset[Any]:
        """The dataset of the run, for loaders other than headrace's own."""
        self._with_config("dataset")
        return self._source.dataset

    def state(self, step: int) -> LoaderState:
        """The state to save after ``step`` steps. This also saves an anchor in the run's folder,
        if this job trains it.
        """
        step = steps_done(step)
        if self.trains:
            self._anchors.save(step)
        return self.lock.state(step)

    def check(self, state: LoaderState) -> None:
        """Raises PlanMismatchError unless a saved state belongs to this run; see
        :meth:`RunLock.check`.
        """
        self.lock.check(state)

    def amend(
        self,
        step: int,
        *,
        add: Mapping[str, Any] | None = None,
        weights: Mapping[str, Any] | None = None,
        drop: Sequence[str] = (),
        caches: Mapping[str, int | list[int]] | None = None,
        skip: Sequence[Sequence[int]] = (),
        components: Mapping[str, ComponentConfig] | None = None,
        done: int | None = None,
    ) -> Run:
        """Changes the run's mixture from a step on, and writes the change into its lock.

        While a loader of it iterates, the loader goes on with the changed run from the step on,
        which must be :meth:`earliest_step` or later, and this is the run that is returned. On
        several hosts, call it on all, or on the first one alone. Otherwise, make a new loader of
        the returned run.

        Args:
            step: The first step of the changed mixture, at or after the last checkpoint.
            add: Weights of sources that join, or of groups of them.
            weights: New weights of sources and groups, by name.
            drop: Sources and groups that are no longer drawn.
            caches: Later snapshots of caches, by component.
            skip: Steps whose batches are left out, first and one after the last of each range.
            components: Components that are new.
            done: Steps that are done; None: those of the last checkpoint.

        Raises:
            PlanMismatchError: the step is done, or planned already; another host refuses.
            ConfigError: the run has no config; the change cannot be made; its field is named.
        """
        config = self._to_change()
        amendment = AmendmentConfig(
            steps_done(step),
            dict(add or {}),
            dict(weights or {}),
            [*drop],
            dict(caches or {}),
            [[*pair] for pair in skip],
        )
        request = Request.of(amendment, components or {})
        if self._steering.is_live:
            self._steering.amend(request)
            return self
        amended = request.applied(config)
        return amend_run(self.folder, self.lock, amended, done=done, fn=self.fn)

    def reweigh(self, amendment: AmendmentConfig) -> None:
        """Goes on with the weights of an amendment, written into the lock, from a step on that is
        not done yet. Loaders that iterate have planned it: make a new one.

        What is open stays open if the amendment is the last and has a weight for each source.
        """
        with self.changing:
            config = self._to_change()
            amendments = with_amendment(config.amendments, amendment)
            amended = replace(config, amendments=amendments)
            mixture: MixtureDataset | None = None
            if amendments[-1] is amendment:
                number = len(amendments) - 1
                mixture = cast("RunDataset", self.dataset.planned).reweighed(
                    amendment.step,
                    amendment.weights,
                    f"amendment {number}",
                    f"amendments[{number}].weights",
                )
            if mixture is None:
                step = amendment.step
                self.become(amend_run(self.folder, self.lock, amended, done=step, fn=self.fn))
                return
            mixture.config = amended
            lock = self.lock.reweighed(amendment, mixture.stages[-1])
            lock.save(self.folder)
            source = order_over(mixture, amended, self.fn)
            anchors = Anchors(self.folder, lock, source)
            self.become(Run(self.folder, lock, amended, self.fn, source, anchors))

    def earliest_step(self) -> int:
        """The first step that :meth:`amend` can change for certain: no host has planned it, and no
        checkpoint has it.

        While a loader iterates, it is 224 steps beyond the batches that the trainer has, and
        further by ``HostBarrier.every`` on several hosts, as another may be ahead. It grows with
        each batch: use it before the next one, or give a later step. Hosts that do not wait for
        each other (``host_barrier=None``) may be further apart: call :meth:`amend` on all of them.
        """
        if self._steering.is_live:
            return self._steering.earliest_step
        return max(self.last_checkpoint or 0, 1)

    def become(self, other: Run) -> None:
        """Goes on as another run: this one after an amendment."""
        self.lock = other.lock
        self.config = other.config
        self._source = other._source
        self._anchors = other._anchors

    def after(self, request: Request) -> Run:
        """The run after a request, of which nothing is written yet."""
        amended = request.applied(self._with_config("amend()"))
        source = order_of(amended, self.fn)
        edited = self.lock.edited if request.edited is None else request.edited
        new = replace(RunLock.of(source), edited=edited)
        first = new.first_difference(self.lock)
        if first is None:
            last = last_change(amended.amendments)
            if last > request.step:
                raise alters_earlier("step", request.step, last)
            self.lock.check_same(new, self.folder)
            raise ConfigError("changes nothing", field="amend", value=request.amendment)
        if first < request.step:
            raise PlanMismatchError(
                f"would change step {first} already",
                field="amend",
                value=request.step,
                cure="Stop it, and edit its config: "
                + command_line("run amend", self.folder, "CONFIG"),
            )
        lock = self.lock.amended_by(new, first)
        return Run(self.folder, lock, amended, self.fn, source, Anchors(self.folder, lock, source))

    def _to_change(self) -> LmDataConfig:
        if not self.trains:
            cure = "Open it as the job that trains it: open_run(folder, config)."
            raise ConfigError(
                "is False, and only the job that trains a run changes it",
                field="trains",
                value=self.folder,
                cure=cure,
            )
        return self._with_config("amend()")

    def _with_config(self, doing: str) -> LmDataConfig:
        if self.config is None:
            raise ConfigError(
                f"was opened with a loader, without a config, and has no {doing}",
                field="run",
                value=self.folder,
                cure="Use that loader, or open the run with a config: open_run(folder, config).",
            )
        return self.config


def open_run(
    folder: str | os.PathLike[str],
    plan: LmDataConfig | Described,
    step: int | LoaderState | None = None,
    *,
    fn: Callable[[PackedBatch], Any] | None = None,
    trains: bool = True,
) -> Run:
    """Starts a run in ``folder``, or goes on with the run there.

    The lock in the folder is read first: the run goes on with the mixture and the states of caches
    in it. An amendment that an edited config declares must begin at a step that is not done yet,
    and is then written into the lock; other edits of the mixture are made by ``headrace run
    amend``.

    Args:
        folder: Path or URL of the run's folder.
        plan: The run's config; or, for a run of datasets that were made in Python, its loader.
        step: Number of completed steps, or the state in the checkpoint from which the run goes on;
            None: those of the last checkpoint that the folder knows of (:meth:`Run.state`). If it
            is given, the loader is prepared for it, with an anchor of the folder or by counting.
        fn: Function that batches pass through on the host, with a config; its name is part of the
            run.
        trains: Whether this job trains the run. False for others that read what it loads, such as
            an evaluation: they write nothing into the folder, and answer no request to change the
            run.

    Returns:
        The run; its :meth:`~Run.loader` loads it, its :meth:`~Run.state` is for checkpoints.

    Raises:
        PlanMismatchError: the folder has another run (the message shows the differences), the state
            belongs to another run, or an amendment changes the past.

    Example:
        >>> import headrace.testing, tempfile
        >>> from headrace import ComponentConfig, LmDataConfig
        >>> web = ComponentConfig(headrace.testing.tiny_cache().path)
        >>> config = LmDataConfig({"web": web}, seq_len=8, batch_size=8)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     run = open_run(folder, config)
        ...     with run.loader() as loader:
        ...         print(loader.batch_at(0).tokens.shape, run.state(20).step)
        (8, 8) 20
    """
    check_path("folder", folder, "Give a folder of the run's own: runs/1.")
    folder = os.fspath(folder)
    stored = RunLock.load(folder)
    config: LmDataConfig | None = None
    edited: LmDataConfig | None = None
    source: Any = plan
    if isinstance(plan, LmDataConfig):
        edited = plan
        config = config_of_run(stored, plan)
        source = order_of(config, fn)
    elif not hasattr(plan, "describe"):
        cure = "Give load_config(FILE), or the loader of a run that has no config."
        raise ConfigError("is neither a config nor a loader", field="plan", value=plan, cure=cure)
    lock = RunLock.of(source, edited)
    if stored is None and edited is not None:
        # its caches may have later snapshots when it is amended
        config = config_of_run(lock, edited)
    if isinstance(step, LoaderState):
        # before anything is recorded: the state is of the run in the folder, before or after the
        # amendment
        (stored or lock).check(step)
        step = step.step
    step = None if step is None else steps_done(step)
    keeps_all = False
    if stored is not None and edited is not None:
        keeps_all = only_declares(stored, edited)
        if keeps_all and lock.first_difference(stored) is None:
            check_declared_late(stored, edited)
    lock = _agreed(folder, stored, lock, step, declared=not keeps_all, writes=trains)
    # A program may change its working folder later, and threads may run then
    folder = files.absolute(folder)
    anchors = Anchors(folder, lock, source)
    anchors.use(step)
    if trains and step is not None:
        anchors.save(step)
    return Run(folder, lock, config, fn, source, anchors, trains=trains)


def amend_run(
    folder: str,
    lock: RunLock,
    amended: LmDataConfig,
    edited: LmDataConfig | None = None,
    *,
    done: int | None = None,
    fn: Callable[[PackedBatch], Any] | None = None,
) -> Run:
    """Writes a change of a run into its lock.

    Args:
        folder: The run's folder.
        lock: The lock in it.
        amended: The config with which the run goes on.
        edited: The user's config, which from now on means this; None: the one that did so far.
        done: Steps that are done; None: those of the last checkpoint.
        fn: As for :func:`open_run`; None: the run has none, or whoever changes it does not load it.

    Raises:
        PlanMismatchError: it would change steps that are done, or more than a run can change.
    """
    source = order_of(amended, fn)
    new = RunLock.of(source, edited)
    if fn is None:
        new = new.through_functions_of(lock)
    if edited is None:
        new = replace(new, edited=lock.edited)
    new = _agreed(folder, lock, new, done)
    return Run(folder, new, amended, fn, source, Anchors(folder, new, source))


def _agreed(
    folder: str,
    stored: RunLock | None,
    own: RunLock,
    step: int | None,
    *,
    declared: bool = False,
    writes: bool = True,
) -> RunLock:
    """The lock of a run that goes on, written if it is new or amended."""
    if stored is None:
        if writes:
            own.save(folder)
        return own
    if own.fingerprint == stored.fingerprint:
        return stored
    if (first := own.first_difference(stored, declared=declared)) is None:
        stored.check_same(own, folder)
        raise AssertionError("plans with two fingerprints differ")
    _check_future(first, step, folder, stored)
    amended = stored.amended_by(own, first)
    if writes:
        amended.save(folder)
    return amended


def _check_future(first: int, step: int | None, folder: str, stored: RunLock) -> None:
    """Raises PlanMismatchError unless an amendment from step ``first`` on changes only what is not
    done yet.
    """
    reached = last_checkpoint(folder, stored) if step is None else step
    if reached is not None and first >= reached:
        return
    problem = f"may touch the past: {reached} steps are done"
    cure = f"Begin it at step {reached} or later."
    going_back = command_line("run amend", folder, "CONFIG", step=first, going_back=True)
    if reached is None:
        problem = f"may touch the past: {folder} knows of no checkpoint"
        cure = (
            "Give the steps that are done: open_run(folder, config, 0), or those of your"
            f" checkpoint, or: {going_back}"
        )
    elif step is None:
        problem = f"{problem} at the last checkpoint"
        cure = (
            f"{cure} If you go back to an earlier checkpoint, say so: open_run(folder, config,"
            f" {first}), or: {going_back}"
        )
    raise PlanMismatchError(problem, field="amendments.step", value=first, cure=cure)
