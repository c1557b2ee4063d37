"""A clock that stands still, but for what a test lets pass: a busy machine adds nothing to any
wait.
"""

import time

import pytest

from headrace.store.array import StoredArray


class LateAnswer:
    def __init__(self, clock, future, due):
        self.clock = clock
        self.future = future
        self.due = due

    def __await__(self):
        raise NotImplementedError

    def result(self, timeout=None):
        if timeout != 0 and self.clock.waited_for():
            self.clock.now = max(self.clock.now, self.due)
        if self.clock.now < self.due:
            time.sleep(0.001 if timeout else 0)
            raise TimeoutError
        return self.future.result()


class LateArray(StoredArray):
    """Answers arrive some time after they were asked for, by the clock."""

    def __init__(self, clock, latency_of, url, length, layout):
        super().__init__(url, length, layout)
        self.clock = clock
        self.latency_of = latency_of
        self.asked = 0

    def read_into(self, out, start):
        due = self.clock.now + self.latency_of(start // self.chunk_elements)
        answer = LateAnswer(self.clock, super().read_into(out, start), due)
        self.asked += 1
        return answer


class Clock:
    """Stands in for ``time.perf_counter``. What is late by it is late for a trainer that has run
    out of batches.
    """

    answer = LateAnswer
    array = LateArray

    def __init__(self):
        self.now = 100.0
        self.batches = None

    def __call__(self):
        return self.now

    def watch(self, batches):
        """Says whose consumer is the trainer."""
        self.batches = batches
        return batches

    def waited_for(self, number=None):
        """Whether the trainer waits: for the batch of that number, counted from 0, or for any."""
        batches = self.batches
        if batches is None or batches._stats._waiting_since is None:
            return False
        return batches._made[0] == batches._taken and number in (None, batches._taken)

    def waited_for_a_block(self):
        """Whether the trainer waits, and the loader's thread for a block."""
        if not self.waited_for():
            return False
        under_way = self.batches._stats._explain.__self__.under_way
        return under_way is not None and under_way(self.now).block is not None

    def pass_when_waited_for(self, seconds, number=None):
        while not self.waited_for(number):
            time.sleep(0.001)
        self.now += seconds

    def late(self, latency_s):
        """For ``with_arrays``: answers that come so late, or as ``latency_s(chunk)`` says."""
        latency_of = latency_s if callable(latency_s) else lambda _: latency_s
        return lambda url, length, layout: LateArray(self, latency_of, url, length, layout)


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(time, "perf_counter", clock)
    return clock
