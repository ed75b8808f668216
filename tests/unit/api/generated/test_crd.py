"""The CRD is made from the models, keeps Kubernetes' rules for schemas, and stays small enough for `kubectl apply`."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from rljob_api.facts import facts
from rljob_api.generated import crd, crd_page
from rljob_api.reading import field_lookup
from rljob_api.reading.field_types import default
from rljob_api.rules import registry
from rljob_api.rules.cel import Cel, sentence
from rljob_api.sections import LONGEST_NAME, Spec
from support.tables import each_of

ROOT_DIRECTORY = Path(__file__).parents[4]
FILE = ROOT_DIRECTORY / "crds" / "rljob.dev_rljobs.yaml"
PAGE = ROOT_DIRECTORY / "docs" / "crd.md"
KUBERAY_LONGEST_NAME = 53
LAST_APPLIED_LIMIT = 256 * 1024

Schema = dict[str, Any]
INTEGER = {"type": "integer", "format": "int64"}

ROOT = crd.root()
FIELDS = [path for path, entry in field_lookup.entries().items() if path[0] == "spec"]


def schema_at(path: tuple[str, ...]) -> Schema:
    found = ROOT
    for name in path:
        found = found.get("items", found)["properties"][name]
    return found


def nodes(schema: Schema) -> Iterator[Schema]:
    """Yield a schema and all schemas in it."""
    yield schema
    for below in (*schema.get("properties", {}).values(), *([schema["items"]] if "items" in schema else [])):
        yield from nodes(below)


def test_the_file_is_what_the_models_give():
    assert FILE.read_text() == crd.text(), "make generate"


def test_the_page_is_what_the_rules_give():
    assert PAGE.read_text() == crd_page.markdown(), "make generate"


def test_the_file_is_yaml_of_the_definition():
    assert yaml.safe_load(FILE.read_text()) == crd.definition()


def test_kubectl_can_keep_what_it_applied():
    text = json.dumps(crd.definition(), separators=(",", ":"))
    escaped = sum(map(text.count, "&<>")) * len("u0026")  # Go writes them as \u0026, \u003c and \u003e
    assert len(text) + escaped < LAST_APPLIED_LIMIT - 4096


@pytest.mark.parametrize(
    "word", ["$ref", "$defs", "title", "anyOf", "oneOf", "const", "nullable", "additionalProperties"]
)
def test_the_schema_is_structural(word):
    assert [node for node in nodes(ROOT) if word in node] == []


def test_every_schema_has_a_type_and_says_what_objects_may_hold():
    untyped = [node for node in nodes(ROOT) if "type" not in node]
    vague = [
        node
        for node in nodes(schema_at(("spec",)))
        if node["type"] == "object" and "properties" not in node and "x-kubernetes-preserve-unknown-fields" not in node
    ]

    assert untyped == vague == []


@pytest.mark.parametrize(("kind", "bound"), [("string", "maxLength"), ("array", "maxItems"), ("integer", "maximum")])
def test_everything_in_a_spec_has_an_end(kind, bound):
    spec = schema_at(("spec",))

    assert [node for node in nodes(spec) if node["type"] == kind and bound not in node and "enum" not in node] == []


def test_every_list_says_how_it_merges():
    lists = [node for node in nodes(ROOT) if node["type"] == "array"]

    assert [node for node in lists if "x-kubernetes-list-type" not in node] == []
    assert schema_at(("status", "conditions"))["x-kubernetes-list-map-keys"] == ["type"]


@each_of(FIELDS, field_lookup.dotted)
def test_every_field_shows_its_text_its_flags_and_its_default(path):
    text, entry = schema_at(path)["description"], field_lookup.entries()[path]
    value = default(entry.field)

    assert text != ""
    assert [flag for flag in facts(entry.field).flags if f"--{flag}" not in text] == []
    assert entry.section or value in (None, "", "{}", "[]") or text.endswith(f". Default: {value}")


@each_of(list(nodes(schema_at(("status",))))[1:], lambda node: node.get("description", "")[:30])
def test_every_field_of_the_status_has_a_text_or_is_an_entry_of_a_list(node):
    assert node.get("description") or node["type"] == "object"


@each_of(FIELDS, field_lookup.dotted)
def test_what_is_required_and_what_has_a_default_is_as_in_the_models(path):
    field = field_lookup.entries()[path].field
    above, schema = schema_at(path[:-1]), schema_at(path)
    value = default(field)

    assert (path[-1] in above.get("items", above).get("required", [])) == field.is_required()
    assert ("default" in schema) == bool(value)
    assert field_lookup.entries()[path].section or not value or json.dumps(schema["default"]) == value


@pytest.mark.parametrize(
    ("path", "schema"),
    [
        ("rollout.samplesPerPrompt", INTEGER | {"minimum": 2, "maximum": 10000, "default": 8}),
        (
            "rollout.memoryFraction",
            {"type": "number", "minimum": 0, "exclusiveMinimum": True, "maximum": 1, "exclusiveMaximum": True},
        ),
        ("placement", {"type": "string", "enum": ["Colocated", "Disaggregated"], "default": "Colocated"}),
        ("algorithm.name", {"type": "string", "minLength": 1, "maxLength": 4096, "default": "grpo"}),
        ("algorithm.lossBy", {"type": "string", "enum": ["Token", "Sample", "Constant"], "default": "Token"}),
        ("data.train.limit", INTEGER | {"minimum": 1, "maximum": 2147483647}),
        ("data.shuffle", {"type": "boolean", "default": True}),
        (
            "extraArgs.sglang",
            {"type": "object", "maxProperties": 1000, "x-kubernetes-preserve-unknown-fields": True, "default": {}},
        ),
        ("model.checkpoint", {"type": "string", "minLength": 1, "maxLength": 4096}),
    ],
)
def test_a_field_becomes_this_schema(path, schema):
    found = schema_at(("spec", *path.split(".")))

    assert {key: value for key, value in found.items() if key != "description"} == schema


@pytest.mark.parametrize("column", crd.COLUMNS, ids=lambda column: column[0])
def test_a_column_shows_a_field_that_exists(column):
    _, kind, path, _ = column
    ready = 'status.conditions[?(@.type=="Ready")]'
    known = {"metadata.creationTimestamp": "date", f"{ready}.message": "string", f"{ready}.status": "string"}

    assert kind == (known.get(path[1:]) or schema_at(tuple(path[1:].split(".")))["type"])


def test_the_scale_subresource_counts_engines():
    scale = crd.version()["subresources"]["scale"]

    assert [schema_at(tuple(path[1:].split(".")))["type"] for path in scale.values()] == [
        "integer",
        "integer",
        "string",
    ]


def test_names_of_children_fit_kuberay():
    assert LONGEST_NAME + len("-attempt-1000") <= KUBERAY_LONGEST_NAME


@each_of(registry.RULES, lambda rule: rule.name)
def test_a_rule_is_in_cel_or_says_why_not(rule):
    assert bool(rule.cel) != bool(rule.only_python)


@each_of(crd.claims(), lambda claim: claim.field)
def test_a_claim_names_a_field(claim):
    assert tuple(claim.field.split(".")) in field_lookup.entries()


def test_everything_but_what_the_operator_reads_again_is_frozen_in_flight():
    frozen = {rule["fieldPath"].removeprefix(".spec.") for rule in crd.frozen_in_flight()}

    free = {field.alias or name for name, field in Spec.model_fields.items()} - frozen
    assert free == {"suspend", "recovery", "scheduling", "pods"}
    assert "rollout.engines" in frozen


def test_engines_have_rules_of_their_own_for_each_placement():
    (colocated, disaggregated) = [
        rule["rule"] for rule in crd.frozen_in_flight() if rule["fieldPath"] == ".spec.rollout.engines"
    ]

    assert colocated.startswith("self.spec.placement == 'Disaggregated' || ")
    assert disaggregated.startswith("self.spec.placement != 'Disaggregated' || ")
    assert "'Suspended'" in colocated
    assert "'Suspended'" in disaggregated


@pytest.mark.parametrize(
    ("text", "made"),
    [
        ("{self.seed} is odd", "'%s is odd'.format([self.seed])"),
        ("100% of {'{question}'}", "'100%% of %s'.format(['{question}'])"),
        ("it's", "'it\\'s'.format([])"),
    ],
)
def test_a_sentence_becomes_one_format(text, made):
    assert sentence(text) == made


def test_a_long_text_is_cut_as_in_python():
    made = sentence('"{self.x}" is bad')

    part, whole = "'\"%s…'.format([self.x.substring(0, 59)])", "'\"%s\"'.format([self.x])"
    assert made == f"'%s is bad'.format([self.x.size() > 58 ? {part} : {whole}])"


def test_the_fixed_sentence_leaves_values_out():
    claim = Cel("spec.seed", "true", '"{self.a}" is not {self.b}')

    assert crd.validation(claim, "spec")["message"] == "… is not …"
