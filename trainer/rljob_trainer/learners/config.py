"""What one rank of the learner needs to know: values only. `settings.py` makes it from the manifest."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from rljob_api.sections import Experts, ImportanceSampling, Kl, Optimizer
from rljob_api.sizing.parallel_layout import ParallelLayout
from rljob_trainer.algorithms.algorithm import CLIP

EntropyUse = Literal["none", "measured", "differentiated"]
Estimator = Literal["k1", "k2", "k3"]


@dataclass(frozen=True, slots=True)
class LossSettings:
    """The policy objective and what is added to it."""

    objective: str = CLIP
    """`module:object` of an `objectives.objective.Objective`"""
    clip_low: float = 0.2
    clip_high: float = 0.2
    dual_clip: float | None = None
    """largest ratio that counts where the advantage is negative; None: any"""
    old: Literal["learner", "engines"] = "learner"
    """whose log-probabilities the ratio is taken against: the learner's before the first update on the samples, or the
    engines', which may have had older weights"""
    importance: ImportanceSampling | None = None
    """None: what the engine sampled is taken for the learner's own"""
    entropy_coefficient: float = 0.0
    kl: Kl | None = None
    """None: no penalty in the loss"""
    temperature: float = 1.0
    """the sampling temperature: log-probabilities are taken at it, as the engine takes them"""
    sampled: bool = True
    """whether engines made the responses, and have said how likely they found them"""
    report_entropy: bool = True
    """measure the entropy also where no bonus needs it: one more pass over the logits of the response tokens"""

    @property
    def entropy(self) -> EntropyUse:
        """What the entropy is needed for."""
        if self.entropy_coefficient:
            return "differentiated"
        return "measured" if self.report_entropy else "none"


@dataclass(frozen=True, slots=True)
class CriticSettings:
    """The value model beside the policy."""

    optimizer: Optimizer
    total_steps: int
    """optimizer steps of the whole run; the schedule ends with them"""
    value_clip: float = 0.2
    """how far a value may move from the old one until its loss is bounded"""


@dataclass(frozen=True, slots=True)
class LearnerConfig:
    """One learner; the same value goes to all its ranks."""

    checkpoint_dir: Path
    """Hugging Face checkpoint that training starts from"""
    optimizer: Optimizer
    total_steps: int
    """optimizer steps of the policy in the whole run; the schedule ends with them"""
    loss: LossSettings = field(default_factory=LossSettings)
    reference: bool = False
    """keep the initial weights, although no penalty in the loss needs them"""
    critic: CriticSettings | None = None
    """None: there is no value model"""
    teacher_dir: Path | None = None
    """Hugging Face checkpoint of the teacher that `divergence` is taken from; None: there is none"""
    layout: ParallelLayout = field(default_factory=ParallelLayout)
    """parallel sizes; `layout` extends them to all ranks"""
    experts: Experts = field(default_factory=Experts)
    precision: Literal["fp32", "bf16"] = "fp32"
    device: Literal["cpu", "cuda"] = "cpu"
    seed: int = 0
    num_threads: int = 1
    """CPU threads of one rank"""
    megatron_args: Mapping[str, Any] = field(default_factory=dict)
    """further fields of Megatron's TransformerConfig"""
    leaves: bool = False
    """whether weights, gradients and optimizer state may leave the device, see `device_memory`"""
    timeout_s: float = 600.0
    """how long a collective waits for a rank that does not come [s]"""
    longest_outage_s: float = 600.0
    """how long the volume of a checkpoint may fail while a rank reads or writes it [s]"""
    kernels: Path | None = None
    """archive of compiled kernels, see `kernel_archive`; None: they are not kept"""

    @property
    def keeps_reference(self) -> bool:
        """Whether the weights that training started from are kept."""
        return self.reference or self.loss.kl is not None


def layout(config: LearnerConfig, world_size: int) -> ParallelLayout:
    """Return the layout of `world_size` ranks. Raises ValueError if they cannot be shared out evenly."""
    sizes = config.layout
    if world_size % sizes.ranks_of_replica:
        raise ValueError(
            f"{world_size} learner ranks cannot hold tensor parallel {sizes.tensor} x pipeline parallel "
            f"{sizes.pipeline} x context parallel {sizes.context}: use a multiple of {sizes.ranks_of_replica}"
        )
    stage = world_size // sizes.pipeline
    if stage % sizes.expert_ranks:
        raise ValueError(
            f"{stage} learner ranks of a pipeline stage cannot hold expert parallel {sizes.expert} x expert "
            f"tensor parallel {sizes.expert_tensor}: use a multiple of {sizes.expert_ranks}"
        )
    return sizes.over(world_size)
