"""One training run of an experiment: a config in, losses and counters out.

The model is the demo's small transformer, the optimizer its AdamW with a cosine decay; both follow
from the seed, the order from ``LmDataConfig``. Blocks are read through TensorStore and not from
mapped files (``memory_map=False``), so that reads are counted as they would be issued to an object
store, and the loader may hold only ``prefetch_bytes``.

Price: 16 s of one core for 805 steps of 1,024 tokens and 4 validations, once compiled (8 s).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh
from jaxtyping import Array, Float, Float64

from headrace import DataLoader, LmDataConfig, PackedBatch
from headrace.batch import pack_rows
from headrace.data import PlannedDataset
from headrace.demo import Transformer
from headrace.demo.train import make_optimizer, train_step
from headrace.store import TokenCache
from headrace.testing.caches import SlowArray, with_arrays


@dataclass(frozen=True)
class ModelSpec:
    """The model and its optimizer.

    Attributes:
        vocab_size: Entries of the vocabulary.
        dim: Width.
        layers: Number of blocks.
        heads: Attention heads.
        peak_lr: Highest learning rate.
        compute: Type in which a step computes; weights, logits and losses are float32 always.
    """

    vocab_size: int
    dim: int
    layers: int
    heads: int
    peak_lr: float
    compute: str = "float32"

    def initial(self, seed: int) -> Transformer:
        """The untrained model of a seed."""
        key = jax.random.key(seed)
        return Transformer(
            self.vocab_size, dim=self.dim, layers=self.layers, heads=self.heads, key=key
        )


class Computing(eqx.Module):
    """A model that computes in another type than that of its weights; its logits are float32."""

    model: Transformer
    dtype: str = eqx.field(static=True)

    def __call__(self, *row: Array) -> Float[Array, "seq vocab"]:
        def cast(leaf: Any) -> Any:
            return leaf.astype(self.dtype) if eqx.is_inexact_array(leaf) else leaf

        return jax.tree.map(cast, self.model)(*row).astype(jnp.float32)


@dataclass(frozen=True)
class Evaluation:
    """Rows that a model is judged by.

    Attributes:
        tokens: int32 ``[rows, seq]``.
        group: Number of the source of each row.
        names: Names of the sources.
    """

    tokens: np.ndarray
    group: np.ndarray
    names: tuple[str, ...]

    def by_name(self, losses: Float64[np.ndarray, " rows"]) -> dict[str, float]:
        """Mean loss of each source that has rows."""
        found = {n: losses[self.group == k] for k, n in enumerate(self.names)}
        return {n: float(of.mean()) for n, of in found.items() if of.size}


@dataclass
class TrainedRun:
    """What a run left: the model, and what there is to write down."""

    model: Transformer
    record: dict[str, Any]


def one_device() -> Mesh:
    """A mesh of one device: an accelerator where there is one."""
    return Mesh(np.array(jax.devices()[:1]), ("data",))


def train(
    config: LmDataConfig,
    model: ModelSpec,
    evaluation: Evaluation,
    *,
    steps: int,
    seed: int,
    evaluations: int = 4,
    progress: Callable[[int, float], None] | None = None,
) -> TrainedRun:
    """Trains from the beginning to the end of a schedule.

    Args:
        config: The data.
        model: What is trained.
        evaluation: What it is judged by, at the end and ``evaluations - 1`` times before.
        steps: Steps of the run, and of the learning rate's schedule.
        seed: Of the initial weights.
        evaluations: How often the validation loss is taken.
        progress: Told the steps done and the loss.
    """
    optimizer = _optimizer(steps, model.peak_lr)
    trained: Any = Computing(model.initial(seed), model.compute)
    state = optimizer.init(eqx.filter(trained, eqx.is_array))
    when = {round(steps * (k + 1) / evaluations) for k in range(evaluations)}
    curve: list[list[float]] = []
    losses: list[Array] = []
    by_name: dict[str, float] = {}
    training_s = 0.0
    with _loader(config) as loader, loader.iter_from_step(0) as batches:
        started = time.perf_counter()
        for step in range(steps):
            trained, state, loss = train_step(trained, state, optimizer, next(batches))
            losses.append(loss)
            if step + 1 in when:
                jax.block_until_ready(loss)
                training_s += time.perf_counter() - started
                per_row = row_losses(trained.model, evaluation.tokens)
                curve.append([step + 1, float(per_row.mean())])
                by_name = evaluation.by_name(per_row)
                if progress is not None:
                    progress(step + 1, curve[-1][1])
                started = time.perf_counter()
        stats = loader.stats()
    reads = stats.reads
    trained_on = np.asarray(jnp.stack(losses), np.float64)
    record = {
        "val_loss": curve[-1][1],
        "val_loss_by_source": by_name,
        "val_curve": curve,
        "train_curve": _binned(trained_on, 40),
        "steps": steps,
        "train_tokens_per_s": steps * _batch_tokens(config) / training_s,
        "waiting_share": stats.waiting_share,
        "reads_per_example": reads.reads_per_example,
        "reads": reads.tensorstore_reads_issued,
        "bytes_read": reads.bytes_read,
        "examples": reads.examples_requested,
    }
    return TrainedRun(trained.model, record)


def data_alone(config: LmDataConfig, *, steps: int, latency_s: float = 0.0) -> float:
    """Tokens a second that the loader delivers without a trainer, with every read ``latency_s``
    seconds away.
    """
    opened = config.open_caches()
    slow = (
        {name: _delayed(cache, latency_s) for name, cache in opened.items()}
        if latency_s
        else opened
    )
    with _loader(config, slow) as loader, loader.iter_from_step(0) as batches:
        started = time.perf_counter()
        for _ in range(steps):
            jax.block_until_ready(next(batches).token_ids)
        return steps * _batch_tokens(config) / (time.perf_counter() - started)


def row_losses(
    model: Transformer, tokens: np.ndarray, *, rows: int = 64
) -> Float64[np.ndarray, " n"]:
    """Mean loss of each row, in nats a token, ``rows`` at a time."""
    n = tokens.shape[0]
    padded = np.concatenate([tokens, np.zeros((-n % rows, tokens.shape[1]), tokens.dtype)])
    parts = [_row_losses(model, pack_rows(padded[lo : lo + rows])) for lo in range(0, n, rows)]
    return np.concatenate([np.asarray(part, np.float64) for part in parts])[:n]


def read_rows(dataset: PlannedDataset, indices: np.ndarray) -> np.ndarray:
    """Tokens of rows, int32 ``[n, seq]``."""
    return np.asarray(dataset.read(indices).token_ids, np.int32)


@eqx.filter_jit
def _row_losses(model: Transformer, batch: PackedBatch) -> Float[Array, " rows"]:
    logits = jax.vmap(model)(batch.tokens, batch.position_ids, batch.segment_ids)
    nll = optax.softmax_cross_entropy_with_integer_labels(logits, batch.labels)
    return (batch.token_weights * nll).sum(axis=1) / batch.token_weights.sum(axis=1)


@lru_cache
def _optimizer(steps: int, peak_lr: float) -> optax.GradientTransformation:
    """One object for all runs of a study: jit compiles a training step for each optimizer that it
    has not seen.
    """
    return make_optimizer(steps, peak_lr=peak_lr)


def _loader(config: LmDataConfig, caches: dict[str, TokenCache] | None = None) -> DataLoader:
    return DataLoader(
        config.with_caches(caches or {}).dataset(),
        mesh=one_device(),
        prefetch_bytes=config.prefetch_bytes,
        memory_map=False,
    )


def _delayed(cache: TokenCache, latency_s: float) -> TokenCache:
    return with_arrays(cache, lambda url, length, layout: SlowArray(url, length, layout, latency_s))


def _batch_tokens(config: LmDataConfig) -> int:
    if not isinstance(config.batch_size, int) or not isinstance(config.seq_len, int):
        raise TypeError("the experiments train with one batch size and one length of rows")
    return config.batch_size * config.seq_len


def _binned(values: Float64[np.ndarray, " n"], bins: int) -> list[list[float]]:
    """(Middle step, mean) of ``bins`` stretches."""
    pieces: Sequence[np.ndarray] = np.array_split(np.arange(len(values)), min(bins, len(values)))
    return [[float(piece.mean()), float(values[piece].mean())] for piece in pieces]
