"""Publishing over HTTP to a Hub on this machine, with the unmodified client: what is there afterwards, and failures."""

import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from huggingface_hub import HfApi, constants

import cmlmcse.hub.export as export_module
from cmlmcse.common.errors import InputError, Stopped
from cmlmcse.hub import push as command
from cmlmcse.hub.card import bare_card
from cmlmcse.hub.card_usage import Loading, pinned_commit
from cmlmcse.hub.export import export
from cmlmcse.hub.publish import Published, Target, card_on_hub, check, publish, redact
from modeling_cmlmcse import CMLMCSEForSentenceEmbedding
from support.local_hub import CUT, READ_TOKEN, TOKEN, LocalHub, local_hub
from support.paths import ROOT
from support.tiny import tiny_tokenizer

TARGET = Target("owner/name")
FRESH = """
import json, sys
import numpy as np
from transformers import AutoModel, AutoTokenizer
repo, revision, out, sentences = *sys.argv[1:4], json.loads(sys.argv[4])
model = AutoModel.from_pretrained(repo, revision=revision, trust_remote_code=True)
tokenizer = AutoTokenizer.from_pretrained(repo, revision=revision)
assert type(model).__module__.startswith("transformers_modules."), type(model).__module__
found = {"auto": model.encode(sentences, tokenizer=tokenizer)}
assert model._tokenizer_place[1]["revision"], model._tokenizer_place
np.testing.assert_array_equal(model.encode(sentences), found["auto"])
try:
    from sentence_transformers import SentenceTransformer
except ImportError:
    pass
else:
    found["sentence_transformers"] = SentenceTransformer(repo, revision=revision, device="cpu").encode(sentences)
np.savez(out, **found)
"""


def environment(hub: LocalHub, home: Path, token: str = TOKEN) -> dict[str, str]:
    """A fresh process's environment: this Hub, an empty home, no proxy in between."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    settings = {"HF_ENDPOINT": hub.endpoint, "HF_HOME": str(home), "HF_TOKEN": token, "HF_HUB_OFFLINE": "0"}
    return {**kept, **settings, "HF_HUB_DISABLE_XET": "1", "NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1"}


@pytest.fixture(scope="module")
def exported(backbone_folders, tmp_path_factory) -> Path:
    """An exported folder."""
    model = CMLMCSEForSentenceEmbedding.from_backbone(backbone_folders["bert"])
    return export(model, tiny_tokenizer("bert"), tmp_path_factory.mktemp("publish") / "export", bare_card())


@pytest.fixture(scope="module")
def other(backbone_folders, tmp_path_factory) -> Path:
    """Another exported folder, without code."""
    model = CMLMCSEForSentenceEmbedding.from_backbone(backbone_folders["bert"], pooling="avg")
    model.backbone.get_input_embeddings().weight.data.mul_(2.0)
    folder = tmp_path_factory.mktemp("publish") / "other"
    return export(model, tiny_tokenizer("bert"), folder, bare_card(Loading(more="Another.")), trust_free=True)


@pytest.fixture
def api(hub) -> HfApi:
    """The client."""
    return HfApi()


def contents(folder: Path) -> dict[str, bytes]:
    """The files of a folder."""
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def on_hub(hub: LocalHub, revision: str = "main") -> dict[str, bytes]:
    """The files of the published repository, but the Hub's own."""
    files = hub.repos["owner/name"].files(revision)
    return {name: file.content for name, file in files.items() if name != ".gitattributes"}


@pytest.mark.slow
def test_command_publishes_and_loads_back(backbone_folders, sentences, tmp_path):
    """The command, in its own process, and back from the Hub in another: equal embeddings, and the token nowhere."""
    checkpoint, tokenizer = tmp_path / "run" / "checkpoint-5", tiny_tokenizer("bert")
    model = CMLMCSEForSentenceEmbedding.from_backbone(backbone_folders["bert"]).eval()
    model.save_pretrained(checkpoint)
    tokenizer.save_pretrained(checkpoint)
    with local_hub(**{TOKEN: "write"}) as hub:
        line = [sys.executable, str(ROOT / "push_to_hub.py"), str(checkpoint), "--repo_id", "owner/name"]
        done = subprocess.run(
            [*line, "--private", "--tag", "v1"], env=environment(hub, tmp_path / "home"), cwd=tmp_path,
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr[-3000:]
        repo = hub.repos["owner/name"]
        oid = repo.branches["main"]
        assert f"Published owner/name (main, tag v1) at {oid}" in done.stdout
        assert f'revision="{oid}"' in done.stdout
        assert "Verified in a fresh process: largest difference" in done.stdout
        assert (repo.private, repo.tags) == (True, {"v1": oid})
        _, first, last = repo.commits  # the Hub's own, the export, the card that names the export
        assert last == oid
        files = on_hub(hub)
        assert {"model.safetensors", "config.json", "modeling_cmlmcse.py", "modules.json", "tokenizer.json"} <= set(
            files
        )
        assert (
            f'from_pretrained("owner/name", revision="{first}", trust_remote_code=True)' in files["README.md"].decode()
        )
        assert {**on_hub(hub, first), "README.md": files["README.md"]} == files
        for text in (done.stdout, done.stderr, *(content.decode(errors="ignore") for content in files.values())):
            assert TOKEN not in text
        assert not [name for name, content in files.items() if str(tmp_path).encode() in content]
        back = subprocess.run(
            [sys.executable, "-I", "-c", FRESH, "owner/name", first, str(tmp_path / "o.npz"), json.dumps(sentences)],
            env=environment(hub, tmp_path / "empty"), cwd=tmp_path, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert back.returncode == 0, back.stderr[-3000:]
    for name, found in np.load(tmp_path / "o.npz").items():
        np.testing.assert_allclose(found, model.encode(sentences, tokenizer), atol=1e-5, err_msg=name)


def test_first_publication(api, hub, exported):
    """Everything in one commit on top of the Hub's own."""
    check(api, TARGET)
    published = publish(api, TARGET, exported)
    repo = hub.repos["owner/name"]
    assert on_hub(hub) == contents(exported)
    assert repo.branches == {"main": published.oid}
    assert list(repo.messages.values()) == ["initial commit", TARGET.message]
    assert not repo.private


def test_second_publication_replaces_the_first(api, hub, exported, other):
    """Files that the new export lacks go in the same commit; the same export again makes no commit."""
    first = publish(api, TARGET, exported)
    target = replace(TARGET, message="Second")
    check(api, target)
    second = publish(api, target, other)
    assert "modeling_cmlmcse.py" in second.removed
    assert on_hub(hub) == contents(other)
    assert ".gitattributes" in hub.repos["owner/name"].files()
    assert on_hub(hub, first.oid) == contents(exported)
    assert len(hub.repos["owner/name"].commits) == 3
    again = publish(api, target, other)
    assert (again.oid, again.changed, again.removed) == (second.oid, False, [])


def card(commit: str | None = None) -> str:
    """A card that pins the code."""
    return bare_card(Loading("owner/name", commit))


def publish_again(api: HfApi, folder: Path, target: Target = TARGET) -> Published:
    """What the command does: the export with the card that is there, then the card that names it."""
    (folder / "README.md").write_text(card(None if target.create_pr else pinned_commit(card_on_hub(api, target))))
    return publish(api, target, folder, None if target.create_pr else card)


def test_the_card_names_the_commit_of_the_code(api, hub, exported, tmp_path):
    """Not a branch or a tag, which can be moved; on main and on a branch, each time that something else is published;
    the same export again makes no commit. A pull request's commit never reaches main, and is not named."""
    folder = Path(shutil.copytree(exported, tmp_path / "export"))
    first = publish_again(api, folder)
    repo = hub.repos["owner/name"]
    code = list(repo.commits)[1]
    assert on_hub(hub)["README.md"].decode() == card(code)
    assert on_hub(hub, code)["modeling_cmlmcse.py"] == on_hub(hub)["modeling_cmlmcse.py"]
    again = publish_again(api, folder)
    assert (again.oid, again.changed, len(repo.commits)) == (first.oid, False, 3)
    (folder / "modeling_cmlmcse.py").write_text("# another")
    publish_again(api, folder)
    code = list(repo.commits)[3]
    assert on_hub(hub)["README.md"].decode() == card(code)
    assert on_hub(hub, code)["modeling_cmlmcse.py"] == b"# another"
    trial = publish_again(api, folder, replace(TARGET, revision="trial", tag="v1"))
    assert pinned_commit(on_hub(hub, "trial")["README.md"].decode()) in repo.commits.keys() - {code}
    assert repo.tags == {"v1": trial.oid}
    (folder / "modeling_cmlmcse.py").write_text("# a third")
    proposal = publish_again(api, folder, replace(TARGET, create_pr=True))
    assert pinned_commit(on_hub(hub, proposal.oid)["README.md"].decode()) is None


def test_a_card_that_cannot_follow(api, hub, exported, tmp_path):
    """The Hub fails between the two commits: the export is there, whole, the line says what lacks, and the same command
    again repairs it."""
    commits, folder = [], Path(shutil.copytree(exported, tmp_path / "export"))
    hub.fault = lambda method, path: 503 if "/commit/" in path and (commits.append(path) or len(commits) > 1) else None
    with pytest.raises(Stopped, match=r"was published at \w{40}, but its card does not name that commit: .*\(503\)"):
        publish_again(api, folder)
    assert on_hub(hub) == contents(folder)
    hub.fault = lambda method, path: None
    publish_again(api, folder)
    assert pinned_commit(on_hub(hub)["README.md"].decode()) == list(hub.repos["owner/name"].commits)[1]


def test_branch_tag_and_pull_request(api, hub, exported, other):
    """A new branch, with a tag; a pull request; main stays as it was."""
    first = publish(api, TARGET, exported)
    branch = publish(api, replace(TARGET, revision="trial/one", tag="v2"), other)
    proposal = publish(api, replace(TARGET, create_pr=True), other)
    repo = hub.repos["owner/name"]
    assert repo.branches == {"main": first.oid, "trial/one": branch.oid}
    assert repo.tags == {"v2": branch.oid}
    assert repo.pulls == {"refs/pr/1": proposal.oid}
    assert proposal.pr_url == f"{hub.endpoint}/owner/name/discussions/1"
    assert on_hub(hub, "trial/one") == on_hub(hub, "refs/pr/1") == contents(other)
    assert on_hub(hub) == contents(exported)


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


@pytest.fixture
def checkpoint(backbone_folders, tmp_path) -> Path:
    """A training checkpoint."""
    folder = tmp_path / "run" / "checkpoint-5"
    CMLMCSEForSentenceEmbedding.from_backbone(backbone_folders["bert"]).save_pretrained(folder)
    tiny_tokenizer("bert").save_pretrained(folder)
    return folder


def run(monkeypatch, *arguments: object) -> int:
    """The command in this process; its exit status."""
    monkeypatch.setattr(sys, "argv", ["push_to_hub.py", *map(str, arguments)])
    with pytest.raises(SystemExit) as stop:
        command.main()
    return stop.value.code


@pytest.mark.parametrize(("fault", "status", "words"), [(401, 2, "refused the token"), (500, 1, "the Hub failed")])
def test_the_hub_is_asked_before_the_work(fault, status, words, hub, checkpoint, monkeypatch, capsys):
    """A refusal that can be known is known before the export: one line, status 2, or 1 if it is the Hub's fault."""
    hub.fault = lambda method, path: fault
    monkeypatch.setattr(command, "export_and_verify", None)  # not reached
    assert run(monkeypatch, checkpoint, "--repo_id", "owner/name") == status
    captured = capsys.readouterr()
    assert words in captured.err
    assert len(captured.err.splitlines()) == 1
    assert TOKEN not in captured.err + captured.out


def test_export_that_differs_is_not_published(hub, checkpoint, monkeypatch, capsys):
    """Another embedding in the fresh process than in this one: refused, with the difference, and nothing uploaded."""

    def wrong(*given: object) -> dict[str, np.ndarray]:
        model = CMLMCSEForSentenceEmbedding.from_pretrained(checkpoint)
        return {"AutoModel": model.encode(export_module.SENTENCES, tiny_tokenizer("bert")) + 1e-4}

    monkeypatch.setattr(export_module, "load_fresh", wrong)
    assert run(monkeypatch, checkpoint, "--repo_id", "owner/name") == 2
    errors = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error:")]
    assert len(errors) == 1
    assert (
        "AutoModel gives other embeddings than the exported model: expected a difference of at most 1e-05" in errors[0]
    )
    assert hub.repos == {}
    assert {method for method, _ in hub.requests} <= {"GET", "HEAD"}
