"""Excess loss: its definition written the slow way, SGD with random noise, bounds, and what is
saved beside caches.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace import MixtureDataset, TokenSeqDataset
from headrace.analysis import excess
from headrace.analysis.excess import OPTIMIZERS, cosine_rates, excess_loss, source_excess, wsd_rates
from headrace.analysis.probe import PROBE_NAME, probe_cache, save_probe, saved_shares
from headrace.data.token_seq import stored_dataset
from headrace.errors import CacheError, ConfigError
from headrace.order import Order
from headrace.order.block_shuffle import EraShuffle
from headrace.order.braid import BraidShuffle
from headrace.order.order import MAX_LENGTH, Identity
from headrace.order.permutation import Feistel
from headrace.store.joined import JoinedCache
from headrace.testing import tiny_cache


def slow_excess(
    order: Order,
    batch: int | np.ndarray,
    shares: dict[int, float],
    rates: np.ndarray,
    curvatures: np.ndarray,
) -> float:
    """The definition, over all pairs of places."""
    sizes = np.broadcast_to(batch, rates.shape)
    place = np.arange(sizes.sum())
    row = order.at(place % len(order), place // len(order))
    n = len(order)
    ours = full = 0.0
    for curvature in curvatures:
        left = [np.prod(1 - curvature * rates[t + 1 :]) for t in range(rates.size)]
        weight = np.repeat(rates * curvature * left / sizes, sizes)
        products = np.outer(weight, weight)
        alone = np.trace(products)
        ours = ours + alone
        full = full + alone
        for unit, share in shares.items():
            alike = np.equal.outer(row // unit, row // unit)
            ours += share * (products[alike].sum() - alone)
            full += share * (products.sum() - alone) * (min(unit, n) - 1) / (n - 1)
    return ours / full


@given(
    st.integers(2, 60),
    st.integers(1, 7),
    st.integers(1, 9),
    st.floats(0, 1),
    st.integers(1, 40),
    st.integers(0, 9),
)
def test_it_is_its_definition(
    n: int, batch: int, unit: int, share: float, steps: int, seed: int
) -> None:
    order = EraShuffle(n, era_length=max(n // 3, 1), seed=seed)
    rates = np.random.default_rng(seed).random(steps) + 0.01
    curvatures = np.array([0.5, 0.03])
    shares = {unit: share / 2, 3 * unit: share / 2}
    slow = slow_excess(order, batch, shares, rates, curvatures)
    assert excess_loss(order, batch, shares, rates=rates, curvatures=curvatures) == pytest.approx(
        slow, rel=1e-9
    )


@given(st.lists(st.integers(1, 9), min_size=1, max_size=30), st.integers(1, 9), st.integers(0, 9))
def test_batches_of_several_sizes_are_their_definition(sizes, unit, seed):
    n = 40
    order = EraShuffle(n, era_length=13, seed=seed)
    rates = np.random.default_rng(seed).random(len(sizes)) + 0.01
    curvatures = np.array([0.5, 0.03])
    shares = {unit: 0.4, 3 * unit: 0.3}
    batches = np.array(sizes)
    slow = slow_excess(order, batches, shares, rates, curvatures)
    fast = excess_loss(order, batches.astype(float), shares, rates=rates, curvatures=curvatures)
    assert fast == pytest.approx(slow, rel=1e-9)


UNIT = 32
SHARE = 0.6
GROWS = np.repeat([8, 16, 32, 64], [256, 128, 64, 32])


def mean_square_of_walks(
    order: Order,
    rates: np.ndarray,
    walks: int,
    rng: np.random.Generator,
    step_of: Callable[[np.ndarray], np.ndarray],
) -> float:
    """Where walks along one direction end, in batches that grow; ``step_of`` a gradient."""
    place = np.zeros(walks)
    units = rng.normal(scale=SHARE**0.5, size=(len(order) // UNIT, walks))
    rows_in_order = order(np.arange(len(order)))[: GROWS.sum()]
    for rate, rows in zip(rates, np.split(rows_in_order, np.cumsum(GROWS)[:-1]), strict=True):
        own = rng.normal(scale=((1 - SHARE) / rows.size) ** 0.5, size=walks)
        place -= rate * step_of(place - units[rows // UNIT].mean(axis=0) - own)
    return float(np.square(place).mean())


@pytest.mark.parametrize("rates_of", [wsd_rates, cosine_rates])
def test_a_batch_that_grows_is_what_sgd_makes_of_it(rates_of):
    """One direction, many walks at once; an order of eras and a full shuffle."""
    n = 8192
    curvature = 0.05
    rates = rates_of(GROWS.size)
    rng = np.random.default_rng(0)
    orders = (EraShuffle(n, era_length=1024, seed=0), Feistel(n, 0))
    measured = [
        mean_square_of_walks(order, rates, 4000, rng, lambda gradient: curvature * gradient)
        for order in orders
    ]
    era, full = (
        excess_loss(
            order, GROWS.astype(float), {UNIT: SHARE}, rates=rates, curvatures=np.array([curvature])
        )
        for order in orders
    )
    assert era > 1.5 * full
    assert era / full == pytest.approx(measured[0] / measured[1], rel=0.1)


class AdamStep:
    """A step of Adam: of the size ``pull`` where the gradient is the noise of the largest batch."""

    def __init__(self, pull: float, walks: int) -> None:
        self._scale = pull / GROWS.max() ** 0.5
        self._mean = np.zeros(walks)
        self._square = np.ones(walks) / GROWS[0]

    def __call__(self, gradient: np.ndarray) -> np.ndarray:
        self._mean = 0.9 * self._mean + 0.1 * gradient
        self._square = 0.95 * self._square + 0.05 * gradient**2
        return self._scale * self._mean / np.sqrt(self._square)


def test_it_is_what_adam_makes_of_a_batch_that_grows():
    """One direction, many walks at once; an order of eras and a full shuffle."""
    n = 8192
    pull = 0.02
    walks = 2000
    rates = wsd_rates(GROWS.size)
    rng = np.random.default_rng(0)
    orders = (EraShuffle(n, era_length=2048, seed=0), Feistel(n, 0))
    measured = [
        mean_square_of_walks(order, rates, walks, rng, AdamStep(pull, walks)) for order in orders
    ]
    forecast = {}
    for optimizer in OPTIMIZERS:
        era, full = (
            excess_loss(
                order,
                GROWS.astype(float),
                {UNIT: SHARE},
                rates=rates,
                curvatures=np.array([pull]),
                optimizer=optimizer,
            )
            for order in orders
        )
        forecast[optimizer] = era / full
    ratio = measured[0] / measured[1]
    # Rows of one unit meet in a batch here, which adds to the noise that Adam divides by.
    assert forecast["adam"] == pytest.approx(ratio, rel=0.1)
    assert abs(forecast["adam"] - ratio) < 0.6 * abs(forecast["sgd"] - ratio)


def test_it_is_what_sgd_makes_of_correlated_noise() -> None:
    """One direction, many walks at once; the order of blocks and a full shuffle."""
    n = 4096
    batch = 16
    unit = 32
    share = 0.6
    curvature = 0.05
    rates = wsd_rates(n // batch)
    rng = np.random.default_rng(0)
    ends = {}
    for name, order in (("era", EraShuffle(n, era_length=256, seed=0)), ("full", Feistel(n, 0))):
        place = np.zeros(4000)
        units = rng.normal(scale=share**0.5, size=(n // unit, place.size))
        for step, rows in enumerate(order(np.arange(n)).reshape(-1, batch)):
            noise = units[rows // unit] + rng.normal(
                scale=(1 - share) ** 0.5, size=(batch, place.size)
            )
            place -= rates[step] * curvature * (place - noise.mean(axis=0))
        ends[name] = np.square(place).mean()
    era = excess_loss(
        EraShuffle(n, era_length=256, seed=0),
        batch,
        {unit: share},
        curvatures=np.array([curvature]),
    )
    full = excess_loss(Feistel(n, 0), batch, {unit: share}, curvatures=np.array([curvature]))
    assert era > 3 * full
    assert era / full == pytest.approx(ends["era"] / ends["full"], rel=0.12)


def test_a_full_shuffle_is_one_and_rows_that_are_not_alike_make_any_order_one() -> None:
    n = 1 << 14
    full = [excess_loss(Feistel(n, seed), 16, {64: 0.5}) for seed in range(20)]
    assert np.mean(full) == pytest.approx(1.0, abs=0.01)
    assert excess_loss(Identity(n), 16, {64: 0.0}) == 1.0
    assert excess_loss(Identity(n), 16, {1: 0.9}) == pytest.approx(1.0)


def test_a_sample_of_places_says_what_all_of_them_say(monkeypatch: pytest.MonkeyPatch) -> None:
    n = 1 << 17
    for order in (Identity(n), EraShuffle(n, era_length=4096, seed=0), Feistel(n, 0)):
        exact = excess_loss(order, 32, {64: 0.3, 256: 0.3})
        with monkeypatch.context() as patch:
            patch.setattr(excess, "MOST_PLACES", 1 << 15)
            assert excess_loss(order, 32, {64: 0.3, 256: 0.3}) == pytest.approx(exact, rel=0.06)


class Counting(Order):
    """The stored order, which counts the places that it is asked for."""

    def __init__(self, n: int) -> None:
        super().__init__(n, n)
        self.asked = 0

    def at(self, i: np.ndarray, epoch: np.ndarray) -> np.ndarray:
        self.asked += i.size
        return i


@pytest.mark.parametrize("n", [10**8, 10**12, 1 << 62])
def test_places_are_bounded_whatever_the_size(n: int) -> None:
    order = Counting(n)
    assert excess_loss(order, 4096, {32: 0.5}, rates=wsd_rates(20_000)) > 3
    assert order.asked <= excess.MOST_PLACES


class Epochs(Order):
    """Passes over an order, without end."""

    def __init__(self, order: Order) -> None:
        super().__init__(MAX_LENGTH, len(order))
        self.order = order

    def at(self, i: np.ndarray, epoch: np.ndarray) -> np.ndarray:
        passes, place = np.divmod(i, len(self.order))
        return self.order.at(place, passes)


def test_a_braid_over_large_blocks_costs_more_and_epochs_of_full_shuffles_nothing() -> None:
    n = 1 << 18

    def braid(block: int) -> float:
        order = BraidShuffle(n, io_block_size=block, strands=512, lap=64, seed=0)
        return excess_loss(order, 64, {256: 0.5})

    assert 1.05 < braid(8) < braid(64)
    epochs = Epochs(Feistel(4096, 0))
    assert excess_loss(epochs, 64, {64: 0.5}, rates=wsd_rates(500)) == pytest.approx(1.0, abs=0.05)


@pytest.mark.parametrize(
    ("order", "batch", "shares", "rates", "field"),
    [
        (Identity(0), 1, {2: 0.5}, None, "order"),
        (Identity(9), 0, {2: 0.5}, None, "rows_per_step"),
        (Identity(9), float("nan"), {2: 0.5}, None, "rows_per_step"),
        (Identity(9), 1, {2: 0.5, 4: 0.6}, None, "shares"),
        (Identity(9), 1, {2: -0.1}, None, "shares"),
        (Identity(9), 1, {2: 0.1}, np.array([10.0]), "rates"),
        (Identity(9), 1, {2: 0.1}, np.zeros(3), "rates"),
        (Identity(9), 1, {2: 0.1}, np.zeros(0), "rates"),
    ],
)
def test_what_cannot_be_is_refused(order, batch, shares, rates, field) -> None:
    with pytest.raises(ConfigError) as refused:
        excess_loss(order, batch, shares, rates=rates)
    assert refused.value.field == field


@pytest.fixture
def mixture(tmp_path: Path) -> MixtureDataset:
    """Two sources, of which the first is shuffled in eras and the second not at all."""
    a, b = (
        TokenSeqDataset(tiny_cache(tmp_path / "ab"[k], documents=4000, seed=k), seq_len=8)
        for k in (0, 1)
    )
    return MixtureDataset(
        {"a": a.era_shuffle(512, seed=0), "b": b}, {"a": 3, "b": 1}, batch_size=16
    )


def test_sources_whose_icc_is_given_or_saved(mixture: MixtureDataset) -> None:
    assert source_excess(mixture, 500, {}) == {}
    given_icc = source_excess(mixture, 500, {"a": 0.5})
    assert given_icc["a"].icc == 0.5
    assert given_icc["a"].excess > 1.5
    cache = mixture.components[1].caches()[0]
    rows = cache.num_tokens // 8
    values = np.repeat(np.random.default_rng(0).normal(size=rows // 64 + 1), 64)[:rows]
    probe = probe_cache(cache, 8, batch_size=16, block=16, losses=values)
    save_probe(cache, 8, probe)
    known = source_excess(mixture, None, {"a": 0.0})
    assert list(known) == ["a", "b"]
    assert known["a"] == (0.0, 1.0, "blocks")
    assert known["b"].icc == pytest.approx(1.0, abs=0.1)
    assert known["b"].excess > 5
    with pytest.raises(ConfigError, match="c"):
        source_excess(mixture, None, {"c": 0.5})
    by_cosine = source_excess(mixture, 500, {"a": 0.5}, "cosine")
    assert by_cosine["a"].excess != given_icc["a"].excess
    with pytest.raises(ConfigError, match="schedule"):
        source_excess(mixture, 500, {"a": 0.5}, "cosin")
    by_sgd = source_excess(mixture, 500, {"a": 0.5}, optimizer="sgd")
    assert 1 < by_sgd["a"].excess < given_icc["a"].excess
    with pytest.raises(ConfigError, match="optimizer"):
        source_excess(mixture, 500, {"a": 0.5}, optimizer="adamw")


def test_a_forecast_knows_that_batches_grow(mixture: MixtureDataset) -> None:
    """The last batches hold 16 times the rows, of so many more blocks; in stored order."""
    stored = dict(zip(mixture.names, map(stored_dataset, mixture.components), strict=True))
    excess_of = {
        name: source_excess(MixtureDataset(stored, {"a": 3, "b": 1}, size), 400, {"a": 0.5})["a"]
        for name, size in {"first": 4, "last": 64, "grows": {0: 4, 200: 64}}.items()
    }
    assert len({one.excess for one in excess_of.values()}) == 3


def test_what_is_saved_counts_in_rows_of_the_reader_until_the_cache_changes(tmp_path: Path) -> None:
    a, b = (
        tiny_cache(tmp_path / name, documents=2000, seed=seed) for seed, name in enumerate("ab")
    )
    probe = probe_cache(a, 8, batch_size=16, block=16, losses=np.arange(a.num_tokens // 8) * 1.0)
    url = save_probe(a, 8, probe)
    assert saved_shares(TokenSeqDataset(a, seq_len=8)) == probe.nested
    assert saved_shares(TokenSeqDataset(a, seq_len=16)) == {
        unit // 2: s for unit, s in probe.nested.items()
    }
    assert saved_shares(TokenSeqDataset(b, seq_len=8)) == {}
    joined = TokenSeqDataset(JoinedCache([a, b]), seq_len=8)
    assert saved_shares(joined) == {}  # half of it was not measured
    save_probe(b, 8, probe)
    assert saved_shares(joined)[16] == pytest.approx(probe.nested[16])
    Path(url).write_text(json.dumps(json.loads(Path(url).read_text()) | {"fingerprint": "another"}))
    assert saved_shares(TokenSeqDataset(a, seq_len=8)) == {}


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"fingerprint": "", "seq_len": 0, "nested": {}}']
)
def test_a_damaged_file_is_an_error_with_a_cure(tmp_path: Path, text: str) -> None:
    cache = tiny_cache(tmp_path / "cache")
    (Path(cache.path) / PROBE_NAME).write_text(text)
    with pytest.raises(CacheError, match="--save"):
        saved_shares(TokenSeqDataset(cache, seq_len=8))
