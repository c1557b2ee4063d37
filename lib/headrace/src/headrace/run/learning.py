"""A run whose mixture learns from its losses, and that can be replayed without them.

::

    learner = MixtureLearner(open_run("runs/1", config), AdaptiveMixture(), every=500)
    step = 0
    while step < num_steps:
        with learner.run.loader().iter_from_step(step) as batches:
            for batch in batches:
                state, losses = train_step(state, batch)  # losses: loss_by_source(...), inside jit
                step += 1
                if learner.observe(step, losses):
                    break  # the run was amended from this step on: go on with its loader

Every N steps a rule (:mod:`headrace.mix.online`) gets the losses since the last decision. What it
wants is bounded and rounded to exact fractions, and written into the lock as an amendment of the
weights, together with what was measured. From then on the decision is a part of the plan: a run
that is killed and goes on, on whatever hosts, draws the same batches without a loss, up to the last
decision in the lock, and the state of the rule follows from the measurements in it. Losses since
that decision are lost with the job: its next decision follows from those since the restart. It does
not wait for a whole interval, or a job that is often killed would never decide.

The losses must be equal in all processes, as sums over a sharded batch are; so are then the
decisions, and all write the same lock.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import numpy as np
from jaxtyping import Float64

from headrace.config.lm_data import LmDataConfig
from headrace.data.mixture import MixtureDataset, mixture_of
from headrace.data.phased import RunDataset
from headrace.data.sources_at import sources_at
from headrace.errors import ConfigError, check_at_least
from headrace.mix.bounds import bounded_shares
from headrace.mix.online import Measured, OnlineMixture, State, exact_fractions
from headrace.mix.stage_config import AmendmentConfig, last_change
from headrace.run.run import Run

if TYPE_CHECKING:
    from headrace.batch.loss import SourceLosses


@dataclass(frozen=True)
class ShareBounds:
    """Bounds of the decisions of a rule.

    Attributes:
        least: Least share of each source.
        most_change: Most that the share of a source changes at a decision.
        max_epochs: Most passes over a source in the whole run: its share is at most the one with
            which the rest of the run would reach them. It goes before the other two.

    Raises:
        ConfigError: a value is out of range.
    """

    least: float = 0.0
    most_change: float = 1.0
    max_epochs: float | None = None

    def __post_init__(self) -> None:
        for name, value in (("least", self.least), ("most_change", self.most_change)):
            if not 0 <= value <= 1:
                cure = "E.g. 0.01."
                raise ConfigError("is not a share from 0 to 1", field=name, value=value, cure=cure)

    def applied(
        self,
        wanted: Float64[np.ndarray, " d"],
        shares: Float64[np.ndarray, " d"],
        left: Float64[np.ndarray, " d"],
    ) -> Float64[np.ndarray, " d"]:
        """The shares nearest to what is wanted, in ratio, that the bounds allow.

        Args:
            wanted: Weights.
            shares: The shares so far.
            left: Greatest share of each source, by ``max_epochs``.

        Example:
            >>> bounds = ShareBounds(least=0.1, most_change=0.2)
            >>> bounds.applied(np.array([1.0, 0.0]), np.array([0.5, 0.5]), np.ones(2))
            array([0.7, 0.3])
        """
        most = np.minimum(left, shares + self.most_change)
        if most.sum() < 1:
            most = left
        least = np.maximum(min(self.least, 1 / len(wanted)), shares - self.most_change)
        return bounded_shares(wanted, np.minimum(least, most), most)


class MixtureLearner:
    """Amends the mixture of a run by what a rule learns from its losses; see the module.

    Args:
        run: The run, opened with a config whose mixture is one flat blend.
        rule: The rule.
        every: Steps from decision to decision.
        bounds: Bounds of its decisions; None: none.

    Attributes:
        run: The run, which it changes.
        names: Sources whose shares are learned: those of the first decision.

    Raises:
        ConfigError: ``every`` is below 1; the run has no config, several stages or a nested blend;
            ``max_epochs`` without the number of steps, or too low for these.
    """

    def __init__(
        self, run: Run, rule: OnlineMixture, *, every: int, bounds: ShareBounds | None = None
    ) -> None:
        check_at_least("every", every, cure="Count in steps: every=500.")
        self.run = run
        self._rule = rule
        self._every = every
        self._bounds = bounds or ShareBounds()
        config = self._config
        blend = config.plan().stages[-1].blend
        if blend.flat is None or config.stages:
            field = "stages" if config.stages else "weights"
            cure = "Write one flat blend: weights: {web: 3, code: 1}."
            raise ConfigError("cannot be learned", field=field, cure=cure)
        decided = [amendment for amendment in config.amendments if amendment.measured]
        self._begin(decided[0].step if decided else max(last_change(config.amendments), 1))
        self._measured: SourceLosses | None = None
        for amendment in decided:
            self._follow(amendment)

    def _begin(self, step: int) -> None:
        """Learns the shares of what is drawn where the first decision is made. Sources that join or
        leave later are no part of it.
        """
        mixture = self._mixture_at(step)
        self.names = list(mixture.stages[mixture.stage_at(step)].blend.names)
        self._columns = [mixture.names.index(name) for name in self.names]
        self._passes = self._rows_of_passes(self._config)
        self._state: State = self._rule.begin(self._shares_at(step - 1))
        self._decided = 0

    @property
    def _config(self) -> LmDataConfig:
        if self.run.config is None:
            cure = "Open it with a config: open_run(folder, config)."
            raise ConfigError("has no config", field="run", value=self.run.folder, cure=cure)
        return self.run.config

    @property
    def _planned(self) -> RunDataset:
        return cast("RunDataset", self.run.dataset.planned)

    def _rows_of_passes(self, config: LmDataConfig) -> Float64[np.ndarray, " d"] | None:
        """Rows that the run may draw of each source; None: as many as it likes."""
        passes = self._bounds.max_epochs
        if passes is None:
            return None
        if config.run_steps is None:
            cure = "Say how long the run is: num_steps=100000."
            raise ConfigError("is missing, and max_epochs needs it", field="num_steps", cure=cure)
        sides = config.train_datasets()
        rows = passes * np.array([len(sides[name]) for name in self.names], np.float64)
        of_run = self._rows_before(config.run_steps)
        if rows.sum() < of_run:
            least = passes * of_run / rows.sum()
            problem = f"allows {rows.sum():.0f} rows, and the run has {of_run}"
            cure = f"Give at least {least:.4g}."
            raise ConfigError(problem, field="max_epochs", value=passes, cure=cure)
        return rows

    def _rows_before(self, step: int) -> int:
        return self._planned.batch_schedule.rows_at(step)[0]

    def observe(self, step: int, losses: SourceLosses) -> bool:
        """Takes the losses of a step, and decides if it is time.

        Args:
            step: Steps that are done, this one included.
            losses: Losses of all components, in the order of the run's dataset; they may lie on
                devices, and are fetched only for a decision. A source with a loss that is not a
                number counts as not drawn since the last decision.

        Returns:
            Whether :attr:`run` was amended, from ``step`` on: loaders that were made before have
            the old mixture.
        """
        if step <= self._decided:  # it goes on from an earlier checkpoint, as the lock says
            return False
        earlier = self._measured
        if earlier is None or earlier.sums.shape != losses.sums.shape:  # a source has joined
            self._measured = losses
        else:
            self._measured = earlier + losses
        if step % self._every:
            return False
        # A host that has voted on a change waits for it here, so all decide with it or without.
        with self.run.changing:
            return self._decide(step)

    def _decide(self, step: int) -> bool:
        """Decides, unless it is the end; see :meth:`observe`."""
        assert self._measured is not None
        if not self._decided:  # sources may have joined or left since it was made
            self._begin(step)
        # the order of what joins later depends on the shares until then
        joins = any(one.step >= step and (one.add or one.caches) for one in self._config.amendments)
        if step == self._config.run_steps or joins:
            return False
        sums = np.asarray(self._measured.sums, np.float64)[self._columns]
        weights = np.asarray(self._measured.weights, np.float64)[self._columns]
        self._measured = None
        # a loss that is not a number measures nothing; the lock could not store it either
        drawn = [c for c, weight in enumerate(weights) if weight and np.isfinite(sums[c])]
        measured = {
            "sums": {self.names[column]: float(sums[column]) for column in drawn},
            "weights": {self.names[column]: float(weights[column]) for column in drawn},
        }
        state, wanted = self._update(step, measured)
        shares = self._bounds.applied(wanted, self._shares_at(step), self._largest_shares(step))
        fractions = dict(zip(self.names, exact_fractions(shares).tolist(), strict=True))
        in_mixture = self._mixture_at(step)
        dropped = {*fractions} - {*in_mixture.stages[in_mixture.stage_at(step)].blend.names}
        for name in dropped:  # by somebody else
            del fractions[name]
        # at this very step, of which the loader has planned more: whoever trains makes a new one
        self.run.reweigh(AmendmentConfig(step, weights=fractions, measured=measured))
        self._state = state
        self._decided = step
        return True

    def _follow(self, amendment: AmendmentConfig) -> None:
        """Brings the state of the rule to after a decision that the lock has."""
        self._state, _ = self._update(amendment.step, amendment.measured)
        self._decided = amendment.step

    def _update(
        self, step: int, measured: dict[str, dict[str, float]]
    ) -> tuple[State, Float64[np.ndarray, " d"]]:
        sums = np.array([measured["sums"].get(name, 0.0) for name in self.names])
        weights = np.array([measured["weights"].get(name, 0.0) for name in self.names])
        losses = np.where(weights > 0, sums / np.where(weights > 0, weights, 1.0), np.nan)
        shares_before = self._shares_at(step - 1)
        return self._rule.update(self._state, shares_before, Measured(step, losses, weights))

    def _mixture_at(self, step: int) -> MixtureDataset:
        mixture = mixture_of(self._planned.at_step(step)[0])
        assert mixture is not None
        return mixture

    def _shares_at(self, step: int) -> Float64[np.ndarray, " d"]:
        return self._mixture_at(step).weights_at(np.array([step]))[0, self._columns]

    def _largest_shares(self, step: int) -> Float64[np.ndarray, " d"]:
        """Greatest share of each source with which the rest of the run stays within its passes."""
        steps = self._config.run_steps
        if self._passes is None or steps is None:
            return np.ones(len(self.names))
        at = sources_at(self._planned, step)
        drawn = np.array([at[name].rows for name in self.names])
        rest = self._rows_before(steps) - self._rows_before(step)
        return np.clip((self._passes - drawn) / rest, 0, 1)
