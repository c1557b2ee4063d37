"""Phases of different row lengths: every token is a number of its own, so that what comes twice, or
is lost, shows.
"""

import dataclasses
import itertools
import json
from collections import defaultdict

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.data import MixtureDataset, PackedTokenDataset, PlannedDataset, TokenSeqDataset
from headrace.data.component import Orders, component_sides, shuffle_components
from headrace.data.dataset import ReorderedDataset
from headrace.data.documents import DocumentFilter
from headrace.data.phased import Continued, PhasedDataset
from headrace.data.phased_mixture import phased_dataset
from headrace.errors import ConfigError
from headrace.feed import DataLoader
from headrace.mix import BatchSchedule
from headrace.mix.blend import Blend
from headrace.mix.phases import phase_block
from headrace.mix.plan import plan_of
from headrace.mix.stages import Stage
from headrace.order import BlockShuffleConfig, BraidShuffleConfig, ValidationConfig
from headrace.order.shuffle_config import ShuffleConfig
from headrace.store import TokenCache
from headrace.testing import write_cache

CHUNK = 256  # what write_cache makes


def numbered_cache(folder, sizes: list[int], seed: int) -> TokenCache:
    """Parts of so many tokens, numbered through, in documents of up to 60."""
    rng = np.random.default_rng(seed)
    parts = []
    at = 0
    for size in sizes:
        cuts = np.unique(np.concatenate([[0, size], rng.integers(0, size, size // 30)])) + at
        parts.append([np.arange(a, b) for a, b in itertools.pairwise(cuts.tolist())])
        at += size
    return write_cache(folder, parts, vocab_size=1 << 20)


@pytest.fixture(scope="module")
def caches(tmp_path_factory) -> dict[str, TokenCache]:
    folder = tmp_path_factory.mktemp("phased")
    return {
        "a": numbered_cache(folder / "a", [9000, 300, 700, 5111], seed=0),
        "b": numbered_cache(folder / "b", [3001], seed=1),
    }


def rows_of_pass(repeated: PlannedDataset) -> int:
    assert isinstance(repeated, ReorderedDataset)
    return len(repeated.base)


def epochs_of(
    dataset: PhasedDataset, steps: int
) -> dict[tuple[str, int], list[tuple[int, np.ndarray]]]:
    """Phases and rows that each epoch of each component delivers in the first steps."""
    delivered: dict[tuple[str, int], list[tuple[int, np.ndarray]]] = defaultdict(list)
    for number, (step, mixture) in enumerate(dataset.phases):
        assert isinstance(mixture, MixtureDataset)
        stop = min(steps, dataset.at_step(step)[1] or steps)
        begin, end = (dataset.batch_schedule.rows_at(s)[0] for s in (min(step, stop), stop))
        indices = np.arange(begin, min(end, dataset.length or end))
        component, ordinal = mixture.draws.route(indices)
        for row, d, i in zip(
            dataset.read(indices).tokens, component.tolist(), ordinal.tolist(), strict=True
        ):
            part = mixture.components[d]
            epoch = part.at(i)[2] if isinstance(part, Continued) else i // rows_of_pass(part)
            delivered[mixture.names[d], epoch].append((number, row))
    return delivered


SHUFFLES = [
    BraidShuffleConfig(strands=6),
    BraidShuffleConfig(strands=150),
    BraidShuffleConfig(strands=3, io_block_size=16),
    BraidShuffleConfig(),
    BlockShuffleConfig(window_blocks=3),
    BlockShuffleConfig(window_blocks=2, perm_type="linear", io_block_size=32),
    50,
    False,
    True,
]


@st.composite
def runs(draw: st.DrawFn) -> tuple[list[tuple[int, int]], ShuffleConfig, BatchSchedule, bool, bool]:
    steps = sorted(draw(st.sets(st.integers(1, 60), max_size=3)))
    lengths = draw(
        st.lists(
            st.sampled_from([8, 16, 24, 40, 64, 100, 128]),
            min_size=len(steps) + 1,
            max_size=len(steps) + 1,
        )
    )
    phases = list(zip([0, *steps], lengths, strict=True))
    sizes = {0: 8, **{s: draw(st.integers(1, 12)) for s in steps[:1]}}
    strands = st.integers(1, 180)
    blocks = st.none() | st.integers(1, 40)
    braids = st.builds(BraidShuffleConfig, strands=strands, io_block_size=blocks)
    return (
        phases,
        draw(st.sampled_from(SHUFFLES) | braids),
        BatchSchedule(sizes),
        draw(st.booleans()),
        draw(st.booleans()),
    )


def filtered(removed: bool) -> DocumentFilter | None:
    return DocumentFilter(np.arange(3, 60, 7)) if removed else None


def block_of(phases, shuffle: ShuffleConfig) -> int:
    rows = (
        shuffle.io_block_size
        if isinstance(shuffle, BraidShuffleConfig | BlockShuffleConfig)
        else None
    )
    return phase_block(CHUNK, [length for _, length in phases], rows)


def make(caches, phases, shuffle, batch, removed, held, **more) -> PhasedDataset:
    sources = {
        n: TokenSeqDataset(c, phases[0][1], name=n, removed=filtered(removed))
        for n, c in caches.items()
    }
    split = ValidationConfig(4, seed=1) if held else None
    shuffles = dict.fromkeys(sources, shuffle)
    return phased(
        sources, phases, shuffles, Blend({"a": 3, "b": 1}), batch, validation=split, **more
    )


def phased(
    sources, phases, shuffles, weights, batch, *, policy="quota", validation=None, **limits
) -> PhasedDataset:
    """The dataset of a run; ``validation`` is what is held out of each component."""
    plan = plan_of(weights, policy, [*sources], batch)
    split = (validation, "validation")
    held_out = {} if validation is None else dict.fromkeys(sources, split)
    max_rows = {n: most // phases[0][1] for n, most in limits.get("max_tokens", {}).items()}
    plan = dataclasses.replace(plan, phases=phases, max_rows=max_rows, **limits)
    orders = Orders(5, shuffles, validation=held_out)
    if len(phases) > 1:
        return phased_dataset(sources, plan, orders)
    # one phase is a plain mixture
    sources = {n: component_sides(n, rows, validation)[0] for n, rows in sources.items()}
    mixture = MixtureDataset.of(shuffle_components(sources, plan, orders), plan)
    return PhasedDataset([(0, mixture)], batch)


def unfilled(dataset: PhasedDataset, name: str, first_phase: int, train_tokens: int) -> int:
    """Tokens of an epoch that no row of the phase in which it began could hold."""
    mixture = dataset.phases[first_phase][1]
    assert isinstance(mixture, MixtureDataset)
    part = mixture.components[mixture.names.index(name)]
    rows = len(part.whole) if isinstance(part, Continued) else rows_of_pass(part)
    return train_tokens - rows * mixture.seq_len


@settings(suppress_health_check=[HealthCheck.too_slow], max_examples=60)
@given(runs())
def test_no_token_comes_twice_in_an_epoch_and_every_token_is_accounted_for(caches, run):
    phases, shuffle, batch, removed, held = run
    held = held and len(phases) > 1  # a run of one length holds out blocks of a size of their own
    try:
        block = block_of(phases, shuffle)
        dataset = make(caches, phases, shuffle, batch, removed, held)
    except ConfigError as error:
        assert error.field in ("io_block_size", "validation.one_in", "shuffle.strands")  # noqa: PT017
        return
    delivered = epochs_of(dataset, 100)
    for name, cache in caches.items():
        epochs = sorted(e for n, e in delivered if n == name)
        assert epochs == list(range(len(epochs)))  # no epoch is left out
        whole = TokenSeqDataset(cache, phases[0][1], removed=filtered(removed))
        blocks = whole.full_blocks(block // phases[0][1])
        train_tokens = cache.num_tokens - whole.removed_tokens - held * (blocks // 4) * block
        for epoch in epochs:
            numbers, rows = zip(*delivered[name, epoch], strict=True)
            tokens = np.concatenate(rows)
            assert np.unique(tokens).size == tokens.size
            skipped = sum(
                c.skipped_tokens for c in dataset.changes if (c.component, c.epoch) == (name, epoch)
            )
            if epoch < epochs[-1]:  # it is over
                lost = unfilled(dataset, name, numbers[0], train_tokens)
                assert lost >= 0
                assert tokens.size + skipped + lost == train_tokens
        for change in dataset.changes:
            length = change.seq_len
            before = phases[[step for step, _ in phases].index(change.step) - 1][1]
            unfilled_in_blocks = change.left_blocks * (block % length - block % before)
            assert 0 <= change.skipped_tokens - unfilled_in_blocks < length


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(
    shuffle=st.sampled_from(SHUFFLES),
    removed=st.booleans(),
    held=st.booleans(),
    step=st.integers(1, 60),
    later=st.sampled_from([8, 32, 64, 128, 256]),
)
def test_the_first_phase_is_the_run_without_phases(caches, shuffle, removed, held, step, later):
    phased = make(caches, [(0, 16), (step, later)], shuffle, BatchSchedule(8), removed, held)
    alone = {
        n: TokenSeqDataset(c, 16, name=n, removed=filtered(removed)) for n, c in caches.items()
    }
    stored = {
        n: d.holdout(4, seed=1, io_block_size=block_of([(0, 16), (1, later)], shuffle) // 16)[0]
        if held
        else d
        for n, d in alone.items()
    }
    stages = [Stage(0, Blend({"a": 3, "b": 1}))]
    plan = plan_of(stages, "quota", [*stored], BatchSchedule(8))
    shuffled = shuffle_components(stored, plan, Orders(5, dict.fromkeys(stored, shuffle)))
    plain = MixtureDataset(shuffled, stages, BatchSchedule(8))
    before = np.arange(8 * step)
    if later != 16:
        assert phased.at_step(step - 1) == (phased.phases[0][1], step)
    assert np.array_equal(phased.read(before).tokens, plain.read(before).tokens)
    assert phased.describe()["phases"][0]["dataset"] == plain.describe()


@given(runs(), st.integers(1, 40), st.sampled_from([8, 16, 64]))
@settings(suppress_health_check=[HealthCheck.too_slow])
def test_a_phase_does_not_know_of_later_ones(caches, run, more, length):
    phases, shuffle, batch, removed, held = run
    longer = [*phases, (phases[-1][0] + more, length)]
    held = held and len(phases) > 1  # a run of one length holds out blocks of a size of their own
    try:
        if block_of(phases, shuffle) != block_of(longer, shuffle):
            return
        short, long = (make(caches, p, shuffle, batch, removed, held) for p in (phases, longer))
    except ConfigError as error:
        assert error.field in ("io_block_size", "validation.one_in", "shuffle.strands")  # noqa: PT017
        return
    for (step, dataset), (_, other) in zip(short.phases, long.phases, strict=False):
        begin, end = (
            batch.rows_at(s)[0]
            for s in (step, min(short.at_step(step)[1] or 10**9, step + 9, longer[-1][0]))
        )
        indices = np.arange(begin, end)
        assert np.array_equal(dataset.read(indices).tokens, other.read(indices).tokens)
        assert dataset.describe() == other.describe()
    assert long.changes[: len(short.changes)] == short.changes


def test_what_is_skipped_fills_no_row(tmp_path):
    """However many blocks were touched: with more strands than blocks all of them,
    from the start.
    """
    cache = numbered_cache(tmp_path / "c", [400_000], seed=0)
    source = {"a": TokenSeqDataset(cache, 16)}
    stages = [Stage(0, Blend({"a": 1}))]
    for strands in (8, 64, 2048):
        shuffles: dict[str, ShuffleConfig] = {"a": BraidShuffleConfig(strands=strands)}
        dataset = phased(source, [(0, 16), (1000, 128)], shuffles, stages, BatchSchedule(8))
        (change,) = dataset.changes
        assert (change.step, change.component, change.seq_len, change.epoch) == (1000, "a", 128, 0)
        assert change.drawn == 8000
        assert (change.left_blocks < 20) == (strands == 2048)
        left_tokens = 400_000 - 8000 * 16 - change.left_blocks * CHUNK
        assert (change.left_rows, change.skipped_tokens) == divmod(left_tokens, 128)
        seen = [tokens for _, tokens in epochs_of(dataset, 3130)["a", 0]]
        tokens = np.concatenate(seen)
        assert np.unique(tokens).size == tokens.size == 400_000 - change.skipped_tokens


@pytest.mark.parametrize("max_epochs", [0.3, 1.0, 2.0])
@pytest.mark.parametrize("step", [20, 70, 200])
def test_limits_hold_over_phases(caches, max_epochs, step):
    dataset = make(
        caches,
        [(0, 16), (step, 64), (step + 40, 32)],
        BraidShuffleConfig(strands=6),
        BatchSchedule(8),
        removed=False,
        held=False,
        max_epochs={"a": max_epochs, "b": max_epochs},
    )
    counts = {name: np.zeros(cache.num_tokens, int) for name, cache in caches.items()}
    assert dataset.length is not None
    steps = int(dataset.batch_schedule.step_of(np.array([dataset.length - 1]))[0]) + 1
    for (name, epoch), rows in epochs_of(dataset, steps).items():
        assert epoch < max(max_epochs, 1)
        counts[name][np.concatenate([row for _, row in rows])] += 1
    for name, count in counts.items():
        assert count.max() <= np.ceil(max_epochs)
        assert count.sum() <= max_epochs * caches[name].num_tokens
        changed = sum(c.skipped_tokens for c in dataset.changes if c.component == name)
        assert count.sum() >= max_epochs * caches[name].num_tokens - max(changed, 0) - 3 * CHUNK * (
            1 + max_epochs
        )


def test_ordinals_go_on_over_phases_with_limits(caches):
    for most in (500, 3000, 9000):
        dataset = make(
            caches,
            [(0, 16), (23, 64), (50, 8)],
            BraidShuffleConfig(strands=6),
            BatchSchedule(8),
            removed=False,
            held=False,
            max_tokens={"b": most},
        )
        for (_, before), (step, after) in itertools.pairwise(dataset.phases):
            assert isinstance(before, MixtureDataset)
            assert isinstance(after, MixtureDataset)
            for s in range(step + 1):
                assert before.draws.starts_at(s).tolist() == after.draws.starts_at(s).tolist()
        delivered = epochs_of(dataset, 400)
        given_out = sum(
            row.size for (name, _), rows in delivered.items() if name == "b" for _, row in rows
        )
        assert most - 200 <= given_out <= most


@pytest.mark.parametrize("row_order", ["locality", "stream"])
def test_the_loader_goes_over_from_phase_to_phase(caches, row_order):
    phases = [(0, 16), (10, 64), (14, 8), (30, 128)]
    dataset = make(
        caches, phases, BraidShuffleConfig(strands=6), BatchSchedule({0: 8, 12: 16}), True, True
    )
    wanted = []
    for step in range(40):
        begin, size = dataset.batch_schedule.rows_at(step)
        wanted.append(dataset.read(np.arange(begin, begin + size)).tokens)
    with DataLoader(dataset, row_order=row_order) as loader:
        for start in (0, 7, 29):
            with loader.iter_from_step(start) as batches:
                for step, batch in zip(range(start, 40), batches, strict=False):
                    tokens = np.asarray(batch.tokens)
                    assert tokens.shape == wanted[step].shape
                    assert sorted(tokens.tolist()) == sorted(wanted[step].tolist())
                    if row_order == "stream":
                        assert np.array_equal(tokens, wanted[step])
        for step in (9, 10, 13, 14, 30, 500):
            assert sorted(np.asarray(loader.batch_at(step).tokens).tolist()) == sorted(
                wanted[step].tolist()
                if step < 40
                else dataset.read(np.arange(*_bounds(dataset, step))).tokens.tolist()
            )
        json.dumps(loader.describe())


def _bounds(dataset: PhasedDataset, step: int) -> tuple[int, int]:
    begin, size = dataset.batch_schedule.rows_at(step)
    return begin, begin + size


def test_a_mapped_dataset_changes_its_rows_too(caches):
    dataset = make(
        caches, [(0, 16), (3, 32)], BraidShuffleConfig(strands=6), BatchSchedule(8), False, False
    )
    with DataLoader(dataset.map(lambda batch: batch.tokens * 2), 8) as loader:
        assert [loader.batch_at(step).shape for step in (2, 3)] == [(8, 16), (8, 32)]


def test_what_does_not_go_together_is_refused(caches, tmp_path):
    dataset = make(caches, [(0, 16), (3, 32)], False, BatchSchedule(8), False, False)
    with pytest.raises(ConfigError, match="Ask for the examples of one side at a time"):
        dataset.read([23, 24])
    with pytest.raises(ConfigError, match="cannot be reordered"):
        dataset.reordered(dataset.phases[0][1].components[0].order)  # pyright: ignore
    first, second = (d for _, d in dataset.phases)
    for phases in (
        [],
        [(1, first)],
        [(0, first), (0, second)],
        [(0, first), (5, second), (3, first)],
    ):
        with pytest.raises(ConfigError, match="must begin at step 0"):
            PhasedDataset(phases, BatchSchedule(8))
    other = TokenSeqDataset(numbered_cache(tmp_path / "other", [1000], 0), 16)
    with pytest.raises(ConfigError, match="other arrays than the first phase"):
        PhasedDataset([(0, first), (3, other)], BatchSchedule(8))
    with pytest.raises(ConfigError, match="is longer than the data"):
        make(caches, [(0, 16), (3, 9000)], False, BatchSchedule(8), False, False)


def test_a_component_may_come_in_with_a_later_stage(caches):
    sources = {n: TokenSeqDataset(c, 16, name=n) for n, c in caches.items()}
    stages = [Stage(0, Blend({"a": 1})), Stage(40, Blend({"a": 1, "b": 1}))]
    shuffles: dict[str, ShuffleConfig] = {
        "a": BraidShuffleConfig(strands=6),
        "b": BlockShuffleConfig(window_blocks=2),
    }
    dataset = phased(sources, [(0, 16), (30, 64), (60, 32)], shuffles, stages, BatchSchedule(8))
    by_step = {(c.step, c.component): c for c in dataset.changes}
    assert (
        by_step[30, "b"].drawn,
        by_step[30, "b"].left_blocks,
        by_step[30, "b"].skipped_tokens,
    ) == (0, 0, 0)
    assert by_step[60, "b"].drawn == 80
    delivered = epochs_of(dataset, 300)
    assert {name for name, _ in delivered} == {"a", "b"}
    for rows in delivered.values():
        tokens = np.concatenate([row for _, row in rows])
        assert np.unique(tokens).size == tokens.size


PACKINGS = [
    {},
    {"algorithm": "bfd"},
    {"algorithm": "wrap"},
    {"algorithm": "next_fit", "max_documents": 3},
    {"long": "drop"},
    {"long": "truncate"},
    {"min_fill": 0.6},
    {"unit": 2, "long": "drop"},
]


def packed_tokens_of(mixture: MixtureDataset, indices: np.ndarray) -> list[np.ndarray]:
    """The tokens of each example, without padding: tokens of these caches are their own numbers."""
    located = mixture.locate(indices)
    found = []
    for source, row in zip(located.source.tolist(), located.row.tolist(), strict=True):
        pieces = mixture.sources[source].pieces(np.array([row]))
        cache = mixture.components[source].caches()[0]
        begin = np.concatenate([[0], np.cumsum(cache.part_tokens)])[pieces.array] + pieces.start
        runs = zip(begin.tolist(), pieces.size.tolist(), strict=True)
        found.append(np.concatenate([np.arange(b, b + n) for b, n in runs]))
    return found


@settings(suppress_health_check=[HealthCheck.too_slow], max_examples=60)
@given(
    steps=st.lists(st.integers(1, 60), max_size=3, unique=True).map(sorted),
    lengths=st.lists(st.sampled_from([16, 24, 40, 64, 100, 128]), min_size=4, max_size=4),
    packing=st.sampled_from(PACKINGS),
    shuffle=st.sampled_from(SHUFFLES),
    removed=st.booleans(),
    held=st.booleans(),
)
def test_packed_rows_change_their_length_and_no_document_is_lost(
    caches, tmp_path_factory, steps, lengths, packing, shuffle, removed, held
):
    phases = list(zip([0, *steps], lengths, strict=False))
    plans = tmp_path_factory.getbasetemp() / "plans"
    if "unit" in packing:  # parts of an odd number of documents are refused
        caches = {"b": caches["b"]} if caches["b"].num_documents % 2 == 0 else {}
    sources = {
        n: PackedTokenDataset(
            c, phases[0][1], name=n, removed=filtered(removed), plans=plans, **packing
        )
        for n, c in caches.items()
    }
    if not sources:
        return
    batch = BatchSchedule(8)
    split = ValidationConfig(9, by="documents") if held else None
    weights = Blend(dict.fromkeys(sources, 1))
    try:
        dataset = phased(
            sources, phases, dict.fromkeys(sources, shuffle), weights, batch, validation=split
        )
    except ConfigError as error:
        assert error.field == "shuffle.strands"  # noqa: PT017
        return
    delivered = defaultdict(list)
    for step, mixture in dataset.phases:
        assert isinstance(mixture, MixtureDataset)
        begin, end = (8 * s for s in (step, dataset.at_step(step)[1] or max(120, step + 60)))
        indices = np.arange(begin, end)
        component, ordinal = mixture.draws.route(indices)
        tokens = packed_tokens_of(mixture, indices)
        for d, i, of_row in zip(component.tolist(), ordinal.tolist(), tokens, strict=True):
            part = mixture.components[d]
            epoch = part.at(i)[2] if isinstance(part, Continued) else i // rows_of_pass(part)
            delivered[mixture.names[d], epoch].append((mixture.seq_len, of_row))
    for name, source in sources.items():
        epochs = sorted(e for n, e in delivered if n == name)
        assert epochs == list(range(len(epochs)))
        train = source.holdout_documents(9)[0] if held else source
        for epoch in epochs:
            tokens = np.concatenate([row for _, row in delivered[name, epoch]])
            assert np.unique(tokens).size == tokens.size
            if epoch < epochs[-1]:
                begun_with = train.with_rows(delivered[name, epoch][0][0])
                skipped = sum(
                    c.skipped_tokens
                    for c in dataset.changes
                    if (c.component, c.epoch) == (name, epoch)
                )
                assert tokens.size + skipped == begun_with.plan.counts.packed_tokens
                if packing in ({}, {"algorithm": "bfd"}, {"algorithm": "wrap"}):
                    assert skipped == 0


@settings(suppress_health_check=[HealthCheck.too_slow], max_examples=40)
@given(
    steps=st.lists(st.integers(1, 60), min_size=1, max_size=3, unique=True).map(sorted),
    lengths=st.lists(st.sampled_from([16, 33, 64, 100, 128, 250]), min_size=4, max_size=4),
    packing=st.sampled_from([None, {}, {"algorithm": "wrap"}]),
    shuffle=st.sampled_from(SHUFFLES[3:]),
    budget=st.sampled_from([None, 9000]),
)
def test_one_pass_has_all_rows_however_many_another_length_makes_of_them(
    caches, tmp_path_factory, steps, lengths, packing, shuffle, budget
):
    phases = list(zip([0, *steps], lengths, strict=False))
    plans = tmp_path_factory.getbasetemp() / "plans"
    source = TokenSeqDataset(caches["a"], lengths[0], name="a")
    if packing is not None:
        source = PackedTokenDataset(caches["a"], lengths[0], name="a", plans=plans, **packing)
    most = {} if budget is None else {"max_tokens": {"a": budget}}
    dataset = phased(
        {"a": source},
        phases,
        {"a": shuffle},
        Blend({"a": 1}),
        BatchSchedule(4),
        max_epochs=1,
        **most,
    )
    assert dataset.length is not None
    given_out = 0
    places = 0
    for step, mixture in dataset.phases:
        assert isinstance(mixture, MixtureDataset)
        stop = dataset.at_step(step)[1]
        end = dataset.length if stop is None else min(4 * stop, dataset.length)
        indices = np.arange(4 * step, end)
        given_out += sum(row.size for row in packed_tokens_of(mixture, indices))
        places += indices.size * mixture.seq_len
    whole = len(source) * lengths[0]
    if isinstance(source, PackedTokenDataset):
        whole = source.plan.counts.packed_tokens
    skipped = sum(change.skipped_tokens for change in dataset.changes if change.epoch == 0)
    if budget is None:
        assert given_out + skipped == whole
    else:
        assert budget - sum(lengths) <= places <= budget


def test_packed_rows_that_change_are_held_out_by_documents(caches):
    source = {"b": PackedTokenDataset(caches["b"], 16)}
    with pytest.raises(ConfigError) as caught:
        phased(
            source,
            [(0, 16), (3, 32)],
            {"b": BraidShuffleConfig()},
            Blend({"b": 1}),
            BatchSchedule(8),
            validation=ValidationConfig(4),
        )
    assert (caught.value.field, caught.value.value) == ("validation.by", "blocks")


def test_the_loader_delivers_packed_rows_of_each_phase(caches):
    source = {"b": PackedTokenDataset(caches["b"], 16)}
    phases = [(0, 16), (5, 64), (12, 32)]
    dataset = phased(source, phases, {"b": BraidShuffleConfig()}, Blend({"b": 1}), BatchSchedule(8))
    with DataLoader(dataset, row_order="stream") as loader:
        for step in range(40):
            begin, size = dataset.batch_schedule.rows_at(step)
            wanted = dataset.read(np.arange(begin, begin + size))
            batch = loader.batch_at(step)
            assert np.array_equal(np.asarray(batch.tokens), wanted.tokens)
            assert np.array_equal(np.asarray(batch.segment_ids), np.asarray(wanted.segment_ids))


@pytest.mark.parametrize("steps", [(3,), (2, 6), (3, 20)])
def test_pairs_stay_together_when_rows_change_their_length(tmp_path, steps):
    sizes = np.random.default_rng(0).integers(1, 20, 200)
    ends = np.cumsum(sizes).tolist()
    documents = [np.arange(end - n, end) for n, end in zip(sizes.tolist(), ends, strict=True)]
    cache = write_cache(tmp_path / "pairs", [documents[:90], documents[90:]], vocab_size=1 << 20)
    source = {"p": PackedTokenDataset(cache, 40, unit=2, long="drop")}
    phases = [(0, 40), *zip(steps, (64, 48), strict=False)]
    dataset = phased(source, phases, {"p": BraidShuffleConfig()}, Blend({"p": 1}), BatchSchedule(4))
    pair_of = np.repeat(np.arange(200) // 2, sizes)
    pair_sizes = np.bincount(pair_of)
    seen = []
    for step, mixture in dataset.phases:
        assert isinstance(mixture, MixtureDataset)
        (part,) = mixture.components
        stop = dataset.at_step(step)[1] or 40
        for row, i in zip(
            packed_tokens_of(mixture, np.arange(4 * step, 4 * stop)),
            range(4 * step, 4 * stop),
            strict=True,
        ):
            pairs, counts = np.unique(pair_of[row], return_counts=True)
            assert np.array_equal(counts, pair_sizes[pairs])
            epoch = part.at(i)[2] if isinstance(part, Continued) else i // rows_of_pass(part)
            seen += pairs.tolist() if epoch == 0 else []
    assert sorted(seen) == list(range(100))
