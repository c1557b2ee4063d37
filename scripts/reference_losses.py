r"""Write tests/golden/losses.json: losses and gradients as ``trl`` and ``tinker-cookbook`` compute
them.

Their own functions run, on random sequences, with stand-ins for models and for what collects from
ranks; sums are in float64. Nothing of the library is used, and it needs none of these packages:
they go into an environment of their own.

    uv venv /tmp/reference && uv pip install --python /tmp/reference/bin/python \
        trl==1.16.0 transformers accelerate datasets "torch==2.13.0+cpu"
    uv pip install --python /tmp/reference/bin/python --no-deps tinker-cookbook==0.6.1
    tinker==0.38.0 /tmp/reference/bin/python scripts/reference_losses.py
"""

from __future__ import annotations
import __future__

import ast
import asyncio
import inspect
import json
import math
import textwrap
from collections import defaultdict
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch  # pyright: ignore[reportMissingImports]
from torch.nn import functional  # pyright: ignore[reportMissingImports]
from trl.experimental.cpo import cpo_trainer  # pyright: ignore[reportMissingImports]
from trl.experimental.gkd import gkd_trainer  # pyright: ignore[reportMissingImports]
from trl.experimental.orpo import orpo_trainer  # pyright: ignore[reportMissingImports]
from trl.trainer import dpo_trainer, grpo_trainer, kto_trainer, rloo_trainer  # pyright: ignore[reportMissingImports]

OUTPUT = Path(__file__).resolve().parent.parent / "tests" / "golden" / "losses.json"
N = 6
T = 7
GROUP = 3
VOCABULARY = 9
RNG = np.random.default_rng(0)
CPU = SimpleNamespace(
    num_processes=1,
    process_index=0,
    sync_gradients=True,
    device="cpu",
    gather=lambda x: x,
    gather_for_metrics=lambda x: x,
    reduce=lambda x, reduction: x,
)


def single(values) -> torch.Tensor:
    """Numbers that float32 holds exactly, in float64."""
    return torch.tensor(np.asarray(values, np.float32).astype(np.float64))


def plain(tensor) -> list | float:
    return np.round(
        np.asarray(tensor.detach() if torch.is_tensor(tensor) else tensor, np.float64), 10
    ).tolist()


def make_rollouts() -> dict[str, torch.Tensor]:
    mask = torch.zeros(N, T)
    for row, length in zip(mask, RNG.integers(3, T + 1, N), strict=True):
        row[:length] = 1
        row[RNG.integers(0, length)] = 0  # what a tool said
    sampler = -RNG.exponential(1.0, (N, T))
    old = sampler + RNG.normal(0, 0.4, (N, T))
    return {
        "mask": mask.double(),
        "sampler": single(sampler),
        "old": single(old),
        "log_probs": single(old + RNG.normal(0, 0.5, (N, T))),
        "reference": single(old + RNG.normal(0, 0.5, (N, T))),
        "entropy": single(RNG.exponential(1.0, (N, T))),
        "advantages": single(RNG.normal(0, 1, N)),
        "token_advantages": single(RNG.normal(0, 1, (N, T))),
    }


def fragment(function, begin: str, end: str, scope: dict) -> None:
    """Runs the lines of a function from the one that begins so to the last before the one that
    begins with ``end``.
    """
    lines = inspect.getsource(function).splitlines()
    first = next(i for i, line in enumerate(lines) if line.strip().startswith(begin))
    last = next(i for i, line in enumerate(lines[first:], first) if line.strip().startswith(end))
    exec(compile(textwrap.dedent("\n".join(lines[first:last])), begin, "exec"), scope)


def grpo_loss(rollouts, *, correction=None, token_level=False, **settings):
    """Trl's loss of rollouts, with gradients for log probabilities and entropies,
    and what it logs.
    """
    log_probs = rollouts["log_probs"].clone().requires_grad_()
    entropy = rollouts["entropy"].clone().requires_grad_()
    args = SimpleNamespace(
        delta=settings.pop("delta", None),
        use_bias_correction_kl=settings.pop("use_bias_correction_kl", False),
        steps_per_generation=1,
    )
    entropy_coef = settings.pop("entropy_coef", 0.0)
    trainer = SimpleNamespace(
        **{
            "importance_sampling_level": "token",
            "beta": 0.0,
            "loss_type": "bnpo",
            "epsilon_low": 0.2,
            "epsilon_high": 0.2,
            "off_policy_mask_threshold": None,
            **settings,
        },
        args=args,
        aux_loss_enabled=False,
        top_entropy_quantile=1.0,
        accelerator=CPU,
        model=SimpleNamespace(training=True),
        current_gradient_accumulation_steps=1,
        max_completion_length=T,
        entropy_coef=entropy_coef,
        _entropy_bonus_enabled=bool(entropy_coef),
        use_adaptive_entropy=False,
        _metrics=defaultdict(lambda: defaultdict(list)),
        use_vllm=correction is not None,
        vllm_importance_sampling_correction=True,
        get_off_policy_mask=grpo_trainer.GRPOTrainer.get_off_policy_mask,
        _get_per_token_logps_and_entropies=lambda *_, **__: (log_probs, entropy, None),
    )
    mask = rollouts["mask"]
    inputs = {
        "prompt_ids": torch.zeros(N, 1),
        "prompt_mask": torch.ones(N, 1),
        "completion_ids": torch.zeros(N, T),
        "completion_mask": mask,
        "old_per_token_logps": rollouts["old"],
        "ref_per_token_logps": rollouts["reference"],
        "sampling_per_token_logps": rollouts["sampler"],
        "num_items_in_batch": mask.sum(),
        "advantages": rollouts["token_advantages" if token_level else "advantages"],
    }
    if correction is not None:
        mode, low, high = correction
        scope = {
            "self": SimpleNamespace(
                vllm_importance_sampling_mode=mode,
                vllm_importance_sampling_clip_min=low,
                vllm_importance_sampling_clip_max=high,
            ),
            "torch": torch,
            "math": math,
            "mask": mask,
            "old_per_token_logps": rollouts["old"],
            "sampling_per_token_logps": rollouts["sampler"],
        }
        function = grpo_trainer.GRPOTrainer._generate_and_score_completions
        fragment(function, "per_token_logps_diff = (old_per", "# Compute the per-token log", scope)
        inputs["importance_sampling_ratio"] = scope["vllm_importance_sampling_ratio"]
    loss = grpo_trainer.GRPOTrainer._compute_loss(trainer, None, inputs)
    loss.backward()
    logged = {name: values[-1] for name, values in trainer._metrics["train"].items()}
    of_entropy = None if entropy.grad is None else plain(entropy.grad)
    return {
        "loss": plain(loss),
        "gradient": plain(log_probs.grad),
        "entropy_gradient": of_entropy,
        "logged": logged,
    }


def policy_cases(rollouts) -> list[dict]:
    """Trl's settings beside those of ours that mean the same."""
    ppo = {"clip_low": 0.2, "clip_high": 0.2, "denominator": "tokens"}
    table = [
        ({"loss_type": "bnpo"}, ppo),
        ({"loss_type": "grpo"}, {**ppo, "denominator": "sequences"}),
        ({"loss_type": "dapo", "epsilon_high": 0.28}, {**ppo, "clip_high": 0.28}),
        ({"loss_type": "dr_grpo"}, {**ppo, "denominator": float(N * T)}),
        ({"loss_type": "luspo"}, {**ppo, "denominator": float(N)}),
        ({"token_level": True}, ppo),
        ({"delta": 1.5}, {**ppo, "dual_clip": 1.5}),
        (
            {
                "loss_type": "grpo",
                "importance_sampling_level": "sequence",
                "epsilon_low": 0.03,
                "epsilon_high": 0.04,
            },
            {"level": "sequence", "clip_low": 0.03, "clip_high": 0.04, "denominator": "sequences"},
        ),
        (
            {"loss_type": "cispo", "epsilon_high": 1.4},
            {"objective": "log_prob", "clip_low": None, "clip_high": 0.4},
        ),
        ({"beta": 0.3}, {**ppo, "kl_coef": 0.3}),
        (
            {"beta": 0.3, "use_bias_correction_kl": True, "loss_type": "grpo"},
            {**ppo, "kl_coef": 0.3, "kl_ratio": True, "denominator": "sequences"},
        ),
        ({"entropy_coef": 0.1}, {**ppo, "entropy_coef": 0.1}),
        ({"off_policy_mask_threshold": 0.05}, {**ppo, "max_sequence_kl": 0.05}),
    ]
    for mode, low, high in (
        ("token_truncate", None, 1.2),
        ("token_mask", 0.5, 1.2),
        ("sequence_truncate", 0.4, 1.5),
        ("sequence_mask", 0.4, 1.5),
    ):
        level, _, outside = mode.partition("_")
        correction = {
            "level": "token" if level == "token" else "product",
            "low": low or 0.0,
            "high": high,
            "outside": {"truncate": "clip"}.get(outside, outside),
        }
        table.append(
            (
                {"correction": (mode, low, high), "loss_type": "dapo"},
                {**ppo, "correction": correction},
            )
        )
    cases = [{"trl": trl, "ours": ours, **grpo_loss(rollouts, **dict(trl))} for trl, ours in table]
    return [*cases, rloo_case(rollouts)]


def rloo_case(rollouts) -> dict:
    """Trl's loss of RLOO: the ratio of whole answers."""
    log_probs = rollouts["log_probs"].clone().requires_grad_()
    mask = rollouts["mask"]
    trainer = SimpleNamespace(
        _get_per_token_logps_and_entropies=lambda *_, **__: (log_probs, rollouts["entropy"], None),
        aux_loss_enabled=False,
        epsilon_low=0.2,
        epsilon_high=0.2,
        accelerator=CPU,
        model=SimpleNamespace(training=True),
        _metrics=defaultdict(lambda: defaultdict(list)),
    )
    inputs = {
        "prompt_ids": torch.zeros(N, 1),
        "prompt_mask": torch.ones(N, 1),
        "completion_ids": torch.zeros(N, T),
        "completion_mask": mask,
        "old_logps": (rollouts["old"] * mask).sum(1),
        "advantages": rollouts["advantages"],
    }
    loss = rloo_trainer.RLOOTrainer._compute_loss(trainer, None, inputs)
    loss.backward()
    ours = {"level": "product", "clip_low": 0.2, "clip_high": 0.2, "denominator": "sequences"}
    return {
        "trl": {"loss_type": "rloo"},
        "ours": ours,
        "loss": plain(loss),
        "gradient": plain(log_probs.grad),
        "entropy_gradient": None,
        "logged": {},
    }


def advantage_cases() -> list[dict]:
    cases = []
    for rewards in ([1.0, 0.0, 0.5, 1.0, 1.0, 1.0], [0.25, -1.0, 3.0, 0.5, 0.0, 0.75]):
        for trainer, preset, settings in (
            (grpo_trainer.GRPOTrainer, "trl", {"scale_rewards": "group"}),
            (grpo_trainer.GRPOTrainer, "batch_std", {"scale_rewards": "batch"}),
            (grpo_trainer.GRPOTrainer, "dr_grpo", {"scale_rewards": "none"}),
            (rloo_trainer.RLOOTrainer, "rloo", {"normalize_advantages": False}),
            (
                rloo_trainer.RLOOTrainer,
                {"epsilon": 1e-4, "baseline": "leave_one_out", "scale": "batch"},
                {"normalize_advantages": True},
            ),
        ):
            scope = {
                "self": SimpleNamespace(
                    reward_weights=torch.ones(1),
                    multi_objective_aggregation="sum_then_normalize",
                    beta=0.0,
                    reward_clip_range=None,
                    **settings,
                ),
                "torch": torch,
                "mode": "train",
                "nanstd": grpo_trainer.nanstd,
                "device": "cpu",
                "num_generations": GROUP,
                "rewards_per_func": torch.tensor(rewards, dtype=torch.float64)[:, None],
            }
            function = trainer._generate_and_score_completions
            fragment(function, "unscorable_mask = torch.isnan", "# Slice to keep only", scope)
            cases.append(
                {"preset": preset, "rewards": rewards, "advantages": plain(scope["advantages"])}
            )
    return cases


def preference_cases(rollouts) -> list[dict]:
    """Pairs are rows 0 and 1, 2 and 3, 4 and 5."""
    mask = rollouts["mask"]
    reference = rollouts["reference"]
    sides = [0, 2, 4, 1, 3, 5]  # trl's order: all chosen ones, then all rejected ones
    cases = []

    def run(trl, ours, loss_of) -> None:
        log_probs = rollouts["log_probs"].clone().requires_grad_()
        loss = loss_of(log_probs)
        loss.backward()
        cases.append(
            {"trl": trl, "ours": ours, "loss": plain(loss), "gradient": plain(log_probs.grad)}
        )

    def dpo(log_probs, loss_type, smoothing):
        inputs = {
            "input_ids": torch.zeros(N, T + 1, dtype=torch.long),
            "attention_mask": torch.ones(N, T + 1),
            "completion_mask": torch.cat([torch.zeros(N, 1), mask], 1)[sides],
            "ref_chosen_logps": (reference * mask).sum(1)[sides[:3]],
            "ref_rejected_logps": (reference * mask).sum(1)[sides[3:]],
        }
        zeros = torch.zeros(N, T)
        outputs = SimpleNamespace(
            log_probs=(log_probs * mask)[sides],
            entropy=zeros,
            mean_logits=zeros,
            is_top1=zeros.bool(),
            log_sum_sq_probs=zeros,
        )
        trainer = SimpleNamespace(
            model=SimpleNamespace(training=True),
            accelerator=CPU,
            aux_loss_enabled=False,
            ld_alpha=None,
            precompute_ref_logps=True,
            f_divergence_type="reverse_kl",
            loss_types=[loss_type],
            loss_weights=[1.0],
            beta=0.3,
            label_smoothing=smoothing,
            use_weighting=False,
            _metrics=defaultdict(lambda: defaultdict(list)),
            _total_train_tokens=0,
            _tp_size=1,
        )
        return dpo_trainer.DPOTrainer._compute_loss(trainer, lambda **_: outputs, inputs, False)

    for loss_type, smoothing, ours in (
        ("sigmoid", 0.0, {}),
        ("robust", 0.1, {"link": "robust", "label_smoothing": 0.1}),
        ("hinge", 0.0, {"link": "hinge"}),
        ("ipo", 0.0, {"link": "square", "length_normalized": True}),
        ("sigmoid_norm", 0.0, {"length_normalized": True}),
    ):
        run(
            {"trainer": "dpo", "loss_type": loss_type, "label_smoothing": smoothing},
            {"beta": 0.3, **ours},
            lambda log_probs, loss_type=loss_type, smoothing=smoothing: dpo(
                log_probs, loss_type, smoothing
            ),
        )

    def scores(log_probs, average):
        sums = (log_probs * mask).sum(1)
        sums = sums / mask.sum(1) if average else sums
        return sums[0::2], sums[1::2]

    def nll(log_probs):
        return -(log_probs * mask)[0::2].sum() / mask[0::2].sum()

    for loss_type, smoothing, average, gamma, ours in (
        ("sigmoid", 0.0, False, 0.0, {"nll_coef": 1.0}),
        ("sigmoid", 0.1, False, 0.0, {"nll_coef": 1.0, "label_smoothing": 0.1}),
        ("hinge", 0.0, False, 0.0, {"nll_coef": 1.0, "link": "hinge"}),
        ("simpo", 0.0, True, 0.5, {"length_normalized": True, "target_margin": 0.5}),
        (
            "simpo",
            0.1,
            True,
            0.5,
            {"length_normalized": True, "target_margin": 0.5, "label_smoothing": 0.1},
        ),
    ):
        trainer = SimpleNamespace(
            alpha=0.0,
            beta=0.3,
            loss_type=loss_type,
            simpo_gamma=gamma,
            label_smoothing=smoothing,
            accelerator=CPU,
        )

        def cpo(log_probs, trainer=trainer, average=average, ours=ours):
            losses = cpo_trainer.CPOTrainer.cpo_loss(trainer, *scores(log_probs, average))[0]
            return losses.mean() + ours.get("nll_coef", 0.0) * nll(log_probs)

        run(
            {"trainer": "cpo", "loss_type": loss_type, "label_smoothing": smoothing},
            {"beta": 0.3, "reference": False, **ours},
            cpo,
        )

    def orpo(log_probs):
        odds = orpo_trainer.ORPOTrainer.odds_ratio_loss
        trainer = SimpleNamespace(beta=0.1, accelerator=CPU, aux_loss_enabled=False)
        trainer.concatenated_forward = lambda *_: (
            *scores(log_probs, True),
            torch.zeros(1),
            torch.zeros(1),
            nll(log_probs),
        )
        trainer.odds_ratio_loss = lambda chosen, rejected: odds(_Doubles(trainer), chosen, rejected)
        return orpo_trainer.ORPOTrainer.get_batch_loss_metrics(trainer, None, {})[0]

    run({"trainer": "orpo"}, "orpo", orpo)
    return cases


class _Doubles:
    """A trainer as it is; float() of float64 rounds to float32, which the gradient then shows to
    1e-7.
    """

    def __init__(self, trainer) -> None:
        self.beta = trainer.beta
        self.accelerator = trainer.accelerator


def kto_case(rollouts) -> dict:
    mask = rollouts["mask"]
    reference = rollouts["reference"]
    log_probs = rollouts["log_probs"].clone().requires_grad_()
    desirable = torch.tensor([True, False, True, True, False, False])
    mismatched = single([-2.0, -3.0, -1.0])
    of_reference = single([-2.5, -3.25, -2.0])
    zeros = torch.zeros(N, T)
    outputs = SimpleNamespace(log_probs=log_probs * mask, entropy=zeros, mean_logits=zeros)
    trainer = SimpleNamespace(
        model=SimpleNamespace(training=True),
        accelerator=CPU,
        aux_loss_enabled=False,
        precompute_ref_logps=True,
        calculate_KL=True,
        loss_type="kto",
        beta=0.3,
        desirable_weight=1.0,
        undesirable_weight=1.5,
        _metrics=defaultdict(lambda: defaultdict(list)),
        _total_train_tokens=0,
        _tp_size=1,
        _compute_kl_logps=lambda *_: mismatched,
    )
    inputs = {
        "label": desirable,
        "input_ids": torch.zeros(N, T + 1, dtype=torch.long),
        "attention_mask": torch.ones(N, T + 1),
        "completion_mask": torch.cat([torch.zeros(N, 1), mask], 1),
        "ref_logps": (reference * mask).sum(1),
        "ref_KL_logps": of_reference,
    }
    loss = kto_trainer.KTOTrainer._compute_loss(trainer, lambda **_: outputs, inputs, False)
    loss.backward()
    return {
        "desirable": desirable.tolist(),
        "beta": 0.3,
        "weights": [1.0, 1.5],
        "kl_sums": plain(mismatched - of_reference),
        "loss": plain(loss),
        "gradient": plain(log_probs.grad),
    }


def distillation_cases() -> dict:
    shape = (2, 5, VOCABULARY)
    teacher = single(RNG.normal(0, 1.5, shape))
    student = single(RNG.normal(0, 1.5, shape))
    mask = torch.tensor(RNG.integers(0, 2, shape[:2]).astype(bool))
    mask[:, 0] = True
    mask[:, -1] = False
    cases = []
    for beta, direction in ((0.0, "forward"), (1.0, "reverse")):
        logits = student.clone().requires_grad_()
        labels = torch.where(mask, 0, -100)
        loss = gkd_trainer.GKDTrainer.generalized_jsd_loss(logits, teacher, labels, beta=beta)
        loss.backward()
        cases.append({"direction": direction, "loss": plain(loss), "gradient": plain(logits.grad)})
    return {
        "teacher": plain(teacher),
        "student": plain(student),
        "mask": mask.int().tolist(),
        "cases": cases,
    }


def cookbook(module: str, *names: str, **scope):
    """Functions of tinker-cookbook by themselves: what their modules import besides
    is not needed.
    """
    package = Path(find_spec("tinker_cookbook").submodule_search_locations[0])
    tree = ast.parse((package / module).read_text())
    functions = [
        n
        for n in tree.body
        if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef) and n.name in names
    ]
    for function in functions:
        function.decorator_list = []
    code = compile(
        ast.Module(functions, []), module, "exec", flags=__future__.annotations.compiler_flag
    )
    scope |= {"torch": torch, "F": functional}
    exec(code, scope)
    return [scope[name] for name in names]


class _Values:
    """A tensor in a datum."""

    def __init__(self, tensor) -> None:
        self.tensor = tensor

    def to_torch(self):
        return self.tensor

    @classmethod
    def from_torch(cls, tensor):
        return cls(tensor)


def tinker_cases(rollouts) -> dict:
    """What the cookbook computes, and the losses that the service documents (tinker-docs, "Loss
    functions").
    """
    mask, sampler, reference = (rollouts[name] for name in ("mask", "sampler", "reference"))
    advantages = rollouts["token_advantages"] * mask

    def documented(name, loss_of, ours) -> dict:
        log_probs = rollouts["log_probs"].clone().requires_grad_()
        loss = loss_of(log_probs, torch.exp(log_probs - sampler))
        loss.backward()
        return {
            "name": name,
            "ours": {**ours, "denominator": 1.0},
            "loss": plain(loss),
            "gradient": plain(log_probs.grad),
        }

    def ppo(_, ratio):
        return -(torch.min(ratio * advantages, ratio.clamp(0.8, 1.2) * advantages)).sum()

    def dro(log_probs, _):
        return -((log_probs * advantages - 0.5 * 0.3 * (log_probs - sampler) ** 2) * mask).sum()

    losses = [
        documented(
            "importance_sampling",
            lambda _, ratio: -(ratio * advantages).sum(),
            {"clip_low": None, "clip_high": None},
        ),
        documented("ppo", ppo, {}),
        documented(
            "cispo",
            lambda p, ratio: -(ratio.clamp(0.8, 1.2).detach() * p * advantages).sum(),
            {"objective": "log_prob"},
        ),
        documented(
            "dro",
            dro,
            {
                "objective": "log_prob",
                "clip_low": 0.0,
                "clip_high": 0.0,
                "kl_coef": 0.3,
                "kl": "k2",
            },
        ),
    ]
    data = [
        SimpleNamespace(
            loss_fn_inputs={"logprobs": _Values(s), "mask": _Values(m), "advantages": _Values(a)}
        )
        for s, m, a in zip(sampler, mask, advantages, strict=True)
    ]
    (kl,) = cookbook(
        "rl/metrics.py", "compute_kl_sample_train", safezip=lambda *x: zip(*x, strict=True)
    )
    metrics = kl(data, list(rollouts["log_probs"]))

    async def score(*_):
        return [[None, *row.tolist()] for row in reference], None

    penalties = []
    for discount in (0.0, 0.9):
        scope = {
            "score_sequences": score,
            "_full_sequence_inputs": lambda data: data,
            "tinker": SimpleNamespace(TensorData=_Values),
            "safezip": lambda *x: zip(*x, strict=True),
        }
        penalize, _ = cookbook(
            "rl/metrics.py", "incorporate_kl_penalty", "discounted_future_sum_vectorized", **scope
        )
        # the cookbook makes float32 of the reference's; the first position, which it leaves out, is
        # no label
        before = [d.loss_fn_inputs["advantages"] for d in data]
        scores = [SimpleNamespace(loss_fn_inputs=dict(d.loss_fn_inputs)) for d in data]
        asyncio.run(penalize(scores, None, 0.3, discount))
        added = [
            d.loss_fn_inputs["advantages"].to_torch() - b.to_torch()
            for d, b in zip(scores, before, strict=True)
        ]
        penalties.append({"coef": 0.3, "discount": discount, "added": plain(torch.stack(added))})
    (dpo,) = cookbook("preference/train_dpo.py", "compute_dpo_loss")
    sums = [list((x * mask).sum(1)) for x in (rollouts["log_probs"], reference)]
    loss, logged = dpo(sums[0][0::2], sums[0][1::2], sums[1][0::2], sums[1][1::2], 0.3)
    (mean_nll,) = cookbook("supervised/common.py", "compute_mean_nll")
    weights = rollouts["token_advantages"].abs() * mask
    nll = mean_nll([_Values(x) for x in rollouts["log_probs"]], [_Values(w) for w in weights])
    return {
        "losses": losses,
        "kl_sample_train": metrics,
        "kl_penalties": penalties,
        "weighted_nll": nll,
        "dpo": {"beta": 0.3, "loss": plain(loss), "logged": logged},
    }


def main() -> None:
    torch.manual_seed(0)
    rollouts = make_rollouts()
    versions = {name: metadata.version(name) for name in ("trl", "tinker-cookbook", "torch")}
    golden = {
        "source": {**versions, "script": "scripts/reference_losses.py"},
        "rollouts": {name: plain(values) for name, values in rollouts.items()},
        "policy": policy_cases(rollouts),
        "advantages": {"group": GROUP, "cases": advantage_cases()},
        "preference": preference_cases(rollouts),
        "kto": kto_case(rollouts),
        "distillation": distillation_cases(),
        "tinker": tinker_cases(rollouts),
    }
    OUTPUT.write_text(json.dumps(golden, separators=(",", ":")) + "\n")
    print(f"{OUTPUT}: {OUTPUT.stat().st_size} bytes, {len(golden['policy'])} policy losses")


if __name__ == "__main__":
    main()
