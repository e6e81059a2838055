"""The text of the model card of a training run: from the records alone, and valid for the Hub."""

import dataclasses
import inspect
import re
import sys

import pytest
from huggingface_hub import ModelCard

from cmlmcse.hub.card import Identity, bare_card, model_card, plots_of
from cmlmcse.hub.card_results import results_text
from cmlmcse.hub.run_records import Record, with_public_names
from cmlmcse.hub.start import base_model, start_name, start_record, start_text
from cmlmcse.training.fields import DataArguments, ModelArguments
from modeling_cmlmcse.modeling_cmlmcse import AUXILIARY_OBJECTIVES
from support.records import FIELDS, RECORD, RESULTS
from support.text import one_space


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
    changed = {**RECORD, "git_commit": "abc", "uncommitted_changes": True}
    assert "- commit of the training code: abc, with uncommitted changes\n" in model_card(changed, RESULTS)


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
