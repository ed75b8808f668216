"""What an error is that no signature knows is judged by its class, its words and its frames."""

import re

import pytest
from pydantic import ValidationError

from rljob_doctor.catalogue import catalogue
from rljob_doctor.diagnosis import diagnose
from rljob_doctor.log_end import LOOKS_LIKE_ERROR, NO_ERROR
from rljob_doctor.occurrences import LAST_WORDS
from rljob_doctor.scan import scan
from rljob_doctor.topics import (
    ExceptionRule,
    code_of_exception,
    code_of_line,
    exception_rules,
    frames,
    line_rules,
)
from support.tables import each_of

KILLED = "(raylet) 1 Workers (tasks / actors) killed due to memory pressure (OOM), 0 Workers crashed"
FINE = "2026-03-04 10:00:00 INFO step done"
TRACEBACK = "Traceback (most recent call last):"
LOADER = '  File "/x/vllm/model_executor/models/qwen2.py", line 120, in load_weights'


def codes(*lines: str) -> list[str]:
    return [each.failure.code for each in diagnose([scan("log", "\n".join(lines).encode())]).findings]


def test_rules_name_codes_of_the_catalogue():
    assert {rule.code for rule in (*exception_rules(), *line_rules())} <= set(catalogue())


def test_expressions_of_rules_compile():
    for rule in exception_rules():
        for expression in (rule.error, rule.frames, rule.raised, rule.unless):
            assert expression is None or re.compile(expression)
    assert all(re.compile(rule.line) for rule in line_rules())


def test_a_rule_looks_at_something():
    with pytest.raises(ValidationError, match="needs `error`, `frames` or `raised`"):
        ExceptionRule(code="DiskFull")


@each_of(
    [
        ("KeyError: 'layers.0.extra'", "/x/vllm/models/qwen2.py in load_weights", "CheckpointKeysMissing"),
        ("ValueError: odd shape of a weight", "/x/vllm/models/qwen2.py in load_weights", "CheckpointLayout"),
        ("KeyError: 'layers.0.extra'", "/x/sglang/srt/a.py in update_weights_from_tensor", "WeightSyncMismatch"),
        ("", "/x/slime/a.py in update_weights", "WeightSyncTimeout"),
        ("RuntimeError: it broke", "/x/torch/serialization.py in _save", "CheckpointSaveFailed"),
        ("RuntimeError: it broke", "/x/megatron/core/dist_checkpointing/a.py in load", "CheckpointDamaged"),
        ("TypeError: f() takes 1 positional argument but 2 were given", "own.py in f", "ApiMismatch"),
        ("OSError: [Errno 28] anything", "own.py in f", "DiskFull"),
        ("ValueError: Rank 5: found Inf in loss at iteration 8812", "own.py in f", "NonFiniteStep"),
        (
            "RuntimeError: Ray version 2.1 is running on the cluster",
            "/x/ray/dashboard/sdk.py in f",
            "RayVersionMismatch",
        ),
        ("ValueError: Weights {'a'} not found in safetensors files", "own.py in f", "CheckpointKeysMissing"),
        ("AssertionError: Only own backend supports logits", "own.py in f", "OptionRefused"),
        ("ValueError: the parameter `x` is no longer supported", "own.py in f", "OptionRefused"),
        ("ValueError: `config_name` cannot be 'data'", "own.py in f", "OptionRefused"),
        ("RuntimeError: cuDNN Frontend error: no plan", "own.py in f", "CublasFailure"),
        ("PermissionError: anything", "own.py in f", "ReadOnlyVolume"),
        ("ConnectionError: gone", "/x/huggingface_hub/file_download.py in get", "HubUnreachable"),
        ("ConnectionError: gone", "own.py in f", "ConnectionFailed"),
        ("ZeroDivisionError: division by zero", "/x/my_reward.py in grade", "RewardFunctionFailed"),
        ("KeyError: 'prompt'", "/x/verl/utils/dataset.py in __getitem__", "DataKeyMissing"),
        ("ValueError: temperature must be positive", "own.py in f", "OptionRefused"),
        ("RuntimeError: two tensors of other dims", "own.py in f", "TensorMismatch"),
        ("NameError: name 'x' is not defined", "own.py in f", "PythonException"),
        ("RuntimeError: Found no NVIDIA driver on this system", "own.py in f", "GpuNotVisible"),
        ("AssertionError: Torch not compiled with CUDA enabled", "own.py in f", "GpuNotVisible"),
        ("NVMLError_DriverNotLoaded: Driver Not Loaded", "own.py in f", "GpuNotVisible"),
        ("NVMLError_GpuIsLost: GPU is lost", "own.py in f", "GpuLost"),
        ("RuntimeError: Triton Error [CUDA]: invalid argument", "own.py in f", "CudaCallFailed"),
        ("RuntimeError: Triton Error [CUDA]: device kernel image is invalid", "own.py in f", "NoKernelImage"),
        ("RuntimeError: no valid cuDNN algorithm to run convolution", "own.py in f", "CublasFailure"),
        ("OSError: Unable to open file (truncated file: eof = 96)", "own.py in f", "CheckpointShardsMissing"),
        ("NotExistError: The file path not exist", "own.py in f", "ModelNotFound"),
        ("DatasetNotFoundError: Dataset 'a/b' doesn't exist", "own.py in f", "PathNotFound"),
        ("DatasetNotFoundError: 'a/b' is a gated dataset on the hub", "own.py in f", "HubGated"),
        ("ValueError: Unrecognized configuration class Own", "own.py in f", "ArchitectureUnknown"),
        ("ValueError: model own is not yet supported by Megatron", "own.py in f", "LearnerModelUnsupported"),
        ("RuntimeError: rank 3 failed to pass monitoredBarrier in 9 ms", "own.py in f", "GlooTimeout"),
        ("_InactiveRpcError: no peer", "own.py in f", "ConnectionFailed"),
        ("ApiException: (403) Reason: odd", "own.py in f", "ApiForbidden"),
        ("ApiException: (409) Reason: odd", "own.py in f", "ObjectInvalid"),
        ("ApiException: (503) Reason: odd", "own.py in f", "ApiServerUnreachable"),
        ("TimeoutError: Server did not become ready within 600 seconds", "own.py in f", "EngineDiedAtStart"),
        ("RuntimeError: torch was built without libuv", "own.py in f", "OptionRefused"),
        ("RuntimeError: operator own::nms does not exist", "own.py in f", "BinaryMismatch"),
        ("RuntimeError: failed to compile the kernel", "own.py in f", "TritonCompileFailed"),
        ("ValueError: the port 6379 is in use", "own.py in f", "PortInUse"),
        ("RuntimeError: Worker exited with code 3", "own.py in f", "ProgramFailed"),
        ("", "/x/own/train.py in safe_save_model_for_trainer", "CheckpointSaveFailed"),
        ("IndexError: list index out of range", "own.py in f", None),
        ("ZeroDivisionError: division by zero", "own.py in f", None),
    ]
)
def test_an_exception_is_judged_by_class_words_and_frames(error: str, frame: str, code: str | None):
    assert code_of_exception(error, (frame,)) == code


@each_of(
    [
        ("failed to pull image of the learner: any words", "ImagePullFailed"),
        ("plugin type calico cni failed: any words", "SandboxNetworkFailed"),
        ("failed to attach volume: any words", "VolumeMountFailed"),
        ("failed to renew lease kube-system/any", "LeaderElectionLost"),
        ("couldn't parse image name of the pod: any words", "ImagePullFailed"),
        ("an error: cannot import name 'x'", "ApiMismatch"),
        ("sandbox 7f: request to http://10.0.0.9/run failed", "RewardServiceDown"),
        ("cannot create sandbox 7f", "SandboxNetworkFailed"),
        ("NCCL WARN Failed to find any usable network interface for ib0", "NcclUnreachable"),
        ("NCCL WARN Failed to do any other thing", "NcclAsyncError"),
        ("Failed to get job supervisor for job 7", "RayJobFailed"),
        ("something failed", None),
    ]
)
def test_a_line_is_judged_by_its_words(line: str, code: str | None):
    assert code_of_line(line) == code


def test_the_package_that_raised_counts_only_where_it_is_innermost():
    webdataset = "/x/webdataset/pipeline.py in wrapper"
    assert code_of_exception("AssertionError: ", (webdataset, "own.py in f")) is None
    assert code_of_exception("AssertionError: ", ("own.py in f", webdataset)) == "DataFormatWrong"
    assert code_of_exception("AssertionError: ", ()) is None
    assert code_of_exception("", ("own.py in f", webdataset)) is None  # a traceback that is cut off has not raised yet


def test_frames_are_those_of_the_last_traceback():
    text = f'{TRACEBACK}\n  File "a.py", line 1, in f\n{TRACEBACK}\n  File "/x/b.py", line 2, in <module>\n    g()\n'
    assert frames(text) == ("/x/b.py in <module>",)


def test_frames_of_a_notebook_are_read():
    assert frames("File /x/b.py:12, in Trainer.step(self)\n") == ("/x/b.py in Trainer.step",)


def test_a_guess_takes_the_place_of_the_general_code():
    assert codes(TRACEBACK, LOADER, "KeyError: 'layers.0.extra'")[0] == "CheckpointKeysMissing"
    assert "PythonException" not in codes(TRACEBACK, LOADER, "KeyError: 'layers.0.extra'")


def test_a_guess_counts_only_where_no_cause_is_known():
    assert codes(KILLED, TRACEBACK, LOADER, "KeyError: 'layers.0.extra'") == ["HostOutOfMemory"]


def test_a_handled_exception_is_not_judged():
    assert "CheckpointKeysMissing" not in codes(
        TRACEBACK, LOADER, "KeyError: 'layers.0.extra'", "skipping this layer", FINE
    )


def test_an_exception_that_ray_passes_on_is_judged_by_the_frames_below():
    line = "ray.exceptions.RayTaskError(KeyError): ray::Engine.load() (pid=1, ip=10.0.0.2)"
    assert codes(line, LOADER, "    params[name]")[0] == "CheckpointKeysMissing"


def test_a_traceback_that_is_cut_off_is_judged_by_its_frames():
    cut = '  File "/x/slime/backends/megatron_utils/update_weight.py", line 12, in update_weights'
    assert codes(FINE, TRACEBACK, cut, "    self.send()") == ["WeightSyncTimeout"]
    assert codes(FINE, TRACEBACK, f"learner-1  | {cut}", "learner-1  |     self.send()") == ["WeightSyncTimeout"]


def test_a_call_of_a_connection_counts_only_where_the_traceback_is_cut_off():
    call = "/x/urllib3/connectionpool.py in urlopen"
    assert code_of_exception("", (call, "own.py in f")) == "ConnectionFailed"
    assert code_of_exception("OwnError: any words", (call, "own.py in f")) is None


def test_a_message_may_stand_in_the_next_line():
    assert "OptionRefused" in codes(
        TRACEBACK, '  File "own.py", line 1, in f', "ValueError: ", "temperature must be positive"
    )


def test_last_lines_are_judged_where_nothing_else_is_found():
    line = "E0304 10:00:00.1 1 a.go:12] failed to attach volume: any words"
    assert codes(FINE, line) == ["VolumeMountFailed"]
    assert codes(line, *[FINE] * (LAST_WORDS + 1)) == []
    assert codes("Warning  FailedBinding  3s  own-controller  volume of any words") == ["VolumeMountFailed"]
    assert codes("placement group 7: scheduling_state: INFEASIBLE") == ["GpusInsufficient"]
    assert codes("placement group 7: scheduling_state: CREATED") == []
    assert "VolumeMountFailed" not in codes("ray.exceptions.ActorDiedError: The actor died unexpectedly", KILLED, line)


def test_last_lines_say_more_than_an_exception_of_unknown_topic():
    line = "2026-03-04 10:00:00 ERROR failed to attach volume: any words"
    odd = (TRACEBACK, '  File "own.py", line 1, in f', "own.OddError: so odd")
    assert codes(*odd) == ["PythonException"]
    assert codes(line, *odd) == ["VolumeMountFailed"]
    assert codes(line, TRACEBACK, LOADER, "KeyError: 'layers.0.extra'") == ["CheckpointKeysMissing"]


def test_the_method_whose_exception_ray_passes_on_counts_as_a_frame():
    passed_on = "ray.exceptions.RayTaskError(TimeoutError): ray::{}() (pid=1, ip=10.0.0.2)"
    assert codes(passed_on.format("RolloutManager.generate")) == ["RolloutTimeout"]
    assert codes(passed_on.format("train:Engine.update_weights_from_tensor")) == ["WeightSyncTimeout"]
    assert codes(passed_on.format("Own.play")) == ["PythonException"]
    passed_on = passed_on.replace("TimeoutError", "RuntimeError")
    assert codes(passed_on.format("Own.create_engine_config")) == ["OptionRefused"]


@each_of(
    [
        "2026-03-04 10:00:00 INFO failed to attach volume: any words",
        "W0304 10:00:00.1 1 a.go:12] failed to attach volume: any words",
        "if the lease cannot be renewed, another replica leads",
        "volumes failed: 0",
        "volume attach failed: false",
        "volumes that failed to attach: []",
        "failed volumes: none",
        "0 failed volumes",
        "the volume may have failed to mount",
        "ignoring that the volume cannot be mounted",
        "Readiness probe failed: any words",
    ]
)
def test_a_line_that_reports_no_error_gives_no_alarm(line: str):
    assert codes(FINE, line) == []
    assert NO_ERROR.search(line) or not LOOKS_LIKE_ERROR.search(line)


@each_of(
    [
        ("/data/envs/vllm/lib/python3.12/site-packages/own/a.py", "/site-packages/own/a.py"),
        ("/usr/local/lib/python3.12/dist-packages/torch/a.py", "/site-packages/torch/a.py"),
        ("/opt/envs/dataset/lib/python3.10/asyncio/tasks.py", "/lib/python/asyncio/tasks.py"),
        ("/tmp/ray/session_1/runtime_resources/working_dir_files/_ray_pkg_0a1b/train.py", "/train.py"),
        ("/home/someone/verl/trainer.py", "/verl/trainer.py"),
        ("/mnt/data1/someone/verl/trainer.py", "/someone/verl/trainer.py"),
        ("/workspace/megatron/training.py", "/megatron/training.py"),
        ("/sgl-workspace/sglang/python/sglang/srt/a.py", "/sgl-workspace/sglang/python/sglang/srt/a.py"),
    ]
)
def test_a_frame_is_read_without_the_place_of_an_installation_or_user(path: str, read: str):
    assert frames(f'{TRACEBACK}\n  File "{path}", line 3, in f\nKeyError: 3') == (f"{read} in f",)


def test_the_name_of_an_environment_says_nothing_of_what_failed():
    frame = '  File "/data/envs/dataset/lib/python3.10/site-packages/own/loop.py", line 3, in step'
    assert codes(TRACEBACK, frame, "KeyError: 'lr'") == ["PythonException"]


def test_a_short_key_is_the_whole_message():
    frame = '  File "/x/site-packages/transformers/models/auto/configuration_auto.py", line 8, in __getitem__'
    assert codes(TRACEBACK, frame, "KeyError: 'qwen3'", "", "During handling of it", "  x") == ["ArchitectureUnknown"]


def test_a_short_message_that_is_no_key_goes_on_in_the_next_line():
    assert codes(TRACEBACK, '  File "a.py", line 3, in f', "RuntimeError: oh", "[Errno 28] disk") == ["DiskFull"]


def test_an_exception_in_a_finalizer_ends_no_program():
    frame = '(ServeReplica pid=3)   File "/x/http_util.py", line 510, in __del__'
    assert codes(frame, "DEBUG waiting") == []
    assert codes(frame.replace("__del__", "__delete"), "DEBUG waiting") == ["PythonException"]


def test_a_letter_sequence_inside_a_name_is_no_reward_model():
    assert codes(TRACEBACK, '  File "a.py", line 3, in f', "TypeError: TransformerConfig() takes no arguments") == [
        "ApiMismatch"
    ]
    assert codes(TRACEBACK, '  File "a.py", line 3, in f', "TypeError: own_rm() takes 1 positional argument but 2") == [
        "UserFunctionSignature"
    ]


def test_a_warning_of_the_compiler_proves_nothing():
    line = "W1024 01:17:10.9 1404 torch/_dynamo/convert_frame.py:1009] torch._dynamo.exc.InternalTorchDynamoError: no"
    assert codes(line) == []
    assert codes(line.replace("W1024", "E1024")) == ["TritonCompileFailed"]


def test_a_name_and_level_of_a_logger_stand_before_an_exception():
    before = "2025-10-31 03:11:02,475 - own.train - INFO - [rank7]: "
    frame = '  File "/x/site-packages/torch/distributed/checkpoint/state_dict_loader.py", line 250, in local_step'
    lines = (TRACEBACK, frame, "    assert metadata is not None", "AssertionError")
    assert codes(*(before + line for line in lines)) == ["CheckpointDamaged"]


def test_divisors_of_an_engine_are_not_those_of_the_learner():
    error = "AssertionError: physical experts 256 must be divisible by 3"
    assert codes(TRACEBACK, '  File "/x/site-packages/vllm/eplb.py", line 3, in build', error) == ["EngineParallelSize"]
    assert codes(TRACEBACK, '  File "/x/megatron/core/a.py", line 3, in build', error) == ["TrainPartitionMismatch"]


def test_a_reward_that_failed_before_a_step_ends_no_run():
    assert codes("Error in reward_fn: 'extra'", "step:12 - critic/score/mean:0.3 - actor/grad_norm:0.1") == []
    assert codes("Error in reward_fn: 'extra'") == ["RewardFunctionFailed"]


def test_an_exception_without_a_traceback_is_read_behind_a_logger():
    assert codes("2025-10-31 03:11:02,475 - own.train - ERROR - own.errors.Gone: nothing is left") == [
        "PythonException"
    ]


def test_a_text_of_another_type_than_the_tokenizer_takes_is_the_data():
    frame = '  File "/x/site-packages/transformers/tokenization_utils.py", line 4, in get_input_ids'
    assert codes(TRACEBACK, frame, "ValueError: Input 3 is not valid. Should be a string") == ["DataFormatWrong"]
    missing = "ValueError: Asking to pad but the tokenizer does not have a padding token"
    assert codes(TRACEBACK, frame.replace("get_input_ids", "__call__"), missing) != ["DataFormatWrong"]


def test_an_exception_behind_a_logger_is_found_far_from_the_end_of_a_log():
    before = "2025-10-31 03:11:02,475 - own.train - ERROR - "
    lines = (TRACEBACK, '  File "a.py", line 3, in f', "own.GoneError: nothing is left")
    assert codes(*(before + line for line in lines), *["waiting for more"] * 5000) == ["PythonException"]


def test_an_optimizer_of_another_layout_is_found_below_the_loading_of_a_checkpoint():
    place = "/root/Megatron-LM/megatron"
    log = (
        "Traceback (most recent call last):\n"
        f'  File "{place}/training/checkpointing.py", line 1, in load_checkpoint\n'
        f'  File "{place}/core/optimizer/distrib_optimizer.py", line 2, in load_parameter_state_from_dp_zero\n'
        "AssertionError: Number of unpadded elements must be same in current run (4) and checkpoint (8)\n"
    )
    assert codes(log)[0] == "CheckpointLayout"
