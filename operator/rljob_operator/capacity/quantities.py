"""Quantities of Kubernetes (`500m`, `64Gi`, `8`) as whole thousandths of their unit: exact, and ordered."""

from collections.abc import Mapping
from decimal import ROUND_CEILING, Decimal
from typing import Any

from rljob_api.rules.pod_types import QUANTITY

Amounts = Mapping[str, int]
"""by resource, in thousandths of its unit: of a core, a byte, a device"""

PODS = "pods"
SUFFIXES: Mapping[str, Decimal] = {
    "": Decimal(1),
    **{suffix: Decimal(10) ** power for suffix, power in (("n", -9), ("u", -6), ("m", -3))},
    **{suffix: Decimal(1000) ** (power + 1) for power, suffix in enumerate("kMGTPE")},
    **{f"{suffix}i": Decimal(1024) ** (power + 1) for power, suffix in enumerate("KMGTPE")},
}
BYTES = ("memory", "storage", "hugepages")


def thousandths(text: object) -> int:
    """Return a quantity in thousandths, rounded up as the API server does; raise ValueError if it is none."""
    found = QUANTITY.fullmatch(str(text))
    if found is None:
        raise ValueError(f"{text!r} is not a quantity; write for example 500m, 2 or 64Gi")
    number, power, suffix = found.groups()
    factor = Decimal(10) ** int(power) if power else SUFFIXES[suffix or ""]
    return int((Decimal(number) * factor * 1000).to_integral_value(ROUND_CEILING))


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
