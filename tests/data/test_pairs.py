"""A cache that knows which answers are rejected: no road trains them with weight +1 unless the
config says so.
"""

import json
from pathlib import Path

import jax
import numpy as np
import pytest

import headrace
from headrace import LmDataConfig, TokenSeqDataset, load_config
from headrace.data import PackedTokenDataset
from headrace.errors import ConfigError
from headrace.pack import PackingConfig

BASE = "seq_len: 96\nbatch_size: 2\nnum_steps: 4\nseed: 3\n"


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Caches of 60 pairs and of 60 texts; rejected answers are spelled with r alone, chosen ones
    with c.
    """
    folder = tmp_path_factory.mktemp("pairs")
    pairs = [
        {"prompt": "q" * 9, "chosen": "c" * (n % 11 + 1), "rejected": "r" * (n % 7 + 1)}
        for n in range(60)
    ]
    (folder / "pairs.jsonl").write_text("\n".join(map(json.dumps, pairs)))
    (folder / "text.jsonl").write_text("\n".join(json.dumps({"text": "t" * 40}) for _ in range(60)))
    for name, kind in (("pairs", "preference"), ("text", "text")):
        source = headrace.SourceConfig([str(folder / f"{name}.jsonl")], kind=kind)
        tokenizer = headrace.TokenizerConfig("bytes")
        headrace.build_cache(source, tokenizer, str(folder / name), progress=False)
    np.save(folder / "pair_scores.npy", np.repeat(np.arange(60), 2))
    return folder


def config_of(folder: Path, component: str, more: str = "", beside: str = "") -> LmDataConfig:
    text = f"{BASE}components:\n  a: {{cache: pairs, {component}}}\n{beside}"
    path = folder / "run.yaml"
    path.write_text(text.replace("cache: ", f"cache: {folder}/"))
    return load_config(str(path), [more.replace(": ", "=", 1)] if more else [])


def weights_of(batch, letter: str) -> set[float]:
    """Loss weights of the labels that are this letter."""
    host = jax.tree.map(np.asarray, batch)
    return set(host.token_weights[(host.labels == ord(letter)) & host.valid[:, None]].tolist())


def train(config: LmDataConfig) -> tuple[set[float], set[float]]:
    """Weights of chosen and of rejected answers over a short run."""
    chosen, rejected = set(), set()
    with config.loader(jax.sharding.Mesh(jax.devices()[:1], ("data",))) as loader:
        for batch in loader:
            chosen |= weights_of(batch, "c")
            rejected |= weights_of(batch, "r")
    return chosen, rejected


PAIRED = [
    "packing: {}",
    "packing: {algorithm: bfd}",
    "packing: {unit: 2}",
    "packing: {long: error}",
    "packing: {}, pairs: true",
    "packing: {}, max_epochs: 1",
    "packing: {}, subset: {fraction: 0.5}",
    "packing: {}, buckets: {by: SCORES, edges: [20]}",
]


@pytest.mark.parametrize("component", PAIRED)
def test_pairs_are_packed_as_pairs_by_themselves(folder, component):
    component = component.replace("SCORES", str(folder / "pair_scores.npy"))
    assert train(config_of(folder, component)) == ({1.0}, {-1.0})


@pytest.mark.parametrize("split", ["{one_in: 5, by: documents}", "{one_in: 5, by: blocks}"])
def test_both_sides_of_a_split_hold_pairs(folder, split):
    config = config_of(folder, "packing: {}", f"validation: {split}")
    for dataset in (*config.train_datasets().values(), *config.validation_datasets().values()):
        batch = dataset.read(np.arange(len(dataset)))
        assert (weights_of(batch, "c"), weights_of(batch, "r")) == ({1.0}, {-1.0})


REFUSED = [
    ("weight: 1", "", "components.a.packing", "packing: {}"),
    ("weight: 1", "split_documents: true", "components.a.packing", "packing: {}"),
    ("weight: 1", "seq_len: {0: 32, 2: 48}", "components.a.packing", "pairs: false"),
    ("weight: 1, pairs: true", "", "components.a.packing", "packing: {}, pairs: true"),
    ("loss_mask: none", "", "components.a.packing", "packing: {}"),
    ("weight: 1", "compat: nmoe", "components.a.packing", "pairs: false"),
    ("packing: {unit: 1}", "", "components.a.packing.unit", "packing: {}"),
    ("packing: {unit: 4}", "", "components.a.packing.unit", "packing: {}"),
    (
        "packing: {algorithm: wrap}",
        "",
        "components.a.packing.algorithm",
        "packing: {algorithm: bfd}",
    ),
    ("packing: {long: truncate}", "", "components.a.packing.long", "packing: {long: drop}"),
    ("packing: {}, loss_mask: none", "", "components.a.loss_mask", "packing: {}"),
    (
        "packing: {}, buckets: {by: length, edges: [15]}",
        "",
        "components.a/0.buckets.by",
        "packing: {}, pairs: false, buckets: {by: length, edges: [15]}",
    ),
    (
        "packing: {}, buckets: {by: chosen, edges: [1], keep: [1]}",
        "",
        "components.a.buckets.by",
        "pairs: false, buckets: {by: chosen, edges: [1], keep: [1]}",
    ),
]


@pytest.mark.parametrize(("component", "more", "field", "cured"), REFUSED)
def test_what_would_part_pairs_is_refused_and_the_cure_works(folder, component, more, field, cured):
    with pytest.raises(ConfigError) as caught:
        config_of(folder, component, more).loader()
    assert caught.value.field == field
    assert caught.value.cure
    config_of(folder, cured, more).dataset()


@pytest.mark.parametrize("more", ["", "split_documents: true", "seq_len: {0: 32, 2: 48}"])
@pytest.mark.parametrize("component", ["pairs: false", "pairs: false, loss_mask: none"])
def test_the_word_trains_on_both_answers_as_on_text(folder, component, more):
    assert train(config_of(folder, component, more))[1] <= {0.0, 1.0}
    assert 1.0 in train(config_of(folder, component, more))[1]


def test_pairs_are_mixed_with_pairs_or_as_text(folder):
    beside = "  b: {cache: text, packing: {}}\n"
    with pytest.raises(ConfigError, match="preference pairs, and another component") as caught:
        config_of(folder, "packing: {}", "", beside).dataset()
    assert "components.a.pairs: false" in (caught.value.cure or "")
    chosen, rejected = train(config_of(folder, "packing: {}, pairs: false", "", beside))
    assert chosen == rejected == {1.0}


def test_the_python_api_refuses_and_packs_alike(folder):
    pairs = str(folder / "pairs")
    with pytest.raises(ConfigError, match="preference pairs") as caught:
        TokenSeqDataset(pairs, 64)
    assert caught.value.field == "packing"
    assert "PackedTokenDataset" in (caught.value.cure or "")
    with pytest.raises(ConfigError, match="neither true nor false"):
        TokenSeqDataset(pairs, 64, pairs="text")  # pyright: ignore[reportArgumentType]
    text = TokenSeqDataset(pairs, 64, pairs=False)
    assert len(text.with_rows(32)) >= 2 * len(text)
    assert len(text.holdout_documents(4)[1]) > 0
    packed = PackedTokenDataset(pairs, 64)
    assert (packed.unit, packed.packing.long, packed.pairs) == (2, "drop", True)
    assert packed.holdout_documents(4)[1].unit == 2
    alone = PackedTokenDataset(pairs, 64, pairs=False)
    assert (alone.unit, alone.pairs) == (1, False)


def test_text_is_packed_as_ever(folder):
    packed = PackedTokenDataset(str(folder / "text"), 64)
    assert (packed.unit, packed.packing.long, packed.pairs) == (1, "split", False)
    assert PackingConfig().spec(64).policy == "split"
