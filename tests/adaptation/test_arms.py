"""The arms of adapt."""

import pytest

from cmlmcse.adaptation.arms import default_arms, last_arm
from cmlmcse.common.names import split_names
from cmlmcse.evaluation.bm25 import WEIGHT
from cmlmcse.training.searches import LEXICAL_SCALE


def test_arms():
    """Titles give arms of their own; what the user sets holds in all arms, and equal arms run once."""
    names = list(default_arms("start", True, False, {}))
    lines = default_arms("start", False, True, {}, sentences=True)
    assert {name: arm["mined_negatives"] for name, arm in lines.items()} == {
        "dropout, rate 3e-05": 1, "dropout, rate 0.0001": 1}  # fmt: skip
    assert all(
        "mined_negatives" not in arm for arm in default_arms("", False, True, {"mlm_weight": "1"}, True).values()
    )
    assert names[0] == "title_body, rate 0.0003"
    assert len(names) == len(default_arms("start", True, True, {})) == 5
    assert not any("title" in name for name in default_arms("start", False, True, {}))
    crops = default_arms("start", True, True, {"views": "crops"})
    assert set(crops) == {"crops, rate 3e-05", "crops, rate 0.0001"}
    assert all(fields["backbone_dropout"] == 0 for fields in crops.values())
    assert default_arms("start", True, True, {"backbone_dropout": "0.1"}).popitem()[1]["backbone_dropout"] == "0.1"
    first = [list(default_arms("start", titles, True, {}))[:3] for titles in (False, True)]
    assert first[0] == ["search, rate 3e-05", "search, rate 0.0001", "dropout, rate 3e-05"]
    assert first[1] == ["search, rate 3e-05", "title_body, rate 3e-05", "search, rate 0.0001"]
    search = default_arms("start", False, True, {})["search, rate 0.0001"]
    assert (search["teacher"], search["contrastive_weight"]) == ("start,bm25", 0)
    assert search["teacher_temp"] / search["distillation_temp"] == pytest.approx(search["teacher_share"])
    share = search["teacher_share"]  # of the model; the teachers together are what `search --bm25` ranks by
    assert LEXICAL_SCALE * (1 - share) / share == pytest.approx(WEIGHT)
    quoted = default_arms("a,b", False, True, {})["search, rate 0.0001"]["teacher"]
    assert split_names(quoted) == ["a,b", "bm25"]
    assert default_arms("start", False, True, {"teacher": "other"})["search, rate 3e-05"]["teacher"] == "other"
    for own in ("cmlm_weight", "mined_negatives"):  # the user's objective is that of all arms
        assert not any("search" in name for name in default_arms("start", True, True, {own: "1"}))
    wide = default_arms("start", True, True, {"per_device_train_batch_size": "128"})
    own = default_arms("start", True, True, {"max_queries": "500"})
    counts = [arms["search, rate 3e-05"].get("max_queries") for arms in (wide, own)]
    assert counts == [80 * 128, "500"]
    assert not any("max_queries" in arms["title_body, rate 3e-05"] for arms in (wide, own))
    plain = default_arms("start", True, False, {"views": "search"})["search, rate 0.0003"]
    assert (plain["teacher"], plain["teacher_temp"]) == ("bm25", search["teacher_temp"])
    alike = default_arms("start", False, True, {"views": "dropout"})  # which nothing else makes two views of
    assert all("backbone_dropout" not in fields for fields in alike.values())


def test_last_arm():
    """It starts from the encoder of a plain backbone's best arm, which is its teacher beside BM25, at the rate of a
    finished encoder of that size. Who chose the views or the objective gets no other."""
    fields = {}
    for small, rate in ((True, 1e-4), (False, 3e-5)):
        made = last_arm({"per_device_train_batch_size": "32"}, small)("title_body+words, rate 0.0003", "run/export")
        ((name, fields),) = made.items()
        assert name == f"title_body+words then search, rate {rate:g}"
        assert fields["learning_rate"] == rate
    assert (fields["model_name_or_path"], fields["teacher"]) == ("run/export", "run/export,bm25")
    assert (fields["views"], fields["max_queries"], fields["load_best_model_at_end"]) == ("search", 80 * 32, False)
    ((_, own),) = last_arm({"learning_rate": "5e-5"}, True)("words, rate 0.0003", "run/export").items()
    assert own["learning_rate"] == "5e-5"
    assert last_arm({"views": "crops"}, True) is None
    assert last_arm({"mlm_weight": "1"}, True) is None
