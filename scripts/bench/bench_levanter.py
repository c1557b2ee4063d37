"""Levanter's trainer fed by its own loader and by headrace's: the same tokens, a step that costs
nearly nothing.

    python scripts/bench/bench_levanter.py --json docs/bench/levanter.json

Rows of 2,048 tokens in batches of 128 go through ``Trainer.train``; the model is one number and the
loss a mean of the loss weights, so that what is measured is the way of the data to the trainer, and
the trainer itself.

- ``Levanter's loader, its cache``: a cache that Levanter's reader reads, in stored order and in its
  default shuffle.
- ``Levanter's loader, headrace dataset``: the same loader with the same settings on a
  ``HeadraceDataset``.
- ``headrace's loader``: an ``LmLoader`` in ``Trainer.train``.
- ``one batch again and again``: what the trainer can do without any loader.

``steps/s`` counts from the first batch to the last; ``first batch`` is the wait before. ``longest
wait`` is the longest time after that in which the trainer waited for its next batch; ``at a
border`` the longest where Levanter's loader turns to its next 32 batches. Run it on the newest
release (Python 3.12): the bars are those for it.
"""

from __future__ import annotations

import argparse
import itertools
import logging
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from _common import Report, run_bench

from headrace import TokenSeqDataset, open_cache
from headrace.store.layout import CacheLayout
from headrace.testing import write_cache
from headrace_levanter.export import write_levanter

SEQ_LEN = 2048
BATCH = 128
EXAMPLES = 16_384
VOCAB = 50_000
OWN_OVER_THEIRS = 20.0 if sys.version_info >= (3, 12) else 3.0
BORDER = 32
BORDER_WAIT_S = 0.05
DATASET_OVER_THEIRS = 1.0

Loader = Callable[[Any], Iterable[Any]]


class OneNumber(eqx.Module):
    """A model that costs nothing."""

    w: jax.Array


def loss_of(model: OneNumber, example: Any, *, key: Any = None) -> Any:
    """Touches what a loss touches, and computes nothing to speak of."""
    return (example.loss_weight * model.w).mean()


def make_trainer(folder: Path) -> Any:
    from levanter.checkpoint import CheckpointerConfig
    from levanter.tracker import NoopConfig
    from levanter.trainer import Trainer, TrainerConfig

    config = TrainerConfig(
        id="bench",
        tracker=NoopConfig(),
        train_batch_size=BATCH,
        num_train_steps=1 << 30,
        require_accelerator=False,
        checkpointer=CheckpointerConfig(base_path=str(folder / "checkpoints")),
        log_jaxprs=False,
        log_xla_hlo=False,
    )
    return Trainer(config, optax.sgd(1e-3), loss_of, add_default_hooks=False)


def their_dataset(path: str, shuffle: bool) -> Any:
    """The cache as ``LmDataConfig`` reads it: causal examples cut at the end of text, shuffled by
    its default.
    """
    import haliax as hax
    from levanter.data.text.datasets import DEFAULT_LM_DATA_SHUFFLE, CausalLmDataset, NamedLmDataset
    from levanter.data.text.datasets import TokenSeqDataset as TheirTokens
    from levanter.store.cache import TreeCache

    cache = TreeCache.load(path, {"input_ids": np.zeros(0, np.int32)})
    position = hax.Axis("position", SEQ_LEN)
    dataset: Any = CausalLmDataset(TheirTokens(cache, SEQ_LEN), position, eos_id=0)
    if shuffle:
        config = DEFAULT_LM_DATA_SHUFFLE
        blocks = max(min(config.window_blocks, EXAMPLES // config.io_block_size), 1)
        dataset = dataset.block_shuffle(
            io_block_size=config.io_block_size, window_blocks=blocks, key=jax.random.key(0)
        )  # a window no longer than the cache: it refuses others
    return NamedLmDataset(dataset, position)


def format_count(
    batches: Iterator[Any], steps: int, times: list[tuple[float, float]]
) -> Iterator[Any]:
    """So many batches, with the moments at which the trainer asked for each and got it."""
    for _ in range(steps):
        asked = time.perf_counter()
        batch = next(batches)
        times.append((asked, time.perf_counter()))
        yield batch


def feed(trainer: Any, batches: Iterator[Any], steps: int, started: float) -> list[float]:
    """Steps a second, seconds to the first batch, the longest wait after it, and the longest at a
    border.
    """
    state = trainer.initial_state(jax.random.PRNGKey(0), model=OneNumber(jnp.ones(())))
    times: list[tuple[float, float]] = []
    trainer.train(state, format_count(batches, steps, times))
    asked, received = np.asarray(times).T
    # the first step compiles
    between = np.diff(received[1:])
    waits = received - asked
    close = getattr(batches, "close", None) or getattr(
        getattr(batches, "_batches", None), "stop", None
    )
    if close is not None:
        close()
    return [
        between.size / between.sum(),
        received[0] - started,
        float(waits[2:].max()),
        float(waits[BORDER::BORDER].max()),
    ]


def measure(args: argparse.Namespace, report: Report) -> None:
    warnings.simplefilter("ignore")  # of Levanter's dependencies
    logging.disable(logging.WARNING)
    from headrace_levanter import HeadraceDataset, LmLoader

    steps, repeats = (40, 1) if args.quick else (160, 3)
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as name:
        folder = Path(name)
        tokens = np.random.default_rng(0).integers(0, VOCAB, EXAMPLES * SEQ_LEN).astype(np.int32)
        documents = np.split(tokens, np.arange(1000, tokens.size, 1000))
        cache = write_cache(
            folder / "own", [documents], vocab_size=65_536, eos_id=0, layout=CacheLayout("uint16")
        )
        write_levanter(cache, str(folder / "theirs"))

        def ours() -> Any:
            dataset = TokenSeqDataset(
                open_cache(str(folder / "own")), SEQ_LEN, split_documents=True
            )
            return dataset.braid_shuffle(seed=0, batch_size=BATCH).repeat()

        loaders: dict[str, Loader] = {
            "Levanter's loader, its cache, in order": lambda t: t.data_loader(
                their_dataset(str(folder / "theirs"), shuffle=False)
            ),
            "Levanter's loader, its cache, shuffled": lambda t: t.data_loader(
                their_dataset(str(folder / "theirs"), shuffle=True)
            ),
            "Levanter's loader, headrace dataset": lambda t: t.data_loader(
                HeadraceDataset(ours(), BATCH)
            ),
            "headrace's loader": lambda t: LmLoader.of(t, ours(), BATCH),
        }
        found: dict[str, list[list[float]]] = {name: [] for name in loaders}
        for _ in range(repeats):
            for name, make in loaders.items():
                with make_trainer(folder) as trainer:
                    started = time.perf_counter()
                    count = steps if name.startswith("Levanter") else 4 * steps
                    found[name].append(feed(trainer, iter(make(trainer)), count, started))
        with make_trainer(folder) as trainer:
            batch = LmLoader.of(trainer, ours(), BATCH).batch_at(0)
            started = time.perf_counter()
            found["one batch again and again"] = [
                feed(trainer, itertools.repeat(batch), 4 * steps, started)
            ]

    medians = {name: np.median(np.asarray(runs), axis=0) for name, runs in found.items()}
    base = medians["Levanter's loader, its cache, shuffled"][0]
    rows = [
        [name, rate, rate * BATCH * SEQ_LEN / 1e6, rate / base, first, longest, border]
        for name, (rate, first, longest, border) in medians.items()
    ]
    columns = [
        "into Trainer.train",
        "steps/s",
        "M tokens/s",
        "ratio",
        "first batch s",
        "longest wait s",
        "at a border s",
    ]
    report.table(
        f"rows of {SEQ_LEN}, batch {BATCH}, {steps} steps, median of {repeats}", columns, rows
    )
    report.note(
        "'ratio' is over Levanter's loader on its own cache, shuffled. Figures hold for this run"
        " only."
    )
    report.bar(
        "headrace's loader over Levanter's",
        medians["headrace's loader"][0] / base,
        at_least=OWN_OVER_THEIRS,
    )
    wait = medians["headrace's loader"][3]
    report.bar(
        f"headrace's loader: wait at a border of {BORDER} batches, s", wait, at_most=BORDER_WAIT_S
    )
    report.bar(
        "headrace dataset in Levanter's loader over its own",
        medians["Levanter's loader, headrace dataset"][0] / base,
        at_least=DATASET_OVER_THEIRS,
    )


if __name__ == "__main__":
    run_bench("bench_levanter", __doc__, measure)
