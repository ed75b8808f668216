"""What must hold for `algorithm.name: distillation` and its teacher; `rules.py` has the other rules."""

import difflib
from collections.abc import Iterator

from rljob_api.algorithms import DISTILLATION
from rljob_api.cel import Cel, also_in_cel
from rljob_api.errors import ABSENT, Problem
from rljob_api.sections import Spec
from rljob_api.shapes import KNOWN, TEACHER

IS_CHOSEN = f"self.algorithm.name == '{DISTILLATION}'"
NEEDS_A_TEACHER = f"is missing: {DISTILLATION} learns from it; set its checkpoint"
KL_OF_TEACHER = f"would be a second divergence: {DISTILLATION} has that from its teacher; leave it out"
UNUSED_REWARD = "would change a reward that is only measured"
WEIGHTED = "spec.algorithm.teacher.rewardCoefficient above 0"


@also_in_cel(
    Cel("spec.algorithm.teacher", f"!({IS_CHOSEN}) || has(self.algorithm.teacher)", NEEDS_A_TEACHER),
    Cel(
        "spec.algorithm.teacher",
        f"{IS_CHOSEN} || !has(self.algorithm.teacher)",
        "would not be asked: spec.algorithm.name is {self.algorithm.name};"
        f" nearest valid: spec.algorithm.name {DISTILLATION}",
    ),
    Cel(
        TEACHER,
        f"!self.algorithm.?teacher.hasValue() || !self.algorithm.teacher.checkpoint.contains('://')"
        f" || self.algorithm.teacher.checkpoint in {list(KNOWN)}",
        '"{self.algorithm.teacher.checkpoint}" is not a directory, and no package is known by this name'
        " (scheme {self.algorithm.teacher.checkpoint.split('://')[0]});"
        f" nearest valid: {' or '.join(KNOWN)} or a directory",
    ),
    Cel("spec.algorithm.kl", f"!({IS_CHOSEN}) || !has(self.algorithm.kl)", KL_OF_TEACHER),
    Cel(
        "spec.algorithm.overlong",
        f"!({IS_CHOSEN}) || !has(self.algorithm.overlong) || !has(self.algorithm.teacher)"
        " || self.algorithm.teacher.rewardCoefficient > 0.0",
        f"{UNUSED_REWARD}; nearest valid: {WEIGHTED}",
    ),
)
def teacher(spec: Spec) -> Iterator[Problem]:
    given, name = spec.algorithm.teacher, spec.algorithm.name
    if name != DISTILLATION:
        if given is not None:
            rule = f"would not be asked: spec.algorithm.name is {name}"
            yield Problem("spec.algorithm.teacher", ABSENT, rule, f"spec.algorithm.name {DISTILLATION}")
    elif given is None:
        yield Problem("spec.algorithm.teacher", ABSENT, NEEDS_A_TEACHER)
    if given is not None:
        yield from unknown_package(given.checkpoint)
    if name == DISTILLATION and spec.algorithm.kl is not None:
        yield Problem("spec.algorithm.kl", ABSENT, KL_OF_TEACHER)
    if name == DISTILLATION and spec.algorithm.overlong is not None and given and not given.reward_coefficient:
        yield Problem("spec.algorithm.overlong", ABSENT, UNUSED_REWARD, WEIGHTED)


def unknown_package(checkpoint: str) -> Iterator[Problem]:
    scheme, separator, _ = checkpoint.partition("://")
    if separator and checkpoint not in KNOWN:
        rule = f"is not a directory, and no package is known by this name (scheme {scheme})"
        close = difflib.get_close_matches(checkpoint, KNOWN, n=1, cutoff=0.4)
        yield Problem(TEACHER, checkpoint, rule, close[0] if close else "a directory")
