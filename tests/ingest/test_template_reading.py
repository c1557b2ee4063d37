"""Words that a template leaves out are refused or counted; messages marked so are
not trained on.
"""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from headrace.cli.application import application
from headrace.errors import ConfigError, SourceError
from headrace.ingest import ChatConfig, LeafConfig, SourceConfig, TokenizerConfig, build_cache
from headrace.ingest.build import BuildReport
from headrace.store import open_cache

# Writes users and assistants, what was thought only in the last turn, and calls only in place of a
# content.
NARROW = (
    "{% for m in messages %}{% if m.role == 'user' %}<u>{{ m.content }}</s>{% elif m.role =="
    " 'assistant' %}<a>"
    "{% generation %}{% if loop.last and m.reasoning_content %}<t>{{ m.reasoning_content }}</t>{%"
    " endif %}"
    "{% if m.tool_calls %}{% for c in m.tool_calls %}{{ c.function.name }}{% endfor %}{% else %}{{"
    " m.content }}"
    "{% endif %}</s>{% endgeneration %}{% endif %}{% endfor %}{% if add_generation_prompt %}<a>{%"
    " endif %}"
)
PLAIN = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}</s>{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
ASK = {"role": "user", "content": "Q"}
ANSWER = {"role": "assistant", "content": "A"}
CALL: dict[str, Any] = {"type": "function", "function": {"name": "f", "arguments": {"x": 1}}}


def build(
    folder: Path,
    record: dict[str, Any],
    template: str = NARROW,
    mask: Any = "generation",
    kind: Any = "chat",
    **settings: Any,
) -> BuildReport:
    path = folder / "a.jsonl"
    path.write_text(json.dumps(record) + "\n")
    source = SourceConfig([str(path)], kind=kind, chat=ChatConfig(template, mask), **settings)
    output = str(folder / f"cache{len(list(folder.glob('cache*')))}")
    return build_cache(source, TokenizerConfig("bytes"), output, progress=False)


def trained(report: BuildReport, document: int = 0) -> str:
    cache = open_cache(report.path)
    mask = cache.leaf("loss_mask").document(document).tolist()
    pairs = zip(cache.document(document).tolist(), mask, strict=True)
    return bytes(token for token, is_trained in pairs if is_trained and token < 256).decode()


def test_fields_that_the_template_does_not_write_are_counted_and_shown(tmp_path: Path):
    first = {**ANSWER, "reasoning_content": "R", "tokens_used": 3, "weight": 1}
    called = {**ANSWER, "content": "I call", "tool_calls": [CALL], "name": "Bob"}
    record = {
        "messages": [ASK, first, ASK, called, ASK, {**ANSWER, "reasoning_content": "R2"}],
        "tools": [CALL],
        "chat_template_kwargs": {"loud": True},
    }
    report = build(tmp_path, record)
    unused = [
        "chat_template_kwargs.loud",
        "messages[].content",
        "messages[].name",
        "messages[].reasoning_content",
        "messages[].tokens_used",
        "messages[].tool_calls[].function.arguments",
        "tools",
    ]
    assert report.unused_fields == dict.fromkeys(unused, 1)
    shown = CliRunner().invoke(application(), ["cache", "inspect", report.path, "--json"])
    assert json.loads(shown.output)["unused_fields"] == report.unused_fields


# As Qwen 3's: what was thought is written after the last question only, be it a field or within
# the content.
CUTS_THOUGHTS = (
    "{% set ns = namespace(last=0) %}{% for m in messages %}{% if m.role == 'user' %}{% set ns.last ="
    " loop.index0 %}{% endif %}{% endfor %}{% for m in messages %}{% set content = m.content or ''"
    " %}{% set thought = '' %}{% if m.reasoning_content is string %}{% set thought ="
    " m.reasoning_content %}{% elif '</think>' in content %}{% set thought ="
    " content.split('</think>')[0].split('<think>')[-1].strip('\n') %}{% set content ="
    " content.split('</think>')[-1].lstrip('\n') %}{% endif %}<{{ m.role }}>{% generation %}{% if"
    " m.role == 'assistant' and loop.index0 > ns.last %}<think>{{ thought }}</think>{% endif %}{{"
    " content }}{% for c in m.tool_calls or [] %}{{ c.function.name }}{{ c.function.arguments |"
    " tojson }}{% endfor %}</s>{% endgeneration %}{% endfor %}"
)
THOUGHT = "<think>\nHm.\n</think>\n\nA"


@pytest.mark.parametrize(
    ("turns", "unused"),
    [
        ([{"content": "<think>\nHm so\n</think>\n\nA"}], []),
        ([{"content": THOUGHT}, {"content": THOUGHT}], ["content (in part)"]),
        ([{"content": "<think>\nA\n</think>\nA"}, {"content": "A"}], ["content (in part)"]),
        ([{"content": "<think>\n\n</think>\n\nA"}, {"content": "A"}], []),
        ([{"content": " A\n"}, {"content": "\nB"}], []),
        (
            [{"content": "<think>\nSee [1] <b>\n</think>\n[2] A"}, {"content": "A"}],
            ["content (in part)"],
        ),
        ([{"content": "A", "reasoning_content": "H"}, {"content": "B"}], ["reasoning_content"]),
        ([{"content": "A", "reasoning_content": "H"}], []),
        ([{"content": "A", "thinking": "Hm"}], ["thinking"]),
        ([{"content": "A", "thinking": ""}], []),
        ([{"content": "A", "thinking": {"text": "Hm"}, "n": 3}], ["n", "thinking"]),
        ([{"tool_calls": [{**CALL, "rationale": "Hm"}]}], ["tool_calls[].rationale"]),
        ([{"tool_calls": [{**CALL, "id": "c1", "type": None}]}], ["tool_calls[].id"]),
        ([{"tool_calls": [{**CALL, "thought": [1, "b"]}, CALL]}], ["tool_calls[].thought"]),
        (
            [{"tool_calls": [{"function": {**CALL["function"], "thought": "Hm", "n": 1}}]}],
            ["tool_calls[].function.n", "tool_calls[].function.thought"],
        ),
        (
            [{"tool_calls": [{"name": "f", "arguments": {"x": 1}, "why": "Hm"}]}],
            ["tool_calls[].why"],
        ),
        (
            [{"content": [{"type": "text", "text": "A", "citations": [1], "more": None}]}],
            ["content[].citations"],
        ),
        ([{"content": [{"text": "A", "cache_control": {"a": "b"}}]}], ["content[].cache_control"]),
    ],
)
@pytest.mark.parametrize("format", ["jsonl", "parquet", "text"])
def test_all_that_no_text_is_made_of_is_counted(
    tmp_path: Path,
    turns: list[dict[str, Any]],
    unused: list[str],
    format: str,  # noqa: A002
):
    messages = [m for turn in turns for m in (ASK, {"role": "assistant", **turn})]
    record = {"messages": json.dumps(messages) if format == "text" else messages}
    path = tmp_path / f"a.{'parquet' if format == 'parquet' else 'jsonl'}"
    if format == "parquet":
        arrow = pytest.importorskip("pyarrow")
        parquet = pytest.importorskip("pyarrow.parquet")
        try:
            table = arrow.Table.from_pylist([record])
        except arrow.ArrowInvalid:  # no table has a list of texts and numbers, or of both kinds
            pytest.skip("no such table")
        parquet.write_table(table, path)
    else:
        path.write_text(json.dumps(record) + "\n")
    source = SourceConfig([str(path)], kind="chat", chat=ChatConfig(CUTS_THOUGHTS))
    output = str(tmp_path / "cache")
    report = build_cache(source, TokenizerConfig("bytes"), output, progress=False)
    assert report.unused_fields == {f"messages[].{name}": 1 for name in unused}
    shown = CliRunner().invoke(application(), ["cache", "inspect", report.path, "--json"])
    assert json.loads(shown.output)["unused_fields"] == report.unused_fields


@pytest.mark.parametrize("name", ["chosen", "prompt"])
def test_what_parts_of_pairs_and_prompts_have_besides_text_is_counted(tmp_path: Path, name: str):
    parts = [{"type": "text", "text": "A", "citations": ["b"]}]
    record: dict[str, Any] = {"prompt": [ASK], "chosen": [ANSWER], "rejected": [ANSWER]}
    record[name] = [{**record[name][0], "content": parts}]
    kind = "preference" if name == "chosen" else "prompts"
    record = record if name == "chosen" else {"prompt": record["prompt"]}
    report = build(tmp_path, record, PLAIN, kind=kind)
    assert report.unused_fields == {f"{name}[].content[].citations": 1}


@pytest.mark.parametrize(
    ("written", "unused"),
    [
        ("{{ m.content | tojson }}", []),
        ("{{ m.content | upper }}", []),
        ("{{ m.content.split() | join('_') }}", []),
        ("{{ m.content.split('.')[0] }}", ["messages[].content (in part)"]),
        ("{{ m.content[:14] }}", ["messages[].content (in part)"]),
        ("{{ m | tojson }}", []),
        ("{{ m.tool_calls[0] | tojson }}{{ m.content }}", []),
    ],
)
def test_a_content_that_is_rewritten_is_not_cut(tmp_path: Path, written: str, unused: list[str]):
    call = {**CALL, "id": "c1", "rationale": "Hm"}
    message = {"role": "assistant", "content": 'One "two".\n Three four', "tool_calls": [call]}
    template = "{% for m in messages %}" + written + "{% endfor %}"
    report = build(tmp_path, {"messages": [message]}, template, "all")
    calls = ["function.arguments", "function.name", "id", "rationale"]
    silent = [] if "tojson }}" in written and "m.content |" not in written else calls
    wanted = [*unused, *(f"messages[].tool_calls[].{name}" for name in silent)]
    assert report.unused_fields == dict.fromkeys(wanted, 1)


def test_a_template_that_checks_words_is_compared_with_those_of_the_record(tmp_path: Path):
    template = (
        "{% for m in messages %}{% if m.content not in ('Q', 'A') %}{{ raise_exception('no') }}{%"
        " endif %}{{ m.content }}</s>{% endfor %}"
    )
    record = {"messages": [ASK, {**ANSWER, "reasoning_content": "Hm", "tool_calls": [CALL]}]}
    names = ["reasoning_content", "tool_calls[].function.arguments", "tool_calls[].function.name"]
    report = build(tmp_path, record, template, "all")
    assert report.unused_fields == {f"messages[].{name}": 1 for name in names}


def test_what_the_template_writes_is_not_counted(tmp_path: Path):
    record = {"messages": [ASK, {**ANSWER, "reasoning_content": "R", "loss": True}]}
    assert build(tmp_path, record).unused_fields == {}


@pytest.mark.parametrize(
    ("turn", "said"),
    [
        ({"role": "tool", "content": "u"}, "turn 2 (tool)"),
        ({"role": "tool", "content": "[1]"}, "turn 2 (tool)"),
        ({"role": "tool", "content": "<t>\n... </t>"}, "turn 2 (tool)"),
        ({"role": "system", "content": "Be brief", "name": "f"}, "turn 2 (system)"),
        ({"role": "assistant", "refusal": "I cannot"}, "turn 2 (assistant)"),
    ],
)
def test_a_turn_that_the_template_leaves_out_is_refused(
    tmp_path: Path, turn: dict[str, Any], said: str
):
    with pytest.raises(SourceError) as error:
        build(tmp_path, {"messages": [ASK, turn, ANSWER]})
    assert "line 1" in str(error.value)
    assert f"{said} of field 'messages'" in str(error.value)
    both = [ASK, turn, ANSWER]
    with pytest.raises(SourceError, match="of field 'chosen'"):
        build(tmp_path, {"chosen": both, "rejected": [*both[:2], ASK]}, kind="preference")
    with pytest.raises(SourceError, match="of field 'prompt'"):
        build(tmp_path, {"prompt": both[:2]}, kind="prompts")


def test_calls_that_the_template_leaves_out_are_refused(tmp_path: Path):
    record = {"messages": [ASK, {"role": "assistant", "tool_calls": [CALL]}, ANSWER]}
    with pytest.raises(SourceError, match=r"turn 2 \(assistant\)"):
        build(tmp_path, record, PLAIN, "roles")
    assert trained(build(tmp_path, record)) == "f</s>A</s>"


def test_a_turn_that_a_template_chooses_by_its_text_is_not_refused(tmp_path: Path):
    template = (
        "{% for m in messages %}{% if 'A' in m.content %}{{ m.content }}{% endif %}{% endfor %}"
    )
    assert trained(build(tmp_path, {"messages": [ANSWER]}, template, "all")) == "A"
    with pytest.raises(SourceError, match=r"turn 1 \(user\)"):
        build(tmp_path, {"messages": [ASK, ANSWER]}, template, "all")


MARKS = [{"weight": 0}, {"weight": 0.0}, {"trainable": False}, {"train": False}, {"loss": 0}]


@pytest.mark.parametrize("mark", [*MARKS, {"weight": 1, "train": False}])
def test_a_message_marked_so_is_not_trained_on(tmp_path: Path, mark: dict[str, Any]):
    silent = {"role": "assistant", "content": "no", **mark}
    record = {"messages": [ASK, silent, {**ASK, "weight": None}, {**ANSWER, "weight": 1}]}
    for mask, wanted in {
        "generation": "A</s>",
        "roles": "A</s>",
        "all": "<u>Q</s><a><u>Q</s><a>A</s>",
        "all_assistant_messages": "A</s>",
    }.items():
        assert trained(build(tmp_path, record, mask=mask)) == wanted, mask
    said = {"messages": [{**m, "weight": m.get("weight") or 0} for m in record["messages"]]}
    assert trained(build(tmp_path, said, mask="customized")) == "A</s>"
    assert build(tmp_path, record).unused_fields == {}


@pytest.mark.parametrize("template", [NARROW, PLAIN])
@pytest.mark.parametrize("side", ["chosen", "rejected"])
def test_a_pair_compares_answers_that_are_trained_on(tmp_path: Path, template: str, side: str):
    record = {"prompt": [ASK], "chosen": [ANSWER], "rejected": [{**ANSWER, "content": "B"}]}
    masked = {**record, side: [{**record[side][0], "weight": 0}]}
    with pytest.raises(SourceError, match=f"an answer in field '{side}' of which nothing"):
        build(tmp_path, masked, template, kind="preference")
    longer = {**record, side: [{**record[side][0], "weight": 0}, ASK, ANSWER]}
    report = build(tmp_path, longer, template, kind="preference")
    wanted = ["A</s>", "B</s>"]
    # Without marks in the template, all that follows the prompt is the answer.
    wanted[side == "rejected"] = "A</s>" if template == NARROW else "<user>Q</s><assistant>A</s>"
    assert [trained(report, i) for i in (0, 1)] == wanted


def test_an_empty_answer_of_a_pair_needs_an_end(tmp_path: Path):
    record = {"prompt": "Q ", "chosen": "yes", "rejected": ""}
    assert [trained(build(tmp_path, record, kind="preference"), i) for i in (0, 1)] == ["yes", ""]
    tokenizer = TokenizerConfig("bytes", eos="none")
    source = SourceConfig([str(tmp_path / "a.jsonl")], kind="preference")
    with pytest.raises(SourceError, match=r"empty answer in field 'rejected'.*--eos auto"):
        build_cache(source, tokenizer, str(tmp_path / "endless"), progress=False)


def test_a_template_that_rewrites_what_was_may_have_masked_turns(tmp_path: Path):
    silent = {**ANSWER, "content": "no", "reasoning_content": "R", "weight": 0}
    record = {"messages": [ASK, silent, ASK, {**ANSWER, "reasoning_content": "S"}]}
    assert trained(build(tmp_path, record)) == "<t>S</t>A</s>"


@pytest.mark.parametrize("mark", [{"weight": 0.5}, {"weight": "0"}, {"train": [0]}])
def test_other_marks_are_refused_with_their_place(tmp_path: Path, mark: dict[str, Any]):
    (name,) = mark
    with pytest.raises(SourceError, match=rf"messages\[1\]\.{name}"):
        build(tmp_path, {"messages": [ASK, {**ANSWER, **mark}]})


def test_a_variable_that_the_template_does_not_read_is_refused(tmp_path: Path):
    template = "{% if loud %}!{% endif %}" + PLAIN
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps({"messages": [ASK, ANSWER]}) + "\n")

    def made(name: str) -> BuildReport:
        chat = ChatConfig(template, "roles", variables={name: "yes"})
        source = SourceConfig([str(path)], kind="chat", chat=chat)
        output = str(tmp_path / f"cache_{name}")
        return build_cache(source, TokenizerConfig("bytes"), output, progress=False)

    with pytest.raises(ConfigError, match=r"chat\.variables\.lod.*Did you mean 'loud'"):
        made("lod")
    assert trained(made("loud")) == "A</s>"


def test_fields_beside_messages_within_a_field_are_counted(tmp_path: Path):
    said = {"messages": [ASK, ANSWER], "tools": [CALL], "system": "S"}
    record = {"id": 1, "data": {**said, "meta": {"url": "u", "score": 1}}}
    report = build(tmp_path, record, fields={"messages": "data.messages"})
    names = ["data.meta", "data.system", "data.tools", "id"]
    assert report.unused_fields == dict.fromkeys(names, 1)
    leaf = LeafConfig("data.meta.score", "int32")
    report = build(tmp_path, record, fields={"messages": "data.messages"}, leaves={"score": leaf})
    names = ["data.meta.url", "data.system", "data.tools", "id"]
    assert report.unused_fields == dict.fromkeys(names, 1)
