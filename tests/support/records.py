"""The records of a run, as the card reads them."""

FIELDS = {
    "contrastive_loss": "info_nce",
    "cmlm_weight": 0.005,
    "positive_column": None,
    "temp": 0.05,
    "model_name_or_path": "bert-base-uncased",
    "train_file": "/home/someone/wiki.txt",
    "pooling": "cls_before_pooler",
    "mlm_probability": 0.3,
    "load_best_model_at_end": True,
    "max_seq_length": 32,
}
RECORD = {
    "recipe": "cmlmcse-bert-base",
    "fields": FIELDS,
    "hardware": {"device": "CPU", "processes": 1, "precision": "bf16"},
    "steps": 5,
    "seed": 11,
    "train_seconds": 1.0,
    "versions": {"torch": "2", "transformers": "5"},
    "train_data": {"file": "wiki.txt", "bytes": 3, "sha256": "abc"},
    "start": {"finished": False, "datasets": [], "license": "apache-2.0"},
    "encoder": {"dimension": 768, "max_tokens": 512},
    "example": {"sentences": ["One.", "Two."], "cosines": [[1.0, 0.25], [0.25, 1.0]]},
}
RESULTS = {
    "model": "cmlmcse-bert-base",
    "dev": {"set": "STS-B dev", "spearman": 81.1111, "pairs": 1500},
    "sts": {"STS12": {"all": 61.5, "mean": 60.0, "wmean": 60.1, "pairs": 3108, "subsets": {}}},
    "stsb_dev": {"spearman": 62.5, "pearson": 63.0, "pairs": 1500},
    "pairs": {"mine": {"spearman": 64.25, "pearson": 60.0, "pairs": 9}},
    "lee50": {"spearman": 63.5, "pearson": 1.0, "pairs": 1225},
    "geometry": {"alignment": 0.25, "uniformity": -2.5, "anisotropy": 0.125, "effective_rank": 7.5, "spectrum": [1.0]},
    "retrieval": {"scifact": {"ndcg@10": 64.5, "recall@100": 90.5, "queries": 300, "passages": 5183}, "avg": 64.5},
    "indomain": {"r@1": 70.5, "r@5": 90.25, "r@10": None, "queries": 97, "sentences": 2551},
    "transfer": {"MR": 76.5, "MRPC": 71.5, "f1": {"MRPC": 80.5}},
    "glue": {"CoLA": 12.5, "details": {"CoLA": {"trained_on": 9}}},
}

ADAPTED = {  # results.json of adapt
    "model": "owner/start",
    "seconds": 60.0,
    "precision": "fp32",
    "text": {"documents": 150, "titles": 120, "held_out": 30, "training_tokens": 64, "note": ""},
    "adapt": {
        "title": "a title finds a passage of its text",
        "candidates": 200,
        "documents": {"choose": 15, "confirm": 15},
        "before": 50.0,
        "after": 60.0,
        "best_candidate": 60.0,
        "interval": [5.0, 15.0],
        "bm25": 70.0,
        "chosen": "crops, rate 3e-05",
        "settings": {**FIELDS, "cmlm_weight": 0, "views": "crops", "pooling": "avg", "projection": "none"},
        "arms": {"crops, rate 3e-05": {"tokens": 1000}},
    },
    "labelled": {
        "retrieval": {
            side: {"retrieval": {"own": {"ndcg@10": score, "bm25": {"ndcg@10": 40.0}, "hybrid": {"ndcg@10": 45.0}}}}
            for side, score in (("before", 30.0), ("after", 32.5))
        }
    },
}
