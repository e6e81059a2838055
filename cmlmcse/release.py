"""Prepare a pre-trained backbone for release: the export of a --stage pretrain run in fp16, with a model card.

    python -m cmlmcse.release runs/NAME --output_dir FOLDER --data_dir DIR --license ID \\
        --language CODE --about TEXT --fill_mask "The cat chased the [MASK]." --gate FILE.json

FOLDER gets the weights, tokenizer and configuration, README.md, and the records from which the card is written:
run.json (without the log) and results.json. The configuration says float32, so a loaded model computes in float32.
"""

import argparse
import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForMaskedLM, AutoTokenizer

from cmlmcse.common.arguments import Parser
from cmlmcse.common.command import command
from cmlmcse.common.errors import InputError, as_input_error
from cmlmcse.common.files import new_model_folder
from cmlmcse.common.run_files import EXPORT, RESULTS, RUN
from cmlmcse.common.tables import markdown_table
from cmlmcse.evaluation.encoding import EncodeOnce
from cmlmcse.evaluation.tables import format_all_measures, format_table
from cmlmcse.evaluation.tasks import TASKS
from cmlmcse.hub.card_writer import Identity, bullets, metadata, write_card
from cmlmcse.hub.export import as_fp16
from cmlmcse.hub.run_records import Record
from cmlmcse.models.encoders import load_encoder
from cmlmcse.models.folders import HEADLESS_POOLINGS
from cmlmcse.study.simcse_lift import lifts, read_rows
from cmlmcse.training.pretraining_export import pretraining_facts
from cmlmcse.training.records import write_records

TASK = "sts"  # the seven STS test sets and STS-B dev
GUESSES = 3  # shown per masked token

USAGE = """```python
from transformers import AutoModelForMaskedLM, AutoTokenizer

model = AutoModelForMaskedLM.from_pretrained("{source}")
tokenizer = AutoTokenizer.from_pretrained("{source}")
```

`cmlmcse train RECIPE --model_name_or_path {source} --pooling avg_first_last` trains an encoder from it."""


def save_as_fp16(source: Path, target: Path) -> None:
    """Write the tensors of a safetensors file in fp16, and copy its metadata.

    Raises:
        InputError: fp16 cannot hold a value.
    """
    with safe_open(source, framework="pt") as file:
        metadata = file.metadata()
    with as_input_error(f"{source}: "):
        save_file(as_fp16(load_file(source)), target, metadata=metadata)


def fill_mask(folder: Path, sentences: list[str]) -> list[dict[str, Any]]:
    """For each sentence with one [MASK]: the most likely tokens, with their probabilities in per cent.

    Raises:
        InputError: a sentence has no mask token, or several.
    """
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForMaskedLM.from_pretrained(folder, dtype=torch.float32).eval()
    found = []
    for sentence in sentences:
        tokens = tokenizer(sentence, return_tensors="pt")
        masked = (tokens["input_ids"][0] == tokenizer.mask_token_id).nonzero().flatten()
        if len(masked) != 1:
            raise InputError(
                f"--fill_mask expects one {tokenizer.mask_token} in a sentence, found {len(masked)} in {sentence!r}"
            )
        with torch.no_grad():
            probabilities = model(**tokens).logits[0, masked[0]].softmax(-1)  # (V,)
        values, ids = probabilities.topk(GUESSES)  # (GUESSES,)
        words = tokenizer.convert_ids_to_tokens(ids)
        guesses = {word: round(100 * float(value), 1) for word, value in zip(words, values, strict=True)}
        found.append({"sentence": sentence, "guesses": guesses})
    return found


def scores(folder: Path, data_dir: str | None) -> dict[str, dict[str, Any]]:
    """Pooling → the STS results of the backbone before any contrastive training."""
    data = TASKS[TASK].load(data_dir)
    for line in TASKS[TASK].missing(data_dir, data):
        print(f"missing: {line}", file=sys.stderr)
    return {
        pooling: TASKS[TASK].run(EncodeOnce(load_encoder(str(folder), pooling, show_progress_bar=False)), data)
        for pooling in HEADLESS_POOLINGS
    }


def simcse_scores(curve: Path, tokens: int) -> dict[str, Any]:
    """STS-B dev: the best untrained score, and for each training text the best score after SimCSE and its gain.

    Raises:
        InputError: the curve has no row with this number of tokens.
    """
    rows = [row for row in read_rows(curve)[1] if row["tokens"] == tokens and row.get("simcse")]
    if not rows:
        raise InputError(f"{curve}: expected a row of {tokens} tokens with its SimCSE scores, found none; add it")
    best = {text: max(by_pooling.values()) for text, by_pooling in rows[0]["simcse"].items()}
    lifted = {text: round(lift, 2) for text, lift in lifts(rows[0]).items()}
    return {"untrained": max(rows[0]["untrained"].values()), "after": best, "lifted": lifted}


def release_card(folder: str, about: str, record: dict[str, Any], results: dict[str, Any], identity: Identity) -> str:
    """README.md of a release. Every figure comes from its records.

    Args:
        folder: the path or name under which it will be loaded.
        about: text by the person who releases it.
        identity: licence and language.
    """
    size, facts = results["size"], pretraining_facts(record, results)
    del facts["training time"]  # older versions recorded only the time since the last resume
    summary = (
        f"A masked-language model, {size['layers']} layers of width {size['width']}, {size['weights'] / 1e6:.1f} "
        "million weights: a backbone for training a sentence encoder, not a sentence encoder itself."
    )
    values = {
        "name": Path(folder).name,
        "summary": f"{summary}\n\n{about}".rstrip(),
        "use": USAGE.format(source=folder),
        "training": bullets(facts) + "\n\nThe weights were rounded to fp16 afterwards.",
        "results": "\n\n".join(measured_parts(results)),
        "limits": "One run with one seed. The model reflects its training text, with its gaps and its prejudices.",
    }
    return write_card(metadata("fill-mask", identity), values)


def measured_parts(results: dict[str, Any]) -> Iterator[str]:
    """Yield the card's account of the results, one paragraph or table at a time."""
    yield "These figures were computed in fp32 from the weights rounded to fp16."
    if results["fill_mask"]:
        yield "### What it predicts"
        guesses = [
            [example["sentence"], ", ".join(f"{word} ({value:.1f})" for word, value in example["guesses"].items())]
            for example in results["fill_mask"]
        ]
        yield markdown_table(["sentence", "most likely tokens (per cent)"], guesses, texts=2)
    yield "### As a sentence encoder, before any contrastive training"
    yield f'Spearman × 100, setting "all".\n\n{format_table(results["poolings"])}'
    yield format_all_measures(results["poolings"])
    if "simcse" in results:
        simcse = results["simcse"]
        yield "### After SimCSE"
        yield f"STS-B dev; the best pooling scored {simcse['untrained']:.2f} before. Best setting tried, one seed."
        rows = [[text, f"{simcse['after'][text]:.2f}", f"{lift:+.2f}"] for text, lift in simcse["lifted"].items()]
        yield markdown_table(["SimCSE trained on", "STS-B dev", "lifted by"], rows)


def release(run: Path, args: argparse.Namespace) -> None:
    """Write the folder, whole or not at all.

    Raises:
        InputError: the run is not a finished --stage pretrain run, a --fill_mask sentence does not have one mask token,
            or the --gate curve lacks this run.
    """
    record, results = (read_record(run / name) for name in (RUN, RESULTS))
    if "pretraining" not in results:
        raise InputError(f"{run}: expected the folder of a --stage pretrain run with its results, found another run")
    if not (run / EXPORT).is_dir():
        raise InputError(f"{run}: expected the folder of a finished run with its export/, found none; give another run")
    record = Record({name: value for name, value in record.items() if name != "log"}, record.name)
    lifted = {"simcse": simcse_scores(args.gate, record["tokens"])} if args.gate else {}
    with new_model_folder(args.output_dir) as folder:
        rewritten = shutil.ignore_patterns("*.safetensors", "README.md")
        shutil.copytree(run / EXPORT, folder, ignore=rewritten, dirs_exist_ok=True)
        for weights in sorted((run / EXPORT).glob("*.safetensors")):
            save_as_fp16(weights, folder / weights.name)
        config = AutoConfig.from_pretrained(folder)
        count = sum(tensor.numel() for tensor in load_file(folder / "model.safetensors").values())
        written = {
            "model": args.output_dir.name,
            "size": {"layers": config.num_hidden_layers, "width": config.hidden_size, "weights": count},
            "pretraining": results["pretraining"],
            "fill_mask": fill_mask(folder, args.fill_mask),
            "poolings": scores(folder, args.data_dir),
            **lifted,
        }
        identity = Identity(args.license, args.language)
        card = release_card(args.output_dir.as_posix(), args.about, record, written, identity)
        (folder / "README.md").write_text(card, encoding="utf-8")
        write_records(folder, record, written)


def read_record(path: Path) -> Record:
    """Read a run's record.

    Raises:
        InputError: the file is missing, or is not a record.
    """
    try:
        return Record(json.loads(path.read_text(encoding="utf-8")), path.name)
    except (OSError, ValueError) as error:
        raise InputError(
            f"{path}: expected a run's record, found none that can be read; give a run's folder"
        ) from error


@command
def main(argv: list[str] | None = None) -> None:
    """Run the command."""
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False)
    parser.add_argument("run", type=Path, metavar="RUN", help="output folder of a --stage pretrain run")
    parser.add_argument("--output_dir", type=Path, required=True, metavar="FOLDER", help="must not exist yet")
    parser.add_argument("--data_dir", help="folder that holds sts/ (default: from the Hub)")
    parser.add_argument(
        "--about", default="", metavar="TEXT", help="text for the card that no record holds, such as the text's source"
    )
    parser.add_argument("--license", metavar="ID", help="licence of the weights, as the Hub writes it")
    parser.add_argument("--language", metavar="CODE", help="language of the text, as the Hub writes it")
    parser.add_argument(
        "--fill_mask", nargs="*", default=[], metavar="SENTENCE", help="examples, each with one mask token"
    )
    parser.add_argument(
        "--gate", type=Path, metavar="FILE.json", help="a curve with SimCSE's scores, as study.simcse_lift reads"
    )
    args = parser.parse_args(argv)
    if args.output_dir.exists():
        raise InputError(f"--output_dir must not exist yet, found {args.output_dir}; remove it or choose another")
    release(args.run, args)
    size = sum(file.stat().st_size for file in args.output_dir.iterdir())
    print(f"Written to {args.output_dir}: {size / 2**20:.1f} MiB")


if __name__ == "__main__":
    main()
