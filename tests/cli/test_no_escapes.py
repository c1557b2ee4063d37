"""Names of files and folders, which anybody may have chosen, do not control the terminal."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest

from headrace.errors import ConfigError, printable

NAME = "a\x1b]0;title\x07\x9b2J\r"


def test_names_with_controls_are_shown_without_them(headrace, tmp_path, monkeypatch, caplog):
    monkeypatch.chdir(tmp_path)
    caplog.set_level(logging.WARNING, "headrace")
    folder = Path("texts", NAME)
    folder.mkdir(parents=True)
    lines = [json.dumps({"text": "one two " * 50}) for _ in range(20)]
    (folder / f"{NAME}.jsonl").write_text("\n".join(lines))
    cache = f"cache-{NAME}"
    config = {"components": {NAME: {"cache": cache}}, "seq_len": 16, "batch_size": 2}
    Path("run.yaml").write_text(json.dumps(config))
    packed = {NAME: {"cache": cache, "packing": {}}}
    for line in (
        ("build", "texts", "--tokenizer", "bytes", "--output", cache),
        ("build", "texts", "--append", "--output", cache),
        ("build", f"nowhere{NAME}", "--tokenizer", "bytes", "--output", "x"),
        ("cache", "inspect", cache),
        ("cache", "inspect", f"{cache}-nowhere"),
        ("cache", "verify", cache, "--deep"),
        ("cache", "diff", cache, cache),
        ("cache", "pack", "run.yaml", f"components={json.dumps(packed)}"),
        ("cache", "remove", cache, "3"),
        ("cache", "consolidate", cache, f"one-{NAME}"),
        ("cache", "reshuffle", cache, f"shuffled-{NAME}"),
        ("config", "check", "run.yaml", "num_steps=4"),
        ("config", "simulate", "run.yaml", "num_steps=4"),
        ("run", "tree", "run.yaml"),
        ("run", "cat", "run.yaml", "--step", "0", "--row", "0"),
        ("run", "where", "run.yaml", "--step", "1"),
        ("run", "report", "run.yaml", "num_steps=4", "--output", f"{NAME}.html"),
        ("init", "texts", "--output", f"out-{NAME}"),
    ):
        done = headrace(*line)
        said = done.out + done.err + caplog.text
        assert said == printable(said), line
        caplog.clear()


def test_an_error_shows_no_controls_and_keeps_its_value():
    error = ConfigError(f"is wrong in {NAME}", field=NAME, value=NAME)
    assert error.value == NAME
    assert str(error) == printable(str(error))
    with pytest.raises(ConfigError, match="␛"):
        raise error
