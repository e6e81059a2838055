"""The model card of an encoder that adapt handed back."""

import pytest
from huggingface_hub import ModelCard

from cmlmcse.common.errors import InputError
from cmlmcse.hub.adapted_card import adapted_card, few_questions
from cmlmcse.hub.card import Identity, plots_of
from support.records import ADAPTED
from support.text import one_space


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
        ({"finished_encoder": False}, "has little to lose", "did not train on"),
        ({"finished_encoder": True}, "cannot find the best step: where labels existed, its rank correlation", "0.94"),
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
