"""Tokenizers of the Hugging Face hub, from a hub of this machine: fetched once, and named by
commit.
"""

import http.server
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import huggingface_hub.constants as hub_constants
import huggingface_hub.utils as hub_utils
import pytest
import tokenizers

from headrace.errors import ConfigError
from headrace.ingest import SourceConfig, TokenizerConfig, build_cache, hub
from headrace.ingest.tokenize import load_tokenizer, recorded_tokenizer
from headrace.store import open_cache
from headrace.testing.servers import serve

COMMIT = "0123456789abcdef0123456789abcdef01234567"
FILES = {
    "owner/tiny": ["tokenizer.json", "tokenizer_config.json", "model.safetensors"],
    "tiny": ["tokenizer.json"],
    "owner/old": ["vocab.txt"],
}


def content(name: str) -> bytes:
    if name != "tokenizer.json":
        return json.dumps({"eos_token": "b"}).encode()
    vocab = {"[UNK]": 0, "a": 1, "b": 2}
    model = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocab, unk_token="[UNK]"))  # type: ignore[call-arg]
    model.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()  # type: ignore[assignment]
    return model.to_str().encode()


class Hub(http.server.BaseHTTPRequestHandler):
    asked: ClassVar[list[str]] = []

    def do_GET(self) -> None:
        self.asked.append(f"{self.command} {self.path}")
        path, _, rest = self.path.strip("/").removeprefix("api/models/").partition("/revision/")
        repo, _, file = path.partition("/resolve/")
        error = ""
        if repo == "owner/gated":
            error = "GatedRepo"
        elif repo not in FILES:
            error = "RepoNotFound"
        elif rest not in ("", "main", COMMIT):
            error = "RevisionNotFound"
        data = b""
        status = 403 if error == "GatedRepo" else 404
        if not error:
            siblings = [{"rfilename": name} for name in FILES[repo]]
            data = json.dumps({"id": repo, "sha": COMMIT, "siblings": siblings}).encode()
            status = 200
        if file:
            data = content(file.partition("/")[2])
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.send_header("Content-Type", "application/json")
        self.send_header("ETag", '"' + file.replace("/", "-") + '"')
        self.send_header("X-Repo-Commit", COMMIT)
        if error:
            self.send_header("X-Error-Code", error)
            self.send_header("X-Error-Message", error)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(data)

    do_HEAD = do_GET  # noqa: N815

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        pass


@pytest.fixture(scope="module")
def hub_url() -> Iterator[str]:
    """Address of a hub; the library keeps the first that it is given."""
    with serve(Hub) as url:
        yield url


@pytest.fixture
def asked(hub_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Requests that the hub was asked."""
    monkeypatch.setattr(hub_constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setenv("HF_ENDPOINT", hub_url)
    names = ("reset_sessions", "close_session")  # of releases before 1.0, and since
    next(
        getattr(hub_utils, name) for name in names if hasattr(hub_utils, name)
    )()  # that of tests before is offline
    monkeypatch.setattr(hub_constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(hub_constants, "HF_HUB_DISABLE_PROGRESS_BARS", True)
    Hub.asked.clear()
    hub._fetch.cache_clear()
    yield Hub.asked
    hub._fetch.cache_clear()


@pytest.mark.parametrize(
    "name", ["hf://owner/tiny", f"hf://owner/tiny@{COMMIT}", "owner/tiny", "hf://tiny", "tiny"]
)
def test_by_name(asked, name, caplog):
    tokenizer = load_tokenizer(TokenizerConfig(name, eos="none"))
    repo = "owner/tiny" if "owner" in name else "tiny"
    assert tokenizer.path == f"hf://{repo}@{COMMIT}"
    assert tokenizer.encode_batch(["a b"])[0].tolist() == [1, 2]
    assert not [request for request in asked if "safetensors" in request]
    assert ("taken from the Hugging Face hub" in caplog.text) == (not name.startswith("hf://"))
    requests = len(asked)
    load_tokenizer(TokenizerConfig(name, eos="none"))
    assert len(asked) == requests


def test_of_a_commit_that_is_here_nobody_is_asked(asked):
    load_tokenizer(TokenizerConfig("hf://owner/tiny", eos="none"))
    asked.clear()
    hub._fetch.cache_clear()
    name = f"hf://owner/tiny@{COMMIT}"
    assert load_tokenizer(TokenizerConfig(name, eos="none")).path == name
    assert asked == []


def test_what_the_model_declares_counts_and_a_cache_needs_no_hub(asked, tmp_path, monkeypatch):
    config = TokenizerConfig("hf://owner/tiny")
    tokenizer = load_tokenizer(config)
    assert tokenizer.eos == "b"
    assert Path(tokenizer.folder or "", "tokenizer_config.json").exists()
    (tmp_path / "a.txt").write_text("a a")
    build_cache(
        SourceConfig([str(tmp_path / "a.txt")]),
        config,
        str(tmp_path / "cache"),
        engine="inline",
        progress=False,
    )
    monkeypatch.setattr(hub_constants, "HF_HUB_OFFLINE", True)
    shutil.rmtree(tmp_path / "hub")
    hub._fetch.cache_clear()
    cache = open_cache(tmp_path / "cache")
    record = cache.ledger.tokenizer
    assert record is not None
    assert record["path"] == f"hf://owner/tiny@{COMMIT}"
    assert recorded_tokenizer(cache.path, record).decode(cache.tokens(0, 3)) == "a a b"


def test_a_path_that_is_there_is_no_name(asked, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny").mkdir()
    with pytest.raises(ConfigError, match=r"is a folder without tokenizer\.json"):
        load_tokenizer(TokenizerConfig("tiny"))
    assert asked == []


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("hf://owner/none", r"is neither a file or folder here nor a model .* Check the name"),
        ("none", r"is neither a file or folder here nor a model .* Check the name"),
        ("hf://owner/gated", r"is gated on .*huggingface.co/owner/gated, then run `hf auth login`"),
        ("hf://owner/tiny@gone", r"has no such revision"),
        ("hf://owner/old", r"has no tokenizer.json .*AutoTokenizer.from_pretrained\('owner/old'\)"),
        ("hf://", r"is no name of a model.*Write hf://OWNER/NAME"),
        ("hf://a/b/c", r"is no name of a model.*Write hf://OWNER/NAME"),
    ],
)
def test_what_the_hub_does_not_give(asked, name, message):
    with pytest.raises(ConfigError, match=message):
        load_tokenizer(TokenizerConfig(name))


def test_a_hub_that_cannot_be_reached(asked, monkeypatch):
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(ConfigError, match=r"is not here, and the Hugging Face hub cannot be asked"):
        load_tokenizer(TokenizerConfig("hf://owner/tiny"))
