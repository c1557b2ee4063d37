"""The memory that a run needs for open blocks.

An order draws from a window of rows before it moves on, and a block is read once if memory holds it
that long: for a braid its strands, for a block shuffle its windows, for an era shuffle an era, for
a full shuffle everything, for stored order a chunk. Orders that by design keep a number of blocks
open are refused if memory cannot hold them. Others read blocks again, which is reported and may be
intended. Loaders, ``config check``, ``config simulate`` and reports use it.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from headrace.data.dataset import PlannedDataset
from headrace.errors import ConfigError, format_count
from headrace.mix.schedule import ExchangeSetting


class OpenBytes(NamedTuple):
    """Bytes of rows that the orders draw from at a time, over all hosts, by component.

    Attributes:
        windows: Orders that keep blocks open by design.
        others: All other orders.
        everywhere: Sources of few blocks that are shuffled as a whole: every host draws from all of
            such a source, unless hosts pass each other its rows.

    Example:
        >>> import headrace.testing
        >>> from headrace.data.token_seq import TokenSeqDataset
        >>> rows = TokenSeqDataset(headrace.testing.tiny_cache(), seq_len=8)
        >>> braid = OpenBytes.of(rows.braid_shuffle(seed=0, strands=4, io_block_size=2))
        >>> (
        ...     braid.needed() == 4 * 2 * rows.row_bytes,
        ...     braid.refused(60),
        ...     braid.refused(60, share=0.5),
        ... )
        (True, True, False)
        >>> full = OpenBytes.of(rows.shuffle(0))
        >>> full.needed() == len(rows) * rows.row_bytes, full.refused(100)
        (True, False)
    """

    windows: Mapping[str, int]
    others: Mapping[str, int]
    everywhere: Mapping[str, int] = MappingProxyType({})

    @classmethod
    def of(cls, dataset: PlannedDataset, row_exchange: ExchangeSetting = "auto") -> OpenBytes:
        """The bytes of a dataset, with the weights of all steps; of its phases, the one that needs
        most.
        """
        return max(
            (cls._of_phase(phase, row_exchange) for _, phase in dataset.phases),
            key=lambda o: (o.window_bytes(), o.needed()),
        )

    @classmethod
    def _of_phase(cls, dataset: PlannedDataset, row_exchange: ExchangeSetting) -> OpenBytes:
        open_ = dataset.open_windows()
        sizes = {
            name: window.rows * window.windows * row_bytes
            for name, (window, row_bytes) in open_.items()
        }
        kinds: tuple[dict[str, int], ...] = ({}, {}, {})
        for name, (window, _) in open_.items():
            everywhere = window.everywhere and row_exchange != "on"
            kinds[2 if everywhere else not window.blocks][name] = sizes[name]
        return cls(*kinds)

    def needed(self, share: float = 1.0) -> int:
        """Bytes that a host with this share of each batch's rows needs to read each block once."""
        return int((sum(self.windows.values()) + sum(self.others.values())) * share) + sum(
            self.everywhere.values()
        )

    def window_bytes(self, share: float = 1.0) -> int:
        """The part of these bytes that a loader requires."""
        return int(sum(self.windows.values()) * share) + sum(self.everywhere.values())

    @property
    def largest(self) -> str:
        """The component that needs most of the required bytes, or else of all."""
        sizes = {**self.windows, **self.everywhere} or self.others
        return max(sizes, key=lambda name: sizes[name])

    def exchange_cure(self, prefetch_bytes: int, share: float) -> str:
        """The end of a cure, if enough memory is saved by hosts that pass rows to each other."""
        shared = int((sum(self.windows.values()) + sum(self.everywhere.values())) * share)
        helps = self.everywhere and shared <= prefetch_bytes
        return ", or set row_exchange: on" if helps else ""

    def refused(self, prefetch_bytes: int, share: float = 1.0) -> bool:
        """Whether a loader with this much memory refuses to start, because it would read each block
        many times.
        """
        return self.window_bytes(share) > prefetch_bytes

    def shortage(self, prefetch_bytes: int | None, hosts: int) -> str | None:
        """A sentence about the memory that equal hosts lack; None if there is
        enough, or no limit.
        """
        if prefetch_bytes is None or self.needed(1 / hosts) <= prefetch_bytes:
            return None
        refused = self.refused(prefetch_bytes, 1 / hosts)
        needed = self.window_bytes(1 / hosts) if refused else self.needed(1 / hosts)
        verdict = "the loader refuses to start" if refused else "blocks are read again"
        return (
            f"{prefetch_bytes:,} bytes do not hold the {needed:,} bytes that the shuffle keeps"
            f" open on {format_count(hosts, 'host')} (most of them for component {self.largest!r}):"
            f" {verdict}."
        )

    def check(self, prefetch_bytes: int, share: float = 1.0) -> None:
        """Raises ConfigError if a loader has to refuse to start."""
        if self.refused(prefetch_bytes, share):
            needed = self.window_bytes(share)
            raise ConfigError(
                f"is less than the {needed:,} bytes of blocks that the shuffle keeps open on this"
                " host"
                f" (most of them for component {self.largest!r}), so blocks would be read again"
                " and again",
                field="prefetch_bytes",
                value=prefetch_bytes,
                cure=f"Raise it to {needed + needed // 4} or more, or lower shuffle.strands (or"
                f" window_blocks){self.exchange_cure(prefetch_bytes, share)}.",
            )
