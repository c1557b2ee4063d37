"""Pack plans on disk, beside the cache: raw arrays, written as they are planned and mapped into memory when opened.

``<folder>/<fingerprint>/`` holds ``held.bin`` (items of each pack), ``document.bin``, ``size.bin`` and, where documents
were cut, ``offset.bin``: little-endian integers; and, written last, ``plan.json``: what the plan was made from, its
counts, a digest of every file, and one of itself (which plans of 0.2 lack). The fingerprint covers the content, the
algorithm's version and every flag, so one request has one plan file, and another request never finds it.

Invariant: an opened plan is, byte for byte, the plan that was asked for, or there is an error. Price: 8 to 12 bytes a
document on disk, read once to check its digests (1.5 GB/s); in memory 8 bytes a pack. Planning 1e8 documents holds a
chunk of them with ``windowed``, ``next_fit`` and ``wrap``; the algorithms that sort need 60 bytes a document, 6 GB.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import uuid
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from typing import IO, Any, cast

import numpy as np
from jaxtyping import Int64

from headrace.errors import CacheCorruptError, CacheError, ConfigError, PlanMismatchError
from headrace.pack.items import Items, PackCounts, Packed, check_lengths, no_offsets
from headrace.pack.plan import PackPlan, PlanDigest, no_packs, plan_of
from headrace.pack.spec import PackSpec
from headrace.pack.stream import PackStream
from headrace.store import durable, files

PLAN_NAME = "plan.json"
FORMAT_VERSION = 1

_LOG = logging.getLogger(__name__)
_CHUNK = 1 << 20  # packs written at a time
_ARRAYS = ("held", "document", "offset", "size")


@dataclass(frozen=True)
class PlanRequest:
    """What determines a plan."""

    content: str  # fingerprint of the documents, e.g. of their cache
    num_documents: int  # how many there are
    spec: PackSpec  # how they are packed
    # Whatever else changes lengths or documents (removed documents, a chat template, ...), JSON values
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
        """Hex digest: the name of the plan's folder.

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
    rebuild: bool = True,
) -> PackPlan:
    """The plan in a folder of plans; made, and saved there, unless it is there.

    Several processes may do this at the same time: they write the same bytes, under names of their own until they are
    complete.

    Args:
        folder: Its path or URL.
        request: What is asked for.
        lengths: Gives the lengths of all documents, chunk after chunk; called only if the plan has to be made.
        array_documents: See :func:`~headrace.pack.plan.plan_packs`.
        rebuild: Whether a damaged plan is made again, with a warning; otherwise it is an error.

    Raises:
        CacheCorruptError: the plan is damaged, and ``rebuild`` is false.
        PlanMismatchError: a plan of that name is of another request: somebody moved it there.
        ConfigError: the documents give no packs, or are not as many as the request says.
        CacheError: the folder cannot be written.
    """
    try:
        found = read_plan(folder, request)
    except CacheCorruptError as error:
        if not rebuild:
            raise
        _LOG.warning("the pack plan is made again: %s", error)
        found = None
    if found is not None:
        return found
    write_plan(folder, request, lengths(), array_documents)
    made = read_plan(folder, request)
    if made is None:
        raise CacheError("was deleted while it was made", field="plan", value=files.join(folder, request.fingerprint))
    return made


def read_plan(folder: str, request: PlanRequest) -> PackPlan | None:
    """The plan of a request; None if there is none. On a local disk its arrays are mapped, elsewhere read.

    Raises:
        CacheCorruptError: a file is missing or damaged.
        PlanMismatchError: the plan is of another request.
    """
    root = files.join(folder, request.fingerprint)
    raw = files.read_bytes(files.join(root, PLAN_NAME))
    if raw is None:
        return None
    made_for, counts, checksum, arrays = _parsed(raw, root)
    if made_for != json.loads(json.dumps(request.describe())):
        raise PlanMismatchError(
            f"is the plan of another request: {made_for}, not {request.describe()}",
            field="plan",
            value=root,
            cure="Delete the folder; it is made again.",
        )
    try:
        loaded = {name: _load(files.join(root, f"{name}.bin"), arrays[name]) for name in _ARRAYS if name in arrays}
    except (ValueError, KeyError, TypeError, OverflowError) as error:
        raise _damaged(root, f"{PLAN_NAME} does not describe its arrays ({error})") from error
    if missing := {"held", "document", "size"} - set(loaded):
        raise _damaged(root, f"{PLAN_NAME} does not list {sorted(missing)}")
    bounds = np.zeros(loaded["held"].size + 1, np.int64)
    np.cumsum(loaded["held"], out=bounds[1:])
    items = Items(loaded["document"], loaded.get("offset", no_offsets(loaded["document"].size)), loaded["size"])
    if not bounds[-1] == items.document.size == items.offset.size == items.size.size:
        raise _damaged(root, "its arrays are not of one length")
    plan = PackPlan(request.spec, bounds, items, counts)
    vars(plan)["checksum"] = checksum  # what cached_property would keep; the files' digests were compared
    return plan


def plan_findings(folder: str) -> list[tuple[str, str]]:
    """What is wrong with the plans in a folder of plans, as (file, problem) pairs: each must lie under its own name,
    and its files must be as they were written, for which they are read. Folders without a record are of plans to come.

    Example:
        >>> plan_findings("nowhere/plans")
        []
    """
    fs, path = files.filesystem(folder)
    try:
        with files.client_errors(folder):
            names = sorted(str(entry).rstrip("/").rsplit("/", 1)[-1] for entry in fs.ls(path, detail=False))
    except (FileNotFoundError, NotADirectoryError):
        return []
    found: list[tuple[str, str]] = []
    for name in names:
        root = files.join(folder, name)
        if (raw := files.read_bytes(files.join(root, PLAN_NAME))) is None:
            continue
        try:
            request, _, _, arrays = _parsed(raw, root)
            if _fingerprint(request) != name:
                raise _damaged(root, "is the plan of another request: somebody moved it there")
            for array in _ARRAYS:
                if array in arrays:
                    _load(files.join(root, f"{array}.bin"), arrays[array])
        except CacheCorruptError as error:
            found.append((str(error.value), error.problem))
        except (ValueError, KeyError, TypeError, OverflowError) as error:
            found.append((files.join(root, PLAN_NAME), f"does not describe its arrays ({error})"))
    return found


def _parsed(raw: bytes, root: str) -> tuple[dict[str, Any], PackCounts, str, dict[str, Any]]:
    """Request, counts, checksum and arrays of a plan's record."""
    url = files.join(root, PLAN_NAME)
    try:
        record = json.loads(raw)
        digest = record.pop("digest", None)
        parsed = (
            dict(record["request"]),
            PackCounts(**record["counts"]),
            str(record["checksum"]),
            dict(record["arrays"]),
        )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise _damaged(url, f"{PLAN_NAME} is not a plan's record ({error})") from error
    if digest is not None and digest != _fingerprint(record):
        raise _damaged(url, "is not as it was written: its digest is of another text")
    return parsed


def _fingerprint(values: dict[str, Any]) -> str:
    canonical = json.dumps(values, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()[:32]


def write_plan(
    folder: str, request: PlanRequest, lengths: Iterable[Int64[np.ndarray, " n"]], array_documents: object = None
) -> None:
    """Makes the plan of a request and saves it, in bounded memory if the algorithm allows that.

    Raises:
        ConfigError: the documents give no packs, or are not as many as the request says.
        CacheError: the folder cannot be written.
    """
    checked = map(check_lengths, lengths)
    root = files.join(folder, request.fingerprint)
    writer = _Writer(root, request.num_documents)
    try:
        if request.spec.in_order:
            stream = PackStream(request.spec, array_documents)
            for packed in stream.plan(checked):
                writer.append(packed)
            counts = stream.counts
        else:
            plan = plan_of(request.spec, np.concatenate([np.zeros(0, np.int64), *checked]), array_documents)
            for packed in plan.chunks():
                writer.append(packed)
            counts = plan.counts
        if counts.documents != request.num_documents:
            raise ConfigError(
                f"differs from the {counts.documents:,} lengths", field="num_documents", value=request.num_documents
            )
        if counts.packs == 0:
            raise no_packs(counts)
        arrays, checksum = writer.finish()
    except BaseException:
        writer.abort()
        raise
    record = {"request": request.describe(), "counts": asdict(counts), "checksum": checksum, "arrays": arrays}
    text = json.dumps({**record, "digest": _fingerprint(record)}, indent=1, sort_keys=True) + "\n"
    files.write_atomic(files.join(root, PLAN_NAME), text.encode(), writer=f".{uuid.uuid4().hex}")


class _Writer:
    """Files of a plan: complete ones replace what is there, all at the end."""

    def __init__(self, root: str, num_documents: int) -> None:
        self._digest = PlanDigest()
        self._cut = False
        dtype = "<u4" if num_documents <= 1 << 32 else "<i8"
        self._files = {name: _ArrayFile(files.join(root, f"{name}.bin"), "<u4") for name in _ARRAYS}
        self._files["document"].dtype = dtype

    def append(self, packed: Packed) -> None:
        items = packed.items
        self._cut = self._cut or bool(items.offset.any())
        self._digest.add(packed)
        for name, values in zip(_ARRAYS, (packed.held, *items), strict=True):
            self._files[name].append(values)

    def finish(self) -> tuple[dict[str, Any], str]:
        if not self._cut:
            self._files.pop("offset").abort()
        return {name: f.finish() for name, f in self._files.items()}, self._digest.hexdigest()

    def abort(self) -> None:
        for f in self._files.values():
            f.abort()


class _ArrayFile:
    def __init__(self, url: str, dtype: str) -> None:
        self.url, self.dtype = url, dtype
        self._local = files.is_local(url)
        self._target = f"{url}.{uuid.uuid4().hex}.tmp" if self._local else url
        self._length = 0
        self._digest = hashlib.sha256()
        self._file: IO[bytes] | None = None

    def append(self, values: np.ndarray) -> None:
        if values.size and int(values.max()) > np.iinfo(self.dtype).max:
            raise ConfigError(
                "is more than a plan file holds", field="lengths", value=int(values.max()), cure="Split long documents."
            )
        data = np.ascontiguousarray(values, self.dtype).data.cast("B") if values.size else b""
        try:
            self._opened().write(data)
        except OSError as error:
            raise self._failed(error) from error
        self._digest.update(data)
        self._length += values.size

    def finish(self) -> dict[str, Any]:
        try:
            file = self._opened()
            if self._local:
                file.flush()
                os.fsync(file.fileno())
            file.close()
            if self._local:
                durable.rename(files.local_path(self._target), files.local_path(self.url))
        except OSError as error:
            raise self._failed(error) from error
        return {"dtype": self.dtype, "length": self._length, "sha256": self._digest.hexdigest()}

    def abort(self) -> None:
        if self._file is None:
            return
        self._file.close()
        if self._local:
            files.local_path(self._target).unlink(missing_ok=True)

    def _opened(self) -> IO[bytes]:
        if self._file is None:
            if self._local:
                path = files.local_path(self._target)
                durable.make_folder(path.parent)
                self._file = path.open("wb")
            else:
                fs, path = files.filesystem(self.url)
                with files.client_errors(self.url):
                    self._file = cast("IO[bytes]", fs.open(path, "wb"))
        return self._file

    def _failed(self, error: OSError) -> CacheError:
        return CacheError(
            f"cannot be written ({error.strerror or error})",
            field="file",
            value=self.url,
            cure="Check permissions and free space, or give another folder for plans.",
        )


def _load(url: str, record: dict[str, Any]) -> np.ndarray:
    dtype, length = np.dtype(record["dtype"]), int(record["length"])
    path = files.local_path(url) if files.is_local(url) else None
    raw = files.read_bytes(url) if path is None else b""
    if raw is None or (path is not None and not path.exists()):
        raise _damaged(url, "is missing")
    size = len(raw) if path is None else path.stat().st_size
    if size != length * dtype.itemsize:
        raise _damaged(url, f"has {size} bytes instead of {length * dtype.itemsize}")
    data = np.frombuffer(raw, dtype) if path is None or not length else np.memmap(path, dtype, "r")
    digest = hashlib.sha256()
    for at in range(0, length, _CHUNK):
        digest.update(np.ascontiguousarray(data[at : at + _CHUNK]).data.cast("B"))
    if digest.hexdigest() != record["sha256"]:
        raise _damaged(url, "is not what was written (another digest)")
    return data


def _damaged(url: str, problem: str) -> CacheCorruptError:
    return CacheCorruptError(problem, field="plan", value=url, cure="Delete the plan's folder; it is made again.")
