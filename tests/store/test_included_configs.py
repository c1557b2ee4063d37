"""A config in a bucket includes files of the bucket, by paths relative to itself."""

import pytest

from headrace import load_config
from headrace.errors import ConfigError
from headrace.store import files


def test_paths_are_relative_in_a_bucket_too(remote):
    runs = files.join(remote.root, "runs #1")
    files.write_atomic(files.join(remote.root, "shared", "a.yaml"), b"{a: caches/a}")
    files.write_atomic(files.join(runs, "base.yaml"), b"components: !include ../shared/a.yaml")
    files.write_atomic(
        files.join(runs, "run.yaml"),
        b"<<: !include ./base.yaml\nseq_len: !include x/../length.yaml",
    )
    files.write_atomic(files.join(runs, "length.yaml"), b"64")
    config = load_config(files.join(runs, "run.yaml"))
    assert (config.seq_len, config.components["a"].cache) == (64, "caches/a")


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("none.yaml", "does not exist"),
        ("../" * 30 + "x.yaml", "leads out of the bucket"),
        ("{folder}/run.yaml", "in a circle"),
        ("sub/../run.yaml", "in a circle"),
    ],
)
def test_what_cannot_be_included_is_named(remote, name, problem):
    name = name.format(folder=remote.root)
    run = files.join(remote.root, "run.yaml")
    files.write_atomic(run, f"seed: 1\ncomponents: !include {name}".encode())
    with pytest.raises(ConfigError, match=problem) as caught:
        load_config(run)
    assert caught.value.field == "!include"
    assert f"{run}, line 2" in str(caught.value)


@pytest.mark.parametrize("text", ["", "# nothing yet\n"])
def test_an_included_file_that_holds_nothing_is_named(tmp_path, text):
    inner = tmp_path / "inner.yaml"
    outer = tmp_path / "run.yaml"
    inner.write_text(text)
    outer.write_text("seed: 3\ntokenizer: !include inner.yaml\n")
    with pytest.raises(ConfigError) as caught:
        load_config(str(outer))
    assert (caught.value.field, caught.value.value) == ("!include", str(inner))
    assert f"{outer}, line 2" in (caught.value.cure or "")
    inner.write_text("path: bytes\n")
    assert load_config(str(outer)).tokenizer is not None
    outer.write_text("seed: 3\n")
    assert load_config(str(outer)).seed == 3
