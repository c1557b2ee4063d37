"""Anchors: a mixture's counts at the checkpoints of a run, so that a resumed run need not count up
to its step.

They are in a file beside the lock, since every process saves them at every checkpoint, and the lock
must not change while a command amends it. If the file is deleted, damaged or of another run,
counting costs 2 us per step with weights that change, and almost nothing with constant ones.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Mapping
from typing import cast

from headrace.errors import ConfigError, HeadraceError, IndexOutOfRangeError
from headrace.mix.draws import Draws
from headrace.mix.policy import Anchor
from headrace.mix.schedule import MAX_STEP
from headrace.run.lock import RunLock, mixture_at
from headrace.store import files

ANCHORS_NAME = "anchors.json"
_MOST_ANCHORS = 32


class Anchors:
    """The anchors in a run's folder. Anchors of another run, or from before an amendment, are
    ignored.
    """

    def __init__(self, folder: str, lock: RunLock, loader: object) -> None:
        self._url = files.join(folder, ANCHORS_NAME)
        self._fingerprint = lock.fingerprint
        self._loader = loader
        self._until = {h["fingerprint"]: h["until_step"] for h in lock.history} | {
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
        """Passes the last anchor up to ``step`` to the loader (all if it is None)."""
        anchors = self.load()
        steps = list(anchors) if step is None else sorted(at for at in anchors if at <= step)[-1:]
        for at in steps:
            if (draws := _draws_at(self._loader, at)) is not None:
                with contextlib.suppress(ConfigError):  # then the state is counted up to the step
                    draws.use_anchor(anchors[at])

    def save(self, step: int) -> None:
        """Saves an anchor at ``step``, if the dataset has any and the file does not have it yet.
        All processes of a run may call it at the same time.
        """
        by_step = self.load()
        if step in by_step:
            return
        draws = _draws_at(self._loader, step) if step > 0 else None
        try:
            anchor = None if draws is None else draws.anchor_at(step)
        except IndexOutOfRangeError:  # past the end
            return
        if anchor is None:
            return
        by_step[step] = anchor
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


def _draws_at(loader: object, step: int) -> Draws | None:
    """The draws of the loader's mixture at ``step``."""
    mixture = mixture_at(loader, step)
    return None if mixture is None else mixture.draws


def _digest(anchors: Mapping[str, Anchor]) -> str:
    return hashlib.sha256(json.dumps(anchors, sort_keys=True).encode()).hexdigest()


def last_checkpoint(folder: str, lock: RunLock) -> int | None:
    """Steps that were done at the last checkpoint that a run's folder knows of; None if it knows of
    none.
    """
    return max(Anchors(folder, lock, None).load(), default=None)
