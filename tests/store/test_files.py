"""Small files by path or URL: writes are atomic, a missing file is None, an unknown scheme says
what to do.
"""

import os
import threading

import pytest

from headrace.errors import CacheError, ConfigError
from headrace.store import files, remote


@pytest.mark.parametrize(
    ("root", "parts", "joined"),
    [
        ("a", ("b",), "a/b"),
        ("a/", ("/b/", "c"), "a/b/c"),
        ("/", ("b",), "/b"),
        ("", ("b",), "./b"),
        ("gs://x", ("b",), "gs://x/b"),
        ("s3://x/y/", ("parts", "00000"), "s3://x/y/parts/00000"),
    ],
)
def test_join(root, parts, joined):
    assert files.join(root, *parts) == joined


@pytest.mark.parametrize(
    ("url", "local"), [("a/b", True), ("/a", True), ("file:///a", True), ("gs://a/b", False)]
)
def test_is_local(url, local):
    assert files.is_local(url) is local


def test_what_is_written_is_read(tmp_path):
    for url in (f"{tmp_path}/new/folder/a.json", f"file://{tmp_path}/b.json"):
        assert files.read_bytes(url) is None
        assert not files.exists(url)
        files.write_atomic(url, b"one")
        files.write_atomic(url, b"two")
        assert files.read_bytes(url) == b"two"
        with files.open_read(url) as f:
            assert f.read() == b"two"
    assert files.tree_bytes(str(tmp_path)) == 6
    assert files.tree_bytes(f"{tmp_path}/nothing") == 0


def test_nothing_stray_is_left_by_a_killed_writer(tmp_path):
    (tmp_path / "ledger.json.tmp").write_bytes(b"half of")
    files.write_atomic(f"{tmp_path}/ledger.json", b"whole")
    assert os.listdir(tmp_path) == ["ledger.json"]


def test_a_failed_write_leaves_the_old_bytes(tmp_path, monkeypatch):
    url = f"{tmp_path}/a"
    files.write_atomic(url, b"old")

    def full(fd):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(
        CacheError, match=r"on device: 3 bytes to write, [\d,]+ bytes are free at /"
    ) as caught:
        files.write_atomic(url, b"new")
    assert caught.value.value == url
    assert "run the same command again" in (caught.value.cure or "")
    assert files.read_bytes(url) == b"old"


def test_a_place_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(CacheError, match="cannot be written"):
        files.write_atomic(f"{tmp_path}/file/a", b"x")


def test_several_writers_may_write_one_file_together(tmp_path):
    """Processes of one run save the same manifest at the same time; a reader never
    sees half of it.
    """
    url = f"{tmp_path}/lock.json"
    content = b"x" * 200_000
    seen: list[bytes | None] = []

    def write() -> None:
        for _ in range(20):
            files.write_atomic(url, content, shared=True)
            seen.append(files.read_bytes(url))

    threads = [threading.Thread(target=write) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(seen) == 80
    assert set(seen) == {content}
    assert os.listdir(tmp_path) == ["lock.json"]


def test_unknown_schemes_say_which_there_are():
    with pytest.raises(ConfigError, match="fsspec does not know") as caught:
        remote.filesystem("nope://x/y")
    assert caught.value.value == "nope://x/y"
    assert "gs://" in (caught.value.cure or "")


def test_a_missing_package_names_the_extra(monkeypatch):
    def missing(url, **options):
        raise ImportError("Install s3fs to access S3")

    monkeypatch.setattr(remote, "fsspec_client", missing)
    with pytest.raises(ConfigError, match="nothing here can open s3:// paths") as caught:
        remote.filesystem("s3://bucket/x")
    assert (caught.value.cure or "").endswith("pip install 'headrace[s3]'")
