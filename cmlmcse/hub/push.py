"""The command `cmlmcse push CHECKPOINT --repo_id OWNER/NAME`: export a checkpoint, verify the export, and publish it.

The export is loaded in a fresh process and its embeddings compared with the checkpoint's before anything is uploaded.
"""

import argparse
import json
import shutil
import tempfile
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from cmlmcse.common.errors import InputError, Parser, as_input_error, command, interruptible

if TYPE_CHECKING:
    from .publish import Published, Target

DESCRIPTION = """Export a checkpoint, verify the export, and publish it. The export is loaded in a fresh process and its
embeddings are compared with the checkpoint's before anything is uploaded."""


def parse(argv: list[str] | None) -> argparse.Namespace:
    """The command line.

    Raises:
        InputError: neither a repository nor a folder to write to, or options that contradict one another.
    """
    parser = Parser(prog="cmlmcse push", description=DESCRIPTION, allow_abbrev=False)
    parser.add_argument("checkpoint", metavar="CHECKPOINT", help="checkpoint folder of a run (runs/NAME/checkpoint-N)")
    parser.add_argument("--repo_id", metavar="OWNER/NAME", help="repository on the Hub; created if it does not exist")
    seen = parser.add_mutually_exclusive_group()
    seen.add_argument("--private", action="store_true", help="create the repository private")
    seen.add_argument("--public", action="store_true", help="create the repository public")
    parser.add_argument("--revision", metavar="BRANCH", default="main", help="branch; made from main if it is missing")
    parser.add_argument("--tag", metavar="TAG", help="tag of the new commit; must not exist yet")
    parser.add_argument("--create_pr", action="store_true", help="propose the commit for main as a pull request")
    parser.add_argument("--commit_message", metavar="TEXT", default="Publish a sentence encoder")
    parser.add_argument("--export_only", action="store_true", help="write the folder and publish nothing")
    parser.add_argument("--output_dir", metavar="FOLDER", help="where --export_only writes; must not exist yet")
    parser.add_argument("--license", metavar="ID", help="licence of the weights, as the Hub writes it: apache-2.0, …")
    parser.add_argument("--language", metavar="CODE", help="language of the text, as the Hub writes it: en, de, …")
    parser.add_argument("--card_template", metavar="FILE", type=Path, help="a card of your own; docs/publishing.md")
    parser.add_argument("--trust_free", action="store_true", help="a plain BertModel/RobertaModel folder without code")
    args = parser.parse_args(argv)
    if args.export_only and args.output_dir is None:
        parser.error("--export_only expects --output_dir FOLDER, found none")
    if args.output_dir is not None and not args.export_only:
        parser.error("--output_dir expects --export_only, found it alone: a published export leaves no folder here")
    if not args.export_only and args.repo_id is None:
        parser.error("expected --repo_id OWNER/NAME or --export_only, found neither")
    return args


def read_target(args: argparse.Namespace) -> "Target | None":
    """Where to publish; None without a repository.

    Raises:
        InputError: a name that the Hub would not take.
    """
    if args.repo_id is None:
        return None
    from .publish import Target

    private = True if args.private else False if args.public else None
    return Target(args.repo_id, private, args.revision, args.tag, args.create_pr, args.commit_message)


def check_checkpoint(name: str) -> Path:
    """The folder to load: a checkpoint of this project, or a run's export.

    Raises:
        InputError: it is not there, or holds something else.
    """
    from cmlmcse.models.encoders import resolve_model

    folder = Path(resolve_model(name))
    if not (folder / "config.json").is_file():
        raise InputError(f"{name}: expected a model's folder, found no config.json; check the path")
    with as_input_error(f"{folder / 'config.json'}: expected JSON: "):
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    if not isinstance(config, dict) or (config.get("model_type") != "cmlmcse" and "cmlmcse" not in config):
        found = config.get("model_type") if isinstance(config, dict) else None
        raise InputError(f"{name}: expected a checkpoint of cmlmcse train, model type 'cmlmcse', found {found!r}")
    return folder


def write_card(run_folder: Path, args: argparse.Namespace, commit: str | None = None) -> str:
    """README.md, from the records that lie in the checkpoint's run folder, if there are any; its lines pin the code to
    the commit.

    Raises:
        InputError: a record or a template that cannot be read, or lacks an entry.
    """
    from .card import TEMPLATE, Identity, bare_card, model_card, plots_of, usage

    branch = None if args.revision == "main" else args.revision
    use = usage(args.repo_id, commit or args.tag or branch, args.trust_free)
    identity = Identity(args.license, args.language)
    records = [run_folder / "run.json", run_folder / "results.json"]
    if not all(record.is_file() for record in records):
        if args.card_template:
            raise InputError(f"--card_template expects run.json and results.json in {run_folder}, found not both")
        return bare_card(use, identity)
    with as_input_error(f"{run_folder}: expected JSON in run.json and results.json: "):
        record, results = (json.loads(path.read_text(encoding="utf-8")) for path in records)
    return model_card(record, results, use, plots_of(run_folder), identity, args.card_template or TEMPLATE)


def export_and_verify(checkpoint: Path, folder: Path, args: argparse.Namespace, card: str) -> None:
    """Write the export to `folder`, with its card; one that cannot be verified does not stay.

    Raises:
        InputError: the checkpoint cannot be loaded, or its export computes something else.
    """
    from cmlmcse.models.encoders import load_model_encoder

    from .card import copy_plots
    from .export import export, verify

    encoder = load_model_encoder(str(checkpoint), device="cpu")
    export(encoder.model, encoder.tokenizer, folder, card, args.trust_free)
    copy_plots(checkpoint.resolve().parent, folder)
    try:
        differences = verify(encoder.model, encoder.tokenizer, folder)
    except BaseException:
        shutil.rmtree(folder)
        raise
    if "SentenceTransformer" not in differences:
        print("sentence-transformers is not installed here: loading with it was not verified")
    ways = ", ".join(name for name in differences)
    print(f"Verified in a fresh process: largest difference {max(differences.values()):.1e} ({ways})")


def report(target: "Target", published: "Published", trust_free: bool) -> None:
    """Say what is on the Hub now, and how to load exactly that."""
    from .card import usage

    if published.removed:
        print(f"Removed from {target.repo_id}, not part of the export: {', '.join(published.removed)}")
    if not published.changed:
        print(f"{target.repo_id} held exactly this already")
    if published.pr_url is not None:
        print(f"Proposed {target.repo_id} at {published.oid}: {published.pr_url}")
    else:
        tagged = f", tag {target.tag}" if target.tag else ""
        print(f"Published {target.repo_id} ({target.revision}{tagged}) at {published.oid}")
    print(f"\n{usage(target.repo_id, published.oid, trust_free)}")


@command
def main(argv: list[str] | None = None) -> None:
    """Export, verify, and unless told otherwise publish the folder."""
    args = parse(argv)
    if args.export_only:
        kept = f"{args.output_dir} was not verified: remove it if it is there"
    else:
        kept = f"each commit to {args.repo_id} is whole or not there; the same command goes on"
    with interruptible(lambda: kept):
        push(args)


def push(args: argparse.Namespace) -> None:
    """Do what the command line says.

    Raises:
        InputError: no checkpoint, no right to write, or an export that computes something else.
        Stopped: the Hub cannot be reached or fails.
    """
    target = read_target(args)
    if args.export_only and Path(args.output_dir).exists():
        raise InputError(f"the export folder must not exist yet, found {args.output_dir}; choose another or remove it")
    checkpoint = check_checkpoint(args.checkpoint)
    card = partial(write_card, checkpoint.resolve().parent, args)  # for a commit's name
    if args.export_only:
        export_and_verify(checkpoint, Path(args.output_dir), args, card())
        print(f"Exported to {args.output_dir}")
        return
    assert target is not None  # parse() demands a repository
    from huggingface_hub import HfApi

    from .card import pinned_commit
    from .publish import card_on_hub, check, publish

    api = HfApi()
    check(api, target)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "export"
        if args.trust_free or args.create_pr:
            card_with_commit, before = None, None
        else:  # with the commit that is named there, an export that is there already differs in nothing
            card_with_commit, before = card, pinned_commit(card_on_hub(api, target))
        export_and_verify(checkpoint, folder, args, card(before))
        published = publish(api, target, folder, card_with_commit)
    report(target, published, args.trust_free)
