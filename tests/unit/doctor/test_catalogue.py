"""The catalogue of failures: every entry is complete, names real fields, and is recognised by its own log."""

import copy
import re
from collections import Counter
from pathlib import Path

import pytest
import yaml

from rljob_api.errors import ManifestError
from rljob_api.reading.field_lookup import walk
from rljob_api.reading.manifest import load
from rljob_api.sections import RLJob
from rljob_doctor.catalogue import catalogue, nearest
from rljob_doctor.diagnosis import diagnose
from rljob_doctor.entry import Failure
from rljob_doctor.scan import scan, signatures
from rljob_doctor.topics import exception_rules, line_rules
from support.api import bad_manifests
from support.tables import each_of

ROOT = Path(__file__).parents[3]
FIELDS = {".".join(entry.path) for entry in walk(RLJob, ())}
OF_VERL = {"data.prompt_key", "data.filter_overlong_prompts"}
METRICS = (ROOT / "docs" / "metrics.md").read_text()
ALL = tuple(catalogue().values())
LOOKALIKES = yaml.safe_load((Path(__file__).parent / "lookalikes.yaml").read_text())
each_failure = each_of(ALL, lambda failure: failure.code)


def codes(text: str) -> list[str]:
    return [each.failure.code for each in diagnose([scan("log", text.encode())]).findings]


def test_the_catalogue_is_large_and_only_shrinks():
    signs = sum(len(signatures(failure)) for failure in ALL)
    assert 120 <= len(ALL) <= 195
    assert (signs <= 1902, len(exception_rules()) <= 475, len(line_rules()) <= 106) == (True, True, True)


@each_failure
def test_an_example_is_diagnosed_as_its_own_failure(failure: Failure):
    assert codes(failure.example or "")[:1] == [failure.code]


@each_failure
def test_an_example_is_diagnosed_among_healthy_lines_of_an_actor(failure: Failure):
    healthy = "(Actor pid=12, ip=10.0.0.4) 2026-03-04 10:00:00 INFO step 3 done, errors: 0\n" * 50
    example = "".join(f"(Actor pid=12, ip=10.0.0.4) {line}\n" for line in (failure.example or "").splitlines())
    found = diagnose([scan("log", (healthy + example + healthy).encode())]).findings
    assert (found[0].failure.code, found[0].evidence[0].line > 50) == (failure.code, True)


@each_failure
def test_fields_and_metrics_of_an_entry_exist(failure: Failure):
    assert {name for name in (failure.knob, failure.rule) if name} - FIELDS == set()
    assert failure.metric is None or f"`{failure.metric}`" in METRICS


@each_failure
def test_fields_in_a_remedy_exist(failure: Failure):
    words = [word for text in failure.remedy for word in re.findall(r"`((?:spec\.)?[a-z]\w+(?:\.\w+)+)`", text)]
    sections = {path.split(".")[1] for path in FIELDS if path.count(".") > 1}
    ours = [word.removeprefix("spec.") for word in words if word.removeprefix("spec.").split(".")[0] in sections]
    assert [word for word in ours if f"spec.{word}" not in FIELDS and word not in OF_VERL] == []


@each_failure
def test_a_failure_hides_only_others_that_exist(failure: Failure):
    assert set(failure.over) - set(catalogue()) == set()
    assert failure.code not in failure.over


AREAS = sorted((ROOT / "crds" / "rljob_doctor" / "areas").glob("*.yaml"))


@each_of(AREAS, lambda file: file.stem)
def test_no_entry_has_a_key_twice(file: Path):
    # YAML would keep only the last one.
    keys = [
        (entry.value, key.value)
        for _, entries in yaml.compose(file.read_text()).value
        if isinstance(entries, yaml.MappingNode)
        for entry, fields in entries.value
        for key, _ in fields.value
    ]
    assert [each for each, times in Counter(keys).items() if times > 1] == []


@each_failure
def test_a_failure_hides_each_other_one_once(failure: Failure):
    assert len(failure.over) == len(set(failure.over))


@each_failure
def test_signatures_are_expressions_that_can_be_read(failure: Failure):
    patterns = [
        pattern
        for each in signatures(failure)
        for pattern in (each.match, each.unless, each.near, each.unless_near)
        if pattern
    ]
    assert [re.compile(pattern).pattern for pattern in patterns] == patterns
    assert signatures(failure)


def test_every_area_has_ten_lines_that_look_alike():
    areas = {failure.area for failure in ALL}
    assert {area for area in areas if len(LOOKALIKES[area]) >= 10} == areas == set(LOOKALIKES)


@each_of([line for lines in LOOKALIKES.values() for line in lines])
def test_a_line_of_a_healthy_log_is_no_failure(line: str):
    assert codes(line) == []


def test_all_healthy_lines_together_are_no_failure():
    assert codes("\n".join(line for lines in LOOKALIKES.values() for line in lines)) == []


def test_codes_and_texts_are_sentences_without_jargon():
    texts = [text for failure in ALL for text in (failure.title, failure.cause, *failure.remedy)]
    assert [text for text in texts if text.endswith(".") or "  " in text] == []


def test_the_nearest_code_is_named():
    assert nearest("TrainOutOfMemry")[0] == "TrainOutOfMemory"


DECLARED = {code: failure.manifest for code, failure in catalogue().items() if failure.manifest}


def with_sections(text: str) -> str:
    """Return the good manifest with these sections of `spec` in it."""
    manifest = copy.deepcopy(bad_manifests.parsed(bad_manifests.table()["good"]))
    for name, section in yaml.safe_load(text).items():
        old = manifest["spec"].get(name)
        manifest["spec"][name] = {**old, **section} if isinstance(old, dict) else section
    return yaml.safe_dump(manifest)


@each_of(DECLARED)
def test_a_manifest_that_leads_to_a_failure_is_rejected_with_its_message(code):
    with pytest.raises(ManifestError) as caught:
        load(with_sections(DECLARED[code].rejected))
    assert str(caught.value) == DECLARED[code].message.strip()


@each_of(DECLARED)
def test_the_corrected_manifest_is_accepted(code):
    load(with_sections(DECLARED[code].accepted))


def test_known_problems_that_a_manifest_alone_shows_have_both_manifests():
    assert DECLARED.keys() >= {
        "AsyncNeedsDisaggregated",
        "BatchInvariant",
        "ColocatedOutOfMemory",
        "ContextTooLong",
        "QuantIgnoreList",
        "UnknownArgument",
    }
