"""The choices of sources and builds, defined once for configs and the command line, which reads
only this module to answer ``--help``. A source format is registered here, by its line in
:data:`FORMATS`; those of other packages are added to it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias, get_args

from headrace import extensions
from headrace.batch.masks import TurnMode


class SourceFormat(NamedTuple):
    """What is known of a file format before a file is opened.

    Attributes:
        reader: Module and class that reads it, written like an entry point; None: a package brings
            it, as an entry point of ``headrace.readers``.
        holds: ``fields``: records whose fields have any names; ``texts``: records whose fields are
            always the same; ``ids``: token ids. Files of ids are read from folders only if their
            extension is asked for: ``.bin`` and ``.npy`` files may be anything.
        endings: Extensions of its files; none if it is no files.
    """

    reader: str | None
    holds: Literal["fields", "texts", "ids"] = "fields"
    endings: tuple[str, ...] = ()

    @property
    def in_folders(self) -> bool:
        """Whether its files are read from folders by default."""
        return self.holds != "ids"


FORMATS: dict[str, SourceFormat] = {
    "jsonl": SourceFormat(
        "headrace.ingest.readers.streams:JsonlReader", endings=(".jsonl", ".ndjson", ".json")
    ),
    "text": SourceFormat(
        "headrace.ingest.readers.streams:TextReader", "texts", (".txt", ".text", ".md", ".rst")
    ),
    "parquet": SourceFormat(
        "headrace.ingest.readers.columnar:ParquetReader", endings=(".parquet", ".pq")
    ),
    "arrow": SourceFormat(
        "headrace.ingest.readers.columnar:ArrowReader", endings=(".arrow", ".feather", ".ipc")
    ),
    "warc": SourceFormat("headrace.ingest.readers.streams:WarcReader", "texts", (".warc", ".wet")),
    "hf": SourceFormat("headrace.ingest.readers.datasets:HubReader"),
    "megatron": SourceFormat(None, "ids", (".bin",)),
    "nmoe": SourceFormat(None, "ids", (".npy",)),
    "python": SourceFormat("headrace.ingest.readers.datasets:FunctionReader"),
}
"""File formats. ``hf`` and ``python`` are not files, see their readers."""
for _name in extensions.names_of(extensions.READERS):
    FORMATS.setdefault(_name, SourceFormat(None))
if TYPE_CHECKING:
    Format: TypeAlias = str
    FormatOrAuto: TypeAlias = str
    Engine: TypeAlias = str
else:
    Format = Literal[tuple(FORMATS)]
    FormatOrAuto = Literal["auto", Format]
    Engine = Literal["auto", "pool", "inline", "ray", *extensions.names_of(extensions.ENGINES)]
FileCompression: TypeAlias = Literal["none", "gzip", "zstd"]
Kind: TypeAlias = Literal["text", "tokens", "chat", "preference", "prompts"]
KindOrAuto: TypeAlias = Literal["auto", Kind]
Mask: TypeAlias = Literal["generation", "roles", "all", TurnMode]
OnBadLine: TypeAlias = Literal["error", "skip"]
SpecialTokensInText: TypeAlias = Literal["token", "text", "error"]
TokenizerEngine: TypeAlias = Literal["auto", "tokenizers", "gigatoken"]
TOKENIZER_ENGINES = get_args(TokenizerEngine)
