"""Compiled kernels travel to machines that start later, whole or not at all."""

import hashlib
import io
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from rljob_api import kernels
from rljob_api.control import EVICTION_TOKEN_VARIABLE, TOKEN_VARIABLE, eviction_token, kernels_key
from rljob_trainer.engines.actor import server
from rljob_trainer.engines.actor.server import EngineServer
from rljob_trainer.engines.command import EngineCommand
from rljob_trainer.engines.served import EngineStartError
from rljob_trainer.processes import kernel_archive
from rljob_trainer.processes.kernel_archive import KeptKernels, NoKernels, kernels_of


@pytest.fixture
def compiled(tmp_path: Path) -> Path:
    """A machine's directory after an engine has compiled."""
    directory = tmp_path / "first"
    (directory / "triton" / "ABC").mkdir(parents=True)
    (directory / "triton" / "ABC" / "kernel.cubin").write_bytes(b"cubin")
    (directory / "tvm-ffi").mkdir()
    (directory / "tvm-ffi" / "main.so").write_bytes(b"so")
    return directory


def key_of(token: str) -> bytes:
    key = kernels_key({TOKEN_VARIABLE: token})
    assert key is not None
    return key


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    return tmp_path / "run" / "kernels" / "kernels.tar"


def content(directory: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in sorted(directory.rglob("*"))
        if path.is_file() and not path.name.startswith(".")
    }


def times(directory: Path) -> dict[str, int]:
    return {name: (directory / name).stat().st_mtime_ns for name in content(directory)}


NINJA = """\
rule compile
  command = printf 'kernel.o: kernel.cu\\n' > $out.d && cp $in $out
  depfile = $out.d
  deps = gcc
build kernel.o: compile kernel.cu
"""


def test_ninja_finds_nothing_to_build_again(archive: Path, tmp_path: Path) -> None:
    directory = tmp_path / "kernels"
    directory.mkdir()
    (directory / "build.ninja").write_text(NINJA)
    (directory / "kernel.cu").write_text("kernel")
    ninja = [str(Path(sys.executable).parent / "ninja"), "-C", str(directory)]
    subprocess.run(ninja, check=True)
    KeptKernels(directory, archive).pack()
    shutil.rmtree(directory)
    assert KeptKernels(directory, archive).unpack()
    done = subprocess.run([*ninja, "-d", "explain"], capture_output=True, text=True, check=True)
    assert "no work to do" in done.stdout, done.stdout + done.stderr


def test_another_machine_gets_what_was_compiled_once(
    compiled: Path, archive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert KeptKernels(compiled, archive).pack()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "another disk"))  # no file can be renamed from there
    second = tmp_path / "pod" / "second"
    assert KeptKernels(second, archive).unpack()
    assert content(second) == content(compiled) != {}
    assert times(second) == times(compiled)
    (second / "tvm-ffi" / "main.so").unlink()
    assert not KeptKernels(second, archive).unpack(), "a machine is filled once"
    assert "tvm-ffi/main.so" not in content(second)


def test_the_archive_is_written_again_only_for_new_files(compiled: Path, archive: Path, tmp_path: Path) -> None:
    assert KeptKernels(compiled, archive).pack()
    assert not KeptKernels(compiled, archive).pack()
    second = tmp_path / "second"
    KeptKernels(second, archive).unpack()
    assert not KeptKernels(second, archive).pack(), "its own marks are no kernels"
    (second / "triton" / "new").write_bytes(b"new")
    assert KeptKernels(second, archive).pack()
    third = tmp_path / "third"
    KeptKernels(third, archive).unpack()
    assert content(third) == content(compiled) | {"triton/new": b"new"}
    assert [each.name for each in archive.parent.iterdir()] == [archive.name]


def test_the_archive_has_what_any_machine_has_compiled(compiled: Path, archive: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    (other / "inductor").mkdir(parents=True)
    (other / "inductor" / "graph").write_bytes(b"graph")
    os.utime(other / "inductor" / "graph", ns=(5, 7))
    assert KeptKernels(compiled, archive).pack()
    assert KeptKernels(other, archive).pack()
    third = tmp_path / "third"
    KeptKernels(third, archive).unpack()
    assert content(third) == content(compiled) | content(other)
    assert times(third) == times(compiled) | times(other)


def test_a_file_of_this_machine_replaces_the_archive_s(compiled: Path, archive: Path, tmp_path: Path) -> None:
    KeptKernels(compiled, archive).pack()
    other = tmp_path / "other"
    (other / "tvm-ffi").mkdir(parents=True)
    (other / "tvm-ffi" / "main.so").write_bytes(b"newer")
    (other / "tvm-ffi" / "more.so").write_bytes(b"more")
    assert KeptKernels(other, archive).pack()
    third = tmp_path / "third"
    KeptKernels(third, archive).unpack()
    assert content(third) == content(compiled) | content(other)


def test_kernels_of_other_machines_go_when_all_together_are_too_large(
    compiled: Path, archive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    KeptKernels(compiled, archive).pack()  # 7 bytes
    other = tmp_path / "other"
    other.mkdir()
    (other / "new").write_bytes(b"four")
    for most, kept in ((11, content(compiled) | content(other)), (10, content(other))):
        monkeypatch.setattr(kernel_archive, "MOST_BYTES", most)
        again = archive.with_name(f"{most}.tar")
        shutil.copyfile(archive, again)
        assert KeptKernels(other, again).pack()
        machine = tmp_path / str(most)
        KeptKernels(machine, again).unpack()
        assert content(machine) == kept


def test_nothing_is_done_before_anything_was_compiled(archive: Path, tmp_path: Path) -> None:
    assert not KeptKernels(tmp_path / "empty", archive).unpack()
    assert not KeptKernels(tmp_path / "empty", archive).pack()
    assert not archive.exists()


def test_a_damaged_archive_is_left_and_replaced(
    compiled: Path, archive: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    archive.parent.mkdir(parents=True)
    archive.write_bytes(b"no archive" * 100)
    assert not KeptKernels(tmp_path / "second", archive).unpack()
    assert "action=unpack_kernels" in caplog.text
    assert KeptKernels(compiled, archive).pack()
    assert KeptKernels(tmp_path / "third", archive).unpack()


@pytest.mark.parametrize("damage", ["zeros", "cut"])
def test_of_an_archive_that_is_damaged_in_the_middle_nothing_is_taken(
    compiled: Path, archive: Path, tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    (compiled / "large").write_bytes(bytes(range(256)) * 400)
    KeptKernels(compiled, archive).pack()
    raw = bytearray(archive.read_bytes())
    where = raw.index(bytes(range(256))) + 50_000
    archive.write_bytes(raw[:where] if damage == "cut" else raw[:where] + bytes(4096) + raw[where + 4096 :])
    second = tmp_path / "second"
    assert not KeptKernels(second, archive).unpack()
    assert content(second) == {}
    assert "unexpected end of data" in caplog.text if damage == "cut" else "large is damaged" in caplog.text


def test_files_of_this_machine_stay_when_the_archive_is_unpacked(compiled: Path, archive: Path, tmp_path: Path) -> None:
    KeptKernels(compiled, archive).pack()
    second = tmp_path / "second"
    (second / "tvm-ffi").mkdir(parents=True)
    (second / "tvm-ffi" / "main.so").write_bytes(b"own")
    assert KeptKernels(second, archive).unpack()
    assert content(second) == content(compiled) | {"tvm-ffi/main.so": b"own"}


Change = Callable[[tarfile.TarInfo, bytes], tuple[tarfile.TarInfo, bytes]]


def rewritten(archive: Path, change: Change) -> None:
    """Change one file of an archive, as somebody may who writes to the volume; all its headers stay otherwise."""
    with tarfile.open(archive) as tar:
        found = [(member, tar.extractfile(member).read()) for member in tar]  # type: ignore[union-attr]
    with tarfile.open(archive, "w") as tar:
        for index, (member, held) in enumerate(found):
            one, content = change(member, held) if index == 0 else (member, held)
            tar.addfile(one, io.BytesIO(content))


def with_content(member: tarfile.TarInfo, held: bytes, has_digest: bool) -> tuple[tarfile.TarInfo, bytes]:
    evil = b"EVIL!"[: len(held)]
    if has_digest:
        member.pax_headers[kernel_archive.DIGEST] = hashlib.sha256(evil).hexdigest()
    return member, evil


def with_header(name: str, value: str | None) -> Change:
    def changed(member: tarfile.TarInfo, held: bytes) -> tuple[tarfile.TarInfo, bytes]:
        member.pax_headers = {key: each for key, each in member.pax_headers.items() if key != name}
        member.pax_headers |= {} if value is None else {name: value}
        return member, held

    return changed


def renamed(member: tarfile.TarInfo, held: bytes) -> tuple[tarfile.TarInfo, bytes]:
    member.name = "tvm-ffi/other.so"
    return member, held


CHANGES: dict[str, Change] = {
    "its content": lambda member, held: with_content(member, held, has_digest=False),
    "its content and digest": lambda member, held: with_content(member, held, has_digest=True),
    "its name": renamed,
    "its time": with_header(kernel_archive.TIME, "1"),
    "no seal": with_header(kernel_archive.SEAL, None),
    "an empty seal": with_header(kernel_archive.SEAL, ""),
    "a seal in another script": with_header(kernel_archive.SEAL, "\u00e9" * 64),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_of_an_archive_that_somebody_has_changed_nothing_is_taken_and_it_is_replaced(
    compiled: Path, archive: Path, tmp_path: Path, change: Change, caplog: pytest.LogCaptureFixture
) -> None:
    assert KeptKernels(compiled, archive).pack()
    rewritten(archive, change)
    second = tmp_path / "second"
    assert not KeptKernels(second, archive).unpack()
    assert content(second) == {}
    assert "action=unpack_kernels" in caplog.text
    assert KeptKernels(compiled, archive).pack(), "what is not ours is not there"
    third = tmp_path / "third"
    assert KeptKernels(third, archive).unpack()
    assert content(third) == content(compiled)


def test_an_archive_of_another_job_is_not_taken(compiled: Path, archive: Path, tmp_path: Path) -> None:
    assert KeptKernels(compiled, archive, key_of("of another job")).pack()
    assert not KeptKernels(tmp_path / "second", archive, key_of("of this job")).unpack()
    assert content(tmp_path / "second") == {}


def test_all_pods_of_a_job_have_the_key_and_no_other_job() -> None:
    head, worker = {TOKEN_VARIABLE: "a token"}, {EVICTION_TOKEN_VARIABLE: eviction_token("a token")}
    assert kernels_key(head) == kernels_key(worker) == key_of("a token")
    assert key_of("another") != key_of("a token")
    assert kernels_key({}) is None
    assert kernels_key({EVICTION_TOKEN_VARIABLE: ""}) is None


def test_packing_leaves_out_what_somebody_has_added(compiled: Path, archive: Path, tmp_path: Path) -> None:
    assert KeptKernels(compiled, archive).pack()
    with tarfile.open(archive, "a") as tar:
        entry = tarfile.TarInfo("triton/EVIL/launcher.so")
        entry.size = 4
        tar.addfile(entry, io.BytesIO(b"evil"))
    (compiled / "more").write_bytes(b"more")
    assert KeptKernels(compiled, archive).pack()
    with tarfile.open(archive) as tar:
        assert sorted(tar.getnames()) == sorted(content(compiled))


def test_an_archive_is_written_through_no_link(compiled: Path, archive: Path, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("secret")
    archive.parent.mkdir(parents=True)
    archive.symlink_to(victim)
    assert KeptKernels(compiled, archive).pack()
    assert victim.read_text() == "secret"


def test_an_archive_writes_nothing_outside(archive: Path, tmp_path: Path) -> None:
    archive.parent.mkdir(parents=True)
    with tarfile.open(archive, "w") as tar:
        entry = tarfile.TarInfo("../outside.so")
        entry.size = 3
        tar.addfile(entry, io.BytesIO(b"bad"))
    assert not KeptKernels(tmp_path / "second", archive).unpack()
    assert not (tmp_path / "outside.so").exists()


def test_links_are_not_kept(compiled: Path, archive: Path, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    (compiled / "link").symlink_to(tmp_path / "secret")
    assert KeptKernels(compiled, archive).pack()
    with tarfile.open(archive) as tar:
        assert "link" not in tar.getnames()


def test_files_that_change_meanwhile_are_not_kept(
    compiled: Path, archive: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    versions = iter(range(100))
    monkeypatch.setattr(kernel_archive, "_version", lambda file: (1, next(versions)))
    assert not KeptKernels(compiled, archive).pack()
    assert "reason=files have changed meanwhile\n" in caplog.text
    assert list(archive.parent.iterdir()) == []


def test_what_is_too_large_for_kernels_is_not_kept(
    compiled: Path, archive: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernel_archive, "MOST_BYTES", 6)
    assert not KeptKernels(compiled, archive).pack()
    monkeypatch.setattr(kernel_archive, "MOST_BYTES", 7)
    assert KeptKernels(compiled, archive).pack()


def test_what_may_be_the_reason_of_a_failed_start_is_removed(compiled: Path, archive: Path) -> None:
    KeptKernels(compiled, archive).pack()
    KeptKernels(compiled, archive).discard()
    assert not compiled.exists()
    assert not archive.exists()
    KeptKernels(compiled, archive).discard()


class Process:
    """A server that is one in name."""

    pid = 1

    def __init__(self, *_: object) -> None:
        """Start nothing."""

    def stop(self) -> None:
        """Do nothing."""


@pytest.mark.parametrize("trouble", [None, "it has crashed"])
def test_an_engine_finds_the_kernels_and_leaves_them(
    compiled: Path, archive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trouble: str | None
) -> None:
    directory = tmp_path / "second"
    found: list[dict[str, bytes]] = []

    def ready(*_: object, **__: object) -> str | None:
        found.append(content(directory))
        (directory / "more").write_bytes(b"more")
        return trouble

    KeptKernels(compiled, archive, key_of("a token")).pack()
    monkeypatch.setenv(EVICTION_TOKEN_VARIABLE, eviction_token("a token"))
    monkeypatch.setattr(server, "KeptProcess", Process)
    monkeypatch.setattr(server, "_wait_ready", ready)
    monkeypatch.setattr(KeptKernels, "pack_soon", KeptKernels.pack)
    monkeypatch.setenv(kernels.DIRECTORY_VARIABLE, str(directory))
    engine = EngineServer("engine-0", tmp_path / "log", "127.0.0.1")
    try:
        engine.start(EngineCommand({}, {}, archive), 10)
    except EngineStartError:
        assert trouble
        assert not archive.exists()
    else:
        with tarfile.open(archive) as tar:
            assert "more" in tar.getnames()
    assert found == [content(compiled)]


def test_an_engine_starts_where_nothing_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "KeptProcess", Process)
    monkeypatch.setattr(server, "_wait_ready", lambda *_, **__: None)
    monkeypatch.delenv(kernels.DIRECTORY_VARIABLE, raising=False)
    archive = tmp_path / "run" / "kernels.tar"
    EngineServer("engine-0", tmp_path / "log", "127.0.0.1").start(EngineCommand({}, {}, archive), 10)
    assert not archive.parent.exists()


@pytest.mark.parametrize("directory", [None, "", "machine"])
@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize("has_token", [True, False])
def test_kernels_are_kept_in_pods_for_processes_that_compile(
    archive: Path, tmp_path: Path, directory: str | None, named: bool, has_token: bool
) -> None:
    environ = {} if directory is None else {kernels.DIRECTORY_VARIABLE: directory and str(tmp_path / directory)}
    environ |= {TOKEN_VARIABLE: "a token"} if has_token else {}
    found = kernels_of(environ, archive if named else None)
    if directory and named and has_token:
        assert found == KeptKernels(tmp_path / directory, archive, key_of("a token"))
        assert key_of("a token").hex() not in repr(found)
    else:
        assert isinstance(found, NoKernels)
        assert not found.unpack()
        assert not found.pack()
        found.pack_soon()
        found.discard()
