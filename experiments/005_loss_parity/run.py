"""Do orders reach the same loss? Real text, three seeds, and the difference that these can see.

    python experiments/005_loss_parity/run.py --size h100     # half an hour of one H100
    python experiments/005_loss_parity/run.py --size night    # a night of two CPU cores
    python experiments/005_loss_parity/run.py --size minutes  # results.json: minutes of a CPU core
    python experiments/005_loss_parity/run.py --quick         # a toy, in seconds

The text is what is installed: Python files of every package, and the system's documentation; with
``--size h100`` headers and notes of the packages, too. A source is a package, and the store is
sorted by source. Everything but the order is equal in all arms. An interrupted study is continued
by the same command. README.md says what came out.
"""

from __future__ import annotations

import argparse
import sys
import sysconfig
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import jax
import numpy as np
from scipy.stats import t as student

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from experiments.common.corpus import Corpus, CorpusSpec, Text, prepare_corpus, read_text
from experiments.common.orders import (
    QUICK,
    REFERENCE,
    ROWS_PER_BLOCK,
    Sizes,
    data_config,
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
from experiments.common.training import Evaluation, ModelSpec, read_rows, train

from headrace import LmDataConfig
from headrace.order import BlockShuffleConfig, BraidShuffleConfig, ValidationConfig
from headrace.order.shuffle_config import ShuffleConfig

HOME = Path(__file__).resolve().parent
SHUFFLED = "braid_shuffled"
SPLIT = "braid_split"
ARMS = (REFERENCE, "braid", SHUFFLED, SPLIT, "marin_window")
DOCUMENTATION = Path("/usr/share/doc")
HELD_ROWS = 2048
ALL = 1 << 40


@dataclass(frozen=True)
class Size:
    """Text, model and steps, the blocks of Marin's window (a sixteenth of the rows or so), and which
    files of a package are text.
    """

    sizes: Sizes
    window_blocks: int
    suffixes: tuple[str, ...] = (".py",)


SIZES = {
    "quick": Size(replace(QUICK, corpus=replace(QUICK.corpus, chars_per_source=500)), 4),
    "minutes": Size(
        Sizes(CorpusSpec(2_500, 512, ROWS_PER_BLOCK * 64), ModelSpec(512, 48, 2, 2, 1e-2), 3), 64
    ),
    "night": Size(
        Sizes(
            CorpusSpec(ALL, 1024, ROWS_PER_BLOCK * 128),
            ModelSpec(1024, 48, 2, 2, 5e-3),
            3,
            steps=50_000,
            seq_len=128,
        ),
        2048,
    ),
    "h100": Size(
        Sizes(
            CorpusSpec(ALL, 4096, ROWS_PER_BLOCK * 512),
            ModelSpec(4096, 256, 6, 4, 2e-3, compute="bfloat16"),
            3,
            seq_len=512,
            batch_size=128,
        ),
        512,
        (".py", ".pyi", ".h", ".hpp", ".cuh", ".md", ".rst", ".txt"),
    ),
}


def installed_text(suffixes: Collection[str]) -> dict[str, list[Text]]:
    """Documentation, and files of every package that is installed, by package.

    Args:
        suffixes: Which files of a package are text.
    """
    texts: dict[str, list[Text]] = {}
    for kind, root in (
        ("library", Path(sysconfig.get_path("stdlib"))),
        ("package", Path(sysconfig.get_path("purelib"))),
        ("documentation", DOCUMENTATION),
    ):
        for path in sorted(root.rglob("*")):
            inner = path.relative_to(root)
            if kind == "library" and "site-packages" in inner.parts:
                continue  # these are the packages
            if kind != "documentation" and path.suffix not in suffixes:
                continue
            if path.is_file():
                source = f"{kind}-{inner.parts[0]}"
                texts.setdefault(source, []).append((inner.as_posix(), partial(read_text, path)))
    return {
        source: documents
        for source, documents in texts.items()
        if any(get() for _, get in documents)
    }


def config_of(corpus: Corpus, size: Size, arm: str, seed: int) -> LmDataConfig:
    """The data of an arm: what is held out are the same documents in all."""
    marin = BlockShuffleConfig(io_block_size=ROWS_PER_BLOCK, window_blocks=size.window_blocks)
    shuffles: dict[str, ShuffleConfig] = {REFERENCE: True, "marin_window": marin}
    shuffle = shuffles.get(arm, BraidShuffleConfig())
    config = data_config(corpus, size.sizes, shuffle, seed)
    config = replace(config, validation=ValidationConfig(one_in=20, by="documents"))
    if arm in (SHUFFLED, SPLIT):
        split = size.sizes.seq_len if arm == SPLIT else None
        config = on_shuffled_store(config, corpus, split)
    rows = min(len(dataset) for dataset in config.train_datasets().values())
    steps = min(size.sizes.steps, rows // size.sizes.batch_size)
    return replace(config, num_steps=steps)


def smallest_seen(pairs: Mapping[str, np.ndarray]) -> Record:
    """The difference that a study sees in four of five cases, at 5 % error, in nats a token.

    Args:
        pairs: Paired differences to the reference, of each other arm; their deviations are pooled.
    """
    seeds = len(next(iter(pairs.values())))
    freedom = len(pairs) * (seeds - 1)
    sd = float(np.sqrt(np.mean([values.var(ddof=1) for values in pairs.values()])))
    quantiles = float(student.ppf(0.975, freedom) + student.ppf(0.8, freedom))
    return {"pair_sd": sd, "seeds": seeds, "nats": quantiles * sd / seeds**0.5}


def conclude(records: Mapping[str, list[Record]]) -> Record:
    """Figures of each arm, what the study can see, the table and the conclusion."""
    reference = by_seed(records[REFERENCE])
    pairs = {
        arm: np.asarray([value - reference[seed] for seed, value in by_seed(runs).items()])
        for arm, runs in records.items()
        if arm != REFERENCE
    }
    seen = smallest_seen(pairs)
    share = seen["nats"] / np.mean(list(reference.values()))
    rows = []
    figures = {}
    for arm, runs in records.items():
        compared = compare(by_seed(runs), reference)
        figures[arm] = compared.to_dict()
        excess = f"{compared.difference:+.4f} ± {compared.half_width:.4f}"
        rows.append(
            [
                arm,
                f"{compared.mean:.4f} ({compared.sd:.4f})",
                "" if arm == REFERENCE else excess,
                f"{mean_of(runs, 'reads_per_example'):.4f}",
                f"{mean_of(runs, 'train_tokens_per_s'):,.0f}",
                f"{mean_of(runs, 'waiting_share'):.4f}",
            ]
        )
    columns = [
        "arm",
        "held-out loss (sd)",
        "over full (95 %)",
        "reads/example",
        "tokens/s",
        "waiting share",
    ]
    above = [arm for arm, values in pairs.items() if values.mean() > seen["nats"]]
    return {
        "figures": figures,
        "smallest_seen": seen | {"share_of_loss": share},
        "table": {"columns": columns, "rows": rows},
        "conclusion": [
            f"Seen in four of five studies of {seen['seeds']} seeds: {seen['nats']:.4f} nats,"
            f" {share:.2%} of the loss.",
            f"Above full by more than that: {', '.join(above) or 'none'}.",
        ],
    }


def draw(records: Mapping[str, list[Record]], path: Path) -> None:
    """Held-out loss at the checkpoints, over that of the full shuffle."""
    figure = new_figure("005 loss parity: held-out loss over that of the full shuffle")
    ax = figure.subplots()
    base = mean_curve(records[REFERENCE], "val_curve")
    for color, (arm, runs) in zip(COLORS, records.items(), strict=False):
        curve = mean_curve(runs, "val_curve")
        ax.plot(curve[:, 0], curve[:, 1] - base[:, 1], color=color, label=arm, marker="o")
    ax.set(xlabel="step", ylabel="nats a token over full")
    ax.legend(frameon=False)
    ax.spines[["top", "right"]].set_visible(False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)


def main(argv: list[str] | None = None) -> Record:
    """Runs what is left to run, and writes the record."""
    own = argparse.ArgumentParser(add_help=False)
    own.add_argument("--size", choices=["minutes", "night", "h100"], default="minutes")
    own.add_argument("--steps", type=int, help="at most so many, in place of the whole pass")
    chosen, rest = own.parse_known_args(argv)
    args = parse(__doc__, rest, seeds=3)
    name = "quick" if args.quick else chosen.size
    flag = "--quick" if args.quick else f"--size {name}"
    size = SIZES[name]
    if chosen.steps is not None:
        flag += f" --steps {chosen.steps}"
        size = replace(size, sizes=replace(size.sizes, steps=chosen.steps))
    texts = partial(installed_text, size.suffixes)
    corpus = prepare_corpus(size.sizes.corpus, args.work / "installed", sources=texts)
    configs = {arm: partial(config_of, corpus, size, arm) for arm in ARMS}
    steps = min(config(0).run_steps or 0 for config in configs.values())
    (side,) = configs[REFERENCE](0).validation_datasets().values()
    rows = np.linspace(0, len(side) - 1, min(HELD_ROWS, len(side)), dtype=np.int64)
    evaluation = Evaluation(read_rows(side, rows), np.zeros(rows.size, np.int64), ("all",))
    settings = {
        "sizes": size.sizes.describe(),
        "window_blocks": size.window_blocks,
        "corpus": corpus.fingerprint,
        "steps": steps,
        "device": jax.devices()[0].device_kind,
    }

    def one(arm: str, seed: int) -> Record:
        config = replace(configs[arm](seed), num_steps=steps)
        run = train(config, size.sizes.model, evaluation, steps=steps, seed=seed, evaluations=4)
        return run.record

    study = Study(HOME.name, settings, {arm: range(args.seeds) for arm in ARMS}, args.work)
    records = study.run(one, lambda line: print(line, file=sys.stderr, flush=True))
    record = {
        "experiment": HOME.name,
        "command": f"python experiments/{HOME.name}/run.py {flag}",
        "settings": settings,
        "corpus": corpus.describe(),
        "held_out_rows": rows.size,
        **conclude(records),
        "runs": records,
    }
    name = "results" if chosen.size == "minutes" else f"results_{chosen.size}"
    finish(args, HOME, record, lambda path: draw(records, path), name)
    return record


if __name__ == "__main__":
    main()
