"""Datasets of every kind of config travel to another process, before they are used and after."""

import pickle

import numpy as np
import pytest

import headrace
from headrace.config import LmDataConfig, load_config
from headrace.errors import ConfigError
from headrace.mix.plan import POLICIES
from headrace.testing import tiny_cache

FORMS = [
    "{}",
    "{shuffle: {kind: block, window_blocks: 2}}",
    "{shuffle: false, subset: {fraction: 0.5}}",
    "{validation: {one_in: 5}, max_epochs: 3}",
    "{validation: {one_in: 5, by: documents}}",
    "{batch_size: {0: 8, 5: 16}, weights: {temperature: 2}}",
    "{seq_len: {0: 16, 5: 32}, components: {a: {weight: {linear: {0: 1, 9: 3}}}}}",
    "{stages: [{step: 0, weights: {a: 1}}, {step: 6, weights: {a: 1, b: 2}}]}",
    "{components: {a: {packing: {algorithm: bfd}}, b: {packing: {}}}}",
    "{components: {a: {max_tokens: 4000, max_share: 0.6}}}",
    *(f"{{policy: {name}}}" for name in POLICIES),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    root = tmp_path_factory.mktemp("caches")
    for seed, name in enumerate("ab"):
        tiny_cache(root / name, documents=400, parts=2, seed=seed)
    return root


def read(dataset, step: int) -> np.ndarray:
    first, rows = dataset.batch_schedule.rows_at(step)
    return dataset.read(np.arange(first, first + rows)).tokens


@pytest.mark.parametrize("form", FORMS)
def test_datasets_travel(folder, form, tmp_path):
    settings = [f"components.{name}.cache={folder / name}" for name in "ab"]
    (tmp_path / "run.yaml").write_text(form)
    config = load_config(
        str(tmp_path / "run.yaml"),
        [*settings, "num_steps=10", *(() if "seq_len" in form else ["seq_len=16"])]
        + ([] if "batch_size" in form else ["batch_size=8"]),
    )
    assert pickle.loads(pickle.dumps(config)) == config
    dataset = config.dataset()
    copy = pickle.loads(pickle.dumps(dataset))
    right = [read(dataset, step) for step in range(10)]
    again = pickle.loads(pickle.dumps(dataset))  # with what it has worked out meanwhile
    for other in (copy, again):
        assert all(np.array_equal(read(other, step), batch) for step, batch in enumerate(right))
    mapped = pickle.loads(pickle.dumps(dataset.map(len)))
    assert mapped.functions == (len,)


def test_what_holds_threads_says_so(folder):
    config = LmDataConfig(
        {"a": headrace.ComponentConfig(str(folder / "a"))}, seq_len=16, batch_size=8, num_steps=9
    )
    loader = config.loader()
    with loader.iter_from_step(0) as batches:
        for one, why in (
            (loader, "it holds devices and threads"),
            (batches, "a thread reads ahead for it"),
        ):
            with pytest.raises(ConfigError, match=f"cannot be pickled: {why}"):
                pickle.dumps(one)
