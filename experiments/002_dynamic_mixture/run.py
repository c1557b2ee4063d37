"""Does it matter when a source comes? Ramped against constant weights, with equal tokens of each
source in total.

    python experiments/002_dynamic_mixture/run.py            # results.json, results.png and the README's table
    python experiments/002_dynamic_mixture/run.py --quick    # the same on a toy, in seconds

Two sources, Python code and prose. In all arms each gives half of all rows (counted, not assumed),
in the default order; only the share of a step differs. An interrupted run is continued by the same
command.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from experiments.common.corpus import Corpus, prepare_corpus
from experiments.common.orders import FULL, QUICK, ROWS_PER_BLOCK, Sizes
from experiments.common.pictures import COLORS, new_figure
from experiments.common.study import Record, Study, by_seed, compare, finish, mean_curve, parse
from experiments.common.training import Evaluation, read_rows, train

from headrace import ComponentConfig, LmDataConfig
from headrace.order import ValidationConfig

HOME = Path(__file__).resolve().parent
REFERENCE = "constant"
SOURCES = ("code", "readmes")
LOW = 0.1
HIGH = 0.9


@dataclass(frozen=True)
class Arm:
    """Shares of the first source at the first and at the last step; the second has the rest."""

    first: float
    last: float

    def weights(self, steps: int) -> tuple[Any, Any]:
        """Weight schedules of both sources."""
        if self.first == self.last:
            return self.first, 1 - self.last
        return (
            {"linear": {0: self.first, steps - 1: self.last}},
            {"linear": {0: 1 - self.first, steps - 1: 1 - self.last}},
        )


ARMS = {
    "constant": Arm(0.5, 0.5),
    "code_late": Arm(LOW, HIGH),
    "code_early": Arm(HIGH, LOW),
}


def data_config(corpus: Corpus, sizes: Sizes, arm: Arm, seed: int) -> LmDataConfig:
    """As many steps as the smaller source allows without a row seen twice."""
    config = LmDataConfig(
        components={name: ComponentConfig(corpus.path(name)) for name in SOURCES},
        seq_len=sizes.seq_len,
        batch_size=sizes.batch_size,
        seed=seed,
        validation=ValidationConfig(one_in=20, io_block_size=ROWS_PER_BLOCK // 2),
        max_epochs=1,
    )
    smaller = min(len(side) for side in config.train_datasets().values())
    steps = min(sizes.steps, 2 * smaller // sizes.batch_size - 1)
    weights = dict(zip(SOURCES, arm.weights(steps), strict=True))
    components = {name: replace(config.components[name], weight=weights[name]) for name in SOURCES}
    return replace(config, components=components, num_steps=steps)


def evaluation_rows(config: LmDataConfig) -> Evaluation:
    """All rows that are held out of both sources, as many of the one as of the other."""
    held = config.validation_datasets()
    rows = min(len(side) for side in held.values())
    tokens = np.concatenate([read_rows(held[name], np.arange(rows)) for name in SOURCES])
    return Evaluation(tokens, np.repeat(np.arange(len(SOURCES)), rows), SOURCES)


def rows_by_source(config: LmDataConfig) -> dict[str, int]:
    """Rows that the whole run takes from each source."""
    mixture = config.dataset()
    examples = np.arange((config.run_steps or 0) * int(mixture.batch_schedule.max_size))
    counts = np.bincount(mixture.locate(examples).source, minlength=len(SOURCES))
    return {name: int(count) for name, count in zip(SOURCES, counts, strict=True)}


def conclude(records: Mapping[str, list[Record]]) -> Record:
    """Figures of each arm, the table and the conclusion."""
    for runs in records.values():
        for run in runs:
            run.update({f"val_{name}": run["val_loss_by_source"][name] for name in SOURCES})
    fields = ("val_loss", *(f"val_{name}" for name in SOURCES))
    reference = {field: by_seed(records[REFERENCE], field) for field in fields}
    figures: dict[str, Record] = {
        arm: {
            "seeds": len(runs),
            "rows_by_source": runs[0]["rows_by_source"],
            **{
                field: compare(by_seed(runs, field), reference[field]).to_dict() for field in fields
            },
        }
        for arm, runs in records.items()
    }
    seed_sd = compare(reference["val_loss"], reference["val_loss"]).sd
    columns = ["arm", "rows of each source", "mean loss (sd)", "against constant (95 %)"]
    columns += [f"{name}, against constant" for name in SOURCES]
    rows = [
        [
            arm,
            " / ".join(f"{count:,}" for count in figure["rows_by_source"].values()),
            f"{figure['val_loss']['mean']:.4f}" + _of(figure["val_loss"]["sd"], " ({:.4f})"),
            "" if arm == REFERENCE else _difference(figure["val_loss"]),
            *(
                f"{figure[field]['mean']:.4f}" if arm == REFERENCE else _difference(figure[field])
                for field in fields[1:]
            ),
        ]
        for arm, figure in figures.items()
    ]
    lines = [f"Seed sd of {REFERENCE}: {seed_sd:.4f} nats."]
    for arm, figure in figures.items():
        if arm != REFERENCE:
            beyond = abs(figure["val_loss"]["difference"]) > seed_sd
            lines.append(
                f"{arm}: mean loss {'beyond' if beyond else 'within'} one seed sd of {REFERENCE}."
            )
    return {
        "seed_sd": seed_sd,
        "figures": figures,
        "table": {"columns": columns, "rows": rows},
        "conclusion": lines,
    }


def _of(value: float | None, form: str) -> str:
    return "" if value is None else form.format(value)


def _difference(figure: Record) -> str:
    return f"{figure['difference']:+.4f}" + _of(figure["half_width"], " ± {:.4f}")


def draw(records: Mapping[str, list[Record]], path: Path) -> None:
    """Validation loss over steps: mean of both sources, and each."""
    figure = new_figure(
        "002 dynamic mixture: equal tokens a source in total, constant or ramped", width=10
    )
    for ax, title in zip(
        figure.subplots(1, 2), ("training loss of the mixture", "validation loss"), strict=True
    ):
        for color, (arm, runs) in zip(COLORS, records.items(), strict=False):
            curve = mean_curve(runs, "train_curve" if title.startswith("training") else "val_curve")
            ax.plot(curve[:, 0], curve[:, 1], color=color, label=arm)
        ax.set(xlabel="step", ylabel=f"{title} (nats a token)")
        ax.legend(frameon=False)
        ax.spines[["top", "right"]].set_visible(False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)


def main(argv: list[str] | None = None) -> Record:
    """Runs what is left to run, and writes the record."""
    args = parse(__doc__, argv)
    sizes = (
        QUICK
        if args.quick
        else replace(FULL, corpus=replace(FULL.corpus, chars_per_source=500_000))
    )
    corpus = prepare_corpus(sizes.corpus, args.work, each_source=True)
    evaluation = evaluation_rows(data_config(corpus, sizes, ARMS[REFERENCE], 0))
    settings = {
        "sizes": sizes.describe(),
        "corpus": corpus.fingerprint,
        "sources": SOURCES,
        "arms": {name: [arm.first, arm.last] for name, arm in ARMS.items()},
    }

    def one(arm: str, seed: int) -> Record:
        config = data_config(corpus, sizes, ARMS[arm], seed)
        found = train(
            config, sizes.model, evaluation, steps=config.run_steps or 0, seed=seed
        ).record
        return {**found, "rows_by_source": rows_by_source(config)}

    study = Study(HOME.name, settings, {arm: range(sizes.seeds) for arm in ARMS}, args.work)
    records = study.run(one, lambda line: print(line, file=sys.stderr, flush=True))
    summary = conclude(records)
    record = {
        "experiment": HOME.name,
        "command": f"python experiments/{HOME.name}/run.py{' --quick' if args.quick else ''}",
        "settings": settings,
        "corpus": corpus.describe(),
        "validation_rows": len(evaluation.tokens),
        **summary,
        "runs": records,
    }
    finish(args, HOME, record, lambda path: draw(records, path))
    return record


if __name__ == "__main__":
    main()
