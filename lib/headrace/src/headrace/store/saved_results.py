"""Results that take long to work out, saved in a folder beside a cache and found again there.

``<root>/<fingerprint>/`` has a sealed record and vectors of whole numbers, each with digests of its
pieces (:mod:`headrace.store.vectors`). The fingerprint covers everything that the result depends
on, and the record repeats it as ``made_from``, so a look-up is exact. The record is written last.
All processes write the same bytes, under temporary names until they are complete.

It only saves time: what is damaged or deleted is worked out again, and what cannot be written is
worked out each time.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import msgspec

from headrace.errors import CacheCorruptError, HeadraceError
from headrace.store import files
from headrace.store.records import RecordKind, read_record, write_record
from headrace.store.vectors import damaged


class ResultRecord(msgspec.Struct, forbid_unknown_fields=True):
    """The record of a result."""

    made_from: dict[str, Any]


RecordT = TypeVar("RecordT", bound=ResultRecord)
ResultT = TypeVar("ResultT")


@dataclass(frozen=True)
class SavedResults(Generic[RecordT, ResultT]):
    """A kind of results that are saved.

    Attributes:
        kind: The kind of its records.
        file_name: The name of the file with the record.
        write: Writes the vectors of a result that was made from something into a folder, and
            returns its record.
        read: The result of a record in a folder. Raises CacheCorruptError if a vector is damaged.
    """

    kind: RecordKind[RecordT]
    file_name: str
    write: Callable[[str, dict[str, Any], ResultT], RecordT]
    read: Callable[[str, RecordT], ResultT]

    def found_or_made(
        self,
        root: str | None,
        made_from: Mapping[str, Any],
        make: Callable[[], ResultT],
        worth: Callable[[ResultT], bool] = lambda _: True,
    ) -> tuple[ResultT, RecordT | None]:
        """A result as it is saved, loaded or else worked out, and its record; no record if it is
        not saved.

        Args:
            root: The folder of all results of this kind; None: it is not saved.
            made_from: Everything that the result depends on, as JSON values.
            make: Works it out. Errors are passed on.
            worth: Whether to save it.
        """
        if root is None:
            return make(), None
        request = json.loads(json.dumps(made_from))
        folder = files.join(root, fingerprint_of(request))
        url = files.join(folder, self.file_name)
        with suppress(OSError, HeadraceError):
            record = read_record(url, self.kind)
            if record is not None and record.made_from == request:
                return self.read(folder, record), record
        result = make()
        with suppress(OSError, HeadraceError):  # a run must not fail because it cannot be saved
            if worth(result):
                record = self.write(folder, request, result)
                write_record(url, self.kind, record, shared=True)
                return self.read(folder, record), record
        return result, None

    def findings(self, root: str) -> list[tuple[str, str]]:
        """Checks all results in a folder by reading them: (file, problem) pairs."""
        findings: list[tuple[str, str]] = []
        for name in files.names_in(root):
            folder = files.join(root, name)
            url = files.join(folder, self.file_name)
            try:
                record = read_record(url, self.kind)
                if record is None:
                    continue  # one to come
                if name != fingerprint_of(record.made_from):
                    raise damaged(url, f"is of another {self.kind.name}", self.kind.name)
                self.read(folder, record)
            except CacheCorruptError as error:
                findings.append((str(error.value), error.problem))
        return findings


def fingerprint_of(made_from: Mapping[str, Any]) -> str:
    """The name of the folder of a result: 32 hex digits."""
    text = json.dumps(made_from, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:32]
