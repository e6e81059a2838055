"""Publishing that the Hub refuses, breaks off or changes meanwhile: what is there stays as it was."""

from dataclasses import replace

import pytest
from huggingface_hub import HfApi, constants

from cmlmcse.common.errors import InputError, Stopped
from cmlmcse.hub.publish import check, publish, redact
from support.local_hub import CUT, READ_TOKEN, TOKEN
from support.publishing import TARGET, contents, on_hub


@pytest.mark.parametrize("private", (False, True))
def test_visibility_is_never_changed(private, api, hub, exported):
    """An option that says otherwise is refused; without one, the repository stays as it is."""
    hub.create("owner/name", private=private)
    with pytest.raises(InputError, match=r"exists and is (public|private), which is not changed here"):
        check(api, replace(TARGET, private=not private))
    for same in (private, None):
        check(api, replace(TARGET, private=same))
        publish(api, replace(TARGET, private=same), exported)
    assert hub.repos["owner/name"].private == private


@pytest.mark.parametrize(
    ("token", "expected"),
    [
        (None, "expects a Hub token, found none"),
        ("hf_unknown", "refused the token"),
        ("hf_two words", "other characters"),
        ("hf_ümlaut", "other characters"),
        ("hf_\x01", "other characters"),
    ],
)
def test_no_or_wrong_token(token, expected, api, hub, monkeypatch):
    """One line that does not hold the token."""
    if token is None:
        monkeypatch.delenv("HF_TOKEN")
    else:
        monkeypatch.setenv("HF_TOKEN", token)
    with pytest.raises(InputError, match=expected) as error:
        check(api, TARGET)
    assert str(token) not in str(error.value)
    assert "owner/name" not in hub.repos


@pytest.mark.parametrize("exists", (False, True))
def test_no_write_access(exists, api, hub, exported, monkeypatch):
    """A token that may only read: 403, and nothing is there or changes."""
    if exists:
        hub.create("owner/name")
    monkeypatch.setenv("HF_TOKEN", READ_TOKEN)
    check(api, TARGET)
    with pytest.raises(InputError, match=r"nothing was published: the token may not write to owner/name \(403\)"):
        publish(api, TARGET, exported)
    assert ("owner/name" in hub.repos) == exists
    assert not exists or on_hub(hub) == {}


def test_tag_that_exists(api, hub, exported):
    """Refused before the upload; one made meanwhile leaves the commit, and says so."""
    publish(api, replace(TARGET, tag="v1"), exported)
    with pytest.raises(InputError, match="--tag v1 exists already in owner/name"):
        check(api, replace(TARGET, tag="v1"))
    with pytest.raises(Stopped, match=r"was published at \w{40}, but not tagged v1: .*\(409\)"):
        publish(api, replace(TARGET, tag="v1"), exported)


def test_pull_request_without_repository(api, hub):
    """There is nothing to propose a change of."""
    with pytest.raises(InputError, match="--create_pr expects a repository, found no owner/name"):
        check(api, replace(TARGET, create_pr=True))


@pytest.mark.parametrize(
    ("place", "fault", "kind", "expected"),
    [
        ("/lfs/", CUT, Stopped, "the connection to {endpoint} broke"),
        ("/lfs/", 500, Stopped, r"the Hub failed \(500\)"),
        ("/lfs/", 403, InputError, "may not write"),
        ("/commit/", CUT, Stopped, "the connection to {endpoint} broke"),
        ("/commit/", 401, InputError, r"refused the token \(401\)"),
        ("/commit/", 409, Stopped, r"somebody else changed owner/name \(main\) meanwhile \(409\)"),
        ("/commit/", 503, Stopped, r"the Hub failed \(503\)"),
        ("/commit/", 501, InputError, r"the server cannot do this \(501\): .*; use another server"),
        ("/preupload/", 429, Stopped, r"the Hub failed \(429\)"),
        ("/commit/", 400, InputError, r"refused owner/name \(main\) \(400\): fault 400"),
    ],
)
def test_failure_keeps_the_old_commit(place, fault, kind, expected, api, hub, exported, other):
    """Whatever fails, the branch holds the old commit, a new branch is not made half, and the next run succeeds."""
    first = publish(api, TARGET, exported)
    hub.fault = lambda method, path: fault if place in path else None
    with pytest.raises(kind, match="nothing was published: .*" + expected.format(endpoint=hub.endpoint)) as error:
        publish(api, TARGET, other)
    assert TOKEN not in str(error.value)
    assert hub.repos["owner/name"].branches == {"main": first.oid}
    assert on_hub(hub) == contents(exported)
    hub.fault = lambda method, path: None
    publish(api, TARGET, other)
    assert on_hub(hub) == contents(other)


def test_token_in_a_message_is_taken_out(hub):
    """Whatever a library or the Hub says."""
    assert redact(f"Illegal header value 'Bearer {TOKEN}'") == "Illegal header value 'Bearer ***'"


def test_cut_once_is_retried(api, hub, exported):
    """One broken connection in the upload of the weights is for the client to repair."""
    cuts = [CUT]
    hub.fault = lambda method, path: cuts.pop() if cuts and method == "PUT" else None
    publish(api, TARGET, exported)
    assert not cuts
    assert on_hub(hub) == contents(exported)


def test_commit_by_somebody_else(api, hub, exported, other):
    """A commit between the listing and ours is not overwritten."""
    publish(api, TARGET, exported)
    repo = hub.repos["owner/name"]

    def meddle(method: str, path: str) -> None:
        if "/commit/" in path:
            repo.branches["main"] = repo.commit({}, "somebody else's")

    hub.fault = meddle
    with pytest.raises(Stopped, match=r"somebody else changed owner/name \(main\) meanwhile \(412\)"):
        publish(api, TARGET, other)
    assert on_hub(hub) == {}


def test_hub_out_of_reach(hub, monkeypatch):
    """No answer, an address of nothing, and offline mode."""
    for endpoint, expected in (("http://127.0.0.1:9", "cannot be reached"), ("nonsense:9", "cannot be reached")):
        with pytest.raises(Stopped, match=expected):
            check(HfApi(endpoint=endpoint), TARGET)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(InputError, match="HF_HUB_OFFLINE is set"):
        check(HfApi(), TARGET)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        *(
            ({"repo_id": name}, "--repo_id expects OWNER/NAME")
            for name in ("name", "a/b/c", "o/a--b", "o/.a", "o/ü", "")
        ),
        ({"repo_id": "o/" + "a" * 97}, "--repo_id expects OWNER/NAME"),
        *(
            ({"revision": name}, "--revision expects a name")
            for name in ("a b", "", "a..b", "/a", "a.lock", "refs/pr/1")
        ),
        ({"tag": "v1:0"}, "--tag expects a name"),
        ({"message": " "}, "--commit_message expects a text"),
        ({"create_pr": True, "tag": "v1"}, "--create_pr proposes a commit for main, found --tag too"),
        ({"create_pr": True, "revision": "dev"}, "--create_pr proposes a commit for main, found --revision too"),
    ],
)
def test_illegal_target(fields, expected):
    """Refused without asking the Hub."""
    with pytest.raises(InputError, match=expected):
        replace(TARGET, **fields)
