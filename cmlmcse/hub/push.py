"""The command `cmlmcse push CHECKPOINT --repo_id OWNER/NAME`: export a checkpoint, verify the export, and publish it.

A fresh process loads the export. Its embeddings must equal the checkpoint's before anything is uploaded.
"""

import argparse
import json
import shutil
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cmlmcse.common.arguments import Parser
from cmlmcse.common.command import command
from cmlmcse.common.errors import InputError, as_input_error
from cmlmcse.common.signals import interruptible, terminable

if TYPE_CHECKING:
    from cmlmcse.models.prompts import Prompts

    from .publish import Published, Target

DESCRIPTION = """Export a checkpoint, verify the export, and publish it. A fresh process loads
the export, and its embeddings must equal the checkpoint's before anything is uploaded."""


def parse(argv: list[str] | None) -> argparse.Namespace:
    """The command line.

    Raises:
        InputError: neither a repository nor an output folder, or options that contradict each other.
    """
    parser = Parser(prog="cmlmcse push", description=DESCRIPTION, allow_abbrev=False)
    parser.add_argument("checkpoint", metavar="CHECKPOINT", help="a run's folder (runs/NAME), whose export/ is "
                        "published; that of adapt; or a checkpoint's folder (runs/NAME/checkpoint-N)")  # fmt: skip
    parser.add_argument("--repo_id", metavar="OWNER/NAME", help="repository on the Hub; created if it does not exist")
    visibility = parser.add_mutually_exclusive_group()
    visibility.add_argument("--private", action="store_true", help="create the repository private")
    visibility.add_argument("--public", action="store_true", help="create the repository public")
    parser.add_argument(
        "--revision", metavar="BRANCH", default="main", help="branch; created from main if it does not exist"
    )
    parser.add_argument("--tag", metavar="TAG", help="tag for the new commit; must not exist yet")
    parser.add_argument("--create_pr", action="store_true", help="propose the commit for main as a pull request")
    parser.add_argument("--commit_message", metavar="TEXT", default="Publish a sentence encoder")
    parser.add_argument("--export_only", action="store_true", help="write the folder, and publish nothing")
    parser.add_argument("--output_dir", metavar="FOLDER", help="where --export_only writes; must not exist yet")
    parser.add_argument("--fp16", action="store_true", help="store the weights in fp16, at half the size; they load as "
                        "fp32")  # fmt: skip
    parser.add_argument("--onnx", action="store_true", help="write onnx/model.onnx (fp32) and "
                        "onnx/model_quantized.onnx (int8) too, and compare their embeddings; needs the extra onnx"
                        )  # fmt: skip
    parser.add_argument("--openvino", action="store_true", help="write openvino/openvino_model.xml (fp32) too, and "
                        "compare its embeddings; needs the extra openvino")  # fmt: skip
    parser.add_argument("--query_prompt", metavar="TEXT", help="text put before a query, as 'query: ' (default: the "
                        "checkpoint's own)")  # fmt: skip
    parser.add_argument("--document_prompt", metavar="TEXT", help="text put before a document (default: the "
                        "checkpoint's own)")  # fmt: skip
    parser.add_argument("--license", metavar="ID", help="licence of the weights, as the Hub writes it: apache-2.0, …")
    parser.add_argument("--language", metavar="CODE", help="language of the text, as the Hub writes it: en, de, …")
    parser.add_argument(
        "--card_template", metavar="FILE", type=Path, help="your own card template; see docs/tutorials/publish.md"
    )
    parser.add_argument(
        "--trust_free", action="store_true", help="export a plain BertModel or RobertaModel, without code"
    )
    args = parser.parse_args(argv)
    if args.export_only and args.output_dir is None:
        parser.error("--export_only expects --output_dir FOLDER, found none")
    if args.output_dir is not None and not args.export_only:
        parser.error("--output_dir expects --export_only, found it alone; without --export_only no folder is kept")
    if not args.export_only and args.repo_id is None:
        parser.error("expected --repo_id OWNER/NAME or --export_only, found neither")
    return args


def read_target(args: argparse.Namespace) -> "Target | None":
    """Where to publish; None without a repository.

    Raises:
        InputError: the Hub would not accept a name.
    """
    if args.repo_id is None:
        return None
    from .publish import Target

    private = True if args.private else False if args.public else None
    return Target(args.repo_id, private, args.revision, args.tag, args.create_pr, args.commit_message)


def check_checkpoint(name: str) -> Path:
    """The folder to load: a checkpoint of this project, or a run's export.

    Raises:
        InputError: it does not exist, or holds something else.
    """
    from cmlmcse.models.folders import resolve_model, unfinished

    folder = Path(resolve_model(name))
    if not (folder / "config.json").is_file():
        raise InputError(f"{name}: expected a model's folder, found no config.json; {unfinished(folder)}")
    with as_input_error(f"{folder / 'config.json'}: expected JSON: "):
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    if not isinstance(config, dict) or (config.get("model_type") != "cmlmcse" and "cmlmcse" not in config):
        raise InputError(f"{name}: push expects a sentence encoder of cmlmcse, {what_it_is(config, folder)}")
    return folder


def what_it_is(config: Any, folder: Path) -> str:
    """What a folder holds that is no sentence encoder of ours, and what to do with it."""
    config = config if isinstance(config, dict) else {}
    (kind, *_) = config.get("architectures") or [f"the model type {config.get('model_type')!r}"]
    if str(kind).endswith("ForMaskedLM"):
        return (
            f"found a backbone ({kind}); train an encoder from it, or publish it as it is with "
            f"hf upload OWNER/NAME {folder}"
        )
    if config.get("architectures") and (folder / "modules.json").is_file():  # as --trust_free writes it
        return (
            f"found a model for sentence-transformers ({kind}) without this project's code, which needs no export; "
            f"publish it as it is with hf upload OWNER/NAME {folder}"
        )
    return f"found {kind}; give a run of cmlmcse train, or what cmlmcse adapt wrote"


def chosen_prompts(checkpoint: Path, args: argparse.Namespace) -> "Prompts":
    """The checkpoint's prompts, or those that are given."""
    from cmlmcse.models.folders import recorded_prompts

    return recorded_prompts(str(checkpoint)).changed(args.query_prompt, args.document_prompt)


def write_card(checkpoint: Path, args: argparse.Namespace, commit: str | None = None) -> str:
    """README.md, from the records in the checkpoint's run folder, if there are any.

    Its code snippets are pinned to `commit`, or to the tag or branch.

    Raises:
        InputError: a record or the template cannot be read, or a record lacks an entry.
    """
    from .adapted_card import adapted_card
    from .card import bare_card, model_card, plots_of
    from .card_usage import Loading, graphs_usage
    from .card_writer import TEMPLATE, Identity
    from .run_records import read_records

    branch = None if args.revision == "main" else args.revision
    pooling = pooling_of(args.checkpoint)
    more = chosen_prompts(checkpoint, args).for_card + graphs_usage(pooling, args.onnx, args.openvino)
    use = Loading(args.repo_id, commit or args.tag or branch, args.trust_free, more, pooling)
    name = args.repo_id and args.repo_id.split("/")[-1]
    identity, template = Identity(args.license, args.language), args.card_template or TEMPLATE
    run, results = read_records(checkpoint)
    plots = plots_of(checkpoint.resolve().parent)
    if results is None:
        if args.card_template:
            raise InputError(
                f"--card_template expects run.json and results.json beside {checkpoint}, found at most one; drop the "
                "option"
            )
        return bare_card(use, identity, name)
    if run is None:
        return adapted_card(results, use, plots, identity, template, name)
    return model_card(run, results, use, plots, identity, template, name)


def export_and_verify(checkpoint: Path, folder: Path, args: argparse.Namespace, card: str) -> None:
    """Write the export with its card to `folder`, and verify it. An export that fails is removed.

    Raises:
        InputError: the checkpoint cannot be loaded, or its export gives other embeddings.
    """
    from cmlmcse.models.encoders import load_model_encoder
    from cmlmcse.models.folders import recorded_similarity

    from .card import copy_plots
    from .eval_results import write_eval_results
    from .export import SENTENCES, export, round_to_fp16, verify
    from .onnx_files import write_onnx
    from .openvino_files import write_openvino
    from .run_records import read_records

    encoder = load_model_encoder(str(checkpoint), device="cpu")
    chosen_prompts(checkpoint, args).give(encoder.model)
    similarity = recorded_similarity(str(checkpoint))
    export(encoder.model, encoder.tokenizer, folder, card, args.trust_free, args.fp16, similarity)
    if args.fp16:
        round_to_fp16(encoder.model)
    copy_plots(checkpoint.resolve().parent, folder)
    write_eval_results(read_records(checkpoint).measured, folder)
    try:
        with terminable(lambda: f"{folder} was not verified and is removed"):
            differences = verify(encoder.model, encoder.tokenizer, folder)
            parts = encoder.model, encoder.tokenizer, folder, SENTENCES
            onnx = write_onnx(*parts) if args.onnx else None
            openvino = write_openvino(*parts) if args.openvino else None
    except BaseException:
        shutil.rmtree(folder)
        raise
    if not any(name.startswith("SentenceTransformer") for name in differences):
        print("sentence-transformers is not installed here: loading with it was not verified")
    ways = ", ".join(name for name in differences)
    print(f"Verified in a fresh process: largest difference {max(differences.values()):.1e} ({ways})")
    if onnx is not None:
        print(f"Verified in ONNX Runtime: {onnx}")
    if openvino is not None:
        print(f"Verified in OpenVINO: {openvino}")


def check_graphs(args: argparse.Namespace) -> None:
    """Check before any work that the files of `--onnx` and `--openvino` can be written.

    Raises:
        InputError: as :func:`check_graph`.
    """
    from . import onnx_files, openvino_files

    for option, packages in (("onnx", onnx_files.PACKAGES), ("openvino", openvino_files.PACKAGES)):
        if getattr(args, option):
            onnx_files.check_graph(option, packages, pooling_of(args.checkpoint))


def ask_for_licence(checkpoint: Path, args: argparse.Namespace) -> None:
    """Ask for the licence if the card names none; name that of the start, if its card names one. Say where the weights
    are the start's own, and the card names another licence than the start's."""
    from .run_records import read_records

    kept = read_records(checkpoint)
    start = ((kept.run or kept.results or {}).get("start") or {}).get("license")
    same = start and kept.run is None and (kept.results or {})["adapt"]["chosen"] == "start"
    if same and args.license not in (None, start):
        print(f"these are the weights of the start, which has {start}; the card says {args.license}", file=sys.stderr)
    if same or args.license is not None or args.card_template is not None:
        return
    advice = f" (the model that it started from has {start})" if start else ""
    print(f"the card names no licence; say what others may do: --license ID{advice}", file=sys.stderr)


def pooling_of(checkpoint: str) -> str:
    """The pooling that a checkpoint records."""
    from cmlmcse.models.folders import recorded_pooling

    return str(recorded_pooling(checkpoint)[0])


def print_published(target: "Target", published: "Published", args: argparse.Namespace) -> None:
    """Print what is on the Hub now, and code that loads exactly that."""
    from .card_usage import Loading

    if published.removed:
        print(f"Removed from {target.repo_id}, not part of the export: {', '.join(published.removed)}")
    if not published.changed:
        print(f"{target.repo_id} already held exactly these files")
    if published.pr_url is not None:
        print(f"Proposed {target.repo_id} at {published.oid}: {published.pr_url}")
    else:
        tagged = f", tag {target.tag}" if target.tag else ""
        print(f"Published {target.repo_id} ({target.revision}{tagged}) at {published.oid}")
    use = Loading(target.repo_id, published.oid, args.trust_free, pooling=pooling_of(args.checkpoint))
    print(f"\n{use.code()}")


@command
def main(argv: list[str] | None = None) -> None:
    """Export and verify a checkpoint, and publish it unless --export_only is given."""
    args = parse(argv)
    if args.export_only:
        kept = f"{args.output_dir} was not verified: remove it if it is there"
    else:
        kept = f"a commit to {args.repo_id} is complete or absent; run the same command again"
    with interruptible(lambda: kept):
        push(args)


def push(args: argparse.Namespace) -> None:
    """Run the command.

    Raises:
        InputError: no checkpoint, no write access, or an export that gives other embeddings.
        Stopped: the Hub cannot be reached or fails.
    """
    target = read_target(args)
    if args.export_only and Path(args.output_dir).exists():
        raise InputError(f"the export folder must not exist yet, found {args.output_dir}; choose another or remove it")
    checkpoint = check_checkpoint(args.checkpoint)
    check_graphs(args)
    card = partial(write_card, checkpoint, args)  # commit name → card
    if args.export_only:
        export_and_verify(checkpoint, Path(args.output_dir), args, card())
        print(f"Exported to {args.output_dir}")
        ask_for_licence(checkpoint, args)
        return
    assert target is not None  # parse() demands a repository
    from huggingface_hub import HfApi

    from .card_usage import pinned_commit
    from .publish import card_on_hub, check, publish

    api = HfApi()
    check(api, target)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "export"
        if args.trust_free or args.create_pr:
            card_with_commit, commit_in_card = None, None
        else:  # an unchanged export keeps its commit name, so its card is unchanged too
            card_with_commit, commit_in_card = card, pinned_commit(card_on_hub(api, target))
        export_and_verify(checkpoint, folder, args, card(commit_in_card))
        published = publish(api, target, folder, card_with_commit)
    print_published(target, published, args)
    ask_for_licence(checkpoint, args)
