"""An RLJob as flags of slime: the way back from `slime.py`, by the same table, and what has no flag."""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rljob_api.errors import shown
from rljob_api.facts import named
from rljob_api.sections import BalanceOver, Placement, RLJob, Spec
from rljob_importing.mapping import Field, plain
from rljob_importing.slime_flags import DEFAULTS, ESTIMATORS, FLAGS, RL_DEFAULTS

ALWAYS = ("data.labelKey", "training.maxTokensPerGpu", *DEFAULTS, *RL_DEFAULTS)
"""fields whose value is written also where the manifest leaves them out, because slime's default is another one"""
REWARDS = {"Math": "math", "F1": "f1", "Remote": "remote_rm"}
MIXED = "slime.rollout.filter_hub.dynamic_sampling_filters.check_reward_nonzero_std"
SFT_ROLLOUT = "slime.rollout.sft_rollout.generate_rollout"
BESIDES = "slime also needs the MODEL_ARGS of its scripts/models, and --ref-load with the converted checkpoint."
Flag = tuple[str, ...]
"""a flag without dashes in front, and its values"""


@dataclass(slots=True)
class Exported:
    """A job in slime's flags."""

    program: str
    flags: list[Flag] = field(default_factory=list)
    without_flag: dict[str, object] = field(default_factory=dict)
    """values that are not the default and have no flag, by the path of the field"""


@dataclass(slots=True)
class Export:
    """The export while it is made."""

    spec: Spec
    values: dict[str, Any]
    """all values, by the path of the field"""
    left: dict[str, Any]
    """values that are not the default and not exported yet"""
    flags: list[Flag] = field(default_factory=list)

    def add(self, flag: str, *words: object) -> None:
        self.flags.append((flag, *map(plain, words)))

    def done(self, *paths: str) -> None:
        """Take fields, with all below them, off the list of what is left."""
        for path in [each for each in self.left if any(each == p or each.startswith(f"{p}.") for p in paths)]:
            del self.left[path]

    def done_if(self, path: str, flag: str, *words: object) -> None:
        """Write a field that is not the default."""
        if path in self.left:
            self.add(flag, *(words or (self.left[path],)))
            self.done(path)


def exported(job: RLJob) -> Exported:
    """Return the flags of a job, in the order of the table, and its fields that have none."""
    spec = job.spec
    export = Export(spec, _leaves(_dump(spec)), _leaves(_dump(spec, exclude_defaults=True)))
    _placement(export)
    _single_fields(export)
    _data(export)
    _reward(export)
    _algorithm(export)
    _corrections(export)
    _critic(export)
    _balance(export)
    _asynchronous(export)
    _passed_through(export)
    _tracking(export)
    program = "train_async.py" if spec.rollout.asynchronous else "train.py"
    return Exported(program, export.flags, export.left)


def text(job: RLJob, source: str) -> str:
    """Return the command with its flags, and comments about what has no flag."""
    found = exported(job)
    lines = [f"# {one_line(source)} as flags of slime. {BESIDES}"]
    if found.without_flag:
        lines += [
            "# No flag:",
            *(f"#   spec.{one_line(path)}: {shown(value)}" for path, value in found.without_flag.items()),
        ]
    words = [f"--{flag} {shlex.join(values)}".rstrip() for flag, *values in found.flags]
    return "\n".join([*lines, " \\\n   ".join([f"python3 {found.program}", *words])]) + "\n"


def one_line(text: str) -> str:
    """Return a text without ends of lines: what follows one would be a command and not a comment."""
    return " ".join(text.split())


def _dump(spec: Spec, *, exclude_defaults: bool = False) -> dict[str, Any]:
    return spec.model_dump(mode="json", by_alias=True, exclude_defaults=exclude_defaults)


def _leaves(values: Mapping[str, Any], above: str = "") -> dict[str, Any]:
    """Return all values that are no sections, by their path."""
    found: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, dict) and value:
            found |= _leaves(value, f"{above}{name}.")
        else:
            found[f"{above}{name}"] = value
    return found


def _placement(export: Export) -> None:
    spec = export.spec
    export.done("placement", "rollout.engines", "rollout.gpusPerEngine")
    if spec.is_sft:
        return
    if spec.placement is Placement.COLOCATED:
        export.add("colocate")
    export.add("rollout-num-gpus", spec.rollout.engines * spec.rollout.gpus_per_engine)
    export.add("rollout-num-gpus-per-engine", spec.rollout.gpus_per_engine)
    if spec.rollout.gpus_per_engine > 1:
        export.add("num-gpus-per-node", max(spec.rollout.gpus_per_engine, spec.training.gpus_per_node))


def _single_fields(export: Export) -> None:
    """Write what is one flag in the table; a field with several flags has the first of them."""
    export.add("use-dynamic-batch-size")
    seen: set[str] = set()
    for flag, entry in FLAGS.items():
        if not isinstance(entry, Field) or entry.path in seen:
            continue
        wanted = entry.path in export.left or (entry.path in ALWAYS and not _sampled_only(export, entry.path))
        value = export.values.get(entry.path)
        words = entry.conversion.write(value) if wanted and value is not None else None
        if words is not None:
            export.add(flag, *words)
            export.done(entry.path)
            seen.add(entry.path)
        elif wanted and value in (False, "Sample", "Group"):
            export.done(entry.path)  # without the flag slime does so


def _sampled_only(export: Export, path: str) -> bool:
    return export.spec.is_sft and path in RL_DEFAULTS


def _data(export: Export) -> None:
    data = export.spec.data
    if path := _path_of(export, "data.train"):
        export.add("prompt-data", path)
    held_out = _path_of(export, "data.heldOut") if data.held_out else None
    if held_out is None:
        return
    names = ["heldOut", held_out]
    sets = export.left.get("data.evaluationSets", [])
    if all(set(each) <= {"name", "jsonl", "parquet", "limit"} for each in sets):
        names += [word for each in sets for word in (each["name"], _sliced(each))]
        export.done("data.evaluationSets")
    export.add("eval-prompt-data", *names)
    if "evaluation.interval" not in {getattr(FLAGS[flag], "path", "") for flag, *_ in export.flags if flag in FLAGS}:
        export.add("eval-interval", export.values["evaluation.interval"])


def _path_of(export: Export, source: str) -> str | None:
    values = {name: export.values.get(f"{source}.{name}") for name in ("jsonl", "parquet", "limit")}
    if not (values["jsonl"] or values["parquet"]):
        return None
    export.done(*(f"{source}.{name}" for name in values))
    return _sliced(values)


def _sliced(source: Mapping[str, Any]) -> str:
    path = source.get("jsonl") or source.get("parquet")
    return f"{path}@[0:{source['limit']}]" if source.get("limit") else str(path)


def _reward(export: Export) -> None:
    kind = export.values.get("reward.kind")
    if kind == "Python":
        export.add("custom-rm-path", str(export.values["reward.function"]).replace(":", "."))
        export.done("reward.kind", "reward.function")
    elif kind in REWARDS:
        export.add("rm-type", REWARDS[kind])
        export.done("reward.kind")
        export.done_if("reward.remote.answerKey", "reward-key")


def _algorithm(export: Export) -> None:
    name = export.spec.algorithm.name
    flags = {ours: theirs for theirs, ours in ESTIMATORS.items()}
    if export.spec.is_sft:
        export.add("loss-type", "sft_loss")
        export.add("rollout-function-path", SFT_ROLLOUT)
        export.add("disable-compute-advantages-and-returns")
        export.add("debug-train-only")
        export.done("algorithm.name")
        return
    if name == "distillation":
        export.add("use-opd")
        export.done("algorithm.name")
    elif name in flags:
        export.add("advantage-estimator", flags[name])
        export.done("algorithm.name")
    export.add("eps-clip", export.spec.algorithm.clip_low)
    export.add("eps-clip-high", export.spec.algorithm.clip_high)
    export.done("algorithm.clipLow", "algorithm.clipHigh")


def _corrections(export: Export) -> None:
    """The penalty, importance sampling and dynamic sampling."""
    kl, weights, dynamic = (
        export.spec.algorithm.kl,
        export.spec.algorithm.importance_sampling,
        export.spec.algorithm.dynamic_sampling,
    )
    if kl is not None:
        in_loss = kl.added_to == "Loss"
        for words in (
            (("use-kl-loss",), ("kl-loss-coef", kl.coefficient)) if in_loss else (("kl-coef", kl.coefficient),)
        ):
            export.add(str(words[0]), *words[1:])
        export.add("kl-loss-type", "low_var_kl" if kl.estimator == "k3" and kl.clamp else kl.estimator)
        export.done("algorithm.kl")
    if weights is not None and (weights.kind, weights.level) == ("Truncate", "Token"):
        export.add("use-tis")
        export.add("tis-clip", weights.high)
        export.add("tis-clip-low", weights.low)
        export.done("algorithm.importanceSampling")
    if dynamic is not None:
        export.add("dynamic-sampling-filter-path", MIXED)
        export.add("over-sampling-batch-size", dynamic.prompts(export.spec.rollout.prompts_per_step))
        export.done("algorithm.dynamicSampling.overSample")
        if not dynamic.model_dump(exclude_defaults=True):
            export.done("algorithm.dynamicSampling")


def _balance(export: Export) -> None:
    """What keeps experts balanced: a loss and its kind, or biases."""
    experts = export.spec.training.experts
    if experts.balance_loss:
        kind = "seq_aux_loss" if experts.balance_over is BalanceOver.SEQUENCE else "global_aux_loss"
        export.add("moe-aux-loss-coeff", experts.balance_loss)
        export.add("moe-router-load-balancing-type", kind)
        export.done("training.experts.balanceLoss", "training.experts.balanceOver")
    if experts.bias_update_rate:
        export.add("moe-router-enable-expert-bias")
        export.add("moe-router-bias-update-rate", experts.bias_update_rate)
        export.done("training.experts.biasUpdateRate")


def _critic(export: Export) -> None:
    for path, flag in (
        ("gamma", "gamma"),
        ("lambda", "lambd"),
        ("valueClip", "value-clip"),
        ("warmupSteps", "num-critic-only-steps"),
    ):
        export.done_if(f"algorithm.critic.{path}", flag)


def _asynchronous(export: Export) -> None:
    ahead = export.spec.rollout.asynchronous
    if ahead is None:
        return
    export.done("rollout.async")
    export.add("update-weights-interval", ahead.update_interval)
    if ahead.partial:
        export.add("partial-rollout")
        export.add("max-weight-staleness", ahead.max_staleness)


def _passed_through(export: Export) -> None:
    for name, path in named(Spec, "sglang").items():
        export.done_if(path, f"sglang-{name}")
    for name, value in export.spec.extra_args.sglang.items():
        if value is False or isinstance(value, dict):
            continue
        words: Sequence[object] = () if value is True else value if isinstance(value, list) else (value,)
        export.add(f"sglang-{name}", *words)
        export.done(f"extraArgs.sglang.{name}")


def _tracking(export: Export) -> None:
    wandb = export.spec.tracking.wandb
    if wandb is None:
        return
    export.add("use-wandb")
    for name, flag in (("project", "wandb-project"), ("entity", "wandb-team"), ("group", "wandb-group")):
        export.done_if(f"tracking.wandb.{name}", flag)
    if wandb.mode:
        export.add("wandb-mode", wandb.mode.lower())
        export.done("tracking.wandb.mode")
