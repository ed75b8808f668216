"""How fast the operator is, for `docs/operator-performance.md`: `make bench-operator`.

Each measurement starts a control plane of its own on this machine (real etcd, API server, controllers, scheduler and
KubeRay; simulated nodes), so the operator shares the cores with all of it. What of that is the API server's own part
is measured in the same run, by a bare client that sends the same writes.
"""

import argparse
import asyncio
import math
import platform
import sys
import time
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path

import psutil
from admission import admission, shown
from history import History, history
from measures import Built, Churn, Joint, bare, building, churn, joint
from queue_pass import QueuePass, queue_pass
from queue_use import QueueUse, queue_use
from status_writes import status_writes, table

PARTS = ("bare", "building", "joint", "churn", "history", "status", "admission", "queue", "pass")
CRD = Path("crds/rljob.dev_rljobs.yaml")


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, nargs="+", default=[1000, 5000], help="applied at once")
    parser.add_argument("--running", type=int, default=1000, help="jobs that train while statuses change")
    parser.add_argument("--seconds", type=float, default=300.0, help="how long their statuses change")
    parser.add_argument("--step-s", type=float, default=10.0, help="between two steps of such a job")
    parser.add_argument("--deletions-per-s", type=float, default=2.0, help="of a child, and a tenth as many new jobs")
    parser.add_argument("--kuberay-s", type=float, default=300.0, help="longest wait for KubeRay's pods")
    parser.add_argument("--ended", type=int, default=5000, help="jobs that have ended, of the part `history`")
    parser.add_argument("--beside", type=int, default=100, help="jobs that train beside them")
    parser.add_argument("--before", type=Path, help="an older CRD, for the part `status`")
    parser.add_argument("--rounds", type=int, default=5, help="of the part `status`")
    parser.add_argument("--writes", type=int, default=600, help="in each of these rounds")
    parser.add_argument("--reviews-per-s", type=int, default=200, help="of the part `admission`")
    parser.add_argument("--nodes", type=int, default=1000, help="of `admission` and `pass`, with five pods on each")
    parser.add_argument("--queued", type=int, default=200, help="jobs of the part `queue`")
    parser.add_argument("--gpus", type=int, default=64, help="that they share")
    parser.add_argument("--life-s", type=float, default=40.0, help="how long the driver of each runs")
    parser.add_argument("--kills", type=int, default=3, help="of the operator, meanwhile")
    parser.add_argument("--queue", choices=("rljob", "kueue"), default="rljob", help="whose queue they wait in")
    parser.add_argument("--waiting", type=int, default=200, help="jobs that wait for room there")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--profile", type=Path, help="directory for cProfile's view of the operator; slows it down")
    options = parser.parse_args()
    say(machine())
    for num_jobs in options.jobs:
        if "bare" in options.parts:
            say(*built(f"bare client, {num_jobs} jobs", asyncio.run(bare(num_jobs))))
        if "building" in options.parts:
            profile = profile_of(options.profile, f"building-{num_jobs}")
            ours, kuberay = asyncio.run(building(num_jobs, options.kuberay_s, profile))
            say(*built(f"operator, {num_jobs} jobs", ours))
            say(*built(f"KubeRay, pods of {kuberay.jobs} of {num_jobs} RayClusters", kuberay))
        if "joint" in options.parts:
            say(*joined(asyncio.run(joint(num_jobs, options.kuberay_s))))
    if "churn" in options.parts:
        profile = profile_of(options.profile, "churn")
        load = options.running, options.seconds, options.step_s, options.deletions_per_s
        say(*churned(asyncio.run(churn(*load, profile))))
    if "history" in options.parts:
        say(*remembered(asyncio.run(history(options.ended, options.beside, options.step_s))))
    if "status" in options.parts:
        crds = {"before": options.before, "now": CRD} if options.before else {"now": CRD}
        say(*table(asyncio.run(status_writes(crds, options.rounds, options.writes))))
    if "admission" in options.parts:
        load = options.reviews_per_s, min(options.seconds, 60.0), options.nodes, 5 * options.nodes
        say(*shown(options.reviews_per_s, *asyncio.run(admission(*load))))
    if "pass" in options.parts:
        say(*passed(queue_pass(options.nodes, 5 * options.nodes, options.waiting)))
    if "queue" in options.parts:
        of_kueue = options.queue == "kueue"
        say(*queued(queue_use(options.queued, options.gpus, options.life_s, options.kills, of_kueue), options.queue))


def machine() -> str:
    """Return what this is measured on."""
    versions = ", ".join(f"{name} {version(name)}" for name in ("kopf", "kubernetes", "aiohttp"))
    load = ", ".join(f"{value:.1f}" for value in psutil.getloadavg())
    return (
        f"{time.strftime('%F %R')}, {platform.machine()}, {psutil.cpu_count()} cores, "
        f"Python {platform.python_version()}, {versions}; load before: {load}"
    )


def built(title: str, figures: Built) -> list[str]:
    """Return a measurement as text."""
    requests = sum(figures.requests.values()) / figures.jobs
    memory = f"; memory {figures.memory_mb:.0f} MB at most" if figures.memory_mb else ""
    return [
        f"\n{title}: {figures.seconds:.1f} s, {figures.jobs / figures.seconds:.1f} jobs/s{memory}",
        f"  CPU [ms/job]: {per_job(figures.cpu_s, figures.jobs, 1000.0)}",
        f"  requests/job: {requests:.2f}: {per_job(figures.requests, figures.jobs)}",
    ]


def joined(figures: Joint) -> list[str]:
    """Return the joint measurement as text."""
    return [
        f"\nboth operators, {figures.jobs} jobs applied while they run: all applied after {figures.applied_s:.1f} s, "
        f"RayClusters after {figures.clusters_s:.1f} s ({figures.jobs / figures.clusters_s:.1f} jobs/s), "
        f"pods of {figures.with_pods} after {figures.pods_s:.1f} s"
    ]


def churned(figures: Churn) -> list[str]:
    """Return the latencies as text."""
    shares = ", ".join(f"{name} {used / figures.seconds:.2f}" for name, used in ranked(figures.cpu_s))
    requests = sum(figures.requests.values()) / figures.seconds
    return [
        f"\n{figures.jobs} running jobs, {figures.seconds:.0f} s; memory {figures.memory_mb:.0f} MB at most",
        f"  child deleted → applied again: {quantiles(figures.repaired_s)}; {figures.away} still away 5 s later",
        f"  new job → RayCluster: {quantiles(figures.built_s)}",
        f"  driver's checkpoint → status: {quantiles(figures.shown_s)}",
        f"  cores: {shares}",
        f"  requests/s: {requests:.1f}: {per_job(figures.requests, figures.seconds)}",
    ]


def remembered(figures: History) -> list[str]:
    """Return what ended jobs cost as text."""
    return [
        f"\n{figures.ended} ended jobs, {figures.running} running: memory {figures.memory_mb:.0f} MB at most",
        f"  all running jobs train after {figures.training_s:.1f} s; "
        f"objects of ended jobs are gone after {figures.swept_s:.1f} s, left: {figures.left}",
        f"  resync {figures.resync_s:.2f} s; operator {figures.cores:.2f} cores",
        f"  scrape: {quantiles(figures.scrapes_s)}; {figures.scrape_bytes / 1e3:.0f} kB",
    ]


def passed(figures: QueuePass) -> list[str]:
    """Return what a pass over the queue costs as text."""
    return [
        f"\n{figures.nodes} nodes, {figures.pods} pods, {figures.holders} jobs that run, {figures.waiting} that wait",
        f"  pass: {figures.full_ms:.0f} ms with no room, {figures.one_ms:.0f} ms when one job has ended",
        f"  look at nodes and others' pods, without the requests: {figures.look_ms:.0f} ms",
        f"  memory: look {figures.look_mb:.1f} MB, tickets {figures.tickets_mb:.1f} MB",
    ]


def queued(figures: QueueUse, queue: str) -> list[str]:
    """Return how a queue was worked off as text."""
    seen = figures.seen
    return [
        f"\n{figures.jobs} jobs for {figures.gpus} GPUs in the queue of {queue}, drivers of {figures.life_s:.0f} s: "
        f"{figures.seconds:.0f} s",
        f"  while jobs waited ({seen.busy_s:.0f} s): {figures.held:.1%} of the GPUs reserved, "
        f"{figures.ending:.1%} not, with a pod that ends; {figures.bound:.1%} with a pod on a node",
        f"  at most {seen.most_gpus_held} GPUs reserved, {seen.most_gpus_of_pods} asked for by pods",
        f"  out of order: {figures.out_of_order}; longest wait {seen.longest_wait_s:.0f} s; "
        f"a job with a part of its pods: {seen.longest_partial_s:.1f} s at most",
    ]


def per_job(amounts: Mapping[str, float], jobs: float, factor: float = 1.0) -> str:
    """Return what each takes of a job."""
    return ", ".join(f"{name} {amount * factor / jobs:.2f}" for name, amount in ranked(amounts))


def ranked(amounts: Mapping[str, float]) -> list[tuple[str, float]]:
    """Return the amounts, the largest first."""
    return sorted(amounts.items(), key=lambda item: -item[1])


def quantiles(seconds: Sequence[float]) -> str:
    """Return median, 99th percentile and maximum [ms]."""
    ordered = sorted(seconds)
    if not ordered:
        return "none"
    p50, p99 = (ordered[math.ceil(share * len(ordered)) - 1] * 1000 for share in (0.5, 0.99))
    return f"p50 {p50:.0f} ms, p99 {p99:.0f} ms, max {ordered[-1] * 1000:.0f} ms, n={len(ordered)}"


def profile_of(directory: Path | None, name: str) -> Path | None:
    return None if directory is None else directory / f"{name}.prof"


def say(*lines: str) -> None:
    sys.stdout.write("\n".join(lines) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
