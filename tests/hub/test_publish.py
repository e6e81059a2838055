"""Publishing over HTTP to a Hub on this machine, with the unmodified client: what is there afterwards."""

import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from huggingface_hub import HfApi

import cmlmcse.hub.export as export_module
from cmlmcse.common.errors import Stopped
from cmlmcse.hub import push as command
from cmlmcse.hub.card import bare_card
from cmlmcse.hub.card_usage import Loading, pinned_commit
from cmlmcse.hub.publish import Published, Target, card_on_hub, check, publish
from modeling_cmlmcse import CMLMCSEForSentenceEmbedding
from support.local_hub import TOKEN, LocalHub, local_hub
from support.paths import ROOT
from support.publishing import TARGET, contents, on_hub
from support.tiny import tiny_tokenizer

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
