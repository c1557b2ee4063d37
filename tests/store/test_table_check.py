"""``ledger.bin`` that is missing, stale or damaged: refused, found by verify, and written anew by
its repair.
"""

from pathlib import Path

import pytest
from msgspec.structs import replace
from typer.testing import CliRunner

from headrace.cli.application import application
from headrace.errors import CacheCorruptError, CacheUnfinishedError
from headrace.store import CacheLayout, open_cache, verify
from headrace.store.ledger import read_ledger, write_ledger
from headrace.testing import write_cache
from headrace.testing.caches import random_documents

LAYOUT = CacheLayout("uint8", 64, 4)


@pytest.fixture
def cache(tmp_path):
    return write_cache(
        tmp_path / "c", [random_documents(9, seed=k) for k in range(12)], layout=LAYOUT
    )


def type_cure(error: CacheCorruptError) -> None:
    """Runs the command at the end of an error's cure."""
    program, *arguments = (error.cure or "").partition(": ")[2].split()
    assert program == "headrace"
    assert CliRunner().invoke(application(), arguments).exit_code == 0


def bytes_of(root: str) -> dict[str, bytes]:
    return {
        str(path.relative_to(root)): path.read_bytes()
        for path in Path(root).rglob("*")
        if path.is_file()
    }


@pytest.mark.parametrize("compression", ["none", "zstd"])
@pytest.mark.parametrize("parts", [0, 12])
def test_a_missing_table_is_refused_with_a_cure_that_works(tmp_path, compression, parts):
    documents = [random_documents(9, seed=k) for k in range(parts)]
    cache = write_cache(tmp_path / "c", documents, layout=CacheLayout("uint8", 64, 4, compression))
    before = bytes_of(cache.path)
    Path(cache.path, "ledger.bin").unlink()
    with pytest.raises(CacheCorruptError, match="is missing") as caught:
        open_cache(cache.path)
    assert caught.value.field == "ledger"
    assert caught.value.value == f"{cache.path}/ledger.bin"
    assert [damage.file for damage in verify(cache.path).damages] == [f"{cache.path}/ledger.bin"]
    type_cure(caught.value)
    assert bytes_of(cache.path) == before


def test_the_table_of_another_ledger_is_refused(cache):
    table = Path(cache.path, "ledger.bin")
    stale = table.read_bytes()
    write_ledger(cache.path, replace(read_ledger(cache.path), metadata={"a": 1}))
    table.write_bytes(stale)
    with pytest.raises(CacheCorruptError, match=r"is of another ledger\.json") as caught:
        open_cache(cache.path)
    type_cure(caught.value)
    assert open_cache(cache.path).fingerprint == cache.fingerprint


def test_an_unfinished_cache_has_no_table_yet(cache):
    write_ledger(cache.path, replace(read_ledger(cache.path), finished=False, parts=[]))
    with pytest.raises(CacheUnfinishedError):
        open_cache(cache.path)
    Path(cache.path, "ledger.bin").unlink()
    with pytest.raises(CacheUnfinishedError):
        open_cache(cache.path)
