"""Gates of several hosts in one process, over a real coordination service: each host is a client
and a thread.
"""

import logging
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from headrace.errors import ConfigError, HostError, ReadError
from headrace.feed import HostBarrier, host_gate
from headrace.feed.host_board import HostBoard
from headrace.feed.host_gate import HostGate, open_gate
from headrace.feed.host_links import HostLinks
from headrace.feed.prefetch import Prefetched
from headrace.metrics import IterationStats, WaitLog
from headrace.testing.servers import free_port

HOSTS = 3
BATCHES = 7
SOON = HostBarrier(warn_after_s=0.01, lost_after_s=6)

_jax = pytest.importorskip("jax._src.lib")._jax


@pytest.fixture(scope="module")
def boards():
    address = f"127.0.0.1:{free_port()}"
    service = _jax.get_distributed_runtime_service(
        address, HOSTS, heartbeat_timeout=1000, shutdown_timeout=60
    )
    clients = [
        _jax.get_distributed_runtime_client(address, host, heartbeat_timeout=1000)
        for host in range(HOSTS)
    ]
    with ThreadPoolExecutor(HOSTS) as pool:
        list(pool.map(lambda client: client.connect(), clients))
        boards = [HostBoard(client, host) for host, client in enumerate(clients)]
        yield boards
        for board in boards:
            board.close()
        list(pool.map(lambda client: client.shutdown(), clients))
    service.shutdown()


class Hosts:
    """An iteration of every host: the numbers 0 to 6, or an error on the way."""

    def __init__(self, boards, processes=range(HOSTS), fails=None, first_step=0, setting=SOON):
        self.processes = tuple(processes)
        self.stats = {host: IterationStats(waits=WaitLog(first_step)) for host in self.processes}
        self.gates = {
            host: HostGate(boards[host], self.processes, first_step, setting, self.stats[host])
            for host in self.processes
        }
        self.batches = {
            host: Prefetched(
                lambda host=host: self._make(fails == host),
                2,
                self.stats[host].queue,
                gate=self.gates[host],
            )
            for host in self.processes
        }

    def _make(self, fails):
        for number in range(BATCHES):
            if fails and number == 3:
                raise ReadError("is damaged", field="chunk 17")
            yield [number]

    def run(self, trainer):
        """What ``trainer(host, batches)`` gives on each host, or the error that it raises."""

        def caught(host) -> Any:
            try:
                self.gates[host].begin()  # as a loader does
                with self.batches[host] as batches:
                    return trainer(host, batches)
            except (HostError, ReadError, ValueError) as error:
                return error

        with ThreadPoolExecutor(len(self.processes)) as pool:
            return dict(zip(self.processes, pool.map(caught, self.processes), strict=True))


@pytest.mark.parametrize("every", [1, 3, 100])
def test_no_host_gets_a_batch_that_another_is_too_far_from(boards, every):
    asked = dict.fromkeys(range(HOSTS), 0)
    lock = threading.Lock()
    ahead = []

    def trainer(host, batches):
        numbers = []
        while True:
            with lock:
                asked[host] += 1
            try:
                numbers.append(next(batches))
            except StopIteration:
                return numbers
            with lock:
                ahead.append(asked[host] - min(asked.values()))

    hosts = Hosts(boards, setting=HostBarrier(every=every))
    assert hosts.run(trainer) == {host: list(range(BATCHES)) for host in range(HOSTS)}
    assert len(ahead) == HOSTS * BATCHES
    assert (
        max(ahead) <= every
    )  # the fastest asks for the next one while another returns with this one
    assert all(stats.host_wait_s > 0 for stats in hosts.stats.values())


@pytest.mark.parametrize("rounds", [3])
def test_iterations_one_after_the_other_and_of_some_hosts(boards, rounds):
    for number in range(rounds):
        hosts = Hosts(boards, processes=(0, 2) if number % 2 else range(HOSTS))
        assert set(map(tuple, hosts.run(lambda _, batches: list(batches)).values())) == {
            tuple(range(BATCHES))
        }


def test_two_loaders_in_turn(boards):
    """Training and evaluation: an iteration within another one."""
    train = Hosts(boards)
    other = Hosts(boards, first_step=5)

    def trainer(host, batches):
        seen = [next(batches), next(batches)]
        other.gates[host].begin()
        with other.batches[host] as evaluation:
            seen += list(evaluation)
        return [*seen, *batches]

    assert list(map(len, train.run(trainer).values())) == [2 * BATCHES] * HOSTS


def test_a_late_host_is_named_with_what_it_does(boards):
    """It goes on when the others have named it."""
    hosts = Hosts(boards, first_step=10)
    named = threading.Event()
    records = []

    def late_trainer():
        named.wait()

    def trainer(host, batches):
        numbers = []
        for number in batches:
            numbers.append(number)
            if host == 1 and number == 2:
                late_trainer()
        return numbers

    class Listener(logging.Handler):
        def emit(self, record):
            records.append(record)
            if record.name == "headrace.feed.host_gate":
                named.set()

    handler = Listener()
    logging.getLogger("headrace.feed.host_gate").addHandler(handler)
    try:
        assert set(map(len, hosts.run(trainer).values())) == {BATCHES}
    finally:
        logging.getLogger("headrace.feed.host_gate").removeHandler(handler)
    first = records[0].getMessage()
    assert first.startswith("step 13 waits for "), first
    assert f"host 1 ({socket.gethostname()}) has not asked for step 13" in first
    assert "test_host_gate.py" in first
    assert "in late_trainer" in first
    assert hosts.stats[1].late_hosts == 0
    waited = [stats for host, stats in hosts.stats.items() if host != 1 and stats.late_hosts]
    assert waited, "somebody has named it"
    stall = waited[0].queue.stalls[-1]
    assert (stall.step, stall.cause) == (13, "hosts")
    assert "in late_trainer" in stall.detail
    assert waited[0].host_wait_s >= stall.wait_s * 0.9


def test_an_error_in_one_host_ends_all_with_its_text(boards):
    outcome = Hosts(boards, fails=2).run(lambda _, batches: list(batches))
    assert isinstance(outcome[2], ReadError)
    for host in (0, 1):
        assert isinstance(outcome[host], HostError)
        assert outcome[host].process == 2
        assert f"host 2 ({socket.gethostname()}) failed: ReadError: chunk 17: is damaged" in str(
            outcome[host]
        )


def test_an_error_of_the_trainer_too(boards):
    def trainer(host, batches):
        for number in batches:
            if (host, number) == (0, 4):
                raise ValueError("loss is nan")

    outcome = Hosts(boards).run(trainer)
    assert isinstance(outcome[0], ValueError)
    assert {str(outcome[host]) for host in (1, 2)} == {
        f"hosts: host 0 ({socket.gethostname()}) failed: ValueError: loss is nan."
        " See that host's log, and restart the job from its last checkpoint."
    }


def test_a_host_that_ends_before_the_others(boards):
    outcome = Hosts(boards, first_step=100).run(
        lambda host, batches: [next(batches) for _ in range(2)] if host == 1 else list(batches)
    )
    assert outcome[1] == [0, 1]
    for host in (0, 2):
        assert isinstance(outcome[host], HostError)
        assert "host 1" in str(outcome[host])
        assert "ended its iteration before step 102" in str(outcome[host])


def test_a_host_without_a_sign_of_life_is_named(boards, monkeypatch):
    """Its entry stands still. The gate's poll finds it old; a real process that is killed is in the
    slow tests.
    """
    hosts = Hosts(boards)
    stopped = boards[1].renew
    gone = threading.Event()
    monkeypatch.setattr(boards[1], "renew", lambda: None)

    def trainer(host, batches):
        numbers = [next(batches), next(batches)]
        if host == 1:
            gone.wait()
            return numbers
        return numbers + list(batches)

    real_read = HostBoard.read

    def read(board):
        entries = real_read(board)
        if 1 in entries:
            entries[1].silent_s *= 20  # so that the test need not wait
        return entries

    monkeypatch.setattr(HostBoard, "read", read)
    with ThreadPoolExecutor(1) as pool:
        outcome = pool.submit(hosts.run, trainer)
        while not (hosts.gates[0]._entry.left and hosts.gates[2]._entry.left):
            threading.Event().wait(0.05)
        gone.set()
        results = outcome.result()
    monkeypatch.setattr(boards[1], "renew", stopped)
    for host in (0, 2):
        assert isinstance(results[host], HostError)
        assert results[host].process == 1
        assert "has shown no sign of life for" in str(results[host])


def test_without_connections_they_meet_at_a_barrier(boards, monkeypatch, caplog):
    def refuse(self, invitation):
        raise ConnectionRefusedError("no route to host")

    monkeypatch.setattr(HostLinks, "connect", refuse)
    hosts = Hosts(boards)
    assert set(map(tuple, hosts.run(lambda _, batches: list(batches)).values())) == {
        tuple(range(BATCHES))
    }
    assert "which is slower: no connection: ConnectionRefusedError: no route to host" in caplog.text
    outcome = Hosts(boards, fails=1).run(lambda _, batches: list(batches))
    assert [type(outcome[host]) for host in range(HOSTS)] == [HostError, ReadError, HostError]
    assert "chunk 17: is damaged" in str(outcome[0])


class SlowService:
    """A client of a coordination service that answers no question for a value in time."""

    def __init__(self, client):
        self.client = client

    def __getattr__(self, name):
        return getattr(self.client, name)

    def blocking_key_value_get(self, key, timeout_ms):
        raise RuntimeError(f"DEADLINE_EXCEEDED: {key}")


def test_a_host_that_hears_of_no_address_in_time_meets_the_others_at_a_barrier(
    boards, monkeypatch, caplog
):
    """All hosts ended: the one with that error, and the others because it had ended."""
    monkeypatch.setattr("headrace.feed.host_links._CONNECT_S", 0.2)
    monkeypatch.setattr(boards[1], "client", SlowService(boards[1].client))
    outcome = Hosts(boards).run(lambda _, batches: list(batches))
    assert outcome == {host: list(range(BATCHES)) for host in range(HOSTS)}
    assert "no connection: TimeoutError: headrace/links/" in caplog.text


def test_closing_ends_a_wait(boards):
    hosts = Hosts(boards, processes=(0, 1))
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(next, hosts.batches[0])
        while not hosts.gates[0]._entry.waits:
            threading.Event().wait(0.01)
        hosts.batches[0].close()
        with pytest.raises(HostError, match="closed while it waited"):
            waiting.result()
    hosts.batches[1].close()


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ({"warn_after_s": 0}, "warn_after_s"),
        ({"warn_after_s": -1}, "warn_after_s"),
        ({"lost_after_s": 5}, "lost_after_s"),
    ],
)
def test_bad_settings(values, field):
    with pytest.raises(ConfigError) as caught:
        HostBarrier(**values)
    assert caught.value.field == f"host_barrier.{field}"


def test_no_gate_for_one_process():
    stats = IterationStats()
    assert open_gate((0,), 0, HostBarrier(), stats) is None
    assert open_gate((0, 1), 0, None, stats) is None
    assert open_gate((0, 1), 0, HostBarrier(), stats) is None  # this process is of no job
    assert host_gate._board is None
