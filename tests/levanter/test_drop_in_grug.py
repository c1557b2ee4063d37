"""A raw-JAX training loop over Levanter's data, in the shape of Marin's Grug template: it asks its
data config for sets, weights and blocks, mixes them itself, reads with Levanter's loader on a mesh
of explicit axes and evaluates by tag. Fed by headrace it runs as it is, but for the one line that
makes the config.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from headrace.feed import DataLoader

NEEDS_LEVANTER = "Levanter needs Python 3.12 or newer: .ci/run newest runs this there"


pytest.importorskip("levanter", reason=NEEDS_LEVANTER)
OF_OTHERS = ("DeprecationWarning", "FutureWarning", "UserWarning", "RuntimeWarning")
pytestmark = [pytest.mark.filterwarnings(f"ignore::{w}") for w in OF_OTHERS]
SEQ_LEN = 16
BATCH = 8
STEPS = 6
ROWS = P(("replica_dcn", "data"))


@pytest.fixture
def config(stock):
    import draccus
    from levanter.data.text.datasets import LmDataConfig

    return draccus.decode(LmDataConfig, {**stock, "mixture_block_size": 4 * BATCH})


@pytest.fixture
def mesh():
    from levanter.grug.sharding import compact_grug_mesh

    return compact_grug_mesh()


def mixed_by_the_loop(data, batch_schedule, key):
    """As the template's earlier versions do it."""
    from haliax import Axis
    from levanter.data.mixture import MixtureDataset, rescale_mixture_schedule_for_batch_schedule

    mix_key, set_key = jax.random.split(key)
    weights = data.train_weights
    if isinstance(weights, list):
        weights = rescale_mixture_schedule_for_batch_schedule(weights, batch_schedule)
    sets = data.train_sets(
        Axis("position", SEQ_LEN),
        key=set_key,
        initial_batch_size=batch_schedule.batch_size_at_step(0),
    )
    return MixtureDataset(
        datasets=sets,
        weights=weights,
        stop_strategy=data.stop_strategy,
        key=mix_key,
        block_size=data.mixture_block_size,
    )


def mixed_by_the_config(data, batch_schedule, key):
    """As its newest version does it."""
    from haliax import Axis

    return data.train_mixture(Axis("position", SEQ_LEN), batch_schedule, key=key)


def loader_over(dataset, batch_schedule, mesh):
    from levanter.data.loader import DataLoader as LevanterLoader

    return LevanterLoader(
        dataset,
        batch_schedule.schedule,
        mesh=mesh,
        axis_resources={"__BATCH__": ROWS[0]},
        batch_axis_name="__BATCH__",
        allow_nondivisible_batch_size=False,
    )


def token_losses(table, batch, sharding):
    """A model that is one table of logits: [row, position] losses, weights and target ids."""
    targets = jnp.roll(batch.tokens, -1, axis=-1)
    logits = table.at[batch.tokens].get(
        out_sharding=NamedSharding(sharding.mesh, P(*sharding.spec, None))
    )
    chosen = jax.nn.log_softmax(logits) * jax.nn.one_hot(targets, table.shape[1])
    return -jnp.sum(chosen, axis=-1), batch.loss_weight, targets


def evaluator_of(data, mesh):
    from haliax import Axis
    from levanter.data.text.examples import grug_lm_example_from_named
    from levanter.eval import TaggedEvaluator
    from levanter.models.lm_model import LmExample

    def loss(table, batch):
        batch = grug_lm_example_from_named(batch) if isinstance(batch, LmExample) else batch
        return token_losses(table, batch, NamedSharding(mesh, P(ROWS[0], None)))

    return TaggedEvaluator(
        EvalBatch=Axis("batch", BATCH),
        tagged_eval_sets=data.tagged_eval_sets(Axis("position", SEQ_LEN)),
        loss_fn=loss,
        tokenizer=data.the_tokenizer,
        device_mesh=mesh,
        axis_mapping={"batch": ROWS[0]},
        max_examples_per_dataset=3 * BATCH,
    )


def train(data, mix, mesh, table, first_step=0):
    """The loop. What it trained on by step, the stages that it logged, and the trained table."""
    from levanter.schedule import BatchSchedule
    from levanter.utils.logging import LoadingTimeTrackerIterator

    schedule = BatchSchedule(BATCH)
    dataset = mix(data, schedule, jax.random.PRNGKey(0))
    batches = LoadingTimeTrackerIterator(
        loader_over(dataset, schedule, mesh).iter_from_step(first_step)
    )

    @jax.jit
    def step_of(table, batch):
        def loss(table):
            losses, weights, _ = token_losses(table, batch, NamedSharding(mesh, P(ROWS[0], None)))
            return jnp.sum(losses * weights) / jnp.sum(weights)

        return table - 0.5 * jax.grad(loss)(table)

    tokens = []
    stages = []
    for step in range(first_step, STEPS):
        batch = next(batches)
        table = step_of(table, batch)
        tokens.append(np.asarray(batch.tokens))
        block = schedule.global_data_offset_by_step(step) // dataset.block_size
        stages.append(dataset.weight_stages[dataset._get_stage_for_block(block)][1])
    return tokens, stages, table


@pytest.mark.parametrize("mix", [mixed_by_the_loop, mixed_by_the_config])
def test_the_loop_runs_as_it_is_on_headraces_batches(config, mesh, mix):
    from haliax.partitioning import set_mesh

    from headrace_levanter import fed

    data = fed(config, seq_len=SEQ_LEN, batch_size=BATCH)  # the line
    ours = DataLoader(data.own.dataset())
    expected = [np.asarray(ours.batch_at(step).tokens) for step in range(STEPS)]
    with set_mesh(mesh):
        table = jax.device_put(
            jnp.zeros((len(data.the_tokenizer),) * 2), NamedSharding(mesh, P(None, None))
        )
        tokens, stages, trained = train(data, mix, mesh, table)
        again, _, _ = train(data, mix, mesh, table, first_step=4)
        # in 0.2.20 Levanter's own evaluation fails on explicit axes
        evaluated = [config, data] if "context" in mesh.axis_names else []
        results = [evaluator_of(one, mesh).evaluate(trained) for one in evaluated]
    order = (
        sorted if mix is mixed_by_the_loop else list
    )  # what the loop mixes, it reorders within a batch
    assert [order(batch.tolist()) for batch in tokens] == [
        order(batch.tolist()) for batch in expected
    ]
    assert all(np.array_equal(one, other) for one, other in zip(again, tokens[4:], strict=True))
    if mix is mixed_by_the_config:
        assert stages == 4 * [{"a": 0.75, "b": 0.25}] + 2 * [{"a": 0.25, "b": 0.75}]
    if results:
        theirs, mine = results
        assert mine.micro_avg_loss == theirs.micro_avg_loss < np.log(len(data.the_tokenizer))
        assert mine.tag_micro_losses == theirs.tag_micro_losses
        assert set(mine.tag_micro_losses) == {"held-out", "paloma"}
