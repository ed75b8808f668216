"""Text of others on a terminal: no verb passes on what could steer it."""

import ast
import io
import json
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text
from typer.testing import CliRunner

from rljob_cli.cluster import watching
from rljob_cli.jobs import job_page, top_view
from rljob_cli.jobs.jobs import job_of
from rljob_cli.main import app
from rljob_cli.terminal import screen
from rljob_cli.terminal.screen import Printable, say, say_json, write_log
from support.operator.operator_world import SPEC
from support.tables import each_of

EVIL = "\x1b]52;c;Y3VybCBldmlsfHNo\x07\x1b[2K\x1b[1A\x1b]8;;http://evil\x07click\x1b]8;;\x07\u202e\x9b2J\u200b"
STEERING = [char for char in EVIL if not char.isprintable()]
SOURCES = sorted(Path(screen.__file__).parents[1].rglob("*.py"))
QUICKSTART = (Path(__file__).parents[4] / "docs/examples/quickstart.yaml").read_text()
AT = "2026-11-27T10:00:00Z"
NOW = datetime(2026, 11, 27, 11, tzinfo=UTC)


def steering(text: str) -> list[str]:
    return sorted({char for char in STEERING if char in text})


def rljob(*arguments: object, stdin: str | None = None) -> str:
    made = CliRunner().invoke(app, [*map(str, arguments)], input=stdin)
    return made.stdout + made.stderr


def drawn(what: RenderableType, **options: object) -> str:
    file = io.StringIO()
    Printable(file=file, width=200, force_terminal=False, no_color=True, **options).print(what)
    return file.getvalue()


@each_of(SOURCES, lambda path: path.name)
def test_only_the_screen_and_the_display_write(source: Path) -> None:
    calls = [ast.unparse(each.func) for each in ast.walk(ast.parse(source.read_text())) if isinstance(each, ast.Call)]
    writes = {"print", "typer.echo", "click.echo", "Console", "sys.stdout.write", "sys.stderr.write", "typer.secho"}
    allowed = {"screen.py": writes, "display.py": {"sys.stdout.write"}, "completion.py": {"sys.stdout.write"}}
    allowed |= {"in_pod.py": {"sys.stdout.write"}}  # runs in a pod; its reader is a program
    assert writes & set(calls) <= allowed.get(source.name, set())


def test_a_console_shows_text_of_others_and_follows_no_markup_in_it() -> None:
    table = Table("a")
    table.add_row(f"[bold]x[/] [link=http://evil]{EVIL}")
    table.add_row(Text(f"{EVIL}\ny [/nothing]"))
    shown = drawn(table) + drawn(f"[red]{EVIL} :smile:")
    assert steering(shown) == []
    assert "[bold]x[/] [link=http://evil]" in shown
    assert "[red]" in shown
    assert ":smile:" in shown


def test_colours_of_our_own_stay() -> None:
    file = io.StringIO()
    Printable(file=file, width=80, force_terminal=True, color_system="standard").print(Text(EVIL, style="red"))
    assert file.getvalue().startswith("\x1b[31m")
    assert "\x1b]52" not in file.getvalue()
    assert "\x1b[2K" not in file.getvalue()


def test_text_keeps_its_lines_and_json_stays_json(capsys: pytest.CaptureFixture[str]) -> None:
    say(f"{EVIL}\n\tb")
    say_json(json.dumps({EVIL: [EVIL, "\x85\x7f"]}, ensure_ascii=False, indent=1))
    text, _, as_json = capsys.readouterr().out.partition("{")
    assert steering(text + as_json) == []
    assert text.endswith("\n\tb\n")
    assert json.loads("{" + as_json) == {EVIL: [EVIL, "\x85\x7f"]}


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_log_goes_to_a_terminal_without_what_steers_it(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    write_log(
        [b"\x1b[36m(pid=1)\x1b[0m ok \xc3", f"\xa9 {EVIL}".encode("latin-1", "ignore"), b"\r 10%\r 20%\r\nend\xff\n"]
    )
    shown = terminal.getvalue()
    assert steering(shown) == []
    assert shown.startswith("(pid=1) ok é ")
    assert shown.endswith("\n 10%\n 20%\nend\\xff\n")


def test_a_log_goes_to_a_pipe_as_it_is(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    write_log([EVIL.encode(), b"\xff\r\n"])
    assert capfdbinary.readouterr().out == EVIL.encode() + b"\xff\r\n"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A directory whose log and the log's name are of somebody else."""
    name = EVIL.replace("/", "_")
    failure = f"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {EVIL} 2 GiB\nValueError: {EVIL} x\n"
    (tmp_path / f"{name}.log").write_text(failure)
    return tmp_path


@pytest.mark.parametrize("options", [(), ("-o", "json")])
def test_doctor_cleans_lines_and_names_of_files(run: Path, options: tuple[str, ...]) -> None:
    shown = rljob("doctor", run, *options) + rljob("doctor", next(run.iterdir()), *options)
    assert "OutOfMemory" in shown
    assert steering(shown) == []


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("promptsPerStep: 16", f"promptsPerStep: 16\n    {json.dumps(EVIL)}: 1"),
        ("name: grpo", f"name: {json.dumps(EVIL)}"),
        ("device: Cpu", f"device: Cpu\n  extraArgs: {{sglang: {{{json.dumps(EVIL)}: 1}}}}"),
        ("device: Cpu", f"device: Cpu\n    env: {{{json.dumps(EVIL)}: 1}}"),
    ],
)
@pytest.mark.parametrize("verb", ["validate", "plan", "run"])
def test_names_and_values_of_a_manifest_are_shown_as_they_are(tmp_path: Path, old: str, new: str, verb: str) -> None:
    (tmp_path / "job.yaml").write_text(QUICKSTART.replace(old, new))
    shown = rljob(verb, tmp_path / "job.yaml")
    assert "spec." in shown
    assert steering(shown) == []


@pytest.mark.parametrize("name", ["run.sh", "grpo.yaml"])
def test_import_cleans_words_and_comments(tmp_path: Path, name: str) -> None:
    texts = {
        "run.sh": f"python3 train.py --hf-checkpoint '/m{EVIL}' --bogus-'{EVIL}' 1 --num-rollout '{EVIL}'\n",
        "grpo.yaml": f"grpo: {{max: 1, {json.dumps(EVIL)}: 2}}\npolicy: {{model_name: {json.dumps(EVIL)}}}\n",
    }
    (tmp_path / name).write_text(texts[name])
    assert steering(rljob("import", tmp_path / name)) == []


def test_what_is_wrong_with_a_command_line_is_printable(tmp_path: Path) -> None:
    assert steering(rljob("doctor", tmp_path / EVIL.replace("/", "_"), "x.log")) == []
    assert steering(rljob("explain", EVIL)) == []
    assert steering(rljob(EVIL)) == []


def test_an_error_that_nothing_expected_is_printable(capsys: pytest.CaptureFixture[str]) -> None:
    error = ValueError(EVIL)
    screen.tell(ValueError, error, error.__traceback__)
    assert steering(capsys.readouterr().err) == []


def evil_job() -> dict:
    conditions = [
        {"type": kind, "status": state, "reason": "X", "message": f"m {EVIL}", "lastTransitionTime": AT}
        for kind, state in (("Sound", "False"), ("Admitted", "True"), ("Training", "False"), ("Degraded", "True"))
    ]
    status = {
        "observedGeneration": 1,
        "phase": "Recovering",
        "phaseSince": AT,
        "attempt": 1,
        "directory": f"/r/{EVIL}",
        "conditions": [{**each, "observedGeneration": 1} for each in conditions],
        "attempts": [
            {"number": 1, "cluster": EVIL, "startAfter": AT, "started": AT, "ended": AT, "exitCode": 1, "reason": EVIL}
        ],
        "engines": {
            "desired": 1,
            "ready": 0,
            "items": [{"name": EVIL, "state": "Dead", "since": AT, "lastError": EVIL}],
        },
        "lastCheckpoint": {"step": 1, "path": EVIL, "verified": True, "time": AT},
        "recovery": [{"time": AT, "action": "RestartEngine", "target": EVIL, "cause": EVIL}],
    }
    metadata = {"name": "evil", "namespace": "a", "uid": "u", "generation": 1, "creationTimestamp": AT}
    return {"metadata": metadata, "spec": {**SPEC, "managedBy": EVIL}, "status": status}


def test_a_job_is_printable_wherever_it_is_shown() -> None:
    job = job_of(evil_job())
    file = io.StringIO()
    console = Console(file=file, width=200, force_terminal=False, no_color=True)
    console.print(job_page.as_page(job, NOW, False, True))
    console.print(top_view.as_tables([job], NOW, True))
    assert steering(file.getvalue() + watching.line(job) + job.explanation + job.managed_by) == []
    assert "\\x1b]52" in file.getvalue()
