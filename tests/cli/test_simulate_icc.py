"""``headrace cache inspect --icc`` as a user types it."""

import json

import numpy as np
import pytest

from headrace.testing import tiny_cache


@pytest.fixture
def cache(tmp_path):
    return tiny_cache(tmp_path / "cache", documents=2000)


def typed_for(cache):
    """What asks how similar the rows of a block are."""
    sizes = ("--seq-len", "8", "--batch-size", "16", "--block", "16")
    return ("cache", "inspect", "--icc", cache.path, *sizes)


def test_table_and_json(headrace, cache):
    arguments = typed_for(cache)
    said = headrace(*arguments)
    assert said.code == 0
    assert "between blocks" in said.out
    assert "can be read in stored order" in said.out
    found = json.loads(headrace(*arguments, "--json").out)
    assert found["needs_shuffling"] is False
    assert next(iter(found["noise"])) == "none"


def test_losses_of_a_model(headrace, cache, tmp_path):
    rows = cache.num_tokens // 8
    np.save(tmp_path / "losses.npy", np.repeat(np.arange(rows // 16 + 1), 16)[:rows] * 1.0)
    arguments = (*typed_for(cache), "--losses")
    assert "needs shuffling" in headrace(*arguments, str(tmp_path / "losses.npy")).out
    (tmp_path / "text.npy").write_text("no array")
    refused = headrace(*arguments, str(tmp_path / "text.npy"))
    assert refused.code == 2
    assert "numpy.save" in refused.err


def test_a_cache_that_is_too_small_is_refused(headrace, cache):
    refused = headrace("cache", "inspect", "--icc", cache.path, "--seq-len", "4096")
    assert refused.code == 2
    assert (
        "block = 1: must be at least 2 rows, and 8 blocks of the 13 rows that there are."
        in refused.err
    )


def test_what_is_saved_or_given_is_forecast_checked_and_reported(headrace, cache, tmp_path):
    rows = cache.num_tokens // 8
    np.save(
        tmp_path / "losses.npy",
        np.repeat(np.random.default_rng(0).normal(size=rows // 16 + 1), 16)[:rows],
    )
    config = tmp_path / "run.yaml"
    config.write_text(
        f"components: {{code: {{cache: {cache.path}}}}}\nseq_len: 8\nbatch_size: 16\nnum_steps:"
        " 400\nshuffle: 512\n"
    )
    assert (
        f"headrace cache inspect {cache.path} --icc --seq-len 8 --batch-size 16 --save"
        in headrace("config", "simulate", str(config)).out
    )
    assert "excess loss" not in headrace("config", "check", str(config)).out
    assert json.loads(headrace("config", "simulate", str(config), "--json").out)["noise"] == {}

    given = headrace("config", "simulate", str(config), "--icc", "code=0.5")
    assert "code: 50% between blocks" in given.out
    assert headrace("config", "simulate", str(config), "--icc", "code=2").code == 2
    assert "--icc" in headrace("config", "simulate", str(config), "--icc", "code").err
    assert "did you mean" in headrace("config", "check", str(config), "--icc", "cod=.5").err.lower()

    arguments = (
        "--seq-len",
        "8",
        "--batch-size",
        "16",
        "--block",
        "16",
        "--losses",
        str(tmp_path / "losses.npy"),
    )
    saved = headrace("cache", "inspect", "--icc", cache.path, *arguments, "--save")
    assert "icc.json" in saved.err
    assert "needs shuffling" in saved.out
    forecast = json.loads(headrace("config", "simulate", str(config), "--json").out)["noise"][
        "code"
    ]
    assert forecast["icc"] > 0.9
    assert forecast["excess"] > 1.2
    checked = headrace("config", "check", str(config)).out
    assert f"expect {forecast['excess'] - 1:+.0%} excess loss" in checked
    assert f"headrace cache reshuffle {cache.path}" in checked
    assert headrace("cache", "verify", cache.path, "--deep").code == 0
    plan = json.loads(headrace("run", "report", str(config), "--json").out)["plan"]
    assert plan["noise"]["code"] == forecast
    full = json.loads(headrace("config", "simulate", str(config), "shuffle=true", "--json").out)[
        "noise"
    ]["code"]
    assert abs(full["excess"] - 1) < 0.1
