"""Whether a real node may be started here."""

import pytest

from local_cluster.errors import ClusterError
from local_cluster.packages import require_privileges


def status(effective: str) -> str:
    return f"Name:\tpytest\nCapPrm:\t000001ffffffffff\nCapEff:\t{effective}\n"


def test_root_of_the_machine_may() -> None:
    require_privileges(status("000001ffffffffff"))


@pytest.mark.parametrize(
    ("effective", "lacking"),
    [
        ("0000000000000000", "CAP_SYS_ADMIN and CAP_NET_ADMIN"),
        ("00000000a80425fb", "CAP_SYS_ADMIN and CAP_NET_ADMIN"),  # root in a container of Docker's
        ("0000000000200000", "needs CAP_NET_ADMIN,"),
    ],
)
def test_others_get_a_list_of_what_they_lack(effective: str, lacking: str) -> None:
    with pytest.raises(ClusterError, match=lacking):
        require_privileges(status(effective))
