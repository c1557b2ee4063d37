"""headrace feeds language-model training in JAX: every example of every step is a pure function of (config, seed,
step).

The names below are the public API; they are loaded on first use, so that ``import headrace`` alone costs nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headrace.config import ComponentConfig, LmDataConfig, load_config
    from headrace.data.batch import PackedBatch
    from headrace.data.dataset import AsyncDataset
    from headrace.data.mixture import MixtureDataset
    from headrace.data.token_seq import TokenSeqDataset
    from headrace.errors import ConfigError, HeadraceError
    from headrace.feed.loader import DataLoader
    from headrace.index.schedule import BatchSchedule
    from headrace.index.shuffle_config import BlockShuffleConfig, BraidShuffleConfig
    from headrace.ingest.build import build_cache
    from headrace.ingest.source import SourceConfig
    from headrace.ingest.tokenize import TokenizerConfig
    from headrace.metrics import LoaderStats
    from headrace.state import LoaderState, RunManifest, open_run
    from headrace.store.cache import TokenCache

_HOMES = {
    "AsyncDataset": "headrace.data.dataset",
    "BatchSchedule": "headrace.index.schedule",
    "BlockShuffleConfig": "headrace.index.shuffle_config",
    "BraidShuffleConfig": "headrace.index.shuffle_config",
    "ComponentConfig": "headrace.config",
    "ConfigError": "headrace.errors",
    "DataLoader": "headrace.feed.loader",
    "HeadraceError": "headrace.errors",
    "LmDataConfig": "headrace.config",
    "LoaderState": "headrace.state",
    "LoaderStats": "headrace.metrics",
    "MixtureDataset": "headrace.data.mixture",
    "PackedBatch": "headrace.data.batch",
    "RunManifest": "headrace.state",
    "SourceConfig": "headrace.ingest.source",
    "TokenCache": "headrace.store.cache",
    "TokenSeqDataset": "headrace.data.token_seq",
    "TokenizerConfig": "headrace.ingest.tokenize",
    "build_cache": "headrace.ingest.build",
    "load_config": "headrace.config",
    "open_run": "headrace.state",
}

__all__ = [
    "AsyncDataset",
    "BatchSchedule",
    "BlockShuffleConfig",
    "BraidShuffleConfig",
    "ComponentConfig",
    "ConfigError",
    "DataLoader",
    "HeadraceError",
    "LmDataConfig",
    "LoaderState",
    "LoaderStats",
    "MixtureDataset",
    "PackedBatch",
    "RunManifest",
    "SourceConfig",
    "TokenCache",
    "TokenSeqDataset",
    "TokenizerConfig",
    "build_cache",
    "load_config",
    "open_run",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'headrace' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
