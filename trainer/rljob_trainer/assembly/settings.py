"""What a manifest says to each part of a run, in the part's own words. Pure: nothing is opened or started here."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rljob_api.algorithms import KNOWN
from rljob_api.sections import Device, KlTarget, Recompute, RouterPolicy, Spec
from rljob_api.sizing.batch import batch
from rljob_api.sizing.families import BY_MODEL_TYPE
from rljob_api.sizing.parallel_layout import parallel_layout
from rljob_api.sizing.topology import sizes
from rljob_trainer.algorithms import factory
from rljob_trainer.algorithms.algorithm import Algorithm
from rljob_trainer.algorithms.errors import AlgorithmError
from rljob_trainer.cadence import Cadence, Updates
from rljob_trainer.conversations import factory as conversations
from rljob_trainer.data.prompt_scheduler import Lead
from rljob_trainer.engines.command import NCCL, cuda_debugging
from rljob_trainer.engines.pool import PoolSettings
from rljob_trainer.engines.router import RouterSettings
from rljob_trainer.learners.config import CriticSettings, LearnerConfig, LossSettings
from rljob_trainer.processes.kernel_archive import archive_of
from rljob_trainer.rundir.rollout_files import Made
from rljob_trainer.sync.layout import Sharding

SLOWEST_BYTES_PER_S = 0.5e9
"""of the weights in a publication: a transport that is slower is not waited for"""


def made_by(spec: Spec, model: str, questions: str) -> Made:
    """Return what decides the samples of a run; `model` and `questions` are fingerprints."""
    rollout = spec.rollout
    return {
        "spec.model.checkpoint, by its fingerprint,": model,
        "spec.data, spec.seed and the tokenizer, by their fingerprint,": questions,
        "spec.reward": spec.reward.model_dump(mode="json", by_alias=True),
        "spec.rollout.promptsPerStep": rollout.prompts_per_step,
        "spec.rollout.samplesPerPrompt": rollout.samples_per_prompt,
        "spec.rollout.sampling": rollout.sampling.model_dump(mode="json", by_alias=True),
        **conversations.made_by(rollout),
        # None equals absent, for dumps of older versions
        "spec.rollout.quantization": rollout.quantization,
        "spec.rollout.async": spec.ahead.model_dump(mode="json", by_alias=True) if spec.ahead else None,
    }


def sharding(spec: Spec, hf_config: Any) -> Sharding:
    """Return how engines split the model."""
    return Sharding(
        ranks=spec.rollout.gpus_per_engine,
        key_value_heads=hf_config.num_key_value_heads,
        tied_embeddings=hf_config.tie_word_embeddings,
        whole_embedding=BY_MODEL_TYPE[hf_config.model_type].whole_embedding,
    )


def lead(spec: Spec) -> Lead:
    """Return how far rollouts may be ahead of training."""
    if spec.ahead is None:
        return Lead(spec.training.steps)
    return Lead(spec.training.steps, spec.ahead.max_staleness, spec.ahead.update_interval)


def first_round(spec: Spec) -> int:
    """Return how many prompts a step asks at first."""
    dynamic, groups = spec.algorithm.dynamic_sampling, spec.rollout.prompts_per_step
    return dynamic.prompts(groups) if dynamic else groups


def cadence(spec: Spec) -> Cadence:
    """Return what is due after which step."""
    return Cadence(spec.training.steps, spec.checkpoint.interval, spec.evaluation.interval)


def updates(spec: Spec) -> Updates:
    """Return when engines get new weights."""
    interval = spec.ahead.update_interval if spec.ahead else 1
    return Updates(interval, cadence(spec), evaluates=spec.data.held_out is not None)


def chosen_algorithm(spec: Spec) -> Algorithm:
    """Return the manifest's algorithm, tried once; raise AlgorithmError if it does not work, before anything starts."""
    # Not at the top: it takes torch, which takes seconds.
    from rljob_trainer.learners.objectives import objective
    from rljob_trainer.learners.objectives.trial import tried

    chosen = factory.algorithm(spec.algorithm)
    try:
        tried(objective.load(chosen.objective), loss_settings(spec, chosen))
    except ValueError as error:
        raise AlgorithmError(f"algorithm.name {spec.algorithm.name}: objective {chosen.objective}: {error}") from error
    if spec.algorithm.name not in KNOWN:  # ours are tested
        factory.tried(chosen, spec.rollout.samples_per_prompt)
    return chosen


RECOMPUTE: Mapping[Recompute, dict[str, Any]] = {
    Recompute.NONE: {},
    Recompute.FULL: {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1},
}
"""the fields of Megatron's TransformerConfig"""


def learner_config(
    spec: Spec, algorithm: Algorithm, model: Path, num_threads: int, directory: Path, teacher: Path | None = None
) -> LearnerConfig:
    """Return what the manifest says about the learner of a run in this directory."""
    return LearnerConfig(
        checkpoint_dir=model,
        optimizer=spec.training.optimizer,
        total_steps=spec.policy_rollouts * batch(spec).steps_per_rollout,
        critic=critic_settings(spec),
        loss=loss_settings(spec, algorithm),
        reference=spec.algorithm.kl is not None,
        teacher_dir=teacher,
        layout=parallel_layout(spec.training),
        experts=spec.training.experts,
        precision=spec.training.precision.value,
        device="cpu" if spec.runtime.device is Device.CPU else "cuda",
        seed=spec.seed,
        num_threads=num_threads,
        leaves=spec.learner_leaves,
        longest_outage_s=spec.recovery.outage_seconds,
        kernels=archive_of(directory, spec.runtime.device),
        megatron_args=RECOMPUTE[spec.training.recompute] | spec.extra_args.megatron,
    )


def critic_settings(spec: Spec) -> CriticSettings | None:
    """Return what the manifest says about the critic: its optimizer is the policy's with another rate and limit."""
    critic, policy = spec.algorithm.critic, spec.training.optimizer
    if critic is None:
        return None
    changes = {
        "learning_rate": critic.learning_rate,
        "min_learning_rate": policy.min_learning_rate * critic.learning_rate / policy.learning_rate,
        "clip_grad": critic.clip_grad,
    }
    total_steps = spec.training.steps * batch(spec).steps_per_rollout
    return CriticSettings(policy.model_copy(update=changes), total_steps, critic.value_clip)


def loss_settings(spec: Spec, algorithm: Algorithm) -> LossSettings:
    """Return what the manifest says about the loss."""
    given, kl, importance = spec.algorithm, spec.algorithm.kl, spec.algorithm.importance_sampling
    return LossSettings(
        objective=algorithm.objective,
        clip_low=given.clip_low,
        clip_high=given.clip_high,
        dual_clip=given.dual_clip,
        old="engines" if spec.ahead is not None and importance is None else "learner",
        importance=importance,
        entropy_coefficient=given.entropy_coefficient,
        kl=kl if kl and kl.added_to is KlTarget.LOSS else None,
        temperature=spec.rollout.sampling.temperature,
        sampled=not spec.is_sft,
    )


def learner_environment(spec: Spec, directory: Path) -> dict[str, Any]:
    """Return Ray's option with the environment of the learner: the engines' NCCL settings, as they must agree.

    `directory` is the run's.
    """
    if spec.runtime.device is not Device.GPU:
        return {}
    return {"runtime_env": {"env_vars": NCCL | cuda_debugging(spec, directory)}}


def patience_s(spec: Spec) -> float:
    """Return the longest time without an answer of any engine [s]: for two answers and a restart between them."""
    return 2 * spec.rollout.longest_request_s + spec.recovery.start_timeout_seconds


def router_settings(spec: Spec) -> RouterSettings:
    """Return what the manifest says about the router."""
    return RouterSettings(
        policy=spec.rollout.router_policy,
        request_timeout_s=spec.rollout.longest_request_s,
        health_interval_s=spec.recovery.health_interval_seconds,
        health_timeout_s=spec.recovery.health_timeout_seconds,
        keeps_sessions=spec.rollout.agent is not None and spec.rollout.router_policy is RouterPolicy.CACHE_AWARE,
    )


def publication_s(spec: Spec, model: Path) -> float:
    """Return how long a publication of a model with these files may take: it grows with their bytes [s]."""
    num_bytes = sum(path.stat().st_size for path in model.glob("*.safetensors"))
    return spec.weight_sync.timeout_seconds + num_bytes / SLOWEST_BYTES_PER_S


def pool_settings(spec: Spec) -> PoolSettings:
    """Return what the manifest says about watching engines."""
    return PoolSettings(
        probe_failures=spec.recovery.health_failures,
        probe_interval_s=spec.recovery.health_interval_seconds,
        probe_timeout_s=spec.recovery.health_timeout_seconds,
        start_timeout_s=spec.recovery.start_timeout_seconds,
        engines_per_node=sizes(spec).engines_per_node,
    )
