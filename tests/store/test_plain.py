"""Plain files of numbers: a file that is not what it was is an error, never other numbers."""

from pathlib import Path

import numpy as np
import pytest
from tests.store.conftest import Remote

from headrace.errors import ReadError
from headrace.store import files
from headrace.store.layout import DEFAULT_CHUNK
from headrace.store.plain import PlainArray

LENGTH = 3 * DEFAULT_CHUNK


def read_while_it_changes(url: str) -> None:
    numbers = np.arange(LENGTH, dtype=np.uint16)
    files.write_atomic(url, numbers.tobytes())
    array = PlainArray(url, LENGTH, "uint16")
    first = array.read(0, DEFAULT_CHUNK).result()
    assert (first == numbers[:DEFAULT_CHUNK]).all()
    files.write_atomic(url, numbers[::-1].tobytes())
    with pytest.raises(ReadError, match="changed since it was first read"):
        array.read(2 * DEFAULT_CHUNK, LENGTH).result()
    files.write_atomic(url, numbers.tobytes())
    again = PlainArray(url, LENGTH, "uint16").read(0, LENGTH).result()
    assert (again == numbers).all()


def test_a_local_file_that_is_replaced_is_an_error(tmp_path: Path, quick: None):
    read_while_it_changes(str(tmp_path / "a.npy"))


def test_an_object_that_is_replaced_is_an_error(remote: Remote, quick: None):
    read_while_it_changes(files.join(remote.root, "a.npy"))
