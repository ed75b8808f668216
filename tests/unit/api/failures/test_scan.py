"""A scan finds signatures wherever they stand, and counts lines as editors do."""

import json

import pytest

from rljob_api.failures import scan as scanning
from rljob_api.failures.diagnosis import diagnose
from rljob_api.failures.scan import scan

OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 18.55 GiB. GPU 0 has a total capacity of 79 GiB"


def found(text: str) -> dict[str, list[int]]:
    return {code: [each.line for each in some] for code, some in scan("log", text.encode()).found.items()}


def test_lines_are_counted_from_one():
    assert found(f"a\nb\n{OOM}\nc\n{OOM}\n") == {"TrainOutOfMemory": [3, 5]}


def test_lines_are_counted_over_chunks(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(scanning, "CHUNK", 200)
    text = "".join(f"line {number}\n" for number in range(1, 100)) + OOM
    scanned = scan("log", text.encode())
    assert [each.line for each in scanned.found["TrainOutOfMemory"]] == [100]
    assert scanned.lines == 99


def test_colours_do_not_hide_a_signature():
    assert found("\x1b[36m(Actor pid=1)\x1b[0m \x1b[31mNo CUDA GPUs are available\x1b[0m") == {"GpuNotVisible": [1]}


def test_a_log_of_one_long_line_of_json_is_read():
    record = json.dumps({"level": "error", "trace": "x" * 100_000 + OOM + "y" * 100_000})
    scanned = scan("log", record.encode())
    assert len(scanned.found["TrainOutOfMemory"][0].text) < 5000


def test_bytes_that_are_no_text_are_no_obstacle():
    assert scan("log", b"\xff\xfe\x00\n" + OOM.encode() + b"\xff").found.keys() == {"TrainOutOfMemory"}


def test_an_empty_log_has_no_failures():
    assert diagnose([scan("log", b"")]).findings == ()


def test_a_failure_in_a_loop_is_kept_a_hundred_times_and_counted_in_full():
    scanned = scan("log", (OOM + "\n").encode() * 500)
    assert (len(scanned.found["TrainOutOfMemory"]), scanned.counts["TrainOutOfMemory"]) == (101, 500)
    assert scanned.found["TrainOutOfMemory"][-1].line == 500


@pytest.mark.parametrize(
    "line",
    [
        "Retrying in 5 s: HTTPConnectionPool(host='a'): Max retries exceeded with url: /health",
        "fetch config, attempt 2/5: OSError: We couldn't connect to 'https://huggingface.co' to load the files",
    ],
)
def test_what_is_tried_again_is_no_failure(line: str):
    assert found(line) == {}


def test_a_failure_that_a_later_line_clears_is_none():
    refused = "httpx.ConnectError: [Errno 111] Connection refused\n"
    assert "EngineUnreachable" in found(refused)
    assert found(f"{refused}The server is fired up and ready to roll!\n") == {}


def test_the_time_of_a_line_is_the_newest_before_it():
    scanned = scan("log", f"[2026-03-04 10:25:31 TP0] a\n  File x\n{OOM}\n".encode())
    assert scanned.found["TrainOutOfMemory"][0].time == "2026-03-04 10:25:31"


@pytest.mark.parametrize("prefix", ["", "(Actor pid=1, ip=10.0.0.4) ", "[rank3]: "])
def test_the_last_exception_is_kept_for_logs_without_a_known_failure(prefix: str):
    last = scan("log", f"a\n{prefix}own.module.OddError: so odd\nb\n".encode()).last_exception
    assert last is not None
    assert (last.line, last.text) == (2, "own.module.OddError: so odd")


@pytest.mark.parametrize(
    "line",
    [
        "Warning  FailedMount  2s  kubelet  references non-existent secret key",
        '{"type": "Warning", "reason": "FailedMount", "message": "x"}',
        "  reason: FailedMount",
    ],
)
def test_an_event_of_kubernetes_is_known_in_every_spelling(line: str):
    assert "VolumeMountFailed" in found(line)


def test_colours_within_json_are_not_part_of_the_evidence():
    record = json.dumps({"msg": "\x1b[31mCUDA out of memory. Tried to allocate 2 GiB\x1b[0m"})
    assert "[31m" in record
    assert "[31m" not in scan("log", record.encode()).found["TrainOutOfMemory"][0].text
