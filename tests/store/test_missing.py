"""What is said of a path without a cache, by what lies there."""

import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import pytest

from headrace import extensions
from headrace.errors import CacheMissingError, ConfigError
from headrace.store import files, open_cache, remote, verify
from headrace.store.layouts import FormatConfig
from headrace.store.ledger import is_finished, read_ledger
from headrace.store.missing import what_is_there
from headrace.testing import tiny_cache, web_server
from headrace.testing.servers import s3_server, use_s3


@pytest.mark.parametrize(
    ("path", "problem", "cure"),
    [
        ("", "it is an empty text", "Give the folder of a cache."),
        (
            "nowhere",
            "there is no such folder",
            "headrace build SOURCE --tokenizer FILE --output nowhere",
        ),
        ("s3:/bucket/web", "there is no such folder", "s3://bucket/web"),
        (
            "texts",
            "holds no ledger.json",
            "headrace build texts --tokenizer FILE --output texts-cache",
        ),
        (
            "empty",
            "holds no ledger.json",
            "headrace build SOURCE --tokenizer FILE --output empty-cache",
        ),
        ("texts/a.txt.gz", "it is a file", "--output texts/a-cache"),
        ("run.yaml", "it is a file", "Name one of the caches in it."),
        ("run", "it is the folder of a run", "Name a cache of its config."),
        ("caches", "caches lie in this folder", "Name one of them: caches/a, caches/b."),
    ],
)
def test_what_is_said(tmp_path, monkeypatch, path, problem, cure):
    monkeypatch.chdir(tmp_path)
    for folder in ("texts", "empty", "run"):
        (tmp_path / folder).mkdir()
    for file in ("texts/a.txt.gz", "run/lock.json", "run.yaml"):
        (tmp_path / file).touch()
    for name in "ab":
        tiny_cache(tmp_path / "caches" / name, documents=2)
    said = what_is_there(path)
    assert problem in said[0]
    assert cure in said[1]


@pytest.mark.parametrize(
    ("path", "output"),
    [
        ("http://{host}/texts", "texts-cache, and copy it to http://{host}/texts-cache"),
        ("http://{host}/", "cache, and copy it to http://{host}/cache"),
        ("http://{host}", "cache, and copy it to http://{host}/cache"),
        ("s3://{bucket}", "cache, and copy it to s3://{bucket}/cache"),
        ("s3://{bucket}/", "cache, and copy it to s3://{bucket}/cache"),
        ("s3://{bucket}/texts", "s3://{bucket}/texts-cache"),
        ("s3://{bucket}/nothing", "s3://{bucket}/nothing"),
        ("s3://not-there", "s3://not-there/cache"),
    ],
)
def test_a_command_writes_where_one_can_write(tmp_path, path, output):
    pytest.importorskip("moto")
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "a.txt").write_text("a text")
    with web_server(tmp_path) as url, s3_server() as s3, use_s3(s3, "texts-here") as bucket:
        files.write_atomic(f"{bucket}/texts/a.txt", b"a text")
        names = {"host": url.removeprefix("http://"), "bucket": "texts-here"}
        with pytest.raises(CacheMissingError) as found:
            open_cache(path.format(**names))
    assert str(found.value.cure).endswith(f"--output {output.format(**names)}")


@pytest.mark.parametrize("path", ["memory://x", "memory://", "ftp://host/x"])
def test_a_scheme_that_no_cache_is_stored_under_is_told(path):
    said = what_is_there(path)
    assert said == (
        "has a scheme that token caches cannot be stored under",
        "Use a local path, gs://, s3://, az:// or https://.",
    )


@pytest.mark.parametrize("path", ["ftp://127.0.0.1/x", "hf://a/b", "memory://x", "hdfs://host/x"])
@pytest.mark.parametrize("look", [open_cache, verify, is_finished, read_ledger])
def test_where_no_cache_can_be_nothing_is_asked(path, look, monkeypatch):
    def ask(url):
        raise AssertionError(f"{url} is asked")

    monkeypatch.setattr(remote, "filesystem", ask)
    with pytest.raises(CacheMissingError, match="cannot be stored under") as found:
        look(path)
    assert "gs://" in (found.value.cure or "")


def test_caches_in_a_folder_of_a_web_server_are_named(tmp_path, monkeypatch):
    for name in "ab":
        tiny_cache(tmp_path / "caches" / name, documents=2)
    monkeypatch.setattr(SimpleHTTPRequestHandler, "log_message", lambda *_: None)
    handler = partial(SimpleHTTPRequestHandler, directory=str(tmp_path))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}/caches"
        with pytest.raises(CacheMissingError, match="caches lie in this folder") as found:
            open_cache(url)
        server.shutdown()
    assert found.value.cure == f"Name one of them: {url}/a, {url}/b."


def test_a_cache_of_levanter_names_the_package_that_reads_it(tmp_path, monkeypatch):
    (tmp_path / "shard_ledger.json").write_text("{}")
    monkeypatch.setattr(extensions, "_installed", lambda group: {})
    with pytest.raises(CacheMissingError, match="it is a cache of Levanter's") as found:
        open_cache(tmp_path)
    with pytest.raises(ConfigError, match="needs the package") as named:
        open_cache(tmp_path, settings=FormatConfig("levanter"))
    for error in (found.value, named.value):
        assert str(error.cure).endswith("pip install 'headrace[levanter]'")
