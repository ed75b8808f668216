"""Requests to the API server: what a path is about, and how they are counted."""

import pytest
from prometheus_client import CollectorRegistry

from rljob_operator.cluster.requests import Requests, target


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        ("api/v1/pods", ("pods", False)),
        ("api/v1/namespaces/ml/pods", ("pods", False)),
        ("api/v1/namespaces/ml/secrets/sums", ("secrets", True)),
        ("apis/rljob.dev/v1alpha1/rljobs", ("rljobs", False)),
        ("apis/rljob.dev/v1alpha1/namespaces/ml/rljobs/sums", ("rljobs", True)),
        ("apis/rljob.dev/v1alpha1/namespaces/ml/rljobs/sums/status", ("rljobs/status", True)),
        ("apis/authorization.k8s.io/v1/selfsubjectaccessreviews", ("selfsubjectaccessreviews", False)),
    ],
)
def test_a_path_names_a_resource_and_perhaps_one_object(where: str, expected: tuple[str, bool]):
    assert target(where) == expected


@pytest.mark.parametrize(
    ("method", "where", "content_type", "verb", "resource"),
    [
        ("GET", "api/v1/namespaces/ml/pods", "", "list", "pods"),
        ("GET", "api/v1/namespaces/ml/pods/sums", "", "get", "pods"),
        ("POST", "api/v1/namespaces/ml/pods", "application/json", "create", "pods"),
        ("PUT", "apis/coordination.k8s.io/v1/namespaces/ml/leases/one", "application/json", "update", "leases"),
        ("DELETE", "api/v1/namespaces/ml/secrets/sums", "", "delete", "secrets"),
        ("PATCH", "api/v1/namespaces/ml/secrets/sums", "application/merge-patch+json", "patch", "secrets"),
        ("PATCH", "api/v1/namespaces/ml/secrets/sums", "application/apply-patch+yaml", "apply", "secrets"),
    ],
)
def test_a_request_is_counted_and_timed_by_its_verb(method, where, content_type, verb, resource):
    requests, registry = Requests(), CollectorRegistry()
    requests.register(registry)

    requests.answered(method, where, content_type, 201, 0.03)

    labels = {"verb": verb, "resource": resource, "code": "201"}
    assert registry.get_sample_value("rljob_operator_api_requests_total", labels) == 1.0
    assert registry.get_sample_value("rljob_operator_api_request_seconds_sum", {"verb": verb}) == 0.03
    within = [{"verb": verb, "le": limit} for limit in ("0.02", "0.1")]
    assert [registry.get_sample_value("rljob_operator_api_request_seconds_bucket", each) for each in within] == [0, 1]
