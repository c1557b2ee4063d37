"""headrace's batches through Levanter's loader and through its own: the same, row for row, on any
mesh.
"""

import asyncio
import copy
import inspect
import runpy
import shutil
import subprocess
import sys
from dataclasses import replace
from importlib import metadata
from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import Mesh

from headrace.config import LmDataConfig
from headrace.config.parsing import decode
from headrace.data import TokenSeqDataset
from headrace.errors import ConfigError, IndexOutOfRangeError
from headrace.feed import DataLoader
from headrace.mix import AmendmentConfig
from headrace.store import open_cache
from headrace.testing import write_cache
from headrace.testing.caches import remove
from headrace_levanter import from_levanter_example

NEEDS_LEVANTER = "Levanter needs Python 3.12 or newer: .ci/run newest runs this there"


pytest.importorskip("levanter", reason=NEEDS_LEVANTER)
OF_OTHERS = ("DeprecationWarning", "FutureWarning", "UserWarning")
pytestmark = [pytest.mark.filterwarnings(f"ignore::{w}") for w in OF_OTHERS]


@pytest.fixture
def config(data_config):
    return decode(LmDataConfig, data_config)


def mesh_of(data, context=1):
    return Mesh(
        np.asarray(jax.devices()[: data * context]).reshape(data, context), ("data", "context")
    )


def their_loader(dataset, mesh, batch_size, resources=None):
    from levanter.data.loader import DataLoader as LevanterLoader

    names = inspect.signature(LevanterLoader).parameters
    window: Any = {
        "fetch_batch_size" if "fetch_batch_size" in names else "prefetch_size": 3
    }  # new and old name
    return LevanterLoader(
        dataset,
        batch_size,
        mesh=mesh,
        axis_resources=resources or {"batch": "data"},
        max_buffered_batches=4,
        **window,
    )


def batches(loader, step, count):
    found = loader.iter_from_step(step)
    taken = [next(found) for _ in range(count)]
    (found.close if hasattr(found, "close") else found._batches.stop)()
    return taken


def check_same(one, other):
    assert jax.tree.structure(one) == jax.tree.structure(other)
    for left, right in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        assert left.dtype == right.dtype
        assert left.sharding.is_equivalent_to(right.sharding, 2)
        assert np.array_equal(left, right)


@pytest.mark.parametrize("split_documents", [True, False])
@pytest.mark.parametrize(("data", "context"), [(1, 1), (8, 1), (4, 2)])
def test_both_loaders_give_the_same_batches(config, data, context, split_documents):
    from headrace_levanter import HeadraceDataset, LmLoader

    config = copy.copy(config)
    object.__setattr__(config, "split_documents", split_documents)
    object.__setattr__(config, "batch_size", {0: 8, 3: 16})
    mesh = mesh_of(data, context)
    resources = {"batch": "data", "position": "context", "key_position": "context"}
    if context == 1:
        resources = {"batch": ("data", "context")}
    from levanter.schedule import ScheduleStep

    dataset = HeadraceDataset(config.dataset())
    theirs = their_loader(dataset, mesh, [ScheduleStep(0, 8), ScheduleStep(3, 16)], resources)
    ours = LmLoader(config.dataset(), mesh=mesh, axis_resources=resources)
    one: Any
    for one, other in zip(batches(theirs, 1, 5), batches(ours, 1, 5), strict=True):
        check_same(one, other)
        assert one.attn_mask.segment_ids is None or split_documents
    check_same(ours.batch_at(4), batches(theirs, 4, 1)[0])
    assert ours.stats().batches >= 5
    assert ours.describe() == dataset.describe() == DataLoader(config.dataset()).describe()
    ours.close()


def test_examples_by_number_are_rows_of_the_loaders_batches(config):
    from headrace_levanter import HeadraceDataset

    for row_order in ("locality", "stream"):
        dataset = HeadraceDataset(config.dataset(), named=False, row_order=row_order)
        loader = DataLoader(config.dataset(), row_order=row_order, mesh=mesh_of(1))
        rows = {step: np.asarray(loader.batch_at(step).tokens) for step in (0, 2, 3, 40)}
        wanted = [8 * 40 + 7, 3, 8 * 3, 8 * 2 + 5, 3, 8 * 40]
        many = asyncio.run(dataset.get_batch(wanted))
        for index, example in zip(wanted, many, strict=True):
            assert np.array_equal(example.tokens, rows[index // 8][index % 8])
            alone = asyncio.run(dataset.getitem_async(index))
            assert all(
                np.array_equal(x, y)
                for x, y in zip(*map(jax.tree.leaves, (alone, example)), strict=True)
            )
        mapped = HeadraceDataset(config.dataset().map(reverse), named=False, row_order=row_order)
        for example, reversed_ in zip(many, asyncio.run(mapped.get_batch(wanted)), strict=True):
            assert np.array_equal(example.tokens[::-1], reversed_.tokens)
        assert asyncio.run(dataset.get_batch([])) == []
        assert not dataset.is_finite()


def test_documents_leave_the_rows_of_a_request_from_their_step_on(config, tmp_path):
    from headrace_levanter import HeadraceDataset

    plain = HeadraceDataset(config.dataset(), named=False)
    name, one = next(iter(config.components.items()))
    shutil.copytree(one.cache, tmp_path / "c")
    cache = open_cache(tmp_path / "c")
    remove(cache.path, *range(cache.num_documents // 2))
    components = {**config.components, name: replace(one, cache=str(tmp_path / "c"), snapshot=1)}
    amended = replace(
        config, components=components, amendments=[AmendmentConfig(3, caches={name: 2})]
    )
    dataset = HeadraceDataset(amended.dataset(), named=False)
    loader = DataLoader(amended.dataset(), mesh=mesh_of(1))
    wanted = [8 * step + row for row in (0, 5, 7) for step in (4, 2, 3)]
    before, after = (asyncio.run(d.get_batch(wanted)) for d in (plain, dataset))
    changed = 0
    for index, old, new in zip(wanted, before, after, strict=True):
        assert np.array_equal(new.tokens, np.asarray(loader.batch_at(index // 8).tokens)[index % 8])
        same = np.array_equal(old.tokens, new.tokens)
        assert same or index >= 24
        changed += not same
    assert changed


def reverse(batch):
    return replace(batch, token_ids=batch.token_ids[:, ::-1])


def test_a_finite_dataset_ends_with_a_padded_batch(caches):
    from headrace_levanter import HeadraceDataset, LmLoader

    rows = (
        TokenSeqDataset(open_cache(str(caches / "a")), 16, split_documents=True).shuffle(0).take(21)
    )
    dataset = HeadraceDataset(rows, 8)
    assert dataset.is_finite()
    assert asyncio.run(dataset.async_len()) == 21
    theirs = list(their_loader(dataset, mesh_of(8), 8))
    with LmLoader(
        rows, 8, mesh=mesh_of(8), axis_resources={"batch": "data"}
    ).iter_from_step() as found:
        ours = list(found)
    assert len(theirs) == len(ours) == 3
    for one, other in zip(theirs, ours, strict=True):
        weight = np.asarray(one.loss_weight.array)
        assert np.array_equal(weight, other.loss_weight.array)
        held = weight.any(axis=1)
        assert np.array_equal(
            np.asarray(one.tokens.array)[held], np.asarray(other.tokens.array)[held]
        )
    assert (np.asarray(theirs[2].loss_weight.array)[5:] == 0).all()
    with pytest.raises(IndexOutOfRangeError):
        asyncio.run(dataset.get_batch([21]))


def test_as_a_component_of_levanters_own_config(config):
    import draccus
    from haliax import Axis
    from levanter.data.text.datasets import LmDataConfig as LevanterConfig
    from levanter.schedule import BatchSchedule

    from headrace_levanter import direct_component

    theirs = LevanterConfig(
        components={"mix": direct_component(config.dataset(), tags=["headrace"])},
        tokenizer="passthrough",
        vocab_size=256,
        shuffle=False,
        mixture_block_size=8,
    )
    mixed = theirs.train_set(Axis("position", 16), BatchSchedule(8), key=jax.random.key(0))
    loader = DataLoader(config.dataset(), mesh=mesh_of(1))
    for step, batch in enumerate(batches(their_loader(mixed, mesh_of(8), 8), 0, 4)):
        found = from_levanter_example(batch)
        ours = loader.batch_at(step)
        for leaf in (
            "tokens",
            "token_weights",
            "segment_ids",
        ):  # each batch is the same set of rows
            assert sorted(np.asarray(getattr(found, leaf)).tolist()) == sorted(
                np.asarray(getattr(ours, leaf)).tolist()
            )
    text = str(draccus.dump(theirs))
    assert "fingerprint" in text or "stages" in text
    component: Any = theirs.components["mix"]
    assert copy.deepcopy(component.datasets["train"]) is component.datasets["train"]


def test_masks_of_chats_are_levanters_loss_weights(tmp_path):
    from headrace_levanter import HeadraceDataset

    cache = write_cache(
        tmp_path, [[np.arange(k, k + 9) for k in range(40)]], mask=lambda ids: ids % 3 > 0
    )
    for loss_mask in ("auto", "none"):
        rows = TokenSeqDataset(cache, 16, loss_mask=loss_mask)
        examples = asyncio.run(HeadraceDataset(rows, 4, row_order="stream").get_batch(range(8)))
        found = np.stack([np.asarray(e.loss_weight.array) for e in examples])
        wanted = rows.read(np.arange(8))
        assert np.array_equal(found, wanted.token_weights)
        assert (found[:, :-1] == 0).any() == (loss_mask == "auto")


def test_wrong_use_is_refused(config, caches):
    from headrace_levanter import HeadraceDataset, LmLoader

    rows = TokenSeqDataset(open_cache(str(caches / "a")), 16)
    growing = replace(config, seq_len={0: 8, 5: 16}).dataset()
    for dataset in (growing, growing.map(reverse)):
        with pytest.raises(ConfigError, match=r"seq_len.*position axis is fixed"):
            HeadraceDataset(dataset)
    with pytest.raises(ConfigError, match=r"batch_size.*missing"):
        HeadraceDataset(rows)
    with pytest.raises(ConfigError, match="differs"):
        HeadraceDataset(config.dataset(), 4)
    with pytest.raises(ConfigError, match="not mapped"):
        LmLoader(config.dataset(), mesh=mesh_of(8), axis_resources={"position": "data"})
    with pytest.raises(ConfigError, match="divisible"):
        LmLoader(rows, 12, mesh=mesh_of(8), axis_resources={"batch": "data"})


def test_without_levanter_the_error_says_what_to_install(monkeypatch):
    import headrace_levanter

    for name in [n for n in sys.modules if n.startswith("headrace_levanter.")]:
        monkeypatch.delitem(sys.modules, name)
        monkeypatch.delattr(headrace_levanter, name.rsplit(".", 1)[1], raising=False)
    monkeypatch.delitem(
        vars(headrace_levanter), "LmLoader", raising=False
    )  # a name is kept once it is loaded
    monkeypatch.setattr(
        metadata, "version", raises(metadata.PackageNotFoundError("marin-levanter"))
    )
    monkeypatch.setitem(sys.modules, "levanter", None)
    monkeypatch.setitem(sys.modules, "draccus", None)
    with pytest.raises(
        ConfigError, match=r"needs the package marin-levanter; 0\.2\.227.* works"
    ) as caught:
        headrace_levanter.LmLoader  # noqa: B018
    assert str(caught.value.cure).startswith("pip install marin-levanter==0.2.227")
    with pytest.raises(SystemExit, match=r"(?s)needs the package marin-levanter.*uv pip install"):
        runpy.run_module("headrace_levanter.train_lm", run_name="__main__")


def test_another_release_of_levanter_is_named_and_what_it_lacks(monkeypatch):
    import levanter.data.dataset

    import headrace_levanter

    monkeypatch.delitem(sys.modules, "headrace_levanter.dataset", raising=False)
    monkeypatch.delattr(headrace_levanter, "dataset", raising=False)
    monkeypatch.delitem(
        vars(headrace_levanter), "HeadraceDataset", raising=False
    )  # a name is kept once it is loaded
    monkeypatch.delattr(levanter.data.dataset, "AsyncDataset")
    monkeypatch.setattr(metadata, "version", lambda package: "0.3")
    with pytest.raises(
        ConfigError, match=r"does not work with marin-levanter 0\.3 \(.*'AsyncDataset'"
    ):
        headrace_levanter.HeadraceDataset  # noqa: B018


def test_what_is_installed_is_the_release_that_works():
    from headrace_levanter.needs import how_to_install

    assert f"marin-levanter=={metadata.version('marin-levanter')}" in how_to_install()


def raises(error):
    def function(*args):
        raise error

    return function


LEAVE = """
import atexit, sys
import numpy as np, jax
left = []
atexit.register(lambda: print("alive" if left[0]._batches.thread.is_alive() else "ended"))  # runs after headrace's
from jax.sharding import Mesh
from levanter.data.loader import DataLoader
from headrace.data.token_seq import TokenSeqDataset
from headrace_levanter import HeadraceDataset
from headrace.mix.stage_config import AmendmentConfig
from headrace.order.intervals import Intervals
from headrace.store import open_cache
from headrace.testing import write_cache
dataset = HeadraceDataset(TokenSeqDataset(open_cache(sys.argv[1]), 16).shuffle(0).repeat(), 8)
mesh = Mesh(np.asarray(jax.devices()), ("data",))
loader = DataLoader(dataset, 8, mesh=mesh, axis_resources={"batch": "data"}, max_buffered_batches=None)
left += [iter(loader), left]
next(left[0])
assert left[0]._batches.thread.is_alive()
"""


@pytest.mark.slow
def test_a_program_can_end_while_levanters_loader_is_at_work(caches):
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", LEAVE, str(caches / "a")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.strip() == "ended", done.stderr
    assert done.returncode == 0, done.stderr


def test_a_thread_that_waits_to_hand_over_an_error_is_stopped_too():
    from levanter.utils.background_iterable import BackgroundIterator

    from headrace_levanter.leaving import stop_loaders

    def fails():
        yield 1
        raise ValueError("broken")

    waiting = BackgroundIterator(fails, max_capacity=1)
    while not waiting.q.full():
        pass
    assert stop_loaders(patience_s=10) >= 1
    assert not waiting.thread.is_alive()
