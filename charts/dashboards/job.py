"""One job."""

from dashboards.panel import BAD_FROM_1, ONE, RATE, Dashboard, Panel, Row, Variable

JOB = Dashboard(
    "rljob-job",
    "RLJob / Job",
    "One RLJob: learning curves, speed and failures.",
    [Variable("namespace", "rljob_step"), Variable("rljob", 'rljob_step{namespace="$namespace"}')],
    [
        Row(
            "Now",
            [
                Panel(
                    "Phase",
                    "Phase in the job's status.",
                    {"{{phase}}": f"max by (phase) (rljob_operator_job_phase{ONE})"},
                    kind="stat",
                    width=4,
                    height=4,
                ),
                Panel(
                    "Progress",
                    "Share of steps that are done.",
                    {"": f"max(rljob_step{ONE} / rljob_steps_wanted{ONE})"},
                    unit="percentunit",
                    kind="gauge",
                    width=4,
                    height=4,
                    limits=(0, 1),
                ),
                Panel(
                    "Time left",
                    "Estimate from the mean step time of this driver.",
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
                    "Work that a restart would lose.",
                    {"": f"min(time() - rljob_last_checkpoint_timestamp_seconds{ONE})"},
                    unit="s",
                    kind="stat",
                    width=4,
                    height=4,
                    thresholds={0: "green", 4 * 3600: "red"},
                ),
                Panel(
                    "Attempt",
                    "Number of driver starts.",
                    {"": f"max(rljob_attempt{ONE})"},
                    kind="stat",
                    width=4,
                    height=4,
                    thresholds={0: "green", 2: "orange"},
                ),
                Panel(
                    "Model and task",
                    "Model and data of the run.",
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
                    "Of all samples of the last step. The mean should rise; the deviation falls as answers agree.",
                    {"mean": f"rljob_reward_mean{ONE}", "standard deviation": f"rljob_reward_std{ONE}"},
                ),
                Panel(
                    "Held-out accuracy",
                    "On the held-out questions and each evaluation set, sampled and greedy.",
                    {"{{mode}} {{set}}": f"rljob_heldout_accuracy{ONE} or rljob_evaluation_set_accuracy{ONE}"},
                    unit="percentunit",
                ),
                Panel(
                    "Shares",
                    "No signal: groups whose samples have equal rewards. Truncated: responses at the token limit. "
                    "Clipped: tokens whose ratio was clipped.",
                    {
                        "no signal": f"rljob_groups_without_signal_ratio{ONE}",
                        "truncated": f"rljob_truncated_ratio{ONE}",
                        "clipped": f"rljob_clip_ratio{ONE}",
                    },
                    unit="percentunit",
                    limits=(0, 1),
                ),
                Panel("Loss", "Of the policy. Near zero by construction.", {"loss": f"rljob_loss{ONE}"}),
                Panel(
                    "Gradient norm",
                    "Before clipping. Spikes precede divergence.",
                    {"norm": f"rljob_grad_norm{ONE}"},
                ),
                Panel(
                    "Entropy and KL",
                    "Entropy near zero: the policy no longer explores. KL: distance from the reference model.",
                    {"entropy": f"rljob_entropy_nats{ONE}", "KL": f"rljob_kl_nats{ONE}"},
                ),
                Panel(
                    "Perplexity",
                    "Of the responses that are trained on, under the learner; held-out: only with sft. If held-out "
                    "rises while the other falls, the model overfits.",
                    {"learned": f"rljob_perplexity{ONE}", "held-out": f"rljob_heldout_perplexity{ONE}"},
                ),
                Panel(
                    "Critic",
                    "With ppo only. Explained 1: the critic predicts every return; below 0: worse than a constant.",
                    {"explained": f"rljob_explained_variance{ONE}", "value loss": f"rljob_value_loss{ONE}"},
                ),
                Panel(
                    "Engines against learner",
                    "Mean difference of their log-probabilities [nats]. Near 0 while both have the same weights.",
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
                    "With rollout.async: age in steps of the weights that generated the response tokens.",
                    {"mean": f"rljob_staleness_steps{ONE}", "oldest": f"rljob_staleness_max_steps{ONE}"},
                ),
            ],
        ),
        Row(
            "Speed",
            [
                Panel(
                    "Tokens",
                    "Per second of the phases rollout and train in the last step.",
                    {"{{phase}}": f"rljob_tokens_per_second{ONE}"},
                    unit="tok/s",
                ),
                Panel(
                    "Time by phase",
                    "Share of wall-clock time by phase of the loop.",
                    {"{{phase}}": f"sum by (phase) (rate(rljob_phase_seconds_total{ONE}{RATE}))"},
                    unit="percentunit",
                    stacked=True,
                    limits=(0, 1),
                ),
                Panel(
                    "Where the time of the run went",
                    "Since the first start of the driver: phases, steps that a resume repeated, and recovery.",
                    {"{{part}}": f"rljob_wall_seconds{ONE}"},
                    unit="s",
                    stacked=True,
                ),
                Panel(
                    "Effective training time",
                    "Share of the wall-clock time of the run in steps that count (ETTR).",
                    {"share": f"rljob_effective_time_ratio{ONE}"},
                    unit="percentunit",
                    limits=(0, 1),
                ),
                Panel(
                    "Waiting for samples",
                    "Share of the last step for which the learner waited for samples.",
                    {"wait": f"rljob_data_wait_ratio{ONE}"},
                    unit="percentunit",
                    limits=(0, 1),
                ),
                Panel(
                    "Model FLOP utilisation",
                    "Share of the GPUs' bf16 peak that training reaches in phase train; empty where that is unknown.",
                    {"train": f"rljob_mfu_ratio{ONE}"},
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
                    "Time since the driver entered its phase. A line that only rises means that the phase hangs.",
                    {"{{phase}}": f"rljob_current_phase_seconds{ONE}"},
                    unit="s",
                ),
                Panel(
                    "Steps and weights",
                    "Finished steps, version of the published weights, and step of the last checkpoint.",
                    {
                        "step": f"rljob_step{ONE}",
                        "weight version": f"rljob_weight_version{ONE}",
                        "checkpoint": f"rljob_checkpoint_step{ONE}",
                    },
                ),
                Panel(
                    "GPUs",
                    "GPUs of the job; on Cpu, processes.",
                    {"GPUs": f"rljob_gpus{ONE}"},
                ),
            ],
        ),
        Row(
            "GPUs",
            [
                Panel(
                    "Utilisation of each GPU",
                    "Share of time in which a kernel ran, of the last step. Empty without NVML.",
                    {"{{node}} {{gpu}}": f"rljob_gpu_device_utilisation_ratio{ONE}"},
                    unit="percentunit",
                    limits=(0, 1),
                ),
                Panel(
                    "Memory of each GPU",
                    "Most that all processes used in the last step.",
                    {"{{node}} {{gpu}}": f"rljob_gpu_device_memory_used_bytes{ONE}"},
                    unit="bytes",
                ),
                Panel(
                    "Power of each GPU",
                    "Mean of the last step.",
                    {"{{node}} {{gpu}}": f"rljob_gpu_device_power_watts{ONE}"},
                    unit="watt",
                ),
                Panel(
                    "Temperature of each GPU",
                    "Highest of the last step.",
                    {"{{node}} {{gpu}}": f"rljob_gpu_device_temperature_celsius{ONE}"},
                    unit="celsius",
                ),
                Panel(
                    "Slowed GPUs",
                    "Share of readings in which heat or the power supply lowered the clocks.",
                    {"{{node}} {{gpu}}": f"rljob_gpu_device_throttled_ratio{ONE}"},
                    unit="percentunit",
                    limits=(0, 1),
                ),
                Panel(
                    "Errors of GPUs",
                    "Xid errors, and memory errors that could not be corrected, since the driver started.",
                    {"Xid": f"rljob_gpu_xids_total{ONE}", "ECC": f"rljob_gpu_ecc_errors_total{ONE}"},
                    thresholds=BAD_FROM_1,
                ),
            ],
        ),
        Row(
            "Failures",
            [
                Panel(
                    "Engines by state",
                    "Only Healthy engines serve. Stale ones wait for weights, Dead ones for a restart.",
                    {"{{state}}": f"sum by (state) (rljob_engines{ONE})"},
                    stacked=True,
                ),
                Panel(
                    "Engine failures",
                    "Since the driver started, by cause, and engines that returned.",
                    {
                        "{{cause}}": f"sum by (cause) (rljob_engine_failures_total{ONE})",
                        "came back": f"sum(rljob_engine_restarts_total{ONE})",
                        "router came back": f"sum(rljob_router_restarts_total{ONE})",
                    },
                ),
                Panel(
                    "Skipped steps",
                    "Optimizer steps that were skipped because a gradient was not finite, since the driver started.",
                    {"skipped steps": f"rljob_skipped_steps_total{ONE}"},
                    thresholds=BAD_FROM_1,
                ),
                Panel(
                    "Repeated work",
                    "Work of earlier attempts after the checkpoint that this driver resumed from.",
                    {"lost": f"rljob_lost_seconds{ONE}"},
                    unit="s",
                    width=8,
                ),
                Panel(
                    "Memory of the driver",
                    "Of the driver's process alone, without learners and engines.",
                    {"resident": f"process_resident_memory_bytes{ONE}"},
                    unit="bytes",
                    width=8,
                ),
                Panel(
                    "Room on the volume",
                    "What the run may still write to the volume of its directory, and the size of its last checkpoint.",
                    {
                        "room": f"rljob_volume_available_bytes{ONE}",
                        "a checkpoint": f"rljob_checkpoint_bytes{ONE}",
                    },
                    unit="bytes",
                    width=8,
                ),
            ],
        ),
    ],
)
