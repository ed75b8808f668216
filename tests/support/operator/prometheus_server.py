"""A real Prometheus that scrapes what a test names, and what it finds for the queries of dashboards and alerts.

PodMonitor, targets ─► scrape_config ─► running ─► Prometheus.silent(queries) == []
"""

import json
import re
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from local_cluster.ports import free_port
from support.waiting import eventually

CHART = Path(__file__).parents[3] / "charts" / "rljob"
INTERVAL = "1s"
WINDOW = "30s"
"""what Grafana would write for `$__rate_interval` [some scrapes]"""
OPERATOR_SERIES = "rljob_operator_"
GPU_SERIES = "rljob_gpu_device_"

Manifest = dict[str, Any]


@dataclass(frozen=True)
class Query:
    """A query that people look at, or that an alert compares."""

    where: str
    """dashboard and panel, or alert"""
    text: str

    @property
    def is_about_the_operator(self) -> bool:
        """Whether the operator's metrics answer it; otherwise a driver's."""
        return OPERATOR_SERIES in self.text

    @property
    def is_about_gpus(self) -> bool:
        """Whether only a machine with GPUs answers it."""
        return GPU_SERIES in self.text


@dataclass(frozen=True)
class Target:
    """A pod to scrape, as Prometheus discovers it."""

    address: str
    """HOST:PORT"""
    namespace: str
    pod: str
    labels: Mapping[str, str] = field(default_factory=dict)

    def meta(self) -> dict[str, str]:
        """Return the labels that service discovery gives to the pod."""
        named = {f"label_{name}": value for name, value in self.labels.items()}
        found = {"namespace": self.namespace, "pod_name": self.pod, **{f"pod_{name}": v for name, v in named.items()}}
        return {f"__meta_kubernetes_{re.sub('[^a-zA-Z0-9_]', '_', name)}": value for name, value in found.items()}


class Prometheus:
    """A Prometheus that runs somewhere."""

    def __init__(self, url: str) -> None:
        self.url = url

    def get(self, path: str, **parameters: str) -> Any:
        """Return the data of an answer of its API; raise AssertionError with its words when it refuses."""
        query = urllib.parse.urlencode(parameters)
        try:
            with urllib.request.urlopen(f"{self.url}/api/v1/{path}?{query}", timeout=10) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{path} {parameters}: {error.read().decode()}") from error

    def query(self, text: str, at: float | None = None) -> list[Manifest]:
        """Return what a query finds now, or at a time [unix s]."""
        found: list[Manifest] = self.get("query", query=text, **({} if at is None else {"time": str(at)}))["result"]
        return found

    def silent(self, queries: Sequence[Query], at: float | None = None, **variables: str) -> list[str]:
        """Return the queries that find nothing, and those of which one of the series is not there.

        `variables` are those of the dashboards; an alert's comparison does not count, for its series alone do.
        """
        missing = []
        for query in queries:
            text = substituted(query.text, variables)
            selectors = list(_selectors(self.get("parse_query", query=text)))
            missing += [f"{query.where}: no {each}" for each in selectors if not self.query(each, at)]
            if not query.where.startswith("alert ") and not self.query(text, at):
                missing.append(f"{query.where}: nothing for {text}")
        return missing

    def until_scraped(self, series: str, samples: int = 4, deadline_s: float = 60.0) -> None:
        """Wait until every target of a series was scraped so often that rates are known."""
        eventually(
            lambda: [float(each["value"][1]) for each in self.query(f"count_over_time({series}[1m])")],
            lambda counts: bool(counts) and min(counts) >= samples,
            deadline_s,
        )

    def last_scrape(self, series: str) -> float:
        """Return when a series was last seen [unix s]; its target may be gone."""
        ((*_, (seen, _)),) = (each["values"] for each in self.query(f"{series}[10m]")[:1])
        return float(seen)


@contextmanager
def running(program: Path, directory: Path, scrape_configs: Sequence[Manifest]) -> Iterator[Prometheus]:
    """Run a Prometheus with an empty database below `directory`."""
    directory.mkdir(parents=True, exist_ok=True)
    port = free_port()
    configuration = directory / "prometheus.yaml"
    everything = {"global": {"scrape_interval": INTERVAL}, "scrape_configs": list(scrape_configs)}
    configuration.write_text(yaml.safe_dump(everything))
    command = [
        str(program),
        f"--config.file={configuration}",
        f"--storage.tsdb.path={directory / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
    ]
    with (directory / "prometheus.log").open("ab") as log:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=directory)
    try:
        url = f"http://127.0.0.1:{port}"
        _until_ready(url, process, directory / "prometheus.log")
        yield Prometheus(url)
    finally:
        process.terminate()
        process.wait(30)


def scrape_config(pod_monitor: Manifest, targets: Sequence[Target]) -> Manifest:
    """Return what the Prometheus operator would write for a PodMonitor of one endpoint, with these pods as found."""
    (endpoint,) = pod_monitor["spec"]["podMetricsEndpoints"]
    return {
        "job_name": pod_monitor["metadata"]["name"],
        "honor_labels": endpoint.get("honorLabels", False),
        "metrics_path": endpoint.get("path", "/metrics"),
        "static_configs": [{"targets": [target.address], "labels": target.meta()} for target in targets],
        "relabel_configs": [
            {"source_labels": ["__meta_kubernetes_namespace"], "target_label": "namespace"},
            {"source_labels": ["__meta_kubernetes_pod_name"], "target_label": "pod"},
            *(
                {re.sub("[A-Z]", lambda letter: f"_{letter[0].lower()}", key): value for key, value in rule.items()}
                for rule in endpoint.get("relabelings", [])
            ),
        ],
    }


def targets_of(pod_monitor: Manifest, pods: Sequence[Manifest]) -> list[Target]:
    """Return the ports that a PodMonitor selects among pods as the API server shows them."""
    (endpoint,) = pod_monitor["spec"]["podMetricsEndpoints"]
    found = []
    for pod in pods:
        metadata, labels = pod["metadata"], pod["metadata"].get("labels", {})
        if not _selects(pod_monitor["spec"]["selector"], labels):
            continue
        ports = [port for container in pod["spec"]["containers"] for port in container.get("ports", [])]
        for port in ports:
            if port.get("name") == endpoint["port"]:
                address = f"{pod['status']['podIP']}:{port['containerPort']}"
                found.append(Target(address, metadata["namespace"], metadata["name"], labels))
    return found


def queries() -> list[Query]:
    """Return every query of the dashboards and the alerts."""
    return [*dashboard_queries(), *alert_queries()]


def dashboard_queries() -> list[Query]:
    return [
        Query(f"dashboard {file.stem}, panel {panel['title']!r}", target["expr"])
        for file in sorted((CHART / "dashboards").glob("*.json"))
        for panel in json.loads(file.read_text())["panels"]
        for target in panel.get("targets", [])
    ]


def alert_queries() -> list[Query]:
    groups = yaml.safe_load((CHART / "files" / "alerts.yaml").read_text())["groups"]
    return [Query(f"alert {rule['alert']}", rule["expr"]) for group in groups for rule in group["rules"]]


def substituted(text: str, variables: Mapping[str, str]) -> str:
    """Return a query as Grafana sends it, `$namespace` and the like replaced."""
    for name, value in {"__rate_interval": WINDOW, "namespace": ".*", **variables}.items():
        text = text.replace(f"${name}", value)
    return text


def _selects(selector: Manifest, labels: Mapping[str, str]) -> bool:
    equal = selector.get("matchLabels", {}).items() <= labels.items()
    expressions = selector.get("matchExpressions", [])
    assert all(each["operator"] == "Exists" for each in expressions), "only what the chart uses is known here"
    return equal and all(each["key"] in labels for each in expressions)


def _selectors(node: Any) -> Iterator[str]:
    """Return every selector of a parsed query, as a query of its own."""
    if isinstance(node, list):
        for each in node:
            yield from _selectors(each)
    if not isinstance(node, dict):
        return
    if node.get("type") == "vectorSelector":
        matchers = (f"{m['name']}{m['type']}{json.dumps(m['value'])}" for m in node["matchers"])
        yield f"{{{', '.join(matchers)}}}"
        return
    for value in node.values():
        yield from _selectors(value)


def _until_ready(url: str, process: "subprocess.Popen[bytes]", log: Path) -> None:
    deadline = time.monotonic() + 30
    while True:
        assert process.poll() is None, log.read_text()
        try:
            with urllib.request.urlopen(f"{url}/-/ready", timeout=1):
                return
        except OSError:
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.1)
