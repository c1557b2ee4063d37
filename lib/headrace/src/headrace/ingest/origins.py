"""Where documents of a finished cache stand in the files that it was built from: the file, and the
line or record.

A cache keeps which files went into which part, and not which record became which document: that
would be read of a few documents and written for all. So the files of the part are read again, up to
the document, as its build read them.

The invariant: a place is named only if the record there encodes to the tokens that the cache has.
Files that moved or changed since, sources that are functions or data sets of a hub, and caches of
other programs have no place to name, and what is named instead is why.

Price: reading the source of a part, 64 MiB unless the build was told otherwise, up to the document.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from headrace.errors import HeadraceError, redact
from headrace.ingest.documents import Document, DocumentKind, DocumentReader, make_kind, reader_of
from headrace.ingest.part_builder import tasks_from_records
from headrace.ingest.records import BadRecordError, SourceFile
from headrace.ingest.resume import source_of
from headrace.ingest.source import SourceConfig
from headrace.ingest.tokenize import recorded_tokenizer
from headrace.order.intervals import starts
from headrace.progress import report
from headrace.store import files
from headrace.store.cache import OriginalDocument, TokenCache
from headrace.store.layouts import FORMAT

_NO_FILES = ("python", "hf")
_REPORTED = 256


@dataclass(frozen=True)
class Origin:
    """Where a document comes from.

    Attributes:
        origin: The file and what of it, ``corpus/a.jsonl, line 7``; empty if that cannot be told.
        origin_problem: Why it cannot.
    """

    origin: str = ""
    origin_problem: str = ""


class _UnknownOriginError(Exception):
    """Why the origin of a document cannot be told."""


def find_origins(cache: TokenCache, documents: Collection[int]) -> dict[int, Origin]:
    r"""Where documents of a cache, by their stored positions, stand in its source.

    Example:
        >>> import pathlib, tempfile
        >>> from headrace import SourceConfig, TokenizerConfig, build_cache, open_cache
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     source = pathlib.Path(folder, "a.jsonl")
        ...     _ = source.write_text('{"text": "one"}\n\n{"text": "two"}\n')
        ...     cache, config = f"{folder}/cache", SourceConfig([str(source)])
        ...     _ = build_cache(config, TokenizerConfig("bytes"), cache, progress=False)
        ...     origins = find_origins(open_cache(cache), [1])
        >>> origins[1].origin.endswith("a.jsonl, line 3")
        True
    """
    origins: dict[int, Origin] = {}
    first = starts([member.num_documents for member in cache.members])
    for number, member in enumerate(cache.members):
        begin = int(first[number])
        end = int(first[number]) + member.num_documents
        local_numbers = [document - begin for document in documents if begin <= document < end]
        origins |= {
            begin + document: origin
            for document, origin in _in_cache(member, local_numbers).items()
        }
    return origins


def _in_cache(cache: TokenCache, documents: Collection[int]) -> dict[int, Origin]:
    by_part: defaultdict[str, dict[int, OriginalDocument]] = defaultdict(dict)
    for document in documents:
        original = cache.original(document)
        by_part[original.part][document] = original
    origins: dict[int, Origin] = {}
    for originals in by_part.values():
        problem = "the source changed after the cache was built"
        try:
            origins |= _in_part(cache, originals)
        except _UnknownOriginError as why:
            problem = str(why)
        except HeadraceError as error:
            problem = f"{error.field}: {error.problem}" if error.field else error.problem
        origins |= {
            document: Origin(origin_problem=problem)
            for document in originals
            if document not in origins
        }
    return origins


def _in_part(cache: TokenCache, originals: Mapping[int, OriginalDocument]) -> dict[int, Origin]:
    """The origins of documents of a part; those that are not where they were are left out."""
    metadata = cache.ledger.metadata
    if FORMAT in metadata:  # the source is what is read
        return {
            document: Origin(f"{one.files[0]['path']}, document {one.number_in_part}")
            for document, one in originals.items()
        }
    if not all(name in metadata for name in ("paths", "source")):
        raise _UnknownOriginError("the cache does not say what it was built from")
    source = source_of(cache.ledger)
    if source.format in _NO_FILES:
        raise _UnknownOriginError("its source is not files")
    records = next(iter(originals.values())).files
    listed = {
        str(record["path"]): _source_file(cache, source, str(record["path"])) for record in records
    }
    tokenizer = recorded_tokenizer(cache.path, cache.ledger.tokenizer)
    kind = make_kind(source, source.kind_of(listed.values()), tokenizer, metadata.get("template"))
    document_at = {original.number_in_part: document for document, original in originals.items()}
    origins: dict[int, Origin] = {}
    last = max(document_at)
    for number, (document, reader) in enumerate(
        _documents(kind, tasks_from_records(records, listed)[0].files)
    ):
        if number % _REPORTED == 0:
            report("reading the source", number, last)
        stored = document_at.get(number)
        if stored is not None and np.array_equal(
            kind.encode([document]).tokens, cache.whole_document(stored)
        ):
            path = reader.file.shown_path
            origins[stored] = Origin(
                path if reader.file.format == "text" else redact(reader.describe_row(reader.row))
            )
        if number >= last:
            break
    return {  # pieces of a document have its origin
        document: origins[document_at[original.number_in_part]]
        for document, original in originals.items()
        if document_at[original.number_in_part] in origins
    }


def _documents(
    kind: DocumentKind, parts: Collection[SourceFile]
) -> Iterator[tuple[Document, DocumentReader]]:
    """The documents of a part, each with the reader that stands at its record, without those that
    the build skipped.
    """
    config = kind.config
    # found by encoding alone
    checked = config.on_bad_line == "skip" and config.special_tokens_in_text == "error"
    for file in parts:
        reader = DocumentReader(file, kind)
        for document in reader:
            if checked:
                try:
                    kind.encode([document])
                except BadRecordError:
                    continue
            yield document, reader


def _source_file(cache: TokenCache, source: SourceConfig, path: str) -> SourceFile:
    """A source file as it is now. A relative path may be meant from the folder that the build was
    started in, which is often one above the cache.
    """
    if path.startswith("hf://"):
        raise _UnknownOriginError("its source is a data set of a hub")
    folders = [""]
    if files.is_local(path) and files.is_local(cache.path) and not os.path.isabs(path):
        folders += [str(folder) for folder in files.local_path(cache.path).resolve().parents]
    for folder in folders:
        file = source.source_file(os.path.join(folder, path) if folder else path, None, "")
        try:
            size, version = reader_of(file).stat(file)
        except FileNotFoundError:
            continue
        return source.source_file(file.path, size, version)
    raise _UnknownOriginError(f"{path} is gone, or was meant from another folder")
