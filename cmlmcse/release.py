"""A pre-trained backbone to give away: what stage 1 left, in half precision, with a card of what it is and can do.

    python -m cmlmcse.release runs/NAME --output_dir FOLDER --data_dir DIR --license ID \\
        --language CODE --about TEXT --fill_mask "The cat chased the [MASK]." --gate FILE.json

FOLDER gets the weights, tokenizer and configuration, README.md, and the records that the card is written from: run.json
(without the log) and results.json. The configuration says float32, so that what loads it computes in that.
"""

import argparse
import json
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForMaskedLM, AutoTokenizer

from cmlmcse.common.errors import InputError, Parser, command
from cmlmcse.common.tables import markdown_table
from cmlmcse.evaluation.sts import EncodeOnce
from cmlmcse.evaluation.tables import format_all_measures, format_table
from cmlmcse.evaluation.tasks import TASKS
from cmlmcse.hub.card import Record
from cmlmcse.hub.card_writer import Identity, bullets, metadata, write_card
from cmlmcse.models.encoders import HEADLESS_POOLINGS, load_encoder
from cmlmcse.study.simcse_lift import lifts, read_rows
from cmlmcse.training.pretraining_export import pretraining_facts
from cmlmcse.training.records import write_records

TASK = "sts"  # the seven sets and STS-B dev
GUESSES = 3  # for each masked token

USAGE = """```python
from transformers import AutoModelForMaskedLM, AutoTokenizer

model = AutoModelForMaskedLM.from_pretrained("{source}")
tokenizer = AutoTokenizer.from_pretrained("{source}")
```

`python train.py RECIPE --model_name_or_path {source} --pooling avg_first_last` trains an encoder from it."""


def halve(source: Path, target: Path) -> None:
    """Write the tensors of a safetensors file in fp16, its metadata as they are.

    Raises:
        InputError: a value that fp16 cannot hold.
    """
    with safe_open(source, framework="pt") as file:
        metadata = file.metadata()
    weights = {name: tensor.half() for name, tensor in load_file(source).items()}
    for name, tensor in weights.items():
        if not torch.isfinite(tensor).all():
            raise InputError(f"{source}: expected weights that fp16 can hold, found larger ones in {name}; keep fp32")
    save_file(weights, target, metadata=metadata)


def fill_mask(folder: Path, sentences: list[str]) -> list[dict[str, Any]]:
    """For each sentence with one [MASK]: the likeliest tokens, with their probabilities in per cent.

    Raises:
        InputError: a sentence with no mask token, or several.
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
            chances, best = model(**tokens).logits[0, masked[0]].softmax(-1).topk(GUESSES)  # (GUESSES,)
        words = tokenizer.convert_ids_to_tokens(best)
        guesses = {word: round(100 * float(chance), 1) for word, chance in zip(words, chances, strict=True)}
        found.append({"sentence": sentence, "guesses": guesses})
    return found


def scores(folder: Path, data_dir: str | None) -> dict[str, dict[str, Any]]:
    """Pooling → the STS results of the backbone as it is, before any contrastive training."""
    data = TASKS[TASK].load(data_dir)
    for line in TASKS[TASK].missing(data_dir, data):
        print(f"missing: {line}", file=sys.stderr)
    return {
        pooling: TASKS[TASK].run(EncodeOnce(load_encoder(str(folder), pooling, show_progress_bar=False)), data)
        for pooling in HEADLESS_POOLINGS
    }


def simcse_scores(curve: Path, tokens: int) -> dict[str, Any]:
    """The best untrained score on STS-B dev, and for each text what SimCSE made of it and by how much it lifted it.

    Raises:
        InputError: the curve has no row of as many tokens.
    """
    rows = [row for row in read_rows(curve)[1] if row["tokens"] == tokens and row.get("simcse")]
    if not rows:
        raise InputError(f"{curve}: expected a row of {tokens} tokens with its SimCSE scores, found none; add it")
    best = {text: max(by_pooling.values()) for text, by_pooling in rows[0]["simcse"].items()}
    lifted = {text: round(lift, 2) for text, lift in lifts(rows[0]).items()}
    return {"untrained": max(rows[0]["untrained"].values()), "after": best, "lifted": lifted}


def release_card(folder: str, about: str, record: dict[str, Any], results: dict[str, Any], identity: Identity) -> str:
    """README.md of a release: every figure from its records, the words `about` the text from its maker.

    Args:
        folder: what it will be loaded as.
        identity: licence and language.
    """
    size, facts = results["size"], pretraining_facts(record, results)
    del facts["training time"]  # of the last part alone, in records of older versions
    summary = (
        f"A masked-language model, {size['layers']} layers of width {size['width']}, {size['weights'] / 1e6:.1f} "
        "million weights: a backbone to train a sentence encoder from; by itself it is none."
    )
    values = {
        "name": Path(folder).name,
        "summary": f"{summary}\n\n{about}".rstrip(),
        "use": USAGE.format(source=folder),
        "training": bullets(facts) + "\n\nThe weights were rounded to fp16 afterwards.",
        "results": "\n\n".join(measured_parts(results)),
        "limits": "One run with one seed. What its text says and leaves out, prejudices included, is in it.",
    }
    return write_card(metadata("fill-mask", identity), values)


def measured_parts(results: dict[str, Any]) -> Iterator[str]:
    """What the card says of the results, paragraph by paragraph."""
    yield "These figures are of the weights rounded to fp16, computed in fp32."
    if results["fill_mask"]:
        yield "### What it predicts"
        guesses = [
            [one["sentence"], ", ".join(f"{word} ({chance:.1f})" for word, chance in one["guesses"].items())]
            for one in results["fill_mask"]
        ]
        yield markdown_table(["sentence", "likeliest tokens (per cent)"], guesses, texts=2)
    yield "### As a sentence encoder, before any contrastive training"
    yield f"Spearman × 100, setting all.\n\n{format_table(results['poolings'])}"
    yield format_all_measures(results["poolings"])
    if "simcse" in results:
        gate = results["simcse"]
        yield "### After SimCSE"
        yield f"STS-B dev, {gate['untrained']:.2f} with the best pooling before; the best setting tried, one seed."
        rows = [[text, f"{gate['after'][text]:.2f}", f"{lift:+.2f}"] for text, lift in gate["lifted"].items()]
        yield markdown_table(["SimCSE trained on", "STS-B dev", "lifted by"], rows)


def release(run: Path, args: argparse.Namespace) -> None:
    """Write the folder: aside, then renamed, so that it is whole or not there.

    Raises:
        InputError: the run is no stage 1 or has not ended, or an example or the curve is not what it should be.
    """
    record, results = (read_record(run / name) for name in ("run.json", "results.json"))
    if "pretraining" not in results:
        raise InputError(f"{run}: expected the folder of a --stage pretrain run with its results, found another run")
    record = {name: value for name, value in record.items() if name != "log"}
    lifted = {"simcse": simcse_scores(args.gate, record["tokens"])} if args.gate else {}
    args.output_dir.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".release-", dir=args.output_dir.parent) as aside:
        folder = Path(aside) / args.output_dir.name
        shutil.copytree(run / "export", folder, ignore=shutil.ignore_patterns("*.safetensors", "README.md"))
        for weights in sorted((run / "export").glob("*.safetensors")):
            halve(weights, folder / weights.name)
        config = AutoConfig.from_pretrained(folder)
        count = sum(tensor.numel() for tensor in load_file(folder / "model.safetensors").values())
        results = {
            "model": args.output_dir.name,
            "size": {"layers": config.num_hidden_layers, "width": config.hidden_size, "weights": count},
            "pretraining": results["pretraining"],
            "fill_mask": fill_mask(folder, args.fill_mask),
            "poolings": scores(folder, args.data_dir),
            **lifted,
        }
        identity = Identity(args.license, args.language)
        card = release_card(args.output_dir.as_posix(), args.about, record, results, identity)
        (folder / "README.md").write_text(card, encoding="utf-8")
        write_records(folder, record, results)
        folder.rename(args.output_dir)


def read_record(path: Path) -> dict[str, Any]:
    """A run's record.

    Raises:
        InputError: it is not there, or is none.
    """
    try:
        return Record(json.loads(path.read_text(encoding="utf-8")), path.name)
    except (OSError, ValueError) as error:
        raise InputError(
            f"{path}: expected a run's record, found none that can be read; give a run's folder"
        ) from error


@command
def main(argv: list[str] | None = None) -> None:
    """The command."""
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False)
    parser.add_argument("run", type=Path, metavar="RUN", help="output folder of a --stage pretrain run")
    parser.add_argument("--output_dir", type=Path, required=True, metavar="FOLDER", help="must not exist yet")
    parser.add_argument("--data_dir", help="folder that holds sts/ (default: from the Hub)")
    parser.add_argument(
        "--about", default="", metavar="TEXT", help="what no record knows, such as where the text is from"
    )
    parser.add_argument("--license", metavar="ID", help="licence of the weights, as the Hub writes it")
    parser.add_argument("--language", metavar="CODE", help="language of the text, as the Hub writes it")
    parser.add_argument(
        "--fill_mask", nargs="*", default=[], metavar="SENTENCE", help="examples, each with one mask token"
    )
    parser.add_argument(
        "--gate", type=Path, metavar="FILE.json", help="a curve with SimCSE's scores, as study.gate draws"
    )
    args = parser.parse_args(argv)
    if args.output_dir.exists():
        raise InputError(f"--output_dir must not exist yet, found {args.output_dir}; remove it or choose another")
    release(args.run, args)
    size = sum(file.stat().st_size for file in args.output_dir.iterdir())
    print(f"Written to {args.output_dir}: {size / 2**20:.1f} MiB")


if __name__ == "__main__":
    main()
