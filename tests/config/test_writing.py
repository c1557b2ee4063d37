"""The fields that a user gave, as plain values that are read back to the same config."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headrace.config import LmDataConfig
from headrace.config.parsing import decode
from headrace.config.writing import given_fields
from headrace.order import BlockShuffleConfig, BraidShuffleConfig

weights = st.none() | st.integers(1, 5) | st.sampled_from([0.5, {"linear": {0: 1, 9: 2}}])
shuffles = st.sampled_from(
    [BlockShuffleConfig(), BraidShuffleConfig(strands=9), BlockShuffleConfig(window_blocks=9)]
)
components = st.fixed_dictionaries(
    {"cache": st.text("xyz/"), "weight": weights},
    optional={"shuffle": shuffles, "max_epochs": st.floats(0.5, 9)},
)
configs = st.fixed_dictionaries(
    {"components": st.dictionaries(st.text("ab", min_size=1), components)},
    optional={
        "seq_len": st.integers(2, 64),
        "batch_size": st.sampled_from([4, {0: 4, 9: 8}]),
        "seed": st.integers(0, 9),
    },
)


@given(configs)
def test_it_reads_back(raw):
    named = {name: {k: plain(v) for k, v in one.items()} for name, one in raw["components"].items()}
    config = decode(LmDataConfig, {**raw, "components": named})
    fields = given_fields(config)
    again = decode(LmDataConfig, fields)
    assert given_fields(again) == fields
    for name, component in config.components.items():
        assert again.components[name].shuffle == component.shuffle
    assert (again.seq_len, again.batch_size, again.seed) == (
        config.seq_len,
        config.batch_size,
        config.seed,
    )


def plain(value):
    return value if not hasattr(value, "kind") else given_fields(value) | {"kind": value.kind}


def test_nothing_is_written_that_was_not_given():
    assert given_fields(LmDataConfig()) == {}
    assert given_fields(decode(LmDataConfig, {"components": {"a": "x"}, "seed": 0})) == {
        "components": {"a": {"cache": "x"}}
    }
