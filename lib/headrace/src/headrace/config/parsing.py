"""From YAML or flags to config dataclasses: reading, dotted overrides (also into dicts), decoding.

Names and semantics are draccus's, so configs mean the same here as in Levanter.

Reading walks the types of a config and its plain values together: :func:`slot_of` determines once
what a type hint accepts, :func:`read` descends slots and values, so that a wrong value is refused
where it occurs, and errors from a dataclass's ``__post_init__`` get their path. draccus's
``decode`` accepts ``true`` for 1 and a list for a string, tries the members of a union one by one,
and loses the path of what a dataclass raises.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import functools
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from os import PathLike
from typing import Any, NamedTuple, TypeVar, Union, cast

import yaml

from headrace.config.wording import describe_entry, describe_record, join_choices, number_in
from headrace.errors import (
    ConfigError,
    HeadraceError,
    check_choice,
    check_no_login,
    did_you_mean,
)
from headrace.mix.schedule import whole_number
from headrace.store import files
from headrace.store.location import Location

T = TypeVar("T")

_INCLUDE = "!include"
_MISSING = "is missing"


def read_mapping(path: str | PathLike[str], *, foreign: bool = False) -> dict[str, Any]:
    """The mapping in a YAML file. ``!include other.yaml`` stands for what that file holds; its path
    is relative to the file that includes it, also in a bucket. If a ``foreign`` program wrote the
    file, values of its own Python classes are read as their text or parts.

    Raises:
        ConfigError: no such file, it is not a YAML mapping (the error names the line), or files
            include each other in a circle.
    """
    value = _yaml(_text_of(path), str(path), file=str(path), foreign=foreign)
    if value is None:
        return {}
    if not isinstance(value, dict):
        cure = "Write lines of NAME: VALUE, such as seq_len: 2048."
        raise ConfigError(
            "is not a mapping of names to values", field="config", value=path, cure=cure
        )
    return cast("dict[str, Any]", value)


def _text_of(path: str | PathLike[str], included_at: str = "") -> str:
    """The text of a YAML file; ``included_at``: the file and the line that include it."""
    field = _INCLUDE if included_at else "config"
    cure = "Give the path of a YAML file."
    if included_at:
        cure = (
            f"Write the path of a YAML file there ({included_at}): it is relative to that file's"
            " folder."
        )
    if not isinstance(path, str | PathLike):
        raise ConfigError("is not a path", field=field, value=path, cure=cure)
    raw = None
    problem = "does not exist"
    try:
        raw = files.read_bytes(str(path))
    except OSError as error:
        folder = isinstance(error, IsADirectoryError)
        problem = "is a folder" if folder else f"cannot be read ({error.strerror or error})"
    if raw is None:
        raise ConfigError(problem, field=field, value=path, cure=cure)
    return raw.decode(errors="replace")


def with_overrides(
    config: Mapping[str, Any], overrides: Sequence[str], cls: type[Any] | None = None
) -> dict[str, Any]:
    """``config`` with dotted settings applied, left to right: ``a.b=1``, ``--a.b=1``, or two items
    ``--a.b`` and ``1``.

    Raises:
        ConfigError: a setting has no value, or leads into something that is not a mapping.

    Example:
        >>> with_overrides({"a": {"b": 1}}, ["--a.b", "2", "c=[1, 2]"])
        {'a': {'b': 2}, 'c': [1, 2]}
    """
    if isinstance(overrides, str):
        raise ConfigError(
            "is not a list", field="overrides", value=overrides, cure=f"Give [{overrides!r}]."
        )
    result = dict(config)
    items = list(overrides)
    while items:
        item = items.pop(0)
        if not isinstance(item, str):
            raise ConfigError(
                "is not a setting",
                field="override",
                value=item,
                cure="Write 'name.of.field=value'.",
            )
        name, equals, text = item.removeprefix("--").partition("=")
        if not equals and item.startswith("--") and items and not items[0].startswith("--"):
            text = items.pop(0)
            equals = "="
        if not equals or not name:
            raise ConfigError(
                "is not a setting", field="override", value=item, cure="Write name.of.field=value."
            )
        *parents, last = name.split(".")
        target = result
        slot = None if cls is None else slot_of(cls)
        for depth, parent in enumerate(parents):
            key = _key_in(target, parent)
            slot = _slot_under(slot, parent)
            child = target.get(key, {})
            if (short := shorthand_of(slot)) is not None and isinstance(child, str | list):
                child = {short: child}
            if not isinstance(child, dict):
                raise ConfigError(
                    f"goes into {'.'.join(parents[: depth + 1])}, which is {child!r} and not a"
                    " mapping",
                    field="override",
                    value=item,
                    cure=f"Set {parent} as a whole, or leave one of the settings out.",
                )
            target[key] = target = dict(
                cast("dict[Any, Any]", child)
            )  # copied: the config itself is not changed
        target[_key_in(target, last)] = _yaml(text, name)
        if last == "kind" and slot is not None:
            _drop_other_kinds(slot, target)
    return result


def _drop_other_kinds(slot: Slot, values: dict[Any, Any]) -> None:
    """Leaves out the fields that only other kinds have than the one just set."""
    fields = {
        part.form.kind: set(fields_of(part.form))
        for part in slot.parts
        if hasattr(part.form, "kind")
    }
    kind = str(values["kind"])
    if kind in fields:
        for key in set().union(*fields.values()) - fields[kind]:
            values.pop(key, None)


def _key_in(mapping: Mapping[Any, Any], name: str) -> Any:
    """The key that a name in a setting refers to: ``0`` may be a number in the file."""
    return name if name in mapping else next((key for key in mapping if str(key) == name), name)


def _slot_under(slot: Slot | None, name: str) -> Slot | None:
    """The slot under a name; None if unknown."""
    if slot is not None and dataclasses.is_dataclass(slot.form):
        return fields_of(slot.form)[name].slot if name in fields_of(slot.form) else None
    return slot.parts[1] if slot is not None and slot.form is dict else None


def decode(cls: type[T], raw: Mapping[str, Any]) -> T:
    """Decodes ``raw`` into a config dataclass."""
    return read(slot_of(cls), raw)


def _yaml(text: str, where: str, *, file: str = "", foreign: bool = False) -> Any:
    """What a YAML text says. ``where`` names it in errors; ``file`` is what its ``!include`` start
    from.
    """
    try:
        if foreign or _INCLUDE in text:
            return _with_includes(text, file or where, file=file, foreign=foreign)
        return _load(text)
    except (yaml.YAMLError, ValueError) as error:  # ValueError: an invalid date and the like
        mark = getattr(error, "problem_mark", None)
        line = f" in line {mark.line + 1}" if mark is not None else ""
        # A file that is included has lines of its own.
        where = mark.name if mark is not None and not mark.name.startswith("<") else where
        problem = getattr(error, "problem", None) or str(error).splitlines()[0]
        cure = (
            "Write lines of NAME: VALUE, indented with spaces; a text with special characters in"
            " quotes."
        )
        cure = "Keep one of them." if "twice" in problem else cure
        raise ConfigError(
            f"is not YAML ({problem}{line})", field="config", value=where, cure=cure
        ) from error


def _load(text: str) -> Any:
    try:
        return yaml.load(text, Loader=_FastLoader)
    except yaml.constructor.ConstructorError:
        raise
    except (
        yaml.YAMLError
    ):  # libyaml does not tell what it met, nor always the line: the slower parser does
        return yaml.load(text, Loader=_Loader)


def _with_includes(text: str, name: str, *, file: str, foreign: bool) -> Any:
    loader = (_ForeignLoader if foreign else _Loader)(text)
    loader.name = name
    loader.files = (file,)
    try:
        return loader.get_single_data()
    finally:
        loader.dispose()


class _OnceEach(yaml.constructor.SafeConstructor):
    """Refuses a key written twice."""

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        keys = [
            key for key, _ in node.value if key.tag != "tag:yaml.org,2002:merge"
        ]  # "<<: *other": other keys win
        merged = len(keys) < len(node.value)
        mapping = cast("dict[Any, Any]", super().construct_mapping(node, deep))
        seen_keys: set[Any] = set()
        for key_node in keys if merged or len(mapping) < len(keys) else ():
            key = self.construct_object(  # pyright: ignore[reportUnknownMemberType]
                key_node, deep=True
            )
            if key in seen_keys:
                problem = f"the key {key!r} stands twice"
                raise yaml.constructor.ConstructorError(None, None, problem, key_node.start_mark)
            seen_keys.add(key)
        return mapping


class _Loader(_OnceEach, yaml.SafeLoader):
    """Safe YAML, in which ``!include`` stands for another file.

    Included files become nodes of the tree before any value is made of it. So they may stand
    wherever a value may, also behind ``<<:``, and a key written twice is found as in one file.

    Attributes:
        files: The file being read, after those that include it; empty names for a text that is in
            no file.
    """

    files: tuple[str, ...] = ("",)

    def compose_scalar_node(self, anchor: Any) -> Any:
        node = super().compose_scalar_node(anchor)
        if node.tag != _INCLUDE:
            return node
        included = self._included(node)
        if anchor is not None:
            self.anchors[anchor] = included
        return included

    def _included(self, node: yaml.ScalarNode) -> yaml.Node:
        """The tree of another file."""
        name = str(node.value)
        if not name.strip():
            raise _no_file(node)
        include_place = _file_and_line(node)
        path = _beside(self.files[-1], name, include_place)
        if any(Location.parse(path).identity() == Location.parse(f).identity() for f in self.files):
            circle = " includes ".join([*self.files, path])
            raise ConfigError(
                f"goes in a circle ({circle})",
                field=_INCLUDE,
                value=name,
                cure=f"Write what it should hold in its place ({include_place}).",
            )
        inner = type(self)(_text_of(path, include_place))
        inner.name = path
        inner.files = (*self.files, path)
        try:
            tree = inner.get_single_node()
        finally:
            inner.dispose()
        if tree is None:
            raise ConfigError(
                "holds nothing",
                field=_INCLUDE,
                value=path,
                cure=f"Write into it what should stand there, or leave it out ({include_place}).",
            )
        return tree


class _FastLoader(_OnceEach, getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # pyright: ignore
    """The same with libyaml, if available: ten times as fast."""


class _ForeignLoader(_Loader):
    """Reads values of unknown classes as plain values; nothing is imported or called.

    A file of another program makes no connection: it includes what lies beside it.
    """

    def _included(self, node: yaml.ScalarNode) -> yaml.Node:
        if "://" in str(node.value):
            raise ConfigError(
                "is not read from here",
                field=_INCLUDE,
                value=node.value,
                cure="Write what it holds in its place.",
            )
        return super()._included(node)


def _plain_value(loader: yaml.SafeLoader, suffix: str, node: yaml.Node) -> Any:
    if isinstance(node, yaml.MappingNode):
        return loader.construct_mapping(node, deep=True)
    if isinstance(node, yaml.SequenceNode):
        return loader.construct_sequence(node, deep=True)
    return loader.construct_scalar(cast("yaml.ScalarNode", node))


def _file_and_line(node: yaml.Node) -> str:
    return f"{node.start_mark.name}, line {node.start_mark.line + 1}"


def _no_file(node: yaml.Node) -> ConfigError:
    return ConfigError(
        "names no file",
        field=_INCLUDE,
        value=_file_and_line(node),
        cure="Write one path behind it, such as !include sources.yaml.",
    )


def _refuse_list(_: _Loader, node: yaml.Node) -> Any:
    raise _no_file(node)


def _beside(file: str, name: str, place: str) -> str:
    """The path that a file gives as ``name``: a URL, an absolute path, or one relative to the
    file's folder.

    In a bucket, ``..`` is no folder but a name like others, so it is resolved here, and not by the
    store.
    """
    named = Location.parse(name)
    if not named.is_local or named.key != name or name.startswith(("/", "~")):
        return name
    holder = Location.parse(file)
    if holder.is_local:
        above, slash, _ = file.rpartition("/")
        return f"{above}{slash}{name}"
    folders = holder.key.split("/")[:-1]
    for part in name.split("/"):
        if part == ".." and not folders:
            raise ConfigError(
                "leads out of the bucket",
                field=_INCLUDE,
                value=name,
                cure=f"Write the whole URL ({place}).",
            )
        if part == "..":
            folders.pop()
        elif part != ".":
            folders.append(part)
    scheme = file.partition("://")[0]
    return f"{scheme}://{holder.bucket}/{'/'.join(folders)}{holder.query}"


_Loader.add_constructor(_INCLUDE, _refuse_list)
_ForeignLoader.add_multi_constructor("tag:yaml.org,2002:python/", _plain_value)


class Slot(NamedTuple):
    """What one position in a config accepts.

    Attributes:
        form: ``bool``, ``int``, ``float``, ``str``, ``Any``, ``Literal``, ``list``, ``dict``,
            ``Union`` or a dataclass.
        expected: Description for errors.
        parts: The item of a list, key and value of a dict, the members of a union.
        choices: The values of a ``Literal``.
        optional: Whether it may be null.
    """

    form: Any
    expected: str
    parts: tuple[Slot, ...] = ()
    choices: tuple[Any, ...] = ()
    optional: bool = False


class Field(NamedTuple):
    """A field of a dataclass."""

    slot: Slot
    declared: dataclasses.Field[Any]

    @property
    def required(self) -> bool:
        """Whether it has no default."""
        return (self.declared.default, self.declared.default_factory) == (
            dataclasses.MISSING,
            dataclasses.MISSING,
        )


_SCALARS: dict[Any, tuple[str, tuple[type, ...], Callable[[Any], Any]]] = {
    bool: (
        "true or false",
        (bool, str),
        lambda v: v if isinstance(v, bool) else ("false", "true").index(v) == 1,
    ),
    int: ("a whole number", (int, str), int),
    float: ("a number", (int, float, str), float),
    str: ("a text", (str, int, float, datetime.date), str),
}
"""Description, accepted types, and converter of each plain type. A bool is only
accepted as a bool.
"""


@functools.cache
def slot_of(hint: Any) -> Slot:
    """What a type hint accepts: plain types, ``Literal``, lists, dicts, unions and dataclasses;
    otherwise TypeError.
    """
    origin = typing.get_origin(hint)
    arguments = typing.get_args(hint)
    if hint in _SCALARS:
        return Slot(hint, _SCALARS[hint][0])
    if hint is Any:
        return Slot(Any, "a value", optional=True)
    if dataclasses.is_dataclass(hint):
        return Slot(hint, describe_record(hint))
    if origin is typing.Literal:
        return Slot(origin, " or ".join(map(repr, arguments)), choices=arguments)
    if origin in (list, dict):
        parts = tuple(map(slot_of, arguments))
        return Slot(
            origin,
            "a list"
            if origin is list
            else f"a mapping such as {describe_entry(parts[0].form, parts[1].form)}",
            parts,
        )
    if origin not in (Union, types.UnionType):
        raise TypeError(f"a config cannot hold a {hint}")
    members = tuple(slot_of(a) for a in arguments if a is not type(None))
    expected = join_choices(
        [(m.form, m.parts[1].form if m.form is dict else None, m.expected) for m in members]
    )
    return Slot(Union, expected, members, optional=type(None) in arguments)


@functools.cache
def fields_of(cls: type[Any]) -> dict[str, Field]:
    """The fields of a dataclass by name."""
    hints = typing.get_type_hints(cls)
    return {
        field.name: Field(slot_of(hints[field.name]), field) for field in dataclasses.fields(cls)
    }


def shorthand_of(slot: Slot | None) -> str | None:
    """The field that is meant if a dataclass is written as a string or a list;
    None: there is none.
    """
    return getattr(slot and slot.form, "SHORTHAND", None)


def read(slot: Slot, value: Any, path: str = "") -> Any:
    """Converts the plain value at a dotted path to an object; ``1e9`` counts as an integer.

    Raises:
        ConfigError: an unknown key, a wrong type, or a value that a dataclass refuses; the error
            names its path.

    Example:
        >>> read(slot_of(int | dict[int, float]), {"1e3": "0.5"})
        {1000: 0.5}
    """
    if value is None:
        if slot.optional:
            return None
        raise ConfigError(
            "has no value", field=path, cure=f"Give {slot.expected}, or leave the name out."
        )
    if slot.form is Any:
        return value
    if slot.form is Union:
        return _read_union(slot, value, path)
    if slot.form is list:
        if not isinstance(value, list):
            raise ConfigError("is not a list", field=path, value=value, cure=f"Write [{value}].")
        return [
            read(slot.parts[0], item, f"{path}[{n}]")
            for n, item in enumerate(cast("list[Any]", value))
        ]
    if slot.form is dict or dataclasses.is_dataclass(slot.form):
        if (short := shorthand_of(slot)) is not None and isinstance(value, str | list):
            value = {short: value}
        if not isinstance(value, Mapping):
            raise ConfigError(
                "is not a mapping", field=path, value=value, cure=f"Give {slot.expected}."
            )
        return (_read_entries if slot.form is dict else _read_record)(
            slot, cast("Mapping[Any, Any]", value), path
        )
    check_no_login(str(value), path)
    with contextlib.suppress(ValueError, OverflowError):
        return _read_scalar(slot, value)
    raise _wrong_type(slot, value, path)


def _read_scalar(slot: Slot, value: Any) -> Any:
    if isinstance(value, bool) and slot.form is not bool:
        raise ValueError
    if slot.form is typing.Literal:
        return slot.choices[slot.choices.index(value)]
    _, accepted, convert = _SCALARS[slot.form]
    value = whole_number(value) if slot.form is int else value
    if not isinstance(value, accepted):
        raise ValueError
    return convert(value)


def _read_entries(slot: Slot, values: Mapping[Any, Any], path: str) -> dict[Any, Any]:
    entries: dict[Any, Any] = {}
    for key, value in values.items():
        try:
            name = read(slot.parts[0], key, path)
        except ConfigError as error:
            raise ConfigError(
                "cannot be a key here", field=path, value=key, cure=error.cure
            ) from None
        if name in entries:
            cure = f"Write each {'number' if isinstance(name, int) else 'name'} once."
            raise ConfigError(f"names {name!r} twice", field=path, value=values, cure=cure)
        try:
            entries[name] = read(slot.parts[1], value, f"{path}.{name}")
        except ConfigError as error:
            others = [str(other) for other in values if other != key]
            if error.problem != _MISSING or not others:
                raise
            cure = f"{(error.cure or '').rstrip('.')}, or another name in place of {name!r}."
            raise error.but(cure=f"{cure} {did_you_mean(str(name), others)}") from None
    return entries


def _read_record(slot: Slot, values: Mapping[Any, Any], path: str) -> Any:
    fields = fields_of(slot.form)
    prefix = f"{path}." if path else ""
    for name, value in values.items():
        if name not in fields:
            raise _unknown_key(name, value, prefix, fields)
    for name, field in fields.items():
        is_given = name in values and (values[name] is not None or field.slot.optional)
        if field.required and not is_given:
            raise ConfigError(
                _MISSING, field=f"{prefix}{name}", cure=f"Give {field.slot.expected}."
            )
    arguments = {
        name: read(fields[name].slot, value, f"{prefix}{name}") for name, value in values.items()
    }
    try:
        return slot.form(**arguments)
    except HeadraceError as error:
        name = error.field or ""
        if name.startswith(path):
            raise
        raise error.but(field=f"{prefix}{name.rpartition('.')[2]}".rstrip(".")) from None


def _read_union(slot: Slot, value: Any, path: str) -> Any:
    if isinstance(value, list | Mapping):
        form = list if isinstance(value, list) else dict
        members = [
            m
            for m in slot.parts
            if m.form is form or (form is dict and dataclasses.is_dataclass(m.form))
        ]
        if members:
            member = (
                members[0]
                if len(members) == 1
                else _meant(members, cast("Mapping[Any, Any]", value), path)
            )
            return read(member, value, path)
    if len(slot.parts) == 1 and isinstance(value, str) and shorthand_of(slot.parts[0]) is not None:
        return read(slot.parts[0], value, path)
    quoted = (
        isinstance(value, str) and number_in(value) is not None
    )  # YAML reads 1e-3 as a string, 3 only in quotes
    for member in slot.parts:
        if not (quoted and member.form is float and len(slot.parts) > 1):
            with contextlib.suppress(ConfigError):
                return read(member, value, path)
    raise _wrong_type(slot, value, path)


def _meant(slots: Sequence[Slot], values: Mapping[Any, Any], path: str) -> Slot:
    """The dataclass of a mapping: by its ``kind``, or because only it has these keys."""
    kinds = {str(slot.form.kind): slot for slot in slots}
    if "kind" in values:
        kind = values["kind"]
        check_choice(f"{path}.kind", kind, list(kinds), "is not a known kind")
        for key in values:
            others = [other for other, slot in kinds.items() if key in fields_of(slot.form)]
            if others and kind not in others:
                cure = f"It is a field of kind: {' and of kind: '.join(others)}."
                raise ConfigError(
                    f"is not a field of kind: {kind}",
                    field=f"{path}.{key}",
                    value=values[key],
                    cure=cure,
                )
        return kinds[kind]
    names = {kind: fields_of(slot.form).keys() for kind, slot in kinds.items()}
    all_names = {name for fields in names.values() for name in fields}
    for key in values:
        if key not in all_names:
            raise _unknown_key(key, values[key], f"{path}.", all_names)
    fitting = [kind for kind, fields in names.items() if fields >= values.keys()]
    if len(fitting) != 1:
        problem = f"can mean {' or '.join(fitting)}" if fitting else "mixes fields of several kinds"
        raise ConfigError(
            problem,
            field=path,
            value=dict(values),
            cure=f"Say which: kind: {' or kind: '.join(kinds)}.",
        )
    return kinds[fitting[0]]


def _wrong_type(slot: Slot, value: Any, path: str) -> ConfigError:
    forms = (slot.form, *(part.form for part in slot.parts))
    choices = [choice for part in (slot, *slot.parts) for choice in part.choices]
    if choices and isinstance(value, str) and {*forms} <= {Union, typing.Literal}:
        return ConfigError(
            "is not one of those", field=path, value=value, cure=did_you_mean(value, choices)
        )
    cure = f"Give {slot.expected}."
    if isinstance(value, bool) and str in forms:  # YAML 1.1 reads yes and no as bools
        cure = "Write the text in quotes."
    elif isinstance(value, str) and any(
        part.form is list and part.parts[0].form is str for part in slot.parts
    ):
        cure = f"Write [{value}]."
    elif isinstance(value, str) and type(number := number_in(value)) in (
        forms if float not in forms else (int, float)
    ):
        cure = f"Write {number}."
    return ConfigError("is of the wrong type", field=path, value=value, cure=cure)


def _unknown_key(key: Any, value: Any, prefix: str, known: Iterable[str]) -> ConfigError:
    return ConfigError(
        "is not a field here",
        field=f"{prefix}{key}",
        value=value,
        cure=did_you_mean(str(key), known),
    )
