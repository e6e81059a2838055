"""What else learns from unlabelled documents in the time that adapt takes: SimCSE, CT, TSDAE, and MLM.

    python benchmarks/comparators.py --data_dir DIR --work WORK --collections med cisi --seconds 150
    python benchmarks/comparators.py … --methods tsdae bottleneck --output benchmarks/records/bottleneck-loss.json

SimCSE, CT and TSDAE are sentence-transformers' own losses in its own Trainer. CT is contrastive tension with the
batch's negatives, the kind that its documentation recommends (Carlsson et al. 2021). TSDAE deletes 60 % of the words,
and its decoder shares the encoder's weights (Wang et al. 2021). Bottleneck is this project's `BottleneckLoss` in the
same Trainer: SimCSE's contrast with RetroMAE's decoder beside it. MLM, masked-language modelling, is transformers' own
Trainer.

All start from the same backbone with averaged pooling, read the same documents for the same seconds of the processor
(one thread: OMP_NUM_THREADS=1), and are scored alike. Each runs at two learning rates, or at those of --rates. The
table shows the better one on the labelled queries, which favours them, and BM25 beside them.
"""

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer, SentenceTransformerTrainingArguments
from sentence_transformers.losses import (
    ContrastiveTensionLossInBatchNegatives,
    DenoisingAutoEncoderLoss,
    MultipleNegativesRankingLoss,
)
from sentence_transformers.models import Pooling, Transformer
from transformers import (
    AutoModelForMaskedLM,
    AutoTokenizer,
    DataCollatorForLanguageModeling,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

from cmlmcse.common.locations import resolve
from cmlmcse.common.tables import markdown_table
from cmlmcse.data.collection import load_collection
from cmlmcse.evaluation.beir_data import load_retrieval
from cmlmcse.evaluation.retrieval import retrieval
from cmlmcse.sentence_transformers import BottleneckLoss

RECORD = Path(__file__).parent / "records" / "comparators.json"
# papers' rates, and ten (five) times them
RATES = {
    "simcse": (3e-5, 3e-4),
    "ct": (3e-5, 3e-4),
    "tsdae": (3e-5, 3e-4),
    "mlm": (1e-4, 5e-4),
    "bottleneck": (3e-5, 3e-4),
}
TOKENS = 64  # of a training text, as in adapt
# a contrast as adapt; TSDAE as its authors; MLM as usual
BATCH = {"simcse": 64, "ct": 64, "tsdae": 8, "mlm": 32, "bottleneck": 64}
TITLES = {"simcse": "SimCSE", "ct": "CT", "tsdae": "TSDAE", "mlm": "MLM", "bottleneck": "BottleneckLoss"}


class StopsInTime(TrainerCallback):
    """Ends training after some seconds of the processor, so that other jobs beside it take nothing away."""

    def __init__(self, seconds: float) -> None:
        self.end, self.seconds = 0.0, seconds

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.end = time.process_time() + self.seconds

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        control.should_training_stop = time.process_time() > self.end


def main() -> None:
    """Train and score everything that the record lacks, then print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data_dir", type=Path, required=True, help="holds beir/<name>/corpus.jsonl and so on")
    parser.add_argument("--work", type=Path, required=True, help="folder for scratch files")
    parser.add_argument("--model", default="assets/bert-mini-en", help="a masked-language model, or package:…")
    parser.add_argument("--collections", nargs="+", required=True)
    parser.add_argument("--seconds", type=float, default=150)
    parser.add_argument("--rates", nargs="+", type=float, help="learning rates (default: two for each method)")
    parser.add_argument("--methods", nargs="+", choices=RATES, default=["simcse", "ct", "tsdae", "mlm"])
    parser.add_argument("--output", type=Path, default=RECORD)
    args = parser.parse_args()
    rows = json.loads(args.output.read_text(encoding="utf-8")) if args.output.exists() else []
    for name in args.collections:
        for method in args.methods:
            for rate in args.rates or RATES[method]:
                key = {"model": args.model, "collection": name, "method": method, "rate": rate, "seconds": args.seconds}
                if not any(key.items() <= row.items() for row in rows):
                    rows.append(key | run(args, name, method, rate))
                    args.output.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
                    print(rows[-1], flush=True)
    print(table(rows))


def run(args: argparse.Namespace, name: str, method: str, rate: float) -> dict[str, Any]:
    """Train one model and score it on the collection's queries."""
    documents = load_collection(str(args.data_dir / "beir" / name / "corpus.jsonl"), None, None)
    texts = [f"{row['title']} {row['text']}".strip() for row in documents]
    torch.manual_seed(1)
    stop, folder = StopsInTime(args.seconds), args.work / "comparators"
    options = {"max_steps": 100_000, "learning_rate": rate, "per_device_train_batch_size": BATCH[method], "seed": 1}
    options |= {"save_strategy": "no", "report_to": "none", "use_cpu": True, "disable_tqdm": True}
    options |= {"lr_scheduler_type": "constant_with_warmup", "warmup_steps": 10, "logging_steps": 10_000}
    model = resolve(args.model)
    if method == "mlm":
        trained, steps = train_mlm(model, texts, TrainingArguments(str(folder), **options), stop, folder)
    else:
        trained, steps = train_sentences(model, method, texts, folder, options, stop)
    labelled = args.work / "labelled" / name
    (labelled / "beir").mkdir(parents=True, exist_ok=True)
    if not (labelled / "beir" / name).exists():
        (labelled / "beir" / name).symlink_to((args.data_dir / "beir" / name).resolve())
    trained.max_seq_length = 128
    found = retrieval(lambda given: trained.encode(given, batch_size=64), load_retrieval(str(labelled)))[name]
    return {"steps": steps, "ndcg@10": found["ndcg@10"], "bm25": found["bm25"]["ndcg@10"]}


def train_sentences(
    model: str, method: str, texts: list[str], folder: Path, options: dict[str, Any], stop: StopsInTime
) -> tuple[SentenceTransformer, int]:
    """SimCSE, CT, TSDAE or our loss with sentence-transformers."""
    transformer = Transformer(model)
    encoder = SentenceTransformer(modules=[transformer, Pooling(transformer.get_embedding_dimension())], device="cpu")
    encoder.max_seq_length = TOKENS
    if method == "simcse":
        rows, loss = {"anchor": texts, "positive": texts}, MultipleNegativesRankingLoss(encoder)
    elif method == "ct":
        rows, loss = {"sentence": texts}, ContrastiveTensionLossInBatchNegatives(encoder)
    elif method == "bottleneck":
        rows, loss = {"sentence": texts}, BottleneckLoss(encoder)
    else:
        rng = np.random.default_rng(1)
        rows = {"damaged": [without_words(text, rng) for text in texts], "text": texts}
        loss = DenoisingAutoEncoderLoss(encoder, decoder_name_or_path=model, tie_encoder_decoder=True)
    trainer = SentenceTransformerTrainer(
        encoder, SentenceTransformerTrainingArguments(str(folder), **options), Dataset.from_dict(rows), loss=loss,
        callbacks=[stop],
    )  # fmt: skip
    trainer.train()
    return encoder.eval(), trainer.state.global_step


def without_words(text: str, rng: np.random.Generator, share: float = 0.6) -> str:
    """Delete each word with this probability; at least one stays."""
    words = text.split()
    kept = [word for word, drawn in zip(words, rng.random(len(words)), strict=True) if drawn >= share]
    return " ".join(kept or words[:1])


def train_mlm(
    model: str, texts: list[str], arguments: TrainingArguments, stop: StopsInTime, folder: Path
) -> tuple[SentenceTransformer, int]:
    """Masked-language modelling with transformers, 15 % masked; then averaged pooling."""
    tokenizer, masked_lm = AutoTokenizer.from_pretrained(model), AutoModelForMaskedLM.from_pretrained(model)
    rows = Dataset.from_dict(dict(tokenizer(texts, truncation=True, max_length=TOKENS)))
    collator = DataCollatorForLanguageModeling(tokenizer, mlm_probability=0.15)
    trainer = Trainer(masked_lm, arguments, train_dataset=rows, data_collator=collator, callbacks=[stop])
    trainer.train()
    masked_lm.save_pretrained(folder / "mlm")
    tokenizer.save_pretrained(folder / "mlm")
    transformer = Transformer(str(folder / "mlm"))
    modules = [transformer, Pooling(transformer.get_embedding_dimension())]
    return SentenceTransformer(modules=modules, device="cpu").eval(), trainer.state.global_step


def table(rows: list[dict[str, Any]]) -> str:
    """nDCG@10 of each method at its best rate, one line a collection."""
    cells = []
    for name in dict.fromkeys(row["collection"] for row in rows):
        own = [row for row in rows if row["collection"] == name]
        best = [max((row["ndcg@10"] for row in own if row["method"] == method), default=None) for method in TITLES]
        cells.append([name, *("–" if score is None else f"{score:.2f}" for score in best), f"{own[0]['bm25']:.2f}"])
    return markdown_table(["collection", *TITLES.values(), "BM25"], cells)


if __name__ == "__main__":
    main()
