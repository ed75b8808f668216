"""Writes the Grafana dashboards into the chart: `python charts/dashboards.py`, or `make generate`.

A panel is one line of facts here and sixty lines of JSON there, so the JSON is generated and this file is reviewed.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

TARGET = Path(__file__).parent / "rljob" / "dashboards"
SOURCE = {"type": "prometheus", "uid": "${datasource}"}
COLUMNS = 24

Json = dict[str, Any]


@dataclass(frozen=True)
class Panel:
    """One picture."""

    title: str
    text: str
    """what it shows, and when to worry"""
    queries: Mapping[str, str]
    """by legend"""
    unit: str = "short"
    kind: str = "timeseries"
    width: int = 8
    height: int = 7
    thresholds: Mapping[float, str] | None = None
    """color from a value on"""
    stacked: bool = False
    limits: tuple[float | None, float | None] = (None, None)


@dataclass(frozen=True)
class Row:
    title: str
    panels: Sequence[Panel]


@dataclass(frozen=True)
class Variable:
    """A choice above the panels, from the values of a label."""

    label: str
    series: str
    everything: bool = False


@dataclass(frozen=True)
class Dashboard:
    uid: str
    title: str
    text: str
    variables: Sequence[Variable]
    rows: Sequence[Row]


RATE = "[$__rate_interval]"
ALL = '{namespace=~"$namespace"}'
ONE = '{namespace="$namespace", rljob="$rljob"}'
GOOD_WHEN_1 = {0.0: "red", 1.0: "green"}
BAD_FROM_1 = {0.0: "green", 1.0: "red"}


def per_job(series: str) -> str:
    """Return the series once for each job: two replicas, or two drivers of one job, must not count twice."""
    return f"max by (namespace, rljob) ({series})"


def quantile(share: float, histogram: str, window: str = RATE) -> str:
    return f"histogram_quantile({share}, sum by (le) (rate({histogram}_bucket{window})))"


FLEET = Dashboard(
    "rljob-fleet",
    "RLJob / Fleet",
    "All RLJobs of the cluster, and the operator that looks after them.",
    [Variable("namespace", "rljob_operator_job_phase", everything=True)],
    [
        Row(
            "Now",
            [
                Panel(
                    "Jobs that train",
                    "Jobs whose driver trains now, in all namespaces.",
                    {"": 'max(rljob_operator_jobs{phase="Training"})'},
                    kind="stat",
                    width=4,
                    height=4,
                ),
                Panel(
                    "Jobs in trouble",
                    "Jobs that recover from a failure now.",
                    {"": 'max(rljob_operator_jobs{phase="Recovering"})'},
                    kind="stat",
                    width=4,
                    height=4,
                    thresholds={0: "green", 1: "orange"},
                ),
                Panel(
                    "GPUs held",
                    "GPUs of jobs that have a cluster, or wait for its pods; on Cpu, processes.",
                    {"": f"sum({per_job(f'rljob_operator_job_gpus{ALL}')}) or vector(0)"},
                    kind="stat",
                    width=4,
                    height=4,
                ),
                Panel(
                    "Failed in a day",
                    "Jobs that ended without success in the last 24 hours.",
                    {"": 'sum(increase(rljob_operator_jobs_finished_total{phase="Failed"}[1d]))'},
                    kind="stat",
                    width=4,
                    height=4,
                    thresholds=BAD_FROM_1,
                ),
                Panel(
                    "Succeeded in a day",
                    "Jobs that did all of their steps in the last 24 hours.",
                    {"": 'sum(increase(rljob_operator_jobs_finished_total{phase="Succeeded"}[1d]))'},
                    kind="stat",
                    width=4,
                    height=4,
                ),
                Panel(
                    "Operator leads",
                    "1: a replica acts. 0: nothing is started, healed or ended.",
                    {"": "max(rljob_operator_is_leader)"},
                    kind="stat",
                    width=4,
                    height=4,
                    thresholds=GOOD_WHEN_1,
                ),
            ],
        ),
        Row(
            "Jobs",
            [
                Panel(
                    "Jobs by phase",
                    "New: the operator has not looked at it. Failed and Succeeded stay until somebody deletes them.",
                    {"{{phase}}": "max by (phase) (rljob_operator_jobs)"},
                    stacked=True,
                ),
                Panel(
                    "GPUs by namespace",
                    "What the jobs of each namespace hold; on Cpu, processes.",
                    {"{{namespace}}": f"sum by (namespace) ({per_job(f'rljob_operator_job_gpus{ALL}')})"},
                    stacked=True,
                ),
                Panel(
                    "What the GPUs do",
                    "GPUs in each phase of the loop. Rollout and train are the work; the rest is what it costs.",
                    {
                        "{{phase}}": f"sum by (phase) (rate(rljob_phase_seconds_total{ALL}{RATE}) "
                        "* on (namespace, rljob, instance) group_left () rljob_gpus)"
                    },
                    stacked=True,
                ),
                Panel(
                    "Progress",
                    "Share of the steps that are done. A flat line is a job that makes none.",
                    {"{{namespace}}/{{rljob}}": per_job(f"rljob_step{ALL} / rljob_steps_wanted{ALL}")},
                    unit="percentunit",
                    limits=(0, 1),
                ),
                Panel(
                    "Reward",
                    "Mean reward of each job's last step.",
                    {"{{namespace}}/{{rljob}}": per_job(f"rljob_reward_mean{ALL}")},
                ),
                Panel(
                    "Tokens",
                    "Made by all engines, and trained on by all learners.",
                    {
                        "rollout": f"sum(rate(rljob_rollout_tokens_total{ALL}{RATE}))",
                        "train": f"sum(rate(rljob_train_tokens_total{ALL}{RATE}))",
                    },
                    unit="tok/s",
                ),
            ],
        ),
        Row(
            "Failures",
            [
                Panel(
                    "Ends of drivers",
                    "In the last hour, by exit code. Ok and Preempted are no failures.",
                    {"{{reason}}": "sum by (reason) (increase(rljob_operator_driver_exits_total[1h]))"},
                    stacked=True,
                ),
                Panel(
                    "Engine failures",
                    "In the last hour, by cause.",
                    {"{{cause}}": f"sum by (cause) (increase(rljob_engine_failures_total{ALL}[1h]))"},
                    stacked=True,
                ),
                Panel(
                    "Age of the newest checkpoint",
                    "What a restart would lose.",
                    {
                        "{{namespace}}/{{rljob}}": "time() - "
                        + per_job(f"rljob_operator_job_last_checkpoint_timestamp_seconds{ALL}")
                    },
                    unit="s",
                    thresholds={0: "green", 4 * 3600: "red"},
                ),
                Panel(
                    "Until a driver runs",
                    "From when an attempt is due until its driver runs: pods, images, Ray. Over the last hour.",
                    {
                        "p50": quantile(0.5, "rljob_operator_driver_start_seconds", "[1h]"),
                        "p95": quantile(0.95, "rljob_operator_driver_start_seconds", "[1h]"),
                    },
                    unit="s",
                    width=12,
                ),
                Panel(
                    "Attempts",
                    "Driver starts of each job so far. A staircase is a job that does not hold.",
                    {"{{namespace}}/{{rljob}}": per_job(f"rljob_operator_job_attempt{ALL}")},
                    width=12,
                ),
            ],
        ),
        Row(
            "Operator",
            [
                Panel(
                    "Time of a reconcile",
                    "From reading the world to the last write.",
                    {
                        "p50": quantile(0.5, "rljob_operator_reconcile_seconds"),
                        "p99": quantile(0.99, "rljob_operator_reconcile_seconds"),
                    },
                    unit="s",
                ),
                Panel(
                    "Queue",
                    "How long the job that waits longest is due. Seconds are normal after a restart.",
                    {"oldest": "max(rljob_operator_queue_oldest_seconds)"},
                    unit="s",
                    thresholds={0: "green", 60: "red"},
                ),
                Panel("Jobs due", "Jobs that wait for a worker.", {"jobs": "max(rljob_operator_queue_depth)"}),
                Panel(
                    "Reconciles that failed",
                    "Conflicts are normal: somebody changed the job in between. The others are told in the log.",
                    {"{{error}}": f"sum by (error) (rate(rljob_operator_reconcile_errors_total{RATE}))"},
                    unit="ops",
                ),
                Panel(
                    "Requests to the API server",
                    "By verb and answer. Watches are not counted.",
                    {"{{verb}} {{code}}": f"sum by (verb, code) (rate(rljob_operator_api_requests_total{RATE}))"},
                    unit="reqps",
                ),
                Panel(
                    "Time of a request",
                    "99 of 100 requests to the API server are answered faster.",
                    {
                        "{{verb}}": "histogram_quantile(0.99, sum by (verb, le) "
                        f"(rate(rljob_operator_api_request_seconds_bucket{RATE})))"
                    },
                    unit="s",
                ),
                Panel(
                    "Silence of the watches",
                    "How late the oldest expected event is. At 90 s the process is restarted.",
                    {"{{pod}}": "rljob_operator_watch_silence_seconds"},
                    unit="s",
                    thresholds={0: "green", 60: "red"},
                ),
                Panel(
                    "Memory",
                    "Of each replica.",
                    {"{{pod}}": "process_resident_memory_bytes and on (instance) rljob_operator_is_leader"},
                    unit="bytes",
                ),
                Panel(
                    "Versions",
                    "Of the replicas that run; two only during an upgrade.",
                    {"{{version}}": "count by (version) (rljob_operator_build_info)"},
                ),
            ],
        ),
    ],
)

JOB = Dashboard(
    "rljob-job",
    "RLJob / Job",
    "One RLJob: what it learns, how fast, and what failed.",
    [Variable("namespace", "rljob_step"), Variable("rljob", 'rljob_step{namespace="$namespace"}')],
    [
        Row(
            "Now",
            [
                Panel(
                    "Phase",
                    "What the operator says of the job.",
                    {"{{phase}}": f"max by (phase) (rljob_operator_job_phase{ONE})"},
                    kind="stat",
                    width=4,
                    height=4,
                ),
                Panel(
                    "Progress",
                    "Share of the steps that are done.",
                    {"": f"max(rljob_step{ONE} / rljob_steps_wanted{ONE})"},
                    unit="percentunit",
                    kind="gauge",
                    width=4,
                    height=4,
                    limits=(0, 1),
                ),
                Panel(
                    "Time left",
                    "At the mean speed of this driver's steps.",
                    {
                        "": f"max((rljob_steps_wanted{ONE} - rljob_step{ONE}) "
                        f"* rljob_step_seconds_sum{ONE} / rljob_step_seconds_count{ONE})"
                    },
                    unit="s",
                    kind="stat",
                    width=4,
                    height=4,
                ),
                Panel(
                    "Age of the checkpoint",
                    "What a restart would lose.",
                    {"": f"min(time() - rljob_last_checkpoint_timestamp_seconds{ONE})"},
                    unit="s",
                    kind="stat",
                    width=4,
                    height=4,
                    thresholds={0: "green", 4 * 3600: "red"},
                ),
                Panel(
                    "Attempt",
                    "Starts of the driver so far.",
                    {"": f"max(rljob_attempt{ONE})"},
                    kind="stat",
                    width=4,
                    height=4,
                    thresholds={0: "green", 2: "orange"},
                ),
                Panel(
                    "Model and task",
                    "What is trained, and on what.",
                    {"{{model}} on {{task}}": f"max by (model, task) (rljob_run_info{ONE})"},
                    kind="stat",
                    width=4,
                    height=4,
                ),
            ],
        ),
        Row(
            "Learning",
            [
                Panel(
                    "Reward",
                    "Of the last step's samples. It should rise; the deviation falls as answers agree.",
                    {"mean": f"rljob_reward_mean{ONE}", "standard deviation": f"rljob_reward_std{ONE}"},
                ),
                Panel(
                    "Held-out accuracy",
                    "On questions that are not trained on, with sampling and without; and on each evaluation set.",
                    {"{{mode}} {{set}}": f"rljob_heldout_accuracy{ONE} or rljob_evaluation_set_accuracy{ONE}"},
                    unit="percentunit",
                ),
                Panel(
                    "Shares",
                    "No signal: groups whose samples agree, which teach nothing. Truncated: responses at the token "
                    "limit. Clipped: tokens whose ratio was clipped.",
                    {
                        "no signal": f"rljob_groups_without_signal_ratio{ONE}",
                        "truncated": f"rljob_truncated_ratio{ONE}",
                        "clipped": f"rljob_clip_ratio{ONE}",
                    },
                    unit="percentunit",
                    limits=(0, 1),
                ),
                Panel("Loss", "Of the policy; near zero by construction.", {"loss": f"rljob_loss{ONE}"}),
                Panel(
                    "Gradient norm",
                    "Before clipping. Spikes come before divergence.",
                    {"norm": f"rljob_grad_norm{ONE}"},
                ),
                Panel(
                    "Entropy and KL",
                    "Entropy near zero: the policy explores no more. KL: how far it is from the reference model.",
                    {"entropy": f"rljob_entropy_nats{ONE}", "KL": f"rljob_kl_nats{ONE}"},
                ),
                Panel(
                    "Perplexity",
                    "Of the responses that are learned, by the learner; held-out: with sft. When that rises again "
                    "while the other falls, training data is learned by heart.",
                    {"learned": f"rljob_perplexity{ONE}", "held-out": f"rljob_heldout_perplexity{ONE}"},
                ),
                Panel(
                    "Critic",
                    "Of jobs with ppo. Explained variance: 1 is a critic that knows every return, below 0 it misleads.",
                    {"explained": f"rljob_explained_variance{ONE}", "value loss": f"rljob_value_loss{ONE}"},
                ),
                Panel(
                    "Engines against learner",
                    "Mean difference of their log-probabilities [nats]. They should compute the same model.",
                    {"mismatch": f"rljob_logprob_mismatch_nats{ONE}"},
                    thresholds={0: "green", 0.1: "red"},
                ),
                Panel(
                    "Response length",
                    "Mean, in tokens.",
                    {"tokens": f"rljob_response_length_tokens{ONE}"},
                ),
                Panel("Learning rate", "Of the last step.", {"rate": f"rljob_learning_rate{ONE}"}, unit="sci"),
                Panel(
                    "Staleness",
                    "With rollout.async: age in steps of the weights that made the last step's response tokens.",
                    {"mean": f"rljob_staleness_steps{ONE}", "oldest": f"rljob_staleness_max_steps{ONE}"},
                ),
            ],
        ),
        Row(
            "Speed",
            [
                Panel(
                    "Tokens",
                    "In the rollout and the train phase of the last step.",
                    {"{{phase}}": f"rljob_tokens_per_second{ONE}"},
                    unit="tok/s",
                ),
                Panel(
                    "Where the time goes",
                    "Share of the wall clock by phase of the loop.",
                    {"{{phase}}": f"sum by (phase) (rate(rljob_phase_seconds_total{ONE}{RATE}))"},
                    unit="percentunit",
                    stacked=True,
                    limits=(0, 1),
                ),
                Panel(
                    "Waiting for samples",
                    "Share of the last step for which the learner had nothing to train on.",
                    {"wait": f"rljob_data_wait_ratio{ONE}"},
                    unit="percentunit",
                    limits=(0, 1),
                ),
                Panel(
                    "Time of a step",
                    "Mean over the window.",
                    {"step": f"rate(rljob_step_seconds_sum{ONE}{RATE}) / rate(rljob_step_seconds_count{ONE}{RATE})"},
                    unit="s",
                ),
                Panel(
                    "Time in the current phase",
                    "What the driver is doing, and for how long. A line that only rises is a phase that hangs.",
                    {"{{phase}}": f"rljob_current_phase_seconds{ONE}"},
                    unit="s",
                ),
                Panel(
                    "Steps and weights",
                    "Steps done, and the version of the weights that the engines hold.",
                    {
                        "step": f"rljob_step{ONE}",
                        "weight version": f"rljob_weight_version{ONE}",
                        "checkpoint": f"rljob_checkpoint_step{ONE}",
                    },
                ),
                Panel(
                    "GPUs",
                    "What the job holds; on Cpu, processes.",
                    {"GPUs": f"rljob_gpus{ONE}"},
                ),
            ],
        ),
        Row(
            "Failures",
            [
                Panel(
                    "Engines by state",
                    "Only healthy engines serve; Stale ones wait for weights, Dead ones for a restart.",
                    {"{{state}}": f"sum by (state) (rljob_engines{ONE})"},
                    stacked=True,
                ),
                Panel(
                    "Engine failures",
                    "Since the driver began, by cause; and those that came back.",
                    {
                        "{{cause}}": f"sum by (cause) (rljob_engine_failures_total{ONE})",
                        "came back": f"sum(rljob_engine_restarts_total{ONE})",
                    },
                ),
                Panel(
                    "Lost",
                    "Skipped: optimizer steps whose gradient was not finite, since the driver began.",
                    {"skipped steps": f"rljob_skipped_steps_total{ONE}"},
                    thresholds=BAD_FROM_1,
                ),
                Panel(
                    "Work done again",
                    "Of earlier attempts, after the checkpoint that this driver went on from.",
                    {"lost": f"rljob_lost_seconds{ONE}"},
                    unit="s",
                    width=12,
                ),
                Panel(
                    "Memory of the driver",
                    "Of the driver's process alone: learners and engines have their own.",
                    {"resident": f"process_resident_memory_bytes{ONE}"},
                    unit="bytes",
                    width=12,
                ),
            ],
        ),
    ],
)


def rendered(dashboard: Dashboard) -> Json:
    """Return the dashboard as Grafana imports it."""
    return {
        "uid": dashboard.uid,
        "title": dashboard.title,
        "description": dashboard.text,
        "tags": ["rljob"],
        "schemaVersion": 39,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-6h", "to": "now"},
        "templating": {"list": [_datasource(), *(_variable(each) for each in dashboard.variables)]},
        "links": [{"type": "dashboards", "title": "RLJob", "tags": ["rljob"], "includeVars": True, "keepTime": True}],
        "panels": [{"id": number, **panel} for number, panel in enumerate(_placed(dashboard.rows), 1)],
    }


def _placed(rows: Sequence[Row]) -> Iterator[Json]:
    """Return titles and panels from left to right, each row below the last one."""
    y = 0
    for row in rows:
        yield {
            "type": "row",
            "title": row.title,
            "collapsed": False,
            "panels": [],
            "gridPos": {"x": 0, "y": y, "w": COLUMNS, "h": 1},
        }
        y, x = y + 1, 0
        for panel in row.panels:
            if x + panel.width > COLUMNS:
                x, y = 0, y + panel.height
            yield _panel(panel, x, y)
            x += panel.width
        y += row.panels[-1].height


def _panel(panel: Panel, x: int, y: int) -> Json:
    steps = panel.thresholds or {0.0: "green"}
    defaults: Json = {
        "unit": panel.unit,
        "thresholds": {
            "mode": "absolute",
            "steps": [{"color": color, "value": value or None} for value, color in steps.items()],
        },
    }
    low, high = panel.limits
    defaults |= {name: limit for name, limit in (("min", low), ("max", high)) if limit is not None}
    if panel.kind == "timeseries":
        defaults["custom"] = {
            "fillOpacity": 30 if panel.stacked else 5,
            "stacking": {"mode": "normal" if panel.stacked else "none"},
            "thresholdsStyle": {"mode": "line" if panel.thresholds else "off"},
        }
    else:
        defaults["color"] = {"mode": "thresholds"}
    return {
        "type": panel.kind,
        "title": panel.title,
        "description": panel.text,
        "datasource": SOURCE,
        "gridPos": {"x": x, "y": y, "w": panel.width, "h": panel.height},
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "options": _options(panel),
        "targets": [
            {"refId": chr(ord("A") + i), "datasource": SOURCE, "expr": query, "legendFormat": legend or "__auto"}
            for i, (legend, query) in enumerate(panel.queries.items())
        ],
    }


def _options(panel: Panel) -> Json:
    if panel.kind == "timeseries":
        return {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi", "sort": "desc"}}
    named = any("{{" in legend for legend in panel.queries)
    return {
        "reduceOptions": {"calcs": ["lastNotNull"]},
        "textMode": "name" if named else "auto",
        "colorMode": "value",
        "graphMode": "none",
    }


def _datasource() -> Json:
    return {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus"}


def _variable(variable: Variable) -> Json:
    everything = {"includeAll": True, "multi": True, "allValue": ".*", "current": {"text": "All", "value": "$__all"}}
    return {
        "name": variable.label,
        "type": "query",
        "datasource": SOURCE,
        "query": {"query": f"label_values({variable.series}, {variable.label})", "refId": variable.label},
        "refresh": 2,
        "sort": 1,
        **(everything if variable.everything else {}),
    }


def text(dashboard: Dashboard) -> str:
    """Return the file."""
    return json.dumps(rendered(dashboard), indent=1, ensure_ascii=False) + "\n"


DASHBOARDS = {"fleet": FLEET, "job": JOB}

if __name__ == "__main__":
    for name, dashboard in DASHBOARDS.items():
        (TARGET / f"{name}.json").write_text(text(dashboard))
