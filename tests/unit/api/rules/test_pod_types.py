"""Types of Kubernetes in a manifest: which values are taken, and what is said of the others."""

import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kubernetes import client

from rljob_api.generated.crd import part_of_pod
from rljob_api.rules.pod_types import CLAIMS, VALUES, fields, required, wrong_types
from support.api.cel_reader import read

CRDS = Path(__file__).parents[4] / "crds"
WITHOUT_KEY = "must be Exists without a key: it tolerates every taint; or name a key"
POD = {
    "containers": [
        {
            "name": "ray-worker",
            "image": "rljob",
            "env": [
                {"name": "A", "value": "1"},
                {"name": "B", "valueFrom": {"resourceFieldRef": {"resource": "limits.memory", "divisor": 1}}},
            ],
            "ports": [{"containerPort": 8000, "protocol": "TCP"}],
            "resources": {"limits": {"cpu": 2, "memory": "8Gi", "rdma/ib": 0.5}, "claims": [{"name": "nic"}]},
            "readinessProbe": {"httpGet": {"port": "http", "path": "/"}, "exec": {"command": ["true"]}},
            "livenessProbe": {"tcpSocket": {"port": 8000}},
        }
    ],
    "volumes": [{"name": "a", "emptyDir": {"medium": "Memory", "sizeLimit": "1Gi"}}, {"name": "b", "nfs": None}],
    "nodeSelector": {"pool": "gpu"},
    "tolerations": [{"key": "gpu", "operator": "Exists", "effect": ""}],
    "hostNetwork": True,
    "terminationGracePeriodSeconds": 30,
}


def said(value: object, kind: str, is_patch: bool = False) -> list[str]:
    return [str(problem) for problem in wrong_types("at", value, kind, is_patch)]


def test_the_file_has_the_fields_of_the_installed_client():
    generated = subprocess.run(
        [sys.executable, CRDS / "generate_pod_fields.py"], capture_output=True, text=True, check=True
    ).stdout
    assert generated == (CRDS / "rljob_api" / "rules" / "pod_fields.json").read_text(), "make generate"


def test_a_pod_has_the_fields_that_the_client_knows():
    assert set(fields("PodSpec")) == set(client.V1PodSpec.attribute_map.values())
    assert {key: fields("Container")[key] for key in ("name", "env", "resources", "livenessProbe", "tty")} == {
        "name": "string",
        "env": "[EnvVar]",
        "resources": "ResourceRequirements",
        "livenessProbe": "Probe",
        "tty": "boolean",
    }
    assert fields("Probe")["exec"] == "ExecAction"
    assert (fields("HTTPGetAction")["port"], fields("EmptyDirVolumeSource")["sizeLimit"]) == (
        "integer or string",
        "quantity",
    )
    assert (required("VolumeMount"), required("Toleration")) == (["mountPath", "name"], ())


def test_a_pod_as_kubernetes_takes_it_has_no_problems():
    assert said(POD, "PodSpec") == []


@pytest.mark.parametrize(
    ("value", "kind", "problem"),
    [
        (5, "[Toleration]", "at: 5 has the wrong type; expected: list"),
        ("gpu", "[string]", 'at: "gpu" has the wrong type; expected: list'),
        ([None], "[Toleration]", "at[0]: null is not a value"),
        ([5], "[Toleration]", "at[0]: 5 has the wrong type; expected: mapping"),
        ([], "Volume", "at: [] has the wrong type; expected: mapping"),
        ([], "{string}", "at: [] has the wrong type; expected: mapping"),
        ({"a": 1}, "{string}", 'at.a: 1 has the wrong type; expected: text; nearest valid: "1"'),
        (True, "string", 'at: true has the wrong type; expected: text; nearest valid: "true"'),
        ({}, "string", "at: {} has the wrong type; expected: text"),
        (True, "integer", "at: true has the wrong type; expected: whole number"),
        (1.5, "integer", "at: 1.5 has the wrong type; expected: whole number"),
        (2.0, "integer", "at: 2.0 has the wrong type; expected: whole number; nearest valid: 2"),
        ("30", "integer", 'at: "30" has the wrong type; expected: whole number; nearest valid: 30'),
        (2**53, "integer", "at: 9007199254740992 is not between -(2^53) and 2^53"),
        ("False", "boolean", 'at: "False" has the wrong type; expected: true or false; nearest valid: false'),
        (1, "boolean", "at: 1 has the wrong type; expected: true or false; nearest valid: true"),
        (1.5, "integer or string", "at: 1.5 has the wrong type; expected: whole number or text"),
        ("8 GB", "quantity", 'at: "8 GB" is not a Kubernetes quantity; nearest valid: 8Gi'),
        (True, "quantity", "at: true is not a Kubernetes quantity, such as 500m, 4 or 64Gi"),
        ({"keys": "a"}, "Toleration", "at.keys: unknown field; nearest valid: key"),
        ({"name": "a"}, "VolumeMount", "at.mountPath: is missing"),
        ({"name": "a", "mountPath": None}, "VolumeMount", "at.mountPath: is missing"),
        (
            {"key": "a", "effect": "noschedule"},
            "Toleration",
            'at.effect: "noschedule" is none of NoSchedule, PreferNoSchedule, NoExecute; nearest valid: NoSchedule',
        ),
        (
            {"name": "a-", "emptyDir": {}},
            "Volume",
            'at.name: "a-" is not a DNS label of at most 63 characters: a-z, 0-9 and -, first and last no -',
        ),
        ({"name": "a", "mountPath": "a"}, "VolumeMount", 'at.mountPath: "a" is not an absolute path'),
        (
            {"name": "a", "mountPath": "/a", "subPath": "b", "subPathExpr": "c"},
            "VolumeMount",
            'at.subPathExpr: "c" must be absent when there is a subPath',
        ),
        ({"value": "a"}, "Toleration", f"at.operator: {WITHOUT_KEY}"),
        ({"key": "", "operator": "Equal"}, "Toleration", f"at.operator: {WITHOUT_KEY}"),
        (
            {"key": "a", "operator": "Exists", "value": "b"},
            "Toleration",
            'at.value: "b" must be absent when operator is Exists',
        ),
        (
            {"key": "a", "tolerationSeconds": 0},
            "Toleration",
            "at.effect: must be NoExecute when there are tolerationSeconds",
        ),
    ],
)
def test_a_wrong_value_is_named_with_what_is_expected(value: object, kind: str, problem: str):
    assert said(value, kind) == [problem]


def test_a_patch_may_leave_out_what_a_pod_needs_and_may_hold_directives():
    patch = {"containers": [{"$patch": "delete", "name": "a"}], "volumes": [{"hostPath": {}}], "tolerations": None}
    assert said(patch, "PodSpec", is_patch=True) == []
    assert said({"$patch": "replace"}, "Volume") == [
        "at.$patch: unknown field; nearest valid: hostPath",
        "at.name: is missing",
    ]


def test_every_value_and_claim_belongs_to_a_field():
    assert [each for each in VALUES if each[1] not in fields(each[0])] == []
    assert [claim for kind, claims in CLAIMS.items() for claim in claims if claim.field not in fields(kind)] == []


TEXTS = st.sampled_from(["", "a", "A", "a-b", "-a", "/a", "Exists", "Equal", "NoExecute", "NoSchedule", "a" * 64])
VALUES_OF = {"string": TEXTS, "integer": st.integers(-2, 2), "boolean": st.booleans()}


@pytest.mark.parametrize("kind", CLAIMS)
@given(data=st.data())
def test_the_api_server_claims_what_python_does(kind: str, data: st.DataObject):
    of_fields = {name: VALUES_OF[each] for name, each in fields(kind).items() if each in VALUES_OF}
    needed = {name: of_fields.pop(name) for name in required(kind)}
    value = data.draw(st.fixed_dictionaries(needed, optional=of_fields))
    for claim in CLAIMS[kind]:
        assert read(claim.cel)({"self": value}) is claim.holds(value)


def test_the_schema_of_an_entry_has_its_scalars_and_claims():
    found = part_of_pod("VolumeMount")
    assert found["required"] == ["mountPath", "name"]
    assert found["properties"].keys() == fields("VolumeMount").keys()
    assert found["properties"]["mountPropagation"]["enum"] == ["", "None", "HostToContainer", "Bidirectional"]
    assert [rule["fieldPath"] for rule in found["x-kubernetes-validations"]] == [".mountPath", ".subPathExpr"]
    assert "x-kubernetes-preserve-unknown-fields" not in found


def test_an_entry_with_more_than_scalars_may_hold_anything_else():
    found = part_of_pod("Volume")
    assert found["properties"].keys() == {"name"}
    assert found["x-kubernetes-preserve-unknown-fields"] is True
