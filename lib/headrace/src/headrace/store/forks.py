"""What ``os.fork`` does to stores: a child has none of its parent's threads, and TensorStore cannot do without.

In a child of a process that has used TensorStore a read would wait for ever; it is an error instead. Processes that
read must be started with ``spawn`` or ``forkserver``, or forked before the parent's first read.
"""

from __future__ import annotations

import os

from headrace.errors import ReadError


class _Used:
    process: int | None = None  # the first that used TensorStore


def check_same_process() -> None:
    """Says that TensorStore is about to be used; costs 0.1 us.

    Raises:
        ReadError: a parent of this process has used it, then forked.
    """
    here = os.getpid()
    if _Used.process is None:
        _Used.process = here
    elif _Used.process != here:
        raise ReadError(
            f"reads in a process that was forked from process {_Used.process}, whose reading threads it does not have",
            field="process",
            value=here,
            cure='Start such processes with multiprocessing.get_context("spawn") or "forkserver", or fork before the'
            " first read; in a torch DataLoader: multiprocessing_context='spawn'.",
        )
