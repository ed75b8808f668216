"""How the learner is spread over its ranks: the sizes of a manifest, and how many replicas of the model they make.

The one value for it: topology, memory, `rljob plan`, the learner and its ranks all hold it.
"""

from dataclasses import dataclass, replace

from rljob_api.sections import Training


@dataclass(frozen=True, slots=True)
class ParallelLayout:
    """Parallel sizes, in Megatron's order of ranks: tensor, context, data, pipeline."""

    tensor: int = 1
    pipeline: int = 1
    data: int = 1
    context: int = 1
    """ranks that share the tokens of each micro-batch"""
    expert: int = 1
    """ranks of a stage that share out the experts: neighbours, in any layout"""
    expert_tensor: int = 1
    """neighbours among them that share each expert"""
    virtual: int = 1
    """chunks of layers that each pipeline stage has"""
    layers: tuple[int, ...] = ()
    """of each chunk of the pipeline, in the model's order; empty: each has equally many"""
    sequence: bool = False
    """whether tensor ranks share out the tokens of a micro-batch where they do not share matrices"""

    def over(self, ranks: int) -> "ParallelLayout":
        """Return it with the replicas that this number of ranks holds."""
        return replace(self, data=ranks // self.ranks_of_replica)

    @property
    def ranks_of_replica(self) -> int:
        return self.tensor * self.pipeline * self.context

    @property
    def copies(self) -> int:
        """Ranks that hold the same weights outside of experts, and share out their optimizer state."""
        return self.context * self.data

    @property
    def expert_ranks(self) -> int:
        """Ranks over which the experts of a pipeline stage are spread."""
        return self.expert * self.expert_tensor

    @property
    def expert_data(self) -> int:
        """Ranks that hold the same experts."""
        return self.tensor * self.copies // self.expert_ranks

    @property
    def data_ranks_meet(self) -> bool:
        """Whether ranks of several data-parallel shares share out experts, and so meet in every micro-batch."""
        return self.tensor * self.context % self.expert_ranks > 0

    @property
    def micro_batch_multiple(self) -> int:
        """What the number of a rank's micro-batches is a multiple of: Megatron takes those of several chunks in groups
        of one for each stage."""
        return self.pipeline if self.virtual > 1 else 1

    @property
    def token_shares(self) -> int:
        """Into how many parts the tokens of a rank are divided between the matrices of its layers."""
        return self.tensor if self.sequence else 1

    def chunk_layers(self, layers: int) -> tuple[int, ...]:
        """Return how many of a model's layers each chunk has, in the model's order: chunk i is of stage i % PP."""
        chunks = self.pipeline * self.virtual
        return self.layers or (layers // chunks,) * chunks

    def stage_layers(self, layers: int) -> tuple[int, ...]:
        """Return how many of a model's layers each pipeline stage has."""
        chunks = self.chunk_layers(layers)
        return tuple(sum(chunks[stage :: self.pipeline]) for stage in range(self.pipeline))

    def data_rank(self, rank: int) -> int:
        """Return which data-parallel share `rank` works on."""
        return rank // (self.tensor * self.context) % self.data

    def output_rank(self, data_rank: int) -> int:
        """Return the rank with the results of a data-parallel share: first of tensor and context, last of pipeline."""
        return self.tensor * self.context * (data_rank + self.data * (self.pipeline - 1))

    def __str__(self) -> str:
        text = f"tensor {self.tensor} x pipeline {self.pipeline} x data {self.data}"
        further = {"context over": self.context, "experts over": self.expert, "each over": self.expert_tensor}
        further["virtual pipeline"] = self.virtual
        return ", ".join([text, *(f"{name} {size}" for name, size in further.items() if size > 1)])


def parallel_layout(training: Training) -> ParallelLayout:
    """Return how the learner of a manifest is spread."""
    sizes = ParallelLayout(
        tensor=training.tensor_parallel,
        pipeline=training.pipeline_parallel,
        context=training.context_parallel,
        expert=training.expert_parallel,
        expert_tensor=training.expert_tensor_parallel,
        virtual=training.virtual_pipeline,
        layers=training.pipeline_layers,
        sequence=training.sequence_parallel,
    )
    return sizes.over(training.nodes * training.gpus_per_node)
