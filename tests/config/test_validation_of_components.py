"""What is held out of single components: by a fraction, a number of rows, or nothing."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import headrace.testing
from headrace import LmDataConfig, TokenSeqDataset, load_config
from headrace.data import PackedTokenDataset
from headrace.errors import ConfigError
from headrace.order import ValidationConfig

CACHES = {
    "a": headrace.testing.tiny_cache(seed=0, documents=300),
    "b": headrace.testing.tiny_cache(seed=1, documents=30),
}


def config_of(run: Any = None, **own: Any) -> LmDataConfig:
    settings = ["seq_len=8", "batch_size=8"]
    settings += [f"components.{name}={{cache: {name}}}" for name in CACHES]
    settings += [] if run is None else [f"validation={run}"]
    settings += [f"components.{name}.validation={value}" for name, value in own.items()]
    return load_config(overrides=settings)


def row_keys(dataset: Any) -> list[tuple[int, int]]:
    """Where the rows of a dataset lie: no two rows of a cache lie at the same place."""
    rows = dataset.locate(np.arange(len(dataset)))
    pieces = dataset.joined_rows.pieces(rows.source, rows.row, np.zeros(9, np.int64))
    return list(zip(pieces.array.tolist(), pieces.start.tolist(), strict=True))


def check_sides(config: LmDataConfig) -> dict[str, int]:
    """Checks that what is held out and what is trained on are all rows, each once; gives the rows
    held out.
    """
    stored = config.with_caches(CACHES).datasets()
    train = config.with_caches(CACHES).train_datasets()
    held = config.with_caches(CACHES).validation_datasets() if config.held_out else {}
    for name, dataset in stored.items():
        sides = row_keys(train[name]) + (row_keys(held[name]) if name in held else [])
        assert sorted(sides) == sorted(row_keys(dataset))
    return {name: len(dataset) for name, dataset in held.items()}


@given(rows=st.integers(1, 120), seed=st.integers(0, 5), block=st.none() | st.integers(1, 16))
def test_as_many_rows_as_given_are_held_out_and_not_trained_on(rows, seed, block):
    split = f"{{rows: {rows}, seed: {seed}{'' if block is None else f', io_block_size: {block}'}}}"
    total = len(TokenSeqDataset(CACHES["a"], seq_len=8))
    assert total >= 2 * 120
    assert check_sides(config_of(a=split)) == {"a": rows}
    if rows > 1:
        assert check_sides(config_of(a=rows)) == {"a": rows}


@pytest.mark.parametrize("number", ["1", "1.0"])
def test_one_is_neither_all_rows_nor_a_single_one(number):
    with pytest.raises(ConfigError) as caught:
        config_of(a=number)
    assert (caught.value.field, caught.value.value) == ("components.a.validation", 1)
    assert caught.value.cure == "Write a fraction up to 0.5, or {rows: 1}."
    assert check_sides(config_of(a="{rows: 1}")) == {"a": 1}
    assert check_sides(config_of(a=0.5))


def test_each_component_may_have_a_setting_of_its_own():
    every = check_sides(config_of("{one_in: 10}"))
    assert check_sides(config_of("{one_in: 10}", b="none")) == {"a": every["a"]}
    assert check_sides(config_of("{one_in: 10}", b=7)) == {"a": every["a"], "b": 7}
    half = check_sides(config_of(a=0.5))
    assert half == {"a": len(TokenSeqDataset(CACHES["a"], seq_len=8)) // 2}
    own = config_of("{one_in: 10, by: documents, seed: 4}", a=0.25, b=3)
    assert own.held_out == {
        "a": (ValidationConfig(fraction=0.25, by="documents", seed=4), "components.a.validation"),
        "b": (ValidationConfig(rows=3, seed=4), "components.b.validation"),
    }
    assert load_config_again(own) == own


def load_config_again(config: LmDataConfig) -> LmDataConfig:
    import yaml

    from headrace.config.parsing import decode

    return decode(LmDataConfig, yaml.safe_load(config.to_yaml()))


def test_the_rest_of_a_run_does_not_depend_on_what_another_component_holds_out():
    plain = config_of("{one_in: 10}").with_caches(CACHES).train_datasets()
    other = config_of("{one_in: 10}", b="none").with_caches(CACHES).train_datasets()
    assert row_keys(plain["a"]) == row_keys(other["a"])


def test_a_small_component_does_not_refuse_the_run():
    split = "{one_in: 1000}"
    with pytest.raises(ConfigError) as refusal:
        config_of(split, a="none").with_caches(CACHES).dataset()
    assert refusal.value.field == "validation.one_in"
    assert "components.b.validation: none" in (refusal.value.cure or "")
    with pytest.raises(ConfigError, match="not set"):
        config_of(split, a="none", b="none").with_caches(CACHES).validation_datasets()
    dataset = config_of("{one_in: 50}", b="none").with_caches(CACHES).dataset()
    assert dataset.length is None


@pytest.mark.parametrize(
    ("own", "field", "value"),
    [
        ("1.5", "components.b.validation", 1.5),
        ("0", "components.b.validation", 0),
        ("0.6", "components.b.validation", 0.6),
        ("-2", "components.b.validation", -2),
        ("nothing", "components.b.validation", "nothing"),
        ("{rows: 0}", "components.b.validation.rows", 0),
        ("{rows: 2, one_in: 4}", "components.b.validation.rows", None),
        ("{rows: 2, by: documents}", "components.b.validation.rows", 2),
        ("100000", "components.b.validation.rows", 100000),
        ("{one_in: 100000}", "components.b.validation.one_in", 100000),
        ("{fraction: 0.00001}", "components.b.validation.fraction", 0.00001),
        ("{fraction: 0.00001, by: documents}", "components.b.validation.fraction", 0.00001),
    ],
)
def test_what_cannot_be_held_out_is_refused_at_its_place(own, field, value):
    for length in ({}, {"seq_len": {0: 8, 4: 16}}):
        with pytest.raises(ConfigError) as refusal:
            replace(config_of(b=own), **length).with_caches(CACHES).dataset()
        assert (refusal.value.field, refusal.value.value) == (field, value)


def test_half_is_the_most_and_the_cure_says_how_many():
    total = len(TokenSeqDataset(CACHES["b"], seq_len=8))
    with pytest.raises(ConfigError) as refusal:
        config_of(b=total // 2 + 1).with_caches(CACHES).dataset()
    assert f"Give at most {total // 2}." in (refusal.value.cure or "")
    assert check_sides(config_of(b=total // 2)) == {"b": total // 2}


def test_rows_of_packs_are_held_out_too():
    config = config_of(a=9)
    packed = load_config(
        overrides=["seq_len=16", "components.a={cache: a, packing: {long: split}, validation: 9}"]
    )
    held = packed.with_caches({"a": CACHES["a"]}).validation_datasets()["a"]
    train = packed.with_caches({"a": CACHES["a"]}).train_datasets()["a"]
    whole = PackedTokenDataset(CACHES["a"], seq_len=16, long="split")
    assert (len(held), len(train) + len(held)) == (9, len(whole))
    assert config.with_caches(CACHES).accounts()["a"].validation_rows == 9
    assert config.with_caches(CACHES).accounts()["b"].validation_rows == 0


@pytest.mark.parametrize("rows", [1, 5, 40])
def test_whole_blocks_are_held_out_where_rows_change_their_length(rows):
    settings = ["seq_len={0: 8, 3: 16}", "batch_size=8", "num_steps=12"]
    shuffle = "{strands: 2, io_block_size: 4}"
    settings += [f"components.a={{cache: a, validation: {{rows: {rows}}}, shuffle: {shuffle}}}"]
    config = load_config(overrides=settings)
    opened = {"a": CACHES["a"]}
    held = config.with_caches(opened).validation_datasets()["a"]
    assert rows <= len(held) < rows + 4
    tokens = {row.tobytes() for row in np.asarray(held.read(np.arange(len(held))).tokens)}
    dataset = config.with_caches(opened).dataset()
    short = np.asarray(dataset.at_step(0)[0].read(np.arange(24)).tokens)
    long = np.asarray(dataset.at_step(3)[0].read(np.arange(24, 96)).tokens)
    assert not tokens & {row.tobytes() for row in short}
    assert not tokens & {half.tobytes() for row in long for half in (row[:8], row[8:])}
