"""What hosts read if they exchange rows: the forecast is what their readers count."""

import numpy as np
import pytest

from headrace import MixtureDataset, TokenSeqDataset
from headrace.analysis import RunSteps, simulate
from headrace.data.dataset import BatchOrder
from headrace.feed.exchange import RowExchange
from headrace.feed.reader import Grouping, PlannedReader
from headrace.metrics import IterationStats
from headrace.store import CacheLayout
from headrace.testing import write_cache

HOSTS = 4
STEPS = 60
SEQ_LEN = 4


class Host:
    def __init__(self, number):
        self.number = number

    def local_rows(self, size):
        return np.arange(self.number * size // HOSTS, (self.number + 1) * size // HOSTS)

    def local_columns(self, seq_len):
        return 0, seq_len


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    """Shares change all the time."""
    root = tmp_path_factory.mktemp("ramp")
    braids = {}
    for k, name in enumerate("abc"):
        layout = CacheLayout("uint8", chunk_elements=16 * SEQ_LEN)
        cache = write_cache(
            root / name, [np.arange(640 * SEQ_LEN - 1)[None] % 200], eos_id=255, layout=layout
        )
        rows = TokenSeqDataset(cache, SEQ_LEN)
        braids[name] = rows.braid_shuffle(strands=20, lap=5, seed=k, io_block_size=16)
    return MixtureDataset(
        braids, {"a": {"linear": {0: 1, 40: 3}}, "b": {"linear": {0: 3, 40: 1}}, "c": 1.3}, 16
    )


@pytest.mark.parametrize("blocks", [1000, 40])
def test_the_forecast_is_what_readers_count(dataset, blocks):
    memory = blocks * 16 * SEQ_LEN
    forecast = simulate(
        dataset,
        dataset.batch_schedule,
        hosts=[HOSTS],
        steps=RunSteps(num_steps=STEPS),
        cache_bytes=memory,
    )
    counted = [IterationStats() for _ in range(HOSTS)]
    for number, stats in enumerate(counted):
        exchange = RowExchange(np.arange(HOSTS), "on")
        reader = PlannedReader(
            BatchOrder(dataset), Host(number), memory, stats, Grouping(0), exchange=exchange
        )
        assert sum(1 for _ in reader.batches(0, STEPS)) == STEPS
    (hosts,) = forecast.by_hosts
    assert hosts.exchange.block_fetches == sum(stats.reads.block_fetches for stats in counted)
    assert hosts.exchange.block_fetches < hosts.block_fetches
    assert hosts.exchange.moved_rows > 0


def test_the_setting_says_which_reads_are_the_runs(dataset):
    forecast = simulate(
        dataset, dataset.batch_schedule, hosts=[1, HOSTS], steps=RunSteps(num_steps=STEPS)
    )
    one, four = forecast.by_hosts
    assert one.exchange is None
    assert one.describe_exchange("on", 16) is None
    assert four.exchange.worth_it
    assert four.reads_with("off") == four.reads_per_block > 1.2
    assert (
        four.reads_with("auto")
        == four.reads_with("on")
        == four.exchange.reads_per_block
        < four.reads_per_block
    )
    assert four.describe_exchange("auto", 16).startswith(
        "4 hosts: row_exchange: auto turns it on. A block is read 1."
    )
    assert "off; auto would turn it on" in str(four.describe_exchange("off", 16))
    assert forecast.to_json()["by_hosts"][1]["exchange"]["worth_it"] is True
