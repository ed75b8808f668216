"""How much memory a run needs on each GPU: what is exact (weights, optimizer, KV cache) and what is estimated.

`rljob plan` prints every line with its formula, so that a reader can disagree with it. Bytes throughout.

Letters of the formulas: P parameters of the fullest rank, C of its critic, X of its experts; TP, PP, CP, DP sizes of
tensor, pipeline, context and data parallelism, VP chunks of a pipeline stage, XDP ranks that hold the same experts; A
experts that a token goes to; L layers; H hidden; Q width of all query heads; K of all key heads; F width of the MLP, or
of each expert's; V vocabulary. Of latent attention: R width of both latents, U of the keys and values that are
projected from one.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from rljob_api.sections import Device, Precision, Recompute, Spec, Transport
from rljob_api.sizing import quantised
from rljob_api.sizing.linear import matrices
from rljob_api.sizing.model_shape import Shape
from rljob_api.sizing.topology import Topology

BYTES = {Precision.FP32: 4, Precision.BF16: 2}
MIB = 2**20
HEAD_CHUNK = 256 * MIB
"""logits that the learner holds at once; it projects response tokens onto the vocabulary in chunks"""
OPTIMIZER_CHUNK = 256 * MIB
"""optimizer state on the GPU at once, if it is kept on the host"""
MOST_KEPT = 5 * 2**30
"""logits that one GPU without tensor parallelism keeps for the backward pass: a sixteenth of a card of 80 GB"""

CACHE = "KV cache"
BUCKET = "weight sync bucket"
"""what the learner keeps on a GPU that it leaves, for the engine has mapped it"""
WEIGHTS = ("weights", "critic weights")
"""of the learner, on the GPU while they are published"""
BUCKETS: dict[Transport, int] = {"Broadcast": 2, "Ipc": 2, "Disk": 0, "Delta": 0}
"""parts of a publication that a GPU of the learner holds at once"""


@dataclass(frozen=True, slots=True)
class Item:
    """One thing that takes memory."""

    what: str
    bytes: int
    formula: str
    exact: bool = True


@dataclass(frozen=True, slots=True)
class Turn:
    """What shares a GPU at one time."""

    when: str
    bytes: int
    formula: str


@dataclass(frozen=True, slots=True)
class Estimate:
    """Memory of one GPU of the learner and of one GPU of an engine."""

    parameters: int
    """of the whole model"""
    learner: tuple[Item, ...]
    engine: tuple[Item, ...]
    kv_bytes_per_token: int
    """of one GPU of an engine"""
    kv_tokens: int | None
    """size of the KV cache when the manifest says it; None: SGLang takes what its memory fraction leaves"""
    colocated: bool
    leaves: bool = False
    """the learner's state leaves the GPU while engines roll out, and engines' memory while the learner trains"""

    @property
    def learner_bytes(self) -> int:
        return sum(item.bytes for item in self.learner)

    @property
    def engine_bytes(self) -> int:
        return sum(item.bytes for item in self.engine)

    @property
    def gpu_bytes(self) -> int:
        """What the fullest GPU needs, with learner and engine on it at once when they share it, or alternately."""
        if self.leaves:
            return max(turn.bytes for turn in self.turns)
        both = self.learner_bytes + self.engine_bytes
        return both if self.colocated else max(self.learner_bytes, self.engine_bytes)

    @property
    def turns(self) -> tuple[Turn, ...]:
        """What is on a GPU that the learner leaves, in the order of a step."""
        staying = sum(item.bytes for item in self.learner if item.what == BUCKET)
        weights = sum(item.bytes for item in self.learner if item.what in WEIGHTS)
        cache = sum(item.bytes for item in self.engine if item.what == CACHE)
        both = staying + weights + self.engine_bytes - cache
        return (
            Turn("rollout", staying + self.engine_bytes, "engine, and what of the learner stays"),
            Turn("training", self.learner_bytes, "learner; the engine has given back its memory"),
            Turn("publication", both, "weights of both, and what of the learner stays; without KV cache"),
        )


def estimate(model: Shape, spec: Spec, where: Topology, teacher: Shape | None = None) -> Estimate:
    """Return the memory that a valid spec needs for a model, and for the teacher that it learns from."""
    kv_bytes = kv_bytes_per_token(model, spec)
    return Estimate(
        parameters=model.parameters,
        learner=(*learner(model, spec, where), *taught(teacher, spec, where)) if where.ranks else (),
        engine=engine(model, spec, kv_bytes) if where.num_engines else (),
        kv_bytes_per_token=kv_bytes,
        kv_tokens=spec.rollout.kv_tokens(spec.runtime.device),
        colocated=any(shape.group == "workers" for shape in where.shapes),
        leaves=spec.learner_leaves,
    )


def learner(model: Shape, spec: Spec, where: Topology) -> tuple[Item, ...]:
    parameters = fullest(model, where)
    size = BYTES[spec.training.precision]
    items = [
        Item("weights", parameters * size, f"P x {size}"),
        Item("gradients", parameters * 4, "P x 4, accumulated in fp32"),
        *optimizer(model, spec, where, parameters),
        Item("activations", activations(model, spec, where), activation_formula(model, spec, where), exact=False),
        logits(model, spec, where),
    ]
    if spec.algorithm.critic is not None:
        items += critic(model, spec, where)
    if spec.algorithm.kl is not None:
        items.append(Item("reference weights", parameters * size, f"P x {size}, lent by host memory for KL"))
    if copies := BUCKETS[spec.transport] if where.num_engines else 0:
        items.append(Item(BUCKET, copies * spec.weight_sync.bucket_mib * MIB, f"{copies} x bucketMib", exact=False))
    return tuple(items)


def optimizer(model: Shape, spec: Spec, where: Topology, parameters: int) -> list[Item]:
    """Return what the policy's optimizer keeps on the GPU: all of its state, or one part of it at a time."""
    if spec.training.optimizer.offload:
        largest = model.embedding(where.layout.tensor) * state_bytes(spec) // where.layout.copies
        formula = "256 MiB, or the state of the largest matrix; the rest is in host memory"
        return [Item("optimizer state", max(OPTIMIZER_CHUNK, largest), formula, exact=False)]
    formula = f"{shared_formula(model, where, 8)}, distributed optimizer"
    moments = Item("Adam moments", shared(model, where, parameters, 8), formula)
    if spec.training.precision is not Precision.BF16:
        return [moments]
    masters = shared(model, where, parameters, 4)
    return [Item("master weights", masters, f"{shared_formula(model, where, 4)}, fp32"), moments]


def state_bytes(spec: Spec) -> int:
    """Return the bytes of an optimizer's state for each parameter: two moments, and with bf16 a master weight."""
    return 12 if spec.training.precision is Precision.BF16 else 8


def fullest(model: Shape, where: Topology, *, valued: bool = False) -> int:
    """Return the parameters of the rank of the learner that has most."""
    return max(by_stage(model, where, valued))


def by_stage(model: Shape, where: Topology, valued: bool) -> tuple[int, ...]:
    """Return the parameters of a rank of each pipeline stage."""
    sizes = where.layout.tensor, where.layout.pipeline, where.layout.expert_ranks
    layers = where.layout.chunk_layers(model.layers)
    stages = range(where.layout.pipeline)
    return tuple(model.stage(index, *sizes, valued=valued, layers=layers) for index in stages)


def shared(model: Shape, where: Topology, parameters: int, size: int) -> int:
    """Return a rank's part of what the ranks that hold the same parameters share out, of `size` bytes for each."""
    sizes = by_stage(model, where, valued=False)
    stage, chunks = sizes.index(max(sizes)), where.layout.chunk_layers(model.layers)
    _dense, routed = model.layers_in(stage, chunks, where.layout.pipeline)
    experts = routed * model.experts_of_layer(where.layout.expert_ranks)
    return -(-(parameters - experts) * size // where.layout.copies) - (-experts * size // where.layout.expert_data)


def shared_formula(model: Shape, where: Topology, size: int, letter: str = "P") -> str:
    copies = "DP" if where.layout.context == 1 else "(CP x DP)"
    return (
        f"({letter} - X) x {size} / {copies} + X x {size} / XDP" if model.experts else f"{letter} x {size} / {copies}"
    )


def critic(model: Shape, spec: Spec, where: Topology) -> list[Item]:
    """Return what the critic keeps beside the policy. One of them computes at a time: activations are counted once."""
    parameters, size = fullest(model, where, valued=True), BYTES[spec.training.precision]
    state = state_bytes(spec)
    items = [
        Item("critic weights", parameters * size, f"C x {size}"),
        Item("critic gradients", parameters * 4, "C x 4, accumulated in fp32"),
    ]
    if spec.training.optimizer.offload:  # one computes at a time: the part of the policy's is the critic's, too
        return items
    formula = shared_formula(model, where, state, "C")
    return [*items, Item("critic optimizer", shared(model, where, parameters, state), formula)]


def taught(teacher: Shape | None, spec: Spec, where: Topology) -> tuple[Item, ...]:
    """Return what a teacher takes, while it scores: its activations are those of one layer, because it has no backward
    pass."""
    if teacher is None:
        return ()
    parameters, size = fullest(teacher, where), BYTES[spec.training.precision]
    formula = f"P of the teacher x {size}, lent by host memory while it scores"
    return (Item("teacher weights", parameters * size, formula),)


def activations(model: Shape, spec: Spec, where: Topology) -> int:
    """Return what the backward pass needs to keep of one full micro-batch.

    In each layer: inputs and outputs of both norms, and with four norms the inputs of the others (whole on each rank,
    or with sequence parallelism split over TP), projections before and after rotation, attention's output, the MLP's
    gate, up and product (split over TP). With sequence parallelism the input of one matrix at a time is whole. A
    pipeline's first stage keeps PP micro-batches of its L / PP layers, which are L layers again; `kept_layers` knows
    uneven and virtual stages. With experts, each of the A that a token goes to keeps its own columns, input and
    output; the tokens are split over TP, and are taken to spread evenly over the experts. The S columns of a shared
    expert are split like those of an MLP. First layers without experts count like the others, or like their MLP,
    whichever keeps more.
    Of latent attention: the latents before and after their norms (whole like the norms), queries before and after
    rotation, keys, values as wide as keys and what they add up to (5 Q), and both as projected from the latent (U).
    Context-parallel ranks have maxTokensPerGpu tokens each, and beside them the keys and values of all.
    With recomputation only the inputs of the layers are kept, and all of the one layer that is computed again.
    """
    mlps = model.experts_per_token * (3 * model.ffn + 2 * model.hidden) if model.experts else 3 * model.ffn
    mlps = max(mlps + 3 * model.shared_ffn, 3 * model.dense_ffn)
    gathered = 2 * model.key * where.layout.context if where.layout.context > 1 else 0
    attention = 2 * (model.query + 2 * model.key) + model.query
    whole = around_norms(model) * model.hidden
    if model.latent:
        attention = 5 * model.query + model.latent.keys_values
        whole += 2 * model.latent.norms
    split = attention + mlps + gathered
    shares, kept = where.layout.token_shares, kept_layers(model, where)
    of_layer = whole // shares + split // where.layout.tensor
    per_token = kept * model.hidden // shares + of_layer if recomputes(spec) else kept * of_layer
    if shares > 1:
        per_token += model.hidden
    return spec.training.max_tokens_per_gpu * per_token * BYTES[spec.training.precision]


def around_norms(model: Shape) -> int:
    """Return how many vectors of `hidden` a layer keeps: inputs and outputs of two norms, and inputs of two more."""
    return 6 if model.family.post_norms else 4


def kept_layers(model: Shape, where: Topology) -> int:
    """Return of how many layers a rank keeps activations, each time for one micro-batch: stage i keeps PP - i of them.

    With equally many layers in each stage, the first keeps most: PP micro-batches of L / PP layers. With VP chunks in
    each stage it keeps more: (PP x VP + PP - 1) micro-batches of L / (PP x VP) layers.
    """
    stages = where.layout.pipeline
    if where.layout.virtual > 1:
        chunks = where.layout.chunk_layers(model.layers)
        return max(kept_of_chunks(chunks[stage::stages], stage, stages) for stage in range(stages))
    return max((stages - index) * own for index, own in enumerate(where.layout.stage_layers(model.layers)))


def kept_of_chunks(layers: Sequence[int], stage: int, stages: int) -> int:
    """Return the largest number of layers of whose activations a stage with chunks of `layers` layers keeps. Megatron's
    interleaved schedule runs PP micro-batches through one chunk after the other, forward in order, back in reverse."""
    forward = [own for own in layers for _ in range(stages)]
    backward, ahead = forward[::-1], 2 * (stages - stage - 1) + (len(layers) - 1) * stages + 1
    most = [sum((2 * forward)[: ahead + done]) - sum(backward[:done]) for done in range(len(forward))]
    return max(most)


def activation_formula(model: Shape, spec: Spec, where: Topology) -> str:
    size, mlps = BYTES[spec.training.precision], "A(3F + 2H)" if model.experts else "3F"
    mlps += " + 3S" if model.shared_ffn else ""
    gathered = " + 2K x CP" if where.layout.context > 1 else ""
    matrices = f"{'5Q + U' if model.latent else '2(Q + 2K) + Q'} + {mlps}{gathered}"
    norms = f"{around_norms(model)}H"
    whole = f"{norms} + 2R" if model.latent else norms
    kept = kept_formula(model, where)
    if spec.training.sequence_parallel:
        of_layers = f"{kept} x H + {whole} + {matrices}" if recomputes(spec) else f"{kept} x ({whole} + {matrices})"
        per_token = f"(({of_layers}) / TP + H)"
    elif recomputes(spec):
        per_token = f"({kept} x H + ({whole} + ({matrices}) / TP))"
    else:
        per_token = f"{kept} x ({whole} + ({matrices}) / TP)"
    again = "each layer computed again" if recomputes(spec) else "no recomputation"
    return f"maxTokensPerGpu x {per_token} x {size}, {again}"


def kept_formula(model: Shape, where: Topology) -> str:
    if where.layout.layers:
        return str(kept_layers(model, where))
    return "L x (1 + (PP - 1) / (PP x VP))" if where.layout.virtual > 1 else "L"


def recomputes(spec: Spec) -> bool:
    """Return whether all layers are computed again in the backward pass."""
    usual = "full" if spec.training.recompute is Recompute.FULL else None
    return bool(spec.extra_args.megatron.get("recompute_granularity", usual) == "full")


LOGITS_FORMULA = "maxTokensPerGpu x V / TP x 4, at most a chunk of 256 MiB, and as much for the gradient"


KEPT_FORMULA = "maxTokensPerGpu x V x {size}, at most 5 GiB (a sixteenth of the card), kept for the backward pass"


def logits(model: Shape, spec: Spec, where: Topology) -> Item:
    whole = spec.training.max_tokens_per_gpu * model.vocabulary
    if spec.runtime.device is Device.GPU and where.layout.tensor == 1:
        size = BYTES[spec.training.precision]
        return Item("logits", min(MOST_KEPT, whole * size), KEPT_FORMULA.format(size=size), exact=False)
    return Item("logits", 2 * min(HEAD_CHUNK, 4 * whole // where.layout.tensor), LOGITS_FORMULA, exact=False)


def engine(model: Shape, spec: Spec, kv_bytes: int) -> tuple[Item, ...]:
    size, ranks = BYTES[spec.training.precision], spec.rollout.gpus_per_engine
    items = [engine_weights(model, spec, size, ranks)]
    tokens = spec.rollout.kv_tokens(spec.runtime.device)
    if tokens is not None:
        items.append(Item(CACHE, tokens * kv_bytes, f"{tokens} tokens x {kv_bytes}"))
    return tuple(items)


def engine_weights(model: Shape, spec: Spec, size: int, ranks: int) -> Item:
    parameters = model.largest_stage(ranks, 1, ranks)
    if model.family.whole_embedding:
        parameters += model.embedding() - model.embedding(ranks)
    if (kind := spec.rollout.quantization) is None:
        return Item("weights", parameters * size, f"P x {size}, P at TP = gpusPerEngine")
    numbers = sum(map(math.prod, matrices(model).values()))
    saved = (numbers * size - quantised.part_bytes(kind, model)) // ranks
    return Item("weights", parameters * size - saved, f"P x {size}, but {quantised.FORMATS[kind].formula}")


def kv_bytes_per_token(model: Shape, spec: Spec) -> int:
    """Return the bytes that one token takes in the KV cache of one GPU: a key and a value for each layer, or a latent
    and the turned part of the keys, which all GPUs of an engine have."""
    heads = max(1, model.kv_heads // spec.rollout.gpus_per_engine)
    of_layer = model.latent.cached if model.latent else 2 * heads * model.head_dim
    return model.layers * of_layer * BYTES[spec.training.precision]
