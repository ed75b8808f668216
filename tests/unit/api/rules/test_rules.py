"""Every rule: what it reads exists, what it prints is what it judges, and some manifest breaks it."""

import re
from dataclasses import replace
from functools import cache

import pytest
import yaml
from pydantic import ValidationError

from rljob_api.errors import ManifestError, Problem
from rljob_api.generated import crd
from rljob_api.reading import field_lookup
from rljob_api.reading.document import document
from rljob_api.reading.manifest import as_json
from rljob_api.rules import registry
from rljob_api.rules.claims import NEAREST, Rule
from rljob_api.sections import INT32, RLJob, Spec
from support.api.bad_manifests import cases
from support.api.cel_reader import MACROS, METHODS, read
from support.api.random_manifests import NUMBERS, Manifest, manifests, put
from support.tables import each_of

NUMBER_OF_MANIFESTS = 2000
IN_CEL = [rule for rule in registry.RULES if rule.cel]
PATH = re.compile(r"\bself((?:\.\??\w+)+)")
PATHS = {path.rpartition(".")[2]: path for path in NUMBERS}


@cache
def specs() -> tuple[Spec, ...]:
    """Return the specs of random and of bad manifests, as far as each field by itself is valid."""
    known = [found for case in cases() if (found := spec_of(document_or_empty(case.text)))]
    return (*known, *(found for content in manifests(NUMBER_OF_MANIFESTS) if (found := spec_of(content))))


def document_or_empty(text: str) -> Manifest:
    try:
        return dict(document(text))
    except ManifestError:
        return {}


def spec_of(content: Manifest) -> Spec | None:
    try:
        return RLJob.model_validate_json(as_json(content), strict=True, by_alias=True, by_name=False).spec
    except (ValidationError, ManifestError):
        return None


@cache
def as_stored() -> tuple[Manifest, ...]:
    """Return them as an API server has them, defaults filled in."""
    return tuple({"self": spec.model_dump(mode="json", by_alias=True, exclude_none=True)} for spec in specs())


@each_of(IN_CEL, lambda rule: rule.name)
def test_a_rule_judges_every_manifest_as_the_cel_that_it_prints(rule: Rule):
    (claim,) = rule.cel
    holds = read(claim.holds)

    different = [
        spec for spec, stored in zip(specs(), as_stored(), strict=True) if holds(stored) is bool(list(rule(spec)))
    ]

    assert different == []


@each_of(registry.RULES, lambda rule: rule.name)
def test_some_manifest_breaks_a_rule_and_another_keeps_it(rule: Rule):
    assert {bool(list(rule(spec))) for spec in specs()} == {True, False}


@each_of(IN_CEL, lambda rule: rule.name)
def test_what_a_rule_suggests_would_keep_it(rule: Rule):
    mended = [changed for spec in specs() for problem in rule(spec) for changed in suggested(spec, problem)]

    assert [problem for spec in mended for problem in rule(spec)] == []


@each_of(IN_CEL, lambda rule: rule.name)
def test_the_api_server_suggests_something_where_python_does(rule: Rule):
    (claim,) = rule.cel
    found = any(problem.nearest for spec in specs() for problem in rule(spec))

    assert bool(claim.nearest or NEAREST in claim.says) is found


@pytest.mark.parametrize("rule", [rule for rule in IN_CEL if rule.cel[0].nearest], ids=lambda rule: rule.name)
def test_what_the_api_server_searches_for_would_keep_the_rule(rule: Rule):
    ways = [read(text) for text in rule.cel[0].nearest]
    said = [
        (spec, replace(problem, nearest=", or ".join(filter(None, (way(stored) for way in ways)))))
        for spec, stored in zip(specs(), as_stored(), strict=True)
        for problem in rule(spec)
    ]

    mended = [changed for spec, problem in said for changed in suggested(spec, problem)]

    assert mended != []
    assert [problem for spec in mended for problem in rule(spec)] == []


def test_most_suggestions_are_values():
    fields = {
        problem.field for spec in specs() for rule in IN_CEL for problem in rule(spec) if suggested(spec, problem)
    }

    assert len(fields) > 40


def suggested(spec: Spec, problem: Problem) -> list[Spec]:
    """Return the spec with the value that is suggested first, or none where words say what to do."""
    alone = re.fullmatch(r"(-?[\d.e-]+|[A-Z]\w+|true|false|[\w.]+:\w+)(?: or more|, or .*)?", problem.nearest or "")
    elsewhere = re.fullmatch(r"(spec[.\w]+) (\w+)(?: or .*)?", problem.nearest or "")
    short = re.match(r"(\w+) (\d+)\b(?! with)", problem.nearest or "")
    named = [(problem.field, alone[1])] if alone else [(elsewhere[1], elsewhere[2])] if elsewhere else []
    found = named or ([(PATHS[short[1]], short[2])] if short and short[1] in PATHS else [])
    content = {"spec": spec.model_dump(mode="json", by_alias=True, exclude_none=True)}
    for path, value in found:
        put(content, path, yaml.safe_load(value))
    if f"{INT32 + 1}" in [value for _, value in found]:
        return []  # the other field has the largest number there is, so no value of this one is valid
    return [Spec.model_validate(content["spec"])] if found else []


@each_of([*crd.claims(), crd.NAME], lambda claim: claim.field)
def test_a_rule_reads_only_fields_that_exist(claim: crd.Cel):
    text = re.sub(r"'(?:[^'\\]|\\.)*'", "''", " ".join((claim.holds, crd.sentence(claim.says, claim.nearest))))

    assert [path for path in PATH.findall(text) if not exists(path.replace("?", ""))] == []


def exists(path: str) -> bool:
    """Whether a path leads to a field, and then perhaps to methods of its value."""
    names = tuple(name.strip("_") for name in path.strip(".").split("."))
    above = () if names[0] == "metadata" else ("spec",)
    known = next(n for n in range(len(names), -1, -1) if (*above, *names[:n]) in field_lookup.entries())
    return known > 0 and set(names[known:]) <= METHODS.keys() | MACROS.keys()


@each_of(crd.claims(), lambda claim: claim.field)
def test_a_rule_names_only_fields_that_exist(claim: crd.Cel):
    named = re.findall(r"(?i)\bspec(?:\.[a-z]\w*)+", " ".join((claim.field, claim.says, *claim.nearest)))

    assert [name for name in named if tuple(name.split(".")) not in field_lookup.entries()] == []


def test_no_two_rules_are_the_same():
    claims = [(claim.field, claim.holds, claim.says) for claim in crd.claims()]

    assert len(claims) == len(set(claims)) > 150
