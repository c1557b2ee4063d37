"""Does a mixture that learns from its losses leave a source of noise, and is the loss lower for it?

    python experiments/006_learned_mixture/run.py            # results.json, results.png and the README's table
    python experiments/006_learned_mixture/run.py --quick    # the same on a toy, in seconds

Three sources: Python code, readmes, and noise: characters drawn evenly. All arms begin with even
shares; "uniform" keeps them. Judged by held-out rows of code and readmes. Decisions are written
into the locks of the runs, as in any run. An interrupted study is continued by the same command.
"""

from __future__ import annotations

import json
import shutil
import string
import sys
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import numpy as np
import optax

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from experiments.common.corpus import Corpus, CorpusSpec, prepare_corpus
from experiments.common.orders import FULL, QUICK, ROWS_PER_BLOCK, Sizes
from experiments.common.pictures import COLORS, new_figure
from experiments.common.study import Record, Study, by_seed, compare, finish, parse
from experiments.common.training import Evaluation, one_device, read_rows, row_losses

from headrace import ComponentConfig, LmDataConfig, SourceConfig, build_cache, open_run
from headrace.batch import PackedBatch, loss_by_source, weighted_mean
from headrace.batch.loss import SourceLosses
from headrace.demo import Transformer
from headrace.demo.train import make_optimizer
from headrace.mix import AdaptiveMixture, BanditMixture, OnlineMixture
from headrace.order import ValidationConfig
from headrace.run import MixtureLearner, ShareBounds

HOME = Path(__file__).resolve().parent
REFERENCE = "uniform"
LEARNED = ("code", "readmes")
SOURCES = (*LEARNED, "noise")
SEEDS = 5
STEPS = 200
DECISIONS = 20
BOUNDS = ShareBounds(least=0.01, most_change=0.15)
RULES: dict[str, OnlineMixture | None] = {
    "uniform": None,
    "ado": AdaptiveMixture(warmup=3, smoothing=0.8),
    "exp3": BanditMixture(),
}
CURVE_POINTS = 5


def noise_cache(corpus: Corpus, spec: CorpusSpec) -> str:
    """A cache of documents of evenly drawn characters, as long as a source of the corpus."""
    path = corpus.path("noise")
    file = corpus.root / "noise.jsonl"
    if not file.exists():
        random = np.random.default_rng(0)
        letters = np.array([*string.printable])
        texts = random.choice(letters, (spec.chars_per_source // 2_000, 2_000))
        lines = [json.dumps({"text": "".join(text)}) for text in texts]
        file.write_text("\n".join(lines) + "\n")
    build_cache(
        SourceConfig([str(file)]),
        corpus.tokenizer,
        path,
        chunk_tokens=spec.chunk_tokens,
        engine="inline",
        progress=False,
    )
    return path


def data_config(corpus: Corpus, sizes: Sizes, steps: int, seed: int) -> LmDataConfig:
    """Even shares of the three sources, without a limit of epochs."""
    paths = {name: corpus.path(name) for name in LEARNED}
    paths["noise"] = noise_cache(corpus, sizes.corpus)
    return LmDataConfig(
        components={
            name: ComponentConfig(path, validation="none" if name == "noise" else None)
            for name, path in paths.items()
        },
        weights=dict.fromkeys(SOURCES, 1),
        seq_len=sizes.seq_len,
        batch_size=sizes.batch_size,
        seed=seed,
        num_steps=steps,
        validation=ValidationConfig(one_in=20, io_block_size=ROWS_PER_BLOCK // 2),
    )


def evaluation_rows(config: LmDataConfig) -> Evaluation:
    """Held-out rows of code and readmes, as many of the one as of the other."""
    held = config.validation_datasets()
    rows = min(len(side) for side in held.values())
    tokens = np.concatenate([read_rows(held[name], np.arange(rows)) for name in LEARNED])
    return Evaluation(tokens, np.repeat(np.arange(len(LEARNED)), rows), LEARNED)


@lru_cache
def optimizer_of(steps: int, peak_lr: float) -> optax.GradientTransformation:
    return make_optimizer(steps, peak_lr=peak_lr)


@eqx.filter_jit
def train_step(
    model: Transformer, state: Any, optimizer: optax.GradientTransformation, batch: PackedBatch
) -> tuple[Transformer, Any, SourceLosses]:
    """One update, and the losses of the sources before it."""

    def loss_of(model: Transformer) -> tuple[Any, SourceLosses]:
        logits = jax.vmap(model)(batch.tokens, batch.position_ids, batch.segment_ids)
        nll = optax.softmax_cross_entropy_with_integer_labels(logits, batch.labels)
        return weighted_mean(nll, batch), loss_by_source(batch, nll, len(SOURCES))

    (_, losses), gradients = eqx.filter_value_and_grad(loss_of, has_aux=True)(model)
    updates, state = optimizer.update(gradients, state, eqx.filter(model, eqx.is_array))
    return eqx.apply_updates(model, updates), state, losses


def run_one(
    config: LmDataConfig,
    sizes: Sizes,
    rule: OnlineMixture | None,
    evaluation: Evaluation,
    folder: Path,
    seed: int,
) -> Record:
    """Trains one run; its final loss, the loss over the steps, and the shares over the steps."""
    shutil.rmtree(folder, ignore_errors=True)
    steps = config.run_steps or 0
    every = max(steps // DECISIONS, 2)
    run = open_run(folder, config)
    learner = None if rule is None else MixtureLearner(run, rule, every=every, bounds=BOUNDS)
    optimizer = optimizer_of(steps, sizes.model.peak_lr)
    model = sizes.model.initial(seed)
    state = optimizer.init(eqx.filter(model, eqx.is_array))
    points = {round(steps * k / CURVE_POINTS) for k in range(1, CURVE_POINTS + 1)}
    curve: list[list[float]] = []
    rows = np.zeros(len(SOURCES), np.int64)
    by_source: dict[str, float] = {}
    step = 0
    while step < steps:
        with run.loader(one_device()).iter_from_step(step) as batches:
            for batch in batches:
                model, state, losses = train_step(model, state, optimizer, batch)
                rows += np.bincount(np.asarray(batch.source_id), minlength=len(SOURCES))
                step += 1
                if step in points:
                    per_row = row_losses(model, evaluation.tokens)
                    by_source = evaluation.by_name(per_row)
                    curve.append([step, float(per_row.mean())])
                if learner is not None and learner.observe(step, losses):
                    run = learner.run
                    break
    shares = [[0, *([1 / len(SOURCES)] * len(SOURCES))]]
    if learner is not None and learner.run.config is not None:
        shares += [[a.step, *a.weights.values()] for a in learner.run.config.amendments]
    return {
        "val_loss": curve[-1][1],
        "val_loss_by_source": by_source,
        "val_curve": curve,
        "shares": shares,
        "noise_share_at_end": shares[-1][-1],
        "rows_by_source": dict(zip(SOURCES, rows.tolist(), strict=True)),
    }


def conclude(records: Mapping[str, list[Record]]) -> Record:
    """Figures of each arm, the table and the conclusion."""
    reference = by_seed(records[REFERENCE])
    figures: dict[str, Record] = {}
    rows: list[list[str]] = []
    lines: list[str] = []
    for arm, runs in records.items():
        compared = compare(by_seed(runs), reference)
        noise = np.array([run["noise_share_at_end"] for run in runs])
        drawn = np.array(
            [run["rows_by_source"]["noise"] / sum(run["rows_by_source"].values()) for run in runs]
        )
        figures[arm] = {
            "seeds": len(runs),
            "val_loss": compared.to_dict(),
            "noise_share_at_end": float(noise.mean()),
            "noise_share_drawn": float(drawn.mean()),
        }
        against = f"{compared.difference:+.4f} ± {compared.half_width:.4f}"
        rows.append(
            [
                arm,
                f"{compared.mean:.4f} ({compared.sd:.4f})",
                "" if arm == REFERENCE else against,
                f"{drawn.mean():.1%}",
                f"{noise.mean():.1%} ({noise.std(ddof=1):.1%})",
            ]
        )
        if arm != REFERENCE:
            lower = compared.difference + compared.half_width < 0
            verdict = "lower than uniform" if lower else "not lower than uniform"
            lines.append(f"{arm}: held-out loss {verdict} ({against}); noise {noise.mean():.1%}.")
    columns = [
        "arm",
        "held-out loss (sd)",
        "against uniform (95 %)",
        "noise drawn in all",
        "noise at the end (sd)",
    ]
    return {"figures": figures, "table": {"columns": columns, "rows": rows}, "conclusion": lines}


def draw(records: Mapping[str, list[Record]], path: Path) -> None:
    """Held-out loss and share of the noise over the steps, with error bars of one sd."""
    figure = new_figure("006 learned mixture: two sources and noise", width=10)
    left, right = figure.subplots(1, 2)
    for color, (arm, runs) in zip(COLORS, records.items(), strict=False):
        curves = np.array([run["val_curve"] for run in runs])
        mean = curves.mean(axis=0)
        sd = curves[:, :, 1].std(axis=0, ddof=1)
        left.errorbar(mean[:, 0], mean[:, 1], sd, color=color, label=arm, capsize=2)
        shares = np.array([run["shares"] for run in runs])
        noise = shares[:, :, -1].mean(axis=0)
        spread = shares[:, :, -1].std(axis=0, ddof=1)
        right.errorbar(shares[0, :, 0], noise, spread, color=color, label=arm, capsize=2)
    left.set(xlabel="step", ylabel="held-out loss (nats a token)")
    right.set(xlabel="step", ylabel="share of the noise", ylim=(0, None))
    for ax in (left, right):
        ax.legend(frameon=False)
        ax.spines[["top", "right"]].set_visible(False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)


def main(argv: list[str] | None = None) -> Record:
    """Runs what is left to run, and writes the record."""
    args = parse(__doc__, argv, seeds=SEEDS)
    sizes = QUICK if args.quick else FULL
    steps = QUICK.steps if args.quick else STEPS
    corpus = prepare_corpus(sizes.corpus, args.work, each_source=True)
    evaluation = evaluation_rows(data_config(corpus, sizes, steps, 0))
    settings = {
        "sizes": sizes.describe(),
        "steps": steps,
        "corpus": corpus.fingerprint,
        "sources": SOURCES,
        "rules": {name: repr(rule) for name, rule in RULES.items()},
        "bounds": repr(BOUNDS),
        "decisions": DECISIONS,
    }

    def one(arm: str, seed: int) -> Record:
        config = data_config(corpus, sizes, steps, seed)
        folder = args.work / HOME.name / "runs" / f"{arm}-{seed}"
        return run_one(config, sizes, RULES[arm], evaluation, folder, seed)

    study = Study(HOME.name, settings, {arm: range(args.seeds) for arm in RULES}, args.work)
    records = study.run(one, lambda line: print(line, file=sys.stderr, flush=True))
    record = {
        "experiment": HOME.name,
        "command": f"python experiments/{HOME.name}/run.py{' --quick' if args.quick else ''}",
        "settings": settings,
        "corpus": corpus.describe(),
        "validation_rows": len(evaluation.tokens),
        **conclude(records),
        "runs": records,
    }
    finish(args, HOME, record, lambda path: draw(records, path))
    return record


if __name__ == "__main__":
    main()
