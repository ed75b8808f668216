"""Downloads models and files of the Hugging Face Hub.

    reference ─► commit ─► files in the cache (downloaded once, resumed, verified) ─► directory

huggingface_hub downloads, resumes and caches; this module selects the files of a model, compares each file with its
hash, and turns errors into sentences that name the reference and what to do. Its environment variables work: HF_TOKEN,
HF_ENDPOINT, HF_HUB_OFFLINE, HF_HOME.
"""

import hashlib
import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from rljob_api.errors import RunError
from rljob_api.exits import Exit
from rljob_api.foreign_text import printable, said
from rljob_api.hub import Reference
from rljob_trainer.data.hub_answers import HubAnswerError, is_plain, judge_answers

if TYPE_CHECKING:
    from huggingface_hub import RepoFile

SMALL = ("*.json", "*.jinja", "*.txt", "*.model", "tiktoken.model")
"""files that the checks before the start read: configuration, tokenizer, chat template"""
ALL = (*SMALL, "*.safetensors")
NEVER = ("*/*", "consolidated*")
"""of a model: other formats in folders, and Mistral's second copy of the weights"""
REPORT_S = 10.0
"""between two log lines of a download [s]"""

log = logging.getLogger(__name__)


class HubError(RunError):
    """A reference cannot be used; the text says why and what to do."""

    exit = Exit.BAD_INPUT


class HubAwayError(HubError):
    """The hub cannot be reached now; a later start can succeed."""

    exit = Exit.LOST_PEER


@dataclass(frozen=True, slots=True)
class Hub:
    """How the hub is reached, and where its files are kept."""

    cache: Path
    endpoint: str | None = None
    token: str | None = None
    offline: bool = False


def hub_of(environ: Mapping[str, str], cache: Path) -> Hub:
    """Return the hub that the environment names; its files are kept in HF_HUB_CACHE or HF_HOME, else in our cache."""
    home = Path(environ["HF_HOME"]) / "hub" if environ.get("HF_HOME") else cache / "huggingface"
    return Hub(
        cache=Path(environ["HF_HUB_CACHE"]) if environ.get("HF_HUB_CACHE") else home,
        endpoint=environ.get("HF_ENDPOINT") or None,
        token=environ.get("HF_TOKEN") or None,
        offline=environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE"),
    )


def fetched(
    hub: Hub, wanted: Reference, patterns: tuple[str, ...] = ALL, beat: Callable[[], None] | None = None
) -> Path:
    """Return the directory of a model's files, or the path of a file; what is not in the cache is downloaded.

    Files that match no pattern are left out. `beat` is called every ten seconds. Raises HubError.
    """
    patterns = (wanted.path,) if wanted.path else patterns
    if hub.offline:
        directory = _snapshot(hub, wanted, patterns)
    else:
        before = _bytes_in(hub.cache)
        with reported(wanted, lambda: _bytes_in(hub.cache) - before, beat):
            directory = _snapshot(hub, wanted, patterns)
            _verify(hub, wanted, directory, patterns)
    if not wanted.path:
        return directory
    if not (directory / wanted.path).is_file():
        raise HubError(f"{wanted}: {wanted.repo} has no file {wanted.path!r} at {wanted.revision}")
    return directory / wanted.path


def cached(hub: Hub, wanted: Reference, patterns: tuple[str, ...] = SMALL) -> Path | None:
    """Return what `fetched` would without the network; None: it is not in the cache."""
    try:
        return fetched(replace(hub, offline=True), wanted, patterns)
    except (HubError, ModuleNotFoundError):  # without the trainer's packages nothing was downloaded
        return None


def _snapshot(hub: Hub, wanted: Reference, patterns: tuple[str, ...]) -> Path:
    # It takes half a second to import, which most runs need not wait for.
    from huggingface_hub import snapshot_download

    judge_answers()
    try:
        return Path(
            snapshot_download(
                wanted.repo,
                repo_type=wanted.kind,
                revision=wanted.revision,
                cache_dir=hub.cache,
                endpoint=hub.endpoint,
                token=hub.token,
                local_files_only=hub.offline,
                allow_patterns=list(patterns),
                ignore_patterns=None if wanted.path else list(NEVER),
            )
        )
    except Exception as error:  # of httpx, of the hub and of the disk: each means that the run cannot start
        raise _error(error, hub, wanted) from error


def _error(error: BaseException, hub: Hub, wanted: Reference) -> HubError:
    """Return why a download failed and what to do, in one sentence."""
    import httpx

    where = hub.endpoint or "the Hugging Face Hub"
    causes = [error, *_causes(error)]
    is_away = any(isinstance(each, httpx.TransportError) for each in causes)
    if is_away and not hub.offline:
        kept = "what is downloaded is kept, and a new start continues"
        return HubAwayError(f"{wanted}: {where} cannot be reached ({_text(causes[-1])}); {kept}")
    return HubError(f"{wanted}: {_reason(causes, hub, wanted, where)}")


def _reason(causes: Sequence[BaseException], hub: Hub, wanted: Reference, where: str) -> str:
    from huggingface_hub import errors

    if hub.offline:
        return f"not in the cache {hub.cache}, and HF_HUB_OFFLINE allows no download"
    if refusal := next((each for each in causes if isinstance(each, HubAnswerError)), None):
        return f"{where} cannot be trusted: {refusal}"
    status = next((each.response.status_code for each in causes if isinstance(each, errors.HfHubHTTPError)), None)
    with_token = "the token in HF_TOKEN may not read it" if hub.token else "if it is private, set HF_TOKEN"
    if any(isinstance(each, errors.GatedRepoError) for each in causes):
        return f"a gated repository: accept its terms on its page with the account of HF_TOKEN ({with_token})"
    if any(isinstance(each, errors.RevisionNotFoundError) for each in causes):
        return f"{wanted.repo} has no revision {wanted.revision!r}"
    if status == 401 and hub.token:
        return f"{where} does not accept the token in HF_TOKEN, or has no such repository"
    if status in (401, 403, 404):
        return f"{where} has no such repository, or does not show it; {with_token}"
    return f"{where}: {_text(causes[0])}"


def _causes(error: BaseException) -> Iterator[BaseException]:
    while (cause := error.__cause__ or error.__context__) is not None:
        yield cause
        error = cause


def _text(error: BaseException) -> str:
    return " ".join(said(error, 300).split())


def _verify(hub: Hub, wanted: Reference, directory: Path, patterns: tuple[str, ...]) -> None:
    """Compare the files with their hashes in the commit, once; a file that differs is removed. Raises HubError."""
    from huggingface_hub import HfApi, RepoFile

    named = hashlib.sha256("\n".join((wanted.kind, wanted.repo, *patterns)).encode()).hexdigest()[:16]
    mark = hub.cache / ".verified" / f"{directory.name}-{named}"
    if mark.exists():
        return
    api = HfApi(endpoint=hub.endpoint, token=hub.token)
    try:
        entries = list(api.list_repo_tree(wanted.repo, recursive=True, revision=directory.name, repo_type=wanted.kind))
    except Exception as error:  # of httpx and of the hub
        raise _error(error, hub, wanted) from error
    for entry in entries:
        if not is_plain(entry.path):
            raise HubError(
                f"{wanted}: the listing names {printable(entry.path, 200)!r}, which is not below the repository"
            )
        there = directory / entry.path
        if not isinstance(entry, RepoFile) or not there.is_file():
            continue
        if not _lies_in_cache(hub, there, directory):
            raise HubError(f"{wanted}: {entry.path} is a link out of {hub.cache}; it is not used and not removed")
        if not _is_whole(there, entry):
            there.resolve().unlink()
            there.unlink(missing_ok=True)
            raise HubError(f"{wanted}: {entry.path} is damaged: its hash is not the commit's; removed, so start again")
    mark.parent.mkdir(parents=True, exist_ok=True)
    mark.touch()


def _lies_in_cache(hub: Hub, there: Path, snapshot: Path) -> bool:
    """Return whether a file, with its links followed, is one of the hub's cache or of the repository's directory in it.

    Users put repositories on other disks by a link to their directory.
    """
    roots = (hub.cache, snapshot.parent.parent)
    return any(there.resolve().is_relative_to(root.resolve()) for root in roots)


def _is_whole(there: Path, entry: "RepoFile") -> bool:
    return sha256(there) == entry.lfs.sha256 if entry.lfs else git_blob(there) == entry.blob_id


def sha256(path: Path) -> str:
    """Return the hash by which git-lfs names a file."""
    with path.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def git_blob(path: Path) -> str:
    """Return the hash by which git names a file."""
    return hashlib.sha1(b"blob %d\0" % path.stat().st_size + path.read_bytes(), usedforsecurity=False).hexdigest()


@contextmanager
def reported(reference: object, num_bytes: Callable[[], int], beat: Callable[[], None] | None) -> Iterator[None]:
    """Log how much has come of a download, and give signs of life, while the block runs. `num_bytes` counts it."""
    over = threading.Event()

    def report() -> None:
        while not over.wait(REPORT_S):
            log.info("action=download reference=%s gigabytes=%.2f", reference, num_bytes() / 1e9)
            if beat is not None:
                beat()

    reporter = threading.Thread(target=report, name="download-progress", daemon=True)
    reporter.start()
    try:
        yield
    finally:
        over.set()
        reporter.join()


def _bytes_in(directory: Path) -> int:
    """Return the size of all blobs, also of those that are still being written."""
    return sum(map(_size, directory.glob("*--*/blobs/*")))


def _size(blob: Path) -> int:
    """Return its bytes; 0 if it has been renamed since it was listed, as the hub's client does at the end."""
    try:
        return blob.stat().st_size
    except FileNotFoundError:
        return 0
