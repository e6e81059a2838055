"""After the last step: export the best or last weights, score the export, and write records, plots and card."""

import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from transformers import PreTrainedTokenizerBase

from cmlmcse.common.distributed import shutdown_process_group
from cmlmcse.common.figures import plot_cosine_by_gold
from cmlmcse.common.locations import PACKAGE
from cmlmcse.evaluation.encoding import EncodeOnce
from cmlmcse.evaluation.tables import TRUNCATED, format_all_measures, format_table, with_truncated
from cmlmcse.evaluation.tasks import Task, choose_tasks
from cmlmcse.evaluation.truncation import truncated
from cmlmcse.hub.card import copy_plots, model_card, plots_of
from cmlmcse.hub.card_training import encoder_record
from cmlmcse.hub.card_usage import Loading, similarity_example
from cmlmcse.hub.eval_results import write_eval_results
from cmlmcse.hub.export import export
from cmlmcse.hub.run_records import card_metrics
from cmlmcse.hub.start import start_record
from cmlmcse.models.encoders import load_model_encoder
from cmlmcse.models.prompts import Prompts
from modeling_cmlmcse import CMLMCSEConfig
from modeling_cmlmcse.distributed import rank

from .contrastive_trainer import START_VALUES, ContrastiveTrainer
from .dev_set import LABEL_FREE, DevScore, DevSet, interval
from .fields import DataArguments, ModelArguments, RunArguments
from .plots import plot_dev_score, plot_losses
from .records import run_record, write_records
from .sharding import whole_model

SOLVED = 0.01  # of a contrastive loss: the right text then has 99 % of the softmax

FinalTasks = dict[str, tuple[Task, Any]]


def finalize_run(
    folder: Path,
    recipe: str,
    model_args: ModelArguments,
    data_args: DataArguments,
    run_args: RunArguments,
    trainer: ContrastiveTrainer,
    dev_set: DevScore | None,
    final_tasks: FinalTasks,
    measured: dict[str, Any],
    score_export: bool = True,
) -> None:
    """Export, evaluate the export, and write run.json, results.json, plots/ and the card.

    Every process must call this. The first process does the work. Without `score_export` the export's development score
    is the one that training met at that step.
    """
    model, tokenizer, tokens = whole_model(trainer), trainer.processing_class, trainer.add_up_tokens()
    shutdown_process_group()
    if model is None:
        return
    assert isinstance(tokenizer, PreTrainedTokenizerBase)
    assert trainer.run_fields is not None
    shutil.rmtree(folder / "export", ignore_errors=True)  # written by this run before it was resumed
    exported = export(model, tokenizer, folder / "export")
    history = trainer.state.log_history
    plots = folder / "plots"
    plots.mkdir(exist_ok=True)
    plot_losses(history, plots)

    encoder = load_model_encoder(str(exported))
    encode = EncodeOnce(encoder)
    results: dict[str, Any] = {"model": recipe}
    if dev_set and not score_export:
        results["dev"] = dev_summary(dev_set, score_met(trainer), len(np.load(folder / START_VALUES)["values"]))
    elif dev_set:
        results["dev"] = score_and_plot(dev_set, encode, history, folder)
    results |= final_results(encode, final_tasks, str(exported), "cpu" if run_args.use_cpu else None)
    results |= truncated_results(encode, final_tasks, model.config)
    measured |= {
        "steps": trainer.state.global_step,
        "tokens": tokens,
        "best_checkpoint": Path(trainer.state.best_model_checkpoint or "").name or None,
        "train_data": text_record(data_args.train_file, trainer.run_fields["train_file"][0]),
        "start": start_record(model_args.model_name_or_path),
        "encoder": encoder_record(encoder),
        "example": similarity_example(encode),
        "log": history,
    }
    record = run_record(recipe, model_args, data_args, run_args, measured)
    write_records(folder, record, results)
    copy_plots(folder, exported)
    use = Loading(more=Prompts.of_model(model).for_card)
    card = model_card(record, results, use, plots_of(folder))
    (exported / "README.md").write_text(card, encoding="utf-8")
    write_eval_results(card_metrics(results), exported)
    report(recipe, results, history, folder)


def score_and_plot(
    dev_set: DevScore, encode: EncodeOnce, history: list[dict[str, Any]], folder: Path
) -> dict[str, Any]:
    """The scores of the development set before and after training, and their plots in the run's folder."""
    values = dev_set.values(encode)
    plots = folder / "plots"
    plot_dev_score(history, plots, dev_set.title)
    if isinstance(dev_set, DevSet):
        plot_cosine_by_gold(values, dev_set.pairs.scores, plots, dev_set.title)
    return dev_results(dev_set, values, folder)


def score_met(trainer: ContrastiveTrainer) -> float:
    """The development score at the step whose weights a run keeps: its best one, or its last."""
    scores = {row["step"]: row["eval_dev_score"] for row in trainer.state.log_history if "eval_dev_score" in row}
    best = trainer.state.best_global_step if trainer.args.load_best_model_at_end else None
    return scores[best or max(scores)]


def dev_results(dev_set: DevScore, values: NDArray[np.float64], folder: Path) -> dict[str, Any]:
    """The scores of the development set before and after training, with the interval of the change.

    Args:
        dev_set: the development set.
        values: (N,) the values of its items after training.
        folder: the run's folder, with the values before training.
    """
    found = dev_summary(dev_set, dev_set.summary(values), len(values))
    before = start_values(folder / START_VALUES, dev_set.title, len(values))
    if before is not None:
        low, high = interval(dev_set, before, values)
        found |= {"before": round(dev_set.summary(before), 4), "interval": [round(low, 4), round(high, 4)]}
    return found


def dev_summary(dev_set: DevScore, score: float, count: int) -> dict[str, Any]:
    """The score of the development set, and how many pairs or documents it has."""
    score = round(score, 4)
    size = {"spearman": score, "pairs": count} if isinstance(dev_set, DevSet) else {"documents": count}
    return {"set": dev_set.title, "score": score, **size}


def start_values(path: Path, title: str, count: int) -> NDArray[np.float64] | None:
    """The values of the items before training; None if there are none, or if they are of another development set."""
    if not path.exists():  # of a run that began with an older version
        return None
    with np.load(path) as kept:
        same = str(kept["title"]) == title and len(kept["values"]) == count
        return kept["values"] if same else None


def load_final_tasks(data_args: DataArguments) -> FinalTasks:
    """The final tasks with their data. They are loaded before training, so that missing data is reported at once.

    Where `final_evaluation` is not given, it is set here.

    Raises:
        InputError: an unknown task, or a task without any data.
    """
    if data_args.final_evaluation is None:
        data_args.final_evaluation = default_evaluation(data_args)
    if data_args.final_evaluation == "none":
        return {}
    tasks = choose_tasks(data_args.final_evaluation, "final_evaluation")
    loaded = {name: (task, task.load(data_args.data_dir)) for name, task in tasks.items()}
    for task, data in loaded.values():
        for line in task.missing(data_args.data_dir, data):
            print(f"missing: {line}", file=sys.stderr)
    return loaded


def default_evaluation(data_args: DataArguments) -> str:
    """The final tasks where the user names none: `sts`, or `none` for a run that reads no other evaluation data."""
    if data_args.dev_set not in ("none", *LABEL_FREE) or data_args.data_dir is not None:
        return "sts"
    if rank() == 0:
        print(
            f"final_evaluation is none, because dev_set is {data_args.dev_set}; --final_evaluation sts scores the "
            "export on STS"
        )
    return "none"


def final_results(
    encode: EncodeOnce, final_tasks: FinalTasks, exported: str, device: str | None = None
) -> dict[str, Any]:
    """The results of the final tasks. A data set that was not found has no entry.

    Args:
        encode: the trained model as an encoder.
        final_tasks: from :func:`load_final_tasks`.
        exported: the exported folder, for tasks that fine-tune it.
        device: "cpu", or None for the device that transformers' Trainer chooses; for tasks that fine-tune.
    """
    results: dict[str, Any] = {}
    for task, data in final_tasks.values():
        results |= task.run(exported, data, device=device) if task.fine_tunes else task.run(encode, data)
    return results


def truncated_results(encode: EncodeOnce, final_tasks: FinalTasks, config: CMLMCSEConfig) -> dict[str, Any]:
    """The entry `TRUNCATED`: the results of the vectors cut to each number of Matryoshka dimensions but the whole one.
    Empty without such dimensions, or without tasks. A task that fine-tunes has none."""
    found: dict[str, Any] = {}
    for size in config.matryoshka_dims or ():
        for task, data in final_tasks.values():
            if size < config.hidden_size and not task.fine_tunes:
                found.setdefault(str(size), {}).update(task.run(truncated(encode, size), data))
    return {TRUNCATED: found} if found else {}


def text_record(train_file: str, found: dict[str, Any]) -> dict[str, Any]:
    """What run.json says of the text: its fingerprint, `found` before training, because a file may change meanwhile.
    Text inside a package keeps the recipe's name for it instead of a local path."""
    return {**found, "file": train_file} if train_file.startswith(PACKAGE) else found


def contrast_at_the_end(history: list[dict[str, Any]]) -> list[str]:
    """What the last logged values of the contrast mean, in a line or two."""
    rows = [row for row in history if "contrastive_loss" in row]
    if not rows:
        return []
    loss, near, spread = (rows[-1][name] for name in ("contrastive_loss", "alignment", "uniformity"))
    lines = [
        f"at the end: contrastive loss {loss:.4g}; alignment {near:.2f} (0: the two views of a text have one vector); "
        f"uniformity {spread:.2f} (0: all texts have one vector; -4: random directions)"
    ]
    if loss < SOLVED:
        lines.append(
            "The contrastive loss is near 0: the model tells the texts of a batch apart. This alone does not show a "
            "better model; a development score (--dev_set) does. A larger batch makes the task harder."
        )
    return lines


def before_and_after(dev: dict[str, Any]) -> str:
    """One line: the development score before and after training, and whether the change is more than chance."""
    low, high = dev["interval"]
    verdict = "better by more than chance" if low > 0 else "worse by more than chance" if high < 0 else "within chance"
    return (
        f"{dev['set']}: {dev['before']:.2f} before, {dev['score']:.2f} after, {dev['score'] - dev['before']:+.2f} "
        f"(95 % interval {low:+.2f} to {high:+.2f}: {verdict})"
    )


def report(recipe: str, results: dict[str, Any], history: list[dict[str, Any]], folder: Path) -> None:
    """Print the results as tables, what the last losses mean, where the files are, and the score before and after."""
    if "sts" in results:
        print(format_table(with_truncated(recipe, results)))
    if measures := format_all_measures(with_truncated("Value", results)):
        print(f"\n{measures}")
    for line in contrast_at_the_end(history):
        print(line)
    print(f"\nWritten to {folder}: export/, results.json, run.json, plots/")
    print(f"Load it: SentenceTransformer({str(folder / 'export')!r}), or AutoModel with trust_remote_code=True")
    if "before" in results.get("dev", {}):
        print(before_and_after(results["dev"]))
