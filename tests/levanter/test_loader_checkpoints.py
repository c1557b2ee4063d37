"""A loader's state in the checkpoints of others: written with the model, read back, and refused by
another run.
"""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from headrace.config import LmDataConfig
from headrace.config.parsing import decode
from headrace.errors import ConfigError, PlanMismatchError
from headrace.run import LoaderState, RunLock

NEEDS_LEVANTER = "Levanter needs Python 3.12 or newer: .ci/run newest runs this there"


OF_OTHERS = ("DeprecationWarning", "FutureWarning", "UserWarning")
pytestmark = [pytest.mark.filterwarnings(f"ignore::{w}") for w in OF_OTHERS]


@pytest.fixture
def manifest(data_config):
    return RunLock.of(decode(LmDataConfig, data_config).loader())


def model():
    return {"w": jnp.arange(8.0), "b": jnp.ones(())}


def go_on(data_config, state):
    """The batch that a resumed run begins with, and the one that it should be."""
    config = decode(LmDataConfig, data_config)
    loader = config.loader()
    RunLock.of(loader).check(state)
    with loader.iter_from_step(state.step) as batches:
        return np.asarray(next(batches).tokens), np.asarray(config.loader().batch_at(7).tokens)


def check(data_config, state, written):
    assert state == written
    got, wanted = go_on(data_config, state)
    assert np.array_equal(got, wanted)
    with pytest.raises(PlanMismatchError, match=r"state\.fingerprint"):
        go_on({**data_config, "seed": 1}, state)


def test_in_orbax_as_arrays_and_as_json(tmp_path, data_config, manifest):
    import orbax.checkpoint as ocp

    written = manifest.state(7)
    with ocp.CheckpointManager(tmp_path) as manager:
        manager.save(
            7,
            args=ocp.args.Composite(
                train=ocp.args.StandardSave({"model": model(), "data": written.to_pytree()}),
                data=ocp.args.JsonSave(written.to_dict()),
            ),
        )
        manager.wait_until_finished()
        like = jax.tree.map(jnp.asarray, {"model": model(), "data": LoaderState.like()})
        found = manager.restore(
            manager.latest_step(),
            args=ocp.args.Composite(
                train=ocp.args.StandardRestore(like), data=ocp.args.JsonRestore()
            ),
        )
    assert np.array_equal(found["train"]["model"]["w"], model()["w"])
    check(data_config, LoaderState.from_pytree(found["train"]["data"]), written)
    check(data_config, LoaderState.from_dict(found["data"]), written)


def test_in_a_file_of_equinox(tmp_path, data_config, manifest):
    written = manifest.state(7)
    eqx.tree_serialise_leaves(tmp_path / "run.eqx", (model(), written.to_pytree()))
    weights, data = eqx.tree_deserialise_leaves(tmp_path / "run.eqx", (model(), LoaderState.like()))
    assert np.array_equal(weights["w"], model()["w"])
    check(data_config, LoaderState.from_pytree(data), written)


def test_in_levanters_checkpoints(tmp_path, data_config, manifest):
    pytest.importorskip("levanter", reason=NEEDS_LEVANTER)
    from levanter.checkpoint import load_checkpoint, save_checkpoint

    written = manifest.state(7)
    tree = {"model": model(), "data": jax.tree.map(jnp.asarray, written.to_pytree())}
    save_checkpoint(tree, 7, str(tmp_path / "step-7"))
    like = {"model": model(), "data": jax.tree.map(jnp.asarray, LoaderState.like())}
    found = load_checkpoint(like, str(tmp_path / "step-7"))
    assert np.array_equal(found["model"]["w"], model()["w"])
    check(data_config, LoaderState.from_pytree(found["data"]), written)


def test_what_is_no_state_is_refused(manifest):
    tree = manifest.state(3).to_pytree()
    for broken in (
        {"step": tree["step"]},
        {**tree, "step": np.zeros(2)},
        {**tree, "fingerprint": np.zeros(())},
    ):
        with pytest.raises(ConfigError, match="state"):
            LoaderState.from_pytree(broken)
    assert dataclasses.asdict(LoaderState.from_pytree(tree)) == {
        "step": 3,
        "fingerprint": manifest.fingerprint,
    }
