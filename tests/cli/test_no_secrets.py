"""A password or a signature is in nothing that a command prints, logs or writes."""

from __future__ import annotations

import base64
import json
import logging
import os
import shutil
from collections.abc import Callable, Iterator
from email.message import Message
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
import typer

from headrace.cli.application import application
from headrace.config import ComponentConfig, LmDataConfig, load_config
from headrace.errors import ConfigError, HeadraceError, redact
from headrace.feed import RunLog
from headrace.ingest import SourceConfig, TokenizerConfig, build_cache
from headrace.run import RunLock, open_run
from headrace.store import RetryPolicy, open_cache, open_replicas, use_policy
from headrace.testing.servers import web_server

CANARY = "c4n4ry"
LOGIN = base64.b64encode(f"me:{CANARY}".encode()).decode()
ADDRESSES = [
    f"http://me:{CANARY}@127.0.0.1:9/x",
    f"https://{CANARY}@127.0.0.1:9/x",
    f"http://me:{CANARY}@{CANARY}@127.0.0.1:9/x",
    f"http://me:{CANARY}/{CANARY}@127.0.0.1:9/x",
    f"http://me:1{CANARY}'/?{CANARY}@127.0.0.1:9/x",
    f"s3://AKIA:{CANARY}/{CANARY}@bucket/x",
    f"gs://me:{CANARY}@bucket/x",
    f"ftp://me:{CANARY}@127.0.0.1/x",
]
"""With a login."""
QUERIES = [
    f"auth={CANARY}",
    f"jwt={CANARY}",
    f"X-Amz-Date=20260101&X-Amz-Signature={CANARY}",
    f"{CANARY}",
    f"a={CANARY}@{CANARY}/{CANARY}",
]
"""Each grants access to a file."""


@pytest.fixture
def leaks(tmp_path, caplog, monkeypatch) -> Callable[..., list[str]]:
    """Where the canary is after a command."""
    caplog.set_level(logging.DEBUG, "headrace")
    monkeypatch.chdir(tmp_path)

    def found(done) -> list[str]:
        said = [text for text in (done.out, done.err, caplog.text) if _shows(text.encode())]
        caplog.clear()
        return said + [
            str(path)
            for path in tmp_path.rglob("*")
            if path.is_file() and not path.name.startswith("typed-") and _shows(path.read_bytes())
        ]

    return found


def _shows(data: bytes) -> bool:
    return CANARY.encode() in data or LOGIN.encode() in data


@pytest.fixture
def stored(tmp_path_factory, monkeypatch) -> Iterator[str]:
    """The address of a server that answers only requests with a signature or a login. It has a
    cache, a copy of it, a text and a tokenizer.
    """
    folder = tmp_path_factory.mktemp("stored")
    lines = [json.dumps({"text": "one two " * 50}) for _ in range(20)]
    (folder / "a.jsonl").write_text("\n".join(lines))
    build_cache(
        SourceConfig([str(folder / "a.jsonl")]),
        TokenizerConfig("bytes"),
        folder / "cache",
        progress=False,
    )
    shutil.copytree(folder / "cache", folder / "copy")
    monkeypatch.setenv("NETRC", str(tmp_path_factory.mktemp("home") / "netrc"))

    def admits(target: str, headers: Message) -> bool:
        return CANARY in target or headers["Authorization"] == f"Basic {LOGIN}"

    with web_server(folder, admits) as url:
        yield url


@pytest.fixture
def few_attempts(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An address where nobody answers is given up soon."""
    monkeypatch.setattr("headrace.cli.REACHED_WITHIN_S", 0.05)
    before = use_policy(RetryPolicy(deadline_s=0.05, first_delay_s=0.01, timeout_s=2.0))
    yield
    use_policy(before)


GROUP: Any = typer.main.get_command(application())
LEAVES = {
    name: sorted(found.commands) if hasattr(found, "commands") else [""]
    for name in GROUP.commands
    for found in [GROUP.get_command(None, name)]
}


def test_a_login_in_an_address_is_refused_by_every_command(headrace, leaks):
    commands = [[name, inner] for name, inner_names in LEAVES.items() for inner in inner_names]
    for number, (name, inner) in enumerate(commands):
        address = ADDRESSES[number % len(ADDRESSES)]
        for words in ([address], ["x", address], [f"--output={address}"], [f"a.b={address}"]):
            done = headrace(*filter(None, (name, inner)), *words)
            assert done.code == 2, done
            assert "has a login in its address" in done.err
            assert leaks(done) == []


@pytest.mark.parametrize("address", ADDRESSES)
@pytest.mark.parametrize(
    "path",
    [
        "components.a.cache",
        "components.a.replicas",
        "components.a.remove",
        "components.a.source.paths",
        "components.a.source.chat.template",
        "components.a.packing.plans",
        "tokenizer",
        "cache_dir",
    ],
)
def test_a_login_in_a_config_is_refused(headrace, leaks, address, path):
    value: object = [address] if path.rpartition(".")[2] in ("replicas", "paths") else address
    component = {"cache": "cache", "source": {"paths": ["a.jsonl"]}}
    config: dict[str, Any] = {"components": {"a": component}}
    *parents, last = path.split(".")
    inner = config
    for parent in parents:
        inner = inner.setdefault(parent, {})
    inner[last] = value
    Path("typed-run.yaml").write_text(json.dumps(config))
    for command in ("config check", "config show"):
        done = headrace(*command.split(), "typed-run.yaml")
        assert done.code == 2
        assert leaks(done) == []
    with pytest.raises(ConfigError) as caught:
        load_config("typed-run.yaml")
    assert path in (caught.value.field or "")
    assert CANARY not in str(caught.value)


@pytest.mark.parametrize("address", ADDRESSES)
@pytest.mark.parametrize(
    "use",
    [
        open_cache,
        lambda address: open_replicas([address, address]),
        lambda address: build_cache(SourceConfig([address]), TokenizerConfig("bytes"), "out"),
        lambda address: build_cache(SourceConfig(["a.txt"]), TokenizerConfig("bytes"), address),
        lambda address: build_cache(SourceConfig(["a.txt"]), TokenizerConfig(address), "out"),
        RunLock.load,
        load_config,
        lambda address: LmDataConfig({"a": ComponentConfig(address)}, seq_len=8, batch_size=2),
    ],
)
def test_a_login_in_an_address_is_refused_in_python(tmp_path, monkeypatch, address, use):
    monkeypatch.chdir(tmp_path)
    Path("a.txt").write_text("text")
    with pytest.raises(HeadraceError, match="has a login in its address") as caught:
        use(address)
    assert CANARY not in str(caught.value)


@pytest.mark.parametrize(
    ("variable", "address"),
    [
        ("AWS_ENDPOINT_URL", "s3://bucket/x"),
        ("STORAGE_EMULATOR_HOST", "gs://bucket/x"),
        ("HF_ENDPOINT", "hf://owner/name"),
        ("HTTP_PROXY", "http://127.0.0.1:9/x"),
        ("NETRC", "http://127.0.0.1:9/x"),
        ("AZURE_STORAGE_ACCOUNT_KEY", "az://bucket/x"),
        ("AZURE_STORAGE_SAS_TOKEN", "az://bucket/x"),
    ],
)
def test_what_the_environment_has_is_not_shown(
    headrace, leaks, monkeypatch, variable, address, few_attempts
):
    value = f"http://me:{CANARY}@127.0.0.1:9"
    if variable == "NETRC":
        Path("typed-netrc").write_text(f"machine 127.0.0.1 login me password {CANARY}\n{CANARY}\n")
        value = "typed-netrc"
    if variable.startswith("AZURE"):
        monkeypatch.setenv("AZURE_STORAGE_USE_EMULATOR", "true")
        monkeypatch.setenv("AZURITE_BLOB_STORAGE_URL", "http://127.0.0.1:9")
        value = f"sv=1&sig={CANARY}" if "SAS" in variable else LOGIN
    monkeypatch.setenv(variable, value)
    for line in (
        f"cache inspect {address}",
        f"build {address} --output out --tokenizer bytes",
        f"build . --output out --tokenizer {address}",
    ):
        done = headrace(*line.split())
        assert done.code == 2
        assert leaks(done) == []


@pytest.mark.parametrize("query", QUERIES)
def test_a_signature_can_be_used_and_is_not_shown(headrace, stored, leaks, query):
    source = f"{stored}/a.jsonl?{query}"
    build = f"build {source} --tokenizer bytes --output"
    config = {
        "components": {
            "a": {"cache": "out", "source": {"paths": [source]}},
            "b": {"cache": "out"},
        },
        "tokenizer": {"path": "bytes"},
        "seq_len": 16,
        "batch_size": 2,
    }
    Path("typed-run.yaml").write_text(json.dumps(config))
    for line in (
        f"{build} out",
        f"{build} shuffled --shuffle 1 --json",
        "cache inspect out",
        "cache inspect out --json",
        "cache verify out --json",
        "config check typed-run.yaml num_steps=4",
        "config show typed-run.yaml",
        "config show typed-run.yaml --json",
        "run report typed-run.yaml num_steps=4 --output page.html",
        "run cat typed-run.yaml --step 0 --row 0 --json",
    ):
        done = headrace(*line.split())
        assert done.code == 0, (line, done)
        assert leaks(done) == []
    for line in (
        f"cache inspect {stored}/cache?{query}",
        f"cache verify {stored}/cache?{query}",
        f"cache diff {stored}/cache?{query} out",
        f"{build} {stored}/x?{query}",
        f"build {source} --output out --append --json",
        f"build {source} --tokenizer {source} --output x",
        f"run report {stored}/cache?{query}",
        f"config check typed-run.yaml components.b.cache={stored}/cache?{query}",
    ):
        done = headrace(*line.split())
        assert done.code == 2, (line, done)
        assert leaks(done) == []


def test_commands_on_a_cache_of_a_signed_source_do_not_show_it(headrace, stored, leaks):
    source = f"{stored}/a.jsonl?{QUERIES[0]}"
    components = {name: {"cache": "out", "source": {"paths": [source]}} for name in "ab"}
    config = {"components": components, "seq_len": 16, "batch_size": 2, "num_steps": 160}
    Path("typed-run.yaml").write_text(json.dumps(config))
    for line in (
        f"build {source} --tokenizer bytes --output out",
        "config simulate typed-run.yaml num_steps=4 --json",
        "config sweep typed-run.yaml --arms 12 --steps 8 --output sweep",
        "run tree typed-run.yaml",
        "run where typed-run.yaml --step 1",
        "cache pack typed-run.yaml components.a.packing={}",
        "cache consolidate out one",
        "cache reshuffle out shuffled",
        "cache convert out levanter",
        "cache remove out 3",
        "cache verify out --repair",
    ):
        done = headrace(*line.split())
        assert done.code == 0, (line, done)
        assert leaks(done) == []


def test_a_login_of_netrc_is_used_and_not_shown(headrace, stored, tmp_path, leaks):
    Path(os.environ["NETRC"]).write_text(f"machine 127.0.0.1\n  login me\n  password {CANARY}\n")
    config = {
        "components": {"a": {"cache": f"{stored}/cache", "replicas": [f"{stored}/copy"]}},
        "seq_len": 16,
        "batch_size": 2,
    }
    Path("typed-run.yaml").write_text(json.dumps(config))
    of_run = load_config("typed-run.yaml")
    with of_run.loader(jax.make_mesh((1,), ("data",), devices=jax.devices()[:1])) as loader:
        open_run("run", loader)
        with RunLog(loader, "run", config=of_run) as log:
            log(0)
        assert np.asarray(loader.batch_at(0).tokens).any()
    for line in (
        f"cache inspect {stored}/cache",
        f"cache verify {stored}/cache --deep",
        f"cache reshuffle {stored}/cache shuffled",
        f"cache consolidate {stored}/cache one",
        f"cache diff {stored}/cache {stored}/copy",
        f"build {stored}/a.jsonl --output built --tokenizer bytes",
        "config check typed-run.yaml num_steps=4",
        "config simulate typed-run.yaml num_steps=4",
        "run cat typed-run.yaml --step 1",
        "run where typed-run.yaml --step 1",
        "run report run",
    ):
        done = headrace(*line.split())
        assert done.code == 0, (line, done)
        assert leaks(done) == []


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("http://me:p@ss@host/a@b", "http://***@b"),
        ("https://token@host/x?a=1&page=2", "https://***@host/x?a=***&page=2"),
        ("https://host/x?secret, then", "https://host/x?***, then"),
        ("s3://id:a/b@bucket/x", "s3://***@bucket/x"),
        (
            "s3://arn:aws:s3:eu:1:accesspoint/name/a@2x.png",
            "s3://arn:aws:s3:eu:1:accesspoint/name/a@2x.png",
        ),
        ("http://[::1]:80/a@b", "http://[::1]:80/a@b"),
        ("http://host:8080/a@b", "http://host:8080/a@b"),
        ("hf://gpt2@main", "hf://gpt2@main"),
        ("hf://a/b?name=x&split=train", "hf://a/b?name=x&split=train"),
        ("no URL: me:secret@host", "no URL: me:secret@host"),
        ('["http://host","me@example.org"]', '["http://host","me@example.org"]'),
    ],
)
def test_what_grants_access_is_masked(text, shown):
    assert redact(text) == shown
