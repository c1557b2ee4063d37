"""Strands from a memory budget: within it, at least one each, never more than there
are examples.
"""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import ConfigError
from headrace.order.braid import braid_spec
from headrace.order.shuffle_config import StrandPlan, apportion, resolve_strands


@st.composite
def jobs(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray, int]:
    d = draw(st.integers(1, 12))
    lengths = draw(st.lists(st.integers(1, 10**6), min_size=d, max_size=d))
    weights = draw(st.lists(st.floats(0, 1), min_size=d, max_size=d).filter(any))
    return np.array(lengths), np.array(weights) / sum(weights), draw(st.integers(1, 2048))


@given(jobs())
def test_plans_make_valid_braids(job: tuple[np.ndarray, np.ndarray, int]) -> None:
    lengths, shares, batch = job
    plan = resolve_strands(lengths, np.minimum(shares, 1), batch_size=batch)
    assert (plan.strands >= 1).all()
    assert (plan.strands <= lengths).all()
    braid_spec(lengths, io_block_size=7, strands=plan.strands, lap=plan.laps, key=0)


@given(jobs())
def test_plans_of_changing_weights_make_valid_braids(
    job: tuple[np.ndarray, np.ndarray, int],
) -> None:
    lengths, shares, batch = job
    plan = resolve_strands(np.append(lengths, 50), np.append(shares, 1.0), batch_size=batch)
    assert (plan.strands >= 1).all()
    assert (plan.strands <= np.append(lengths, 50)).all()
    assert (plan.laps == np.floor(plan.laps)).all()
    braid_spec(np.append(lengths, 50), io_block_size=7, strands=plan.strands, lap=plan.laps, key=0)


@given(jobs())
def test_a_lap_is_the_rows_of_a_batch_and_there_are_eight_laps_of_strands(
    job: tuple[np.ndarray, np.ndarray, int],
) -> None:
    _, shares, batch = job
    plan = resolve_strands(np.full(len(shares), 10**9), shares, batch_size=batch)
    assert plan.laps == pytest.approx(batch * shares, abs=2**-20)
    assert (plan.strands >= 8 * plan.laps).all()
    assert (plan.strands < 8 * plan.laps + 1).all()


def test_laps_fit_the_usual_shares() -> None:
    many = np.full(3, 10**9)
    largest = np.array([0.6, 0.3, 0.5])
    plan = resolve_strands(many, largest, batch_size=100, usual_shares=np.array([0.6, 0.25, 0.15]))
    assert plan.laps == pytest.approx([60.0, 25.0, 15.0])
    assert plan.strands.tolist() == [480, 250, 405]  # of 480, 240, 400
    braid_spec(many, io_block_size=7, strands=plan.strands, lap=plan.laps, key=0)


@given(jobs())
def test_totals_of_changing_weights(job: tuple[np.ndarray, np.ndarray, int]) -> None:
    _, shares, batch = job
    shares = np.append(shares, 0.5)
    plan = resolve_strands(np.full(len(shares), 10**9), shares, batch_size=batch)
    assert abs(int(plan.laps.sum()) - 1.5 * batch) <= len(shares)
    rounding = np.maximum(plan.laps, 1) / 2 + 1
    assert (np.abs(plan.strands - 8 * batch * shares) <= np.maximum(rounding, 8)).all()


@given(jobs(), st.integers(1, 4096), st.integers(1, 10**6))
def test_byte_budgets_are_kept(
    job: tuple[np.ndarray, np.ndarray, int], block: int, spare: int
) -> None:
    lengths, shares, batch = job
    budget = block * len(lengths) + spare
    plan = resolve_strands(
        lengths, shares, batch_size=batch, budget_bytes=budget, block_bytes=block
    )
    assert plan.open_bytes(block) <= budget
    assert (plan.strands >= 1).all()


def test_byte_budgets_are_used() -> None:
    lengths = np.array([10**9, 10**9])
    shares = np.array([0.75, 0.25])
    plan = resolve_strands(
        lengths, shares, batch_size=256, budget_bytes=2 << 30, block_bytes=256 << 10
    )
    assert plan.strands.tolist() == [6144, 2048]
    assert plan.open_bytes(256 << 10) == 2 << 30


def test_the_example_of_the_design() -> None:
    """Batch 1024 x 4096 tokens as uint32 in blocks of 16: 2 GiB for the job."""
    plan = resolve_strands(np.array([10**9]), np.array([1.0]), batch_size=1024)
    assert (plan.strands.tolist(), plan.laps.tolist()) == ([8192], [1024])
    block = 16 * 4096 * 4
    assert plan.open_bytes(block) == 2 << 30


def test_bytes_differ_by_component() -> None:
    plan = StrandPlan(np.array([4, 2]), np.array([4, 2]))
    assert plan.open_bytes(np.array([10, 100])) == 240


@pytest.mark.parametrize("n", [1, 2, 100, 127, 128, 129, 1000, 1023, 1024])
def test_small_corpora_get_fewer(n: int) -> None:
    plan = resolve_strands(np.array([n]), np.array([1.0]), batch_size=128)
    assert plan.laps[0] == min(n, 128)
    assert plan.strands[0] == n // plan.laps[0] * plan.laps[0]


def test_fewer_strands_than_the_batch() -> None:
    plan = resolve_strands(np.array([10**6]), np.array([1.0]), batch_size=512, strands=64)
    assert (plan.strands.tolist(), plan.laps.tolist()) == ([64], [64])


def test_a_component_that_is_hardly_drawn_still_has_a_strand() -> None:
    plan = resolve_strands(np.full(3, 10**6), np.array([1.0, 1e-9, 0.0]), batch_size=64)
    assert plan.strands.tolist() == [512, 1, 1]


@given(st.lists(st.floats(0, 1), min_size=1, max_size=20).filter(any), st.integers(0, 10**6))
def test_apportion(weights: list[float], total: int) -> None:
    shares = np.array(weights) / sum(weights)
    parts = apportion(shares, total)
    assert parts.sum() == total
    assert (np.abs(parts - total * shares) < 1 + 1e-6).all()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"strands": 111}, "strands = 111: more strands than the 110 examples.*at most 110"),
        ({"strands": 0}, "strands = 0: must be at least 1"),
        ({"batch_size": 0}, "batch_size = 0: must be at least 1"),
        ({"lengths": np.array([100, 0])}, "component 1: cannot be mixed: it is empty"),
        ({"shares": np.array([1.0])}, "shares = .*one for each of the 2 components"),
        ({"shares": np.array([1.5, 0.0])}, "shares = .*must lie in 0"),
        ({"shares": np.array([np.nan, 0.0])}, "shares = .*must lie in 0"),
        ({"usual_shares": np.array([0.6, 0.4])}, "usual_shares = .*above the largest shares"),
        ({"budget_bytes": 100}, "budget_bytes = 100: needs the bytes of a block"),
        (
            {"budget_bytes": 100, "block_bytes": 51},
            "budget_bytes = 100: does not hold one block .* at least 102 bytes",
        ),
        (
            {"budget_bytes": 100, "block_bytes": 5, "strands": 3},
            "budget_bytes = 100: is given beside strands",
        ),
    ],
)
def test_bad_input(change: dict[str, object], message: str) -> None:
    arguments = {
        "lengths": np.array([100, 10]),
        "shares": np.array([0.5, 0.5]),
        "batch_size": 8,
    } | change
    with pytest.raises(ConfigError, match=message):
        resolve_strands(**arguments)  # pyright: ignore[reportArgumentType]
