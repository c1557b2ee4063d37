"""The seam to Levanter: headrace's batches in ``levanter.main.train_lm`` and in ``Trainer.train``.

Two routes deliver the same batches, row for row, so a run may change from one to the other at any checkpoint:

- :class:`~headrace.levanter.dataset.HeadraceDataset` is a dataset of Levanter's: its own ``DataLoader`` reads it, one
  example at a time. :class:`~headrace.levanter.config.HeadraceDataConfig` puts it where ``TrainLmConfig.data`` is;
- :class:`~headrace.levanter.loader.LmLoader` hands headrace's own loader to ``Trainer.train``;
  :func:`~headrace.levanter.loader.own_loader` and ``python -m headrace.levanter.train_lm`` do so for ``train_lm``.

Price: scripts/bench/bench_levanter.py measures both beside Levanter's own cache; docs/levanter.md says how to change.
Levanter is imported when one of these names is asked for: it takes seconds, and headrace works without it.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from headrace.errors import ConfigError

if TYPE_CHECKING:
    from headrace.levanter.config import HeadraceDataConfig
    from headrace.levanter.dataset import HeadraceDataset, direct_component
    from headrace.levanter.loader import LmBatches, LmLoader, own_loader
    from headrace.levanter.train_lm import TrainLmConfig

_HOMES = {
    "HeadraceDataConfig": "headrace.levanter.config",
    "HeadraceDataset": "headrace.levanter.dataset",
    "LmBatches": "headrace.levanter.loader",
    "LmLoader": "headrace.levanter.loader",
    "TrainLmConfig": "headrace.levanter.train_lm",
    "direct_component": "headrace.levanter.dataset",
    "own_loader": "headrace.levanter.loader",
}

INSTALL = "pip install marin-levanter==0.2.20.dev202606180959 gitpython  (Python 3.11)"

__all__ = [
    "HeadraceDataConfig",
    "HeadraceDataset",
    "LmBatches",
    "LmLoader",
    "TrainLmConfig",
    "direct_component",
    "own_loader",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'headrace.levanter' has no attribute {name!r}")
    try:
        return getattr(importlib.import_module(_HOMES[name]), name)
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] not in ("levanter", "haliax", "draccus"):
            raise
        raise ConfigError(
            "needs the package marin-levanter",
            field=f"headrace.levanter.{name}",
            cure=INSTALL,
        ) from error


def __dir__() -> list[str]:
    return sorted(__all__)
