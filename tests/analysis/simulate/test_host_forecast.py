"""What hosts read if they exchange rows: the forecast is what their readers count."""

import numpy as np
import pytest

from headrace import MixtureDataset, TokenSeqDataset
from headrace.analysis import simulate
from headrace.analysis.simulate.forecast import RunSteps
from headrace.data.dataset import BatchOrder
from headrace.feed.exchange import RowExchange
from headrace.feed.reader import Grouping, PlannedReader
from headrace.metrics import IterationStats
from headrace.store import CacheLayout, open_cache
from headrace.store.retry import own_counts
from headrace.testing import web_server, write_cache
from headrace.testing.caches import random_documents

HOSTS = 4
STEPS = 60
SEQ_LEN = 4


class Host:
    def __init__(self, number, hosts=HOSTS):
        self.number = number
        self.hosts = hosts

    def local_rows(self, size):
        return np.arange(self.number * size // self.hosts, (self.number + 1) * size // self.hosts)

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
    assert forecast.to_dict()["by_hosts"][1]["exchange"]["worth_it"] is True


@pytest.mark.parametrize("splits", [True, False])
@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_the_forecast_counts_all_requests_of_readers(tmp_path, compression, splits):
    """Offsets of 20,000 documents are two chunks, here in two files; some parts are never met."""
    layout = CacheLayout("uint8", 64, 1, compression)
    many = [random_documents(20_000, max_tokens=3, seed=0), random_documents(20, seed=1)]
    few = [random_documents(5, seed=seed) for seed in range(2, 30)]
    for name, parts in (("many", many), ("few", few)):
        write_cache(tmp_path / name, parts, eos_id=255, layout=layout)

    def mixture(url):
        rows = {
            name: TokenSeqDataset(open_cache(f"{url}/{name}"), 16, split_documents=splits).shuffle(
                0
            )
            for name in ("many", "few")
        }
        return MixtureDataset(rows, {"many": 1.0, "few": 2.0}, 4)

    with web_server(tmp_path) as url:
        planned = mixture(url)
        forecast = simulate(
            planned, planned.batch_schedule, hosts=[1, 2], steps=RunSteps(num_steps=5)
        )
        for of_hosts in forecast.by_hosts:
            counts = own_counts()
            requests = counts.requests - counts.retries
            for number in range(of_hosts.hosts):
                order = BatchOrder(mixture(url))  # each host has opened the caches itself
                host = Host(number, of_hosts.hosts)
                reader = PlannedReader(order, host, 1 << 20, IterationStats(), Grouping(0))
                assert sum(1 for _ in reader.batches(0, 5)) == 5
            sent = counts.requests - counts.retries - requests
            assert of_hosts.requests - of_hosts.opening_requests == sent
            assert (of_hosts.index_requests > 0) == (splits or compression == "zstd")
