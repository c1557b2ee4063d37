"""Kinds of documents: text, token ids, conversations, preference pairs, prompts; each with its
leaves.

============  ==============================================  ======================================
kind          a record has                                    becomes
============  ==============================================  ======================================
text          ``text``                                        ``[bos] ids [eos]``
tokens        ``input_ids`` (and :data:`TOKEN_MASKS`,         the ids as they are, checked against
              ``attention_mask``, ``position_ids``, ...)      the vocabulary, no padding; a
                                                              ``loss_mask`` if there are masks
chat          ``messages``                                    the template's text, with a
                                                              ``loss_mask``
preference    ``chosen``, ``rejected`` (and ``prompt``)       two documents, the chosen one first,
                                                              with ``loss_mask``, ``prompt_length``
                                                              and ``chosen`` (1 or 0)
prompts       ``prompt``: a text or messages                  ``[bos] ids``, or the template's text
                                                              up to the answer
============  ==============================================  ======================================

The last three may have ``system`` and ``tools``, too, which go to the template. Texts of pairs and
prompts need none, and become turns of it if the field of one of these is named.

``loss_mask`` is uint8, one value per token: 1 if the token itself is trained on, which it is if any
of its characters is. Of messages that say ``weight: 0`` or the like, no token is. The prompt of a
preference pair is encoded separately from the answers, so its ids are the same in both documents,
and the same as for generation.

Price: masks need the position of each token in the text, which costs about as much again as the
encoding.
"""

from __future__ import annotations

import abc
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from headrace.batch.masks import trained_turns
from headrace.errors import ConfigError, did_you_mean
from headrace.ingest.base_tokenizer import Tokenizer
from headrace.ingest.chat_template import (
    ChatTemplate,
    Given,
    Spans,
    TurnsError,
    find_template,
    refuse_marks,
)
from headrace.ingest.choices import Kind, Mask
from headrace.ingest.conversations import (
    Message,
    fields_of_parts,
    from_json,
    prompt_of_dialogues,
    read_messages,
    read_tools,
    read_variables,
    training_mark,
)
from headrace.ingest.cut_points import MAX_PIECE_CHARS
from headrace.ingest.documents import Document
from headrace.ingest.fim import content_keys, fill_in_middle
from headrace.ingest.records import (
    BadRecordError,
    Fields,
    containers_of,
    cure_of_shape,
    joined,
    lookup,
    names_in,
    numbers,
    string_of,
    type_name,
    utf8_length,
)
from headrace.ingest.source import (
    BOUNDS,
    FIELDS,
    OF_TEMPLATES,
    TOKEN_MASKS,
    ChatConfig,
    SourceConfig,
)
from headrace.ingest.tokenize import TokenizerConfig, tokenizer_folder
from headrace.store.layout import LeafSpec
from headrace.store.ragged import LeafValues

LOSS_MASK = LeafSpec("loss_mask", "uint8", "ragged")
PROMPT_LENGTH = LeafSpec("prompt_length", "int32", "fixed")
CHOSEN = LeafSpec("chosen", "uint8", "fixed")
Stretches: TypeAlias = Sequence[tuple[int, int]]
"""First and last place (exclusive) of each document of a record."""
_NO_LABEL = -100
_OF_IDS = ("tokens", "question", "answer")
"""What holds ids, all or a part of them."""
_LAST_ANSWERS: tuple[Mask, ...] = ("last_assistant_turn", "last_assistant_message")
"""Masks for templates that render earlier answers otherwise than the last."""
_OF_MESSAGES = ("messages", "question", "answer", "prompt", "chosen", "rejected")
"""What may hold messages."""
_FOR_TEMPLATES = {
    "system": "a system message",
    "tools": "tools",
    "variables": "variables of the template",
}
"""What a record may have for a template besides messages, in words."""


class EncodedBatch(NamedTuple):
    """Documents in the form of a part: ids end to end, int64 lengths ``[documents]``, values of
    each leaf.
    """

    tokens: np.ndarray
    lengths: np.ndarray
    leaves: dict[str, LeafValues]


class DocumentKind(abc.ABC):
    """Converts records to documents, and documents to ids."""

    own_leaves: tuple[LeafSpec, ...] = ()

    def __init__(
        self, config: SourceConfig, kind: Kind, tokenizer: Tokenizer, template: ChatTemplate | None
    ) -> None:
        _check_special_tokens(config, kind)
        self.config = config
        self.template = template
        # Text of a template is trusted: there, the record's strings are checked in advance.
        self.tokenizer = tokenizer.reading_special(
            config.special_tokens_in_text if kind == "text" else "token"
        )
        self.kind: Kind = kind
        self.columns = config.columns(kind)
        self.optional = config.optional_columns(kind)
        self._fields = {name: config.field_of(kind, name) for name in FIELDS[kind]}
        self._cures = {name: config.cure_of(kind, name) for name in FIELDS[kind]}
        self.cures = config.cures(kind)
        self._asked = tuple(leaf.spec(name) for name, leaf in config.leaves.items())
        for name, leaf in config.leaves.items():
            if leaf.width is not None and (kind != "tokens" or config.fim is not None):
                what = (
                    "tokens that move for filling in the middle"
                    if kind == "tokens"
                    else f"documents of kind {kind}"
                )
                problem = f"has values for tokens, and {what} are not those that they belong to"
                cure = (
                    "Keep such values of ready ids (--kind tokens), without --fim-prefix and the"
                    " like."
                )
                raise ConfigError(problem, field=f"leaves.{name}", value=leaf.field, cure=cure)
        self._fim = (
            None if config.fim is None else fill_in_middle(config, config.fim, kind, tokenizer)
        )

    @property
    def specs(self) -> list[LeafSpec]:
        return [*self.own_leaves, *self._asked]

    @abc.abstractmethod
    def documents(self, record: Fields) -> Sequence[Document]:
        """The documents of a record.

        Raises:
            BadRecordError: it cannot be used.
        """

    @abc.abstractmethod
    def _encode(self, documents: Sequence[Document]) -> EncodedBatch:
        """Ids and the kind's own leaves."""

    def encode(self, documents: Sequence[Document]) -> EncodedBatch:
        """Ids and leaves of some documents, each independent of the others."""
        encoded = self._encode(documents)
        if self._fim is not None:
            keys = content_keys(encoded.tokens, encoded.lengths)
            tokens, lengths = self._fim(encoded.tokens, encoded.lengths, keys)
            encoded = EncodedBatch(tokens, lengths, encoded.leaves)
        for i, spec in enumerate(self._asked):
            encoded.leaves[spec.name] = joined(spec, [d.leaves[i] for d in documents])
        return encoded

    def _leaves(self, record: Fields) -> tuple[np.ndarray, ...]:
        return tuple(leaf.values(name, record) for name, leaf in self.config.leaves.items())

    def _field(self, record: Fields, name: str) -> Any:
        field = self._fields[name]
        if field is None or (field in self.optional and field not in record):
            return None
        return lookup(record, field, self._cure_of(name))

    def _cure_of(self, name: str) -> str:
        return self._cures[name]

    def _field_name(self, name: str) -> str:
        return self._fields[name] or name


class TextKind(DocumentKind):
    """One text, one document."""

    def documents(self, record: Fields) -> Sequence[Document]:
        text = string_of(
            self._field(record, "text"), self._field_name("text"), self._cure_of("text")
        )
        return (Document(text, utf8_length(text), self._leaves(record) if self._asked else ()),)

    def _encode(self, documents: Sequence[Document]) -> EncodedBatch:
        return EncodedBatch(*self.tokenizer.encode_batch([d.text for d in documents]), {})


class TokensKind(DocumentKind):
    """Token ids from other tools: stored unchanged, without special tokens."""

    def __init__(
        self, config: SourceConfig, kind: Kind, tokenizer: Tokenizer, template: ChatTemplate | None
    ) -> None:
        super().__init__(config, kind, tokenizer, template)
        self._masks = [name for name in TOKEN_MASKS if config.requires(kind, name)]
        if self._masks:
            self.own_leaves = (LOSS_MASK,)
        of_ids = [field for name in _OF_IDS if (field := self._fields[name])]
        self._containers = containers_of(of_ids)
        self._siblings = {
            f"{container}.{name}": name
            for container in {field.rpartition(".")[0] for field in of_ids} - {""}
            for name, usual in FIELDS[kind].items()
            if name == usual and name not in config.fields
        }
        """What the table of columns knows, within a field that holds ids, and is not read."""
        for column in self.columns:
            self._siblings.pop(column, None)

    def documents(self, record: Fields) -> Sequence[Document]:
        if self._siblings:
            self._refuse_siblings(record)
        if self._fields["tokens"] is None:
            ids = np.concatenate([self._ids(record, "question"), self._ids(record, "answer")])
        else:
            ids = self._ids(record, "tokens")
        stretches = list(self._stretches(record, ids.size))
        visible_columns = slice(stretches[0][0], stretches[-1][1])
        outside = (ids[visible_columns] < 0) | (ids[visible_columns] >= self.tokenizer.vocab_size)
        if outside.any():
            at = visible_columns.start + int(np.flatnonzero(outside)[0])
            raise BadRecordError(
                f"holds the id {int(ids[at])} at position {at}, outside the vocabulary of"
                f" {self.tokenizer.vocab_size}",
                "Give the tokenizer that it was made with.",
            )
        mask = self._mask(record, ids, stretches)
        leaves = self._leaves(record)
        for spec, values in zip(self._asked, leaves, strict=True):
            if spec.width is not None and values.size != spec.width * ids.size:
                field = self.config.leaves[spec.name].field
                each = "a number" if spec.width == 1 else f"{spec.width} numbers"
                raise BadRecordError(
                    f"has {ids.size} ids, and not {each} for each in field {field!r}"
                )
        ids = ids.astype(self.tokenizer.dtype)
        documents: list[Document] = []
        for start, stop in stretches:
            own_leaves = tuple(
                values if spec.width is None else values[start * spec.width : stop * spec.width]
                for spec, values in zip(self._asked, leaves, strict=True)
            )
            own_ids = ids[start:stop]
            own_mask = None if mask is None else mask[start:stop]
            documents.append(Document("", own_ids.nbytes, own_leaves, ids=own_ids, mask=own_mask))
        return documents

    def _refuse_siblings(self, record: Fields) -> None:
        """Raises BadRecordError if a column that says something about the ids is beside them in
        another field, and nothing says whether it is to be read.
        """
        there = [
            field
            for field in names_in(record, self._containers)
            if field in self._siblings and lookup(record, field) is not None
        ]
        if there:
            names = [self._siblings[field] for field in there]
            use = " ".join(
                f"--field {name}={field}" for name, field in zip(names, there, strict=True)
            )
            leave = " ".join(f"--field {name}=none" for name in names)
            raise BadRecordError(
                f"has {', '.join(there)} beside its ids, and nothing says whether to read it",
                f"Say {use} to read it. Or leave it unused: {leave}.",
            )

    def _ids(self, record: Fields, name: str) -> np.ndarray:
        value = self._field(record, name)
        field = self._field_name(name)
        return numbers(value, "int64", field, bools=False, cure=self._cure_of(name))

    def _mask(self, record: Fields, ids: np.ndarray, stretches: Stretches) -> np.ndarray | None:
        """Which ids are trained on: those that every mask of the record marks; None: the source has
        no masks.
        """
        mask = np.ones(ids.size, np.uint8)
        for name, meaning in TOKEN_MASKS.items():
            column = _Column(name, self._field_name(name), self._field(record, name))
            if name in self._masks:
                try:
                    mask &= _MASKS[meaning](column, ids, stretches)
                except BadRecordError as bad:
                    cure = f"{bad.cure} To train on every token: --field {name}=none.".strip()
                    raise BadRecordError(bad.problem, cure) from None
            elif column.value is not None:
                raise BadRecordError(
                    f"has a {column.field}, and the first record of the source has none",
                    f"Say --field {name}={column.field} if all have one, or --field {name}=none to"
                    " train without it.",
                )
        return mask if self._masks else None

    def _stretches(self, record: Fields, size: int) -> Iterator[tuple[int, int]]:
        """Where the documents of the record are: without padding, and those of a packed record
        apart.
        """
        start, stop = self._unpadded(record, size)
        starts: list[int] = [start]
        decided_by = ""
        for name, meaning in BOUNDS.items():
            value = self._field(record, name)
            if value is None:
                continue
            field = self._field_name(name)
            try:
                own_starts = _STARTS[meaning](value, field, start, stop, size)
            except BadRecordError as bad:
                cure = f"{bad.cure} To leave it unused: --field {name}=none.".strip()
                raise BadRecordError(bad.problem, cure) from None
            if decided_by and set(own_starts) != set(starts):
                raise BadRecordError(
                    f"has documents that begin elsewhere by its {decided_by} than by its {field}",
                    f"Leave one unused: --field {name}=none.",
                )
            if not decided_by:
                starts = own_starts
                decided_by = field
        yield from itertools.pairwise([*starts, stop])

    def _unpadded(self, record: Fields, size: int) -> tuple[int, int]:
        """First and last place (exclusive) that ``attention_mask`` shows to the model."""
        value = self._field(record, "attention_mask")
        if value is None or not size:
            return 0, self._end_of_segments(record, size)
        field = self._field_name("attention_mask")
        values = numbers(value, "int64", field, cure=self._cure_of("attention_mask"))
        attended = np.flatnonzero(values)
        if values.size != size or (values[attended] != 1).any():
            cure = self._cure_of("attention_mask")
            if values.size == size:
                cure += (
                    " If it numbers the documents of a packed record:"
                    f" --field attention_mask=none --field segment_ids={field}."
                )
            raise BadRecordError(f"has {size} ids, and not a 0 or 1 for each in its {field}", cure)
        if not attended.size:
            return 0, 0
        start = int(attended[0])
        stop = int(attended[-1]) + 1
        if attended.size != stop - start:
            at = start + int(np.flatnonzero(values[start:stop] == 0)[0])
            raise BadRecordError(
                f"hides position {at} by its {field}, between others that it shows",
                "Only padding before and after the ids can be left out; to read all ids: --field"
                " attention_mask=none.",
            )
        return start, stop

    def _end_of_segments(self, record: Fields, size: int) -> int:
        """Where padding begins by numbers of documents that count from 1 and end with zeros."""
        ends = [size]
        for name, meaning in BOUNDS.items():
            value = self._field(record, name)
            if meaning == "numbers" and value is not None and size:
                field = self._field_name(name)
                values = _one_for_each_id(value, field, size, self._cure_of(name))
                ends.append(int(np.flatnonzero(values)[-1]) + 1 if values[0] else size)
        return min(ends)

    def _encode(self, documents: Sequence[Document]) -> EncodedBatch:
        ids = [d.ids for d in documents if d.ids is not None]
        lengths = np.fromiter((i.size for i in ids), np.int64, len(ids))
        leaves: dict[str, LeafValues] = {}
        if self.own_leaves:
            leaves[LOSS_MASK.name] = joined(
                LOSS_MASK, [d.mask for d in documents if d.mask is not None]
            )
        return EncodedBatch(
            np.concatenate(ids) if ids else np.zeros(0, self.tokenizer.dtype), lengths, leaves
        )


def _starts_by_length(lengths: Any, field: str, start: int, stop: int, size: int) -> list[int]:
    """Where documents of these lengths begin between ``start`` and ``stop``, the ids that are no
    padding.
    """
    counts = numbers(lengths, "int64", field, bools=False)
    if (counts < 0).any() or int(counts.sum()) != stop - start:
        raise BadRecordError(
            f"has {stop - start} ids, and lengths of documents in field {field!r} that do not sum"
            " up to it"
        )
    return [start, *(start + np.cumsum(counts)[:-1]).tolist()]


def _starts_by_bounds(bounds: Any, field: str, start: int, stop: int, size: int) -> list[int]:
    """Where documents begin by the bounds of all of them, 0 first, which count padding or not."""
    borders = numbers(bounds, "int64", field, bools=False)
    last = int(borders[-1]) if borders.size else -1
    if last not in (size, stop - start) or borders[0] != 0 or (np.diff(borders) < 0).any():
        raise BadRecordError(
            f"has {size} ids, and bounds in field {field!r} that do not increase from 0 to it",
            "Write the bounds of all documents: [0, 5, 9] for two of 5 and 4 ids.",
        )
    if last != size:
        borders = borders + start
    inside = np.clip(borders[:-1], start, stop)
    return [start, *np.unique(inside[(inside > start) & (inside < stop)]).tolist()]


def _restarts(positions: Any, field: str, start: int, stop: int, size: int) -> list[int]:
    """Where ``position_ids`` begin again at 0, which is where the next document begins."""
    values = _one_for_each_id(positions, field, size)
    stretch = values[start:stop]
    if not stretch.size:
        return [start]
    is_start = stretch == 0
    is_start[0] = True
    wrong = np.flatnonzero(~is_start[1:] & (np.diff(stretch) != 1))
    if stretch[0] != 0 or wrong.size:
        at = start if stretch[0] != 0 else start + 1 + int(wrong[0])
        raise BadRecordError(
            f"has the position {int(values[at])} at place {at} of field {field!r}, neither 0 nor"
            " one more than before",
            "Positions count from 0 in each document.",
        )
    return (start + np.flatnonzero(is_start)).tolist()


def _changes(numbers_of_documents: Any, field: str, start: int, stop: int, size: int) -> list[int]:
    """Where the number of the document changes that each id belongs to."""
    values = _one_for_each_id(numbers_of_documents, field, size)
    changes = np.flatnonzero(np.diff(values[start:stop])) + 1
    return [start, *(start + changes).tolist()]


def _one_for_each_id(value: Any, field: str, size: int, cure: str = "") -> np.ndarray:
    values = numbers(value, "int64", field, bools=False, cure=cure)
    if values.size != size:
        raise BadRecordError(f"has {size} ids and {values.size} numbers in field {field!r}", cure)
    return values


def _refuse_starts(starts: Any, field: str, start: int, stop: int, size: int) -> list[int]:
    raise BadRecordError(
        f"has a {field}, as rows packed by NeMo have, whose loss_mask says of each id whether the"
        " next one is trained on",
        "Write seq_lengths in place of it, and a loss_mask that belongs to the id itself.",
    )


_STARTS: dict[str, Callable[[Any, str, int, int, int], list[int]]] = {
    "lengths": _starts_by_length,
    "bounds": _starts_by_bounds,
    "positions": _restarts,
    "numbers": _changes,
    "packed by NeMo": _refuse_starts,
}
"""By what a column says: where the documents of a packed record begin."""


class _Column(NamedTuple):
    """A column of a record that says which ids are trained on."""

    name: str
    field: str
    value: Any

    def ids(self) -> np.ndarray:
        return numbers(self.value, "int64", self.field, bools=False)

    def part_of(self, stretches: Stretches) -> np.ndarray:
        """Its ids, which are a part of the record's only document."""
        if len(stretches) > 1:
            problem = f"has {len(stretches)} documents, and field {self.field!r} belongs to one"
            raise BadRecordError(problem)
        return self.ids()


def _marked(column: _Column, ids: np.ndarray, stretches: Stretches) -> np.ndarray:
    name, field, value = column
    if not isinstance(value, np.ndarray | list | tuple):
        raise BadRecordError(
            f"holds a {type_name(value)} in field {field!r}, not a 0 or 1 for each id"
        )
    values = numbers(value, "float64", field)
    if values.size != ids.size:
        raise BadRecordError(f"has {ids.size} ids and {values.size} numbers in field {field!r}")
    if not np.isin(values, (0, 1)).all():
        raise BadRecordError(
            f"has {ids.size} ids, and not a 0 or 1 for each in its {field}",
            f"Keep weights as a leaf: --field {name}=none --leaf"
            f" loss_weights={field}:float32:token.",
        )
    return values.astype(np.uint8)


def _not_marked(column: _Column, ids: np.ndarray, stretches: Stretches) -> np.ndarray:
    return 1 - _marked(column, ids, stretches)


def _labelled(column: _Column, ids: np.ndarray, stretches: Stretches) -> np.ndarray:
    """1 where the label is the id itself, 0 where it is -100: transformers shifts labels within the
    model.
    """
    field = column.field
    labels = _one_for_each_id(column.value, field, ids.size)
    trained = labels != _NO_LABEL
    wrong = np.flatnonzero(trained & (labels != ids))
    if wrong.size:
        at = int(wrong[0])
        next_ids = np.append(ids[1:], labels[-1:])
        is_shifted = bool((labels == next_ids)[trained].all())
        cure = (
            f"They are shifted by one: write them unshifted, {field}[i] beside input_ids[i], as"
            " transformers does."
            if is_shifted
            else f"Give an id of input_ids or {_NO_LABEL} at each place."
        )
        raise BadRecordError(
            f"has the label {int(labels[at])} at position {at} of field {field!r}, where the"
            f" id is {int(ids[at])}",
            cure,
        )
    return trained.astype(np.uint8)


def _after_prompts(column: _Column, ids: np.ndarray, stretches: Stretches) -> np.ndarray:
    """0 at the first ids of each document, as many as a number says, or a list with one for each
    document.
    """
    is_list = isinstance(column.value, np.ndarray | list | tuple)
    value = column.value if is_list else [column.value]
    lengths = numbers(value, "int64", column.field, bools=False).tolist()
    if len(lengths) != len(stretches):
        raise BadRecordError(
            f"has {len(stretches)} documents, and {len(lengths)} numbers in field {column.field!r}"
        )
    mask = np.ones(ids.size, np.uint8)
    for (start, stop), length in zip(stretches, lengths, strict=True):
        if not 0 <= length <= stop - start:
            raise BadRecordError(
                f"has a document of {stop - start} ids, of which {length} are the prompt by field"
                f" {column.field!r}"
            )
        mask[start : start + length] = 0
    return mask


def _after_prompt(column: _Column, ids: np.ndarray, stretches: Stretches) -> np.ndarray:
    prompt = column.part_of(stretches)
    start, stop = stretches[0]
    if not np.array_equal(prompt, ids[start:stop][: prompt.size]):
        raise BadRecordError(f"has ids that do not begin with those of field {column.field!r}")
    return (np.arange(ids.size) >= start + prompt.size).astype(np.uint8)


def _within_completion(column: _Column, ids: np.ndarray, stretches: Stretches) -> np.ndarray:
    completion = column.part_of(stretches)
    start, stop = stretches[0]
    begin = stop - completion.size
    if begin < start or not np.array_equal(completion, ids[begin:stop]):
        raise BadRecordError(f"has ids that do not end with those of field {column.field!r}")
    return (np.arange(ids.size) >= begin).astype(np.uint8)


_MASKS: dict[str, Callable[[_Column, np.ndarray, Stretches], np.ndarray]] = {
    "trained": _marked,
    "weights": _marked,
    "untrained": _not_marked,
    "labels": _labelled,
    "prompt length": _after_prompts,
    "prompt": _after_prompt,
    "completion": _within_completion,
}
"""By what a column says: a 1 for each id that is trained on by it, uint8 ``[ids]``, else a 0."""


class MarkedKind(DocumentKind):
    """What chat, preference and prompts have in common: text of which some characters are trained
    on.
    """

    def __init__(
        self, config: SourceConfig, kind: Kind, tokenizer: Tokenizer, template: ChatTemplate | None
    ) -> None:
        super().__init__(config, kind, tokenizer, template)
        names = [name for name in _OF_MESSAGES if name in FIELDS[kind]]
        self._of_messages = [name for name in names if config.field_of(kind, name) is not None]

    def _encode(self, documents: Sequence[Document]) -> EncodedBatch:
        pieces = [p for d in documents for p in (d.text[: d.cut], d.text[d.cut :])]
        encoded = self.tokenizer.encode_with_places(pieces)
        bos, eos = (
            np.array([] if i is None else [i], np.int64)
            for i in (self.tokenizer.bos_id, self.tokenizer.eos_id)
        )
        ids: list[np.ndarray] = []
        masks: list[np.ndarray] = []
        prompts: list[int] = []
        for i, document in enumerate(documents):
            prefix, suffix = encoded[2 * i : 2 * i + 2]
            spans = document.spans or ()
            opens, closes = (
                t if f else t[:0] for t, f in zip((bos, eos), document.framed, strict=True)
            )
            ids.append(np.concatenate([opens, prefix.ids, suffix.ids, closes]))
            mask = [
                np.zeros(opens.size, bool),
                marked(prefix.places, spans),
                marked(suffix.places + document.cut, spans),
            ]
            masks.append(np.concatenate([*mask, np.ones(closes.size, bool)]).astype(np.uint8))
            prompts.append(opens.size + prefix.ids.size)
        lengths = np.fromiter((i.size for i in ids), np.int64, len(ids))
        tokens = (
            np.concatenate(ids).astype(self.tokenizer.dtype)
            if ids
            else np.zeros(0, self.tokenizer.dtype)
        )
        leaves: dict[str, LeafValues] = {}
        if LOSS_MASK in self.own_leaves:
            leaves[LOSS_MASK.name] = joined(LOSS_MASK, masks)
        if PROMPT_LENGTH in self.own_leaves:
            leaves[PROMPT_LENGTH.name] = np.array(prompts, np.int32), None
            leaves[CHOSEN.name] = np.array([d.label for d in documents], np.uint8), None
        return EncodedBatch(tokens, lengths, leaves)

    def documents(self, record: Fields) -> Sequence[Document]:
        if self.config.special_tokens_in_text == "error":
            values = [self._field(record, name) for name in FIELDS[self.kind]]
            texts = [
                text for value in values for text in (*_strings(value), "".join(_spoken(value)))
            ]
            self.tokenizer.reading_special("error").encode_batch(texts)
        documents = self._documents(record)
        unread = [
            f"{self._field_name(name)}[].content[].{field}"
            for name in self._of_messages
            for field in fields_of_parts(self._field(record, name))
        ]
        if unread:
            documents = [one._replace(unused=(*one.unused, *unread)) for one in documents]
        return documents

    @abc.abstractmethod
    def _documents(self, record: Fields) -> Sequence[Document]:
        """The documents of a record, whatever special tokens it contains."""

    def _chat(self) -> ChatTemplate:
        if self.template is None:
            raise BadRecordError(
                "holds messages, and there is no chat template",
                "Put chat_template.jinja beside the tokenizer.json, or pass --chat-template FILE.",
            )
        return self.template

    def _messages(self, record: Fields, name: str) -> list[dict[str, Any]]:
        messages = read_messages(self._field(record, name), self._field_name(name))
        refuse_marks(messages)
        return messages

    def _system(self, record: Fields) -> str:
        """The text of a record's system message; empty if there is none, or nothing in it."""
        system = self._field(record, "system")
        if not system:
            return ""
        text = string_of(system, self._field_name("system"), self._cure_of("system"))
        return text if text.strip() else ""

    def _with_system(self, record: Fields, messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """The messages after the system message of the record, if it has one besides them."""
        text = self._system(record)
        system = {"role": "system", "content": text}
        if not text or messages[0] == system:
            return messages
        if messages[0]["role"] == "system":
            raise BadRecordError(
                "holds a system message, and another text for it in field"
                f" {self._field_name('system')!r}",
                self._cure_of("system"),
            )
        refuse_marks([system])
        return [system, *messages]

    def _keeps_texts(self, record: Fields) -> bool:
        """Whether texts of a record stay as they are. If a field of what templates take besides
        messages is named, they are turns of the template in every record.

        Raises:
            BadRecordError: none is named, and there is something for a template.
        """
        if any(self.config.requires(self.kind, name) for name in OF_TEMPLATES):
            return False
        given = self._template_extras(record)
        values = {
            "system": self._system(record),
            "tools": given.tools,
            "variables": given.variables,
        }
        for name, value in values.items():
            if not value:
                continue
            field = self._field_name(name)
            options = f"--field {name}={field}{'' if self.template else ' --chat-template FILE'}"
            if not self._field(record, "prompt"):
                prompt = cure_of_shape("prompt", record).removeprefix("Say ").rstrip(".")
                options = f"{prompt} {options}".strip()
            raise BadRecordError(
                f"holds plain texts, and {_FOR_TEMPLATES[name]} for them in field {field!r}",
                f"Say {options} to make turns of them with the chat template: of the system, the"
                f" user and the assistant. Or leave it unused: --field {name}=none.",
            )
        return True

    def _template_extras(self, record: Fields) -> Given:
        """What the record gives to the template besides messages."""
        return Given(
            read_tools(self._field(record, "tools"), self._field_name("tools")),
            read_tools(
                self._field(record, "documents"), self._field_name("documents"), "documents"
            ),
            read_variables(self._field(record, "variables"), self._field_name("variables")),
        )

    def _training_marks(self, messages: Sequence[Message], name: str) -> list[bool | None]:
        """For each message of a field whether it says that it is trained on, or not."""
        field = self._field_name(name)
        return [training_mark(one, f"{field}[{i}]") for i, one in enumerate(messages)]

    def _without_masked(
        self,
        spans: Spans,
        messages: Sequence[Message],
        marks: Sequence[bool | None],
        given: Given,
    ) -> Spans:
        """The characters that are trained on, without the messages that are marked false."""
        masked = [mark is False for mark in marks]
        if not any(masked):
            return spans
        chat = self._chat()
        if chat.has_marks and self.config.chat.mask == "generation":
            return chat.spans_without(messages, masked, given)
        _, hidden = chat.spans_of_turns(messages, masked, given)
        return without_spans(spans, hidden)

    def _unwritten(
        self, messages: Sequence[Message], text: str, given: Given, name: str, *, ask: bool = False
    ) -> tuple[str, ...]:
        """The fields of a conversation, and of what is given to the template with it, that the
        template leaves out of its text.

        Raises:
            BadRecordError: it leaves out a message altogether.
        """
        chat = self._chat()
        left_out = chat.left_out(messages, text, given, ask=ask)
        field = self._field_name(name)
        if left_out.lost:
            first = left_out.lost[0]
            turn = f"turn {first + 1} ({messages[first]['role']}) of field {field!r}"
            raise BadRecordError(
                f"holds words that the chat template leaves out: {turn}",
                "Give a template that writes such turns: --chat-template FILE.",
            )
        names = {f"{field}[].{one}" for silent in left_out.fields for one in silent}
        for optional, value in (("tools", given.tools), ("documents", given.documents)):
            if value is not None and optional not in chat.variables_read:
                names.add(self._field_name(optional))
        for variable in given.variables.keys() - chat.variables_read:
            names.add(f"{self._field_name('variables')}.{variable}")
        return tuple(names)

    def _document(
        self, record: Fields, text: str, spans: Spans | None = None, **more: Any
    ) -> Document:
        if len(text) > MAX_PIECE_CHARS:
            raise BadRecordError(
                f"is a {self.kind} document of {len(text):,} characters; at most"
                f" {MAX_PIECE_CHARS:,}",
                "Divide it into several records.",
            )
        return Document(text, utf8_length(text), self._leaves(record), spans, **more)


class ChatKind(MarkedKind):
    """One conversation, one document."""

    own_leaves = (LOSS_MASK,)

    def _documents(self, record: Fields) -> Sequence[Document]:
        messages = self._conversation(record)
        given = self._template_extras(record)
        how = self.config.chat
        chat = self._chat()
        marks = self._training_marks(messages, "messages")
        if how.mask in ("generation", "all"):
            text, spans = chat.render_marked(messages, given)
            if how.mask == "all":
                spans = ((0, len(text)),)
            spans = self._without_masked(spans, messages, marks, given)
        else:
            trained_turns = _wanted_turns(messages, marks, how)
            try:
                text, spans = chat.spans_of_turns(messages, trained_turns, given)
            except TurnsError as bad:
                cure = f"{bad.cure} {self._cure_by_mask(messages, marks, given)}".strip()
                raise BadRecordError(bad.problem, cure) from None
        unused = self._unwritten(messages, text, given, "messages")
        return (self._document(record, text, spans, unused=unused),)

    def _cure_by_mask(
        self, messages: Sequence[Message], marks: Sequence[bool | None], given: Given
    ) -> str:
        """The mask of fewer answers that the template renders one after the other; empty if there
        is none.
        """
        if self.config.chat.roles != ["assistant"]:
            return ""
        for mask in _LAST_ANSWERS:
            trained_turns = _wanted_turns(messages, marks, replace(self.config.chat, mask=mask))
            try:
                _, spans = self._chat().spans_of_turns(messages, trained_turns, given)
            except BadRecordError:
                continue
            if spans:
                return f"Or train on the last answer alone: --mask {mask}."
        return ""

    def _conversation(self, record: Fields) -> list[dict[str, Any]]:
        """The messages of a record: its list of them, or its question and its answer."""
        if self.config.field_of("chat", "messages") is not None:
            messages = self._messages(record, "messages")
        else:
            if self._field(record, "label") is False:
                raise BadRecordError(
                    f"holds an answer that was rejected ({self._field_name('label')}: false),"
                    " which would be trained on",
                    "To train on rejected ones, too, leave the label unused: --field label=none.",
                )
            context = self._field(record, "context")
            question_turns = _turns(
                self._field(record, "question"), "user", self._field_name("question")
            )
            if context:
                text = string_of(context, self._field_name("context"))
                question_turns[-1]["content"] = f"{question_turns[-1]['content']}\n\n{text}"
            answer = _turns(self._field(record, "answer"), "assistant", self._field_name("answer"))
            messages = [*question_turns, *answer]
        return self._with_system(record, messages)


def _turns(value: Any, role: str, field: str) -> list[dict[str, Any]]:
    """A text as one message of a role, or messages as they are."""
    value = from_json(value)
    turns = (
        read_messages(value, field)
        if isinstance(value, list | dict)
        else [{"role": role, "content": string_of(value, field)}]
    )
    refuse_marks(turns)
    return turns


def _wanted_turns(
    messages: Sequence[Message], marks: Sequence[bool | None], how: ChatConfig
) -> list[bool]:
    """The messages that are trained on: those that the mask chooses, but for the
    ones marked false.
    """
    roles = [str(message["role"]) for message in messages]
    if how.mask == "customized" and None in marks:
        raise BadRecordError(
            "holds a message that does not say whether it is trained on",
            'With mask customized each has "trainable": true or false (or "weight": 1 or 0).',
        )
    chosen = (
        [role in how.roles for role in roles]
        if how.mask == "roles"
        else trained_turns(roles, how.mask, marks)
    )
    return [is_chosen and mark is not False for is_chosen, mark in zip(chosen, marks, strict=True)]


def without_spans(spans: Spans, masked: Spans) -> Spans:
    """What is left of increasing spans without the characters of others.

    Example:
        >>> without_spans(((0, 4), (6, 9)), ((2, 3), (5, 7)))
        ((0, 2), (3, 4), (7, 9))
    """
    rest = list(spans)
    for start, stop in masked:
        pieces = [(a, min(b, start)) for a, b in rest] + [(max(a, stop), b) for a, b in rest]
        rest = sorted({(a, b) for a, b in pieces if a < b})
    return tuple(rest)


class PreferenceKind(MarkedKind):
    """Two answers to one prompt: two documents."""

    own_leaves = (LOSS_MASK, PROMPT_LENGTH, CHOSEN)

    def _documents(self, record: Fields) -> Sequence[Document]:
        prompt = from_json(self._field(record, "prompt"))
        chosen = from_json(self._field(record, "chosen"))
        rejected = from_json(self._field(record, "rejected"))
        are_texts = isinstance(chosen, str) and isinstance(rejected, str)
        if are_texts and not isinstance(prompt, list | dict) and self._keeps_texts(record):
            return self._text_pair(record, prompt, chosen, rejected)
        if not are_texts and not (
            isinstance(chosen, list | dict) and isinstance(rejected, list | dict)
        ):
            raise BadRecordError(
                f"holds a {type_name(chosen)} and a {type_name(rejected)} to choose from, not two"
                " texts or two lists of messages"
            )
        answers = [
            _turns(answer, "assistant", self._field_name(name))
            for name, answer in (("chosen", chosen), ("rejected", rejected))
        ]
        given = self._template_extras(record)
        turns = None if prompt is None else _turns(prompt, "user", self._field_name("prompt"))
        if turns is None or all(
            a[0]["role"] != "assistant" for a in answers
        ):  # they hold their prompt themselves
            shared = next(
                (i for i, (a, b) in enumerate(zip(*answers, strict=False)) if a != b),
                min(map(len, answers)),
            )
            self._check_prompt_is_in(answers[0][:shared], turns or [])
            turns = answers[0][:shared]
            answers = [a[shared:] for a in answers]
        if not turns or not all(answers):
            raise BadRecordError(
                "holds answers that share no prompt, or no answer after it",
                cure_of_shape("prompt", record)
                or "Name the field of the prompt: --field prompt=FIELD.",
            )
        turns = self._with_system(record, turns)
        question = self._chat().render(turns, given, ask=True)
        return tuple(
            self._answer(record, question, [*turns, *answer], label, given)
            for label, answer in zip((1, 0), answers, strict=True)
        )

    def _check_prompt_is_in(self, shared: list[Any], prompt: list[Any]) -> None:
        """Raises BadRecordError if the turns that both answers begin with lack a text of the
        prompt.
        """
        texts = {str(turn["content"]).strip() for turn in shared}
        for turn in prompt:
            if str(turn["content"]).strip() not in texts:
                field = self._field_name("prompt")
                raise BadRecordError(
                    f"has words in field {field!r} that the answers, which hold their prompt"
                    " themselves, do not have",
                    self._cure_of("prompt"),
                )

    def _text_pair(
        self, record: Fields, prompt: Any, chosen: str, rejected: str
    ) -> tuple[Document, ...]:
        """Two texts after a prompt, which dialogues that are one text hold themselves."""
        if prompt is None:
            prompt = prompt_of_dialogues(chosen, rejected)
            chosen = chosen.removeprefix(prompt)
            rejected = rejected.removeprefix(prompt)
        prompt = string_of(prompt, self._field_name("prompt"), self._cure_of("prompt"))
        if (
            prompt
            and "prompt" in self.optional
            and chosen.startswith(prompt)
            and rejected.startswith(prompt)
        ):
            raise BadRecordError(
                "has a prompt, and both answers begin with it: whether it comes before them cannot"
                " be told",
                "Say --field prompt=prompt if it does, or --field prompt=none if the answers hold"
                " it.",
            )
        for name, answer in (("chosen", chosen), ("rejected", rejected)):
            if not answer and self.tokenizer.eos_id is None:
                raise BadRecordError(
                    f"holds an empty answer in field {self._field_name(name)!r}",
                    "With an end token after it, it can be compared: --eos auto.",
                )
        return tuple(
            self._document(
                record,
                prompt + answer,
                ((len(prompt), len(prompt) + len(answer)),),
                cut=len(prompt),
                framed=(True, True),
                label=label,
            )
            for label, answer in ((1, chosen), (0, rejected))
        )

    def _answer(
        self, record: Fields, question: str, messages: list[Any], label: int, given: Given
    ) -> Document:
        chat = self._chat()
        text, spans = chat.render_marked(messages, given)
        if not text.startswith(question):
            raise BadRecordError(
                "its prompt is rendered otherwise with an answer than alone, so they cannot be"
                " parted"
            )
        cut = len(question)
        name = "chosen" if label else "rejected"
        if not (chat.has_marks and self.config.chat.mask == "generation"):
            spans = ((cut, len(text)),)
        marks = self._training_marks(messages, name)
        spans = self._without_masked(spans, messages, marks, given)
        answer_spans = tuple((max(a, cut), b) for a, b in spans if b > cut)
        if not answer_spans:
            # Its probability would be 1 whatever the model says, so the pair would compare the
            # other answer alone.
            raise BadRecordError(
                f"holds an answer in field {self._field_name(name)!r} of which nothing is trained"
                " on",
                "Answers of pairs are compared whole: leave weight: 0 and the like out of them.",
            )
        unused = self._unwritten(messages, text, given, name)
        return self._document(record, text, answer_spans, cut=cut, label=label, unused=unused)


class PromptsKind(MarkedKind):
    """One prompt, one document: the text that a model continues."""

    def _documents(self, record: Fields) -> Sequence[Document]:
        prompt = from_json(self._field(record, "prompt"))
        if isinstance(prompt, str) and self._keeps_texts(record):
            return (self._document(record, prompt, framed=(True, False)),)
        turns = _turns(prompt, "user", self._field_name("prompt"))
        messages = self._with_system(record, turns)
        given = self._template_extras(record)
        text = self._chat().render(messages, given, ask=True)
        unused = self._unwritten(messages, text, given, "prompt", ask=True)
        return (self._document(record, text, unused=unused),)


_KINDS: dict[Kind, type[DocumentKind]] = {
    "text": TextKind,
    "tokens": TokensKind,
    "chat": ChatKind,
    "preference": PreferenceKind,
    "prompts": PromptsKind,
}


def _check_special_tokens(config: SourceConfig, kind: Kind) -> None:
    setting = config.special_tokens_in_text
    if kind == "text" or setting == "token" or (kind != "tokens" and setting == "error"):
        return
    cure = (
        "Leave it out."
        if kind == "tokens"
        else "Say error, with --on-bad-line skip to leave such records out."
    )
    problem = f"is not for documents of kind {kind!r}"
    raise ConfigError(problem, field="special_tokens_in_text", value=setting, cure=cure)


def _strings(value: Any) -> Iterator[str]:
    """All strings within a JSON value, including names of fields."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list | tuple):
        for one in value:
            yield from _strings(one)
    elif isinstance(value, dict):
        for pair in value.items():
            yield from _strings(pair)


def _spoken(value: Any) -> Iterator[str]:
    """The texts of messages, in order, which a template may join."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for one in value:
            yield from _spoken(one)
    elif isinstance(value, dict):
        yield from _spoken(value.get("content", value.get("text")))


def template_of(
    source: SourceConfig, kind: Kind, tokenizer: TokenizerConfig
) -> dict[str, Any] | None:
    """The chat template, if one is needed; prompts and pairs may be plain texts,
    which need none.
    """
    if kind not in ("chat", "preference", "prompts"):
        return None
    try:
        return find_template(source.chat, tokenizer_folder(tokenizer))
    except ConfigError:
        if kind == "chat" or source.chat.template is not None:
            raise
        return None


def make_kind(
    config: SourceConfig, kind: Kind, tokenizer: Tokenizer, template: dict[str, Any] | None
) -> DocumentKind:
    """Makes the kind of a source.

    Raises:
        ConfigError: the mask needs marks that the template does not have, or there is no template.
    """
    chat = (
        None
        if template is None
        else ChatTemplate(template, config.chat.variables, config.max_record_bytes)
    )
    if chat is not None:
        _check_variables(config.chat, chat)
    if kind == "chat" and chat is None:
        raise ConfigError("is needed for conversations", field="chat.template", value=None)
    if (
        kind == "chat"
        and chat is not None
        and config.chat.mask == "generation"
        and not chat.has_marks
    ):
        raise ConfigError(
            "does not mark the model's text with {% generation %}, so what to train on cannot be"
            " told",
            field="chat.template",
            cure="Choose by roles: --mask roles --mask-role assistant (each turn of a role is"
            " rendered apart), or train"
            " on everything: --mask all.",
        )
    return _KINDS[kind](config, kind, tokenizer, chat)


def _check_variables(config: ChatConfig, chat: ChatTemplate) -> None:
    """Raises ConfigError if the template does not read a variable that it is given."""
    for name, value in config.variables.items():
        if name not in chat.variables_read:
            raise ConfigError(
                "is no variable of the chat template",
                field=f"chat.variables.{name}",
                value=value,
                cure=f"{did_you_mean(name, chat.variables_read)} Or leave it out.",
            )


def marked(places: np.ndarray, spans: Spans) -> np.ndarray:
    """The tokens with a character within a span.

    Returns:
        bool ``[n]``.

    Example:
        >>> marked(np.array([[0, 2], [2, 3], [3, 6]]), ((2, 4),))
        array([False,  True,  True])
    """
    if not spans or not len(places):
        return np.zeros(len(places), bool)
    starts, stops = np.array(spans, np.int64).T
    nearest = np.searchsorted(stops, places[:, 0], side="right")
    inside = nearest < len(stops)
    return (
        inside
        & (starts[np.minimum(nearest, len(stops) - 1)] < places[:, 1])
        & (places[:, 1] > places[:, 0])
    )
