"""Does a cheaper order cost loss? Orders of the same rows, on a corpus sorted by source.

    python experiments/001_shuffle_ablation/run.py            # results.json, results.png and the README's table
    python experiments/001_shuffle_ablation/run.py --seeds 9  # more seeds
    python experiments/001_shuffle_ablation/run.py --quick    # the same on a toy, in seconds

Everything but the order is equal in all arms: documents, those held out, initial weights of a seed,
number of steps, memory for blocks. An interrupted run is continued by the same command. README.md
says what came out.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import optax

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from experiments.common.corpus import Corpus, prepare_corpus
from experiments.common.orders import (
    FULL,
    QUICK,
    REFERENCE,
    ROWS_PER_BLOCK,
    Sizes,
    arms,
    data_config,
    described_arms,
    on_shuffled_store,
)
from experiments.common.pictures import COLORS, new_figure
from experiments.common.study import (
    Record,
    Study,
    by_seed,
    compare,
    finish,
    mean_curve,
    mean_of,
    parse,
)
from experiments.common.training import Evaluation, data_alone, read_rows, row_losses, train

from headrace import LmDataConfig
from headrace.analysis.excess import excess_loss
from headrace.analysis.icc import nested_shares
from headrace.analysis.probe import neighbourhoods
from headrace.demo import Transformer
from headrace.order import ValidationConfig
from headrace.order.order import Identity

HOME = Path(__file__).resolve().parent
LATENCY_S = 0.03
SHUFFLED = "braid_shuffled"
"""The default braid over a copy of the store whose documents are shuffled."""
FAR = ("era", "none")
"""Arms that two seeds decide."""
CLOSE = (REFERENCE, "braid", SHUFFLED)
"""Arms that take twice as many seeds as the others."""
MOST_UNSURE = 0.01
"""Of the reference's loss: what two standard errors of an arm's excess loss may be, or nothing is
decided.
"""


def config_of(corpus: Corpus, sizes: Sizes, arm: str, seed: int) -> LmDataConfig:
    """The data of an arm: what is held out are the same documents in all."""
    shuffle = arms()["braid" if arm == SHUFFLED else arm]
    config = data_config(corpus, sizes, shuffle, seed)
    config = replace(config, validation=ValidationConfig(one_in=20, by="documents"))
    if arm == SHUFFLED:
        config = on_shuffled_store(config, corpus)
    rows = min(len(dataset) for dataset in config.train_datasets().values())
    return replace(config, num_steps=min(sizes.steps, rows // sizes.batch_size))


def measured_shares(model: Transformer, config: LmDataConfig) -> dict[str, float]:
    """Share of the variance of a model's losses by rows of a neighbourhood, of the rows that are
    trained on.
    """
    (dataset,) = config.train_datasets().values()
    losses = row_losses(model, read_rows(dataset, np.arange(len(dataset))))
    shares = nested_shares(losses, neighbourhoods(len(dataset), ROWS_PER_BLOCK))
    return {str(unit): share for unit, share in shares.items()}


def predicted(config: LmDataConfig, shares: Mapping[str, float], sizes: Sizes) -> float:
    """Excess loss of an arm's order relative to a full shuffle, at the model's learning rates."""
    mixture = config.dataset().at_step(0)[0].mixture
    assert mixture is not None
    component = mixture.components[0]  # pyright: ignore
    order = component.shuffle_order() or Identity(component.rows_of_pass or 1)
    steps = config.num_steps or 1
    schedule = optax.warmup_cosine_decay_schedule(0.0, 1.0, max(1, steps // 20), steps, 0.1)
    rates = np.asarray([float(schedule(step)) for step in range(steps)])
    return excess_loss(
        order, sizes.batch_size, {int(unit): share for unit, share in shares.items()}, rates=rates
    )


def conclude(records: Mapping[str, list[Record]], forecasts: Mapping[str, float]) -> Record:
    """Figures of each arm, the gate, the table and the conclusion."""
    reference = by_seed(records[REFERENCE])
    base = compare(reference, reference)
    full_reads = mean_of(records[REFERENCE], "reads_per_example")
    figures: dict[str, Record] = {}
    for arm, runs in records.items():
        compared = compare(by_seed(runs), reference)
        pairs = np.asarray([value - reference[seed] for seed, value in by_seed(runs).items()])
        error = float(pairs.std(ddof=1) / np.sqrt(pairs.size))
        fewer = full_reads / mean_of(runs, "reads_per_example")
        first = runs[0]
        gate = {
            "fewer_reads": bool(fewer >= 2),
            "excess_within_two_errors": bool(compared.difference <= 2 * error),
            "known_to_a_hundredth": bool(2 * error <= MOST_UNSURE * base.mean),
        }
        figures[arm] = {
            "val_loss": compared.to_dict(),
            "excess_loss": compared.difference,
            "excess_loss_error": error,
            "predicted": forecasts[arm],
            "seeds": len(runs),
            "reads_per_example": mean_of(runs, "reads_per_example"),
            "fewer_reads": fewer,
            "train_tokens_per_s": mean_of(runs, "train_tokens_per_s"),
            "waiting_share": mean_of(runs, "waiting_share"),
            "data_tokens_per_s": first["data_tokens_per_s"],
            "data_tokens_per_s_far": first["data_tokens_per_s_far"],
            "gate": gate | {"passed": all(gate.values())},
        }
    columns = [
        "arm",
        "seeds",
        "validation loss (sd)",
        "excess loss over full (standard error)",
        "predicted noise, full = 1",
        "reads/example",
        "fewer reads",
        "data alone, reads 30 ms away, tokens/s",
        "gate",
    ]
    rows = [_table_row(arm, figure) for arm, figure in figures.items()]
    passed = [arm for arm, figure in figures.items() if figure["gate"]["passed"]]
    failed = [arm for arm in figures if arm not in passed and arm != REFERENCE]
    return {
        "seed_sd": base.sd,
        "figures": figures,
        "table": {"columns": columns, "rows": rows},
        "conclusion": [
            "Gate: at least 2 x fewer reads than full, and excess loss over full within two"
            " standard errors of 0, which"
            f" are at most {MOST_UNSURE:.0%} of full's loss.",
            f"Passed: {', '.join(passed) or 'none'}. Not passed: {', '.join(failed) or 'none'}.",
        ],
    }


def _table_row(arm: str, figure: Record) -> list[str]:
    loss = figure["val_loss"]
    reference = arm == REFERENCE
    return [
        arm,
        str(figure["seeds"]),
        f"{loss['mean']:.4f} ({loss['sd']:.4f})",
        "" if reference else f"{figure['excess_loss']:+.4f} ({figure['excess_loss_error']:.4f})",
        f"{figure['predicted']:.2f}",
        f"{figure['reads_per_example']:.4f}",
        f"{figure['fewer_reads']:.1f} x",
        f"{figure['data_tokens_per_s_far']:,.0f}",
        "reference" if reference else ("passed" if figure["gate"]["passed"] else "not passed"),
    ]


def draw(records: Mapping[str, list[Record]], summary: Record, path: Path) -> None:
    """Left: validation loss over steps. Right: what a read buys, loss against reads."""
    figure = new_figure("001 shuffle ablation: orders of a corpus sorted by source", width=10)
    left, right = figure.subplots(1, 2)
    for color, (arm, runs) in zip(COLORS, records.items(), strict=False):
        curve = mean_curve(runs, "val_curve")
        left.plot(curve[:, 0], curve[:, 1], color=color, label=arm, marker="o", markersize=3)
        of_arm = summary["figures"][arm]
        losses = list(by_seed(runs).values())
        right.scatter([of_arm["reads_per_example"]] * len(losses), losses, color=color, s=14)
        right.annotate(
            arm,
            (of_arm["reads_per_example"], max(losses)),
            xytext=(0, 6),
            textcoords="offset points",
            ha="center",
            color=color,
        )
    left.set(xlabel="step", ylabel="validation loss (nats a token)", yscale="log")
    left.legend(frameon=False)
    right.set(
        xlabel="reads an example",
        ylabel="validation loss at the end, each seed",
        xscale="log",
        yscale="log",
    )
    for ax in (left, right):
        ax.spines[["top", "right"]].set_visible(False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)


def main(argv: list[str] | None = None) -> Record:
    """Runs what is left to run, and writes the record."""
    args = parse(__doc__, argv, seeds=5)
    sizes = QUICK if args.quick else FULL
    corpus = prepare_corpus(sizes.corpus, args.work)
    configs = {arm: partial(config_of, corpus, sizes, arm) for arm in (*arms(), SHUFFLED)}
    steps = min(config(0).run_steps or 0 for config in configs.values())
    first = configs[REFERENCE](0)
    (side,) = first.validation_datasets().values()
    held = read_rows(side, np.arange(len(side)))
    evaluation = Evaluation(held, np.zeros(len(held), np.int64), ("all",))
    settings = {
        "sizes": sizes.describe(),
        "corpus": corpus.fingerprint,
        "arms": described_arms(),
        "prefetch_bytes": first.prefetch_bytes,
        "held_out": "documents",
        "steps": steps,
    }

    def one(arm: str, seed: int) -> Record:
        config = replace(configs[arm](seed), num_steps=steps)
        run = train(config, sizes.model, evaluation, steps=steps, seed=seed)
        record = run.record
        if seed == 0:
            record["data_tokens_per_s"] = data_alone(config, steps=steps)
            record["data_tokens_per_s_far"] = data_alone(config, steps=steps, latency_s=LATENCY_S)
        if seed == 0 and arm == REFERENCE:
            record["shares"] = {
                store: measured_shares(run.model, configs[store](0))
                for store in (REFERENCE, SHUFFLED)
            }
        return record

    many = {
        arm: 2 * args.seeds if arm in CLOSE else min(args.seeds, 2) if arm in FAR else args.seeds
        for arm in configs
    }
    study = Study(
        HOME.name, settings, {arm: range(number) for arm, number in many.items()}, args.work
    )
    records = study.run(one, lambda line: print(line, file=sys.stderr, flush=True))
    shares = records[REFERENCE][0]["shares"]
    forecasts = {
        arm: predicted(
            replace(config(0), num_steps=steps), shares.get(arm, shares[REFERENCE]), sizes
        )
        for arm, config in configs.items()
    }
    summary = conclude(records, forecasts)
    record = {
        "experiment": HOME.name,
        "command": f"python experiments/{HOME.name}/run.py{' --quick' if args.quick else ''}",
        "settings": settings,
        "steps": steps,
        "corpus": corpus.describe(),
        "validation_rows": len(evaluation.tokens),
        "shares": shares,
        **summary,
        "runs": records,
    }
    finish(args, HOME, record, lambda path: draw(records, summary, path))
    return record


if __name__ == "__main__":
    main()
