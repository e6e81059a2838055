"""The scores of a model card: its model index, the files of leaderboards, and whose weights they are of."""

import json

import pytest
import yaml
from huggingface_hub import ModelCard, parse_eval_result_entries

from cmlmcse.evaluation.tasks import TASKS
from cmlmcse.hub.card import model_card
from cmlmcse.hub.eval_results import write_eval_results
from cmlmcse.hub.run_records import card_metrics, read_records
from support.records import FIELDS, RECORD, RESULTS


def test_model_index_holds_every_measured_task():
    """Each task's numbers, and nothing else: read back by the Hub's own client, which refuses metadata that are wrong;
    what is None is left out."""
    assert set(TASKS) <= set(RESULTS)
    found = ModelCard(model_card(RECORD, RESULTS)).data
    assert found.model_name == "cmlmcse-bert-base"
    assert (found.base_model, found["base_model_relation"]) == ("bert-base-uncased", "finetune")
    entries = {(one.dataset_name, one.metric_type): one for one in found.eval_results}
    assert {key: one.metric_value for key, one in entries.items()} == {
        ("STS12", "cosine_spearman"): 61.5,
        ("STS-B dev", "cosine_spearman"): 62.5,
        ("mine", "cosine_spearman"): 64.25,
        ("Lee et al. 2005", "cosine_spearman"): 63.5,
        ("STS-B dev", "alignment"): 0.25,
        ("STS-B dev", "uniformity"): -2.5,
        ("STS-B dev", "anisotropy"): 0.125,
        ("STS-B dev", "effective_rank"): 7.5,
        ("scifact", "ndcg_at_10"): 64.5,
        ("scifact", "recall_at_100"): 90.5,
        ("paraphrases within STS-B test", "recall_at_1"): 70.5,
        ("paraphrases within STS-B test", "recall_at_5"): 90.25,
        ("MR", "accuracy"): 76.5,
        ("MRPC", "accuracy"): 71.5,
        ("GLUE CoLA", "glue_score"): 12.5,
    }
    assert entries["STS-B dev", "cosine_spearman"].dataset_split == "validation"
    assert entries["GLUE CoLA", "glue_score"].dataset_config == "cola"
    assert all(one.dataset_type and one.task_type for one in found.eval_results)


def test_files_of_leaderboards(tmp_path):
    """One for each benchmark whose main score was measured on its own data: STS12, and SciFact by its sizes. SICK-R and
    the development set are no benchmarks of the Hub."""
    sick = {"all": 70.0, "mean": 70.0, "wmean": 70.0, "pairs": 4927, "subsets": {}}
    results = {**RESULTS, "sts": {**RESULTS["sts"], "SICKRelatedness": sick}}
    write_eval_results(card_metrics(results), tmp_path)
    found = {}
    for file in (tmp_path / ".eval_results").iterdir():
        (entry,) = parse_eval_result_entries(yaml.safe_load(file.read_text()))
        found[file.name] = (entry.dataset_id, entry.task_id, entry.value)
    assert found == {
        "STS12.yaml": ("mteb/sts12-sts", "STS12", 61.5),
        "SciFact.yaml": ("mteb/scifact", "SciFact", 64.5),
    }
    smaller = {**RESULTS["retrieval"]["scifact"], "passages": 5182}
    write_eval_results(card_metrics({"retrieval": {"scifact": smaller}}), tmp_path / "none")
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize(
    ("checkpoint", "best", "loads_best", "whole"),
    [
        ("checkpoint-3", "checkpoint-3", True, True),
        ("checkpoint-5", "checkpoint-3", True, False),
        ("checkpoint-5", "checkpoint-3", False, True),  # the last weights were exported
        ("checkpoint-5", None, True, True),  # there was no development set
        ("export", "checkpoint-3", True, True),
    ],
)
def test_scores_of_other_weights(checkpoint, best, loads_best, whole, tmp_path):
    """A run's scores are those of the checkpoint that it exported. Another one's card has none, and says so."""
    record = {**RECORD, "best_checkpoint": best, "fields": {**FIELDS, "load_best_model_at_end": loads_best}}
    (tmp_path / "run.json").write_text(json.dumps(record))
    (tmp_path / "results.json").write_text(json.dumps(RESULTS))
    run, results = read_records(tmp_path / checkpoint)
    card = model_card(run, results)
    assert ("62.50" in card) == ("model-index" in card) == ("model.similarity" in card) == whole
    assert ("are those of its `checkpoint-3`" in card) != whole
    earlier = whole and loads_best and best is not None
    assert ("- steps: 5; these weights are those of `checkpoint-3`\n" in card) == earlier
    assert ("- steps: 5\n" in card) != earlier


def test_change_of_the_development_score() -> None:
    """With its interval, and a word where that holds zero."""
    dev = {**RESULTS["dev"], "before": 81.0, "interval": [-0.25, 0.5]}
    card = model_card(RECORD, {**RESULTS, "dev": dev})
    assert "(81.00 before training). 95 % interval of the change: -0.25 to +0.50. So it may be chance." in card
    assert "chance" not in model_card(RECORD, {**RESULTS, "dev": {**dev, "interval": [0.25, 0.5]}})
