"""What verl 0.9.1 makes of the random batches: writes `tests/support/trainer/verl_values.json`.

verl is an oracle and no dependency: its values are kept, and this script makes them again. It wants our environment and

    pip install --no-deps --target ELSEWHERE verl==0.9.1 omegaconf hydra-core antlr4-python3-runtime==4.9.3 \\
        tensordict codetiming pyvers
    PYTHONPATH=ELSEWHERE:crds:trainer:tests python -m support.trainer.verl_values

Of a matrix, two directions are kept: its sum, and its product with the batch's probe. Of a loss: its value, and its
gradient along the probe.
"""

import json
import sys
from collections.abc import Callable, Iterator

import numpy as np
import torch
from verl.trainer.config import AlgoConfig
from verl.trainer.ppo import core_algos, rollout_corr_helper
from verl.workers.config import ActorConfig

from support.trainer.algorithm_batches import FAR, LONGEST, NUM_BATCHES, Batch, batch, far

KL_COEFFICIENT = 0.1
GAMMA, LAMBDA, VALUE_CLIP = 0.97, 0.9, 0.2
AGGREGATIONS = {"token": "token-mean", "sample": "seq-mean-token-mean", "constant": "seq-mean-token-sum-norm"}
OBJECTIVES = {
    "clip": ("vanilla", 0.2, 0.28, 1e9),
    "dual": ("vanilla", 0.2, 0.28, 1.5),
    "gspo": ("gspo", 0.05, 0.08, 1e9),
    "cispo": ("cispo", 0.2, 0.28, 1e9),
}
"""ours -> verl's, clip ranges, dual clip"""
CORRECTIONS = {
    "truncate-token": ("token", 1.5),
    "mask-token": ("token", "0.6_1.5"),
    "truncate-sequence": ("sequence", 1.5),
    "mask-sequence": ("sequence", "0.4_1.5"),
}
Pair = tuple[float, float]


def values() -> Iterator[tuple[str, Callable[[Batch], Pair]]]:
    yield "grpo-group", lambda b: along(b, core_algos.compute_grpo_outcome_advantage(**grouped(b))[0])
    yield (
        "grpo-none",
        lambda b: along(b, core_algos.compute_grpo_outcome_advantage(**grouped(b), norm_adv_by_std_in_grpo=False)[0]),
    )
    yield "rloo", lambda b: along(b, core_algos.compute_rloo_outcome_advantage(**grouped(b))[0])
    yield "rloo-kl", lambda b: along(b, core_algos.compute_rloo_outcome_advantage(**grouped(b, kl=True))[0])
    yield "reinforcePlusPlus", lambda b: along(b, plus_plus(b, kl=False))
    yield "reinforcePlusPlus-kl", lambda b: along(b, plus_plus(b, kl=True))
    yield (
        "reinforcePlusPlusBaseline",
        lambda b: along(b, core_algos.compute_reinforce_plus_plus_baseline_outcome_advantage(**grouped(b))[0]),
    )
    yield "ppo", lambda b: along(b, generalized(b, kl=False)[0])
    yield "ppo-kl", lambda b: along(b, generalized(b, kl=True)[0])
    yield "ppo-returns", lambda b: along(b, generalized(b, kl=False)[1])
    yield "ppo-returns-kl", lambda b: along(b, generalized(b, kl=True)[1])
    for by in AGGREGATIONS:
        yield f"value-{by}", lambda b, by=by: value_loss(b, by)
    for name in OBJECTIVES:
        for by in AGGREGATIONS:
            yield f"{name}-{by}", lambda b, name=name, by=by: loss(b, name, by, None)
    for kind in CORRECTIONS:
        yield f"clip-token-{kind}", lambda b, kind=kind: loss(b, "clip", "token", kind)
    for estimator in ("k1", "k2", "k3"):
        yield estimator, lambda b, estimator=estimator: kl_loss(b, estimator)
    for times in FAR:
        yield f"k3-far-{times}", lambda b, times=times: kl_loss(far(b, times), "k3")


def grouped(b: Batch, kl: bool = False) -> dict[str, object]:
    rewards_D_T = token_rewards(b, kl)
    return {"token_level_rewards": rewards_D_T, "response_mask": b.mask_D_T, "index": np.array(b.groups_D)}


def token_rewards(b: Batch, kl: bool) -> torch.Tensor:
    rewards_D_T = torch.zeros_like(b.mask_D_T)
    for row, length in enumerate(b.lengths_D):
        rewards_D_T[row, length - 1] = b.rewards_D[row]
    penalty_D_T = core_algos.kl_penalty(b.old_D_T, b.reference_D_T, "k3") * b.mask_D_T
    return rewards_D_T - KL_COEFFICIENT * penalty_D_T if kl else rewards_D_T


def plus_plus(b: Batch, kl: bool) -> torch.Tensor:
    return core_algos.compute_reinforce_plus_plus_outcome_advantage(
        token_rewards(b, kl), b.mask_D_T, config=AlgoConfig(gamma=1.0)
    )[0]


def generalized(b: Batch, kl: bool) -> tuple[torch.Tensor, torch.Tensor]:
    advantages_D_T, returns_D_T = core_algos.compute_gae_advantage_return(
        token_rewards(b, kl) * b.mask_D_T, b.values_D_T, b.mask_D_T, gamma=GAMMA, lam=LAMBDA
    )
    return advantages_D_T * b.mask_D_T, returns_D_T * b.mask_D_T  # elsewhere it leaves what nobody reads


def value_loss(b: Batch, by: str) -> Pair:
    new = b.new_values_D_T.clone().requires_grad_()
    value, _ = core_algos.compute_value_loss(
        new, b.returns_D_T, b.values_D_T, b.mask_D_T, VALUE_CLIP, AGGREGATIONS[by], loss_scale_factor=LONGEST
    )
    return differentiated(b, value, new)


def loss(b: Batch, name: str, by: str, kind: str | None) -> Pair:
    theirs, low, high, most = OBJECTIVES[name]
    config = ActorConfig(
        strategy="fsdp", rollout_n=1, ppo_micro_batch_size_per_gpu=1,
        clip_ratio_low=low, clip_ratio_high=high, clip_ratio_c=most,
        global_batch_info={"loss_scale_factor": LONGEST},
    )  # fmt: skip
    weights = None if kind is None else corrected(b, *CORRECTIONS[kind])
    new = b.new_D_T.clone().requires_grad_()
    advantages_D_T = b.advantages_D[:, None].expand(b.mask_D_T.shape)
    value, _ = core_algos.get_policy_loss_fn(theirs)(
        old_log_prob=b.old_D_T,
        log_prob=new,
        advantages=advantages_D_T,
        response_mask=b.mask_D_T,
        loss_agg_mode=AGGREGATIONS[by],
        config=config,
        rollout_is_weights=weights,
    )
    return differentiated(b, value, new)


def corrected(b: Batch, level: str, threshold: float | str) -> torch.Tensor:
    weights_D_T, _ = rollout_corr_helper.compute_rollout_correction_weights(
        b.old_D_T - b.engine_D_T, b.mask_D_T, rollout_is=level, rollout_is_threshold=threshold
    )
    return weights_D_T


def kl_loss(b: Batch, estimator: str) -> Pair:
    new = b.new_D_T.clone().requires_grad_()
    kl_D_T = core_algos.kl_penalty(new, b.reference_D_T, estimator)
    return differentiated(b, core_algos.agg_loss(kl_D_T, b.mask_D_T, "token-mean"), new)


def differentiated(b: Batch, value: torch.Tensor, new: torch.Tensor) -> Pair:
    (gradient,) = torch.autograd.grad(value, new)
    return value.item(), (gradient * b.probe_D_T).sum().item()


def along(b: Batch, matrix_D_T: torch.Tensor) -> Pair:
    return matrix_D_T.sum().item(), (matrix_D_T * b.probe_D_T).sum().item()


if __name__ == "__main__":
    # Its metrics divide by zero where every token is masked.
    rollout_corr_helper.compute_is_metrics = lambda **_: {}
    lines = (
        f'"{name}":{json.dumps([[round(x, 10) for x in make(batch(seed))] for seed in range(NUM_BATCHES)])}'
        for name, make in values()
    )
    sys.stdout.write("{" + ",\n".join(line.replace(" ", "") for line in lines) + "}\n")
