"""Writes the corpus that tests/test_golden_runs.py checks: ``tests/golden/runs/``.

    python3 -m uv run --no-sync python tests/golden/make_runs.py [runs|new_runs|errors|cli ...]

It is not to be run again to make a failing check pass: the corpus says what the commit did that
``new_runs.json`` names (``made_on_commit``). ``runs`` draws random configs with a fixed seed and
builds small caches with the library's own builder; and it writes what a run leaves on disk.
``new_runs`` keeps of each config the fingerprint of its run and digests of its batches. ``errors``
mutates configs and keeps what is said of them; ``cli`` keeps what commands print.
Without a name all are made. Another run on the same commit gives the same digests; only the bytes
of the archive differ (caches and logs hold times).
"""

import argparse
import contextlib
import importlib.util
import json
import os
import random
import subprocess
import tarfile
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import yaml

os.environ.setdefault("JAX_PLATFORMS", "cpu")

GOLDEN = Path(__file__).resolve().parent / "runs"
SEED = 20
LEAST_OF_A_FEATURE = 5
LEAST_RUNS = 120
CLI_RUNS = 12
REFUSED = 2
IDS = ["a", "b", "c", "mask", "fim", "lev", "levsharded"]
BYTES = ["text", "zstd", "chat", "pairs", "levchat"]
EVEN = ["pairs"]
Config = dict[str, Any]


def load_checker() -> Any:
    """The checker, whose digests and openers the maker shares."""
    path = GOLDEN.parent.parent / "test_golden_runs.py"
    spec = importlib.util.spec_from_file_location("test_golden_runs", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


CHECKER = load_checker()


# caches and lists


def write_records(name: str, records: list[Config], files: int = 1) -> list[str]:
    """Writes records as JSON lines into so many files."""
    Path("sources").mkdir(exist_ok=True)
    paths = [f"sources/{name}-{number}.jsonl" for number in range(files)]
    for number, path in enumerate(paths):
        Path(path).write_text(
            "".join(json.dumps(record) + "\n" for record in records[number::files])
        )
    return paths


def draw_records(
    rng: random.Random, documents: int, longest: int, *, masked: bool = False
) -> list[Config]:
    """Documents of ready ids, some empty."""
    records: list[Config] = []
    for number in range(documents):
        size = rng.choice(
            [0, 1, rng.randrange(2, longest), rng.randrange(2, longest), rng.randrange(2, longest)]
        )
        record: Config = {
            "input_ids": [rng.randrange(500) for _ in range(size)],
            "id": f"doc-{number}",
        }
        if masked:
            record["loss_mask"] = [int(rng.random() < 0.6) for _ in range(size)]
        records.append({**record, "score": number / 8})
    return records


def draw_text(rng: random.Random, words: int) -> str:
    return " ".join(
        rng.choice(["loss", "Gewicht", "日本", "rows", "of", "a", "batch"]) for _ in range(words)
    )


def build_caches() -> None:
    """Builds the caches below ``caches``, in every form that headrace writes."""
    import headrace

    rng = random.Random(SEED)
    leaves = {"id": {"field": "id"}, "score": {"field": "score", "dtype": "float32"}}
    ids: dict[str, tuple[list[Config], int, Config, Config]] = {
        "a": (
            draw_records(rng, 300, 60),
            2,
            {},
            {"chunk_tokens": 256, "shard_chunks": 4, "part_bytes": 12_000},
        ),
        "b": (
            draw_records(rng, 240, 40),
            3,
            {"leaves": leaves},
            {"chunk_tokens": 128, "shard_chunks": 2, "compression": "zstd", "part_bytes": 5_000},
        ),
        "c": (draw_records(rng, 150, 30), 1, {}, {"chunk_tokens": 512, "dtype": "uint32"}),
        "mask": (
            draw_records(rng, 200, 50, masked=True),
            1,
            {"leaves": leaves},
            {"chunk_tokens": 256, "shard_chunks": 8, "part_bytes": 8_000},
        ),
        "fim": (
            draw_records(rng, 150, 50),
            1,
            {"fim": {"prefix": "501", "suffix": "502", "middle": "503", "rate": 0.7}},
            {"chunk_tokens": 128, "shard_chunks": 16},
        ),
    }
    text = [{"text": draw_text(rng, rng.randrange(12)), "id": f"t{n}"} for n in range(260)]
    chats = [
        {
            "messages": [
                {"role": "user", "content": draw_text(rng, rng.randrange(1, 6))},
                {"role": "assistant", "content": draw_text(rng, rng.randrange(0, 6))},
            ]
            * rng.randrange(1, 3)
        }
        for _ in range(120)
    ]
    pairs = [
        {
            "prompt": draw_text(rng, 2),
            "chosen": draw_text(rng, 2),
            "rejected": draw_text(rng, rng.randrange(1, 4)),
        }
        for _ in range(90)
    ]
    template = (
        "{% for m in messages %}[{{ m.role }}]{% if m.role == 'assistant' %}{% generation %}{{"
        " m.content }}{% endgeneration %}{% else %}{{ m.content }}{% endif %}{% endfor %}"
    )
    built: list[tuple[str, list[str], Config, str, Config]] = [
        (
            name,
            write_records(name, records, files),
            {"kind": "tokens", **source},
            "ids:512",
            options,
        )
        for name, (records, files, source, options) in ids.items()
    ]
    small = {"chunk_tokens": 256, "shard_chunks": 4, "part_bytes": 7_000}
    built += [
        (
            "text",
            write_records("text", text, 2),
            {"leaves": {"id": {"field": "id"}}},
            "bytes",
            small,
        ),
        (
            "zstd",
            write_records("zstd", text[::2], 1),
            {},
            "bytes",
            {**small, "compression": "zstd"},
        ),
        (
            "chat",
            write_records("chat", chats, 2),
            {"kind": "chat", "chat": {"template": template}},
            "bytes",
            small,
        ),
        ("pairs", write_records("pairs", pairs, 1), {"kind": "preference"}, "bytes", small),
    ]
    for name, paths, source, tokenizer, options in built:
        component = {"cache": "-", "source": {"paths": paths, **source}}
        config = (
            headrace.load_config(overrides=[f"components.x={json.dumps(component)}"])
            .components["x"]
            .source
        )
        assert config is not None
        named = headrace.TokenizerConfig(tokenizer)
        headrace.build_cache(
            config, named, f"caches/{name}", engine="inline", progress=False, **options
        )
    forms = {
        "lev": ("c", "consolidated"),
        "levsharded": ("b", "sharded"),
        "levchat": ("chat", "consolidated"),
    }
    for name, (source, form) in forms.items():
        arguments = [
            "cache",
            "convert",
            f"caches/{source}",
            f"caches/{name}",
            "--layout",
            "levanter",
            "--form",
            form,
            "--json",
        ]
        status, printed = CHECKER.run_command(arguments)
        assert status == 0, printed


def write_lists() -> None:
    """Writes lists of documents to leave out: numbers as text and as an array, and a bitmap, of
    every cache.
    """
    import headrace

    rng = np.random.default_rng(SEED)
    Path("lists").mkdir()
    for name in (*IDS, *BYTES):
        documents = headrace.open_cache(f"caches/{name}").num_documents
        chosen = np.sort(rng.choice(documents // 2, documents // 12, replace=False) * 2)
        chosen = np.unique(np.concatenate([chosen, chosen + 1])) if name in EVEN else chosen
        Path(f"lists/{name}.txt").write_text("\n".join(map(str, chosen.tolist())) + "\n")
        np.save(f"lists/{name}.npy", chosen[::-1])
        np.save(
            f"lists/{name}-bitmap.npy", np.isin(np.arange(documents), chosen[: chosen.size // 2])
        )
        Path(f"lists/{name}-far.txt").write_text(
            "\n".join(map(str, [*chosen.tolist(), documents + 7])) + "\n"
        )


# configs


class Draw:
    """Draws a config; what must be in it is in ``wish``, all else comes by chance."""

    def __init__(self, rng: random.Random, wish: str) -> None:
        self.rng = rng
        self.wish = wish
        self.policy = wish.removeprefix("policy ") if wish.startswith("policy ") else "quota"
        self.smooth = wish == "stages of swrr"
        self.chance = 0.12 if self.policy == "quota" and not self.smooth else 0.05

    def use(self, *features: str) -> bool:
        return self.wish in features or self.rng.random() < self.chance

    def choose(self, label: str, options: dict[str, Any]) -> Any:
        """One of the options, by the wish ``label option`` if it is one."""
        wished = self.wish.removeprefix(f"{label} ")
        return options[
            wished if wished in options and wished != self.wish else self.rng.choice(list(options))
        ]

    def schedule(self, values: list[float]) -> Any:
        rng = self.rng
        kind = self.choose("weight", {"step": "step", "linear": "linear"})
        steps = [0, *sorted(rng.sample(range(2, 90), rng.choice([1, 2])))]
        points: Any = {step: rng.choice(values) for step in steps}
        if self.use("weight points as lists"):
            points = [[step, value] for step, value in points.items()]
        schedule: Config = {kind: points}
        if self.use("weight scale"):
            schedule["scale"] = rng.choice([0.5, 3])
        return schedule

    def weight(self) -> Any:
        schedules = ("weight step", "weight linear", "weight points as lists", "weight scale")
        if self.policy == "quota" and not self.smooth and self.use(*schedules):
            return self.schedule([0.5, 1.0, 3.0, 7.0])
        return (
            self.rng.choice([0.3, 1, 2.5, 4, "1e0"])
            if self.policy in ("quota", "swrr", "greedy")
            else 1
        )

    def blend(self, names: list[str]) -> Config:
        if self.policy != "swrr" and len(names) > 1 and self.use("nested blend"):
            inner = {name: self.rng.choice([0.3, 1, 4]) for name in names[1:]}
            group = {"weight": self.weight(), "blend": inner}
            return {
                names[0]: self.weight(),
                "group": group if self.rng.random() < 0.7 else {"blend": inner},
            }
        return {name: self.weight() for name in names}

    def shuffle(self) -> Any:
        rng = self.rng
        kinds: dict[str, Callable[[], Any]] = {
            "braid": lambda: {"kind": "braid"},
            "strands": lambda: {"strands": rng.choice([6, 9, 17])},
            "budget_bytes": lambda: {"budget_bytes": rng.choice([20_000, 50_000])},
            "braid blocks": lambda: {
                "kind": "braid",
                "strands": 8,
                "io_block_size": rng.choice([3, 5]),
            },
            "block": lambda: {"window_blocks": rng.choice([2, 5])},
            "block linear": lambda: {
                "kind": "block",
                "window_blocks": 4,
                "perm_type": "linear",
                "io_block_size": 3,
            },
            "cache_windows": lambda: {"window_blocks": 3, "cache_windows": 2},
            "full": lambda: True,
            "era": lambda: rng.choice([7, 40]),
            "none": lambda: False,
        }
        return self.choose("shuffle", kinds)()

    def packing(self, name: str) -> Config:
        rng = self.rng
        algorithms = ["windowed", "bfd", "wfd", "ffd", "next_fit", "bfd_split", "wrap"]
        packing: Config = {
            "algorithm": self.choose("packing", {algorithm: algorithm for algorithm in algorithms})
        }
        if packing["algorithm"] not in ("bfd_split", "wrap"):
            packing["long"] = self.choose(
                "long", {long: long for long in ("split", "truncate", "drop")}
            )
        if self.use("packing min_fill"):
            packing["min_fill"] = rng.choice([0.3, 0.6])
        if self.use("packing plans"):
            packing["plans"] = "scratch/plans"
        if name in EVEN:
            packing = {
                "algorithm": rng.choice(["windowed", "bfd", "ffd"]),
                "long": "drop",
                "unit": 2,
            }
        return packing

    def component(self, name: str) -> Config:
        rng = self.rng
        component: Config = {"cache": f"caches/{name}"}
        if self.use("remove text", "remove npy", "remove bitmap", "remove_not_found"):
            lists = {"text": f"{name}.txt", "npy": f"{name}.npy", "bitmap": f"{name}-bitmap.npy"}
            component["remove"] = f"lists/{self.choose('remove', lists)}"
        if self.use("remove_not_found"):
            component |= {"remove": f"lists/{name}-far.txt", "remove_not_found": "count"}
        if self.use("own shuffle"):
            component["shuffle"] = self.shuffle()
        if self.use("own max_epochs"):
            component["max_epochs"] = rng.choice([0.7, 2, 5.5])
        if self.use("max_tokens"):
            component["max_tokens"] = rng.choice([900, 6000])
        if self.use("max_share"):
            component["max_share"] = rng.choice([0.4, 0.7])
        if name in ("mask", "chat", "levchat") and self.use("loss_mask none", "loss_mask named"):
            masks = {"named": "loss_mask", "none": "none"}
            component["loss_mask"] = self.choose("loss_mask", masks)
        return component

    def stages(self, names: list[str]) -> list[Config]:
        rng = self.rng
        if self.smooth:
            weights = [{name: rng.choice([1, 2, 0.5]) for name in names} for _ in range(2)]
            return [{"weights": blend, "tokens": rng.choice([700, 2500])} for blend in weights]
        stages: list[Config] = [{"weights": self.blend(names)}]
        for number in range(rng.choice([1, 2])):
            stage: Config = {
                "weights": self.blend(rng.sample(names, rng.randrange(1, len(names) + 1)))
            }
            if self.wish == "stages by tokens" or (
                self.wish != "stages by step" and rng.random() < 0.5
            ):
                stages[-1]["tokens"] = rng.choice([1500, 5000])
            else:
                stage["step"] = 20 * (number + 1) + rng.randrange(10)
            stages.append(stage)
        if self.use("stage names"):
            for number, stage in enumerate(stages):
                stage["name"] = f"stage-{number}"
        if self.use("tokens end the run"):
            stages[-1]["tokens"] = rng.choice([3000, 9000])
        return stages

    def amendments(self, config: Config, names: list[str], later: str | None) -> list[Config]:
        rng = self.rng
        first = self.rng.randrange(30, 70)
        amendment: Config = {"step": first}
        kind = self.choose("amendment", {"add": "add", "drop": "drop", "weights": "weights"})
        if later is not None:
            amendment["add"] = {later: self.weight()}
        if kind == "drop":
            amendment["drop"] = [names[-1]]
        if kind == "weights":
            amendment["weights"] = {names[0]: rng.choice([0.3, 2, 9])}
        amendments = [amendment]
        if self.use("several amendments"):
            amendments.append(
                {"step": first + rng.randrange(5, 40), "weights": {names[0]: rng.choice([0.2, 3])}}
            )
        return amendments

    def config(self) -> Config:  # noqa: C901 (one branch a feature)
        rng = self.rng
        family = rng.choice([IDS, BYTES])
        if self.wish in (*IDS, "tokenizer"):
            family = IDS
        elif self.wish in (*BYTES, "split_documents", "preference pairs", "packing pairs"):
            family = BYTES
        names = rng.sample(family, rng.choice([2, 3]))
        if self.wish in family and self.wish not in names:
            names[0] = self.wish
        if self.wish == "preference pairs":
            names = ["pairs"]
        elif self.wish == "loss_mask none" or self.wish == "loss_mask named":
            names[0] = "mask" if family is IDS else "chat"
        rows = rng.choice([1, 3, 6, 8, 13])
        config: Config = {
            "seq_len": rng.choice([8, 16, 24, 33]),
            "batch_size": rows,
            "seed": rng.randrange(1000),
        }
        if self.use("batch schedule"):
            config["batch_size"] = {0: rows, rng.randrange(10, 60): rng.choice([2, 5, 16])}
        if self.wish.startswith("shuffle ") or rng.random() < 0.8:
            config["shuffle"] = self.shuffle()
        if self.use("phases"):
            steps = sorted(rng.sample(range(5, 70), rng.choice([1, 2])))
            config["seq_len"] = {
                0: config["seq_len"],
                **{step: rng.choice([12, 32, 20]) for step in steps},
            }
        config["components"] = {name: self.component(name) for name in names}
        packs = (
            self.wish.startswith(("packing ", "long "))
            or self.wish == "preference pairs"
            or rng.random() < 0.15
        )
        if packs and not isinstance(config["seq_len"], dict):
            for name, component in config["components"].items():
                if (
                    len(names) == 1
                    or self.wish.startswith(("packing ", "long "))
                    or rng.random() < 0.7
                ):
                    component["packing"] = self.packing(name)
            config["seq_len"] = (
                max(config["seq_len"], 64) if "pairs" in names else config["seq_len"]
            )
        if self.smooth:
            config |= {"policy": "swrr", "stages": self.stages(names)}
        elif self.use("stages by step", "stages by tokens", "stage names", "tokens end the run"):
            config["stages"] = self.stages(names)
        elif self.use("temperature"):
            config["weights"] = {"temperature": rng.choice([1, 2, 3.5])}
        elif self.use("unimax", "unimax tokens"):
            rule = {"max_epochs": 3, "tokens": rng.choice([9000, 40_000])}
            config["weights"] = {"unimax": rule if self.wish == "unimax tokens" else 4}
            config["num_steps"] = 60
        elif self.use("weights", "nested blend") or self.policy == "greedy":
            config["weights"] = self.blend(names)
        else:
            for component in config["components"].values():
                component["weight"] = self.weight()
        amends = self.wish.startswith("amendment ") or self.use("several amendments")
        if amends and self.policy == "quota" and not self.smooth:
            spare = [name for name in family if name not in names]
            later = (
                rng.choice(spare)
                if spare and (self.wish == "amendment add" or rng.random() < 0.4)
                else None
            )
            if later is not None:
                config["components"][later] = {"cache": f"caches/{later}"}
            config["amendments"] = self.amendments(config, names, later)
        if self.policy != "quota":
            config["policy"] = self.policy
        if self.wish.startswith("stop ") or self.use("stop"):
            strategies = ("restart", "first_exhausted", "all_exhausted")
            config["stop_strategy"] = self.choose(
                "stop", {strategy: strategy for strategy in strategies}
            )
        if self.use("max_epochs"):
            config["max_epochs"] = rng.choice([1, 1.6, 4])
        if self.use("num_steps"):
            config["num_steps"] = rng.choice([80, 150])
        if self.wish.startswith("validation ") or self.use("validation"):
            kinds: dict[str, Config] = {
                "blocks": {"one_in": 4, "seed": rng.randrange(5)},
                "documents": {"one_in": rng.choice([3, 8]), "by": "documents"},
                "fraction": {"fraction": 0.2},
                "io_block_size": {"one_in": 5, "io_block_size": 2},
            }
            config["validation"] = self.choose("validation", kinds)
        if family is BYTES and self.use("split_documents"):
            config["split_documents"] = True
        if self.use("row_order"):
            config["row_order"] = "stream"
        if self.use("unit"):
            config["unit"] = "tokens"
        if self.use("tokenizer"):
            config["tokenizer"] = (
                {"path": "ids:512", "eos": None} if family is IDS else {"path": "bytes"}
            )
        if self.use("prefetch_bytes"):
            config["prefetch_bytes"] = 1 << 20
        return config


FEATURES = [
    *(f"policy {p}" for p in ("quota", "swrr", "greedy", "exhaustive", "least_consumed")),
    "stages of swrr",
    *(f"stop {s}" for s in ("restart", "first_exhausted", "all_exhausted")),
    *(
        f"shuffle {s}"
        for s in (
            "braid",
            "strands",
            "budget_bytes",
            "braid blocks",
            "block",
            "block linear",
            "cache_windows",
            "full",
            "era",
            "none",
        )
    ),
    "own shuffle",
    *(
        f"packing {p}"
        for p in (
            "windowed",
            "bfd",
            "wfd",
            "ffd",
            "next_fit",
            "bfd_split",
            "wrap",
            "min_fill",
            "plans",
            "pairs",
        )
    ),
    *(f"long {p}" for p in ("split", "truncate", "drop")),
    "preference pairs",
    "phases",
    "batch schedule",
    "weights",
    "nested blend",
    "weight step",
    "weight linear",
    "weight scale",
    "weight points as lists",
    "temperature",
    "unimax",
    "unimax tokens",
    "unit",
    "row_order",
    "split_documents",
    "stages by step",
    "stages by tokens",
    "stage names",
    "tokens end the run",
    "amendment add",
    "amendment drop",
    "amendment weights",
    "several amendments",
    "max_epochs",
    "own max_epochs",
    "max_tokens",
    "max_share",
    "num_steps",
    *(f"validation {v}" for v in ("blocks", "documents", "fraction", "io_block_size")),
    *(f"remove {r}" for r in ("text", "npy", "bitmap")),
    "remove_not_found",
    "loss_mask none",
    "loss_mask named",
    "tokenizer",
    "prefetch_bytes",
    *IDS,
    *BYTES,
]


def _walk(value: Any) -> Iterator[tuple[str, Any]]:
    """All names and values in a config, at every depth."""
    items = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    )
    for name, inner in items:
        yield str(name), inner
        yield from _walk(inner)


def _name_shuffle(shuffle: Any) -> str:
    if isinstance(shuffle, dict):
        if "window_blocks" in shuffle:
            marks = {
                "perm_type": "block linear",
                "cache_windows": "cache_windows",
                "window_blocks": "block",
            }
        else:
            marks = {
                "io_block_size": "braid blocks",
                "strands": "strands",
                "budget_bytes": "budget_bytes",
            }
        return next((kind for field, kind in marks.items() if field in shuffle), "braid")
    return {True: "full", False: "none"}[shuffle] if isinstance(shuffle, bool) else "era"


def features_of(config: Config) -> set[str]:  # noqa: C901 (one branch a feature)
    """The features that a config has."""
    components: dict[str, Config] = config["components"]
    stages: list[Config] = config.get("stages", [])
    amendments: list[Config] = config.get("amendments", [])
    features = {*components, f"policy {config.get('policy', 'quota')}"}
    features.add(f"stop {config.get('stop_strategy', 'restart')}")
    features.add(f"shuffle {_name_shuffle(config.get('shuffle', {}))}")
    if stages and config.get("policy") == "swrr":
        features.add("stages of swrr")
    elif stages:
        features |= {f"stages by {'step' if 'step' in stage else 'tokens'}" for stage in stages[1:]}
        features |= {"stage names"} if "name" in stages[0] else set()
        features |= {"tokens end the run"} if "tokens" in stages[-1] else set()
    for amendment in amendments:
        features |= {
            f"amendment {kind}" for kind in ("add", "drop", "weights") if kind in amendment
        }
    features |= {"several amendments"} if len(amendments) > 1 else set()
    for name, component in components.items():
        if "shuffle" in component:
            features |= {"own shuffle", f"shuffle {_name_shuffle(component['shuffle'])}"}
        if "remove" in component:
            endings = {"-bitmap.npy": "remove bitmap", ".npy": "remove npy", ".txt": "remove text"}
            features.add(
                next(kind for end, kind in endings.items() if component["remove"].endswith(end))
            )
        features |= {f for f in ("remove_not_found", "max_tokens", "max_share") if f in component}
        features |= {"own max_epochs"} if "max_epochs" in component else set()
        if "loss_mask" in component:
            features.add(
                "loss_mask none" if component["loss_mask"] == "none" else "loss_mask named"
            )
        if "packing" in component:
            packing = component["packing"]
            features |= {f"packing {packing['algorithm']}", f"long {packing.get('long')}"}
            features |= {
                f"packing {option}" for option in ("min_fill", "plans") if option in packing
            }
            features |= {"packing pairs"} if "unit" in packing else set()
            features |= (
                {"preference pairs"} if [*components] == ["pairs"] and name == "pairs" else set()
            )
    features |= {"phases"} if isinstance(config["seq_len"], dict) else set()
    features |= {"batch schedule"} if isinstance(config["batch_size"], dict) else set()
    weights = config.get("weights", {})
    features |= (
        {"unimax tokens" if isinstance(weights["unimax"], dict) else "unimax"}
        if "unimax" in weights
        else set()
    )
    features |= {"temperature"} if "temperature" in weights else set()
    features |= {"weights"} if weights and not {"unimax", "temperature"} & {*weights} else set()
    for field in (
        "unit",
        "row_order",
        "split_documents",
        "max_epochs",
        "num_steps",
        "tokenizer",
        "prefetch_bytes",
    ):
        features |= {field} if field in config else set()
    for name, value in _walk(config):
        if name in ("step", "linear") and isinstance(value, dict | list):
            features |= {f"weight {name}"} | (
                {"weight points as lists"} if isinstance(value, list) else set()
            )
        features |= {"weight scale"} if name == "scale" else set()
        features |= {"nested blend"} if name == "blend" else set()
    if "validation" in config:
        by = config["validation"]
        kinds = ("fraction", "io_block_size")
        features.add(f"validation {next((k for k in kinds if k in by), by.get('by', 'blocks'))}")
    return features & {*FEATURES}


def draw_steps(rng: random.Random, config: Any, raw: Config, last: int | None) -> list[int]:
    """Awkward steps of a run: the first two, one in the middle, those at a border, a late one."""
    far = 3000 if config.policy not in ("quota", "swrr") else 40_001
    end = last if last is not None else far
    borders = {stage.first_step for stage in config.plan().stages}
    borders |= {
        int(step)
        for field in ("seq_len", "batch_size")
        if isinstance(raw[field], dict)
        for step in raw[field]
    }
    inside = sorted(border for border in borders if 1 < border < end)
    border = rng.choice(inside) if inside else rng.randrange(end)
    late = end - 1 if last is not None else rng.choice([900, far])
    steps = {0, 1, rng.randrange(min(end, 200)), border, border - 1 if inside else border, late}
    return sorted(step for step in steps if 0 <= step < end)[:6]


def draw_runs() -> tuple[dict[str, str], Counter[str]]:
    """Runs that can be opened, until every feature was covered often enough."""
    import headrace

    runs: dict[str, str] = {}
    coverage: Counter[str] = Counter()
    attempts = 0
    while (
        lacking := [f for f in FEATURES if coverage[f] < LEAST_OF_A_FEATURE]
        or len(runs) < LEAST_RUNS
    ):
        rng = random.Random(SEED * 1_000_003 + attempts)
        attempts += 1
        wish = (
            lacking[attempts % len(lacking)] if isinstance(lacking, list) else rng.choice(FEATURES)
        )
        raw = Draw(rng, wish).config()
        features = features_of(raw)
        if wish not in features:
            continue
        text = yaml.safe_dump(raw, sort_keys=False, default_flow_style=None, width=110)
        try:
            config = CHECKER.write_config(Path("scratch"), text)
            loader = CHECKER.open_loader(config)
            if loader.num_steps is not None and loader.num_steps < 3:
                continue
            CHECKER.describe_run(config, draw_steps(rng, config, raw, loader.num_steps))
        except headrace.HeadraceError as error:
            if attempts > 3000:
                raise RuntimeError(f"no config has {wish!r}") from error
            continue
        name = f"{len(runs):03d}-{wish.replace(' ', '-')}"
        runs[name] = text
        coverage.update(features)
    print(f"{len(runs)} runs of {attempts} configs")
    return runs, coverage


# what a run leaves on disk

FAR = 300_000
"""A step to which counting takes a while."""
RAMP = {
    "seq_len": 16,
    "batch_size": {0: 5, 4000: 9},
    "seed": 11,
    "components": {
        "a": {"cache": "caches/a", "weight": {"linear": {0: 0.2, 900_000: 5}}},
        "b": {"cache": "caches/b", "weight": {"linear": {0: 3, 700_000: 0.5}}},
        "c": {"cache": "caches/c", "weight": 1},
    },
}
PHASES = {**RAMP, "seq_len": {0: 16, 9000: 24}, "batch_size": 6}
LEAST = {
    "seq_len": 16,
    "batch_size": 8,
    "policy": "least_consumed",
    "components": {name: {"cache": f"caches/{name}"} for name in ("a", "b", "mask")},
}
FIRST_AMENDMENT = {"step": 12_000, "add": {"mask": 2}, "drop": ["c"]}
SECOND_AMENDMENT = {"step": FAR + 5_000, "weights": {"a": 4}}


def amend(config: Config, *amendments: Config) -> Config:
    components = {**config["components"], "mask": {"cache": "caches/mask"}}
    return {**config, "components": components, "amendments": [*amendments]}


def make_plans() -> dict[str, Config]:
    """Packed runs whose plans lie in folders of their own."""
    made: dict[str, Config] = {}
    packings: dict[str, tuple[str, Config]] = {
        "windowed": ("a", {"algorithm": "windowed"}),
        "bfd": ("b", {"algorithm": "bfd", "long": "truncate", "min_fill": 0.5}),
        "wrap": ("lev", {"algorithm": "wrap"}),
        "pairs": ("pairs", {"algorithm": "windowed", "long": "drop", "unit": 2}),
        "removed": ("text", {"algorithm": "next_fit", "long": "drop"}),
    }
    for name, (cache, packing) in packings.items():
        component: Config = {
            "cache": f"caches/{cache}",
            "packing": {**packing, "plans": f"plans/{name}"},
        }
        if name == "removed":
            component["remove"] = f"lists/{cache}.txt"
        text = yaml.safe_dump(
            {"seq_len": 64, "batch_size": 4, "components": {cache: component}}, sort_keys=False
        )
        config = CHECKER.write_config(Path("scratch"), text)
        made[name] = {"config": text, "run": CHECKER.describe_run(config, [0, 1, 77])}
    return made


def _begin(name: str, config: Config, steps: list[int]) -> Config:
    """Begins a run in a folder, or goes on with one, and leaves anchors at the steps; gives what a
    resumed run must find.
    """
    import headrace

    text = yaml.safe_dump(config, sort_keys=False)
    loader = CHECKER.open_loader(CHECKER.write_config(Path("scratch"), text))
    step = steps[-1]
    manifest = headrace.open_run(f"run_folders/{name}", loader, steps[0])
    states = [manifest.state(one) for one in steps]
    anchors = Path(f"run_folders/{name}/anchors.json")
    return {
        "config": text,
        "step": step,
        "fingerprint": manifest.fingerprint,
        "history": list(manifest.history),
        "batch": CHECKER.digest_batch(loader.batch_at(step)),
        "state": states[-1].to_dict(),
        "anchored": anchors.exists() and str(step) in json.loads(anchors.read_text())["anchors"],
    }


def make_run_folders() -> tuple[dict[str, Config], dict[str, Config], dict[str, Config]]:
    """Folders of runs that were begun; runs that amend them; configs that they refuse."""
    import headrace

    resumed = {
        "ramp": _begin("ramp", RAMP, [0, 5_000, FAR]),
        "phases": _begin("phases", PHASES, [0, 4_000, FAR]),
        "least": _begin("least", LEAST, [0, 3_000]),
    }
    _begin("amended", RAMP, [0, 10_000])
    resumed["amended"] = _begin("amended", amend(RAMP, FIRST_AMENDMENT), [12_000, FAR])
    begun: dict[str, tuple[str, list[Config]]] = {
        "once": ("ramp", [{**FIRST_AMENDMENT, "step": FAR}]),
        "twice": ("amended", [FIRST_AMENDMENT, SECOND_AMENDMENT]),
    }
    amended: dict[str, Config] = {}
    for name, (folder, amendments) in begun.items():
        text = yaml.safe_dump(amend(RAMP, *amendments), sort_keys=False)
        loader = CHECKER.open_loader(CHECKER.write_config(Path("scratch"), text))
        step = amendments[-1]["step"]
        too_late = amendments[-1]["step"] + 100
        with tempfile.TemporaryDirectory() as copy:
            for file in Path("run_folders", folder).iterdir():
                Path(copy, file.name).write_bytes(file.read_bytes())
            refusal = _refusal(lambda: headrace.open_run(copy, loader, too_late))  # noqa: B023
            manifest = headrace.open_run(copy, loader, step)
        amended[name] = {
            "begun": folder,
            "config": text,
            "step": step,
            "too_late": too_late,
            "refusal": refusal,
            "fingerprint": manifest.fingerprint,
            "history": list(manifest.history),
            "batch": CHECKER.digest_batch(loader.batch_at(step)),
        }
    others: dict[str, tuple[str, Config]] = {
        "seed": ("ramp", {**RAMP, "seed": 12}),
        "seq_len": ("ramp", {**RAMP, "seq_len": 32}),
        "shuffle": ("phases", {**PHASES, "shuffle": {"strands": 9}}),
        "sources": (
            "least",
            {**LEAST, "components": {name: {"cache": f"caches/{name}"} for name in ("a", "b")}},
        ),
        "past": ("amended", amend(RAMP, {**FIRST_AMENDMENT, "step": 11_000})),
        "unamended": ("amended", RAMP),
    }
    refused: dict[str, Config] = {}
    for name, (folder, config) in others.items():
        text = yaml.safe_dump(config, sort_keys=False)
        loader = CHECKER.open_loader(CHECKER.write_config(Path("scratch"), text))
        refusal = _refusal(lambda: headrace.open_run(f"run_folders/{folder}", loader, FAR))  # noqa: B023
        refused[name] = {"begun": folder, "config": text, "step": FAR, "refusal": refusal}
    return resumed, amended, refused


def _refusal(act: Callable[[], object]) -> str:
    import headrace

    try:
        act()
    except headrace.HeadraceError as error:
        return str(error)
    raise AssertionError("is not refused")


def make_log() -> tuple[Config, Config]:
    """A run folder with a log: what a report reads in it; and counters of a loader as records."""
    import headrace
    from headrace.feed import RunLog

    folder = "run_folders/logged"
    text = yaml.safe_dump({**RAMP, "num_steps": 5_000}, sort_keys=False)
    config = CHECKER.write_config(Path("scratch"), text)
    loader = CHECKER.open_loader(config)
    headrace.open_run(folder, loader, 0)
    with RunLog(loader, folder, config=config, every=4) as log, loader.iter_from_step(0) as batches:
        for step in range(20):
            next(batches)
            log(step)
    stats = loader.stats()
    status, printed = CHECKER.run_command(["run", "report", folder, "--json", "--hosts", "1"])
    assert status == 0, printed
    report = json.loads(printed)
    kept = {key: report[key] for key in ("measured", "fingerprint")}
    record = json.loads(json.dumps(stats.to_record()))
    return kept, {"record": record, "flat": json.loads(json.dumps(stats.to_dict()))}


def make_rollouts() -> Config:
    """Rollouts of two steps on disk; digests of these and of the two steps that follow."""
    dataset = CHECKER.open_rollouts("rollouts")
    digests = {
        str(step): CHECKER.digest_batch(dataset.next_batch(step, policy_version=step))
        for step in range(2)
    }
    with tempfile.TemporaryDirectory() as folder:
        later = CHECKER.open_rollouts(folder)
        for step in range(4):
            digests[str(step)] = CHECKER.digest_batch(later.next_batch(step, policy_version=step))
    return digests


def find_commit() -> str:
    """The commit that the library is of, which must not be changed."""
    git = ["git", "-C", str(GOLDEN)]
    changed = subprocess.run(
        [*git, "status", "--porcelain", ":/lib"], capture_output=True, text=True, check=True
    )
    assert not changed.stdout, f"the library differs from its commit: {changed.stdout}"
    last = [*git, "log", "-1", "--format=%H", "--", ":/lib"]
    return subprocess.run(last, capture_output=True, text=True, check=True).stdout.strip()


def pack_files(folders: list[str]) -> None:
    """Packs folders into the archive: names sorted, no owners, no times."""

    def strip(info: tarfile.TarInfo) -> tarfile.TarInfo:
        info.uid = info.gid = info.mtime = 0
        info.uname = info.gname = ""
        return info

    with tarfile.open(GOLDEN / "files.tar.gz", "w:gz", compresslevel=9) as archive:
        for path in sorted(p for folder in folders for p in Path(folder).rglob("*") if p.is_file()):
            archive.add(path, filter=strip)


def write_json(name: str, value: Any) -> None:
    (GOLDEN / name).write_text(json.dumps(value, indent=1, ensure_ascii=False) + "\n")


def make_runs() -> None:
    """Makes caches, runs and artifacts, in the current folder."""
    Path("scratch").mkdir()
    Path("run_folders").mkdir()
    build_caches()
    write_lists()
    caches = {name: CHECKER.describe_cache(f"caches/{name}") for name in (*IDS, *BYTES)}
    plans = make_plans()
    resumed, amended, refused = make_run_folders()
    report, stats = make_log()
    artifacts = {
        "caches": caches,
        "plans": plans,
        "resumed": resumed,
        "amended": amended,
        "refused": refused,
        "report": report,
        "loader_stats": stats,
        "rollouts": make_rollouts(),
    }
    pack_files(["caches", "lists", "plans", "run_folders", "rollouts"])
    write_json("artifacts.json", artifacts)
    runs, coverage = draw_runs()
    covered = {feature: coverage[feature] for feature in FEATURES}
    write_json("configs.json", {"coverage": covered, "configs": runs})
    for feature, count in covered.items():
        print(f"{count:4d}  {feature}")


# wrong configs

FULL: Config = {
    "seq_len": 16,
    "batch_size": {0: 8, 50: 12},
    "seed": 3,
    "shuffle": {"kind": "braid", "strands": 12},
    "stages": [
        {
            "name": "start",
            "weights": {"a": 1, "group": {"weight": 2, "blend": {"b": 1, "c": 3}}},
            "tokens": 2560,
        },
        {
            "name": "end",
            "weights": {"a": {"linear": {0: 1, 90: 3}}, "b": {"step": {0: 2, 60: 1}, "scale": 2}},
        },
    ],
    "amendments": [{"step": 80, "add": {"mask": 2}, "weights": {"b": 0.5}, "drop": ["a"]}],
    "num_steps": 200,
    "max_epochs": 40,
    "stop_strategy": "restart",
    "policy": "quota",
    "unit": "examples",
    "validation": {"one_in": 5, "by": "blocks", "seed": 1, "io_block_size": 2},
    "tokenizer": {"path": "ids:512", "bos": None, "eos": None},
    "split_documents": False,
    "row_order": "locality",
    "prefetch_bytes": 1 << 20,
    "components": {
        "a": {
            "cache": "caches/a",
            "shuffle": {"kind": "block", "window_blocks": 4, "perm_type": "feistel"},
        },
        "b": {
            "cache": "caches/b",
            "packing": {"algorithm": "bfd", "long": "split", "min_fill": 0.1, "unit": 1},
        },
        "c": {
            "cache": "caches/c",
            "max_epochs": 30,
            "max_tokens": 90_000,
            "max_share": 0.9,
            "expected_tokens": 1e6,
        },
        "mask": {
            "cache": "caches/mask",
            "remove": "lists/mask.txt",
            "remove_not_found": "refuse",
            "loss_mask": "auto",
            "source": {
                "paths": ["x.jsonl"],
                "format": "jsonl",
                "kind": "tokens",
                "text_field": "text",
                "on_bad_line": "skip",
                "extensions": [".x"],
                "fields": {"tokens": "ids"},
                "leaves": {"id": {"field": "id", "dtype": "text", "kind": "auto"}},
                "chat": {
                    "template": "x",
                    "mask": "roles",
                    "roles": ["assistant"],
                    "variables": {"x": "y"},
                },
                "fim": {
                    "prefix": "1",
                    "suffix": "2",
                    "middle": "3",
                    "rate": 0.5,
                    "spm_rate": 0.5,
                    "seed": 0,
                },
            },
        },
    },
}
PLAIN: Config = {
    "seq_len": 16,
    "batch_size": 8,
    "components": {
        "a": {"cache": "caches/a", "weight": 2},
        "b": {"cache": "caches/b"},
        "c": {"cache": "caches/c"},
    },
}
BARE: Config = {
    **PLAIN,
    "components": {name: {"cache": f"caches/{name}"} for name in ("a", "b", "c")},
}
BASES: dict[str, Config] = {"full": FULL, "plain": PLAIN, "bare": BARE}
WRONG_VALUES: list[Any] = [
    True,
    "text",
    -1,
    0,
    0.5,
    [1],
    {"x": 1},
    None,
    "1e9",
    10**30,
    "",
    [],
    {},
    "1.5",
    "nan",
    float("inf"),
    [["a"]],
]
"""What is put in the place of each value; some of it is right in some places, and then stays so."""
CHANGES: dict[str, tuple[str, ...]] = {
    "seq_len": (
        "0",
        "{0: 16, 10: 0}",
        "{5: 16}",
        "{}",
        "{0: 16, x: 8}",
        "{0: 16, 10: 32}",
        "{0: 16, -3: 8}",
        "1e1",
    ),
    "batch_size": (
        "{5: 8}",
        "{}",
        "{0: 8, x: 3}",
        "{0: 8, 10: 0}",
        "{0: 8, '0': 9}",
        "{0: 8, 1e3: 16}",
        "[8]",
        "8.5",
    ),
    "seed": ("-1", "99999999999999999999999", "x"),
    "shuffle": (
        "{kind: brade}",
        "{strands: 4, window_blocks: 3}",
        "{io_block_size: 4}",
        "{strands: 0}",
        "{strand: 3}",
        "{strands: 4, budget_bytes: 100}",
        "-5",
        "0",
        "full",
        "{kind: block, perm_type: feistl}",
        "{kind: block, strands: 3}",
        "{kind: block, window_blocks: 0}",
        "{budget_bytes: 1}",
        "{strands: 100000}",
        "{}",
        "{kind: block, cache_windows: two}",
    ),
    "weights": (
        "{a: 1}",
        "{a: 1, b: 0, c: 0, d: 1}",
        "{temperature: 0}",
        "{temperature: x}",
        "{unimax: 0}",
        "{unimax: {}}",
        "{unimax: {max_epochs: 2, tokns: 5}}",
        "{a: 0, b: 0, c: 0}",
        "{a: {blend: {}}, b: 1}",
        "{a: {linear: {0: 1}, step: {0: 1}}}",
        "{g: {blend: {a: 1, a2: 2}}}",
        "{g: {blend: {temperature: 2}}}",
        "{g: {wieght: 2, blend: {a: 1}}}",
        "{a: {linear: {}}}",
        "{a: {step: {5: 1}}}",
        "{a: {linear: {0: -1}}}",
        "{a: {step: {0: x}}}",
        "{a: {step: {x: 1}}}",
        "{a: 1e101}",
        "{a: nan}",
        "{a: -1}",
        "{a: true}",
        "{a: [1]}",
        "{a: {linear: [[0, 1], [0, 2]]}}",
        "{a: {linear: [[5, 1], [3, 2]]}}",
        "{a: {linear: [[0]]}}",
        "{a: {linear: {0: 1}, scale: -1}}",
        "{a: {linear: {0: 1}, scal: 1}}",
        "{a: {scale: 1}}",
        "{}",
        "[a, b]",
        "a",
        "{g: {blend: {a: 1}}, h: {blend: {a: 1}}}",
        "{unimax: 3}",
    ),
    "unit": ("token", "3"),
    "stages": (
        "[]",
        "{}",
        "[{}]",
        "[{weights: {a: 1}, step: 5}]",
        "[{weights: {a: 1}}, {weights: {b: 1}}]",
        "[{weights: {a: 1}}, {weights: {b: 1}, step: 9}, {weights: {c: 1}, step: 9}]",
        "[{weights: {a: 1}, stpe: 50}]",
        "[{weights: {a: 1}, tokens: 0}]",
        "[{weights: {a: 1}, tokens: 1280}, {weights: {b: 1}, step: 50}]",
        "[{weights: {a: 1}, tokens: -5}]",
        "[{weights: {zz: 1}}]",
        "[{weights: {a: 1}, step: -1}]",
        "[3]",
        "[null]",
    ),
    "amendments": (
        "[{}]",
        "[{step: 0, weights: {a: 2}}]",
        "[{step: 9, drop: [zz]}]",
        "[{step: 9, add: {a: 1}}]",
        "[{step: 9, weights: {zz: 1}}]",
        "[{step: 9, add: {zz: 1}}]",
        "[{step: 9, drop: a}]",
        "[{step: -9}]",
        "[{step: 9, weights: {a: 2}, drop: [a]}]",
        "[{step: 9, drop: [a, b, c]}]",
        "[{step: x}]",
        "[{step: 9, weights: {a: 2}}, {step: 9, weights: {a: 3}}]",
        "[{step: 9, weights: {temperature: 2}}]",
        "[{step: 9, ad: {a: 1}}]",
        "[{step: 9, drop: [a, a]}]",
    ),
    "num_steps": ("0", "-1", "1.5", "100000000", "two"),
    "max_epochs": ("0", "-1", "nan", "inf", "0.0001", "x", "true"),
    "stop_strategy": ("stop", "all_exausted", "1"),
    "policy": ("swr", "smooth", "greedy", "exhaustive", "least_consumed", "swrr"),
    "validation": (
        "{one_in: 1}",
        "{one_in: 4, fraction: 0.1}",
        "{fraction: 0.9}",
        "{fraction: 0}",
        "{by: document}",
        "{}",
        "{by: documents, io_block_size: 3}",
        "{io_block_size: 0}",
        "{seed: -1}",
        "true",
        "{one_in: 100000}",
        "{one: 5}",
        "{one_in: 2.5}",
    ),
    "tokenizer": (
        "bytes",
        "{path: bytes}",
        "{path: 'ids:'}",
        "{path: 'ids:x'}",
        "{path: no/such.json}",
        "{path: 'ids:512', eos: x}",
        "{pth: bytes}",
        "{path: bytes, eos: '<end>'}",
        "{path: 'ids:100'}",
    ),
    "row_order": ("stram", "local", "0"),
    "split_documents": ("maybe", "1", "'yes'"),
    "prefetch_bytes": ("0", "-1", "100", "1 GiB", "1e6"),
    "components": (
        "{}",
        "[]",
        "a",
        "{a: 3}",
        "{a: {}}",
        "{a: {cache: no/such}}",
        "{a: caches/a}",
        "null",
    ),
    "components.a.cache": ("no/such", "caches/text", "lists", "null", "3", "[caches/a]"),
    "components.a.weight": (
        "-1",
        "nan",
        "x",
        "{linear: {0: 1}, step: {0: 1}}",
        "{lin: {0: 1}}",
        "{linear: 3}",
        "{linear: {3: 1}}",
        "true",
        "{step: {0: 1, 5: inf}}",
        "{step: {0.5: 1}}",
        "{step: {-1: 1}}",
        "[1, 2]",
        "0",
    ),
    "components.a.packing": (
        "{algorithm: bestfit}",
        "{algorithm: wrap, long: drop}",
        "{long: keep}",
        "{long: cut}",
        "{min_fill: 2}",
        "{unit: 0}",
        "{unit: 2}",
        "{unit: 2, long: drop, algorithm: wrap}",
        "{unit: 7, long: drop}",
        "true",
        "windowed",
        "{algoritm: bfd}",
        "{min_fill: half}",
        "{long: error}",
        "{min_fill: 1.0, algorithm: next_fit}",
    ),
    "components.a.max_epochs": ("0", "-2", "nan", "x"),
    "components.a.max_tokens": ("0", "5", "-1", "1.5", "1e3", "x"),
    "components.a.max_share": ("0", "2", "-0.1", "nan", "x"),
    "components.a.expected_tokens": ("x", "[1]"),
    "components.a.remove": (
        "no/such.txt",
        "lists/a-far.txt",
        "lists/b-bitmap.npy",
        "caches/a/ledger.json",
        "3",
    ),
    "components.a.remove_not_found": ("refuze", "true"),
    "components.a.loss_mask": ("mask", "loss_mask", "id", "3"),
    "components.a.source": (
        "{}",
        "{paths: x}",
        "{paths: []}",
        "{paths: [x], format: chat}",
        "{paths: [x], format: josnl}",
        "x.jsonl",
        "{paths: [x], kind: chats}",
        "{paths: [x], on_bad_line: ignore}",
        "{paths: [x], extensions: [py]}",
        "{paths: [x], fields: {txt: body}}",
        "{paths: [x], chat: {mask: rolls}}",
        "{paths: [x], leaves: {id: {}}}",
        "{paths: [x], chat: {roles: [user]}}",
        "{paths: [x], chat: {mask: roles, roles: []}}",
        "{path: [x]}",
        "{paths: [x], fim: {prefix: a}}",
        "{paths: [x], leaves: {id: id}}",
        "{paths: [x], chat: {variables: [a]}}",
        "{paths: [x, null]}",
        "{paths: [x], fim: {prefix: a, suffix: b, middle: c, rate: lots}}",
    ),
}
"""Values that are wrong, or nearly, for fields of the plain config."""
NO_WEIGHT = "components.a.weight=null"
TOGETHER: dict[str, list[str]] = {
    "weight beside weights": ["weights={a: 1, b: 1, c: 1}"],
    "weight beside stages": ["stages=[{weights: {a: 1}}]"],
    "weights beside stages": [NO_WEIGHT, "weights={a: 1}", "stages=[{weights: {a: 1}}]"],
    "phases and packing": ["seq_len={0: 16, 20: 32}", "components.b.packing={}"],
    "phases and stop_strategy": ["seq_len={0: 16, 20: 32}", "stop_strategy=all_exhausted"],
    "phases of swrr": [
        "seq_len={0: 16, 20: 32}",
        "policy=swrr",
        NO_WEIGHT,
        "stages=[{weights: {a: 1}, tokens: 99}]",
    ],
    "phases of greedy": ["seq_len={0: 16, 20: 32}", "policy=greedy"],
    "a phase behind the end": ["seq_len={0: 16, 200: 32}", "num_steps=100"],
    "a size behind the end": ["batch_size={0: 8, 200: 32}", "num_steps=100"],
    "an amendment behind the end": ["num_steps=10", "amendments=[{step: 20, weights: {a: 1}}]"],
    "a stage behind the end": [
        NO_WEIGHT,
        "num_steps=10",
        "stages=[{weights: {a: 1}}, {weights: {b: 1}, step: 20}]",
    ],
    "two ends": [NO_WEIGHT, "num_steps=10", "stages=[{weights: {a: 1}, tokens: 128000}]"],
    "unsorted amendments": [
        "amendments=[{step: 20, weights: {a: 1}}, {step: 10, weights: {a: 3}}]"
    ],
    "swrr with a stage step": ["policy=swrr", NO_WEIGHT, "stages=[{weights: {a: 1}, step: 0}]"],
    "swrr with a schedule": [
        "policy=swrr",
        NO_WEIGHT,
        "stages=[{weights: {a: {linear: {0: 1}}}, tokens: 900}]",
    ],
    "swrr with an unknown name": [
        "policy=swrr",
        NO_WEIGHT,
        "stages=[{weights: {aa: 1}, tokens: 900}]",
    ],
    "swrr with a weight": ["policy=swrr", "stages=[{weights: {a: 1}, tokens: 900}]"],
    "swrr with amendments": [
        "policy=swrr",
        NO_WEIGHT,
        "stages=[{weights: {a: 1}, tokens: 900}]",
        "amendments=[{step: 2}]",
    ],
    "greedy with limits": ["policy=greedy", "max_epochs=2"],
    "greedy with a schedule": ["policy=greedy", "components.a.weight={linear: {0: 1, 9: 2}}"],
    "greedy with shares": ["policy=greedy", "components.a.max_share=0.4"],
    "swrr with shares": ["policy=swrr", "components.a.max_share=0.4"],
    "least consumed with amendments": [
        "policy=least_consumed",
        NO_WEIGHT,
        "amendments=[{step: 2, weights: {a: 3}}]",
    ],
    "packed and split": ["split_documents=true", "components.b.packing={}"],
    "no budget": ["num_steps=100000", "max_epochs=1"],
    "no budget of tokens": [
        "num_steps=1000",
        *(f"components.{name}.max_tokens=900" for name in "abc"),
    ],
    "shares that cannot be": [
        "components.a.max_share=0.2",
        "components.b.max_share=0.2",
        "components.c.max_share=0.2",
    ],
    "two tokenizers": ["components.c.cache=caches/text"],
    "unimax without an end": [NO_WEIGHT, "weights={unimax: 2}"],
    "windows without memory": [
        "shuffle={window_blocks: 5, cache_windows: 5000}",
        "prefetch_bytes=200000",
    ],
    "a block of odd size": ["shuffle={strands: 4, io_block_size: 1000}"],
    "pairs parted": [
        "tokenizer={path: bytes}",
        "components={pairs: {cache: caches/pairs, packing: {unit: 4, long: drop}}}",
    ],
    "long documents": ["components.a.packing={long: error}"],
    "nothing packed": ["seq_len=2", "components.a.packing={long: drop, min_fill: 1}"],
    "no mapping": ["components.a.cache.x=3"],
    "no setting": ["seq_len"],
    "no name": ["=3"],
    "no value": ["--seq_len"],
    "no YAML": ["seq_len={"],
    "no YAML either": ["components.a.weight=[1, {]"],
    "a flag and a flag": ["--seq_len", "--batch_size", "3"],
    "a date": ["num_steps=2024-02-31"],
}
"""Settings over the plain config that do not go together, or are none."""
TEXTS = {
    "nothing": "",
    "a list": "- seq_len\n",
    "a number": "3\n",
    "broken": "seq_len: [1,\nbatch_size: 3\n",
    "a tab": "seq_len:\n\t- 3\n",
    "a key twice": "seq_len: 3\nseed: 1\nseq_len: 4\n",
    "a deep key twice": "components:\n  a: {cache: x, cache: y}\n",
    "a foreign tag": "seq_len: !!python/object:os.system {}\n",
    "an anchor": "seq_len: &x 16\nbatch_size: *x\ncomponents: {a: {cache: caches/a}}\n",
    "a merge": "components:\n  a: &a {cache: caches/a}\n  b: {<<: *a, weight: 2}\n",
    "a lost alias": "seq_len: *x\n",
    "a key that is a list": "[1, 2]: 3\n",
    "a key that is a number": "3: 4\n",
    "a key that is true": "true: 4\n",
}


def _paths_of(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Paths of all that is in a config, at every depth."""
    items = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    )
    for name, inner in items:
        yield (*path, name)
        yield from _paths_of(inner, (*path, name))


def _look_up(config: Any, path: tuple[Any, ...]) -> Any:
    for name in path:
        config = config[name]
    return config


def draw_errors() -> list[Config]:
    """Cases: a base and what is changed in it, or a text."""
    rng = random.Random(SEED)
    cases = list[Config]()
    for path in _paths_of(FULL):
        value = _look_up(FULL, path)
        for wrong in rng.sample(WRONG_VALUES, rng.choice([1, 1, 2])):
            cases.append({"base": "full", "path": [*path], "value": yaml.safe_dump(wrong)})
        if isinstance(value, dict):
            key = rng.choice([*value])
            misspelt = f"{key[:-2]}{key[-1]}x" if isinstance(key, str) else "x"
            cases.append({"base": "full", "path": [*path, misspelt], "value": "1"})
        if isinstance(path[-1], str):
            cases.append({"base": "full", "path": [*path], "value": None})
    for field, values in CHANGES.items():
        base = "bare" if field in ("weights", "stages", "policy") else "plain"
        cases += [{"base": base, "path": field.split("."), "value": value} for value in values]
    cases += [{"base": base} for base in BASES]  # as they are, they are right
    cases += [{"base": "plain", "settings": settings} for settings in TOGETHER.values()]
    cases += [{"text": text} for text in TEXTS.values()]
    cases.append({"file": "no/such.yaml"})
    return cases


def make_errors() -> None:
    """Writes down what is said of wrong configs."""
    bases = {name: yaml.safe_dump(base, sort_keys=False) for name, base in BASES.items()}
    cases = draw_errors()
    for case in cases:
        case["outcome"] = CHECKER.try_config(bases, case)
        if "unforeseen" in case["outcome"]:
            print("not foreseen:", case)
    accepted = [case for case in cases if "config" in case["outcome"] and "path" in case]
    dropped = {
        id(case) for number, case in enumerate(accepted) if number % 4
    }  # what is right says little
    cases = [case for case in cases if id(case) not in dropped]
    refused = sum("error" in case["outcome"] for case in cases)
    print(f"{len(cases)} configs, {refused} of them refused")
    write_json("config_errors.json", {"bases": bases, "cases": cases})


def make_cli() -> None:
    """Writes down what commands say of some of the runs, all of them of batches that two hosts can
    share.
    """
    answers: Config = {}
    for name in [*CHECKER.RUNS][3::7]:
        config = CHECKER.write_config(Path.cwd(), CHECKER.CONFIGS[name])
        Path("asked.yaml").write_text(config.to_yaml())
        commands = CHECKER.list_commands(
            "asked.yaml", [int(step) for step in CHECKER.RUNS[name]["batches"]]
        )
        answer = {
            question: CHECKER.ask_command(arguments) for question, arguments in commands.items()
        }
        if len(answers) < CLI_RUNS and all(one["status"] < REFUSED for one in answer.values()):
            answers[name] = answer
            print(name, {question: one["status"] for question, one in answer.items()})
    (GOLDEN / "cli.json").write_text(json.dumps(answers, ensure_ascii=False) + "\n")


def make_new_runs() -> None:
    """Writes the runs of the corpus."""
    made: dict[str, Config] = {}
    for name, text in CHECKER.CONFIGS.items():
        config = CHECKER.write_config(Path.cwd(), text)
        loader = CHECKER.open_loader(config)
        steps = draw_steps(random.Random(name), config, yaml.safe_load(text), loader.num_steps)
        made[name] = CHECKER.describe_run(config, steps)
    write_json("new_runs.json", {"made_on_commit": find_commit(), "runs": made})


MAKERS: dict[str, Callable[[], None]] = {
    "runs": make_runs,
    "new_runs": make_new_runs,
    "errors": make_errors,
    "cli": make_cli,
}


def main() -> None:
    """Makes what was asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("parts", nargs="*", choices=[[], *MAKERS], default=[])
    find_commit()
    for part in parser.parse_args().parts or MAKERS:
        with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
            if part != "runs":
                CHECKER.unpack_files(Path(folder))
            MAKERS[part]()


if __name__ == "__main__":
    main()
