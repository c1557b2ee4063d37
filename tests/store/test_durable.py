"""The one place that writes to a local disk for good: what is synced, and in which order."""

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.store import files


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
    files.rename(tmp_path / "a" / "inner", tmp_path / "b" / "inner")
    assert calls == ["rename inner", "sync b", "sync a"]
    calls.clear()
    files.remove(tmp_path / "b")
    files.remove(tmp_path / "b")  # nothing is there
    assert calls == [f"sync {tmp_path.name}"]
    (tmp_path / "link").symlink_to(tmp_path / "a")
    files.remove(tmp_path / "link")
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_the_folders_of_a_tree(tmp_path, calls):
    (tmp_path / "top" / "part" / "leaf" / "c").mkdir(parents=True)
    files.sync_folders(tmp_path / "top" / "part", below=tmp_path / "top")
    assert calls == ["sync c", "sync leaf", "sync part", "sync top"]


@pytest.mark.parametrize("number", [errno.EINVAL, errno.ENOTSUP])
def test_folders_that_cannot_be_synced_are_passed_over(tmp_path, monkeypatch, number):
    def refuse(file):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", refuse)
    files.sync_folder(tmp_path)
    with pytest.raises(OSError, match=os.strerror(number)):
        files.sync_file(tmp_path)


def test_a_disk_that_fails_is_told(tmp_path, monkeypatch):
    def refuse(file):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(files.CacheError, match="Input/output error"):
        files.write_atomic(str(tmp_path / "a"), b"")


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("planted", ["link", "hard link", "pipe", "old", "nothing"])
def test_a_file_that_has_the_temporary_name_is_never_followed(tmp_path, shared, planted):
    other = tmp_path / "other"
    other.write_bytes(b"of somebody else")
    name = tmp_path / "page.html.tmp"
    if planted == "link":
        name.symlink_to(other)
    elif planted == "hard link":
        name.hardlink_to(other)
    elif planted == "pipe":
        os.mkfifo(name)
    elif planted == "old":
        name.write_bytes(b"x" * 1000)
    files.write_file(tmp_path / "page.html", [b"page"], shared=shared)
    assert other.read_bytes() == b"of somebody else"
    assert (tmp_path / "page.html").read_bytes() == b"page"
    assert not (tmp_path / "page.html").is_symlink()
    assert not shared or planted == "nothing" or os.path.lexists(name)


def test_a_file_that_is_not_completed_is_removed(tmp_path):
    def pieces():
        yield b"half"
        raise KeyboardInterrupt

    for shared in (False, True):
        with pytest.raises(KeyboardInterrupt):
            files.write_file(tmp_path / "a", pieces(), shared=shared)
    assert os.listdir(tmp_path) == []


def test_the_rest_of_a_killed_writer_is_swept_and_that_of_a_live_one_is_not(tmp_path):
    code = (
        "import os, signal, sys; from pathlib import Path; from headrace.store import files\n"
        "file = files.TemporaryFile(Path(sys.argv[1], 'a'), shared=True)\n"
        "file.content.write(b'half'); file.content.flush(); print('open', flush=True)\n"
        "sys.stdin.readline()"
    )
    writers = [
        subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdin=-1, stdout=-1)
        for _ in range(2)
    ]
    for writer in writers:
        assert writer.stdout is not None
        writer.stdout.readline()
    (tmp_path / "a.elsewhere.1.tmp").write_bytes(b"")
    (tmp_path / "a.elsewhere.2.tmp").write_bytes(b"")
    os.utime(tmp_path / "a.elsewhere.2.tmp", (0, 0))
    (tmp_path / "ab.tmp").write_bytes(b"of another file")
    writers[0].kill()
    writers[0].communicate()
    before = set(os.listdir(tmp_path))
    files.write_file(tmp_path / "a", [b"whole"], shared=True)
    swept = before - set(os.listdir(tmp_path))
    assert len(swept) == 2
    assert "a.elsewhere.2.tmp" in swept
    writers[1].communicate(b"\n")
    files.write_file(tmp_path / "a", [b"whole"], shared=True)
    assert set(os.listdir(tmp_path)) == {"a", "ab.tmp", "a.elsewhere.1.tmp"}
