"""What every kind of documents does: records become documents, and documents ids with leaves; and
the simplest kind, texts.
"""

from __future__ import annotations

import abc
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from headrace.errors import ConfigError
from headrace.ingest.chat_template import (
    ChatTemplate,
)
from headrace.ingest.choices import Kind
from headrace.ingest.fim import content_keys, fill_in_middle
from headrace.ingest.records import Fields, FieldValue, joined, utf8_length
from headrace.ingest.source import (
    SourceConfig,
)
from headrace.ingest.tokenize import Tokenizer
from headrace.store.layout import LeafSpec
from headrace.store.ragged import LeafValues

LOSS_MASK = LeafSpec("loss_mask", "uint8", "ragged")


PROMPT_LENGTH = LeafSpec("prompt_length", "int32", "fixed")


CHOSEN = LeafSpec("chosen", "uint8", "fixed")


class Document(NamedTuple):
    """One document, before it is encoded.

    Attributes:
        text: Its text; empty if it consists of ids.
        num_bytes: Length of the text in UTF-8, or of the ids.
        leaves: Values of the requested leaves, in order.
        spans: Characters ``start .. stop`` that are trained on, increasing; None if the kind has no
            masks.
        cut: Characters of a prompt, which is encoded separately from what follows; 0 if there is
            none.
        framed: Whether the special tokens of the policy are added around it (a prompt has none
            after it).
        ids: Its ids, if the source has them.
        mask: Its mask, if the source has it: uint8 ``[len(ids)]``.
        label: Label from the kind: 1 for the chosen one of a pair.
        unused: Fields of the record that the kind reads, and that the chat template left out.
    """

    text: str
    num_bytes: int
    leaves: tuple[np.ndarray, ...] = ()
    spans: tuple[tuple[int, int], ...] | None = None
    cut: int = 0
    framed: tuple[bool, bool] = (False, False)
    ids: np.ndarray | None = None
    mask: np.ndarray | None = None
    label: int = 0
    unused: tuple[str, ...] = ()


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
        self.reads = config.reads(kind)
        self._asked = tuple(leaf.spec(name) for name, leaf in config.leaves.items())
        self._leaf_reads = [(leaf, leaf.read(name)) for name, leaf in config.leaves.items()]
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
        return tuple(leaf.values(read.of(record)) for leaf, read in self._leaf_reads)

    def _read(self, record: Fields, name: str) -> FieldValue:
        """What a record holds for the kind under a name."""
        read = self.reads.get(name)
        return FieldValue(None, name, name=name) if read is None else read.of(record)

    def is_required(self, name: str) -> bool:
        """Whether every record has a value."""
        return name in self.reads and not self.reads[name].is_optional


class TextKind(DocumentKind):
    """One text, one document."""

    def documents(self, record: Fields) -> Sequence[Document]:
        text = record.get(self.reads["text"].field)
        if not isinstance(text, str):  # within another field, or no text
            text = self._read(record, "text").text()
        return (Document(text, utf8_length(text), self._leaves(record) if self._asked else ()),)

    def _encode(self, documents: Sequence[Document]) -> EncodedBatch:
        return EncodedBatch(*self.tokenizer.encode_batch([d.text for d in documents]), {})


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
