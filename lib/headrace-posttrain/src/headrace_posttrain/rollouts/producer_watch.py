"""``ProducerWatch``: whether any producer may sample what a step waits for; if none does for long,
the step ends.
"""

from __future__ import annotations

import time

from headrace.errors import HostError
from headrace.store import lease
from headrace.store.lease import LeaseWatch
from headrace_posttrain.rollouts.store import RolloutStore


class ProducerWatch:
    """Looks at the leases of the producers that may sample a position.

    A producer may sample a position of its share, while its process has its log open. One that is
    started anew, or later than the trainer, is waited for as long as a process that makes steps is
    (``lease.NEVER_S``).
    """

    def __init__(self, store: RolloutStore) -> None:
        self._store = store
        self._leases: dict[str, LeaseWatch] = {}
        self._at_work_s = time.monotonic()

    def begin_step(self) -> None:
        """Starts to wait."""
        self._at_work_s = time.monotonic()

    def describe(self, position: int | None) -> str:
        """What a step waits for, and who may sample it."""
        what = "groups" if position is None else f"the group of position {position}"
        at_work = self._at_work(position)
        if at_work:
            return f"{what}, from {', '.join(at_work)}"
        shares = ", ".join(
            f"{name} (share {number} of {producers})"
            for name, (number, producers) in sorted(self._store.shares.items())
        )
        known = f"of these has ended, or has another share: {shares}" if shares else "has started"
        return f"{what}, which nobody samples: {'each' if shares else 'no producer'} {known}"

    def check(self, position: int | None) -> None:
        """Raises HostError if nobody has been able to sample a position (None: any) for long."""
        now = time.monotonic()
        if self._at_work(position):
            self._at_work_s = now
            return
        if now - self._at_work_s <= lease.NEVER_S:
            return
        problem = f"stand still: the step has waited {now - self._at_work_s:.0f} s for "
        of_share = ""
        if position is not None and self._store.shares:
            producers = max(of for _, of in self._store.shares.values())
            of_share = f" with share=({position % producers}, {producers})"
        cure = (
            f"Start a producer that calls produce(){of_share}, then this run again: it goes on"
            " with this step."
        )
        raise HostError(
            problem + self.describe(position),
            field="rollouts",
            value=self._store.folder,
            cure=cure,
        )

    def _at_work(self, position: int | None) -> list[str]:
        """Names of producers that may sample the position."""
        names: list[str] = []
        for name, folder in sorted(self._store.producers.items()):
            number, producers = self._store.shares.get(name, (0, 1))
            if position is not None and position % producers != number:
                continue
            watch = self._leases.get(name)
            if watch is None:
                watch = self._leases[name] = LeaseWatch(folder)
            if watch.absence_s() <= watch.limit_s and watch.holder is not None:
                names.append(name)
        return names
