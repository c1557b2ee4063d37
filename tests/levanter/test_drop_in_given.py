"""What of a config of Levanter is refused when it is fed, what it tells of its tokenizer, how the
command takes it.
"""

import asyncio
import json
import sys
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest
import yaml

from headrace.errors import ConfigError

NEEDS_LEVANTER = "Levanter needs Python 3.12 or newer: .ci/run newest runs this there"


pytest.importorskip("levanter", reason=NEEDS_LEVANTER)
OF_OTHERS = ("DeprecationWarning", "FutureWarning", "UserWarning")
pytestmark = [pytest.mark.filterwarnings(f"ignore::{w}") for w in OF_OTHERS]
SEQ_LEN = 16
BATCH = 8


CHILDREN = {"x": {"cache_dir": "x", "pack": 2}, "y": {"cache_dir": "y"}}


@pytest.mark.parametrize(
    ("change", "field"),
    [
        (
            {"format": {"type": "prebuilt", "loss_weights_key": "w"}},
            "components.a.format.loss_weights_key",
        ),
        ({"type": "concat", "children": CHILDREN}, "components.a"),
        ({"name": "headrace"}, "components.headrace"),
    ],
)
def test_what_would_train_on_other_tokens_or_by_other_weights_is_refused(stock, change, field):
    import draccus
    from levanter.data.text.datasets import LmDataConfig

    from headrace_levanter import fed

    data = {**stock, "train_weights": None}
    data["components"] = {change.pop("name", "a"): change}
    with pytest.raises(ConfigError) as caught:
        fed(draccus.decode(LmDataConfig, data), seq_len=SEQ_LEN, batch_size=BATCH)
    assert caught.value.field == f"data.{field}"


CHAT = (
    "{% for m in messages %}{% generation %}{{ m['content'] }} <eos>{% endgeneration %}{% endfor %}"
)


@pytest.mark.parametrize("unnamed", [False, True])
def test_texts_and_chats_that_levanter_tokenized_are_mixed_as_they_are(
    tokenizer_folder, tmp_path, unnamed, position, examples
):
    """Its ledgers say other things of either, and those of Marin's caches nothing: the config names
    one tokenizer.
    """
    from levanter.data.text.datasets import DatasetComponent, LmDataConfig, UrlDatasetSourceConfig
    from levanter.data.text.formats import ChatLmDatasetFormat

    from headrace_levanter import fed

    records = {
        "text": {"text": "w1 w2 w3 w4 w5"},
        "chat": {"messages": [{"role": "assistant", "content": "w6 w7 w8"}]},
    }
    for name, record in records.items():
        (tmp_path / f"{name}.jsonl").write_text(f"{json.dumps(record)}\n" * 99)
    sources = {
        name: UrlDatasetSourceConfig(train_urls=[str(tmp_path / f"{name}.jsonl")])
        for name in records
    }
    formats = {"chat": {"format": ChatLmDatasetFormat(chat_template=CHAT)}}
    components = {
        n: DatasetComponent(source=source, **formats.get(n, {})) for n, source in sources.items()
    }
    config = LmDataConfig(
        tokenizer=tokenizer_folder, cache_dir=str(tmp_path / "caches"), components=components
    )
    config.build_caches("train")
    if unnamed:
        for ledger in tmp_path.glob("caches/*/train/shard_ledger.json"):
            ledger.write_text(
                json.dumps(
                    {**json.loads(ledger.read_text()), "metadata": {"preprocessor_metadata": None}}
                )
            )
    own = fed(config, seq_len=SEQ_LEN, batch_size=BATCH).own
    theirs = config.train_sets(position, initial_batch_size=BATCH, key=jax.random.key(0))
    for name, rows in own.train_datasets().items():
        count = asyncio.run(theirs[name].async_len())
        tokens = [np.asarray(one.tokens).tolist() for one in examples(theirs[name], count)]
        assert sorted(tokens) == sorted(rows.read(np.arange(count)).tokens.tolist())


@pytest.mark.parametrize("setting", ["on", "off"])
def test_headraces_loader_gets_what_the_config_says_of_it(config, setting, position):
    from levanter.schedule import BatchSchedule
    from levanter.trainer import Trainer

    from headrace_levanter import fed, own_loader

    data = fed(
        config,
        seq_len=SEQ_LEN,
        batch_size=BATCH,
        settings=[f"row_exchange={setting}", "prefetch_bytes=12345678"],
    )
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:1]), ("data",))
    said = SimpleNamespace(batch_schedule=BatchSchedule(BATCH), batch_axis_name="batch")
    trainer: Any = SimpleNamespace(
        config=said, device_mesh=mesh, compute_axis_mapping={"batch": "data"}
    )
    with own_loader():
        made: Any = Trainer.data_loader(trainer, data.train_set(position, BatchSchedule(BATCH)))
    assert made.loader.row_exchange == setting
    assert made.loader.prefetch_bytes == 12345678


@pytest.mark.parametrize(
    "arguments",
    [["--config_path=run.yaml"], ["--config_path", "run.yaml"], ["--config", "run.yaml"]],
)
def test_the_command_takes_its_file_either_way(stock, tmp_path, monkeypatch, arguments):
    import levanter.config

    from headrace_levanter import train_lm

    calls = []
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.yaml").write_text(yaml.safe_dump({"data": stock}))
    monkeypatch.setattr(sys, "argv", ["train_lm", *arguments, "--trainer.seed", "3"])
    monkeypatch.setattr(
        levanter.config, "main", lambda function, args: lambda: calls.append((function, args))
    )
    train_lm.run()
    ((function, args),) = calls
    assert function is train_lm.main_of_stock
    assert args[2:] == ["--trainer.seed", "3"]
    monkeypatch.setattr(sys, "argv", ["train_lm", "--configs", "run.yaml", "data.yaml"])
    with pytest.raises(ConfigError, match="several files"):
        train_lm.run()


@pytest.mark.parametrize(
    ("changes", "arguments", "field", "value", "cure"),
    [
        ({}, ["--feed", "seed=1"], "--feed", "seed=1", "--feed '[seed=1]'"),
        ({"train_weights": {"wbe": 1.0}}, [], "data.train_weights.wbe", 1.0, "'web'"),
        ({"train_weights": [[0, {"wbe": 1.0}]]}, [], "data.train_weights[0].wbe", 1.0, "'web'"),
    ],
)
def test_what_levanter_cannot_read_is_named(
    tmp_path, monkeypatch, changes, arguments, field, value, cure
):
    from headrace_levanter import train_lm

    data = {"components": {"web": {"cache_dir": str(tmp_path)}}, "tokenizer": "none", **changes}
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.yaml").write_text(yaml.safe_dump({"data": data}))
    monkeypatch.setattr(sys, "argv", ["train_lm", "--config_path", "run.yaml", *arguments])
    with pytest.raises(ConfigError) as caught:
        train_lm.run()
    assert (caught.value.field, caught.value.value) == (field, value)
    assert cure in str(caught.value.cure)
