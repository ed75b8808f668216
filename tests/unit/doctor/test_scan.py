"""A scan finds signatures wherever they stand, and counts lines as editors do."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_doctor import scan as scanning
from rljob_doctor.diagnosis import diagnose
from rljob_doctor.scan import scan

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


LINES = [
    *("", "step done", OOM, f"\x1b[31m{OOM}\x1b[0m", "Job 'raysubmit_a' succeeded", "own.module.OddError: so odd"),
    *("2026-03-04 10:25:31 step 3", "ray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this"),
]
LONGEST = max(map(len, LINES)) + 1


@given(st.lists(st.sampled_from(LINES), max_size=30), st.booleans(), st.integers(LONGEST, 3 * LONGEST))
def test_it_makes_no_difference_in_how_many_chunks_a_log_is_read(lines: list[str], ends: bool, chunk: int):
    data = ("\n".join(lines) + "\n" * ends).encode()
    with pytest.MonkeyPatch.context() as patch:
        whole = scan("log", data)
        patch.setattr(scanning, "CHUNK", chunk)
        assert scan("log", data) == whole


@given(st.lists(st.sampled_from(LINES), max_size=30))
def test_what_is_found_names_the_line_and_the_offset_at_which_it_begins(lines: list[str]):
    data = "\n".join(lines).encode()
    scanned = scan("log", data)
    found = [each for some in scanned.found.values() for each in some]
    last = [scanned.last_exception] if scanned.last_exception else []
    assert all(each.line == data[: each.start].count(b"\n") + 1 for each in found + last)
    assert all(each.text in lines[each.line - 1] for each in last)
    assert {each.start for each in found + last} <= {0, *(at + 1 for at, byte in enumerate(data) if byte == 10)}


class Mapped(bytes):
    """A log in a mapped file, which notes how much of it was read at once."""

    most = 0

    def __getitem__(self, place):
        part = super().__getitem__(place)
        self.most = max(self.most, len(part))
        return part


def test_no_more_than_a_chunk_of_a_log_is_in_memory(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(scanning, "CHUNK", 100_000)
    data = Mapped((f"{OOM}\n" + "step done\n" * 100).encode() * 1000)
    assert scan("log", data).counts["TrainOutOfMemory"] == 1000
    assert data.most <= 100_000


def test_colours_do_not_hide_a_signature():
    assert found("\x1b[36m(Actor pid=1)\x1b[0m \x1b[31mNo CUDA GPUs are available\x1b[0m") == {"GpuNotVisible": [1]}


def test_colours_within_a_signature_do_not_hide_it():
    assert found("fine\n[torch_memory_saver] out \x1b[31mof memory\x1b[0m") == {"ColocatedOutOfMemory": [2]}


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


def test_a_prompt_whose_template_was_applied_twice_is_evidence_although_it_is_quoted():
    prompt = r"prompt: '<|im_start|>user\n<|im_start|>user\nWhat is 2 + 2?'"
    assert found(prompt).keys() == {"ChatTemplateTwice"}
    assert found(f"prompt: '{OOM}'") == {}


def test_a_text_is_looked_for_as_it_is_and_as_json_writes_it_once_and_twice():
    text = 'a "café"'
    written = [text]
    for _ in range(2):
        written.append(json.dumps(written[-1], ensure_ascii=False)[1:-1])
    assert list(scanning._spellings(text)) == written
    assert scanning._spellings("plain") == ("plain",)


def test_a_failure_that_a_later_line_clears_is_none():
    refused = "httpx.ConnectError: [Errno 111] Connection refused\n"
    assert "EngineUnreachable" in found(refused)
    assert found(f"{refused}The server is fired up and ready to roll!\n") == {}


def test_the_time_of_a_line_is_the_newest_before_it():
    later = "2026-03-04 10:25:40 b"
    scanned = scan("log", f"[2026-03-04 10:25:31 TP0] a\n  File x\n{OOM}\n{later}\n".encode())
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


def test_a_page_that_names_a_reason_is_no_event_of_kubernetes():
    assert found("see FailedMount and BackOff in the manual") == {}


def test_colours_within_json_are_not_part_of_the_evidence():
    record = json.dumps({"msg": "\x1b[31mCUDA out of memory. Tried to allocate 2 GiB\x1b[0m"})
    assert "[31m" in record
    assert "[31m" not in scan("log", record.encode()).found["TrainOutOfMemory"][0].text
