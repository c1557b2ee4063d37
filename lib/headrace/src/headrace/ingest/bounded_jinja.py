"""Jinja's sandbox with a limit on what a template produces: characters, elements and steps of one
rendering.

Templates come from strangers. Jinja's own sandbox isolates them from everything but their messages,
but it does not prevent 40 repetitions of ``{% set x = x + x %}``. Here, every step of a loop, call,
operation, slice and output costs what it produces, computed in advance if it could be large; a
rendering above the limit is refused. Comparisons and searches produce nothing and cost nothing. The
limit bounds memory (up to 4 bytes per character).

Price: rendering takes about three times as long as in Jinja's own sandbox; encoding the result
takes longer.
"""

from __future__ import annotations

import functools
import re
import threading
from collections.abc import Callable, Mapping
from typing import Any

from jinja2 import meta, nodes
from jinja2.nodes import Slice as SliceNode
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

from headrace.ingest.records import BadRecordError, type_name

MAX_RENDER = 1 << 26
"""Limit for one rendering."""
_STEP = 16
_WIDTH = re.compile(r"\d{5}")
_SHALLOW = {
    "length",
    "count",
    "first",
    "last",
    "list",
    "map",
    "select",
    "selectattr",
    "reject",
    "rejectattr",
}.union(
    (
        "items",
        "default",
        "d",
        "dictsort",
        "sort",
        "reverse",
        "unique",
        "groupby",
        "batch",
        "slice",
        "min",
        "max",
        "sum",
    ),
    ("random", "attr", "int", "float", "abs", "round"),
)
"""Filters that look at elements, not into them."""
_OF_TEXT = {
    "string",
    "trim",
    "upper",
    "lower",
    "capitalize",
    "title",
    "replace",
    "indent",
    "wordwrap",
    "center",
    "striptags",
    "escape",
    "e",
    "forceescape",
    "safe",
}
"""Filters that make a text of whatever they get."""


class SpelledError(BadRecordError):
    """A template writes a value that is no text or number, which Python would spell: ``None``,
    ``True``, a list.
    """

    def __init__(self, value: Any) -> None:
        # Of a list or an object only the type: its spelling may be longer than any memory.
        what = str(value) if value is None or isinstance(value, bool | str) else type_name(value)
        super().__init__(f"the chat template writes a value as Python spells it ({what})")
        self.value = value


class _PythonsWord(str):
    """``True`` or ``False`` as the filter ``string`` makes it; a template may still turn it into
    ``true``.
    """

    __slots__ = ()


class BoundedEnvironment(ImmutableSandboxedEnvironment):
    """A sandbox in which :attr:`limit` bounds what each thread produces between two calls of
    :meth:`begin`.

    Example:
        >>> environment = BoundedEnvironment(1000)
        >>> environment.from_string("{{ 'ab' * 3 }}").render()
        'ababab'
    """

    intercepted_binops = frozenset(["+", "*", "**", "%"])

    def __init__(self, limit: int, **options: Any) -> None:
        self.limit = limit
        self._spent = threading.local()
        super().__init__(finalize=self._spend_shown, **options)

    def begin(self) -> None:
        """Starts a rendering with a count of zero."""
        self._spent.cost = 0

    def bound_filters(self) -> None:
        """Limits the current filters."""
        self.filters = {
            name: self._bounded(name, function) for name, function in self.filters.items()
        }

    def spend(self, cost: int) -> bool:
        """Counts what is produced; returns True.

        Raises:
            BadRecordError: it is more than the limit.
        """
        self._spent.cost = getattr(self._spent, "cost", 0) + cost
        if self._spent.cost > self.limit:
            raise BadRecordError(
                f"the chat template makes more of it than {self.limit:,} characters and steps"
            )
        return True

    def spend_all(self, value: Any) -> Any:
        """Counts a value with all its content; returns the value."""
        pending = [value]
        while pending:
            one = pending.pop()
            self.spend(_STEP + _size(one))
            pending += one if isinstance(one, list | tuple) else ()
            pending += (x for pair in one.items() for x in pair) if isinstance(one, dict) else ()
        return value

    def call(
        __self,  # noqa: N805
        __context: Context,
        __obj: Any,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        self = __self
        if __obj in (self.spend, self.spend_slice):
            return __obj(*args)
        self.spend(_STEP + self._foreseen([*args, *kwargs.values()]))
        owner = getattr(__obj, "__self__", None)
        name = getattr(__obj, "__name__", "")
        if isinstance(owner, str) or name in ("format", "format_map"):
            self._foresee(
                name, owner, [*args, *kwargs.values()], getattr(__obj, "__wrapped__", __obj)
            )
        result = super().call(__context, __obj, *args, **kwargs)
        self.spend(_size(result))
        return result

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        sizes = _size(left), _size(right)
        if operator == "%" and isinstance(left, str):
            self._foresee("%", left, [right], None)
        elif operator == "**" and isinstance(left, int) and isinstance(right, int):
            self.spend(left.bit_length() * max(right, 0))
        elif operator == "*":
            pair = (left, right) if isinstance(left, int) else (right, left)
            many = isinstance(pair[0], int) and not isinstance(pair[1], int | float)
            self.spend(max(pair[0], 0) * _size(pair[1]) if many else sum(sizes))
        else:
            self.spend(sum(sizes))
            _refuse_spelled(*(one for one in (left, right) if isinstance(one, _PythonsWord)))
        return super().call_binop(context, operator, left, right)

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        # With these, a letter may become a book, and no template needs them.
        return attr not in ("translate", "expandtabs") and super().is_safe_attribute(
            obj, attr, value
        )

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree = super()._parse(source, name, filename)
        for node in [*tree.find_all((nodes.For, nodes.Macro, nodes.CallBlock))]:
            cost = _STEP + sum(len(one.data) for one in node.find_all(nodes.TemplateData))
            cost += sum(
                len(one.value) for one in node.find_all(nodes.Const) if isinstance(one.value, str)
            )
            node.body.insert(0, nodes.ExprStmt(_call("spend", nodes.Const(cost))))
            if isinstance(node, nodes.For) and node.test is not None:
                node.test = nodes.And(_call("spend", nodes.Const(_STEP)), node.test)
        return self._with_sums(tree).set_lineno(1).set_environment(self)

    def _with_sums(self, node: Any) -> Any:
        """A tree in which ``~`` is a sum of strings, and slices are counted."""
        for field, value in node.iter_fields():
            if isinstance(value, list):
                setattr(
                    node,
                    field,
                    [self._with_sums(v) if isinstance(v, nodes.Node) else v for v in value],
                )
            elif isinstance(value, nodes.Node):
                setattr(node, field, self._with_sums(value))
        if isinstance(node, nodes.Concat):
            strings = [nodes.Filter(one, "string", [], [], None, None) for one in node.nodes]
            return functools.reduce(nodes.Add, strings)
        if isinstance(node, nodes.Getitem) and isinstance(node.arg, SliceNode):
            return _call("spend_slice", node)
        return node

    def spend_slice(self, value: Any) -> Any:
        """Counts a slice; returns the slice."""
        self.spend(_size(value))
        return value

    def _spend_shown(self, value: Any) -> Any:
        _refuse_spelled(value)
        return self.spend_all(value)

    def _bounded(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        skipped = 1 if hasattr(function, "jinja_pass_arg") else 0

        @functools.wraps(function)
        def bounded(*args: Any, **kwargs: Any) -> Any:
            value = args[skipped] if len(args) > skipped else None
            rest = [*args[skipped + 1 :], *kwargs.values()]
            self.spend(_STEP + _size(value) if name in _SHALLOW else 0)
            if name not in _SHALLOW:
                self.spend_all(value)
                self.spend(
                    self._foreseen(rest) * (1 + _size(value) if name in ("indent", "tojson") else 1)
                )
                self._foresee("%" if name == "format" else name, value, rest, None)
            else:
                self.spend(self._foreseen(rest))
            if name == "string" and isinstance(value, bool):
                return _PythonsWord(value)
            if name in _OF_TEXT and not isinstance(value, _PythonsWord):
                _refuse_spelled(value)
            if name == "join" and isinstance(value, list | tuple) and len(rest) < 2:
                _refuse_spelled(*value)
            result = function(*args, **kwargs)
            self.spend(_size(result))
            return result

        return bounded

    def _foreseen(self, values: list[Any]) -> int:
        """What numbers may ask for: widths, counts."""
        return sum(abs(one) for one in values if isinstance(one, int) and not isinstance(one, bool))

    def _foresee(self, name: str, value: Any, given: list[Any], function: Any) -> None:
        """Counts in advance what a method of a string, or a filter of that name, will produce."""
        if name in ("format", "format_map", "%"):
            pattern = value if isinstance(value, str) else str(getattr(function, "__self__", ""))
            if _WIDTH.search(pattern) or (name == "%" and "*" in pattern):
                raise BadRecordError("the chat template asks for a text of a huge width")
            for one in given:
                _refuse_spelled(*(one if isinstance(one, tuple) else [one]))
            spent = getattr(self._spent, "cost", 0)
            self.spend_all(given)
            self.spend((self._spent.cost - spent) * (pattern.count("{") + pattern.count("%")))
        elif name == "replace" and isinstance(value, str) and len(given) > 1:
            times = value.count(str(given[0])) if given[0] else len(value) + 1
            self.spend(times * _size(given[1]))
        elif name == "join" and given:
            sized, separator = (given[0], value) if function is not None else (value, given[0])
            self.spend(_size(sized) * _size(separator))


def names_in(tree: nodes.Template) -> tuple[set[str], set[str]]:
    """What a template may ask for: fields (attributes, and texts, which may be keys), and
    variables.
    """
    attributes = {node.attr for node in tree.find_all(nodes.Getattr)}
    texts = {node.value for node in tree.find_all(nodes.Const) if isinstance(node.value, str)}
    return attributes | texts, meta.find_undeclared_variables(tree)


def _refuse_spelled(*values: Any) -> None:
    """Raises SpelledError for the first value that Python would spell in a text."""
    for value in values:
        if value is None or isinstance(value, bool | Mapping | list | tuple | bytes | _PythonsWord):
            raise SpelledError(value)


def _call(name: str, argument: nodes.Expr) -> nodes.Call:
    return nodes.Call(nodes.EnvironmentAttribute(name), [argument], [], None, None)


def _size(value: Any) -> int:
    if isinstance(value, int):
        return 1 + value.bit_length() // 4
    return 1 + len(value) if isinstance(value, str | bytes | list | tuple | dict) else 1
