"""The state of a run: which run it is (a manifest) and how far it has come (a step).

``RunManifest`` describes everything that determines the batches, and has a fingerprint. It is
written once, into the run's folder. A resumed run must resolve to the same manifest; otherwise it
is refused, and the error shows the differences. Devices, hosts, budgets and paths are not part of
it: they may change freely.

The folder also has **anchors** (:mod:`headrace.mix.policy`): the mixture's counts at the
checkpoints, so that a resumed run, amended or not, need not count up to that step. If the file is
deleted, damaged or of another run, counting costs 2 us per step with weights that change, and
almost nothing with constant ones.
"""

from __future__ import annotations

import contextlib
import copy
import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Protocol, cast

import numpy as np

from headrace.config.writing import given_fields
from headrace.errors import (
    ConfigError,
    HeadraceError,
    IndexOutOfRangeError,
    PlanMismatchError,
    as_whole,
    check_at_least,
    check_path,
    of_another_version,
)
from headrace.mix.amendments import sources_of, weights_by_place, without_sources
from headrace.mix.draws import Draws
from headrace.mix.policy import Anchor
from headrace.mix.schedule import MAX_STEP, weight_from_config
from headrace.run.beginning import Beginning, beginning_of, names_of, removals_differ
from headrace.run.differences import config_differences, differences
from headrace.store import files

MANIFEST_NAME = "manifest.json"
ANCHORS_NAME = "anchors.json"
FORMAT_VERSION = 1
_MOST_ANCHORS = 32
_SHOWN_DIFFERENCES = 20
_FINGERPRINT_DIGITS = 32


class Described(Protocol):
    """An object that describes what determines its batches, such as a
    :class:`~headrace.feed.loader.DataLoader`.
    """

    def describe(self) -> dict[str, Any]: ...


@dataclass(frozen=True)
class LoaderState:
    """Where a run is: a few bytes of JSON that fit into any checkpoint.

    Attributes:
        step: The next step to load, which is the number of completed steps.
        fingerprint: Fingerprint of the run's manifest.

    Example:
        >>> LoaderState.from_json(LoaderState(step=120, fingerprint="ab").to_json())
        LoaderState(step=120, fingerprint='ab')
    """

    step: int
    fingerprint: str

    def to_json(self) -> dict[str, Any]:
        """As JSON values."""
        return asdict(self)

    def to_pytree(self) -> dict[str, np.ndarray]:
        """As two small arrays, for checkpoints of arrays: Orbax's, equinox's, Levanter's.

        Only the values differ between runs, so restore it into ``LoaderState.like()``.

        Example:
            >>> state = LoaderState(step=120, fingerprint="0f" * 16)
            >>> {k: (v.dtype.name, v.shape) for k, v in state.to_pytree().items()}
            {'step': ('int32', ()), 'fingerprint': ('uint8', (16,))}
            >>> LoaderState.from_pytree(state.to_pytree()) == state
            True
        """
        digest = np.frombuffer(bytes.fromhex(self.fingerprint), np.uint8)
        return {"step": np.asarray(self.step, np.int32), "fingerprint": digest}

    @classmethod
    def like(cls) -> dict[str, np.ndarray]:
        """Arrays of the shapes and dtypes of :meth:`to_pytree`."""
        return cls(0, "00" * (_FINGERPRINT_DIGITS // 2)).to_pytree()

    @classmethod
    def from_pytree(cls, tree: Mapping[str, Any]) -> LoaderState:
        """From the arrays of :meth:`to_pytree` as a checkpoint restores them, numpy's or jax's.

        Raises:
            ConfigError: an array is missing or of another shape.
        """
        try:
            step = np.asarray(tree["step"])
            digest = np.asarray(tree["fingerprint"])
        except KeyError as error:
            raise ConfigError(f"has no {error}", field="state", value=sorted(tree)) from error
        if step.shape != () or digest.ndim != 1 or int(step) < 0:
            raise ConfigError(
                "is not a loader's state", field="state", value=[step.shape, digest.shape]
            )
        return cls(int(step), digest.astype(np.uint8).tobytes().hex())

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> LoaderState:
        """From JSON values.

        Raises:
            ConfigError: a key is missing or of the wrong kind, or the step is below 0.
        """
        step, fingerprint = (
            (data.get(k) for k in ("step", "fingerprint"))
            if isinstance(data, Mapping)
            else (None, None)
        )
        if type(step) is not int or step < 0 or not isinstance(fingerprint, str):
            cure = "It needs 'step', from 0, and 'fingerprint', as get_state or to_json gave them."
            raise ConfigError("is not a loader's state", field="state", value=data, cure=cure)
        return cls(step, fingerprint)


@dataclass(frozen=True)
class RunManifest:
    """What a run reads, in which order.

    Attributes:
        resolved: Description of the loader with all defaults and derived values filled in, JSON
            values.
        history: Manifests that this one amends, oldest first: ``fingerprint``, and ``until_step``,
            the first step that they no longer determine.
        config: Fields of the config that the loader was made from, without defaults; None: there
            was no config. Not part of the manifest's identity.
        anchors: Where :meth:`state` saves an anchor; set by :func:`open_run`, not part of the
            manifest's identity.
    """

    resolved: dict[str, Any]
    history: tuple[dict[str, Any], ...] = ()
    config: dict[str, Any] | None = field(default=None, compare=False, repr=False)
    anchors: Anchors | None = field(default=None, compare=False, repr=False)

    @classmethod
    def of(cls, loader: Described) -> RunManifest:
        """The manifest of a loader."""
        resolved = json.loads(
            json.dumps(loader.describe(), default=_plain)
        )  # as it will be read: string keys, lists
        config = getattr(_planned(loader), "config", None)
        return cls(resolved, config=None if config is None else given_fields(config))

    @property
    def fingerprint(self) -> str:
        """Hex digest; equal for runs that load the same batches from the same data."""
        canonical = json.dumps(
            self.resolved, sort_keys=True, separators=(",", ":"), ensure_ascii=False
        )
        return hashlib.sha256(canonical.encode()).hexdigest()[:_FINGERPRINT_DIGITS]

    def state(self, step: int) -> LoaderState:
        """The state to save after ``step`` steps. In an opened run, this also saves an anchor in
        its folder.
        """
        step = steps_done(step)
        if self.anchors is not None:
            self.anchors.save(step)
        return LoaderState(step, self.fingerprint)

    def check(self, state: LoaderState) -> None:
        """Raises PlanMismatchError unless a saved state belongs to this run, or to its part before
        an amendment.
        """
        if not isinstance(state, LoaderState):
            raise ConfigError(
                "is no LoaderState", field="state", value=state, cure="See LoaderState.from_json."
            )
        earlier = [
            h
            for h in self.history
            if h["fingerprint"] == state.fingerprint and state.step <= h["until_step"]
        ]
        if state.fingerprint != self.fingerprint and not earlier:
            cure = (
                "Resume with the run's own config; the manifest in its folder shows the difference."
            )
            problem = (
                f"belongs to another run than {self.fingerprint}: its data, order or mixture differ"
            )
            raise PlanMismatchError(
                problem, field="state.fingerprint", value=state.fingerprint, cure=cure
            )

    def check_same(self, other: RunManifest, folder: str = "RUN") -> None:
        """Raises PlanMismatchError, with the differences, unless ``other`` is this run, whose
        folder is named.
        """
        if other.fingerprint == self.fingerprint:
            return
        have_configs = self.config is not None and other.config is not None
        fields = config_differences(self.config or {}, other.config or {}) if have_configs else []
        lines = fields or differences(self.resolved, other.resolved)
        listed = "; ".join(lines[:_SHOWN_DIFFERENCES])
        more = (
            f"; and {len(lines) - _SHOWN_DIFFERENCES} more"
            if len(lines) > _SHOWN_DIFFERENCES
            else ""
        )
        cure = (
            "Go back to the run's config, declare the change as an amendment, or take another"
            " folder."
        )
        raise PlanMismatchError(
            f"the run was started with another {'config' if fields else 'plan'}: {listed}{more}",
            field="config",
            cure=f"{cure} The amendment for it, if there is one: headrace run diff {folder} CONFIG"
            if fields
            else cure,
        )

    def amends(self, earlier: RunManifest) -> int | None:
        """The step from which on this run differs from an earlier one, by declared stages only;
        None if by more.
        """
        own_plan = copy.deepcopy(self.resolved)
        earlier_plan = copy.deepcopy(earlier.resolved)
        try:
            new = own_plan.pop("dataset")
            old = earlier_plan.pop("dataset")
            removed = removals_differ(new.pop("removed", {}), old.pop("removed", {}), names_of(old))
            if new == old:
                first = removed
            else:
                first = (
                    _phases_amended(new["phases"], old["phases"])
                    if "phases" in new
                    else _mixture_amended(new, old)
                )
                first = first if first is None or removed is None else min(first, removed)
        except (KeyError, TypeError, IndexError, AttributeError, ValueError):  # not a mixture
            return None
        return first if own_plan == earlier_plan else None

    def save(self, folder: str) -> None:
        """Writes the manifest into a run's folder, atomically. All processes of a run may do so at
        the same time.
        """
        content = {
            "format_version": FORMAT_VERSION,
            "fingerprint": self.fingerprint,
            "resolved": self.resolved,
            "history": list(self.history),
        }
        if self.config is not None:
            content["config"] = self.config
        text = json.dumps(content, indent=1)  # the order of components is part of a run
        files.write_atomic(files.join(folder, MANIFEST_NAME), text.encode() + b"\n", shared=True)

    @classmethod
    def load(cls, folder: str) -> RunManifest | None:
        """The manifest in a folder; None if there is none.

        Raises:
            ConfigError: the file is not a manifest, or one of another version of headrace.
        """
        url = files.join(folder, MANIFEST_NAME)
        if (raw := files.read_bytes(url)) is None:
            return None
        try:
            content = json.loads(raw)
            version = content.get("format_version")
            if version != FORMAT_VERSION:
                raise ConfigError(
                    of_another_version(version, FORMAT_VERSION),
                    field="manifest",
                    value=url,
                    cure="Take another folder for this run.",
                )
            earlier = content.get("history", ())
            history = (
                {**h, "fingerprint": str(h["fingerprint"]), "until_step": int(h["until_step"])}
                for h in earlier
            )
            config = content.get("config")
            return cls(
                dict(content["resolved"]), tuple(history), None if config is None else dict(config)
            )
        except (
            ValueError,
            KeyError,
            TypeError,
            AttributeError,
            OverflowError,
            RecursionError,
        ) as error:
            raise ConfigError(
                f"is not a run's manifest ({error})", field="manifest", value=url
            ) from error


def _mixture_amended(
    new: dict[str, Any], old: dict[str, Any], *, future: bool = False
) -> int | None:
    """The step from which on a mixture differs from an old one only by stages added at the end;
    None if it differs otherwise. With ``future``, the whole mixture comes after the added stages,
    so earlier draws may differ. Changes both descriptions.
    """
    weighed = _loss_weights_differ(
        new.pop("loss_weights", {}), old.pop("loss_weights", {}), old["names"]
    )
    old_stages = old.pop("stages")
    new_stages = new.pop("stages")
    # Sources that are new and have no weight in an old stage are not in it until they get one.
    drawn = [_take_out_newcomers(stage, old["names"]) for stage in new_stages[: len(old_stages)]]
    new["names"] = new["names"][: len(old["names"])]  # new components come last
    components = old["components"]
    new.setdefault("snapshots", {})
    old.setdefault("snapshots", {})
    for part in ("components", "limits", "snapshots"):  # what only the new stages use may be new
        new[part] = {k: v for k, v in new[part].items() if k in components}
    if future:
        for mixture in (new, old):
            del mixture["limits"]
            mixture["components"] = {
                name: part["whole"] for name, part in mixture["components"].items()
            }
    added = [int(stage["step"]) for stage in new_stages[len(old_stages) : len(old_stages) + 1]]
    steps = [*added, *(step for step in (*drawn, weighed) if step is not None)]
    return (
        min(steps) if steps and new_stages[: len(old_stages)] == old_stages and new == old else None
    )


def _take_out_newcomers(stage: dict[str, Any], known: Sequence[str]) -> int | None:
    """Takes sources that are not known out of a described stage that does not draw from them at its
    begin.

    Returns the first step at which it does, or after which it may; None if there are no such
    sources.
    """
    newcomers = [name for name in sources_of(stage["weights"]) if name not in known]
    first_drawn: list[int] = []
    for path, weight in weights_by_place(stage["weights"]).items():
        if path[-1] not in newcomers:
            continue
        if len(path) > 1:  # its group has a share, whatever its own weight
            return None
        curve = weight_from_config(weight)
        breaks = {stage["step"], *(step for step in curve.breaks if step > stage["step"])}
        at = np.asarray(sorted(breaks | {step + 1 for step in breaks}))
        drawn = at[curve.at(at) > 0]
        first_drawn.append(int(drawn[0]) if drawn.size else MAX_STEP)
    if not first_drawn or min(first_drawn) <= stage["step"]:
        return None
    if "components" in stage:
        stage["components"] = [name for name in stage["components"] if name in known]
    stage["weights"] = without_sources(stage["weights"], newcomers)
    for part in ("max_share", "row_tokens"):
        if part in stage:
            stage[part] = {name: stage[part][name] for name in stage[part] if name in known}
    return min(first_drawn)


def _loss_weights_differ(
    new: Mapping[str, Any], old: Mapping[str, Any], names: Sequence[str]
) -> int | None:
    """The first step at which loss weights of common components differ; None if they never do."""
    first: list[int] = []
    for name in names:
        pair = [weight_from_config(weights.get(name, 1.0)) for weights in (new, old)]
        bends = {
            0,
            *(step for weight in pair for step in weight.breaks),
        }  # linear in between: one step later suffices
        at = np.asarray(sorted(bends | {step + 1 for step in bends}))
        first += at[np.flatnonzero(pair[0].at(at) != pair[1].at(at))[:1]].tolist()
    return min(first, default=None)


def _phases_amended(new: list[dict[str, Any]], old: list[dict[str, Any]]) -> int | None:
    """The same for a mixture whose rows change their length. The starts of phases after the
    amendment may differ.
    """
    if [phase["step"] for phase in new] != [phase["step"] for phase in old]:
        return None
    first = int(new[0]["dataset"]["stages"][len(old[0]["dataset"]["stages"])]["step"])
    pairs = zip(new, old, strict=True)
    steps = {
        _mixture_amended(n["dataset"], o["dataset"], future=n["step"] > first) for n, o in pairs
    }
    return first if steps == {first} else None


class Anchors:
    """The anchors in a run's folder. Anchors of another run, or from before an amendment, are
    ignored.
    """

    def __init__(self, folder: str, manifest: RunManifest, loader: object) -> None:
        self._url = files.join(folder, ANCHORS_NAME)
        self._fingerprint = manifest.fingerprint
        self._loader = loader
        self._until = {h["fingerprint"]: h["until_step"] for h in manifest.history} | {
            self._fingerprint: MAX_STEP
        }

    def load(self) -> dict[int, Anchor]:
        """Anchors by step; empty if there is no file, or if it is damaged or of another run."""
        try:
            content = json.loads(files.read_bytes(self._url) or b"{}")
            anchors = cast(dict[str, Anchor], content["anchors"])
            until = (
                self._until.get(content["fingerprint"], -1)
                if content["sha256"] == _digest(anchors)
                else -1
            )
            return {int(step): anchor for step, anchor in anchors.items() if int(step) <= until}
        except (
            OSError,
            HeadraceError,
            ValueError,
            KeyError,
            TypeError,
            AttributeError,
            RecursionError,
        ):
            return {}

    def use(self, step: int | None) -> None:
        """Passes the last anchor up to ``step`` to the loader (all if it is None), and saves one at
        ``step``.
        """
        anchors = self.load()
        steps = list(anchors) if step is None else sorted(at for at in anchors if at <= step)[-1:]
        for at in steps:
            if (draws := _draws_at(self._loader, at)) is not None:
                with contextlib.suppress(ConfigError):  # then the state is counted up to the step
                    draws.use_anchor(anchors[at])
        if step is not None and step not in anchors:
            self.save(step)

    def save(self, step: int) -> None:
        """Saves an anchor at ``step``, if the dataset has any. All processes of a run may call it
        at the same time.
        """
        draws = _draws_at(self._loader, step) if step > 0 else None
        try:
            anchor = None if draws is None else draws.anchor_at(step)
        except IndexOutOfRangeError:  # past the end
            return
        if anchor is None:
            return
        by_step = {**self.load(), step: anchor}
        while (
            len(by_step) > _MOST_ANCHORS
        ):  # thin out where they are densest, except for the latest
            steps = sorted(by_step)
            gaps = [
                (following - previous, at)
                for previous, at, following in zip(steps, steps[1:], steps[2:-1], strict=False)
            ]
            del by_step[min(gaps)[1]]
        anchors = {str(at): by_step[at] for at in sorted(by_step)}
        content = {"fingerprint": self._fingerprint, "sha256": _digest(anchors), "anchors": anchors}
        with contextlib.suppress(
            OSError, HeadraceError
        ):  # a checkpoint must not fail because of anchors
            files.write_atomic(self._url, json.dumps(content).encode() + b"\n", shared=True)


def _planned(loader: object) -> Any:
    """The loader's dataset without ``map`` wrappers; None if it has none."""
    return getattr(getattr(loader, "dataset", None), "planned", None)


def _draws_at(loader: object, step: int) -> Draws | None:
    """The draws of the loader's mixture at ``step``, for the row length of that step."""
    planned = _planned(loader)
    mixture = None if planned is None else planned.at_step(step)[0].mixture
    return None if mixture is None else mixture.draws


def _digest(anchors: Mapping[str, Anchor]) -> str:
    return hashlib.sha256(json.dumps(anchors, sort_keys=True).encode()).hexdigest()


def open_run(
    folder: str | os.PathLike[str], loader: Described, step: int | LoaderState | None = None
) -> RunManifest:
    """Starts a run in ``folder``, or checks that the run there is the same one.

    An amendment must begin at a step that is not done yet, and is then recorded.

    Args:
        folder: Path or URL of the run's folder.
        loader: The run's loader.
        step: Number of completed steps, or the state in the checkpoint from which the run goes on;
            None: those of the last checkpoint that the folder knows of (:meth:`RunManifest.state`).
            If it is given, the loader is prepared for it, with an anchor of the folder or by
            counting.

    Returns:
        The manifest; its :meth:`~RunManifest.state` saves an anchor in the folder at each
        checkpoint.

    Raises:
        PlanMismatchError: the folder has another run (the message shows the differences), the state
            belongs to another run, or an amendment changes the past.

    Example:
        >>> import headrace.testing, tempfile
        >>> from headrace import DataLoader, TokenSeqDataset
        >>> loader = DataLoader(
        ...     TokenSeqDataset(headrace.testing.tiny_cache(), seq_len=8), batch_size=8
        ... )
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     open_run(folder, loader).state(20).step
        20
    """
    check_path("folder", folder, "Give a folder of the run's own: runs/1.")
    if not hasattr(loader, "describe"):
        raise ConfigError(
            "is not a loader", field="loader", value=loader, cure="Give config.loader()."
        )
    folder = os.fspath(folder)
    begun_loader = _as_begun(folder, loader)
    if isinstance(step, LoaderState):
        # before anything is recorded: the state is of the run in the folder, before or after the
        # amendment
        (RunManifest.load(folder) or begun_loader).check(step)
        step = step.step
    step = None if step is None else steps_done(step)
    manifest = _opened(folder, begun_loader, step)
    anchors = Anchors(folder, manifest, loader)
    anchors.use(step)
    return replace(manifest, anchors=anchors)


def last_checkpoint(folder: str, manifest: RunManifest) -> int | None:
    """Steps that were done at the last checkpoint that a run's folder knows of; None if it knows of
    none.
    """
    return max(Anchors(folder, manifest, None).load(), default=None)


def steps_done(step: int) -> int:
    """A number of steps, whatever its integer type; ConfigError if it is none."""
    step = as_whole("step", step)
    check_at_least("step", step, 0, "Give the number of steps that are done.")
    return step


def _as_begun(folder: str, loader: Described) -> RunManifest:
    """The loader's manifest, with settings that its config omits taken from the run
    in the folder.
    """
    begin_as = getattr(loader, "begin_as", None)
    if begin_as is not None and (beginning := began_with(folder)) is not None:
        begin_as(beginning)
    return RunManifest.of(loader)


def began_with(folder: str | None) -> Beginning | None:
    """What the run in a folder was started with; None if there is none."""
    manifest = None if folder is None else RunManifest.load(folder)
    if manifest is None:
        return None
    return beginning_of(manifest.resolved)._replace(config=manifest.config)


def _opened(folder: str, mine: RunManifest, step: int | None) -> RunManifest:
    stored = RunManifest.load(folder)
    if stored is None:
        mine.save(folder)
        return mine
    if mine.fingerprint == stored.fingerprint:
        return stored
    if (first := mine.amends(stored)) is None:
        stored.check_same(mine, folder)
    else:
        _check_future(first, step, folder, stored)
    history = (*stored.history, {"fingerprint": stored.fingerprint, "until_step": first})
    amended = replace(mine, history=history)
    amended.save(folder)
    return amended


def _check_future(first: int, step: int | None, folder: str, stored: RunManifest) -> None:
    """Raises PlanMismatchError unless an amendment from step ``first`` on changes only what is not
    done yet.
    """
    steps_done = last_checkpoint(folder, stored) if step is None else step
    if steps_done is not None and first >= steps_done:
        return
    problem = f"may touch the past: {steps_done} steps are done"
    cure = f"Begin it at step {steps_done} or later."
    if steps_done is None:
        problem = f"may touch the past: {folder} knows of no checkpoint"
        cure = (
            "Give the steps that are done: open_run(folder, loader, 0), or those of your"
            " checkpoint."
        )
    elif step is None:
        problem = f"{problem} at the last checkpoint"
        cure = (
            f"{cure} If you go back to an earlier checkpoint, say so: open_run(folder, loader,"
            f" {first})."
        )
    raise PlanMismatchError(problem, field="amendments.step", value=first, cure=cure)


def _plain(value: object) -> int | float:
    if isinstance(value, np.integer | np.floating):
        return value.item()
    raise TypeError(f"{type(value).__name__} is no JSON value")
