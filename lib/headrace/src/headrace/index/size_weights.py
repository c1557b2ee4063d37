"""Weights that follow from the sizes of the sources, as configs write them: ``weights: {temperature: 2}``,
``weights: {unimax: 4}``.

``temperature: t`` gives each source a weight of ``size ** (1 / t)``: 1 is proportional to size, larger values come
closer to equal shares. ``unimax: e`` gives shares as equal as they can be while no source is seen more than ``e`` times
in the whole run, so it must know the tokens of the run: ``unimax: {max_epochs: 4, tokens: 1e10}``, or ``num_steps``.

Sizes are the tokens of rows that can be trained on: without what is held out, filtered, or fills no row. Weights are
rounded to 9 digits, because powers differ in the last bit from machine to machine and the weights are part of the
run's manifest.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Any, cast

from headrace.errors import ConfigError, did_you_mean
from headrace.index.blend import temperature_weights, unimax_weights

RULES = ("temperature", "unimax")


def is_size_rule(weights: Mapping[str, Any], names: Collection[str]) -> bool:
    """Whether weights are a rule and no blend. A component of that name makes it a blend.

    Example:
        >>> is_size_rule({"temperature": 2}, ["web"]), is_size_rule({"web": 2}, ["web"])
        (True, False)
    """
    return len(weights) == 1 and next(iter(weights)) in RULES and next(iter(weights)) not in names


def refuse_size_rules(weights: Mapping[str, Any], names: Collection[str], path: str, *, itself: bool = False) -> None:
    """Raises ConfigError where a group of a blend is a rule (or, if asked, ``weights`` themselves are one)."""
    if itself and is_size_rule(weights, names):
        raise ConfigError(
            "is a rule for all sources, and stands at the top of weights only",
            field=path,
            value=dict(weights),
            cure=f"Write weights: {dict(weights)} for all sources, or name: weight lines here.",
        )
    for name, value in weights.items():
        blend: object = cast("Mapping[str, Any]", value).get("blend") if isinstance(value, Mapping) else None
        if isinstance(blend, Mapping):
            refuse_size_rules(cast("Mapping[str, Any]", blend), names, f"{path}.{name}.blend", itself=True)


def weights_of_sizes(
    rule: Mapping[str, Any],
    sizes: Mapping[str, int],
    run_tokens: int | None = None,
    path: str = "weights",
    budget: str = "num_steps",
) -> dict[str, float]:
    """The weights that a rule stands for.

    Args:
        rule: ``{"temperature": t}``, ``{"unimax": max_epochs}`` or ``{"unimax": {"max_epochs": e, "tokens": n}}``.
        sizes: Tokens of each source.
        run_tokens: Tokens of the whole run, if known.
        path: Where the rule stands in the config, for errors.
        budget: The field that ``run_tokens`` follow from, for errors.

    Returns:
        Weights that sum to 1, up to rounding.

    Raises:
        ConfigError: a value is not usable, or sources do not hold the run.

    Example:
        >>> weights_of_sizes({"temperature": 2}, {"big": 400, "small": 100})
        {'big': 0.666666667, 'small': 0.333333333}
        >>> weights_of_sizes({"unimax": 2}, {"big": 400, "small": 100}, run_tokens=500)
        {'big': 0.6, 'small': 0.4}
    """
    kind, value = next(iter(rule.items()))
    here = f"{path}.{kind}"
    known = {name: float(size) for name, size in sizes.items()}
    if kind == "temperature":
        tau = _positive(value, here, "1 keeps the proportions of the sizes; larger values level them.")
        return _rounded(temperature_weights(known, tau))
    tokens: object = run_tokens
    epochs: object = value
    if isinstance(value, Mapping):
        given = cast("Mapping[str, Any]", value)
        for key in given:
            if key not in ("max_epochs", "tokens"):
                cure = did_you_mean(str(key), ("max_epochs", "tokens"))
                raise ConfigError("is not a field here", field=f"{here}.{key}", value=given[key], cure=cure)
        epochs, tokens = given.get("max_epochs"), given.get("tokens", run_tokens)
        budget = f"{here}.tokens" if "tokens" in given else budget
    if tokens is None:
        raise ConfigError(
            "needs to know how many tokens the run has",
            field=here,
            value=value,
            cure=f"Give {budget}, or write unimax: {{max_epochs: 4, tokens: 1e10}}.",
        )
    passes = f"{here}.max_epochs" if isinstance(value, Mapping) else here
    most = _positive(epochs, passes, "Passes over each source, e.g. 4.")
    wanted = _positive(tokens, f"{here}.tokens", "Tokens of the whole run.")
    whole = math.fsum(known.values())
    if whole > 0 and most * whole < wanted * (1 - 1e-9):
        least = math.ceil(wanted / whole * 1000) / 1000
        raise ConfigError(
            f"cannot be met: all sources, {most:g} times over, hold {most * whole:,.0f} tokens,"
            f" and the run has {wanted:,.0f}",
            field=passes,
            value=epochs,
            cure=f"Raise it to {least:.12g} or more, or lower {budget}.",
        )
    try:
        return _rounded(unimax_weights(known, wanted, most))
    except ConfigError as error:
        raise ConfigError(error.problem, field=here, value=value, cure=error.cure) from error


def _positive(value: object, path: str, cure: str) -> float:
    if isinstance(value, str):  # YAML 1.1 reads 1e10 as text
        try:
            value = float(value)
        except ValueError:
            raise ConfigError("is not a number", field=path, value=value, cure=cure) from None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        raise ConfigError("must be a number above 0", field=path, value=value, cure=cure)
    return float(value)


def _rounded(weights: Mapping[str, float]) -> dict[str, float]:
    return {name: float(f"{weight:.9g}") for name, weight in weights.items()}
