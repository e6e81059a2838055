"""Publish an export on the Hub. One commit holds exactly the export; if it fails, the branch is unchanged.

If the export holds code, a second commit writes the first commit's name into the card. The card's code snippets then
stay pinned to the first commit, even if the branch moves later.
"""

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi, get_token
from huggingface_hub.errors import (
    HfHubHTTPError,
    HFValidationError,
    OfflineModeIsEnabled,
    RemoteEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.utils import logging, validate_repo_id

from cmlmcse.common.errors import InputError, Stopped

from .card_usage import pinned_commit

MAIN = "main"
CARD = "README.md"
KEPT = ".gitattributes"  # the Hub's own file, never removed
# The base class of network errors in httpx or httpx2, whichever huggingface_hub uses.
TRANSPORT_ERROR: type[Exception] = HfHubHTTPError.__bases__[0]


@dataclass(frozen=True)
class Target:
    """Where and how to publish. `private` is None to keep an existing visibility, or to take the Hub's default."""

    repo_id: str
    private: bool | None = None
    revision: str = MAIN
    tag: str | None = None
    create_pr: bool = False
    message: str = "Publish a sentence encoder"

    def __post_init__(self) -> None:
        """Check everything that needs no connection to the Hub.

        Raises:
            InputError: an illegal repository, branch or tag name, or options that contradict one another.
        """
        check_repo_id(self.repo_id)
        for option, name in (("--revision", self.revision), ("--tag", self.tag)):
            if name is not None and not legal_ref(name):
                raise InputError(f"{option} expects a name such as v1.0, found {name!r}; choose another")
        if not self.message.strip():
            raise InputError("--commit_message expects a text, found an empty one")
        if self.create_pr and (self.tag is not None or self.revision != MAIN):
            option = "--tag" if self.tag is not None else "--revision"
            raise InputError(f"--create_pr proposes a commit for {MAIN}, found {option} too; drop one of them")


@dataclass(frozen=True)
class Published:
    """The outcome: the last commit, the address of a pull request, the removed files, whether anything changed."""

    oid: str
    pr_url: str | None
    removed: list[str]
    changed: bool


def check_repo_id(repo_id: str) -> None:
    """Refuse a name that is not OWNER/NAME.

    Raises:
        InputError: the Hub would not accept the name.
    """
    expected = "--repo_id expects OWNER/NAME of letters, digits, '-', '_' and '.', NAME of at most 96"
    try:
        validate_repo_id(repo_id)
    except HFValidationError as error:
        raise InputError(f"{expected}, found {repo_id!r}: {error}") from error
    if repo_id.count("/") != 1 or not repo_id.isascii():
        raise InputError(f"{expected}, found {repo_id!r}; choose another")


def legal_ref(name: str) -> bool:
    """Whether Git accepts a name for a branch or tag."""
    bad_character = any(c in " ~^:?*[\\" or not c.isprintable() for c in name)
    parts = name.split("/")
    bad_part = any(not p or p.startswith((".", "-")) or p.endswith((".", ".lock")) for p in parts)
    return not (bad_character or bad_part or ".." in name or "@{" in name or name.startswith("refs/"))


def check(api: HfApi, target: Target) -> None:
    """Ask the Hub for every reason why :func:`publish` would fail; nothing is changed.

    Raises:
        InputError: no token, a refused token, an existing tag, a different visibility, or a pull request to a
            repository that does not exist.
        Stopped: the Hub does not answer.
    """
    with hub_errors(api, target):
        check_token(get_token())
        api.whoami()
        private = visibility(api, target.repo_id)
        if private is None and target.create_pr:
            raise InputError(f"--create_pr expects a repository, found no {target.repo_id}; publish without it first")
        if private is None:
            return
        if target.private not in (None, private):
            asked, found = ("private", "public") if target.private else ("public", "private")
            raise InputError(
                f"--{asked}: {target.repo_id} exists and is {found}, which is not changed here; "
                "change it in its settings on the Hub, or drop the option"
            )
        if target.tag in {tag.name for tag in api.list_repo_refs(target.repo_id).tags}:
            raise InputError(f"--tag {target.tag} exists already in {target.repo_id}; choose another")


def check_token(token: str | None) -> None:
    """Refuse a token that cannot be sent in a header. Otherwise the client would print it in its error.

    Raises:
        InputError: no token, or one with an illegal character.
    """
    if token is None:
        raise InputError("publishing expects a Hub token, found none; set HF_TOKEN or run hf auth login")
    if not (token.isascii() and token.isprintable()) or " " in token:
        raise InputError("expected a Hub token of letters and digits, found other characters in it; copy it again")


def visibility(api: HfApi, repo_id: str) -> bool | None:
    """Whether a repository is private; None if the token can see no such repository."""
    try:
        return bool(api.model_info(repo_id).private)
    except RepositoryNotFoundError:
        return None


def card_on_hub(api: HfApi, target: Target) -> str:
    """The branch's README.md; empty if there is none.

    Raises:
        InputError: the Hub refuses the request.
        Stopped: the Hub does not answer.
    """
    with hub_errors(api, target), tempfile.TemporaryDirectory() as temporary:
        try:
            path = api.hf_hub_download(target.repo_id, CARD, revision=target.revision, local_dir=temporary)
        except (RepositoryNotFoundError, RevisionNotFoundError, RemoteEntryNotFoundError):
            return ""
        return Path(path).read_text(encoding="utf-8")


def publish(api: HfApi, target: Target, folder: Path, card: Callable[[str], str] | None = None) -> Published:
    """Make the repository, branch, commit and tag; call :func:`check` first.

    The large files are uploaded first; no commit refers to them yet. Then a missing branch is created. Then one commit
    adds, replaces and removes all files, or fails as a whole. Its parent is the branch's commit at the start.

    Args:
        api: the client.
        target: where to publish.
        folder: the export.
        card: commit name → the card that names it. A second commit replaces the folder's card with this one. None keeps
            the folder's card, as in a pull request: its commit never reaches the branch.

    Raises:
        InputError: the token has no write access.
        Stopped: the Hub cannot be reached or fails, or somebody else committed at the same time.
    """
    with hub_errors(api, target):
        if visibility(api, target.repo_id) is None:
            api.create_repo(target.repo_id, private=target.private)
        heads = {branch.name: branch.target_commit for branch in api.list_repo_refs(target.repo_id).branches}
        start = target.revision if target.revision in heads else MAIN
        parent = heads.get(start)
        existing = set(api.list_repo_files(target.repo_id, revision=parent)) if parent else set()
        paths = {path.relative_to(folder).as_posix(): path for path in sorted(folder.rglob("*")) if path.is_file()}
        additions = [CommitOperationAdd(name, path) for name, path in paths.items()]
        removed = sorted(existing - paths.keys() - {KEPT})
        upload = partial(api.preupload_lfs_files, target.repo_id, additions, free_memory=False)
        upload(revision=start, create_pr=target.create_pr)
        if target.revision not in heads:
            api.create_branch(target.repo_id, branch=target.revision, revision=parent)
        commit = api.create_commit(
            target.repo_id,
            [*additions, *(CommitOperationDelete(name) for name in removed)],
            commit_message=target.message,
            revision=target.revision,
            create_pr=target.create_pr,
            parent_commit=parent,
        )
    last, changed = commit.oid, commit.oid != parent
    published_but = f"{target.repo_id} was published at {commit.oid}, but "
    if card is not None and (changed or pinned_commit((folder / CARD).read_text(encoding="utf-8")) is None):
        with hub_errors(api, target, f"{published_but}its card does not name that commit: "):
            last = api.create_commit(
                target.repo_id,
                [CommitOperationAdd(CARD, card(commit.oid).encode())],
                commit_message=f"Name the commit {commit.oid[:12]} in the card",
                revision=target.revision,
                parent_commit=commit.oid,
            ).oid
    if target.tag is not None:
        with hub_errors(api, target, f"{published_but}not tagged {target.tag}: "):
            api.create_tag(target.repo_id, tag=target.tag, revision=last)
    return Published(last, commit.pr_url, removed, changed)


@contextmanager
def hub_errors(api: HfApi, target: Target, before: str = "nothing was published: ") -> Iterator[None]:
    """Turn errors of the Hub's client into one line without the token, and silence the client's own log.

    What the user can fix is an :class:`InputError`, exit status 2. A failure of the Hub or the network, or a commit of
    somebody else, is :class:`Stopped`, exit status 1: the same command may work later.
    """
    level = logging.get_verbosity()
    logging.set_verbosity_error()  # it would print every retry, with signed addresses
    try:
        yield
    except OfflineModeIsEnabled as error:
        raise InputError(f"{before}HF_HUB_OFFLINE is set; unset it to publish") from error
    except HfHubHTTPError as error:
        kind, reason = explain(error, target)
        raise kind(redact(before + reason)) from None
    except (OSError, RuntimeError, ValueError, TRANSPORT_ERROR) as error:
        if isinstance(error, (InputError, Stopped)):
            raise
        kind, reason = explain_cause(error, api, target)
        raise kind(redact(before + reason)) from None
    finally:
        logging.set_verbosity(level)


def explain(error: HfHubHTTPError, target: Target) -> tuple[Callable[[str], Exception], str]:
    """The error class and the message for an error response of the Hub."""
    status, server_message = error.response.status_code, (error.server_message or "").strip()
    where = f"{target.repo_id} ({target.revision})"
    if status == 401:
        return InputError, "the Hub refused the token (401); set HF_TOKEN to a valid one, or run hf auth login"
    if status == 403:
        return (
            InputError,
            f"the token may not write to {target.repo_id} (403); use one with write access, or another name",
        )
    if status == 404:
        return InputError, f"the Hub found no {where} (404) that the token may see; check the name"
    if status in (409, 412):
        return Stopped, f"somebody else changed {where} meanwhile ({status}); look at it and run the command again"
    if status == 501:
        return (
            InputError,
            f"the server cannot do this (501): {server_message or 'without a reason'}; use another server",
        )
    if status == 429 or status >= 500:
        return Stopped, f"the Hub failed ({status}); run the command again later"
    return InputError, f"the Hub refused {where} ({status}): {server_message or 'without a reason'}"


def explain_cause(error: BaseException, api: HfApi, target: Target) -> tuple[Callable[[str], Exception], str]:
    """:func:`explain` for an error without a response, or one wrapped by the client's upload threads."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, HfHubHTTPError):
            return explain(cause, target)
        kinds = {kind.__name__ for kind in type(cause).__mro__}
        if kinds & {"ConnectError", "ConnectTimeout", "UnsupportedProtocol"}:
            return Stopped, f"the Hub at {api.endpoint} cannot be reached; check the network, or HF_ENDPOINT"
        if "TransportError" in kinds:
            return Stopped, f"the connection to {api.endpoint} broke; run the command again"
        cause = cause.__cause__
    return Stopped, f"{type(error).__name__}: {error}"


def redact(message: str) -> str:
    """A message with the token replaced by ***."""
    token = get_token()
    return message.replace(token, "***").replace(repr(token)[1:-1], "***") if token else message
