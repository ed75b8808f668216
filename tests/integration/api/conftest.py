"""The CRD in a real API server."""

import json
import time
from pathlib import Path

import pytest
import yaml
from kubernetes import client, config

from rljob_api.generated.crd import GROUP, PLURAL, VERSION
from support.api.judged_rljobs import RLJobs

CRD = Path(__file__).parents[3] / "crds" / "rljob.dev_rljobs.yaml"


@pytest.fixture(scope="session")
def rljobs(api_server: Path) -> RLJobs:
    """The API of RLJobs, after the CRD has been installed as `kubectl apply` does it."""
    connection = config.new_client_from_config(str(api_server))
    crds = client.ApiextensionsV1Api(connection)
    content = yaml.safe_load(CRD.read_text())
    name = content["metadata"]["name"]
    # As kubectl does it: the object once more in an annotation, which has a limit of 256 KiB.
    content["metadata"]["annotations"] = {"kubectl.kubernetes.io/last-applied-configuration": json.dumps(content)}
    if name in [found.metadata.name for found in crds.list_custom_resource_definition().items]:
        crds.patch_custom_resource_definition(name, content)
    else:
        crds.create_custom_resource_definition(content)
    jobs = RLJobs(client.CustomObjectsApi(connection))
    deadline = time.monotonic() + 30
    while not served(jobs):
        assert time.monotonic() < deadline, "the API server does not serve RLJobs"
        time.sleep(0.2)
    return jobs


def served(jobs: RLJobs) -> bool:
    try:
        jobs.objects.list_namespaced_custom_object(GROUP, VERSION, "default", PLURAL)
    except client.ApiException as error:
        assert error.status == 404, error
        return False
    return True
