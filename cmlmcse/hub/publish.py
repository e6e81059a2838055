"""Publishing: one commit on the Hub holds the export, the whole of it and nothing else, or nothing has changed.

Where the export brings code, a second one puts the first one's name into the card: who follows its lines runs the code
that was published with it, whatever the branch holds by then.
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

from .card import pinned_commit

MAIN = "main"
CARD = "README.md"
KEPT = ".gitattributes"  # the Hub's own file
TRANSPORT_ERROR: type[Exception] = HfHubHTTPError.__bases__[0]  # of httpx or httpx2, whichever the client is built on


@dataclass(frozen=True)
class Target:
    """Where and how to publish; `private` is None for the Hub's default, or as the repository is."""

    repo_id: str
    private: bool | None = None
    revision: str = MAIN
    tag: str | None = None
    create_pr: bool = False
    message: str = "Publish a sentence encoder"

    def __post_init__(self) -> None:
        """Check what can be checked without the Hub.

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
    """What came of it: the last commit, the pull request's address if one was made, the files that were removed."""

    oid: str
    pr_url: str | None
    removed: list[str]
    changed: bool


def check_repo_id(repo_id: str) -> None:
    """Let OWNER/NAME pass.

    Raises:
        InputError: a name that is something else, or that the Hub would not take.
    """
    expected = "--repo_id expects OWNER/NAME of letters, digits, '-', '_' and '.', NAME of at most 96"
    try:
        validate_repo_id(repo_id)
    except HFValidationError as error:
        raise InputError(f"{expected}, found {repo_id!r}: {error}") from error
    if repo_id.count("/") != 1 or not repo_id.isascii():
        raise InputError(f"{expected}, found {repo_id!r}; choose another")


def legal_ref(name: str) -> bool:
    """Whether Git takes a name for a branch or tag."""
    bad_character = any(c in " ~^:?*[\\" or not c.isprintable() for c in name)
    parts = name.split("/")
    bad_part = any(not p or p.startswith((".", "-")) or p.endswith((".", ".lock")) for p in parts)
    return not (bad_character or bad_part or ".." in name or "@{" in name or name.startswith("refs/"))


def check(api: HfApi, target: Target) -> None:
    """Ask the Hub for everything that would stop :func:`publish` later, and change nothing.

    Raises:
        InputError: no token, a refused one, a tag that exists, another visibility than asked for, a pull request to
            a repository that is not there.
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
    """Let a token pass that can be sent at all: a client that fails to send one names it in its error.

    Raises:
        InputError: none, or one with a character that no token has.
    """
    if token is None:
        raise InputError("publishing expects a Hub token, found none; set HF_TOKEN or run hf auth login")
    if not (token.isascii() and token.isprintable()) or " " in token:
        raise InputError("expected a Hub token of letters and digits, found other characters in it; copy it anew")


def visibility(api: HfApi, repo_id: str) -> bool | None:
    """Whether a repository is private; None if there is none that the token may see."""
    try:
        return bool(api.model_info(repo_id).private)
    except RepositoryNotFoundError:
        return None


def card_on_hub(api: HfApi, target: Target) -> str:
    """README.md as the branch has it; empty if there is none.

    Raises:
        InputError: the Hub refuses it.
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

    The large files go up first: they belong to no commit yet. Only then is a missing branch made, and one commit on
    top of the one that was there at the start adds, replaces and removes files, or fails as a whole.

    Args:
        api: the client.
        target: where to.
        folder: what.
        card: makes the card that names a commit, for the commit's name; it takes the place of the folder's card in a
            commit of its own. None: the folder's stays, as in a pull request, whose commit never reaches the branch.

    Raises:
        InputError: the token may not write there.
        Stopped: the Hub cannot be reached, fails, or somebody else committed meanwhile.
    """
    with hub_errors(api, target):
        if visibility(api, target.repo_id) is None:
            api.create_repo(target.repo_id, private=target.private)
        heads = {branch.name: branch.target_commit for branch in api.list_repo_refs(target.repo_id).branches}
        start = target.revision if target.revision in heads else MAIN
        parent = heads.get(start)
        there = set(api.list_repo_files(target.repo_id, revision=parent)) if parent else set()
        paths = {path.relative_to(folder).as_posix(): path for path in sorted(folder.rglob("*")) if path.is_file()}
        additions = [CommitOperationAdd(name, path) for name, path in paths.items()]
        removed = sorted(there - paths.keys() - {KEPT})
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
    there_but = f"{target.repo_id} was published at {commit.oid}, but "
    if card is not None and (changed or pinned_commit((folder / CARD).read_text(encoding="utf-8")) is None):
        with hub_errors(api, target, f"{there_but}its card does not name that commit: "):
            last = api.create_commit(
                target.repo_id,
                [CommitOperationAdd(CARD, card(commit.oid).encode())],
                commit_message=f"Name the commit {commit.oid[:12]} in the card",
                revision=target.revision,
                parent_commit=commit.oid,
            ).oid
    if target.tag is not None:
        with hub_errors(api, target, f"{there_but}not tagged {target.tag}: "):
            api.create_tag(target.repo_id, tag=target.tag, revision=last)
    return Published(last, commit.pr_url, removed, changed)


@contextmanager
def hub_errors(api: HfApi, target: Target, before: str = "nothing was published: ") -> Iterator[None]:
    """Turn what the Hub's client raises into one line, without a token in it, and keep its own log quiet.

    What the user can mend is an :class:`InputError`, exit status 2. What the Hub, the network or somebody else did
    is :class:`Stopped`, exit status 1: the same command may well work later.
    """
    level = logging.get_verbosity()
    logging.set_verbosity_error()  # it would name every retry, with signed addresses
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
    """The kind of error and the words for an answer of the Hub."""
    status, said = error.response.status_code, (error.server_message or "").strip()
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
    if status == 429 or status >= 500:
        return Stopped, f"the Hub failed ({status}); run the command again later"
    return InputError, f"the Hub refused {where} ({status}): {said or 'without a reason'}"


def explain_cause(error: BaseException, api: HfApi, target: Target) -> tuple[Callable[[str], Exception], str]:
    """The same for what never became an answer, or was wrapped by the client's upload threads."""
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
    """A message without the token, wherever a library put it."""
    token = get_token()
    return message.replace(token, "***").replace(repr(token)[1:-1], "***") if token else message
