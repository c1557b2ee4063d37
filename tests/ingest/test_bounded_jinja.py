"""What a template makes is bounded, and what it makes of a message is what Jinja makes of it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jinja2.sandbox import ImmutableSandboxedEnvironment

from headrace.ingest.bounded_jinja import BoundedEnvironment
from headrace.ingest.chat_template import ChatTemplate
from headrace.ingest.records import BadRecordError

BOMBS = [
    "{% set ns = namespace(x='ab') %}{% for i in range(40) %}{% set ns.x = ns.x + ns.x %}{% endfor"
    " %}{{ ns.x }}",
    "{% set ns = namespace(x='ab') %}{% for i in range(40) %}{% set ns.x = ns.x ~ ns.x %}{% endfor"
    " %}{{ ns.x }}",
    "{% set ns = namespace(x='ab') %}{% for i in range(40) %}{% set ns.x = ns.x * 2 %}{% endfor %}",
    "{% set ns = namespace(x=['a']) %}{% for i in range(40) %}{% set ns.x = [ns.x, ns.x] %}{%"
    " endfor %}{{ ns.x }}",
    "{% set ns = namespace(x=['a']) %}{% for i in range(40) %}{% set ns.x = [ns.x, ns.x] %}{%"
    " endfor %}{{ ns.x|tojson }}",
    "{% set ns = namespace(x='a') %}{% for i in range(40) %}{% set y %}{{ ns.x }}{{ ns.x }}{%"
    " endset %}{% set ns.x = y %}{% endfor %}",
    "{% set ns = namespace(x='a') %}{% for i in range(40) %}{% set ns.x = ns.x.replace('a', 'aa')"
    " %}{% endfor %}",
    "{% set ns = namespace(x='a') %}{% for i in range(40) %}{% set ns.x = ns.x|replace('a', 'aa')"
    " %}{% endfor %}",
    "{% set ns = namespace(x='a') %}{% for i in range(40) %}{% set ns.x = [ns.x, ns.x]|join %}{%"
    " endfor %}",
    "{% set ns = namespace(x='a') %}{% for i in range(40) %}{% set ns.x = '{0}{0}'.format(ns.x)"
    " %}{% endfor %}",
    "{% set ns = namespace(x='a') %}{% for i in range(40) %}{% set ns.x = '%s%s' % (ns.x, ns.x)"
    " %}{% endfor %}",
    "{% set x = 'a' * 1000000 %}{% set ns = namespace(l=[]) %}{% for i in range(9999) %}{% set"
    " ns.l = ns.l + [x[1:]] %}{% endfor %}",
    "{{ 'x' * 10 ** 12 }}",
    "{{ 'x'.center(10 ** 12) }}",
    "{{ 'x'|center(1000000000000) }}",
    "{{ '%999999999999d' % 1 }}",
    "{{ '{:999999999999}'.format(1) }}",
    "{{ '{:{}}'.format(1, 999999999999) }}",
    "{{ 9 ** 9 ** 9 ** 9 ** 9 ** 9 ** 9 ** 9 ** 9 }}",
    "{{ ('x' * 1000000).join('y' * 1000000) }}",
    "{{ range(9999) | join('y' * 100000) }}",
    "{{ ((['a'] * 9999) | string).replace('a', 'b' * 100000) }}",
    "{{ (['a'] * 9999) | replace('a', 'b' * 100000) }}",
    "{{ 'aaa'.translate({97: 'b'}) }}{{ 'x' * 10 ** 12 }}",
    "{% for a in range(99999) %}{% for b in range(99999) %}{% for c in range(99999) %}{% endfor %}"
    "{% endfor %}{% endfor %}",
    "{% for a in range(99999) %}{% for b in range(99999) if 0 %}{% endfor %}{% endfor %}",
    "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}",
    "{% for i in range(99999) %}" + "x" * 10000 + "{% endfor %}",
]
SOUND = [
    "{% for m in messages %}<{{ m.role }}>{{ m.content | trim }}{% if not loop.last %},{% endif"
    " %}{% endfor %}",
    "{% for m in messages if m.role == 'user' %}{{ m.role + ': ' + m.content ~ loop.index0 ~ '!'"
    " }}{% endfor %}",
    "{% macro f(m) %}[{{ m.content.split('a')[-1] }}]{% endmacro %}{% for m in messages[1:] %}{{"
    " f(m) }}{% endfor %}",
    "{{ messages | map(attribute='content') | join(', ') }}{{ messages | length }}{{"
    " messages[0].content[:2] }}",
    "{{ '%s-%s' % (messages[0].role, 1) }}{{ '{}'.format(messages[0].content) }}",
    "{{ messages[0].content.replace('a', 'bb') }}{{ messages[0].content | replace('a', 'bb') |"
    " upper | indent(2) }}",
    "{% set ns = namespace(x='') %}{% for m in messages %}{% set ns.x = ns.x ~ m.content %}{%"
    " endfor %}{{ ns.x }}",
    "{{ messages | length }}{{ messages[0].content * 2 }}{{ ([1, 2] + [3]) | length }}{{ missing"
    " }}{{ 2 * 3 }}",
]
MESSAGES = st.lists(
    st.fixed_dictionaries(
        {"role": st.sampled_from(["user", "assistant"]), "content": st.text("ab é\n<", max_size=8)}
    ),
    min_size=1,
    max_size=4,
)


@pytest.mark.parametrize("template", BOMBS)
def test_a_template_that_makes_much_is_a_bad_record(template: str):
    chat = ChatTemplate({"text": template, "tokens": {}}, {}, 1 << 18)
    for _ in range(2):
        with pytest.raises(BadRecordError, match="the chat template"):
            chat.render([{"role": "user", "content": "hi"}])


@pytest.mark.parametrize("template", SOUND)
@given(messages=MESSAGES)
def test_the_text_is_that_of_jinja(template: str, messages: list[dict[str, str]]):
    bounded = BoundedEnvironment(1 << 20)
    plain = ImmutableSandboxedEnvironment()
    bounded.bound_filters()
    bounded.begin()
    want = plain.from_string(template).render(messages=messages)
    assert bounded.from_string(template).render(messages=messages) == want


def test_each_rendering_begins_anew():
    chat = ChatTemplate(
        {"text": "{% for m in messages %}{{ m.content }}{% endfor %}", "tokens": {}}, {}, 3000
    )
    for _ in range(10):
        assert chat.render([{"role": "user", "content": "x" * 1000}]) == "x" * 1000
    with pytest.raises(BadRecordError, match="makes more of it than 3,000"):
        chat.render([{"role": "user", "content": "x" * 3000}])
