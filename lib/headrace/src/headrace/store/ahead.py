"""Makes items in a thread of its own, ahead of whoever takes them."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

T = TypeVar("T")


class ItemsAhead(Generic[T]):
    """Iterates over ``items`` in a separate thread, ahead of the consumer by at most ``capacity``.

    An item heavier than the capacity passes when nothing else waits. An error is raised after all
    earlier items.

    Args:
        items: The items.
        weigh: What an item counts.
        capacity: Most that waits for the consumer.

    Example:
        >>> list(ItemsAhead(n * n for n in range(4)))
        [0, 1, 4, 9]
    """

    def __init__(
        self, items: Iterator[T], weigh: Callable[[T], int] = lambda _: 1, capacity: int = 2
    ) -> None:
        self._items = items
        self._weigh = weigh
        self._capacity = capacity
        self._waiting: deque[tuple[T, int]] = deque()
        self._weight = 0
        self._error: BaseException | None = None
        self._ended = self._closed = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="headrace-read", daemon=True)
        self._thread.start()

    def __iter__(self) -> Iterator[T]:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._ended)
                if not self._waiting:
                    break
                item, weight = self._waiting.popleft()
                self._weight -= weight
                self._changed.notify_all()
            yield item
        if self._error is not None:
            raise self._error

    def close(self) -> None:
        """Ends the thread and drops waiting items."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._thread.join(timeout=5)  # it may hang in a read from far away; it is a daemon

    def _run(self) -> None:
        try:
            for item in self._items:
                weight = self._weigh(item)
                with self._changed:
                    self._changed.wait_for(
                        lambda w=weight: (
                            self._closed or not self._waiting or self._weight + w <= self._capacity
                        )
                    )
                    if self._closed:
                        return
                    self._waiting.append((item, weight))
                    self._weight += weight
                    self._changed.notify_all()
        except BaseException as error:  # noqa: BLE001 (the consumer raises it)
            self._error = error
        finally:
            with self._changed:
                self._ended = True
                self._changed.notify_all()
