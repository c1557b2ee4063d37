"""Records from a Python function, named ``module:function``: for whatever no reader here knows.

The function is the user's own code, named by the user; nothing in data ever names one. It takes no argument and yields
texts or mappings of fields; or it has an attribute ``num_shards`` and takes the number of a shard, 0 to
``num_shards - 1``, each of which can be built by another worker. It must yield the same whenever it is called: that is
what makes a killed build come out the same.
"""

from __future__ import annotations

import hashlib
import importlib
import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar

from headrace.errors import ConfigError
from headrace.ingest.records import BadRecordError, Reader, Row, Slice, reading, type_name


def load_function(path: str) -> Callable[..., Any]:
    """The function that ``module:function`` names.

    Raises:
        ConfigError: there is none.

    Example:
        >>> load_function("json:dumps").__name__
        'dumps'
    """
    module, colon, name = path.partition(":")
    if not (module and colon and name):
        raise ConfigError("names no function", field="source", value=path, cure="Write module:function.")
    try:
        found: Any = importlib.import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as error:
        raise ConfigError(
            f"cannot be imported ({error})", field="source", value=path, cure="Check the name and PYTHONPATH."
        ) from error
    if not callable(found):
        raise ConfigError(f"is a {type(found).__name__}, no function", field="source", value=path)
    return found


class FunctionReader(Reader):
    """What a function yields, or some of its shards; numbered from 0 (in a slice: within it)."""

    unit: ClassVar[str] = "record"

    def __iter__(self) -> Iterator[Row]:
        function = load_function(self.path)
        shards = getattr(function, "num_shards", None)
        start, stop = (0, None) if self.part is None else (self.part.start, self.part.stop)
        row = 0
        with reading(self.path):
            for arguments in [()] if shards is None else [(i,) for i in range(start, stop or shards)]:
                for record in function(*arguments):
                    yield row, self._fields(record)
                    row += 1

    def _fields(self, record: Any) -> Any:
        if isinstance(record, str):
            return {self.columns[0] if self.columns else "text": record}
        if isinstance(record, Mapping):
            return record
        return BadRecordError(f"is a {type_name(record)}, neither a text nor a mapping of fields")


def describe(path: str, target_bytes: int) -> tuple[int | None, str, list[Slice]]:
    """Version (of the function's source file) and slices (its shards)."""
    function = load_function(path)
    try:
        source = inspect.getsource(inspect.getmodule(function) or function)
    except (OSError, TypeError):
        source = ""
    version = "code:" + hashlib.sha256(source.encode()).hexdigest()[:16]
    shards = int(getattr(function, "num_shards", 1))
    if shards < 1:
        raise ConfigError("must be at least 1", field=f"{path}.num_shards", value=shards)
    slices = [Slice(i, i + 1 if i + 1 < shards else None, target_bytes) for i in range(shards)]
    return None, version, slices if shards > 1 else []
