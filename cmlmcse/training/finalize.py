"""After the last step: export the best or last weights, score the export, and write records, plots and card."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
from transformers import PreTrainedTokenizerBase

from cmlmcse.common.distributed import shutdown_process_group
from cmlmcse.common.figures import plot_cosine_by_gold
from cmlmcse.common.run_files import EXPORT
from cmlmcse.evaluation.encoding import EncodeOnce
from cmlmcse.evaluation.tables import format_all_measures, format_table, with_truncated
from cmlmcse.hub.card import copy_plots, model_card, plots_of
from cmlmcse.hub.card_training import encoder_record
from cmlmcse.hub.card_usage import Loading, similarity_example
from cmlmcse.hub.eval_results import write_eval_results
from cmlmcse.hub.export import export
from cmlmcse.hub.run_records import card_metrics
from cmlmcse.hub.start import start_record
from cmlmcse.models.encoders import Encoder, load_model_encoder
from cmlmcse.models.prompts import Prompts

from .both_stages import progress_record, text_record
from .contrastive_trainer import ContrastiveTrainer
from .dev_set import DevScore, DevSet
from .dev_start import START_VALUES, dev_results, dev_summary
from .fields import Recipe
from .final_tasks import FinalTasks, final_results, truncated_results
from .plots import plot_dev_score, plot_losses
from .records import run_record, write_records
from .sharding import whole_model

SOLVED = 0.01  # of a contrastive loss: the right text then has 99 % of the softmax


def finalize_run(
    folder: Path,
    recipe: Recipe,
    trainer: ContrastiveTrainer,
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
    shutil.rmtree(folder / EXPORT, ignore_errors=True)  # written by this run before it was resumed
    exported = export(model, tokenizer, folder / EXPORT)
    history = trainer.state.log_history
    plots = folder / "plots"
    plots.mkdir(exist_ok=True)
    plot_losses(history, plots)

    encoder = load_model_encoder(str(exported))
    encode = EncodeOnce(encoder)
    results: dict[str, Any] = {"model": recipe.name}
    dev_set = trainer.dev_set
    if dev_set and not score_export:
        results["dev"] = dev_summary(dev_set, score_met(trainer), len(np.load(folder / START_VALUES)["values"]))
    elif dev_set:
        results["dev"] = score_and_plot(dev_set, encode, history, folder)
    results |= final_results(encode, final_tasks, str(exported), "cpu" if recipe.run.use_cpu else None)
    results |= truncated_results(encode, final_tasks, model.config)
    measured |= measured_facts(trainer, recipe, encoder, encode, tokens)
    record = run_record(recipe, measured)
    write_records(folder, record, results)
    copy_plots(folder, exported)
    use = Loading(more=Prompts.of_model(model).for_card)
    card = model_card(record, results, use, plots_of(folder))
    (exported / "README.md").write_text(card, encoding="utf-8")
    write_eval_results(card_metrics(results), exported)
    report(recipe.name, results, history, folder)


def measured_facts(
    trainer: ContrastiveTrainer, recipe: Recipe, encoder: Encoder, encode: EncodeOnce, tokens: int
) -> dict[str, Any]:
    """What run.json says of the run beside its fields: steps, tokens, text, start, the export and an example of it, and
    the log."""
    assert trainer.run_fields is not None
    return {
        **progress_record(trainer, tokens),
        "train_data": text_record(recipe.data.train_file, trainer.run_fields["train_file"][0]),
        "start": start_record(recipe.model.model_name_or_path),
        "encoder": encoder_record(encoder),
        "example": similarity_example(encode),
        "log": trainer.state.log_history,
    }


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
