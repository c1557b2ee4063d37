"""The interface to Levanter: headrace's batches in ``levanter.main.train_lm`` and in
``Trainer.train``.

Two routes deliver the same batches, row for row, so a run can change from one to the other at any
checkpoint:

- :class:`~headrace_levanter.dataset.HeadraceDataset` is a Levanter dataset, which Levanter's
  ``DataLoader`` reads one example at a time. :class:`~headrace_levanter.config.HeadraceDataConfig`
  makes it the ``data`` of ``TrainLmConfig``;
- :class:`~headrace_levanter.loader.LmLoader` passes headrace's own loader to ``Trainer.train``;
  :func:`~headrace_levanter.loader.own_loader` and ``python -m headrace_levanter.train_lm`` do so
  for ``train_lm``.

Price: scripts/bench/bench_levanter.py compares both with Levanter's own cache; docs/levanter.md
explains how to switch. Levanter is imported only when one of these names is used: the import takes
seconds, and headrace works without it.
"""

from typing import Any

import lazy_loader

from headrace_levanter.needs import of_levanter, wrong_levanter

_load, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)


def __getattr__(name: str) -> Any:
    try:
        return _load(name)
    except ImportError as error:
        if not of_levanter(error):
            raise
        raise wrong_levanter(error, f"headrace_levanter.{name}") from error
