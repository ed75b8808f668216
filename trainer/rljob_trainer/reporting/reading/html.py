"""report.html: a run on one page, from events.jsonl alone, without network or library.

This module decides the content; `report.html.j2` decides the looks.
"""

import base64
import hashlib
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from itertools import cycle
from math import sqrt
from pathlib import Path
from typing import Any, Final

import yaml
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from rljob_api.control import RECOVERY, Goodput
from rljob_trainer.metric_table import Style, table
from rljob_trainer.private_files import write_whole
from rljob_trainer.reporting.goodput import REDONE
from rljob_trainer.reporting.phases import OTHER, PHASES
from rljob_trainer.reporting.reading.history import History, read_history, result
from rljob_trainer.reporting.reading.plots import Bar, Figure, Mark, Series, line_figure, share_bar, stacked_figure
from rljob_trainer.reporting.reading.scales import label, moving_average
from rljob_trainer.reporting.reading.step_windows import MOST
from rljob_trainer.reporting.records import AccuracyRecord, EngineRecord, StepRecord

FILE_NAME: Final = "report.html"
TEMPLATE: Final = "report.html.j2"
MOST_SAMPLES: Final = 400

# C0 and C1 controls, zero-width and bidirectional characters, line separators, byte order mark, replacement of bytes.
_INVISIBLE: Final = re.compile("[\x00-\x1f\x7f-\x9f\u00ad\u200b-\u200f\u2028-\u202f\u2060-\u2069\ufeff\ufffd]")


def write_report(run_directory: Path) -> Path:
    """Write report.html into a run directory, replacing an older one atomically; return its path.

    Raises NotARunError or EventsError.
    """
    page = render(read_history(run_directory, MOST))
    path = run_directory / FILE_NAME
    write_whole(path, page.encode())
    return path


def render(history: History) -> str:
    """Return the page."""
    environment = Environment(
        loader=PackageLoader("rljob_trainer.reporting.reading", "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "visible": visible,
        "duration": duration,
        "number": _number,
        "exact": exact,
        "clock": _clock,
    }
    template = environment.get_template(TEMPLATE)
    script = environment.get_template("report.js").render()
    return template.render(
        history=history,
        result=result(history),
        tiles=tiles(history),
        figures=figures(history),
        shares=_shares(history.parts),
        share_bar=Markup(share_bar("share of the wall-clock time by phase", _in_order(history.parts))),
        samples=_samples(history),
        manifest=yaml.safe_dump(history.run.manifest, sort_keys=False, allow_unicode=True, width=110),
        script=Markup(script),
        script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
    )


def tiles(history: History) -> tuple[tuple[str, str, str], ...]:
    """Return the numbers at the top as (name, value, explanation)."""
    lost, starts = sum(run.lost_steps for run in history.runs), history.driver_starts
    return (
        ("steps", f"{history.step} / {history.run.steps}", f"{lost} repeated" if lost else "none repeated"),
        (
            "wall clock",
            duration(history.seconds),
            f"{starts} driver start{'s'[: starts > 1]}",
        ),
        _effective(history.goodput),
        ("rollout", f"{_number(history.rollout_tokens_per_second)} tok/s", "response tokens, while generating"),
        ("train", f"{_number(history.train_tokens_per_second)} tok/s", "all tokens, while training"),
        ("engine failures", str(len(history.incidents)), _returns(history.incidents)),
    )


def _effective(goodput: Goodput | None) -> tuple[str, str, str]:
    lost = f"; {goodput.lost_gpu_seconds / 3600:.3g} GPU-hours lost" if goodput else ""
    share = f"{goodput.effective_share:.1%}" if goodput else "-"
    return "effective time", share, f"of the wall clock in steps that count{lost}"


def figures(history: History) -> tuple[Figure, ...]:
    """Return the plots that this run has data for."""
    steps, marks = history.steps, _marks(history)
    drawn = (
        _accuracy("Held-out accuracy", {each.step: each for each in history.evaluations}),
        *(_accuracy(f"Accuracy on {name}", history.accuracies(name)) for name in history.evaluation_sets),
        line_figure(
            "Held-out perplexity",
            "",
            [Series("by the learner", "primary", tuple((each.step, each.perplexity) for each in history.perplexities))],
            y_range=(1.0, None),
            note="Of the data's responses to held-out questions. It rises again when the model overfits.",
        ),
        _reward(steps, history.windows.size),
        _reward_parts(steps),
        *_of_table(steps, marks),
        stacked_figure(
            "Time of a step",
            "s",
            [
                Bar(step.step - number + 1, step.step, _in_order(step.phase_seconds))
                for step, number in zip(steps, history.numbers, strict=True)
            ],
            (*PHASES, OTHER),
            marks,
            "An evaluation or checkpoint after a step counts in the next step." + _legend_of_marks(marks),
        ),
    )
    return tuple(figure for figure in drawn if figure.svg)


def visible(text: str) -> Markup:
    """Return text with every character visible: control characters as escapes or code points."""
    parts, end = [], 0
    for match in _INVISIBLE.finditer(text):
        parts += [escape(text[end : match.start()]), _picture(match.group())]
        end = match.end()
    return Markup("").join([*parts, escape(text[end:])])


def exact(value: float | None) -> str:
    """Return a number with three digits, also a small one: 0.0000123 exceeds a limit of 0."""
    return "not finite" if value is None else f"{value:.3g}"


def duration(seconds: float) -> str:
    """Return a readable time: 4.2 s, 3 min 05 s, 2 h 07 min."""
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"


def _returns(incidents: Sequence[EngineRecord]) -> str:
    back = [incident.return_seconds for incident in incidents if incident.return_seconds is not None]
    if back:
        return f"{len(back)} back, slowest after {max(back):.1f} s"
    return "none came back" if incidents else ""


def _accuracy(title: str, accuracies: Mapping[int, AccuracyRecord]) -> Figure:
    """Draw accuracies by step, with whiskers of one standard error.

    The error is that of rewards of 0 or 1, the largest possible.
    """
    if not accuracies:
        return Figure(title, "", "", ())
    questions = accuracies[max(accuracies)].n
    highest = max(max(each.sampled, each.greedy or 0.0) for each in accuracies.values())
    return line_figure(
        title,
        "",
        [
            Series(
                "sampled",
                "primary",
                tuple((step, each.sampled) for step, each in accuracies.items()),
                errors={step: _standard_error(each.sampled, each.n) for step, each in accuracies.items()},
            ),
            Series("greedy", "secondary", tuple((step, each.greedy) for step, each in accuracies.items()), "dashed"),
        ],
        y_range=(0.0, 1.0 if 0.5 < highest <= 1.0 else None),
        note=f"{questions} questions that are not trained on; whiskers: one standard error.",
    )


def _reward(steps: Sequence[StepRecord], size: int) -> Figure:
    """Draw the reward; each of `steps` stands for `size` of them."""
    rewards = [step.reward_mean for step in steps]
    window = max(5, len(steps) // 20)
    averages = moving_average(rewards, window)
    of_one = "mean of the step" if size == 1 else f"mean of {size} steps"
    return line_figure(
        "Reward",
        "",
        [
            Series(of_one, "primary", _points(steps, rewards), "faint"),
            Series(f"mean of the last {window * size} steps", "primary", _points(steps, averages)),
        ],
    )


STYLES: Final[tuple[Style, ...]] = ("line", "dashed")
"""of lines of reward parts: the second is used when all colours are taken"""


def _reward_parts(steps: Sequence[StepRecord]) -> Figure:
    names = sorted({name for step in steps for name in step.reward_parts})
    looks = [(colour, style) for style in STYLES for colour in ("primary", "secondary", "rollout", "publish")]
    return line_figure(
        "Parts of the reward",
        "",
        [
            Series(name, colour, tuple((step.step, step.reward_parts.get(name)) for step in steps), style)
            for name, (colour, style) in zip(names, cycle(looks), strict=False)
        ],
        note="Mean of each part, before its weight.",
    )


def _of_table(steps: Sequence[StepRecord], marks: Sequence[Mark]) -> Iterable[Figure]:
    """Yield the figures of the table of metrics, in its order."""
    shown = table(type(steps[0])).items() if steps else ()
    plots = [(name, metric, metric.plot) for name, metric in shown if metric.plot]
    for title in dict.fromkeys(plot.title for _, _, plot in plots):
        lines = [each for each in plots if each[2].title == title]
        _, metric, first = lines[0]
        yield line_figure(
            title,
            metric.unit,
            [
                Series(plot.line, plot.colour, _points(steps, [getattr(step, name) for step in steps]), plot.style)
                for name, _, plot in lines
            ],
            marks if first.marks else (),
            (first.low, None),
            first.note + (_legend_of_marks(marks) if first.marks else ""),
        )


def _points(steps: Sequence[StepRecord], values: Sequence[float | None]) -> tuple[tuple[int, float | None], ...]:
    return tuple((step.step, value) for step, value in zip(steps, values, strict=True))


def _marks(history: History) -> tuple[Mark, ...]:
    failures = [Mark(each.step + 1, f"{each.engine} failed: {each.cause}") for each in history.incidents]
    starts = [(run.step, "new ranks" if run.new_ranks else f"driver start {run.attempt}") for run in history.runs[1:]]
    restarts = [Mark(step + 1, what) for step, what in starts]
    return (*failures, *restarts)


def _legend_of_marks(marks: Sequence[Mark]) -> str:
    return " ▾ a failure or restart." if marks else ""


def _standard_error(share: float, n: int) -> float:
    return sqrt(max(0.0, share * (1.0 - share)) / n)


def _in_order(phase_seconds: Mapping[str, float]) -> dict[str, float]:
    return {phase: phase_seconds[phase] for phase in (*PHASES, OTHER, REDONE, RECOVERY) if phase in phase_seconds}


def _shares(phase_seconds: Mapping[str, float]) -> list[tuple[str, float, float]]:
    total = sum(phase_seconds.values())
    return [(phase, seconds, seconds / total) for phase, seconds in phase_seconds.items()]


def _samples(history: History) -> list[dict[str, Any]]:
    """Return one row per sample, at most MOST_SAMPLES, of evenly spaced steps with the first and the last."""
    records = history.samples
    most = max(2, MOST_SAMPLES // max(1, max((len(record.samples) for record in records), default=1)))
    rows = []
    for record in _spread(records, most):
        rows += [{"step": record.step, **dict(sample)} for sample in record.samples]
    return rows


def _spread(records: Sequence[Any], most: int) -> Iterable[Any]:
    if len(records) <= most:
        return records
    return [records[round(index * (len(records) - 1) / (most - 1))] for index in range(most)]


def _picture(character: str) -> Markup:
    code = ord(character)
    name = f"U+{code:04X}"
    if character == "\n":
        return Markup('<i title="{}">↵</i>\n').format(name)
    if character == "\ufffd":
        return Markup('<i title="{}: bytes that are not text">\ufffd</i>').format(name)
    return Markup('<i title="{}">{}</i>').format(name, repr(character)[1:-1] if code < 0x80 else name)


def _number(value: float | None) -> str:
    return "–" if value is None else label(value)


def _clock(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(seconds)) + " UTC"
