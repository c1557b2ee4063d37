"""The examples for other frameworks learn, and go on after a stop as if nothing had been."""

import importlib.util
import json
import string
from pathlib import Path

import jax
import numpy as np
import pytest

from headrace.config import load_config
from headrace.errors import PlanMismatchError
from headrace.ingest import SourceConfig, TokenizerConfig, build_cache

NEEDS_LEVANTER = "Levanter needs Python 3.12 or newer: .ci/run newest runs this there"


EXAMPLES = Path(__file__).parent.parent.parent / "examples"
OF_OTHERS = ("DeprecationWarning", "FutureWarning", "UserWarning")
pytestmark = [pytest.mark.filterwarnings(f"ignore::{w}") for w in OF_OTHERS]


def example(name):
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module", autouse=True)
def compiled_once(tmp_path_factory):
    """Runs of one example compile the same step."""
    settings = {
        "jax_compilation_cache_dir": str(tmp_path_factory.mktemp("compiled")),
        "jax_persistent_cache_min_compile_time_secs": 0.2,
    }
    before = {name: getattr(jax.config, name) for name in settings}
    for name, value in settings.items():
        jax.config.update(name, value)
    yield
    for name, value in before.items():
        jax.config.update(name, value)


@pytest.fixture(scope="module")
def caches(tmp_path_factory):
    folder = tmp_path_factory.mktemp("caches")
    rng = np.random.default_rng(0)
    for name in "ab":
        texts = [
            "".join(rng.choice(list(string.ascii_letters), rng.integers(3, 40))) for _ in range(300)
        ]
        (folder / f"{name}.jsonl").write_text(
            "".join(json.dumps({"text": text}) + "\n" for text in texts)
        )
        source = SourceConfig((str(folder / f"{name}.jsonl"),))
        build_cache(source, TokenizerConfig("bytes"), folder / name, progress=False)
    return folder


@pytest.fixture
def config(caches):
    def make(*settings):
        plan = [
            f"components.{name}={{cache: {caches / name}, weight: {w}}}"
            for name, w in zip("ab", (2, 1))  # noqa: B905
        ]
        return load_config(
            overrides=["seq_len=16", "batch_size=8", "split_documents=true", *plan, *settings]
        )

    return make


def test_the_caches_hold_an_id_that_is_no_byte(config):
    """Else these tests would not see a vocabulary that has no room for it."""
    with config().loader() as loader:
        batch = loader.batch_at(0)
    assert batch.tokens.max() == 256 < config().vocab_size


@pytest.mark.parametrize("name", ["plain_jax", "flax_nnx"])
@pytest.mark.slow
def test_it_learns_and_resumes(name, config, tmp_path):
    module = example(name)
    whole, parts = ((tmp_path / p) for p in ("whole", "parts"))
    for folder in (whole, parts):
        folder.mkdir()
    losses = module.run(config(), whole, 8)
    assert len(losses) == 8
    assert np.isfinite(losses).all()
    assert losses[-1] < losses[0]
    assert module.run(config(), parts, 5) + module.run(config(), parts, 8) == losses
    assert module.run(config(), parts, 8) == []
    with pytest.raises(PlanMismatchError):
        module.run(config("seed=1"), parts, 9)


@pytest.mark.slow
def test_levanters_trainer_resumes(config, tmp_path):
    pytest.importorskip("levanter", reason=NEEDS_LEVANTER)
    module = example("levanter_trainer")
    losses = module.run(config(), tmp_path / "whole", 4)
    assert np.isfinite(losses).all()
    assert len(set(losses)) == 4
    assert module.run(config(), tmp_path / "parts", 2) == losses[:2]
    with pytest.raises(PlanMismatchError, match="seed"):
        module.run(config("seed=1"), tmp_path / "parts", 4)
    assert module.run(config(), tmp_path / "parts", 4) == losses[2:]


def test_losses_do_not_depend_on_the_mesh(config):
    module = example("maxtext_mesh")
    losses = module.run(config(), 6)
    assert losses[-1] < losses[0]
    for sizes in ((1, 1, 1, 1), (1, 2, 2, 2)):
        axes = dict(zip(module.AXES, sizes, strict=True))
        assert np.allclose(module.run(config(), 6, axes), losses, rtol=1e-4)


def test_a_grain_pipeline_resumes(config):
    pytest.importorskip("grain", reason="Grain has no wheel for this Python")
    module = example("grain_pipeline")
    whole, state = module.run(config(), 6)
    first, middle = module.run(config(), 4)
    rest, end = module.run(config(), 2, middle)
    assert end == state
    for one, other in zip(whole, [*first, *rest], strict=True):
        assert all(np.array_equal(one[k], other[k]) for k in one)
    assert whole[0]["trained"].shape == (8,)
