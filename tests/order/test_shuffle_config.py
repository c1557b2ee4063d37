"""A shuffle of somebody's own: an order and a config in one file, and one line in the registry of
configs.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

import numpy as np
import pytest

from headrace.analysis import simulate
from headrace.analysis.check.findings import findings
from headrace.analysis.check.plan import RunPlan
from headrace.analysis.simulate.forecast import RunSteps
from headrace.config import ComponentConfig, LmDataConfig, load_config
from headrace.config.parsing import fields_of
from headrace.errors import ConfigError
from headrace.order import (
    BlockShuffleConfig,
    BraidShuffleConfig,
    Order,
    ScoreShuffleConfig,
    shuffle_config,
)
from headrace.order.order import OpenWindow
from headrace.order.shuffle_config import (
    RowsToOrder,
    Shuffle,
    Strands,
    check_shuffle,
    shuffle_of,
)
from headrace.run import where
from headrace.testing import tiny_cache

TOOTH = 6
DOCS = Path(__file__).parents[2] / "docs"


class Comb(Order):
    """Blocks in turn from ``teeth`` places of the store: rows of a block stay together."""

    bijective = True
    reorders = True
    kind = "comb"
    described = ("length", "io_block_size", "teeth", "seed")

    def __init__(self, n: int, *, io_block_size: int, teeth: int, seed: int) -> None:
        super().__init__(n, n)
        self.io_block_size = io_block_size
        self.teeth = teeth
        self.seed = seed
        blocks = np.arange(n) // io_block_size
        shifted = (blocks + seed) % (blocks[-1] + 1)
        self._rows = np.lexsort((np.arange(n), shifted // teeth, shifted % teeth))

    def open_window(self) -> OpenWindow:
        return OpenWindow(self.teeth, min(self.teeth * self.io_block_size, self.length))

    def at(self, i: np.ndarray, epoch: np.ndarray) -> np.ndarray:
        return self._rows[(i + epoch) % self.length]


@dataclass(frozen=True)
class CombConfig(Shuffle):
    """A comb.

    Attributes:
        teeth: Blocks that are open at a time.
        kind: Its name.
    """

    teeth: int = 4
    kind: Literal["comb"] = "comb"

    in_blocks = True

    def order(self, rows):
        return Comb(rows.length, io_block_size=rows.block, teeth=self.teeth, seed=rows.seed % 97)


class Dust(Order):
    """Rows by a step that no block holds: neighbours in the order lie far apart."""

    bijective = reorders = True
    kind = "dust"
    described = ("length",)

    def __init__(self, n: int) -> None:
        super().__init__(n, n)

    def open_window(self) -> OpenWindow:
        return OpenWindow(rows=self.length)

    def at(self, i: np.ndarray, epoch: np.ndarray) -> np.ndarray:
        return (i * 1009 + epoch) % self.length


@dataclass(frozen=True)
class DustConfig(Shuffle):
    """Dust."""

    kind: Literal["dust"] = "dust"

    def order(self, rows):
        return Dust(rows.length)


@pytest.fixture
def caches(tmp_path):
    return {
        name: tiny_cache(tmp_path / name, documents=300, seed=seed)
        for seed, name in enumerate("ab")
    }


@pytest.fixture
def they_are_registered(monkeypatch):
    fields_of.cache_clear()  # types are looked up once a process
    monkeypatch.setattr(
        shuffle_config, "ShuffleConfig", shuffle_config.ShuffleConfig | CombConfig | DustConfig
    )
    yield
    fields_of.cache_clear()


@pytest.fixture
def config(caches, tmp_path, they_are_registered) -> LmDataConfig:
    path = tmp_path / "run.yaml"
    path.write_text(
        "seq_len: 16\nbatch_size: 8\nnum_steps: 30\nshuffle: {kind: comb, teeth: 6}\ncomponents:\n"
        f"  a: {{cache: {caches['a'].path}}}\n  b: {{cache: {caches['b'].path}, shuffle:"
        " {strands: 5}}\n"
    )
    return load_config(str(path))


def test_a_new_shuffle_is_one_file_and_one_line(config, caches, tmp_path):
    assert config.shuffle == CombConfig(TOOTH)
    (tmp_path / "again.yaml").write_text(config.to_yaml())
    assert load_config(str(tmp_path / "again.yaml")) == config
    plan = RunPlan.of(config, hosts=[1, 2])
    a, b = plan.components
    assert (a.shuffle, a.open_blocks, a.block_rows) == ("comb", TOOTH, 16)
    assert a.open_bytes == TOOTH * 16 * plan.first.row_bytes
    assert (b.shuffle, b.open_blocks) == ("braid", b.strands)
    assert "little_memory" not in {f.rule for f in findings(plan)}
    dataset = config.dataset()
    forecast = simulate(
        dataset,
        dataset.batch_schedule,
        hosts=[1],
        cache_bytes=config.prefetch_bytes,
        steps=RunSteps(num_steps=30),
    )
    loader = config.loader()
    batches = list(loader)
    assert len(batches) == 30
    assert forecast.by_hosts[0].block_fetches == loader.stats().reads.block_fetches
    assert (
        forecast.by_hosts[0].open_bytes
        == plan.open_bytes.needed()
        == (TOOTH + b.strands) * 16 * plan.first.row_bytes
    )
    here = where(config, 30)
    assert here.sources["a"].rows + here.sources["b"].rows == 240
    with pytest.raises(ConfigError, match="strands"):
        dataclasses.replace(config, prefetch_bytes=plan.open_bytes.needed() - 1).loader()


def test_a_new_shuffle_without_blocks_is_warned_of_as_a_full_one_is(they_are_registered):
    """Whether each row is a read follows from the order, not from a list of names."""
    found = {}
    for shuffle in (True, DustConfig()):
        sizes = {"a": ComponentConfig("-", expected_tokens=4e9)}
        config = LmDataConfig(sizes, shuffle=shuffle, seq_len=2048, batch_size=64, num_steps=1000)
        found[shuffle] = findings(RunPlan.of(config, hosts=[1, 8], max_rows=1 << 15))
    assert [f.rule for f in found[DustConfig()]] == [f.rule for f in found[True]]
    [warning] = [f for f in found[DustConfig()] if f.rule == "random_reads"]
    assert "a dust shuffle reads a chunk" in str(warning)


EXAMPLES: dict[str, Shuffle] = {
    "braid": BraidShuffleConfig(),
    "block": BlockShuffleConfig(window_blocks=2),
    "score": ScoreShuffleConfig("quality", steps=3),
    "comb": CombConfig(3),
    "dust": DustConfig(),
}
"""A config of each kind. The last two are of this file."""


def test_there_is_an_example_of_each_kind():
    kinds = [c.kind for c in get_args(shuffle_config.ShuffleConfig) if hasattr(c, "kind")]
    assert [*EXAMPLES] == [*kinds, "comb", "dust"]


@pytest.mark.parametrize("kind", EXAMPLES)
def test_a_shuffle_says_what_it_is(kind):
    """What an order leaves out is taken for that of the stored order: no error would follow."""
    shuffle = EXAMPLES[kind]

    def make(n: int, seed: int = 7) -> Order:
        strands = Strands(min(3, n), 1.0, 0) if shuffle.in_strands else None
        scores = np.sin(np.arange(n)) if shuffle.scored_by else None
        block = 4 if shuffle.in_blocks else 0
        return shuffle.order(RowsToOrder(n, seed, block, strands, scores))

    order = make(40)
    assert (order.kind, order.reorders, order.bijective) == (kind, True, True)
    assert order.describe() == make(40).describe() != make(41).describe()
    assert 0 < order.open_window().rows <= 40
    if kind != "dust":  # whose order has no key
        assert order.describe() != make(40, seed=8).describe()
    for n in (1, 2, 7, 40, 41):
        order = make(n)
        positions = np.arange(n)
        for epoch in (0, 3):
            epochs = np.full(n, epoch)
            rows = order.at(positions, epochs)
            assert np.array_equal(np.sort(rows), positions)
            each = [order.at(positions[i : i + 1], epochs[i : i + 1])[0] for i in range(n)]
            assert rows.tolist() == each


@pytest.mark.parametrize("page", ["order", "config", "glossary"])
def test_pages_name_every_kind(page):
    kinds = [c.kind for c in get_args(shuffle_config.ShuffleConfig) if hasattr(c, "kind")]
    text = (DOCS / f"{page}.md").read_text()
    spelled = {
        "order": [f"**{kind}**" for kind in kinds],
        "config": [" or ".join(f"kind: {kind}" for kind in kinds) + "."],
        "glossary": [f"`{kind}`" for kind in kinds],
    }
    assert [word for word in spelled[page] if word not in text] == []


def test_its_rows_are_those_of_its_order(config, caches):
    mixture = config.dataset()
    order = mixture.components[0].shuffle_order()
    assert order is not None
    rows = (
        mixture.components[0]
        .locate(np.arange(len(caches["a"].tokens(0, caches["a"].num_tokens)) // 16))
        .row
    )
    assert np.array_equal(np.sort(rows), np.arange(rows.size))
    assert np.array_equal(rows, order(np.arange(rows.size)))
    assert mixture.components[0].describe()["of"]["order"] == order.describe()


def test_an_unknown_kind_names_those_there_are(config):
    with pytest.raises(ConfigError, match=r"(?s)shuffle\.kind.*comb"):
        load_config(overrides=["shuffle={kind: com}", "components.a.cache=x"])


@pytest.mark.parametrize("shuffle", [False, True, 7, BraidShuffleConfig(), BlockShuffleConfig()])
def test_what_a_value_means_is_one_of_the_kinds(shuffle):
    check_shuffle(shuffle, "shuffle")
    config = LmDataConfig(
        {"a": ComponentConfig("-", expected_tokens=1e6)}, shuffle=shuffle, num_steps=5
    )
    kinds = {False: "none", True: "full", 7: "era"}
    kind = kinds[shuffle] if isinstance(shuffle, int) else shuffle.kind
    assert RunPlan.of(config, hosts=[1]).components[0].shuffle == kind
    assert shuffle_of(shuffle_of(shuffle)) == shuffle_of(shuffle) or isinstance(shuffle, bool)


@pytest.mark.parametrize("shuffle", [0.5, -3, "full"])
def test_what_is_no_shuffle_is_refused(shuffle):
    with pytest.raises(ConfigError, match="is not an era length"):
        check_shuffle(shuffle, "shuffle")


@pytest.mark.parametrize("make", [BraidShuffleConfig, BlockShuffleConfig])
@pytest.mark.parametrize("size", [0, 2.5, True])
def test_sizes_are_whole_and_positive(make, size):
    with pytest.raises(ConfigError, match=r"shuffle\.io_block_size"):
        make(io_block_size=size)
