"""``micro_batches``: splits the batch of a step into pieces of bounded size, whose gradients are
summed.

.. code-block:: yaml

    micro_batches: {max_tokens: 8192, balance: tokens}

Rows of a batch are seldom full: packed ones nearly, rows of one document each about half. Here the
rows of a step are concatenated, without their padding, into rows of ``max_tokens`` positions; a
micro-batch has as many of these as the mesh splits rows. The placement follows from the lengths of
the step's rows alone: no state, identical on all hosts.

Invariants: every row is in exactly one micro-batch, whole; each document counts as at least 64
tokens (fewer if rows are short or hold many), which bounds their number; shapes depend only on the
sizes of batch and row. A step has room for as many micro-batches as would hold its rows if all were
full, and tells how many it fills, so the loop over them is compiled once.

Price, on one core: 1.4 ms for 256 rows into 38, 10 ms for 2048 into 296; with ``balance`` 8 ms and
0.3 s (Python, in the prefetching thread).
"""

from __future__ import annotations

from dataclasses import astuple, dataclass
from typing import Literal, NamedTuple, TypeAlias, get_args

import numpy as np
from jaxtyping import Int32

from headrace.batch.balance import TransformerCost, first_fit, micro_batches
from headrace.batch.sample_numbers import checked_count
from headrace.errors import ConfigError, check_choice

MicroBalance: TypeAlias = Literal["none", "tokens", "flops"]
_DOCUMENT_PLACES = 64
_MODEL = (
    "{hidden_size: 2048, num_layers: 24, num_heads: 16, head_size: 128, num_kv_heads: 4, ffn_size:"
    " 8192, vocab_size: 128000}"
)


class MicroShape(NamedTuple):
    """What all steps with one batch size and row length share.

    Attributes:
        number: Micro-batches that there is room for (K).
        rows: Rows per micro-batch (R).
        places: Positions per row (T).
        document_places: Positions that a document counts for at least, so that no row has more than
            T // this of them.
    """

    number: int
    rows: int
    places: int
    document_places: int


class MicroPlan(NamedTuple):
    """Where each row of a step's batch goes. Row r of micro-batch k is row ``r * K + k`` of all K x
    R.

    Attributes:
        place: Where each row of the batch begins, as a position in all K x R rows concatenated; K x
            R x T: nowhere, as it is empty.
        segment: Segments of each of the K x R rows, by number in the batch (row x M + number); -1
            after the last.
        filled: Number of micro-batches that hold rows; they come first.
    """

    place: Int32[np.ndarray, " B"]
    segment: Int32[np.ndarray, "N M"]
    filled: int


@dataclass(frozen=True)
class MicroBatchConfig:
    """How the batch of a step is split into micro-batches.

    Attributes:
        max_tokens: Positions in a row of a micro-batch, which a device computes at once: at least
            ``seq_len``.
        balance: ``none``: rows of a batch fill rows one after the other, in order. ``tokens``,
            ``flops``: rows have about equal cost, the most costly micro-batch first (Karmarkar-Karp
            under the cap).
        rows: Rows per micro-batch; None: as many as the mesh splits rows. It determines what each
            micro-batch holds, so set it if a run must have the same ones on another mesh.
        model: The model whose FLOPs count, with ``balance: flops``.

    Raises:
        ConfigError: an invalid number; ``flops`` without a model, or a model without ``flops``.

    Example:
        >>> config = MicroBatchConfig(8)
        >>> shape = config.shape(batch_size=4, seq_len=4, row_segments=2, ways=1)
        >>> (
        ...     shape.number,
        ...     config.plan(
        ...         np.array([[2, 0], [1, 2], [4, 0], [3, 0]], np.int32), shape
        ...     ).place.tolist(),
        ... )
        (2, [0, 2, 8, 5])
    """

    max_tokens: int
    balance: MicroBalance = "none"
    rows: int | None = None
    model: TransformerCost | None = None

    def __post_init__(self) -> None:
        checked_count("micro_batches.max_tokens", self.max_tokens)
        check_choice("micro_batches.balance", self.balance, get_args(MicroBalance))
        if self.rows is not None:
            checked_count("micro_batches.rows", self.rows)
        if (self.balance == "flops") != (self.model is not None):
            if self.model is None:
                cure = f"Add model: {_MODEL}, with your model's numbers, or use balance: tokens."
                raise ConfigError(
                    "is missing, and balance: flops needs it",
                    field="micro_batches.model",
                    cure=cure,
                )
            problem = "is what balance: flops goes by"
            cure = "Write balance: flops, or leave the model out."
            raise ConfigError(problem, field="micro_batches.model", value=self.model, cure=cure)
        for size in astuple(self.model) if self.model is not None else ():
            checked_count("micro_batches.model", size)

    def check(self, seq_len: int) -> None:
        """Raises ConfigError if a row of the dataset does not fit."""
        if self.max_tokens < seq_len:
            problem = f"is less than a row of {seq_len} tokens (seq_len)"
            cure = f"Give {seq_len} or more."
            raise ConfigError(
                problem, field="micro_batches.max_tokens", value=self.max_tokens, cure=cure
            )

    def shape(self, batch_size: int, seq_len: int, row_segments: int, ways: int) -> MicroShape:
        """Shape of the micro-batches of batches of this size.

        Args:
            batch_size: Rows of the batch.
            seq_len: Positions in a row.
            row_segments: Most segments in a row (M).
            ways: Number of ways the mesh splits rows.
        """
        self.check(seq_len)
        rows = self.rows or ways
        # This many rows fit however full they are, and first fit never skips a row that holds fewer
        number = -(-batch_size // (self.max_tokens // seq_len * rows))
        if number * rows * self.max_tokens > np.iinfo(np.int32).max:
            cure = (
                f"Give {seq_len} or more, but no more than a device computes at a time, or fewer"
                " rows."
            )
            problem = f"times {number * rows} rows is more than 2**31 places"
            raise ConfigError(
                problem, field="micro_batches.max_tokens", value=self.max_tokens, cure=cure
            )
        least = min(_DOCUMENT_PLACES, seq_len // 16, seq_len // row_segments)
        return MicroShape(number, rows, self.max_tokens, max(least, 1))

    def plan(self, segments: Int32[np.ndarray, "B M"], shape: MicroShape) -> MicroPlan:
        """Where the rows of a batch go.

        Args:
            segments: Segment lengths of each row, zeros after the last; rows of zeros are empty.
            shape: The result of :meth:`shape`.
        """
        tokens = segments.sum(axis=1)
        documents = (segments > 0).sum(axis=1)
        nonempty = np.flatnonzero(tokens)
        bins = self._bins(
            np.maximum(tokens, documents * shape.document_places)[nonempty],
            segments[nonempty],
            shape,
        )
        all_rows = shape.number * shape.rows
        destination = np.full(len(segments), all_rows * shape.places, np.int32)
        segment = np.full((all_rows, shape.places // shape.document_places), -1, np.int32)
        for number, some in bins.items():
            rows = nonempty[some]
            destination[rows] = number * shape.places + np.cumsum(tokens[rows]) - tokens[rows]
            filled = np.flatnonzero(segments[rows] > 0)
            row, column = np.divmod(filled, segments.shape[1])
            segment[number, : filled.size] = rows[row] * segments.shape[1] + column
        return MicroPlan(
            destination, segment, max((number % shape.number for number in bins), default=-1) + 1
        )

    def _bins(
        self, sizes: Int32[np.ndarray, " n"], segments: Int32[np.ndarray, "n M"], shape: MicroShape
    ) -> dict[int, list[int]]:
        """The batch's rows in each non-empty row of the micro-batches, ascending."""
        if self.balance == "none":
            filled = first_fit(sizes, shape.places)
            return {
                n % shape.rows * shape.number + n // shape.rows: rows
                for n, rows in enumerate(filled)
            }
        costs = sizes if self.model is None else self.model.flops(segments).sum(axis=1)
        spare = max(shape.number * shape.rows - sizes.size, 0)  # nothing, for rows that stay empty
        by_rank = micro_batches(
            np.pad(sizes, (0, spare)),
            shape.places,
            ranks=shape.rows,
            costs=np.pad(costs, (0, spare)),
        )
        bins = {
            r * shape.number + k: rows
            for r, of_rank in enumerate(by_rank)
            for k, rows in enumerate(of_rank)
        }
        return {
            number: some
            for number, rows in bins.items()
            if (some := [row for row in rows if row < sizes.size])
        }
