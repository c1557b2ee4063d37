"""Mixtures: which row of which source each index means, counted by hand; exact shares; random
access.
"""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.config import ComponentConfig, LmDataConfig
from headrace.data import MixtureDataset, TokenSeqDataset
from headrace.errors import ConfigError, IndexOutOfRangeError
from headrace.mix import BatchSchedule
from headrace.mix.blend import Blend
from headrace.order.permutation import Feistel
from headrace.store import CacheLayout
from headrace.testing import tiny_cache, write_cache
from headrace.testing.caches import random_documents

SEQ_LEN = 4
SIZES = {"a": 30, "b": 7, "c": 50}
DTYPES = {"a": "uint8", "b": "uint16", "c": "uint32"}


@pytest.fixture(scope="module")
def components(tmp_path_factory):
    """Rows that tell their number; small sources, so that all are repeated many times."""
    root = tmp_path_factory.mktemp("sources")
    return {
        name: TokenSeqDataset(
            write_cache(
                root / name,
                [[np.full(SEQ_LEN, r) for r in range(n)]],
                layout=CacheLayout(DTYPES[name], 24, 2),
            ),
            SEQ_LEN,
            name=name,
        )
        for name, n in SIZES.items()
    }


SHUFFLES = {
    "stored": lambda d: d,
    "full": lambda d: d.shuffle(5),
    "block": lambda d: d.block_shuffle(window_blocks=2, seed=5),
    "braid": lambda d: d.braid_shuffle(seed=5, strands=3),
}

weights = st.one_of(
    st.floats(0.01, 9),
    st.builds(
        lambda a, b, at: {"linear": {0: a, at: b}},
        st.floats(0.01, 4),
        st.floats(0, 4, allow_subnormal=False),
        st.integers(1, 40),
    ),
    st.builds(
        lambda a, b, at: {"step": {0: a, at: b}},
        st.floats(0.01, 4),
        st.floats(0, 4, allow_subnormal=False),
        st.integers(1, 40),
    ),
)


@given(
    weighted=st.tuples(st.floats(0.1, 3), weights, weights),
    batch=st.sampled_from([5, {0: 4, 10: 7}, {0: 8, 3: 1, 20: 6}]),
    kinds=st.tuples(*[st.sampled_from(sorted(SHUFFLES))] * 3),
    data=st.data(),
)
def test_every_index_is_the_next_row_of_its_source(components, weighted, batch, kinds, data):
    shuffled = {n: SHUFFLES[k](d) for (n, d), k in zip(components.items(), kinds, strict=True)}
    weights_of = dict(zip("abc", weighted, strict=True))
    mixture = MixtureDataset(shuffled, weights_of, batch)
    schedule = BatchSchedule(batch)
    steps = 30
    total = int(schedule.offset_at(np.array([steps]))[0])
    everything = mixture.read(np.arange(total))
    source = everything.source_id
    row = everything.tokens[:, 0]
    # each source's rows are those of its own order, pass after pass, without a gap
    for d, name in enumerate("abc"):
        mine = row[source == d]
        wanted = shuffled[name].repeat().read(np.arange(mine.size)).tokens[:, 0]
        assert np.array_equal(mine, wanted), name
    # and as many as their share, to less than one
    share = np.zeros(3)
    blend = Blend(weights_of)
    for step in range(steps):
        first, size = schedule.rows_at(step)
        share += blend.at(np.array([step]))[0] * size
        taken = np.bincount(source[: first + size], minlength=3)
        assert np.abs(taken - share).max() < 1 + 1e-6
        assert np.array_equal(
            np.bincount(source[first : first + size], minlength=3), mixture.draws.counts_at(step)
        )
    # any index, in any order, is the same row
    picks = data.draw(st.lists(st.integers(0, total - 1), min_size=1, max_size=20))
    some = mixture.read(picks)
    assert np.array_equal(some.tokens, everything.tokens[picks])
    assert np.array_equal(some.source_id, source[picks])


@pytest.mark.parametrize("kind", SHUFFLES)
def test_a_host_may_have_no_rows_in_a_step(components, kind):
    shuffled = {name: SHUFFLES[kind](dataset) for name, dataset in components.items()}
    mixture = MixtureDataset(shuffled, {"a": 1, "b": 1, "c": 1}, 8)
    assert mixture.locate(np.empty(0, np.int64)).row.tolist() == []


def test_later_weights_do_not_change_earlier_steps(components):
    one = MixtureDataset(components, {"a": 1, "b": {"step": {0: 1, 20: 0}}, "c": 2}, 8)
    other = MixtureDataset(components, {"a": 1, "b": {"step": {0: 1, 20: 5}}, "c": 2}, 8)
    i = np.arange(20 * 8)
    assert np.array_equal(one.read(i).tokens, other.read(i).tokens)
    assert not np.array_equal(one.read(i + 160).source_id, other.read(i + 160).source_id)


def test_steps_far_away_cost_nothing_before_them(components):
    mixture = MixtureDataset(components, {"a": 1, "b": 1, "c": {"linear": {0: 0, 1000: 1}}}, 8)
    far = mixture.read(8 * 10**5 + np.arange(8))
    assert far.tokens.shape == (8, SEQ_LEN)


def test_nested_blends_and_zero_weights(components):
    blend = {"a": 0, "rest": {"weight": 2, "blend": {"b": 1, "c": 3}}}
    mixture = MixtureDataset(components, blend, 8)
    assert mixture.names == ("a", "b", "c")
    assert mixture.draws.counts_at(0).tolist() == [0, 2, 6]


def test_mixtures_have_no_end_and_no_other_order(components):
    mixture = MixtureDataset(components, {"a": 1, "b": 1, "c": 1}, 8)
    assert mixture.length is None
    with pytest.raises(ConfigError, match="needs a dataset with an end"):
        mixture.shuffle(0)
    with pytest.raises(ConfigError, match="already hold exact quotas") as caught:
        mixture.reordered(Feistel(10, 0))
    assert caught.value.cure == "Shuffle the components before mixing them."
    with pytest.raises(IndexOutOfRangeError):
        mixture.read([-1])


def test_bad_mixtures(components, tmp_path):
    def field(error, *arguments):
        with pytest.raises(ConfigError, match=error) as caught:
            MixtureDataset(*arguments)
        return caught.value.field

    ones = dict.fromkeys(components, 1)
    assert field("is not a mapping of names to datasets", {}, {}, 8) == "components"
    assert (
        field(r"is not a component\. Did you mean 'a'\?", components, ones | {"aa": 1}, 8)
        == "weights.aa"
    )
    assert field("has no weight anywhere", components, {"a": 1, "b": 1}, 8) == "components.c"
    assert field("must be finite and not negative", components, ones | {"b": -1}, 8) == "weights.b"
    assert (
        field("all weights are zero at step 0", components, dict.fromkeys(components, 0), 8)
        == "weights"
    )
    zero_later = {name: {"step": {0: 1, 9: 0}} for name in components}
    assert field("all weights are zero at step 9", components, zero_later, 8) == "weights"
    assert field("must be a whole number", components, ones, 0) == "batch_size"
    longer = TokenSeqDataset(components["c"].cache, 5)
    assert field("has rows of 5 tokens", {**components, "c": longer}, ones, 8) == "components.c"
    split = TokenSeqDataset(
        write_cache(tmp_path, [random_documents(9)], eos_id=9), SEQ_LEN, split_documents=True
    )
    assert (
        field("divides its rows into documents", {**components, "c": split}, ones, 8)
        == "components.c"
    )
    mapped = components["c"].map(lambda batch: batch)
    assert (
        field("does not lie in token stores", {**components, "c": mapped}, ones, 8)
        == "components.c"
    )


def test_descriptions_tell_mixtures_apart(components):
    ones = dict.fromkeys(components, 1)
    mixtures = [
        MixtureDataset(components, ones, 8),
        MixtureDataset(components, ones | {"a": 2}, 8),
        MixtureDataset(components, ones, {0: 8, 5: 9}),
        MixtureDataset({**components, "a": components["a"].shuffle(0)}, ones, 8),
        MixtureDataset({**components, "a": components["b"]}, ones, 8),
    ]
    described = [repr(m.describe()) for m in mixtures]
    assert len(set(described)) == len(described)


def test_one_source_may_stand_twice():
    dataset = TokenSeqDataset(tiny_cache(documents=30), SEQ_LEN)
    mixture = MixtureDataset({"x": dataset, "y": dataset.shuffle(1)}, {"x": 1, "y": 1}, 4)
    assert sorted(set(mixture.read(np.arange(8)).source_id.tolist())) == [0, 1]


def test_losses_weigh_by_component_and_step(tmp_path):
    """A number, or a schedule of the step; through packing, phases, meshes and a loader that
    resumes; no row moves.
    """
    for k, name in enumerate("ab"):
        write_cache(
            tmp_path / name,
            [random_documents(200, vocab_size=60, seed=k)],
            vocab_size=60,
            eos_id=59,
        )
    weights = {"a": 0.5, "b": {"linear": {0: 0, 8: 4}}}
    components = {n: ComponentConfig(str(tmp_path / n), loss_weight=weights[n]) for n in "ab"}
    config = LmDataConfig(components, seq_len={0: 8, 4: 16}, batch_size=8)
    plain = replace(
        config, components={n: replace(c, loss_weight=None) for n, c in components.items()}
    )
    weighed = config.loader()
    alike = plain.loader()
    assert "loss_weights" not in str(alike.describe())
    described = weighed.describe()["dataset"]["phases"][1]["dataset"]["loss_weights"]
    assert described == {"a": 0.5, "b": {"linear": {0: 0.0, 8: 4.0}}}
    for step in (0, 3, 5, 20):
        batch = weighed.batch_at(step)
        other = alike.batch_at(step)
        of_row = np.array([0.5, min(4, step / 2)])[np.asarray(batch.source_id)]
        assert np.array_equal(batch.token_ids, other.token_ids)
        assert np.array_equal(
            batch.token_weights, of_row[:, None] * np.asarray(other.token_weights)
        )
        assert np.array_equal(batch.label_mask, other.label_mask)
        with weighed.iter_from_step(step) as batches:
            assert np.array_equal(next(batches).token_weights, batch.token_weights)
    mapped = config.loader(fn=lambda batch: batch)
    assert np.array_equal(mapped.batch_at(3).token_weights, weighed.batch_at(3).token_weights)
    with pytest.raises(ConfigError, match=r"components.a.loss_weight"):
        replace(config, components={"a": replace(components["a"], loss_weight=-1)})
    with pytest.raises(ConfigError, match="is not a component"):
        plain.dataset().phases[0][1].with_loss_weights({"c": 1})  # pyright: ignore
