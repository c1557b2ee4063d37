"""What records become: ids, masks and leaves; checked against a plain reading of the rules and
against transformers.
"""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.data import TokenSeqDataset
from headrace.errors import ConfigError, PlanMismatchError, SourceError
from headrace.ingest import ChatConfig, LeafConfig, SourceConfig, TokenizerConfig, build_cache
from headrace.ingest.chat_template import ChatTemplate, find_template
from headrace.ingest.documents import make_kind
from headrace.ingest.kinds.marked import marked
from headrace.ingest.records import BadRecordError, parse_leaf
from headrace.ingest.tokenize import ByteTokenizer, load_tokenizer
from headrace.store import open_cache
from headrace.store.ledger import read_part_record

PLAIN = (
    "{{ bos_token }}{% for m in messages %}<|{{ m['role'] }}|>\n{{ m['content'] }}</s>\n{% endfor"
    " %}{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)
MARKED = (
    "{{ bos_token }}{% for m in messages %}<|{{ m['role'] }}|>\n{% if m['role'] == 'assistant' %}"
    "{% generation %}{{ m['content'] }}</s>{% endgeneration %}{{ '\n' }}"
    "{% else %}{{ m['content'] }}</s>\n{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)
ROLES = st.sampled_from(["user", "assistant", "system"])
CONVERSATIONS = st.lists(
    st.builds(
        lambda role, content: {"role": role, "content": content}, ROLES, st.text(max_size=12)
    ),
    min_size=1,
    max_size=5,
)


def template(text: str, **variables: str) -> ChatTemplate:
    return ChatTemplate({"text": text, "tokens": {"bos_token": "<s>"}}, variables)


def encoded(
    records: list[dict[str, Any]], kind: str, text: str | None = None, **settings: Any
) -> Any:
    """Documents of records as lists: text of the ids, and each leaf."""
    tokenizer = ByteTokenizer()
    record = None if text is None else {"text": text, "tokens": {"bos_token": "<s>"}}
    maker = make_kind(SourceConfig(["x"], kind=kind, **settings), kind, tokenizer, record)
    tokens, lengths, leaves = maker.encode([d for r in records for d in maker.documents(r)])
    stops = np.cumsum(lengths)
    texts = [tokenizer.decode(tokens[a:b]) for a, b in zip(stops - lengths, stops, strict=True)]
    found: dict[str, list[Any]] = {}
    for spec in maker.specs:
        values, counts = leaves[spec.name]
        assert values.dtype == spec.dtype
        cuts = np.cumsum(np.ones(len(texts), int) if counts is None else counts)
        found[spec.name] = [v.tolist() for v in np.split(values, cuts[:-1])]
    return texts, found


def trained(texts: list[str], masks: list[list[int]]) -> list[str]:
    """The bytes that are trained on, as text."""
    return [
        bytes(b for b, m in zip(t.encode(), mask, strict=False) if m).decode()
        for t, mask in zip(texts, masks, strict=True)
    ]


@given(messages=CONVERSATIONS)
def test_marks_and_roles_and_all(messages: list[dict[str, str]]):
    record = [{"messages": messages}]
    text = "<s>" + "".join(f"<|{m['role']}|>\n{m['content']}</s>\n" for m in messages)
    answers = [m["content"] for m in messages if m["role"] == "assistant"]
    texts, leaves = encoded(record, "chat", MARKED)
    assert texts == [text]
    assert trained(texts, leaves["loss_mask"]) == ["".join(a + "</s>" for a in answers)]
    texts, leaves = encoded(record, "chat", PLAIN, chat=ChatConfig(mask="roles"))
    assert texts == [text]
    assert (
        trained(texts, leaves["loss_mask"])[0].replace("<s><|assistant|>\n", "")
        == "".join(a + "</s>\n" for a in answers).replace("<s><|assistant|>\n", "")
        or messages[0]["role"] == "assistant"
    )
    _, leaves = encoded(record, "chat", PLAIN, chat=ChatConfig(mask="all"))
    assert leaves["loss_mask"] == [[1] * len(text.encode())]


def test_turns_of_other_roles():
    messages = [
        {"role": "user", "content": "u"},
        {"role": "assistant", "content": "a"},
        {"role": "user", "content": "v"},
    ]
    texts, leaves = encoded(
        [{"messages": messages}], "chat", PLAIN, chat=ChatConfig(mask="roles", roles=["user"])
    )
    assert trained(texts, leaves["loss_mask"]) == ["<s><|user|>\nu</s>\n<|user|>\nv</s>\n"]


@pytest.fixture(scope="module")
def chat_folder(
    tmp_path_factory: pytest.TempPathFactory, make_tokenizer: Callable[[list[str]], str]
) -> Path:
    """A tokenizer with a chat template, as models come with."""
    folder = tmp_path_factory.mktemp("chat")
    special = ["<pad>", "<s>", "</s>", "<|user|>", "<|assistant|>", "<|system|>"]
    (folder / "tokenizer.json").write_bytes(Path(make_tokenizer(special)).read_bytes())
    config = {
        "bos_token": "<s>",
        "eos_token": {"__type": "AddedToken", "content": "</s>"},
        "tokenizer_class": "PreTrainedTokenizerFast",
        "chat_template": MARKED,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


@given(messages=CONVERSATIONS)
@settings(max_examples=60)
def test_the_same_ids_and_masks_as_transformers(chat_folder: Path, messages: list[dict[str, str]]):
    import transformers

    theirs = transformers.AutoTokenizer.from_pretrained(str(chat_folder))
    wanted = theirs.apply_chat_template(
        messages,
        tokenize=True,
        return_dict=True,
        return_assistant_tokens_mask=True,
        add_generation_prompt=False,
    )
    ours = load_tokenizer(TokenizerConfig(str(chat_folder)))
    found = find_template(ChatConfig(), str(chat_folder))
    kind = make_kind(SourceConfig(["x"], kind="chat"), "chat", ours, found)
    tokens, _, leaves = kind.encode(list(kind.documents({"messages": messages})))
    assert tokens.tolist() == wanted["input_ids"]
    text = theirs.apply_chat_template(messages, tokenize=False)
    last = [m["content"] for m in messages if m["role"] == "assistant"]
    # They leave out the later ids of an answer whose last character takes several; here it ends
    # with </s>.
    assert leaves["loss_mask"][0].tolist() == wanted["assistant_masks"], (text, last)


class TestTemplates:
    def test_a_template_cannot_reach_out(self):
        chat = template("{{ ''.__class__.__mro__[1].__subclasses__() }}")
        with pytest.raises(BadRecordError, match="SecurityError"):
            chat.render([{"role": "user", "content": "x"}])
        chat = template("{% set _ = messages.append(1) %}")
        with pytest.raises(BadRecordError, match="SecurityError"):
            chat.render([{"role": "user", "content": "x"}])

    def test_a_template_has_no_clock(self):
        with pytest.raises(BadRecordError, match="strftime_now") as caught:
            template("{{ strftime_now('%Y') }}").render([])
        assert "--chat-variable strftime_now=" in caught.value.cure
        dated = template("{{ strftime_now('%d %b %Y') }}", strftime_now="2025-01-31")
        assert dated.render([]) == "31 Jan 2025"
        either = "{% if strftime_now is defined %}{{ strftime_now('%Y') }}{% else %}2024{% endif %}"
        assert template(either).render([]) == "2024"
        assert template(either, strftime_now="2025-01-31").render([]) == "2025"
        with pytest.raises(ConfigError, match="is no date") as wrong:
            template("", strftime_now="today")
        assert (wrong.value.field, wrong.value.value) == ("chat.variables.strftime_now", "today")
        with pytest.raises(BadRecordError, match="huge width"):
            template("{{ strftime_now('%999999999d') }}", strftime_now="2025-01-31").render([])
        assert template("{{ date_string }}", date_string="today").render([]) == "today"

    def test_what_a_template_refuses(self):
        chat = template("{{ raise_exception('roles must alternate') }}")
        with pytest.raises(BadRecordError, match=r"refuses it \(roles must alternate\)"):
            chat.render([])

    def test_no_template_and_no_marks(self, tmp_path: Path):
        with pytest.raises(ConfigError, match=r"no chat template.*--chat-template"):
            find_template(ChatConfig(), str(tmp_path))
        with pytest.raises(ConfigError, match=r"--mask roles --mask-role assistant"):
            encoded([], "chat", PLAIN)
        with pytest.raises(ConfigError, match="is no Jinja template"):
            template("{% if %}")
        (tmp_path / "chat_template.jinja").write_text(PLAIN)
        assert find_template(ChatConfig(), str(tmp_path))["text"] == PLAIN
        (tmp_path / "t.jinja").write_text("other {{ x }}")
        assert find_template(ChatConfig(str(tmp_path / "t.jinja")), None)["text"] == "other {{ x }}"

    def test_roles_of_a_template_that_rewrites_what_was(self):
        chat = template("{{ messages | length }}{% for m in messages %}{{ m.content }}{% endfor %}")
        with pytest.raises(BadRecordError, match=r"its turn 1 \(assistant\) is rendered otherwise"):
            chat.spans_of_turns(
                [{"role": "assistant", "content": "a"}, {"role": "user", "content": "b"}],
                [True, False],
            )

    def test_json_is_not_escaped_for_the_web(self):
        assert template("{{ messages | tojson }}").render([{"role": "<é>"}]) == '[{"role": "<é>"}]'

    def test_json_takes_the_options_of_transformers(self):
        message = {"role": "é", "a": 1}
        for options, expected in (
            ("true", r'{"role": "\u00e9", "a": 1}'),
            ("sort_keys=true", '{"a": 1, "role": "é"}'),
            ("separators=(',', ':')", '{"role":"é","a":1}'),
            ("indent=1", '{\n "role": "é",\n "a": 1\n}'),
        ):
            text = template(f"{{{{ messages[0] | tojson({options}) }}}}").render([message])
            assert text == expected


PAIR = {"prompt": "Why?", "chosen": "So.", "rejected": "No"}


def test_preference_pairs_of_texts():
    texts, leaves = encoded(
        [PAIR, {**PAIR, "chosen": "x"}], "preference", fields={"prompt": "prompt"}
    )
    assert texts == ["Why?So.<eos>", "Why?No<eos>", "Why?x<eos>", "Why?No<eos>"]
    assert leaves["loss_mask"][0] == [0] * 4 + [1] * 4
    assert leaves["prompt_length"] == [[4]] * 4
    assert leaves["chosen"] == [[1], [0], [1], [0]]


def test_what_records_may_lack_is_taken_where_it_is():
    texts, leaves = encoded(
        [PAIR, {**PAIR, "prompt": None}, {"chosen": "So.", "rejected": "No"}], "preference"
    )
    assert texts == ["Why?So.<eos>", "Why?No<eos>", *["So.<eos>", "No<eos>"] * 2]
    assert leaves["prompt_length"] == [[4], [4], [0], [0], [0], [0]]
    assert encoded([PAIR], "preference", fields={"prompt": "none"})[0] == ["So.<eos>", "No<eos>"]
    with pytest.raises(BadRecordError, match="both answers begin with it"):
        encoded([{"prompt": "So", "chosen": "So.", "rejected": "So?"}], "preference")
    with pytest.raises(
        BadRecordError, match="has no field 'prompt'"
    ):  # what is named must be there
        encoded([{"chosen": "So.", "rejected": "No"}], "preference", fields={"prompt": "prompt"})
    rendered = "{% if tools %}[{{ tools | length }} tools]{% endif %}{{ messages[0].content }}"
    chats: list[dict[str, Any]] = [
        {"messages": [{"role": "user", "content": "x"}], "tools": [{"name": "a"}, {"name": "b"}]}
    ]
    chats.append({"messages": chats[0]["messages"]})
    how = {"chat": ChatConfig(mask="all")}
    assert encoded(chats, "chat", rendered, **how)[0] == ["[2 tools]x", "x"]
    assert encoded(chats, "chat", rendered, fields={"tools": "none"}, **how)[0] == ["x", "x"]


def test_answers_that_hold_their_prompt_do_not_get_it_twice():
    ask = [{"role": "user", "content": "Why?"}]
    pair = {
        n: [*ask, {"role": "assistant", "content": a}]
        for n, a in (("chosen", "So."), ("rejected", "No"))
    }
    alone = encoded([pair], "preference", PLAIN)
    assert (
        encoded([{**pair, "prompt": "Why?"}], "preference", PLAIN) == alone
    )  # as UltraFeedback has it
    assert encoded([{**pair, "prompt": ask}], "preference", PLAIN) == alone
    apart = {"prompt": ask, **{n: pair[n][1:] for n in pair}}
    assert encoded([apart], "preference", PLAIN) == alone


@pytest.mark.parametrize(
    ("has", "field", "masked"),
    [
        ((True, True), None, True),
        ((False, False), None, False),
        ((True, True), "none", False),
        ((True, False), None, "has no field 'loss_mask'"),
        ((False, True), None, "the first record of the source has none"),
    ],
)
def test_masks_of_ready_ids_are_kept(
    tmp_path: Path, has: tuple[bool, bool], field: str | None, masked: bool | str
):
    rows = [
        {"input_ids": [1, 2, 3], **({"loss_mask": [0, 1, k]} if there else {})}
        for k, there in enumerate(has)
    ]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    fields = {} if field is None else {"loss_mask": field}
    config = SourceConfig([str(tmp_path / "a.jsonl")], kind="tokens", fields=fields)
    if isinstance(masked, str):
        with pytest.raises(SourceError, match=masked):
            build_cache(config, TokenizerConfig("ids:9"), str(tmp_path / "c"), progress=False)
        return
    report = build_cache(config, TokenizerConfig("ids:9"), str(tmp_path / "c"), progress=False)
    assert report.trained_tokens == (3 if masked else None)
    assert ("loss_mask" in open_cache(str(tmp_path / "c")).leaves) == masked


def test_masks_of_ready_ids_in_columns(tmp_path: Path):
    parquet = pytest.importorskip("pyarrow.parquet")
    arrow = pytest.importorskip("pyarrow")
    for name, mask in (("masked", {"loss_mask": [[0, 1], [0, 0, 0]]}), ("plain", {})):
        parquet.write_table(
            arrow.table({"input_ids": [[1, 2], [3, 4, 5]], **mask}), tmp_path / f"{name}.parquet"
        )
        config = SourceConfig([str(tmp_path / f"{name}.parquet")], kind="tokens")
        report = build_cache(config, TokenizerConfig("ids:9"), str(tmp_path / name), progress=False)
        assert (report.trained_tokens, report.untrained_documents) == (
            (1, 1) if mask else (None, 0)
        )


TALK = [
    {"role": "system", "content": "S"},
    {"role": "user", "content": "U"},
    {"role": "assistant", "content": "A"},
    {"role": "tool", "content": "T"},
    {"role": "assistant", "content": "B"},
]


@pytest.mark.parametrize(
    ("mode", "wanted"),
    [
        ("all_assistant_messages", "AB"),
        ("last_assistant_message", "B"),
        ("last_assistant_turn", "AB"),
        ("all_messages", "SUATB"),
        ("all_user_and_system_messages", "SU"),
        ("customized", "SA"),
        ("roles", "AB"),
    ],
)
def test_turns_by_mode(mode: Any, wanted: str):
    marks = {"trainable": True} if mode != "customized" else {}
    said = [{**m, "trainable": m["content"] in "SA", **marks} for m in TALK]
    texts, leaves = encoded(
        [{"messages": said}],
        "chat",
        "{% for m in messages %}{{ m.content }}{% endfor %}",
        chat=ChatConfig(mask=mode),
    )
    assert trained(texts, leaves["loss_mask"]) == [wanted]
    weighed = [{**m, "weight": int(m["content"] in "SA")} for m in TALK]
    assert mode != "customized" or encoded(
        [{"messages": weighed}],
        "chat",
        "{% for m in messages %}{{ m.content }}{% endfor %}",
        chat=ChatConfig(mask=mode),
    ) == (texts, leaves)


def test_masks_that_train_on_nothing_are_found_out(tmp_path: Path):
    (tmp_path / "t.jinja").write_text("{% for m in messages %}{{ m.content }}{% endfor %}")
    (tmp_path / "a.jsonl").write_text(
        json.dumps({"messages": TALK}) + "\n" + json.dumps({"messages": TALK[:2]}) + "\n"
    )

    def built(name: str, **chat: Any) -> Any:
        config = SourceConfig(
            [str(tmp_path / "a.jsonl")],
            kind="chat",
            chat=ChatConfig(str(tmp_path / "t.jinja"), **chat),
        )
        return build_cache(config, TokenizerConfig(), str(tmp_path / name), progress=False)

    with pytest.raises(SourceError, match=r"trains on nothing: of 2 documents.*--mask-role"):
        built("nothing", mask="roles", roles=["asistant"])
    report = built("some", mask="roles")
    assert (report.trained_tokens, report.untrained_documents) == (2, 1)
    with pytest.raises(ConfigError, match="has no effect with mask 'generation'"):
        ChatConfig(roles=["user"])
    with pytest.raises(BadRecordError, match="does not say whether it is trained on"):
        encoded([{"messages": TALK}], "chat", PLAIN, chat=ChatConfig(mask="customized"))


def test_a_template_in_a_config_file(tmp_path: Path):
    (tmp_path / "tokenizer_config.json").write_text(
        json.dumps({"chat_template": PLAIN, "eos_token": "</s>"})
    )
    assert find_template(ChatConfig(str(tmp_path / "tokenizer_config.json")), None)["text"] == PLAIN
    (tmp_path / "other.json").write_text("{}")
    with pytest.raises(ConfigError, match="is JSON without a chat_template"):
        find_template(ChatConfig(str(tmp_path / "other.json")), None)


@pytest.mark.parametrize("text", [PLAIN, MARKED])
def test_preference_pairs_of_messages(text: str):
    ask = [{"role": "user", "content": "Why?"}]
    pair = {
        n: [*ask, {"role": "assistant", "content": a}]
        for n, a in (("chosen", "So."), ("rejected", "Söö"))
    }
    texts, leaves = encoded([pair], "preference", text)
    head = "<s><|user|>\nWhy?</s>\n<|assistant|>\n"
    assert texts == [f"{head}So.</s>\n", f"{head}Söö</s>\n"]
    ends = "</s>\n" if text == PLAIN else "</s>"
    assert trained(texts, leaves["loss_mask"]) == [f"So.{ends}", f"Söö{ends}"]
    assert leaves["prompt_length"] == [[len(head)]] * 2
    apart = {"q": "Why?", **{n: pair[n][1:] for n in pair}}
    assert encoded([apart], "preference", text, fields={"prompt": "q"}) == (texts, leaves)


def test_prompts():
    texts, leaves = encoded(
        [
            {"prompt": "2+2=", "answer": "4"},
            {"prompt": [{"role": "user", "content": "Why?"}], "answer": "é"},
        ],
        "prompts",
        PLAIN,
        leaves={"answer": LeafConfig("answer")},
    )
    assert texts == ["2+2=", "<s><|user|>\nWhy?</s>\n<|assistant|>\n"]
    assert leaves == {"answer": [list(b"4"), list("é".encode())]}


@given(
    places=st.lists(st.tuples(st.integers(0, 30), st.integers(0, 4)), max_size=12),
    cuts=st.lists(st.integers(0, 34), max_size=6, unique=True),
)
def test_a_token_is_marked_if_a_character_of_it_is(places: list[tuple[int, int]], cuts: list[int]):
    cuts = sorted(cuts)[: len(cuts) // 2 * 2]
    spans = tuple(zip(cuts[::2], cuts[1::2], strict=True))
    array = np.array([(a, a + n) for a, n in places], np.int64).reshape(-1, 2)
    wanted = [any(a < hi and lo < b for lo, hi in spans) for a, b in array.tolist()]
    wanted = [w and b > a for w, (a, b) in zip(wanted, array.tolist(), strict=True)]
    assert marked(array, spans).tolist() == wanted


@pytest.mark.parametrize(
    ("kind", "record", "settings", "message"),
    [
        ("chat", {"messages": []}, {}, "holds no list of messages in field 'messages'"),
        ("chat", {"messages": [{"by": "human"}]}, {}, "a message without a role .*it has 'by'"),
        ("chat", {"conversation": []}, {}, r"has no field 'messages' \(it has 'conversation'\)"),
        ("preference", {**PAIR, "chosen": ["x"]}, {}, "holds a list and a string to choose from"),
        (
            "tokens",
            {"input_ids": [1, 300]},
            {},
            "holds the id 300 at position 1, outside the vocabulary of 258",
        ),
        ("tokens", {"input_ids": [-1]}, {}, "holds the id -1 at position 0"),
        (
            "tokens",
            {"input_ids": "abc"},
            {},
            "holds a string in field 'input_ids', not a list of numbers",
        ),
        ("tokens", {"input_ids": [1.5]}, {}, "something else than integers"),
        ("tokens", {"input_ids": [1, True]}, {}, "holds true or false in field 'input_ids'"),
        ("tokens", {"input_ids": np.array([True])}, {}, "holds true or false in field 'input_ids'"),
        (
            "tokens",
            {"input_ids": [1], "m": [1, 0]},
            {"fields": {"loss_mask": "m"}},
            "has 1 ids and 2 numbers in field 'm'",
        ),
        (
            "text",
            {"text": "x", "n": "y"},
            {"leaves": {"n": LeafConfig("n", "int32")}},
            "something else than integers",
        ),
        (
            "text",
            {"text": "x", "n": 300},
            {"leaves": {"n": LeafConfig("n", "uint8")}},
            "a number outside 0 .. 255",
        ),
        (
            "text",
            {"text": "x", "n": 1e39},
            {"leaves": {"n": LeafConfig("n", "float32")}},
            r"number beyond 3.4e\+38 in",
        ),
        ("text", {"text": "x"}, {"leaves": {"n": LeafConfig("a.b")}}, "has no field 'a.b'"),
        (
            "text",
            {"text": "x", "n": [1]},
            {"leaves": {"n": LeafConfig("n", "int32")}},
            "a list in field 'n', not one",
        ),
    ],
)
def test_a_bad_record(kind: str, record: dict[str, Any], settings: dict[str, Any], message: str):
    chat = MARKED if kind == "chat" else None
    with pytest.raises(BadRecordError, match=message):
        encoded([record], kind, chat, **settings)


def test_leaves_on_the_command_line():
    assert parse_leaf("id=meta.id") == ("id", LeafConfig("meta.id"))
    assert parse_leaf("f=x:float32:ragged") == ("f", LeafConfig("x", "float32", "ragged"))
    for text in ("id", "=x", "id=", "a=b:c:d", "a=b:c:ragged:x"):
        with pytest.raises(ConfigError):
            parse_leaf(text)


def test_kinds_and_fields_that_do_not_exist():
    with pytest.raises(ConfigError, match="Say --kind chat"):
        SourceConfig(["x"], format="chat")
    with pytest.raises(ConfigError, match=r"kind = 'caht'.*'chat'"):
        SourceConfig(["x"], kind="caht")
    with pytest.raises(ConfigError, match=r"nothing that kind 'chat' takes.*'messages'"):
        SourceConfig(["x"], kind="chat", fields={"mesages": "x"})


def test_a_cache_of_conversations_with_leaves(tmp_path: Path, chat_folder: Path):
    records = [
        {
            "messages": [
                {"role": "user", "content": f"q{i}"},
                {"role": "assistant", "content": f"a{i}"},
            ],
            "meta": {"id": f"doc-{i}", "score": i / 2},
            "votes": list(range(i)),
        }
        for i in range(20)
    ]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(r) + "\n" for r in records))
    leaves = {
        "id": LeafConfig("meta.id"),
        "score": LeafConfig("meta.score", "float32"),
        "votes": LeafConfig("votes", "int16", "ragged"),
    }
    config = SourceConfig([str(tmp_path / "a.jsonl")], kind="chat", leaves=leaves)
    output = str(tmp_path / "cache")
    build_cache(config, TokenizerConfig(str(chat_folder)), output, progress=False)
    cache = open_cache(output)
    assert {leaf["name"]: leaf["kind"] for leaf in cache.ledger.leaves} == {
        "loss_mask": "ragged",
        "id": "ragged",
        "score": "fixed",
        "votes": "ragged",
    }
    record = read_part_record(output, "00000")
    assert record is not None
    assert record.leaves["loss_mask"].elements == cache.num_tokens
    assert record.leaves["score"].elements == 20
    (chat_folder / "tokenizer_config.json").write_text(
        (chat_folder / "tokenizer_config.json").read_text().replace("</s>", "</s> ")
    )
    with pytest.raises(PlanMismatchError, match="the chat template differs"):
        build_cache(config, TokenizerConfig(str(chat_folder)), output, progress=False)


def test_a_bad_conversation_is_named_or_counted(tmp_path: Path):
    (tmp_path / "chat_template.jinja").write_text(MARKED)
    talk = [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}]
    (tmp_path / "a.jsonl").write_text(json.dumps({"messages": talk}) + '\n{"messages": 3}\n')
    paths = [str(tmp_path / "a.jsonl")]
    chat = ChatConfig(str(tmp_path / "chat_template.jinja"))
    with pytest.raises(SourceError, match=r"a\.jsonl, line 2: holds no list of messages"):
        build_cache(
            SourceConfig(paths, kind="chat", chat=chat),
            TokenizerConfig(),
            str(tmp_path / "c"),
            progress=False,
        )
    config = SourceConfig(paths, kind="chat", chat=chat, on_bad_line="skip")
    assert (
        build_cache(config, TokenizerConfig(), str(tmp_path / "d"), progress=False).skipped_lines
        == 1
    )


TAUGHT = [
    {"input_ids": [1, 2, 3], "weights": [0.5, 0, 2], "ids": [[1, 2], [3, 4], [5, 6]], "score": 1.5},
    {"input_ids": [], "weights": [], "ids": [], "score": 2},
    {"input_ids": [4], "weights": [1], "ids": [[7, 8]], "score": 3},
]
TAUGHT_LEAVES = [
    "loss_weights=weights:float32:token",
    "topk=ids:int32:token:2",
    "score=score:float32",
]


@pytest.mark.parametrize("container", ["jsonl", "parquet", "flat"])
def test_values_of_each_token_come_with_ready_ids(tmp_path: Path, container: str):
    path = tmp_path / f"a.{container.replace('flat', 'jsonl')}"
    if container == "parquet":
        parquet = pytest.importorskip("pyarrow.parquet")
        arrow = pytest.importorskip("pyarrow")
        parquet.write_table(arrow.Table.from_pylist(TAUGHT), path)
    else:
        path.write_text("".join(json.dumps(record) + "\n" for record in TAUGHT))
    leaves = dict(map(parse_leaf, TAUGHT_LEAVES))
    config = SourceConfig([str(path)], kind="tokens", leaves=leaves)
    build_cache(config, TokenizerConfig("ids:9"), str(tmp_path / "c"), progress=False)
    cache = open_cache(tmp_path / "c")
    assert cache.leaf("topk").values(0, 3).tolist() == [1, 2, 3, 4, 5, 6, 7, 8]
    assert cache.leaf("topk").width == 2
    assert cache.leaf("topk").parts[0].data.chunk_elements == 2 * cache.layout.chunk_elements
    assert cache.leaf("loss_weights").values(0, 3).tolist() == [0.5, 0, 2, 1]
    assert [leaf.get("width") for leaf in cache.ledger.leaves] == [1, 2, None]
    columns = {"weight": "loss_weights", "teacher": "topk", "score": "score"}
    batch = TokenSeqDataset(cache, 4, columns=columns).read([0])
    assert batch.extras["teacher"].tolist() == [[[1, 2], [3, 4], [5, 6], [7, 8]]]
    assert batch.extras["score"].tolist() == [[1.5, 1.5, 1.5, 3]]
    assert batch.token_mask.tolist() == [[0.5, 0, 2, 1]]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"weights": [1, 2]}, "has 3 ids, and not a number for each in field 'weights'"),
        ({"ids": [[1, 2], [3, 4]]}, "has 3 ids, and not 2 numbers for each in field 'ids'"),
        ({"ids": [[1, 2], [3, 4], [5]]}, "has not 2 numbers for each token in field 'ids'"),
        ({"weights": "no"}, "holds a string in field 'weights'"),
        ({"weights": [1, None, 2]}, "holds something else than numbers"),
    ],
)
def test_values_that_are_not_those_of_the_tokens_are_refused(
    tmp_path: Path, change: dict[str, Any], words: str
):
    (tmp_path / "a.jsonl").write_text(json.dumps({**TAUGHT[0], **change}))
    config = SourceConfig(
        [str(tmp_path / "a.jsonl")], kind="tokens", leaves=dict(map(parse_leaf, TAUGHT_LEAVES))
    )
    with pytest.raises(SourceError, match=re.escape(words)):
        build_cache(config, TokenizerConfig("ids:9"), str(tmp_path / "c"), progress=False)


def test_texts_have_no_values_for_tokens(tmp_path: Path):
    (tmp_path / "a.jsonl").write_text(json.dumps({"text": "ab", "weights": [1, 2]}))
    config = SourceConfig([str(tmp_path / "a.jsonl")], leaves=dict([parse_leaf(TAUGHT_LEAVES[0])]))
    with pytest.raises(
        ConfigError, match=r"leaves.loss_weights = 'weights': has values for tokens.*--kind tokens"
    ):
        build_cache(config, TokenizerConfig(), str(tmp_path / "c"), progress=False)


@pytest.mark.parametrize(
    "text", ["a=b:int32:token:x", "a=b:int32:ragged:8", "a=b:int32:token:8:9", "a=b:int32:tokens"]
)
def test_leaves_of_tokens_that_are_none(text: str):
    with pytest.raises(ConfigError, match="leaf"):
        parse_leaf(text)
    with pytest.raises(ConfigError, match="width"):
        LeafConfig("b", "int32", "fixed", 8)
