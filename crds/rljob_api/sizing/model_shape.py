"""The shape of a model, from the `config.json` of its Hugging Face checkpoint: sizes, parameters, and what they allow.

Knows the architectures that the learner trains (`families.py`). No file is opened here; the caller brings the contents.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from rljob_api.errors import ABSENT, ManifestError, Problem
from rljob_api.foreign_text import printable, said
from rljob_api.sections import Device, Placement, Spec
from rljob_api.sizing import recomputation
from rljob_api.sizing.config_sizes import EXPERTS, wrong_sizes
from rljob_api.sizing.families import FAMILIES, LOCAL, REFUSED, Family, faults, layer_types, rope_type
from rljob_api.sizing.latent import Latent, latent_of

CHECKPOINT = "spec.model.checkpoint"
TEACHER = "spec.algorithm.teacher.checkpoint"


KEEPING_WINDOWS = ("fa3", "flashinfer")
"""attention backends of SGLang 0.5.17 on GPUs that see all of a window while they generate"""
SGLANG_OF_EXPERTS = (
    *("deepep-config", "deepep-dispatcher-output-dtype", "deepep-mode", "enable-eplb"),
    *("enable-expert-distribution-metrics", "enable-fused-moe-sum-all-reduce"),
    *("ep-dispatch-algorithm", "ep-num-redundant-experts", "eplb-algorithm"),
    *("eplb-min-rebalancing-utilization-threshold", "eplb-rebalance-layers-per-chunk", "eplb-rebalance-num-iterations"),
    *("expert-distribution-recorder-buffer-size", "expert-distribution-recorder-mode", "fuseep-mode"),
    *("init-expert-location", "moe-a2a-backend", "moe-dense-tp-size", "moe-runner-backend"),
)
"""what a model without experts ignores"""


@dataclass(frozen=True, slots=True)
class Shape:
    """The sizes of a decoder with gated MLPs, RMS norms, and attention of grouped queries or of latents."""

    hidden: int
    ffn: int
    """width of the MLP, or of each expert's"""
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    """width of a query and of a key"""
    vocabulary: int
    longest: int
    """positions that the model was made for"""
    tied: bool
    """whether input and output share their embedding"""
    family: Family
    qk_norm: bool = False
    qkv_bias: bool = False
    window: int | None = None
    """tokens that each token may see, itself included, where neither learner nor engines have windows; None: all"""
    local: tuple[bool, ...] = ()
    """whether each layer sees `local_window` tokens only; empty: none does"""
    local_window: int | None = None
    """tokens that each token sees there, itself included"""
    experts: int = 0
    """of each layer but the first `dense_layers`; 0: all layers have one MLP for all tokens"""
    experts_per_token: int = 0
    dense_layers: int = 0
    """how many layers at the beginning have one MLP for all tokens, in a model with experts"""
    dense_ffn: int = 0
    """width of that MLP"""
    shared_ffn: int = 0
    """width of the MLP beside the experts of a layer, which all tokens pass; 0: there is none"""
    further_layers: int = 0
    """layers that the files have after the model's last one, to predict further tokens (MTP); they are not trained"""
    latent: Latent | None = None
    """None: queries, keys and values are projected from hidden states"""

    @property
    def query(self) -> int:
        """width of all query heads"""
        return self.heads * self.head_dim

    @property
    def key(self) -> int:
        """width of all key heads, and of all value heads where these are not narrower: see `latent`"""
        return self.kv_heads * self.head_dim

    @property
    def attended(self) -> int:
        """width of what all heads have found"""
        return self.heads * self.latent.value if self.latent else self.query

    @property
    def products(self) -> tuple[int, int]:
        """parameters of attention's matrices in a layer: those that tensor ranks split, and those that all have"""
        if self.latent:
            return self.latent.split(self.hidden), self.latent.whole(self.hidden)
        return 2 * self.hidden * (self.query + self.key), 0

    @property
    def parameters(self) -> int:
        """exact number of parameters, a tied embedding counted once; a router's bias is not trained, and none"""
        layers = self.dense_layers * self.dense_layer() + (self.layers - self.dense_layers) * self.layer()
        return layers + self.hidden + self.embedding() * (1 if self.tied else 2)

    def layer(self, tensor_parallel: int = 1, expert_ranks: int = 1) -> int:
        """Return the parameters of one layer on each rank: norms and router are on all of them."""
        if not self.experts:
            return self.layer_with(self.ffn, tensor_parallel)
        router = self.experts * self.hidden
        return self.layer_with(self.shared_ffn, tensor_parallel) + self.experts_of_layer(expert_ranks) + router

    def dense_layer(self, tensor_parallel: int = 1) -> int:
        """Return the parameters on each rank of one of the first layers of a model with experts, which has none."""
        return self.layer_with(self.dense_ffn, tensor_parallel)

    def layer_with(self, width: int, tensor_parallel: int) -> int:
        """Return the parameters on each rank of attention, norms, and an MLP of this width."""
        attention, whole = self.products
        attention += (self.query + 2 * self.key) * self.qkv_bias
        norms = len(self.family.norms) * self.hidden + 2 * self.head_dim * self.qk_norm
        norms += self.latent.norms if self.latent else 0
        return (attention + 3 * self.hidden * width) // tensor_parallel + whole + norms

    def experts_of_layer(self, expert_ranks: int = 1) -> int:
        """Return the parameters of a layer's experts on each of the ranks that they are spread over."""
        return self.experts * 3 * self.hidden * self.ffn // expert_ranks

    def embedding(self, tensor_parallel: int = 1) -> int:
        """Return the parameters of one embedding on each rank; its rows are padded to a multiple of the ranks."""
        return -(-self.vocabulary // tensor_parallel) * self.hidden

    def stage(
        self,
        index: int,
        tensor_parallel: int,
        pipeline_parallel: int,
        expert_ranks: int = 1,
        *,
        valued: bool = False,
        layers: Sequence[int] = (),
    ) -> int:
        """Return the parameters of one rank of a pipeline stage. The last stage keeps a copy of a tied embedding.

        With `valued`, of a critic: it has a row of `hidden` where the policy projects onto the vocabulary. `layers` are
        those of every chunk, as `ParallelLayout.chunk_layers` has them; empty: each stage has equally many.
        """
        first, last = index == 0, index == pipeline_parallel - 1
        embeddings = int(first) + int(last and not valued and not (first and self.tied))
        norm = self.hidden if last else 0
        head = self.hidden if last and valued else 0
        ends = embeddings * self.embedding(tensor_parallel) + norm + head
        chunks = layers or [self.layers // pipeline_parallel] * pipeline_parallel
        dense, routed = self.layers_in(index, chunks, pipeline_parallel)
        return dense * self.dense_layer(tensor_parallel) + routed * self.layer(tensor_parallel, expert_ranks) + ends

    def layers_in(self, stage: int, chunks: Sequence[int], stages: int) -> tuple[int, int]:
        """Return how many layers of a stage are of the first ones, which have no experts, and how many others it has.

        `chunks` has the layers of every chunk in the model's order; chunk i is of stage i % `stages`.
        """
        own = range(stage, len(chunks), stages)
        dense = sum(min(max(self.dense_layers - sum(chunks[:chunk]), 0), chunks[chunk]) for chunk in own)
        return dense, sum(chunks[chunk] for chunk in own) - dense

    def largest_stage(
        self, tensor_parallel: int, pipeline_parallel: int, expert_ranks: int = 1, *, valued: bool = False
    ) -> int:
        """Return the parameters of the rank that has most; with `valued`, of a critic."""
        stages = range(pipeline_parallel)
        sizes = tensor_parallel, pipeline_parallel, expert_ranks
        return max(self.stage(index, *sizes, valued=valued) for index in stages)


def shape(config: Mapping[str, Any]) -> Shape:
    """Return the shape that a `config.json` describes. Raises ManifestError for one that the learner cannot train."""
    try:
        return _shape(config)
    except KeyError as error:
        raise ManifestError((Problem(CHECKPOINT, ABSENT, f"config.json has no {error.args[0]}"),)) from error
    except ManifestError:
        raise
    except (TypeError, ValueError, AttributeError, ArithmeticError, RecursionError) as error:
        # A value of an unexpected type: there are dozens of settings, and users write them.
        raise ManifestError((Problem(CHECKPOINT, "config.json", f"cannot be understood: {said(error)}"),)) from error


def _shape(config: Mapping[str, Any]) -> Shape:
    architecture = next(iter(config.get("architectures") or ()), "none")
    if architecture not in FAMILIES:
        why = f": {REFUSED[architecture]}" if architecture in REFUSED else ""
        rule = f"is not an architecture that the learner trains ({' and '.join(FAMILIES)}){why}"
        raise ManifestError((Problem(CHECKPOINT, architecture, rule),))
    family = FAMILIES[architecture]
    if wrong := list(wrong_sizes(config)):
        raise ManifestError((Problem(CHECKPOINT, "config.json", f"says {', '.join(wrong)}"),))
    if (rope := rope_type(config)) not in family.ropes:
        rule = f"config.json says rope_type {rope}, and {architecture} is trained with {' or '.join(family.ropes)}"
        raise ManifestError((Problem(CHECKPOINT, ABSENT, rule),))
    if wrong := list(faults(config, family)):
        raise ManifestError((Problem(CHECKPOINT, ABSENT, f"config.json says {', '.join(wrong)}"),))
    return read(config, family)


def quantised(config: Mapping[str, Any]) -> Problem | None:
    """Return the problem of a checkpoint whose weights are quantised, as DeepSeek's own FP8 files are."""
    if (said := config.get("quantization_config")) is None:
        return None
    method = said.get("quant_method", "unnamed") if isinstance(said, Mapping) else said
    rule = (
        f"has a quantization_config ({printable(str(method), 60)}): the learner trains weights that are not quantised"
    )
    near = "a bf16 version of it" if method == "fp8" else "the checkpoint that it was made from"
    return Problem(CHECKPOINT, "config.json", rule, near)


def read(config: Mapping[str, Any], family: Family) -> Shape:
    config = {**family.defaults, **config}
    heads: int = config["num_attention_heads"]
    latent = latent_of(config) if family.latent else None
    head = latent.head if latent else config.get("head_dim") or family.head_dim
    own: dict[str, Any] = mixture_of(config, family) if family.experts else {}
    own |= windows_of(config) if family.local_layers else {}
    return Shape(
        hidden=config["hidden_size"],
        ffn=config[family.ffn],
        layers=config["num_hidden_layers"],
        heads=heads,
        kv_heads=config.get("num_key_value_heads") or heads,
        head_dim=head or config["hidden_size"] // heads,
        vocabulary=config["vocab_size"],
        longest=config["max_position_embeddings"],
        tied=config.get("tie_word_embeddings", False),
        family=family,
        qk_norm=chosen(family.qk_norm, config, "use_qk_norm"),
        qkv_bias=chosen(family.qkv_bias, config, "attention_bias"),
        window=config.get("sliding_window", family.default_window) if family.windowed else None,
        latent=latent,
        **own,
    )


def chosen(has: Literal["never", "always", "optional"], config: Mapping[str, Any], name: str) -> bool:
    """Return whether a model has what its family never, always, or by the setting `name` has."""
    return has == "always" or (has == "optional" and bool(config.get(name, False)))


def windows_of(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return which layers have a window, and how wide it is."""
    local = tuple(kind == LOCAL for kind in layer_types(config))
    return {"local": local, "local_window": config["sliding_window"] if any(local) else None}


def mixture_of(config: Mapping[str, Any], family: Family) -> dict[str, Any]:
    """Return the sizes of a mixture of experts. Only families with a bias in the router have more than experts."""
    found = {"experts": experts_of(config), "experts_per_token": config["num_experts_per_tok"]}
    if not family.router_bias:
        return found
    return found | {
        "dense_layers": min(config["first_k_dense_replace"], config["num_hidden_layers"]),
        "dense_ffn": config["intermediate_size"],
        "shared_ffn": config["n_shared_experts"] * config[family.ffn],
        "further_layers": config.get("num_nextn_predict_layers") or 0,
    }


def experts_of(config: Mapping[str, Any]) -> int:
    """Return the number of experts; families, and transformers 5, write it under other names."""
    number: int = config[next((name for name in EXPERTS if name in config), EXPERTS[-1])]
    return number


def problems(model: Shape, spec: Spec) -> tuple[Problem, ...]:
    """Return where the spec asks for more than a model of this shape can give."""
    training, rollout = spec.training, spec.rollout
    tensor, pipeline, engine = training.tensor_parallel, training.pipeline_parallel, rollout.gpus_per_engine
    ranks, node = training.nodes * training.gpus_per_node, training.gpus_per_node
    colocated = spec.placement is Placement.COLOCATED
    tensors = [size for size in range(1, model.heads + 1) if ranks % (size * pipeline) == 0]
    stages = [size for size in range(1, model.layers + 1) if ranks % (size * tensor) == 0]
    engines = [size for size in range(1, model.heads + 1) if not colocated or node % size == 0]
    found = [
        undivided("spec.training.tensorParallel", tensor, partial(tensor_obstacles, model), tensors),
        *stage_problems(model, spec, stages),
        undivided("spec.rollout.gpusPerEngine", engine, partial(engine_obstacles, model), engines),
        *expert_problems(model, spec),
        *recomputation.absent_parts(spec, model.experts, model.dense_layers, model.shared_ffn),
        recomputation.uneven_groups(spec, model.layers),
        too_long("spec.rollout.contextLength", rollout.context_length, model.longest),
        beyond_window(model, rollout.context_length),
        beyond_forgotten(model, spec),
        too_long("spec.rollout.sampling.maxNewTokens", rollout.sampling.max_new_tokens, model.longest - 1),
    ]
    return tuple(problem for problem in found if problem)


def expert_problems(model: Shape, spec: Spec) -> Iterator[Problem | None]:
    """Yield where the experts do not divide, or where there are none."""
    training, where = spec.training, "spec.training."
    sizes = {"expertParallel": training.expert_parallel, "expertTensorParallel": training.expert_tensor_parallel}
    if model.experts == 0:
        unused = "is of no use: the model has no experts"
        yield from (Problem(where + name, size, unused, "1") for name, size in sizes.items() if size > 1)
        wanted = training.experts.model_dump(mode="json", by_alias=True, exclude_defaults=True)
        yield from (Problem(f"{where}experts.{name}", value, unused) for name, value in wanted.items())
        given = [name for name in spec.extra_args.sglang if name in SGLANG_OF_EXPERTS]
        yield from (Problem(f"spec.extraArgs.sglang.{name}", ABSENT, unused) for name in given)
        return
    if training.experts.bias_update_rate and not model.family.router_bias:
        rule = "is of no use: the model's routers have no bias; training.experts.balanceLoss balances its experts"
        yield Problem(f"{where}experts.biasUpdateRate", training.experts.bias_update_rate, rule, "0")
    ranks = training.nodes * training.gpus_per_node // training.pipeline_parallel
    splits = {"expertParallel": ("experts", model.experts), "expertTensorParallel": ("MLP columns", model.ffn)}
    for name, (what, number) in splits.items():
        other = math.prod(sizes.values()) // sizes[name]
        possible = [size for size in range(1, number + 1) if ranks % (size * other) == 0]
        yield undivided(where + name, sizes[name], partial(obstacles_of, number, what), possible)


def obstacles_of(number: int, what: str, size: int) -> list[str]:
    return [f"{number} {what}"] if number % size else []


def teacher_problems(teacher: Shape, student: Shape, spec: Spec) -> tuple[Problem, ...]:
    """Return where a teacher of this shape cannot be laid out as the student is, or cannot read what that writes."""
    training, ranks = spec.training, spec.training.nodes * spec.training.gpus_per_node
    tensor, pipeline, whose = training.tensor_parallel, training.pipeline_parallel, "teacher's"
    tensors = [size for size in range(1, teacher.heads + 1) if ranks % (size * pipeline) == 0]
    stages = [size for size in range(1, teacher.layers + 1) if ranks % (size * tensor) == 0]
    found = [
        undivided("spec.training.tensorParallel", tensor, partial(tensor_obstacles, teacher), tensors, whose),
        *stage_problems(teacher, spec, stages, whose),
        recomputation.uneven_groups(spec, teacher.layers, whose),
    ]
    if teacher.vocabulary < student.vocabulary:
        rule = f"is of a model that knows {teacher.vocabulary} tokens, and the student may sample {student.vocabulary}"
        found.append(Problem(TEACHER, ABSENT, rule))
    context = spec.rollout.context_length or student.longest
    found.append(beyond_window(teacher, spec.rollout.context_length, "teacher"))
    if context > teacher.longest:
        rule = f"allows {context} tokens, more than the positions that the teacher was made for"
        found.append(Problem("spec.rollout.contextLength", ABSENT, rule, str(teacher.longest)))
    return tuple(problem for problem in found if problem)


def undivided(
    path: str, size: int, obstacles: Callable[[int], list[str]], possible: list[int], whose: str = "model's"
) -> Problem | None:
    """Return the problem of a size that does not divide the model, with the closest one that does.

    `possible` are the sizes that the GPUs allow; 1 is always among them.
    """
    if not (against := obstacles(size)):
        return None
    near = min((other for other in possible if not obstacles(other)), key=lambda other: (abs(other - size), other))
    return Problem(path, size, f"does not divide the {whose} {' and '.join(against)}", str(near))


def tensor_splits(model: Shape) -> dict[str, int]:
    """Return what tensor ranks of the learner split, beside the MLP of a model without experts."""
    split = {"attention heads": model.heads} | ({} if model.latent else {"key-value heads": model.kv_heads})
    split |= {"MLP columns of the first layers": model.dense_ffn} if model.dense_layers else {}
    return split | ({"columns of the shared expert": model.shared_ffn} if model.shared_ffn else {})


def tensor_obstacles(model: Shape, size: int) -> list[str]:
    """Return what tensor parallelism of this size cannot split in the learner."""
    split = tensor_splits(model) | ({} if model.experts else {"MLP columns": model.ffn})
    return [f"{number} {what}" for what, number in split.items() if number % size]


def engine_obstacles(model: Shape, size: int) -> list[str]:
    """Return the same for SGLang, which repeats key-value heads when there are fewer of them than ranks."""
    split = {"attention heads": model.heads, "MLP columns": model.ffn}
    split |= {"MLP columns of the first layers": model.dense_ffn if model.dense_layers else 0}
    found = [f"{number} {what}" for what, number in split.items() if number % size]
    if model.kv_heads % size and size % model.kv_heads:
        found.append(f"{model.kv_heads} key-value heads")
    return found


def stage_obstacles(model: Shape, size: int) -> list[str]:
    return [f"{model.layers} layers"] if model.layers % size else []


def stage_problems(model: Shape, spec: Spec, possible: list[int], whose: str = "model's") -> Iterator[Problem | None]:
    """Yield where the layers do not divide into the chunks of the stages; `possible` as in `undivided`."""
    stages, chunks = spec.training.pipeline_parallel, spec.training.virtual_pipeline
    if spec.training.pipeline_layers:
        yield not_all_layers(model, spec.training.pipeline_layers, whose)
        return
    yield undivided("spec.training.pipelineParallel", stages, partial(stage_obstacles, model), possible, whose)
    if model.layers % stages == 0:
        own = model.layers // stages
        obstacles, sizes = partial(obstacles_of, own, "layers of a stage"), list(range(1, own + 1))
        yield undivided("spec.training.virtualPipeline", chunks, obstacles, sizes, whose)


def not_all_layers(model: Shape, layers: Sequence[int], whose: str = "model's") -> Problem | None:
    """Return the problem of pipeline stages that do not have all layers of the model between them."""
    if sum(layers) == model.layers:
        return None
    some, more = divmod(model.layers, len(layers))
    near = [some + (stage < more) for stage in range(len(layers))]
    rule = f"adds up to {sum(layers)}, and the {whose} layers are {model.layers}"
    return Problem("spec.training.pipelineLayers", list(layers), rule, str(near) if some else None)


def beyond_window(model: Shape, context: int | None, whose: str = "model") -> Problem | None:
    """Return the problem of samples that are longer than the window: engines and learner attend to all tokens."""
    if model.window is None or (context or model.longest) <= model.window:
        return None
    rule = f"allows more tokens than the {whose}'s sliding_window, and neither engine nor learner has such a window"
    return Problem("spec.rollout.contextLength", ABSENT if context is None else context, rule, str(model.window))


def beyond_forgotten(model: Shape, spec: Spec) -> Problem | None:
    """Return the problem of samples that are longer than windows of which an engine on a GPU drops a token.

    Source: sgl-project/sglang#32087. While it generates, its Triton backend leaves out the oldest token of each window.
    """
    given, context = spec.extra_args.sglang, spec.rollout.context_length
    backend = given.get("decode-attention-backend") or given.get("attention-backend") or "triton"
    keeps = backend in KEEPING_WINDOWS or spec.runtime.device is Device.CPU or not spec.has_engines
    if model.local_window is None or keeps or (context or model.longest) <= model.local_window:
        return None
    rule = (
        f"allows more tokens than the model's sliding_window, and SGLang's attention backend {backend} drops a token "
        f"of it; or set spec.extraArgs.sglang.attention-backend to {' or '.join(KEEPING_WINDOWS)}"
    )
    where = "spec.rollout.contextLength"
    return Problem(where, ABSENT if context is None else context, rule, str(model.local_window))


def too_long(path: str, tokens: int | None, most: int) -> Problem | None:
    if tokens is None or tokens <= most:
        return None
    return Problem(path, tokens, "is more than the positions that the model was made for", str(most))
