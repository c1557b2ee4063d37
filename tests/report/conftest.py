"""A run of a few steps, planned and measured, for tests of its report."""

import dataclasses
from pathlib import Path

import pytest

from headrace.config import ComponentConfig, LmDataConfig
from headrace.feed import RunLog
from headrace.pack import PackingConfig
from headrace.run import open_run
from headrace.testing import tiny_cache

NASTY = "</script><img src=x onerror=alert(1)>&<b>"
"""A name of a source that would be markup if anything forgot to escape it."""


@pytest.fixture(scope="session")
def config(tmp_path_factory: pytest.TempPathFactory) -> LmDataConfig:
    """Three sources, one of them packed, one with a name that bites."""
    root = tmp_path_factory.mktemp("report-caches")
    caches = {
        name: tiny_cache(root / name, documents=300, seed=k).path
        for k, name in enumerate(("web", "code", "chat"))
    }
    return LmDataConfig(
        components={
            "web": ComponentConfig(caches["web"], weight={"linear": {0: 3, 40: 1}}),
            NASTY: ComponentConfig(caches["code"], weight={"linear": {0: 1, 40: 3}}),
            "chat": ComponentConfig(
                caches["chat"], weight={"step": {0: 0, 20: 1}}, packing=PackingConfig()
            ),
        },
        seq_len=16,
        batch_size=16,
        num_steps=60,
    )


@pytest.fixture(scope="session")
def run_folder(tmp_path_factory: pytest.TempPathFactory, config: LmDataConfig) -> Path:
    """The folder of a run of this config that was stopped after 24 steps and resumed at 20; 50 are
    done.
    """
    folder = tmp_path_factory.mktemp("report-run") / "run-7"
    for first, last in ((0, 24), (20, 50)):
        with config.loader() as loader, loader.iter_from_step(first) as batches:
            open_run(str(folder), loader, first)
            with RunLog(loader, folder, config=config, every=4) as log:
                for step, _ in zip(range(first, last), batches, strict=False):
                    log(step, train={"loss": 1 / (step + 1)})
    return folder


@pytest.fixture
def config_file(tmp_path: Path, config: LmDataConfig) -> Path:
    """The config in a file."""
    path = tmp_path / "run.yaml"
    path.write_text(config.to_yaml())
    return path


@pytest.fixture
def planned_file(tmp_path: Path, config: LmDataConfig) -> Path:
    """A config whose caches do not exist yet."""
    parts = {
        n: ComponentConfig(f"{tmp_path}/none/{n}", weight=w, expected_tokens=2e8)
        for n, w in (("a", 3), ("b", 1))
    }
    path = tmp_path / "plan.yaml"
    path.write_text(dataclasses.replace(config, components=parts, num_steps=None).to_yaml())
    return path
