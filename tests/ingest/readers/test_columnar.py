"""Columns of Arrow, as records have them."""

import pyarrow as pa
import pytest

from headrace.ingest.readers.columnar import column_values


@pytest.mark.parametrize("kind", ["string", "struct"])
def test_maps_are_objects_as_in_json(kind):
    """Also inside lists and structs: a template sees the same record from every format."""
    values = pa.string() if kind == "string" else pa.struct([("type", pa.string())])
    value = "x" if kind == "string" else {"type": "x"}
    nested = pa.list_(pa.struct([("properties", pa.map_(pa.string(), values))]))
    column = pa.array([[{"properties": [("a", value), ("b", value)]}], None, []], nested)
    assert column_values(column) == [[{"properties": {"a": value, "b": value}}], None, []]
    maps = pa.array([[("a", value)], []], pa.map_(pa.string(), values))
    assert column_values(maps) == [{"a": value}, {}]
