"""The records beside a checkpoint, those of its run or of adapt: what cards and evaluation files are made from."""

import json
from pathlib import Path
from typing import Any, NamedTuple

from cmlmcse.common.errors import InputError, as_input_error
from cmlmcse.common.names import join_names, split_names
from cmlmcse.common.run_files import ARMS, EXPORT, RESULTS, RUN
from cmlmcse.evaluation.card_metric import CardMetric
from cmlmcse.evaluation.tasks import all_card_metrics

NAME_MODELS = ("model_name_or_path", "teacher", "mining_model", "rtd_generator")  # fields of a run


class Record(dict[str, Any]):
    """A record of a run. A missing entry is an :class:`InputError` that names the file."""

    def __init__(self, content: Any, name: str) -> None:
        if not isinstance(content, dict):
            raise InputError(f"{name}: expected a JSON object, found {type(content).__name__}; restore the file")
        super().__init__(content)
        self.name = name

    def __missing__(self, key: str) -> Any:
        raise InputError(f"{self.name}: expected the entry {key!r} of a run's record, found none; restore the file")

    def part(self, key: str) -> "Record":
        """An entry that is itself a JSON object."""
        return Record(self[key], f"{self.name}, {key}")


def with_public_names(record: dict[str, Any]) -> dict[str, Any]:
    """A run's record in which models that were folders at training lose their path. Where a card is written later, in
    another folder, nobody can see that `models/mine` was one, and no name on the Hub."""
    local = set(record.get("local", ()))
    if not local:
        return record
    fields = dict(record["fields"])
    for field in NAME_MODELS:
        if fields.get(field):
            names = (Path(name).name if name in local else name for name in split_names(fields[field]))
            fields[field] = join_names(names)
    return {**record, "fields": fields}


class RunRecords(NamedTuple):
    """What is recorded of a checkpoint.

    `run` is the content of run.json, None for what `cmlmcse adapt` handed back. `results` is the content of
    results.json, None where the records are not whole.
    """

    run: dict[str, Any] | None = None
    results: dict[str, Any] | None = None

    @property
    def measured(self) -> list[CardMetric]:
        """All numbers that were measured with these weights."""
        return card_metrics(self.results or {})


def card_metrics(results: dict[str, Any]) -> list[CardMetric]:
    """The numbers of a results.json for a model card; of adapt's, those on labelled data after it."""
    if "adapt" in results:
        pairs = results.get("labelled", {})
        results = {task: pair["after"].get(task) for task, pair in pairs.items()}
    return all_card_metrics(results)


def read_json(path: Path) -> Any:
    """The content of a JSON file; None if there is none.

    Raises:
        InputError: it is not JSON.
    """
    with as_input_error(f"{path}: expected JSON: "):
        return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None


def read_records(checkpoint: Path) -> RunRecords:
    """The records in the folder that a checkpoint or an export lies in.

    The scores and the example of a run belong to the weights that it exported. With another checkpoint they are left
    out, and `run` names the checkpoint that they are of, as `scored`, and this one, as `weights`.

    Raises:
        InputError: a record is not JSON.
    """
    checkpoint = checkpoint.resolve()  # which has a name also if it is given as "."
    folder = checkpoint.parent
    files = [folder / RUN, folder / RESULTS]
    adapted = (folder / ARMS).is_dir() and files[1].is_file()  # of several runs
    if not adapted and not all(file.is_file() for file in files):
        return RunRecords()
    run, results = (read_json(file) for file in files)
    if adapted:
        return RunRecords(None, results)
    scored = scored_checkpoint(run)
    if scored is not None and checkpoint.name not in (EXPORT, scored):
        run = {name: value for name, value in run.items() if name != "example"}
        run |= {"scored": scored, "weights": checkpoint.name}
        results = {"model": results.get("model")}
    return RunRecords(run, results)


def scored_checkpoint(run: Any) -> str | None:
    """The checkpoint that a run exported and scored: its best one if it was told to load that, else its last one; None
    if the record does not say."""
    fields = run.get("fields") if isinstance(run, dict) else None
    if not isinstance(fields, dict) or "steps" not in run:
        return None
    best = run.get("best_checkpoint") if fields.get("load_best_model_at_end") else None
    return best or f"checkpoint-{run['steps']}"
