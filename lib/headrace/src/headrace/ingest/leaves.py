"""What else is kept of each document: any field of its record, as a leaf beside the tokens.

A leaf is numbers: one a document (``fixed``: a score, a label, a date) or any number of them (``ragged``: features, ids
of passages). Text (a document's id, its URL, the answer to a prompt) is a ragged leaf of its UTF-8 bytes.

Price: a dictionary look-up and a small array a document and leaf, about 1 us.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from headrace.errors import ConfigError
from headrace.ingest.records import BadRecordError, Fields, lookup, string_of, type_name, utf8_length
from headrace.store.layout import LeafSpec
from headrace.store.ragged import LeafValues

TEXT = "text"
_CURE = "Check the field of this leaf, or leave such records out."


@dataclass(frozen=True)
class LeafConfig:
    """A leaf that is filled from a field of each record.

    Attributes:
        field: The field; ``a.b`` is field b within a.
        dtype: ``text`` (kept as UTF-8 bytes), or the dtype of a number or of a list of numbers, e.g. ``float32``.
        kind: ``fixed``: one number a document; ``ragged``: a list; ``auto``: ragged for text, else fixed.

    Example:
        >>> LeafConfig("meta.score", "float32").spec("score")
        LeafSpec(name='score', dtype='float32', kind='fixed')
    """

    field: str
    dtype: str = TEXT
    kind: Literal["auto", "fixed", "ragged"] = "auto"

    def spec(self, name: str) -> LeafSpec:
        """The leaf as the store knows it.

        Raises:
            ConfigError: the dtype or the kind is not usable.
        """
        if self.dtype == TEXT:
            if self.kind == "fixed":
                raise ConfigError(
                    "a text is no single value", field=f"leaves.{name}", value=self.kind, cure="Say ragged."
                )
            return LeafSpec(name, "uint8", "ragged")
        return LeafSpec(name, self.dtype, "fixed" if self.kind == "auto" else self.kind)

    def values(self, record: Fields) -> np.ndarray:
        """The values of one document: ``[n]``, in the leaf's dtype; n is 1 if it is fixed.

        Raises:
            BadRecordError: the field is missing, or holds something else.
        """
        value = lookup(record, self.field, _CURE)
        if self.dtype == TEXT:
            text = string_of(value, self.field)
            utf8_length(text)
            return np.frombuffer(text.encode(), np.uint8)
        if self.kind == "ragged":
            return numbers(value, self.dtype, self.field)
        if isinstance(value, np.ndarray | list | tuple):
            raise BadRecordError(f"holds a {type_name(value)} in field {self.field!r}, not one number", _CURE)
        return numbers([value], self.dtype, self.field)


def parse_leaf(text: str) -> tuple[str, LeafConfig]:
    """A leaf as it is written on the command line: ``NAME=FIELD[:DTYPE[:KIND]]``.

    Raises:
        ConfigError: it is none.

    Example:
        >>> parse_leaf("score=meta.score:float32")
        ('score', LeafConfig(field='meta.score', dtype='float32', kind='auto'))
    """
    name, equals, rest = text.partition("=")
    field, *more = rest.split(":")
    if not (name and equals and field) or len(more) > 2:
        raise ConfigError(
            "is no leaf", field="leaf", value=text, cure="Write NAME=FIELD or NAME=FIELD:DTYPE, e.g. id=meta.id:text."
        )
    if more[1:] and more[1] not in ("fixed", "ragged"):
        raise ConfigError("is no kind of leaf", field="leaf", value=text, cure="Say fixed or ragged.")
    return name, LeafConfig(field, *more)  # pyright: ignore[reportArgumentType] (checked above)


def numbers(value: Any, dtype: str, field: str) -> np.ndarray:
    """A list of numbers as an array ``[n]`` of a dtype that holds every one of them.

    Raises:
        BadRecordError: it is no list of such numbers.
    """
    if not isinstance(value, np.ndarray | list | tuple):
        raise BadRecordError(f"holds a {type_name(value)} in field {field!r}, not a list of numbers")
    try:
        array = np.asarray(value)
    except (ValueError, OverflowError) as error:
        raise BadRecordError(f"holds something else than numbers in field {field!r} ({error})") from None
    wanted = np.dtype(dtype)
    if array.size == 0:
        return np.zeros(0, wanted)
    kinds = "iubf" if wanted.kind == "f" else "iub"
    if array.ndim != 1 or array.dtype.kind not in kinds:
        raise BadRecordError(
            f"holds something else than {'numbers' if 'f' in kinds else 'integers'} in field {field!r}"
        )
    if wanted.kind != "f":
        low, high = (0, 1) if wanted.kind == "b" else (int(np.iinfo(wanted).min), int(np.iinfo(wanted).max))
        if int(array.min()) < low or int(array.max()) > high:
            raise BadRecordError(f"holds a number outside {low} .. {high} in field {field!r}")
    return array.astype(wanted)


def joined(spec: LeafSpec, values: Sequence[np.ndarray]) -> LeafValues:
    """Values of several documents end to end, as the store takes them."""
    data = np.concatenate(values) if values else np.zeros(0, spec.dtype)
    if spec.kind == "fixed":
        return data, None
    return data, np.fromiter((v.size for v in values), np.int64, len(values))
