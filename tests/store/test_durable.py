"""The one place that writes to a local disk for good: what is synced, and in which order."""

import errno
import os
from pathlib import Path

import pytest

from headrace.store import durable, files


@pytest.fixture
def calls(monkeypatch):
    """Names of what was synced, renamed and deleted, in order."""
    made = []
    fsync = os.fsync
    replace = os.replace

    def synced(file):
        made.append(f"sync {Path(os.readlink(f'/proc/self/fd/{file}')).name}")
        fsync(file)

    def renamed(source, target):
        made.append(f"rename {Path(target).name}")
        replace(source, target)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "replace", renamed)
    return made


def test_a_file_is_there_before_its_name_and_its_name_before_the_call_ends(tmp_path, calls):
    folder = tmp_path / "new" / "deep"
    files.write_atomic(str(folder / "a"), [memoryview(b"one"), memoryview(b"two")])
    assert calls == [f"sync {tmp_path.name}", "sync new", "sync a.tmp", "rename a", "sync deep"]
    assert (folder / "a").read_bytes() == b"onetwo"
    calls.clear()
    files.write_atomic(str(folder / "a"), b"again")
    assert calls == ["sync a.tmp", "rename a", "sync deep"]


def test_renames_and_deletions(tmp_path, calls):
    (tmp_path / "a" / "inner").mkdir(parents=True)
    (tmp_path / "b").mkdir()
    durable.rename(tmp_path / "a" / "inner", tmp_path / "b" / "inner")
    assert calls == ["rename inner", "sync b", "sync a"]
    calls.clear()
    durable.remove(tmp_path / "b")
    durable.remove(tmp_path / "b")  # nothing is there
    assert calls == [f"sync {tmp_path.name}"]
    (tmp_path / "link").symlink_to(tmp_path / "a")
    durable.remove(tmp_path / "link")
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_the_folders_of_a_tree(tmp_path, calls):
    (tmp_path / "top" / "part" / "leaf" / "c").mkdir(parents=True)
    durable.sync_folders(tmp_path / "top" / "part", below=tmp_path / "top")
    assert calls == ["sync c", "sync leaf", "sync part", "sync top"]


@pytest.mark.parametrize("number", [errno.EINVAL, errno.ENOTSUP])
def test_folders_that_cannot_be_synced_are_passed_over(tmp_path, monkeypatch, number):
    def refuse(file):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", refuse)
    durable.sync_folder(tmp_path)
    with pytest.raises(OSError, match=os.strerror(number)):
        durable.sync_file(tmp_path)


def test_a_disk_that_fails_is_told(tmp_path, monkeypatch):
    def refuse(file):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(files.CacheError, match="Input/output error"):
        files.write_atomic(str(tmp_path / "a"), b"")
