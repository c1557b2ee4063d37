"""Tokenized records of other tools: labels, masks, padding and packed rows become documents and
their ``loss_mask``; fields that are not used are counted.
"""

import json
import re
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from headrace.cli.application import application
from headrace.errors import SourceError
from headrace.ingest import SourceConfig, TokenizerConfig, build_cache
from headrace.ingest.build import BuildReport
from headrace.ingest.records import parse_leaf
from headrace.store import TokenCache, open_cache

FORMATS = ("jsonl", "parquet", "arrow", "saved")


def written(folder: Path, rows: list[dict[str, Any]], format: str = "jsonl") -> str:  # noqa: A002
    path = folder / f"rows.{format}"
    if format == "jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return str(path)
    if format == "saved":
        saved = folder / "saved"
        pytest.importorskip("datasets").Dataset.from_list(rows).save_to_disk(str(saved))
        return f"hf://{saved}"
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
@pytest.mark.parametrize(
    ("names", "value"),
    [
        ("loss_mask loss_masks completion_mask assistant_mask assistant_masks", [0, 0, 1, 1]),
        ("response_mask target_mask label_mask labels_mask answer_mask", [0, 0, 1, 1]),
        ("weights loss_weights loss_weight token_weights", [0.0, 0.0, 1.0, 1.0]),
        ("prompt_mask prompt_masks", [1, 1, 0, 0]),
        ("labels label_ids targets target_ids target_tokens", [-100, -100, 7, 8]),
        ("prompt_len prompt_lens prompt_length prompt_lengths", 2),
        ("prompt_ids prompt_token_ids", [5, 6]),
        ("completion_ids response_ids", [7, 8]),
    ],
)
def test_every_name_of_a_mask_is_read(tmp_path: Path, format: str, names: str, value: Any):  # noqa: A002
    for name in names.split():
        folder = tmp_path / name
        folder.mkdir()
        report, cache = built(folder, [{"input_ids": [5, 6, 7, 8], name: value}], format)
        assert documents(cache) == [([5, 6, 7, 8], [0, 0, 1, 1])], name
        assert report.unused_fields == {}, name


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize(
    ("names", "value"),
    [
        ("seq_lengths seq_lens doc_lens", [3, 1]),
        ("cu_seqlens cu_seqlens_q cu_seqlens_k", [0, 3, 4]),
        ("cu_seq_lens cu_seq_lens_q cu_seq_lens_k", [0, 3, 4]),
        ("position_ids input_pos", [0, 1, 2, 0]),
        ("segment_ids seq_idx doc_ids document_ids", [1, 1, 1, 2]),
    ],
)
def test_every_name_of_bounds_is_read(tmp_path: Path, format: str, names: str, value: Any):  # noqa: A002
    for name in names.split():
        folder = tmp_path / name
        folder.mkdir()
        report, cache = built(folder, [{"input_ids": [5, 6, 7, 8], name: value}], format)
        assert documents(cache) == [([5, 6, 7], None), ([8], None)], name
        assert report.unused_fields == {}, name


def test_masks_as_booleans_and_prompts_of_packed_and_padded_rows(tmp_path: Path):
    row = {"input_ids": [5, 6, 7, 8], "response_mask": [False, False, True, True]}
    assert documents(built(tmp_path, [row])[1]) == [([5, 6, 7, 8], [0, 0, 1, 1])]
    row = {
        "input_ids": [0, 5, 6, 7, 8, 9, 0],
        "attention_mask": [0, 1, 1, 1, 1, 1, 0],
        "seq_lens": [3, 2],
        "prompt_lens": [2, 1],
    }
    cache = built(tmp_path, [row], output="packed")[1]
    assert documents(cache) == [([5, 6, 7], [0, 0, 1]), ([8, 9], [0, 1])]
    row = {
        "input_ids": [0, 5, 6, 7, 0],
        "attention_mask": [0, 1, 1, 1, 0],
        "prompt_ids": [5],
        "completion_ids": [7],
    }
    cache = built(tmp_path, [row], output="padded")[1]
    assert documents(cache) == [([5, 6, 7], [0, 0, 1])]


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"response_mask": [1, 1]}, "3 ids and 2 numbers in field 'response_mask'"),
        ({"prompt_mask": [1, 0.5, 0]}, "prompt_mask"),
        ({"assistant_mask": ["a", "b", "c"]}, "assistant_mask"),
        ({"loss_weight": 0.5}, "holds a number in field 'loss_weight'"),
        ({"target_tokens": [2, 3, -100]}, "position 0 of field 'target_tokens'"),
        ({"target_tokens": 3}, "target_tokens"),
        ({"prompt_len": 4}, "a document of 3 ids, of which 4"),
        ({"prompt_len": -1}, "of which -1"),
        ({"prompt_len": 1.5}, "prompt_len"),
        ({"prompt_length": [1, 1]}, "1 documents, and 2 numbers"),
        ({"prompt_ids": [1, 3]}, "do not begin with those of field 'prompt_ids'"),
        ({"prompt_ids": [1, 2, 3, 4]}, "do not begin"),
        ({"completion_ids": [1, 2]}, "do not end with those of field 'completion_ids'"),
        ({"completion_ids": [0, 1, 2, 3]}, "do not end"),
        ({"completion_ids": [3], "seq_lens": [1, 2]}, "2 documents"),
        ({"cu_seq_lens_q": [0, 2]}, "cu_seq_lens_q"),
        ({"doc_ids": [1, 2]}, "doc_ids"),
        ({"doc_ids": ["a", "b", "c"]}, "doc_ids"),
        ({"seq_lens": [1, 2], "doc_lens": [2, 1]}, "seq_lens than by its doc_lens"),
        ({"seq_start_id": [0, 2]}, "the next one is trained on"),
    ],
)
def test_columns_that_do_not_fit_the_ids_are_refused(
    tmp_path: Path, more: dict[str, Any], said: str
):
    test_what_contradicts_itself_is_refused(tmp_path, more, said)


def test_masks_that_differ_leave_what_both_train_on(tmp_path: Path):
    row = {"input_ids": [1, 2, 3], "prompt_len": 1, "loss_mask": [1, 1, 0]}
    assert documents(built(tmp_path, [row])[1]) == [([1, 2, 3], [0, 1, 0])]


@pytest.mark.parametrize("format", FORMATS)
def test_ids_in_two_parts(tmp_path: Path, format: str):  # noqa: A002
    rows = [
        {"prompt_ids": [5, 6], "completion_ids": [7]},
        {"prompt_ids": [8], "completion_ids": []},
    ]
    with pytest.raises(SourceError, match="prompt_ids") as error:
        built(tmp_path, rows, format)
    advice = re.search(r"--field (\S+)=(\S+) --field (\S+)=([a-z_]+)", str(error.value))
    assert advice is not None, str(error.value)
    fields = {advice[1]: advice[2], advice[3]: advice[4]}
    report, cache = built(tmp_path, rows, format, fields=fields, output="cured")
    assert documents(cache) == [([5, 6, 7], [0, 0, 1]), ([8], [0])]
    assert report.unused_fields == {}


def test_a_column_read_for_something_else_is_not_read_twice(tmp_path: Path):
    row = {"prompt_ids": [5, 6], "labels": [0, 1]}
    fields = {"tokens": "prompt_ids", "loss_mask": "labels"}
    assert documents(built(tmp_path, [row], fields=fields)[1]) == [([5, 6], [0, 1])]


@pytest.mark.parametrize("format", FORMATS)
def test_unknown_columns_of_records_longer_than_the_first_look_are_refused(
    tmp_path: Path,
    format: str,  # noqa: A002
):
    rows = [{"input_ids": [5, 6, 7] * 20_000, "keep": [0, 1, 1] * 20_000}] * 2
    with pytest.raises(SourceError, match=r"nothing says what it means.*keep"):
        built(tmp_path, rows, format)


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize(
    ("column", "value", "masks"),
    [
        ("keep it", [0, 1, 1], [[0, 1, 1], [1, 0, 0], None]),
        ("quality", [0.5, 2.0, 7.0], [None, None]),
    ],
)
def test_unknown_columns_of_ids_are_refused(
    tmp_path: Path,
    format: str,  # noqa: A002
    column: str,
    value: list[float],
    masks: list[list[int] | None],
):
    rows = [{"input_ids": [5, 6, 7], column: value}] * 2
    with pytest.raises(SourceError, match=f"nothing says what it means.*{column}") as error:
        built(tmp_path, rows, format)
    advice = re.findall(r"--(field|leaf) ('[^']+'\S*|\S+'[^']+'|[^\s.]+)", error.value.cure or "")
    assert len(advice) == len(masks)
    for (option, shown), mask in zip(advice, masks, strict=True):
        (text,) = shlex.split(shown)
        name, _, field = text.partition("=")
        settings: dict[str, Any] = (
            {"fields": {name: field}} if option == "field" else {"leaves": dict([parse_leaf(text)])}
        )
        report, cache = built(tmp_path, rows, format, output="cured", **settings)
        assert documents(cache) == [([5, 6, 7], mask)] * 2
        assert report.unused_fields == ({column: 2} if field == "none" else {})
        if option == "leaf":
            assert cache.leaf(name).document(1).tolist() == value


def test_a_column_that_is_as_long_as_the_ids_by_chance_is_not_refused(tmp_path: Path):
    rows = [{"input_ids": list(range(1, n)), "box": [0, 0, 1, 1]} for n in (5, 6)]
    assert built(tmp_path, rows)[0].unused_fields == {"box": 2}


def test_a_column_left_unused_must_be_there(tmp_path: Path):
    with pytest.raises(SourceError, match=r"no column 'qualty'.*Did you mean 'quality'"):
        built(tmp_path, [{"input_ids": [5], "quality": [1]}], fields={"qualty": "none"})


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


@pytest.mark.parametrize("format", FORMATS)
def test_columns_beside_ids_within_a_field_are_refused_until_said(
    tmp_path: Path,
    format: str,  # noqa: A002
):
    inner = {"input_ids": [5, 6, 7, 8], "labels": [-100, 6, 7, -100], "url": "u"}
    rows = [{"id": 1, "data": {**inner, "attention_mask": [1, 1, 1, 0]}}] * 2
    fields = {"tokens": "data.input_ids"}
    with pytest.raises(SourceError, match=r"data\.labels, data\.attention_mask beside") as error:
        built(tmp_path, rows, format, fields=fields)
    advice = dict(re.findall(r"--field ([a-z_]+)=([a-z_.]+[a-z])", error.value.cure or "")[:2])
    assert advice == {"labels": "data.labels", "attention_mask": "data.attention_mask"}
    report, cache = built(tmp_path, rows, format, output="cured", fields={**fields, **advice})
    assert documents(cache) == [([5, 6, 7], [0, 1, 1])] * 2
    assert report.unused_fields == {"data.url": 2, "id": 2}
    leave = dict(re.findall(r"--field ([a-z_]+)=(none)", error.value.cure or ""))
    report, cache = built(tmp_path, rows, format, output="cured", fields={**fields, **leave})
    assert documents(cache) == [([5, 6, 7, 8], None)] * 2
    assert report.unused_fields == dict.fromkeys(
        ("data.attention_mask", "data.labels", "data.url", "id"), 2
    )


def test_a_mask_beside_ids_that_a_later_record_has_is_refused(tmp_path: Path):
    rows: list[dict[str, Any]] = [{"data": {"input_ids": [5, 6]}}] * 30000
    rows.append({"data": {"input_ids": [5, 6], "loss_mask": [0, 1]}})
    with pytest.raises(SourceError, match=r"data\.loss_mask beside its ids") as error:
        built(tmp_path, rows, fields={"tokens": "data.input_ids"})
    assert "line 30001" in str(error.value)


def test_a_null_beside_ids_says_nothing(tmp_path: Path):
    rows = [{"data": {"input_ids": [5, 6], "labels": None}}]
    _, cache = built(tmp_path, rows, fields={"tokens": "data.input_ids"})
    assert documents(cache) == [([5, 6], None)]


@pytest.mark.parametrize("format", FORMATS)
def test_unknown_columns_beside_ids_within_a_field_are_refused(
    tmp_path: Path,
    format: str,  # noqa: A002
):
    rows = [{"data": {"input_ids": [5, 6, 7], "keep": [0, 1, 1]}}] * 2
    fields = {"tokens": "data.input_ids"}
    with pytest.raises(SourceError, match=r"nothing says what it means.*data\.keep") as error:
        built(tmp_path, rows, format, fields=fields)
    masks = ([0, 1, 1], [1, 0, 0], None)
    advice = re.findall(r"--field ([a-z_.]+)=([a-z.]+)", error.value.cure or "")
    assert len(advice) == len(masks)
    for (name, field), mask in zip(advice, masks, strict=True):
        settings = {**fields, name: field}
        report, cache = built(tmp_path, rows, format, output="cured", fields=settings)
        assert documents(cache) == [([5, 6, 7], mask)] * 2
        assert report.unused_fields == ({"data.keep": 2} if field == "none" else {})
    rows = [{"data": {"input_ids": [5, 6, 7], "quality": [0.5, 2.0, 7.0]}}] * 2
    with pytest.raises(SourceError) as error:
        built(tmp_path, rows, format, fields=fields)
    (text,) = re.findall(r"--leaf (\S+)", error.value.cure or "")
    leaves = dict([parse_leaf(text)])
    _, cache = built(tmp_path, rows, format, output="cured", fields=fields, leaves=leaves)
    assert cache.leaf("quality").document(1).tolist() == [0.5, 2.0, 7.0]
