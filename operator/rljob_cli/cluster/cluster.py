"""All that the command line does with a cluster: read RLJobs and pods, run a command in a pod, delete and evict pods,
ask through the API server's proxy. The only module of it that imports `kubernetes`; which cluster, and as whom, is
found as kubectl does.

Failures are ClusterErrors, which name the request, the object and the response.
"""

import base64
import json
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import yaml
from kubernetes import client, config
from kubernetes.stream import stream
from kubernetes.stream.ws_client import ERROR_CHANNEL
from urllib3.exceptions import HTTPError

from rljob_api.errors import UNREADABLE
from rljob_api.exits import Exit
from rljob_cli.jobs.jobs import Job, Manifest, job_of, nearest
from rljob_operator.api_json import LONGEST_LINE, decoded
from rljob_operator.identity import GROUP, JOB_LABEL, PLURAL, RAY_NODE_TYPE_LABEL, VERSION
from rljob_operator.world.world import pod_of

CONNECT_S, ANSWER_S = 5.0, 30.0
"""longest waits for a connection and for an answer [s]"""
WATCH_S = 300.0
"""after this time the API server ends a watch [s]"""
WRITER = "rljob-client"
"""owner of the fields of a job that Python applies"""
START_S, POLL_S = 120.0, 0.5
"""longest wait for a pod to run, and between two looks at it [s]"""
PAGE = 500
"""objects in one page of a list"""
IN_POD = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
NO_HEADERS: Mapping[str, str] = {}
CRD = f"{PLURAL}.{GROUP}"


class ClusterError(RuntimeError):
    """The cluster cannot be reached, refuses, or does not have what was asked for: `ClusterError(text, exit)`."""

    @property
    def exit(self) -> Exit:
        found: Exit = self.args[1]
        return found

    def __str__(self) -> str:
        return str(self.args[0])


class Cluster:
    """A connection to an API server, and the namespace that is meant where none is named."""

    def __init__(self, api: client.ApiClient, namespace: str) -> None:
        self._api = api
        self.namespace = namespace

    def jobs(self, namespace: str | None) -> list[Job]:
        """Return the RLJobs of a namespace, or of all, by namespace and name."""
        found: list[Manifest] = []
        token = ""
        while True:
            query = [("limit", str(PAGE)), *([("continue", token)] if token else [])]
            page = self._get(_path(namespace), query, "list rljobs", _scope(namespace))
            found.extend(page["items"])
            token = page["metadata"].get("continue") or ""
            if not token:
                return sorted((job_of(raw) for raw in found), key=lambda job: (job.namespace, job.name))

    def job(self, namespace: str, name: str) -> Job:
        """Return one RLJob."""
        return job_of(self.raw_job(namespace, name))

    def raw_job(self, namespace: str, name: str) -> Manifest:
        """Return one RLJob as the API server shows it."""
        try:
            found: Manifest = self._get(_path(namespace, name), (), "get rljobs", _scope(namespace))
            return found
        except NoObjectError as error:
            meant = self._meant(namespace, name)
            raise ClusterError(f'there is no RLJob "{name}" in namespace {namespace}{meant}', Exit.NOT_FOUND) from error

    def change_job(self, namespace: str, name: str, patch: Manifest) -> None:
        """Apply a merge patch to an RLJob. Raises ClusterError, also when its resourceVersion is not the job's."""
        kind = {"Content-Type": "application/merge-patch+json"}
        self._send("PATCH", _path(namespace, name), (), "patch rljobs", _scope(namespace), patch, kind)

    def apply_job(self, namespace: str, name: str, manifest: Manifest) -> None:
        """Create an RLJob, or change its fields that the manifest names. Raises ClusterError if another owns them."""
        kind = {"Content-Type": "application/apply-patch+yaml"}  # JSON is YAML, too
        query = [("fieldManager", WRITER)]
        self._send(
            "PATCH", _path(namespace, name), query, "patch rljobs", _scope(namespace), json.dumps(manifest), kind
        )

    def delete_job(self, namespace: str, name: str) -> None:
        """Delete an RLJob. Raises NoObjectError if there is none."""
        self._send("DELETE", _path(namespace, name), (), "delete rljobs", _scope(namespace))

    def changes_of_job(self, namespace: str, name: str, version: str, seconds: float) -> Iterator[Manifest]:
        """Yield an RLJob at each change after a resourceVersion, for at most `seconds`.

        Ends earlier when the version is too old for a watch. Raises NoObjectError when the job is deleted.
        """
        watched_s = max(1, round(min(seconds, WATCH_S)))
        query = [
            ("watch", "true"),
            ("fieldSelector", f"metadata.name={name}"),
            ("resourceVersion", version),
            ("timeoutSeconds", str(watched_s)),
        ]
        answer = self._ask("GET", _path(namespace), query, "watch rljobs", _scope(namespace), waits_s=watched_s)
        try:
            for line in self._lines(answer.response):
                event = decoded(line)
                if event["type"] == "ERROR":
                    return
                if event["type"] == "DELETED":
                    raise NoObjectError(f"RLJob {namespace}/{name} was deleted", Exit.NOT_FOUND)
                yield event["object"]
        finally:
            answer.response.close()

    def pods(self, job: Job) -> list[Manifest]:
        """Return all pods of a job."""
        return self._pods(job.namespace, f"{JOB_LABEL}={job.name}")

    def delete_pod(self, pod: Manifest) -> None:
        """Delete a pod without a grace period. Raises NoObjectError if it is gone."""
        where, name = pod["metadata"]["namespace"], pod["metadata"]["name"]
        path, now = f"api/v1/namespaces/{where}/pods/{name}", [("gracePeriodSeconds", "0")]
        self._send("DELETE", path, now, "delete pods", _scope(where))

    def evict_pod(self, pod: Manifest) -> None:
        """Evict a pod, as `kubectl drain` does. Raises NoObjectError if it is gone."""
        where, name = pod["metadata"]["namespace"], pod["metadata"]["name"]
        eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name, "namespace": where}}
        path = f"api/v1/namespaces/{where}/pods/{name}/eviction"
        self._send("POST", path, (), "create pods/eviction", _scope(where), eviction)

    def labels_of_namespace(self, namespace: str) -> Mapping[str, str] | None:
        """Return the labels of a namespace; None: they may not be read."""
        try:
            found = self._get(f"api/v1/namespaces/{namespace}", (), "get namespaces", _scope(namespace))
        except ClusterError as error:
            if error.exit in (Exit.FORBIDDEN, Exit.NOT_FOUND):
                return None
            raise
        return dict(found["metadata"].get("labels") or {})

    def heads(self, job: Job) -> list[Manifest]:
        """Return the pods of the job's Ray heads that are running."""
        pods = self._pods(job.namespace, f"{JOB_LABEL}={job.name},{RAY_NODE_TYPE_LABEL}=head")
        return [pod for pod in pods if pod["status"].get("phase") == "Running" and _lives(pod)]

    def readable(self, path: str, selector: str = "", fields: str = "") -> list[Manifest] | None:
        """Return all objects at a path of the API, for example `api/v1/nodes`; None: they may not be read."""
        found: list[Manifest] = []
        query = [("labelSelector", selector), ("fieldSelector", fields), ("limit", str(PAGE))]
        token = ""
        while True:
            try:
                page = self._get(path, [*query, ("continue", token)], f"list {path.rpartition('/')[2]}", f"at {path}")
            except ClusterError as error:
                if error.exit is Exit.FORBIDDEN:
                    return None
                raise
            found.extend(page["items"])
            token = page["metadata"].get("continue") or ""
            if not token:
                return found

    def run(self, pod: Manifest, command: Sequence[str], is_over: Callable[[], bool]) -> Iterator[bytes]:
        """Run a command in a pod's first container, and yield what it writes until it ends, or is silent and `is_over`.

        Raises NoObjectError when the command ends with NOT_FOUND: what it should read is not there; NotPossibleError
        when it could not begin; LostError when it was cut off.
        """
        where, name = pod["metadata"]["namespace"], pod["metadata"]["name"]
        try:
            call = stream(
                client.CoreV1Api(self._api).connect_get_namespaced_pod_exec,
                name,
                where,
                command=list(command),
                container=pod["spec"]["containers"][0]["name"],
                stdin=False,
                stdout=True,
                stderr=True,
                tty=False,
                binary=True,
                _preload_content=False,
            )
        except client.ApiException as error:
            raise _not_run(f"{where}/{name}", error) from error
        try:
            while call.is_open():
                call.update(timeout=1)
                written: bytes = call.read_stdout(timeout=0)
                yield written
                if not written and call.is_open() and is_over():
                    return
            yield call.read_stdout(timeout=0)
            if failure := _failure(f"{where}/{name}", call):
                raise failure
        finally:
            call.close()

    @contextmanager
    def running(self, pod: Manifest) -> Iterator[Manifest]:
        """Create a pod, give it when it runs, and delete it. Raises NotPossibleError when it does not come to run."""
        namespace = pod["metadata"]["namespace"]
        where, scope = f"api/v1/namespaces/{namespace}/pods", _scope(namespace)
        try:
            name = self._send("POST", where, (), "create pods", scope, pod)["metadata"]["name"]
        except ClusterError as error:
            raise NotPossibleError(str(error), error.exit) from error
        try:
            yield self._when_running(namespace, name)
        finally:
            now = [("gracePeriodSeconds", "0")]
            with suppress(ClusterError):  # it ends by itself
                self._send("DELETE", f"{where}/{name}", now, "delete pods", scope)

    def _when_running(self, namespace: str, name: str) -> Manifest:
        until = time.monotonic() + START_S
        while True:
            pod: Manifest = self._get(f"api/v1/namespaces/{namespace}/pods/{name}", (), "get pods", _scope(namespace))
            phase, stage = pod["status"].get("phase"), pod_of(pod).stage
            if phase == "Running":
                return pod
            has_ended = phase in ("Failed", "Succeeded")
            if has_ended or time.monotonic() > until:
                late = "" if has_ended else f" after {START_S:.0f} s"
                why = f"{stage.stage}: {stage.text}" if stage else f"it is {phase}{late}"
                raise NotPossibleError(f"pod {namespace}/{name} does not run: {why}", Exit.UNREACHABLE)
            time.sleep(POLL_S)

    def ask_service(self, namespace: str, service: str, port: int, path: str, token: str | None = None) -> Any:
        """Return the JSON that a Service answers to a GET of this path, through the API server's proxy.

        `token` is for Ray, which also takes it from a header that the proxy passes on.
        """
        return self._get(
            f"api/v1/namespaces/{namespace}/services/{service}:{port}/proxy{path}",
            (),
            "get services/proxy",
            _scope(namespace),
            {} if token is None else {"X-Ray-Authorization": f"Bearer {token}"},
        )

    def secret(self, namespace: str, name: str) -> Mapping[str, str]:
        """Return the values of a Secret. Raises ClusterError if there is none, or the user may not read it."""
        found = self._get(f"api/v1/namespaces/{namespace}/secrets/{name}", (), "get secrets", _scope(namespace))
        return {key: base64.b64decode(value).decode() for key, value in (found.get("data") or {}).items()}

    def _meant(self, namespace: str, name: str) -> str:
        """Return the job that was probably meant; "" when jobs cannot be listed or none is similar."""
        for scope in (None, namespace):
            try:
                jobs = self.jobs(scope)
            except ClusterError:
                continue
            if same := [job for job in jobs if job.name == name]:
                return f"; there is one in namespace {same[0].namespace}"
            here = [job.name for job in jobs if job.namespace == namespace]
            close = nearest(name, here)
            return f"; nearest: {close}" if close else ("" if here else "; it has none")
        return ""

    def _get(
        self,
        path: str,
        query: Sequence[tuple[str, str]],
        verb: str,
        scope: str,
        headers: Mapping[str, str] = NO_HEADERS,
    ) -> Any:
        return self._send("GET", path, query, verb, scope, headers=headers)

    def _send(
        self,
        method: str,
        path: str,
        query: Sequence[tuple[str, str]],
        verb: str,
        scope: str,
        body: Manifest | str | None = None,
        headers: Mapping[str, str] = NO_HEADERS,
    ) -> Any:
        answer = self._ask(method, path, query, verb, scope, body, headers)
        try:
            return decoded(answer.read())
        except (HTTPError, OSError) as error:
            raise self._away(error) from error

    def _ask(
        self,
        method: str,
        path: str,
        query: Sequence[tuple[str, str]],
        verb: str,
        scope: str,
        body: Manifest | str | None = None,
        headers: Mapping[str, str] = NO_HEADERS,
        waits_s: float = 0.0,
    ) -> Any:
        """Return an answer whose content may come within `waits_s`. Raises ClusterError if it is a refusal."""
        asked = self._api.param_serialize(
            method,
            f"/{path}",
            query_params=list(query),
            header_params={"Accept": "application/json", "Content-Type": "application/json", **headers},
            body=body,
            auth_settings=["BearerToken"],
        )
        try:
            answer = self._api.call_api(*asked, _request_timeout=(CONNECT_S, waits_s + ANSWER_S))
            refusal = bytes(answer.read()) if answer.status >= 400 else None
        except (client.ApiException, HTTPError, OSError) as error:
            raise self._away(error) from error
        if refusal is not None:
            raise _refused(int(answer.status), refusal, verb, scope)
        return answer

    def _pods(self, namespace: str, selector: str) -> list[Manifest]:
        path, query = f"api/v1/namespaces/{namespace}/pods", [("labelSelector", selector)]
        found: list[Manifest] = self._get(path, query, "list pods", _scope(namespace))["items"]
        return found

    def _lines(self, response: Any) -> Iterator[bytes]:
        """Yield whole lines as they come."""
        rest = b""
        try:
            for part in response.stream(amt=None, decode_content=False):
                *lines, rest = (rest + part).split(b"\n")
                yield from lines
                if len(rest) > LONGEST_LINE:
                    raise ClusterError(f"a change of a job has more than {LONGEST_LINE} bytes", Exit.FAILED)
        except (HTTPError, OSError) as error:
            raise self._away(error) from error

    def _away(self, error: BaseException) -> ClusterError:
        text = f"the cluster at {self._api.configuration.host} does not answer: {_cause(error)}"
        return ClusterError(text, Exit.UNREACHABLE)


class NoObjectError(ClusterError):
    """What was asked for is not there."""


class NotPossibleError(ClusterError):
    """This way to a pod is closed: not allowed, or the pod cannot be reached on it."""


class LostError(ClusterError):
    """The connection to a pod ended, or the command in it was killed: the pod may be gone."""


def connect(kubeconfig: Path | None, context: str | None) -> Cluster:
    """Return the cluster that kubectl would use: by --kubeconfig, KUBECONFIG, ~/.kube/config, or as a pod."""
    settings = client.Configuration()
    settings.retries = 1
    file = str(kubeconfig) if kubeconfig else None
    try:
        if file is None and context is None and IN_POD.exists() and not _is_there(None):
            config.load_incluster_config(client_configuration=settings)
            return Cluster(client.ApiClient(settings), IN_POD.read_text().strip())
        contexts, current = config.list_kube_config_contexts(config_file=file)
        chosen = _chosen([each["name"] for each in contexts], context) if context else current["name"]
        config.load_kube_config(config_file=file, context=chosen, client_configuration=settings)
    except (config.ConfigException, OSError, yaml.YAMLError, *UNREADABLE) as error:
        raise ClusterError(
            f"no cluster is configured: kubeconfig {_kubeconfig(file)}: {_fault(file, error)}", Exit.SETUP
        ) from error
    names = {each["name"]: each.get("context") or {} for each in contexts}
    return Cluster(client.ApiClient(settings), names[chosen].get("namespace") or "default")


def _chosen(names: Sequence[str], wanted: str) -> str:
    if wanted in names:
        return wanted
    close = nearest(wanted, names)
    hint = f"; nearest: {close}" if close else ""
    raise ClusterError(f'the kubeconfig has no context "{wanted}"{hint}', Exit.SETUP)


def _kubeconfig(file: str | None) -> str:
    return file or os.environ.get("KUBECONFIG") or "~/.kube/config"


def _fault(file: str | None, error: Exception) -> str:
    """Return why a kubeconfig cannot be used."""
    if not _is_there(file):
        return "there is no such file; set KUBECONFIG, or give --kubeconfig"
    return "it is not a kubeconfig" if isinstance(error, UNREADABLE) else _cause(error)


def _is_there(file: str | None) -> bool:
    return any(Path(part).expanduser().exists() for part in _kubeconfig(file).split(os.pathsep))


def _path(namespace: str | None, name: str | None = None) -> str:
    scope = ["namespaces", namespace] if namespace else []
    return "/".join(["apis", GROUP, VERSION, *scope, PLURAL, *([name] if name else [])])


def _scope(namespace: str | None) -> str:
    return f"in namespace {namespace}" if namespace else "in all namespaces"


def _refused(status: int, content: bytes, verb: str, scope: str) -> ClusterError:
    """Return what an answer of the API server with an error means."""
    said = _status(content)
    if said is None and status in (401, 403):  # it comes from behind the API server
        return ClusterError(f"{verb} {scope}: {status} {_text(content)}", Exit.UNREACHABLE)
    message = _text(content) if said is None else str(said.get("message") or said)
    match status:
        case 401:
            return ClusterError(f"authentication failed: {message}", Exit.FORBIDDEN)
        case 403:
            text = f"no permission to {verb} {scope}; ask for a role with it. The API server says: {message}"
            return ClusterError(text, Exit.FORBIDDEN)
        case 404 if "rljobs" not in verb or (said and (said.get("details") or {}).get("name")):
            return NoObjectError(message, Exit.NOT_FOUND)
        case 404:
            text = f"the cluster has no RLJobs: CRD {CRD} is absent; install rljob there (helm install)"
            return ClusterError(text, Exit.SETUP)
        case _:
            return ClusterError(f"{verb} {scope}: {status} {message}", Exit.UNREACHABLE)


def _status(content: bytes) -> Mapping[str, Any] | None:
    """Return the Status of the Kubernetes API that an answer is; None if it is something else."""
    try:
        said = json.loads(content)
    except ValueError:
        return None
    return said if isinstance(said, dict) and said.get("kind") == "Status" else None


def _text(content: bytes) -> str:
    return content.decode(errors="replace").strip()[:500]


def _not_run(pod: str, error: client.ApiException) -> ClusterError:
    text = str(error.reason or error)
    found = re.search(r"Handshake status (\d+)", text)
    if found and found[1] == "403":
        return NotPossibleError(f"no permission to create pods/exec for pod {pod}", Exit.FORBIDDEN)
    if found and found[1] == "404":
        return NoObjectError(f"pod {pod} is gone", Exit.NOT_FOUND)
    first = text.partition(" -+-+-")[0]
    return NotPossibleError(f"cannot run a command in pod {pod}: {first}", Exit.UNREACHABLE)


def _failure(pod: str, call: Any) -> ClusterError | None:
    """Return why a command that is over has failed."""
    said = yaml.safe_load(call.read_channel(ERROR_CHANNEL, timeout=0) or b"{}")
    if said.get("status") == "Success":
        return None
    causes = {cause.get("reason"): cause.get("message") for cause in (said.get("details") or {}).get("causes", ())}
    code = causes.get("ExitCode")
    if code == str(Exit.NOT_FOUND.value):
        return NoObjectError(f"pod {pod} does not have this file", Exit.NOT_FOUND)
    if code is not None:
        written = call.read_stderr(timeout=0).decode(errors="replace").strip()
        return LostError(f"reading in pod {pod} ended with {code}: {written}", Exit.UNREACHABLE)
    if said:
        why = re.sub(r"\?[^\s\"]*", "", str(said.get("message")))  # the query holds the whole command
        return NotPossibleError(f"cannot run a command in pod {pod}: {why}", Exit.UNREACHABLE)
    return LostError(f"the connection to pod {pod} is lost", Exit.UNREACHABLE)


def _lives(pod: Manifest) -> bool:
    return "deletionTimestamp" not in pod["metadata"]


def _cause(error: BaseException) -> str:
    """Return what is at the bottom of an error of urllib3, without the objects that it passed through."""
    reason = getattr(error, "reason", None)
    if isinstance(reason, BaseException):
        return _cause(reason)
    text = str(reason or error).strip().replace("\n", " ")
    return re.sub(r"^<[^>]*>: |^HTTPS?Connection\([^)]*\): ", "", text)
