"""The settings that adapt tries, its arms, and which kinds of them it averages."""

from collections.abc import Callable
from typing import Any

from cmlmcse.common.names import join_names
from cmlmcse.data.searches import LEXICAL, SEARCH

ENCODER_RATES = (3e-5, 1e-4)  # a finished encoder moves little: a quick trial took 2e-5 to 3e-5
# A finished encoder with fewer parameters in its layers tries the larger rate first. The limit lies between the two
# encoders that were measured: all-MiniLM-L6-v2 has 10.6 million, assets/encoder-mini-en 4.7 million. On MED 60 steps of
# `search` took the small one from 58.7 to 65.6 at 1e-4, and to 63.0 at 3e-5 (docs/results/adapting.md).
SMALL = 8_000_000
BACKBONE_RATES = (3e-4, 1e-4)  # a plain backbone has far to go
# Kinds of arms whose weights are averaged, of a finished encoder. On the labels of CISI, SciFact and CACM the average
# gained 2.7 points, `search` alone 1.6 and `title_body` alone 1.4 (docs/results/adapting-history.md).
AVERAGED = ("title_body", SEARCH)
DOCUMENT_VIEWS = {"backbone_dropout": 0.0}  # their texts differ by themselves (MED, docs/results/adapting-history.md)
# The start and BM25 search the documents together, and the arm learns what they find. With this share it is the cosine
# and 0.3 of BM25 (evaluation/bm25.py says why; training/searches.py scales BM25 by 0.05).
START_SHARE = 1 / 7
# Batches of queries of that arm, of a finished encoder: on one process its 80 steps read no more. Four of each document
# are three times as many on SciFact, and the teacher encodes all that there are, once for each split of the text.
SEARCHES, BATCH = 80, 64
SEARCHING: dict[str, Any] = {"contrastive_weight": 0.0, "distillation_weight": 1.0, "distillation_loss": "list_net",
                             "distillation_temp": 0.05}  # fmt: skip
# Of single sentences: the one option that was better than SimCSE from all-MiniLM-L6-v2 (docs/results/frontier.md)
MINED: dict[str, Any] = {"mined_negatives": 1}
# Who sets one of these, or a weight, wants that objective; the arm that searches has its own.
OBJECTIVE = {"contrastive_loss", "mined_negatives", "negative_prompt_template", "matryoshka_dims"}

Arms = dict[str, dict[str, Any]]
LastArm = Callable[[str, str], Arms]


def default_arms(
    model: str, titles: bool, finished: bool, given: dict[str, Any], sentences: bool = False, small: bool = False
) -> Arms:
    """The arms by name, each with the fields of its run.

    Args:
        model: the model that is adapted; a finished encoder is a teacher of the arm that searches.
        titles: whether enough documents have titles that are good queries.
        finished: whether the model is a finished encoder, and not a plain backbone.
        given: fields that the user set. They hold in every arm; arms that become equal are tried once.
        sentences: whether a finished encoder's documents are single sentences, which have no pieces to learn from.
        small: whether its layers have fewer than `SMALL` parameters.
    """
    batch = int(given.get("per_device_train_batch_size", BATCH))
    if sentences:
        views = ["dropout"]
    elif finished:  # `words`, alone or with `sentence`, lost on MED (docs/results/adapting-history.md)
        # first what has a teacher, so that its time is known
        views = [SEARCH] * (not own_objective(given)) + ["title_body"] * titles
    elif titles:
        views = ["title_body", "title_body+words"]
    else:
        views = ["words+sentence", "words"]
    # of single sentences no small encoder was measured
    rates = encoder_rates(small and not sentences) if finished else BACKBONE_RATES
    choices = [(name, rate) for rate in rates for name in views] + [("dropout", rates[0])]
    arms: Arms = {}
    for name, rate in choices:
        fields = {"views": name, "learning_rate": rate, **given}
        if fields["views"] != "dropout":
            fields = DOCUMENT_VIEWS | fields
        elif sentences and not own_objective(given):
            fields = MINED | fields
        if fields["views"] == SEARCH:
            fields = searching_fields(model, finished, batch) | fields
        else:
            fields.pop("max_queries", None)
        if fields not in arms.values():
            arms[f"{fields['views']}, rate {float(fields['learning_rate']):g}"] = fields
    return arms


def encoder_rates(small: bool) -> tuple[float, ...]:
    """The learning rates of a finished encoder, in the order in which they are tried.

    Args:
        small: whether its layers have fewer than `SMALL` parameters.
    """
    return ENCODER_RATES[::-1] if small else ENCODER_RATES


def last_arm(given: dict[str, Any], small: bool) -> LastArm | None:
    """What makes the last arm of a plain backbone: its best arm, which is an encoder by then, goes on with `search`.

    Args:
        given: fields that the user set.
        small: as in :func:`default_arms`.

    Returns:
        A function of the best arm's name and the folder of its encoder. None if the user chose the views or the
        objective.
    """
    if "views" in given or own_objective(given):
        return None

    def made_of(best: str, encoder: str) -> Arms:
        fields = DOCUMENT_VIEWS | {"views": SEARCH, "learning_rate": encoder_rates(small)[0], **given}
        batch = int(given.get("per_device_train_batch_size", BATCH))
        fields = searching_fields(encoder, True, batch) | fields
        # it keeps its last step: within a run of a finished encoder no score says which step is best
        fields |= {"model_name_or_path": encoder, "load_best_model_at_end": False}
        views, _, _ = best.partition(",")
        return {f"{views} then {SEARCH}, rate {float(fields['learning_rate']):g}": fields}

    return made_of


def own_objective(given: dict[str, Any]) -> bool:
    """Whether these fields, which the user set, ask for another objective than that of an arm."""
    return any(name.endswith("_weight") or name in OBJECTIVE for name in given)


def searching_fields(model: str, finished: bool, batch: int = BATCH) -> dict[str, Any]:
    """The fields of an arm that learns what its teachers find, in batches of `batch` queries: a finished encoder and
    BM25, or for a plain backbone BM25 alone."""
    temp = START_SHARE * SEARCHING["distillation_temp"]  # shares shrink the differences of the similarities
    if not finished:
        return SEARCHING | {"teacher": LEXICAL, "teacher_temp": temp}
    teachers = {"teacher": join_names([model, LEXICAL]), "teacher_share": START_SHARE, "teacher_temp": temp}
    return SEARCHING | teachers | {"max_queries": SEARCHES * batch}
