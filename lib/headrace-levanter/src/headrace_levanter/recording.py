"""What Levanter's trainer does, recorded in the folder of its headrace run: losses and the loader's
counters for ``headrace run report``, and which steps its checkpoints have, without which ``headrace
run amend`` would not know what is done.
"""

from __future__ import annotations

from typing import Any

from levanter.callbacks import Callback
from levanter.trainer import Trainer

from headrace.feed.run_log import HasStats, RunLog
from headrace.run.run import Run


class RunRecord(Callback[Any]):
    """A hook of the trainer, for every step.

    Args:
        run: The run.
        trainer: The trainer, whose hook that saves checkpoints comes before this one.
        loader: headrace's loader; None: Levanter's, whose counters are not those of the report.
    """

    def __init__(self, run: Run, trainer: Trainer, loader: HasStats | None) -> None:
        self._run = run
        self._trainer = trainer
        self._log = RunLog(loader, run.folder)

    def on_step(self, info: Any, force: bool = False) -> None:
        """Records a step; the call with ``force``, after training, records no further one."""
        if not force:
            self._log(info.step, train={"loss": info.loss})
        # Levanter tells no hook that it has saved; a release that renames these two attributes
        # fails here at the first step, also in the tests with its newest release.
        checkpointer = self._trainer._checkpointer  # pyright: ignore[reportPrivateUsage]
        if checkpointer is not None:
            last = checkpointer._last_save_step  # pyright: ignore[reportPrivateUsage]
            if 0 < last == info.step:  # 0 before the first
                self._run.state(info.next_step)
        if force:
            self._log.close()
