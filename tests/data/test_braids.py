"""Braided components in one pass: row for row what each component says of itself, also behind a change of seq_len."""

import numpy as np
import pytest

from headrace.component_config import ComponentConfig
from headrace.config import LmDataConfig
from headrace.data.mixture import MixtureDataset
from headrace.data.phased import Continued, PhasedDataset
from headrace.index.shuffle_config import BraidShuffleConfig
from headrace.simulate import virtual_cache


@pytest.fixture(scope="module")
def phased() -> PhasedDataset:
    sizes = {"a": 90_000, "b": 20_000, "c": 3_000, "d": 7_000}
    components = {n: ComponentConfig("-", shuffle=False if n == "d" else None) for n in sizes}
    run = LmDataConfig(
        components, seq_len={0: 16, 40: 64, 90: 32}, batch_size=32, shuffle=BraidShuffleConfig(io_block_size=16)
    )
    dataset = run.dataset({n: virtual_cache(n, size) for n, size in sizes.items()})
    assert isinstance(dataset, PhasedDataset)
    return dataset


def test_a_mixture_locates_rows_as_its_components_do(phased):
    seen = set()
    for first in range(0, 400, 7):
        mixture = phased.phase_at(first)[0]
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
                seen |= {part.at(i)[0] is part.rest for i in ordinal[here].tolist()}
    assert seen == {True, False}  # rests of epochs, and whole epochs
    last = phased.phases[-1][1]
    assert isinstance(last, MixtureDataset)
    assert last._braids.held.tolist() == [True, True, True, False]


def test_phases_with_equal_limits_share_one_walk(phased):
    assert len({id(mixture.draws) for _, mixture in phased.phases if isinstance(mixture, MixtureDataset)}) == 1
