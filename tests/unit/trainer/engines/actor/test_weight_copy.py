"""A machine's copy of the weights: a delta makes exactly the wanted bytes of it, or is refused before or after."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import count
from pathlib import Path
from threading import Barrier

import numpy as np
import pytest

from rljob_trainer.engines import weight_delta
from rljob_trainer.engines.actor import weight_copy
from rljob_trainer.engines.actor.weight_copy import HELD, WEIGHTS, CopyError, apply_delta, copy_whole
from rljob_trainer.engines.weight_delta import Bytes, DeltaError
from rljob_trainer.engines.weight_offer import Delta, WeightFiles, digest

OFFERS = count()
VERSIONS = [np.random.default_rng(seed).integers(0, 256, 400, np.uint8) for seed in range(4)]


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    return tmp_path / "machine" / "copy"


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    (tmp_path / "shared").mkdir()
    return tmp_path / "shared"


def offered(shared: Path, version: int, base: int | None) -> WeightFiles:
    """Write a version whole, and as a delta of another one, for a new publication."""
    new = VERSIONS[version]
    files = WeightFiles(shared, digest(new), len(new), None, str(next(OFFERS)))
    files.whole_path.write_bytes(new.tobytes())
    if base is None:
        return files
    with weight_delta.threads("test") as workers:
        content = b"".join(weight_delta.encoded(VERSIONS[base], new, 0, 4, workers))
    files.delta_path.write_bytes(content)
    return replace(files, delta=Delta(digest(VERSIONS[base]), digest(content), len(content)))


def held(copy: Path) -> Bytes:
    return np.fromfile(copy / WEIGHTS, np.uint8)


def holding(copy: Path, shared: Path, version: int) -> None:
    copy_whole(offered(shared, version, None), copy)
    assert held(copy).tobytes() == VERSIONS[version].tobytes()


def refused(files: WeightFiles, copy: Path, reason: str) -> None:
    """Check that the delta is refused, and that the whole weights help."""
    with pytest.raises(DeltaError, match=reason):
        apply_delta(files, copy)
    assert copy_whole(files, copy) == files.nbytes
    assert held(copy).tobytes() == files.whole_path.read_bytes()
    assert apply_delta(files, copy) == 0


def test_a_copy_follows_delta_after_delta(copy: Path, shared: Path) -> None:
    holding(copy, shared, 0)
    for version in (1, 2, 3):
        files = offered(shared, version, version - 1)
        files.whole_path.unlink()
        assert files.delta is not None
        assert apply_delta(files, copy) == files.delta.nbytes == files.delta_path.stat().st_size
        assert held(copy).tobytes() == VERSIONS[version].tobytes()


def test_what_another_engine_of_the_machine_has_received_is_not_read_again(copy: Path, shared: Path) -> None:
    holding(copy, shared, 0)
    files = offered(shared, 1, 0)
    apply_delta(files, copy)
    files.delta_path.unlink()
    files.whole_path.unlink()
    assert (apply_delta(files, copy), copy_whole(files, copy)) == (0, 0)


def test_a_copy_is_verified_once_for_each_publication(
    copy: Path, shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole: list[int] = []

    def counted(content: Bytes | bytes) -> str:
        if len(content) == len(VERSIONS[0]) and not isinstance(content, bytes):
            whole.append(len(content))
        return digest(content)

    holding(copy, shared, 0)
    first, again = offered(shared, 1, 0), offered(shared, 1, 0)
    monkeypatch.setattr(weight_copy, "digest", counted)
    for files, verified in ((first, 1), (first, 1), (again, 2), (again, 2), (first, 3)):
        apply_delta(files, copy)
        assert len(whole) == verified
    copy_whole(offered(shared, 2, None), copy)
    assert len(whole) == 4


def test_whole_weights_are_not_verified_again_by_the_next_engine(
    copy: Path, shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = offered(shared, 0, None)
    copy_whole(files, copy)
    monkeypatch.setattr(weight_copy, "digest", lambda content: "not asked for")
    assert apply_delta(files, copy) == 0


def test_engines_of_a_machine_that_receive_at_once_read_a_delta_once(copy: Path, shared: Path) -> None:
    holding(copy, shared, 0)
    files = offered(shared, 1, 0)
    together = Barrier(8)

    def receive(_: int) -> int:
        together.wait()
        return apply_delta(files, copy)

    with ThreadPoolExecutor(8) as engines:
        assert sorted(engines.map(receive, range(8))) == [0] * 7 + [files.delta_path.stat().st_size]
    assert held(copy).tobytes() == VERSIONS[1].tobytes()


def test_a_machine_without_a_copy_needs_the_whole_weights(copy: Path, shared: Path) -> None:
    refused(offered(shared, 1, 0), copy, "the machine holds no weights")


def test_a_version_without_a_delta_is_copied_whole(copy: Path, shared: Path) -> None:
    holding(copy, shared, 0)
    refused(offered(shared, 1, None), copy, "there is no delta for this version")


def test_a_machine_that_missed_a_version_needs_the_whole_weights(copy: Path, shared: Path) -> None:
    holding(copy, shared, 0)
    refused(offered(shared, 2, 1), copy, f"holds {digest(VERSIONS[0])}, the delta is for {digest(VERSIONS[1])}")
    apply_delta(offered(shared, 3, 2), copy)


def test_an_earlier_delta_that_comes_later_is_refused(copy: Path, shared: Path) -> None:
    holding(copy, shared, 0)
    first = offered(shared, 1, 0)
    apply_delta(first, copy)
    apply_delta(offered(shared, 2, 1), copy)
    with pytest.raises(DeltaError, match="the delta is for"):
        apply_delta(first, copy)
    assert apply_delta(offered(shared, 2, 1), copy) == 0


def test_a_lost_delta_is_noticed(copy: Path, shared: Path) -> None:
    holding(copy, shared, 0)
    files = offered(shared, 1, 0)
    files.delta_path.unlink()
    refused(files, copy, "No such file")


@pytest.mark.parametrize("change", ["cut", "flip", "other"])
def test_a_damaged_delta_is_noticed_before_the_copy_changes(copy: Path, shared: Path, change: str) -> None:
    holding(copy, shared, 0)
    other = offered(shared, 2, 0).delta_path.read_bytes()
    files = offered(shared, 1, 0)
    content = files.delta_path.read_bytes()
    damaged = {"cut": content[:-1], "flip": bytes([content[0] ^ 1]) + content[1:], "other": other}[change]
    files.delta_path.write_bytes(damaged)
    with pytest.raises(DeltaError, match=rf"is damaged: {len(damaged)} bytes, {len(content)} were written"):
        apply_delta(files, copy)
    files.delta_path.write_bytes(content)
    assert apply_delta(files, copy) == len(content)


def damage(copy: Path) -> None:
    content = bytearray((copy / WEIGHTS).read_bytes())
    content[200] ^= 1
    (copy / WEIGHTS).write_bytes(content)


def test_a_damaged_copy_is_noticed_by_the_digest_of_the_whole(copy: Path, shared: Path) -> None:
    holding(copy, shared, 0)
    damage(copy)
    refused(offered(shared, 1, 0), copy, "the copy has the digest")


def test_a_damaged_copy_of_the_wanted_version_is_replaced(copy: Path, shared: Path) -> None:
    holding(copy, shared, 1)
    damage(copy)
    refused(offered(shared, 1, 0), copy, "the copy has the digest")


@pytest.mark.parametrize("size", [399, 401, None])
def test_a_copy_of_another_size_is_noticed(copy: Path, shared: Path, size: int | None) -> None:
    holding(copy, shared, 0)
    (copy / WEIGHTS).unlink()
    if size:
        (copy / WEIGHTS).write_bytes(bytes(size))
    refused(offered(shared, 1, 0), copy, "does not have 400 bytes")


def test_a_delta_that_cannot_be_applied_leaves_no_digest(copy: Path, shared: Path) -> None:
    holding(copy, shared, 0)
    files = offered(shared, 1, 0)
    files.delta_path.write_bytes(b"no delta")
    refused(
        replace(files, delta=Delta(digest(VERSIONS[0]), digest(b"no delta"), 8)),
        copy,
        "the delta cannot be read: unpack",
    )


def test_whole_weights_that_arrive_damaged_are_an_error_and_leave_no_digest(copy: Path, shared: Path) -> None:
    files = offered(shared, 1, None)
    files.whole_path.write_bytes(bytes(400))
    with pytest.raises(CopyError, match=f"copy {files.whole_path}: the copy has the digest"):
        copy_whole(files, copy)
    assert not (copy / HELD).exists()


def test_a_larger_model_may_have_been_there(copy: Path, shared: Path) -> None:
    copy.mkdir(parents=True)
    (copy / WEIGHTS).write_bytes(bytes(1000))
    refused(offered(shared, 1, 0), copy, "holds no weights")
