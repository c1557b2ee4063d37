"""The best mixture by the results of a sweep, as RegMix finds it (arXiv 2407.01492): a regression
from shares to losses, and a search for the mixture with the least predicted loss.

The model is linear or of trees, both of scikit-learn. The linear one is a ridge regression on the
shares and the logarithms of the shares: the loss of a source falls ever more slowly with its share,
so the best mixture is inside the simplex, and not at a corner as with shares alone. Trees assume no
form, need more arms, and are coarse.

Only mixtures between the least and the greatest share that arms had of each source are searched:
outside of them nothing was measured. The proposal is the mean of the best mixtures, as single ones
overfit the model. Its uncertainty is that of a bootstrap: the arms are drawn again with
replacement, and everything is done anew.
"""

from __future__ import annotations

import csv
import importlib.util
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
from jaxtyping import Float64

from headrace.analysis.sweep import LOSS, SHARE
from headrace.errors import ConfigError, check_choice, install_command
from headrace.mix.bounds import bounded_shares
from headrace.order.seeds import derive
from headrace.store import files

Model: TypeAlias = Literal["linear", "trees"]
_Predict: TypeAlias = Callable[[np.ndarray], np.ndarray]
_ROUNDED = 1e-3
_LEAST_ARMS = 8
_FOLDS = 4
_ROUNDS = 8
_CANDIDATES = 512
_BEST = 16
_DECIMALS = 4


@dataclass(frozen=True)
class Results:
    """The filled-in lines of a sweep's table.

    Attributes:
        names: The sources.
        shares: Shares of each arm, ``[arms, sources]``.
        losses: Loss of each arm.
        unfilled: Lines without a loss.
    """

    names: Sequence[str]
    shares: Float64[np.ndarray, "arms sources"]
    losses: Float64[np.ndarray, " arms"]
    unfilled: int


@dataclass(frozen=True)
class Proposal:
    """A mixture that a fit proposes.

    Attributes:
        weights: Share of each source.
        spread: Its standard deviation over the bootstrap.
        loss: Loss that the model predicts for it.
        loss_spread: Standard deviation of this over the bootstrap.
        best_arm_loss: Least loss that an arm had.
        rank_correlation: Of the losses of arms and those predicted by models that did not see them:
            near 1, or the fit knows little.
    """

    weights: dict[str, float]
    spread: dict[str, float]
    loss: float
    loss_spread: float
    best_arm_loss: float
    rank_correlation: float

    def to_yaml(self) -> str:
        """The weights of a config, or of an amendment, with their uncertainty as comments.

        Example:
            >>> weights = {"web": 0.7, "code": 0.3}
            >>> print(Proposal(weights, {"web": 0.02, "code": 0.02}, 2.1, 0.01, 2.2, 0.9).to_yaml())
            weights:
              web: 0.7  # ± 0.02
              code: 0.3  # ± 0.02
        """
        import yaml

        lines = [
            f"  {yaml.safe_dump({name: weight}, allow_unicode=True, width=math.inf).rstrip()}"
            f"  # ± {self.spread[name]:.2g}"
            for name, weight in self.weights.items()
        ]
        return "\n".join(["weights:", *lines])


def read_results(path: str, loss: str = LOSS) -> Results:
    """Reads the table of a sweep.

    Args:
        path: The table, as ``headrace config sweep`` wrote it, with losses filled in.
        loss: Name of the column of losses.

    Raises:
        ConfigError: there is no such table or column; a value is no number; too few are filled in.
    """
    raw = files.read_bytes(path) if files.is_file(path) else None
    if raw is None:
        cure = "Name the results.csv in the folder of a sweep."
        raise ConfigError("is not a file", field="RESULTS", value=path, cure=cure)
    table = csv.DictReader(raw.decode(errors="replace").splitlines())
    columns = [name for name in table.fieldnames or () if name.startswith(SHARE)]
    if not columns:
        problem = f"has no column of shares, such as {SHARE}web"
        cure = "Name the results.csv in the folder of a sweep."
        raise ConfigError(problem, field="RESULTS", value=path, cure=cure)
    check_choice("--loss", loss, table.fieldnames or (), "is no column of the table")
    lines = list(table)
    filled = [line for line in lines if line[loss] and line[loss].strip()]
    if len(filled) < _LEAST_ARMS:
        problem = f"has {len(filled)} losses, and a fit needs {_LEAST_ARMS} or more"
        cure = f"Fill in the column {loss!r} of {_LEAST_ARMS} arms."
        raise ConfigError(problem, field="RESULTS", value=path, cure=cure)
    shares = [[_number(line, column) for column in columns] for line in filled]
    losses = [_number(line, loss) for line in filled]
    for line, row in zip(filled, shares, strict=True):
        if min(row) < 0 or abs(sum(row) - 1) > _ROUNDED:
            problem = f"are no shares that sum to 1, in the line of {next(iter(line.values()))}"
            cure = "Restore them from the arm's config, or leave the loss of the arm empty."
            raise ConfigError(problem, field=", ".join(columns), value=row, cure=cure)
    if len(set(losses)) == 1:
        cure = "Fill in the loss of each arm, on the same held-out rows."
        raise ConfigError("is the same in all arms", field=loss, value=losses[0], cure=cure)
    names = [column.removeprefix(SHARE) for column in columns]
    return Results(names, np.array(shares), np.array(losses), len(lines) - len(filled))


def _number(line: dict[str, Any], column: str) -> float:
    try:
        number = float(line[column])
    except (TypeError, ValueError):
        number = math.nan
    if not math.isfinite(number):
        cure = "Leave the loss of an arm that failed empty."
        problem = f"is not a number, in the line of {next(iter(line.values()))}"
        raise ConfigError(problem, field=column, value=line[column], cure=cure)
    return number


def fit_mixture(
    results: Results, model: Model = "linear", *, bootstraps: int = 32, seed: int = 0
) -> Proposal:
    """The mixture with the least predicted loss; see the module.

    Args:
        results: Of a sweep.
        model: ``linear`` or ``trees``.
        bootstraps: How often the arms are drawn again for the uncertainty.
        seed: Seed of the search, the trees and the bootstrap.

    Raises:
        ConfigError: scikit-learn is not installed.
    """
    check_choice("--model", model, get_args(Model))
    if importlib.util.find_spec("sklearn") is None:
        cure = install_command("headrace[sweep]")
        raise ConfigError("needs scikit-learn", field="--model", value=model, cure=cure)
    random = np.random.default_rng(derive(seed, "fit"))
    weights, loss = _best(results.shares, results.losses, model, random)
    proposed = [weights]
    losses: list[float] = []
    for _ in range(bootstraps):
        drawn = random.integers(len(results.losses), size=len(results.losses))
        again, loss_again = _best(results.shares[drawn], results.losses[drawn], model, random)
        proposed.append(again)
        losses.append(loss_again)
    spread = np.std(proposed[1:], axis=0)
    return Proposal(
        dict(zip(results.names, weights.round(_DECIMALS).tolist(), strict=True)),
        dict(zip(results.names, spread.tolist(), strict=True)),
        loss,
        float(np.std(losses)),
        float(results.losses.min()),
        _rank_correlation(results, model, random),
    )


def _best(
    shares: np.ndarray, losses: np.ndarray, model: Model, random: np.random.Generator
) -> tuple[np.ndarray, float]:
    """The mixture with the least predicted loss, and this loss.

    Each round perturbs the best mixtures so far, by a factor for each share that becomes smaller
    from round to round.
    """
    predict = _fitted(shares, losses, model, random)
    least = shares.min(axis=0)
    most = shares.max(axis=0)
    best = shares
    for number in range(_ROUNDS):
        parents = best[random.integers(len(best), size=_CANDIDATES)]
        factors = np.exp(random.normal(size=parents.shape) * 0.6**number)
        # a share of 0 would stay so by factors alone
        perturbed = np.maximum(parents, most * 1e-3) * factors
        candidates = np.concatenate([best, bounded_shares(perturbed, least, most)])
        predicted = predict(candidates)
        best = candidates[np.argsort(predicted, kind="stable")[:_BEST]]
    mean = best.mean(axis=0)
    return mean, float(predict(mean[None])[0])


def _fitted(
    shares: np.ndarray, losses: np.ndarray, model: Model, random: np.random.Generator
) -> _Predict:
    """A model of the losses of mixtures."""
    if model == "trees":
        from sklearn.ensemble import ExtraTreesRegressor

        trees: Any = ExtraTreesRegressor(
            200, min_samples_leaf=2, random_state=int(random.integers(1 << 31))
        )
        return trees.fit(shares, losses).predict
    from sklearn.linear_model import RidgeCV
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import FunctionTransformer, StandardScaler

    ridge: Any = make_pipeline(
        FunctionTransformer(_with_logarithms),
        StandardScaler(),
        RidgeCV(alphas=np.logspace(-6, 3, 28)),
    )
    return ridge.fit(shares, losses).predict


def _with_logarithms(shares: np.ndarray) -> np.ndarray:
    # a thirtieth of an even share is about none: below it, the logarithm hardly falls on
    logarithms = np.log(shares + 0.03 / shares.shape[1])
    return np.concatenate([shares, shares**2, logarithms], axis=1)


def _rank_correlation(results: Results, model: Model, random: np.random.Generator) -> float:
    """Of losses and predictions of models that were fitted without them."""
    fold = random.permutation(len(results.losses)) % _FOLDS
    predicted = np.empty_like(results.losses)
    for held_out in range(_FOLDS):
        training = fold != held_out
        predict = _fitted(results.shares[training], results.losses[training], model, random)
        predicted[~training] = predict(results.shares[~training])
    of_losses = np.argsort(np.argsort(results.losses))
    of_predicted = np.argsort(np.argsort(predicted))
    return float(np.corrcoef(of_losses, of_predicted)[0, 1])
