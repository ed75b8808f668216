"""What the ranks measured of the network between them, and which links are slow. Pure; no torch."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from rljob_api.control import Finding

SHARE: Final = 0.25
"""of the best pair's bandwidth; a link below it is slow"""
MOST_LINKS: Final = 4
"""that a finding names"""
Pair = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Link:
    """Between two ranks, in both directions at once."""

    first: int
    second: int
    latency_s: float
    """of a few bytes"""
    bandwidth: float
    """of a large message [bytes/s]"""


@dataclass(frozen=True, slots=True)
class LinkReport:
    """The network between all ranks."""

    places: tuple[str, ...]
    """host or pod of each rank"""
    latency_s: float
    """of an all-reduce of a few bytes"""
    bandwidth: float
    """of a large all-reduce: what each rank sent [bytes/s]"""
    links: tuple[Link, ...]
    """pairs that were measured"""

    def named(self, link: Link) -> str:
        """Return a link in words, for example `rank 0 on pod-a and rank 8 on pod-b`."""
        return f"{named(link.first, self.places)} and {named(link.second, self.places)}"

    def __str__(self) -> str:
        return (
            f"all-reduce of {len(self.places)} ranks: {1000 * self.latency_s:.3g} ms, {in_words(self.bandwidth)};"
            f" best of {len(self.links)} pairs {in_words(max(link.bandwidth for link in self.links))}"
        )


def slow(links: Sequence[Link]) -> tuple[Link, ...]:
    """Return the links that are far slower than the best one, the slowest first."""
    best = max((link.bandwidth for link in links), default=0.0)
    return tuple(sorted((link for link in links if link.bandwidth < SHARE * best), key=lambda link: link.bandwidth))


def finding(report: LinkReport) -> Finding | None:
    """Return the finding of slow links; None: all are about as fast as the best one."""
    found = slow(report.links)
    if not found:
        return None
    names = "; ".join(f"{report.named(link)}: {in_words(link.bandwidth)}" for link in found[:MOST_LINKS])
    more = f"; and {len(found) - MOST_LINKS} more" if len(found) > MOST_LINKS else ""
    return Finding(
        name="SlowLink",
        evidence=f"below {SHARE:g} of the best pair: {names}{more}; {report}",
        advice="All ranks wait for the slowest link. If one rank is in all of these pairs, look at its node: cables,"
        " number of RDMA resources, whether NCCL chose InfiniBand there (NCCL_DEBUG=INFO in runtime.env).",
    )


def wants_all_pairs(all_reduce: float, links: Sequence[Link]) -> bool:
    """Whether all ranks together, or one of the pairs looked at first, are far slower than the best of these pairs."""
    return bool(slow(links)) or all_reduce < SHARE * max(link.bandwidth for link in links)


def rounds(ranks: int) -> list[list[Pair]]:
    """Return every pair once, in rounds in which no rank has two partners."""
    circle: list[int | None] = [*range(ranks), *([None] if ranks % 2 else [])]
    made = []
    for _ in range(len(circle) - 1):
        half = len(circle) // 2
        opposite = zip(circle[:half], reversed(circle[half:]), strict=True)
        made.append([(min(a, b), max(a, b)) for a, b in opposite if a is not None and b is not None])
        circle = [circle[0], circle[-1], *circle[1:-1]]
    return made


def sent(ranks: int, size: int, seconds: float) -> float:
    """Return what each rank of a ring sends in an all-reduce of `size` bytes [bytes/s]."""
    return 2 * (ranks - 1) / ranks * size / seconds


def named(rank: int, places: Sequence[str]) -> str:
    return f"rank {rank} on {places[rank]}"


def in_words(bandwidth: float) -> str:
    return f"{bandwidth / 1e9:.3g} GB/s"
