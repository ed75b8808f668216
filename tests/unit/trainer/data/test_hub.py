"""Models and files of the hub, over a real socket and with the real library."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from rljob_api.hub import Reference
from rljob_trainer.data import hub as hubs
from rljob_trainer.data.hub import SMALL, Hub, HubAwayError, HubError, cached, fetched, hub_of
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
