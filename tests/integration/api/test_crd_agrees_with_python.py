"""Thousands of manifests, judged by a real API server and by Python: they must say the same."""

import copy
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache

import pytest
from pydantic import ValidationError

from rljob_api.errors import ManifestError, Problem
from rljob_api.generated import crd
from rljob_api.reading.document import document
from rljob_api.reading.manifest import as_json, parse, path_text
from rljob_api.rules import registry
from rljob_api.rules.cel import plain
from rljob_api.rules.pod_types import CLAIMS
from rljob_api.rules.pods import types_of_kubernetes
from rljob_api.sections import RLJob
from support.api.bad_manifests import cases
from support.api.judged_rljobs import Answer, Manifest, RLJobs
from support.api.random_manifests import NUMBERS, manifests, put

NUMBER_OF_MANIFESTS = 2000
"""a minute; `make soak` takes more, with another seed. Some rules are rarely broken: 1,000 are too few"""
TYPED = ("spec.scheduling.tolerations", "spec.runtime.volumes", "spec.runtime.volumeMounts")
"""lists whose entries have a type of Kubernetes, for the API server, too; random manifests set only their scalars"""
CLAIMED = {claim.says for claims in CLAIMS.values() for claim in claims}


@dataclass(frozen=True)
class Expected:
    """What Python says of a manifest."""

    job: RLJob | None
    """None: a field by itself is wrong, and rules were not asked"""
    unknown: frozenset[str] = frozenset()
    """fields that no schema has"""
    wrong: frozenset[str] = frozenset()
    """fields that a schema refuses"""
    said: tuple[tuple[str, str], ...] = ()
    """what those rules say that the API server has too: fields with sentences, without the nearest valid value"""


def expected(content: Manifest) -> Expected:
    try:
        job = RLJob.model_validate_json(as_json(content), strict=True, by_alias=True, by_name=False)
    except ValidationError as error:
        found = error.errors(include_url=False)
        unknown = {path_text(each["loc"]) for each in found if each["type"] == "extra_forbidden"}
        return Expected(None, frozenset(unknown), frozenset({path_text(each["loc"]) for each in found} - unknown))
    of_pods = [problem for problem in types_of_kubernetes(job.spec) if problem.field.startswith(TYPED)]
    by_claims = [problem for problem in of_pods if problem.rule in CLAIMED]
    if wrong := frozenset(problem.field for problem in of_pods if problem not in by_claims):
        return Expected(None, wrong=wrong)
    problems = [*by_claims, *(problem for rule in registry.RULES if rule.cel for problem in rule(job.spec))]
    return Expected(job, said=tuple(sorted((problem.field, comparable(sentence(problem))) for problem in problems)))


def sentence(problem: Problem) -> str:
    return str(problem).removeprefix(f"{problem.field}: ")


def comparable(text: str) -> str:
    """Return a sentence without what may differ: the nearest valid value, and `2.0` for `2`."""
    said = text.partition("; nearest valid: ")[0]
    return re.sub(r"\d+\.?\d*(e[-+]?\d+)?", lambda found: repr(float(found[0])), said)


@cache
def unknown_in(message: str) -> frozenset[str]:
    return frozenset(re.findall(r'unknown field "([^"]*)"', message))


def disagreement(content: Manifest, answer: Answer) -> str | None:
    """Return in which way the API server and Python disagree about a manifest, or None."""
    python = expected(content)
    if python.unknown:
        same = unknown_in(answer.message) == python.unknown
        return None if same else f"unknown: {sorted(python.unknown)}, but {answer.message}"
    fields = {field for field, _ in answer.causes}
    if python.wrong:
        # The name is for CEL to judge, and CEL is not asked when some field has the wrong type.
        missed = (python.wrong - {"metadata.name"} or python.wrong) - fields
        failed = [said for _, said in answer.causes if "evaluating rule" in said]
        return f"missed {sorted(missed)}, failed {failed}" if missed or failed or answer.stored else None
    said = tuple(sorted((field, comparable(message)) for field, message in answer.causes))
    if said != python.said or (answer.stored is None) != bool(said):
        return f"Python: {python.said}\nserver: {said or answer.message}"
    return None


@pytest.fixture(scope="module")
def judged(rljobs: RLJobs) -> list[tuple[Manifest, Answer]]:
    contents = list(manifests(NUMBER_OF_MANIFESTS))
    with ThreadPoolExecutor(4) as pool:
        return list(zip(contents, pool.map(rljobs.judge, contents), strict=True))


@pytest.mark.timeout(900)
def test_the_api_server_and_python_say_the_same_of_every_manifest(judged: list[tuple[Manifest, Answer]]):
    found = [said for content, answer in judged if (said := disagreement(content, answer))]

    assert found == []


def test_both_verdicts_are_common(judged: list[tuple[Manifest, Answer]]):
    accepted = sum(answer.stored is not None for _, answer in judged)

    assert 0.3 < accepted / len(judged) < 0.7


def test_every_rule_of_the_api_server_has_refused_some_manifest(judged: list[tuple[Manifest, Answer]], rljobs: RLJobs):
    answers = [answer for _, answer in judged] + [rljobs.judge(content) for content in known_bad()]
    said = [f"{field}: {message}" for answer in answers for field, message in answer.causes]
    silent = [claim.field for claim in (*crd.claims(), crd.NAME) if not any(re.search(pattern(claim), t) for t in said)]

    assert silent == []


def known_bad() -> Iterator[Manifest]:
    """Yield the bad manifests of the table that are readable: random ones may miss a rule."""
    for case in cases():
        try:
            content = document(case.text)
        except ManifestError:
            continue
        if isinstance(content.get("spec"), dict) and content.get("kind") == crd.KIND:
            yield dict(content)


def pattern(claim: crd.Cel) -> str:
    says = claim.says.removeprefix(f"{claim.field}: ")
    words = ".*".join(re.escape(part) for part in plain(says).split("…"))
    return f"^{re.escape(claim.field)}: .*{words}"


def test_a_stored_object_is_the_manifest_with_the_defaults_of_the_models(judged: list[tuple[Manifest, Answer]]):
    stored = [(answer.stored, parse_or_none(content)) for content, answer in judged if answer.stored]
    different = [
        (object["spec"], job)
        for object, job in stored
        if job and object["spec"] != job.spec.model_dump(mode="json", by_alias=True, exclude_none=True)
    ]

    assert different == []
    assert len(stored) > 500


def parse_or_none(content: Manifest) -> RLJob | None:
    """Return the job, or None where a rule refuses it that only Python has."""
    try:
        return parse(content)
    except ManifestError:
        return None


def test_a_suggestion_of_the_api_server_is_accepted(judged: list[tuple[Manifest, Answer]], rljobs: RLJobs):
    mended = [one for content, answer in judged for one in suggestions(content, answer)][:300]

    repeated = [(field, said) for field, content in mended for at, said in rljobs.judge(content).causes if at == field]

    assert len(mended) == 300
    assert repeated == []


def suggestions(content: Manifest, answer: Answer) -> Iterator[tuple[str, Manifest]]:
    """Yield fields with the manifest after each change of a number that the API server suggests for them.

    Nothing of a manifest with fields that are wrong by themselves, or that is_sft: there it is to be left out.
    """
    job = expected(content).job
    if job is None or job.spec.is_sft:
        return
    for field, message in answer.causes:
        for name, *values in re.findall(r"(\w+) (\d+)(?: or (\d+))?", message.partition("; nearest valid: ")[2]):
            for value in filter(None, values if name in PATHS else ()):
                changed = copy.deepcopy(content)
                put(changed, PATHS[name], int(value))
                yield field, changed


PATHS = {path.rpartition(".")[2]: path for path in NUMBERS}
