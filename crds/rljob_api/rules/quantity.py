"""A quantity of Kubernetes (`500m`, `64Gi`, `8`), as whole thousandths of its unit: exact, and ordered. Pure."""

import re
from collections.abc import Mapping
from decimal import ROUND_CEILING, Decimal

QUANTITY = re.compile(r"([+-]?(?:[0-9]+(?:[.][0-9]*)?|[.][0-9]+))(?:[eE]([+-]?[0-9]{1,2})|([KMGTPE]i|[numkMGTPE]))?")
"""number, and power of ten or suffix:
https://kubernetes.io/docs/reference/kubernetes-api/common-definitions/quantity/"""
LONGEST_QUANTITY = 100
"""characters: an amount of a machine has fewer digits"""
OTHER_UNIT = re.compile(r"(?P<number>[0-9.]+) *((?P<prefix>[KMGTPEkmgtpe]?)i?[Bb]?|cores?|[vc]?cpus?|gpus?)")
"""an amount as people write it in other places: `8 GB`, `4 cores`"""
SUFFIXES: Mapping[str, Decimal] = {
    "": Decimal(1),
    **{suffix: Decimal(10) ** power for suffix, power in (("n", -9), ("u", -6), ("m", -3))},
    **{suffix: Decimal(1000) ** (power + 1) for power, suffix in enumerate("kMGTPE")},
    **{f"{suffix}i": Decimal(1024) ** (power + 1) for power, suffix in enumerate("KMGTPE")},
}
EXAMPLES = "500m, 4 or 64Gi"


def thousandths(text: object) -> int:
    """Return a quantity in thousandths, rounded up as the API server does; raise ValueError if it is none."""
    found = QUANTITY.fullmatch(str(text))
    if found is None:
        raise ValueError(f"{text!r} is not a quantity; write for example {EXAMPLES}")
    number, power, suffix = found.groups()
    factor = Decimal(10) ** int(power) if power else SUFFIXES[suffix or ""]
    return int((Decimal(number) * factor * 1000).to_integral_value(ROUND_CEILING))


def is_quantity(value: object) -> bool:
    text = str(value)
    return not isinstance(value, bool) and len(text) <= LONGEST_QUANTITY and QUANTITY.fullmatch(text) is not None


def meant(amount: object) -> str | None:
    """Return the quantity that an amount in other units is; None: that is not obvious."""
    found = OTHER_UNIT.fullmatch(str(amount))
    if found is None:
        return None
    prefix = (found["prefix"] or "").upper()
    return f"{found['number']}{prefix}{'i' * bool(prefix)}"
