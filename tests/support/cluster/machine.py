"""What a cluster could leave on this machine, as values that can be compared."""

import subprocess
from pathlib import Path

STATE = ("/var/lib/kubelet", "/var/lib/containerd", "/var/lib/cni", "/run/containerd", "/run/netns", "/var/log/pods")
TUNABLES = ("vm/overcommit_memory", "vm/panic_on_oom", "kernel/panic", "kernel/panic_on_oops", "net/ipv4/ip_forward")


def machine() -> dict[str, frozenset[str]]:
    """Return mounts, interfaces, routes, firewall rules, namespaces, cgroups, kernel settings and state directories."""
    return {
        "mounts": frozenset(Path("/proc/self/mountinfo").read_text().splitlines()),
        "interfaces": frozenset(path.name for path in Path("/sys/class/net").iterdir()),
        "addresses": _lines("ip", "-brief", "address"),
        "routes": _lines("ip", "route", "show", "table", "all"),
        "rules": _rules("iptables-save") | _rules("ip6tables-save"),
        "network namespaces": _namespaces("net"),
        "mount namespaces": _namespaces("mnt"),
        "cgroups": frozenset(str(path) for path in Path("/sys/fs/cgroup").glob("**/*rljob*")),
        "settings": frozenset(f"{name}={Path('/proc/sys', name).read_text()}" for name in TUNABLES),
        "state": frozenset(path for path in STATE if Path(path).exists()),
    }


def changed(before: dict[str, frozenset[str]], after: dict[str, frozenset[str]]) -> set[str]:
    """Return the names of what differs."""
    return {name for name in before if before[name] != after[name]}


def _lines(*command: str) -> frozenset[str]:
    return frozenset(subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines())


def _rules(command: str) -> frozenset[str]:
    """Return the rules, and the chains without their counters."""
    return frozenset(f"{command} {line.partition(' [')[0]}" for line in _lines(command) if not line.startswith("#"))


def _namespaces(kind: str) -> frozenset[str]:
    found = set()
    for process in Path("/proc").glob("[0-9]*"):
        try:
            found.add(str((process / "ns" / kind).readlink()))
        except OSError:  # ended meanwhile
            continue
    return frozenset(found)
