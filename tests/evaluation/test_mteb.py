"""mteb's own task classes score an exported folder as our evaluation does; nothing is fetched."""

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cmlmcse.evaluation.beir_data import load_retrieval
from cmlmcse.evaluation.benchmarks import BENCHMARKS
from cmlmcse.evaluation.retrieval import retrieval
from cmlmcse.evaluation.sts import sts, sts_card_metrics
from cmlmcse.evaluation.sts_data import Pairs
from cmlmcse.hub.export import export
from cmlmcse.models.encoders import load_encoder
from modeling_cmlmcse import CMLMCSEForSentenceEmbedding
from support.tiny import WORDS, tiny_tokenizer

pytestmark = [
    pytest.mark.skipif(find_spec("mteb") is None, reason="needs the extra dev"),  # its import takes 3 seconds
    pytest.mark.filterwarnings("ignore:The `get_sentence_embedding_dimension`:FutureWarning"),  # mteb's call
]
HUB_STS = {f"STS{year}": f"sts{year}-sts" for year in range(12, 17)} | {"STSBenchmark": "stsbenchmark-sts"}
FIELDS = {  # of the metadata, those without a default
    "description": "Data of this test.",
    "dataset": {"path": "local", "revision": "1"},
    "eval_langs": ["eng-Latn"],
    "category": "t2t",
}
THEIRS = {  # our name of a measure → mteb's
    **{name: name.replace("@", "_at_") for name in ("ndcg@10", "recall@10", "recall@100", "mrr@10")},
    "map": "map_at_100",
}


@pytest.fixture(params=("cls_before_pooler", "avg"))
def folder(request: pytest.FixtureRequest, backbone_folders: dict[str, str], tmp_path: Path) -> str:
    """A tiny exported folder."""
    model = CMLMCSEForSentenceEmbedding.from_backbone(backbone_folders["bert"], pooling=request.param)
    return str(export(model, tiny_tokenizer("bert"), tmp_path / "export"))


def sentences(count: int, seed: int) -> list[str]:
    """Sentences of 1 to 12 words."""
    rng = np.random.default_rng(seed)
    return [" ".join(rng.choice(WORDS, rng.integers(1, 13))) for _ in range(count)]


def mteb_scores(folder: str, task: Any) -> dict[str, float]:
    """What mteb says of the folder, loaded as a SentenceTransformer."""
    import mteb
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(folder, device="cpu")
    result = mteb.evaluate(model, task, cache=None, co2_tracker=False, show_progress_bar=False)
    (scores,) = result.task_results[0].scores["test"]
    return scores


def sts_task(pairs: Pairs) -> Any:
    """An STS task whose data are here instead of on the Hub."""
    from datasets import Dataset
    from mteb.abstasks import AbsTaskSTS
    from mteb.abstasks.task_metadata import TaskMetadata

    class LocalSTS(AbsTaskSTS):
        metadata = TaskMetadata(name="LocalSTS", type="STS", main_score="cosine_spearman", **FIELDS)

        def load_data(self, **kwargs: Any) -> None:
            rows = {"sentence1": pairs.first, "sentence2": pairs.second, "score": pairs.scores.tolist()}
            self.dataset = {"test": Dataset.from_dict(rows)}
            self.data_loaded = True

    return LocalSTS()


def retrieval_task(passages: list[dict], queries: list[dict], qrels: dict[str, dict[str, int]]) -> Any:
    """A retrieval task whose data are here instead of on the Hub."""
    from datasets import Dataset
    from mteb.abstasks import AbsTaskRetrieval
    from mteb.abstasks.retrieval_dataset_loaders import RetrievalSplitData
    from mteb.abstasks.task_metadata import TaskMetadata

    class LocalRetrieval(AbsTaskRetrieval):
        metadata = TaskMetadata(name="LocalRetrieval", type="Retrieval", main_score="ndcg_at_10", **FIELDS)
        ignore_identical_ids = True  # as BEIR

        def load_data(self, **kwargs: Any) -> None:
            tables = [Dataset.from_list([{"id": row["_id"], **row} for row in rows]) for rows in (passages, queries)]
            split = RetrievalSplitData(corpus=tables[0], queries=tables[1], relevant_docs=qrels, top_ranked=None)
            self.dataset = {"default": {"test": split}}
            self.data_loaded = True

    return LocalRetrieval()


def test_same_spearman(folder: str) -> None:
    """The same correlation there and here."""
    pairs = Pairs(np.random.default_rng(2).uniform(0, 5, 60), sentences(60, 0), sentences(60, 1))
    scores = mteb_scores(folder, sts_task(pairs))
    ours = sts(load_encoder(folder, device="cpu"), {"local": {"test": pairs}})["local"]["all"]
    assert 100 * scores["cosine_spearman"] == pytest.approx(ours, abs=1e-3)
    assert scores["main_score"] == scores["cosine_spearman"]


def test_same_retrieval(folder: str, tmp_path: Path) -> None:
    """The same nDCG, recall and MAP there and here, with titles, graded relevance, and a query that is a passage."""
    rng = np.random.default_rng(3)
    texts = sentences(300, 4)
    passages = [{"_id": f"d{i}", "title": texts[i] if i % 2 else "", "text": texts[i - 1]} for i in range(300)]
    queries = [{"_id": f"q{i}" if i else "d5", "text": text} for i, text in enumerate(sentences(25, 5))]
    judged = {query["_id"]: {f"d{row}": int(row) % 3 + 1 for row in rng.choice(300, 20)} for query in queries}
    place = tmp_path / "data" / "beir" / "local"
    (place / "qrels").mkdir(parents=True)
    for name, rows in (("corpus", passages), ("queries", queries)):
        (place / f"{name}.jsonl").write_text("\n".join(map(json.dumps, rows)))
    lines = [f"{query}\t{passage}\t{score}" for query, row in judged.items() for passage, score in row.items()]
    (place / "qrels" / "test.tsv").write_text("\n".join(["query-id\tcorpus-id\tscore", *lines]))
    ours = retrieval(load_encoder(folder, device="cpu"), load_retrieval(str(tmp_path / "data")), block_size=64)["local"]
    scores = mteb_scores(folder, retrieval_task(passages, queries, judged))
    for name, theirs in THEIRS.items():
        assert 100 * scores[theirs] == pytest.approx(ours[name], abs=1e-2), name


def test_benchmarks() -> None:
    """Datasets, names of tasks, main scores and sizes are those of mteb, so that `.eval_results` means what it says."""
    import mteb

    measured = sts_card_metrics({name: {"all": 1.0} for name in (*HUB_STS, "SICKRelatedness")})
    named = {one.benchmark for one in measured}
    assert named == {None, *((f"mteb/{hub}", name) for name, hub in HUB_STS.items())}  # SICK-R has other pairs there
    boards = {name: (f"mteb/{hub}", "cosine_spearman") for name, hub in HUB_STS.items()}
    boards |= {board.task: (board.dataset, "ndcg_at_10") for board in BENCHMARKS.values()}
    for task in mteb.get_tasks(tasks=list(boards)):
        metadata = task.metadata
        assert (metadata.dataset["path"], metadata.main_score) == boards[metadata.name]
        assert list(metadata.eval_splits) == ["test"]
    for board in BENCHMARKS.values():
        sizes = mteb.get_task(board.task).metadata.descriptive_stats["test"]
        assert (sizes["num_queries"], sizes["num_documents"]) == (board.queries, board.passages)
