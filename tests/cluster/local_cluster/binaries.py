"""The programs of a cluster, built from Go modules into the cache.

No registry is asked for a binary: a directory of `modules/` holds a go.mod with `tool` lines and its committed go.sum,
and is built once. Modules are apart because their dependencies conflict. What a module carries beside Go (CRDs, RBAC)
is copied next to its programs.
"""

import fcntl
import hashlib
import logging
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from local_cluster.errors import ClusterError

log = logging.getLogger(__name__)

MODULES = Path(__file__).parent.parent / "modules"

CACHE_VARIABLE = "RLJOB_CACHE"
ASSETS_VARIABLE = "KUBEBUILDER_ASSETS"
"""set by setup-envtest: a directory with etcd and kube-apiserver"""
IN_ASSETS = frozenset({"etcd", "kube-apiserver"})

FLAGS = ("-trimpath", "-buildvcs=false", "-mod=readonly", "-p", "2", "-gcflags=all=-dwarf=false")
"""two compilers at a time: more need more memory than a small machine has; and no debug tables, which the linker would
leave out: without them compilers need 10 % less time
"""


@dataclass(frozen=True, slots=True)
class Program:
    """One executable of a module."""

    module: str
    """directory under `modules/`"""
    package: str
    version_of: str = ""
    """Go module whose version the linker must write into the program, which otherwise calls itself v0.0.0"""
    tags: str = ""
    """build tags; a program that is in the cache is not built again when they change"""


def _kubernetes(name: str, module: str = "kubernetes") -> Program:
    return Program(module, f"k8s.io/kubernetes/cmd/{name}", version_of="k8s.io/kubernetes")


def _prometheus(name: str) -> Program:
    # Without the clients of twenty clouds, in which it could discover targets: ours are configured.
    return Program("prometheus", f"github.com/prometheus/prometheus/cmd/{name}", tags="remove_all_sd")


OTHER_MINORS = ("1.31", "1.37")
"""Versions of Kubernetes whose API servers judge the CRD beside the usual one's: the oldest that the chart accepts, and
the newest
"""

PROGRAMS: Mapping[str, Program] = {
    "etcd": Program("etcd", "go.etcd.io/etcd/server/v3"),
    "kube-apiserver": _kubernetes("kube-apiserver"),
    "kube-controller-manager": _kubernetes("kube-controller-manager"),
    "kube-scheduler": _kubernetes("kube-scheduler"),
    "kubectl": _kubernetes("kubectl"),
    "kubelet": _kubernetes("kubelet"),
    "kube-proxy": _kubernetes("kube-proxy"),
    "kuberay": Program("kuberay", "github.com/ray-project/kuberay/ray-operator"),
    "kwok": Program("kwok", "sigs.k8s.io/kwok/cmd/kwok"),
    "kueue": Program("kueue", "sigs.k8s.io/kueue/cmd/kueue"),
    "agent-sandbox": Program("agent-sandbox", "sigs.k8s.io/agent-sandbox/cmd/agent-sandbox-controller"),
    "helm": Program("helm", "helm.sh/helm/v3/cmd/helm"),
    "validate-krew-manifest": Program("krew", "sigs.k8s.io/krew/cmd/validate-krew-manifest"),
    "coredns": Program("coredns", "github.com/coredns/coredns"),
    "kube-router": Program("kube-router", "github.com/cloudnativelabs/kube-router/v2/cmd/kube-router"),
    "prometheus": _prometheus("prometheus"),
    "promtool": _prometheus("promtool"),
    "vegeta": Program("vegeta", "github.com/tsenart/vegeta/v12"),
    "versitygw": Program("versitygw", "github.com/versity/versitygw/cmd/versitygw"),
    "gitops": Program("gitops", "rljob.dev/tests/cluster/gitops"),
    **{f"kube-apiserver-{minor}": _kubernetes("kube-apiserver", f"kubernetes-{minor}") for minor in OTHER_MINORS},
}

MANIFESTS: Mapping[str, tuple[str, str]] = {
    "kuberay": ("github.com/ray-project/kuberay/ray-operator", "config"),
    "kwok": ("sigs.k8s.io/kwok", "kustomize"),
    "kueue": ("sigs.k8s.io/kueue", "config"),
    "agent-sandbox": ("sigs.k8s.io/agent-sandbox", "k8s"),
    "prometheus-operator": ("github.com/prometheus-operator/prometheus-operator", "example/prometheus-operator-crd"),
}
"""by module: the Go module and its directory of manifests"""


def binary(name: str, environ: Mapping[str, str]) -> Path:
    """Return the path of a program, building it first unless KUBEBUILDER_ASSETS or the cache has it.

    Raises ClusterError if there is no Go, or the build fails.
    """
    if environ.get(ASSETS_VARIABLE) and name in IN_ASSETS:
        return _asset(name, Path(environ[ASSETS_VARIABLE]))
    program = PROGRAMS[name]
    target = _directory(program.module, environ) / name
    if not target.exists():
        with _one_build_at_a_time(target.parent):
            if not target.exists():
                _build(name, program, target, environ)
    return target


def manifests(module: str, environ: Mapping[str, str]) -> Path:
    """Return a copy, in the cache, of the directory of manifests that a Go module carries."""
    go_module, subdirectory = MANIFESTS[module]
    target = _directory(module, environ) / Path(subdirectory).name
    if not target.exists():
        with _one_build_at_a_time(target.parent):
            if not target.exists():
                _copy_manifests(module, go_module, subdirectory, target, environ)
    return target


def cache_key(*contents: bytes) -> str:
    """Return what names a module's directory in the cache, by its go.mod, its go.sum and what Go it has of its own.

    Other dependencies, other code or other flags, another directory.
    """
    return hashlib.sha256(b"\0".join([*contents, " ".join(FLAGS).encode()])).hexdigest()[:16]


def link_flags(version_of: str, go_mod: str) -> str:
    """Return the value of -ldflags: strip debug tables, and set the version of Kubernetes' programs.

    Helm and kubectl refuse a server that calls itself v0.0.0.
    """
    if not version_of:
        return "-s -w"
    version = re.search(rf"^(?:require)?\s*{re.escape(version_of)} (v(\d+)\.(\d+)\S*)", go_mod, re.MULTILINE)
    if version is None:
        raise ClusterError(f"go.mod requires no {version_of}; its version is what the programs must call themselves")
    package = "k8s.io/component-base/version"
    values = {"gitVersion": version[1], "gitMajor": version[2], "gitMinor": version[3]}
    return " ".join(["-s -w", *(f"-X {package}.{key}={value}" for key, value in values.items())])


def cache(environ: Mapping[str, str]) -> Path:
    """Return where built programs are kept: $RLJOB_CACHE/cluster, or ~/.cache/rljob/cluster."""
    root = environ.get(CACHE_VARIABLE)
    return (Path(root) if root else Path.home() / ".cache" / "rljob") / "cluster"


def _directory(module: str, environ: Mapping[str, str]) -> Path:
    source = MODULES / module
    files = [source / "go.mod", source / "go.sum", *sorted(source.glob("*.go"))]
    key = cache_key(*(path.read_bytes() for path in files))
    return cache(environ) / f"{module}-{key}"


def _asset(name: str, assets: Path) -> Path:
    if not (assets / name).is_file():
        raise ClusterError(
            f"{ASSETS_VARIABLE}={assets} has no {name}; install it with `setup-envtest use`, "
            "or unset the variable to have it built"
        )
    return assets / name


@contextmanager
def _one_build_at_a_time(directory: Path) -> Iterator[None]:
    """Hold the lock of all builds: one saturates the machine, and two need twice the memory. A kill frees the lock."""
    directory.mkdir(parents=True, exist_ok=True)
    with (directory.parent / "build.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _build(name: str, program: Program, target: Path, environ: Mapping[str, str]) -> None:
    source = MODULES / program.module
    started = time.monotonic()
    log.info("action=build program=%s module=%s directory=%s", name, program.module, target.parent)
    with tempfile.TemporaryDirectory(prefix=".build-", dir=target.parent) as scratch:
        link = link_flags(program.version_of, (source / "go.mod").read_text())
        flags = [*FLAGS, "-tags", program.tags, "-ldflags", link]
        _go(["build", *flags, "-o", f"{scratch}/{name}", program.package], source, environ)
        (Path(scratch) / name).rename(target)
    log.info("action=built program=%s seconds=%.0f", name, time.monotonic() - started)


def _copy_manifests(module: str, go_module: str, subdirectory: str, target: Path, environ: Mapping[str, str]) -> None:
    source = MODULES / module
    _go(["mod", "download", go_module], source, environ)
    downloaded = _go(["list", "-mod=readonly", "-m", "-f", "{{.Dir}}", go_module], source, environ)
    with tempfile.TemporaryDirectory(prefix=".copy-", dir=target.parent) as scratch:
        copied = Path(scratch) / target.name
        shutil.copytree(Path(downloaded.strip()) / subdirectory, copied, copy_function=shutil.copyfile)
        for directory in [copied, *(path for path in copied.rglob("*") if path.is_dir())]:
            directory.chmod(0o755)
        copied.rename(target)


def _go(arguments: list[str], directory: Path, environ: Mapping[str, str]) -> str:
    go = shutil.which("go", path=environ.get("PATH"))
    if go is None:
        raise ClusterError(
            "no `go` on PATH, and the programs of the cluster are built with it; install Go (https://go.dev/dl), "
            "or set KUBECONFIG to use a cluster that runs already"
        )
    # A go.work above the checkout would replace the committed versions; cgo would tie the programs to this libc; and a
    # compiler that seldom looks for garbage takes 13 % less time.
    done = subprocess.run(
        [go, *arguments],
        cwd=directory,
        env={**environ, "GOWORK": "off", "CGO_ENABLED": "0", "GOGC": "800"},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        tail = "\n".join(done.stderr.splitlines()[-20:])
        raise ClusterError(f"`go {' '.join(arguments)}` in {directory} failed with {done.returncode}:\n{tail}")
    return done.stdout
