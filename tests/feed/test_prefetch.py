"""Background iteration: the same items, errors at their place, and never a thread left behind."""

import gc
import itertools
import threading
import time
import weakref

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import ReadError
from headrace.feed.prefetch import Prefetched
from headrace.metrics import QueueStats


def running():
    return [t for t in threading.enumerate() if t.name.startswith("headrace")]


def wait_until(condition):
    while not condition():
        time.sleep(0.002)


def endless():
    number = 0
    while True:
        yield [number]
        number += 1


def in_groups(items, sizes):
    """Groups of these sizes, which begin again when they are used up."""
    items = iter(items)
    sizes = itertools.cycle(sizes)
    while group := list(itertools.islice(items, next(sizes))):
        yield group


def one_by_one(items):
    return in_groups(items, [1])


@given(
    n=st.integers(0, 30),
    sizes=st.lists(st.integers(1, 9), min_size=1, max_size=4),
    depth=st.integers(1, 9),
    taken=st.integers(0, 40),
)
def test_items_come_in_order_and_end(n, sizes, depth, taken):
    with Prefetched(lambda: in_groups(range(n), sizes), depth) as items:
        assert [next(items, None) for _ in range(taken)] == [
            k if k < n else None for k in range(taken)
        ]
    assert not running()


def test_an_error_comes_after_the_items_before_it():
    def broken():
        yield [1]
        yield [2]
        raise KeyError("three")

    items = Prefetched(broken, 5)
    assert [next(items), next(items)] == [1, 2]
    for _ in range(2):  # asked again, it says so again: an end that is none must not look like one
        with pytest.raises(KeyError, match="three"):
            next(items)
    wait_until(lambda: not running())


def test_an_error_before_the_first_item():
    def cannot():
        raise OSError("no store")

    with pytest.raises(OSError, match="no store"), Prefetched(cannot, 2) as items:
        next(items)
    assert not running()


@pytest.mark.parametrize(
    "how", ["close", "with", "error in the loop", "break", "drop", "twice", "interrupt"]
)
def test_whatever_ends_the_loop_ends_the_thread(how):
    closed = threading.Event()

    def source():
        try:
            yield from endless()
        finally:
            closed.set()

    items = Prefetched(source, 2)
    assert next(items) == 0
    if how == "close":
        items.close()
    elif how == "with":
        with items:
            next(items)
    elif how == "error in the loop":
        with pytest.raises(ZeroDivisionError), items:
            _ = 1 / 0
    elif how == "break":
        for _ in items:
            break
        del items
    elif how == "drop":
        items = None
    elif how == "twice":
        items.close()
        items.close()
    else:
        with pytest.raises(KeyboardInterrupt), items:
            raise KeyboardInterrupt
    gc.collect()
    wait_until(closed.is_set)
    wait_until(lambda: not running())


def test_after_close_comes_an_error_and_not_what_looks_like_the_end():
    items = Prefetched(endless, 4)
    next(items)
    items.close()
    with pytest.raises(ReadError, match="was closed before its end") as caught:
        next(items)
    assert "loader.iter_from_step(step)" in (caught.value.cure or "")
    ended = Prefetched(lambda: iter([[1]]), 4)
    assert list(ended) == [1]
    ended.close()
    assert list(ended) == []


def test_closing_wakes_a_consumer_that_waits_in_another_thread():
    go = threading.Event()

    def stuck():
        go.wait()
        yield [1]

    items = Prefetched(stuck, 1, interrupt=go.set)
    found = []

    def consume():
        with pytest.raises(ReadError, match="was closed before its end"):
            found.append(next(items))

    consumer = threading.Thread(target=consume)
    consumer.start()
    time.sleep(0.05)
    items.close()
    consumer.join()
    assert found == []


def test_the_end_is_an_end_for_every_thread_that_waits_for_it():
    taken = threading.Semaphore(0)
    go = threading.Event()

    def source():
        yield [1]
        go.wait()

    items = Prefetched(source, 1)
    found = []

    def consume():
        taken.release()
        found.append(list(items))

    consumers = [threading.Thread(target=consume) for _ in range(3)]
    for consumer in consumers:
        consumer.start()
        taken.acquire()
    time.sleep(0.05)
    go.set()
    for consumer in consumers:
        consumer.join()
    assert sorted(found) == [[], [], [1]]


def test_closing_interrupts_what_is_waited_for():
    gave_up = threading.Event()

    def hanging():
        gave_up.wait()
        raise OSError("interrupted")
        yield

    items = Prefetched(hanging, 1, interrupt=gave_up.set)
    items.close()
    assert not running()


def test_it_runs_as_far_ahead_as_it_may_and_no_further():
    made = []

    def source():
        for group in endless():
            made.append(group)
            yield group

    with Prefetched(source, 3) as items:
        wait_until(lambda: len(made) == 3)
        time.sleep(0.1)
        assert len(made) == 3
        next(items)
        wait_until(lambda: len(made) == 4)


@given(
    sizes=st.lists(st.integers(1, 9), min_size=1, max_size=4),
    depth=st.integers(1, 9),
    taken=st.integers(0, 20),
)
def test_a_group_is_begun_when_those_before_have_fewer_items_than_the_depth(sizes, depth, taken):
    """However many of them were taken; and not before. A group counts until its
    last item is taken.
    """
    made = []

    def source():
        for group in in_groups(itertools.count(), sizes):
            made.append(len(group))
            yield group

    def untaken(groups):
        ends = list(itertools.accumulate(groups))
        return sum(size for size, end in zip(groups, ends, strict=True) if end > taken)

    with Prefetched(source, depth) as items:
        for _ in range(taken):
            next(items)
        wait_until(lambda: untaken(made) >= depth)
        time.sleep(0.002)
        assert untaken(made[:-1]) < depth


def test_ready_items_belong_to_the_queue_alone():
    """A batch that was handed out is not kept alive by the thread that made it."""

    class Batch:
        pass

    with Prefetched(lambda: ([Batch()] for _ in range(100)), 2) as items:
        seen = [weakref.ref(next(items)) for _ in range(10)]
        gc.collect()
        assert [r() for r in seen] == [None] * 10


def test_what_is_taken_of_a_group_is_kept_by_nobody_else():
    class Batch:
        pass

    def source():
        while True:
            group = [Batch(), Batch(), Batch()]
            yield group  # the frame holds the list until the next group is asked for

    with Prefetched(source, 1) as items:
        seen = [weakref.ref(next(items)) for _ in range(4)]
        gc.collect()
        assert [r() for r in seen] == [None] * 4


def test_waits_are_measured_when_the_source_is_slow(clock):
    def slow():
        for k in range(12):
            clock.pass_when_waited_for(0.02)
            yield [k]

    stats = QueueStats()
    with clock.watch(Prefetched(slow, 4, stats)) as items:
        assert len(list(items)) == 12
    assert stats.gets == 12
    assert stats.total_wait_s == pytest.approx(11 * 0.02)  # the first wait is the cold start
    assert stats.percentile(50) == stats.longest_wait_s == pytest.approx(0.02)
    assert stats.occupancy == 0
    assert stats.waiting_share == pytest.approx(1)


def test_waits_are_none_when_the_trainer_is_slow(clock):
    stats = QueueStats()
    with Prefetched(lambda: one_by_one(range(12)), 4, stats) as items:
        for number in range(12):
            wait_until(lambda number=number: items._made[0] == min(number + 4, 12))
            next(items)
            clock.now += 0.02
    assert stats.total_wait_s == stats.waiting_share == 0
    assert stats.occupancy == pytest.approx((9 + 0.75 + 0.5 + 0.25) / 12)
    assert stats.per_second == pytest.approx(50)
