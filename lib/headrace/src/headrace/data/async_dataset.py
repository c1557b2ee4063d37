"""``AsyncDataset``: random access by arrays of indices, and the operations that make new datasets.

``shuffle``, ``slice`` and ``repeat`` only wrap a dataset with an order: nothing is drawn, stored or
read.
"""

from __future__ import annotations

import abc
import asyncio
import hashlib
import itertools
import operator
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, SupportsIndex, TypeVar

import numpy as np
from jaxtyping import Int64

from headrace.errors import ConfigError, check_at_least, check_whole
from headrace.order.block_shuffle import BlockShuffle, EraShuffle
from headrace.order.braid import BraidShuffle
from headrace.order.holdout import TrainSplit, ValidationSplit
from headrace.order.order import MAX_LENGTH, Order, Repeat, Slice
from headrace.order.permutation import Feistel
from headrace.order.seeds import check_seed
from headrace.order.shuffle_config import MAX_HOSTS, PendingBraid

if TYPE_CHECKING:
    from headrace.mix.schedule import BatchSchedule

T_co = TypeVar("T_co", covariant=True)
U = TypeVar("U")


class AsyncDataset(abc.ABC, Generic[T_co]):
    """Examples by number. Subclasses implement :attr:`length` and :meth:`get_batch`.

    A batch is a pytree of arrays whose first axis runs over the requested indices.
    """

    @property
    @abc.abstractmethod
    def length(self) -> int | None:
        """Number of examples; None if there is no end."""

    @abc.abstractmethod
    async def get_batch(self, indices: Int64[np.ndarray, " n"]) -> T_co:
        """The examples at ``indices``, in that order; repeats are allowed.

        Raises:
            IndexOutOfRangeError: an index is out of range.
        """

    @abc.abstractmethod
    def reordered(self, order: Order) -> AsyncDataset[T_co]:
        """This dataset in another order of its examples."""

    @abc.abstractmethod
    def describe(self) -> dict[str, Any]:
        """How this dataset is made, as JSON values: different datasets have
        different descriptions.
        """

    @property
    def planned(self) -> AsyncDataset[Any] | None:
        """The dataset whose reads a loader plans: this one without its functions; None if it does
        not know its rows.
        """
        return None

    @property
    def seq_lens(self) -> tuple[int, ...]:
        """Tokens in a row, of each phase; nothing if rows are not of tokens."""
        return ()

    pending_order: PendingBraid | None = None
    """The order of this dataset that is chosen when it is mixed."""

    config: Any = None
    """The config that it was made from, for messages to its user; not part of its description.
    None: no config.
    """

    @property
    def functions(self) -> tuple[Callable[[Any], Any], ...]:
        """Functions that batches of :attr:`planned` pass through, first to last;
        see :meth:`map`.
        """
        return ()

    @property
    def own_schedule(self) -> BatchSchedule | None:
        """Batch sizes of the dataset itself; None: the loader has to be given one."""
        return None

    def is_finite(self) -> bool:
        return self.length is not None

    async def async_len(self) -> int:
        return len(self)

    def __len__(self) -> int:
        return self._finite_length("len()")

    def read(self, indices: object) -> T_co:
        """:meth:`get_batch` for synchronous callers. ``indices`` is anything that numpy can convert
        to an array.
        """
        # pyright cannot see that the rows are an array by then
        batch = self.get_batch(np.asarray(indices))
        return run_blocking(batch)  # pyright: ignore[reportArgumentType]

    def __getitem__(self, index: SupportsIndex | slice) -> T_co:
        """Reads examples as a batch: ``ds[3]`` is a batch of one, ``ds[-8:]`` a batch of the last
        eight.

        Raises:
            IndexOutOfRangeError: no such example.
            ConfigError: not an index; counted from the end of a dataset that has none.
        """
        ends = (index.start, index.stop, index.step) if isinstance(index, slice) else (index,)
        try:
            if bool in map(type, ends):
                raise TypeError
            bounds = (
                index.indices(MAX_LENGTH) if isinstance(index, slice) else (operator.index(index),)
            )
        except (TypeError, ValueError):
            cure = (
                "Give a number or a slice: ds[3], ds[3:8]; for rows of any numbers ds.read([3, 8])."
            )
            raise ConfigError("is not an index", field="index", value=index, cure=cure) from None
        if not isinstance(index, slice):
            return self.read(
                [
                    bounds[0] + self._finite_length("an index from the end")
                    if bounds[0] < 0
                    else bounds[0]
                ]
            )
        n = self.length
        if n is None and (
            index.stop is None or min(index.start or 0, index.stop, index.step or 1) < 0
        ):
            n = self._finite_length("a slice that is counted from the end")
        return self.read(np.arange(*(bounds if n is None else index.indices(n))))

    def __iter__(self) -> Iterator[T_co]:
        """Batches of one example, in order, endless if the dataset is. A loader is faster."""
        for number in itertools.count() if self.length is None else range(self.length):
            yield self[number]

    def shuffle(self, seed: int, *, perm_type: str = "feistel") -> AsyncDataset[T_co]:
        """A full shuffle: best mixing, one random read per example."""
        check_seed(seed)
        return self.reordered(Feistel(self._finite_length("shuffle"), seed, perm_type))

    def block_shuffle(
        self,
        *,
        io_block_size: int | None = None,
        window_blocks: int = 512,
        seed: int,
        perm_type: str = "feistel",
    ) -> AsyncDataset[T_co]:
        """Shuffles blocks, then examples within windows of blocks; see
        :class:`~headrace.order.block_shuffle.BlockShuffle`.

        Args:
            io_block_size: Examples in a block; None: one stored chunk (only for stored datasets).
            window_blocks: Blocks that are mixed together.
            seed: Integer seed.
            perm_type: ``"feistel"`` or ``"linear"``.
        """
        check_seed(seed)
        check_whole("io_block_size", io_block_size)
        check_whole("window_blocks", window_blocks)
        n = self._finite_length("block_shuffle")
        size = io_block_size if io_block_size is not None else self.default_io_block_size()
        return self.block_aligned(size).reordered(
            BlockShuffle(
                n, io_block_size=size, window_blocks=window_blocks, seed=seed, perm_type=perm_type
            )
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
        run_blocks: int = 1,
        max_hosts: int | None = MAX_HOSTS,
    ) -> AsyncDataset[T_co]:
        """Braided shuffle, the default of configs; see :mod:`headrace.order.braid`.

        Without ``batch_size`` and ``strands``, they are chosen when the dataset is mixed: the
        datasets of a mixture share one budget of strands by their weights, like the components of a
        config, and the order is that of a config with this seed. For a dataset that is loaded by
        itself, they follow from the loader's batch size.

        Args:
            seed: Integer seed. In a mixture that chooses strands, the key of the order is made from
                the seed and the component's name.
            batch_size: Examples of this dataset in one batch; 8 x as many strands are opened, or,
                in a shuffled store, as many as ``max_hosts`` asks for.
            strands: Blocks that are open at a time, over all hosts; instead of ``batch_size``.
            lap: Draws in which the reading front passes once over the store; None: ``batch_size``,
                or ``strands``.
            first_strand: Strands of all components before this one; see
                :class:`~headrace.order.braid.BraidShuffle`.
            io_block_size: Examples in a block; None: one stored chunk.
            run_blocks: Blocks that are read one after the other, as they are stored.
            max_hosts: The most hosts of the run, which say how many strands a shuffled store has
                (see :mod:`headrace.order.shuffle_config`); None: as many as other stores.
        """
        check_seed(seed)
        counts = {"batch_size": batch_size, "strands": strands, "first_strand": first_strand}
        if max_hosts is not None:
            check_at_least("max_hosts", max_hosts)
        check_at_least("run_blocks", run_blocks)
        for name, value in {**counts, "io_block_size": io_block_size}.items():
            check_whole(name, value)
        n = self._finite_length("braid_shuffle")
        size = io_block_size if io_block_size is not None else self.default_io_block_size()
        hosts = max_hosts if self.in_shuffled_store else None
        order: PendingBraid | BraidShuffle = PendingBraid(
            n, io_block_size=size, seed=seed, hosts=hosts, run_blocks=run_blocks
        )
        if strands is not None:
            order = order.with_strands(strands, lap, first_strand)
        elif batch_size is not None:
            order = order.in_batches(batch_size, first_strand)
        elif lap is not None or first_strand is not None:
            name, value = ("lap", lap) if lap is not None else ("first_strand", first_strand)
            raise ConfigError(
                "needs strands", field=name, value=value, cure="Give strands, or leave it out."
            )
        return self.block_aligned(size).reordered(order)

    @property
    def in_shuffled_store(self) -> bool:
        """Whether its rows lie in a shuffled store; see :class:`PlannedDataset`."""
        return False

    def settled(self, settle: Callable[[Order], Order]) -> AsyncDataset[T_co]:
        """This dataset with :attr:`pending_order` resolved."""
        return self

    def era_shuffle(
        self, era_length: int, *, seed: int, perm_type: str = "feistel"
    ) -> AsyncDataset[T_co]:
        """Permutes examples within consecutive eras."""
        check_seed(seed)
        check_whole("era_length", era_length)
        n = self._finite_length("era_shuffle")
        return self.reordered(EraShuffle(n, era_length=era_length, seed=seed, perm_type=perm_type))

    def holdout(
        self,
        one_in: int = 100,
        *,
        seed: int = 0,
        io_block_size: int | None = None,
        groups: int | None = None,
    ) -> tuple[AsyncDataset[T_co], AsyncDataset[T_co]]:
        """Splits off a validation side: one block in ``one_in``, by a keyed hash; see
        :mod:`headrace.order.holdout`.

        The split does not depend on how either side is shuffled afterwards. Rows at the border of a
        block may share a document with the other side; ``TokenSeqDataset.holdout_documents`` keeps
        documents whole.

        Args:
            one_in: One block in this many is held out.
            seed: Integer seed.
            io_block_size: Examples in a block; None: one stored chunk, or less if there are fewer
                chunks than ``one_in``.
            groups: Number of groups of ``one_in`` blocks of which one is held out; None: all.

        Returns:
            The train side and the validation side, both in stored order.

        Raises:
            ConfigError: the dataset is already shuffled or repeated (the sides would share
                documents or rows), is endless, or has fewer blocks than ``one_in``.
        """
        check_whole("one_in", one_in)
        check_whole("io_block_size", io_block_size)
        n = self._finite_length("holdout")
        self.check_stored_order()
        size = self.holdout_block_size(one_in) if io_block_size is None else io_block_size
        blocks = self.full_blocks(size) if size > 0 else None
        train = TrainSplit(n, one_in=one_in, block=size, seed=seed, blocks=blocks, groups=groups)
        validation = ValidationSplit(
            n, one_in=one_in, block=size, seed=seed, blocks=blocks, groups=groups
        )
        aligned = self.block_aligned(size)
        return aligned.reordered(train), aligned.reordered(validation)

    def holdout_block_size(self, one_in: int) -> int:
        """Examples in a block of :meth:`holdout`: one stored chunk, halved until there are
        ``one_in`` of them.
        """
        size = self.default_io_block_size()
        while size > 1 and self.full_blocks(size) < one_in:
            size //= 2
        return size

    def slice(self, start: int | None = None, stop: int | None = None) -> AsyncDataset[T_co]:
        """Examples ``start .. stop``, by Python's rules for slices.

        They are the same in every pass: those of the first pass if the dataset is shuffled, which
        then have another order in each later pass. So ``ds.shuffle(0).take(100)`` and
        ``ds.shuffle(0).slice(100)`` never meet. A braid whose strands are not chosen yet is cut by
        whole blocks, in a sequence that its seed determines.
        """
        check_whole("start", start)
        check_whole("stop", stop)
        return self.reordered(Slice(self._finite_length("slice"), start, stop))

    def take(self, n: int) -> AsyncDataset[T_co]:
        """The first ``n`` examples (all, if there are fewer), the same in every pass; see
        :meth:`slice`.
        """
        check_whole("n", n)
        check_at_least("n", n, 0, "E.g. 100 examples.")
        return self.slice(None, n)

    def repeat(self, epochs: int | None = None) -> AsyncDataset[T_co]:
        """This dataset ``epochs`` times (endlessly if None), each pass in a different order."""
        return self.reordered(Repeat(self._finite_length("repeat"), epochs))

    def map(self, fn: Callable[[T_co], U]) -> AsyncDataset[U]:
        """Applies ``fn`` to each batch that is read. ``fn`` must treat rows independently and keep
        their number.

        A loader reads the rows as if there were no ``fn``: ahead, and each stored block once.
        ``fn`` then receives the rows of its process, as numpy arrays that it may modify, in the
        loader's background thread. Which rows are in one call depends on the number of processes,
        so the result for a row must depend on that row alone. Arrays that it returns belong to the
        batch, which may share their memory: to fill the same array again in the next call changes
        batches that are waiting or in use.
        """
        return MappedDataset(self, fn)

    def default_io_block_size(self) -> int:
        """Examples in one stored chunk.

        Raises:
            ConfigError: the examples are not in a store with chunks.
        """
        raise ConfigError(
            "cannot be derived for this dataset",
            field="io_block_size",
            value=None,
            cure="Give a number of examples.",
        )

    def block_aligned(self, io_block_size: int) -> AsyncDataset[T_co]:
        """The same examples, numbered so that blocks of ``io_block_size`` do not straddle stored
        arrays.
        """
        return self

    def full_blocks(self, io_block_size: int) -> int:
        """Number of blocks that do not straddle stored arrays; they come first in
        :meth:`block_aligned`.
        """
        return self._finite_length("full_blocks") // io_block_size

    def check_stored_order(self) -> None:
        """Raises ConfigError if examples change positions between epochs, or occur twice in one."""

    def _finite_length(self, operation: str) -> int:
        if self.length is None:
            raise ConfigError(
                f"{operation} needs a dataset with an end",
                field="dataset",
                cure="Apply it before repeat() and mixing.",
            )
        return self.length


class MappedDataset(AsyncDataset[U]):
    """A dataset whose batches pass through a function.

    In fingerprints, the function is identified by its name: two lambdas in one scope look the same.
    """

    def __init__(self, base: AsyncDataset[Any], fn: Callable[[Any], U]) -> None:
        if not callable(fn):
            raise ConfigError(
                "is not a function",
                field="fn",
                value=fn,
                cure="Give one that takes and gives a batch.",
            )
        self.base = base
        self.fn = fn
        self.pending_order = base.pending_order

    @property
    def planned(self) -> AsyncDataset[Any] | None:
        return self.base.planned

    @property
    def functions(self) -> tuple[Callable[[Any], Any], ...]:
        return (*self.base.functions, self.fn)

    @property
    def own_schedule(self) -> BatchSchedule | None:
        return self.base.own_schedule

    @property
    def seq_lens(self) -> tuple[int, ...]:
        return self.base.seq_lens

    @property
    def length(self) -> int | None:
        return self.base.length

    def describe(self) -> dict[str, Any]:
        return {"map": function_name(self.fn), "of": self.base.describe()}

    async def get_batch(self, indices: np.ndarray) -> U:
        return self.fn(await self.base.get_batch(indices))

    def reordered(self, order: Order) -> MappedDataset[U]:
        return MappedDataset(self.base.reordered(order), self.fn)

    @property
    def in_shuffled_store(self) -> bool:
        return self.base.in_shuffled_store

    def settled(self, settle: Callable[[Order], Order]) -> MappedDataset[U]:
        return MappedDataset(self.base.settled(settle), self.fn)

    def default_io_block_size(self) -> int:
        return self.base.default_io_block_size()

    def block_aligned(self, io_block_size: int) -> MappedDataset[U]:
        return MappedDataset(self.base.block_aligned(io_block_size), self.fn)

    def full_blocks(self, io_block_size: int) -> int:
        return self.base.full_blocks(io_block_size)

    def check_stored_order(self) -> None:
        self.base.check_stored_order()


def run_blocking(awaitable: Coroutine[Any, Any, U]) -> U:
    """The result of a coroutine, even if an event loop is already running (as in notebooks)."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(awaitable)
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, awaitable).result()


def function_name(fn: Any) -> str:
    """A name that is the same in every process: without addresses, arrays as digests, objects by
    type.

    Example:
        >>> function_name(partial(np.add, np.arange(3), where=object()))
        'numpy.add(int64[3] of ab25350e, where=builtins.object)'
    """
    if isinstance(fn, partial):
        keywords = [f"{k}={_argument(v)}" for k, v in sorted(fn.keywords.items())]
        return f"{function_name(fn.func)}({', '.join([*map(_argument, fn.args), *keywords])})"
    named = fn if hasattr(fn, "__qualname__") else type(fn)
    return f"{named.__module__}.{named.__qualname__}"


def _argument(value: Any) -> str:
    if value is None or isinstance(value, bool | int | float | str):
        return repr(value)
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_argument, value))}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{_argument(k)}: {_argument(v)}' for k, v in value.items())}}}"
    if isinstance(value, np.ndarray):
        digest = hashlib.sha256(np.ascontiguousarray(value).tobytes()).hexdigest()
        return f"{value.dtype}{list(value.shape)} of {digest[:8]}"
    return function_name(value)


def check_dataset(field: str, value: object) -> None:
    """Raises ConfigError if an argument is not a dataset.

    Example:
        >>> check_dataset("dataset", ["a", "b"])  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        headrace.errors.ConfigError: dataset = ['a', 'b']: is not a dataset. Give ...
    """
    if not isinstance(value, AsyncDataset):
        cure = "Give a TokenSeqDataset, a MixtureDataset or config.dataset()."
        raise ConfigError("is not a dataset", field=field, value=value, cure=cure)
