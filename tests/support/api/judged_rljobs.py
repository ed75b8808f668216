"""RLJobs of a real API server, and what it says about them."""

import json
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from kubernetes import client, config

from rljob_api.generated.crd import GROUP, KIND, PLURAL, VERSION

PREFIX = re.compile('^Invalid value: ("object": )?')
"""The API server shows a value that its own rules refuse. For a rule in CEL that is the whole section, which newer ones
leave out
"""
UNASKED = "some validation rules were not checked"
"""reported beside a field of the wrong type"""

Manifest = dict[str, Any]
CRD = Path(__file__).parents[3] / "crds" / "rljob.dev_rljobs.yaml"


@dataclass(frozen=True)
class Answer:
    """What the API server says about an object."""

    stored: Manifest | None
    """what it would store, defaults filled in; None: refused"""
    message: str = ""
    causes: tuple[tuple[str, str], ...] = ()
    """fields with what is wrong with them"""


@dataclass(frozen=True)
class RLJobs:
    """RLJobs in the namespace `default`."""

    objects: client.CustomObjectsApi

    def judge(self, content: Manifest) -> Answer:
        """Create an object as a dry run."""
        return self.ask(self.objects.create_namespaced_custom_object, content, dry_run="All")

    @contextmanager
    def existing(self, content: Manifest, name: str, status: Manifest) -> Iterator[Manifest]:
        """Have an object of this name with a status, as long as the context lasts."""
        named = content | {"metadata": {"name": name}}
        created = self.ask(self.objects.create_namespaced_custom_object, named)
        assert created.stored, created.message
        try:
            written = self.patch(name, {"status": status}, self.objects.patch_namespaced_custom_object_status)
            assert written.stored, written.message
            yield written.stored
        finally:
            self.objects.delete_namespaced_custom_object(GROUP, VERSION, "default", PLURAL, name)

    def patch(self, name: str, change: Manifest, how: Callable[..., Manifest] | None = None, **options: Any) -> Answer:
        return self.ask(how or self.objects.patch_namespaced_custom_object, name, change, **options)

    def selected(self, fields: str) -> list[str]:
        """Return the names of the objects that a field selector selects."""
        found = self.objects.list_namespaced_custom_object(GROUP, VERSION, "default", PLURAL, field_selector=fields)
        return [each["metadata"]["name"] for each in found["items"]]

    def columns(self, name: str) -> Manifest:
        """Return what `kubectl get -o wide` shows of an object, by the titles of the columns."""
        table = self.read(
            f"/apis/{GROUP}/{VERSION}/namespaces/default/{PLURAL}/{name}",
            "application/json;as=Table;g=meta.k8s.io;v=v1",
        )
        titles = [column["name"] for column in table["columnDefinitions"]]
        return dict(zip(titles, table["rows"][0]["cells"], strict=True))

    def explained(self, *path: str) -> str:
        """Return what `kubectl explain` prints about a field."""
        schemas = self.read(f"/openapi/v3/apis/{GROUP}/{VERSION}", "application/json")["components"]["schemas"]
        schema = schemas[f"{'.'.join(reversed(GROUP.split('.')))}.{VERSION}.{KIND}"]
        for name in path:
            schema = schema["properties"][name]
        said: str = schema["description"]
        return said

    def read(self, path: str, accept: str) -> Manifest:
        connection = self.objects.api_client
        response = connection.call_api("GET", connection.configuration.host + path, {"Accept": accept})
        found: Manifest = json.loads(response.read())
        return found

    def ask(self, how: Callable[..., Manifest], *arguments: Any, **options: Any) -> Answer:
        try:
            return Answer(how(GROUP, VERSION, "default", PLURAL, *arguments, field_validation="Strict", **options))
        except client.ApiException as error:
            body = json.loads(error.body)
            return Answer(None, body["message"], said(body.get("details", {}).get("causes", [])))


def installed(kubeconfig: Path) -> RLJobs:
    """Install the CRD as `kubectl apply` does it, and return the API of RLJobs once it is served."""
    connection = config.new_client_from_config(str(kubeconfig))
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


def said(causes: list[dict[str, str]]) -> tuple[tuple[str, str], ...]:
    """Return fields with sentences."""
    return tuple(field_and_sentence(cause) for cause in causes if UNASKED not in cause["message"])


def field_and_sentence(cause: dict[str, str]) -> tuple[str, str]:
    """Return the two of one cause. A rule about metadata stands at the root, so its sentence begins with the field."""
    field, message = cause["field"], PREFIX.sub("", cause["message"])
    if field == "<nil>":
        field, _, message = message.partition(": ")
    return field, message
