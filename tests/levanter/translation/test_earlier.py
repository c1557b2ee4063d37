"""Configs in the forms that Levanter had before: translated as those of today, or refused with
their place.
"""

from __future__ import annotations

import pytest

from headrace.config import LmDataConfig
from headrace.config.parsing import decode, read_mapping
from headrace.errors import ConfigError
from headrace.order import ValidationConfig
from headrace_levanter.translation.translate import translate


def translated(raw):
    found = translate(raw)
    return found, decode(LmDataConfig, found.config)


@pytest.mark.parametrize("prefix", ["", "data"])
def test_one_source_in_the_data_config_itself(prefix):
    data = {
        "id": "owner/set",
        "splits": ["train"],
        "cache_dir": "gs://b/c",
        "text_key": "body",
        "shuffle": True,
    }
    found, config = translated(
        {"data": data, "trainer": {"train_batch_size": 8}} if prefix else data
    )
    (component,) = config.components.values()
    assert component.cache == "gs://b/c/train"  # where the earlier releases wrote it
    assert component.source is not None
    assert component.source.paths == ["hf://owner/set?split=train&streaming=true"]
    assert component.source.text_field == "body"
    assert any("became the component 'data'" in note.text for note in found.notes)


def test_urls_and_settings_that_do_nothing_now():
    found, config = translated(
        {
            "train_urls": ["x-{0..9}.jsonl.gz"],
            "shuffle_buffer_size": 1000,
            "stop_strategy": "restart_strategy",
            "format": {"type": "chat"},
        }
    )
    (component,) = config.components.values()
    assert component.source is not None
    assert (component.source.paths, component.source.kind) == (["x-{0..9}.jsonl.gz"], "chat")
    assert config.stop_strategy == "restart"
    assert "shuffle_buffer_size" in {note.field for note in found.notes}


def test_supervised_trainers():
    mixture = {
        "dataset_type": "chat_jsonl",
        "supervised_data": {
            "tulu": {"cache_dir": "gs://b/tulu", "train_urls": ["t/**/*.jsonl.gz"]},
            "math": {"cache_dir": "gs://b/math", "train_urls": ["m/*.jsonl.gz"]},
        },
        "mixture_weights": {"tulu": 3, "math": 0},
        "max_seq_len": 512,
        "tokenizer": "owner/model",
        "trainer": {"train_batch_size": 4, "num_train_steps": 10},
    }
    _, config = translated(mixture)
    assert list(config.components) == ["tulu"]
    assert (config.seq_len, config.batch_size, config.num_steps) == (512, 4, 10)
    one = {
        "chat_train_urls": ["a.jsonl"],
        "supervised_data": {"cache_dir": "gs://b/a"},
        "messages_field": "turns",
    }
    _, config = translated({**one, "trainer": {}})
    source = config.components["data"].source
    assert source is not None
    assert (source.paths, source.kind, source.fields) == (
        ["a.jsonl"],
        "chat",
        {"messages": "turns"},
    )
    pairs = {
        "supervised_data": {
            "hf_dataset_name": "o/n",
            "input_field": "q",
            "output_field": "a",
            "name": "qa",
        }
    }
    found, config = translated(pairs)
    assert config.components["qa"].source.paths == ["hf://o/n?split=train&streaming=true"]
    assert any(note.kind == "missing" and "'q' and 'a'" in note.text for note in found.notes)


def test_preference_data():
    component = {"train_urls": ["p.jsonl"], "cache_dir": "gs://b/p"}
    _, config = translated({"dpo_data": {"p": component}, "trainer": {}})
    assert config.components["p"].source.kind == "preference"
    form = {"type": "preference_chat", "slice_strategy": "raise"}
    todays = {
        "train": {"source": {"type": "url", "train_urls": ["p"]}, "format": form},
        "eval": {"source": {"type": "url", "validation_urls": ["v"]}, "format": form},
    }
    found, config = translated({"components": todays, "train_weights": {"train": 1.0, "eval": 0.0}})
    assert list(config.components) == ["train"]
    assert "components.eval" in {note.field for note in found.notes if note.kind == "missing"}


@pytest.mark.parametrize(
    ("strategy", "long"),
    [("left", "truncate"), ("right", "truncate_start"), ("drop", "drop"), ("raise", "error")],
)
def test_what_becomes_of_chats_that_are_too_long(strategy, long):
    chat = {"cache_dir": "gs://b/c", "format": {"type": "chat", "slice_strategy": strategy}}
    _, config = translated({"components": {"c": chat}})
    assert config.components["c"].packing.long == long


def test_a_trainer_of_preferences_that_holds_out_a_share():
    pairs = {
        "cache_dir": "gs://b/p",
        "format": {"type": "preference_chat", "pack": False, "slice_strategy": "raise"},
    }
    data = {
        "shuffle": True,
        "components": {"p": {**pairs, "shuffle": True}, "q": {**pairs, "shuffle": False}},
    }
    run = {
        "train_seq_len": 4096,
        "trainer": {"train_batch_size": 128},
        "beta": 0.1,
        "validation_split_fraction": 0.05,
    }
    found, config = translated({"data": data, **run})
    assert config.validation == ValidationConfig(fraction=0.05)
    assert "validation_split_fraction" in {note.field for note in found.notes}
    assert [c.shuffle for c in config.components.values()] == [None, False]


def test_a_mixture_within_a_mixture_shares_its_weight():
    inner = {
        "components": {"x": {"cache_dir": "c/x"}, "y": {"cache_dir": "c/y"}},
        "train_weights": {"x": 3, "y": 1},
    }
    raw = {"components": {"a": {"cache_dir": "c/a"}, "m": inner}}
    _, config = translated({**raw, "train_weights": {"a": 1, "m": 2}})
    assert {n: c.weight for n, c in config.components.items()} == {"a": 1, "m/x": 1.5, "m/y": 0.5}
    _, config = translated({**raw, "train_weights": [[0, {"a": 1}], [8, {"m": 4}]]})
    assert [stage.weights for stage in config.stages] == [{"a": 1}, {"m/x": 3, "m/y": 1}]
    _, config = translated(
        {**raw, "train_weights": [{"start": 0, "value": {"a": 1}}, {"start": 8, "value": {"m": 4}}]}
    )
    assert config.stages[1].weights == {"m/x": 3, "m/y": 1}
    _, config = translated(
        {"components": {"m": {**inner, "components": {"x": {}, "y": {}}, "cache_dir": "gs://b/m"}}}
    )
    assert [c.cache for c in config.components.values()] == ["gs://b/m/x/train", "gs://b/m/y/train"]
    for wrong in ({"a": "x"}, [[0, {"m": "x"}]]):
        with pytest.raises(ConfigError, match="not a number"):
            translate({**raw, "train_weights": wrong})
    inner["train_weights"] = {"x": "much"}
    with pytest.raises(ConfigError, match=r"components\.m\.train_weights\.x.*not a number"):
        translate(raw)
    inner["train_weights"] = [[0, {"x": 1}], [9, {"y": 1}]]
    with pytest.raises(ConfigError, match=r"components\.m\.train_weights.*changes during the run"):
        translate(raw)


def test_a_stage_behind_the_end_of_the_run_is_left_out():
    raw = {"components": {"a": {}, "b": {}}, "train_weights": [[0, {"a": 1}], [100, {"b": 1}]]}
    found, config = translated({"data": raw, "trainer": {"num_train_steps": 100}})
    assert not config.stages
    assert any("from step 100 on is left out" in note.text for note in found.notes)


def test_included_files(tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "web.yaml").write_text("id: owner/web\ncache_dir: gs://b/web\n")
    run = tmp_path / "run.yaml"
    run.write_text("data: !include data/web.yaml\ntrainer: {train_batch_size: 8}\n")
    _, config = translated(read_mapping(str(run), foreign=True))
    assert config.components["data"].cache == "gs://b/web/train"
    for name, problem in (
        ("run.yaml", "in a circle"),
        ("gs://b/x.yaml", "not read"),
        ("none.yaml", "not exist"),
    ):
        run.write_text(f"data: !include {name}\n")
        with pytest.raises(ConfigError, match=problem):
            read_mapping(str(run), foreign=True)


CENTRE = {"type": "chat", "slice_strategy": "centre"}


@pytest.mark.parametrize(
    ("raw", "field"),
    [
        ({"data": "gsm8k", "trainer": {}}, "data"),
        ({"type": "adam", "learning_rate": 1.0}, "data"),
        ({"id": "o/n", "components": {"a": {}}}, "id"),
        ({"components": {"a": {"format": CENTRE}}}, "components.a.format.slice_strategy"),
    ],
)
def test_what_cannot_be_translated_is_refused_with_its_place(raw, field):
    with pytest.raises(ConfigError) as caught:
        translate(raw)
    assert caught.value.field == field
