"""All that a config can say about a run, drawn at random and together: schedules, nested blends,
batch sizes, budgets, stages, amendments, phases, hold-out, documents left out, shuffles, policies.
Every token is a number of its own, so that what comes twice, or is lost, shows.
"""

import dataclasses
import itertools
from collections import defaultdict
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import HealthCheck, given, reject, settings
from hypothesis import strategies as st

from headrace.config import ComponentConfig, LmDataConfig
from headrace.data import MixtureDataset, PlannedDataset
from headrace.data.dataset import ReorderedDataset
from headrace.data.phased import Continued, PhasedDataset
from headrace.errors import ConfigError
from headrace.mix import AmendmentConfig, StageConfig
from headrace.mix.amendments import sources_of
from headrace.mix.plan import policy_names
from headrace.order import BlockShuffleConfig, BraidShuffleConfig, ValidationConfig
from headrace.store import TokenCache
from headrace.testing import write_cache

STEPS = 60
LATE = 4000
SIZES = {"a": [5200, 900], "b": [1700, 300, 700], "c": [2100]}
SHUFFLES = [
    BraidShuffleConfig(),
    BraidShuffleConfig(strands=7),
    BlockShuffleConfig(window_blocks=3),
    40,
    False,
]
LEFT_OUT = {"few": 0.02, "many": 0.3}
"""Parts of the documents of a component that a list leaves out, by the list's name."""


@dataclasses.dataclass
class World:
    """Caches by name; file and tokens of each list of documents to leave out, by component and name
    of the list.
    """

    caches: dict[str, TokenCache]
    lists: dict[tuple[str, str], tuple[str, np.ndarray]]

    def placed(self, run: LmDataConfig) -> LmDataConfig:
        """The run with the paths of its lists, which the strategies do not know."""
        components = {
            n: c if c.remove is None else dataclasses.replace(c, remove=self.lists[n, c.remove][0])
            for n, c in run.components.items()
        }
        return dataclasses.replace(run, components=components)

    def removed(self, name: str, remove: str | None) -> np.ndarray:
        """Tokens that a component may not give."""
        found = [
            tokens for (n, _), (path, tokens) in self.lists.items() if n == name and path == remove
        ]
        return np.concatenate([np.zeros(0, np.int64), *found])


@pytest.fixture(scope="module")
def world(tmp_path_factory) -> World:
    """Parts of so many tokens, numbered through over all caches, in documents of up to 60."""
    rng = np.random.default_rng(0)
    at = 0
    made = {}
    lists = {}
    for name, sizes in SIZES.items():
        parts = []
        documents = []
        for size in sizes:
            cuts = np.unique([0, size, *rng.integers(0, size, size // 30).tolist()]) + at
            parts.append([np.arange(x, y) for x, y in itertools.pairwise(cuts.tolist())])
            at += size
            documents += parts[-1]
        folder = tmp_path_factory.mktemp(name)
        made[name] = write_cache(folder / "c", parts, vocab_size=1 << 20)
        for kind, part in LEFT_OUT.items():
            ids = np.sort(
                rng.choice(len(documents), max(1, int(len(documents) * part)), replace=False)
            )
            (folder / kind).write_text("\n".join(map(str, ids)))
            lists[name, kind] = str(folder / kind), np.concatenate([documents[k] for k in ids])
    return World(made, lists)


def schedules(least: int = 0) -> st.SearchStrategy[object]:
    values = st.sampled_from([0.05, 0.5, 1.0, 3.0, 20.0] if least else [0.0, 0.05, 1.0, 3.0])
    points = st.dictionaries(st.integers(1, STEPS), values, max_size=2)
    steps = st.builds(lambda first, more: {0: first, **dict(sorted(more.items()))}, values, points)
    return values | st.builds(lambda kind, p: {kind: p}, st.sampled_from(["step", "linear"]), steps)


def blends(names: str) -> st.SearchStrategy[dict[str, object]]:
    return st.fixed_dictionaries({names[0]: schedules(1), **{n: schedules() for n in names[1:]}})


@st.composite
def nested(draw: st.DrawFn, names: str) -> dict[str, object]:
    """The sources as they are, or in a group, one schedule on each path."""
    if not draw(st.booleans()):
        return draw(blends(names))
    outer = draw(st.sampled_from([None, 0.3, 4.0]) | schedules(1))
    if isinstance(outer, dict):
        blend = dict(
            zip(
                names,
                draw(st.lists(st.sampled_from([0.3, 1.0, 4.0]), min_size=2, max_size=2)),
                strict=False,
            )
        )
    else:
        blend = draw(blends(names))
    return {"x": {"blend": blend} if outer is None else {"weight": outer, "blend": blend}}


@st.composite
def sources(draw: st.DrawFn) -> ComponentConfig:
    """A component with what it may have of its own."""
    remove = draw(st.sampled_from([None, None, None, *LEFT_OUT]))
    shuffle = draw(st.sampled_from(SHUFFLES)) if draw(st.integers(0, 3)) == 0 else None
    return ComponentConfig("-", remove=remove, shuffle=shuffle)


@st.composite
def runs(draw: st.DrawFn) -> LmDataConfig:
    components = {n: draw(sources()) for n in "ab"}
    num_steps = draw(st.sampled_from([None, None, STEPS + 5]))
    max_share = draw(st.sampled_from([None, None, 0.7]))
    limited = (
        max_share is None or num_steps is not None
    )  # else the run may end where it cannot be filled
    max_epochs, max_tokens = draw(
        st.sampled_from([(None, None), (None, 900), (None, 5000), (1.0, None), (1.6, 900)])
    )
    components["a"] = dataclasses.replace(components["a"], max_share=max_share)
    components["b"] = dataclasses.replace(
        components["b"], max_tokens=max_tokens if limited else None
    )
    cuts = sorted(draw(st.sets(st.integers(1, STEPS - 5), min_size=2, max_size=2)))
    stages = [StageConfig(draw(nested("ab")))]
    if draw(st.booleans()):
        first = (
            StageConfig(draw(nested("ab")), tokens=draw(st.integers(1, 4000)))
            if draw(st.booleans())
            else stages[0]
        )
        step = None if first.tokens else cuts[0]
        stages = [
            first,
            StageConfig(draw(nested(draw(st.sampled_from(["ab", "ba", "b"])))), step=step),
        ]
    used = {name for stage in stages for name in sources_of(stage.weights)}
    amendments = []
    if draw(st.booleans()):
        components["c"] = draw(sources())
        held = stages[-1].weights
        # of what the last stage uses, some may go, and some be weighed anew
        drop = [n for n in sorted(sources_of(held)) if n != "b"] if draw(st.booleans()) else []
        again = draw(st.sampled_from(["x", "b"])) if "x" in held else "b"
        weights = {again: draw(st.sampled_from([0.3, 2.0]))} if draw(st.booleans()) else {}
        add = {"y": {"blend": {"c": 1}}} if draw(st.booleans()) else {"c": draw(schedules(1))}
        amendments.append(AmendmentConfig(STEPS - draw(st.integers(1, 40)), add, weights, drop))
    lengths = {
        0: 16,
        **{cuts[k]: draw(st.sampled_from([8, 24, 64])) for k in range(draw(st.integers(0, 2)))},
    }
    sizes = {
        0: draw(st.integers(1, 10)),
        **({cuts[1]: draw(st.integers(1, 10))} if draw(st.booleans()) else {}),
    }
    split = draw(
        st.sampled_from([None, ValidationConfig(3, seed=1), ValidationConfig(6, by="documents")])
    )
    given_ = {
        "components": {n: c for n, c in components.items() if n in used or n == "c"},
        "seq_len": lengths,
        "batch_size": sizes,
        "seed": draw(st.integers(0, 3)),
        "shuffle": draw(st.sampled_from(SHUFFLES)),
        "stages": stages,
        "amendments": amendments,
        "max_epochs": max_epochs if limited else None,
        "num_steps": num_steps,
        "validation": split,
    }
    try:
        return LmDataConfig(**given_)
    except (
        ConfigError
    ) as error:  # a stage or an amendment behind the end of the run, or an amendment before a stage
        assert str(error.field).endswith("].step")  # noqa: PT017
        reject()


@st.composite
def other_policies(draw: st.DrawFn) -> LmDataConfig:
    """Runs as other systems order them: constant weights, one stage."""
    policy = draw(st.sampled_from([name for name in policy_names() if name != "quota"]))
    sizes = st.integers(1, 10)
    number = st.sampled_from([0.3, 1.0, 4.0] if policy in ("swrr", "greedy") else [1.0])
    weights = {n: draw(number) for n in draw(st.permutations("abc"))}
    return LmDataConfig(
        {n: draw(sources()) for n in "abc"},
        seq_len=16,
        batch_size=draw(sizes) if policy == "whole_batches" else {0: draw(sizes), 30: draw(sizes)},
        shuffle=draw(st.sampled_from(SHUFFLES)),
        weights=weights if policy != "greedy" or draw(st.booleans()) else {"x": {"blend": weights}},
        policy=policy,
        max_epochs=draw(st.sampled_from([None, 1.0, 1.6])) if policy == "least_consumed" else None,
        validation=draw(
            st.sampled_from(
                [None, ValidationConfig(3, seed=1), ValidationConfig(6, by="documents")]
            )
        ),
    )


def opened(
    run: LmDataConfig, caches: dict[str, TokenCache]
) -> MixtureDataset | PhasedDataset | None:
    """The run's dataset; None where it cannot be: a budget that cannot be met, or a group that lost
    all its weight.
    """
    try:
        return run.with_caches({name: caches[name] for name in run.components}).dataset()
    except ConfigError as error:
        assert error.cure  # noqa: PT017
        if any(a.drop for a in run.amendments) and "all weights are zero" in str(error):
            return None  # what is left of a group has no weight
        assert (error.field or "").split(".")[-1] in (  # noqa: PT017
            "max_epochs",
            "max_tokens",
            "max_share",
            "step",
            "one_in",
        ), error
        return None


def phases_of(dataset: MixtureDataset | PhasedDataset) -> list[tuple[int, MixtureDataset]]:
    found = dataset.phases if isinstance(dataset, PhasedDataset) else ((0, dataset),)
    return [(step, mixture) for step, mixture in found if isinstance(mixture, MixtureDataset)]


def steps_of(dataset: MixtureDataset | PhasedDataset, steps: int = STEPS) -> int:
    """Whole steps to look at."""
    last = (
        steps
        if dataset.length is None
        else int(dataset.batch_schedule.step_of(np.array([dataset.length]))[0])
    )
    return min(last, steps)


def stretches(
    dataset: MixtureDataset | PhasedDataset, steps: int
) -> Iterator[tuple[int, MixtureDataset, np.ndarray]]:
    """Number and mixture of each phase, and its examples in the first steps."""
    bounds = [*(min(step, steps) for step, _ in phases_of(dataset)), steps]
    for number, (first, stop) in enumerate(itertools.pairwise(bounds)):
        begin, end = (dataset.batch_schedule.rows_at(step)[0] for step in (first, stop))
        if end > begin:
            yield number, phases_of(dataset)[number][1], np.arange(begin, end)


def tokens_of(dataset: MixtureDataset | PhasedDataset, steps: int) -> list[np.ndarray]:
    return [np.asarray(dataset.read(indices).tokens) for _, _, indices in stretches(dataset, steps)]


def draws_of(dataset: MixtureDataset | PhasedDataset, steps: int) -> list[list[int]]:
    return [
        x.tolist()
        for _, mixture, indices in stretches(dataset, steps)
        for x in mixture.draws.route(indices)
    ]


def epoch_of(mixture: MixtureDataset, d: int, ordinal: int) -> int:
    part = mixture.components[d]
    return part.at(ordinal)[2] if isinstance(part, Continued) else ordinal // rows_of_pass(part)


def rows_of_pass(part: PlannedDataset) -> int:
    if isinstance(part, Continued):
        return len(part.whole)
    assert isinstance(part, ReorderedDataset)
    return len(part.base)


def unfilled(
    dataset: MixtureDataset | PhasedDataset, name: str, epoch: int, phase: int, train_tokens: int
) -> int:
    """Tokens of a finished epoch, begun in a phase, that no row of its phases could hold."""
    mixtures = [mixture for _, mixture in phases_of(dataset)]
    lengths = [mixture.seq_len for mixture in mixtures]
    changes = [
        c for c in getattr(dataset, "changes", ()) if c.component == name
    ]  # the k-th leads to phase k + 1
    part = mixtures[phase].components[mixtures[phase].names.index(name)]
    count = train_tokens - rows_of_pass(part) * lengths[phase]
    while phase < len(changes) and changes[phase].epoch == epoch:
        left = changes[phase].left_blocks
        block = changes[phase].block_tokens
        count += left * (block % lengths[phase + 1] - block % lengths[phase])
        phase += 1
    return count


def check_accounts(
    run: LmDataConfig, dataset: MixtureDataset | PhasedDataset, world: World
) -> None:
    steps = steps_of(dataset)
    caches = world.caches
    delivered: dict[tuple[str, int], list[tuple[int, np.ndarray]]] = defaultdict(list)
    counts = defaultdict(int)
    wanted = defaultdict(float)
    for number, mixture, indices in stretches(dataset, steps):
        component, ordinal = mixture.draws.route(indices)
        tokens = np.asarray(dataset.read(indices).tokens)
        assert tokens.shape == (indices.size, mixture.seq_len)
        for d, i, row in zip(component.tolist(), ordinal.tolist(), tokens, strict=True):
            delivered[mixture.names[d], epoch_of(mixture, d, i)].append((number, row))
        for d, name in enumerate(mixture.names):  # ordinals run on without a gap
            mine = np.sort(ordinal[component == d])
            assert mine.tolist() == list(range(counts[name], counts[name] + mine.size))
            counts[name] += mine.size
        touched = np.unique(dataset.batch_schedule.step_of(indices))
        sizes = dataset.batch_schedule.size_at(touched)
        assert [int(mixture.draws.counts_at(s).sum()) for s in touched.tolist()] == sizes.tolist()
        for name, share in zip(
            mixture.names, (mixture.weights_at(touched) * sizes[:, None]).sum(axis=0), strict=True
        ):
            wanted[name] += share if run.policy == "quota" else 0
    for name in counts:  # nobody starves: 3 rows or more are wanted, and limits leave some
        limit = phases_of(dataset)[0][1].limits[name]
        assert counts[name] > 0 or wanted[name] < 3 or limit == 0
    held = {}
    opened = run.with_caches({name: caches[name] for name in run.components})
    if run.validation is not None:
        held_out = opened.validation_datasets()
        held = {n: d.read(np.arange(len(d))).tokens for n, d in held_out.items()}
    accounts = opened.accounts()
    for name in run.components:
        epochs = sorted(e for n, e in delivered if n == name)
        assert epochs == list(range(len(epochs)))
        for epoch in epochs:
            parts = delivered[name, epoch]
            tokens = np.concatenate([row for _, row in parts])
            assert (
                np.unique(tokens).size == tokens.size
            )  # no token twice in an epoch, whatever the phases
            if name in held:
                assert np.intersect1d(tokens, held[name]).size == 0
            assert (
                np.intersect1d(tokens, world.removed(name, run.components[name].remove)).size == 0
            )
            if (
                epoch < epochs[-1] and run.validation is None
            ):  # it is over: what was not delivered was counted
                skipped = sum(
                    c.skipped_tokens
                    for c in getattr(dataset, "changes", ())
                    if (c.component, c.epoch) == (name, epoch)
                )
                there = accounts[name].tokens - accounts[name].removed_tokens
                lost = unfilled(dataset, name, epoch, parts[0][0], there)
                assert lost >= 0
                assert tokens.size + skipped + lost == there


def check_prefix(
    run: LmDataConfig, dataset: MixtureDataset | PhasedDataset, caches: dict[str, TokenCache]
) -> None:
    """An amendment leaves the steps before it as they were, to the bit; a later stage leaves the
    draws.
    """
    stages = run.plan().stages
    if run.amendments:
        first = run.amendments[0].step
        components = {n: c for n, c in run.components.items() if n != "c"}
        before = opened(dataclasses.replace(run, components=components, amendments=[]), caches)
        if before is not None:
            until = min(first, steps_of(dataset), steps_of(before))
            for ours, theirs in zip(
                tokens_of(before, until), tokens_of(dataset, until), strict=True
            ):
                assert np.array_equal(ours, theirs)
    elif (
        len(stages) == 2
        and set(stages[0].blend.names) == set(run.components)
        and run.max_epochs is None
    ):
        shorter = opened(
            dataclasses.replace(run, stages=[dataclasses.replace(run.stages[0], tokens=None)]),
            caches,
        )
        until = min(
            stages[1].first_step, steps_of(dataset), 0 if shorter is None else steps_of(shorter)
        )
        if shorter is not None:
            assert draws_of(shorter, until) == draws_of(dataset, until)


def check_late(run: LmDataConfig, dataset: MixtureDataset | PhasedDataset, world: World) -> None:
    """A step far out, reached without those before it: full, of the right data, and as the shares
    ask.
    """
    if dataset.length is not None:
        return
    _, mixture = phases_of(dataset)[-1]
    first, size = dataset.batch_schedule.rows_at(LATE)
    component, ordinal = mixture.draws.route(np.arange(first, first + size))
    tokens = np.asarray(dataset.read(np.arange(first, first + size)).tokens)
    starts = mixture.draws.starts_at(LATE)
    counts = mixture.draws.counts_at(LATE)
    assert (starts.sum(), counts.sum()) == (first, size)
    for d, name in enumerate(mixture.names):
        mine = tokens[component == d]
        assert np.sort(ordinal[component == d]).tolist() == list(
            range(starts[d], starts[d] + counts[d])
        )
        begin = sum(sum(sizes) for n, sizes in SIZES.items() if n < name)
        assert ((mine >= begin) & (mine < begin + sum(SIZES[name]))).all()
        assert not np.isin(mine, world.removed(name, run.components[name].remove)).any()
    if run.policy == "quota" and not any(
        c.max_share or c.max_tokens for c in run.components.values()
    ):
        steps = np.arange(LATE)
        due = (mixture.weights_at(steps) * dataset.batch_schedule.size_at(steps)[:, None]).sum(
            axis=0
        )
        if run.max_epochs is None:
            assert np.abs(starts - due).max() < len(mixture.names) + 1


def check_run(run: LmDataConfig, world: World) -> None:
    run = world.placed(run)
    caches = world.caches
    dataset = opened(run, caches)
    if dataset is None:
        return
    check_accounts(run, dataset, world)
    check_prefix(run, dataset, caches)
    check_late(run, dataset, world)
    if run.num_steps is not None:
        assert dataset.length is not None
        end, _ = dataset.batch_schedule.rows_at(run.num_steps)
        before_last, _ = dataset.batch_schedule.rows_at(run.num_steps - 1)
        bounds = [(c.max_tokens, c.max_share) for c in run.components.values()]
        # limits may leave too few rows for the last step
        may_be_short = run.max_epochs is not None or any(map(any, bounds))
        assert before_last < dataset.length <= end if may_be_short else dataset.length == end


@settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])
@given(run=runs())
def test_a_run_keeps_all_its_promises_together(world, run):
    check_run(run, world)


def test_limits_may_end_a_run_within_its_last_step(world):
    a = ComponentConfig("-", max_tokens=100 * 16)
    run = LmDataConfig({"a": a}, seq_len=16, batch_size=9, num_steps=12)
    check_run(run, world)
    dataset = opened(run, world.caches)
    assert dataset is not None
    assert dataset.length == 100


@settings(max_examples=15, suppress_health_check=[HealthCheck.too_slow])
@given(run=other_policies())
def test_a_run_in_the_order_of_another_system_keeps_them_too(world, run):
    check_run(run, world)


@pytest.mark.fuzz
@settings(suppress_health_check=list(HealthCheck))
@given(run=runs() | other_policies())
def test_a_run_keeps_all_its_promises_together_fuzz(world, run):
    check_run(run, world)
