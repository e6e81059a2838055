"""The content of adapt's results.json."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from datasets import Dataset

from cmlmcse.common.errors import InputError
from cmlmcse.data.collection import letters
from cmlmcse.evaluation.compare import bootstrap_differences, query_differences, score_pairs
from cmlmcse.evaluation.encoding import EncodeOnce
from cmlmcse.evaluation.tasks import TASKS
from cmlmcse.models.encoders import Encoder

from .arms import Arms
from .choice import LEAST_GAIN, Change, Choice
from .files import EXPORT
from .runs import Trial
from .start import Start

LABELLED = {"retrieval": "beir", "stsb_dev": "sts/stsb"}  # task → its part of a data folder


def adapt_results(start: Start, choice: Choice, arms: Arms, trials: Mapping[str, Trial], model: str) -> dict[str, Any]:
    """What was tried, what was chosen, and the scores before and after.

    Args:
        start: the model that was adapted, with the text.
        choice: what the arms came to.
        arms: the fields of all arms.
        trials: their runs, those of the chosen arms among them.
        model: the model's name.
    """
    names, average, second, change, confirming = choice
    better, text = change.better, start.text
    encoders = choice.encoders if better else [start.once] * len(choice.encoders)
    chosen = " and ".join(names)
    if average.share < 1:
        chosen += f", averaged with the start ({average.share:.0%} of {'them' if len(names) > 1 else 'the arm'})"
    return {
        "model": model,
        "adapt": {
            **change_results(change),
            "after": round(change.after if better else change.before, 4),
            "chosen": chosen if better else "start",
            "chosen_arms": names if better else [],
            "share": average.share if better else 0.0,
            "finished_encoder": text.finished,
            "queries": confirming.queries,
            "candidates": confirming.passages,
            "shares": {f"{share:g}": round(score, 4) for share, score in average.scores.items()},
            "second_split": second and second.record,
            "averaged": names,
            "settings": settings_of(names, trials),
            "arms": {name: arm_results(arms[name], trial) for name, trial in trials.items()},
            "documents": {"choose": start.choosing.documents, "confirm": confirming.documents},
            "choose_before": round(start.choosing.summary(start.values), 4),
            "choose_title": start.choosing.title,
            "bm25": round(float(confirming.bm25().mean()), 4),
            "hybrid": round(float(confirming.hybrid(encoders).mean()), 4),
        },
        "text": text.record(),
    }


def settings_of(names: list[str], trials: Mapping[str, Trial]) -> dict[str, Any]:
    """The fields of the chosen runs by arm, and before them those of a run whose encoder one of them starts from."""
    chosen = {name: trials[name].record["fields"] for name in names}
    starts = {fields["model_name_or_path"] for fields in chosen.values()}
    before = {name: each.record["fields"] for name, each in trials.items() if str(each.folder / EXPORT) in starts}
    return before | chosen


def change_results(change: Change) -> dict[str, Any]:
    """The scores of the start and of the best that was tried."""
    return {
        "criterion": change.name,
        "title": change.title,
        "before": round(change.before, 4),
        "best_candidate": round(change.after, 4),
        "interval": [round(end, 4) for end in change.interval],
        "least_gain": LEAST_GAIN,
    }


def arm_results(fields: dict[str, Any], trial: Trial) -> dict[str, Any]:
    """What an arm was, what it cost, and its development scores by step."""
    scores = [[row["step"], row["eval_dev_score"]] for row in trial.record["log"] if "eval_dev_score" in row]
    return {
        "fields": fields,
        "steps": trial.record["steps"],
        "score": trial.score,
        "seconds": trial.record["train_seconds"],
        "tokens": trial.record["tokens"],
        "scores": scores,
    }


def load_labelled(data_dir: str) -> dict[str, Any]:
    """The labelled data of a folder, by task. They are loaded before training, so that a fault is reported at once.

    Raises:
        InputError: the folder has none, or a file is malformed.
    """
    return {name: TASKS[name].load(data_dir) for name in labelled_tasks(data_dir)}


def labelled_tasks(data_dir: str) -> list[str]:
    """The tasks that a folder has labelled data of.

    Raises:
        InputError: it has none.
    """
    found = [name for name, part in LABELLED.items() if (Path(data_dir) / part).is_dir()]
    if not found:
        raise InputError(
            f"data_dir must hold labelled data in {' or '.join(LABELLED.values())}, found neither in {data_dir}; check "
            "the path, or leave it out"
        )
    return found


def labelled_results(labelled: dict[str, Any], documents: Dataset, start: Encoder, best: Encoder) -> dict[str, Any]:
    """The scores of start and result on labelled data, which no choice has read, in fp32 as a user loads them.

    Args:
        labelled: from :func:`load_labelled`.
        documents: the text, columns "title" and "text". `queries_in_text` counts the queries that stand in it.
        start, best: the encoders.
    """
    found: dict[str, Any] = {}
    first, last = replace(start, bf16=False), replace(best, bf16=False)
    for name, data in labelled.items():
        sides = [EncodeOnce(first)] if best is start else [EncodeOnce(first), EncodeOnce(last)]
        scores, differences = compare_by_labels(name, data, sides)
        found[name] = {"before": scores[0], "after": scores[-1], **differences}
        if name == "retrieval":
            queries = {letters(query) for part in data.values() if part for query in part.queries.values()}
            found[name]["queries_in_text"] = len(queries.intersection(texts_of(documents)))
    return found


def compare_by_labels(name: str, data: Any, sides: list[EncodeOnce]) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """The results of one encoder or two in a task; of two also the entry `differences`, with the intervals."""
    task, found = TASKS[name], {}
    if task.by_query is not None:
        entries, queries = zip(*(task.by_query(encode, data) for encode in sides), strict=True)
        scores = [{name: entry} for entry in entries]
        if len(sides) > 1:
            first, second = queries
            found = query_differences(first, second, average="avg" in entries[0])
    else:
        scores = [task.run(encode, data) for encode in sides]
        if len(sides) > 1:
            one, other = (score_pairs(encode, {name: {name: data}}) for encode in sides)
            found = bootstrap_differences(one, other)
    return scores, {"differences": found} if found else {}


def texts_of(documents: Dataset) -> Iterator[str]:
    """The letters of every title and every text."""
    for batch in documents.iter(batch_size=1000):
        for text in (*batch["title"], *batch["text"]):  # type: ignore[call-overload]
            yield letters(text)
