"""Files of a web server with TLS: sizes, ranges, cuts, and the files of a model, which cannot be listed."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from rljob_trainer.data.stored_objects import Objects, fetched
from rljob_trainer.remote.errors import ChangedError, NotThereError, RemoteAwayError, RemoteError
from rljob_trainer.remote.transfer import Transfer
from rljob_trainer.remote.web_store import INDEX, WebStore
from support.trainer.https_server import Site, https_site

CONTENT = bytes(range(256)) * 40


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with https_site(tmp_path_factory.mktemp("site")) as site:
        yield site


@pytest.fixture
def site(served: Site, monkeypatch: pytest.MonkeyPatch) -> Site:
    monkeypatch.setenv("SSL_CERT_FILE", str(served.authority))
    served.files, served.statuses, served.whole, served.cuts = {"/rows.jsonl": CONTENT}, {}, False, 0
    served.asked.clear()
    return served


def objects(cache: Path) -> Objects:
    return Objects(cache / "objects", lambda _: WebStore(), longest_s=0.0)


def test_a_file_comes_in_pieces_although_connections_are_cut(site: Site, tmp_path: Path) -> None:
    transfer = Transfer(WebStore(), piece_bytes=4000, pause=lambda _: None)
    item = transfer.item(f"{site.url}/rows.jsonl")
    assert item.size == len(CONTENT)
    site.cuts = 2
    transfer.fetch(item, tmp_path / "rows")
    assert site.cuts == 0
    assert (tmp_path / "rows").read_bytes() == CONTENT


@pytest.mark.parametrize("weights", [{"model.safetensors": b"w"}, {"a.safetensors": b"a", "b.safetensors": b"b"}])
def test_a_model_is_its_files_of_known_names_and_the_shards_of_its_index(
    site: Site, tmp_path: Path, weights: dict[str, bytes]
) -> None:
    files = {"config.json": b"{}", "tokenizer.json": b"{}", **weights}
    if len(weights) > 1:
        files[INDEX] = json.dumps({"weight_map": {f"of.{name}": name for name in weights}}).encode()
    site.files = {f"/tiny/{name}": content for name, content in files.items()}
    there = fetched(objects(tmp_path), f"{site.url}/tiny", is_model=True)
    assert {path.name: path.read_bytes() for path in there.iterdir()} == files


@pytest.mark.parametrize(
    ("status", "error", "rule"),
    [
        (404, NotThereError, "is not there; the server said: 404 Not Found"),
        (403, RemoteError, "cannot be read; the server said: 403 Forbidden"),
        (503, RemoteAwayError, "the server fails; the server said: 503 Service Unavailable; nothing came for"),
    ],
)
def test_an_error_has_the_url_and_what_the_server_said(
    site: Site, tmp_path: Path, status: int, error: type[RemoteError], rule: str
) -> None:
    site.statuses["/rows.jsonl"] = status
    with pytest.raises(error, match=rule) as raised:
        fetched(objects(tmp_path), f"{site.url}/rows.jsonl", is_model=False)
    assert str(raised.value).startswith(f"{site.url}/rows.jsonl: ")


def test_a_file_that_changes_meanwhile_is_not_used(site: Site, tmp_path: Path) -> None:
    def replace(_: int) -> None:
        site.files["/rows.jsonl"] = CONTENT[::-1]

    transfer = Transfer(WebStore(), replace, piece_bytes=4000)
    with pytest.raises(ChangedError, match="was changed while it was read"):
        transfer.fetch(transfer.item(f"{site.url}/rows.jsonl"), tmp_path / "rows")
    assert not (tmp_path / "rows").exists()


def test_a_server_without_ranges_sends_a_small_file_at_once(site: Site, tmp_path: Path) -> None:
    site.whole = True
    fetched_from(site, len(CONTENT), tmp_path / "rows")
    assert (tmp_path / "rows").read_bytes() == CONTENT


def test_a_server_without_ranges_sends_no_large_file(site: Site, tmp_path: Path) -> None:
    site.whole = True
    with pytest.raises(RemoteError, match="does not send ranges"):
        fetched_from(site, 4000, tmp_path / "rows")


def fetched_from(site: Site, piece_bytes: int, target: Path) -> None:
    transfer = Transfer(WebStore(), piece_bytes=piece_bytes)
    transfer.fetch(transfer.item(f"{site.url}/rows.jsonl"), target)


def test_an_index_that_is_none_is_named(site: Site, tmp_path: Path) -> None:
    site.files = {f"/tiny/{INDEX}": b"[]"}
    with pytest.raises(RemoteError, match=f"{INDEX}: is not an index of weights"):
        fetched(objects(tmp_path), f"{site.url}/tiny/", is_model=True)


def test_a_server_that_nobody_vouches_for_is_not_believed(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SSL_CERT_FILE")
    with pytest.raises(RemoteAwayError, match="CERTIFICATE_VERIFY_FAILED"):
        fetched(objects(tmp_path), f"{site.url}/rows.jsonl", is_model=False)
    assert site.asked == []
