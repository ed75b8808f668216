"""What one rank of the learner needs to know: values only. `settings.py` makes it from the manifest."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from rljob_api.sections import ImportanceBound, ImportanceLevel, Schedule
from rljob_trainer.algorithms.algorithm import CLIP

EntropyUse = Literal["none", "measured", "differentiated"]
Estimator = Literal["k1", "k2", "k3"]
OUTAGE_SHARE = 0.75
"""of the time that a collective waits: how long a rank may wait for a file"""


@dataclass(frozen=True, slots=True)
class OptimizerSettings:
    """AdamW, its schedule and the limit of the gradient norm."""

    learning_rate: float
    total_steps: int
    """optimizer steps of the whole run; the schedule ends with them"""
    min_learning_rate: float = 0.0
    schedule: Schedule = Schedule.CONSTANT
    warmup_steps: int = 0
    beta1: float = 0.9
    beta2: float = 0.95
    epsilon: float = 1e-8
    weight_decay: float = 0.0
    """of matrices; norms and biases have none"""
    clip_grad: float = 1.0
    on_host: bool = False
    """whether masters and moments are in host memory, see `host_optimizer`"""


@dataclass(frozen=True, slots=True)
class KlSettings:
    """The penalty against the initial policy."""

    coefficient: float
    estimator: Estimator = "k3"
    clamp: bool = True
    """whether k3 ends at a largest value, see `loss.kl_estimate`"""


@dataclass(frozen=True, slots=True)
class ImportanceSettings:
    """The correction between engine and learner."""

    kind: ImportanceBound
    level: ImportanceLevel
    low: float
    high: float


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
    importance: ImportanceSettings | None = None
    """None: what the engine sampled is taken for the learner's own"""
    entropy_coefficient: float = 0.0
    kl: KlSettings | None = None
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
class RoutingSettings:
    """What is asked of the routers of a mixture of experts beside their choices."""

    balance_coefficient: float = 0.0
    """of the load-balance loss"""
    balance_over: Literal["sequence", "step"] = "sequence"
    """what it compares the loads of: each sequence by itself, or all of an optimizer step"""
    z_coefficient: float = 0.0
    """of the square of the logits' logsumexp"""
    bias_update_rate: float = 0.0
    """by which an expert's bias rises or falls after an optimizer step"""
    replay: Literal["none", "learner", "rollout"] = "none"
    """whose choices are repeated: `learner`, updates use the experts that the policy chose before the first of them;
    `rollout`, all passes of the policy use those that the engines chose"""

    @property
    def has_losses(self) -> bool:
        """Whether there is a loss to compute."""
        return bool(self.balance_coefficient or self.z_coefficient)


@dataclass(frozen=True, slots=True)
class CriticSettings:
    """The value model beside the policy."""

    optimizer: OptimizerSettings
    value_clip: float = 0.2
    """how far a value may move from the old one until its loss is bounded"""


@dataclass(frozen=True, slots=True)
class LearnerConfig:
    """One learner; the same value goes to all its ranks."""

    checkpoint_dir: Path
    """Hugging Face checkpoint that training starts from"""
    optimizer: OptimizerSettings
    loss: LossSettings = field(default_factory=LossSettings)
    reference: bool = False
    """keep the initial weights, although no penalty in the loss needs them"""
    critic: CriticSettings | None = None
    """None: there is no value model"""
    teacher_dir: Path | None = None
    """Hugging Face checkpoint of the teacher that `divergence` is taken from; None: there is none"""
    tensor_parallel: int = 1
    pipeline_parallel: int = 1
    pipeline_layers: tuple[int, ...] = ()
    """layers of each pipeline stage, or of each chunk in the model's order; empty: equally many"""
    virtual_pipeline: int = 1
    """chunks of layers that each pipeline rank has"""
    context_parallel: int = 1
    """ranks that share the tokens of each micro-batch"""
    expert_parallel: int = 1
    """ranks that share out the experts of a mixture"""
    expert_tensor_parallel: int = 1
    """ranks that share each expert"""
    sequence_parallel: bool = False
    """whether tensor ranks share out the tokens of a micro-batch where they do not share matrices"""
    router: RoutingSettings = field(default_factory=RoutingSettings)
    """of a mixture of experts"""
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
    """how long the volume of a checkpoint may fail while it is read [s]; `outage_s` is what ranks make of it"""
    kernels: Path | None = None
    """archive of compiled kernels, see `kernel_archive`; None: they are not kept"""

    @property
    def outage_s(self) -> float:
        """How long a rank waits for a volume [s]: the others wait for it in a collective, and must not give it up."""
        return min(self.longest_outage_s, OUTAGE_SHARE * self.timeout_s)

    @property
    def token_shares(self) -> int:
        """Into how many equal shares the tokens of a micro-batch are divided between the layers' matrices."""
        return self.tensor_parallel if self.sequence_parallel else 1

    @property
    def keeps_reference(self) -> bool:
        """Whether the weights that training started from are kept."""
        return self.reference or self.loss.kl is not None


@dataclass(frozen=True, slots=True)
class Layout:
    """How a learner is spread over its ranks; Megatron's order: tensor, context, data, pipeline."""

    tensor: int
    pipeline: int
    data: int
    context: int = 1
    expert: int = 1
    """ranks of a stage that share out the experts: neighbours, whatever else they share"""
    expert_tensor: int = 1
    """neighbours among them that share each expert"""
    virtual: int = 1
    """chunks of layers that each pipeline rank has"""

    def data_rank(self, rank: int) -> int:
        """Return which data-parallel share `rank` works on."""
        return rank // (self.tensor * self.context) % self.data

    def output_rank(self, data_rank: int) -> int:
        """Return the rank with the results of a data-parallel share: first of tensor and context, last of pipeline."""
        return self.tensor * self.context * (data_rank + self.data * (self.pipeline - 1))

    @property
    def data_ranks_meet(self) -> bool:
        """Whether ranks of several data-parallel shares share out experts, and so meet in every micro-batch."""
        return self.tensor * self.context % (self.expert * self.expert_tensor) > 0

    @property
    def micro_batch_multiple(self) -> int:
        """What the number of a share's micro-batches is a multiple of."""
        return self.pipeline if self.virtual > 1 else 1

    def __str__(self) -> str:
        text = f"tensor {self.tensor} x pipeline {self.pipeline} x data {self.data}"
        further = {"context over": self.context, "experts over": self.expert, "each over": self.expert_tensor}
        further["virtual pipeline"] = self.virtual
        return ", ".join([text, *(f"{name} {size}" for name, size in further.items() if size > 1)])


def layout(config: LearnerConfig, world_size: int) -> Layout:
    """Return the layout of `world_size` ranks. Raises ValueError if they cannot be shared out evenly."""
    model = config.tensor_parallel * config.pipeline_parallel * config.context_parallel
    if world_size % model:
        raise ValueError(
            f"{world_size} learner ranks cannot hold tensor parallel {config.tensor_parallel} x pipeline parallel "
            f"{config.pipeline_parallel} x context parallel {config.context_parallel}: use a multiple of {model}"
        )
    stage = world_size // config.pipeline_parallel
    experts = config.expert_parallel * config.expert_tensor_parallel
    if stage % experts:
        raise ValueError(
            f"{stage} learner ranks of a pipeline stage cannot hold expert parallel {config.expert_parallel} x expert "
            f"tensor parallel {config.expert_tensor_parallel}: use a multiple of {experts}"
        )
    return Layout(
        tensor=config.tensor_parallel,
        pipeline=config.pipeline_parallel,
        data=world_size // model,
        context=config.context_parallel,
        expert=config.expert_parallel,
        expert_tensor=config.expert_tensor_parallel,
        virtual=config.virtual_pipeline,
    )
