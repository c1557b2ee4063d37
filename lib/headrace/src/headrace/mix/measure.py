"""Counting tokens instead of rows in weights, budgets and sizes, if rows hold different numbers of
tokens.

Packed rows are not quite full, so the number of rows does not determine the number of tokens.
``unit: content_tokens`` counts the tokens of documents, and ``unit: trained_tokens`` the trained
labels; ``examples`` and ``tokens`` count rows, and tokens with padding. The guarantees of each part
of a mixture:

* **weights** (``quota``): shares of tokens, turned into shares of rows by the tokens of a row on
  average (:func:`~headrace.mix.shares.row_shares`). No state, any step at once; exact at the end of
  each epoch of a source. In between, the rows drawn so far hold more or less than the average: like
  a sample without replacement, by a standard deviation of ``s * sqrt(n * (1 - n / N))`` tokens
  after n of the N rows of an epoch, s being that of a row.
* **budgets** (``max_tokens``): the rows of a source are added up in its order, once, to the last
  row that fits.
* **stages** with a number of tokens: as many steps as needed, with the rows of all sources added up
  in their orders.

All of them depend only on the step.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from headrace.errors import ConfigError, IndexOutOfRangeError
from headrace.mix.plan import Plan, TokensInOrder
from headrace.mix.policy import MixingPolicy
from headrace.mix.schedule import MAX_STEP
from headrace.mix.stages import Stage


def time_stages(
    plan: Plan,
    lengths: Sequence[TokensInOrder],
    keep: Callable[[Plan, int, Callable[[], int]], int],
) -> Plan:
    """The plan with each stage at the first step before which the previous one had its tokens. It
    ends where those of the last planned stage are used up, unless it says where.

    Args:
        plan: First steps after a stage with tokens are ignored.
        lengths: Tokens of the examples of each component.
        keep: Called with a plan of the stages up to one with tokens, with these, and with a
            function that finds the step at which they are used up; returns that step, computed or
            saved.

    Raises:
        ConfigError: limits end the mixture before the tokens of a stage are used up; an amendment
            that begins before the last planned stage.
    """
    last = len(plan.stage_tokens) - 1
    timed = list(plan.stages[: last + 1])
    amendments = plan.stages[last + 1 :]
    end = None
    for number, tokens in enumerate(plan.stage_tokens):
        stage = timed[number]
        if number == last:
            for amendment in amendments:
                _check_after(amendment, stage)
        if tokens is None:
            continue
        open_ended = [*timed[:number], _between(stage, stage.first_step, None)]
        if number == last:
            open_ended = [
                *timed[:number],
                _between(stage, stage.first_step, _first(amendments)),
                *amendments,
            ]
        path = f"stages[{number}].tokens"
        of_stages = replace(plan, stages=open_ended)
        step_after = partial(_step_after, of_stages, stage.first_step, tokens, lengths, path)
        end = keep(of_stages, tokens, step_after)
        if number < last:
            timed[number] = _between(stage, stage.first_step, end)
            timed[number + 1] = _between(timed[number + 1], end, None)
            end = None
    timed[-1] = _between(timed[-1], timed[-1].first_step, _first(amendments))
    num_steps = end if plan.num_steps is None else plan.num_steps
    return replace(plan, stages=[*timed, *amendments], num_steps=num_steps)


def _first(stages: Sequence[Stage]) -> int | None:
    return stages[0].first_step if stages else None


def _between(stage: Stage, first: int, stop: int | None) -> Stage:
    """A stage that begins and ends at other steps."""
    return replace(stage, first_step=first, blend=stage.blend.used(first, stop))


def _check_after(amendment: Stage, stage: Stage) -> None:
    if amendment.first_step <= stage.first_step:
        raise ConfigError(
            f"is not after step {stage.first_step}, where the last stage begins",
            field=f"{amendment.blend.path.removesuffix('.weights')}.step",
            value=amendment.first_step,
            cure=f"Give {stage.first_step + 1} or more.",
        )


def tokens_before(policy: MixingPolicy, step: int, lengths: Sequence[TokensInOrder]) -> int:
    """Tokens of all examples of the steps before ``step``; raises IndexOutOfRangeError if the
    mixture ends before.
    """
    if policy.length is not None and policy.batch.rows_at(step)[0] > policy.length:
        raise IndexOutOfRangeError(
            f"the mixture ends after {policy.length} examples", field="step", value=step
        )
    return sum(
        tokens.count_first(n)
        for tokens, n in zip(lengths, policy.starts_at(step).tolist(), strict=True)
    )


def _step_after(
    plan: Plan,
    first: int,
    tokens: int,
    lengths: Sequence[TokensInOrder],
    path: str,
) -> int:
    """The first step by which this many tokens were drawn since step ``first``."""
    policy = plan.make(plan)
    begin = tokens_before(policy, first, lengths)

    def is_met(step: int) -> bool:
        try:
            return tokens_before(policy, step, lengths) - begin >= tokens
        except IndexOutOfRangeError:
            return True

    steps = 1
    while not is_met(first + steps):
        steps *= 2
        if first + steps > MAX_STEP:
            raise ConfigError(
                "takes more than 2**40 steps", field=path, value=tokens, cure="Give fewer tokens."
            )
    step = bisect.bisect_left(
        range(first + steps + 1), True, lo=first + steps // 2 + (steps > 1), key=is_met
    )
    try:
        tokens_before(policy, step, lengths)
    except IndexOutOfRangeError as error:
        most = tokens_before(policy, step - 1, lengths) - begin
        cure = "Raise max_epochs or max_tokens, or add a source."
        if most:
            cure = f"Lower it to {most} or less, or raise max_epochs or max_tokens."
        problem = f"cannot be met: limits end the mixture after {most} tokens"
        raise ConfigError(problem, field=path, value=tokens, cure=cure) from error
    return step
