"""The mixture over steps: sums that must come out, whatever the weights do."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.data import MixtureDataset, TokenSeqDataset
from headrace.report.plan_figures import (
    document_lengths,
    largest,
    lengths_of,
    mixture_facts,
    pack_fill,
)
from headrace.testing import tiny_cache

CACHES = [tiny_cache(seed=s, documents=60) for s in range(3)]


def mixture(weights, batch_size, **more):
    parts = {n: TokenSeqDataset(c, seq_len=8, name=n) for n, c in zip("abc", CACHES, strict=True)}
    return MixtureDataset(parts, dict(zip("abc", weights, strict=True)), batch_size, **more)


WEIGHT = st.one_of(
    st.floats(0.1, 9),
    st.tuples(st.floats(0.1, 9), st.integers(1, 80), st.floats(0.1, 9)).map(
        lambda w: {"linear": {0: w[0], w[1]: w[2]}}
    ),
    st.tuples(st.floats(0.1, 9), st.integers(1, 80), st.floats(0.1, 9)).map(
        lambda w: {"step": {0: w[0], w[1]: w[2]}}
    ),
)


@given(
    st.tuples(WEIGHT, WEIGHT, WEIGHT), st.integers(1, 13), st.integers(1, 130), st.integers(1, 40)
)
def test_spans_add_up_to_the_run(weights, batch, steps, spans):
    dataset = mixture(weights, {0: batch, 50: batch + 3})
    found = mixture_facts(dataset, steps, spans)
    rows = dataset.batch_schedule.rows_at(steps)[0]
    assert (found.edge[0], found.edge[-1]) == (0, steps)
    assert (np.diff(found.edge) > 0).all()
    assert found.edge.size <= spans + 1
    assert found.drawn.sum() == rows
    np.testing.assert_array_equal(found.drawn.sum(axis=0), dataset.draws.starts_at(steps))
    assert found.target.sum() == pytest.approx(rows)
    np.testing.assert_array_equal(found.tokens, 8 * found.drawn)
    assert found.off_quota is not None


@given(st.tuples(*[st.floats(0.1, 9)] * 3), st.integers(1, 40))
def test_constant_weights_are_never_an_example_off(weights, steps):
    found = mixture_facts(mixture(weights, 7), steps)
    assert found.off_quota is not None
    assert found.off_quota.max() < 1


def test_a_limit_shows_as_rows_off_what_was_wanted():
    found = mixture_facts(mixture((1, 1, 1), 9, max_examples={"a": 6}), 10)
    assert found.drawn.sum(axis=0)[0] == 6
    assert found.target.sum(axis=0)[0] == pytest.approx(30)
    assert found.off_quota is not None
    assert found.off_quota[0] == pytest.approx(24)


@pytest.mark.parametrize(
    ("weights", "more"),
    [
        ((1, 3, 2), {"max_examples": {"a": 4, "b": 9, "c": 6}}),
        ((1, 3, 2), {"stop_strategy": "first_exhausted"}),
        ((1, 3, 2), {"stop_strategy": "all_exhausted"}),
        ((1, 1, 1), {"policy": "exhaustive"}),
    ],
)
def test_the_end_of_a_finite_mixture_is_counted(weights, more):
    dataset = mixture(weights, 7, **more)
    assert dataset.length is not None
    steps = -(-dataset.length // 7)
    drawn = mixture_facts(dataset, steps).drawn.sum()
    assert dataset.length <= drawn < dataset.length + 7


def test_of_very_many_steps_some_are_looked_at(monkeypatch):
    from headrace.report import plan_figures as module

    exact = mixture_facts(mixture(({"linear": {0: 1, 900: 5}}, 1, 2), 16), 1000)
    monkeypatch.setattr(module, "_SUMMED", 100)
    monkeypatch.setattr(module, "_LOOKS", 2)
    sampled = mixture_facts(mixture(({"linear": {0: 1, 900: 5}}, 1, 2), 16), 1000)
    assert exact.summed
    assert not sampled.summed
    assert sampled.off_quota is None
    np.testing.assert_array_equal(exact.drawn, sampled.drawn)
    np.testing.assert_allclose(sampled.target, exact.target, rtol=0.01)


def test_the_largest_sources():
    assert list(largest(mixture_facts(mixture((1, 3, 2), 6), 10), 2)) == [1, 2]


@given(st.lists(st.integers(0, 100_000), max_size=200))
def test_a_histogram_of_lengths_holds_every_document_and_token(lengths):
    found = lengths_of(np.asarray(lengths, np.int64), len(lengths))
    assert found.documents.sum() == pytest.approx(1.0 if lengths else 0.0)
    assert found.tokens.sum() == pytest.approx(1.0 if sum(lengths) else 0.0)
    assert found.edge.size == found.documents.size + 1 or not lengths
    assert (np.diff(found.edge) > 0).all()


def test_a_large_cache_is_sampled(monkeypatch):
    from headrace.report import plan_figures as module

    monkeypatch.setattr(module, "MAX_LOOKED", 32)
    found = document_lengths(CACHES[0])
    assert (found.looked, found.of) == (32, 60)


@given(st.lists(st.integers(1, 16), min_size=1, max_size=50))
def test_fill_of_packs(lengths):
    found = pack_fill(np.asarray(lengths), 16, "windowed")
    assert found.share.sum() == pytest.approx(1)
    assert 0 < found.worst <= found.mean <= 1
    full = sum(length > 15 for length in lengths) / len(lengths)
    assert found.share[-1] == pytest.approx(full)
