"""A conversation is what its record says: the same tokens and masks from every file format, and no
word of Python.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from headrace.errors import SourceError
from headrace.ingest import ChatConfig, SourceConfig, TokenizerConfig, build_cache
from headrace.ingest.build import BuildReport
from headrace.ingest.chat_template import ChatTemplate, Given
from headrace.ingest.records import BadRecordError
from headrace.store import open_cache

ASKS_DEFINED = (
    "{% if tools %}<tools>{{ tools | tojson }}</tools>{% endif %}"
    "{% for m in messages %}<{{ m.role }}>{% if m.name is defined %}({{ m.name }}){% endif %}"
    "{% if m.content %}{{ m.content }}{% endif %}"
    "{% if m.tool_calls is defined %}{% for c in m.tool_calls %}"
    "<call>{{ c.function.name }} {{ c.function.arguments | tojson }}</call>{% endfor %}{% endif"
    " %}</s>{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
)
ASKS_NONE = (
    "{% for m in messages %}<{{ m.role }}>{% if m['content'] is none %}{% for c in m.tool_calls %}"
    "{{ c.function.name + c.function.arguments }}{% endfor %}{% else %}{{ m['content'] + '</s>'"
    " }}{% endif %}{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
)
WRITES_CONTENT = (
    "{% for m in messages %}<{{ m.role }}>{{ m['content'] | trim }}{% for c in m.tool_calls or []"
    " %}{{ c.function | tojson }}{% endfor %}</s>{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
READS_PARTS = (
    "{% for m in messages %}<{{ m.role }}>{% for p in m.content %}{% if p.type == 'text' %}{{"
    " p.text }}{% endif %}"
    "{% endfor %}{% for c in m.tool_calls or [] %}{{ c.function.name }}{% for k, v in"
    " c.function.arguments | items %}"
    "({{ k }}={{ v }}){% endfor %}{% endfor %}</s>{% endfor %}{% if add_generation_prompt"
    " %}<assistant>{% endif %}"
)
TOOL = {
    "type": "function",
    "function": {"name": "f", "parameters": {"properties": {"x": {"type": "integer"}}}},
}


def call(arguments: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": "f", "arguments": arguments}}


def conversations() -> list[dict[str, Any]]:
    """Thirty of them: with and without tools, names, nulls and parts."""
    records: list[dict[str, Any]] = []
    for k in range(30):
        question: dict[str, Any] = {"role": "user", "content": f"Question {k}?"}
        if k % 3 == 0:
            question["name"] = "ann"
        messages = [question]
        if k % 2:
            arguments = {"x": k} if k % 4 == 1 else {"y": "z"}
            messages.append({"role": "assistant", "content": None, "tool_calls": [call(arguments)]})
            messages.append({"role": "tool", "content": "42", "name": "f"})
        messages.append({"role": "assistant", "content": f"Answer {k}."})
        tools = {"tools": [TOOL] if k % 2 else None}
        # A table takes its columns from the first record; others may lack what is null.
        records.append({"messages": messages, **(tools if k % 2 or not k else {})})
    return records


def build(folder: Path, source: str, template: str, **settings: Any) -> BuildReport:
    settings = {"kind": "chat", "chat": ChatConfig(template, "roles")} | settings
    output = str(folder / f"cache{len(list(folder.glob('cache*')))}")
    return build_cache(
        SourceConfig([source], **settings), TokenizerConfig("bytes"), output, progress=False
    )


def decoded(report: BuildReport) -> list[tuple[str, bytes]]:
    cache = open_cache(report.path)
    mask = cache.leaf("loss_mask") if "loss_mask" in cache.leaves else None
    return [
        (
            bytes(t for t in cache.document(i).tolist() if t < 256).decode(),
            b"" if mask is None else mask.document(i).tobytes(),
        )
        for i in range(cache.num_documents)
    ]


def lines(folder: Path, records: list[dict[str, Any]]) -> str:
    path = folder / f"records{len(list(folder.glob('records*')))}.jsonl"
    path.write_text("".join(json.dumps(r) + "\n" for r in records))
    return str(path)


@pytest.mark.parametrize("template", [ASKS_DEFINED, ASKS_NONE, WRITES_CONTENT, READS_PARTS])
def test_the_same_tokens_and_masks_from_every_format(tmp_path: Path, template: str):
    arrow = pytest.importorskip("pyarrow")
    records = conversations()
    table = arrow.Table.from_pylist(records)
    pytest.importorskip("pyarrow.parquet").write_table(table, tmp_path / "a.parquet")
    pytest.importorskip("pyarrow.feather").write_feather(table, str(tmp_path / "a.arrow"))
    datasets = pytest.importorskip("datasets")
    datasets.Dataset(table).save_to_disk(str(tmp_path / "saved"))
    paths = [
        str(tmp_path / "a.parquet"),
        str(tmp_path / "a.arrow"),
        f"hf://{tmp_path}/saved",
        f"hf://{tmp_path}/saved?streaming=true",
    ]
    wanted = decoded(build(tmp_path, lines(tmp_path, records), template))
    assert len(wanted) == 30
    for path in paths:
        assert decoded(build(tmp_path, path, template)) == wanted, path
    for text, _ in wanted:
        assert "Question" in text
        assert "Answer" in text
        for word in ("None", "True", "null", "{'", "[{'"):
            assert word not in text


def same(folder: Path, records: list[Any], template: str, **settings: Any) -> list[str]:
    """The texts of records, each built alone."""
    return [
        decoded(build(folder, lines(folder, [record]), template, **settings))[0][0]
        for record in records
    ]


@pytest.mark.parametrize("template", [ASKS_DEFINED, ASKS_NONE, WRITES_CONTENT])
def test_spellings_of_one_conversation(tmp_path: Path, template: str):
    ask = {"role": "user", "content": "Hi"}
    parts = {
        "role": "user",
        "content": [{"type": "text", "text": "H"}, {"type": "text", "text": "i"}],
    }
    answers: list[dict[str, Any]] = [
        {"role": "assistant", "content": None, "tool_calls": [call({"x": 1})]},
        {"role": "assistant", "tool_calls": [call('{"x": 1}')]},
        {"role": "assistant", "function_call": {"name": "f", "arguments": '{"x": 1}'}},
        {"role": "assistant", "tool_calls": [call({"x": 1, "y": None})], "name": None},
    ]
    records = [{"messages": [q, a]} for q in (ask, parts) for a in answers]
    assert len(set(same(tmp_path, records, template))) == 1
    as_text = {"messages": json.dumps(records[0]["messages"])}
    assert same(tmp_path, [as_text], template) == same(tmp_path, records[:1], template)
    sharegpt = {"messages": [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Ho"}]}
    plain = {"messages": [ask, {"role": "assistant", "content": "Ho"}]}
    assert len(set(same(tmp_path, [sharegpt, plain], template))) == 1


def test_tools_and_variables_are_given_to_every_kind(tmp_path: Path):
    template = "{{ mood }}" + ASKS_DEFINED
    more = {"tools": json.dumps([TOOL]), "chat_template_kwargs": {"mood": "calm", "no": None}}
    ask = [{"role": "user", "content": "Hi"}]
    yes, no = ([{"role": "assistant", "content": text}] for text in ("yes", "no"))
    records = {
        "chat": {"messages": ask + yes, **more},
        "prompts": {"prompt": ask, **more},
        "preference": {"prompt": ask, "chosen": yes, "rejected": no, **more},
    }
    for kind, record in records.items():
        report = (
            build(
                tmp_path, lines(tmp_path, [record]), template, kind=kind, chat=ChatConfig(template)
            )
            if kind != "chat"
            else build(tmp_path, lines(tmp_path, [record]), template)
        )
        for text, _ in decoded(report):
            assert text.startswith('calm<tools>[{"type": "function"'), (kind, text)
        assert report.unused_fields == {}


def test_variables_elsewhere_are_said(tmp_path: Path):
    record = {**conversations()[0], "enable_thinking": False}
    report = build(tmp_path, lines(tmp_path, [record]), ASKS_DEFINED)
    assert report.unused_fields == {"enable_thinking": 1}


@pytest.mark.parametrize(
    ("template", "content", "place"),
    [
        ("{{ messages[0].extra }}{{ messages[0].content }}", {"a": 1}, "messages[0].extra"),
        ("{{ messages[0].extra }}", [1], "messages[0].extra"),
        ("{{ messages[0].extra }}", True, "messages[0].extra"),
        ("{{ 'x' ~ messages[0].extra }}", True, "messages[0].extra"),
        ("{{ messages[0].extra | string | upper }}", ["a"], "messages[0].extra"),
        ("{{ '%s' % messages[0].extra }}", {"a": 1}, "messages[0].extra"),
        ("{{ tools }}", 1, ""),
        ("{{ messages }}", 1, "messages"),
    ],
)
def test_python_words_are_refused(tmp_path: Path, template: str, content: Any, place: str):
    record = {"messages": [{"role": "user", "content": "Hi", "extra": content}]}
    with pytest.raises(SourceError) as error:
        build(tmp_path, lines(tmp_path, [record]), template, chat=ChatConfig(template, "all"))
    assert "as Python spells it" in str(error.value)
    assert place in str(error.value)


SPELLED = [True, False, None, {"a": 1}, {"a": True}, [None, "b"]]
THROUGH_STRING = [
    *["| trim", "| e", "| escape", "| forceescape", "| safe", "| replace('z', 'y')", "| indent"],
    *["| title", "| capitalize", "| center(20)", "| wordwrap(3)", "| urlencode", "| urlize"],
    *["| pprint", "| upper", "| striptags", "| truncate(3)", "| list | join", "| reverse | join"],
    *["| first", "| last", "| format", "| tojson", "| default('')", "| map('upper') | join"],
    *[".strip()", ".title()", ".upper()", ".replace('z', 'y')", ".split()[0]", "[:2]", "[0]"],
    *["* 2", "+ 'x'", "~ 'x'", "| string", "| unique | join"],
]
AS_IT_IS = [
    *["{{ EXTRA }}", "{{ 'x' ~ EXTRA }}", "{{ EXTRA ~ '' }}", "{{ '%s' | format(EXTRA) }}"],
    *["{{ '%s' % EXTRA }}", "{{ '%(a)s' % {'a': EXTRA} }}", "{{ '%(a)s' | format(a=EXTRA) }}"],
    *["{{ '{}'.format(EXTRA) }}", "{{ '{a}'.format_map({'a': EXTRA}) }}", "{{ EXTRA | pprint }}"],
    *["{{ {'a': EXTRA} | urlencode }}", "{{ {'a': EXTRA | string} | xmlattr }}"],
    *["{{ [EXTRA] | join }}", "{{ [EXTRA] | map('string') | join }}", "{{ EXTRA | title }}"],
    *["{{ messages | join(',', 'extra') }}", "{{ ['a', 'b'] | join(EXTRA) }}"],
    *["{{ messages | map(attribute='extra') | join }}", "{{ 'abc' | replace('b', EXTRA) }}"],
    *["{% set s = EXTRA %}{{ s }}", "{% macro f(a) %}{{ a }}{% endmacro %}{{ f(EXTRA) }}"],
    *["{% for c in EXTRA | string %}{{ c }}{% endfor %}", "{{ [EXTRA | string] | tojson }}"],
    *["{% filter upper %}{{ EXTRA }}{% endfilter %}", "{{ EXTRA | urlize | trim }}"],
]


@pytest.mark.parametrize(
    "template", [*AS_IT_IS, *(f"{{{{ (EXTRA | string) {one} }}}}" for one in THROUGH_STRING)]
)
def test_no_filter_hides_that_python_spelled_a_value(template: str):
    template = template.replace("EXTRA", "messages[0].extra")
    chat = ChatTemplate({"text": template, "tokens": {}}, {})
    for value in SPELLED:
        # The same value elsewhere, before and after: the one that is written is named.
        message = {"role": "user", "content": "", "before": value, "extra": value, "after": value}
        with pytest.raises(BadRecordError, match="as Python spells it") as error:
            chat.with_extras(Given(tools=None, variables={"other": value})).render([message])
        assert str(error.value).endswith(": messages[0].extra"), (value, str(error.value))


@pytest.mark.parametrize(
    "template",
    [
        *["{{ messages }}", "{{ messages[0].keys() }}", "{{ messages[0].items() }}", "{{ range }}"],
        *["{{ messages | map('upper') }}", "{{ messages[0] | items }}", "{{ messages[0].get }}"],
        *[
            "{{ namespace(a=1) }}",
            "{% for m in messages %}{{ loop }}{% endfor %}",
            "{{ range(3) }}",
        ],
        *["{% macro f() %}{% endmacro %}{{ f }}", "{{ cycler('a') }}", "{{ (1, 2) | string }}"],
        *["{{ ('a' == 'a') | string | trim }}", "{{ none ~ 'x' }}", "{{ ['a'] | batch(1) }}"],
    ],
)
def test_what_only_python_can_write_is_refused(template: str):
    chat = ChatTemplate({"text": template, "tokens": {}}, {})
    message = {"role": "user", "content": "Hi", "extra": True}
    with pytest.raises(BadRecordError, match="as Python spells it") as error:
        chat.render([message])
    assert "extra" not in str(error.value)


@pytest.mark.parametrize(
    ("template", "value", "wanted"),
    [
        ("{{ EXTRA | lower }}", True, "true"),
        ("{{ EXTRA | string | lower }}", False, "false"),
        ("{{ (EXTRA | string).lower() ~ '.' }}", True, "true."),
        (
            "{{ EXTRA | string | replace('True', 'true') | replace('False', 'false') }}",
            True,
            "true",
        ),
        ("{{ EXTRA | string | replace('None', 'null') }}", None, "null"),
        ("{{ EXTRA | string | replace(\"'\", '\"') }}", {"a": "b"}, '{"a": "b"}'),
        ("{{ EXTRA | tojson | trim }}", {"a": [None]}, '{"a": [null]}'),
        ("{% if EXTRA | string == 'True' %}yes{% endif %}", True, "yes"),
        ("{{ {'True': 'yes'}[EXTRA | string] }}", True, "yes"),
        ("{{ EXTRA | string | length }}", None, "4"),
        ("{{ 'yes' if 'a' in EXTRA | string else 'no' }}", ["a"], "yes"),
        ("{{ {'k': EXTRA} | xmlattr }}", None, ""),
        ("{{ {'k': 1, 'l': 'a'} | urlencode }}", None, "k=1&l=a"),
        ("{{ EXTRA or '' }}{{ missing ~ 1.5 ~ 2 }}{{ [1, 'a'] | join('-') }}", None, "1.521-a"),
        ("{{ '%(a)s' % {'a': 'b'} }}{{ 'a' | replace('a', 1) }}", None, "b1"),
    ],
)
def test_what_is_no_longer_pythons_is_written(template: str, value: Any, wanted: str):
    chat = ChatTemplate({"text": template.replace("EXTRA", "messages[0].extra"), "tokens": {}}, {})
    assert chat.render([{"role": "user", "content": "", "extra": value}]) == wanted


def test_the_place_is_that_of_the_value_which_is_written():
    template = (
        "{% for m in messages %}{% if m.a is true and m.b == false and m.c is not none %}"
        "{{ m.d | tojson }}{{ m.e ~ '' }}{% endif %}{% endfor %}"
    )
    chat = ChatTemplate({"text": template, "tokens": {}}, {})
    flags: dict[str, Any] = {"a": True, "b": False, "c": True, "d": [True, None], "e": "x"}
    messages = [{"role": "user", "content": "", **flags, **more} for more in ({}, {"e": True})]
    with pytest.raises(BadRecordError) as error:
        chat.render(messages)
    assert str(error.value).endswith(": messages[1].e")


def test_words_of_json_may_be_made_of_them(tmp_path: Path):
    template = "{{ messages[0].extra | string | lower }} {{ messages[0].extra | tojson }}"
    record = {"messages": [{"role": "user", "content": "", "extra": True}]}
    chat = ChatConfig(template, "all")
    report = build(tmp_path, lines(tmp_path, [record]), template, chat=chat)
    assert decoded(report)[0][0] == "true true"


@pytest.mark.parametrize(
    ("message", "place"),
    [
        (
            {"role": "user", "content": [{"type": "image", "image": "a.png"}]},
            "messages[0].content[0]",
        ),
        ({"role": "user", "content": 3}, "messages[0].content"),
        ({"role": "user", "content": None}, "messages[0]"),
        ("Hi", "messages[0]"),
        ({"from": [], "value": "Hi"}, "messages[0]"),
        ({"role": "assistant", "tool_calls": "[" * 100_000}, "messages[0].tool_calls"),
    ],
)
def test_what_is_no_text_is_refused_with_its_place(tmp_path: Path, message: Any, place: str):
    with pytest.raises(SourceError) as error:
        build(tmp_path, lines(tmp_path, [{"messages": [message]}]), ASKS_DEFINED)
    assert f" {place}" in str(error.value).replace("'", "")


SHAPES: list[dict[str, Any]] = [
    {"conversations": [{"from": "human", "value": "Q"}, {"from": "gpt", "value": "A"}]},
    {"prompt": "Q", "completion": "A"},
    {
        "prompt": [{"role": "user", "content": "Q"}],
        "completion": [{"role": "assistant", "content": "A"}],
    },
    {"instruction": "Q", "input": "", "output": "A"},
    {"question": "Q", "answer": "A"},
]


@pytest.mark.parametrize("record", SHAPES)
@pytest.mark.parametrize("format", ["jsonl", "parquet"])
def test_the_cure_for_another_shape_works(tmp_path: Path, record: dict[str, Any], format: str):  # noqa: A002
    source = lines(tmp_path, [record])
    if format == "parquet":
        arrow = pytest.importorskip("pyarrow")
        source = str(tmp_path / "a.parquet")
        pytest.importorskip("pyarrow.parquet").write_table(
            arrow.Table.from_pylist([record]), source
        )
    with pytest.raises(SourceError) as error:
        build(tmp_path, source, WRITES_CONTENT)
    cure = str(error.value).split("Say ")[1].split(". ")[0].rstrip(".")
    fields = dict(pair.split("=") for pair in cure.split() if "=" in pair)
    ((text, mask),) = decoded(build(tmp_path, source, WRITES_CONTENT, fields=fields))
    assert text.rstrip() == "<user>Q</s><assistant>A</s>"
    assert bytes(t for t, m in zip(text.encode(), mask, strict=False) if m) == b"A</s>"


def test_context_and_system_come_where_they_belong(tmp_path: Path):
    record = {"instruction": "Add", "input": "1 2", "output": "3", "system": "Be brief"}
    fields = {"question": "instruction", "context": "input", "answer": "output", "system": "system"}
    (text,) = same(tmp_path, [record], WRITES_CONTENT, fields=fields)
    assert text == "<system>Be brief</s><user>Add\n\n1 2</s><assistant>3</s>"
