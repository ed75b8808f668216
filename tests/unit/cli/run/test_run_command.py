"""What `rljob run` refuses before it starts anything, and which signals it takes."""

import json
import signal
from pathlib import Path

from rljob_api.control import Status
from rljob_api.exits import Exit
from rljob_api.reading.manifest import load, parse
from rljob_cli.run.run import _interrupts_go_to, job_before, kept, run
from rljob_cli.run.rundir import locked, rundir
from support.operator.operator_world import raw_job


class Notes:
    def __init__(self) -> None:
        self.notes: list[str] = []

    def update(self, status: Status) -> None:
        raise AssertionError("no driver runs")

    def note(self, text: str) -> None:
        self.notes.append(text)


def manifest(tmp_path: Path, **sections: object) -> Path:
    raw = raw_job(checkpoint={"directory": str(tmp_path / "run")}, **sections)
    raw["metadata"] = {"name": "sums"}
    path = tmp_path / "manifest.yaml"
    path.write_text(json.dumps(raw))
    return path


def test_a_bad_manifest_is_refused_with_every_problem(tmp_path: Path):
    shown = Notes()
    path = manifest(tmp_path, training={"steps": -1}, reward={"kind": "nothing"})
    assert run(path, shown, driver=("false",)) == Exit.BAD_MANIFEST
    assert [note.partition(":")[0] for note in shown.notes] == ["spec.reward.kind", "spec.training.steps"]
    assert not (tmp_path / "run").exists()


def test_a_manifest_that_cannot_be_read_is_refused(tmp_path: Path):
    shown = Notes()
    assert run(tmp_path / "missing.yaml", shown, driver=("false",)) == Exit.BAD_MANIFEST
    assert shown.notes == ["manifest: cannot be read: No such file or directory"]


def test_a_directory_in_use_is_left_alone(tmp_path: Path):
    shown, path = Notes(), manifest(tmp_path)
    directory = rundir(parse(json.loads(path.read_text())))
    with locked(directory):
        assert run(path, shown, driver=("false",)) == Exit.IN_USE
    assert "already in use" in shown.notes[0]
    assert not directory.manifest.exists()


def test_the_job_whose_files_a_directory_has_is_known(tmp_path: Path):
    path = manifest(tmp_path)
    directory = rundir(parse(json.loads(path.read_text())))
    assert job_before(directory) is None
    directory.manifest.write_text(path.read_text().replace('"sums"', '"products"'))
    assert job_before(directory) == "products"


def test_signals_reach_the_supervisor_while_a_run_lasts():
    before, received = signal.signal(signal.SIGHUP, signal.SIG_DFL), []  # under nohup it is ignored
    try:
        with _interrupts_go_to(received.append):
            signal.raise_signal(signal.SIGHUP)
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_DFL
    finally:
        signal.signal(signal.SIGHUP, before)
    assert received == [signal.SIGHUP]


def test_a_signal_that_is_ignored_stays_ignored():
    before, received = signal.signal(signal.SIGHUP, signal.SIG_IGN), []
    try:
        with _interrupts_go_to(received.append):
            signal.raise_signal(signal.SIGHUP)
    finally:
        signal.signal(signal.SIGHUP, before)
    assert received == []


def test_a_run_directory_keeps_names_of_variables_and_no_values(tmp_path: Path):
    path = manifest(tmp_path, runtime={"device": "Cpu", "env": {"PLAIN": "value-of-it", "N": "1"}})
    text = path.read_text()
    job = load(text)
    written = kept(text, job.spec)
    assert "value-of-it" not in written
    assert load(written).spec.runtime.env == {"PLAIN": "***", "N": "***"}
    assert load(written).spec.runtime.texts == {}
    assert load(written).spec.model_copy(update={"runtime": job.spec.runtime}) == job.spec


def test_a_manifest_without_variables_is_kept_as_its_author_wrote_it(tmp_path: Path):
    text = f"# why\n{manifest(tmp_path).read_text()}"
    assert kept(text, load(text).spec) == text
