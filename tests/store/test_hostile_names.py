"""A bucket full of other people's objects: whatever an output or a source is called, none of them
changes.

Each name is given to every command that writes, on an S3 and on a GCS server and on the local disk.
A command either does what it does under a plain name on the local disk, or refuses the name with a
cure and writes nothing at all.
"""

import hashlib
import json
import os
import sys
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote, unquote

import botocore.session
import numpy as np
import pytest
from botocore.exceptions import BotoCoreError, ClientError

from headrace.cli import main
from headrace.data import TokenSeqDataset
from headrace.feed import DataLoader
from headrace.ingest.listing import escaped
from headrace.run import open_run
from headrace.store import files, open_cache, retry, verify
from headrace.store.lease import _RemoteSlot
from headrace.testing.servers import use_gcs, use_s3

NAMES = [
    "run#1",
    "#1",
    "run#",
    "run?versionId=1",
    "run?generation=7",
    "?",
    "x%20y",
    "x y",
    " x",
    "a+b",
    "%",
    "%2E%2E",
    "a%2Fb",
    "a%00",
    "[v1]",
    "run[12]",
    "[!a]",
    "{a,b}",
    "{1..3}",
    "*",
    "**",
    "r*n",
    "a/../run",
    "..",
    ".",
    "a//b",
    "/a",
    "run/",
    "run//",
    "ü",
    "日本/é",
    "e\u0301",
    "a\nb",
    "a\tb",
    "a\x7fb",
    "a\\b",
    "a'b\"c",
    "a&b=c;d",
    "s3:/x",
    "::x::y",
    "~nobody",
    "-o",
    "$(x)`y`",
    "<a>|^",
    "y" * 200,
    "/".join(["z" * 200] * 6),
]
FEW = ["run#1", "run[12]"]
WORST = ["#1", "x%20y", "{a,b}", "a/../run", "a//b", "日本/é", "a\nb"]


def names(by_default: list[str]) -> list[Any]:
    """All names: some run by default, the worst with `slow`, and the whole matrix, which takes
    long, with `soak`.
    """

    def marks(name: str) -> list[pytest.MarkDecorator]:
        if name in by_default:
            return []
        return [pytest.mark.slow] if name in FEW + WORST else [pytest.mark.soak]

    return [
        pytest.param(name, marks=marks(name), id=f"name{number}")
        for number, name in enumerate(NAMES)
    ]


LINES = [{"text": f"text {k} " * (k % 5), "id": f"d{k}"} for k in range(30)]
MORE = [{"text": f"more {k} ", "id": f"m{k}"} for k in range(8)]
BUILD = ["-t", "bytes", "--engine", "inline", "--part-bytes", "400", "--chunk-tokens", "64"]


class Bucket(NamedTuple):
    """A store, with a client of its own that knows nothing of headrace. ``put`` writes a key;
    ``everything`` lists all keys, each with a digest of its bytes and, on GCS, the number of the
    write that made it.
    """

    url: str
    put: Callable[[str, bytes], Any]
    everything: Callable[[], dict[str, str]]


def on_s3(server: str, name: str) -> Bucket:
    client = botocore.session.Session().create_client(
        "s3",
        endpoint_url=server,
        region_name="us-east-1",
        aws_access_key_id="key",
        aws_secret_access_key="secret",
    )

    def everything() -> dict[str, str]:
        pages = client.get_paginator("list_objects_v2").paginate(Bucket=name)
        return {found["Key"]: found["ETag"] for page in pages for found in page.get("Contents", [])}

    def put(key: str, content: bytes) -> None:
        client.put_object(Bucket=name, Key=key, Body=content)

    return Bucket(f"s3://{name}", put, everything)


def on_gcs(server: str, name: str) -> Bucket:
    def ask(path: str, body: bytes | None = None) -> bytes:
        with urllib.request.urlopen(f"{server}{path}", body) as answer:
            return answer.read()

    def everything() -> dict[str, str]:
        listed = json.loads(ask(f"/storage/v1/b/{name}/o?maxResults=5000")).get("items", [])
        return {found["name"]: f"{found['md5Hash']} {found['generation']}" for found in listed}

    def put(key: str, content: bytes) -> None:
        ask(f"/upload/storage/v1/b/{name}/o?uploadType=media&name={quote(key, safe='')}", content)

    return Bucket(f"gs://{name}", put, everything)


def on_disk(folder: Path) -> Bucket:
    def everything() -> dict[str, str]:
        found = (file for file in folder.rglob("*") if file.is_file())
        return {
            str(file.relative_to(folder)): hashlib.md5(file.read_bytes()).hexdigest()
            for file in found
        }

    def put(key: str, content: bytes) -> None:
        file = folder / key
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)

    return Bucket(str(folder), put, everything)


@pytest.fixture(params=["s3", "gcs", "disk"])
def bucket(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch) -> Iterator[Bucket]:
    """A fresh bucket, and leases that are not waited for: nobody else takes them. Nor is damage
    hoped to pass.
    """
    monkeypatch.setattr(_RemoteSlot, "settle_s", 0.0)
    monkeypatch.setattr(
        retry._Process, "policy", replace(retry.policy(), damaged_attempts=2, first_delay_s=0.01)
    )
    name = f"hostile-{tmp_path.name.lower().replace('_', '-')[-20:]}-{os.getpid()}"
    if request.param == "disk":
        yield on_disk(tmp_path / "disk" / "bucket")
        return
    proxy = request.getfixturevalue("gcs_proxy" if request.param == "gcs" else "s3_proxy")
    if request.param == "gcs":
        request.getfixturevalue("gcs_bucket")
        with use_gcs(proxy.url, name):
            yield on_gcs(proxy.url, name)
        return
    with use_s3(proxy.url, name):
        yield on_s3(proxy.url, name)


def foreign_keys(folder: str, name: str) -> set[str]:
    """Keys that one gets who cuts, decodes, tidies or expands a name, and neighbours of all of
    them.
    """
    spellings = {name, unquote(name), name.replace("+", " "), os.path.normpath(f"/{name}")[1:]}
    spellings |= {text.partition(mark)[0] for text in set(spellings) for mark in "#?*[{% "}
    spellings |= {"run", "run1", "v", "1", "a/b", "x y"}
    below = ["keep", "parts/00000/input_ids/data/c/0"]
    keys = {f"{folder}/{text}{end}" for text in spellings for end in ("x", ".jsonl")}
    keys |= {"/".join([*filter(None, (folder, text)), end]) for text in spellings for end in below}
    keys |= {"keep", "parts/00000/keep", "a.jsonl"}
    plain = {
        "/".join(step for step in key.split("/") if step not in (".", "..", "")) for key in keys
    }
    return {key for key in plain if len(key) < 250 and not set(key) & set("\n\r\x00")}


def fill(bucket: Bucket, keys: set[str], *but: str) -> None:
    """Puts foreign objects beside the outputs, none of them where an output will be."""
    for key in sorted(keys):
        if any(is_at(key, output) for output in but):
            continue
        try:
            bucket.put(key, f"of somebody else: {key}".encode())
        except (IsADirectoryError, NotADirectoryError, FileExistsError):
            continue  # a disk has no file and folder of one name


def is_at(key: str, output: str) -> bool:
    return key == output or key.startswith(output.rstrip("/") + "/")


class Ran(NamedTuple):
    code: int
    out: str
    err: str


@pytest.fixture
def run(monkeypatch, capsys) -> Callable[..., Ran]:
    def run(*arguments: str) -> Ran:
        monkeypatch.setattr(sys, "argv", ["headrace", *arguments])
        with pytest.raises(SystemExit) as left:
            main()
        out, err = capsys.readouterr()
        code = left.value.code
        return Ran(code if isinstance(code, int) else int(code is not None), out, err)

    return run


def outside(stored: Mapping[str, str], *outputs: str) -> dict[str, str]:
    return {
        key: content
        for key, content in stored.items()
        if not any(is_at(key, output) for output in outputs)
    }


def write_lines(path: Path, records: list[dict[str, str]]) -> str:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return str(path)


def tokens_of(path: str) -> list[int]:
    cache = open_cache(path)
    return cache.tokens(0, cache.num_tokens).tolist()


TOPS = ("out", "re", "lev", "back", "con", "plans", "rep", "run")


class Both:
    """Runs each command with outputs of a hostile name there, and with plain ones here.

    Args:
        bucket: Where the outputs of the hostile name are, and foreign objects around them.
        run: Runs a command.
        here: Folder for the plain ones.
        name: The name.
    """

    def __init__(self, bucket: Bucket, run: Callable[..., Ran], here: Path, name: str) -> None:
        self.bucket = bucket
        self.run = run
        self.keys = {top: f"{top}/{name}" for top in TOPS}
        self.there = {top: f"{bucket.url}/{key}" for top, key in self.keys.items()}
        self.here = {top: str(here / "plain" / top) for top in TOPS}
        for top in TOPS:
            fill(bucket, foreign_keys(top, name), *self.keys.values())
        self.before = bucket.everything()
        assert len(self.before) > 50

    def does(self, *words: str, writes: str) -> bool:
        """Whether a command did its work there: then it does so here too. Else it wrote nothing,
        and said a cure.

        Args:
            words: The command; ``@out``, also in JSON, is the location of that name.
            writes: The only one that it may write to.
        """
        stored = self.bucket.everything()
        there = self.run(*(self._located(word, self.there) for word in words))
        now = self.bucket.everything()
        self.check_others()
        assert outside(now, self.keys[writes]) == outside(stored, self.keys[writes])
        assert "Traceback" not in there.err
        if there.code:
            assert now == stored, there.err
            assert there.err.count(". ") >= 1  # a cure follows
            return False
        here = self.run(*(self._located(word, self.here) for word in words))
        assert here.code == 0, here.err
        return True

    def _located(self, word: str, places: Mapping[str, str]) -> str:
        if word.startswith("@"):
            return places[word[1:]]
        for top, place in places.items():
            word = word.replace(json.dumps(f"@{top}"), json.dumps(place))
        return word

    def check_others(self) -> None:
        """Every key and byte outside the outputs is as it was."""
        assert outside(self.bucket.everything(), *self.keys.values()) == self.before

    def check_same(self, top: str) -> None:
        """The two caches of a name are equal, and sound."""
        there = open_cache(self.there[top])
        here = open_cache(self.here[top])
        assert there.num_documents == here.num_documents
        assert np.array_equal(there.tokens(0, there.num_tokens), here.tokens(0, here.num_tokens))
        assert there.lengths().tolist() == here.lengths().tolist()
        assert verify(self.there[top], deep=True).damages == []


@pytest.mark.parametrize("name", names(FEW))
def test_as_an_output_that_is_built_and_changed(bucket, run, tmp_path, name):
    first = write_lines(tmp_path / "first.jsonl", LINES)
    second = write_lines(tmp_path / "second.jsonl", MORE)
    gone = tmp_path / "gone.txt"
    gone.write_text("3\n7\n")
    both = Both(bucket, run, tmp_path, name)
    build = ["build", first, "-o", "@out", *BUILD]
    if not both.does(*build, writes="out"):
        assert "://" in bucket.url or {".", "..", ""} & set(name.split("/")) or "\\" in name
        assert not both.does(*build, "--restart", writes="out")
        assert not both.does(*build, "--shuffle", "3", writes="out")
        return
    both.check_same("out")
    assert both.does(*build, "--restart", writes="out")
    damage(bucket, both.keys["out"])
    assert both.does("cache", "verify", "@out", "--repair", writes="out")
    both.check_same("out")
    damage(bucket, both.keys["out"])
    assert both.does(*build, "--repair", writes="out")
    append = ["build", second, "-o", "@out", "--append", "--engine", "inline"]
    assert both.does(*append, writes="out")
    both.check_same("out")
    assert both.does("cache", "remove", "@out", "--file", str(gone), writes="out")


@pytest.mark.parametrize("name", names([]))
def test_as_an_output_of_copies_and_of_files_beside_a_cache(bucket, run, tmp_path, name):
    first = write_lines(tmp_path / "first.jsonl", LINES)
    gone = tmp_path / "gone.txt"
    gone.write_text("3\n7\n")
    if "://" not in bucket.url and os.path.normpath(name) != name:
        pytest.skip("on a disk, this is the name of a foreign folder")
    both = Both(bucket, run, tmp_path, name)
    config = tmp_path / "run.yaml"
    config.write_text("{seq_len: 64, components: {a: cache}}")

    def pack(cache: str, **fields: object) -> list[str]:
        component = json.dumps({"a": {"cache": cache, **fields}})
        return ["cache", "pack", str(config), f"components={component}"]

    assert run("build", first, "-o", str(tmp_path / "cache"), *BUILD).code == 0
    cache = str(tmp_path / "cache")
    shuffle = ["cache", "reshuffle", cache, "@out", "--engine", "inline"]
    if not both.does(*shuffle, writes="out"):
        assert not both.does(*shuffle, "--restart", writes="out")
        assert not both.does("cache", "consolidate", cache, "@con", writes="con")
        assert not both.does(
            "cache", "convert", cache, "@lev", "--layout", "levanter", writes="lev"
        )
        both.does(*pack(cache, packing={"plans": "@plans"}), writes="plans")
        return
    both.check_same("out")
    assert both.does(*shuffle, "--restart", writes="out")
    assert both.does(*pack("@out", packing={}), writes="out")
    assert both.does(*pack("@out", packing={}, remove=str(gone)), writes="out")
    assert both.does(*pack("@out", packing={"plans": "@plans"}), writes="plans")
    icc = [
        "cache",
        "inspect",
        "--icc",
        "@out",
        "--seq-len",
        "16",
        "--batch-size",
        "4",
        "--block",
        "2",
        "--save",
    ]
    assert both.does(*icc, writes="out")
    both.check_same("out")
    assert both.does("cache", "reshuffle", "@out", "@re", "--engine", "inline", writes="re")
    both.check_same("re")
    assert both.does("cache", "consolidate", "@out", "@con", writes="con")
    both.check_same("con")
    assert both.does("cache", "convert", "@out", "@lev", "--layout", "levanter", writes="lev")
    assert both.does("cache", "convert", "@lev", "@back", "--layout", "headrace", writes="back")
    both.check_same("back")
    config = tmp_path / "run.yaml"
    parts = {"a": {"cache": both.there["out"]}}
    config.write_text(json.dumps({"seq_len": 16, "batch_size": 8, "components": parts}))
    if both.does("run", "report", str(config), "num_steps=3", "-o", "@rep", writes="rep"):
        assert b"<html" in (files.read_bytes(both.there["rep"]) or b"")
    dataset = TokenSeqDataset(open_cache(cache), 16)
    for _ in range(2):
        open_run(both.there["run"], DataLoader(dataset, batch_size=8))
    both.check_others()


def damage(bucket: Bucket, output: str) -> None:
    """Overwrites the tokens of the first part."""
    key = next(
        key
        for key in sorted(bucket.everything())
        if is_at(key, output) and "00000/input_ids/data/c/" in key
    )
    bucket.put(key, b"damaged")


@pytest.mark.parametrize("name", names(FEW))
def test_as_a_source(bucket, run, tmp_path, name):
    """As a file, in a folder, behind a glob; as a tokenizer, as a list of documents. The source may
    be refused.
    """
    file = f"src/{name}.jsonl"
    folder = f"folder/{name}"
    for top in ("src", "folder"):
        fill(bucket, foreign_keys(top, name), file, folder)
    here = write_lines(tmp_path / "a.jsonl", LINES)
    also = write_lines(tmp_path / "b.jsonl", MORE)
    try:
        bucket.put(file, Path(here).read_bytes())
        bucket.put(f"{folder}/a.jsonl", Path(here).read_bytes())
        bucket.put(f"{folder}/b.jsonl", Path(also).read_bytes())
    except (OSError, BotoCoreError, ClientError):  # the server, or the disk, has no such names
        pytest.skip("there can be no such file")
    before = bucket.everything()
    if not {file, f"{folder}/a.jsonl"} <= before.keys():
        pytest.skip("there can be no such file")
    pattern = f"{bucket.url}/folder/{escaped(name)}"
    for number, (sources, meant) in enumerate(
        [
            ([f"{bucket.url}/{file}"], [here]),
            ([f"{bucket.url}/{folder}"], [here, also]),
            ([f"{bucket.url}/{folder}/a.jsonl"], [here]),
            ([f"{bucket.url}/{folder}/*.jsonl"], [here, also]),
            ([f"{pattern}/*.jsonl"], [here, also]),
            ([f"{pattern}/{{a,b}}.jsonl"], [here, also]),
        ]
    ):
        output = tmp_path / f"there-{number}"
        there = run("build", *sources, "-o", str(output), *BUILD)
        assert bucket.everything() == before
        assert "Traceback" not in there.err
        if there.code:
            assert not output.exists(), there.err
            assert refusable(name), there.err
            continue
        assert run("build", *meant, "-o", str(tmp_path / f"here-{number}"), *BUILD).code == 0
        assert tokens_of(str(output)) == tokens_of(str(tmp_path / f"here-{number}")), sources


def refusable(name: str) -> bool:
    """Whether a name has something that no client takes to a bucket, or that makes it a whole
    folder's name.
    """
    steps = name.split("/")
    return (
        bool({".", ".."} & set(steps))
        or "" in steps
        or bool(set(name) & set("\n\r"))
        or "?versionId=" in name
        or len(name) > 800
    )
