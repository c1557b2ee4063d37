"""``DocumentNumbers``: the numbers that each document of a cache has, by name; and conditions on
them.

A number comes from an attribute of the config, from a leaf with one value per document, from a
``.npy`` file, or is the document's length. Buckets divide by them, and conditions ask for them:
``quality >= 3 and not dup``. A condition (:class:`Where`) is parsed as an expression of Python and
then computed by the few operations that it may use; nothing else runs.
"""

from __future__ import annotations

import ast
import operator
import sys
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import reduce
from itertools import pairwise
from types import MappingProxyType
from typing import Any, TypeAlias

import numpy as np
from jaxtyping import Bool, Int64, Num

from headrace.data.attributes import AttributeConfig, open_attribute, read_numbers
from headrace.data.documents import count_documents, remove_others, removed_by
from headrace.data.saved_filters import RemovedDocuments
from headrace.errors import ConfigError, did_you_mean
from headrace.order.intervals import chunks_of
from headrace.store.cache import TokenCache
from headrace.store.layout import TOKENS
from headrace.store.npy import PYTHON_PARSER

LENGTH = "length"
"""The name of the number of tokens of each document."""
_CHUNK = 1 << 20  # documents per pass over the numbers
_READS = 16  # at a time
_MOST_PARTS = 1024  # that a sample is read from
_COMPARISONS: dict[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
}
_JOINED: dict[type[ast.boolop], Callable[[Any, Any], Any]] = {
    ast.And: np.logical_and,
    ast.Or: np.logical_or,
}
_CURE = (
    "E.g. quality >= 3 and not dup: names, numbers, < <= > >= == !=, and, or, not, ( ). Names have"
    " letters, digits and _; an attribute's column may have another: value: COLUMN."
)


_Value: TypeAlias = Callable[[Mapping[str, np.ndarray]], Any]
"""Computes a value for each document from its numbers by name."""


class Where:
    """A condition.

    Args:
        text: The condition.
        field: Its place in the config, for errors.

    Attributes:
        names: The numbers that it asks for.

    Raises:
        ConfigError: it is no condition.

    Example:
        >>> where = Where("1 < quality <= 3 and not (dup or length < 2)")
        >>> sorted(where.names)
        ['dup', 'length', 'quality']
        >>> numbers = {"quality": [1, 2, 3], "dup": [0, 0, 1], "length": [9, 9, 9]}
        >>> where.holds({name: np.array(n) for name, n in numbers.items()}).tolist()
        [False, True, False]
    """

    def __init__(self, text: str, field: str = "where") -> None:
        self.text = text
        self.field = field
        self._source = f"({text.strip()}\n)"  # in parentheses, it may have several lines
        try:
            with PYTHON_PARSER:
                tree = ast.parse(self._source, mode="eval").body
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            raise self._refused(f"is no condition ({error})") from error
        self._value = self._computed(tree)
        self.names = frozenset(node.id for node in ast.walk(tree) if isinstance(node, ast.Name))
        if not self.names:
            raise self._refused("does not depend on the document")

    def holds(self, numbers: Mapping[str, np.ndarray]) -> Bool[np.ndarray, " n"]:
        """For which documents it holds, given the numbers of each by name."""
        with np.errstate(over="ignore"):  # 1e39 beside float32
            return np.asarray(self._value(numbers)).astype(bool)

    def _computed(self, node: ast.AST) -> _Value:
        """What computes a part of it. Raises ConfigError for anything else than a condition has."""
        match node:
            case ast.Name(id=name):
                return lambda numbers: numbers[name]
            case ast.Constant(value=bool() | int() | float() as number):
                if number > sys.float_info.max:
                    raise self._refused("has a number beyond all that are stored")
                return lambda _: number
            case ast.UnaryOp(op=ast.Not()):
                negated = self._computed(node.operand)
                return lambda numbers: np.logical_not(negated(numbers))
            case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float())):
                positive = self._computed(node.operand)
                return lambda numbers: -positive(numbers)
            case ast.BoolOp():
                join = _JOINED[type(node.op)]
                joined = [self._computed(one) for one in node.values]
                return lambda numbers: reduce(join, (one(numbers) for one in joined))
            case ast.Compare() if all(type(op) in _COMPARISONS for op in node.ops):
                compared = [self._computed(one) for one in (node.left, *node.comparators)]
                compare = [_COMPARISONS[type(op)] for op in node.ops]

                def holds(numbers: Mapping[str, np.ndarray]) -> Any:
                    sides = pairwise([one(numbers) for one in compared])
                    each = (is_so(*two) for is_so, two in zip(compare, sides, strict=True))
                    return reduce(np.logical_and, each)

                return holds
            case _:
                part = ast.get_source_segment(self._source, node) or ast.dump(node)
                raise self._refused(f"may not have {part!r}")

    def _refused(self, problem: str) -> ConfigError:
        return ConfigError(problem, field=self.field, value=self.text, cure=_CURE)


class DocumentNumbers:
    """The numbers of the documents of a cache.

    Args:
        cache: The cache.
        attributes: Numbers that come from tables, by name.
        path: Place of the component in the config, for errors.

    Attributes:
        cache: The cache.
        attributes: Numbers that come from tables, by name.

    Example:
        >>> import headrace.testing
        >>> numbers = DocumentNumbers(headrace.testing.tiny_cache(documents=4))
        >>> np.concatenate([*numbers.chunks("length", "where")]).tolist()
        [44, 33, 27, 14]
    """

    def __init__(
        self,
        cache: TokenCache,
        attributes: Mapping[str, AttributeConfig] = MappingProxyType({}),
        path: str = "component",
    ) -> None:
        self.cache = cache
        self.attributes = attributes
        self._path = path
        for name in attributes:
            if name == LENGTH or name in cache.leaves:
                raise ConfigError(
                    f"is what {cache.path} has already",
                    field=f"{path}.attributes",
                    value=name,
                    cure="Give the attribute another name, and the column with value: COLUMN.",
                )

    def same_as(self, other: DocumentNumbers) -> bool:
        """Whether both have equal numbers of one cache."""
        return self.cache is other.cache and self.attributes == other.attributes

    def attribute(self, name: str) -> Num[np.ndarray, " documents"]:
        """The numbers of an attribute, in the order of the cache. ConfigError as
        :func:`~headrace.data.attributes.open_attribute`.
        """
        path = f"{self._path}.attributes"
        return open_attribute(self.cache, name, self.attributes[name], path).values

    def chunks(self, name: str, field: str) -> Iterator[np.ndarray]:
        """The numbers of one name, in the order of the cache, in chunks of 2**20 documents.

        Raises:
            ConfigError: there is none of this name; not one number per document; one is not finite.
        """
        at = 0
        for chunk in self._stored(name, field):
            if chunk.dtype.kind == "f" and not np.isfinite(chunk).all():
                bad = int(np.flatnonzero(~np.isfinite(chunk))[0])
                problem = f"says {chunk[bad]} of the document at {at + bad:,}"
                raise ConfigError(
                    problem,
                    field=field,
                    value=name,
                    cure="Give each document a finite number, e.g. 0.",
                )
            yield chunk
            at += chunk.size

    def _stored(self, name: str, field: str) -> Iterator[np.ndarray]:
        cache = self.cache
        ranges = chunks_of(cache.num_documents, _CHUNK)
        if name == LENGTH and not cache.are_cut:
            yield from (cache.lengths(first, stop) for first, stop in ranges)
            return
        if name == LENGTH:
            values = cache.in_stored_order(lengths_of_documents(cache))
        elif name in self.attributes:
            values = self.attribute(name)
        elif name.endswith(".npy"):
            values = read_numbers(cache, name, field)
        else:
            yield from self._leaf(name, field)
            return
        yield from (values[first:stop] for first, stop in ranges)

    def _leaf(self, name: str, field: str) -> Iterator[np.ndarray]:
        cache = self.cache
        if name not in cache.leaves:
            names = [*cache.leaves, *self.attributes, LENGTH]
            raise ConfigError(
                f"is neither an attribute nor a leaf of {cache.path}",
                field=field,
                value=name,
                cure=f"{did_you_mean(name, names)} Or name a file of numbers: scores.npy.",
            )
        leaf = cache.leaf(name)
        if leaf.kind != "fixed" or leaf.dtype.kind not in "iufb":
            problem = (
                "has not one number per document"
                if leaf.kind != "fixed"
                else f"holds {leaf.dtype}, and not numbers"
            )
            cure = (
                f"Build it so (--leaf {name}=FIELD:float32), or name a file of numbers: scores.npy."
            )
            raise ConfigError(problem, field=field, value=name, cure=cure)
        yield from (block.reshape(-1) for block in leaf.blocks(_CHUNK))


def lengths_of_documents(cache: TokenCache) -> Int64[np.ndarray, " documents"]:
    """Tokens of each document, by number, of a cache whose documents were cut.

    Example:
        >>> import headrace.testing
        >>> lengths_of_documents(headrace.testing.tiny_cache(documents=4)).tolist()
        [44, 33, 27, 14]
    """
    tokens = np.zeros(cache.num_originals, np.int64)
    for positions, numbers in cache.number_ranges():
        is_document = numbers < tokens.size
        lengths = cache.lengths(positions.start, positions.stop)
        np.add.at(tokens, numbers[is_document], lengths[is_document])
    return tokens


def some_lengths(
    cache: TokenCache, most: int, stretches: int
) -> tuple[Int64[np.ndarray, " looked"], int]:
    """Tokens of documents, and how many documents there are: of all, or of evenly spaced stretches
    (:func:`evenly_spaced`). Where documents were cut, a sample is one of pieces.
    """
    first_document = cache.leaf(TOKENS).first_document
    if cache.are_cut and _is_little(first_document, most):
        return lengths_of_documents(cache), cache.num_originals
    lengths = evenly_spaced(cache.lengths, first_document, most, stretches)
    return lengths, cache.num_documents


def evenly_spaced(
    read: Callable[[int, int], np.ndarray],
    first_of_part: Int64[np.ndarray, " parts1"],
    most: int,
    stretches: int,
) -> np.ndarray:
    """All values, or evenly spaced stretches of them if there are more than ``most``, or if they
    lie in more than a thousand parts.

    Args:
        read: Returns the values from one number to another.
        first_of_part: Number of the first value of each part, and the end of the last.
        most: Most values.
        stretches: How many are read if there are more.
    """
    total = int(first_of_part[-1])
    if _is_little(first_of_part, most):
        return read(0, total)
    size = min(most, total) // stretches
    first = np.linspace(0, total - size, stretches).astype(np.int64)
    # Parts can be small, and what a read costs is to open them.
    part = np.searchsorted(first_of_part, first, side="right") - 1
    last_part = np.minimum(part + _MOST_PARTS // stretches, first_of_part.size - 1)
    size = int(np.minimum(first_of_part[last_part] - first, size).min())
    # All stretches have one length: longer ones would give large parts more than their share.
    stop = first + size
    with ThreadPoolExecutor(_READS) as pool:
        return np.concatenate([*pool.map(read, first.tolist(), stop.tolist())])


def _is_little(first_of_part: Int64[np.ndarray, " parts1"], most: int) -> bool:
    total = int(first_of_part[-1])
    return total <= most and min(total, first_of_part.size - 1) <= _MOST_PARTS


def without_failing(
    numbers: DocumentNumbers, where: Where, removed: RemovedDocuments | None
) -> RemovedDocuments:
    """What is left out of a component: ``removed``, and the documents of which a condition does not
    hold.

    Raises:
        ConfigError: it asks for numbers that there are not; it holds for no document.
    """
    cache = numbers.cache
    every = {
        name: np.concatenate([np.zeros(0, bool), *numbers.chunks(name, where.field)])
        for name in sorted(where.names)
    }

    def fails(first: int, stop: int) -> Bool[np.ndarray, " n"]:
        failing = ~where.holds({name: values[first:stop] for name, values in every.items()})
        if cache.pack is not None:  # whose padding is no document
            failing &= cache.originals(np.arange(first, stop)) < cache.num_originals
        return failing

    left_out = remove_others(cache, removed or removed_by(None, cache), fails)
    if count_documents(cache, left_out.which) == cache.num_originals:
        raise ConfigError(
            f"leaves none of the {cache.num_originals:,} documents of {cache.path}",
            field=where.field,
            value=where.text,
            cure="Ask for less; headrace cache inspect CACHE shows what its leaves hold.",
        )
    return left_out
