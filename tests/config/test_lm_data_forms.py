"""YAML, flags and Python give the same object, whatever the config."""

from __future__ import annotations

from typing import Any

import yaml
from hypothesis import given
from hypothesis import strategies as st

import headrace
import headrace.mix
import headrace.order
from headrace.config import LmDataConfig, load_config
from headrace.ingest import ChatConfig, SourceConfig
from headrace.order import BlockShuffleConfig, BraidShuffleConfig
from headrace.pack import PackingConfig

names = st.text("abcxyz_-/", min_size=1, max_size=5)
texts = st.text("abc/:.{}[]'\"#& é", min_size=1, max_size=9)
shuffles = st.one_of(
    st.booleans(),
    st.integers(1, 99),
    st.builds(
        BlockShuffleConfig,
        io_block_size=st.none() | st.integers(1, 9),
        window_blocks=st.integers(1, 9),
    ),
    st.builds(BraidShuffleConfig, strands=st.none() | st.integers(1, 9)),
)
sources = st.builds(
    SourceConfig,
    paths=st.lists(texts, min_size=1, max_size=2),
    text_field=texts,
    extensions=st.lists(st.just(".py"), max_size=1),
    chat=st.builds(
        ChatConfig, template=st.none() | texts, variables=st.dictionaries(names, texts, max_size=1)
    ),
)
weights = (
    st.none()
    | st.just(0.0)
    | st.floats(1e-6, 9)
    | st.just({"linear": {0: 1.0, 5: 2.0}, "scale": 0.5})
)
components = st.builds(
    headrace.ComponentConfig,
    cache=texts,
    weight=weights,
    shuffle=st.none() | shuffles,
    source=st.none() | sources,
    packing=st.none() | st.builds(PackingConfig, algorithm=st.sampled_from(["bfd", "windowed"])),
    max_epochs=st.none() | st.floats(0.5, 9),
    max_share=st.none() | st.floats(0.1, 1),
    expected_tokens=st.none() | st.floats(1, 1e15),
    remove_not_found=st.sampled_from(["refuse", "count"]),
)
configs = st.builds(
    LmDataConfig,
    components=st.dictionaries(names, components, max_size=3),
    seq_len=st.integers(2, 9999),
    batch_size=st.integers(1, 999) | st.just({0: 8, 100: 16}),
    seed=st.integers(-5, 2**63),
    shuffle=shuffles,
    num_steps=st.none() | st.integers(101, 10**6),  # behind the change of the batch size
    max_epochs=st.none() | st.floats(0.5, 9),
    validation=st.none()
    | st.builds(headrace.order.ValidationConfig, fraction=st.floats(0.001, 0.5)),
    tokenizer=st.none() | st.builds(headrace.TokenizerConfig, path=texts, bos=st.none() | texts),
    row_order=st.sampled_from(["locality", "stream"]),
    prefetch_bytes=st.integers(1, 2**40),
)
NAMES: dict[str, Any] = {
    **{
        name: getattr(package, name)
        for package in (headrace, headrace.mix, headrace.order)
        for name in package.__all__
        if name.endswith("Config")
    },
    "PackingConfig": PackingConfig,
    "ChatConfig": ChatConfig,
}


def flags(value: Any, name: str = "") -> list[str]:
    """Dotted settings for every leaf of a plain value; mappings without entries or with other keys,
    whole.
    """
    if (
        isinstance(value, dict)
        and value
        and all(isinstance(k, str) and "." not in k for k in value)
    ):
        return [
            flag
            for key, inner in value.items()
            for flag in flags(inner, f"{name}.{key}" if name else key)
        ]
    return [
        f"{name}={yaml.safe_dump(value, default_flow_style=True).removesuffix('...' + chr(10))}"
    ]


@given(configs)
def test_yaml_flags_and_python_give_the_same_object(config):
    plain = yaml.safe_load(config.to_yaml())
    settings = [flag for name, value in plain.items() for flag in flags(value, name)]
    assert load_config(overrides=settings) == config
    assert load_config(overrides=[f"--{flag}" for flag in settings]) == config
    assert eval(repr(config), NAMES) == config


@given(config=configs)
def test_settings_over_a_file_are_the_file_with_them(config, tmp_path_factory):
    path = tmp_path_factory.getbasetemp() / "forms.yaml"
    path.write_text(config.to_yaml())
    assert load_config(str(path), ["seed=17"]) == load_config(str(path), ["--seed", "17"])
    assert load_config(str(path), ["seed=17"]).to_yaml() == config.to_yaml().replace(
        f"\nseed: {config.seed}\n", "\nseed: 17\n"
    )
