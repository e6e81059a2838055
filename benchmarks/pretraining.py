"""Tokens a second of pre-training a small backbone on a CPU: what each choice costs or gains.

    OMP_NUM_THREADS=1 python benchmarks/pretraining.py --work WORK --output benchmarks/records/pretraining.json

Each arm is the recipe `infocse-pretrain-bert-mini` (4 layers, width 256, batches of 128 sentences) with some fields
changed, for --steps steps. The value is the median over the log lines after the first ten steps: each line has the
tokens of two steps and their seconds. The arms take turns for --repetitions rounds. Rows of documents hold 20 lines of
the text each. Tokenising is not counted.
"""

import json
import statistics
from pathlib import Path
from typing import Any

from common import DATA, parser, print_table, sentences_file, write_record

from cmlmcse import train

RECIPE = "infocse-pretrain-bert-mini"
ROOT = Path(__file__).resolve().parents[1]
WARM_UP, LINE = 10, 2  # steps that do not count; steps of a log line
LONG = {"sequences": "documents", "max_seq_length": 512, "per_device_train_batch_size": 12,
        "config_overrides": "num_hidden_layers=4,hidden_size=256,num_attention_heads=4,intermediate_size=1024,"
                            "max_position_embeddings=512"}  # fmt: skip
RETROMAE = {"auxiliary_decoder": "retromae", "pooling": "avg"}
ARMS: dict[str, dict[str, Any]] = {
    "fp32": {"bf16": False},
    "bf16": {},
    "bf16, no auxiliary network": {"auxiliary_weight": 0.0},
    "bf16, RetroMAE's decoder": RETROMAE,
    "bf16, dropout 0.1": {"backbone_dropout": 0.1},
    "bf16, 30 % masked": {"mlm_probability": 0.3},
    "bf16, AdamW that is not fused": {"optim": "adamw_torch"},
    "bf16, two batches of half the size a step": {"per_device_train_batch_size": 64, "gradient_accumulation_steps": 2},
    "bf16, batches four times as large": {"per_device_train_batch_size": 512},
    "bf16, documents of 512 tokens, dropout 0.1": {**LONG, "backbone_dropout": 0.1},
    "bf16, documents, RetroMAE, dropout 0.1, 30 % masked": {**LONG, **RETROMAE, "backbone_dropout": 0.1,
                                                           "mlm_probability": 0.3},
    "bf16, torch.compile": {"torch_compile": True},
}  # fmt: skip


def measure(name: str, text: Path, folder: Path, steps: int) -> float:
    """Train an arm; its tokens a second."""
    common = {"tokenizer_name": ROOT / "assets" / "bert-mini-en", "max_steps": steps, "logging_steps": LINE,
              "optim": "adamw_torch_fused", "bf16": True, "eval_steps": steps, "save_steps": steps, "use_cpu": True,
              "disable_tqdm": True}  # fmt: skip
    documents = "sequences" in ARMS[name]
    train(RECIPE, **common | ARMS[name] | {"train_file": in_documents(text, folder) if documents else text,
                                           "output_dir": folder / "run"})  # fmt: skip
    log = json.loads((folder / "run" / "run.json").read_text(encoding="utf-8"))["log"]
    return statistics.median(row["tokens_per_second"] for row in log if "loss" in row and row["step"] > WARM_UP)


def in_documents(text: Path, folder: Path) -> Path:
    """The text with a blank line after each 20 lines."""
    lines, found = text.read_text(encoding="utf-8").splitlines(), folder / "documents.txt"
    found.parent.mkdir(parents=True, exist_ok=True)
    found.write_text("\n\n".join("\n".join(lines[i : i + 20]) for i in range(0, len(lines), 20)), encoding="utf-8")
    return found


def main() -> None:
    """Measure all arms and print a table."""
    options = parser(__doc__ or "", repetitions=2, steps=24)
    options.add_argument(
        "--text", type=sentences_file, default=DATA / "text" / "wiki.txt", help="sentences, one a line"
    )
    options.add_argument("--work", type=Path, required=True, help="a new folder for the runs")
    options.add_argument("--arms", nargs="+", choices=list(ARMS), default=list(ARMS), metavar="ARM")
    args = options.parse_args()
    found: dict[str, list[float]] = {name: [] for name in args.arms}
    for number in range(args.repetitions):
        for place, name in enumerate(args.arms):
            found[name].append(measure(name, args.text, args.work / f"{number}-{place}", args.steps))
            print(name, found[name], flush=True)
    base = statistics.median(found[args.arms[0]])
    rows = []
    for name, values in found.items():
        middle = statistics.median(values)
        rows.append([name, f"{middle:,.0f}", f"{min(values):,.0f} to {max(values):,.0f}", f"{middle / base:.2f}"])
    title = "Pre-training a BERT of 4 layers and width 256 on a CPU, tokens a second"
    print_table(title, ["arm", "tokens/s", "of all rounds", f"× {args.arms[0]}"], rows)
    write_record(args.output, title, steps=args.steps, tokens_per_second=found)


if __name__ == "__main__":
    main()
