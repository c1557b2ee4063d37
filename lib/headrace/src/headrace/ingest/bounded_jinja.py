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
import json
import re
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import date, time, timedelta
from numbers import Number
from types import CodeType
from typing import Any

from jinja2 import Template, Undefined, meta, nodes, pass_eval_context
from jinja2 import TemplateError as TemplateError
from jinja2.ext import Extension
from jinja2.filters import make_attrgetter, sync_do_join
from jinja2.nodes import EvalContext
from jinja2.nodes import Slice as SliceNode
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

from headrace.ingest.records import BadRecordError, type_name
from headrace.ingest.template_reading import CLOSE, OPEN

MAX_RENDER = 1 << 26
"""Limit for one rendering."""
_STEP = 16
_WIDTH = re.compile(r"\d{5}")
_SHALLOW = {
    *("length", "count", "first", "last", "list", "map", "select", "selectattr", "reject"),
    *("rejectattr", "items", "default", "d", "dictsort", "sort", "reverse", "unique", "groupby"),
    *("batch", "slice", "min", "max", "sum", "random", "attr", "int", "float", "abs", "round"),
}
"""Filters that look at elements, not into them."""
_NO_TEXT = _SHALLOW | {"join", "tojson", "wordcount"}
"""Filters that make no text, or spell no value as Python does; ``join`` is :meth:`_join`."""
_OF_SPELLED = ("string", "lower", "replace")
"""Filters that a value which is no text may go through, if JSON's spelling comes out at the end."""
_WRITTEN = (str, Number, date, time, timedelta, Undefined)
"""What a template may write as it is; but true and false, which are numbers to Python."""


@dataclass(frozen=True)
class Compiled:
    """A template's code, and the names of fields and of variables in it."""

    code: CodeType
    fields: set[str]
    variables: set[str]

    def template_in(self, environment: BoundedEnvironment) -> Template:
        """The template, with the limits and the globals of an environment."""
        return Template.from_code(environment, self.code, environment.make_globals(None))


def environment_of(max_record_bytes: int) -> BoundedEnvironment:
    """What templates are compiled for, with the limit of a rendering."""
    environment = BoundedEnvironment(
        min(max_record_bytes, MAX_RENDER),
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=[_Generation, "jinja2.ext.loopcontrols"],
    )
    environment.filters["tojson"] = functools.partial(to_json, default=_own_value)
    environment.bound_filters()
    return environment


@functools.lru_cache(maxsize=16)
def compiled(text: str, max_record_bytes: int) -> Compiled:
    """Compiles a template: a build asks several times, and compiling takes most of the time of a
    small one.

    Raises:
        TemplateError: it is not valid.
    """
    environment = environment_of(max_record_bytes)
    return Compiled(environment.compile(text), *_names_in(environment.parse(text)))


def to_json(
    value: Any, ensure_ascii: bool = False, indent: int | None = None, **options: Any
) -> str:
    """A value as models have seen it; Jinja's own filter escapes <, > and & for web pages."""
    # The options are in the order that transformers gives them, for which templates are written.
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, **options)


class _Generation(Extension):
    """The tag ``{% generation %}``: its body, between two marks."""

    tags = {"generation"}  # noqa: RUF012 (Jinja's way)

    def parse(self, parser: Any) -> Any:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        # Inside a loop, a macro or a filter alike, the marks go where the text goes.
        opens, closes = (
            nodes.Output([nodes.TemplateData(mark)]).set_lineno(line) for mark in (OPEN, CLOSE)
        )
        return [opens, *body, closes]


class SpelledError(BadRecordError):
    """A template writes a value that is no text or number, which Python would spell: ``None``,
    ``True``, a list.
    """

    def __init__(self, value: Any) -> None:
        # Of a list or an object only the type: its spelling may be longer than any memory.
        stood_for = value.value if isinstance(value, _StandIn) else value
        is_word = stood_for is None or isinstance(stood_for, bool)
        what = str(stood_for) if is_word else type_name(stood_for)
        super().__init__(f"the chat template writes a value as Python spells it ({what})")
        self.value = value


class _StandIn:
    """What stands for one true, false or null, which are the same object everywhere.

    A template takes it for that, but it can be told from others.
    """

    __slots__ = ("value",)

    def __init__(self, value: bool | None) -> None:
        self.value = value

    def __bool__(self) -> bool:
        return bool(self.value)

    def __eq__(self, other: object) -> bool:
        return self.value == (other.value if isinstance(other, _StandIn) else other)

    def __hash__(self) -> int:
        return hash(self.value)

    def __repr__(self) -> str:
        return repr(self.value)


def with_stand_ins(value: Any) -> Any:
    """A copy of a JSON value in which no two places hold the same object, but for texts and
    numbers.

    Example:
        >>> with_stand_ins([True, {"a": None, "b": 1}])
        [True, {'a': None, 'b': 1}]
    """
    if value is None or isinstance(value, bool):
        return _StandIn(value)
    if isinstance(value, Mapping):
        return {name: with_stand_ins(one) for name, one in value.items()}
    if isinstance(value, list):
        return [with_stand_ins(one) for one in value]
    return value


class _Spelled:
    """A value as Python spells it: what the filter ``string`` makes of one that is no text.

    A template may compare it, and make of it what JSON writes (``true`` of ``True``), which is a
    text again. All else that makes a text of it ends in :meth:`_refuse`.
    """

    __slots__ = ("text", "value")

    def __init__(self, value: Any, text: str) -> None:
        self.value = value
        self.text = text

    def lower(self) -> Any:
        return self._text_of_json(self.text.lower())

    def replace(self, old: Any, new: Any, count: int | None = None) -> Any:
        return self._text_of_json(
            self.text.replace(str(old), str(new), -1 if count is None else count)
        )

    def _text_of_json(self, text: str) -> Any:
        """A text that was made of it: a plain one if JSON writes the value so."""
        try:
            is_json = json.loads(text) == self.value
        except (ValueError, RecursionError):
            is_json = False
        return text if is_json else _Spelled(self.value, text)

    def _refuse(self, *_: Any) -> Any:
        raise SpelledError(self.value)

    __str__ = __repr__ = __format__ = __iter__ = __getitem__ = __getattr__ = _refuse
    __add__ = __radd__ = __mul__ = __rmul__ = __mod__ = _refuse

    def __len__(self) -> int:
        return len(self.text)

    def __eq__(self, other: object) -> bool:
        return self.text == (other.text if isinstance(other, _Spelled) else other)

    def __hash__(self) -> int:
        return hash(self.text)

    def __contains__(self, text: str) -> bool:
        return text in self.text


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
        tests: dict[str, Any] = self.tests
        tests["string"] = lambda value: isinstance(value, str | _Spelled)
        for name in ("none", "true", "false", "boolean"):
            tests[name] = functools.partial(_test_own, tests[name])

    def begin(self) -> None:
        """Starts a rendering with a count of zero."""
        self._spent.cost = 0

    def bound_filters(self) -> None:
        """Limits the current filters."""
        self.filters["join"] = self._join
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
        if isinstance(owner, _Spelled):
            owner = owner.text
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
            is_named = isinstance(right, Mapping) and "%(" in left
            self._foresee("%", left, [*right.values()] if is_named else [right], None)
        elif operator == "**" and isinstance(left, int) and isinstance(right, int):
            self.spend(left.bit_length() * max(right, 0))
        elif operator == "*":
            pair = (left, right) if isinstance(left, int) else (right, left)
            many = isinstance(pair[0], int) and not isinstance(pair[1], int | float)
            self.spend(max(pair[0], 0) * _size(pair[1]) if many else sum(sizes))
        else:
            self.spend(sum(sizes))
        return super().call_binop(context, operator, left, right)

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        # With these, a letter may become a book, and no template needs them.
        if attr in ("translate", "expandtabs") or (isinstance(obj, _Spelled) and attr == "text"):
            return False
        return super().is_safe_attribute(obj, attr, value)

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
                value = [self._with_sums(v) if isinstance(v, nodes.Node) else v for v in value]
            elif isinstance(value, nodes.Node):
                value = self._with_sums(value)
            setattr(node, field, value)
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
            if name in _SHALLOW:
                self.spend(_STEP + _size(value) + self._foreseen(rest))
            else:
                self.spend_all(value)
                times = 1 + _size(value) if name in ("indent", "tojson") else 1
                self.spend(self._foreseen(rest) * times)
                self._foresee("%" if name == "format" else name, value, rest, None)
            if name in _OF_SPELLED and _is_spelled(value):
                return self._of_spelled(name, value, rest)
            if name not in _NO_TEXT:
                _refuse_spelled(*_written_by(name, value, rest))
            result = function(*args, **kwargs)
            self.spend(_size(result))
            return result

        return bounded

    def _of_spelled(self, name: str, value: Any, given: list[Any]) -> Any:
        """What a filter of :data:`_OF_SPELLED` makes of a value that is no text."""
        spelled = value if isinstance(value, _Spelled) else _Spelled(value, repr(value))
        self.spend(_size(spelled.text))
        self._foresee(name, spelled.text, given, None)
        return spelled if name == "string" else getattr(spelled, name)(*given)

    @pass_eval_context
    def _join(
        self, context: EvalContext, value: Any, d: Any = "", attribute: str | int | None = None
    ) -> str:
        """Jinja's filter ``join``, for elements that no text has to be made of."""
        if attribute is not None:
            value = map(make_attrgetter(self, attribute), value)
        items = list(value)
        _refuse_spelled(d, *items)
        self.spend(len(items) * _size(d))
        return sync_do_join(context, items, d)

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
                if isinstance(one, Mapping) and name == "format_map":
                    one = tuple(one.values())
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


def _names_in(tree: nodes.Template) -> tuple[set[str], set[str]]:
    """What a template may ask for: fields (attributes, and texts, which may be keys), and
    variables.
    """
    attributes = {node.attr for node in tree.find_all(nodes.Getattr)}
    texts = {node.value for node in tree.find_all(nodes.Const) if isinstance(node.value, str)}
    return attributes | texts, meta.find_undeclared_variables(tree)


def _own_value(value: Any) -> Any:
    """The value that JSON writes for one that it does not know; for the filter ``tojson``.

    Raises:
        SpelledError: the filter ``string`` made it of one that is no text.
        TypeError: there is none.
    """
    if isinstance(value, _StandIn):
        return value.value
    if isinstance(value, _Spelled):
        raise SpelledError(value.value)
    raise TypeError(f"Object of type {type(value).__name__} is not JSON serializable")


def _test_own(test: Callable[[Any], bool], value: Any) -> bool:
    """A test of Jinja's, of what a stand-in stands for."""
    return test(value.value if isinstance(value, _StandIn) else value)


def _is_spelled(value: Any) -> bool:
    """Whether Python would spell a value in a text."""
    return not isinstance(value, str) and (
        isinstance(value, bool) or not isinstance(value, _WRITTEN)
    )


def _refuse_spelled(*values: Any) -> None:
    """Raises SpelledError for the first value that Python would spell in a text."""
    for value in values:
        if _is_spelled(value):
            raise SpelledError(value.value if isinstance(value, _Spelled) else value)


def _written_by(name: str, value: Any, given: list[Any]) -> list[Any]:
    """The values that a filter writes: the one that it is given, or the pairs within it."""
    if name in ("urlencode", "xmlattr") and isinstance(value, Mapping | list | tuple):
        pairs = value.items() if isinstance(value, Mapping) else value
        return [one for pair in pairs for one in pair if one is not None or name == "urlencode"]
    return [value, *(given[:2] if name == "replace" else ())]


def _call(name: str, argument: nodes.Expr) -> nodes.Call:
    return nodes.Call(nodes.EnvironmentAttribute(name), [argument], [], None, None)


def _size(value: Any) -> int:
    if isinstance(value, int):
        return 1 + value.bit_length() // 4
    is_sized = isinstance(value, str | bytes | list | tuple | dict | _Spelled)
    return 1 + len(value) if is_sized else 1
