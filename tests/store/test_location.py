"""A location: a bucket and an opaque key. What is typed is what every client is given, or it is
refused.
"""

import re
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
import tensorstore
from hypothesis import assume, example, given
from hypothesis import strategies as st

from headrace.errors import ConfigError
from headrace.store import files, remote
from headrace.store.files import kvstore_spec
from headrace.store.lease import lease, remove_tree
from headrace.store.location import Location

KEYS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=40)


@given(st.sampled_from(["s3", "gs"]), KEYS)
def test_a_key_reaches_both_clients_as_it_was_typed_or_not_at_all(scheme, key):
    url = f"{scheme}://bucket/{key}"
    location = Location.parse(url)
    assert (location.scheme, location.bucket, location.key) == (scheme, "bucket", key)
    if not refusal_of(location.check):
        assert location.on_fsspec() == f"bucket/{key.rstrip('/')}"
    if not refusal_of(location.check_arrays):
        spec = kvstore_spec(url)
        assert (spec["bucket"], spec["path"]) == ("bucket", key.rstrip("/") + "/")
        assert not set(key) & set("\n\r\x00\x7f")
        assert scheme == "gs" or not set(key) & set(" #?%")


def refusal_of(check: Callable[[], None]) -> ConfigError | None:
    """The error of a check, which has a cure; None if it passes."""
    try:
        check()
    except ConfigError as error:
        return error if error.cure else None
    return None


@given(KEYS, KEYS)
@example("0/", "0")
def test_below_is_by_whole_steps(one, other):
    above = Location.parse(f"s3://b/{one}")
    assert not above.is_below(above)
    if one.strip("/") and other.strip("/"):  # slashes alone name the folder itself
        assert Location.parse(f"s3://b/{one.rstrip('/')}/{other}").is_below(above)
    assert not Location.parse(f"s3://b/{one.rstrip('/')}#{other.replace('/', '')}").is_below(above)
    assert not Location.parse(f"s3://c/{one}/{other}").is_below(above)


@pytest.mark.parametrize(
    ("url", "scheme", "bucket", "key", "query"),
    [
        ("a/b", "file", "", "a/b", ""),
        ("file:///a%20b", "file", "", "/a%20b", ""),
        ("a/b://c", "file", "", "a/b://c", ""),
        ("data:x", "file", "", "data:x", ""),
        ("a::s3://b", "file", "", "a::s3://b", ""),
        ("gcs://b/k#1", "gs", "b", "k#1", ""),
        ("S3://b/k?versionId=1", "s3", "b", "k?versionId=1", ""),
        ("s3a://b", "s3", "b", "", ""),
        ("http://h:1/a b?x=/y", "http", "h:1", "a b", "?x=/y"),
        ("https://h?x", "https", "h", "", "?x"),
        ("memory://a/b", "memory", "a", "b", ""),
    ],
)
def test_what_a_text_names(url, scheme, bucket, key, query):
    place = Location.parse(url)
    assert (place.scheme, place.bucket, place.key, place.query) == (scheme, bucket, key, query)
    assert str(place) == url


def test_a_query_of_a_web_address_is_of_one_file():
    with pytest.raises(ConfigError, match="has a query, and is a folder") as caught:
        files.join("https://h/cache?sig=a/b", "parts", "00000")
    assert "a/b" not in str(caught.value)


LETTERS = st.text("ab1@/:?#'\"%&=,;.", max_size=8)


@given(LETTERS, LETTERS, st.sampled_from(["http", "https", "s3", "gs", "ftp"]))
def test_a_login_is_refused_and_shown_nowhere(before, after, scheme):
    assume(not re.match(r"\d*[/?#'\",;]", before))  # which may be a port
    text = f"{scheme}://me:{before}c4n4ry{after}@host/x"
    with pytest.raises(ConfigError, match="has a login in its address") as caught:
        Location.parse(text)
    assert "c4n4ry" not in str(caught.value)


@pytest.mark.parametrize(
    "url",
    [
        "s3://bucket",
        "s3:///key",
        "s3://a?b/c",
        "gs://bucket/",
        "gs://bucket/a/../b",
        "gs://bucket/.",
        "gs://bucket//a",
        "gs://bucket/a//b",
        "gs://bucket/a\nb",
        "gs://bucket/" + "x" * 900,
        "gs://bucket/\udce9",
        "s3://bucket/a b",
        "s3://bucket/a%20b",
        "s3://bucket/run#1",
        "s3://bucket/#1/c",
        "s3://bucket/a?b",
        "https://host/a",
        "a\0b",
        "a\\b",
    ],
)
def test_an_output_is_refused_before_anything_is_asked(url):
    with pytest.raises(ConfigError) as caught:
        files.check_writable(url)
    assert caught.value.field == "output"
    assert caught.value.value == url
    assert caught.value.cure
    with pytest.raises(ConfigError):
        lease(url).__enter__()


def test_s3_servers_that_know_buckets_by_their_host_names_only(tmp_path, monkeypatch):
    """TensorStore would ask HOST/BUCKET nevertheless, so that arrays and ledger would be at
    different keys.
    """
    for name in ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_REGION", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name, raising=False)
    config = tmp_path / "config"
    config.write_text(
        "[default]\nregion = eu-1\nendpoint_url = https://store.example:99\n"
        "[profile virtual]\nendpoint_url = https://store.example:99\n"
        "s3 =\n    addressing_style = virtual\n"
        "[profile by-path]\nendpoint_url = https://store.example:99\n"
        "s3 =\n    addressing_style = path\n"
        "[profile amazon]\ns3 =\n    addressing_style = virtual\n"
    )
    monkeypatch.setenv("AWS_CONFIG_FILE", str(config))
    spec = kvstore_spec("s3://bucket/a")
    assert (spec["endpoint"], spec["aws_region"]) == ("https://store.example:99", "eu-1")
    monkeypatch.setenv("AWS_PROFILE", "virtual")
    with pytest.raises(ConfigError) as caught:
        kvstore_spec("s3://bucket/a")
    assert (caught.value.field, caught.value.value) == ("s3.addressing_style", "virtual")
    with pytest.raises(ConfigError):  # before anything is asked
        lease("s3://bucket/a").__enter__()
    monkeypatch.setenv("AWS_PROFILE", "by-path")
    assert kvstore_spec("s3://bucket/a")["endpoint"] == "https://store.example:99"
    monkeypatch.setenv("AWS_PROFILE", "amazon")  # where TensorStore does so by itself
    assert "endpoint" not in kvstore_spec("s3://bucket/a")


def test_tensorstore_puts_the_bucket_in_the_path_whatever_the_host(monkeypatch):
    """If this fails, ``addressing_style = virtual`` can be allowed for caches."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    asked: list[tuple[str | None, str]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append((self.headers["Host"], self.path))
            self.send_error(404)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        host = f"bucket.localhost:{server.server_port}"
        at = f"http://127.0.0.1:{server.server_port}"
        spec = {"driver": "s3", "bucket": "bucket", "aws_region": "x", "path": "a/"}
        for more in ({"endpoint": at}, {"endpoint": at, "host_header": host}):
            tensorstore.KvStore.open({**spec, **more}).result().read("key").result()
    finally:
        server.shutdown()
        server.server_close()
    assert [path for _, path in asked] == ["/bucket/a/key"] * 2
    assert asked[1][0] == host


PIECES = ["a", " ", "#", "?", "%", "/", ".", "..", "?versionId=", "\n", "\t", "\\", "\udcff", "é"]


@given(
    scheme=st.sampled_from(["s3", "gs"]),
    pieces=st.lists(st.sampled_from(PIECES), max_size=8),
)
def test_a_name_that_is_proposed_is_accepted_when_typed(scheme, pieces):
    url = f"{scheme}://bucket/{''.join(pieces)}"
    refused = str(refusal_of(Location.parse(url).check_output) or "")
    if not refused or "UTF-8" in refused:
        return
    proposed = re.search(rf"(?:such as|Write|in it:) ({scheme}://bucket/[^,:]*[^,.:])", refused)
    assert proposed is not None
    assert not refusal_of(Location.parse(proposed[1]).check_output)


def test_who_deletes_holds_a_lease_above(tmp_path):
    output = tmp_path / "output"
    for folder in (output / "parts", tmp_path / "output-2", tmp_path / "output#"):
        folder.mkdir(parents=True)
        (folder / "a").write_text("a")
    with pytest.raises(Exception, match="no lease says"):
        remove_tree(str(output / "parts"))
    with lease(str(output)):
        for other in ("output-2", "output#", "output/../output-2", "output"):
            with pytest.raises(Exception, match="no lease says"):
                remove_tree(str(tmp_path / other))
        remove_tree(str(output / "parts"))
        remove_tree(str(output / "nothing"))
    assert not (output / "parts").exists()
    assert (tmp_path / "output-2" / "a").exists()
    assert (tmp_path / "output#" / "a").exists()


@pytest.mark.parametrize("name", ["run[12]", "*", "{a,b}", "run?"])
def test_only_exact_keys_are_deleted(root, name):
    """fsspec's own deletion takes a key with [, * or ? for a pattern."""
    neighbours = [files.join(root, other, "keep") for other in ("run1", "run2", "a", "runx", "x")]
    for url in (*neighbours, files.join(root, name, "a", "b"), files.join(root, name + "x")):
        files.write_atomic(url, b"1")
    remote.delete_keys(files.join(root, name))
    assert files.names_in(files.join(root, name)) == []
    assert files.names_in(root) == sorted(["a", f"{name}x", "run1", "run2", "runx", "x"])
