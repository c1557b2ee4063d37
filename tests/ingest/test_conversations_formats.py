"""The same conversations in every file format, with templates as well-known models have them: equal
tokens and masks.

The templates are written for these tests. They do what templates of those models do: merge the
system message into the first question, check roles and ids, list tools before the last question,
gather results of tools, look at what is defined, none, a string or a list.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headrace.ingest import ChatConfig, SourceConfig, TokenizerConfig, build_cache
from headrace.store import open_cache

MASKS: dict[str, Any] = {
    "llama": "roles",
    "mistral": "generation",
    "qwen": "generation",
    "gemma": "roles",
}
"""By template: what is trained on."""
PYTHON_WORDS = ("None", "True", "False", "{'", "undefined", "Undefined")


def tool(name: str, properties: dict[str, Any], **more: Any) -> dict[str, Any]:
    parameters = {"type": "object", "properties": properties, **more}
    function = {"name": name, "description": f"Does {name}", "parameters": parameters}
    return {"type": "function", "function": function}


TOOLS = [
    tool("add", {"x": {"type": "integer"}, "y": {"type": "integer", "description": "the other"}}),
    tool("find", {"where": {"type": "string", "enum": ["here", "there"]}}, required=["where"]),
    tool("now", {}),
]
ARGUMENTS: list[dict[str, Any]] = [{"x": 1, "y": 2}, {"where": "here"}, {}]


def conversations() -> list[dict[str, Any]]:
    """Thirty of them, in which fields are absent, null or there."""
    records: list[dict[str, Any]] = []
    for k in range(30):
        messages: list[dict[str, Any]] = []
        if k % 4 == 1:
            messages.append({"role": "system", "content": f"Be number {k}."})
        messages.append({"role": "user", "content": f"Question {k}?"})
        if k % 3:
            which = k % 3
            function = {"name": ("now", "add", "find")[which], "arguments": ARGUMENTS[which - 1]}
            call = {"id": f"call{k:05d}", "type": "function", "function": function}
            turn: dict[str, Any] = {"role": "assistant", "tool_calls": [call]}
            turn |= [{"content": None}, {"content": ""}, {}][k // 3 % 3]
            messages.append(turn)
            result = {"role": "tool", "content": f"{k}", "tool_call_id": call["id"]}
            messages.append(result | ({"name": function["name"]} if k % 2 else {}))
        answer: dict[str, Any] = {"role": "assistant", "content": f"Answer {k}."}
        if k % 5 == 0:
            answer["reasoning_content"] = f"Thought {k}."
        if k % 7 == 0:
            messages += [
                {**answer, "weight": 0.0},
                {"role": "user", "content": "And?", "meta": {"page": k}},
            ]
        messages.append(answer | ({"weight": None} if k % 2 else {"weight": 1.0}))
        record: dict[str, Any] = {"id": k, "messages": messages}
        if k % 3 or k % 2:
            record["tools"] = TOOLS[: 1 + k % 3] if k % 3 else None
        records.append(record)
    return records


def in_parts(record: dict[str, Any]) -> dict[str, Any]:
    """The record with each text cut into parts."""

    def cut(text: str) -> list[dict[str, Any]]:
        parts: list[dict[str, Any]] = [{"type": "text", "text": text[:3]}]
        return [*parts, {"type": "text", "text": text[3:], "cache": {"type": "short"}}]

    messages = [
        m | {"content": cut(m["content"])} if isinstance(m.get("content"), str) else m
        for m in record["messages"]
    ]
    return {**record, "messages": messages}


def in_strings(record: dict[str, Any]) -> dict[str, Any]:
    """The record with messages and tools as JSON, as some tables have them."""
    return {
        name: value if name == "id" or value is None else json.dumps(value)
        for name, value in record.items()
    }


def as_jsonl(records: list[dict[str, Any]], folder: Path) -> str:
    path = folder / "a.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return str(path)


def as_parquet(records: list[dict[str, Any]], folder: Path) -> str:
    arrow = pytest.importorskip("pyarrow")
    path = str(folder / "a.parquet")
    pytest.importorskip("pyarrow.parquet").write_table(
        arrow.Table.from_pylist(records), path, row_group_size=7
    )
    return path


def as_arrow(records: list[dict[str, Any]], folder: Path) -> str:
    arrow = pytest.importorskip("pyarrow")
    path = str(folder / "a.arrow")
    table = arrow.Table.from_pylist(records)
    with arrow.OSFile(path, "wb") as file, arrow.ipc.new_stream(file, table.schema) as stream:
        stream.write_table(table)
    return path


def as_feather(records: list[dict[str, Any]], folder: Path) -> str:
    arrow = pytest.importorskip("pyarrow")
    path = str(folder / "a.feather")
    pytest.importorskip("pyarrow.feather").write_feather(arrow.Table.from_pylist(records), path)
    return path


def as_saved(records: list[dict[str, Any]], folder: Path) -> str:
    datasets = pytest.importorskip("datasets")
    datasets.Dataset.from_list(records).save_to_disk(str(folder / "saved"))
    return f"hf://{folder}/saved"


WRITERS: dict[str, Callable[[list[dict[str, Any]], Path], str]] = {
    "jsonl": as_jsonl,
    "parquet": as_parquet,
    "arrow": as_arrow,
    "feather": as_feather,
    "saved": as_saved,
}
SPELLINGS: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "texts": dict,
    "parts": in_parts,
    "strings": in_strings,
}


def built(source: str, name: str, output: Path) -> list[tuple[str, list[int]]]:
    """Text and mask of each document."""
    template = Path(__file__).parent / "templates" / f"{name}.jinja"
    config = SourceConfig([source], kind="chat", chat=ChatConfig(str(template), MASKS[name]))
    report = build_cache(config, TokenizerConfig("bytes"), str(output), progress=False)
    cache = open_cache(report.path)
    made: list[tuple[str, list[int]]] = []
    for i in range(cache.num_documents):
        text = bytes(t for t in cache.document(i).tolist() if t < 256).decode()
        made.append((text, cache.leaf("loss_mask").document(i).tolist()))
    return made


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[tuple[str, list[int]]]]:
    """What each template makes of the conversations as JSON lines with plain texts."""
    folder = tmp_path_factory.mktemp("expected")
    source = as_jsonl(conversations(), folder)
    return {name: built(source, name, folder / name) for name in MASKS}


@pytest.mark.parametrize("name", MASKS)
def test_nothing_is_lost_and_no_word_is_pythons(
    expected: dict[str, list[tuple[str, list[int]]]], name: str
):
    records = conversations()
    assert len(expected[name]) == len(records) == 30
    for record, (text, mask) in zip(records, expected[name], strict=True):
        assert not [word for word in PYTHON_WORDS if word in text], text
        trained = bytes(t for t, m in zip(text.encode(), mask, strict=False) if m).decode()
        *_, last = record["messages"]
        assert last["content"] in trained
        for message in record["messages"]:
            assert (message.get("content") or "") in text
            if message["role"] != "assistant":
                assert message["content"] not in trained or message["role"] == "tool"
            for one in message.get("tool_calls", []):
                assert one["function"]["name"] in trained
                for key in one["function"]["arguments"]:
                    assert key in trained
        for one in record.get("tools") or []:
            assert one["function"]["name"] in text
        silent = [m for m in record["messages"] if m.get("weight") == 0]
        assert trained.count(f"Answer {record['id']}.") == 1 or not silent


@pytest.mark.parametrize("spelling", SPELLINGS)
@pytest.mark.parametrize("format", WRITERS)
@pytest.mark.parametrize("name", MASKS)
def test_every_format_and_spelling_gives_the_same_tokens_and_masks(
    tmp_path: Path,
    expected: dict[str, list[tuple[str, list[int]]]],
    name: str,
    format: str,  # noqa: A002
    spelling: str,
):
    records = [SPELLINGS[spelling](record) for record in conversations()]
    # A table takes its columns from the first record; others may lack what is null.
    records[0].setdefault("tools", None)
    source = WRITERS[format](records, tmp_path)
    assert built(source, name, tmp_path / "cache") == expected[name]
