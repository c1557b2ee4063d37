"""Can one run draw from 168 sources in two phases, as Marin's datakit launches do, and what does
that cost?

    python experiments/004_datakit/run.py            # writes launch.yaml, levanter.yaml, results.json
    python experiments/004_datakit/run.py --quick    # the same on caches of one chunk each, results to --json alone

The shape is that of the launch: a store of 40 clusters in 5 qualities, of which 167 buckets are
components and the 33 smallest one more (``tail``); two phases of weights, the second from four
fifths of the run on; batches of 512; every source cut to the share that the run is of the store
(simulated epochs). Sizes and weights are drawn: log-normal, of 10.4 trillion tokens in all.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from headrace import ComponentConfig, LmDataConfig, load_config
from headrace.mix import StageConfig
from headrace.order import SubsetConfig
from headrace.store import CacheLayout
from headrace.testing import write_cache

HOME = Path(__file__).resolve().parent
STORE = "gs://bucket/datakit/store"
TOTAL = 10_372_343_704_053
SEQ_LEN = 2048
BATCH = 512
STEPS = 16_384
PHASE = 13_056
TAIL_CLUSTERS = (0, 4, 7, 9, 39)
TAIL_MORE = ("c10q1", "c10q2", "c10q3", "c10q4", "c38q1", "c38q2", "c38q3", "c38q4")
LEVANTER_BLOCK = 49_152
BUCKETS = [f"c{cluster:02}q{quality}" for cluster in range(40) for quality in range(5)]
TAIL = [name for name in BUCKETS if int(name[1:3]) in TAIL_CLUSTERS or name in TAIL_MORE]


def folder_of(bucket: str, store: str = STORE) -> str:
    """Where a bucket's cache lies."""
    return f"{store}/cluster={int(bucket[1:3])}/quality={bucket[-1]}"


def sizes_of_buckets() -> dict[str, int]:
    """Tokens of each of the 200 buckets; those of the tail are a thousandth of the others."""
    drawn = np.random.default_rng(0).lognormal(0, 1.2, len(BUCKETS))
    drawn *= [1e-3 if name in TAIL else 1 for name in BUCKETS]
    return {
        name: int(size) for name, size in zip(BUCKETS, drawn / drawn.sum() * TOTAL, strict=True)
    }


def weights_of_phases() -> list[dict[str, float]]:
    """Weights of both phases, each summing to 1 to six digits; the tail's are the smallest."""
    names = [name for name in BUCKETS if name not in TAIL] + ["tail"]
    phases: list[dict[str, float]] = []
    for seed in (1, 2):
        drawn = np.random.default_rng(seed).lognormal(0, 1.2, len(names))
        drawn[-1] = drawn.min() / 2
        phases.append(
            {n: round(float(w), 6) for n, w in zip(names, drawn / drawn.sum(), strict=True)}
        )
    return phases


def launch(store: str = STORE, *, sizes: dict[str, int] | None = None) -> LmDataConfig:
    """The launch as a config of headrace's; ``sizes`` are those to plan with."""
    phases = weights_of_phases()
    components = {
        name: ComponentConfig(
            [folder_of(one, store) for one in TAIL] if name == "tail" else folder_of(name, store),
            expected_tokens=sizes
            and float(sum(sizes[one] for one in TAIL) if name == "tail" else sizes[name]),
        )
        for name in phases[0]
    }
    return LmDataConfig(
        components,
        seq_len=SEQ_LEN,
        batch_size=BATCH,
        num_steps=STEPS,
        stages=[StageConfig(weights=phases[0], step=0), StageConfig(weights=phases[1], step=PHASE)],
        subset=SubsetConfig(fraction=STEPS * BATCH * SEQ_LEN / TOTAL),
        split_documents=True,
    )


def levanter_launch() -> dict[str, Any]:
    """The launch in Levanter's form, with two sets that are only evaluated on."""
    phases = weights_of_phases()

    def cached(bucket: str) -> dict[str, Any]:
        return {"cache_dir": folder_of(bucket), "flat_cache": True, "tags": [bucket]}

    components: dict[str, Any] = {name: cached(name) for name in phases[0] if name != "tail"}
    components["tail"] = {
        "type": "concat",
        "children": {name: cached(name) for name in TAIL},
        "tags": ["tail"],
    }
    evaluated = {
        f"paloma/{name}": {"cache_dir": f"gs://bucket/paloma/{name}"}
        for name in ("c4_en", "wikitext_103")
    }
    none = dict.fromkeys(evaluated, 0.0)
    data = {
        "tokenizer": "marin-community/marin-tokenizer",
        "cache_dir": None,
        "auto_build_caches": False,
        "mixture_block_size": LEVANTER_BLOCK,
        "target_budget": TOTAL,
        "experiment_budget": STEPS * BATCH * SEQ_LEN,
        "components": components | evaluated,
        "train_weights": [[0, phases[0] | none], [PHASE, phases[1] | none]],
    }
    return {
        "data": data,
        "train_seq_len": SEQ_LEN,
        "trainer": {"train_batch_size": BATCH, "num_train_steps": STEPS},
    }


def without_defaults(config: dict[str, Any], defaults: dict[str, Any]) -> dict[str, Any]:
    """A config without the settings that it leaves as they are."""
    plain = {name: value for name, value in config.items() if value != defaults[name]}
    unset = (None, "refuse", "auto")
    plain["components"] = {
        name: {key: value for key, value in one.items() if value not in unset}
        for name, one in config["components"].items()
    }
    plain["stages"] = [
        {key: stage[key] for key in ("step", "weights")} for stage in config["stages"]
    ]
    plain["subset"] = {"fraction": config["subset"]["fraction"]}
    return plain


def write_store(folder: Path, *, quick: bool) -> None:
    """The 200 caches on a disk, of one to eight chunks each: what opening costs does not follow
    from their sizes.
    """
    rng = np.random.default_rng(3)
    for name in BUCKETS:
        chunks = 1 if quick else int(rng.integers(1, 9))
        tokens = rng.integers(1, 1000, 65_536 * chunks).astype(np.int32)
        write_cache(
            Path(folder_of(name, str(folder))),
            [np.split(tokens, 64)],
            vocab_size=1 << 17,
            eos_id=0,
            layout=CacheLayout("uint32"),
        )


OPEN = """
import sys, time
import jax, headrace.data.phased_mixture, headrace.feed
from headrace import load_config
started = time.process_time()
dataset = load_config(sys.argv[1]).dataset()
print(time.process_time() - started)
"""


def cpu_seconds(*command: str) -> float:
    """CPU time of a command in a process of its own, imports included."""
    code = (
        "import resource, subprocess, sys; subprocess.run(sys.argv[1:], check=True,"
        " stdout=subprocess.DEVNULL);"
    )
    code += (
        "used = resource.getrusage(resource.RUSAGE_CHILDREN); print(used.ru_utime + used.ru_stime)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *command], capture_output=True, text=True, check=True
    )
    return float(done.stdout.split()[-1])


def exactness(config: LmDataConfig) -> dict[str, Any]:
    """How far the rows of components are from their weights' share: headrace's batches, and
    Levanter's blocks.
    """
    mixture: Any = config.dataset()
    shares = mixture.weights_at(np.array([0, PHASE]))
    rows = np.asarray([mixture.draws.starts_at(step) for step in (PHASE, STEPS)])
    wanted = (
        shares[0] * PHASE * BATCH,
        shares[0] * PHASE * BATCH + shares[1] * (STEPS - PHASE) * BATCH,
    )
    blocks = np.floor(shares * LEVANTER_BLOCK + 1e-9)
    return {
        "rows_off": max(float(np.abs(rows[k] - wanted[k]).max()) for k in range(2)),
        "levanter_rows_off_in_a_block": float((shares * LEVANTER_BLOCK - blocks).sum(axis=1).max()),
        "levanter_never_drawn_in_blocks_of_2048": int(
            (np.floor(shares[0] * 2048 + 1e-9) == 0).sum()
        ),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--quick",
        action="store_true",
        help="caches of one chunk each; writes no file beside this one",
    )
    parser.add_argument("--json", type=Path, default=None, help="where results go", metavar="FILE")
    args = parser.parse_args()
    planned = launch(sizes=sizes_of_buckets())
    if not args.quick:
        head = (
            "# Written by run.py: a launch of 168 sources in two phases; sizes and weights are"
            " drawn.\n"
        )
        whole = without_defaults(
            yaml.safe_load(planned.to_yaml()), yaml.safe_load(LmDataConfig().to_yaml())
        )
        for file, content in (("launch", whole), ("levanter", levanter_launch())):
            text = yaml.safe_dump(content, sort_keys=False, default_flow_style=None, width=120)
            (HOME / f"{file}.yaml").write_text(head + text)
    headrace = [sys.executable, "-m", "headrace"]
    with tempfile.TemporaryDirectory(prefix="headrace-datakit-") as name:
        folder = Path(name)
        started = time.perf_counter()
        write_store(folder / "store", quick=args.quick)
        print(f"200 caches written in {time.perf_counter() - started:.1f} s")
        local = folder / "local.yaml"
        declared = folder / "declared.yaml"
        local.write_text(launch(str(folder / "store")).to_yaml())
        local.write_text(
            load_config(str(local), ["subset.fraction=0.5"]).to_yaml()
        )  # the caches are small
        declared.write_text(planned.to_yaml())
        opened = subprocess.run(
            [sys.executable, "-c", OPEN, str(local)], capture_output=True, text=True, check=True
        ).stdout
        results = {
            "components": len(planned.components),
            "caches": len(BUCKETS),
            "open_cpu_s": float(opened),
            "check_cpu_s": cpu_seconds(
                *headrace, "config", "check", str(local), "--hosts", "1,8,64"
            ),
            "simulate_cpu_s": cpu_seconds(
                *headrace, "config", "simulate", str(local), "--hosts", "1,8,64"
            ),
            "check_declared_cpu_s": cpu_seconds(
                *headrace, "config", "check", str(declared), "--declared", "--hosts", "8,64"
            ),
            "simulate_declared_cpu_s": cpu_seconds(
                *headrace,
                "simulate",
                str(declared),
                "--declared",
                "--hosts",
                "8,64",
                "--max-rows",
                "65536",
            ),
            **exactness(load_config(str(local))),
        }
    for key, value in results.items():
        print(f"{key:42} {value if isinstance(value, int) else round(value, 3)}")
    target = args.json or (None if args.quick else HOME / "results.json")
    if target is not None:
        target.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
