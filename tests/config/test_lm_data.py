"""One config for YAML, flags and Python; every wrong value named by its path, with what to write
instead.
"""

import json
from pathlib import Path

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from msgspec import structs

from headrace.config import ComponentConfig, LmDataConfig, load_config
from headrace.config.parsing import read_mapping, with_overrides
from headrace.data import MixtureDataset
from headrace.errors import CacheMissingError, CacheUnfinishedError, ConfigError
from headrace.ingest import SourceConfig, TokenizerConfig
from headrace.ingest.tokenize import load_tokenizer
from headrace.order import BlockShuffleConfig, BraidShuffleConfig
from headrace.run import RunLock
from headrace.store.ledger import Ledger, read_ledger, write_ledger
from headrace.testing import tiny_cache, write_cache
from headrace.testing.caches import random_documents

EXAMPLE = """
seq_len: 16
batch_size: {0: 8, 20: 16}
seed: 3
shuffle: {window_blocks: 4}
components:
  a: {cache: caches/a, weight: 3}
  b: {cache: caches/b, weight: {linear: {0: 0, 30: 2}}, shuffle: true}
  c: {cache: caches/c, weight: 1e-1, shuffle: {strands: 5}}
"""


def refused(*overrides, path=None):
    with pytest.raises(ConfigError) as caught:
        load_config(path, overrides)
    return caught.value


def test_yaml_flags_and_python_give_the_same_config(tmp_path):
    (tmp_path / "c.yaml").write_text(EXAMPLE)
    from_yaml = load_config(f"{tmp_path}/c.yaml")
    from_flags = load_config(
        overrides=[
            "--seq_len=16",
            "--batch_size",
            "{0: 8, 20: 16}",
            "seed=3",
            "shuffle.window_blocks=4",
            "--components.a.cache",
            "caches/a",
            "components.a.weight=3",
            "components.b={cache: caches/b, weight: {linear: {0: 0, 30: 2}}, shuffle: true}",
            "components.c.cache=caches/c",
            "components.c.weight=1e-1",
            "components.c.shuffle.strands=5",
        ]
    )
    in_python = LmDataConfig(
        components={
            "a": ComponentConfig("caches/a", 3.0),
            "b": ComponentConfig("caches/b", {"linear": {0: 0, 30: 2}}, shuffle=True),
            "c": ComponentConfig("caches/c", 0.1, shuffle=BraidShuffleConfig(strands=5)),
        },
        seq_len=16,
        batch_size={0: 8, 20: 16},
        seed=3,
        shuffle=BlockShuffleConfig(window_blocks=4),
    )
    assert from_yaml == from_flags == in_python


shuffles = st.one_of(
    st.booleans(),
    st.integers(1, 99),
    st.builds(
        BlockShuffleConfig,
        window_blocks=st.integers(1, 9),
        perm_type=st.sampled_from(["feistel", "linear"]),
    ),
    st.builds(BraidShuffleConfig, strands=st.none() | st.integers(1, 9)),
)
configs = st.builds(
    LmDataConfig,
    components=st.dictionaries(
        st.text("abcxyz_0", min_size=1, max_size=4),
        st.builds(
            ComponentConfig,
            cache=st.text("abc/:.", min_size=1, max_size=9),
            weight=st.none()
            | st.just(0.0)
            | st.floats(1e-300, 9)
            | st.just({"step": {0: 1.0, 5: 2.0}, "scale": 0.5}),
            shuffle=st.none() | shuffles,
            source=st.none() | st.just(SourceConfig(["texts/*.jsonl.gz"], text_field="body")),
        ),
        max_size=3,
    ),
    seq_len=st.integers(2, 9999),
    batch_size=st.integers(1, 999) | st.just({0: 8, 100: 16}),
    seed=st.integers(-5, 2**63),
    shuffle=shuffles,
    tokenizer=st.none() | st.just(TokenizerConfig("tokenizer.json", bos="<s>", eos="none")),
    split_documents=st.booleans(),
    row_order=st.sampled_from(["locality", "stream"]),
)


@given(config=configs)
def test_what_is_written_is_read_back(config, tmp_path_factory):
    path = tmp_path_factory.getbasetemp() / "round.yaml"
    path.write_text(config.to_yaml())
    assert load_config(str(path)) == config


@given(
    st.dictionaries(
        st.sampled_from("abc"),
        st.integers() | st.dictionaries(st.sampled_from("ab"), st.integers()),
    ),
    st.lists(st.tuples(st.sampled_from(["a", "b", "a.b", "c.a.b"]), st.integers()), max_size=4),
)
def test_overrides_set_what_they_name_and_nothing_else(config, settings):
    before = json.dumps(config)
    wanted = json.loads(before)
    flags = [f"{name}={value}" for name, value in settings]
    for name, value in settings:
        *parents, last = name.split(".")
        target = wanted
        for parent in parents:
            target = target.setdefault(parent, {})
            if not isinstance(target, dict):
                with pytest.raises(ConfigError, match="and not a mapping"):
                    with_overrides(config, flags)
                return
        target[last] = value
    assert with_overrides(config, flags) == wanted
    assert json.dumps(config) == before


@pytest.mark.parametrize(
    ("override", "field", "cure"),
    [
        ("seqlen=3", "seqlen", "Did you mean 'seq_len'"),
        ("components.a={cache: x, wieght: 3}", "components.a.wieght", "Did you mean 'weight'?"),
        ("shuffle={window: 3}", "shuffle.window", "window_blocks"),
        ("tokenizer.pth=x", "tokenizer.pth", "Did you mean 'path'?"),
        (
            "components.a={cache: x, source: {path: [t]}}",
            "components.a.source.path",
            "Did you mean 'paths'?",
        ),
        ("components.a.weight=1", "components.a.cache", "Give a text or a list."),
        ("components.a=3", "components.a", "Give a cache or a mapping"),
        ("components=[1]", "components", "Give a mapping"),
        ("components.a=", "components.a", "Give a cache or a mapping"),
        ("components.a={cache: x, source: {paths: t}}", "components.a.source.paths", "Write [t]."),
        ("components.a={cache: x, weight: -1}", "components.a.weight", "Weights are relative"),
        (
            "components.a={cache: x, weight: {lin: {0: 1}}}",
            "components.a.weight",
            "Did you mean 'linear'?",
        ),
        (
            "components.a={cache: x, weight: [1]}",
            "components.a.weight",
            "Give a number or a mapping",
        ),
        ("components.a={cache: x, shuffle: -2}", "components.a.shuffle", "Give false (none)"),
        ("seq_len=abc", "seq_len", "Give a whole number or a mapping such as {0: ...}."),
        ("seq_len=2.5", "seq_len", "Give a whole number or a mapping such as {0: ...}."),
        ("seq_len=1", "seq_len", "Write a number of tokens, or {0: 4096, 10000: 32768}."),
        ("seq_len=", "seq_len", "or leave the name out"),
        ("batch_size=0", "batch_size", "Write a number of examples"),
        ("batch_size={5: 8}", "batch_size", "{0: 32, 1000: 64}"),
        ("batch_size=many", "batch_size", "Give a whole number or a mapping such as {0: ...}."),
        ("seed=1.5", "seed", "Give a whole number."),
        ("shuffle=0", "shuffle", "Give false (none), true (full)"),
        ("shuffle=", "shuffle", "or leave the name out"),
        ("shuffle=full", "shuffle", "Give true or false, a whole number"),
        ("shuffle={}", "shuffle", "Say which: kind: braid or kind: block or"),
        ("shuffle={kind: blok}", "shuffle.kind", "Did you mean 'block'?"),
        ("shuffle={window_blocks: 3, strands: 4}", "shuffle", "Say which: kind:"),
        ("shuffle={window_blocks: 0}", "shuffle.window_blocks", "Leave it out for the default."),
        (
            "shuffle={window_blocks: 4, perm_type: fiestel}",
            "shuffle.perm_type",
            "Did you mean 'feistel'?",
        ),
        (
            "components.a={cache: x, shuffle: {window_blocks: 4, perm_type: fiestel}}",
            "components.a.shuffle.perm_type",
            "Did you mean 'feistel'?",
        ),
        ("num_steps=1.5", "num_steps", "Give a whole number."),
        ("num_steps=1.55e1", "num_steps", "Give a whole number."),
        (
            "components.a={cache: x, max_tokens: 1e-9}",
            "components.a.max_tokens",
            "Give a whole number.",
        ),
        ("seq_len={0: 16, 1000: 32, 1e3: 64}", "seq_len", "Write each number once."),
        ("amendments=[{step: 10}]", "amendments[0]", "Give it add, weights, drop or skip"),
        ("row_order=local", "row_order", "Did you mean 'locality'?"),
        ("prefetch_bytes=0", "prefetch_bytes", "E.g. 1073741824"),
        ("split_documents=1", "split_documents", "Give true or false."),
        ("tokenizer=bytes", "tokenizer", "Give a mapping such as {path: ...}."),
        ("seq_len", "override", "Write name.of.field=value."),
        ("--seq_len", "override", "Write name.of.field=value."),
        ("=3", "override", "Write name.of.field=value."),
    ],
)
def test_every_wrong_value_is_named_with_what_to_write(override, field, cure):
    error = refused(override)
    assert error.field == field
    assert cure in (error.cure or "")
    assert "\n" not in str(error)
    assert "draccus" not in str(error)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("- 1", "is not a mapping"),
        ("seq_len: [", "is not YAML"),
        ("seq_len: 8\nseq_len: 9", "the key 'seq_len' stands twice in line 2"),
        ("seq_len: 2020-13-45", "month must be in"),
        ("seq_len: !!python/object:os.system x", "could not determine a constructor"),
        ("{a: 1}: 2", "unhashable key"),
        ("\x00", "special characters"),
    ],
)
def test_files_that_are_no_config(tmp_path, text, problem):
    (tmp_path / "c.yaml").write_text(text)
    error = refused(path=f"{tmp_path}/c.yaml")
    assert problem in str(error)
    assert (error.field, error.value) == ("config", f"{tmp_path}/c.yaml")


def test_files_that_cannot_be_read(tmp_path):
    assert "does not exist" in str(refused(path=f"{tmp_path}/nope.yaml"))
    assert "is a folder. Give the path of a YAML file." in str(refused(path=str(tmp_path)))
    (tmp_path / "empty.yaml").write_text("")
    assert load_config(f"{tmp_path}/empty.yaml") == LmDataConfig()


def test_yaml_merges_work(tmp_path):
    (tmp_path / "c.yaml").write_text("a: &a {x: 1, y: 2}\nb: {<<: *a, y: 3}\n")
    assert read_mapping(f"{tmp_path}/c.yaml")["b"] == {"x": 1, "y": 3}


def in_files(value, holder: Path, name: str, split) -> str:
    """YAML of a tree, for a file in the folder ``holder``; mappings that ``split`` chooses are
    files further below.
    """
    if not isinstance(value, dict):
        return json.dumps(value)
    alone = split()
    inner = holder / "sub" if alone else holder
    entries = [
        f"{key}: {in_files(entry, inner, f'{name}{n}', split)}"
        for n, (key, entry) in enumerate(value.items())
    ]
    text = "{" + ", ".join(entries) + "}"
    if not alone:
        return text
    inner.mkdir(parents=True, exist_ok=True)
    (inner / f"{name}.yaml").write_text(text)
    return f"!include sub/{name}.yaml"


@given(
    tree=st.recursive(
        st.integers(0, 9) | st.sampled_from(["a", "b c"]),
        lambda inner: st.dictionaries(st.sampled_from("pqrs"), inner, min_size=1, max_size=3),
        max_leaves=9,
    ).filter(lambda tree: isinstance(tree, dict)),
    data=st.data(),
)
def test_a_tree_in_several_files_is_the_tree(tmp_path_factory, tree, data):
    root = tmp_path_factory.mktemp("files")
    lines = [
        f"{key}: {in_files(entry, root, f'f{n}', lambda: data.draw(st.booleans()))}"
        for n, (key, entry) in enumerate(tree.items())
    ]
    (root / "run.yaml").write_text("\n".join(lines))
    assert read_mapping(f"{root}/run.yaml") == tree
    (root / "all.yaml").write_text("<<: !include run.yaml\np: 1\n")
    assert read_mapping(f"{root}/all.yaml") == {**tree, "p": 1}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("x: !include a.yaml", "a.yaml"),
        ("x: !include ./a.yaml", "./a.yaml"),
        ("x: !include back.yaml", "a.yaml"),
        ("x: !include none.yaml", "none.yaml"),
        ("x: !include ''", "{folder}/a.yaml, line 1"),
        ("y: 1\nx: !include {a: b}", "{folder}/a.yaml, line 2"),
    ],
)
def test_includes_that_are_refused(tmp_path, text, value):
    (tmp_path / "a.yaml").write_text(text)
    (tmp_path / "back.yaml").write_text("!include a.yaml")
    error = refused(path=f"{tmp_path}/a.yaml")
    assert error.field == "!include"
    assert str(error.value).endswith(value.format(folder=tmp_path))
    assert ".yaml, line" in str(error)


def test_an_error_in_an_included_file_names_that_file(tmp_path):
    (tmp_path / "a.yaml").write_text("x: 1\ny: !include b.yaml\n")
    for bad in ("k: 1\nk: 2", "k: 1\nl: [", "k: 1\nl: !!python/object:os.system x"):
        (tmp_path / "b.yaml").write_text(bad)
        error = refused(path=f"{tmp_path}/a.yaml")
        assert error.value == f"{tmp_path}/b.yaml"
        assert "in line 2" in str(error)


def test_an_include_in_a_setting_starts_from_the_working_folder(tmp_path, monkeypatch):
    (tmp_path / "c.yaml").write_text("{a: caches/a}")
    monkeypatch.chdir(tmp_path)
    assert load_config(overrides=["components=!include c.yaml"]).components["a"].cache == "caches/a"


@pytest.fixture
def config(tmp_path):
    """A file with three small caches."""
    for k, name in enumerate("abc"):
        tiny_cache(tmp_path / "caches" / name, documents=200 + 50 * k, parts=k + 1, seed=k)
    path = tmp_path / "c.yaml"
    path.write_text(EXAMPLE.replace("caches/", f"{tmp_path}/caches/"))
    return str(path)


def one_device():
    return Mesh(np.array(jax.devices()[:1]), ("data",))


def test_a_config_is_a_loader(config):
    loading = load_config(config)
    loader = loading.loader(one_device())
    dataset = loading.dataset()
    assert isinstance(dataset, MixtureDataset)
    assert dataset.names == ("a", "b", "c")
    for step in (0, 19, 20):
        first, size = loader.schedule.rows_at(step)
        wanted = sorted(map(tuple, dataset.read(np.arange(first, first + size)).tokens.tolist()))
        assert sorted(map(tuple, np.asarray(loader.batch_at(step).tokens).tolist())) == wanted
    with pytest.raises(ConfigError, match="keeps open on this host"):  # with a function as without
        load_config(config, ["prefetch_bytes=10"]).loader(
            one_device(), fn=lambda batch: batch.tokens
        )
    sharding = NamedSharding(one_device(), PartitionSpec("data", None))
    twice = load_config(config, ["row_order=stream"]).loader(
        sharding=sharding, fn=lambda batch: batch.tokens * 2
    )
    assert (twice.row_order, twice.prefetch_bytes) == ("stream", loading.prefetch_bytes)
    first, size = loader.schedule.rows_at(3)
    assert np.array_equal(
        twice.batch_at(3), dataset.read(np.arange(first, first + size)).tokens * 2
    )


def test_equal_configs_are_equal_runs_wherever_their_caches_lie(config, tmp_path):
    one = RunLock.of(load_config(config).loader(one_device()))
    (tmp_path / "caches").rename(tmp_path / "moved")
    text = Path(config).read_text().replace("/caches/", "/moved/")
    Path(config).write_text(text + "prefetch_bytes: 100000000\n")
    assert RunLock.of(load_config(config).loader()).fingerprint == one.fingerprint
    for changed in (
        "seed=4",
        "seq_len=17",
        "shuffle.window_blocks=5",
        "components.a.weight=2",
        "row_order=stream",
    ):
        assert (
            RunLock.of(load_config(config, [changed]).loader(one_device())).fingerprint
            != one.fingerprint
        )


def test_components_are_shuffled_independently_of_each_other(config):
    """Adding a source does not change the order of those that were there."""
    two = load_config(config)
    components = {**two.components, "d": ComponentConfig(two.components["a"].cache, 1.0)}
    three = LmDataConfig(**{**two.__dict__, "components": components})
    before = two.dataset()
    after = three.dataset()
    assert isinstance(before, MixtureDataset)
    assert isinstance(after, MixtureDataset)
    for one, same in zip(before.components, after.components, strict=False):
        assert np.array_equal(one.read(np.arange(50)).tokens, same.read(np.arange(50)).tokens)
    first, last = (after.components[k].read(np.arange(50)).tokens for k in (0, 3))
    assert not np.array_equal(first, last)  # the same cache under another name: another order


@pytest.mark.parametrize(
    ("overrides", "field", "text"),
    [
        (["components={}"], "components", "at least one"),
        (["components.a.cache=/nope"], "cache", "--output /nope"),
        (["seq_len=100000"], "seq_len", "Use a shorter seq_len or a larger corpus."),
        (["batch_size=6"], "batch_size", "Use 4 or 8, or another mesh."),
        (
            ["components.a.weight=0", "components.b.weight=0", "components.c.weight=0"],
            None,
            "weights are zero",
        ),
        (
            [
                "components.a.weight={step: {0: 1, 9: 0}}",
                "components.b.weight=0",
                "components.c.weight=0",
            ],
            None,
            "step 9",
        ),
        (["prefetch_bytes=500"], "prefetch_bytes", "or lower shuffle.strands (or window_blocks)"),
        (["tokenizer.path=/nope.json"], "tokenizer", "Give a tokenizer.json"),
        (["tokenizer.path=bytes"], "tokenizer", "Use the one it was built with"),
    ],
)
def test_what_only_the_data_can_tell(config, overrides, field, text):
    four = Mesh(np.array(jax.devices()[:4]), ("data",))
    with pytest.raises((ConfigError, CacheMissingError)) as caught:
        load_config(config, overrides).loader(four)
    assert text in str(caught.value)
    if field is not None:
        assert caught.value.field == field


@pytest.mark.parametrize("size", [7, 258, 1 << 17])
def test_the_vocabulary_is_that_of_the_caches(tmp_path, size):
    cache = write_cache(
        tmp_path / "a", [random_documents(5, vocab_size=7)], vocab_size=size, eos_id=size - 1
    )
    config = LmDataConfig({"a": ComponentConfig(cache.path), "b": ComponentConfig(cache.path)})
    assert config.vocab_size == size
    with pytest.raises(CacheMissingError):
        LmDataConfig({"a": ComponentConfig(str(tmp_path / "b"))}).vocab_size  # noqa: B018


def test_the_wrong_tokenizer_for_a_cache_is_named(tmp_path):
    tokenizer = load_tokenizer(TokenizerConfig("bytes"))
    cache = write_cache(tmp_path / "a", [random_documents(20)], vocab_size=258, eos_id=256)
    write_ledger(
        cache.path, Ledger(True, tokenizer.record(), cache.ledger.layout, parts=cache.ledger.parts)
    )
    LmDataConfig(
        {"a": ComponentConfig(cache.path)}, tokenizer=TokenizerConfig("bytes")
    ).open_caches()
    wrong = LmDataConfig(
        {"a": ComponentConfig(cache.path)}, tokenizer=TokenizerConfig("bytes", eos="none")
    )
    with pytest.raises(ConfigError, match="eos '<eos>' there, None here") as caught:
        wrong.open_caches()
    assert (caught.value.field, caught.value.value) == ("tokenizer", "bytes")
    assert cache.path in str(caught.value)


def test_caches_of_one_mixture_have_one_tokenizer(config, tmp_path):
    ledger = read_ledger(f"{tmp_path}/caches/b")
    assert ledger is not None
    other = {**ledger.tokenizer, "fingerprint": "another"}
    write_ledger(f"{tmp_path}/caches/b", Ledger(True, other, ledger.layout, parts=ledger.parts))
    with pytest.raises(ConfigError, match="was built with another tokenizer than 'a'") as caught:
        load_config(config).open_caches()
    assert caught.value.field == "components.b.cache"
    assert "build one of them again" in (caught.value.cure or "")


def test_caches_are_built_where_they_are_missing_and_finished_where_they_were_begun(tmp_path):
    (tmp_path / "text.txt").write_text("Water runs to the wheel. " * 50)
    source = SourceConfig([f"{tmp_path}/text.txt"])
    config = LmDataConfig(
        {"a": ComponentConfig(f"{tmp_path}/a", source=source)}, seq_len=16, batch_size=8
    )
    with pytest.raises(CacheMissingError):
        config.open_caches()
    config.build_caches(progress=False)
    ledger = read_ledger(f"{tmp_path}/a")
    assert ledger is not None
    write_ledger(f"{tmp_path}/a", structs.replace(ledger, finished=False, parts=[]))
    with pytest.raises(CacheUnfinishedError):
        config.open_caches()
    config.build_caches(progress=False)
    config.build_caches(progress=False)  # nothing left to do
    assert config.open_caches()["a"].num_tokens == 50 * 25 + 1
    assert read_ledger(f"{tmp_path}/a") == ledger


def test_a_missing_cache_without_a_source_cannot_be_built(tmp_path):
    config = LmDataConfig({"a": ComponentConfig(f"{tmp_path}/a")})
    with pytest.raises(ConfigError, match="no source to build it from") as caught:
        config.build_caches()
    assert caught.value.field == "components.a.cache"
    assert "Add components.a.source" in (caught.value.cure or "")
