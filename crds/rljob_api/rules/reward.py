"""Rules of `spec.reward`: of the one reward, and of each of several, which is judged as if it were the only one."""

import re
from collections.abc import Iterator

from rljob_api.credentials import WITH_SECRET
from rljob_api.errors import ABSENT, Problem
from rljob_api.rules.batches import is_sft
from rljob_api.rules.claims import FREE_MAPPING, elsewhere, needs, only_in_python, requires, unused
from rljob_api.rules.names import FUNCTION, colon_in
from rljob_api.rules.terms import (
    SPEC,
    any_of,
    as_term,
    exists,
    fields_of,
    has,
    matches,
    one_of,
    or_else,
    size,
    starts_with,
    when,
)
from rljob_api.sections import Judging, Remote, RewardKind, Spec

data, reward = SPEC.data, SPEC.reward
kind = or_else(reward.kind, "")
"""empty: several rewards, each with its own kind"""
one_reward = size(reward.parts) == 0
EXACT = (RewardKind.MATH, RewardKind.EXACT_MATCH)
BY_LABEL = (*EXACT, RewardKind.F1)
USED_BY = {
    "judges": (RewardKind.PYTHON,),
    "timeout_seconds": (RewardKind.PYTHON, RewardKind.MATH, RewardKind.REMOTE),
    "memory_mib": (RewardKind.PYTHON, RewardKind.MATH),
    "concurrency": (RewardKind.PYTHON, RewardKind.REMOTE),
    "sandbox": (RewardKind.PYTHON,),
    "secret_env": (RewardKind.PYTHON,),
    "failure_score": (RewardKind.PYTHON, RewardKind.MATH, RewardKind.REMOTE),
}
"""fields of a reward that only some kinds read"""

FUNCTIONS = (
    needs(reward.function, kind != RewardKind.PYTHON, f"is missing: kind {RewardKind.PYTHON} needs `module:function`"),
    requires(
        reward.function,
        (kind != RewardKind.PYTHON) | ~has(reward.function) | matches(reward.function, FUNCTION),
        "is not of the form module:function",
        nearest=colon_in(reward.function),
    ),
    unused(
        reward.function,
        one_of(kind, ("", RewardKind.PYTHON)),
        f"would not be called: spec.reward.kind is {kind}; nearest valid: spec.reward.kind {RewardKind.PYTHON}",
    ),
)
SETTINGS = tuple(
    unused(
        getattr(reward, name),
        one_of(kind, ("", *kinds)),
        f"would not be used: spec.reward.kind is {kind}; nearest valid: spec.reward.kind {' or '.join(kinds)}",
    )
    for name, kinds in USED_BY.items()
)
HEADERS = "spec.reward.remote.headersFromEnv or headersFromFile"
SECRETS = unused(
    reward.secret_env,
    ~has(reward.sandbox),
    f"would not be passed on: a sandbox does not get the environment of the run; leave it out, or {reward.sandbox.at}",
)
SERVICE = (
    needs(reward.remote, kind != RewardKind.REMOTE, f"is missing: kind {RewardKind.REMOTE} needs its `url`"),
    unused(
        reward.remote,
        one_of(kind, ("", RewardKind.REMOTE)),
        f"would not be called: spec.reward.kind is {kind}; nearest valid: spec.reward.kind {RewardKind.REMOTE}",
    ),
    requires(
        reward.remote.url,
        any_of(~has(reward.remote), *(starts_with(reward.remote.url, scheme) for scheme in ("http://", "https://"))),
        "does not begin with http:// or https://",
    ),
    requires(
        reward.remote.url,
        ~has(reward.remote) | ~matches(reward.remote.url, WITH_SECRET),
        f"holds a password or token, which all readers of the manifest see; nearest valid: {HEADERS}",
        shows=False,
    ),
)
THRESHOLD = unused(
    reward.threshold, ~one_of(kind, EXACT), f"would change nothing: spec.reward.kind {kind} gives 0 or 1; leave it out"
)
held_out_is_generated = ~has(data.held_out) | has(data.held_out.reasoning_gym)
without_verifier = when(
    has(data.train.reasoning_gym),
    "spec.data.heldOut",
    when(held_out_is_generated, "spec.data.train", "spec.data.train and spec.data.heldOut"),
)
TASK = (
    requires(
        reward.kind,
        (kind != RewardKind.TASK) | (has(data.train.reasoning_gym) & held_out_is_generated),
        f"needs questions of reasoning-gym and their verifier, also in {without_verifier}"
        f"; nearest valid: {RewardKind.MATH} or {RewardKind.EXACT_MATCH}",
        shows=as_term(RewardKind.TASK),
    ),
    unused(
        data.metadata_key,
        kind != RewardKind.TASK,
        f"would replace the metadata that the verifier of spec.reward.kind {RewardKind.TASK} needs; leave it out",
    ),
)


HEADER = re.compile(r"[-!#$%&'*+.^_`|~0-9A-Za-z]+")
"""a token: RFC 9110, 5.6.2"""


@only_in_python(FREE_MAPPING)
def headers(spec: Spec) -> Iterator[Problem]:
    for path, given in judgings(spec):
        if given.remote is not None:
            yield from service_headers(f"{path}.remote", given.remote, spec)


def service_headers(path: str, given: Remote, spec: Spec) -> Iterator[Problem]:
    for field, headers_of in (("headersFromEnv", given.headers_from_env), ("headersFromFile", given.headers_from_file)):
        for name in headers_of:
            if not HEADER.fullmatch(name):
                near = re.sub(r"[^-A-Za-z0-9]+", "-", name).strip("-") or None
                yield Problem(f"{path}.{field}", name, "is not the name of an HTTP header", near)
    known = {name.lower() for name in given.headers_from_env}
    for name, variable in given.headers_from_env.items():
        if variable in spec.runtime.texts:
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
        alone = spec.model_copy(update={"reward": part})
        yield from elsewhere((*FUNCTIONS, *SETTINGS, SECRETS, *SERVICE, THRESHOLD, *TASK), alone, reward.at, path)


RULES = (
    requires(
        reward.kind,
        any_of(is_sft, kind != "", size(reward.parts) > 0, has(SPEC.rollout.agent)),
        "is missing; set it, or spec.reward.parts for several rewards",
        shows=False,
    ),
    *(
        unused(each, one_reward, "would not be used: each of spec.reward.parts has its own", shows=False)
        for each in fields_of(reward, *Judging.model_fields)
    ),
    *FUNCTIONS,
    *SETTINGS,
    SECRETS,
    *SERVICE,
    headers,
    reward_parts,
    requires(
        reward.parts,
        one_reward | exists(reward.parts, "p", lambda part: part.weight != 0),
        "have weight 0, all of them: there would be nothing to train on",
    ),
    requires(
        data.metadata_key,
        one_reward | ~has(data.metadata_key) | exists(reward.parts, "p", lambda part: ~one_of(part.kind, BY_LABEL)),
        "would not be read: all of spec.reward.parts judge by the label alone; leave it out",
    ),
    THRESHOLD,
    unused(
        data.metadata_key,
        ~one_of(kind, BY_LABEL),
        f"would not be read: spec.reward.kind {kind} judges by the label alone; leave it out",
    ),
    *TASK,
)
