"""headrace feeds language-model training in JAX: every example of every step is a pure function of (config, seed,
step).

The names below are the public API; they are loaded on first use, so that ``import headrace`` alone costs nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headrace.component_config import ComponentConfig
    from headrace.config import LmDataConfig, load_config
    from headrace.data.batch import PackedBatch
    from headrace.data.dataset import AsyncDataset
    from headrace.data.examples import Example, pack_examples
    from headrace.data.loss import unified_loss
    from headrace.data.mixture import MixtureDataset
    from headrace.data.packing import PackedTokenDataset
    from headrace.data.preference import pack_pairs
    from headrace.data.rl.dataset import RLDataset
    from headrace.data.rl.groups import Sampler, ScoredGroup
    from headrace.data.rl.store import RolloutStore
    from headrace.data.token_seq import TokenSeqDataset
    from headrace.errors import ConfigError, HeadraceError
    from headrace.feed.loader import DataLoader
    from headrace.index.blend import temperature_weights, unimax_weights
    from headrace.index.least_consumed import LeastConsumed, build_interleaved_dataset
    from headrace.index.packing.plan import PackPlan, plan_packs
    from headrace.index.packing_config import PackingConfig
    from headrace.index.schedule import BatchSchedule
    from headrace.index.shuffle_config import BlockShuffleConfig, BraidShuffleConfig
    from headrace.index.stage_config import AmendmentConfig, StageConfig
    from headrace.index.stage_plan import PlannedStage, StagePlan, StageStream
    from headrace.index.validation_config import ValidationConfig
    from headrace.ingest.build import build_cache
    from headrace.ingest.source import SourceConfig
    from headrace.ingest.tokenize import TokenizerConfig
    from headrace.metrics import LoaderStats
    from headrace.state import LoaderState, RunManifest, open_run
    from headrace.store.cache import TokenCache

_HOMES = {
    "AmendmentConfig": "headrace.index.stage_config",
    "AsyncDataset": "headrace.data.dataset",
    "BatchSchedule": "headrace.index.schedule",
    "BlockShuffleConfig": "headrace.index.shuffle_config",
    "BraidShuffleConfig": "headrace.index.shuffle_config",
    "ComponentConfig": "headrace.component_config",
    "ConfigError": "headrace.errors",
    "DataLoader": "headrace.feed.loader",
    "Example": "headrace.data.examples",
    "HeadraceError": "headrace.errors",
    "LeastConsumed": "headrace.index.least_consumed",
    "LmDataConfig": "headrace.config",
    "LoaderState": "headrace.state",
    "LoaderStats": "headrace.metrics",
    "MixtureDataset": "headrace.data.mixture",
    "PackPlan": "headrace.index.packing.plan",
    "PackedBatch": "headrace.data.batch",
    "PackedTokenDataset": "headrace.data.packing",
    "PackingConfig": "headrace.index.packing_config",
    "PlannedStage": "headrace.index.stage_plan",
    "RLDataset": "headrace.data.rl.dataset",
    "RolloutStore": "headrace.data.rl.store",
    "RunManifest": "headrace.state",
    "Sampler": "headrace.data.rl.groups",
    "ScoredGroup": "headrace.data.rl.groups",
    "SourceConfig": "headrace.ingest.source",
    "StageConfig": "headrace.index.stage_config",
    "StagePlan": "headrace.index.stage_plan",
    "StageStream": "headrace.index.stage_plan",
    "TokenCache": "headrace.store.cache",
    "TokenSeqDataset": "headrace.data.token_seq",
    "TokenizerConfig": "headrace.ingest.tokenize",
    "ValidationConfig": "headrace.index.validation_config",
    "build_cache": "headrace.ingest.build",
    "build_interleaved_dataset": "headrace.index.least_consumed",
    "load_config": "headrace.config",
    "open_run": "headrace.state",
    "pack_examples": "headrace.data.examples",
    "pack_pairs": "headrace.data.preference",
    "plan_packs": "headrace.index.packing.plan",
    "temperature_weights": "headrace.index.blend",
    "unified_loss": "headrace.data.loss",
    "unimax_weights": "headrace.index.blend",
}

__all__ = [
    "AmendmentConfig",
    "AsyncDataset",
    "BatchSchedule",
    "BlockShuffleConfig",
    "BraidShuffleConfig",
    "ComponentConfig",
    "ConfigError",
    "DataLoader",
    "Example",
    "HeadraceError",
    "LeastConsumed",
    "LmDataConfig",
    "LoaderState",
    "LoaderStats",
    "MixtureDataset",
    "PackPlan",
    "PackedBatch",
    "PackedTokenDataset",
    "PackingConfig",
    "PlannedStage",
    "RLDataset",
    "RolloutStore",
    "RunManifest",
    "Sampler",
    "ScoredGroup",
    "SourceConfig",
    "StageConfig",
    "StagePlan",
    "StageStream",
    "TokenCache",
    "TokenSeqDataset",
    "TokenizerConfig",
    "ValidationConfig",
    "build_cache",
    "build_interleaved_dataset",
    "load_config",
    "open_run",
    "pack_examples",
    "pack_pairs",
    "plan_packs",
    "temperature_weights",
    "unified_loss",
    "unimax_weights",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'headrace' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
