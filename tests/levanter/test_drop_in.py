"""Levanter's own configs, fed by headrace: what is trained on is headrace's; evaluation is
Levanter's, untouched.
"""

import asyncio
import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from typing import Any

import jax
import numpy as np
import pytest
import yaml

from headrace.errors import ConfigError, PlanMismatchError
from headrace.feed import DataLoader
from headrace.run import RunLock

NEEDS_LEVANTER = "Levanter needs Python 3.12 or newer: .ci/run newest runs this there"


pytest.importorskip("levanter", reason=NEEDS_LEVANTER)
OF_OTHERS = ("DeprecationWarning", "FutureWarning", "UserWarning")
pytestmark = [pytest.mark.filterwarnings(f"ignore::{w}") for w in OF_OTHERS]
SEQ_LEN = 16
BATCH = 8


def test_evaluation_stays_as_it_is(config, position, examples):
    from headrace_levanter import fed

    ours = fed(config, seq_len=SEQ_LEN, batch_size=BATCH)
    assert len(ours.the_tokenizer) == len(config.the_tokenizer)
    (mine,), (theirs,) = ours.tagged_eval_sets(position), config.tagged_eval_sets(position)
    assert mine[1] == theirs[1] == ["held-out", "paloma"]
    for one, other in zip(examples(mine[0], 20), examples(theirs[0], 20), strict=True):
        assert all(
            np.array_equal(x, y) for x, y in zip(*map(jax.tree.leaves, (one, other)), strict=True)
        )
    assert (
        set(ours.validation_sets(position)) == set(config.validation_sets(position)) == {"paloma"}
    )


def test_the_training_set_is_headraces_mixture(stock, config, tmp_path, position):
    from levanter.schedule import BatchSchedule

    from headrace_levanter import fed

    data = fed(config, seq_len=SEQ_LEN, batch_size=BATCH, seed=3, run_dir=str(tmp_path))
    assert [(stage.step, stage.weights) for stage in data.own.stages] == [
        (step, {n: w for n, w in weights.items() if w}) for step, weights in stock["train_weights"]
    ]
    rows = data.train_set(position, BatchSchedule(BATCH), key=None)
    loader = DataLoader(data.own.dataset())
    for step in (0, 5):
        tokens = [
            e.tokens.array
            for e in asyncio.run(rows.get_batch(range(step * BATCH, (step + 1) * BATCH)))
        ]
        assert np.array_equal(tokens, loader.batch_at(step).tokens)
    other = fed(config, seq_len=SEQ_LEN, batch_size=BATCH, seed=4, run_dir=str(tmp_path))
    with pytest.raises(PlanMismatchError, match="seed"):
        other.train_set(position, BatchSchedule(BATCH))
    with pytest.raises(ConfigError, match="batch_size"):
        data.train_set(position, BatchSchedule(2 * BATCH))


def test_a_loop_that_mixes_itself_gets_the_same_batches(config, position):
    """As raw-JAX templates do it: the sets, the weights and the blocks go into a mixture that they
    make.
    """
    from levanter.data.mixture import MixtureDataset

    from headrace_levanter import fed

    data = fed(config, seq_len=SEQ_LEN, batch_size=BATCH)
    mixture = MixtureDataset(
        datasets=data.train_sets(position, key=jax.random.key(1), initial_batch_size=BATCH),
        weights=data.train_weights,
        stop_strategy=data.stop_strategy,
        key=jax.random.key(0),
        block_size=data.mixture_block_size,
    )
    loader = DataLoader(data.own.dataset())
    for step in range(6):
        got = [
            e.tokens.tolist()
            for e in asyncio.run(mixture.get_batch(range(step * BATCH, (step + 1) * BATCH)))
        ]
        assert sorted(got) == sorted(np.asarray(loader.batch_at(step).tokens).tolist())


def test_the_mixture_has_headraces_rows_and_says_its_weights(config, position, examples):
    from levanter.data.mixture import MixtureDataset
    from levanter.schedule import BatchSchedule

    from headrace_levanter import fed

    data = fed(config, seq_len=SEQ_LEN, batch_size=BATCH)
    mixture = data.train_mixture(position, BatchSchedule(BATCH), key=jax.random.key(0))
    assert isinstance(mixture, MixtureDataset)
    assert not mixture.is_finite()
    rows = [e.tokens for e in examples(mixture, BATCH)]
    assert np.array_equal(rows, DataLoader(data.own.dataset()).batch_at(0).tokens)
    stages = [mixture._get_stage_for_block(step * BATCH // mixture.block_size) for step in range(6)]
    assert stages == [0, 0, 0, 0, 1, 1]
    assert [weights for _, weights in mixture.weight_stages] == [
        {"a": 0.75, "b": 0.25},
        {"a": 0.25, "b": 0.75},
    ]


@pytest.mark.parametrize("pack", [True, 2])
def test_packed_rows_hold_the_documents_that_levanter_packs(config, pack, position, examples):
    from headrace_levanter import fed

    components = {**config.components, "a": dataclasses.replace(config.components["a"], pack=pack)}
    config = dataclasses.replace(
        config, components=components, train_weights={"a": 1.0}, shuffle=False
    )
    theirs: Any = config.train_sets(position, initial_batch_size=BATCH, key=jax.random.key(0))["a"]
    ours = fed(config, seq_len=SEQ_LEN, batch_size=BATCH).own.train_datasets()["a"]
    batch = ours.read(np.arange(len(ours)))
    rows = examples(theirs, len(ours))
    assert asyncio.run(theirs.async_len()) == len(ours)
    assert batch.segment_lengths.shape[1] <= (2 if pack == 2 else 64)
    for row, lengths, other in zip(batch.tokens, batch.segment_lengths, rows, strict=True):
        document = np.asarray(other.attn_mask.segment_ids[0])
        filled = lengths.sum()
        assert np.array_equal(row[:filled], np.asarray(other.tokens)[:filled])
        assert (
            np.unique(document[:filled], return_counts=True)[1].tolist()
            == lengths[lengths > 0].tolist()
        )
        assert (document[filled:] == -1).all()


@pytest.mark.parametrize(
    ("strategy", "long"), [("left", "truncate"), ("right", "truncate_start"), ("drop", "drop")]
)
@pytest.mark.parametrize("most", [1, 3, 64])
def test_packs_are_those_of_levanters_planner(strategy, long, most):
    from levanter.data.packing import pack_documents

    from headrace.pack.plan import plan_of
    from headrace.pack.spec import PackSpec

    lengths = np.random.default_rng(0).integers(1, 40, 300)
    plan = plan_of(PackSpec(32, "next_fit", long, max_documents=most), lengths)
    theirs = [list(pack) for pack in pack_documents(lengths, 32, most, slice_strategy=strategy)]
    if strategy != "drop":
        assert plan.raw_plan == theirs
        return
    packed = [
        [document for pack in packs for document in pack] for packs in (plan.raw_plan, theirs)
    ]
    assert packed[0] == packed[1]
    assert len(plan.raw_plan) <= len(theirs)  # there a document that is dropped ends the pack


def test_a_catalog_says_where_caches_lie(config, stock, tmp_path, position, examples):
    from headrace_levanter import fed

    if not hasattr(config, "cache_catalog"):
        pytest.skip("this release of Levanter has no catalogs")
    from levanter.data.text.datasets import ConcatDatasetComponent

    both = ConcatDatasetComponent(
        {
            n: dataclasses.replace(
                config.components[n], source=None, cache_dir=f"{stock['cache_dir']}/{n}"
            )
            for n in "ab"
        }
    )
    components = {"a": config.components["a"], "both": both}
    config = dataclasses.replace(
        config, components=components, train_weights={"a": 1.0, "both": 2.0}, shuffle=False
    )
    config.build_cache_catalog(str(tmp_path / "catalog.json"), splits=["train"])
    plain = fed(config, seq_len=SEQ_LEN, batch_size=BATCH).own
    elsewhere = {
        "a": dataclasses.replace(components["a"], cache_dir=str(tmp_path / "nowhere")),
        "both": ConcatDatasetComponent(
            {
                n: dataclasses.replace(one, cache_dir=str(tmp_path))
                for n, one in both.children.items()
            }
        ),
    }
    catalog = dataclasses.replace(
        config, components=elsewhere, cache_catalog=str(tmp_path / "catalog.json")
    )
    listed = fed(catalog, seq_len=SEQ_LEN, batch_size=BATCH).own
    assert {n: c.cache for n, c in listed.components.items()} == {
        n: c.cache for n, c in plain.components.items()
    }
    theirs = catalog.train_sets(position, initial_batch_size=BATCH, key=jax.random.key(0))
    for name, rows in listed.train_datasets().items():
        tokens = [one.tokens for one in examples(theirs[name], len(rows))]
        assert asyncio.run(theirs[name].async_len()) == len(rows)
        assert np.array_equal(rows.read(np.arange(len(rows))).tokens, tokens)
    with pytest.raises(ConfigError, match="has no entry for 'c' in train"):
        fed(
            dataclasses.replace(
                catalog, components=elsewhere | {"c": components["a"]}, train_weights={"c": 1.0}
            ),
            seq_len=SEQ_LEN,
            batch_size=BATCH,
        )


CUTS = {
    "budget": {"target_budget": 1000, "experiment_budget": 210},
    "batches": {"max_train_batches": {"a": 2}},
}


@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize("shuffle", [False, True])
def test_sources_that_levanter_cuts_have_as_many_rows_and_unshuffled_the_same(
    config, shuffle, cut, position, examples
):
    from headrace_levanter import fed

    config = dataclasses.replace(config, shuffle=shuffle, **CUTS[cut])
    theirs = config.train_sets(position, initial_batch_size=BATCH, key=jax.random.key(0))
    ours = fed(config, seq_len=SEQ_LEN, batch_size=BATCH).own.train_datasets()
    assert set(ours) == set(theirs) == {"a", "b"}
    for name, dataset in ours.items():
        rows = len(dataset)
        assert rows == asyncio.run(theirs[name].async_len())
        if not shuffle:
            tokens = [one.tokens for one in examples(theirs[name], rows)]
            assert np.array_equal(dataset.read(np.arange(rows)).tokens, tokens)


MODULE = "headrace_levanter.train_lm"
LEVANTERS_OWN = "levanter.main.train_lm"


def command(module, *arguments):
    return [sys.executable, "-m", module, "--config_path", "run.yaml", *arguments]


def one_device():
    return {
        **os.environ,
        "XLA_FLAGS": "--xla_force_host_platform_device_count=1",
    }  # with more, evaluation fails


def stock_run(tokenizer_folder, folder, steps, learning_rate=1e-3, run="run"):
    """All but the data of a training config of Levanter's; losses go to its log."""
    return {
        "model": {
            "type": "llama",
            "max_seq_len": SEQ_LEN,
            "hidden_dim": 8,
            "intermediate_dim": 8,
            "num_layers": 1,
            "num_heads": 1,
            "num_kv_heads": 1,
            "tokenizer": tokenizer_folder,
        },
        "optimizer": {"type": "adam", "learning_rate": learning_rate},
        "trainer": {
            "id": run,
            "tracker": {"type": "json_logger"},
            "log_dir": str(folder),
            "train_batch_size": BATCH,
            "num_train_steps": steps,
            "max_eval_batches": 3,
            "require_accelerator": False,
            "log_jaxprs": False,
            "log_xla_hlo": False,
            "watch": {"watch_targets": []},
            "checkpointer": {
                "base_path": str(folder),
                "save_interval": None,
                "keep": [{"every": 40}],
            },
        },
    }


def metrics_by_step(log):
    """What a run logged, by step and name."""
    metrics = {}
    for line in log.splitlines():
        if '{"tracker"' in line:
            record = json.loads(line[line.index('{"tracker"') :])
            if record.get("step") is not None:
                metrics.setdefault(record["step"], {}).update(record["metrics"])
    return metrics


def losses_of(folder, log, *arguments, kill_at=None):
    """Runs the command, and kills it as soon as there is a checkpoint of a step; losses by step."""
    with open(log, "w") as file:
        process = subprocess.Popen(
            command(MODULE, *arguments), cwd=folder, env=one_device(), stdout=file, stderr=file
        )
        if (
            kill_at is not None
        ):  # Levanter makes the file empty, and does not start where it finds it so
            metadata = folder / "run" / f"step-{kill_at}" / "metadata.json"
            while process.poll() is None and not (metadata.exists() and metadata.stat().st_size):
                time.sleep(0.01)
            process.kill()
        process.wait(timeout=540)
    text = log.read_text()
    assert process.returncode == (0 if kill_at is None else -signal.SIGKILL), text[-3000:]
    return {
        step: one["train/loss"]
        for step, one in metrics_by_step(text).items()
        if "train/loss" in one
    }


@pytest.mark.slow
def test_killed_twice_its_losses_are_those_of_the_run_that_was_not_and_that_levanters_loader_fed(
    stock, tokenizer_folder, tmp_path
):
    losses = {}
    for loader, kills in (("levanter", [None]), ("headrace", [40, 80, None])):
        folder = tmp_path / loader
        folder.mkdir()
        config = {"data": stock, **stock_run(tokenizer_folder, folder, steps=200)}
        (folder / "run.yaml").write_text(yaml.safe_dump(config))
        losses[loader] = [
            losses_of(folder, folder / f"{n}.log", "--loader", loader, kill_at=kill_at)
            for n, kill_at in enumerate(kills)
        ]
    (whole,) = losses["levanter"]
    assert len(whole) > 190
    for part in losses["headrace"]:
        assert len(part) > 30
        assert part == {step: whole[step] for step in part}  # to the last bit
    assert set().union(*losses["headrace"]) == set(whole)
    assert min(losses["headrace"][2]) > 70  # it went on from a checkpoint


def train(module, folder, config, *arguments):
    """Runs a training command to its end; what it logged, by step."""
    folder.mkdir(exist_ok=True)
    (folder / "run.yaml").write_text(config if isinstance(config, str) else yaml.safe_dump(config))
    done = subprocess.run(
        command(module, *arguments),
        env=one_device(),
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=540,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return metrics_by_step(done.stdout + done.stderr)


@pytest.mark.slow
def test_evaluation_on_tagged_sets_is_levanters_own_to_the_last_digit(
    stock, config, tokenizer_folder, tmp_path
):
    """headrace trains and evaluates; Levanter alone evaluates its checkpoint, at a learning rate of
    nothing.
    """
    from headrace_levanter import fed

    evaluated = {
        "uncheatable": {
            **stock["components"]["paloma"],
            "cache_dir": f"{stock['cache_dir']}/paloma",
        }
    }
    data = {**stock, "components": {**stock["components"], **evaluated}}
    data["mixture_block_size"] = (
        4 * BATCH
    )  # Levanter alone refuses a stage that begins within a block
    data["train_weights"] = [
        [step, {**weights, "uncheatable": 0.0}] for step, weights in stock["train_weights"]
    ]
    fed_run = {"data": data, **stock_run(tokenizer_folder, tmp_path, steps=6)}
    ours = max(train(MODULE, tmp_path, fed_run, "--data_seed", "5").items())[1]
    lock = RunLock.load(str(tmp_path / "run" / "headrace"))
    expected = fed(config, seq_len=SEQ_LEN, batch_size=BATCH, seed=5).own
    assert lock is not None
    assert lock.fingerprint == RunLock.of(expected.loader()).fingerprint

    (checkpoint,) = (tmp_path / "run").glob("step-*")
    alone = {
        "data": data,
        **stock_run(tokenizer_folder, tmp_path, steps=1, learning_rate=0.0, run="alone"),
    }
    alone["initialize_from_checkpoint_path"] = str(checkpoint)
    theirs = max(train(LEVANTERS_OWN, tmp_path / "alone", alone).items())[1]
    names = {name for name in theirs if name.startswith("eval/") and not name.endswith("_time")}
    assert {"eval/loss", "eval/paloma/loss", "eval/uncheatable/loss"} <= names
    assert any(name.startswith("eval/held-out/") for name in names)
    assert {name: ours[name] for name in names} == {name: theirs[name] for name in names}


@pytest.mark.slow
def test_a_config_that_includes_its_data_trains_and_evaluates_as_it_is(
    stock, config, tokenizer_folder, tmp_path
):
    from headrace_levanter import fed

    (tmp_path / "data.yaml").write_text(yaml.safe_dump(json.loads(json.dumps(stock))))
    run = "data: !include data.yaml\n" + yaml.safe_dump(
        stock_run(tokenizer_folder, tmp_path, steps=6)
    )
    logged = max(train(MODULE, tmp_path, run).items())[1]
    assert "eval/paloma/loss" in logged
    lock = RunLock.load(str(tmp_path / "run" / "headrace"))
    expected = fed(config, seq_len=SEQ_LEN, batch_size=BATCH).own
    assert lock is not None
    assert lock.fingerprint == RunLock.of(expected.loader()).fingerprint
