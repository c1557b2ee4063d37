"""How much of the loss lies between blocks, before and after shuffling, and does a probe without a
model see it?

    python experiments/003_icc_probe/run.py            # results.json, results.png and the README's table
    python experiments/003_icc_probe/run.py --quick    # the same on a toy, in seconds

On your own cache, with no training: ``headrace cache inspect CACHE --icc``. Here the losses of each
row of 001's sorted corpus are taken from a model that was trained on a full shuffle, and from
``headrace cache inspect --icc``'s token frequencies; and the share between neighbours is estimated
in stored order (before) and in the order that each arm of 001 sees (after).
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import cast

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from experiments.common.corpus import SORTED, Corpus, prepare_corpus
from experiments.common.intervals import between_block_share
from experiments.common.orders import (
    FULL,
    QUICK,
    REFERENCE,
    ROWS_PER_BLOCK,
    Sizes,
    arms,
    data_config,
    described_arms,
    evaluation_rows,
)
from experiments.common.pictures import COLORS, new_figure
from experiments.common.study import Record, Study, finish, parse
from experiments.common.training import read_rows, row_losses, train

from headrace import MixtureDataset
from headrace.analysis.icc import batch_noise, nested_shares
from headrace.analysis.probe import neighbourhoods, unigram_losses

HOME = Path(__file__).resolve().parent
VALUES = ("model", "unigram")
GROUP = ROWS_PER_BLOCK


def losses_of_rows(corpus: Corpus, sizes: Sizes, seed: int) -> dict[str, np.ndarray]:
    """Loss of each training row in stored order: by a model trained on a full shuffle, and by token
    frequencies.
    """
    config = data_config(corpus, sizes, arms()[REFERENCE], seed)
    evaluation = evaluation_rows(corpus, config, sizes.seq_len)
    steps = config.run_steps or 0
    model = train(config, sizes.model, evaluation, steps=steps, seed=seed, evaluations=1).model
    rows = config.train_datasets()[SORTED]
    tokens = read_rows(rows, np.arange(len(rows)))
    return {"model": row_losses(model, tokens), "unigram": unigram_losses(tokens)}


def order_seen(corpus: Corpus, sizes: Sizes, arm: str, seed: int) -> np.ndarray:
    """Rows of the train side, numbered as they are stored, in the order in which an
    arm sees them.
    """
    config = data_config(corpus, sizes, arms()[arm], seed)
    stored = config.train_datasets()[SORTED]
    numbers = np.arange(len(stored))
    mixture = cast("MixtureDataset", config.dataset())  # one phase
    seen = mixture.components[0].locate(numbers).row
    return np.searchsorted(stored.locate(numbers).row, seen)


def measured_noise(values: np.ndarray, batch: int) -> float:
    """Variance of the means of batches of values, in the order seen, relative to sampling without
    return.
    """
    n = values.size
    batches = values.size // batch
    means = values[: batches * batch].reshape(batches, batch).mean(axis=1)
    expected = values.var(ddof=1) / batch * (n - batch) / n
    return float(np.square(means - values.mean()).mean() / expected)


def look(corpus: Corpus, sizes: Sizes, seed: int) -> Record:
    """All figures of one seed."""
    losses = losses_of_rows(corpus, sizes, seed)
    orders = {arm: order_seen(corpus, sizes, arm, seed) for arm in arms()}
    found: Record = {"correlation": float(np.corrcoef(losses["model"], losses["unigram"])[0, 1])}
    for name, values in losses.items():
        groups = np.arange(values.size) // GROUP
        shares = nested_shares(values, neighbourhoods(values.size, GROUP))
        after: dict[str, Record] = {}
        for arm, order in orders.items():
            after[arm] = {
                **dataclasses.asdict(between_block_share(values[order], groups)),
                "noise_measured": measured_noise(values[order], sizes.batch_size),
                "noise_predicted": batch_noise(order, sizes.batch_size, shares),
            }
        before = dataclasses.asdict(between_block_share(values, groups))
        found[name] = {
            "before": before,
            "nested": {str(u): s for u, s in shares.items()},
            "after": after,
        }
    return found


def conclude(found: Record) -> Record:
    """The table and the conclusion."""
    columns = [
        "order",
        *(f"{title}, {name}" for name in VALUES for title in ("ICC (95 %)", "noise", "predicted")),
    ]
    rows = [
        [
            "stored blocks (before)",
            *(c for name in VALUES for c in (_icc(found[name]["before"]), "", "")),
        ]
    ]
    for arm in arms():
        cells = [arm]
        for name in VALUES:
            after = found[name]["after"][arm]
            cells += [
                _icc(after),
                f"{after['noise_measured']:.2f}",
                f"{after['noise_predicted']:.2f}",
            ]
        rows.append(cells)
    return {
        "table": {"columns": columns, "rows": rows},
        "conclusion": [
            f"Between blocks of {GROUP} rows lie {found[name]['before']['icc']:.1%} of the"
            " variance of the loss"
            f" ({name}); in the default braid's order {found[name]['after']['braid']['icc']:.1%}."
            for name in VALUES
        ],
    }


def _icc(share: Mapping[str, float]) -> str:
    return f"{share['icc']:.3f} ({share['low']:.3f} to {share['high']:.3f})"


def draw(found: Record, path: Path) -> None:
    """The share between neighbours by arm, and the noise of batches, predicted against measured."""
    figure = new_figure("003 ICC probe: how alike the rows of a batch are", width=10)
    left, right = figure.subplots(1, 2)
    places = np.arange(len(arms()))
    for k, name in enumerate(VALUES):
        after = [found[name]["after"][arm] for arm in arms()]
        left.bar(
            places + 0.4 * k,
            [a["icc"] for a in after],
            width=0.4,
            color=COLORS[3 - k],
            label=f"{name} loss",
        )
        right.scatter(
            [a["noise_predicted"] for a in after],
            [a["noise_measured"] for a in after],
            color=COLORS[3 - k],
            label=f"{name} loss",
        )
        left.axhline(found[name]["before"]["icc"], color=COLORS[3 - k], linestyle=":")
    left.set_xticks(places + 0.2, list(arms()), rotation=30)
    left.set(ylabel=f"ICC of {GROUP} rows (dotted: stored)")
    right.axline((1, 1), slope=1, color=COLORS[-1], linewidth=0.8)
    right.set(
        xlabel="predicted noise of batches",
        ylabel="measured (full shuffle = 1)",
        xscale="log",
        yscale="log",
    )
    for ax in (left, right):
        ax.spines[["top", "right"]].set_visible(False)
        ax.legend(frameon=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)


def main(argv: list[str] | None = None) -> Record:
    """Runs the probe, if it has not been run with these settings, and writes the record."""
    args = parse(__doc__, argv)
    sizes = QUICK if args.quick else FULL
    corpus = prepare_corpus(sizes.corpus, args.work)
    settings = {
        "sizes": sizes.describe(),
        "corpus": corpus.fingerprint,
        "arms": described_arms(),
        "group": GROUP,
    }
    study = Study(HOME.name, settings, {REFERENCE: [0]}, args.work)
    (run,) = study.run(
        lambda _, seed: look(corpus, sizes, seed),
        lambda line: print(line, file=sys.stderr, flush=True),
    )[REFERENCE]
    found = {name: run[name] for name in ("correlation", *VALUES)}
    record = {
        "experiment": HOME.name,
        "command": f"python experiments/{HOME.name}/run.py{' --quick' if args.quick else ''}",
        "settings": settings,
        "corpus": corpus.describe(),
        **found,
        **conclude(found),
        "cpu_seconds": run["cpu_seconds"],
    }
    finish(args, HOME, record, lambda path: draw(found, path))
    return record


if __name__ == "__main__":
    main()
