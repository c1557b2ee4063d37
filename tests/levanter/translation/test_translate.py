"""Configs that the real Levanter writes and reads, translated; every field of its classes is known
here.
"""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from headrace.cli.application import application
from headrace.config import LmDataConfig, load_config
from headrace.config.parsing import decode, read_mapping
from headrace.errors import ConfigError
from headrace.order import BlockShuffleConfig, SubsetConfig
from headrace.pack import PackingConfig
from headrace_levanter.translation import fields as known
from headrace_levanter.translation.translate import translate

NEEDS_LEVANTER = "Levanter needs Python 3.12 or newer: .ci/run newest runs this there"

# Runs where Levanter's imports may warn; prints the fields of its classes, and configs as its own
# draccus writes them, each of them read again by it.
PROGRAM = """
import dataclasses, io, json, os, sys, warnings
warnings.simplefilter("ignore")
import draccus
from levanter.data.text import datasets as d, formats as f, preference as p
from levanter.main.train_lm import TrainLmConfig
from levanter.schedule import ScheduleStep
from levanter.trainer import TrainerConfig

C, Url, Hf = d.DatasetComponent, d.UrlDatasetSourceConfig, d.HfDatasetSourceConfig
three = {n: C(cache_dir=f"gs://bucket/{n}") for n in "abc"}
every = {
    "url": C(source=Url(train_urls=["x-{0..9}.jsonl.gz"], validation_urls=["v.jsonl"]), tags=["t"]),
    "hf": C(source=Hf(id="o/n", name="en", revision="r1", stream=False), format=f.TextLmDatasetFormat("body")),
    "flat": C(cache_dir="gs://bucket/flat", flat_cache=True),
    "chat": C(source=Url(train_urls=["c.jsonl"]), format=f.ChatLmDatasetFormat(system_prompt="s"), pack=8),
    "ids": C(source=Url(train_urls=["i.jsonl"]), format=f.PrebuiltLmDatasetFormat("ids", "w")),
    "pairs": C(source=Url(train_urls=["p.jsonl"]), format=p.PreferenceChatLmDatasetFormat("good", "bad")),
    "both": d.ConcatDatasetComponent({"x": C(cache_dir="gs://bucket/x"), "y": C(cache_dir="gs://bucket/y")}),
    "only-evaluated": C(cache_dir="gs://bucket/e"),
}
configs = {
    "plain": d.LmDataConfig(components=three),
    "staged": d.LmDataConfig(
        components=three, train_weights=[(0, {"a": 1.0, "b": 0.0}), (4096, {"b": 0.25, "c": 0.5})],
        shuffle=d.BlockShuffleConfig(128, 64, "linear"), mixture_block_size=512, stop_strategy="first_exhausted",
    ),
    "every": d.LmDataConfig(
        components=every, train_weights={n: 1.0 for n in every if n != "only-evaluated"}, shuffle=True,
        permutation_type="linear", max_train_batches={"hf": 10}, num_validation_sequences={"url": 64},
        block_cross_document_attention=False, auto_build_caches=False, chat_template="{{ messages }}",
    ),
    "budget": d.LmDataConfig(components=three, shuffle=False, target_budget=1000, experiment_budget=10),
    "ready": d.LmDataConfig(
        tokenizer="passthrough", vocab_size=32000,
        components={"a": C(source=Url(train_urls=["a.jsonl"]), format=f.PrebuiltLmDatasetFormat())},
    ),
}
training = TrainLmConfig(
    data=configs["plain"], train_seq_len=4096, data_seed=7,
    trainer=TrainerConfig(train_batch_size=[ScheduleStep(0, 32), ScheduleStep(100, 64)], num_train_steps=500),
)

def dumped(config):
    stream = io.StringIO()
    draccus.dump(config, stream)
    return stream.getvalue()

texts = {n: dumped(c) for n, c in configs.items()}
import yaml

for name, text in texts.items():
    if name not in ("every", "ready"):  # its own reader stumbles over children without a type, and over callables
        assert draccus.decode(d.LmDataConfig, yaml.safe_load(text)) == configs[name], name
names = lambda c: [x.name for x in dataclasses.fields(c)]
print(json.dumps({
    "data": names(d.LmDataConfig), "shuffle": names(d.BlockShuffleConfig), "training": names(TrainLmConfig),
    "components": {k: names(v) for k, v in d.DatasetComponentBase.get_known_choices().items()},
    "sources": {k: names(v) for k, v in d.LmDatasetSourceConfigBase.get_known_choices().items()},
    "formats": {k: names(v) for k, v in f.LmDatasetFormatBase.get_known_choices().items()},
    "configs": texts, "train": dumped(training),
}))
"""


@pytest.fixture(scope="module")
def levanter(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    pytest.importorskip("levanter", reason=NEEDS_LEVANTER)
    folder = tmp_path_factory.mktemp("levanter")
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, cwd=folder, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def translated(text: str, **kwargs: Any):
    """A translation, and the config that it loads as."""
    found = translate(yaml.safe_load(text), **kwargs)
    return found, decode(LmDataConfig, found.config)


def test_every_field_of_levanter_is_known(levanter):
    assert set(levanter["data"]) == set(known.DATA)
    assert set(levanter["shuffle"]) == set(known.SHUFFLE)
    assert set(known.TRAINING) <= set(levanter["training"])
    for ours, theirs in (
        (known.COMPONENTS, "components"),
        (known.SOURCES, "sources"),
        (known.FORMATS, "formats"),
    ):
        named = {kind: set(names) for kind, names in ours.items()}
        assert {kind: set(names) for kind, names in levanter[theirs].items()} == named


def test_what_levanter_writes_loads_here(levanter, tmp_path):
    for name, text in levanter["configs"].items():
        found, config = translated(text)
        path = tmp_path / f"{name}.yaml"
        path.write_text(found.to_yaml())
        assert load_config(str(path)) == config, name
        assert all(f"# {note}" in path.read_text() for note in found.notes)


def test_weights_and_shuffles(levanter):
    _, plain = translated(levanter["configs"]["plain"])
    assert {n: (c.cache, c.weight) for n, c in plain.components.items()} == {
        n: (f"gs://bucket/{n}/train", 1.0) for n in "abc"
    }
    assert vars(plain.shuffle) == {
        "io_block_size": 256,
        "window_blocks": 512,
        "perm_type": "feistel",
        "cache_windows": 1,
        "kind": "block",
    }
    _, staged = translated(levanter["configs"]["staged"])
    assert [(s.step, s.weights) for s in staged.stages] == [
        (0, {"a": 1.0}),
        (4096, {"b": 0.25, "c": 0.5}),
    ]
    assert isinstance(staged.shuffle, BlockShuffleConfig)
    assert (staged.shuffle.window_blocks, staged.shuffle.perm_type) == (64, "linear")
    assert staged.stop_strategy == "first_exhausted"
    assert staged.split_documents


def test_a_training_config_brings_lengths_batches_and_seed(levanter, tmp_path):
    path = tmp_path / "train.yaml"
    path.write_text(levanter["train"])  # with values of Levanter's own classes in it
    with pytest.raises(ConfigError, match="could not determine a constructor"):
        read_mapping(str(path))
    config = decode(LmDataConfig, translate(read_mapping(str(path), foreign=True)).config)
    assert (config.seq_len, config.batch_size, config.num_steps, config.seed) == (
        4096,
        {0: 32, 100: 64},
        500,
        7,
    )


def test_nothing_is_dropped_without_a_word(levanter):
    found, config = translated(levanter["configs"]["every"])
    missing = {note.field for note in found.notes if note.kind == "missing"}
    assert missing == {
        "components.url.tags",
        "components.url.source.validation_urls",
        "components.chat.format.system_prompt",
        "components.only-evaluated",
        "permutation_type",
        "max_train_batches.hf",  # rows of a batch are not said
    }
    differs = {note.field for note in found.notes if note.kind == "differs"}
    assert config.components["url"].validation == 64
    assert [*config.held_out] == ["url"]
    assert {
        "num_validation_sequences.url",
        "shuffle",
        "auto_build_caches",
        "components.ids.format.loss_weights_key",
        "components.chat.pack",
    } <= differs
    source = {n: c.source for n, c in config.components.items()}
    assert source["hf"].paths == ["hf://o/n?name=en&split=train&revision=r1"]
    assert (source["hf"].format, source["hf"].text_field) == ("hf", "body")
    assert (source["chat"].kind, source["chat"].chat.template) == ("chat", "{{ messages }}")
    assert source["ids"].fields == {"tokens": "ids", "loss_mask": "w"}
    assert source["pairs"].fields == {"chosen": "good", "rejected": "bad"}
    assert config.components["flat"].cache == "gs://bucket/flat"
    assert config.components["url"].cache == "cache/url/train"
    both = config.components["both"]
    assert (both.cache, both.weight) == (["gs://bucket/x/train", "gs://bucket/y/train"], 1.0)
    assert config.components["chat"].packing == PackingConfig(
        "next_fit", "truncate", max_documents=8
    )
    assert not config.split_documents


def test_budgets_and_ready_ids(levanter):
    found, config = translated(levanter["configs"]["budget"])
    assert [n for n in found.notes if n.kind == "missing"] == []
    assert config.subset == SubsetConfig(fraction=0.01, by="start")
    assert found.config["shuffle"] is False
    _, ready = translated(levanter["configs"]["ready"])
    assert vars(ready.tokenizer) == {
        "path": "ids:32000",
        "bos": "none",
        "eos": "none",
        "engine": "auto",
    }


def test_sources_that_are_cut_become_subsets():
    components = {"a": {"cache_dir": "c/a"}, "b": {"cache_dir": "c/b"}}
    run = {"train_seq_len": 64, "trainer": {"train_batch_size": [[0, 8], [100, 16]], "seed": 3}}

    def of(**data):
        found = translate({"data": {"components": components, **data}, **run})
        return found, decode(LmDataConfig, found.config)

    found, config = of(target_budget=3_000_000_000_000, experiment_budget=1_000_000_000)
    assert config.subset == SubsetConfig(fraction=1e9 / 3e12, seed=3)
    assert (
        decode(LmDataConfig, yaml.safe_load(found.to_yaml())) == config
    )  # a small number goes through YAML
    found, config = of(max_train_batches={"a": 5, "c": 2})
    assert config.components["a"].subset == SubsetConfig(rows=40, seed=3)
    assert (config.subset, config.components["b"].subset) == (None, None)
    assert "data.max_train_batches.c" in {n.field for n in found.notes}
    assert of(target_budget=7, experiment_budget=7)[1].subset is None
    found, config = of(target_budget=7)
    assert config.subset is None
    assert "data.target_budget" in {n.field for n in found.notes}
    for budgets in (
        {"target_budget": 7, "experiment_budget": 8},
        {"target_budget": 7, "experiment_budget": 0},
    ):
        with pytest.raises(ConfigError, match="at most the target_budget") as caught:
            of(**budgets)
        assert caught.value.field == "data.experiment_budget"
    with pytest.raises(ConfigError, match="cannot be combined with max_train_batches"):
        of(target_budget=7, experiment_budget=3, max_train_batches={"a": 5})


def test_children_of_a_concatenation_are_one_component():
    raw: Any = {
        "components": {
            "a": {"cache_dir": "c/a"},
            "both": {
                "type": "concat",
                "children": {"x": {"cache_dir": "c/x"}, "y": {"cache_dir": "c/y"}},
            },
        },
        "train_weights": {"a": 1, "both": 2},
    }
    found = translate(raw)
    assert found.config["components"]["both"] == {
        "cache": ["c/x/train", "c/y/train"],
        "weight": 2.0,
    }
    assert [n for n in found.notes if n.kind == "missing"] == []
    children = raw["components"]["both"]["children"]
    children["x"]["pack"] = True
    assert [n.field for n in translate(raw).notes if n.kind == "missing"] == ["components.both"]
    children.clear()
    found = translate(raw)
    assert [n.field for n in found.notes if n.kind == "missing"] == ["components.both"]
    assert list(found.config["components"]) == ["a"]


def test_where_some_are_packed_and_documents_kept_apart_all_are():
    raw = {"components": {"a": {"cache_dir": "c/a"}, "b": {"cache_dir": "c/b", "pack": True}}}
    config = decode(LmDataConfig, translate(raw).config)
    assert [c.packing.algorithm for c in config.components.values() if c.packing] == [
        "wrap",
        "next_fit",
    ]


@pytest.mark.parametrize(
    ("component", "expected"),
    [
        ({"pack": True}, PackingConfig("next_fit", "truncate", max_documents=64)),
        ({"pack": 5}, PackingConfig("next_fit", "truncate", max_documents=5)),
        ({"pack": False}, None),
        (
            {"format": {"type": "chat", "slice_strategy": "right"}},
            PackingConfig("next_fit", "truncate_start", max_documents=64),
        ),
        (
            {"format": {"type": "chat"}, "pack": 0},
            PackingConfig("next_fit", "error", max_documents=1),
        ),
        (
            {"format": {"type": "chat", "pack": 2, "slice_strategy": "drop"}},
            PackingConfig("next_fit", "drop", max_documents=2),
        ),
    ],
)
def test_what_a_row_holds(component, expected):
    found = translate({"components": {"a": {"cache_dir": "c/a", **component}}})
    assert decode(LmDataConfig, found.config).components["a"].packing == expected
    assert [n for n in found.notes if n.kind == "missing"] == []


def test_a_catalog_is_not_needed_and_phases_are_missed():
    translation = translate(
        {"components": {"a": {}}, "cache_catalog": "x", "prior_context_phases": [{"x": 1}]}
    )
    assert [n.field for n in translation.notes if n.kind == "missing"] == ["prior_context_phases"]
    assert "cache_catalog" in [n.field for n in translation.notes if n.kind == "differs"]
    decode(LmDataConfig, translation.config)


@pytest.mark.parametrize("raw", [{"configs": {"web": {}}}, {"id": "o/n"}, {"train_urls": ["a"]}])
def test_a_form_of_earlier_releases_is_refused_by_its_field(raw):
    with pytest.raises(ConfigError, match="is a field of earlier releases of Levanter") as caught:
        translate(raw)
    assert caught.value.field == next(iter(raw))


@pytest.mark.parametrize(
    ("raw", "field", "cure"),
    [
        ({"componets": {}}, "componets", "Did you mean 'components'?"),
        (
            {"data": {"components": {"a": {"cachedir": "x"}}}},
            "data.components.a.cachedir",
            "Did you mean 'cache_dir'?",
        ),
        ({"components": {"a": {"type": "cashed"}}}, "components.a.type", "Did you mean 'cached'?"),
        (
            {"components": {"a": {"format": {"type": "txt"}}}},
            "components.a.format.type",
            "Did you mean 'text'?",
        ),
        ({"components": {"a": 3}}, "components.a", "Is it a config of Levanter's?"),
        (
            {"components": {"web": {}}, "train_weights": {"wbe": 1}},
            "train_weights.wbe",
            "Did you mean 'web'?",
        ),
        (
            {"components": {"a": {}}, "train_weights": [[0]]},
            "train_weights[0]",
            "Write [1000, value].",
        ),
        ({"components": {"a": {}}, "train_weights": {"a": "x"}}, "train_weights.a", None),
        (
            {"data": {"components": {}}, "trainer": {"num_train_steps": "10k"}},
            "trainer.num_train_steps",
            None,
        ),
        (
            {"data": {"components": {}}, "trainer": {"train_batch_size": {"start": 0}}},
            "trainer.train_batch_size",
            None,
        ),
        ({"data": {"components": {}}, "train_seq_len": "4k"}, "train_seq_len", None),
        ({"components": {"a": {"pack": "yes"}}}, "components.a.pack", None),
        ({"components": {"a": {"flat_cache": "no"}}}, "components.a.flat_cache", None),
        (
            {"components": {"a": {"source": {"train_urls": "x.jsonl"}}}},
            "components.a.source.train_urls",
            "Write [x.jsonl]",
        ),
        ({"components": {"a": {"source": {"type": "hf"}}}}, "components.a.source.id", None),
        (
            {"components": {}, "block_cross_document_attention": 3},
            "block_cross_document_attention",
            None,
        ),
        ({"components": {}, "target_budget": "1T", "experiment_budget": 1}, "target_budget", None),
        ({"components": {"a": {}}, "max_train_batches": {"a": "x"}}, "max_train_batches.a", None),
        ({"shuffle": {"window": 3}}, "shuffle.window", "Did you mean 'window_blocks'?"),
        ({"trainer": {}}, "data", "no data config beside it"),
    ],
)
def test_what_levanter_would_not_read_is_refused_with_its_place(raw, field, cure):
    with pytest.raises(ConfigError) as caught:
        translate(raw)
    assert caught.value.field == field
    assert cure is None or cure in (caught.value.cure or "")


def test_values_that_yaml_takes_for_texts_are_what_levanter_reads():
    data = {
        "components": {"a": {"cache_dir": "c/a", "flat_cache": "True"}},
        "block_cross_document_attention": "false",
    }
    found = translate(
        {"data": data, "trainer": {"num_train_steps": "1e4", "train_batch_size": "8"}}
    ).config
    assert (found["split_documents"], found["components"]["a"]["cache"]) == (False, "c/a")
    assert (found["num_steps"], found["batch_size"]) == (10_000, 8)


def test_ready_ids_have_no_end_of_text_to_keep_documents_apart_by():
    raw = {"tokenizer": "passthrough", "vocab_size": 9, "components": {"a": {"cache_dir": "c/a"}}}
    assert translate(raw).config["split_documents"] is False
    assert (
        translate({**raw, "components": {"a": {"cache_dir": "c/a", "pack": True}}}).config[
            "split_documents"
        ]
        is True
    )


def test_the_first_stage_holds_from_the_start():
    raw = {"components": {"a": {}, "b": {}}, "train_weights": [[4, {"a": 1}], [8, {"b": 1}]]}
    assert [stage["step"] for stage in translate(raw).config["stages"]] == [0, 8]


def test_chats_that_levanter_trains_on_as_a_whole_are_not_masked():
    def of(form):
        component = {"cache_dir": "gs://bucket/chat", "format": form}
        return translate({"components": {"a": component}}).config["components"]["a"]

    assert of({"type": "chat", "mask_user_turns": False})["loss_mask"] == "none"
    assert "loss_mask" not in of({"type": "chat"})  # auto: the mask that Levanter's cache has


def test_a_command_that_gets_a_config_of_levanters_says_how_to_translate_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    data = {
        "tokenizer": "gpt2",
        "cache_dir": "cache",
        "components": {"web": {"source": {"type": "url", "train_urls": ["web.jsonl"]}}},
    }
    theirs = {"data": data, "train_seq_len": 64, "trainer": {"train_batch_size": 8}}
    (tmp_path / "train.yaml").write_text(yaml.safe_dump(theirs))
    with pytest.raises(ConfigError, match="of Levanter's") as refused:
        load_config("train.yaml")
    command, _, output = str(refused.value.cure).partition(": ")[2].partition(" > ")
    done = CliRunner().invoke(application(), shlex.split(command)[1:])
    (tmp_path / output).write_text(done.stdout)
    assert load_config(output).components["web"].cache == "cache/web/train"
