"""Tokenized records of other tools: labels, masks, padding and packed rows become documents and
their ``loss_mask``; fields that are not used are counted.
"""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from headrace.cli.application import application
from headrace.errors import SourceError
from headrace.ingest import BuildReport, SourceConfig, TokenizerConfig, build_cache
from headrace.ingest.records import parse_leaf
from headrace.store import TokenCache, open_cache

FORMATS = ("jsonl", "parquet", "arrow")


def written(folder: Path, rows: list[dict[str, Any]], format: str = "jsonl") -> str:  # noqa: A002
    path = folder / f"rows.{format}"
    if format == "jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return str(path)
    arrow = pytest.importorskip("pyarrow")
    table = arrow.Table.from_pylist(rows)
    if format == "parquet":
        pytest.importorskip("pyarrow.parquet").write_table(table, path)
    else:
        pytest.importorskip("pyarrow.feather").write_feather(table, str(path))
    return str(path)


def built(
    folder: Path,
    rows: list[dict[str, Any]],
    format: str = "jsonl",  # noqa: A002
    output: str = "cache",
    **settings: Any,
) -> tuple[BuildReport, TokenCache]:
    source = SourceConfig([written(folder, rows, format)], kind="tokens", **settings)
    path = str(folder / f"{output}-{format}")
    options = {"restart": True} if output == "cured" else {}
    report = build_cache(source, TokenizerConfig("ids:99"), path, progress=False, **options)
    return report, open_cache(path)


def documents(cache: TokenCache) -> list[tuple[list[int], list[int] | None]]:
    """Ids and mask of each document."""
    masked = "loss_mask" in cache.leaves
    return [
        (
            cache.document(i).tolist(),
            cache.leaf("loss_mask").document(i).tolist() if masked else None,
        )
        for i in range(cache.num_documents)
    ]


@pytest.mark.parametrize("format", FORMATS)
def test_labels_say_what_is_trained_on(tmp_path: Path, format: str):  # noqa: A002
    row = {"input_ids": [5, 6, 7, 8], "labels": [-100, -100, 7, 8]}
    report, cache = built(tmp_path, [row], format)
    assert documents(cache) == [([5, 6, 7, 8], [0, 0, 1, 1])]
    assert report.trained_tokens == 2
    assert report.unused_fields == {}


@pytest.mark.parametrize("format", FORMATS)
def test_all_masks_must_agree_and_padding_goes(tmp_path: Path, format: str):  # noqa: A002
    row = {
        "input_ids": [0, 1, 2, 3, 4, 0],
        "attention_mask": [0, 1, 1, 1, 1, 0],
        "labels": [-100, -100, 2, 3, 4, -100],
        "completion_mask": [0, 0, 1, 1, 1, 0],
        "assistant_masks": [0, 0, 0, 1, 1, 0],
    }
    assert documents(built(tmp_path, [row], format)[1]) == [([1, 2, 3, 4], [0, 0, 1, 1])]


@given(
    lengths=st.lists(st.integers(1, 5), min_size=1, max_size=5),
    pad=st.tuples(st.integers(0, 3), st.integers(0, 3)),
    by=st.sets(
        st.sampled_from(["position_ids", "seq_lengths", "segment_ids", "seq_idx"]), min_size=1
    ),
    bounds=st.sampled_from(["", "shown", "padded"]),
)
def test_packed_rows_are_their_documents(
    tmp_path_factory: pytest.TempPathFactory,
    lengths: list[int],
    pad: tuple[int, int],
    by: set[str],
    bounds: str,
):
    ids = np.arange(1, sum(lengths) + 1)
    positions = np.concatenate([np.arange(n) for n in lengths])
    row: dict[str, Any] = {
        "input_ids": np.pad(ids, pad).tolist(),
        "attention_mask": np.pad(np.ones_like(ids), pad).tolist(),
        "labels": np.pad(np.where(ids % 2, ids, -100), pad, constant_values=-100).tolist(),
    }
    numbers = np.repeat(np.arange(len(lengths)), lengths)
    columns: dict[str, list[int]] = {
        "seq_lengths": lengths,
        "position_ids": np.pad(positions, pad).tolist(),
        "segment_ids": np.pad(numbers + 1, pad).tolist(),
        "seq_idx": np.pad(numbers, pad, constant_values=-1).tolist(),
    }
    row |= {name: columns[name] for name in by}
    starts = np.cumsum([0, *lengths])
    if bounds:
        padded = np.unique([0, *(starts + pad[0]), len(row["input_ids"])])
        row["cu_seqlens"] = (starts if bounds == "shown" else padded).tolist()
    _, cache = built(tmp_path_factory.mktemp("packed"), [row])
    wanted = np.split(ids, np.cumsum(lengths)[:-1])
    assert documents(cache) == [(d.tolist(), (d % 2).tolist()) for d in wanted]


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"labels": [2, 3, -100]}, "labels"),
        ({"labels": [1, 2]}, "labels"),
        ({"labels": [1, 9, 3]}, "position 1"),
        ({"completion_mask": [0, 1, 2]}, "completion_mask"),
        ({"loss_mask": [0.5, 1.0, 0.0]}, "loss_mask"),
        ({"attention_mask": [1, 0, 1]}, "position 1"),
        ({"attention_mask": [1, 1]}, "attention_mask"),
        ({"position_ids": [0, 2, 3]}, "place 1"),
        ({"position_ids": [4, 5, 6]}, "place 0"),
        ({"seq_lengths": [1, 1]}, "seq_lengths"),
        ({"cu_seqlens": [0, 2]}, "cu_seqlens"),
        ({"cu_seqlens": [1, 3]}, "cu_seqlens"),
        ({"cu_seqlens": []}, "cu_seqlens"),
        ({"segment_ids": [1, 1]}, "segment_ids"),
        ({"seq_lengths": [1, 2], "position_ids": [0, 1, 0]}, "position_ids"),
        ({"weights": [0.5, 1, 1]}, "weights"),
        ({"weights": 0.5}, "weights"),
        ({"loss_weights": [2, 1, 1]}, "loss_weights"),
        ({"attention_mask": [1, 1, 2]}, "attention_mask"),
    ],
)
def test_what_contradicts_itself_is_refused(tmp_path: Path, more: dict[str, Any], said: str):
    row = {"input_ids": [1, 2, 3], **more}
    with pytest.raises(SourceError, match=said) as error:
        built(tmp_path, [row])
    assert "line 1" in str(error.value)
    for options in re.findall(r"(?:--(?:field|leaf) [a-z_]+=\S+ ?)+", str(error.value)):
        pairs = [pair.rstrip(".;") for pair in options.split() if "=" in pair]
        fields = dict(pair.split("=") for pair in pairs if ":" not in pair)
        leaves = dict(parse_leaf(pair) for pair in pairs if ":" in pair)
        _, cache = built(tmp_path, [row], fields=fields, leaves=leaves, output="cured")
        assert cache.num_tokens == 3


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("name", ["weights", "loss_weights"])
def test_weights_are_a_mask_or_a_leaf(tmp_path: Path, format: str, name: str):  # noqa: A002
    report, cache = built(tmp_path, [{"input_ids": [5, 6, 7], name: [0.0, 1.0, 1.0]}], format)
    assert documents(cache) == [([5, 6, 7], [0, 1, 1])]
    assert report.unused_fields == {}
    row = {"input_ids": [5, 6, 7], name: [0.0, 0.5, 1.0]}
    leaves = dict([parse_leaf(f"loss_weights={name}:float32:token")])
    _, cache = built(tmp_path, [row], format, leaves=leaves, output="kept")
    assert cache.leaf("loss_weights").document(0).tolist() == [0.0, 0.5, 1.0]
    assert "loss_mask" not in cache.leaves


def test_segments_that_end_with_zeros_end_with_padding(tmp_path: Path):
    row = {"input_ids": [1, 2, 3, 4, 0, 0], "segment_ids": [1, 1, 2, 2, 0, 0]}
    assert documents(built(tmp_path, [row])[1]) == [([1, 2], None), ([3, 4], None)]
    from_zero = {"input_ids": [1, 2, 3], "segment_ids": [0, 0, 1]}
    cache = built(tmp_path, [from_zero], output="zero")[1]
    assert documents(cache) == [([1, 2], None), ([3], None)]


def test_shifted_labels_are_named(tmp_path: Path):
    with pytest.raises(SourceError, match="unshifted"):
        built(tmp_path, [{"input_ids": [1, 2, 3], "labels": [-100, 3, 9]}])


def test_a_mask_that_comes_later_is_refused_and_none_ignores_it(tmp_path: Path):
    rows = [{"input_ids": [1, 2]}, {"input_ids": [1, 2], "labels": [-100, 2]}]
    with pytest.raises(SourceError, match="--field labels=none"):
        built(tmp_path, rows)
    ignored = SourceConfig([written(tmp_path, rows)], kind="tokens", fields={"labels": "none"})
    output = str(tmp_path / "other")
    report = build_cache(ignored, TokenizerConfig("ids:99"), output, progress=False)
    assert (report.trained_tokens, report.unused_fields) == (None, {"labels": 1})


@pytest.mark.parametrize("format", FORMATS)
def test_unused_fields_are_counted_and_shown(tmp_path: Path, format: str):  # noqa: A002
    rows = [{"input_ids": [1, k], "token_type_ids": [0, 0], "meta": {"url": "u"}} for k in range(5)]
    report, _ = built(tmp_path, rows, format)
    assert report.unused_fields == {"meta": 5, "token_type_ids": 5}
    for arguments in (["--json"], []):
        shown = CliRunner().invoke(application(), ["cache", "inspect", report.path, *arguments])
        assert "token_type_ids" in shown.output, shown.output


def test_records_keyed_by_ids_do_not_fill_memory(tmp_path: Path):
    rows = [{"input_ids": [1], f"key{k}": 0} for k in range(2000)]
    report, _ = built(tmp_path, rows)
    assert sum(report.unused_fields.values()) == 2000
    assert len(report.unused_fields) == 257
