"""The model card, written from a run's own records and from nothing else."""

from pathlib import Path
from typing import Any

from huggingface_hub import EvalResult, ModelCardData

from .evaluation.tables import STS_COLUMNS, format_table

PAPERS = """@article{zhang2023cmlmcse,
  title  = {CMLM-CSE: Based on Conditional MLM Contrastive Learning for Sentence Embeddings},
  author = {Zhang, Wei and Chen, Xu},
  year   = {2023}
}
@inproceedings{gao2021simcse,
  title     = {{SimCSE}: Simple Contrastive Learning of Sentence Embeddings},
  author    = {Gao, Tianyu and Yao, Xingcheng and Chen, Danqi},
  booktitle = {EMNLP},
  year      = {2021}
}"""

TAGS = ["sentence-embeddings", "cmlmcse", "sentence-transformers", "feature-extraction"]

USAGE = """```python
from transformers import AutoModel, AutoTokenizer

model = AutoModel.from_pretrained({source}, trust_remote_code=True)
tokenizer = AutoTokenizer.from_pretrained({source})
embeddings = model.encode(["A sentence.", "Another one."], tokenizer=tokenizer)
```

With sentence-transformers, without any code of this repository:

"""

USAGE_WITHOUT_CODE = """```python
from sentence_transformers import SentenceTransformer

embeddings = SentenceTransformer({source}).encode(["A sentence.", "Another one."])
```"""


def usage(source: str | None = None, revision: str | None = None, trust_free: bool = False) -> str:
    """How to load an export, in code.

    Args:
        source: its repository.
        revision: the branch, tag or commit to load.
        trust_free: there is no code in it.
    """
    pinned = f', revision="{revision}"' if revision else ""
    where = f'"{source}"{pinned}' if source else "FOLDER_OR_REPO"
    return ("" if trust_free else USAGE).format(source=where) + USAGE_WITHOUT_CODE.format(source=where)


def eval_results(results: dict[str, Any]) -> list[EvalResult]:
    """Each measured STS set as an entry of the card's model-index."""
    return [
        EvalResult(
            task_type="sts",
            dataset_type=name,
            dataset_name=heading,
            metric_type="cosine_spearman",
            metric_name="Spearman × 100 of cosine similarities, setting all",
            metric_value=results["sts"][name]["all"],
        )
        for name, heading in STS_COLUMNS.items()
        if name in results.get("sts", {})
    ]


def public_name(source: str) -> str:
    """A model or text as a card may name it: of a path on somebody's machine, the last part alone."""
    return Path(source).name if source.startswith(("/", ".", "~")) else source


def bare_card(use: str = "") -> str:
    """README.md of a checkpoint that lies beside no records of its run; see :func:`model_card`."""
    data = ModelCardData(library_name="transformers", pipeline_tag="sentence-similarity", tags=TAGS)
    return f"---\n{data.to_yaml()}\n---\n\nA sentence encoder.\n\n## Use\n\n{use or usage()}\n"


def model_card(record: dict[str, Any], results: dict[str, Any], use: str = "") -> str:
    """README.md of an export.

    Args:
        record: content of run.json.
        results: content of results.json.
        use: how to load it (default: :func:`usage` of a folder with code).
    """
    fields = record["fields"]
    measured = eval_results(results)
    data = ModelCardData(
        library_name="transformers",
        pipeline_tag="sentence-similarity",
        tags=TAGS,
        model_name=record["recipe"],
        eval_results=measured or None,
    )
    method = {"info_nce": "SimCSE", "nt_xent": "CLEAR"}[fields["contrastive_loss"]]
    method = "CMLM-CSE" if fields["cmlm_weight"] > 0 else method
    labels = "without labels" if fields["positive_column"] is None else "on labelled pairs"
    lines = [
        f"---\n{data.to_yaml()}\n---",
        f"# {record['recipe']}",
        f"A sentence encoder trained {labels} by {method} from "
        f"`{public_name(fields['model_name_or_path'])}` on "
        f"`{public_name(fields['train_file'])}`.",
        f"## Use\n\n{use or usage()}",
        f"## Results\n\n{results_text(record, results)}",
        f"## Training\n\n{training_text(record)}",
        f"## Citation\n\n```bibtex\n{PAPERS}\n```",
    ]
    return "\n\n".join(lines) + "\n"


def results_text(record: dict[str, Any], results: dict[str, Any]) -> str:
    """The measured scores; or that there are none."""
    parts = []
    if "sts" in results:
        parts.append("Spearman × 100, setting all.\n\n" + format_table({record["recipe"]: results}))
    if "dev" in results:
        dev = results["dev"]
        role = "which chose the checkpoint" if record["fields"]["load_best_model_at_end"] else "which chose nothing"
        parts.append(
            f"Development set, {role}: {dev['set']}, {dev['pairs']} pairs, Spearman × 100 = {dev['spearman']:.2f}."
        )
    return "\n\n".join(parts) or "This run was not evaluated."


def training_text(record: dict[str, Any]) -> str:
    """Recipe, seed, time and hardware in words."""
    fields, hardware = record["fields"], record["hardware"]
    rows = {
        "λ of the conditional MLM loss": fields["cmlm_weight"],
        "mask rate": fields["mlm_probability"],
        "temperature": fields["temp"],
        "pooling": fields["pooling"],
        "steps": record["steps"],
        "seed": record["seed"],
        "training time": f"{record['train_seconds']} s on {hardware['device']}, {hardware['processes']} process(es)",
        "torch / transformers": f"{record['versions']['torch']} / {record['versions']['transformers']}",
    }
    return "\n".join(f"- {name}: {value}" for name, value in rows.items())
