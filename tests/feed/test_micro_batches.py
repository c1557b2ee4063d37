"""Micro-batches from a loader: the rows of each step, on any mesh, from any step; what configs say;
what is counted.
"""

import dataclasses

import jax
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from headrace.batch import MicroBatchConfig, PackedBatch, TransformerCost, unified_loss
from headrace.config import LmDataConfig, load_config
from headrace.data import MixtureDataset, PackedTokenDataset, TokenSeqDataset
from headrace.errors import ConfigError
from headrace.feed import DataLoader
from headrace.run import RunLock
from headrace.store.layout import LeafSpec
from headrace.testing import tiny_cache, write_cache
from headrace.testing.caches import random_documents

BATCH = {0: 16, 3: 8}
ROWS = MicroBatchConfig(96, "tokens", rows=4)


def mixture_of(root):
    one = {"algorithm": "next_fit", "max_documents": 1, "long": "truncate"}
    packed = {n: PackedTokenDataset(f"{root}/{n}", 32, name=n, **one).shuffle(1) for n in "ab"}
    return MixtureDataset(packed, {"a": 2, "b": 1}, BATCH).with_loss_weights({"b": 0.5})


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    root = tmp_path_factory.mktemp("micro")
    for seed, name in enumerate("ab"):
        write_cache(root / name, [random_documents(150, seed=seed)])
    return root


@pytest.fixture(scope="module")
def mixture(root):
    return mixture_of(root)


def mesh(n, names=("data",), shape=None, explicit=False):
    kind = AxisType.Explicit if explicit else AxisType.Auto
    return Mesh(
        np.array(jax.devices()[:n]).reshape(shape or (n,)), names, axis_types=(kind,) * len(names)
    )


def shortened(batch: PackedBatch) -> PackedBatch:
    assert batch.segment_lengths is not None
    return dataclasses.replace(batch, segment_lengths=np.minimum(batch.segment_lengths, 3))


def documents_of(batch):
    """Tokens and weights of every document of a batch, in some order."""
    batch = jax.tree.map(np.asarray, batch)
    tokens = batch.tokens
    weights = batch.token_weights
    segments = batch.segment_ids
    found = []
    for row in range(len(tokens)):
        for k in range(segments[row].max() + 1):
            here = segments[row] == k
            found.append((tokens[row][here].tolist(), weights[row][here].tolist()))
    return sorted(found)


def test_each_step_holds_its_rows_once_from_any_step(mixture):
    plain = DataLoader(mixture)
    loader = DataLoader(mixture, micro_batches=MicroBatchConfig(64, rows=8))
    assert (
        RunLock.of(loader).fingerprint == RunLock.of(plain).fingerprint
    )  # delivery is not the order
    with loader.iter_from_step(1) as batches:
        for step in (1, 2, 3, 4):
            delivered = next(batches)
            assert documents_of(delivered.rows) == documents_of(plain.batch_at(step))
            again = loader.batch_at(step)
            assert all(map(np.array_equal, *map(jax.tree.leaves, (delivered, again))))
            assert 0 < int(delivered.count) <= delivered.number
            assert (np.asarray(delivered.at(int(delivered.count) - 1).source_id) >= 0).any()


@pytest.mark.parametrize("explicit", [False, True])
def test_micro_batches_are_the_same_on_every_mesh(mixture, explicit):
    spec = PartitionSpec("data", "context")
    shardings = {
        "one": NamedSharding(mesh(1), PartitionSpec("data")),
        "rows": NamedSharding(mesh(4, explicit=explicit), PartitionSpec("data")),
        "columns": NamedSharding(mesh(4, ("data", "context"), (2, 2), explicit), spec),
    }
    steps = {
        n: DataLoader(mixture, sharding=s, micro_batches=ROWS).batch_at(2)
        for n, s in shardings.items()
    }
    for name, step in steps.items():
        assert all(map(np.array_equal, *map(jax.tree.leaves, (step, steps["one"]))))
        held = step.rows.token_ids.sharding
        assert held.is_equivalent_to(shardings[name], 2), held


def test_the_last_batch_of_a_dataset_is_not_full():
    packed = PackedTokenDataset(tiny_cache(documents=20), 32, algorithm="next_fit")
    loader = DataLoader(packed, 8, mesh=mesh(2), micro_batches=MicroBatchConfig(64, "tokens"))
    last = loader.num_steps - 1
    delivered = [documents_of(loader.batch_at(step).rows) for step in range(last + 1)]
    assert sum(map(len, delivered)) == packed.plan.items.size.size
    assert len(packed) % 8


def test_places_are_counted(mixture):
    loader = DataLoader(mixture, mesh=mesh(2), micro_batches=MicroBatchConfig(64))
    with loader.iter_from_step(0) as batches:
        counts = [int(next(batches).count) for _ in range(3)]
    reads = loader.stats().reads
    assert reads.micro_batch_places >= sum(counts) * 2 * 64
    assert 0.5 < reads.content_tokens / reads.micro_batch_places <= 1
    with loader.headspace(batches=2) as replayed:
        first = documents_of(next(replayed).rows)
        next(replayed)
        assert documents_of(next(replayed).rows) == first


def test_a_config_says_it_and_functions_of_batches_go_before(tmp_path):
    write_cache(tmp_path / "a", [random_documents(60)])
    settings = [
        "seq_len=32",
        "batch_size=8",
        f"components.a.cache={tmp_path / 'a'}",
        "components.a.packing={}",
        "micro_batches={max_tokens: 64}",
    ]
    config = load_config(overrides=settings)
    loader = config.loader(mesh(2))
    again = config.loader(mesh(2), fn=lambda batch: batch)
    assert documents_of(loader.batch_at(0).rows) == documents_of(again.batch_at(0).rows)
    odd = config.loader(mesh(2), fn=lambda batch: batch.tokens)
    with pytest.raises(
        ConfigError, match=r"micro_batches = '.*': needs batches that are PackedBatch"
    ):
        odd.batch_at(0)
    cut = config.loader(mesh(2), fn=shortened)
    with pytest.raises(
        ConfigError, match=r"micro_batches = 64: .* changed their lengths\. Change tokens, masks or"
    ):
        cut.batch_at(0)
    with pytest.raises(
        ConfigError,
        match=r"max_tokens = 2147483648: times \d rows is more than 2\*\*31 places\. Give",
    ):
        DataLoader(
            config.dataset(), 8, mesh=mesh(2), micro_batches=MicroBatchConfig(2**31)
        ).batch_at(0)


def test_what_does_not_go_together_is_refused(mixture):
    with pytest.raises(ConfigError, match=r"rows = 3: is not divisible by the 2 ways .* Use 4, or"):
        DataLoader(mixture, mesh=mesh(2), micro_batches=MicroBatchConfig(64, rows=3))
    DataLoader(mixture, mesh=mesh(2), micro_batches=MicroBatchConfig(64, rows=4))
    with pytest.raises(
        ConfigError, match=r"max_tokens = 31: is less than a row of 32 tokens .* Give 32 or more"
    ):
        DataLoader(mixture, micro_batches=MicroBatchConfig(31))
    over = NamedSharding(mesh(4, ("data", "context"), (2, 2)), PartitionSpec("data", "context"))
    with pytest.raises(
        ConfigError, match=r"sequence_layout = 'zigzag': cannot be combined with micro_batches"
    ):
        DataLoader(
            mixture, sharding=over, sequence_layout="zigzag", micro_batches=MicroBatchConfig(64)
        )
    with pytest.raises(
        ConfigError, match=r"max_tokens = 65: is not divisible by the 2 ways .* Use 66, or"
    ):
        DataLoader(mixture, sharding=over, micro_batches=MicroBatchConfig(65))
    stream = TokenSeqDataset(tiny_cache(), 8, split_documents=True)
    with pytest.raises(ConfigError, match=r"may have any number of them\. Pack the components"):
        DataLoader(stream, 8, micro_batches=MicroBatchConfig(64))
    whole = DataLoader(
        TokenSeqDataset(tiny_cache(), 8),
        8,
        micro_batches=MicroBatchConfig(16, rows=2),
        mesh=mesh(1),
    )
    assert whole.batch_at(0).rows.tokens.shape == (4, 16)


WIDE = ["data", "context"]
MESHES = {
    "1": lambda: NamedSharding(mesh(1), PartitionSpec("data")),
    "2": lambda: NamedSharding(mesh(2), PartitionSpec("data")),
    "4": lambda: NamedSharding(mesh(4), PartitionSpec("data")),
    "2x2": lambda: NamedSharding(mesh(4, (*WIDE,), (2, 2)), PartitionSpec(*WIDE)),
    "1x2": lambda: NamedSharding(mesh(2, (*WIDE,), (1, 2)), PartitionSpec(*WIDE)),
}
BALANCES = {
    "none": MicroBatchConfig(96, rows=4),
    "tokens": MicroBatchConfig(96, "tokens", rows=4),
    "flops": MicroBatchConfig(
        96, "flops", rows=4, model=TransformerCost(64, 2, 4, 16, 2, 128, 1000)
    ),
}
LEAVES = {
    LeafSpec("loss_weights", "float32", "ragged", 1): lambda ids: (ids % 5 / 4).astype(np.float32),
    LeafSpec("topk", "int32", "ragged", 2): lambda ids: np.stack([ids, ids + 1], axis=-1).astype(
        np.int32
    ),
    LeafSpec("score", "float32", "fixed"): lambda ids: np.full(1, ids.size % 7 / 3, np.float32),
}


def with_columns(
    folder, seq_len, packing="{algorithm: next_fit, max_documents: 2, long: split}"
) -> LmDataConfig:
    """A run over rows, seldom full if packed, with float weights, K numbers a token and one a
    document.
    """
    for seed, name in enumerate("ab"):
        write_cache(
            folder / name,
            [random_documents(120, vocab_size=200, seed=seed)],
            vocab_size=200,
            leaves=LEAVES,
        )
    return load_config(
        overrides=[
            f"seq_len={seq_len}",
            "batch_size=8",
            "num_steps=6",
            f"components.a={{cache: {folder / 'a'}, packing: {packing}, weight: 2}}",
            f"components.b={{cache: {folder / 'b'}, packing: {packing}, loss_weight: 0.5}}",
            "columns={weight: loss_weights, ids: topk, score: score}",
        ]
    )


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return with_columns(tmp_path_factory.mktemp("columns"), 32)


TABLE = jax.random.normal(jax.random.key(0), (208, 208))


def loss_of(table, batch: PackedBatch, denominator):
    """It goes by the columns too, so that a value beside another token is another loss."""
    assert batch.extras is not None
    beside = table[batch.extras["ids"]].mean(axis=2)
    return unified_loss(
        table[batch.tokens] + batch.extras["score"][..., None] * beside, batch, denominator
    )


@jax.jit
def gradient_of_batch(batch: PackedBatch):
    return jax.value_and_grad(loss_of)(TABLE, batch, "weights")


@jax.jit
def gradient_of_step(step):
    return step.sum(lambda some, whole: jax.value_and_grad(loss_of)(TABLE, some, whole))


def check_step(config: LmDataConfig, step: int, sharding: NamedSharding, balances=BALANCES) -> None:
    """Micro-batches of a step hold every token once, with its columns, and its loss
    and gradient.
    """
    plain = config.loader(mesh(1)).batch_at(step)
    loss, gradient = gradient_of_batch(plain)
    for name, micro in balances.items():
        with dataclasses.replace(config, micro_batches=micro).loader(sharding=sharding) as loader:
            delivered = loader.batch_at(step)
        assert columns_of_documents(delivered.rows) == columns_of_documents(plain), name
        assert delivered.rows.token_ids.sharding.is_equivalent_to(sharding, 2)
        of_step = gradient_of_step(delivered)
        assert float(of_step[0]) == pytest.approx(float(loss), rel=2e-5)
        np.testing.assert_allclose(of_step[1], gradient, atol=2e-6)


def columns_of_documents(batch: PackedBatch) -> list[tuple[object, ...]]:
    """Tokens, weights and columns of every document, in some order."""
    batch = jax.tree.map(np.asarray, batch)
    beside = [batch.tokens, batch.token_weights, *(batch.extras[name] for name in ("ids", "score"))]
    segments = batch.segment_ids
    return sorted(
        tuple(str(values[row][segments[row] == k].tolist()) for values in beside)
        for row in range(len(segments))
        for k in range(segments[row].max() + 1)
    )


@pytest.mark.parametrize(
    "on", [*("2", "4", "2x2"), *(pytest.param(on, marks=pytest.mark.slow) for on in ("1", "1x2"))]
)
def test_losses_of_micro_batches_are_those_of_the_step_on_every_mesh(run, on):
    for step in (0, 3):
        check_step(
            run, step, MESHES[on](), BALANCES if on == "2x2" else {"flops": BALANCES["flops"]}
        )


@pytest.mark.slow
@pytest.mark.parametrize("on", ["2", "2x2"])
def test_losses_add_up_where_rows_change_their_length(tmp_path, on):
    run = with_columns(tmp_path, "{0: 32, 2: 64}", "null")
    for step in (1, 2):
        check_step(run, step, MESHES[on](), {"flops": BALANCES["flops"]})
