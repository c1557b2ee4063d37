"""The plan of a cache's documents: loaded from the cache's folder, or made and saved there.

Documents that belong together (the two answers of a preference pair) are one *unit*: the saved plan
packs units, and the returned one lists their documents, so that a pack never separates them.

Price: making a plan reads the offsets of all documents, 8 bytes each; opening one costs next to
nothing.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
from jaxtyping import Int64

from headrace.errors import ConfigError
from headrace.order.bits import NumberSet
from headrace.pack.items import POLICIES, Items, PackCounts, no_offsets
from headrace.pack.plan import TRUNCATE, PackPlan
from headrace.pack.plan_file import PlanRequest, open_plan
from headrace.pack.spec import PackSpec
from headrace.pack.starts import DocumentStarts
from headrace.store import files
from headrace.store.cache import TokenCache

_LOG = logging.getLogger(__name__)
PLANS_FOLDER = "plans"
"""Folder of the plans within a cache."""
_CHUNK = 1 << 20  # documents per read of lengths


def plan_of_cache(
    cache: TokenCache,
    spec: PackSpec,
    gone: NumberSet,
    folder: str | None = None,
    unit: int = 1,
    digest: str = "",
) -> tuple[PackPlan, str]:
    """The plan of a cache.

    Args:
        cache: The cache.
        spec: How its documents are packed; with units, it must not cut documents.
        gone: Documents to leave out.
        folder: Folder or URL for plans; None: ``plans`` in the cache's own folder.
        unit: Number of neighbouring documents in a unit; a unit that lacks a document is not packed
            at all.
        digest: Digest of ``gone``, if known.

    Returns:
        The plan, with documents numbered as in the cache, and where it is saved.

    Raises:
        ConfigError: nothing to pack; nothing is written beside this cache and no folder is given;
            incomplete units.
        CacheError: the cache cannot be read, or the plan cannot be written.

    Example:
        >>> import headrace.testing
        >>> from headrace.order.intervals import Intervals
        >>> cache = headrace.testing.tiny_cache(documents=50)
        >>> plan, _ = plan_of_cache(cache, PackSpec(64, "bfd", "split"), Intervals.empty())
        >>> plan.counts.packed_tokens == cache.num_tokens
        True
    """
    if folder is None and not cache.takes_files:
        raise ConfigError(
            f"cannot be written beside {cache.path}: on a web server, and beside the files of"
            " other systems, nothing is",
            field="plans",
            cure="Give a folder: --plans FOLDER, or packing: {plans: FOLDER} in a config.",
        )
    per_array: list[int] = cache.part_documents.tolist()
    if unit > 1:
        _check_units(per_array, unit, cache.path)
    flags: dict[str, Any] = {} if unit == 1 else {"unit": unit}
    if gone.total:
        flags["removed"] = digest or gone.digest()
    request = PlanRequest(cache.fingerprint, cache.num_documents // unit, spec, flags)
    root = folder or files.join(cache.path, PLANS_FOLDER)
    starts = DocumentStarts() if unit == 1 else None
    lengths = partial(unit_lengths, cache, gone, unit, starts)
    try:
        plan = open_plan(root, request, lengths, [n // unit for n in per_array], starts=starts)
    except ConfigError as error:
        if unit == 1 or error.cure is None:
            raise
        # What belongs together is never cut
        cure = error.cure.replace(f", or {TRUNCATE}", "").replace(POLICIES, "drop")
        raise error.but(cure=cure) from error
    plan = of_documents(plan, cache, unit)
    _LOG.info("packed %s: %s", cache.path, plan.record())
    return plan, files.join(root, request.fingerprint)


def unit_lengths(
    cache: TokenCache, gone: NumberSet, unit: int = 1, starts: DocumentStarts | None = None
) -> Iterator[Int64[np.ndarray, " n"]]:
    """Tokens of all units, in chunks; units left out get length 0, so that numbering stays. Tells
    ``starts`` where documents begin.
    """
    for of_unit in _lengths_in_units(cache, gone, unit, starts):
        yield (
            np.where((of_unit > 0).all(axis=1), of_unit.sum(axis=1), 0)
            if unit > 1
            else of_unit[:, 0]
        )


def incomplete_documents(cache: TokenCache, gone: NumberSet, unit: int) -> int:
    """Documents with tokens that are not left out but whose unit lacks another document (left out
    or empty).

    Example:
        >>> import headrace.testing
        >>> from headrace.order.intervals import Intervals
        >>> cache = headrace.testing.tiny_cache(documents=50)
        >>> incomplete_documents(cache, Intervals.of_numbers(np.array([3, 6, 7])), unit=2)
        1
    """
    has_tokens = ((of_unit > 0) for of_unit in _lengths_in_units(cache, gone, unit))
    return sum(int(of_unit[~of_unit.all(axis=1)].sum()) for of_unit in has_tokens)


def _lengths_in_units(
    cache: TokenCache, gone: NumberSet, unit: int, starts: DocumentStarts | None = None
) -> Iterator[Int64[np.ndarray, "n unit"]]:
    """Tokens of all documents, one row per unit, in chunks; 0 for documents left out."""
    step = _CHUNK // unit * unit
    for at in range(0, cache.num_documents, step):
        stop = min(at + step, cache.num_documents)
        lengths = cache.lengths(at, stop)
        if starts is not None:
            starts.add(lengths)
        if gone.total:
            lengths[gone.mask(at, stop)] = 0
        yield lengths.reshape(-1, unit)


def first_tokens(cache: TokenCache) -> Int64[np.ndarray, " n1"]:
    """First token of each document in the stream of all parts, and the total number of tokens."""
    first = np.empty(cache.num_documents + 1, np.int64)
    first[0] = 0
    for at in range(0, cache.num_documents, _CHUNK):
        stop = min(at + _CHUNK, cache.num_documents)
        np.cumsum(cache.lengths(at, stop), out=first[at + 1 : stop + 1])
        first[at + 1 : stop + 1] += first[at]
    return first


def of_documents(plan: PackPlan, cache: TokenCache, unit: int) -> PackPlan:
    """Converts a plan of units into one of documents."""
    if unit == 1:
        return plan
    document = (
        np.asarray(plan.items.document, np.int64)[:, None] * unit + np.arange(unit)
    ).reshape(-1)
    size = np.diff(first_tokens(cache))[document]
    of_units = vars(plan.counts)
    counts = PackCounts(
        **{n: v * unit if n.endswith(("documents", "items")) else v for n, v in of_units.items()}
    )
    items = Items(document, no_offsets(document.size), size)
    return dataclasses.replace(
        plan, bounds=np.asarray(plan.bounds) * unit, items=items, counts=counts
    )


def _check_units(per_array: list[int], unit: int, path: str) -> None:
    odd = [n for n in per_array if n % unit]
    if odd:
        raise ConfigError(
            f"has a part of {odd[0]:,} documents, which are not whole units of {unit}",
            field="cache",
            value=path,
            cure="Preference rows come in pairs: chosen, rejected. Build it with --kind preference."
            if unit == 2
            else None,
        )
