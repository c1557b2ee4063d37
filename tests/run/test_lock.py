"""Runs: a manifest that tells runs apart and nothing else, a state of a few bytes, and refusals
that show why.
"""

import concurrent.futures
import json
import os
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.mix.drawn import draws_of

from headrace.errors import CacheError, ConfigError, PlanMismatchError
from headrace.mix import BatchSchedule
from headrace.run import LoaderState, RunLock, open_run
from headrace.run.anchors import Anchors
from headrace.run.differences import differences


class Fake:
    """A loader as far as manifests care."""

    def __init__(self, **described):
        self.described = described

    def describe(self):
        return self.described


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**60), 2**60)
    | st.floats(allow_nan=False)
    | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=10,
)


@given(described=st.dictionaries(st.text(max_size=4), json_values, max_size=4))
def test_a_manifest_survives_json(described):
    manifest = RunLock.of(Fake(**{"x": described}))
    again = RunLock(json.loads(json.dumps(manifest.plan)))
    assert again == manifest
    assert again.fingerprint == manifest.fingerprint
    assert len(manifest.fingerprint) == 32
    assert differences(manifest.plan, again.plan) == []


@given(a=json_values, b=json_values)
def test_runs_differ_if_and_only_if_their_descriptions_do(a, b):
    one = RunLock.of(Fake(x=a))
    other = RunLock.of(Fake(x=b))
    same = json.dumps(a, sort_keys=True) == json.dumps(b, sort_keys=True)
    assert (one.fingerprint == other.fingerprint) == same


def test_the_fingerprint_is_that_of_the_content_not_of_its_order_or_types():
    one = RunLock.of(Fake(a=1, b={0: np.int64(3), 10: (1, 2)}, c=np.float64(0.5)))
    other = RunLock.of(Fake(c=0.5, b={"10": [1, 2], "0": 3}, a=np.int32(1)))
    assert one.fingerprint == other.fingerprint


def test_the_fingerprint_is_pinned():
    """A change of its definition would refuse every run that is under way."""
    assert RunLock({"a": 1, "b": [0.5, "é"]}).fingerprint == "acb5b609e779d5dd36f68bcd2f676b26"


def test_what_is_no_json_says_so():
    with pytest.raises(TypeError, match="set is no JSON value"):
        RunLock.of(Fake(a={1, 2}))


def test_a_run_is_started_once_and_then_recognised(tmp_path):
    folder = f"{tmp_path}/runs/one"
    assert RunLock.load(folder) is None
    started = open_run(folder, Fake(seed=1))
    assert open_run(folder, Fake(seed=1)) == started
    assert RunLock.load(folder) == started.lock
    assert os.listdir(folder) == ["lock.json"]


def test_another_run_is_refused_with_the_difference(tmp_path):
    open_run(str(tmp_path), Fake(dataset={"seed": 1, "old": 2, "same": 3}, batch_size=8))
    with pytest.raises(PlanMismatchError) as caught:
        open_run(str(tmp_path), Fake(dataset={"seed": 4, "same": 3, "new": [5]}, batch_size=8))
    message = str(caught.value)
    for difference in (
        "dataset.seed: 1 -> 4",
        "dataset.old: 2 -> nothing",
        "dataset.new: nothing -> [5]",
    ):
        assert difference in message
    assert "batch_size" not in message
    assert "same" not in message
    assert isinstance(caught.value, ConfigError)
    assert "Go back to the run's config" in (caught.value.cure or "")


def test_many_differences_are_cut_short(tmp_path):
    open_run(str(tmp_path), Fake(**{f"k{i}": 0 for i in range(30)}))
    with pytest.raises(PlanMismatchError, match="; and 10 more"):
        open_run(str(tmp_path), Fake(**{f"k{i}": 1 for i in range(30)}))


def test_all_processes_of_a_run_may_open_it_together(tmp_path):
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        found = list(
            pool.map(lambda _: open_run(f"{tmp_path}/run", Fake(a=list(range(5000)))), range(16))
        )
    assert len({m.fingerprint for m in found}) == 1
    assert os.listdir(tmp_path / "run") == ["lock.json"]


def test_a_state_belongs_to_its_run():
    mine = RunLock.of(Fake(seed=1))
    other = RunLock.of(Fake(seed=2))
    state = LoaderState.from_dict(json.loads(json.dumps(mine.state(120).to_dict())))
    assert state == LoaderState(120, mine.fingerprint)
    mine.check(state)
    with pytest.raises(PlanMismatchError, match="belongs to another run") as caught:
        other.check(state)
    assert (caught.value.field, caught.value.value) == ("state.fingerprint", mine.fingerprint)


@pytest.mark.parametrize(
    "data", [{}, {"step": 1}, {"step": "1", "fingerprint": "a"}, {"step": 1, "fingerprint": 2}]
)
def test_what_is_no_state(data):
    with pytest.raises(ConfigError, match="is not a loader's state") as caught:
        LoaderState.from_dict(data)
    assert (
        caught.value.cure
        == "It needs 'step', from 0, and 'fingerprint', as get_state or to_dict gave them."
    )


@pytest.mark.parametrize("version", [0, 2, "1", None])
def test_a_lock_of_another_version_is_refused(tmp_path, version):
    open_run(str(tmp_path), Fake(a=1))
    file = tmp_path / "lock.json"
    seal, _, content = file.read_text().partition("\n")
    file.write_text(json.dumps({**json.loads(seal), "version": version}) + "\n" + content)
    with pytest.raises(CacheError, match="was written by another version of headrace") as caught:
        open_run(str(tmp_path), Fake(a=1))
    assert caught.value.field == "run lock"
    assert str(version) in str(caught.value)


@pytest.mark.parametrize("content", ["", "{", "[]", '{"version": 1}', "{}\n{}\n"])
def test_what_is_no_lock(tmp_path, content):
    (tmp_path / "lock.json").write_text(content)
    with pytest.raises(CacheError, match="is damaged: it has no seal") as caught:
        open_run(str(tmp_path), Fake(a=1))
    assert caught.value.field == "run lock"


def test_a_lock_can_be_read_and_not_be_edited(tmp_path):
    open_run(str(tmp_path), Fake(seed=1))
    file = tmp_path / "lock.json"
    text = file.read_text()
    assert '\n  "seed": 1' in text
    file.write_text(text.replace('"seed": 1', '"seed": 2'))
    with pytest.raises(CacheError, match="its digest is not that of what it holds"):
        open_run(str(tmp_path), Fake(seed=2))


def mixture(stages, components=("a",), **more):
    described = {"stages": stages, "names": list(components), "limits": {}}
    described["components"] = {c: {"seed": 1} for c in components}
    return Fake(dataset=described, **more)


FIRST = {"step": 0, "weights": {"a": 1}}
SECOND = {"step": 100, "weights": {"b": 1}}


def test_a_declared_change_from_a_later_step_on_is_recorded(tmp_path):
    folder = str(tmp_path)
    started = open_run(folder, mixture([FIRST]))
    amended = open_run(folder, mixture([FIRST, SECOND], ("a", "b")), step=80)
    assert amended.history == ({"fingerprint": started.fingerprint, "until_step": 100},)
    assert RunLock.load(folder) == amended.lock
    amended.check(started.state(100))  # a checkpoint of before still belongs to it
    amended.check(amended.state(120))
    with pytest.raises(PlanMismatchError):
        amended.check(started.state(101))
    assert open_run(folder, mixture([FIRST, SECOND], ("a", "b")), step=150) == amended


@pytest.mark.parametrize(
    ("loader", "problem"),
    [
        (mixture([FIRST, SECOND], ("a", "b"), seed=2), "another plan"),
        (mixture([{**FIRST, "weights": {"a": 2}}, SECOND]), "another plan"),
        (mixture([]), "another plan"),
        (mixture([FIRST, {**SECOND, "step": 79}], ("a", "b")), "touch the past: 80 steps are done"),
    ],
)
def test_changes_that_are_more_than_declared_stages(tmp_path, loader, problem):
    open_run(
        str(tmp_path), mixture([FIRST], seed=1) if "seed" in loader.described else mixture([FIRST])
    )
    with pytest.raises(PlanMismatchError, match=problem):
        open_run(str(tmp_path), loader, step=80)


def test_an_amendment_needs_the_step(tmp_path):
    open_run(str(tmp_path), mixture([FIRST]))
    with pytest.raises(PlanMismatchError, match="knows of no checkpoint") as caught:
        open_run(str(tmp_path), mixture([FIRST, SECOND], ("a", "b")))
    assert "open_run(folder, config, 0)" in (caught.value.cure or "")
    assert open_run(str(tmp_path), mixture([FIRST, SECOND], ("a", "b")), 0).history


class Served:
    """A dataset, as far as anchors care."""

    mixture = None

    @property
    def planned(self):
        return self

    def at_step(self, step):
        return (self, None)


class Mixed(Served, Fake):
    """A loader and its mixture, as far as anchors care: it counts how often one is used."""

    def __init__(self, seed=0, wrap=lambda mixture: mixture):
        super().__init__(seed=seed)
        self.draws = draws_of(
            {"a": {"linear": {0: 1, 10**6: 3}}, "b": 1, "c": 0.3}, BatchSchedule(4)
        )
        self.used = []
        use = self.draws.use_anchor

        def use_anchor(anchor):
            use(anchor)
            self.used.append(anchor["step"])

        self.draws.use_anchor = use_anchor
        self.mixture = self
        self.dataset = wrap(self)

    def documents_digests(self):
        return {}


class Phased(Served):
    """A dataset whose first phase ends at step 100."""

    def __init__(self, phases):
        self.phases = phases

    def at_step(self, step):
        return (self.phases[step >= 100], None)


class Mapped(Served):
    def __init__(self, base):
        self.base = base
        self.mixture = base.mixture

    @property
    def planned(self):
        return self.base.planned


def counts(loader, step):
    return loader.draws.starts_at(step).tolist()


def test_checkpoints_leave_anchors_that_change_nothing_but_time(tmp_path):
    folder = str(tmp_path)
    first = Mixed()
    run = open_run(folder, first)
    assert os.listdir(folder) == ["lock.json"]
    for step in (3_000, 40_000, 70_000):
        assert run.state(step).to_dict() == {"step": step, "fingerprint": run.fingerprint}
    for step, expected in (
        (70_000, [70_000]),
        (69_999, [40_000]),
        (10**5, [70_000]),
        (2_999, []),
        (0, []),
    ):
        resumed = Mixed()
        assert open_run(folder, resumed, step) == run
        assert resumed.used == expected
        walked = cast("Any", resumed.draws.policy)._chunks[1:]
        assert min(walked, default=0) >= min(expected, default=0) // 256  # no walk to there
        assert counts(resumed, step + 9) == counts(Mixed(), step + 9)
    os.remove(tmp_path / "anchors.json")
    without = Mixed()
    open_run(folder, without, 70_000)
    assert without.used == []
    assert counts(without, 70_009) == counts(first, 70_009)
    assert 70_000 in Anchors(folder, run, without).load()  # and it is there again


def test_anchors_are_found_behind_maps_and_phases(tmp_path):
    for number, wrap in enumerate(
        (Mapped, lambda d: Phased([Served(), d]), lambda d: Mapped(Phased([Served(), Mapped(d)])))
    ):
        folder = f"{tmp_path}/{number}"
        open_run(folder, Mixed(wrap=wrap)).state(5_000)
        resumed = Mixed(wrap=wrap)
        open_run(folder, resumed, 5_000).state(50)  # a phase that has none
        assert resumed.used == [5_000]


def test_anchors_of_another_run_are_not_used(tmp_path):
    folder = str(tmp_path)
    open_run(folder, Mixed()).state(5_000)
    os.remove(tmp_path / "lock.json")  # a new run in an old folder
    other = Mixed(seed=1)
    run = open_run(folder, other, 5_000)
    assert other.used == []
    assert list(Anchors(folder, run, other).load()) == [5_000]


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: "",
        lambda text: text[: len(text) // 2],
        lambda text: text.replace('"late": 0', '"late": 1'),
        lambda text: text.replace('"5000"', '"500"'),
        lambda text: "[]",
        lambda text: "\x00\xff" * 9,
    ],
)
def test_damaged_anchors_are_walked_past_and_written_again(tmp_path, damage):
    folder = str(tmp_path)
    open_run(folder, Mixed()).state(5_000)
    path = tmp_path / "anchors.json"
    good = path.read_text()
    path.write_text(damage(good), encoding="latin-1")
    loader = Mixed()
    run = open_run(folder, loader, 5_000)
    assert loader.used == []
    assert counts(loader, 5_000) == counts(Mixed(), 5_000)
    assert path.read_text() == good
    path.write_text(damage(good), encoding="latin-1")
    run.state(6_000)  # a checkpoint does not fail on it
    assert list(Anchors(folder, run, loader).load()) == [6_000]


def test_anchors_do_not_pile_up(tmp_path):
    loader = Mixed()
    run = open_run(str(tmp_path), loader)
    for step in range(300, 30_300, 300):
        run.state(step)
    steps = sorted(Anchors(str(tmp_path), run, loader).load())
    assert len(steps) == 32
    assert steps[-2:] == [29_700, 30_000]
    assert np.diff([0, *steps]).max() <= 2_400


def test_a_folder_that_takes_no_anchor_does_not_stop_a_checkpoint(tmp_path):
    run = open_run(str(tmp_path), Mixed())
    (tmp_path / "anchors.json").mkdir()
    assert run.state(5_000).step == 5_000
    loader = Mixed()
    open_run(str(tmp_path), loader, 5_000)
    assert loader.used == []
