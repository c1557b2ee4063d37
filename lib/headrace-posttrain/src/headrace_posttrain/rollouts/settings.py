"""``RLSettings``: how rollouts are sampled, chosen and made into batches."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING, dataclass, fields
from typing import Literal, TypeAlias

import numpy as np
from jaxtyping import Float64

from headrace.batch.balance import Costs
from headrace.errors import (
    ConfigError,
    check_at_least,
    check_choice,
    check_not_negative,
    check_whole,
)
from headrace_posttrain.rollouts.advantages import (
    AdvantageSpec,
    Preset,
    Verdict,
    nonzero_std,
    resolve,
)
from headrace_posttrain.rollouts.prompt_order import PROMPT_ORDERS

RewardFilter: TypeAlias = Callable[[Float64[np.ndarray, " N"]], Verdict]
STRAGGLERS = ("wait", "keep", "abort")
STALE = ("resample", "mask")
_COUNTS = (
    "groups_per_batch",
    "max_attempts",
    "threads",
    "prompts_at_a_time",
    "seq_len",
    "multiple",
    "rows",
    "max_segments",
    "group_size",
    "vocab_size",
    "in_flight",
    "max_renewals",
    "ranks",
)


@dataclass(frozen=True)
class RLSettings:
    """How rollouts become batches.

    Attributes:
        seq_len: Tokens in a row.
        groups_per_batch: Groups that a step trains on.
        seed: Chooses the order of prompts.
        advantages: A preset (see :mod:`headrace_posttrain.rollouts.advantages`), or a spec.
        keep: Decides from a group's rewards whether it is trained on; None: every group is.
        max_attempts: This many groups left out in a row are an error; a tenth of them are named in
            the log.
        prompts_at_a_time: Prompts that are sampled at once if any is missing; surplus groups are
            kept for the next step (oversampling).
        threads: Threads that call the sampler, unless it runs in the background.
        max_staleness: Number of versions by which the policy may have advanced since a token was
            sampled; None: any.
        stale: What to do with a group that is too old: sample its prompt again (``resample``), or
            do not train on the tokens that are too old (``mask``).
        rows: Rows of a batch, see :func:`~headrace.batch.examples.pack_examples`.
        multiple: Without ``rows``, their number is a multiple of this.
        max_segments: Largest number of segments in a row; None: as many as there are. With
            ``rows``, all batches then have one shape.
        tokenizer: Names the tokenizer of prompts and completions, so that a store is not continued
            with another one; None: that of the prompts (``tokenizer`` of
            :class:`~headrace_posttrain.rollouts.groups.CachePrompts`), if they have one.
        vocab_size: A group with this id, or a higher one, is invalid; None: the size of the
            prompts' tokenizer, if they have one, else any id is valid.
        prompt_order: ``shuffled``: each pass in its own order; ``slime``: slime's order, with
            ``seed``; or ``listed``: the order of the list.
        group_size: Completions per group; another number is an error. None: any number.
        in_flight: Concurrent calls of the sampler, in the background during training; None: prompts
            are sampled only within
            :meth:`~headrace_posttrain.rollouts.dataset.RLDataset.next_batch`.
        stragglers: What a step does about slow prompts: wait for each (``wait``), so that steps use
            prompts in order; or use the first groups that are ready, while the others continue for
            later steps (``keep``), until they are too old (``abort``).
        retries: How often a failed call of the sampler is repeated.
        timeout_s: Seconds after which a call in the background has failed; None: it is only named
            in the log.
        hang_s: Seconds after which a call in the background is named in the log, and again when
            they have doubled. A step that for as long gets only groups that were sampled for it by
            too old a policy, more than ``max_renewals`` of them, ends with an error.
        max_renewals: How often a prompt is restarted because its rollout was too old, unless a step
            waits for it; then it is left out.
        ranks: Rows are distributed to this many ranks, in blocks of equal cost
            (:func:`~headrace.batch.balance.micro_batches`).
        costs: Costs of sequences by number of tokens, for ``ranks``, e.g.
            :meth:`TransformerCost.flops <headrace.batch.balance.TransformerCost.flops>`; None:
            their tokens.

    Raises:
        ConfigError: an invalid number or name.
    """

    seq_len: int
    groups_per_batch: int
    seed: int
    advantages: Preset | AdvantageSpec = "slime"
    keep: RewardFilter | None = nonzero_std
    max_attempts: int = 500
    prompts_at_a_time: int = 1
    threads: int = 1
    max_staleness: int | None = None
    stale: Literal["resample", "mask"] = "resample"
    rows: int | None = None
    multiple: int = 1
    max_segments: int | None = None
    tokenizer: str | None = None
    vocab_size: int | None = None
    prompt_order: str = "shuffled"
    group_size: int | None = None
    in_flight: int | None = None
    stragglers: Literal["wait", "keep", "abort"] = "wait"
    retries: int = 0
    timeout_s: float | None = None
    hang_s: float = 60.0
    max_renewals: int = 4
    ranks: int = 1
    costs: Costs = None

    def __post_init__(self) -> None:
        check_choice("prompt_order", self.prompt_order, PROMPT_ORDERS)
        default = {one.name: one.default for one in fields(self)}
        for name in (*_COUNTS, "max_staleness", "retries", "timeout_s", "hang_s"):
            value = getattr(self, name)
            if value is None and default[name] is not None:
                example = "" if default[name] is MISSING else f" E.g. {name}={default[name]}."
                raise ConfigError(
                    "must be a number", field=name, value=value, cure=f"Give one.{example}"
                )
            if name not in ("timeout_s", "hang_s"):
                check_whole(name, value)
            elif not isinstance(value, int | float | None):
                raise ConfigError(
                    "must be a number of seconds",
                    field=name,
                    value=value,
                    cure=f"E.g. {name}=60.0.",
                )
            check_at_least(name, value) if name in _COUNTS else check_not_negative(name, value)
        if self.stale not in STALE:
            raise ConfigError("must be 'resample' or 'mask'", field="stale", value=self.stale)
        check_choice("stragglers", self.stragglers, STRAGGLERS)
        resolve(self.advantages)
        if self.keep is not None and not callable(self.keep):
            cure = (
                "Give a function of a group's rewards, e.g."
                " headrace_posttrain.rollouts.advantages.nonzero_std."
            )
            raise ConfigError("is no function", field="keep", value=self.keep, cure=cure)
        if self.stragglers == "abort" and (self.max_staleness is None or self.in_flight is None):
            field = "max_staleness" if self.max_staleness is None else "in_flight"
            cure = (
                f"Set {field}, e.g."
                f" {field}={1 if self.max_staleness is None else self.groups_per_batch}."
            )
            raise ConfigError("is needed by stragglers='abort'", field=field, value=None, cure=cure)
        if self.rows is not None and self.rows % self.ranks:
            cure = f"Use {-(-self.rows // self.ranks) * self.ranks} rows."
            raise ConfigError(
                f"do not divide over {self.ranks} ranks", field="rows", value=self.rows, cure=cure
            )

    def oldest(self, policy_version: int, stale: str) -> int | None:
        """The oldest policy whose tokens are trained on, if older tokens are treated this way."""
        if self.stale != stale or self.max_staleness is None:
            return None
        return policy_version - self.max_staleness
