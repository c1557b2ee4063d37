"""Braided components in one pass: row for row what each component says of itself, also behind a
change of seq_len.
"""

import numpy as np
import pytest

from headrace.analysis.check.sizes import virtual_cache
from headrace.config import ComponentConfig, LmDataConfig
from headrace.data import MixtureDataset
from headrace.data.phased import Continued, PhasedDataset
from headrace.order import BraidShuffleConfig


@pytest.fixture(scope="module")
def phased() -> PhasedDataset:
    sizes = {"a": 90_000, "b": 20_000, "c": 3_000, "d": 7_000}
    components = {n: ComponentConfig("-", shuffle=False if n == "d" else None) for n in sizes}
    run = LmDataConfig(
        components,
        seq_len={0: 16, 40: 64, 90: 32},
        batch_size=32,
        shuffle=BraidShuffleConfig(io_block_size=16),
    )
    dataset = run.with_caches({n: virtual_cache(n, size) for n, size in sizes.items()}).dataset()
    assert isinstance(dataset, PhasedDataset)
    return dataset


def test_a_mixture_locates_rows_as_its_components_do(phased):
    seen = set()
    for first in range(0, 400, 7):
        mixture = phased.at_step(first)[0]
        assert isinstance(mixture, MixtureDataset)
        indices = np.arange(first * 32, first * 32 + 32)
        located = mixture.locate(indices)
        component, ordinal = mixture.draws.route(indices)
        for d, part in enumerate(mixture.components):
            here = component == d
            alone = part.locate(ordinal[here])
            assert located.row[here].tolist() == alone.row.tolist()
            assert located.locality[here].tolist() == alone.locality.tolist()
            assert (located.source[here] == d).all()
            if isinstance(part, Continued):
                seen |= {part.at(i)[0] in part.rest for i in ordinal[here].tolist()}
    assert seen == {True, False}  # rests of epochs, and whole epochs
    last = phased.phases[-1][1]
    assert isinstance(last, MixtureDataset)
    assert last._braids.held.tolist() == [True, True, True, False]


def test_phases_with_equal_limits_share_one_walk(phased):
    assert (
        len(
            {
                id(mixture.draws.policy)
                for _, mixture in phased.phases
                if isinstance(mixture, MixtureDataset)
            }
        )
        == 1
    )


def test_braids_among_other_orders_are_mapped_together():
    shuffles = {"a": True, "b": BraidShuffleConfig(strands=9), "c": 40, "d": None}
    run = LmDataConfig(
        {n: ComponentConfig("-", shuffle=s) for n, s in shuffles.items()}, seq_len=16, batch_size=32
    )
    mixture = run.with_caches({n: virtual_cache(n, 4000) for n in shuffles}).dataset()
    assert isinstance(mixture, MixtureDataset)
    assert mixture._braids.held.tolist() == [False, True, False, True]
    indices = np.arange(0, 4000, 3)
    located = mixture.locate(indices)
    component, ordinal = mixture.draws.route(indices)
    for d, part in enumerate(mixture.components):
        alone = part.locate(ordinal[component == d])
        assert located.row[component == d].tolist() == alone.row.tolist()
        assert located.locality[component == d].tolist() == alone.locality.tolist()
