"""Broken configs: each gets one line with the whole path of what is wrong, and what to write
instead.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import NamedTuple

import pytest
from fsspec.registry import _registry

WEB = "web: {cache: no/web, expected_tokens: 1e9}"


class Broken(NamedTuple):
    """A config, and what its error must hold: paths, and the cure."""

    text: str
    said: tuple[str, ...]


BROKEN = {
    "unknown key": Broken("seqlen: 2048", ("seqlen = 2048", "Did you mean 'seq_len'")),
    "unknown key deep down": Broken(
        "components: {web: {cache: a, source: {paths: [x], leaves: {id: {feild: id}}}}}",
        ("components.web.source.leaves.id.feild", "Did you mean 'field'?"),
    ),
    "unknown key in a list": Broken(
        "stages: [{weights: {web: 1}}, {stpe: 50, weights: {web: 1}}]",
        ("stages[1].stpe = 50", "Did you mean 'step'?"),
    ),
    "wrong type deep down": Broken(
        "components: {web: {cache: a, source: {paths: [x], on_bad_line: ignore}}}",
        ("components.web.source.on_bad_line = 'ignore'", "Known names: 'error', 'skip'."),
    ),
    "wrong type by step": Broken(
        "seq_len: {0: 4096, 1000: long}", ("seq_len.1000 = 'long'", "Give a whole number.")
    ),
    "wrong type in a list": Broken(
        f"components: {{{WEB}}}\nstages: [{{weights: {{web: 1}}, tokens: ten}}]",
        ("stages[0].tokens = 'ten'", "Give a whole number."),
    ),
    "text where a list must stand": Broken(
        "components: {web: {cache: a, source: {paths: x}}}",
        ("components.web.source.paths", "Write [x]."),
    ),
    "a key twice": Broken("seq_len: 8\nseq_len: 9", ("the key 'seq_len' stands twice in line 2",)),
    "weights in two places": Broken(
        "components: {web: {cache: a, weight: 2}}\nweights: {web: 1}",
        ("components.web.weight = 2.0: is given beside weights", "one place"),
    ),
    "two schedules on a path": Broken(
        "components: {web: {cache: a}, code: {cache: b}}\n"
        "weights: {text: {weight: {linear: {0: 1, 9: 2}}, blend: {web: {step: {0: 1, 5: 2}}}},"
        " code: 1}",
        ("weights.text", "weights.text.blend.web", "a plain number"),
    ),
    "a weight for nobody": Broken(
        f"components: {{{WEB}}}\nweights: {{wbe: 1}}", ("weights.wbe", "Did you mean 'web'?")
    ),
    "no weight left": Broken(
        "components: {web: {cache: no/web, expected_tokens: 1e9, weight: {step: {0: 1, 100:"
        " 0}}}}\nnum_steps: 1000",
        ("all weights are zero at step 100", "Give one of 'web' a weight there"),
    ),
    "stages that contradict": Broken(
        f"components: {{{WEB}}}\nstages: [{{weights: {{web: 1}}, tokens: 1000000}}, {{step: 3,"
        " weights: {web: 1}}]",
        (
            "stages[0].tokens",
            "stages[1] begins at step 3",
            "Leave out stages[0].tokens or stages[1].step.",
        ),
    ),
    "an amendment after the end": Broken(
        f"components: {{{WEB}}}\nnum_steps: 100\namendments: [{{step: 200, weights: {{web: 2}}}}]",
        (
            "amendments[0].step = 200",
            "step 100, where the run ends",
            "prolong the run (num_steps).",
        ),
    ),
    "two kinds of shuffle": Broken(
        "shuffle: {strands: 8, window_blocks: 4}", ("shuffle = ", "kind: braid or kind: block")
    ),
    "a component's shuffle": Broken(
        "components: {web: {cache: a, shuffle: {strands: 0}}}",
        ("components.web.shuffle.strands = 0", "Leave it out for the default."),
    ),
    "a component's packing": Broken(
        "components: {web: {cache: a, packing: {algorithm: bdf}}}",
        ("components.web.packing.algorithm = 'bdf'", "Did you mean 'bfd'"),
    ),
    "packed and not packed": Broken(
        "split_documents: true\ncomponents: {web: {cache: a, packing: {algorithm: bfd}}, code:"
        " {cache: b}}",
        ("components.code.packing", "'web'", "{algorithm: wrap}"),
    ),
    "a limit that ends the run": Broken(
        "components: {web: {cache: no/web, expected_tokens: 1e6, max_epochs: 1}}\nnum_steps:"
        " 100000",
        ("components.web.max_epochs = 1.0", "lower num_steps to 16"),
    ),
    "a cache that is not there": Broken(
        "components: {web: {cache: no/web}}",
        ("components.web.cache = 'no/web'", "components.web.expected_tokens", "headrace build"),
    ),
    "hold-out said twice": Broken(
        "validation: {one_in: 100, fraction: 0.01}",
        ("validation.fraction", "beside one_in", "Give one of them."),
    ),
    "a policy that is none": Broken("policy: swr", ("policy = 'swr'", "Did you mean 'swrr'?")),
    "another kind of file": Broken("- 1\n- 2", ("is not a mapping of names to values",)),
}


@pytest.mark.parametrize("name", BROKEN)
def test_each_broken_config_has_a_helpful_error(headrace, tmp_path, name):
    path = tmp_path / "run.yaml"
    path.write_text(BROKEN[name].text)
    done = headrace("config", "check", str(path), "--hosts", "1")
    assert done.code == 2
    assert done.out == ""
    assert done.err.startswith("error ")
    assert len(done.err.strip().splitlines()) == 1
    for part in BROKEN[name].said:
        assert part in done.err
    for word in ("Traceback", "draccus", "dataclass", "NoneType"):
        assert word not in done.err


def test_there_are_twenty_and_more():
    assert len(BROKEN) >= 20


def test_caches_of_two_tokenizers_name_both(headrace, tmp_path):
    (tmp_path / "a.txt").write_text("water to the wheel")
    for name, eos in (("a", "auto"), ("b", "none")):
        source = str(tmp_path / "a.txt")
        cache = str(tmp_path / name)
        assert (
            headrace(
                "build", source, "-o", cache, "-t", "bytes", "--eos", eos, "--engine", "inline"
            ).code
            == 0
        )
    path = tmp_path / "run.yaml"
    path.write_text(
        f"seq_len: 8\ncomponents: {{one: {{cache: {tmp_path}/a}}, two: {{cache: {tmp_path}/b}}}}"
    )
    done = headrace("config", "check", str(path))
    assert done.code == 2
    assert "components.two.cache" in done.err
    assert "'one'" in done.err


def test_a_missing_package_is_named_with_its_command(headrace, tmp_path, monkeypatch):
    for module in ("gcsfs", "gcsfs.core"):
        monkeypatch.setitem(sys.modules, module, None)
    for scheme in ("gs", "gcs"):  # what another test opened is known to fsspec
        monkeypatch.delitem(_registry, scheme, raising=False)
    path = tmp_path / "run.yaml"
    path.write_text("components: {web: {cache: 'gs://bucket/web'}}")
    done = headrace("config", "check", str(path))
    assert done.code == 2
    assert "pip install 'headrace[gcs]'" in done.err
    assert "gs://bucket/web" in done.err


def test_overrides_are_checked_as_files_are(headrace, tmp_path):
    path = Path(tmp_path / "run.yaml")
    path.write_text(f"components: {{{WEB}}}")
    done = headrace("config", "check", str(path), "components.web.source.paths=x")
    assert "components.web.source.paths = 'x': is not a list. Write [x]." in done.err
