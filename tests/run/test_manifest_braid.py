"""Runs keep the version of the braid that they began with; new ones get the latest."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from headrace.config.component import ComponentConfig
from headrace.config.lm_data import LmDataConfig
from headrace.errors import PlanMismatchError
from headrace.order.shuffle_config import BraidShuffleConfig
from headrace.run.manifest import RunManifest, began_earlier, open_run
from headrace.testing import tiny_cache


@pytest.fixture(scope="module")
def config() -> LmDataConfig:
    paths = {name: tiny_cache(documents=300, seed=seed).path for seed, name in enumerate("ab")}
    components = {name: ComponentConfig(path) for name, path in paths.items()}
    components["b"] = dataclasses.replace(components["b"], shuffle=BraidShuffleConfig(io_block_size=4))
    return LmDataConfig(components, seq_len=16, batch_size=8)


def test_a_silent_config_starts_with_version_2(config, tmp_path):
    loader = config.loader()
    manifest = open_run(str(tmp_path), loader)
    assert manifest.fingerprint == RunManifest.of(config.of_braid_version(2).loader()).fingerprint
    assert manifest.fingerprint != RunManifest.of(config.of_braid_version(1).loader()).fingerprint
    assert not began_earlier(str(tmp_path))


def test_a_silent_config_goes_on_with_version_1_where_the_run_began_with_it(config, tmp_path):
    first = config.of_braid_version(1).loader()
    manifest = open_run(str(tmp_path), first)
    assert "version" not in str(manifest.resolved["dataset"])  # as manifests were before there was a second
    assert began_earlier(str(tmp_path))
    loader = config.loader()
    before = np.asarray(config.loader().batch_at(3).tokens)
    assert open_run(str(tmp_path), loader, 3).fingerprint == manifest.fingerprint
    batch = np.asarray(loader.batch_at(3).tokens)
    assert np.array_equal(batch, np.asarray(first.batch_at(3).tokens))
    assert not np.array_equal(batch, before)
    with loader.iter_from_step(3) as batches:
        assert np.array_equal(np.asarray(next(batches).tokens), batch)


def test_a_version_that_is_named_is_not_changed(config, tmp_path):
    open_run(str(tmp_path), config.of_braid_version(1).loader())
    with pytest.raises(PlanMismatchError, match="version"):
        open_run(str(tmp_path), config.of_braid_version(2).loader())


def test_functions_and_phases_go_along(config, tmp_path):
    phased = dataclasses.replace(config, seq_len={0: 16, 4: 32})
    manifest = open_run(str(tmp_path), phased.of_braid_version(1).loader(fn=np.asarray))
    loader = phased.loader(fn=np.asarray)
    assert open_run(str(tmp_path), loader, 2).fingerprint == manifest.fingerprint
    assert loader.functions == (np.asarray,)


def test_versions_of_a_config(config):
    assert config.of_braid_version(1).of_braid_version(2) == config.of_braid_version(1)
    full = dataclasses.replace(config, shuffle=True, components={"a": config.components["a"]})
    assert full.of_braid_version(1) is full
