"""Draws by exact quotas, for tests of what draws do."""

from collections.abc import Mapping, Sequence

from headrace.mix.blend import Blend
from headrace.mix.draws import Draws
from headrace.mix.quota import Quota
from headrace.mix.schedule import BatchSchedule


def draws_of(
    weights: Mapping[str, object] | Sequence[object],
    batch: BatchSchedule,
    limits: Sequence[int | None] | None = None,
) -> Draws:
    """Draws of components with these weights, by name or in order."""
    named = weights if isinstance(weights, Mapping) else {str(n): w for n, w in enumerate(weights)}
    blend = Blend(named)
    settled = max(blend.breaks, default=0)
    return Draws(Quota(blend.at, len(blend.names), batch, limits, settled))
