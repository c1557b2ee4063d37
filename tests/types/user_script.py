"""What a user writes with the public names: it must pass a strict type checker. Not run."""

from __future__ import annotations

from collections.abc import Iterator

import jax
from jax.sharding import Mesh

import headrace
from headrace import (
    ComponentConfig,
    DataLoader,
    LmDataConfig,
    MixtureDataset,
    PackedBatch,
    SourceConfig,
    TokenizerConfig,
    TokenSeqDataset,
    build_cache,
    load_config,
    open_cache,
    open_run,
)
from headrace.errors import ConfigError
from headrace.metrics import LoaderStats
from headrace.mix import AmendmentConfig, BatchSchedule, StageConfig
from headrace.order import (
    BlockShuffleConfig,
    BraidShuffleConfig,
    ScoreShuffleConfig,
    SubsetConfig,
    ValidationConfig,
)
from headrace.pack import PackingConfig
from headrace.run import LoaderState


def build() -> int:
    """Builds a cache and counts its tokens."""
    report = build_cache(
        SourceConfig(["texts"], text_field="body"), TokenizerConfig("bytes"), "caches/code"
    )
    return report.tokens + open_cache(report.path).num_tokens


def config() -> LmDataConfig:
    """A config in Python."""
    return LmDataConfig(
        components={
            "code": ComponentConfig("caches/code", shuffle=BlockShuffleConfig(window_blocks=64)),
            "docs": ComponentConfig(
                "caches/docs",
                max_epochs=4.0,
                expected_tokens=2e11,
                packing=PackingConfig(long="truncate"),
            ),
            "pages": ComponentConfig("caches/pages", shuffle=ScoreShuffleConfig(by="length")),
        },
        stages=[StageConfig({"code": 1, "docs": {"linear": {0: 0.1, 1000: 1.0}}}, step=0)],
        amendments=[AmendmentConfig(500, weights={"docs": 3})],
        shuffle=BraidShuffleConfig(strands=1024),
        validation=ValidationConfig(one_in=100),
        subset=SubsetConfig(fraction=0.5),
        batch_size={0: 256, 10_000: 512},
    )


def train(mesh: Mesh, folder: str, start: int) -> Iterator[tuple[int, LoaderState, jax.Array]]:
    """Trains, and yields what goes into a checkpoint."""
    loaded: LmDataConfig = load_config("run.yaml", ["seed=1"])
    run = open_run(folder, loaded, step=start)
    loader: DataLoader = run.loader(mesh, batch_axis="data")
    with loader.iter_from_step(start) as batches:
        for step, batch in enumerate(batches, start=start):
            yield step, run.state(step + 1), loss(batch)
    stats: LoaderStats = loader.stats()
    print(stats.to_dict())


def loss(batch: PackedBatch) -> jax.Array:
    """A stand-in for a model."""
    weighted: jax.Array = (batch.labels * batch.token_weights).sum()
    return weighted / batch.token_weights.sum()


def mixture() -> MixtureDataset:
    """A mixture without a config."""
    sources = {name: TokenSeqDataset(f"caches/{name}", seq_len=128) for name in ("code", "docs")}
    shuffled = {
        name: source.braid_shuffle(batch_size=16, seed=0) for name, source in sources.items()
    }
    weights = {name: len(source) ** 0.5 for name, source in sources.items()}
    return MixtureDataset(shuffled, weights, batch_size=BatchSchedule({0: 32, 1000: 64}))


def main(mesh: Mesh) -> None:
    """Everything once."""
    print(build(), config().to_yaml(), mixture().draws.counts_at(0).tolist(), headrace.__version__)
    try:
        for step, state, value in train(mesh, "runs/1", 0):
            print(step, state.to_dict(), float(value))
    except ConfigError as error:
        print(error.field, error.cure)
