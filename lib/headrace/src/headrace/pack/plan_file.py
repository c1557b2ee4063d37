"""Pack plans on disk, next to the cache: written while planning, read in pieces.

``<folder>/<fingerprint>/`` holds integer vectors, each with digests of its pieces
(:mod:`headrace.store.vectors`): ``bounds.bin`` (where the items of each pack begin),
``document.bin``, ``size.bin``, ``start.bin`` (where each item begins, in tokens of the whole cache)
and, if documents were cut, ``offset.bin``. ``plan.json`` is written last: the plan's inputs, its
counts, a digest of every file, and one of itself. The fingerprint covers the content, the
algorithm's version and every flag, so each request has its own plan and no other request finds it.

Invariant: every read of an opened plan returns, byte for byte, the requested plan, or raises an
error. Price: 16 to 20 bytes a document on disk, and 8 a pack. Opening reads the record and 32 bytes
for each 64 KiB of these, 9 MB for a billion documents; a plan of up to 64 MiB is verified at once.
Planning holds one chunk of documents with ``windowed``, ``next_fit`` and ``wrap``; the algorithms
that sort need 70 bytes per document.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Iterable
from contextlib import closing
from dataclasses import asdict, dataclass, field
from typing import Any, cast

import msgspec
import numpy as np
from jaxtyping import Int64

from headrace.errors import CacheCorruptError, CacheError, ConfigError, PlanMismatchError
from headrace.pack.items import Items, PackCounts, Packed, check_lengths, no_offsets
from headrace.pack.plan import PackPlan, PlanDigest, no_packs, plan_of
from headrace.pack.spec import PackSpec
from headrace.pack.starts import DocumentStarts
from headrace.pack.stream import PackStream
from headrace.progress import report, track
from headrace.store import files
from headrace.store.ahead import ItemsAhead
from headrace.store.vectors import PiecedVector, VectorWriter, damaged

PLAN_NAME = "plan.json"
FORMAT_VERSION = 1

_LOG = logging.getLogger(__name__)
_CHUNK = 1 << 20  # packs written at a time
_REQUIRED = {"bounds", "document", "size"}
_SMALL = 1 << 26  # plans up to this many bytes are verified (and, if remote, read) when opened


@dataclass(frozen=True)
class PlanRequest:
    """What determines a plan."""

    content: str  # fingerprint of the documents, for example their cache's
    num_documents: int  # number of documents
    spec: PackSpec  # how they are packed
    # Anything else that changes lengths or documents (removed documents, a chat template, ...), as
    # JSON values
    flags: dict[str, Any] = field(default_factory=dict[str, Any])

    def describe(self) -> dict[str, Any]:
        """As JSON values."""
        return {
            "content": self.content,
            "documents": self.num_documents,
            "spec": self.spec.describe(),
            "flags": self.flags,
            "format_version": FORMAT_VERSION,
        }

    @property
    def fingerprint(self) -> str:
        """Hex digest; the name of the plan's folder.

        Example:
            >>> a = PlanRequest("sha256:ab", 10, PackSpec(2048))
            >>> a.fingerprint == PlanRequest("sha256:ab", 10, PackSpec(2048)).fingerprint
            True
            >>> a.fingerprint == PlanRequest("sha256:ab", 10, PackSpec(2048, "ffd")).fingerprint
            False
        """
        return _fingerprint(self.describe())


def open_plan(
    folder: str,
    request: PlanRequest,
    lengths: Callable[[], Iterable[Int64[np.ndarray, " n"]]],
    array_documents: object = None,
    *,
    starts: DocumentStarts | None = None,
    rebuild: bool = True,
) -> PackPlan:
    """Opens the plan from a folder of plans, or makes it and saves it there.

    Several processes may do this at once: they write the same bytes, under temporary names of their
    own until complete.

    Args:
        folder: Its path or URL.
        request: What determines the plan.
        lengths: Returns the lengths of all documents, in chunks; called only if the plan has to be
            made.
        array_documents: See :func:`~headrace.pack.plan.plan_packs`.
        starts: Where documents begin, filled in by ``lengths`` as it runs; saved with the plan.
            None: looked up.
        rebuild: Whether a damaged plan is rebuilt, with a warning; otherwise it is an error.

    Raises:
        CacheCorruptError: the plan is damaged and ``rebuild`` is false.
        PlanMismatchError: the plan of that name belongs to another request (somebody moved it
            there).
        ConfigError: the documents give no packs, or are not as many as the request says.
        CacheError: the folder cannot be written.
    """
    try:
        stored = read_plan(folder, request)
    except CacheCorruptError as error:
        if not rebuild:
            raise
        _LOG.warning("the pack plan is made again: %s", error)
        stored = None
    if stored is not None:
        return stored
    write_plan(folder, request, lengths(), array_documents, starts)
    plan = read_plan(folder, request)
    if plan is None:
        raise CacheError(
            "was deleted while it was made",
            field="plan",
            value=files.join(folder, request.fingerprint),
        )
    return plan


def read_plan(folder: str, request: PlanRequest) -> PackPlan | None:
    """The saved plan of a request; None if there is none. On a local disk its arrays are
    memory-mapped; elsewhere a small plan is read whole, a large one piece by piece.

    Raises:
        CacheCorruptError: a file is missing or damaged; in a large plan, also when a damaged piece
            is read later.
        PlanMismatchError: the plan belongs to another request.
    """
    root = files.join(folder, request.fingerprint)
    record = _read(root)
    if record is None:
        return None
    if record.request != json.loads(json.dumps(request.describe())):
        raise PlanMismatchError(
            f"is the plan of another request: {record.request}, not {request.describe()}",
            field="plan",
            value=root,
            cure="Delete the folder; it is made again.",
        )
    vectors = _vectors(root, record)
    bounds = vectors["bounds"]
    offset = vectors.get("offset", no_offsets(vectors["document"].size))
    items = Items(vectors["document"], offset, vectors["size"])
    start = vectors.get("start")
    sizes = {vector.size for vector in (*items, items.size if start is None else start)}
    if not bounds.size or sizes != {int(bounds[-1])}:
        raise _damaged(root, "its arrays are not of one length")
    plan = PackPlan(request.spec, bounds, items, record.counts, start)
    # presets the cached_property: the digests of the record and vectors guarantee it
    vars(plan)["checksum"] = record.checksum
    vars(plan)["max_items"] = record.max_items
    return plan


def _vectors(root: str, record: _Record) -> dict[str, np.ndarray]:
    """The vectors of a plan: arrays or, for a large plan, objects that index and convert like
    arrays.
    """
    try:
        vectors = {
            name: _load(files.join(root, f"{name}.bin"), one) for name, one in record.arrays.items()
        }
    except (ValueError, KeyError, TypeError, OverflowError) as error:
        raise _damaged(root, f"{PLAN_NAME} does not describe its arrays ({error})") from error
    if missing := _REQUIRED - set(vectors):
        raise _damaged(root, f"{PLAN_NAME} does not list {sorted(missing)}")
    if sum(vector.size * vector.dtype.itemsize for vector in vectors.values()) <= _SMALL:
        vectors = {name: vector.loaded() for name, vector in vectors.items()}
    return cast("dict[str, np.ndarray]", vectors)


def plan_findings(folder: str) -> list[tuple[str, str]]:
    """Problems of the plans in a folder, as (file, problem) pairs: each plan must be under its own
    name, and its files as they were written, which reads them. Folders without a record belong to
    plans still being written.

    Example:
        >>> plan_findings("nowhere/plans")
        []
    """
    findings: list[tuple[str, str]] = []
    for name in files.names_in(folder):
        root = files.join(folder, name)
        try:
            record = _read(root)
            if record is None:
                continue
            if _fingerprint(record.request) != name:
                raise _damaged(root, "is the plan of another request: somebody moved it there")
            for array, one in record.arrays.items():
                np.asarray(_load(files.join(root, f"{array}.bin"), one))
        except CacheCorruptError as error:
            findings.append((str(error.value), error.problem))
        except (ValueError, KeyError, TypeError, OverflowError) as error:
            findings.append(
                (files.join(root, PLAN_NAME), f"does not describe its arrays ({error})")
            )
    return findings


class _Record(msgspec.Struct):
    """The content of ``plan.json``."""

    request: dict[str, Any]
    counts: PackCounts
    checksum: str
    arrays: dict[str, dict[str, Any]]
    max_items: int


# Resolves the type now: msgspec dies if two threads do so at once (store.records).
msgspec.json.Decoder(_Record)


def _read(root: str) -> _Record | None:
    """The record of a plan, None if there is none."""
    url = files.join(root, PLAN_NAME)
    raw = files.read_bytes(url)
    if raw is None:
        return None
    try:
        values = json.loads(raw)
        digest = values.pop("digest")
        record = msgspec.convert(values, _Record)
    except (
        ValueError,
        KeyError,
        TypeError,
        AttributeError,
        RecursionError,
        msgspec.ValidationError,
    ) as error:
        raise _damaged(url, f"{PLAN_NAME} is not a plan's record ({error})") from error
    if digest != _fingerprint(values):
        raise _damaged(url, "is not as it was written: its digest is of another text")
    return record


def _fingerprint(values: dict[str, Any]) -> str:
    canonical = json.dumps(values, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()[:32]


def write_plan(
    folder: str,
    request: PlanRequest,
    lengths: Iterable[Int64[np.ndarray, " n"]],
    array_documents: object = None,
    starts: DocumentStarts | None = None,
) -> None:
    """Makes and saves the plan of a request, in bounded memory if the algorithm allows it: reading
    lengths, planning and writing overlap.

    Raises:
        ConfigError: the documents give no packs, or are not as many as the request says.
        CacheError: the folder cannot be written.
    """
    longest = 0

    def check(some: object) -> Int64[np.ndarray, " n"]:
        nonlocal longest
        values = check_lengths(some)
        longest = max(longest, int(values.max(initial=0)))
        return values

    root = files.join(folder, request.fingerprint)
    writer = _Writer(root, request.num_documents, starts)
    try:
        with closing(ItemsAhead(map(check, lengths))) as checked:
            counts = _write_packs(writer, request, checked, array_documents)
        if counts.documents != request.num_documents:
            raise ConfigError(
                f"differs from the {counts.documents:,} lengths",
                field="num_documents",
                value=request.num_documents,
            )
        if counts.packs == 0:
            raise no_packs(counts, longest)
        packs = writer.finish()
    except BaseException:
        writer.abort()
        raise
    record = {"request": request.describe(), "counts": asdict(counts), **packs}
    text = json.dumps({**record, "digest": _fingerprint(record)}, indent=1, sort_keys=True) + "\n"
    files.write_atomic(files.join(root, PLAN_NAME), text.encode(), shared=True)


def _write_packs(
    writer: _Writer,
    request: PlanRequest,
    lengths: ItemsAhead[Int64[np.ndarray, " n"]],
    array_documents: object,
) -> PackCounts:
    """Plans and writes, at the same time if the algorithm allows it."""
    if not request.spec.in_order:
        read = track(lengths, "reading lengths", request.num_documents, size=len)
        plan = plan_of(
            request.spec, np.concatenate([np.zeros(0, np.int64), *read]), array_documents
        )
        for packed in plan.chunks():
            writer.append(packed)
        return plan.counts
    stream = PackStream(request.spec, array_documents)
    with closing(ItemsAhead(stream.plan(lengths))) as planned:
        for packed in planned:
            writer.append(packed)
            report("packing", stream.counts.documents, request.num_documents)
    return stream.counts


class _Writer:
    """Writes the files of a plan; complete files replace existing ones, all at the end."""

    def __init__(self, root: str, num_documents: int, starts: DocumentStarts | None) -> None:
        self._digest = PlanDigest()
        self._starts = starts
        self._cut = False
        self._items = self._most = 0
        dtypes = {
            "bounds": "<i8",
            "document": "<u4" if num_documents <= 1 << 32 else "<i8",
            "offset": "<u4",
        }
        dtypes |= {"size": "<u4"} | ({} if starts is None else {"start": "<i8"})
        self._files = {
            name: VectorWriter(files.join(root, f"{name}.bin"), d, "plan")
            for name, d in dtypes.items()
        }
        self._files["bounds"].append(np.zeros(1, np.int64))

    def append(self, packed: Packed) -> None:
        items = packed.items
        self._digest.add(packed)
        vectors = {"bounds": np.cumsum(packed.item_counts) + self._items, **items._asdict()}
        if not self._cut and items.offset.any():
            self._cut = True
            for at in range(0, self._items, _CHUNK):
                self._files["offset"].append(np.zeros(min(_CHUNK, self._items - at), np.int64))
        if not self._cut:
            del vectors["offset"]
        if self._starts is not None:
            vectors["start"] = self._starts.of(items.document) + items.offset
            if packed.item_counts.size:  # packs arrive ordered by their first documents
                self._starts.forget(int(items.document[-packed.item_counts[-1]]))
        for name, values in vectors.items():
            self._files[name].append(values)
        self._items += items.document.size
        self._most = max(self._most, int(packed.item_counts.max(initial=0)))

    def finish(self) -> dict[str, Any]:
        """Returns the record's fields about the packs."""
        if not self._cut:
            del self._files["offset"]
        arrays = {name: f.finish() for name, f in self._files.items()}
        return {"arrays": arrays, "checksum": self._digest.hexdigest(), "max_items": self._most}

    def abort(self) -> None:
        for f in self._files.values():
            f.abort()


def _load(url: str, record: dict[str, Any]) -> PiecedVector:
    """A vector of a plan, which verifies each piece as it reads it."""
    return PiecedVector(url, record, "plan")


def _damaged(url: str, problem: str) -> CacheCorruptError:
    return damaged(url, problem, "plan")
