"""Export a checkpoint and publish it: python push_to_hub.py CHECKPOINT --repo_id OWNER/NAME [--export_only …]."""

import argparse
import json
import tempfile
from pathlib import Path
from typing import NoReturn

from modeling_cmlmcse.errors import InputError, command


class Parser(argparse.ArgumentParser):
    """An argument parser whose errors are one line."""

    def error(self, message: str) -> NoReturn:
        raise InputError(f"{message}; see push_to_hub.py --help")


def parse() -> argparse.Namespace:
    """The command line.

    Raises:
        InputError: neither or both of a repository and a folder to write to.
    """
    parser = Parser(prog="push_to_hub.py", description=__doc__, allow_abbrev=False)
    parser.add_argument("checkpoint", metavar="CHECKPOINT", help="checkpoint folder of a run (runs/NAME/checkpoint-N)")
    parser.add_argument("--repo_id", metavar="OWNER/NAME", help="repository on the Hub; created if it does not exist")
    parser.add_argument("--private", action="store_true", help="create the repository private")
    parser.add_argument("--export_only", action="store_true", help="write the folder and publish nothing")
    parser.add_argument("--output_dir", metavar="FOLDER", help="where --export_only writes; must not exist yet")
    parser.add_argument("--trust_free", action="store_true", help="a plain BertModel/RobertaModel folder without code")
    args = parser.parse_args()
    if args.export_only and args.output_dir is None:
        parser.error("--export_only expects --output_dir FOLDER, found none")
    if not args.export_only and args.repo_id is None:
        parser.error("expected --repo_id OWNER/NAME or --export_only, found neither")
    return args


@command
def main() -> None:
    """Export, and unless told otherwise publish the folder in one commit."""
    args = parse()
    from modeling_cmlmcse.card import model_card
    from modeling_cmlmcse.evaluation.encoders import load_model_encoder
    from modeling_cmlmcse.export import export

    run_folder = Path(args.checkpoint).resolve().parent
    records = [run_folder / "run.json", run_folder / "results.json"]
    card = ""
    if all(record.is_file() for record in records):
        card = model_card(*(json.loads(record.read_text(encoding="utf-8")) for record in records))
    encoder = load_model_encoder(args.checkpoint)
    if args.export_only:
        folder = export(encoder.model, encoder.tokenizer, args.output_dir, card, args.trust_free)
        print(f"Exported to {folder}")
        return
    from huggingface_hub import HfApi

    api = HfApi()
    with tempfile.TemporaryDirectory() as temporary:
        folder = export(encoder.model, encoder.tokenizer, Path(temporary) / "export", card, args.trust_free)
        repo = api.create_repo(args.repo_id, private=args.private or None, exist_ok=True)
        commit = api.upload_folder(repo_id=repo.repo_id, folder_path=folder, commit_message="Add sentence encoder")
    print(f"Published {repo.repo_id} at {commit.oid}")


if __name__ == "__main__":
    main()
