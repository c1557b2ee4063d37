"""``headrace config`` as a user types it."""

from __future__ import annotations

import json
import shutil
import socket
import threading
from pathlib import Path

import jsonschema
import pytest
import rich.console
import yaml

from headrace.config import load_config
from headrace.run import open_run
from headrace.testing import tiny_cache
from headrace.testing.caches import grow

PLAN = """
seq_len: 4096
batch_size: 64
num_steps: 1000
components:
  web: {cache: none/web, weight: 7, expected_tokens: 1e12}
  code: {cache: none/code, weight: {linear: {0: 1, 1000: 3}}, expected_tokens: 2.5e11}
"""


@pytest.fixture
def plan(tmp_path):
    path = tmp_path / "plan.yaml"
    path.write_text(PLAN)
    return str(path)


@pytest.fixture
def small(tmp_path):
    for name in "ab":
        tiny_cache(tmp_path / name, documents=300)
    path = tmp_path / "run.yaml"
    path.write_text(f"""
seq_len: 16
batch_size: 8
num_steps: 50
components: {{a: {{cache: {tmp_path}/a}}, b: {{cache: {tmp_path}/b, weight: 2}}}}
""")
    return str(path)


def test_check_prints_what_it_resolves_to(headrace, plan):
    done = headrace("config", "check", plan)
    assert done.code == 0
    assert done.err == ""
    assert (
        "2 components, batches of 64 rows of 4,096 tokens, 1,000 steps, 262,144,000 tokens"
        in done.out
    )
    assert "87.50% > 70.01%" in done.out
    assert "The first batch touches 64 chunks" in done.out
    assert "warning components.{web,code}.cache: planned by declared sizes" in done.out


def test_figures_and_names_are_whole_on_a_screen_of_80_columns(headrace, plan, monkeypatch):
    Path(plan).write_text(PLAN.replace("  code: ", "  papers-of-1990: "))
    monkeypatch.setattr(rich.console.Console, "width", 80)
    lines = headrace("config", "check", plan).out.splitlines()
    (name,) = (line for line in lines if line.startswith("papers-of-1990 "))
    assert "250 B" in name
    assert all(len(line) <= 80 for line in lines[3:12])


def test_check_as_json_holds_the_whole_config(headrace, plan):
    facts = json.loads(headrace("config", "check", plan, "--json", "--hosts", "1,4", "seed=7").out)
    assert facts["ok"]
    assert [f["rule"] for f in facts["findings"]] == ["cache_missing"]
    assert facts["config"]["seed"] == 7
    assert [h["hosts"] for h in facts["plan"]["forecast"]["by_hosts"]] == [1, 4]
    assert [c["name"] for c in facts["plan"]["components"]] == ["web", "code"]


def test_check_says_which_replicas_it_reached(headrace, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    tiny_cache(tmp_path / "a", documents=300)
    shutil.copytree(tmp_path / "a", tmp_path / "copy")
    (tmp_path / "run.yaml").write_text(
        "{seq_len: 16, batch_size: 8, num_steps: 50, components: {a: {cache: a}}}"
    )
    check = ("config", "check", "run.yaml", "--hosts", "1")
    done = headrace(*check, "components.a.replicas=[lost, copy]")
    assert "a has replicas a (read), lost (unreached), copy (reached)" in done.out
    assert (
        "warning components.a.replicas: lost is not a token cache (there is no such folder)"
        in done.out
    )
    facts = json.loads(
        headrace(*check, "--json", "components.a.replicas=[copy]", "components.a.cache=gone").out
    )
    assert [r["state"] for r in facts["plan"]["components"][0]["replicas"]] == ["unreached", "read"]
    assert "replica_unreached" in [f["rule"] for f in facts["findings"]]
    tiny_cache(tmp_path / "other", documents=299)
    refused = headrace(*check, "components.a.replicas=[other]")
    assert refused.code == 2
    assert "replicas = 'other': is no copy of a: their ledgers differ" in refused.err


def test_check_says_which_replicas_lack_what_was_appended(headrace, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    tiny_cache(tmp_path / "a", documents=300)
    shutil.copytree(tmp_path / "a", tmp_path / "copy")
    grow(tmp_path / "a", 20)
    (tmp_path / "run.yaml").write_text(
        "{seq_len: 16, batch_size: 8, num_steps: 50, components: {a: {cache: a, replicas: [copy]}}}"
    )
    facts = json.loads(headrace("config", "check", "run.yaml", "--hosts", "1", "--json").out)
    states = {r["path"]: r["state"] for r in facts["plan"]["components"][0]["replicas"]}
    assert states == {
        "a": "read",
        "copy": "reached",
        "a/appended/1": "read",
        "copy/appended/1": "unreached",
    }
    assert "replica_unreached" in [f["rule"] for f in facts["findings"]]


def test_statuses_of_check(headrace, plan):
    assert headrace("config", "check", plan, "--strict").code == 1  # a warning
    assert headrace("config", "check", plan, "prefetch_bytes=1000000").code == 1  # a problem
    assert headrace("config", "check", plan, "--hosts", "7").code == 1
    assert headrace("config", "check", plan, "batchsize=3").code == 2


def test_sizes_can_be_given(headrace, plan):
    settings = "components.web.expected_tokens=1e10", "num_steps=2000"
    facts = json.loads(headrace("config", "check", plan, "--json", *settings).out)
    assert facts["plan"]["components"][0]["tokens"] == 10**10
    assert facts["plan"]["steps"] == 2000


def test_check_of_a_run_is_of_its_config(headrace, small, tmp_path):
    open_run(str(tmp_path / "run"), load_config(small)).state(0)
    checked = headrace("config", "check", str(tmp_path / "run"), "--hosts", "1", "--json")
    assert json.loads(checked.out)["plan"]["batch_size"] == load_config(small).batch_size
    nothing = headrace("config", "check", str(tmp_path))
    assert "is not the folder of a run: it has no lock.json" in nothing.err


def test_show_loads_to_the_same(headrace, plan, tmp_path):
    done = headrace("config", "show", plan, "components.web.weight=2")
    (tmp_path / "whole.yaml").write_text(done.out)
    assert load_config(str(tmp_path / "whole.yaml")) == load_config(
        plan, ["components.web.weight=2"]
    )
    assert json.loads(headrace("config", "show", plan, "--json").out)["batch_size"] == 64


def test_a_config_is_not_written_over_itself(headrace, plan, tmp_path, monkeypatch):
    before = Path(plan).read_text()
    monkeypatch.chdir(Path(plan).parent)
    refused = headrace("config", "show", plan, "seq_len=8", "-o", f"./{Path(plan).name}")
    assert (refused.code, "--output" in refused.err) == (2, True)
    assert Path(plan).read_text() == before
    theirs = tmp_path / "theirs.yaml"
    theirs.write_text("data: {components: {web: {cache_dir: lev/web}}, tokenizer: gpt2}\n")
    before = theirs.read_text()
    refused = headrace("config", "from-levanter", str(theirs), "-o", str(theirs))
    assert (refused.code, "--output" in refused.err) == (2, True)
    assert theirs.read_text() == before


def test_the_schema_goes_to_a_file(headrace, plan, tmp_path):
    assert headrace("config", "show", "--schema", "-o", str(tmp_path / "s.json")).out == ""
    schema = json.loads((tmp_path / "s.json").read_text())
    jsonschema.validate(json.loads(json.dumps(yaml.safe_load(PLAN))), schema)


def test_from_levanter_prints_a_config_with_its_notes(headrace, tmp_path):
    theirs = tmp_path / "theirs.yaml"
    theirs.write_text(
        "components: {web: {cache_dir: CACHES/web, tags: [t]}}\nnum_validation_sequences: {web: 5}\n".replace(
            "CACHES", "gs://b"
        )
    )
    done = headrace("config", "from-levanter", str(theirs))
    assert done.code == 0
    assert "# differs num_validation_sequences.web: 5 rows" in done.out
    (tmp_path / "ours.yaml").write_text(done.out)
    web = load_config(str(tmp_path / "ours.yaml")).components["web"]
    assert (web.cache, web.validation) == ("gs://b/web/train", 5)
    assert headrace("config", "from-levanter", str(theirs), "--strict").code == 1
    facts = json.loads(headrace("config", "from-levanter", str(theirs), "--json").out)
    assert {note["kind"] for note in facts["notes"]} == {"differs", "missing"}
    written = headrace("config", "from-levanter", str(theirs), "-o", str(tmp_path / "out.yaml"))
    assert written.out == ""
    assert "differs num_validation_sequences.web" in written.err
    assert load_config(str(tmp_path / "out.yaml")) == load_config(str(tmp_path / "ours.yaml"))


@pytest.fixture
def remote(tmp_path, monkeypatch):
    """A config of three remote caches, and the connections that are attempted; each would wait for
    ever.
    """
    never = threading.Event()
    attempts = []

    def attempt(*args, **kwargs):
        attempts.append(args)
        never.wait()
        raise OSError("no network here")

    for name in ("getaddrinfo", "create_connection"):
        monkeypatch.setattr(socket, name, attempt)
    monkeypatch.setattr(socket.socket, "connect", attempt)
    caches = {
        n: {"cache_dir": f"gs://bucket/{n}", "source": {"train_urls": [f"gs://bucket/{n}.jsonl"]}}
        for n in "abc"
    }
    theirs = tmp_path / "theirs.yaml"
    theirs.write_text(yaml.safe_dump({"components": caches}))
    yield str(theirs), attempts
    never.set()


def test_from_levanter_opens_nothing(headrace, remote):
    theirs, attempts = remote
    done = headrace("config", "from-levanter", theirs)
    assert done.code == 0
    assert "gs://bucket/c/train" in done.out
    assert attempts == []


def test_from_levanter_looks_when_asked_and_not_for_ever(headrace, remote, monkeypatch):
    theirs, _ = remote
    monkeypatch.setattr("headrace_levanter.from_levanter.LOOK_S", 0.05)
    plain = headrace("config", "from-levanter", theirs).out
    looked = headrace("config", "from-levanter", theirs, "--look")
    assert looked.code == 0
    assert looked.out == plain  # nothing answered
    assert (
        "look: reading the ledgers of 3 caches for at most 0.05 s: gs://bucket/a/train,"
        in looked.err
    )
    assert "no answer within 0.05 s" in looked.err


def test_from_levanter_goes_by_what_it_sees(headrace, tmp_path):
    for name, documents in (("x", 30), ("y", 10)):
        tiny_cache(tmp_path / name / "train", documents=documents)
    urls = {"source": {"type": "url", "train_urls": ["x.jsonl"]}}
    theirs = tmp_path / "theirs.yaml"
    theirs.write_text(
        yaml.safe_dump({"components": {n: {"cache_dir": str(tmp_path / n), **urls} for n in "xy"}})
    )
    assert "tokenizer" in yaml.safe_load(
        headrace("config", "from-levanter", str(theirs)).out
    )  # there is all to build
    assert "tokenizer" not in yaml.safe_load(
        headrace("config", "from-levanter", str(theirs), "--look").out
    )


def test_simulate_goes_by_expected_tokens_too(headrace, plan):
    done = headrace("config", "simulate", plan, "--hosts", "1", "--max-rows", "1024", "--json")
    assert done.code == 0
    assert json.loads(done.out)["batch_size"] == 64
    levanter = headrace(
        "config",
        "simulate",
        plan,
        "--hosts",
        "1",
        "--max-rows",
        "1024",
        "--json",
        "components.web.format=levanter",
    )
    assert json.loads(levanter.out)["block_bytes"] == 1 << 20
