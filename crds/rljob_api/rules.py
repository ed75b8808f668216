"""What must hold between the fields of a spec. Pure; each rule is a function from the spec to its problems.

A setting that would have no effect breaks a rule too: nothing is accepted and ignored. A rule compares with defaults
instead of asking which fields were given, because an API server fills the defaults in.

Above each function stands the same rule in CEL (`cel.py`), for the API server: what holds, and what is told if it does
not. Change both; a test has them judge thousands of manifests.
"""

import difflib
import math
import re
from collections.abc import Iterator, Mapping

from pydantic.fields import FieldInfo

from rljob_api import algorithms, arguments, batch
from rljob_api.algorithms import KNOWN as KNOWN_ALGORITHMS
from rljob_api.cel import Cel, Rule, also_in_cel, differs, in_cel, is_default, near, only_in_python, value
from rljob_api.distillation import teacher
from rljob_api.errors import ABSENT, Problem
from rljob_api.imitation import imitation, imitation_in_python
from rljob_api.sections import (
    CPU_KV_TOKENS,
    INT32,
    MOST_GPUS_PER_NODE,
    TOOLS,
    Algorithm,
    Critic,
    Device,
    Evaluation,
    Judging,
    Placement,
    Remote,
    Resume,
    RewardKind,
    Rollout,
    Runtime,
    Section,
    Source,
    Spec,
    WeightSync,
)
from rljob_api.shapes import KNOWN
from rljob_api.topology import GPU, Sizes, sizes
from rljob_api.watching import watching

WORD = "[A-Za-z_][A-Za-z0-9_]*"  # not \w, which is ASCII in CEL and is not in Python
FUNCTION = re.compile(rf"{WORD}([.]{WORD})*:{WORD}")
RESOURCES = ("requests", "limits", "claims")
QUANTITY = re.compile(r"[+-]?([0-9]+[.]?[0-9]*|[.][0-9]+)([KMGTPE]i|[numkMGTPE]|[eE][+-]?[0-9]+)?")
"""https://kubernetes.io/docs/reference/kubernetes-api/common-definitions/quantity/"""
GENERATED_COLUMNS = ("question", "answer", "metadata")
"""columns of the rows that reasoning-gym makes"""
SOURCES = ("jsonl", "parquet", "reasoningGym")
EVERY_QUESTION = "holds every question of spec.data.train, and held-out questions are not trained on; set its limit"
NOTHING_BESIDE = (
    "are measured beside spec.data.heldOut, whose accuracy is the run's;"
    " nearest valid: the first of them as spec.data.heldOut"
)
USUAL_COLUMNS = {"inputKey": "question", "labelKey": "answer", "metadataKey": "metadata"}
CLIP_LOW, CLIP_HIGH, NORMALIZE_BY = Algorithm().clip_low, Algorithm().clip_high, Algorithm().normalize_by
VALUE_CLIP = Critic(learning_rate=1.0).value_clip
WITH_CRITIC = algorithms.names(critic=True)
CISPO = algorithms.names(objective="cispo")
OFF_POLICY = (*algorithms.names(objective="gspo"), *CISPO)
"""algorithms that are GRPO where the probability ratio is 1"""


def check(spec: Spec) -> tuple[Problem, ...]:
    """Return every problem between the fields of a spec."""
    return tuple(problem for rule in RULES for problem in rule(spec))


@also_in_cel(
    Cel(
        "spec.model.checkpoint",
        f"!self.model.checkpoint.contains('://') || self.model.checkpoint in {list(KNOWN)}",
        '"{self.model.checkpoint}" is not a directory, and no package is known by this name'
        f" (scheme {{self.model.checkpoint.split('://')[0]}}); nearest valid: {' or '.join(KNOWN)} or a directory",
    ),
)
def checkpoint(spec: Spec) -> Iterator[Problem]:
    given = spec.model.checkpoint
    scheme, separator, _ = given.partition("://")
    if separator and given not in KNOWN:
        rule = f"is not a directory, and no package is known by this name (scheme {scheme})"
        close = difflib.get_close_matches(given, KNOWN, n=1, cutoff=0.4)
        yield Problem("spec.model.checkpoint", given, rule, close[0] if close else "a directory")


def source_cel(name: str) -> tuple[Cel, ...]:
    path = f"self.data.{name}"
    options = [f"(has({path}.{kind}) ? ['{kind}'] : [])" for kind in SOURCES]
    absent, chosen = f"!has({path}) || " if name == "heldOut" else "", f"({' + '.join(options)})"
    both = f"{chosen}.size() == 3 ? 'jsonl and parquet and reasoningGym' : '%s and %s'.format({chosen})"
    return (
        Cel(
            f"spec.data.{name}",
            f"{absent}{chosen}.size() > 0",
            "names no questions; set one of jsonl, parquet and reasoningGym",
        ),
        Cel(
            f"spec.data.{name}",
            f"{absent}{chosen}.size() < 2",
            f"has {{{both}}}; one source is expected; nearest valid: {{{chosen}[0]}}",
        ),
    )


@also_in_cel(*source_cel("train"), *source_cel("heldOut"))
def sources(spec: Spec) -> Iterator[Problem]:
    yield from source("spec.data.train", spec.data.train)
    if spec.data.held_out is not None:
        yield from source("spec.data.heldOut", spec.data.held_out)


def source(path: str, given: Source) -> Iterator[Problem]:
    options = {"jsonl": given.jsonl, "parquet": given.parquet, "reasoningGym": given.reasoning_gym}
    chosen = [name for name, value in options.items() if value is not None]
    if not chosen:
        yield Problem(path, ABSENT, "names no questions; set one of jsonl, parquet and reasoningGym")
    if len(chosen) > 1:
        yield Problem(path, ABSENT, f"has {' and '.join(chosen)}; one source is expected", chosen[0])


@only_in_python("tasks and their settings are those of the reasoning-gym that the trainer has installed")
def tasks(spec: Spec) -> Iterator[Problem]:
    for path, given in spec.data.sources.items():
        if given.reasoning_gym is not None:
            yield from generated(f"{path}.reasoningGym", given.reasoning_gym.task, tuple(given.reasoning_gym.config))


def generated(path: str, task: str, settings: tuple[str, ...]) -> Iterator[Problem]:
    known = arguments.tasks()
    if task not in known:
        yield Problem(f"{path}.task", task, "is no task of reasoning-gym", closest(task, tuple(known)))
        return
    for setting in settings:
        if setting in ("seed", "size"):
            yield Problem(f"{path}.config.{setting}", ABSENT, "belongs to a field of the manifest", f"{path}.{setting}")
        elif setting not in known[task]:
            near = closest(re.sub(r"(?=[A-Z])", "_", setting).lower(), known[task])
            yield Problem(f"{path}.config.{setting}", ABSENT, f"is no setting of {task}", near)


def closest(word: str, options: tuple[str, ...]) -> str | None:
    return next(iter(difflib.get_close_matches(word, options, n=1, cutoff=0.6)), None)


@also_in_cel(
    Cel(
        "spec.evaluation",
        f"has(self.data.heldOut) || ({is_default('self.evaluation', Evaluation())})",
        "has nothing to measure on; set spec.data.heldOut",
    ),
    Cel(
        "spec.data.heldOut",
        "!has(self.data.heldOut) || has(self.data.heldOut.limit)"
        + "".join(f" || {differs(f'self.data.heldOut.{kind}', f'self.data.train.{kind}')}" for kind in SOURCES),
        EVERY_QUESTION,
    ),
    Cel(
        "spec.data.evaluationSets",
        "$imitates || self.data.evaluationSets.size() == 0 || has(self.data.heldOut)",
        NOTHING_BESIDE,
    ),
)
def held_out(spec: Spec) -> Iterator[Problem]:
    measured, trained = spec.data.held_out, spec.data.train
    if measured is None and spec.evaluation != Evaluation():
        yield Problem("spec.evaluation", ABSENT, "has nothing to measure on; set spec.data.heldOut")
    if measured is not None and holds_all(measured, trained):
        yield Problem("spec.data.heldOut", ABSENT, EVERY_QUESTION)
    if spec.data.evaluation_sets and measured is None and not spec.imitates:
        yield Problem("spec.data.evaluationSets", ABSENT, NOTHING_BESIDE)


def holds_all(measured: Source, trained: Source) -> bool:
    return measured.limit is None and all(
        getattr(measured, kind) == getattr(trained, kind) for kind in ("jsonl", "parquet", "reasoning_gym")
    )


@only_in_python("the API server cannot name an entry of a list: a fieldPath has no index")
def evaluation_sets(spec: Spec) -> Iterator[Problem]:
    sets = spec.data.evaluation_sets
    judged_by_task = any(judging.kind is RewardKind.TASK for _, judging in judgings(spec))
    for index, each in enumerate(sets):
        path = f"spec.data.evaluationSets[{index}]"
        if each.name in [other.name for other in sets[:index]]:
            yield Problem(f"{path}.name", each.name, "is the name of another set already")
        yield from source(path, each)
        if holds_all(each, spec.data.train):
            yield Problem(path, ABSENT, EVERY_QUESTION)
        if judged_by_task and each.reasoning_gym is None:
            yield Problem(path, ABSENT, "has no verifier, by which a reward of kind task judges", "reasoningGym")


def column_cel(name: str) -> Cel:
    path = f"self.data.{name}"
    absent = f"!has({path}) || " if name == "metadataKey" else ""
    return Cel(
        f"spec.data.{name}",
        f"!$generated || {absent}{path}.split('.')[0] in {list(GENERATED_COLUMNS)}",
        f'"{{{path}}}" is no column of reasoning-gym\'s questions ({", ".join(GENERATED_COLUMNS)});'
        f" nearest valid: {USUAL_COLUMNS[name]}",
    )


@also_in_cel(*map(column_cel, USUAL_COLUMNS))
def columns(spec: Spec) -> Iterator[Problem]:
    data = spec.data
    if not any(given.reasoning_gym for given in data.sources.values()):
        return
    for name, column in (
        ("inputKey", data.input_key),
        ("labelKey", data.label_key),
        ("metadataKey", data.metadata_key),
    ):
        if column is not None and column.partition(".")[0] not in GENERATED_COLUMNS:
            rule = f"is no column of reasoning-gym's questions ({', '.join(GENERATED_COLUMNS)})"
            yield Problem(f"spec.data.{name}", column, rule, USUAL_COLUMNS[name])


@also_in_cel(
    Cel(
        "spec.data.promptTemplate",
        "self.data.promptTemplate.contains('{question}')",
        "\"{self.data.promptTemplate}\" has no {'{question}'}: every prompt would be the same;"
        " nearest valid: {'{question}'}",
    ),
    Cel(
        "spec.data.systemPrompt",
        "!has(self.data.systemPrompt) || self.data.chatTemplate",
        "has no turn to stand in: spec.data.chatTemplate is false",
    ),
)
def templates(spec: Spec) -> Iterator[Problem]:
    data = spec.data
    if "{question}" not in data.prompt_template:
        rule = "has no {question}: every prompt would be the same"
        yield Problem("spec.data.promptTemplate", data.prompt_template, rule, "{question}")
    if data.system_prompt is not None and not data.chat_template:
        yield Problem("spec.data.systemPrompt", ABSENT, "has no turn to stand in: spec.data.chatTemplate is false")


@also_in_cel(
    Cel(
        "spec.reward.kind",
        "$imitates || $kind != '' || self.reward.parts.size() > 0",
        "is missing; set it, or spec.reward.parts for several rewards",
    ),
)
def some_reward(spec: Spec) -> Iterator[Problem]:
    if spec.reward.kind is None and not spec.reward.parts and not spec.imitates:
        yield Problem("spec.reward.kind", ABSENT, "is missing; set it, or spec.reward.parts for several rewards")


def beside_parts_cel(field: FieldInfo) -> Cel:
    path = f"self.reward.{in_cel(field.alias or '')}"
    same = f"!has({path})" if field.default is None else f"{path} == {value(field.default)}"
    rule = "would not be used: each of spec.reward.parts has its own"
    return Cel(f"spec.reward.{field.alias}", f"self.reward.parts.size() == 0 || {same}", rule)


@also_in_cel(*map(beside_parts_cel, Judging.model_fields.values()))
def beside_parts(spec: Spec) -> Iterator[Problem]:
    for name, field in Judging.model_fields.items():
        if getattr(spec.reward, name) != field.default and spec.reward.parts:
            rule = "would not be used: each of spec.reward.parts has its own"
            yield Problem(f"spec.reward.{field.alias}", ABSENT, rule)


@also_in_cel(
    Cel(
        "spec.reward.function",
        "$kind != 'python' || has($function)",
        "is missing: kind python needs `module:function`",
    ),
    Cel(
        "spec.reward.function",
        f"$kind != 'python' || !has($function) || $function.matches('^{FUNCTION.pattern}$')",
        '"{$function}" is not of the form module:function',
        (f"$dotted.lastIndexOf('.') > 0 && ($moduleAndName).matches('^{FUNCTION.pattern}$') ? $moduleAndName : ''",),
    ),
    Cel(
        "spec.reward.function",
        "$kind in ['', 'python'] || !has($function)",
        '"{$function}" would not be called: spec.reward.kind is {$kind}; nearest valid: spec.reward.kind python',
    ),
)
def reward(spec: Spec) -> Iterator[Problem]:
    yield from own_function("spec.reward", spec.reward)


def own_function(path: str, given: Judging) -> Iterator[Problem]:
    kind, function = given.kind, given.function
    if kind is RewardKind.PYTHON:
        if function is None:
            yield Problem(f"{path}.function", ABSENT, "is missing: kind python needs `module:function`")
        elif not FUNCTION.fullmatch(function):
            yield Problem(f"{path}.function", function, "is not of the form module:function", with_colon(function))
    elif kind is not None and function is not None:
        rule = f"would not be called: {path}.kind is {kind}"
        yield Problem(f"{path}.function", function, rule, f"{path}.kind python")


def with_colon(function: str) -> str | None:
    module, _, name = function.replace(":", ".").rpartition(".")
    return f"{module}:{name}" if FUNCTION.fullmatch(f"{module}:{name}") else None


USED_BY = {
    "judges": (RewardKind.PYTHON,),
    "timeout_seconds": (RewardKind.PYTHON, RewardKind.MATH, RewardKind.REMOTE),
    "memory_mib": (RewardKind.PYTHON, RewardKind.MATH),
    "concurrency": (RewardKind.PYTHON, RewardKind.REMOTE),
    "failure_score": (RewardKind.PYTHON, RewardKind.MATH, RewardKind.REMOTE),
}
"""fields of a reward that only some kinds look at"""


def used_by_cel(name: str) -> Cel:
    field = Judging.model_fields[name]
    path, kinds = f"self.reward.{field.alias}", [kind.value for kind in USED_BY[name]]
    same = f"!has({path})" if field.default is None else f"{path} == {value(field.default)}"
    shown = f'"{{{path}}}"' if isinstance(field.default, str) else f"{{{path}}}"
    rule = f"would not be used: spec.reward.kind is {{$kind}}; nearest valid: spec.reward.kind {' or '.join(kinds)}"
    return Cel(f"spec.reward.{field.alias}", f"$kind in {['', *kinds]} || {same}", f"{shown} {rule}")


@also_in_cel(*map(used_by_cel, USED_BY))
def reward_without_effect(spec: Spec) -> Iterator[Problem]:
    yield from without_effect("spec.reward", spec.reward)


def without_effect(path: str, given: Judging) -> Iterator[Problem]:
    for name, kinds in USED_BY.items():
        field, found = Judging.model_fields[name], getattr(given, name)
        if given.kind is not None and given.kind not in kinds and found != field.default:
            rule = f"would not be used: {path}.kind is {given.kind}"
            yield Problem(f"{path}.{field.alias}", found, rule, f"{path}.kind {' or '.join(kinds)}")


@also_in_cel(
    Cel(
        "spec.reward.remote",
        "$kind != 'remote' || has(self.reward.remote)",
        "is missing: kind remote needs its `url`",
    ),
    Cel(
        "spec.reward.remote",
        "$kind in ['', 'remote'] || !has(self.reward.remote)",
        "would not be asked: spec.reward.kind is {$kind}; nearest valid: spec.reward.kind remote",
    ),
    Cel(
        "spec.reward.remote.url",
        "!has(self.reward.remote) || self.reward.remote.url.startsWith('http://')"
        " || self.reward.remote.url.startsWith('https://')",
        '"{self.reward.remote.url}" does not begin with http:// or https://',
    ),
)
def remote_reward(spec: Spec) -> Iterator[Problem]:
    yield from service("spec.reward", spec.reward)


def service(path: str, given: Judging) -> Iterator[Problem]:
    if given.kind is RewardKind.REMOTE and given.remote is None:
        yield Problem(f"{path}.remote", ABSENT, "is missing: kind remote needs its `url`")
    if given.remote is None:
        return
    if given.kind not in (None, RewardKind.REMOTE):
        rule = f"would not be asked: {path}.kind is {given.kind}"
        yield Problem(f"{path}.remote", ABSENT, rule, f"{path}.kind remote")
    if not given.remote.url.startswith(("http://", "https://")):
        yield Problem(f"{path}.remote.url", given.remote.url, "does not begin with http:// or https://")


@only_in_python("the API server does not see into free mappings")
def headers(spec: Spec) -> Iterator[Problem]:
    for path, given in judgings(spec):
        if given.remote is not None:
            yield from service_headers(f"{path}.remote", given.remote, spec)


def service_headers(path: str, given: Remote, spec: Spec) -> Iterator[Problem]:
    known = {name.lower() for name in given.headers_from_env}
    for name, variable in given.headers_from_env.items():
        if variable in spec.runtime.env:
            rule = "would keep a secret in the manifest, in spec.runtime.env; mount a Secret and name its file"
            yield Problem(f"{path}.headersFromEnv.{name}", variable, rule, f"{path}.headersFromFile")
    for name in given.headers_from_file:
        if name.lower() in known:
            yield Problem(f"{path}.headersFromFile.{name}", ABSENT, "is in headersFromEnv too; leave one of them out")


def judgings(spec: Spec) -> Iterator[tuple[str, Judging]]:
    """Yield the one reward, or each of several, with its path."""
    if spec.reward.kind is not None:
        yield "spec.reward", spec.reward
    for index, part in enumerate(spec.reward.parts):
        yield f"spec.reward.parts[{index}]", part


@only_in_python("the API server cannot name an entry of a list: a fieldPath has no index")
def reward_parts(spec: Spec) -> Iterator[Problem]:
    parts = spec.reward.parts
    for index, part in enumerate(parts):
        path = f"spec.reward.parts[{index}]"
        if part.name in [other.name for other in parts[:index]]:
            yield Problem(f"{path}.name", part.name, "is the name of another part already")
        yield from own_function(path, part)
        yield from without_effect(path, part)
        yield from service(path, part)
        yield from one_or_zero(path, part)
        yield from task(path, part, spec)


EXACT = (RewardKind.MATH, RewardKind.EXACT_MATCH)
BY_LABEL = (*EXACT, RewardKind.F1)


@also_in_cel(
    Cel(
        "spec.reward.parts",
        "self.reward.parts.size() == 0 || self.reward.parts.exists(p, p.weight != 0.0)",
        "have weight 0, all of them: there would be nothing to train on",
    ),
    Cel(
        "spec.data.metadataKey",
        "self.reward.parts.size() == 0 || !has(self.data.metadataKey)"
        f" || self.reward.parts.exists(p, !(p.kind in {[kind.value for kind in BY_LABEL]}))",
        '"{self.data.metadataKey}" would not be read: all of spec.reward.parts judge by the label alone; leave it out',
    ),
)
def parts_together(spec: Spec) -> Iterator[Problem]:
    parts = spec.reward.parts
    if parts and all(part.weight == 0 for part in parts):
        yield Problem("spec.reward.parts", ABSENT, "have weight 0, all of them: there would be nothing to train on")
    if parts and spec.data.metadata_key is not None and all(part.kind in BY_LABEL for part in parts):
        rule = "would not be read: all of spec.reward.parts judge by the label alone; leave it out"
        yield Problem("spec.data.metadataKey", spec.data.metadata_key, rule)


@also_in_cel(
    Cel(
        "spec.reward.threshold",
        f"!($kind in {[kind.value for kind in EXACT]}) || !has(self.reward.threshold)",
        "{self.reward.threshold} would change nothing: spec.reward.kind {$kind} gives 0 or 1; leave it out",
    ),
    Cel(
        "spec.data.metadataKey",
        f"!($kind in {[kind.value for kind in BY_LABEL]}) || !has(self.data.metadataKey)",
        '"{self.data.metadataKey}" would not be read: spec.reward.kind {$kind} judges by the label alone; leave it out',
    ),
)
def exact_reward(spec: Spec) -> Iterator[Problem]:
    yield from one_or_zero("spec.reward", spec.reward)
    if spec.reward.kind in BY_LABEL and spec.data.metadata_key is not None:
        rule = f"would not be read: spec.reward.kind {spec.reward.kind} judges by the label alone; leave it out"
        yield Problem("spec.data.metadataKey", spec.data.metadata_key, rule)


def one_or_zero(path: str, given: Judging) -> Iterator[Problem]:
    if given.kind in EXACT and given.threshold is not None:
        rule = f"would change nothing: {path}.kind {given.kind} gives 0 or 1; leave it out"
        yield Problem(f"{path}.threshold", given.threshold, rule)


@also_in_cel(
    Cel(
        "spec.reward.kind",
        "$kind != 'task' || (has(self.data.train.reasoningGym)"
        " && (!has(self.data.heldOut) || has(self.data.heldOut.reasoningGym)))",
        '"task" needs questions of reasoning-gym and their verifier, also in '
        "{has(self.data.train.reasoningGym) ? 'spec.data.heldOut' : !has(self.data.heldOut)"
        " || has(self.data.heldOut.reasoningGym) ? 'spec.data.train' : 'spec.data.train and spec.data.heldOut'};"
        " nearest valid: math or exactMatch",
    ),
    Cel(
        "spec.data.metadataKey",
        "$kind != 'task' || !has(self.data.metadataKey)",
        '"{self.data.metadataKey}" would hide from the verifier what spec.reward.kind task judges by; leave it out',
    ),
)
def task_reward(spec: Spec) -> Iterator[Problem]:
    yield from task("spec.reward", spec.reward, spec)


def task(path: str, judging: Judging, spec: Spec) -> Iterator[Problem]:
    if judging.kind is not RewardKind.TASK:
        return
    given = {"spec.data.train": spec.data.train, "spec.data.heldOut": spec.data.held_out}
    others = [name for name, questions in given.items() if questions and not questions.reasoning_gym]
    if others:
        rule = f"needs questions of reasoning-gym and their verifier, also in {' and '.join(others)}"
        yield Problem(f"{path}.kind", judging.kind, rule, "math or exactMatch")
    if spec.data.metadata_key is not None:
        rule = f"would hide from the verifier what {path}.kind task judges by; leave it out"
        yield Problem("spec.data.metadataKey", spec.data.metadata_key, rule)


@also_in_cel(
    Cel(
        "spec.algorithm.name",
        f"self.algorithm.name in {list(KNOWN_ALGORITHMS)} || self.algorithm.name.matches('^{FUNCTION.pattern}$')",
        '"{self.algorithm.name}" is no algorithm that is known, and not of the form module:object;'
        f" nearest valid: {' or '.join(KNOWN_ALGORITHMS)}",
    ),
    Cel(
        "spec.algorithm.normalizeBy",
        f"self.algorithm.normalizeBy == '{NORMALIZE_BY}'"
        f" || !(self.algorithm.name in {[*algorithms.names(normalizes=False)]})",
        '"{self.algorithm.normalizeBy}" would not be used: {self.algorithm.name} leaves no choice of a standard'
        f" deviation; nearest valid: {NORMALIZE_BY}",
    ),
)
def algorithm(spec: Spec) -> Iterator[Problem]:
    name, by = spec.algorithm.name, spec.algorithm.normalize_by
    if name not in KNOWN_ALGORITHMS and not FUNCTION.fullmatch(name):
        rule = "is no algorithm that is known, and not of the form module:object"
        near = closest(name, tuple(KNOWN_ALGORITHMS)) or with_colon(name)
        yield Problem("spec.algorithm.name", name, rule, near or " or ".join(KNOWN_ALGORITHMS))
    if name in algorithms.names(normalizes=False) and by != NORMALIZE_BY:
        rule = f"would not be used: {name} leaves no choice of a standard deviation"
        yield Problem("spec.algorithm.normalizeBy", by, rule, NORMALIZE_BY)


@also_in_cel(
    Cel(
        "spec.algorithm.clipLow",
        f"self.algorithm.clipLow <= self.algorithm.clipHigh || self.algorithm.name in {[*CISPO]}",
        "{self.algorithm.clipLow} is more than clipHigh {self.algorithm.clipHigh};"
        " nearest valid: {self.algorithm.clipHigh}",
    ),
    Cel(
        "spec.algorithm.dualClip",
        f"!has(self.algorithm.dualClip) || !(self.algorithm.name in {[*OFF_POLICY]})",
        "{self.algorithm.dualClip} would not be used: {self.algorithm.name} has no such bound; leave it out",
    ),
)
def clipping(spec: Spec) -> Iterator[Problem]:
    given = spec.algorithm
    if given.clip_low > given.clip_high and given.name not in CISPO:
        rule = f"is more than clipHigh {given.clip_high}"
        yield Problem("spec.algorithm.clipLow", given.clip_low, rule, str(given.clip_high))
    if given.dual_clip is not None and given.name in OFF_POLICY:
        rule = f"would not be used: {given.name} has no such bound; leave it out"
        yield Problem("spec.algorithm.dualClip", given.dual_clip, rule)


MORE_STEPS = "spec.training.stepsPerRollout above 1"
RATIO_IS_ONE = "with one optimizer step for each rollout the ratio is 1"
CLIPS_NOTHING = f"would clip nothing: {RATIO_IS_ONE}"


def off_policy_cel(holds: str) -> str:
    return f"{holds} || $imitates || $ratioToEngines || !($batchesFit && $steps == 1)"


def clip_range_cel(name: str, usual: float) -> Cel:
    return Cel(
        f"spec.algorithm.{name}",
        off_policy_cel(f"self.algorithm.{name} == {usual}"),
        f"{{self.algorithm.{name}}} {CLIPS_NOTHING}; nearest valid: {usual}, or {MORE_STEPS}",
    )


@also_in_cel(
    Cel(
        "spec.algorithm.name",
        off_policy_cel(f"!(self.algorithm.name in {[*OFF_POLICY]})"),
        f'"{{self.algorithm.name}}" would be no different from grpo: {RATIO_IS_ONE};'
        f" nearest valid: grpo, or {MORE_STEPS}",
    ),
    clip_range_cel("clipLow", CLIP_LOW),
    clip_range_cel("clipHigh", CLIP_HIGH),
    Cel(
        "spec.algorithm.dualClip",
        off_policy_cel("!has(self.algorithm.dualClip)"),
        f"{{self.algorithm.dualClip}} {CLIPS_NOTHING}; nearest valid: {MORE_STEPS}",
    ),
)
def on_policy(spec: Spec) -> Iterator[Problem]:
    """Refuse what has no effect where the ratio is 1: its old policy is the learner before the step's only update."""
    given, path = spec.algorithm, "spec.algorithm"
    derived = batch.derive(batch.request(spec))
    if derived is None or derived.steps_per_rollout > 1 or spec.imitates:
        return
    if spec.rollout.asynchronous is not None and given.importance_sampling is None:  # its old policy is the engines'
        return
    if given.name in OFF_POLICY:
        rule = f"would be no different from grpo: {RATIO_IS_ONE}"
        yield Problem(f"{path}.name", given.name, rule, f"grpo, or {MORE_STEPS}")
    if given.clip_low != CLIP_LOW:
        yield Problem(f"{path}.clipLow", given.clip_low, CLIPS_NOTHING, f"{CLIP_LOW}, or {MORE_STEPS}")
    if given.clip_high != CLIP_HIGH:
        yield Problem(f"{path}.clipHigh", given.clip_high, CLIPS_NOTHING, f"{CLIP_HIGH}, or {MORE_STEPS}")
    if given.dual_clip is not None:
        yield Problem(f"{path}.dualClip", given.dual_clip, CLIPS_NOTHING, MORE_STEPS)


CLIPS_NO_VALUE = "would clip nothing: with one optimizer step for each rollout values are what they were"


@also_in_cel(
    Cel(
        "spec.algorithm.critic",
        f"!(self.algorithm.name in {[*WITH_CRITIC]}) || has(self.algorithm.critic)",
        "is missing: {self.algorithm.name} compares rewards with a value model; set its learningRate",
    ),
    Cel(
        "spec.algorithm.critic",
        f"!has(self.algorithm.critic) || self.algorithm.name in {[*WITH_CRITIC]}",
        "would not be trained: {self.algorithm.name} asks no value model;"
        f" nearest valid: spec.algorithm.name {' or '.join(WITH_CRITIC)}",
    ),
    Cel(
        "spec.algorithm.critic.warmupSteps",
        "!has(self.algorithm.critic) || $criticOnly < self.training.steps",
        "{$criticOnly} leaves the policy none of the run's {self.training.steps} rollouts;"
        " nearest valid: {self.training.steps - 1}",
    ),
    Cel(
        "spec.algorithm.critic.valueClip",
        f"!has(self.algorithm.critic) || self.algorithm.critic.valueClip == {VALUE_CLIP}"
        " || !($batchesFit && $steps == 1)",
        f"{{self.algorithm.critic.valueClip}} {CLIPS_NO_VALUE}; nearest valid: {VALUE_CLIP}, or {MORE_STEPS}",
    ),
)
def critic(spec: Spec) -> Iterator[Problem]:
    given, name, path = spec.algorithm.critic, spec.algorithm.name, "spec.algorithm.critic"
    if given is None:
        if name in WITH_CRITIC:
            rule = f"is missing: {name} compares rewards with a value model; set its learningRate"
            yield Problem(path, ABSENT, rule)
        return
    if name not in WITH_CRITIC:
        rule = f"would not be trained: {name} asks no value model"
        yield Problem(path, ABSENT, rule, f"spec.algorithm.name {' or '.join(WITH_CRITIC)}")
    if given.warmup_steps >= (steps := spec.training.steps):
        rule = f"leaves the policy none of the run's {steps} rollouts"
        yield Problem(f"{path}.warmupSteps", given.warmup_steps, rule, str(steps - 1))
    derived = batch.derive(batch.request(spec))
    if given.value_clip != VALUE_CLIP and derived is not None and derived.steps_per_rollout == 1:
        yield Problem(f"{path}.valueClip", given.value_clip, CLIPS_NO_VALUE, f"{VALUE_CLIP}, or {MORE_STEPS}")


@also_in_cel(
    Cel(
        "spec.algorithm.overlong.buffer",
        "!has(self.algorithm.overlong) || self.algorithm.overlong.buffer <= $new",
        "{self.algorithm.overlong.buffer} is more than sampling.maxNewTokens {$new}; nearest valid: {$new}",
    ),
)
def overlong(spec: Spec) -> Iterator[Problem]:
    given, longest = spec.algorithm.overlong, spec.rollout.sampling.max_new_tokens
    if given is not None and given.buffer > longest:
        rule = f"is more than sampling.maxNewTokens {longest}"
        yield Problem("spec.algorithm.overlong.buffer", given.buffer, rule, str(longest))


@also_in_cel(
    Cel(
        "spec.algorithm.dynamicSampling.overSample",
        "!has(self.algorithm.dynamicSampling) || self.algorithm.dynamicSampling.maxRounds > 1"
        " || self.algorithm.dynamicSampling.overSample > 1.0",
        "{self.algorithm.dynamicSampling.overSample} leaves nothing to choose from in 1 round;"
        " nearest valid: 1.5, or maxRounds 2",
    ),
)
def dynamic_sampling(spec: Spec) -> Iterator[Problem]:
    given = spec.algorithm.dynamic_sampling
    if given is not None and given.max_rounds == 1 and given.over_sample == 1.0:
        rule = "leaves nothing to choose from in 1 round"
        yield Problem("spec.algorithm.dynamicSampling.overSample", given.over_sample, rule, "1.5, or maxRounds 2")


@also_in_cel(
    Cel(
        "spec.rollout.contextLength",
        "!has(self.rollout.contextLength) || self.rollout.contextLength > $new",
        "{self.rollout.contextLength} leaves no room for a prompt beside sampling.maxNewTokens {$new};"
        " nearest valid: {$new + 1} or more",
    ),
    Cel(
        "spec.rollout.memoryFraction",
        "self.runtime.device != 'Cpu' || !has(self.rollout.memoryFraction)",
        "{self.rollout.memoryFraction} would not be used: on Cpu the KV cache has spec.rollout.maxTotalTokens tokens;"
        " leave it out",
    ),
    Cel(
        "spec.rollout.maxTotalTokens",
        "$imitates"
        f" || self.rollout.?maxTotalTokens.orValue(self.runtime.device == 'Cpu' ? {CPU_KV_TOKENS} : $sampleTokens)"
        " >= $sampleTokens",
        "{has(self.rollout.maxTotalTokens) ? string(self.rollout.maxTotalTokens)"
        f" : 'by default {CPU_KV_TOKENS} on Cpu,'}} is a KV cache too small for one sample of {{$sampleTokens}} tokens;"
        " nearest valid: {$sampleTokens} or more",
    ),
)
def lengths(spec: Spec) -> Iterator[Problem]:
    rollout = spec.rollout
    new, context = rollout.sampling.max_new_tokens, rollout.context_length
    cache = rollout.kv_tokens(spec.runtime.device)
    if context is not None and context <= new:
        rule = f"leaves no room for a prompt beside sampling.maxNewTokens {new}"
        yield Problem("spec.rollout.contextLength", context, rule, f"{new + 1} or more")
    if rollout.memory_fraction is not None and spec.runtime.device is Device.CPU:
        rule = "would not be used: on Cpu the KV cache has spec.rollout.maxTotalTokens tokens; leave it out"
        yield Problem("spec.rollout.memoryFraction", rollout.memory_fraction, rule)
    needed = max(context or 0, new + 1)
    if cache is not None and cache < needed and not spec.imitates:
        given = ABSENT if rollout.max_total_tokens is None else cache
        rule = f"is a KV cache too small for one sample of {needed} tokens"
        told = f"by default {cache} on Cpu, {rule}" if given is ABSENT else rule
        yield Problem("spec.rollout.maxTotalTokens", given, told, f"{needed} or more")


def with_colon_cel(path: str) -> str:
    """Return CEL of a text of the form module:function that a field may mean, or of an empty one."""
    dotted = f"{path}.replace(':', '.')"
    dot = f"{dotted}.lastIndexOf('.')"
    meant = f"{dotted}.substring(0, {dot}) + ':' + {dotted}.substring({dot} + 1)"
    return f"{dot} > 0 && ({meant}).matches('^{FUNCTION.pattern}$') ? {meant} : ''"


IN_SEVERAL_STEPS = {"generate_timeout_seconds": ("generate",), "overflow": ("generate", "tools")}
"""fields of a rollout that only samples in several steps look at, and what makes such samples"""


def in_several_steps_cel(name: str) -> Cel:
    field, ways = Rollout.model_fields[name], IN_SEVERAL_STEPS[name]
    path = f"self.rollout.{field.alias}"
    shown = f'"{{{path}}}"' if isinstance(field.default, str) else f"{{{path}}}"
    near = ", or ".join([f"{field.default}", *(f"spec.rollout.{way}" for way in ways)])
    return Cel(
        f"spec.rollout.{field.alias}",
        f"{' || '.join(f'has(self.rollout.{way})' for way in ways)} || {path} == {value(field.default)}",
        f"{shown} would not be used: no function makes the samples; nearest valid: {near}",
    )


@also_in_cel(
    Cel(
        "spec.rollout.generate",
        f"!has(self.rollout.generate) || self.rollout.generate.matches('^{FUNCTION.pattern}$')",
        '"{self.rollout.generate}" is not of the form module:function',
        (with_colon_cel("self.rollout.generate"),),
    ),
    *map(in_several_steps_cel, IN_SEVERAL_STEPS),
    Cel(
        "spec.rollout.tools",
        "!has(self.rollout.tools) || !has(self.rollout.generate)",
        "would not be offered: spec.rollout.generate makes the samples; leave one of them out",
    ),
    Cel(
        "spec.rollout.tools",
        "!has(self.rollout.tools) || self.data.chatTemplate",
        "cannot be told to the model, nor their results: spec.data.chatTemplate is false",
    ),
    Cel(
        "spec.rollout.tools.functions",
        "!has(self.rollout.tools) || self.rollout.tools.functions.size() > 0",
        f"has no tool; nearest valid: {' or '.join(TOOLS)}, or module:function",
    ),
)
def conversations(spec: Spec) -> Iterator[Problem]:
    given = spec.rollout.generate
    if given is not None and not FUNCTION.fullmatch(given):
        rule = "is not of the form module:function"
        yield Problem("spec.rollout.generate", given, rule, with_colon(given))
    for name, ways in IN_SEVERAL_STEPS.items():
        field, found = Rollout.model_fields[name], getattr(spec.rollout, name)
        if found != field.default and all(getattr(spec.rollout, way) is None for way in ways):
            rule = "would not be used: no function makes the samples"
            nearest = ", or ".join([f"{field.default}", *(f"spec.rollout.{way}" for way in ways)])
            yield Problem(f"spec.rollout.{field.alias}", found, rule, nearest)
    if spec.rollout.tools is None:
        return
    if given is not None:
        rule = "would not be offered: spec.rollout.generate makes the samples; leave one of them out"
        yield Problem("spec.rollout.tools", ABSENT, rule)
    if not spec.data.chat_template:
        rule = "cannot be told to the model, nor their results: spec.data.chatTemplate is false"
        yield Problem("spec.rollout.tools", ABSENT, rule)
    if not spec.rollout.tools.functions:
        nearest = f"{' or '.join(TOOLS)}, or module:function"
        yield Problem("spec.rollout.tools.functions", ABSENT, "has no tool", nearest)


@only_in_python("the API server cannot name an entry of a list: a fieldPath has no index")
def tool_functions(spec: Spec) -> Iterator[Problem]:
    functions = spec.rollout.tools.functions if spec.rollout.tools else ()
    for index, given in enumerate(functions):
        path = f"spec.rollout.tools.functions[{index}]"
        if given not in TOOLS and not FUNCTION.fullmatch(given):
            rule = "is no tool that is known, and not of the form module:function"
            near = closest(given, tuple(TOOLS)) or with_colon(given)
            yield Problem(path, given, rule, near or " or ".join(TOOLS))
        elif given in functions[:index]:
            yield Problem(path, given, "is in the list already")


@also_in_cel(
    Cel(
        "spec.rollout.sampling.topK",
        "self.rollout.sampling.topK != 0",
        "{self.rollout.sampling.topK} is neither -1 (all tokens) nor at least 1; nearest valid: -1",
    ),
)
def top_k(spec: Spec) -> Iterator[Problem]:
    given = spec.rollout.sampling.top_k
    if given == 0:
        yield Problem("spec.rollout.sampling.topK", given, "is neither -1 (all tokens) nor at least 1", "-1")


@also_in_cel(
    Cel(
        "spec.training.optimizer.minLearningRate",
        "self.training.optimizer.minLearningRate <= self.training.optimizer.learningRate",
        "{self.training.optimizer.minLearningRate} is more than learningRate {self.training.optimizer.learningRate};"
        " nearest valid: {self.training.optimizer.learningRate}",
    ),
    Cel(
        "spec.training.optimizer.minLearningRate",
        "self.training.optimizer.minLearningRate == 0.0 || self.training.optimizer.schedule != 'constant'"
        " || self.training.optimizer.minLearningRate > self.training.optimizer.learningRate",
        "{self.training.optimizer.minLearningRate} is never reached: schedule is constant;"
        " nearest valid: 0, or spec.training.optimizer.schedule cosine",
    ),
)
def schedule(spec: Spec) -> Iterator[Problem]:
    optimizer = spec.training.optimizer
    path = "spec.training.optimizer"
    if optimizer.min_learning_rate > optimizer.learning_rate:
        rule = f"is more than learningRate {optimizer.learning_rate}"
        yield Problem(f"{path}.minLearningRate", optimizer.min_learning_rate, rule, str(optimizer.learning_rate))
    elif optimizer.min_learning_rate and optimizer.schedule == "constant":
        rule = "is never reached: schedule is constant"
        yield Problem(f"{path}.minLearningRate", optimizer.min_learning_rate, rule, f"0, or {path}.schedule cosine")


@also_in_cel(
    Cel(
        "spec.training.optimizer.warmupSteps",
        "self.training.optimizer.warmupSteps < $policyRollouts || $policyRollouts < 1 || !$batchesFit"
        " || self.training.optimizer.warmupSteps < $policyRollouts * $steps",
        "{self.training.optimizer.warmupSteps} is not less than the policy's {$policyRollouts * $steps}"
        " optimizer steps; nearest valid: {$policyRollouts * $steps - 1}",
    ),
)
def warmup(spec: Spec) -> Iterator[Problem]:
    derived = batch.derive(batch.request(spec))
    total = spec.policy_rollouts * (derived.steps_per_rollout if derived else 1)
    given = spec.training.optimizer.warmup_steps
    if given >= total > 0 and derived:
        rule = f"is not less than the policy's {total} optimizer steps"
        yield Problem("spec.training.optimizer.warmupSteps", given, rule, str(total - 1))


@also_in_cel(
    Cel(
        "spec.training.tensorParallel",
        "$model < 1 || $ranks % $model == 0",
        "{self.training.tensorParallel} x pipelineParallel {self.training.pipelineParallel} = {$model}"
        " does not divide nodes {self.training.nodes} x gpusPerNode {self.training.gpusPerNode} = {$ranks}",
        (
            near(
                "tensorParallel",
                "self.training.tensorParallel",
                "$ranks % (v * self.training.pipelineParallel) == 0",
                1,
                INT32,
            ),
            near(
                "pipelineParallel",
                "self.training.pipelineParallel",
                "$ranks % (self.training.tensorParallel * v) == 0",
                1,
                INT32,
            ),
            near(
                "gpusPerNode",
                "self.training.gpusPerNode",
                "self.training.nodes * v % $model == 0",
                1,
                MOST_GPUS_PER_NODE,
            ),
        ),
    ),
)
def parallelism(spec: Spec) -> Iterator[Problem]:
    wanted = sizes(spec)
    model, name = wanted.tensor_parallel * wanted.pipeline_parallel, "spec.training.tensorParallel"
    if wanted.ranks % model == 0:
        return
    pipeline = wanted.pipeline_parallel
    gpus = f"nodes {wanted.nodes} x gpusPerNode {wanted.gpus_per_node} = {wanted.ranks}"
    rule = f"x pipelineParallel {pipeline} = {model} does not divide {gpus}"
    yield Problem(name, wanted.tensor_parallel, rule, valid_parallelism(wanted))


def valid_parallelism(wanted: Sizes) -> str | None:
    """Return the closest tensor or pipeline size that divides the learner's GPUs, or the closest number of GPUs."""
    options = [
        f"{name} {near}"
        for name, size, other in (
            ("tensorParallel", wanted.tensor_parallel, wanted.pipeline_parallel),
            ("pipelineParallel", wanted.pipeline_parallel, wanted.tensor_parallel),
        )
        if (near := closest_divisor(wanted.ranks, size, other))
    ]
    model = wanted.tensor_parallel * wanted.pipeline_parallel
    period = model // math.gcd(model, wanted.nodes)
    gpus = max(1, round(wanted.gpus_per_node / period)) * period
    options += [f"gpusPerNode {gpus}"] if gpus <= MOST_GPUS_PER_NODE else []
    return ", or ".join(options) or None


def closest_divisor(ranks: int, size: int, other: int) -> int | None:
    valid = [near for near in batch.divisors(ranks) if ranks % (near * other) == 0]
    return min(valid, key=lambda near: (abs(near - size), near), default=None)


@also_in_cel(*batch.CEL)
def batches(spec: Spec) -> Iterator[Problem]:
    wanted = batch.request(spec)
    if batch.derive(wanted) is None:
        yield batch.problem(wanted)


@also_in_cel(
    Cel(
        "spec.rollout.gpusPerEngine",
        "self.runtime.device != 'Cpu' || self.rollout.gpusPerEngine == 1",
        "{self.rollout.gpusPerEngine} must be 1 on Cpu: SGLang has no tensor parallelism there; nearest valid: 1",
    ),
    Cel(
        "spec.rollout.gpusPerEngine",
        "self.runtime.device == 'Cpu' || self.placement != 'Colocated' || self.rollout.gpusPerEngine < 1"
        " || self.training.gpusPerNode % self.rollout.gpusPerEngine == 0",
        "{self.rollout.gpusPerEngine} does not divide gpusPerNode {self.training.gpusPerNode},"
        " and a colocated engine stays on one of the learner's nodes",
        (
            near(
                "gpusPerEngine",
                "self.rollout.gpusPerEngine",
                "self.training.gpusPerNode % v == 0",
                1,
                MOST_GPUS_PER_NODE,
            ),
        ),
    ),
)
def engines(spec: Spec) -> Iterator[Problem]:
    size, node = spec.rollout.gpus_per_engine, spec.training.gpus_per_node
    path = "spec.rollout.gpusPerEngine"
    if spec.runtime.device is Device.CPU and size != 1:
        yield Problem(path, size, "must be 1 on Cpu: SGLang has no tensor parallelism there", "1")
    elif spec.placement is Placement.COLOCATED and node % size:
        near = closest_divisor(node, size, 1)
        rule = f"does not divide gpusPerNode {node}, and a colocated engine stays on one of the learner's nodes"
        yield Problem(path, size, rule, str(near))


@also_in_cel(
    Cel(
        "spec.rollout.async",
        "!has(self.rollout.async) || self.placement != 'Colocated'",
        "needs GPUs of their own for learner and engines: Colocated ones work in turns;"
        " nearest valid: spec.placement Disaggregated",
    ),
    Cel(
        "spec.rollout.async",
        "!has(self.rollout.async) || !has(self.rollout.generate) && !has(self.rollout.tools)",
        "does not go with spec.rollout.{has(self.rollout.generate) ? 'generate' : 'tools'}: weights would change"
        " between two answers of a sample; nearest valid: leave it out",
    ),
    Cel(
        "spec.rollout.async.updateInterval",
        "!has(self.rollout.async) || self.rollout.async.updateInterval <= self.rollout.async.maxStaleness",
        "{self.rollout.async.updateInterval} is more than maxStaleness {self.rollout.async.maxStaleness}: samples would"
        " be older before there are newer weights; nearest valid: {self.rollout.async.maxStaleness}",
    ),
    Cel(
        "spec.rollout.async.maxStaleness",
        "!has(self.rollout.async) || self.rollout.async.partial"
        " || self.rollout.async.maxStaleness <= self.rollout.async.updateInterval",
        "{self.rollout.async.maxStaleness} would only make samples older: without partial a publication waits for all"
        " that has begun; nearest valid: {self.rollout.async.updateInterval}, or partial true",
    ),
)
def ahead(spec: Spec) -> Iterator[Problem]:
    given = spec.rollout.asynchronous
    if given is None:
        return
    path = "spec.rollout.async"
    if spec.placement is Placement.COLOCATED:
        rule = "needs GPUs of their own for learner and engines: Colocated ones work in turns"
        yield Problem(path, ABSENT, rule, "spec.placement Disaggregated")
    if spec.rollout.generate is not None or spec.rollout.tools is not None:
        other = "tools" if spec.rollout.generate is None else "generate"
        rule = f"does not go with spec.rollout.{other}: weights would change between two answers of a sample"
        yield Problem(path, ABSENT, rule, "leave it out")
    if given.update_interval > given.max_staleness:
        most = given.max_staleness
        rule = f"is more than maxStaleness {most}: samples would be older before there are newer weights"
        yield Problem(f"{path}.updateInterval", given.update_interval, rule, str(most))
    if given.max_staleness > given.update_interval and not given.partial:
        rule = "would only make samples older: without partial a publication waits for all that has begun"
        near = f"{given.update_interval}, or partial true"
        yield Problem(f"{path}.maxStaleness", given.max_staleness, rule, near)


SPECULATIVE = "speculative-algorithm"


@only_in_python("the API server does not see into free mappings")
def carried_over(spec: Spec) -> Iterator[Problem]:
    given = spec.rollout.asynchronous
    if given is not None and given.partial and SPECULATIVE in spec.extra_args.sglang:
        rule = (
            f"would miss the end of a response: spec.extraArgs.sglang.{SPECULATIVE} makes several tokens at once, and"
            " only the last of what was cut off is made again"
        )
        yield Problem("spec.rollout.async.partial", True, rule, "false")


@also_in_cel(
    Cel(
        "spec.weightSync.directory",
        "!$broadcast || !has(self.weightSync.directory)",
        '"{self.weightSync.directory}" would not be used: the transport is Broadcast;'
        " nearest valid: spec.weightSync.transport Disk",
    ),
    Cel(
        "spec.weightSync.bucketMib",
        f"$broadcast || self.weightSync.bucketMib == {WeightSync().bucket_mib}",
        "{self.weightSync.bucketMib} would not be used: the transport is Disk;"
        f" nearest valid: {WeightSync().bucket_mib}",
    ),
    Cel(
        "spec.weightSync.transport",
        "!$broadcast || self.runtime.device != 'Gpu' || self.placement != 'Colocated'",
        '"Broadcast" needs spec.placement Disaggregated: NCCL refuses a learner and an engine on the same GPU;'
        " nearest valid: Disk",
    ),
)
def weight_sync(spec: Spec) -> Iterator[Problem]:
    given, usual = spec.weight_sync, WeightSync()
    if spec.transport == "Broadcast" and given.directory is not None:
        rule = "would not be used: the transport is Broadcast"
        yield Problem("spec.weightSync.directory", given.directory, rule, "spec.weightSync.transport Disk")
    if spec.transport == "Disk" and given.bucket_mib != usual.bucket_mib:
        rule = "would not be used: the transport is Disk"
        yield Problem("spec.weightSync.bucketMib", given.bucket_mib, rule, str(usual.bucket_mib))
    if spec.transport == "Broadcast" and spec.runtime.device is Device.GPU and spec.placement is Placement.COLOCATED:
        rule = "needs spec.placement Disaggregated: NCCL refuses a learner and an engine on the same GPU"
        yield Problem("spec.weightSync.transport", "Broadcast", rule, "Disk")


@also_in_cel(
    Cel(
        "spec.debug.rolloutOnly",
        "!self.debug.rolloutOnly || !has(self.debug.replay)",
        "true leaves nothing to do: spec.debug.replay starts no engine; nearest valid: false",
    ),
    Cel(
        "spec.debug.dumpRollouts",
        "!self.debug.dumpRollouts || !has(self.debug.replay)",
        "true would write again what spec.debug.replay reads; nearest valid: false",
    ),
    Cel(
        "spec.checkpoint.hfExport",
        "!self.debug.rolloutOnly || !self.checkpoint.hfExport",
        "true would export the weights that the run began with: spec.debug.rolloutOnly trains nothing;"
        " nearest valid: false",
    ),
)
def debug(spec: Spec) -> Iterator[Problem]:
    given = spec.debug
    if given.rollout_only and given.replay is not None:
        rule = "leaves nothing to do: spec.debug.replay starts no engine"
        yield Problem("spec.debug.rolloutOnly", True, rule, "false")
    if given.dump_rollouts and given.replay is not None:
        yield Problem("spec.debug.dumpRollouts", True, "would write again what spec.debug.replay reads", "false")
    if given.rollout_only and spec.checkpoint.hf_export:
        rule = "would export the weights that the run began with: spec.debug.rolloutOnly trains nothing"
        yield Problem("spec.checkpoint.hfExport", True, rule, "false")


@also_in_cel(
    Cel(
        "spec.tracking.wandb.apiKeyFile",
        "self.tracking.?wandb.?mode.orValue('online') == 'online' || !has(self.tracking.wandb.apiKeyFile)",
        '"{self.tracking.wandb.apiKeyFile}" would not be read: spec.tracking.wandb.mode is offline; leave it out',
    ),
)
def tracking(spec: Spec) -> Iterator[Problem]:
    given = spec.tracking.wandb
    if given is not None and given.mode == "offline" and given.api_key_file is not None:
        rule = "would not be read: spec.tracking.wandb.mode is offline; leave it out"
        yield Problem("spec.tracking.wandb.apiKeyFile", given.api_key_file, rule)


@only_in_python("the API server does not see into free mappings")
def tracking_key(spec: Spec) -> Iterator[Problem]:
    if "WANDB_API_KEY" in spec.runtime.env:
        rule = "holds WANDB_API_KEY, a secret that everybody sees who sees the manifest"
        yield Problem("spec.runtime.env", ABSENT, rule, "spec.tracking.wandb.apiKeyFile")


@also_in_cel(
    Cel(
        "spec.checkpoint.resumeStep",
        "!has(self.checkpoint.resumeStep) || self.checkpoint.resume != 'Fresh'",
        "{self.checkpoint.resumeStep} is a step to go on from, and spec.checkpoint.resume Fresh goes on from none;"
        " nearest valid: spec.checkpoint.resume Auto",
    ),
    Cel(
        "spec.checkpoint.resumeStep",
        "self.checkpoint.resume == 'Fresh' || self.debug.rolloutOnly"
        " || self.checkpoint.?resumeStep.orValue(0) < self.training.steps",
        "{self.checkpoint.resumeStep} is not less than spec.training.steps {self.training.steps}: nothing would be left"
        " to do; nearest valid: spec.training.steps {self.checkpoint.resumeStep + 1} or more",
    ),
    Cel(
        "spec.checkpoint.resumeStep",
        "!self.debug.rolloutOnly || !has(self.checkpoint.resumeStep)",
        "{self.checkpoint.resumeStep} asks for a checkpoint,"
        " and spec.debug.rolloutOnly trains nothing that could go on",
    ),
    Cel(
        "spec.checkpoint.resume",
        "!self.debug.rolloutOnly || self.checkpoint.resume != 'MustResume'",
        '"{self.checkpoint.resume}" asks for a checkpoint, and spec.debug.rolloutOnly trains nothing that could go on;'
        " nearest valid: Auto",
    ),
)
def resuming(spec: Spec) -> Iterator[Problem]:
    step, wish = spec.checkpoint.resume_step, spec.checkpoint.resume
    path, for_nothing = "spec.checkpoint.resumeStep", "and spec.debug.rolloutOnly trains nothing that could go on"
    needless = wish is Resume.FRESH or spec.debug.rollout_only
    if step is not None and wish is Resume.FRESH:
        rule = "is a step to go on from, and spec.checkpoint.resume Fresh goes on from none"
        yield Problem(path, step, rule, "spec.checkpoint.resume Auto")
    if step is not None and step >= spec.training.steps and not needless:
        rule = f"is not less than spec.training.steps {spec.training.steps}: nothing would be left to do"
        yield Problem(path, step, rule, f"spec.training.steps {step + 1} or more")
    if step is not None and spec.debug.rollout_only:
        yield Problem(path, step, f"asks for a checkpoint, {for_nothing}")
    if wish is Resume.MUST and spec.debug.rollout_only:
        yield Problem("spec.checkpoint.resume", wish.value, f"asks for a checkpoint, {for_nothing}", "Auto")


@only_in_python("the API server does not see into free mappings")
def volume_mounts(spec: Spec) -> Iterator[Problem]:
    known = [str(volume.get("name")) for volume in spec.runtime.volumes]
    for index, mount in enumerate(spec.runtime.volume_mounts):
        path, name = f"spec.runtime.volumeMounts[{index}]", str(mount.get("name"))
        if name not in known:
            yield Problem(f"{path}.name", name, "is no volume of spec.runtime.volumes", closest(name, tuple(known)))
        if not str(mount.get("mountPath", "")).startswith("/"):
            yield Problem(f"{path}.mountPath", mount.get("mountPath", ABSENT), "is no absolute path")


@only_in_python("the API server does not see into free mappings")
def resources(spec: Spec) -> Iterator[Problem]:
    for name in ("headResources", "workerResources"):
        path, given = f"spec.runtime.{name}", getattr(spec.runtime, attribute(Runtime, name))
        for kind, amounts in given.items():
            if kind not in RESOURCES:
                yield Problem(f"{path}.{kind}", ABSENT, "unknown field", closest(kind, RESOURCES))
            elif kind != "claims":
                yield from amounts_of(f"{path}.{kind}", amounts)


def amounts_of(path: str, given: object) -> Iterator[Problem]:
    if not isinstance(given, Mapping):
        yield Problem(path, given, "is no mapping of resources to amounts", "{cpu: 2, memory: 8Gi}")
        return
    for resource, amount in given.items():
        if resource == GPU:
            rule = "is counted from the placement: training.gpusPerNode and rollout.gpusPerEngine"
            yield Problem(f"{path}[{resource}]", amount, rule)
        elif isinstance(amount, bool) or not QUANTITY.fullmatch(str(amount)):
            unit = re.fullmatch(r"([0-9.]+) *([KMGTPEkmgtpe]?)i?[Bb]?", str(amount))
            near = f"{unit[1]}{unit[2].upper()}{'i' * bool(unit[2])}" if unit else None
            yield Problem(f"{path}.{resource}", amount, "is no quantity of Kubernetes", near)


@only_in_python("arguments are those of the installed SGLang and Megatron-core, and CEL cannot see into a free mapping")
def extra_arguments(spec: Spec) -> Iterator[Problem]:
    yield from arguments.problems("sglang", spec.extra_args.sglang)
    yield from arguments.problems("megatron", spec.extra_args.megatron)


RULES: tuple[Rule, ...] = (
    checkpoint,
    sources,
    tasks,
    held_out,
    evaluation_sets,
    columns,
    templates,
    some_reward,
    beside_parts,
    reward,
    reward_without_effect,
    remote_reward,
    headers,
    reward_parts,
    parts_together,
    exact_reward,
    task_reward,
    algorithm,
    teacher,
    imitation,
    imitation_in_python,
    clipping,
    on_policy,
    critic,
    overlong,
    dynamic_sampling,
    lengths,
    conversations,
    tool_functions,
    top_k,
    parallelism,
    batches,
    schedule,
    warmup,
    engines,
    ahead,
    carried_over,
    watching,
    weight_sync,
    debug,
    tracking,
    tracking_key,
    resuming,
    volume_mounts,
    resources,
    extra_arguments,
)


CLUSTER_ONLY = (
    "spec.runtime.image",
    "spec.runtime.imagePullPolicy",
    "spec.runtime.imagePullSecrets",
    "spec.runtime.volumes",
    "spec.runtime.volumeMounts",
    "spec.runtime.headResources",
    "spec.runtime.workerResources",
    "spec.scheduling.suspend",
    "spec.scheduling.activeDeadlineSeconds",
    "spec.scheduling.ttlSecondsAfterFinished",
    "spec.scheduling.nodeSelector",
    "spec.scheduling.tolerations",
    "spec.scheduling.priorityClassName",
)
"""fields that mean something in a cluster only; `rljob run` says so of those that are set"""


LEARNER_ONLY = (
    *(
        f"spec.algorithm.{field.alias}"
        for name, field in Algorithm.model_fields.items()
        if name not in ("dynamic_sampling", "overlong")
    ),
    "spec.rollout.async",
    "spec.training.stepsPerRollout",
    "spec.training.globalBatchSize",
    "spec.training.nodes",
    "spec.training.tensorParallel",
    "spec.training.pipelineParallel",
    "spec.training.maxTokensPerGpu",
    "spec.weightSync.transport",
    "spec.weightSync.directory",
    "spec.weightSync.bucketMib",
    "spec.checkpoint.interval",
    "spec.checkpoint.keep",
    "spec.watch.entropyShare",
    "spec.watch.gradientSpike",
    "spec.watch.nonFinite",
    "spec.watch.mismatch",
    "spec.watch.staleness",
    "spec.watch.dataWait",
    "spec.extraArgs.megatron",
)
"""fields that only a run with a learner looks at; they may stay, so that one field turns debug.rolloutOnly on"""
ENGINES_ONLY = (
    "spec.rollout.engines",
    "spec.rollout.gpusPerEngine",
    "spec.rollout.memoryFraction",
    "spec.rollout.routerPolicy",
    "spec.rollout.requestTimeoutSeconds",
    "spec.rollout.generateTimeoutSeconds",
    *(f"spec.weightSync.{field.alias}" for field in WeightSync.model_fields.values()),
    *(f"spec.evaluation.{field.alias}" for field in Evaluation.model_fields.values()),
    "spec.recovery.engineRestarts",
    "spec.watch.dataWait",
    "spec.extraArgs.sglang",
)
"""fields that only a run with engines looks at, and that say nothing about the samples that they made"""


def only_in_a_cluster(spec: Spec) -> tuple[str, ...]:
    """Return the fields that are set and that a run on one machine does not look at."""
    return tuple(path for path in CLUSTER_ONLY if is_set(spec, tuple(path.split("."))[1:]))


def left_out(spec: Spec) -> tuple[str, ...]:
    """Return the fields that are set and that `spec.debug` leaves without effect."""
    unread = (*(LEARNER_ONLY if not spec.debug.learner else ()), *(ENGINES_ONLY if not spec.debug.engines else ()))
    return tuple(path for path in unread if is_set(spec, tuple(path.split("."))[1:]))


def is_set(spec: Spec, path: tuple[str, ...]) -> bool:
    section, name = path
    part: Section = getattr(spec, attribute(type(spec), section))
    field = attribute(type(part), name)
    return bool(getattr(part, field) != type(part).model_fields[field].get_default(call_default_factory=True))


def attribute(section: type[Section], name: str) -> str:
    """Return what a field is called in Python."""
    return next(key for key, info in section.model_fields.items() if info.alias == name)
