"""``headrace config simulate`` as a user types it."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

PLAN = """
seq_len: 4096
batch_size: 64
components:
  web: {cache: none, weight: 7}
  code: {cache: none, weight: {linear: {0: 1, 1000: 3}}}
"""


@pytest.fixture
def run(headrace: Callable[..., Any]) -> Callable[..., Any]:
    """``run("plan.yaml")``: how ``headrace config simulate plan.yaml`` ended."""
    return partial(headrace, "config", "simulate")


def sizes_of(web: float, code: float) -> list[str]:
    return [f"components.web.expected_tokens={web}", f"components.code.expected_tokens={code}"]


@pytest.fixture
def plan(tmp_path: Path) -> str:
    path = tmp_path / "plan.yaml"
    path.write_text(PLAN)
    return str(path)


def test_json_and_table(run, plan):
    sizes = [*sizes_of(1e12, 2e11), "--max-rows", "32768"]
    figures = json.loads(run(plan, "--json", "--hosts", "1,8", *sizes).out)
    assert [h["hosts"] for h in figures["by_hosts"]] == [1, 8]
    assert 1 <= figures["by_hosts"][1]["reads_per_block"] < 1.5
    table = run(plan, "batch_size=32", "--hosts", "2", *sizes)
    assert table.code == 0
    assert "batches of 32 rows" in table.out
    assert "a sample" in table.out


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["components.web.expected_tokens=inf"], "is not a number of tokens. Write e.g. 2.5e11"),
        (["--hosts", "one"], "E.g. 1,8,64"),
        (["prefetch_bytes=0"], "prefetch_bytes = 0: must be a positive number of bytes"),
        (["num_steps=-4"], "num_steps = -4: must be"),
        (
            [f"num_steps={1 << 41}", *sizes_of(1e9, 1e9)],
            "num_steps = 2199023255552: must be a whole number from 1 to 2**40",
        ),
        (["--first-step", "-3"], "--first-step = '-3': must be at least 0"),
        (["--max-rows", "0"], "--max-rows = '0': must be at least 1"),
        (
            ["--price-per-gib", "nan", *sizes_of(1e9, 1e9)],
            "per_gib = nan: is no price",
        ),
        (["batchsize=3"], "Did you mean 'batch_size'"),
        ([], "To plan before it is built: components.web.expected_tokens"),
    ],
)
def test_mistakes_get_one_line(run, plan, args, said):
    done = run(plan, *args)
    assert done.code == 2
    assert said in done.err
    assert "Traceback" not in done.err


def test_csv_has_the_figures_of_json(run, plan, tmp_path):
    """A line for each number of hosts; one host has no exchange."""
    file = tmp_path / "forecast.csv"
    sizes = [*sizes_of(1e9, 2e8), "--max-rows", "4096"]
    asked = run(plan, "--hosts", "1,8,64", "--csv", str(file), "--json", *sizes)
    by_hosts = json.loads(asked.out)["by_hosts"]
    with file.open(newline="") as opened:
        lines = list(csv.DictReader(opened))
    assert len(lines) == 3
    for line, figures in zip(lines, by_hosts, strict=True):
        exchange = figures.pop("exchange") or {}
        expected = figures | {f"exchange_{name}": value for name, value in exchange.items()}
        written = {name: value for name, value in line.items() if value}
        assert written == {name: str(value) for name, value in expected.items()}


def test_a_csv_that_cannot_be_written_is_refused_at_once(run, plan, tmp_path):
    place = str(tmp_path / "missing" / "forecast.csv")
    refused = run(plan, "--csv", place, *sizes_of(1e12, 2e11))
    assert refused.code == 2
    assert f"--csv = '{place}'" in refused.err.replace("\n", "")
    assert "Name a file in a folder that exists" in refused.err


def test_a_csv_is_kept_if_the_config_is_refused(run, plan, tmp_path):
    file = tmp_path / "forecast.csv"
    file.write_text("of before")
    assert run(plan, "seq_len=-1", "--csv", str(file)).code
    assert file.read_text() == "of before"
    file.unlink()
    assert run(plan, "seq_len=-1", "--csv", str(file)).code
    assert not file.exists()
