"""``AsyncDataset``: random access by arrays of indices, and the operations that give new datasets.

``PlannedDataset`` is the kind that a training loader likes: it can say where its rows lie without reading them, so that
reads are planned. Order is data: ``shuffle``, ``slice``, ``repeat`` wrap a dataset with an index map and nothing is
drawn, stored or read.
"""

from __future__ import annotations

import abc
import asyncio
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Generic, TypeVar

import numpy as np
from jaxtyping import Int64

from headrace.data.batch import PackedBatch, pack_rows
from headrace.data.function_names import function_name
from headrace.data.rows import Rows, RowSource, masks_of, read_masks, read_rows, segments_of
from headrace.errors import ConfigError
from headrace.index.block_shuffle import BlockShuffle
from headrace.index.braid import BraidShuffle
from headrace.index.budgets import check_whole
from headrace.index.era import EraShuffle
from headrace.index.holdout import TrainSplit, ValidationSplit
from headrace.index.permutation import Feistel
from headrace.index.remap import Identity, IndexMap, Repeat, Slice, check_indices
from headrace.index.strands import resolve_strands
from headrace.metrics import ReadStats

T_co = TypeVar("T_co", covariant=True)
U = TypeVar("U")


class AsyncDataset(abc.ABC, Generic[T_co]):
    """Examples by number. Subclasses give :attr:`length` and :meth:`get_batch`.

    A batch is a pytree of arrays whose first axis runs over the requested indices.
    """

    @property
    @abc.abstractmethod
    def length(self) -> int | None:
        """Number of examples; None if there is no end."""

    @abc.abstractmethod
    async def get_batch(self, indices: Int64[np.ndarray, " n"]) -> T_co:
        """The examples at ``indices``, in that order; repeats are fine.

        Raises:
            IndexOutOfRangeError: an index is out of range.
        """

    @abc.abstractmethod
    def reordered(self, order: IndexMap) -> AsyncDataset[T_co]:
        """This dataset seen through an index map over its examples."""

    @abc.abstractmethod
    def describe(self) -> dict[str, Any]:
        """How this dataset is made, as JSON values: datasets that differ describe themselves differently."""

    def is_finite(self) -> bool:
        return self.length is not None

    async def async_len(self) -> int:
        return len(self)

    def __len__(self) -> int:
        return self._finite_length("len()")

    def read(self, indices: object) -> T_co:
        """:meth:`get_batch` for callers that do not await. ``indices`` is anything that numpy makes an array of."""
        return run_blocking(self.get_batch(np.asarray(indices)))  # pyright: ignore[reportArgumentType]

    def shuffle(self, seed: int, *, perm_type: str = "feistel") -> AsyncDataset[T_co]:
        """A full shuffle: best mixing, one random read an example."""
        return self.reordered(Feistel(self._finite_length("shuffle"), seed, perm_type))

    def block_shuffle(
        self, *, io_block_size: int | None = None, window_blocks: int = 512, seed: int, perm_type: str = "feistel"
    ) -> AsyncDataset[T_co]:
        """Shuffles blocks, then examples within windows of blocks; see
        :class:`~headrace.index.block_shuffle.BlockShuffle`.

        Args:
            io_block_size: Examples in a block; None: one stored chunk (datasets that lie in stores only).
            window_blocks: Blocks that are mixed together.
            seed: Integer seed.
            perm_type: ``"feistel"`` or ``"linear"``.
        """
        check_whole("io_block_size", io_block_size)
        check_whole("window_blocks", window_blocks)
        n = self._finite_length("block_shuffle")
        size = io_block_size if io_block_size is not None else self.default_io_block_size()
        return self.block_aligned(size).reordered(
            BlockShuffle(n, io_block_size=size, window_blocks=window_blocks, seed=seed, perm_type=perm_type)
        )

    def braid_shuffle(
        self,
        *,
        seed: int,
        batch_size: int | None = None,
        strands: int | None = None,
        lap: float | None = None,
        first_strand: int | None = None,
        io_block_size: int | None = None,
    ) -> AsyncDataset[T_co]:
        """Braided shuffle, the default of configs; see :mod:`headrace.index.braid`.

        Args:
            seed: Integer seed.
            batch_size: Examples that this dataset gives to one batch; 8 x as many strands are opened.
            strands: Blocks that are open at a time, over all hosts; instead of ``batch_size``.
            lap: Draws in which the reading front passes once over the store; None: ``batch_size``, or ``strands``.
            first_strand: Strands of all components before this one; see :class:`~headrace.index.braid.BraidShuffle`.
            io_block_size: Examples in a block; None: one stored chunk.
        """
        counts = {"batch_size": batch_size, "strands": strands, "first_strand": first_strand}
        for name, value in {**counts, "io_block_size": io_block_size}.items():
            check_whole(name, value)
        n = self._finite_length("braid_shuffle")
        if strands is None:
            if batch_size is None:
                raise ConfigError("is missing, and so is strands", field="batch_size", cure="Give one of them.")
            plan = resolve_strands(np.asarray([n]), np.ones(1), batch_size=batch_size)
            strands, lap = int(plan.strands[0]), float(plan.laps[0])
        size = io_block_size if io_block_size is not None else self.default_io_block_size()
        order = BraidShuffle(n, io_block_size=size, strands=strands, lap=lap, seed=seed, first_strand=first_strand)
        return self.block_aligned(size).reordered(order)

    def era_shuffle(self, era_length: int, *, seed: int, perm_type: str = "feistel") -> AsyncDataset[T_co]:
        """Permutes examples within consecutive eras."""
        check_whole("era_length", era_length)
        n = self._finite_length("era_shuffle")
        return self.reordered(EraShuffle(n, era_length=era_length, seed=seed, perm_type=perm_type))

    def holdout(
        self, one_in: int = 100, *, seed: int = 0, io_block_size: int | None = None
    ) -> tuple[AsyncDataset[T_co], AsyncDataset[T_co]]:
        """Splits off a validation side: one block in ``one_in``, by a keyed hash; see :mod:`headrace.index.holdout`.

        The split does not know how either side is shuffled afterwards. Rows at the border of a block may share a
        document with the other side; ``TokenSeqDataset.holdout_documents`` keeps documents whole.

        Args:
            one_in: Of so many blocks, one is held out.
            seed: Integer seed.
            io_block_size: Examples in a block; None: one stored chunk, or less if there are fewer chunks than
                ``one_in``.

        Returns:
            The train side and the validation side, both in stored order.

        Raises:
            ConfigError: the dataset is shuffled or repeated already (its epochs would leak into each other), has no
                end, or fewer blocks than ``one_in``.
        """
        check_whole("one_in", one_in)
        check_whole("io_block_size", io_block_size)
        n = self._finite_length("holdout")
        self.check_stored_order()
        size = self.holdout_block_size(one_in) if io_block_size is None else io_block_size
        blocks = self.full_blocks(size) if size > 0 else None
        train = TrainSplit(n, one_in=one_in, block=size, seed=seed, blocks=blocks)
        validation = ValidationSplit(n, one_in=one_in, block=size, seed=seed, blocks=blocks)
        aligned = self.block_aligned(size)
        return aligned.reordered(train), aligned.reordered(validation)

    def holdout_block_size(self, one_in: int) -> int:
        """Examples in a block of :meth:`holdout`: one stored chunk, halved until there are ``one_in`` of them."""
        size = self.default_io_block_size()
        while size > 1 and self.full_blocks(size) < one_in:
            size //= 2
        return size

    def slice(self, start: int | None = None, stop: int | None = None) -> AsyncDataset[T_co]:
        """Examples ``start .. stop``, by Python's rules for slices."""
        return self.reordered(Slice(self._finite_length("slice"), start, stop))

    def take(self, n: int) -> AsyncDataset[T_co]:
        """The first ``n`` examples (all, if there are fewer)."""
        check_whole("n", n)
        if n < 0:
            raise ConfigError("must not be negative", field="n", value=n)
        return self.slice(None, n)

    def repeat(self, epochs: int | None = None) -> AsyncDataset[T_co]:
        """This dataset ``epochs`` times (for ever if None), each pass in an order of its own."""
        return self.reordered(Repeat(Identity(self._finite_length("repeat")), epochs))

    def map(self, fn: Callable[[T_co], U]) -> AsyncDataset[U]:
        """Applies ``fn`` to each batch that is read. ``fn`` must treat rows independently and keep their number.

        A loader reads the rows as if there were no ``fn``: ahead, each stored block once. ``fn`` then gets the rows of
        its process, as numpy arrays that belong to it, in the loader's background thread. Which rows come together
        depends on the number of processes: what becomes of a row must follow from the row.
        """
        return MappedDataset(self, fn)

    def default_io_block_size(self) -> int:
        """Examples in one stored chunk.

        Raises:
            ConfigError: the examples do not lie in a store with chunks.
        """
        raise ConfigError(
            "cannot be derived for this dataset", field="io_block_size", value=None, cure="Give a number of examples."
        )

    def block_aligned(self, io_block_size: int) -> AsyncDataset[T_co]:
        """The same examples, numbered so that blocks of ``io_block_size`` do not straddle stored arrays."""
        return self

    def full_blocks(self, io_block_size: int) -> int:
        """Blocks that do not straddle stored arrays; they come first in :meth:`block_aligned`."""
        return self._finite_length("full_blocks") // io_block_size

    def check_stored_order(self) -> None:
        """Raises ConfigError if examples change places from epoch to epoch, or come twice in one."""

    def _finite_length(self, operation: str) -> int:
        if self.length is None:
            raise ConfigError(
                f"{operation} needs a dataset with an end", field="dataset", cure="Apply it before repeat() and mixing."
            )
        return self.length


class PlannedDataset(AsyncDataset[PackedBatch]):
    """A dataset of equally long token rows that lie in stores, and that knows where."""

    @property
    @abc.abstractmethod
    def sources(self) -> Sequence[RowSource]:
        """What ``Rows.source`` numbers; the batch's ``source_id`` too."""

    @property
    @abc.abstractmethod
    def seq_len(self) -> int:
        """Tokens in a row."""

    @property
    @abc.abstractmethod
    def eos_id(self) -> int | None:
        """Token after which a segment ends; None: each row is one segment."""

    @property
    def pairs(self) -> bool:
        """Whether the segments of each row are chosen and rejected in turn; see :attr:`PackedBatch.pairs`."""
        return False

    @property
    def row_bytes(self) -> int:
        """Bytes of a row as it is stored, with its mask."""
        tokens = max(a.dtype.itemsize for s in self.sources for a in s.arrays)
        mask = max((a.dtype.itemsize for s in self.sources for a in masks_of(s) or ()), default=0)
        return self.seq_len * (tokens + mask)

    @property
    @abc.abstractmethod
    def read_stats(self) -> ReadStats:
        """Counters of :meth:`get_batch` (a loader has its own)."""

    @property
    def seq_lens(self) -> tuple[int, ...]:
        """Tokens in a row, of each phase: more than one if rows change their length in the course of a run."""
        return (self.seq_len,)

    def phase_at(self, step: int) -> tuple[PlannedDataset, int | None]:
        """The dataset that serves a step, and the first step that it no longer serves (None: it serves all)."""
        return self, None

    @abc.abstractmethod
    def locate(self, indices: Int64[np.ndarray, " n"], epoch: Int64[np.ndarray, " n"] | None = None) -> Rows:
        """Where the rows of ``indices`` lie. Pure, no I/O; indices are not checked.

        Args:
            indices: Example numbers.
            epoch: Pass over the data that each belongs to (re-keys shuffles); None: 0.
        """

    async def get_batch(self, indices: Int64[np.ndarray, " n"]) -> PackedBatch:
        return await self.read_located(self.locate(check_indices(indices, self.length)), self.read_stats)

    async def read_located(self, rows: Rows, stats: ReadStats) -> PackedBatch:
        """The batch of rows that :meth:`locate` named, in their order; ``stats`` counts what is read."""
        if rows.row.size == 0:
            tokens = np.zeros((0, self.seq_len), np.int32)
        else:
            tokens = await read_rows(self.sources, rows, stats)
        segments = segments_of(self.sources, rows.source, rows.row)
        mask = await read_masks(self.sources, rows, self.seq_len, stats)
        return pack_rows(tokens, rows.source.astype(np.int32), self.eos_id, segments, mask, self.pairs)

    def reordered(self, order: IndexMap) -> PlannedDataset:
        return ReorderedDataset(self, order)


class ReorderedDataset(PlannedDataset):
    """A planned dataset seen through an index map."""

    def __init__(self, base: PlannedDataset, order: IndexMap) -> None:
        if base.length is not None and order.rows > base.length:
            raise ConfigError(
                f"names {order.rows} rows of a dataset of {base.length}", field="order", value=type(order).__name__
            )
        self.base, self.order = base, order

    @property
    def length(self) -> int | None:
        return None if isinstance(self.order, Repeat) and self.order.epochs is None else len(self.order)

    @property
    def sources(self) -> Sequence[RowSource]:
        return self.base.sources

    @property
    def seq_len(self) -> int:
        return self.base.seq_len

    @property
    def eos_id(self) -> int | None:
        return self.base.eos_id

    @property
    def pairs(self) -> bool:
        return self.base.pairs

    @property
    def read_stats(self) -> ReadStats:
        return self.base.read_stats

    def describe(self) -> dict[str, Any]:
        return {"order": self.order.describe(), "of": self.base.describe()}

    def default_io_block_size(self) -> int:
        return self.base.default_io_block_size()

    def check_stored_order(self) -> None:
        if self.order.reorders or isinstance(self.order, Repeat):
            raise ConfigError(
                "cannot be split: what one epoch holds out, another would train on",
                field="holdout",
                value=type(self.order).__name__,
                cure="Split first, then shuffle and repeat the train side.",
            )
        self.base.check_stored_order()

    def locate(self, indices: np.ndarray, epoch: np.ndarray | None = None) -> Rows:
        epoch = np.zeros_like(indices) if epoch is None else epoch
        if isinstance(self.order, Repeat):
            passes, indices = self.order.passes(indices, epoch)
            return self.base.locate(indices, passes)
        if not self.order.reorders:
            return self.base.locate(self.order.at(indices, epoch), epoch)
        rows, locality = self.order.resolve(indices, epoch)
        return self.base.locate(rows, epoch)._replace(locality=locality)


class MappedDataset(AsyncDataset[U]):
    """A dataset whose batches pass through a function.

    The function's name stands for it in fingerprints: two lambdas of one scope look the same there.
    """

    def __init__(self, base: AsyncDataset[Any], fn: Callable[[Any], U]) -> None:
        self.base, self.fn = base, fn

    @property
    def length(self) -> int | None:
        return self.base.length

    def describe(self) -> dict[str, Any]:
        return {"map": function_name(self.fn), "of": self.base.describe()}

    async def get_batch(self, indices: np.ndarray) -> U:
        return self.fn(await self.base.get_batch(indices))

    def reordered(self, order: IndexMap) -> MappedDataset[U]:
        return MappedDataset(self.base.reordered(order), self.fn)

    def default_io_block_size(self) -> int:
        return self.base.default_io_block_size()

    def block_aligned(self, io_block_size: int) -> MappedDataset[U]:
        return MappedDataset(self.base.block_aligned(io_block_size), self.fn)

    def full_blocks(self, io_block_size: int) -> int:
        return self.base.full_blocks(io_block_size)

    def check_stored_order(self) -> None:
        self.base.check_stored_order()


def unmapped(dataset: AsyncDataset[Any]) -> tuple[AsyncDataset[Any], tuple[Callable[[Any], Any], ...]]:
    """What lies under calls of ``map``, and their functions, first to last.

    Example:
        >>> import headrace.testing
        >>> from headrace.data.token_seq import TokenSeqDataset
        >>> rows = TokenSeqDataset(headrace.testing.tiny_cache(), seq_len=8)
        >>> base, functions = unmapped(rows.map(str).map(len))
        >>> base is rows, functions
        (True, (<class 'str'>, <built-in function len>))
    """
    functions: list[Callable[[Any], Any]] = []
    while isinstance(dataset, MappedDataset):
        functions.append(dataset.fn)
        dataset = dataset.base
    return dataset, tuple(reversed(functions))


def run_blocking(awaitable: Coroutine[Any, Any, U]) -> U:
    """The result of a coroutine, also where an event loop runs already (notebooks)."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(awaitable)
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, awaitable).result()
