"""The plan of a cache's documents: found beside the cache, or made and saved there.

Documents that belong together (the two answers of a preference pair) are one *unit*: the plan that is saved packs
units, and the one that is given back has their documents, so that a pack never parts them.

Price: to make a plan, the offsets of all documents are read, 8 bytes each; to open one, next to nothing.
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
from headrace.pack.items import Items, PackCounts, no_offsets
from headrace.pack.plan import PackPlan
from headrace.pack.plan_file import PlanRequest, open_plan
from headrace.pack.spec import PackSpec
from headrace.pack.starts import DocumentStarts
from headrace.store import files
from headrace.store.cache import TokenCache

_LOG = logging.getLogger(__name__)
PLANS_FOLDER = "plans"
"""Where a cache's plans lie, in its own folder."""
_CHUNK = 1 << 20  # documents whose lengths are read at a time


def plan_of_cache(
    cache: TokenCache, spec: PackSpec, gone: NumberSet, folder: str | None = None, unit: int = 1, digest: str = ""
) -> tuple[PackPlan, str]:
    """The plan of a cache.

    Args:
        cache: The cache.
        spec: How its documents are packed; with units, it must not cut them.
        gone: Documents that are left out.
        folder: Folder or URL for plans; None: ``plans`` in the cache's own folder.
        unit: So many neighbouring documents are one unit; of a unit that lacks a document, none is packed.
        digest: That of ``gone``, if it is known.

    Returns:
        The plan, its documents numbered as in the cache, and where it is saved.

    Raises:
        ConfigError: nothing to pack; a cache that is read over HTTP, and no folder; documents that are not whole units.
        CacheError: the cache cannot be read, or the plan cannot be written.

    Example:
        >>> import headrace.testing
        >>> from headrace.order.intervals import Intervals
        >>> cache = headrace.testing.tiny_cache(documents=50)
        >>> plan, _ = plan_of_cache(cache, PackSpec(64, "bfd", "split"), Intervals.empty())
        >>> plan.counts.packed_tokens == cache.num_tokens
        True
    """
    if folder is None and files.is_web(cache.path):
        raise ConfigError(
            "cannot be written beside a cache that is read over HTTP", field="plans", cure="Give a folder: plans=..."
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
    plan = open_plan(root, request, lengths, [n // unit for n in per_array], starts=starts)
    plan = of_documents(plan, cache, unit)
    _LOG.info("packed %s: %s", cache.path, plan.record())
    return plan, files.join(root, request.fingerprint)


def unit_lengths(
    cache: TokenCache, gone: NumberSet, unit: int = 1, starts: DocumentStarts | None = None
) -> Iterator[Int64[np.ndarray, " n"]]:
    """Tokens of all units, chunk after chunk; those that are left out are empty, so that numbers stay. Says to
    ``starts`` where documents begin.
    """
    for of_unit in _lengths_in_units(cache, gone, unit, starts):
        yield np.where((of_unit > 0).all(axis=1), of_unit.sum(axis=1), 0) if unit > 1 else of_unit[:, 0]


def incomplete_documents(cache: TokenCache, gone: NumberSet, unit: int) -> int:
    """Documents with tokens that are not left out and yet in no unit, as another of theirs is left out or empty.

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
    """Tokens of all documents, a row a unit, chunk after chunk; 0 for those that are left out."""
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
    """First token of each document, in the stream of all parts, and the number of all tokens."""
    first = np.empty(cache.num_documents + 1, np.int64)
    first[0] = 0
    for at in range(0, cache.num_documents, _CHUNK):
        stop = min(at + _CHUNK, cache.num_documents)
        np.cumsum(cache.lengths(at, stop), out=first[at + 1 : stop + 1])
        first[at + 1 : stop + 1] += first[at]
    return first


def of_documents(plan: PackPlan, cache: TokenCache, unit: int) -> PackPlan:
    """A plan of units as one of their documents."""
    if unit == 1:
        return plan
    document = (np.asarray(plan.items.document, np.int64)[:, None] * unit + np.arange(unit)).reshape(-1)
    size = np.diff(first_tokens(cache))[document]
    of_units = vars(plan.counts)
    counts = PackCounts(**{n: v * unit if n.endswith(("documents", "items")) else v for n, v in of_units.items()})
    items = Items(document, no_offsets(document.size), size)
    return dataclasses.replace(plan, bounds=np.asarray(plan.bounds) * unit, items=items, counts=counts)


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
