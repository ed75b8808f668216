"""Rules of `spec.rollout`: lengths, sampling, and samples in several steps. `placement.py` has those of engines."""

from collections.abc import Iterator

from rljob_api.errors import ABSENT, Problem
from rljob_api.rules.batches import is_sft
from rljob_api.rules.claims import FREE_MAPPING, only_in_python, requires, unused
from rljob_api.rules.names import FUNCTION, closest, colon_in, with_colon
from rljob_api.rules.terms import SPEC, any_of, default, fields_of, has, matches, named, or_else, size, text_of, when
from rljob_api.sections import (
    CPU_KV_TOKENS,
    TOOLS,
    Device,
    Placement,
    Pods,
    Precision,
    Quantization,
    Replay,
    Spec,
    ToolSandbox,
)
from rljob_api.sizing import fp8_gpus

rollout = SPEC.rollout
on_cpu = SPEC.runtime.device == Device.CPU
new_tokens = rollout.sampling.max_new_tokens
context = or_else(rollout.context_length, 0)
sample_tokens = named(when(context > new_tokens, rollout.context_length, new_tokens + 1))
cache = when(
    has(rollout.max_total_tokens), text_of(rollout.max_total_tokens), f"by default {CPU_KV_TOKENS} on {Device.CPU},"
)
LENGTHS = (
    requires(
        rollout.context_length,
        ~has(rollout.context_length) | (rollout.context_length > new_tokens),
        f"leaves no room for a prompt beside sampling.maxNewTokens {new_tokens}"
        f"; nearest valid: {new_tokens + 1} or more",
    ),
    unused(
        rollout.memory_fraction,
        SPEC.runtime.device != Device.CPU,
        f"would not be used: on {Device.CPU} the KV cache has spec.rollout.maxTotalTokens tokens; leave it out",
    ),
    requires(
        rollout.max_total_tokens,
        is_sft | (or_else(rollout.max_total_tokens, when(on_cpu, CPU_KV_TOKENS, sample_tokens)) >= sample_tokens),
        f"{cache} is a KV cache too small for one sample of {sample_tokens} tokens"
        f"; nearest valid: {sample_tokens} or more",
        shows=False,
    ),
)

QUANTIZATION = requires(
    rollout.quantization,
    ~has(rollout.quantization) | (SPEC.training.precision == Precision.BF16),
    f"needs engines that compute in bf16; nearest valid: spec.training.precision {Precision.BF16}",
)
OF_QUANTIZATION = {
    "json-model-override-args": "it names the weights that are quantised",
    "load-format": "engines begin without weights, and get them quantised from the learner",
}
"""arguments of SGLang that spec.rollout.quantization sets, with the reason"""
WITHOUT_DRAFT = "NGRAM"
"""the speculative decoding that needs no second model"""
BY_ITSELF = "auto"
"""SGLang chooses the kernels of experts: Marlin's for INT4"""


@only_in_python(FREE_MAPPING)
def quantised_gpus(spec: Spec) -> Iterator[Problem]:
    pods = spec.pods or Pods()
    role = pods.trainer if spec.placement is Placement.COLOCATED else pods.rollout
    chosen = {**spec.scheduling.node_selector, **(role.node_selector if role else {})}
    if (gpu := fp8_gpus.selected(chosen)) and (found := fp8_gpus.problem(spec, gpu)):
        yield found


@only_in_python(FREE_MAPPING)
def quantised_engines(spec: Spec) -> Iterator[Problem]:
    if spec.rollout.quantization is None:
        return
    at, given = rollout.quantization.at, spec.extra_args.sglang
    for name in (each for each in given if each in OF_QUANTIZATION):
        rule = f"cannot be set with {at}: {OF_QUANTIZATION[name]}"
        yield Problem(f"spec.extraArgs.sglang.{name}", ABSENT, rule, "leave it out")
    algorithm = given.get("speculative-algorithm", WITHOUT_DRAFT)
    if algorithm != WITHOUT_DRAFT:
        rule = f"cannot be used with {at}: the draft model is not quantised, and would be read as if it was"
        yield Problem("spec.extraArgs.sglang.speculative-algorithm", algorithm, rule, WITHOUT_DRAFT)
    kernels = given.get("moe-runner-backend", BY_ITSELF)
    if spec.rollout.quantization is Quantization.INT4 and kernels not in (BY_ITSELF, "marlin"):
        rule = (
            f"cannot be used with {at} {Quantization.INT4}: engines load its experts again for Marlin's kernels alone"
        )
        yield Problem("spec.extraArgs.sglang.moe-runner-backend", kernels, rule, BY_ITSELF)


@only_in_python(FREE_MAPPING)
def reporting_engines(spec: Spec) -> Iterator[Problem]:
    """SGLang 0.5.17 does not count the tokens of drafts in the memory for their experts."""
    algorithm = spec.extra_args.sglang.get("speculative-algorithm")
    if algorithm is not None and spec.training.experts.replay is Replay.ROLLOUT:
        rule = f"cannot be used with {SPEC.training.experts.replay.at} {Replay.ROLLOUT}; leave it out"
        yield Problem("spec.extraArgs.sglang.speculative-algorithm", algorithm, rule)


IN_SEVERAL_STEPS = {"generate_timeout_seconds": ("generate",), "overflow": ("generate", "tools", "agent")}
"""fields that only samples in several steps read, and what makes such samples"""
SEVERAL_STEPS = (
    requires(
        rollout.generate,
        ~has(rollout.generate) | matches(rollout.generate, FUNCTION),
        "is not of the form module:function",
        nearest=colon_in(rollout.generate),
    ),
    *(
        unused(
            getattr(rollout, name),
            any_of(*map(has, fields_of(rollout, *ways))),
            "would not be used: no function makes the samples; nearest valid: "
            + ", or ".join([f"{default(getattr(rollout, name))}", *(f"spec.rollout.{way}" for way in ways)]),
        )
        for name, ways in IN_SEVERAL_STEPS.items()
    ),
    requires(
        rollout.tools,
        ~has(rollout.tools) | ~has(rollout.generate),
        "would not be offered: spec.rollout.generate makes the samples; leave one of them out",
    ),
    requires(
        rollout.tools,
        ~has(rollout.tools) | SPEC.data.chat_template,
        "needs a chat template, which shows the model its tools and their results; spec.data.chatTemplate is false",
    ),
    requires(
        rollout.tools.functions,
        ~has(rollout.tools) | (size(rollout.tools.functions) > 0),
        f"has no tool; nearest valid: {' or '.join(TOOLS)}, or module:function",
    ),
    unused(
        rollout.tools.read_only_paths,
        ~has(rollout.tools) | (or_else(rollout.tools.sandbox, ToolSandbox.NAMESPACES) != ToolSandbox.NONE),
        "would not be used: without a sandbox tools can read everything"
        f"; nearest valid: sandbox {ToolSandbox.NAMESPACES}",
    ),
    unused(
        rollout.tools.read_only_paths,
        ~has(rollout.tools) | (or_else(rollout.tools.sandbox, ToolSandbox.NAMESPACES) != ToolSandbox.PODS),
        "would not be used: pods of tools have only the files of the image; leave it out",
    ),
    unused(
        rollout.tools.secret_env,
        ~has(rollout.tools) | (or_else(rollout.tools.sandbox, ToolSandbox.NAMESPACES) == ToolSandbox.NONE),
        "would not be passed on: a sandbox does not get the environment of the run"
        f"; nearest valid: sandbox {ToolSandbox.NONE}, or leave it out",
    ),
)


@only_in_python("the API server cannot name an entry of a list: a fieldPath has no index")
def tool_functions(spec: Spec) -> Iterator[Problem]:
    functions = spec.rollout.tools.functions if spec.rollout.tools else ()
    for index, given in enumerate(functions):
        path = f"spec.rollout.tools.functions[{index}]"
        if given not in TOOLS and not FUNCTION.fullmatch(given):
            rule = "is not a known tool, and not of the form module:function"
            near = closest(given, TOOLS) or with_colon(given)
            yield Problem(path, given, rule, near or " or ".join(TOOLS))
        elif given in functions[:index]:
            yield Problem(path, given, "is in the list already")


@only_in_python("the CRD has no room for all that kubectl apply would keep of it")
def agents(spec: Spec) -> Iterator[Problem]:
    agent = spec.rollout.agent
    if agent is None:
        return
    if agent.function is None and not agent.command:
        yield Problem("spec.rollout.agent", ABSENT, "needs a function or a command")
    if agent.function is not None and agent.command:
        rule = "would not run: spec.rollout.agent.function is the agent; leave one of them out"
        yield Problem("spec.rollout.agent.command", list(agent.command), rule)
    if agent.function is not None and not FUNCTION.fullmatch(agent.function):
        rule = "is not of the form module:function"
        yield Problem("spec.rollout.agent.function", agent.function, rule, with_colon(agent.function))
    # An API server fills in the default: that is not the wish of a user.
    asked = agent.processes != type(agent).model_fields["processes"].default
    if agent.function is None and agent.command and asked:
        rule = "would not be used: each session of a command has its own process; leave it out"
        yield Problem("spec.rollout.agent.processes", agent.processes, rule)
    if spec.rollout.generate is not None or spec.rollout.tools is not None:
        other = "generate" if spec.rollout.generate is not None else "tools"
        rule = f"would not run: spec.rollout.{other} makes the samples; leave one of them out"
        yield Problem("spec.rollout.agent", ABSENT, rule)
    if not spec.data.chat_template:
        rule = "needs a chat template, which renders its messages; spec.data.chatTemplate is false"
        yield Problem("spec.rollout.agent", ABSENT, rule)
    if spec.reward.parts:
        rule = "cannot be combined with spec.reward.parts: it may return the whole reward"
        yield Problem("spec.rollout.agent", ABSENT, rule, "one spec.reward.kind")


RULES = (
    *LENGTHS,
    *SEVERAL_STEPS,
    QUANTIZATION,
    quantised_engines,
    quantised_gpus,
    reporting_engines,
    tool_functions,
    agents,
    requires(
        rollout.sampling.top_k,
        rollout.sampling.top_k != 0,
        f"is neither -1 (all tokens) nor at least 1; nearest valid: {default(rollout.sampling.top_k)}",
    ),
)
