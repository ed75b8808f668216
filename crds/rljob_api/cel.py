"""Rules that the API server judges by itself, in CEL, beside the Python that says the same.

`rules.py` puts a `Cel` on each rule that needs only the object, `crd.py` writes them into the CRD. A test has both
judge the same manifests. CEL has no variables, so what several rules compute has a name in `SHORT`, written `$name`.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from rljob_api.algorithms import SFT
from rljob_api.errors import LONGEST_VALUE, Problem
from rljob_api.sections import Section, Spec

Judge = Callable[[Spec], Iterator[Problem]]

# Zeros and negative numbers are refused by the schema, but not before CEL has met them: no division may fail on one.
SHORT = {
    "imitates": f"self.algorithm.name == '{SFT}'",
    "perPrompt": "($imitates ? 1 : self.rollout.samplesPerPrompt)",
    "samples": "(self.rollout.promptsPerStep * $perPrompt)",
    "ranks": "(self.training.nodes * self.training.gpusPerNode)",
    "model": "(self.training.tensorParallel * self.training.pipelineParallel)",
    "dataParallel": "($model > 0 && $ranks > $model ? $ranks / $model : 1)",
    "globalBatch": "self.training.?globalBatchSize.orValue(0)",
    "stepsPerRollout": "self.training.?stepsPerRollout.orValue(0)",
    "steps": "($stepsPerRollout > 0 ? $stepsPerRollout : $globalBatch > 0 ? $samples / $globalBatch : 1)",
    "batch": "($globalBatch > 0 ? $globalBatch : $samples / $steps)",
    "batchesFit": "($batch * $steps == $samples && $batch >= $dataParallel)",
    "generated": "(has(self.data.train.reasoningGym) || self.data.?heldOut.?reasoningGym.hasValue()"
    " || self.data.evaluationSets.exists(s, has(s.reasoningGym)))",
    "broadcast": "(has(self.weightSync.transport) ? self.weightSync.transport == 'Broadcast'"
    " : self.placement == 'Disaggregated')",
    "ratioToEngines": "(has(self.rollout.async) && !has(self.algorithm.importanceSampling))",
    "kind": "self.reward.?kind.orValue('')",
    "function": "self.reward.__function__",
    "dotted": "$function.replace(':', '.')",
    "dot": "$dotted.lastIndexOf('.')",
    "moduleAndName": "$dotted.substring(0, $dot) + ':' + $dotted.substring($dot + 1)",
    "criticOnly": "self.algorithm.?critic.?warmupSteps.orValue(0)",
    "policyRollouts": "(self.training.steps - $criticOnly)",
    "new": "self.rollout.sampling.maxNewTokens",
    "sampleTokens": "(self.rollout.?contextLength.orValue(0) > $new ? self.rollout.contextLength : $new + 1)",
}
"""what rules compute more than once; 0 stands for a batch or a number of steps that is left to be derived"""

OFFSETS = [*range(1, 33)]
"""how far CEL looks for the nearest valid number; Python looks further"""


@dataclass(frozen=True, slots=True)
class Cel:
    """One claim about a spec, in CEL where `self` is the spec."""

    field: str
    """the field at fault when it does not hold, `spec.algorithm.clipLow`"""
    holds: str
    says: str
    """the rest of the sentence that begins with the field; `{...}` holds CEL, `"{...}"` CEL of a text"""
    nearest: tuple[str, ...] = ()
    """CEL of texts such as `stepsPerRollout 2 or 4`, each to be told unless it is empty"""

    @property
    def rule(self) -> str:
        return expanded(self.holds)

    @property
    def message(self) -> str:
        """Return the CEL of the sentence that Python's `Problem` has after its field."""
        return expanded(sentence(self.says, self.nearest))


@dataclass(frozen=True, slots=True)
class Rule:
    """One function from a spec to its problems, and who else can judge it."""

    judge: Judge
    cel: tuple[Cel, ...] = ()
    """what the API server judges; empty: only Python can"""
    only_python: str = ""
    """why"""

    @property
    def __name__(self) -> str:
        return self.judge.__name__

    def __call__(self, spec: Spec) -> Iterator[Problem]:
        return self.judge(spec)


def also_in_cel(*cel: Cel) -> Callable[[Judge], Rule]:
    """Mark a rule that the API server judges too."""
    return lambda judge: Rule(judge, cel)


def only_in_python(reason: str) -> Callable[[Judge], Rule]:
    """Mark a rule that the API server cannot judge."""
    return lambda judge: Rule(judge, only_python=reason)


def expanded(text: str) -> str:
    """Return CEL without names of `SHORT`."""
    while (wider := re.sub(r"\$(\w+)", lambda found: SHORT[found[1]], text)) != text:
        text = wider
    return text


PART = re.compile(r"""("?)\{((?:[^{}']|'[^']*')*)\}("?)""")


def sentence(text: str, nearest: tuple[str, ...] = ()) -> str:
    """Return CEL that makes a text: `{self.seed} is odd` -> `'%s is odd'.format([self.seed])`.

    One `format` and no `+`: the API server takes a text that was put together for endless, and refuses to work on it.
    """
    values = [cut(found[2]) if found[1] else found[2] for found in PART.finditer(text)]
    template = PART.sub("%s", text.replace("%", "%%")) + ("%s" if nearest else "")
    return f"{literal(template)}.format([{', '.join([*values, *tail(nearest)])}])"


def plain(text: str) -> str:
    """Return a sentence with an ellipsis for every value, for where there are none."""
    return PART.sub(lambda found: found[2].strip("'") if found[2].startswith("'") else "…", text)


def cut(text: str) -> str:
    """Return CEL for a text in quotes and not too long, as `errors.shown` has it."""
    whole, part = f"'\"%s\"'.format([{text}])", f"'\"%s…'.format([{text}.substring(0, {LONGEST_VALUE - 1})])"
    return f"{text}.size() > {LONGEST_VALUE - 2} ? {part} : {whole}"


def tail(nearest: tuple[str, ...]) -> list[str]:
    """Return CEL of `; nearest valid: A, or B` from those texts that are not empty."""
    if not nearest:
        return []
    ways = [literal(f"; nearest valid: {', or '.join(['%s'] * count)}") for count in range(1, len(nearest) + 1)]
    told = " : ".join(f"t.size() == {count} ? {way}.format(t)" for count, way in enumerate(ways, 1))
    return [f"[[{', '.join(nearest)}].filter(n, n != '')].map(t, {told} : '')[0]"]


def literal(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def near(name: str, now: str, valid: str, least: int, most: int) -> str:
    """Return CEL for the closest valid values of a field, below and above, as a text that is empty if there is none.

    `valid` is a claim about `v`, and `now` the present value.
    """
    side = f"{OFFSETS}.map(d, {now} + s * d).filter(v, v >= {least} && v <= {most} && ({valid}))"
    found = f"[-1, 1].map(s, {side}).filter(l, l.size() > 0).map(l, l[0])"
    said = f"f.size() == 2 ? '{name} %s or %s'.format(f) : f.size() == 1 ? '{name} %s'.format(f) : ''"
    return f"[{found}].map(f, {said})[0]"


def differs(one: str, other: str) -> str:
    """Return the claim that two fields, which may be absent and of different types, differ."""
    return f"(has({one}) ? !has({other}) || dyn({one}) != dyn({other}) : has({other}))"


def is_default(path: str, section: Section) -> str:
    """Return the claim that a section without optional fields has the given values, which are its defaults."""
    values = section.model_dump(mode="json", by_alias=True)
    return " && ".join(f"{path}.{name} == {value(given)}" for name, given in values.items())


def in_cel(name: str) -> str:
    """Return the name of a field as CEL wants it: some are words of the language."""
    return f"__{name}__" if name in ("function",) else name


def value(given: object) -> str:
    match given:
        case bool():
            return str(given).lower()
        case str():
            return literal(given)
        case _:
            return str(given)
