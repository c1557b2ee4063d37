"""Datasets that ``datasets`` saved, and datatrove's files, read in place."""

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from datasets import Dataset, DatasetDict, Features, Sequence, Value, load_from_disk
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from headrace import ComponentConfig, LmDataConfig
from headrace.cli.application import application
from headrace.errors import CacheCorruptError, CacheError, CacheMissingError, ConfigError
from headrace.store import open_cache, verify
from headrace.testing import web_server

ROWS = [[5, 6, 7, 8], [9, 10], [], [11, 12, 13]]


def saved(folder: Path, columns: dict[str, list], shards: int = 1, **features: object) -> Path:
    named = Features(features) if features else None
    Dataset.from_dict(columns, features=named).save_to_disk(folder, num_shards=shards)
    return folder


def labelled(rows: list[list[int]]) -> list[list[int]]:
    """The first id of each row is not trained on."""
    return [[-100, *row[1:]] if row else [] for row in rows]


@settings(max_examples=15)
@given(data=st.data())
def test_tokens_and_columns_are_those_that_datasets_reads(tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("saved")
    row = st.lists(st.integers(0, 50_000), max_size=30)
    rows = data.draw(st.lists(row, min_size=2, max_size=20))
    weights = [[i / 4 for i in range(len(row))] for row in rows]
    kinds = ["int32", "int64", "uint16"]
    ids = Sequence(Value(data.draw(st.sampled_from(kinds))))
    columns = {"input_ids": rows, "labels": labelled(rows), "weights": weights}
    types = {"labels": Sequence(Value("int64")), "weights": Sequence(Value("float32"))}
    shards = data.draw(st.integers(1, 2))
    saved(folder / "set", columns, shards, input_ids=ids, **types)
    theirs = load_from_disk(str(folder / "set"))
    assert isinstance(theirs, Dataset)
    cache = open_cache(str(folder / "set"))
    assert cache.num_documents == len(theirs)
    for number, record in enumerate(theirs.to_list()):
        assert cache.document(number).tolist() == record["input_ids"]
        for name in ("labels", "weights"):
            assert cache.leaf(name).document(number).tolist() == record[name]
        mask = [int(label != -100) for label in record["labels"]]
        assert cache.leaf("loss_mask").document(number).tolist() == mask


def test_a_run_trains_on_what_labels_and_attention_mask_show(tmp_path):
    rows = [list(range(k, k + 8)) for k in range(0, 512, 8)]
    attention = [[1] * 7 + [0] for _ in rows]
    columns = {"input_ids": rows, "labels": labelled(rows), "attention_mask": attention}
    saved(tmp_path / "set", columns)
    component = ComponentConfig(str(tmp_path / "set"))
    config = LmDataConfig({"a": component}, seq_len=16, batch_size=8, num_steps=4)
    trained: list[int] = []
    for batch in config.loader():
        mask = np.asarray(batch.label_mask)
        trained += np.asarray(batch.labels)[mask].tolist()
    assert sorted(trained) == [i for i in range(512) if i % 8 not in (0, 7)]


@pytest.mark.parametrize("masked", [8, 6])
def test_what_labels_leave_to_train_on_is_counted_and_nothing_is_a_problem(tmp_path, masked):
    rows = [list(range(k, k + 8)) for k in range(0, 512, 8)]
    labels = [[-100] * masked + row[masked:] for row in rows]
    saved(tmp_path / "set", {"input_ids": rows, "labels": labels})
    config = tmp_path / "run.yaml"
    config.write_text(
        f"components: {{a: {tmp_path / 'set'}}}\nseq_len: 16\nbatch_size: 8\nnum_steps: 4\n"
    )

    def shown(*words: object) -> str:
        return CliRunner().invoke(application(), [*map(str, words)]).output

    assert json.loads(shown("cache", "inspect", tmp_path / "set", "--json"))["trained_share"] == (
        1 - masked / 8
    )
    inspected = " ".join(shown("cache", "inspect", tmp_path / "set").split())
    is_problem = "marks no token in 32 of 32 rows" in shown("config", "check", config)
    if masked == 8:
        cure = inspected.partition("; for all: ")[2].partition(" ")[0].replace("NAME", "a")
        assert is_problem
        assert "marks no token" not in shown("config", "check", config, cure)
    else:
        assert "trained on 25.0% of the tokens format" in inspected
        assert not is_problem


def test_an_arrow_file_is_read_like_a_stream(tmp_path):
    table = pa.table({"input_ids": pa.array(ROWS, pa.list_(pa.int32()))})
    path = tmp_path / "a.arrow"
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema) as file:
        file.write_table(table, max_chunksize=3)
    cache = open_cache(str(path))
    assert [cache.document(k).tolist() for k in range(len(ROWS))] == ROWS
    raw = path.read_bytes()
    path.write_bytes(raw[: len(raw) // 2])
    with pytest.raises(CacheCorruptError, match="no whole Arrow stream"):
        open_cache(str(path))


def test_a_dataset_without_rows_says_so(tmp_path):
    saved(tmp_path / "set", {"input_ids": []}, input_ids=Sequence(Value("int32")))
    with pytest.raises(CacheMissingError, match="has no rows") as refused:
        open_cache(str(tmp_path / "set"))
    assert refused.value.value == str(tmp_path / "set")


def test_a_column_that_can_be_no_leaf_is_named_and_the_cure_works(tmp_path):
    folder = saved(tmp_path / "set", {"input_ids": ROWS, "a/b": ROWS})
    with pytest.raises(ConfigError, match="has the column 'a/b'") as refused:
        open_cache(str(folder))
    assert str(folder) in str(refused.value.value)
    typed = str(refused.value.cure).removeprefix("Save ").partition(", or")[0]
    eval(typed, {"dataset": load_from_disk(str(folder))}).save_to_disk(tmp_path / "mended")
    assert open_cache(str(tmp_path / "mended")).num_documents == len(ROWS)


def test_rows_of_one_width_and_other_columns_are_read_or_named(tmp_path):
    rows = [[1, 2, 3], [4, 5, 6]]
    columns = {"input_ids": rows, "text": ["a", "b"], "score": [0.5, 1.0]}
    Dataset(
        pa.table(columns | {"input_ids": pa.array(rows, pa.list_(pa.int32(), 3))})
    ).save_to_disk(tmp_path / "set")
    cache = open_cache(str(tmp_path / "set"))
    assert [cache.document(k).tolist() for k in range(2)] == rows
    shown = CliRunner().invoke(application(), ["cache", "inspect", str(tmp_path / "set"), "--json"])
    assert any("score, text" in limit for limit in json.loads(shown.output)["limits"])


def test_files_that_datasets_keeps_beside_are_not_read(tmp_path):
    folder = saved(tmp_path / "set", {"input_ids": ROWS})
    other = saved(tmp_path / "other", {"input_ids": [[1]]})
    (other / "data-00000-of-00001.arrow").rename(folder / "cache-0123456789.arrow")
    assert open_cache(str(folder)).num_documents == len(ROWS)


def test_a_dataset_of_splits_names_them(tmp_path):
    columns = Dataset.from_dict({"input_ids": ROWS})
    DatasetDict({"train": columns, "test": columns}).save_to_disk(tmp_path / "set")
    with pytest.raises(ConfigError, match="train, test") as refused:
        open_cache(str(tmp_path / "set"))
    named = str(refused.value.cure).removeprefix("Name one: ")
    assert open_cache(named).num_documents == len(ROWS)


@pytest.mark.parametrize(
    ("columns", "problem"),
    [
        ({"text": ["a"]}, "no column input_ids"),
        ({"input_ids": [["a"]]}, "no column input_ids"),
        ({"input_ids": [[1.5]]}, "float"),
        ({"input_ids": [[1, None]]}, "null"),
        ({"input_ids": [[1, 2], [3]], "labels": [[1], [2, 3]]}, "labels are not as many"),
    ],
)
def test_what_holds_no_ids_is_refused(tmp_path, columns, problem):
    saved(tmp_path / "set", columns)
    with pytest.raises(CacheError, match=problem):
        open_cache(str(tmp_path / "set"))


def test_shifted_labels_are_refused_where_they_are_read(tmp_path):
    shifted = [[*row[1:], -100] if row else [] for row in ROWS]
    saved(tmp_path / "set", {"input_ids": ROWS, "labels": shifted})
    cache = open_cache(str(tmp_path / "set"))
    with pytest.raises(CacheCorruptError, match="unshifted"):
        cache.leaf("loss_mask").values(0, len(ROWS))
    assert verify(str(tmp_path / "set"), deep=True).damages


@pytest.mark.parametrize("name", ["attention_mask", "labels", "loss_mask"])
def test_what_says_what_is_trained_on_is_read_or_refused(tmp_path, name):
    columns = {"input_ids": [[1, 2]], name: [[True, False]]}
    saved(tmp_path / "set", columns)
    with pytest.raises(ConfigError, match=f"has bool in its column {name}") as refused:
        open_cache(str(tmp_path / "set"))
    typed = str(refused.value.cure).removeprefix("Save ").partition(", or save")[0]
    names = {"Sequence": Sequence, "Value": Value}
    dataset = eval(typed, names | {"dataset": load_from_disk(str(tmp_path / "set"))})
    dataset.save_to_disk(tmp_path / "mended")
    assert open_cache(str(tmp_path / "mended")).leaf(name).document(0).tolist() == [1, 0]


def test_a_list_of_rows_of_old_versions_is_not_passed_over(tmp_path):
    state = saved(tmp_path / "set", {"input_ids": ROWS}) / "state.json"
    indices = {"_indices_data_files": [{"filename": "indices.arrow"}]}
    state.write_text(json.dumps(json.loads(state.read_text()) | indices))
    with pytest.raises(ConfigError, match="newer version"):
        open_cache(str(tmp_path / "set"))


@pytest.mark.parametrize("wrong", [-100, 2**40 + 7])
def test_numbers_that_are_no_ids_are_refused_or_found(tmp_path, wrong):
    ids = Sequence(Value("int64"))
    saved(tmp_path / "first", {"input_ids": [[wrong, 1, 2]]}, input_ids=ids)
    with pytest.raises(CacheCorruptError, match=f"has the id {wrong}"):
        open_cache(str(tmp_path / "first"))
    saved(tmp_path / "later", {"input_ids": [[1] * 1000, [wrong]]}, input_ids=ids)
    open_cache(str(tmp_path / "later"))
    (damage,) = verify(str(tmp_path / "later"), deep=True).damages
    assert str(wrong) in damage.problem


def test_a_compressed_or_cut_file_is_refused(tmp_path):
    table = pa.table({"input_ids": pa.array(ROWS, pa.list_(pa.int32()))})
    options = pa.ipc.IpcWriteOptions(compression="lz4")
    path = tmp_path / "a.arrow"
    with (
        pa.OSFile(str(path), "wb") as sink,
        pa.ipc.new_stream(sink, table.schema, options=options) as stream,
    ):
        stream.write_table(table)
    with pytest.raises(CacheCorruptError, match="compressed"):
        open_cache(str(path))
    folder = saved(tmp_path / "set", {"input_ids": [list(range(1000))]})
    file = folder / "data-00000-of-00001.arrow"
    file.write_bytes(file.read_bytes()[:2000])
    with pytest.raises(CacheCorruptError, match="no whole Arrow stream"):
        open_cache(str(folder))


def test_a_remote_dataset_is_refused_with_a_cure(tmp_path):
    saved(tmp_path / "set", {"input_ids": ROWS})
    with web_server(tmp_path) as server, pytest.raises(ConfigError, match="local disk"):
        open_cache(f"{server}/set")


def datatrove(folder: Path, ends: list[int], tokens: int, dtype: str = "uint16") -> Path:
    np.arange(tokens, dtype=dtype).tofile(folder / "a.ds")
    np.array(ends, "<u8").tofile(folder / "a.ds.index")
    return folder


@pytest.mark.parametrize("dtype", ["uint16", "uint32"])
def test_the_width_of_ids_follows_from_the_index(tmp_path, dtype):
    cache = open_cache(str(datatrove(tmp_path, [3, 3, 10], 10, dtype)))
    assert cache.dtype.name == dtype
    assert cache.lengths().tolist() == [3, 0, 7]


@pytest.mark.parametrize(
    ("ends", "problem"), [([3, 9], "cut off"), ([], "cut off"), ([7, 3, 10], "overlap")]
)
def test_an_index_of_other_tokens_is_refused(tmp_path, ends, problem):
    folder = datatrove(tmp_path, ends, 10)
    with pytest.raises(CacheCorruptError, match=problem):
        open_cache(str(folder)).lengths()


def test_datatroves_loss_file_and_a_lost_index_are_not_passed_over(tmp_path):
    (datatrove(tmp_path, [10], 10) / "a.ds.loss").write_bytes(bytes(10))
    with pytest.raises(CacheError, match="trained on"):
        open_cache(str(tmp_path))
    (tmp_path / "a.ds.loss").unlink()
    (tmp_path / "a.ds.index").unlink()
    with pytest.raises(CacheMissingError, match="index"):
        open_cache(str(tmp_path))
