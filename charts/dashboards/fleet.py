"""All jobs of a cluster, and the operator."""

from dashboards.panel import ALL, BAD_FROM_1, GOOD_WHEN_1, RATE, Dashboard, Panel, Row, Variable, per_job, quantile

FLEET = Dashboard(
    "rljob-fleet",
    "RLJob / Fleet",
    "All RLJobs of the cluster and the operator.",
    [Variable("namespace", "rljob_operator_job_phase", everything=True)],
    [
        Row(
            "Now",
            [
                Panel(
                    "Training jobs",
                    "Jobs whose driver trains now, in all namespaces.",
                    {"": 'max(rljob_operator_jobs{phase="Training"})'},
                    kind="stat",
                    width=4,
                    height=4,
                ),
                Panel(
                    "Recovering jobs",
                    "Jobs that recover from a failure now.",
                    {"": 'max(rljob_operator_jobs{phase="Recovering"})'},
                    kind="stat",
                    width=4,
                    height=4,
                    thresholds={0: "green", 1: "orange"},
                ),
                Panel(
                    "GPUs in use",
                    "GPUs of jobs that have a cluster or wait for its pods; on Cpu, processes.",
                    {"": f"sum({per_job(f'rljob_operator_job_gpus{ALL}')}) or vector(0)"},
                    kind="stat",
                    width=4,
                    height=4,
                ),
                Panel(
                    "Failed, last day",
                    "Jobs that failed in the last 24 hours.",
                    {"": 'sum(increase(rljob_operator_jobs_finished_total{phase="Failed"}[1d]))'},
                    kind="stat",
                    width=4,
                    height=4,
                    thresholds=BAD_FROM_1,
                ),
                Panel(
                    "Succeeded, last day",
                    "Jobs that finished all steps in the last 24 hours.",
                    {"": 'sum(increase(rljob_operator_jobs_finished_total{phase="Succeeded"}[1d]))'},
                    kind="stat",
                    width=4,
                    height=4,
                ),
                Panel(
                    "Operator leader",
                    "1: a replica is the leader. 0: jobs are not started, recovered or ended.",
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
                    "New: the operator has not seen it yet. Failed and Succeeded jobs stay until they are deleted.",
                    {"{{phase}}": "max by (phase) (rljob_operator_jobs)"},
                    stacked=True,
                ),
                Panel(
                    "GPUs by namespace",
                    "GPUs of the jobs of each namespace; on Cpu, processes.",
                    {"{{namespace}}": f"sum by (namespace) ({per_job(f'rljob_operator_job_gpus{ALL}')})"},
                    stacked=True,
                ),
                Panel(
                    "Jobs in the queue",
                    "Jobs of each namespace that wait until quota and nodes have room for all their pods.",
                    {
                        "{{namespace}}": "count by (namespace) "
                        f"({per_job(f'rljob_operator_job_queued_timestamp_seconds{ALL}')}) or vector(0)"
                    },
                    stacked=True,
                ),
                Panel(
                    "Longest wait in the queue",
                    "How long the job of each namespace that waits longest has been in the queue.",
                    {
                        "{{namespace}}": "max by (namespace) "
                        f"(time() - {per_job(f'rljob_operator_job_queued_timestamp_seconds{ALL}')}) or vector(0)"
                    },
                    unit="s",
                ),
                Panel(
                    "GPU-hours, last day",
                    "GPUs of each namespace, summed over the last 24 hours; on Cpu, processes.",
                    {
                        "{{namespace}}": "sum by (namespace) "
                        f"(sum_over_time({per_job(f'rljob_operator_job_gpus{ALL}')}[1d:10s])) / 360"
                    },
                ),
                Panel(
                    "GPUs by phase",
                    "GPUs in each phase of the loop. Rollout and train are work; the rest is overhead.",
                    {
                        "{{phase}}": f"sum by (phase) (rate(rljob_phase_seconds_total{ALL}{RATE}) "
                        "* on (namespace, rljob, instance) group_left () rljob_gpus)"
                    },
                    stacked=True,
                ),
                Panel(
                    "Progress",
                    "Share of steps that are done. A flat line means that the job is stuck.",
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
                    "Tokens generated by all engines and trained on by all learners.",
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
                    "Driver exits",
                    "In the last hour, by exit code. Ok and Preempted are not failures.",
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
                    "Work that a restart would lose.",
                    {
                        "{{namespace}}/{{rljob}}": "time() - "
                        + per_job(f"rljob_operator_job_last_checkpoint_timestamp_seconds{ALL}")
                    },
                    unit="s",
                    thresholds={0: "green", 4 * 3600: "red"},
                ),
                Panel(
                    "Time to start a driver",
                    "From the time an attempt is due until its driver runs: pods, images, Ray. Over the last hour.",
                    {
                        "p50": quantile(0.5, "rljob_operator_driver_start_seconds", "[1h]"),
                        "p95": quantile(0.95, "rljob_operator_driver_start_seconds", "[1h]"),
                    },
                    unit="s",
                    width=12,
                ),
                Panel(
                    "Attempts",
                    "Driver starts of each job. A line that keeps rising means that the job keeps failing.",
                    {"{{namespace}}/{{rljob}}": per_job(f"rljob_operator_job_attempt{ALL}")},
                    width=12,
                ),
            ],
        ),
        Row(
            "Operator",
            [
                Panel(
                    "Reconcile time",
                    "From reading the state of the cluster to the last write.",
                    {
                        "p50": quantile(0.5, "rljob_operator_reconcile_seconds"),
                        "p99": quantile(0.99, "rljob_operator_reconcile_seconds"),
                    },
                    unit="s",
                ),
                Panel(
                    "Queue",
                    "Age of the oldest due job. Seconds are normal after a restart.",
                    {"oldest": "max(rljob_operator_queue_oldest_seconds)"},
                    unit="s",
                    thresholds={0: "green", 60: "red"},
                ),
                Panel("Queue length", "Jobs that wait for a worker.", {"jobs": "max(rljob_operator_queue_depth)"}),
                Panel(
                    "Failed reconciles",
                    "Conflicts are normal: the job changed in between. The log has the other errors.",
                    {"{{error}}": f"sum by (error) (rate(rljob_operator_reconcile_errors_total{RATE}))"},
                    unit="ops",
                ),
                Panel(
                    "Jobs that fail",
                    "Each look at them has failed for 10 minutes. The log names them.",
                    {"jobs": "max(rljob_operator_failing_jobs)"},
                    thresholds=BAD_FROM_1,
                ),
                Panel(
                    "Failed orders",
                    "Orders that Ray or a driver has not accepted. The operator sends them again.",
                    {"{{order}}": f"sum by (order) (rate(rljob_operator_order_failures_total{RATE}))"},
                    unit="ops",
                ),
                Panel(
                    "Requests to the API server",
                    "By verb and status code, without watches.",
                    {"{{verb}} {{code}}": f"sum by (verb, code) (rate(rljob_operator_api_requests_total{RATE}))"},
                    unit="reqps",
                ),
                Panel(
                    "Request time, p99",
                    "99 of 100 requests to the API server are faster.",
                    {
                        "{{verb}}": "histogram_quantile(0.99, sum by (verb, le) "
                        f"(rate(rljob_operator_api_request_seconds_bucket{RATE})))"
                    },
                    unit="s",
                ),
                Panel(
                    "Watch delay",
                    "How late the oldest expected event is. At 90 s the process restarts.",
                    {"{{pod}}": "rljob_operator_watch_silence_seconds"},
                    unit="s",
                    thresholds={0: "green", 60: "red"},
                ),
                Panel(
                    "Loop lag",
                    "Longest stop of the event loop in the last minute. Everything waits meanwhile, the Lease too.",
                    {"{{pod}}": "rljob_operator_loop_lag_seconds"},
                    unit="s",
                    thresholds={0: "green", 0.5: "red"},
                ),
                Panel(
                    "Memory",
                    "Of each replica.",
                    {"{{pod}}": "process_resident_memory_bytes and on (instance) rljob_operator_is_leader"},
                    unit="bytes",
                ),
                Panel(
                    "Versions",
                    "Of the running replicas; two only during an upgrade.",
                    {"{{version}}": "count by (version) (rljob_operator_build_info)"},
                ),
            ],
        ),
    ],
)
