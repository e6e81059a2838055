"""After the last step: export the chosen checkpoint, score it, and write records, plots and card."""

import shutil
import sys
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerBase

from cmlmcse.common.distributed import shutdown_process_group
from cmlmcse.common.figures import plot_cosine_by_gold
from cmlmcse.common.locations import PACKAGE, resolve
from cmlmcse.data.text import fingerprint_text
from cmlmcse.evaluation.sts import EncodeOnce
from cmlmcse.evaluation.tables import format_measures, format_table
from cmlmcse.evaluation.tasks import Task, choose_tasks
from cmlmcse.hub.card import copy_plots, model_card, plots_of
from cmlmcse.hub.export import export
from cmlmcse.models.encoders import load_encoder

from .arguments import DataArguments, ModelArguments, RunArguments
from .contrastive_trainer import ContrastiveTrainer
from .dev_set import DevSet
from .plots import plot_dev_score, plot_losses
from .records import run_record, write_records
from .sharding import whole_model

FinalTasks = dict[str, tuple[Task, Any]]


def finalize_run(
    folder: Path,
    recipe: str,
    model_args: ModelArguments,
    data_args: DataArguments,
    run_args: RunArguments,
    trainer: ContrastiveTrainer,
    dev_set: DevSet | None,
    final_tasks: FinalTasks,
    measured: dict[str, Any],
) -> None:
    """Export, evaluate the export, and write run.json, results.json, plots/ and the card.

    Every process must call this; the first one does it.
    """
    model, tokenizer, tokens = whole_model(trainer), trainer.processing_class, trainer.add_up_tokens()
    shutdown_process_group()
    if model is None:
        return
    assert isinstance(tokenizer, PreTrainedTokenizerBase)
    shutil.rmtree(folder / "export", ignore_errors=True)  # of this run, before it was resumed
    exported = export(model, tokenizer, folder / "export")
    history = trainer.state.log_history
    plots = folder / "plots"
    plots.mkdir(exist_ok=True)
    plot_losses(history, plots)

    encode = EncodeOnce(load_encoder(str(exported)))
    results: dict[str, Any] = {"model": recipe}
    if dev_set:
        cosines = dev_set.cosines(encode)
        results["dev"] = {"set": dev_set.title, "spearman": round(dev_set.score(encode), 4), "pairs": len(cosines)}
        plot_dev_score(history, plots, dev_set.title)
        plot_cosine_by_gold(cosines, dev_set.scores, plots, dev_set.title)
    results |= final_results(encode, final_tasks, str(exported), "cpu" if run_args.use_cpu else None)
    measured |= {
        "steps": trainer.state.global_step,
        "tokens": tokens,
        "best_checkpoint": Path(trainer.state.best_model_checkpoint or "").name or None,
        "train_data": text_fingerprint(data_args.train_file),
        "log": history,
    }
    record = run_record(recipe, model_args, data_args, run_args, measured)
    write_records(folder, record, results)
    copy_plots(folder, exported)
    card = model_card(record, results, plots=plots_of(folder))
    (exported / "README.md").write_text(card, encoding="utf-8")
    report(recipe, results)
    print(f"\nWritten to {folder}: export/ (load it with AutoModel), results.json, run.json, plots/")


def load_final_tasks(data_args: DataArguments) -> FinalTasks:
    """The recipe's final tasks with their data, loaded before training so that a lack shows before, not after.

    Raises:
        InputError: an unknown task, or data that cannot be had at all.
    """
    if data_args.final_evaluation == "none":
        return {}
    tasks = choose_tasks(data_args.final_evaluation, "final_evaluation")
    loaded = {name: (task, task.load(data_args.data_dir)) for name, task in tasks.items()}
    for task, data in loaded.values():
        for line in task.missing(data_args.data_dir, data):
            print(f"missing: {line}", file=sys.stderr)
    return loaded


def final_results(
    encode: EncodeOnce, final_tasks: FinalTasks, exported: str, device: str | None = None
) -> dict[str, Any]:
    """The results of the final tasks; a set whose data are not there is absent.

    Args:
        encode: the trained model as an encoder.
        final_tasks: from :func:`load_final_tasks`.
        exported: the exported folder, for tasks that fine-tune it.
        device: these tasks' own, "cpu", or what transformers' Trainer takes.
    """
    results: dict[str, Any] = {}
    for task, data in final_tasks.values():
        results |= task.run(exported, data, device=device) if task.fine_tunes else task.run(encode, data)
    return results


def text_fingerprint(train_file: str) -> dict[str, Any]:
    """The fingerprint of the text, under the recipe's own name if it lies in a package."""
    found = fingerprint_text(resolve(train_file))
    return {**found, "file": train_file} if train_file.startswith(PACKAGE) else found


def report(recipe: str, results: dict[str, Any]) -> None:
    """Print the tables."""
    if "sts" in results:
        print(format_table({recipe: results}))
    if measures := format_measures(results):
        print(f"\n{measures}")
