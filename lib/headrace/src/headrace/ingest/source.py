"""The config of a source: the files of a corpus and their content, as one sorted list.

The list is a pure function of the files at the given paths: sorted by path, whatever the order of
the arguments or of the file system, so the same corpus gives the same cache on every machine. Each
file has its size and a version (modification time, or an object store's etag), by which a resumed
build checks that it still reads the same text.

Two settings describe the files. ``format`` is the file format: see
:data:`headrace.ingest.choices.FORMATS`. ``kind`` is what its records become: documents of text,
token ids, conversations, preference pairs or prompts (see :mod:`headrace.ingest.kinds`). Any format
can be combined with any kind.

Price: one ``stat`` (or one listing entry) per file; nothing is opened here.
"""

from __future__ import annotations

import glob
import itertools
import os
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import get_args

from headrace.errors import (
    ConfigError,
    SourceError,
    check_at_least,
    check_choice,
    check_path,
    did_you_mean,
    format_count,
    format_some,
)
from headrace.ingest.choices import (
    FORMATS,
    FileCompression,
    Format,
    FormatOrAuto,
    Kind,
    KindOrAuto,
    Mask,
    OnBadLine,
    SpecialTokensInText,
)
from headrace.ingest.listing import Listing, expand_braces, kept_literal, list_remote
from headrace.ingest.records import (
    MAX_RECORD_BYTES,
    Columns,
    FieldRead,
    LeafConfig,
    SourceFile,
)
from headrace.store import files
from headrace.store.ledger import LEDGER_NAME
from headrace.store.missing import LEVANTERS_LEDGER
from headrace.store.remote import Entry

USUAL_ENDINGS = tuple(e for one in FORMATS.values() if one.in_folders for e in one.endings)
"""Extensions that are read from folders by default."""
PRE_TOKENIZED = tuple(name for name, one in FORMATS.items() if one.holds == "ids")
NOTHING = "none"
"""Selects no field: an optional value is ignored, whether records have it or not."""
_MADE_OF_TWO = (("chat", "messages"), ("tokens", "tokens"))
OF_TEMPLATES = {
    "system": "system",
    "tools": "tools",
    "variables": "chat_template_kwargs",
    "documents": NOTHING,
}
"""What templates take of a record besides messages, and its default field."""
_MASKS_BY_MEANING = {
    # 1 at an id: it is trained on.
    "trained": (
        *("loss_mask", "loss_masks", "completion_mask", "assistant_mask", "assistant_masks"),
        *("response_mask", "target_mask", "label_mask", "labels_mask", "answer_mask"),
    ),
    "weights": ("weights", "loss_weights", "loss_weight", "token_weights"),
    # 1 at an id: it is not trained on.
    "untrained": ("prompt_mask", "prompt_masks"),
    # The id itself where it is trained on.
    "labels": ("labels", "label_ids", "targets", "target_ids", "target_tokens"),
    # Ids that a document begins with and that are not trained on: their number, or they themselves.
    "prompt length": ("prompt_len", "prompt_lens", "prompt_length", "prompt_lengths"),
    "prompt": ("question", "prompt_ids", "prompt_token_ids"),
    # The ids that a document ends with; no others are trained on.
    "completion": ("answer", "completion_ids", "response_ids"),
}
_BOUNDS_BY_MEANING = {
    "lengths": ("seq_lengths", "seq_lens", "doc_lens"),
    "bounds": (
        *("cu_seqlens", "cu_seqlens_q", "cu_seqlens_k"),
        *("cu_seq_lens", "cu_seq_lens_q", "cu_seq_lens_k"),
    ),
    "positions": ("position_ids", "input_pos"),
    "numbers": ("segment_ids", "seq_idx", "doc_ids", "document_ids"),
    "packed by NeMo": ("seq_start_id",),
}
TOKEN_MASKS = {name: of for of, names in _MASKS_BY_MEANING.items() for name in names}
"""What says which token ids are trained on, and how; a token is, if all that a record has agree."""
BOUNDS = {name: of for of, names in _BOUNDS_BY_MEANING.items() for name in names}
"""What says where the documents of a packed record begin, and how."""
OF_TOKENIZERS = ("token_type_ids", "special_tokens_mask")
"""What tokenizers write beside ids and what says nothing about training."""
FIELDS: dict[str, dict[str, str]] = {
    "text": {"text": "text"},
    "tokens": {
        "tokens": "input_ids",
        "attention_mask": "attention_mask",
        **{name: name for name in (*TOKEN_MASKS, *BOUNDS)},
        "question": NOTHING,
        "answer": NOTHING,
    },
    "chat": {
        "messages": "messages",
        "question": NOTHING,
        "context": NOTHING,
        "answer": NOTHING,
        "label": "label",
        **OF_TEMPLATES,
    },
    "preference": {
        "chosen": "chosen",
        "rejected": "rejected",
        "prompt": "prompt",
        **OF_TEMPLATES,
    },
    "prompts": {"prompt": "prompt", **OF_TEMPLATES},
}
"""What each kind reads from a record, and its default field."""
_REQUIRED = (
    ("text", "text"),
    ("tokens", "tokens"),
    ("chat", "messages"),
    ("preference", "chosen"),
    ("preference", "rejected"),
    ("prompts", "prompt"),
)
"""What every record of a kind must have; all else is optional, unless its field is named."""
_COMPRESSIONS: dict[str, FileCompression] = {".gz": "gzip", ".zst": "zstd", ".zstd": "zstd"}
_UNREADABLE = (".bz2", ".xz", ".lz4", ".zip", ".tar", ".tgz", ".7z")
SEPARATED = (".csv", ".tsv")
"""Extensions of tables whose lines are no texts, which no format reads."""
NO_FILE = "it has no file, or only hidden ones"
HF_SCHEME = "hf://"
_SHOWN_CACHES = 8
OF_SAVED_DATASET = {"dataset_info.json", "state.json"}
OF_SPLITS = "dataset_dict.json"
_HF_FILES = tuple(f"{HF_SCHEME}{repo}/" for repo in ("datasets", "models", "spaces", "buckets"))


@dataclass(frozen=True)
class ChatConfig:
    """How conversations become text, and which of its tokens are trained on.

    Attributes:
        template: A Jinja template: its text, or a file with it. None: the one next to the tokenizer
            (``chat_template.jinja``, or ``chat_template`` in ``tokenizer_config.json``).
        mask: ``generation``: what the template marks with ``{% generation %}``; ``roles``: the
            turns of ``roles``, as the template renders them; ``all``: everything; or the turns of a
            mode of :mod:`headrace.batch.masks`, of which ``customized`` asks each message for its
            ``trainable`` (or ``train``, ``loss``, ``weight``). A message that says false or 0 there
            is not trained on, whatever the mask.
        roles: Roles for ``mask: roles``.
        variables: Variables of the template, e.g. ``{"date_string": "1 Jan 2025"}``.
    """

    template: str | None = None
    mask: Mask = "generation"
    roles: list[str] = field(default_factory=lambda: ["assistant"])
    variables: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_choice("chat.mask", self.mask, get_args(Mask), "is not a known choice")
        if self.mask == "roles" and not self.roles:
            raise ConfigError(
                "names nobody", field="chat.roles", value=self.roles, cure="Try ['assistant']."
            )
        if self.mask != "roles" and self.roles != ["assistant"]:
            raise ConfigError(
                f"has no effect with mask {self.mask!r}",
                field="chat.roles",
                value=self.roles,
                cure="Set mask: roles.",
            )


@dataclass(frozen=True)
class FimConfig:
    """Documents stored for filling in the middle; see :mod:`headrace.ingest.fim`.

    The result for a document depends only on its tokens and the seed, so it is the same in any
    build.

    Attributes:
        prefix: Token before the prefix, or its id if there is no tokenizer (``ids:N``).
        suffix: Token before the suffix.
        middle: Token before the middle.
        rate: Share of the documents that are rearranged.
        spm_rate: Share of these with the suffix first.
        seed: Integer seed.
    """

    prefix: str
    suffix: str
    middle: str
    rate: float = 0.5
    spm_rate: float = 0.5
    seed: int = 0


@dataclass(frozen=True)
class SourceConfig:
    """Where the documents come from.

    Attributes:
        paths: Files, folders (searched recursively, symbolic links included, hidden files left out;
            datasets saved in them are read as such), globs (``**`` too), braces
            (``part-{00..99}.parquet``) or URLs. In a pattern, ``[*]``, ``[?]``, ``[[]`` and ``[{]``
            stand for the letters themselves.
            ``hf://OWNER/NAME?name=CONFIG&split=SPLIT&revision=REV`` is a dataset of the Hugging
            Face Hub or, as ``hf://./FOLDER``, on this machine (``&streaming=true`` reads it without
            a copy on disk); with ``format="python"`` a path is ``module:function``.
        format: File format, or ``auto``: by file name.
        text_field: The field of a record with the text. ``a.b`` is field b within a.
        on_bad_line: ``error`` names file and row; ``skip`` leaves the record (or the undecodable
            text file) out and counts it.
        extensions: File extensions to read from folders, e.g. ``[".py"]``; empty for the usual ones
            of the format. Files with other extensions are read as text. ``.gz`` and ``.zst`` may
            always follow.
        kind: What records become: ``text``, ``tokens``, ``chat``, ``preference`` or ``prompts``;
            ``auto``: tokens if the files contain ids, else text.
        fields: Fields that differ from the usual ones of the kind, e.g. ``{"messages":
            "conversation"}``; ``none`` ignores a field: ``{"tools": "none"}``. Every record must
            have the fields named here. Columns beside token ids are known by these names:

            - 0: the token is not trained on: ``loss_mask``, ``loss_masks``, ``completion_mask``,
              ``assistant_mask``, ``assistant_masks``, ``response_mask``, ``target_mask``,
              ``answer_mask``, ``label_mask``, ``labels_mask``; and, with no other numbers than 0
              and 1, ``weights``, ``loss_weights``, ``loss_weight``, ``token_weights``.
            - 1: the token is not trained on: ``prompt_mask``, ``prompt_masks``.
            - -100: the token is not trained on; else the id itself: ``labels``, ``label_ids``,
              ``targets``, ``target_ids``, ``target_tokens``.
            - So many ids at the start of a document, after padding, are not trained on (a list has
              a number for each document of a packed record): ``prompt_len``, ``prompt_lens``,
              ``prompt_length``, ``prompt_lengths``.
            - The ids begin with these, which are not trained on: ``prompt_ids``,
              ``prompt_token_ids``.
            - The ids end with these, and only these are trained on: ``completion_ids``,
              ``response_ids``.
            - 0 before and after the ids: padding, which is left out: ``attention_mask``.
            - Lengths of the documents of a packed record, each of which becomes a document:
              ``seq_lengths``, ``seq_lens``, ``doc_lens``; their bounds, from 0 to the number of
              ids: ``cu_seqlens``, ``cu_seq_lens``, the same with ``_q`` and ``_k``; 0 where a
              document begins: ``position_ids``, ``input_pos``; a number that changes where one
              begins: ``segment_ids``, ``seq_idx``, ``doc_ids``, ``document_ids``.

            A mask that the first record has, every record must have.
        leaves: Further values to store for each document, by name.
        chat: Template and masks of conversations.
        fim: How documents of text or token ids are rearranged for filling in the middle; None: they
            are not.
        max_record_bytes: A JSON line or a plain text file with more unpacked bytes is
            a bad one, and is not held in memory (encoding takes about eight times as much). So is a
            record for which a chat template produces more, in characters and steps (never more than
            64 Mi).
        special_tokens_in_text: What to do with the name of a special token in a text, such as
            ``<|endoftext|>``: ``token``: it becomes that token; ``text``: it is encoded like any
            text; ``error``: the record is bad. Special tokens are those that the tokenizer marks as
            such, and the ``bos`` and ``eos`` of the build; other added tokens are always tokens. In
            conversations, this applies to the record's strings, not to the template;
            ``text`` is not available there.

    Raises:
        ConfigError: a value is not usable.

    Example:
        >>> SourceConfig(["corpus"], format="jsonl").text_field
        'text'
    """

    paths: list[str]
    format: FormatOrAuto = "auto"
    text_field: str = "text"
    on_bad_line: OnBadLine = "error"
    extensions: list[str] = field(default_factory=list)
    kind: KindOrAuto = "auto"
    fields: dict[str, str] = field(default_factory=dict)
    leaves: dict[str, LeafConfig] = field(default_factory=dict)
    chat: ChatConfig = field(default_factory=ChatConfig)
    fim: FimConfig | None = None
    max_record_bytes: int = MAX_RECORD_BYTES
    special_tokens_in_text: SpecialTokensInText = "token"

    def __post_init__(self) -> None:
        check_at_least(
            "max_record_bytes",
            self.max_record_bytes,
            cure=f"Leave it out for {MAX_RECORD_BYTES:,}.",
        )
        if isinstance(self.paths, str) or not self.paths:
            raise ConfigError(
                "must be a list of at least one path",
                field="paths",
                value=self.paths,
                cure="Give files, folders or globs.",
            )
        if self.format in FIELDS and self.format not in FORMATS:
            raise ConfigError(
                "says what records are, not how files are packed",
                field="format",
                value=self.format,
                cure=f"Say --kind {self.format}; the format is then read off the names of the"
                " files.",
            )
        for name, choices in (
            ("format", FormatOrAuto),
            ("kind", KindOrAuto),
            ("on_bad_line", OnBadLine),
            ("special_tokens_in_text", SpecialTokensInText),
        ):
            check_choice(name, getattr(self, name), get_args(choices), "is not a known choice")
        for path in self.paths:
            check_path("paths", path, "Give files, folders or globs; the current folder is '.'.")
        if isinstance(self.extensions, str):
            cure = f"Give ['.{self.extensions.lstrip('.')}']."
            raise ConfigError("is not a list", field="extensions", value=self.extensions, cure=cure)
        for extension in self.extensions:
            if not extension.startswith("."):
                raise ConfigError(
                    "must begin with a dot",
                    field="extensions",
                    value=extension,
                    cure=f"Write '.{extension}'.",
                )
        field_names = sorted(
            {
                name
                for kind, names in FIELDS.items()
                if self.kind in ("auto", kind)
                for name in names
            }
        )
        for name, field_name in self.fields.items():
            if self.kind == "tokens" and field_name == NOTHING:
                continue  # any column may be left unused; the first look knows which there are
            check_choice(
                "fields",
                name,
                field_names,
                f"is nothing that kind {self.kind!r} takes from a record",
            )

    def kind_of(self, listed: Iterable[SourceFile]) -> Kind:
        """The kind, with ``auto`` resolved by the formats of the files.

        Raises:
            ConfigError: some files contain ids and others text, or a field is named although plain
                text has none.
        """
        listed = list(listed)
        if self.text_field != "text" and listed and all(f.format == "text" for f in listed):
            cure = "Leave it out; files of one JSON object a line need --format jsonl."
            raise ConfigError(
                "names a field, and plain text has none",
                field="text_field",
                value=self.text_field,
                cure=cure,
            )
        if self.kind != "auto":
            return self.kind
        ready = {f.format in PRE_TOKENIZED for f in listed}
        if len(ready) > 1:
            raise ConfigError(
                "some files hold token ids, others text",
                field="paths",
                value=self.paths,
                cure="Build two caches.",
            )
        return "tokens" if ready == {True} else "text"

    def reads(self, kind: Kind) -> dict[str, FieldRead]:
        """What a kind reads from a record, by name."""
        usual = {"text": self.text_field} if kind == "text" else FIELDS[kind]
        of_leaves = {leaf.field for leaf in self.leaves.values()}
        reads: dict[str, FieldRead] = {}
        for name, usual_field in usual.items():
            is_named = name in self.fields
            field = self.fields.get(name, usual_field)
            if (kind, name) in _MADE_OF_TWO and "question" in self.fields:
                continue  # the question and the answer are the conversation, or the ids
            if (kind, name) in _REQUIRED:
                reads[name] = FieldRead(name, field, False, _choose(name))
                continue
            # Weights that are stored are no mask, and a field has one meaning.
            is_stored = TOKEN_MASKS.get(name) == "weights" and field in of_leaves
            if field == NOTHING or is_stored or (not is_named and field in self.fields.values()):
                continue
            effect = "To train on every token" if name in TOKEN_MASKS else "Leave it unused"
            cure = f"{effect}: --field {name}=none."
            if name in ("question", "answer"):
                cure = _choose(name)
            reads[name] = FieldRead(name, field, not is_named, cure)
        return reads

    def columns(self, kind: Kind) -> Columns:
        """All that is read of a record."""
        reads = [*self.reads(kind).values(), *(leaf.read(n) for n, leaf in self.leaves.items())]
        cures = {read.field: read.cure for read in reads}
        required = {read.field for read in reads if not read.is_optional}
        return Columns([*cures], cures.keys() - required, cures, self.max_record_bytes)

    def files(self, left_out: Counter[str] | None = None) -> list[SourceFile]:
        """The files of the corpus, sorted by path.

        Args:
            left_out: Receives the extensions of skipped files in folders.

        Raises:
            SourceError: a path is missing, matches nothing, is given twice, or is of no known
                format; or all files are empty.
        """
        paths = [p for path in self.paths for p in self._spelled_out(str(path))]
        others: Counter[str] = Counter() if left_out is None else left_out
        source_files = sorted(
            (f for path in paths for f in self._expand(path, others)),
            key=lambda f: (f.shown_path, f.path),
        )
        for one, next_one in itertools.pairwise(source_files):
            if one.shown_path == next_one.shown_path:
                raise SourceError(
                    "is named twice by the given paths, so its documents would be in the cache"
                    " twice",
                    field=one.path,
                    cure="Give each file once; to see a source more often, give it a higher weight"
                    " when training.",
                )
        if all(f.size == 0 for f in source_files):
            raise SourceError(
                "is an empty source: "
                + (
                    "its one file has"
                    if len(source_files) == 1
                    else f"all its {len(source_files)} files have"
                )
                + " no bytes",
                field=", ".join(str(p) for p in self.paths),
                cure="Check the paths.",
            )
        return source_files

    def source_file(self, path: str, size: int | None, version: str) -> SourceFile:
        """A listed file, with format and compression from its name.

        Raises:
            SourceError: the extension is unknown and no format is set, or the compression is not
                supported.
        """
        if (spelled := escape_undecodable(path)) != path:
            cure = "Rename the file: a ledger names files in UTF-8."
            raise SourceError("has a name that is not UTF-8", field=spelled, cure=cure)
        if files.file_name(path).lower().endswith(_UNREADABLE):
            raise SourceError(
                "is packed in a way that is not read",
                field=path,
                cure="Unpack it, or pack it again as .gz or .zst.",
            )
        if self.format == "auto" and _ending_of_format(files.file_name(path)) in SEPARATED:
            raise SourceError(
                "is a table of separated values, whose lines are no texts",
                field=path,
                cure="Put such tables into a folder of their own, and name it as hf://./FOLDER: the"
                " library datasets reads them.",
            )
        format_name = self._format_of(path)
        if format_name is None:
            raise SourceError(
                "has a name that does not tell its format",
                field=path,
                cure="Say what it holds: --format jsonl (one object a line), --format text (one"
                " document), or one of "
                + ", ".join(f for f in FORMATS if f not in ("jsonl", "text"))
                + ".",
            )
        _, compression = split_compression(files.file_name(path))
        return SourceFile(path, format_name, compression, size, version)

    def _spelled_out(self, path: str) -> list[str]:
        if self.format == "python" or path.startswith(HF_SCHEME):
            return [path]
        if not (files.has_magic(path) or "{" in path) or files.exists(path):
            return [path]
        return expand_braces(kept_literal(path))

    def _format_of(self, path: str) -> Format | None:
        if self.format != "auto":
            return self.format
        extension = _ending_of_format(files.file_name(path))
        default = "text" if extension in self.extensions else None
        return next((name for name, one in FORMATS.items() if extension in one.endings), default)

    def _expand(self, path: str, left_out: Counter[str]) -> Iterator[SourceFile]:
        if self.format == "python":
            yield SourceFile(path, "python")
            return
        if self.format == "hf" or (path.startswith(HF_SCHEME) and not path.startswith(_HF_FILES)):
            yield SourceFile(path, "hf")
            return
        listing = list_path(path)
        if listing is None:
            raise SourceError("does not exist", field="source", value=path, cure=nearby(path))
        kind, entries = listing
        if kind == "folder":
            entries = list(entries)
            if self.format == "auto" and files.is_local(path):
                saved, entries = _without_saved_datasets(entries)
                yield from saved
                if saved and not entries:
                    return
            chosen = [e for e in entries if self._is_wanted(e.path)]
            if not chosen:
                endings = Counter(_ending(e.path) for e in entries)
                extensions = ", ".join(self._wanted_extensions())
                problem = f"is a folder without {extensions} files ({endings_in_words(endings)})"
                cure = "Name a folder that holds some."
                if endings:
                    most = endings.most_common(1)[0][0]
                    cure = (
                        f"Choose others with --extension {most} (in Python:"
                        f" extensions=[{most!r}]), or name files."
                    )
                raise SourceError(problem, field="source", value=path, cure=cure)
            _refuse_caches(path, entries, chosen)
            left_out.update(_ending(e.path) for e in entries if not self._is_wanted(e.path))
            entries = chosen
        for entry in entries:
            yield self.source_file(entry.path, entry.size, entry.version)

    def _is_wanted(self, path: str) -> bool:
        return _ending_of_format(path) in self._wanted_extensions()

    def _wanted_extensions(self) -> tuple[str, ...]:
        if self.extensions:
            return tuple(self.extensions)
        return USUAL_ENDINGS if self.format == "auto" else FORMATS[self.format].endings


def _choose(name: str) -> str:
    option = "--text-field " if name == "text" else f"--field {name}="
    return f"Choose the field: {option}FIELD."


def list_path(path: str) -> Listing | None:
    """The files at a path; None if there is nothing.

    Raises:
        SourceError: it cannot be listed, or is not a regular file.
        ConfigError: no installed package can open such paths.
    """
    return _list_local(path) if files.is_local(path) else list_remote(path)


def _list_local(path: str) -> Listing | None:
    # The spelling of the user is kept (relative stays relative): it ends up in the ledger.
    local = os.path.normpath(files.local_path(path))
    if os.path.isdir(local):
        return "folder", (files.entry_of(p) for p in _walk(local))
    if os.path.exists(local):
        return "files", [files.entry_of(local)]
    if glob.has_magic(local):
        matches = [p for p in glob.iglob(local, recursive=True) if os.path.isfile(p)]
        if matches:
            return "files", (files.entry_of(p) for p in matches)
    return None


def _walk(folder: str) -> Iterator[str]:
    """Files below a folder, also through links; a folder that is reachable twice is walked once."""
    visited = {os.path.realpath(folder)}
    for parent, folders, names in os.walk(folder, followlinks=True):
        fresh = {
            os.path.realpath(os.path.join(parent, f)): f
            for f in sorted(folders)[::-1]
            if not f.startswith(".")
        }
        folders[:] = [f for real, f in fresh.items() if real not in visited]
        visited.update(fresh)
        yield from (os.path.join(parent, n) for n in names if not n.startswith("."))


def nearby(path: str) -> str:
    """The cure for a path that does not exist."""
    if files.has_magic(path):
        return (
            "The pattern matches no file. Write [*], [?], [[] and [{] for these letters in a name."
        )
    if not files.is_local(path):
        return "Check the URL."
    if re.fullmatch(r"[\w.]+:\w+", path):
        return "If it is a Python function, add --format python, and its folder to PYTHONPATH."
    parent = os.path.dirname(os.path.normpath(path)) or "."
    if not os.path.isdir(parent):
        return f"There is no folder {parent!r} either."
    return did_you_mean(os.path.basename(path), os.listdir(parent))


def escape_undecodable(path: str) -> str:
    r"""A path, of which bytes that are not UTF-8 are spelled out.

    Example:
        >>> print(escape_undecodable(os.fsdecode(b"caf\xe9.txt")))
        caf\xe9.txt
    """
    return os.fsencode(path).decode(errors="backslashreplace")


def split_compression(path: str) -> tuple[str, FileCompression]:
    """A path without the extension of its compression, and the compression.

    Example:
        >>> split_compression("a.jsonl.gz")
        ('a.jsonl', 'gzip')
    """
    stem, extension = os.path.splitext(path)
    compression = _COMPRESSIONS.get(extension.lower())
    return (stem, compression) if compression else (path, "none")


def _ending_of_format(path: str) -> str:
    """The extension that tells the format of a file."""
    return os.path.splitext(split_compression(path)[0])[1].lower()


def _without_saved_datasets(entries: list[Entry]) -> tuple[list[SourceFile], list[Entry]]:
    """The datasets among the files of a folder that ``datasets`` saved there (``save_to_disk``),
    each of which is read as a whole, and the files that belong to none.

    Its own files say which tables are its data: others in its folder may be copies of them.

    Raises:
        SourceError: one has several splits, and a test split is not to be trained on by accident.
    """
    names: defaultdict[str, set[str]] = defaultdict(set)
    for entry in entries:
        folder, _, name = entry.path.rpartition("/")
        names[folder].add(name)
    saved = {folder: _hf_path(folder) for folder in names if names[folder] >= OF_SAVED_DATASET}
    dicts = {folder for folder in names if OF_SPLITS in names[folder]}
    for parent in sorted(dicts):
        splits = sorted(path for folder, path in saved.items() if _parent(folder) == parent)
        if len(splits) > 1:
            raise SourceError(
                "is a saved dataset of several splits",
                field=parent,
                cure=f"Name those to build in place of the folder: {', '.join(splits)}",
            )
    others = [
        entry
        for entry in entries
        if _parent(entry.path) not in saved
        and not (_parent(entry.path) in dicts and entry.path.endswith(f"/{OF_SPLITS}"))
    ]
    return [SourceFile(path, "hf") for path in saved.values()], others


def _hf_path(folder: str) -> str:
    path = files.local_path(folder)
    return f"{HF_SCHEME}{path}" if path.is_absolute() else f"{HF_SCHEME}./{path}"


def _parent(path: str) -> str:
    return path.rpartition("/")[0]


def _refuse_caches(path: str, entries: Sequence[Entry], chosen: Sequence[Entry]) -> None:
    """Raises SourceError if files of token caches are among those that are chosen in a folder."""
    with_parts = {one.path.rpartition("/parts/")[0] for one in entries}
    caches = [
        folder
        for folder, name in sorted(os.path.split(one.path) for one in chosen)
        if name == LEVANTERS_LEDGER or (name == LEDGER_NAME and folder in with_parts)
    ]
    if caches:
        raise SourceError(
            f"holds {format_count(len(caches), 'token cache')}:"
            f" {format_some(caches, _SHOWN_CACHES)}",
            field=path,
            cure=f"A cache is trained on as it is: name it in a config, cache: {caches[0]}. To"
            " build from texts beside it, name their files or folders, or choose theirs with"
            " --extension.",
        )


def _ending(path: str) -> str:
    return escape_undecodable(os.path.splitext(path)[1] or os.path.basename(path))


def endings_in_words(endings: Counter[str]) -> str:
    """The extensions in a folder without matching files.

    Example:
        >>> endings_in_words(Counter([".py", ".png", ".py"])), endings_in_words(Counter())
        ('it has .png, .py', 'it has no file, or only hidden ones')
    """
    if not endings:
        return NO_FILE
    return "it has " + ", ".join(sorted(endings)[:8]) + (", ..." if len(endings) > 8 else "")
