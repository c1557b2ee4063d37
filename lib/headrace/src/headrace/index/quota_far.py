"""Far steps of a ``Quota`` without the walk there, where weights are constant: the order forgets how it began.

What a quota hands out depends on the past through one bit a component: whether its next example was drawn already. Let
weights be constant from some step on, and start from two different states there, with the same shares and as many
examples drawn in all. Both serve the same examples in the same order of deadlines, as many in each step. Take the
examples that one has drawn and the other has not. At a step, what enters this set is earlier than something that stays
in it, since both cut one order: so **the latest deadline in the set never moves**, and when it has passed, the two are
equal. An example's deadline is one example of its component away, P = 1 / weight examples of the mixture: a run that
starts from a guess is exact after P examples, if the guess can keep its deadlines. Drawing what is due first is such a
guess, as everything that it leaves is due later than what another state leaves.

So the state before a far step is: the shares there (weights times examples, in whole numbers), the guess 2 P examples
earlier, and a walk of 2 P examples. The factor 2 is for deadlines that are compared in float64 (index/quota.py) and may
change places if they differ by less than one part in 2**36.

It needs components without weight to be owed nothing (else the others can be late for ever), no limit on the way, and
P up to 2**32. Tested against the walk. Price: 2 P examples, e.g. 20 steps if the rarest weight is 1e-4 and the batch
1024.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Bool, Int64

from headrace.index.shares import BITS, ONE, PART, UNLIMITED

NEVER = 1 << 62
"""More examples than any run has."""
_LONGEST = 1 << 32


def deadline_order(
    part: Int64[np.ndarray, "n d"], rate: Int64[np.ndarray, "n d"], may: Bool[np.ndarray, "n d"], id_bits: int
) -> Int64[np.ndarray, "n d"]:
    """Components in the order in which they are due, row by row; those that may not be drawn last.

    Args:
        part: Share above the last whole example, margin included, in 2**-44 examples.
        rate: Weights in 2**-44.
        may: Who may be drawn.
        id_bits: Bits of the largest component number.

    Example:
        >>> half = np.array([[ONE // 2, ONE // 2, 0]])
        >>> deadline_order(half, np.array([[1, 3, 2]]), np.array([[True, True, False]]), 2)[0, :2]
        array([1, 0])
    """
    # Positive floats sort like their bits: the component's number replaces the lowest ones, which makes the sort
    # total, and fast (no argsort). Two deadlines that differ by less than 2**-36 may thus change places.
    deadline = ((ONE - part) / np.maximum(rate, 1)).view(np.int64)
    low = (1 << id_bits) - 1
    key = np.where(may, (deadline & ~low) | np.arange(part.shape[1]), np.iinfo(np.int64).max)
    key.sort(axis=1)
    return key & low


def longest_wait(rate: Int64[np.ndarray, " d"]) -> int:
    """P: examples of the mixture for one of its rarest component; ``NEVER`` if that is too long to be exact.

    Example:
        >>> longest_wait(np.array([ONE // 4, 0, 3 * ONE // 4]))
        5
    """
    wait = ONE // int(rate[rate > 0].min()) + 1
    return wait if wait <= _LONGEST else NEVER


def shares_after(
    whole: Int64[np.ndarray, " d"], part: Int64[np.ndarray, " d"], rate: Int64[np.ndarray, " d"], examples: int
) -> tuple[Int64[np.ndarray, " d"], Int64[np.ndarray, " d"]]:
    """Shares after so many more examples at constant rates, exactly.

    Example:
        >>> whole, part = shares_after(np.array([1, 0]), np.array([0, 0]), np.array([ONE // 4, 3 * ONE // 4]), 6)
        >>> whole.tolist(), (part / ONE).tolist()
        ([2, 4], [0.5, 0.5])
    """
    sums = [int(p) + int(r) * examples for p, r in zip(part, rate, strict=True)]  # beyond 64 bits
    return whole + np.array([x >> BITS for x in sums]), np.array([x & PART for x in sums])


def room_before_limits(
    whole: Int64[np.ndarray, " d"],
    part: Int64[np.ndarray, " d"],
    rate: Int64[np.ndarray, " d"],
    limits: Int64[np.ndarray, " d"],
) -> int:
    """Examples of the mixture during which no share comes within two examples of its limit; below 0: none."""
    room = [
        ((int(most) - 2 - int(w)) * ONE - int(p)) // int(r)
        for w, p, r, most in zip(whole, part, rate, limits, strict=True)
        if r > 0 and most < UNLIMITED
    ]
    return min(room, default=NEVER)


def due_first(
    whole: Int64[np.ndarray, " d"],
    part: Int64[np.ndarray, " d"],
    rate: Int64[np.ndarray, " d"],
    frozen: Int64[np.ndarray, " d"],
    total: int,
    delta: int,
    id_bits: int,
) -> Int64[np.ndarray, " d"] | None:
    """The guess: what is due, and of the rest what is due first.

    Args:
        whole: Whole part of the shares.
        part: The rest of them.
        rate: Weights.
        frozen: Examples drawn of components whose rate is 0.
        total: Examples drawn in all.
        delta: Margin of the quota.
        id_bits: See :func:`deadline_order`.

    Returns:
        Examples drawn of each component, None if they cannot sum to ``total``.
    """
    with_margin = part + delta
    drawn = np.where(rate > 0, whole + (with_margin >> BITS), frozen)
    with_margin &= PART
    may = (with_margin >= 2 * delta) & (rate > 0)
    need = total - int(drawn.sum())
    if not 0 <= need <= may.sum():
        return None
    order = deadline_order(with_margin[None], rate[None], may[None], id_bits)[0]
    drawn[order[:need]] += 1
    return drawn
