"""The forecast of reads, against a host simulated step by step."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import ConfigError
from headrace.index.braid_table import BraidTable
from headrace.index.draws import Draws
from headrace.index.reads import forecast_reads, in_row_order
from headrace.index.schedule import BatchSchedule, weight_from_config
from headrace.index.strands import resolve_strands

runs = st.tuples(st.integers(1, 12), st.integers(1, 9), st.integers(1, 6)).flatmap(
    lambda size: st.lists(
        st.lists(st.integers(0, size[2]), min_size=size[1], max_size=size[1]), min_size=size[0], max_size=size[0]
    )
)


def simulate(blocks: np.ndarray, hosts: int, horizon: int) -> tuple[list[int], list[int], list[int]]:
    """Reads by step and by host, and most blocks held by host, one step after the other."""
    steps, batch = blocks.shape
    by_step, by_host, held_most = [0] * steps, [0] * hosts, [0] * hosts
    for host in range(hosts):
        uses = [{int(blocks[s, r]) for r in range(batch) if r * hosts // batch == host} for s in range(steps)]
        held: set[int] = set()
        for s in range(steps):
            new = uses[s] - held
            by_step[s] += len(new)
            by_host[host] += len(new)
            held_most[host] = max(held_most[host], len(held | uses[s]))
            # keep what is used again soon; a block that waits counts from its last use, which was in time
            used_soon = {b for k in range(s + 1, min(s + horizon, steps - 1) + 1) for b in uses[k]}
            held = {b for b in held - uses[s] if any(b in u for u in uses[s + 1 :])} | (uses[s] & used_soon)
    return by_step, by_host, held_most


@given(runs, st.integers(1, 10), st.integers(0, 13))
def test_equals_a_simulation(run: list[list[int]], hosts: int, horizon: int) -> None:
    blocks = np.array(run, np.int64)
    f = forecast_reads(blocks, hosts, look_ahead=horizon)
    by_step, by_host, held = simulate(blocks, hosts, min(horizon, len(run)))
    assert (f.reads.tolist(), f.reads_by_host.tolist(), f.peak_blocks.tolist()) == (by_step, by_host, held)
    assert f.rows == blocks.size


@given(runs, st.integers(1, 10), st.integers(1, 9))
def test_the_cache_is_never_overfull_and_more_cache_never_reads_more(
    run: list[list[int]], hosts: int, cache: int
) -> None:
    blocks = np.array(run, np.int64)
    least = int(forecast_reads(blocks, hosts, look_ahead=0).peak_blocks.max())
    reads: list[int] = []
    for size in (cache, cache + 1, None):
        if size is not None and size < least:
            with pytest.raises(ConfigError, match="blocks"):
                forecast_reads(blocks, hosts, size)
            continue
        f = forecast_reads(blocks, hosts, size)
        assert size is None or f.peak_blocks.max() <= size
        reads.append(int(f.reads.sum()))
    assert reads == sorted(reads, reverse=True)


def test_reading_in_order_reads_each_block_once() -> None:
    blocks = np.arange(64 * 100).reshape(100, 64) // 32
    for hosts in (1, 2):
        f = forecast_reads(blocks, hosts)
        assert f.reads_per_block(32) == 1.0
        assert f.burst(skip=1) == 1.0
    assert forecast_reads(blocks, 64).reads_per_block(32) == 32.0  # each row on a host of its own


def test_row_order_is_stable() -> None:
    blocks = np.array([[1, 2, 3, 4], [5, 6, 7, 8]])
    locality = np.array([[0.5, 0.5, 0.1, 0.5], [0.4, 0.3, 0.2, 0.1]])
    assert in_row_order(blocks, locality).tolist() == [[3, 1, 2, 4], [8, 7, 6, 5]]


@pytest.mark.parametrize("depth", [1, 8])
def test_a_braided_mixture_reads_each_block_about_once(depth: int) -> None:
    """8 components of awkward shares on 16 hosts, over the end of epochs: what block shuffle reads 16 times."""
    batch, block, shares = 64, 16, np.arange(1, 9) ** -1.0
    shares /= shares.sum()
    steps = 64 * 16 * depth
    draws = Draws([weight_from_config(float(s)) for s in shares], BatchSchedule(batch))
    component, ordinal = draws.route(np.arange(steps * batch))
    lengths = np.rint(steps * batch * shares / np.linspace(0.9, 1.9, 8)).astype(np.int64)
    plan = resolve_strands(lengths, shares, batch_size=batch, strands=depth * batch)
    table = BraidTable(lengths, io_block_size=block, strands=plan.strands, laps=plan.laps, seeds=range(8))
    rows, locality = table(component, ordinal)
    number = (component * 3 + ordinal // lengths[component]) * (lengths.max() // block + 1) + rows // block
    f = forecast_reads(in_row_order(number.reshape(steps, -1), locality.reshape(steps, -1)), 16, look_ahead=32)
    assert f.reads_per_block(block) <= 1.25
    assert f.peak_blocks.max() <= 2 * depth * batch // 16 + 2 * 8
    stream = forecast_reads(number.reshape(steps, -1), 16, look_ahead=32)
    assert stream.reads_per_block(block) > 1.5  # without the sort rows wander


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"hosts": 0}, "hosts = 0: must be at least 1"),
        ({"hosts": 1, "cache_blocks": 1}, "cache_blocks = 1: a step's rows lie in 2 blocks"),
        ({"hosts": 1 << 61}, "steps = 3: too many to forecast at once"),
    ],
)
def test_bad_input(arguments: dict[str, int], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        forecast_reads(np.array([[0, 1], [2, 3], [4, 5]]), **arguments)
