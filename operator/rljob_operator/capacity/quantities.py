"""Amounts of resources, as in a container's `requests`, and their words for people."""

from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from rljob_api.rules.quantity import SUFFIXES, thousandths

Amounts = Mapping[str, int]
"""by resource, in thousandths of its unit: of a core, a byte, a device"""

PODS = "pods"
BYTES = ("memory", "storage", "hugepages")


def amounts(raw: Mapping[str, Any] | None) -> dict[str, int]:
    """Return a list of resources, as in a container's `requests`."""
    return {name: thousandths(text) for name, text in (raw or {}).items()}


def shown(resource: str, amount: int) -> str:
    """Return an amount for people: `8 × nvidia.com/gpu`, `64Gi of memory`, `500m of cpu`, `3 pods`."""
    if resource == PODS:
        return f"{_plain(amount)} pods"
    if any(part in resource for part in BYTES):
        return f"{_bytes(amount)} of {resource}"
    return f"{_plain(amount)} × {resource}" if "/" in resource else f"{_plain(amount)} of {resource}"


def _plain(amount: int) -> str:
    return f"{amount}m" if amount % 1000 else str(amount // 1000)


def _bytes(amount: int) -> str:
    size = Decimal(amount) / 1000
    for suffix in ("Ti", "Gi", "Mi", "Ki"):
        if abs(size) >= SUFFIXES[suffix]:
            return f"{float(round(size / SUFFIXES[suffix], 1)):g}{suffix}"
    return f"{float(size):g}"
