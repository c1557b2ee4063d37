"""Does a cheaper order cost loss? Orders of the same rows, on a corpus sorted by source.

    python experiments/001_shuffle_ablation/run.py            # results.json, results.png and the README's table
    python experiments/001_shuffle_ablation/run.py --quick    # the same on a toy, in seconds

Everything but the order is equal in all arms: rows, held-out rows, initial weights of a seed, number of steps, memory
for blocks. An interrupted run is continued by the same command. README.md says what came out.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from experiments.common.corpus import prepare_corpus
from experiments.common.orders import (
    FULL,
    QUICK,
    REFERENCE,
    arms,
    data_config,
    described_arms,
    evaluation_rows,
)
from experiments.common.pictures import COLORS, new_figure
from experiments.common.study import Record, Study, by_seed, compare, finish, mean_curve, mean_of, parse
from experiments.common.training import data_alone, train

HOME = Path(__file__).resolve().parent
LATENCY_S = 0.03
SEEDS_OF_THE_CLOSE_CALL = 4
"""Of the reference and of braid: the others are decided by far fewer."""


def conclude(records: Mapping[str, list[Record]]) -> Record:
    """Figures of each arm, the acceptance gate of seed 004 (phase 4), the table and the conclusion."""
    reference = by_seed(records[REFERENCE])
    seed_sd = compare(reference, reference).sd
    full_reads = mean_of(records[REFERENCE], "reads_per_example")
    figures: dict[str, Record] = {}
    for arm, runs in records.items():
        compared = compare(by_seed(runs), reference)
        fewer = full_reads / mean_of(runs, "reads_per_example")
        first = runs[0]
        figures[arm] = {
            "val_loss": compared.to_json(),
            "regression_percent": 100 * compared.difference / compare(reference, reference).mean,
            "seeds": len(runs),
            "reads_per_example": mean_of(runs, "reads_per_example"),
            "fewer_reads": fewer,
            "train_tokens_per_s": mean_of(runs, "train_tokens_per_s"),
            "waiting_share": mean_of(runs, "waiting_share"),
            "data_tokens_per_s": first["data_tokens_per_s"],
            "data_tokens_per_s_far": first["data_tokens_per_s_far"],
            "gate": {
                "fewer_reads": bool(fewer >= 2),
                "loss_within_seed_sd": bool(compared.difference <= seed_sd),
                "passed": bool(fewer >= 2 and compared.difference <= seed_sd),
            },
        }
    columns = [
        "arm", "validation loss (sd)", "against full (95 %)", "in seed sd", "reads/example", "fewer reads",
        "training tokens/s", "data alone, reads 30 ms away, tokens/s", "gate",
    ]  # fmt: skip
    rows = [_table_row(arm, figure, seed_sd) for arm, figure in figures.items()]
    passed = [arm for arm, figure in figures.items() if figure["gate"]["passed"]]
    failed = [arm for arm in figures if arm not in passed and arm != REFERENCE]
    return {
        "seed_sd": seed_sd,
        "figures": figures,
        "table": {"columns": columns, "rows": rows},
        "conclusion": [
            f"Gate: at least 2 x fewer reads than full, mean regression at most full's seed sd ({seed_sd:.4f} nats).",
            f"Passed: {', '.join(passed) or 'none'}. Not passed: {', '.join(failed) or 'none'}.",
        ],
    }


def _table_row(arm: str, figure: Record, seed_sd: float) -> list[str]:
    loss = figure["val_loss"]
    sd = "" if loss["sd"] is None else f" ({loss['sd']:.4f})"
    half = "" if loss["half_width"] is None else f" ± {loss['half_width']:.4f}"
    reference = arm == REFERENCE
    return [
        arm,
        f"{loss['mean']:.4f}{sd}",
        "" if reference else f"{loss['difference']:+.4f}{half}",
        "" if reference else f"{loss['difference'] / seed_sd:+.1f}",
        f"{figure['reads_per_example']:.4f}",
        f"{figure['fewer_reads']:.1f} x",
        f"{figure['train_tokens_per_s']:,.0f}",
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
        right.annotate(arm, (of_arm["reads_per_example"], max(losses)), xytext=(0, 6), textcoords="offset points",
                       ha="center", color=color)  # fmt: skip
    left.set(xlabel="step", ylabel="validation loss (nats a token)", yscale="log")
    left.legend(frameon=False)
    right.set(xlabel="reads an example", ylabel="validation loss at the end, each seed", xscale="log", yscale="log")
    for ax in (left, right):
        ax.spines[["top", "right"]].set_visible(False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)


def main(argv: list[str] | None = None) -> Record:
    """Runs what is left to run, and writes the record."""
    args = parse(__doc__, argv)
    sizes = QUICK if args.quick else FULL
    corpus = prepare_corpus(sizes.corpus, args.work)
    first = data_config(corpus, sizes, True, 0)
    evaluation = evaluation_rows(corpus, first, sizes.seq_len)
    settings = {
        "sizes": sizes.describe(),
        "corpus": corpus.fingerprint,
        "arms": described_arms(),
        "prefetch_bytes": first.prefetch_bytes,
    }

    def one(arm: str, seed: int) -> Record:
        config = data_config(corpus, sizes, arms()[arm], seed)
        steps = config.run_steps or 0
        record = train(config, sizes.model, evaluation, steps=steps, seed=seed).record
        if seed == 0:
            record["data_tokens_per_s"] = data_alone(config, steps=steps)
            record["data_tokens_per_s_far"] = data_alone(config, steps=steps, latency_s=LATENCY_S)
        return record

    many = sizes.seeds if args.quick else SEEDS_OF_THE_CLOSE_CALL
    seeds = {arm: range(many if arm in (REFERENCE, "braid") else sizes.seeds) for arm in arms()}
    seeds["none"] = range(2)
    study = Study(HOME.name, settings, seeds, args.work)
    records = study.run(one, lambda line: print(line, file=sys.stderr, flush=True))
    summary = conclude(records)
    record = {
        "experiment": HOME.name,
        "command": f"python experiments/{HOME.name}/run.py{' --quick' if args.quick else ''}",
        "settings": settings,
        "steps": first.run_steps,
        "corpus": corpus.describe(),
        "validation_rows": len(evaluation.tokens),
        **summary,
        "runs": records,
    }
    finish(args, HOME, record, lambda path: draw(records, summary, path))
    return record


if __name__ == "__main__":
    main()
