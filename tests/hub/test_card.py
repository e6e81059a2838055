"""The model card: from the records alone, valid for the Hub, by a template of the user's own if there is one."""

import dataclasses
import inspect
import json
import re
import sys
from pathlib import Path

import pytest
import yaml
from huggingface_hub import ModelCard, parse_eval_result_entries

from cmlmcse.common.errors import InputError
from cmlmcse.evaluation.tasks import TASKS
from cmlmcse.hub import push
from cmlmcse.hub.adapted_card import adapted_card, few_questions
from cmlmcse.hub.card import Identity, bare_card, model_card, plots_of
from cmlmcse.hub.card_results import results_text
from cmlmcse.hub.eval_results import write_eval_results
from cmlmcse.hub.run_records import Record, card_metrics, read_records, with_public_names
from cmlmcse.hub.start import base_model, start_name, start_record, start_text
from cmlmcse.training.fields import DataArguments, ModelArguments
from modeling_cmlmcse.modeling_cmlmcse import AUXILIARY_OBJECTIVES
from support.records import ADAPTED, FIELDS, RECORD, RESULTS
from support.text import one_space
from support.tiny import tiny_tokenizer


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


def test_text_of_a_card(tmp_path):
    """Scores, training, limits, plots, licence; of a path the last part alone."""
    (tmp_path / "plots").mkdir()
    (tmp_path / "plots" / "dev_score.png").touch()
    card = model_card(RECORD, RESULTS, plots=plots_of(tmp_path), identity=Identity("apache-2.0", "en"))
    data = ModelCard(card).data
    assert (data.license, data.language) == ("apache-2.0", "en")
    for part in (
        "trained without labels by CMLM-CSE from `bert-base-uncased` on `wiki.txt`",
        "| cmlmcse-bert-base | 61.50 | – |",
        "| transfer MR | 76.50 |",
        "![The development score by step](plots/dev_score.png)\n\n## Training",
        "- precision: bf16",
        "which chose the checkpoint: STS-B dev, 1500 pairs, Spearman × 100 = 81.11",
        "- seed: 11",
        "sha256 `abc`",
        "cut to 32 tokens",
        "- start: `bert-base-uncased`, a pre-trained language model under the licence apache-2.0; its card",
        "- embedding: 768 dimensions, compared by cosine",
        "- longest text: 512 tokens",
        "- weight of CMLM-CSE's conditional masked-language modelling: 0.005",
        "- mask rate: 0.3",
        "print(model.similarity(embeddings, embeddings)) # cosines; rounded, they are:\n# [1.00 0.25]\n# [0.25 1.00]\n",
        "zhang2023cmlmcse",
    ):
        assert part in one_space(card), part
    assert "someone" not in card
    assert "No licence is named" not in card
    assert "- No licence is named: ask the author" in model_card(RECORD, RESULTS)
    assert "wu2022infocse" not in card
    assert "Not measured" not in card


def test_settings_that_were_used():
    """A card of SimCSE speaks of no mask rate. What was used is named: terms, teachers, templates, views."""
    simcse = model_card({**RECORD, "fields": {**FIELDS, "cmlm_weight": 0}}, RESULTS)
    assert not re.findall("^- (?:mask rate|weight of|views|augmentation)", simcse, re.MULTILINE)
    taught = {**FIELDS, "contrastive_loss": "off_dropout", "positive_ratio": 0.9, "distillation_weight": 0.5}
    card = model_card({**RECORD, "fields": {**taught, "teacher": "o/big, /home/someone/small"}}, RESULTS)
    assert "trained without labels, but for what its teacher has seen, by" in card
    assert "- weight of RankCSE's ranking distillation: 0.5\n" in card
    own = {"teacher": f"{FIELDS['model_name_or_path']},bm25"}  # which have seen the text, and what the start has seen
    assert "trained without labels by" in model_card({**RECORD, "fields": taught | own}, RESULTS)
    assert "- teachers: `o/big`, `small`\n" in card
    assert "- factor of the positive's cosine: 0.9\n" in card
    prompted = {**FIELDS, "cmlm_weight": 0, "pooling": "prompt", "prompt_template": "X means [MASK]"}
    card = model_card({**RECORD, "fields": prompted}, RESULTS)
    assert "by SimCSE with PromptBERT's templates from" in card
    assert "- template: `X means [MASK]`\n" in card
    assert "jiang2022promptbert" in card
    negated = {**prompted, "contrastive_loss": "extended_info_nce", "negative_prompt_template": "X is not [MASK]"}
    card = model_card({**RECORD, "fields": negated}, RESULTS)
    assert "by CoT-BERT with PromptBERT's templates and CoT-BERT's negated template from" in card
    assert "- template of a hard negative: `X is not [MASK]`\n" in card
    assert "zhang2024cotbert" in card
    mined = {"mined_negatives": 1, "mining_candidates": 10, "mining_margin": 0.1, "mining_model": "/home/someone/own"}
    elsewhere = with_public_names({"fields": {**mined, "mining_model": "someone/own", "teacher": "someone/own, a/b"},
                                   "local": ["someone/own"]})["fields"]  # fmt: skip
    assert (elsewhere["mining_model"], elsewhere["teacher"]) == ("own", "own,a/b")
    card = model_card({**RECORD, "fields": {**FIELDS, **mined}}, RESULTS)
    assert "trained without labels, but for what its mining model has seen, by" in card
    assert "- mined hard negatives: 1 of the 10 nearest, margin 0.1, by `own`\n" in card
    changed = {**FIELDS, "augmentation": "reorder", "views": "crops"}
    assert "- views: crops\n- augmentation: reorder\n" in model_card({**RECORD, "fields": changed}, RESULTS)
    pieces = model_card({**RECORD, "fields": {**changed, "cmlm_weight": 0}}, RESULTS)
    assert "by SimCSE's loss on two views of each document from" in pieces


@pytest.mark.parametrize("name", AUXILIARY_OBJECTIVES)
def test_settings_of_an_objective(name) -> None:
    """The fields that a card shows are fields, and all that the objective's file reads of the configuration."""
    objective = AUXILIARY_OBJECTIVES[name]
    fields = {one.name: one.default for group in (ModelArguments, DataArguments) for one in dataclasses.fields(group)}
    shown = objective.settings(fields)
    source = inspect.getsource(sys.modules[objective.__module__])
    assert set(shown) <= fields.keys()
    assert set(re.findall(r"\bconfig\.(\w+)", source)) & fields.keys() - {"pooling"} <= set(shown)
    used = {**FIELDS, "cmlm_weight": 0, **{one: fields[one] for one in shown}, f"{name}_weight": 0.25}
    card = model_card({**RECORD, "fields": used}, RESULTS)
    assert f"- weight of {objective.title}: 0.25" in card
    assert ("- mask rate: " in card) == ("mlm_probability" in shown)
    assert all(f"`{one}`" in card for one in shown if one != "mlm_probability" and fields[one] is not None)


def test_without_a_contrast() -> None:
    """Its name is no paper's, and neither temperature, head nor SimCSE's paper are shown."""
    alone = {"cmlm_weight": 0, "contrastive_weight": 0, "retromae_weight": 1.0, "projection": "none"}
    card = model_card({**RECORD, "fields": {**FIELDS, **alone}}, RESULTS)
    assert "without labels by RetroMAE's enhanced decoding, without a contrastive loss, from" in card
    assert not re.search("^- (temperature|training head|weight of the contrastive)", card, re.MULTILINE)
    assert "xiao2022retromae" in card
    assert "gao2021simcse" not in card


def test_random_weights() -> None:
    """They are no finetuned model, and inherit nothing."""
    card = model_card({**RECORD, "fields": {**FIELDS, "from_scratch": True}}, RESULTS)
    assert "from random weights, in the shape of `bert-base-uncased`, on" in card
    assert "- start: random weights, with the configuration and the tokenizer of `bert-base-uncased`\n" in card
    assert "learned before" not in card
    assert ModelCard(card).data.base_model is None


def test_text_of_the_hub() -> None:
    """A Hub data set is named whole, in the metadata too; a file by its name alone."""
    data = {"train_data": {"dataset": "owner/text"}, "fields": {**FIELDS, "train_file": "owner/text"}}
    card = model_card({**RECORD, **data}, RESULTS)
    assert "on `owner/text`." in card
    assert ModelCard(card).data.datasets == ["owner/text"]
    assert ModelCard(model_card(RECORD, RESULTS)).data.datasets is None


def test_change_of_the_development_score() -> None:
    """With its interval, and a word where that holds zero."""
    dev = {**RESULTS["dev"], "before": 81.0, "interval": [-0.25, 0.5]}
    card = model_card(RECORD, {**RESULTS, "dev": dev})
    assert "(81.00 before training). 95 % interval of the change: -0.25 to +0.50. So it may be chance." in card
    assert "chance" not in model_card(RECORD, {**RESULTS, "dev": {**dev, "interval": [0.25, 0.5]}})


@pytest.mark.parametrize(("names", "expected"), [
    (["snli", "nq"], "which may hold labels: snli, nq"),
    (list("abcdefg"), "which may hold labels: a, b, c, d, e and 2 more"),
])  # fmt: skip
def test_what_the_start_had_seen(names, expected, tmp_path):
    """From the start's own card and its pooling, read where it lies; a folder without a card says nothing."""
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    bare = {"finished": False, "datasets": [], "license": None, "card": False, "local": True}
    assert start_record(str(tmp_path)) == bare
    assert "no card of it was at hand, so it may have seen labels" in start_text(str(tmp_path), bare)
    sets = "".join(f"- {name}\n" for name in names)
    (tmp_path / "README.md").write_text(f"---\nlicense: mit\ndatasets:\n{sets}---\n# A model\n")
    found = start_record(str(tmp_path))
    assert (found["license"], found["datasets"]) == ("mit", names)
    assert start_text("m", {**found, "finished": True}) == (
        f"`m`, a finished sentence encoder under the licence mit; its card names as training data, {expected}"
    )
    (tmp_path / "modules.json").write_text('[{"type": "sentence_transformers.models.Dense", "path": "2_Dense"}]')
    assert start_record(str(tmp_path))["finished"]  # also where this project could not load it


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"cmlm_weight": 0}, "by SimCSE from"),
        ({"cmlm_weight": 0, "contrastive_loss": "nt_xent"}, "by CLEAR from"),
        ({"fusion_init": "pretrained"}, "by InfoCSE from"),
        ({"cmlm_weight": 0, "rtd_weight": 0.005}, "by DiffCSE from"),
        ({"rtd_weight": 0.005}, "by CMLM-CSE with DiffCSE's replaced-token detection from"),
        ({"cmlm_weight": 0, "mlm_weight": 0.1}, "by SimCSE with masked-language modelling on the encoder from"),
        (
            {"cmlm_weight": 0, "contrastive_loss": "off_dropout", "dimension_weight": 0.1},
            "by SimCSE++ with SimCSE++'s contrast of dimensions from",
        ),
        (
            {"consistency_weight": 1, "distillation_weight": 1},
            "by CMLM-CSE with RankCSE's ranking consistency and RankCSE's ranking distillation from",
        ),
        (
            {"distillation_weight": 1, "distillation_loss": "mse"},
            "by CMLM-CSE with regression on a teacher's cosines from",
        ),
        ({"contrastive_loss": "off_dropout"}, "by CMLM-CSE with SimCSE++'s contrastive loss from"),
        ({"positive_column": "entailment"}, "on labelled pairs by CMLM-CSE from"),
        ({"contrastive_loss": "cosent", "cmlm_weight": 0, "positive_column": "b"}, "on labelled pairs by CoSENT from"),
    ],
)
def test_method(fields, expected):
    assert expected in model_card({**RECORD, "fields": {**FIELDS, **fields}}, RESULTS)


@pytest.mark.parametrize(("source", "base"), [
    ("sentence-transformers/all-MiniLM-L6-v2", "sentence-transformers/all-MiniLM-L6-v2"), ("models/mine", None),
    ("models/gone/export", None), ("./mine", None), ("package:mini/model", None),
])  # fmt: skip
def test_a_folder_is_no_base_model(source, base, tmp_path, monkeypatch):
    """Only a Hub name is one: `models/mine` is a folder here."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "models/mine").mkdir(parents=True)
    assert base_model(source, None) == base
    assert base_model("models/gone", {"local": True}) is None  # where the model was, if it is not here
    assert start_name("models/gone", {"local": True}) == "gone"


def test_backends_that_lose_a_pooling():
    """ONNX and OpenVINO have the last layer alone (tests/compat/test_backends.py), and the card says so."""
    assert 'backend="onnx"' in model_card(RECORD, RESULTS)
    averages = model_card({**RECORD, "fields": {**FIELDS, "pooling": "avg_first_last"}}, RESULTS)
    assert 'backend="onnx"' not in averages
    assert "Do not use the ONNX" in averages


def test_sections_that_are_empty():
    """A card has the sections that somebody can fill, and no empty heading."""
    assert re.findall("^#+ .*", bare_card(), re.MULTILINE) == ["## Use"]
    assert re.findall("^#+ .*", bare_card(name="ours"), re.MULTILINE) == ["# ours", "## Use"]
    sections = re.findall("^#+ [^[].*", model_card(RECORD, RESULTS), re.MULTILINE)
    assert sections == ["# cmlmcse-bert-base", "## Use", "## Results", "## Training", "## Limits", "## Citation"]


def test_search_in_a_card() -> None:
    """A row for each collection, with a dash for what was not measured, and the average if there is one."""
    found = {"queries": 2, "passages": 9, "ndcg@10": 12.3456, "recall@100": 50.0}
    both = {**found, "bm25": {"ndcg@10": 20.0}, "hybrid": {"ndcg@10": 21.0}}
    text = results_text(
        "m", Record({}, "run"), Record({"retrieval": {"one": found, "two": both, "avg": 12.35}}, "results")
    )
    rows = [re.split(r" *\| *", line)[1:-1] for line in text.splitlines() if line.startswith("|")]
    assert rows[2] == ["one", "2", "9", "12.35", "50.00", "–", "–"]
    assert rows[3] == ["two", "2", "9", "12.35", "50.00", "20.00", "21.00"]
    assert rows[4][:4] == ["average", "", "", "12.35"]
    assert "Measure" not in text


def test_card_without_results():
    """It says so, and its metadata have no model-index."""
    card = model_card(RECORD, {"model": "x"})
    assert "This run was not evaluated." in card
    assert ModelCard(card).data.eval_results is None
    tasks = [name for name in TASKS if name != "pairs"]  # the user's own, which nobody misses
    assert f"Not measured, of the tasks of `cmlmcse evaluate`: {', '.join(tasks)}." in card


@pytest.mark.parametrize("absent", ["recipe", "fields", "steps", "seed", "hardware", "versions", "train_seconds"])
def test_a_record_that_lacks_an_entry(absent):
    record = {name: value for name, value in RECORD.items() if name != absent}
    with pytest.raises(InputError, match=f"run.json: expected the entry '{absent}'"):
        model_card(record, RESULTS)


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("{{ card_data }} {{ autor }}", "'autor' is undefined"),
        ("{% if %}", "expected a template"),
        ("{{ use.__class__.__mro__ }}", "is unsafe"),
        ("---\n- {{ name }}\n---\n", "expected metadata, found .*a dict"),
        ("---\nlicense: [\n---\n", "expected metadata, found "),
        (None, "expected a text file"),
    ],
)
def test_wrong_template(template, expected, tmp_path):
    """A field that is not known, a syntax error, a way out of the template, a head that is no metadata, a file that is
    not there."""
    file = tmp_path / "card.md"
    if template is not None:
        file.write_text(template)
    with pytest.raises(InputError, match=expected):
        model_card(RECORD, RESULTS, template=file)


def test_a_recipe_cannot_write_metadata():
    """Names out of a record are text, in the head as below it."""
    record = {**RECORD, "recipe": "x\nlicense: mit\n---\n{{ use }}{% for a in b %}"}
    card = model_card(record, RESULTS)
    assert ModelCard(card).data.license is None
    assert "{{ use }}{% for a in b %}" in card


def test_published_with_a_card_of_ones_own(backbone_folders, monkeypatch, tmp_path):
    """`--card_template`, `--license` and `--language`; the run's plots lie beside the card."""
    from modeling_cmlmcse import CMLMCSEForSentenceEmbedding

    run = tmp_path / "run"
    checkpoint = run / "checkpoint-1"
    CMLMCSEForSentenceEmbedding.from_backbone(backbone_folders["bert"]).save_pretrained(checkpoint)
    tiny_tokenizer("bert").save_pretrained(checkpoint)
    (run / "plots").mkdir()
    (run / "plots" / "loss.png").write_bytes(b"png")
    (run / "run.json").write_text(json.dumps(RECORD))
    (run / "results.json").write_text(json.dumps(RESULTS))
    template = tmp_path / "own.md"
    template.write_text(
        "---\n{{ card_data }}\n---\n# Ours: {{ name }}\n{% for plot in plots %}{{ plot.file }}{% endfor %}\n"
    )
    out = tmp_path / "out"
    options = [
        "--export_only",
        "--output_dir",
        out,
        "--card_template",
        template,
        "--license",
        "mit",
        "--language",
        "en",
    ]
    monkeypatch.setattr("cmlmcse.hub.export.verify", lambda *_: {"AutoModel": 0.0})  # tests/hub/test_push_to_hub.py
    monkeypatch.setattr(sys, "argv", ["push_to_hub.py", str(checkpoint), *map(str, options)])
    push.main()
    card = (out / "README.md").read_text()
    assert card.endswith("# Ours: cmlmcse-bert-base\nplots/loss.png")
    assert ModelCard(card).data.license == "mit"
    assert (out / "plots" / "loss.png").read_bytes() == b"png"


def test_card_of_adapt(tmp_path) -> None:
    """The scores without labels and with them, in the metadata too; the picture; the start as base model, and a
    sentence where the start was kept."""
    (tmp_path / "plots").mkdir()
    (tmp_path / "plots" / "curves.png").touch()
    card = adapted_card(ADAPTED, plots=plots_of(tmp_path), identity=Identity("mit"))
    assert "that was tried, by step](plots/curves.png)" in card
    (found,) = ModelCard(card).data.eval_results
    assert (found.dataset_name, found.metric_type, found.metric_value) == ("own", "ndcg_at_10", 32.5)
    assert "No licence is named" not in card
    assert "base_model: owner/start" in card
    assert "- method: SimCSE's loss on two views of each document\n- views: crops\n- temperature: 0.05\n" in card
    settings = {
        "contrastive_weight": 0,
        "distillation_weight": 1.0,
        "teacher": "owner/start,bm25",
        "teacher_share": 0.5,
    }
    adapt = {**ADAPTED["adapt"], "settings": {**ADAPTED["adapt"]["settings"], **settings}}
    taught = adapted_card({**ADAPTED, "adapt": adapt})
    assert "- method: RankCSE's ranking distillation, without a contrastive loss\n" in taught
    assert "1.0 (`teacher_share` 0.5)\n- teachers: `owner/start`, `bm25`\n" in taught
    assert "- temperature" not in taught
    assert "Join them so before you encode" in card
    assert "Join them" not in adapted_card({**ADAPTED, "text": {**ADAPTED["text"], "titles": 0}})
    assert "60.00 after, 50.00 before: +10.00 (95 % interval +5.00 to +15.00)" in card
    head = "| data | before | after | 95 % interval of the change | BM25 | after, with BM25 (0.3) |"
    assert head in one_space(card)
    assert "| own, nDCG@10 × 100 | 30.00 | 32.50 | – | 40.00 | 45.00 |" in one_space(card)  # an older record
    differences = {"ndcg@10": {"own": {"difference": 2.5, "low": -0.5, "high": 5.25}}}
    labelled = {"retrieval": {**ADAPTED["labelled"]["retrieval"], "differences": differences}}
    card = adapted_card({**ADAPTED, "labelled": labelled})
    assert "| own, nDCG@10 × 100 | 30.00 | 32.50 | -0.50 to +5.25 | 40.00 | 45.00 |" in one_space(card)
    worse = {"chosen": "start", "after": 50.0, "best_candidate": 51.0, "interval": [-1.0, 3.0]}
    kept = adapted_card({**ADAPTED, "adapt": {**ADAPTED["adapt"], **worse}})
    assert "`owner/start`, kept as it was" in kept
    assert "51.00 with the best setting, 50.00 before: +1.00 (95 % interval -1.00 to +3.00)" in kept
    assert "base_model_relation" not in kept
    start = {"finished": True, "datasets": [], "license": "cc-by-sa-3.0"}  # unchanged weights keep their licence
    kept_too = adapted_card({**ADAPTED, "start": start, "adapt": {**ADAPTED["adapt"], **worse}})
    assert ModelCard(kept_too).data.license == "cc-by-sa-3.0"
    assert "No licence is named" not in kept_too
    assert "No licence is named" in adapted_card({**ADAPTED, "start": start})
    assert "Nothing was better than the start beyond chance. So these are the start's weights." in kept
    little = {**worse, "best_candidate": 50.7, "interval": [0.2, 1.2], "least_gain": 0.015}
    kept = adapted_card({**ADAPTED, "adapt": {**ADAPTED["adapt"], **little}})
    assert "better by less than 1.5% of the score. That is more than chance, but too little to expect it in" in kept
    with pytest.raises(InputError, match=r"results.json: expected the entry 'adapt'"):
        adapted_card({})


@pytest.mark.parametrize(
    ("learned", "said", "not_said"),
    [
        ({"finished_encoder": False}, "has little to lose", "found clearly less than BM25"),
        ({"finished_encoder": True}, "cannot find the best step: where labels existed, its rank correlation", "0.94"),
        ({"finished_encoder": False, "weak_encoder": True}, "found clearly less than BM25, so it learned", "did not"),
        ({"finished_encoder": True}, "did not train on the questions of this score", "has little to lose"),
        ({}, "Your users' queries", "in any case"),  # of an older version
    ],
)
def test_card_of_adapt_says_what_practice_does(learned, said, not_said) -> None:
    """As the report does."""
    card = adapted_card({**ADAPTED, "adapt": {**ADAPTED["adapt"], **learned}})
    limits = card.partition("## Limits")[2]
    assert said in limits
    assert not_said not in limits
    assert ("gets better at them in any case" in limits) is bool(learned)


@pytest.mark.parametrize(
    ("confirm", "candidates", "said"),
    [
        (99, 1000, "Only 99 documents confirm this score, so its interval is rough. More documents help."),
        (100, 999, "Only 999 passages are searched for it, so its questions are easy. More documents help."),
        (100, 1000, ""),
    ],
)
def test_few_documents_are_said(confirm, candidates, said) -> None:
    """An interval of a few documents looks like any other. The card tells them apart, as the report does."""
    found = {**ADAPTED["adapt"], "documents": {"choose": 99, "confirm": confirm}, "candidates": candidates}
    assert few_questions(found) == said
    assert said in adapted_card({**ADAPTED, "adapt": found})


def test_records_of_the_folder_that_one_is_in(tmp_path, monkeypatch):
    """`.` is the export of its run as the whole path is."""
    (tmp_path / "export").mkdir()
    (tmp_path / "run.json").write_text(json.dumps(RECORD))
    (tmp_path / "results.json").write_text(json.dumps(RESULTS))
    monkeypatch.chdir(tmp_path / "export")
    found = read_records(Path("."))
    assert found == read_records(tmp_path / "export")
    assert "sts" in found.results
