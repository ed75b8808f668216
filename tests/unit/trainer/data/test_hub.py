"""Models and files of the hub, over a real socket and with the real library."""

import gzip
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
from huggingface_hub import set_client_factory
from huggingface_hub.utils._http import default_client_factory

from rljob_api.hub import Reference
from rljob_trainer.data import hub as hubs
from rljob_trainer.data import hub_answers, limited_answer
from rljob_trainer.data.hub import SMALL, Hub, HubAwayError, HubError, cached, fetched, hub_of
from rljob_trainer.data.limited_answer import LimitedBody
from support.trainer.hub_server import HubServer, hub_server

REPO = "models/org/tiny"
TINY = Reference("org/tiny", "model")
WEIGHTS = "model.safetensors"
FILES = {
    "config.json": b'{"model_type": "llama"}',
    "tokenizer.json": b"{}",
    WEIGHTS: bytes(range(256)) * 4000,
    "consolidated.safetensors": b"once more",
    "original/params.json": b"{}",
    "README.md": b"words",
}


@pytest.fixture
def server() -> Iterator[HubServer]:
    with hub_server() as served:
        served.push(REPO, FILES)
        yield served


@pytest.fixture
def hub(server: HubServer, tmp_path: Path) -> Hub:
    return Hub(tmp_path / "cache", server.url)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Retry at once, and as nobody."""
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    monkeypatch.delenv("HF_TOKEN", raising=False)


def contents(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def test_a_model_comes_without_second_copies_and_is_downloaded_once(server: HubServer, hub: Hub) -> None:
    directory = fetched(hub, TINY)
    assert contents(directory) == {name: FILES[name] for name in ("config.json", "tokenizer.json", WEIGHTS)}
    assert fetched(hub, TINY) == directory
    assert server.downloads(WEIGHTS) == 1


def test_the_checks_before_the_start_need_no_weights(server: HubServer, hub: Hub) -> None:
    assert sorted(contents(fetched(hub, TINY, SMALL))) == ["config.json", "tokenizer.json"]
    assert server.downloads(WEIGHTS) == 0


def test_offline_uses_the_cache_and_names_what_it_lacks(server: HubServer, hub: Hub) -> None:
    offline = replace(hub, offline=True)
    with pytest.raises(HubError, match=r"hf://org/tiny: not in the cache .*, and HF_HUB_OFFLINE allows no download"):
        fetched(offline, TINY)
    assert cached(hub, TINY) is None
    directory = fetched(hub, TINY)
    server.requests.clear()
    assert fetched(offline, TINY) == cached(hub, TINY) == directory
    assert server.requests == []


def test_weights_that_are_missing_offline_are_not_taken_for_a_whole_model(hub: Hub) -> None:
    fetched(hub, TINY, SMALL)
    with pytest.raises(HubError, match="not in the cache"):
        fetched(replace(hub, offline=True), TINY)


def test_a_private_model_needs_its_token(server: HubServer, hub: Hub) -> None:
    server.tokens[REPO] = "secret"
    with pytest.raises(HubError, match=r"no such repository, or does not show it; if it is private, set HF_TOKEN"):
        fetched(hub, TINY)
    with pytest.raises(HubError, match="does not accept the token in HF_TOKEN, or has no such repository"):
        fetched(replace(hub, token="wrong"), TINY)
    assert fetched(replace(hub, token="secret"), TINY).is_dir()


def test_a_gated_model_names_what_its_user_must_do(server: HubServer, hub: Hub) -> None:
    server.gated.add(REPO)
    with pytest.raises(HubError, match="accept its terms"):
        fetched(replace(hub, token="secret"), TINY)


def test_an_unknown_revision_is_named(hub: Hub) -> None:
    with pytest.raises(HubError, match="org/tiny has no revision 'v9'"):
        fetched(hub, replace(TINY, revision="v9"))


def test_a_download_that_is_cut_off_goes_on_where_it_stopped(server: HubServer, hub: Hub) -> None:
    server.cut[WEIGHTS] = 2
    assert contents(fetched(hub, TINY))[WEIGHTS] == FILES[WEIGHTS]
    assert server.downloads(WEIGHTS) == 3


def test_a_hub_that_is_away_is_named_and_the_next_start_goes_on(server: HubServer, hub: Hub) -> None:
    server.cut[WEIGHTS] = 100
    with pytest.raises(HubAwayError, match=r"cannot be reached .*what is downloaded is kept"):
        fetched(hub, TINY)
    server.cut.clear()
    assert contents(fetched(hub, TINY))[WEIGHTS] == FILES[WEIGHTS]
    with pytest.raises(HubError, match=r"hf://org/tiny: http://127\.0\.0\.1:9 cannot be reached"):
        fetched(replace(hub, endpoint="http://127.0.0.1:9", cache=hub.cache / "other"), TINY)


@pytest.mark.parametrize("name", ["config.json", WEIGHTS])
def test_a_damaged_file_is_found_and_not_used_again(server: HubServer, hub: Hub, name: str) -> None:
    server.damaged.add(name)
    with pytest.raises(HubError, match=rf"{name} is damaged: its hash is not the commit's"):
        fetched(hub, TINY)
    server.damaged.clear()
    assert contents(fetched(hub, TINY))[name] == FILES[name]


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    """A file of the user beside the cache, which a hostile hub knows."""
    path = tmp_path / "id_rsa.json"
    path.write_text("the user's own")
    return path


@pytest.mark.parametrize(
    "form", ["{absolute}", "../../../../{name}", "a/../../../../../{name}", "./{name}", "a\\b.json"]
)
def test_a_listing_that_leaves_the_snapshot_is_refused_and_removes_nothing(
    server: HubServer, hub: Hub, victim: Path, form: str
) -> None:
    server.listed["config.json"] = form.format(absolute=victim, name=victim.name)
    with pytest.raises(HubError, match=r"cannot be trusted: its answer names the file .*, which is not plain"):
        fetched(hub, TINY)
    assert victim.read_text() == "the user's own"


def test_a_listing_that_changes_after_the_download_removes_nothing(
    server: HubServer, hub: Hub, victim: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hubs, "judge_answers", lambda: None)
    hub_answers.judge_answers.cache_clear()
    set_client_factory(default_client_factory)
    server.listed["README.md"] = f"../../../../{victim.name}"
    with pytest.raises(HubError, match="which is not below the repository"):
        fetched(hub, TINY)
    assert victim.read_text() == "the user's own"


@pytest.mark.parametrize("etag", ["../../../id_rsa.json", "../../../new.json", "..", "a/b"])
def test_a_blob_outside_the_cache_is_neither_written_nor_linked(
    server: HubServer, hub: Hub, victim: Path, etag: str
) -> None:
    server.etags["config.json"] = etag
    with pytest.raises(HubError, match="its answer names the blob"):
        fetched(hub, TINY)
    assert victim.read_text() == "the user's own"
    assert not (victim.parent / "new.json").exists()


@pytest.mark.parametrize("sha", ["../../../../new", "..", "main", "/tmp"])
def test_a_commit_that_is_a_path_is_refused(server: HubServer, hub: Hub, victim: Path, sha: str) -> None:
    server.sha = sha
    with pytest.raises(HubError, match="its answer names the commit"):
        fetched(hub, TINY)
    assert [path.name for path in victim.parent.glob("*.json")] == [victim.name]


@pytest.mark.parametrize("status", [200, 307, 401, 404])
def test_an_answer_without_end_is_refused(
    server: HubServer, hub: Hub, monkeypatch: pytest.MonkeyPatch, status: int
) -> None:
    monkeypatch.setattr(hub_answers, "MOST_BYTES", 2**20)
    server.answer = status, {"Location": "/elsewhere"} if status == 307 else {}, b" " * 2**16
    with pytest.raises(HubError, match=r"cannot be trusted: its answer to /api/models/.* has more than 1048576 bytes"):
        fetched(hub, TINY)


def test_a_compressed_answer_is_refused(server: HubServer, hub: Hub) -> None:
    server.answer = 200, {"Content-Encoding": "gzip"}, gzip.compress(b" " * 2**20)
    with pytest.raises(HubError, match=r"its answer to /api/models/.* is compressed: gzip"):
        fetched(hub, TINY)


def test_weights_may_be_longer_than_an_answer(server: HubServer, hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub_answers, "MOST_BYTES", 10_000)
    assert contents(fetched(hub, TINY))[WEIGHTS] == FILES[WEIGHTS]


@pytest.mark.parametrize("what", [WEIGHTS, "api"])
def test_what_drips_is_given_up_and_the_next_start_goes_on(
    server: HubServer, hub: Hub, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    monkeypatch.setattr(limited_answer, "WINDOW_S", 0.5)
    server.drips = frozenset({what})
    with pytest.raises(
        HubAwayError, match=r"cannot be reached \(SlowAnswerError: \d+ bytes in \d+ s; at least 4096 bytes in a"
    ):
        fetched(hub, TINY)
    assert server.downloads(WEIGHTS) <= 1, "not tried again for ever"
    server.drips = frozenset()
    assert contents(fetched(hub, TINY))[WEIGHTS] == FILES[WEIGHTS]


def test_what_the_reader_does_meanwhile_is_no_slowness(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limited_answer, "WINDOW_S", 0.05)
    pieces = iter(LimitedBody(httpx.ByteStream(b"a"), None, ValueError()))
    assert next(pieces) == b"a"
    threading.Event().wait(0.1)
    assert list(pieces) == []


def test_a_listing_without_end_is_refused(server: HubServer, hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub_answers, "MOST_PAGES", 5)
    server.pages = True
    with pytest.raises(HubError, match=r"cannot be trusted: its listing /api/models/.* has more than 5 pages"):
        fetched(hub, TINY)
    server.pages = False
    assert fetched(hub, TINY).is_dir()


@pytest.mark.parametrize("name", ["config.json", WEIGHTS])
def test_a_file_that_is_longer_than_was_said_is_refused_before_the_disk_is_full(
    server: HubServer, hub: Hub, name: str
) -> None:
    server.longer = 50_000_000
    with pytest.raises(HubError, match=rf"be trusted: its answer to /.*{name} has more than {len(FILES[name])} "):
        fetched(hub, Reference("org/tiny", "model", path=name))
    assert hubs._bytes_in(hub.cache) <= len(FILES[name])


def test_a_file_in_chunks_of_the_length_that_was_said_is_used(server: HubServer, hub: Hub) -> None:
    server.longer = 0
    assert contents(fetched(hub, TINY))[WEIGHTS] == FILES[WEIGHTS]


def test_a_compressed_file_is_refused(server: HubServer, hub: Hub) -> None:
    server.packed = True
    with pytest.raises(HubError, match=r"its answer to /.* is compressed: gzip"):
        fetched(hub, TINY)


def test_a_hub_that_has_moved_is_followed(server: HubServer, hub: Hub) -> None:
    server.moved = True
    assert contents(fetched(hub, TINY))[WEIGHTS] == FILES[WEIGHTS]


@pytest.mark.parametrize("where", ["moved", "below"])
def test_a_listing_is_judged_wherever_it_comes_from(server: HubServer, hub: Hub, victim: Path, where: str) -> None:
    server.moved = where == "moved"
    server.listed["config.json"] = f"../../../../{victim.name}"
    with pytest.raises(HubError, match=r"cannot be trusted: its answer names the file"):
        fetched(replace(hub, endpoint=f"{server.url}/elsewhere") if where == "below" else hub, TINY)
    assert victim.read_text() == "the user's own"


def test_a_link_out_of_the_cache_is_not_removed(server: HubServer, hub: Hub, victim: Path) -> None:
    snapshot = fetched(hub, TINY, SMALL)
    (snapshot / "config.json").unlink()
    (snapshot / "config.json").symlink_to(victim)
    with pytest.raises(HubError, match=r"is a link out of .*; it is not used and not removed"):
        fetched(hub, TINY)
    assert victim.read_text() == "the user's own"


def test_a_repository_that_a_link_puts_on_another_disk_is_used(server: HubServer, hub: Hub, tmp_path: Path) -> None:
    fetched(hub, TINY, SMALL)
    (repository,) = hub.cache.glob("models--*")
    repository.rename(tmp_path / "other-disk")
    repository.symlink_to(tmp_path / "other-disk")
    server.damaged.add(WEIGHTS)
    with pytest.raises(HubError, match="damaged"):
        fetched(hub, TINY)
    server.damaged.clear()
    assert contents(fetched(hub, TINY))[WEIGHTS] == FILES[WEIGHTS]


def test_a_branch_is_followed_and_a_commit_is_not(server: HubServer, hub: Hub) -> None:
    (first,) = server.repos[REPO]
    old = fetched(hub, TINY)
    second = server.push(REPO, {**FILES, "config.json": b'{"model_type": "qwen3"}'})
    assert fetched(hub, TINY).name == second
    assert fetched(hub, replace(TINY, revision=first)) == old


def test_a_file_of_a_data_set_comes_alone(server: HubServer, hub: Hub) -> None:
    server.push("datasets/org/sums", {"main/train.jsonl": b'{"question": 1}\n', "main/test.jsonl": b""})
    path = fetched(hub, Reference("org/sums", "dataset", path="main/train.jsonl"))
    assert path.read_bytes() == b'{"question": 1}\n'
    assert server.downloads("main/test.jsonl") == 0
    with pytest.raises(HubError, match=r"org/sums has no file 'main/dev\.jsonl' at main"):
        fetched(hub, Reference("org/sums", "dataset", path="main/dev.jsonl"))


def test_a_long_download_gives_signs_of_life(
    server: HubServer, hub: Hub, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(hubs, "REPORT_S", 0.0)
    beats: list[None] = []
    with caplog.at_level("INFO"):
        fetched(hub, TINY, beat=lambda: beats.append(None))
    assert beats
    assert "action=download reference=hf://org/tiny gigabytes=0.00" in caplog.text


@pytest.mark.parametrize(
    ("environ", "wanted"),
    [
        ({}, {"cache": Path("/c/huggingface")}),
        ({"HF_HOME": "/h"}, {"cache": Path("/h/hub")}),
        ({"HF_HOME": "/h", "HF_HUB_CACHE": "/k"}, {"cache": Path("/k")}),
        (
            {"HF_ENDPOINT": "http://e", "HF_TOKEN": "t", "HF_HUB_OFFLINE": "1"},
            {"cache": Path("/c/huggingface"), "endpoint": "http://e", "token": "t", "offline": True},
        ),
        ({"HF_HUB_OFFLINE": "0"}, {"cache": Path("/c/huggingface")}),
    ],
)
def test_the_hubs_own_variables_decide(environ: dict[str, str], wanted: dict[str, object]) -> None:
    assert hub_of(environ, Path("/c")) == Hub(**wanted)


def test_a_blob_that_is_renamed_while_it_is_counted_has_no_size(tmp_path: Path) -> None:
    blobs = tmp_path / "models--org--tiny" / "blobs"
    blobs.mkdir(parents=True)
    (blobs / "whole").write_bytes(b"12345")
    (blobs / "gone.incomplete").symlink_to(blobs / "renamed")
    assert hubs._bytes_in(tmp_path) == 5
