"""Attributes of documents: joined by id or number, each document its own value or an error."""

import gzip
import json
import re
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from headrace import (
    ComponentConfig,
    LmDataConfig,
    SourceConfig,
    TokenizerConfig,
    build_cache,
    load_config,
)
from headrace.cli.application import application
from headrace.data.attributes import AttributeConfig, open_attribute
from headrace.data.buckets import BucketsConfig
from headrace.data.columns import ColumnConfig
from headrace.data.id_index import IdIndex, hashes_of_numbers, hashes_of_texts
from headrace.errors import ConfigError
from headrace.ingest import reshuffle
from headrace.ingest.reshuffle import ReshuffleConfig
from headrace.pack import PackingConfig
from headrace.store import TokenCache, files, open_cache
from headrace.store.layout import LeafSpec
from headrace.testing import tiny_cache, write_cache

DOCUMENTS = 40


def with_ids(folder: Path, ids: list[str], parts: int = 3) -> TokenCache:
    """A cache whose document k has the tokens k, k, ... and an id."""
    cuts = np.array_split(np.arange(len(ids)), parts)
    documents = [[np.full(1 + k % 3, k) for k in cut] for cut in cuts]
    values = {
        LeafSpec("id", "uint8", "ragged"): lambda tokens: np.frombuffer(
            ids[tokens[0]].encode(), np.uint8
        )
    }
    return write_cache(folder, documents, vocab_size=1000, leaves=values)


IDS = [f"doc/{k * 7}" for k in range(DOCUMENTS)]


@pytest.fixture(scope="module")
def plain(tmp_path_factory) -> TokenCache:
    return with_ids(tmp_path_factory.mktemp("plain") / "cache", IDS)


def written(path: Path, columns: dict[str, list]) -> str:
    """A table, in the format of the file's ending."""
    rows = [dict(zip(columns, row, strict=False)) for row in zip(*columns.values(), strict=False)]
    if path.suffix == ".parquet":
        pq.write_table(pa.table(columns), path, row_group_size=7)
    elif path.suffix == ".csv":
        lines = [",".join(columns), *(",".join(map(str, row.values())) for row in rows)]
        path.write_text("\n".join(lines))
    else:
        path.write_text("\n".join(json.dumps(row) for row in rows))
    return str(path)


@pytest.mark.parametrize("ending", [".parquet", ".jsonl", ".csv"])
def test_each_document_has_the_value_of_its_id_whatever_the_order(plain, tmp_path, ending):
    order = np.random.default_rng(1).permutation(DOCUMENTS).tolist()
    half = DOCUMENTS // 2
    for name, some in {"b": order[:half], "a": order[half:]}.items():
        columns = {"id": [IDS[k] for k in some], "quality": [k / 4 for k in some]}
        written(tmp_path / f"{name}{ending}", columns)
    for _ in range(2):  # joined, and then read
        config = AttributeConfig(f"{tmp_path}/*{ending}")
        attribute = open_attribute(plain, "quality", config)
        assert attribute.values.tolist() == [k / 4 for k in range(DOCUMENTS)]
        assert (attribute.rows, attribute.not_found, attribute.missing) == (DOCUMENTS, 0, 0)
    assert files.names_in(f"{plain.path}/attributes")


@settings(max_examples=25)
@given(data=st.data())
def test_rows_by_number_follow_the_original_of_a_shuffled_cache(tmp_path_factory, plain, data):
    folder = tmp_path_factory.mktemp("moved")
    moved = open_cache(
        reshuffle(
            plain.path,
            str(folder / "moved"),
            ReshuffleConfig(seed=3, split=data.draw(st.sampled_from([None, 2]))),
        ).path
    )
    assert moved.num_originals == DOCUMENTS
    numbers = data.draw(st.permutations(range(DOCUMENTS)))
    values = data.draw(st.lists(st.booleans(), min_size=DOCUMENTS, max_size=DOCUMENTS))
    table = {"document": numbers, "dup": [values[k] for k in numbers]}
    config = AttributeConfig(written(folder / "dup.parquet", table), key="document")
    stored = open_attribute(moved, "dup", config).values
    assert stored.tolist() == [values[k] for k in moved.originals(np.arange(moved.num_documents))]
    np.save(folder / "dup.npy", np.array(values))
    of_array = open_attribute(moved, "dup", AttributeConfig(f"{folder}/dup.npy")).values
    assert of_array.tolist() == stored.tolist()


@given(st.lists(st.text(max_size=12), min_size=1, max_size=30), st.lists(st.text(max_size=12)))
def test_an_index_finds_the_documents_that_a_comparison_finds(ids, wanted):
    def hashed(texts: list[str]) -> np.ndarray:
        raw = [text.encode() for text in texts]
        lengths = np.array([len(one) for one in raw], np.int64)
        return hashes_of_texts(np.frombuffer(b"".join(raw), np.uint8), lengths)

    wanted = wanted + ids[:2]
    rows, documents = IdIndex([hashed(ids)], len(ids)).find(hashed(wanted))
    pairs = [(r, d) for r, text in enumerate(wanted) for d, own in enumerate(ids) if own == text]
    assert sorted(zip(rows.tolist(), documents.tolist(), strict=False)) == pairs


def test_hashes_of_many_ids_are_all_different():
    assert np.unique(hashes_of_numbers(np.arange(-1000, 200_000))[0]).size == 201_000
    texts = [f"{k:x}" for k in range(100_000)]
    data = np.frombuffer("".join(texts).encode(), np.uint8)
    for hashes in hashes_of_texts(data, np.array([len(text) for text in texts])):
        assert np.unique(hashes).size == len(texts)


def test_documents_without_a_value_are_refused_and_the_cure_works(plain, tmp_path):
    table = {"id": [*IDS[:30], "other"], "quality": [1] * 31}
    path = written(tmp_path / "a.parquet", table)
    with pytest.raises(ConfigError, match="10 of 40 documents have no value") as refused:
        open_attribute(plain, "quality", AttributeConfig(path), "components.web.attributes")
    assert refused.value.field == "components.web.attributes.quality.missing"
    assert "1 of 31 rows are of no document" in str(refused.value)
    assert "{missing: 0.25, default: 0}" in str(refused.value.cure)
    attribute = open_attribute(plain, "quality", AttributeConfig(path, missing=0.25, default=0))
    assert attribute.values.tolist() == [1] * 30 + [0] * 10
    assert (attribute.not_found, attribute.missing) == (1, 10)


NUMERALS = [f"{k:03}" for k in range(DOCUMENTS)]
DAYS = [f"2024-{1 + k // 28:02}-{1 + k % 28:02}" for k in range(DOCUMENTS)]


@pytest.mark.parametrize("ids", [NUMERALS, DAYS])
@pytest.mark.parametrize("ending", [".csv", ".jsonl"])
def test_ids_that_look_like_numbers_or_dates_are_texts_where_the_cache_has_texts(
    tmp_path, ids, ending
):
    cache = with_ids(tmp_path / "cache", ids)
    written(tmp_path / f"a{ending}", {"id": ids, "quality": [*range(DOCUMENTS)]})
    (tmp_path / f"empty{ending}").touch()
    attribute = open_attribute(cache, "quality", AttributeConfig(f"{tmp_path}/*{ending}"))
    assert attribute.values.tolist() == [*range(DOCUMENTS)]


@pytest.mark.parametrize(
    "ids", [pa.array(IDS).dictionary_encode(), pa.array([name.encode() for name in IDS])]
)
def test_texts_may_be_stored_as_a_dictionary_or_as_bytes(plain, tmp_path, ids):
    table = pa.table({"id": ids, "quality": range(DOCUMENTS)})
    pq.write_table(table, tmp_path / "a.parquet")
    attribute = open_attribute(plain, "quality", AttributeConfig(f"{tmp_path}/a.parquet"))
    assert attribute.values.tolist() == [*range(DOCUMENTS)]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.csv", "id,quality\n1,2\n3,4,5\n"),
        ("a.jsonl", '{"id": "doc/0", "quality": 1}\n{"id": "doc/1", "qual'),
        ("a.jsonl", '{"id": "doc/0", "quality": 1}\n{"id": 7, "quality": 1}'),
        ("a.parquet", "PAR1"),
    ],
)
def test_a_damaged_table_is_named(plain, tmp_path, name, text):
    (tmp_path / name).write_text(text)
    config = AttributeConfig(f"{tmp_path}/{name}", missing=1, default=0)
    with pytest.raises(ConfigError, match="cannot be read as") as refused:
        open_attribute(plain, "quality", config)
    assert refused.value.value == str(tmp_path / name)


@pytest.mark.parametrize(
    ("spec", "value"),
    [(LeafSpec("id", "float32", "fixed"), 0.5), (LeafSpec("id", "int32", "ragged"), 1)],
)
def test_a_leaf_that_holds_no_ids_is_refused(tmp_path, spec, value):
    values = {spec: lambda _: np.array([value], spec.dtype)}
    cache = write_cache(tmp_path / "cache", [[np.ones(3, int)]], vocab_size=10, leaves=values)
    path = written(tmp_path / "a.parquet", {"id": [0], "quality": [1]})
    with pytest.raises(ConfigError, match="no leaf of ids"):
        open_attribute(cache, "quality", AttributeConfig(path))


def test_a_null_is_no_value(plain, tmp_path):
    path = written(tmp_path / "a.parquet", {"id": IDS, "quality": [None, *range(1, DOCUMENTS)]})
    config = AttributeConfig(path, missing=0.1, default=-1)
    assert open_attribute(plain, "quality", config).values.tolist() == [-1, *range(1, DOCUMENTS)]


BEYOND = 2**53 + 1 + np.arange(DOCUMENTS)


@pytest.mark.parametrize(
    ("values", "default"),
    [(BEYOND, 0), (BEYOND, -1.0), (np.ones(DOCUMENTS, bool), 2049), (BEYOND % 200, 0.1)],
)
def test_a_default_rounds_neither_itself_nor_the_others(plain, tmp_path, values, default):
    path = written(tmp_path / "a.parquet", {"id": IDS[1:], "quality": values[1:].tolist()})
    config = AttributeConfig(path, missing=0.1, default=float(default))
    found = open_attribute(plain, "quality", config).values.tolist()
    assert found == [default, *values[1:].tolist()]


@pytest.mark.parametrize("dtype", ["float16", "longdouble", ">i4", ">f8", "bool"])
def test_numbers_of_any_dtype_are_stored_as_they_are(tmp_path, dtype):
    cache = with_ids(tmp_path / "cache", IDS)
    numbers = (np.arange(DOCUMENTS) % 2).astype(dtype)
    np.save(tmp_path / "a.npy", numbers)
    for _ in range(2):  # joined, then read
        found = open_attribute(cache, "quality", AttributeConfig(f"{tmp_path}/a.npy")).values
        assert found.tolist() == numbers.astype(float).tolist()
        assert found.dtype in ("uint8", "int32", "float32", "float64")
    assert any((tmp_path / "cache" / "attributes").iterdir())


@pytest.mark.parametrize("number", [np.nan, np.inf])
def test_a_list_of_numbers_that_are_none_is_refused(plain, tmp_path, number):
    np.save(tmp_path / "a.npy", np.full(DOCUMENTS, number))
    with pytest.raises(ConfigError, match="NaN or infinity") as refused:
        open_attribute(plain, "quality", AttributeConfig(f"{tmp_path}/a.npy"), "attributes")
    assert refused.value.field == "attributes.quality.files"


def test_a_file_may_have_no_value_at_all(plain, tmp_path):
    written(tmp_path / "a0.csv", {"id": IDS[:1], "quality": [""]})
    written(tmp_path / "a1.csv", {"id": IDS[1:], "quality": [*range(1, DOCUMENTS)]})
    config = AttributeConfig(f"{tmp_path}/a*.csv", missing=0.1, default=-1)
    assert open_attribute(plain, "quality", config).values.tolist() == [-1, *range(1, DOCUMENTS)]


@pytest.mark.parametrize("fractions_first", [False, True])
def test_whole_numbers_that_fractions_would_round_are_refused(plain, tmp_path, fractions_first):
    half = DOCUMENTS // 2
    names = ["b", "a"] if fractions_first else ["a", "b"]
    written(tmp_path / f"{names[0]}.parquet", {"id": IDS[:half], "quality": BEYOND[:half].tolist()})
    written(tmp_path / f"{names[1]}.parquet", {"id": IDS[half:], "quality": [0.5] * half})
    with pytest.raises(ConfigError, match="beyond 2\\*\\*53"):
        open_attribute(plain, "quality", AttributeConfig(f"{tmp_path}/*.parquet"))


@pytest.mark.parametrize(
    ("columns", "config", "field", "problem"),
    [
        ({"id": ["doc/0"], "other": [1]}, {}, "value", "no column"),
        ({"key": ["doc/0"], "quality": [1]}, {}, "key", "no column"),
        ({"id": ["doc/0"], "quality": ["good"]}, {}, "value", "not numbers"),
        ({"id": ["doc/0"], "quality": [float("nan")]}, {}, "value", "NaN"),
        ({"id": [0.5], "quality": [1]}, {}, "key", "holds double .* are texts"),
        ({"id": [7], "quality": [1]}, {"missing": 1, "default": 0}, "key", "holds int64 .* texts"),
        ({"id": [None, "doc/0"], "quality": [1, 2]}, {}, "key", "null"),
        ({"id": ["doc/0", "doc/0"], "quality": [1, 2]}, {}, "value", "two values of document 0"),
        ({"document": ["0"], "quality": [1]}, {"key": "document"}, "key", "holds string"),
        ({"id": ["doc/0"], "quality": [1]}, {"id_leaf": "url"}, "id_leaf", "not a leaf"),
    ],
)
def test_tables_that_cannot_be_joined_are_refused(plain, tmp_path, columns, config, field, problem):
    path = written(tmp_path / "a.parquet", columns)
    with pytest.raises(ConfigError, match=problem) as refused:
        open_attribute(plain, "quality", AttributeConfig(path, **config), "attributes")
    assert refused.value.field == f"attributes.quality.{field}"


def test_files_that_are_no_tables_are_refused(plain, tmp_path):
    with pytest.raises(ConfigError, match="names no file"):
        open_attribute(plain, "quality", AttributeConfig(f"{tmp_path}/none/*.parquet"))
    (tmp_path / "a.txt").write_text("1")
    with pytest.raises(ConfigError, match="no format"):
        open_attribute(plain, "quality", AttributeConfig(f"{tmp_path}/a.txt"))
    np.save(tmp_path / "a.npy", np.zeros(3))
    with pytest.raises(ConfigError, match="shape"):
        open_attribute(plain, "quality", AttributeConfig(f"{tmp_path}/a.npy"))
    with pytest.raises(ConfigError, match="default"):
        AttributeConfig("a.npy", missing=0.5)


def test_a_damaged_result_is_made_again_and_verify_finds_it(tmp_path):
    cache = with_ids(tmp_path / "cache", IDS)
    path = written(tmp_path / "a.parquet", {"id": IDS, "quality": [*range(DOCUMENTS)]})
    open_attribute(cache, "quality", AttributeConfig(path))
    (values,) = (tmp_path / "cache" / "attributes").glob("*/values.bin")
    raw = bytearray(values.read_bytes())
    raw[3] ^= 1
    values.write_bytes(raw)
    done = CliRunner().invoke(application(), ["cache", "verify", str(tmp_path / "cache")])
    assert done.exit_code == 1
    assert "values.bin" in done.output
    again = open_attribute(cache, "quality", AttributeConfig(path))
    assert again.values.tolist() == [*range(DOCUMENTS)]


def test_a_repair_deletes_a_damaged_result(tmp_path):
    (tmp_path / "a.txt").write_text("hello")
    cache = str(tmp_path / "cache")
    source = SourceConfig([f"{tmp_path}/a.txt"])
    build_cache(source, TokenizerConfig("bytes"), cache, progress=False)
    np.save(tmp_path / "quality.npy", [7])
    open_attribute(open_cache(cache), "quality", AttributeConfig(f"{tmp_path}/quality.npy"))
    (values,) = (tmp_path / "cache" / "attributes").glob("*/values.bin")
    values.write_bytes(b"")
    verify = ["cache", "verify", cache]
    done = CliRunner().invoke(application(), [*verify, "--repair"])
    assert done.exit_code == 0
    assert "deleted; it is written again when needed" in done.output
    assert CliRunner().invoke(application(), verify).exit_code == 0


def config_of(cache: TokenCache, **fields: object) -> LmDataConfig:
    component = ComponentConfig(cache.path, **fields)  # pyright: ignore[reportArgumentType]
    return LmDataConfig({"web": component}, seq_len=4, batch_size=8, num_steps=2)


def test_a_run_draws_only_documents_of_which_the_condition_holds(plain, tmp_path):
    quality = written(
        tmp_path / "q.parquet", {"id": IDS, "quality": [k % 5 for k in range(DOCUMENTS)]}
    )
    np.save(tmp_path / "dup.npy", np.arange(DOCUMENTS) < 10)
    config = config_of(
        plain,
        attributes={
            "quality": AttributeConfig(quality),
            "dup": AttributeConfig(f"{tmp_path}/dup.npy"),
        },
        where="quality >= 3 and not dup and length < 3",
    )
    kept = {k for k in range(10, DOCUMENTS) if k % 5 >= 3 and 1 + k % 3 < 3}
    (dataset,) = config.datasets().values()
    tokens = dataset.read(np.arange(len(dataset))).tokens
    assert set(tokens.reshape(-1).tolist()) <= kept
    assert dataset.removed_documents == DOCUMENTS - len(kept)
    (account,) = config.accounts().values()
    assert account.removed_documents == DOCUMENTS - len(kept)


def test_buckets_divide_by_an_attribute(plain, tmp_path):
    quality = written(tmp_path / "q.parquet", {"id": IDS, "quality": [*range(DOCUMENTS)]})
    (tmp_path / "run.yaml").write_text(f"""
seq_len: 2
batch_size: 8
num_steps: 2
components:
  web:
    cache: {plain.path}
    attributes: {{quality: {quality}}}
    where: quality != 0
    buckets: {{by: quality, edges: [20], names: [low, high]}}
""")
    datasets = load_config(str(tmp_path / "run.yaml")).datasets()
    tokens = {n: d.read(np.arange(len(d))).tokens for n, d in datasets.items()}
    assert 0 < tokens["web/low"].min() <= tokens["web/low"].max() < 20
    assert tokens["web/high"].min() >= 20
    done = CliRunner().invoke(application(), ["config", "check", str(tmp_path / "run.yaml")])
    assert done.exit_code == 0, done.output


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"where": "quality > 1"}, "components.web.where"),
        ({"where": "id > 1"}, "components.web.where"),
        ({"where": "length > 100"}, "components.web.where"),
        ({"attributes": {"length": AttributeConfig("a.npy")}}, "components.web.attributes"),
        ({"attributes": {"id": AttributeConfig("a.npy")}}, "components.web.attributes"),
    ],
)
def test_conditions_that_cannot_be_met_are_refused(plain, fields, field):
    with pytest.raises(ConfigError) as refused:
        config_of(plain, **fields).datasets()
    assert refused.value.field == field


@pytest.mark.parametrize("end", ["", "\n"])
def test_a_single_line_is_read_with_and_without_a_line_feed(tmp_path, end):
    cache = tiny_cache(tmp_path / "cache", documents=1)
    (tmp_path / "a.jsonl").write_text('{"document": 0, "quality": 3}' + end)
    config = AttributeConfig(f"{tmp_path}/a.jsonl", key="document")
    assert open_attribute(cache, "quality", config).values.tolist() == [3]


def test_packed_json_lines_are_read(plain, tmp_path):
    lines = "\n".join(json.dumps({"id": i, "quality": 1}) for i in IDS)
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(lines.encode()))
    config = AttributeConfig(f"{tmp_path}/a.jsonl.gz")
    assert open_attribute(plain, "quality", config).values.tolist() == [1] * DOCUMENTS


def columns_of(cache: TokenCache, files: str, column: object = "quality") -> LmDataConfig:
    """A run with an attribute as a column, in two buckets."""
    component = ComponentConfig(
        cache.path,
        attributes={"quality": AttributeConfig(files)},
        buckets=BucketsConfig("quality", edges=[3], weights=[1, 1]),
        packing=PackingConfig(),
    )
    columns = {"quality": column}
    return LmDataConfig({"web": component}, seq_len=8, batch_size=8, num_steps=4, columns=columns)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("dtype", ["bool", "int64", "float64", "uint8", "float32"])
def test_an_attribute_is_a_column_of_batches(plain, tmp_path, dtype):
    values = (np.arange(DOCUMENTS) % 7).astype(dtype)
    if dtype == "bool":
        values = values.astype(int) * 3  # buckets ask for both
    order = np.random.default_rng(0).permutation(DOCUMENTS).tolist()
    columns = {"id": [IDS[k] for k in order], "quality": values[order].tolist()}
    config = columns_of(plain, written(tmp_path / "a.parquet", columns))
    with config.loader() as loader:
        for step in range(4):
            batch = loader.batch_at(step)
            tokens = np.asarray(batch.tokens)  # document k has the tokens k, and padding 0
            assert batch.extras is not None
            found = np.asarray(batch.extras["quality"])
            assert found.dtype.itemsize <= 4
            is_padding = np.asarray(batch.segment_ids) < 0
            expected = np.where(is_padding, 0, values[tokens])
            assert (found == expected).all()


def test_columns_follow_a_shuffled_store_and_other_values_are_another_run(plain, tmp_path):
    moved = reshuffle(plain.path, str(tmp_path / "moved"), ReshuffleConfig(seed=3)).path
    np.save(tmp_path / "quality.npy", np.arange(DOCUMENTS) * 3)
    config = columns_of(open_cache(moved), f"{tmp_path}/quality.npy")
    dataset = config.dataset()
    with config.loader() as loader:
        batch = loader.batch_at(0)
    assert batch.extras is not None
    kept = np.asarray(batch.segment_ids) >= 0
    found = np.asarray(batch.extras["quality"])[kept]
    assert (found == 3 * np.asarray(batch.tokens)[kept]).all()
    other = np.arange(DOCUMENTS) * 3
    other[-1] += 1  # in the same bucket
    np.save(tmp_path / "quality.npy", other)
    assert str(config.dataset().describe()) != str(dataset.describe())


def test_components_without_the_attribute_have_the_default(plain, tmp_path):
    np.save(tmp_path / "quality.npy", np.full(DOCUMENTS, 5, np.int16))
    scored = ComponentConfig(
        plain.path, attributes={"quality": AttributeConfig(f"{tmp_path}/quality.npy")}
    )
    components = {"plain": ComponentConfig(plain.path), "scored": scored}
    columns = {"quality": ColumnConfig("quality", default=7)}
    config = LmDataConfig(components, seq_len=4, batch_size=8, num_steps=2, columns=columns)
    with config.loader() as loader:
        batch = loader.batch_at(0)
    assert batch.extras is not None
    found = np.asarray(batch.extras["quality"])
    assert found.dtype == np.int16
    expected = np.where(np.asarray(batch.source_id) == 1, 5, 7)
    assert (found == expected[:, None]).all()
    columns = {"quality": "qualty"}
    with pytest.raises(ConfigError, match="Did you mean 'quality'"):
        LmDataConfig(components, seq_len=4, batch_size=8, num_steps=2, columns=columns).dataset()


@pytest.mark.parametrize("width", [1, 3])
def test_an_attribute_of_repeats_draws_documents_as_often(tmp_path, width):
    """Sampling weights: in whole passes, each document is seen as often as its number says."""
    cache = with_ids(tmp_path / "cache", IDS)
    repeats = [[0, 1, 2][k // width % 3] for k in range(DOCUMENTS)]
    path = written(tmp_path / "a.parquet", {"id": IDS, "repeats": repeats})
    component = ComponentConfig(
        cache.path,
        attributes={"repeats": AttributeConfig(path)},
        buckets=BucketsConfig("repeats", levels=[1, 2]),
        packing=PackingConfig(),
        weight={"repeat": 1},
    )
    config = LmDataConfig({"web": component}, seq_len=8, batch_size=1, num_steps=60)
    seen = np.zeros(DOCUMENTS, int)
    for name, dataset in config.datasets().items():  # a pass over each layer
        rows = dataset.read(np.arange(len(dataset)))
        kept = np.asarray(rows.segment_ids) >= 0
        tokens = np.asarray(rows.tokens)[kept]
        seen += np.bincount(tokens, minlength=DOCUMENTS) // (1 + np.arange(DOCUMENTS) % 3)
        assert name in ("web/x1", "web/x2")
    assert seen.tolist() == repeats


def inspected(cache: TokenCache, *arguments: str) -> tuple[int, str]:
    done = CliRunner().invoke(application(), ["cache", "inspect", cache.path, *arguments])
    return done.exit_code, done.output or str(done.exception)


def test_inspect_shows_what_was_joined(tmp_path):
    cache = with_ids(tmp_path / "cache", IDS)
    half = IDS[: DOCUMENTS // 2]
    columns = {"doc": [*half, "none"], "kind": [*(k % 3 for k in range(len(half))), 9]}
    kinds = written(tmp_path / "kinds.parquet", columns)
    scores = written(tmp_path / "scores.jsonl", {"id": IDS, "score": [*range(DOCUMENTS)]})
    options = ("--attributes", f"kind={kinds},key=doc", "--attributes", f"score={scores}")
    status, printed = inspected(cache, *options, "--json", "--samples", "0")
    assert status == 0, printed
    kind, score = json.loads(printed)["attributes"]
    assert kind["values"] == [[0, 7], [1, 7], [2, 6]]
    assert (kind["rows"], kind["not_found"], kind["missing"]) == (21, 1, 20)
    assert (score["missing"], score["values"]) == (0, [])
    assert (score["quantiles"]["min"], score["quantiles"]["max"]) == (0, DOCUMENTS - 1)
    status, printed = inspected(cache, *options)
    assert status == 0
    assert "20 of 40 documents (50.00%) have no value" in " ".join(printed.split())
    # The run reads what inspect has joined, even if it says something else of missing values
    saved = sorted((tmp_path / "cache" / "attributes").iterdir())
    config = AttributeConfig(kinds, key="doc", missing=0.5, default=-1)
    assert open_attribute(cache, "kind", config).values[-1] == -1
    assert sorted((tmp_path / "cache" / "attributes").iterdir()) == saved


@pytest.mark.parametrize(
    ("option", "problem"),
    [
        ("quality", "does not say NAME=FILES"),
        ("=a.npy", "does not say NAME=FILES"),
        ("quality=", "does not say NAME=FILES"),
        ("quality=nowhere/*.parquet", "--attributes quality: files = .*names no file"),
        ("quality={kinds},key=idd", "--attributes quality: key = 'idd': is no column"),
        ("quality={kinds}", "Known names: 'id', 'kind'"),
    ],
)
def test_inspect_refuses_attributes_that_cannot_be_joined(plain, tmp_path, option, problem):
    kinds = written(tmp_path / "kinds.parquet", {"id": IDS, "kind": [1] * DOCUMENTS})
    status, printed = inspected(plain, "--attributes", option.format(kinds=kinds))
    assert status != 0
    assert re.search(problem, " ".join(printed.split())), printed


@pytest.mark.parametrize("ending", ["", "\n", "\r\n"])
def test_a_file_of_one_line_is_a_row_however_it_ends(tmp_path, ending):
    cache = tiny_cache(tmp_path / "cache", documents=2)
    (tmp_path / "score.jsonl").write_bytes(b'{"document": 1, "score": 7}' + ending.encode())
    config = AttributeConfig(f"{tmp_path}/score.jsonl", key="document", missing=0.5, default=0)
    assert open_attribute(cache, "score", config).values.tolist() == [0, 7]
