"""Conditions on documents: ``quality >= 3 and not dup``.

A condition is parsed as an expression of Python and then computed by the few operations that it may
use; nothing else runs. Names stand for the numbers of documents: attributes, leaves with one value
per document, and ``length``.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from functools import cached_property, reduce
from itertools import pairwise
from typing import Any

import numpy as np
from jaxtyping import Bool

from headrace.errors import ConfigError

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


class Where:
    """A condition.

    Args:
        text: The condition.
        field: Its place in the config, for errors.

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
            self._tree = ast.parse(self._source, mode="eval").body
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            raise self._refused(f"is no condition ({error})") from error
        self._check(self._tree)
        if not self.names:
            raise self._refused("does not depend on the document")

    @cached_property
    def names(self) -> frozenset[str]:
        """The numbers that it asks for."""
        return frozenset(node.id for node in ast.walk(self._tree) if isinstance(node, ast.Name))

    def holds(self, numbers: Mapping[str, np.ndarray]) -> Bool[np.ndarray, " n"]:
        """For which documents it holds, given the numbers of each by name."""
        return np.asarray(self._value(self._tree, numbers)).astype(bool)

    def _value(self, node: ast.AST, numbers: Mapping[str, np.ndarray]) -> Any:
        match node:
            case ast.Name():
                return numbers[node.id]
            case ast.Constant():
                return node.value
            case ast.UnaryOp(op=ast.Not()):
                return np.logical_not(self._value(node.operand, numbers))
            case ast.UnaryOp():
                return -self._value(node.operand, numbers)
            case ast.BoolOp():
                values = (self._value(one, numbers) for one in node.values)
                return reduce(_JOINED[type(node.op)], values)
            case ast.Compare():
                values = [self._value(one, numbers) for one in (node.left, *node.comparators)]
                pairs = zip(node.ops, pairwise(values), strict=True)
                holds = (_COMPARISONS[type(op)](low, high) for op, (low, high) in pairs)
                return reduce(np.logical_and, holds)
            case _:
                raise AssertionError(node)  # _check has refused it

    def _check(self, node: ast.AST) -> None:
        """Raises ConfigError for anything but what :meth:`_value` computes."""
        match node:
            case ast.Name():
                return
            case ast.Constant(value=bool() | int() | float()):
                return
            case ast.UnaryOp(op=ast.Not()):
                self._check(node.operand)
            case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float())):
                return
            case ast.BoolOp():
                for one in node.values:
                    self._check(one)
            case ast.Compare() if all(type(op) in _COMPARISONS for op in node.ops):
                for one in (node.left, *node.comparators):
                    self._check(one)
            case _:
                part = ast.get_source_segment(self._source, node) or ast.dump(node)
                raise self._refused(f"may not have {part!r}")

    def _refused(self, problem: str) -> ConfigError:
        return ConfigError(problem, field=self.field, value=self.text, cure=_CURE)
