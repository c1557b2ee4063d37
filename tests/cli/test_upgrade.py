"""``headrace upgrade``: writes ledger.bin beside earlier caches, as typed."""

import json
import os

from typer.testing import CliRunner

from headrace.cli.application import application
from headrace.store.cache import TokenCache
from headrace.testing import tiny_cache


def run(*arguments):
    return CliRunner().invoke(application(), arguments)


def test_upgrade_says_what_it_did(tmp_path):
    paths = [tiny_cache(tmp_path / name, parts=3).path for name in "ab"]
    os.remove(f"{paths[0]}/ledger.bin")
    done = run("upgrade", *paths)
    assert done.exit_code == 0
    assert done.output.splitlines() == [
        f"{paths[0]}: ledger.bin written.",
        f"{paths[1]}: ledger.bin already there, and sound.",
    ]
    assert TokenCache.open(paths[0]).ledger.format_version == 2
    assert json.loads(run("upgrade", paths[0], "--json").output) == {
        "path": paths[0],
        "written": False,
    }
