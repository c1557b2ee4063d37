"""``levanter.main.train_lm`` trains a tiny model from a headrace mixture; stopped and resumed, its
losses are those of the run that was not, whoever's loader reads.
"""

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from headrace.errors import ConfigError, PlanMismatchError
from headrace.run import RunLock
from headrace.run.anchors import last_checkpoint

NEEDS_LEVANTER = "Levanter needs Python 3.12 or newer: .ci/run newest runs this there"


pytest.importorskip("levanter", reason=NEEDS_LEVANTER)
OF_OTHERS = ("DeprecationWarning", "FutureWarning", "UserWarning")
pytestmark = [pytest.mark.filterwarnings(f"ignore::{w}") for w in OF_OTHERS]


def trained(train_config, recording, *, stop_at=None, **options):
    """Trains; the record of it."""
    from headrace_levanter.train_lm import main

    record, tracker = recording(stop_at)
    try:
        main(train_config(tracker, **options))
    except BaseException as error:
        if type(error).__name__ != "StoppedError":
            raise
    return record


@pytest.mark.slow
def test_stopped_and_resumed_its_losses_are_those_of_the_run_that_was_not(
    tmp_path, train_config, recording, written, jax_settings
):
    whole = trained(train_config, recording, run="whole", loader="levanter")
    first_logged = min(
        whole.losses
    )  # Levanter's hooks begin at the third step in 0.2.20, and at the first later on
    assert sorted(whole.losses) == list(range(first_logged, 9))
    assert first_logged in (0, 2)
    assert len(set(whole.losses.values())) == 9 - first_logged
    first = trained(train_config, recording, run="parts", stop_at=5)
    written()  # a process that ends waits for its checkpoints too
    folder = str(tmp_path / "checkpoints" / "parts" / "headrace")
    lock = RunLock.load(folder)
    assert lock is not None
    assert last_checkpoint(folder, lock) == 4  # what came behind it is lost
    assert recorded_losses(folder)[:5] == [0, 1, 2, 3, 4]
    assert max(first.losses) == 5
    rest = trained(train_config, recording, run="parts")
    assert min(rest.losses) == 4  # from the checkpoint of step 4, which three steps are between
    assert first.losses | rest.losses == whole.losses  # to the last bit
    assert {k: first.losses[k] for k in (4, 5)} == {k: rest.losses[k] for k in (4, 5)}
    logged = yaml.load(rest.files["config.yaml"], yaml.BaseLoader)[
        "data"
    ]  # draccus knew what to do with it
    assert logged["config"]["components"]["b"]["weight"] == "1.0"
    assert logged["config"]["row_order"] == "locality"


def test_a_run_is_not_resumed_with_another_mixture(
    train_config, recording, data_config, tokenizer_folder
):
    from haliax import Axis

    _, tracker = recording()
    config = train_config(tracker)
    schedule = config.trainer.batch_schedule
    position = Axis("position", 16)
    folder = config.trainer.checkpointer.expanded_path("run")

    def train_set(data):
        return dataclasses.replace(config.data, config=data, run_dir=folder).train_set(
            position, schedule, key=None
        )

    train_set(data_config)
    train_set(data_config)
    weights = {**data_config, "components": {**data_config["components"]}}
    weights["components"]["b"] = {**weights["components"]["b"], "weight": 2}
    with pytest.raises(PlanMismatchError, match=r"components\.b\.weight: 1 -> 2"):
        train_set(weights)
    with pytest.raises(PlanMismatchError, match="seed"):
        train_set({**data_config, "seed": 1})
    amended = {**data_config, "amendments": [{"step": 5, "weights": {"a": 1, "b": 4}}]}
    train_set(amended)  # nothing was trained yet, so step 5 is not past
    for step in (3, 7):
        checkpoint = Path(folder, f"step-{step}", "metadata.json")
        checkpoint.parent.mkdir(parents=True)
        checkpoint.write_text(
            json.dumps({"step": step, "timestamp": "2026-01-01T00:00:00", "is_temporary": False})
        )
    assert steps_done_in(folder) == 8  # the checkpoint is named after the last of them
    again = [*amended["amendments"], {"step": 7, "weights": {"a": 1}}]
    with pytest.raises(PlanMismatchError, match="past"):
        train_set({**amended, "amendments": again})
    again[1]["step"] = 8
    train_set({**amended, "amendments": again})


def recorded_losses(folder):
    """The steps whose loss is in the log of a run."""
    lines = Path(folder, "stats", "host-00000.jsonl").read_text().splitlines()
    records = [json.loads(line) for line in lines]
    return [r["step"] for r in records if r["kind"] == "figures" and "train/loss" in r["figures"]]


def steps_done_in(folder):
    from headrace_levanter.config import steps_done

    return steps_done(folder)


def test_what_does_not_fit_the_trainer_is_refused(
    train_config, recording, data_config, tmp_path, caches
):
    from haliax import Axis

    from headrace_levanter import HeadraceDataConfig

    _, tracker = recording()
    config = train_config(tracker)
    schedule = config.trainer.batch_schedule
    with pytest.raises(ConfigError, match=r"batch_size.*is 16 for headrace and 8"):
        HeadraceDataConfig(data_config, ["batch_size=16"]).train_set(Axis("position", 16), schedule)
    with pytest.raises(ConfigError, match=r"seq_len.*16 for headrace and 32"):
        HeadraceDataConfig(data_config).train_set(Axis("position", 32), schedule)
    with pytest.raises(ConfigError, match=r"seq_len.*\[8, 16\]"):
        HeadraceDataConfig(data_config, ["seq_len={0: 8, 5: 16}"]).train_set(
            Axis("position", 16), schedule
        )
    with pytest.raises(ConfigError, match=r"data\.config.*missing"):
        HeadraceDataConfig().the_tokenizer  # noqa: B018
    with pytest.raises(ConfigError, match=r"Did you mean 'seq_len'"):
        HeadraceDataConfig({**data_config, "seq_length": 8}).resolved  # noqa: B018
    with pytest.raises(ConfigError, match="settings"):
        HeadraceDataConfig(HeadraceDataConfig(data_config).resolved, ["seed=1"]).resolved  # noqa: B018


@pytest.mark.slow
def test_the_command_trains_evaluates_and_leaves(tmp_path, data_config, tokenizer_folder):
    run = {
        "data": {"config": {**data_config, "validation": {"one_in": 8}}, "settings": ["seed=3"]},
        "loader": "levanter",  # whose thread is at work when the program ends
        "model": {
            "type": "llama",
            "max_seq_len": 16,
            "hidden_dim": 8,
            "intermediate_dim": 8,
            "num_layers": 1,
            "num_heads": 1,
            "num_kv_heads": 1,
            "tokenizer": tokenizer_folder,
        },
        "trainer": {
            "id": "run",
            "tracker": {"type": "noop"},
            "log_dir": str(tmp_path),
            "train_batch_size": 8,
            "num_train_steps": 2,
            "max_eval_batches": 1,
            "require_accelerator": False,
            "log_jaxprs": False,
            "log_xla_hlo": False,
            "watch": {"watch_targets": []},
            "checkpointer": {"base_path": str(tmp_path)},
        },
    }
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(run))
    command = [
        sys.executable,
        "-m",
        "headrace_levanter.train_lm",
        "--config_path",
        str(tmp_path / "run.yaml"),
    ]
    flags = {
        "XLA_FLAGS": "--xla_force_host_platform_device_count=1"
    }  # with more, Levanter's evaluation fails
    done = subprocess.run(
        command,
        env={**os.environ, **flags},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "eval loss" in done.stderr
    assert "b loss" in done.stderr
    assert steps_done_in(str(tmp_path / "run")) == 2
    folder = str(tmp_path / "run" / "headrace")
    lock = RunLock.load(folder)
    assert lock is not None
    assert last_checkpoint(folder, lock) == 2  # from which an amendment may begin
    assert recorded_losses(folder) == [0, 1]
