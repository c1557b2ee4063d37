"""What an order costs in loss: the excess loss of training in it, relative to training in a full
shuffle.

Near a minimum, along a direction of curvature ``c``, SGD with learning rates ``r_t`` ends at ``e =
sum_t a_t g_t``: the gradient noise of its batches, weighted by how much of it later steps leave::

    a_t = r_t c prod_{s > t} (1 - r_s c)      excess loss ~ sum over directions of E e**2

if noise along a direction has the variance c, as near the minimum of a log likelihood (Mandt,
Hoffman and Blei 2017, *Stochastic gradient descent as approximate Bayesian inference*; Zhang et al.
2019, *Which algorithmic choices matter at which batch sizes?*). There the noise of different steps
is independent. If rows of a stored unit are alike, it is not: let the share ``s`` of a row's noise
(the intraclass correlation, :mod:`headrace.analysis.icc`) come from its unit. Then

    E e**2 ~ (1 - s) sum_rows a**2 + s sum_units (sum of a over the rows of the unit)**2

which depends only on the order: VR over an exponential window as long as the optimiser's memory (1
/ (r c) steps). Neighbourhood lengths add up as in :func:`~headrace.analysis.icc.batch_noise`. In a
full shuffle, two of n positions belong to one unit of b rows with probability (b - 1) / (n - 1),
which gives the second sum in closed form.

**Adam** divides a gradient by the root of its mean square, which near the minimum is its noise, of
variance ``c / B`` for batches of B rows. It goes along the direction as SGD with the rate ``r
/ sqrt(c / B)`` would: the same formula with ``r sqrt(c B)`` in place of ``r c``. Slow directions
are less slow, the last steps count more, and a batch that grows raises the rate.

The loss is that on text of other units, so what a small corpus lacks counts, in a full shuffle too:
if a pass is not much longer than the optimiser's memory, the figure is near 1 and says little
(experiments/001). Parts of the loss that no order changes do not count: the descent from initial
weights, and what the model cannot learn. Not modelled: noise that depends on the weights, momentum,
and differences between sources. `python scripts/bench/bench_order_training.py --check` compares the
figure with SGD, `bench_order_schedules.py --check` with SGD and Adam.

Price: at most 2**17 positions of the order are mapped, however large store and run: all of them, or
a random sample, whose sum over pairs is an unbiased estimate, accurate to about 2 %. 0.15 s a call.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np
from jaxtyping import Float64, Int64

from headrace.analysis.long_documents import known_shares
from headrace.data.dataset import PlannedDataset
from headrace.data.mixture import mixture_of
from headrace.errors import ConfigError, check_at_least, check_choice, command_line, did_you_mean
from headrace.order.order import Identity, Order

MOST_PLACES = 1 << 17
MOST_STEPS = 1 << 16
"""Longer runs are forecast as if they had this many steps: only the last ones count."""
CURVATURES = np.logspace(-1, -4, 13)
"""Curvature times the peak rate: an optimiser that remembers 10 to 10,000 steps."""


def wsd_rates(steps: int, decay: float = 0.2) -> Float64[np.ndarray, " steps"]:
    """Learning rates, 1 at their peak, that fall linearly to 0 over the last ``decay`` of the run.

    Example:
        >>> wsd_rates(5, decay=0.4).tolist()
        [1.0, 1.0, 1.0, 1.0, 0.5]
    """
    check_at_least("steps", steps)
    return np.minimum(1.0, (steps - np.arange(steps)) / max(decay * steps, 1.0))


def cosine_rates(steps: int) -> Float64[np.ndarray, " steps"]:
    """Learning rates, 1 at their peak, that fall to 0 by a cosine over the whole run.

    Example:
        >>> cosine_rates(4).round(2).tolist()
        [1.0, 0.85, 0.5, 0.15]
    """
    check_at_least("steps", steps)
    return (1 + np.cos(np.pi * np.arange(steps) / steps)) / 2


SCHEDULES: dict[str, Callable[[int], Float64[np.ndarray, " steps"]]] = {
    "wsd": wsd_rates,
    "cosine": cosine_rates,
    "linear": lambda steps: wsd_rates(steps, decay=1.0),
}
"""Learning rates of a run with so many steps, by name."""
OPTIMIZERS = ("adam", "sgd")


def excess_loss(
    order: Order,
    rows_per_step: float | Float64[np.ndarray, " t"],
    shares: Mapping[int, float],
    *,
    rates: Float64[np.ndarray, " t"] | None = None,
    curvatures: Float64[np.ndarray, " k"] = CURVATURES,
    optimizer: str = "sgd",
) -> float:
    """Excess loss of training in an order, relative to a full shuffle: 1 is as good, 2 has twice
    the excess.

    See the module for the derivation and what is not modelled.

    Args:
        order: The order of a pass; passes follow each other.
        rows_per_step: Rows per step: the batch size, or a source's share of it; one number, or one
            for each step.
        shares: Share of a row's noise by neighbourhood length in rows, as from
            :func:`nested_shares`.
        rates: Learning rate of each step of the run; None: :func:`wsd_rates` over one pass, of
            65,536 steps at most.
        curvatures: Curvatures of the loss, scaled so that ``rates * curvatures`` is below 1; all
            count equally.
        optimizer: ``sgd``, or ``adam``, with which the largest curvature counts as with SGD at the
            largest batch, and the others in proportion to their roots.

    Raises:
        ConfigError: an empty order; shares that are negative or sum to more than 1; rates times
            curvatures of 1 or more; no such optimizer.

    Example:
        >>> from headrace.order.braid import BraidShuffle
        >>> from headrace.order.block_shuffle import EraShuffle
        >>> from headrace.order.permutation import Feistel
        >>> n, shares = 1 << 19, {256: 0.49}
        >>> braid = BraidShuffle(n, io_block_size=32, strands=1024, lap=128, seed=0)
        >>> era = EraShuffle(n, era_length=4096, seed=0)
        >>> [round(excess_loss(order, 128, shares), 1) for order in (Feistel(n, 0), braid, era)]
        [1.0, 1.5, 6.7]
        >>> excess_loss(
        ...     braid, 128, {256: 0.0}
        ... )  # rows whose neighbours are no more alike than others
        1.0
    """
    check_at_least("order", len(order), cure="Give an order of one row at least.")
    if not np.all(np.asarray(rows_per_step) > 0):
        raise ConfigError(
            "must be above 0",
            field="rows_per_step",
            value=rows_per_step,
            cure="Give the batch size.",
        )
    if min(shares.values(), default=0.0) < 0 or sum(shares.values()) > 1 + 1e-9:
        cure = "Give what nested_shares returns, or an ICC of 0 to 1 by rows in a block."
        raise ConfigError(
            "must be 0 or more each, and 1 at most in all",
            field="shares",
            value=dict(shares),
            cure=cure,
        )
    n = min(len(order), order.rows)
    if rates is None:
        steps = np.size(rows_per_step)
        if np.ndim(rows_per_step) == 0:
            steps = max(min(int(n / rows_per_step), MOST_STEPS), 1)
        rates = wsd_rates(steps)
    rates = np.asarray(rates, np.float64)
    rows_of = np.broadcast_to(np.asarray(rows_per_step, np.float64), rates.shape)
    # The same sums as in the module, for all curvatures: of a row alone, and of pairs of rows.
    weight = _weights(rates, rows_of, np.asarray(curvatures, np.float64), optimizer)
    squares = (rows_of * np.square(weight)).sum(axis=1)
    sums = (rows_of * weight).sum(axis=1)
    places, factor, pairs = _sample_rows(weight, rows_of)
    row = order.at(places % len(order), places // len(order))
    alone = float(np.square(factor).sum(axis=1).sum())
    noise = full = squares.sum()
    for unit, share in shares.items():
        # In this order: rows of one unit, but no row with itself
        _, member = np.unique(row // unit, return_inverse=True)
        together = sum(float(np.square(np.bincount(member, one)).sum()) for one in factor)
        noise += share * pairs * (together - alone)
        # In a full shuffle: any two rows, by the chance that they are of one unit
        chance = (min(unit, n) - 1) / max(n - 1, 1)
        full += share * chance * float((np.square(sums) - squares).sum())
    return float(noise / full)


def _weights(
    rates: Float64[np.ndarray, " t"],
    rows_of: Float64[np.ndarray, " t"],
    curvatures: Float64[np.ndarray, " k"],
    optimizer: str,
) -> Float64[np.ndarray, "k t"]:
    """``a`` of the module for a row of each step, along each curvature: what is left of its noise
    at the end of the run. A batch is the mean of its rows.
    """
    check_choice("optimizer", optimizer, list(OPTIMIZERS))
    if optimizer == "adam":
        rates = rates * np.sqrt(rows_of / rows_of.max())
        curvatures = np.sqrt(curvatures * curvatures.max())
    pull = rates[None] * curvatures[:, None]
    if not (pull.size and pull.min() >= 0 and pull.max() < 1 and pull.any(axis=1).all()):
        problem = "times curvatures must be 0 or more, below 1, and not all 0"
        cure = "Give curvatures in units of 1 / rate."
        raise ConfigError(problem, field="rates", cure=cure)
    # Logarithms of products over all later steps: sums from behind, without the step itself
    log_decay = np.cumsum(np.log1p(-pull[:, ::-1]), axis=1)[:, ::-1] - np.log1p(-pull)
    return pull * np.exp(log_decay) * (rows_of.max() / rows_of)


class SourceExcess(NamedTuple):
    """What is known about a source."""

    icc: float  # share of the variance of its losses between its blocks
    excess: float  # resulting excess loss of its order, relative to a full shuffle
    between: str = "blocks"  # or, in a shuffled store, ``documents``

    def __str__(self) -> str:
        return f"{self.icc:.0%} between {self.between}, {self.excess - 1:+.0%} excess loss"

    def cure(self, cache: str) -> str:
        """What to do about it, for the path of the source's cache."""
        if self.between == "documents":
            return (
                "Shuffle its original once more, with long documents cut at rows: headrace cache"
                " reshuffle ORIGINAL OUTPUT --split SEQ_LEN"
            )
        command = command_line("cache reshuffle", cache, "OUTPUT")
        return f"Train on a copy that shuffles documents: {command}"


def source_excess(
    dataset: PlannedDataset,
    steps: int | None,
    icc: Mapping[str, float],
    schedule: str = "wsd",
    optimizer: str = "adam",
) -> dict[str, SourceExcess]:
    """The excess loss of each source of a mixture whose ICC is known.

    Args:
        dataset: The mixture, or its phases, of which the first is used.
        steps: Steps of the run; None: a pass over each source.
        icc: Share of the variance between blocks of one stored chunk (in a shuffled store, between
            documents), by source; for other sources, what ``headrace cache inspect CACHE --icc
            --save`` has written next to their caches.
        schedule: Learning rates of the run: one of :data:`SCHEDULES`.
        optimizer: One of :data:`OPTIMIZERS`.

    Raises:
        ConfigError: no such schedule or optimizer; a share for an unknown source, or below 0 or
            above 1.
    """
    mixture = mixture_of(dataset.at_step(0)[0])
    check_choice("schedule", schedule, list(SCHEDULES))
    check_choice("optimizer", optimizer, list(OPTIMIZERS))
    if mixture is None:
        return {}
    for name in icc:
        if name not in mixture.names:
            raise ConfigError(
                "is not a component",
                field="icc",
                value=name,
                cure=did_you_mean(name, mixture.names),
            )
    given_icc = [icc.get(name) for name in mixture.names]
    with ThreadPoolExecutor(16) as pool:
        shares_of_all = list(pool.map(known_shares, mixture.components, given_icc))
    weight = mixture.weights_at(np.asarray([(steps or 1) - 1]))[0]
    by_source: dict[str, SourceExcess] = {}
    for name, component, shares, share in zip(
        mixture.names, mixture.components, shares_of_all, weight.tolist(), strict=True
    ):
        if not shares or not share:
            continue
        order = component.shuffle_order() or Identity(
            component.rows_of_pass or component.length or 1
        )
        rates = None
        rows: float | Float64[np.ndarray, " t"] = share * mixture.batch_schedule.max_size
        if steps is not None:  # of longer runs, the last steps
            rates = SCHEDULES[schedule](min(steps, MOST_STEPS))
            rows = share * mixture.batch_schedule.size_at(np.arange(steps - rates.size, steps))
        by_source[name] = SourceExcess(
            icc.get(name, sum(shares.values())),
            excess_loss(order, rows, shares, rates=rates, optimizer=optimizer),
            "documents" if component.in_shuffled_store else "blocks",
        )
    return by_source


def _sample_rows(
    weight: Float64[np.ndarray, "k t"], rows_of: Float64[np.ndarray, " t"]
) -> tuple[Int64[np.ndarray, " m"], Float64[np.ndarray, "k m"], float]:
    """Positions to look at, the weight of each by curvature, and the factor for a sum over pairs of
    them: all positions of a short run; of a longer one, positions drawn with replacement, more of
    those that weigh more, each divided by its chance. A sum over the pairs of m draws has m (m - 1)
    pairs of draws for each pair of positions.
    """
    steps = weight.shape[1]
    ends = np.cumsum(rows_of)
    total = int(ends[-1])
    if total <= MOST_PLACES:
        rows = np.arange(total)
        return rows, weight[:, _steps_of(rows, ends)], 1.0
    rng = np.random.default_rng(0)
    density = rows_of * np.sqrt(
        (np.square(weight) / np.square(weight).sum(axis=1, keepdims=True)).sum(axis=0)
    )
    chance = density / density.sum()
    step = np.searchsorted(np.cumsum(chance), rng.random(MOST_PLACES), side="right").clip(
        max=steps - 1
    )
    drawn = ends[step] - rng.random(MOST_PLACES) * rows_of[step]
    rows, times = np.unique(np.minimum(drawn.astype(np.int64), total - 1), return_counts=True)
    step = _steps_of(rows, ends)
    factor = weight[:, step] * rows_of[step] / chance[step] * times
    return rows, factor, 1.0 / (MOST_PLACES * (MOST_PLACES - 1.0))


def _steps_of(
    rows: Int64[np.ndarray, " m"], ends: Float64[np.ndarray, " t"]
) -> Int64[np.ndarray, " m"]:
    return np.minimum(np.searchsorted(ends, rows, side="right"), ends.size - 1)
