"""Which extra of rljob brings a package that is not installed."""

import re
from importlib.metadata import PackageNotFoundError, requires

REQUIREMENT = re.compile(r"""(?P<package>[\w.-]+).*\bextra == ['"](?P<extra>\w+)['"]""")
PREFERRED = ("cluster", "doctor", "operator", "trainer")
"""of several extras that bring it, the first of these: the smaller ones"""


def extra_of(package: str) -> str | None:
    """Return the extra that brings a package; None: none does."""
    wanted = plain(package)
    try:
        found = [each for line in requires("rljob") or () if (each := REQUIREMENT.match(line))]
    except PackageNotFoundError:  # a checkout on PYTHONPATH
        return None
    extras = [each["extra"] for each in found if plain(each["package"]) == wanted and each["extra"] != "dev"]
    return min(extras, key=lambda extra: (extra not in PREFERRED, (*PREFERRED, extra).index(extra)), default=None)


def plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
