"""After the last step of stage 1: measure the development loss, write the export for stage 2, records and card."""

import shutil
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerBase

from cmlmcse.common.distributed import shutdown_process_group
from cmlmcse.common.files import new_model_folder
from cmlmcse.common.names import split_names
from cmlmcse.common.run_files import EXPORT
from cmlmcse.data.batches import TrainingSentences
from cmlmcse.data.lengths import forget_lengths
from cmlmcse.data.pretraining_text import DEV_MASK_RATE
from cmlmcse.hub.card_method import public_name
from cmlmcse.hub.card_writer import bullets, metadata, write_card
from cmlmcse.hub.run_records import with_public_names
from modeling_cmlmcse.pretrained_auxiliary import AUXILIARY_NETWORK

from .both_stages import progress_record, text_record
from .fields import Recipe
from .plots import plot_losses
from .pretraining_decoders import DECODERS, chosen_decoder
from .pretraining_model import AuxiliaryPretraining
from .records import run_record, write_records
from .trainer import LossTrainer


def finalize_pretraining(folder: Path, recipe: Recipe, trainer: LossTrainer, measured: dict[str, Any]) -> None:
    """Measure the final development loss, export, and write run.json, results.json, plots/ and the card.

    Every process must call this. All measure the loss; the first process writes.
    """
    tokens, dev = trainer.add_up_tokens(), trainer.eval_dataset
    history = trainer.state.log_history
    results: dict[str, Any] = {"model": recipe.name}
    if isinstance(dev, TrainingSentences):
        metrics = {name: round(value, 4) for name, value in trainer.dev_metrics().items()}
        results["pretraining"] = {"sequences": len(dev), **metrics}
    shutdown_process_group()
    if not trainer.is_world_process_zero():
        return
    assert trainer.run_fields is not None
    texts = trainer.run_fields["train_file"]
    measured |= {
        **progress_record(trainer, tokens),
        "train_data": [text_record(*each) for each in zip(split_names(recipe.data.train_file), texts, strict=True)],
        "log": history,
    }
    record = run_record(recipe, measured)
    model, tokenizer = trainer.accelerator.unwrap_model(trainer.model), trainer.processing_class
    assert isinstance(tokenizer, PreTrainedTokenizerBase)
    shutil.rmtree(folder / EXPORT, ignore_errors=True)  # written by this run before it was resumed
    export_pretrained(model, tokenizer, folder / EXPORT, pretraining_card(record, results))
    (folder / "plots").mkdir(exist_ok=True)
    plot_losses([row for row in history if "loss" in row], folder / "plots")
    write_records(folder, record, results)
    for name, value in results.get("pretraining", {}).items():
        print(f"{name.replace('_', ' ')}: {value:g}")
    pooling = f", with --pooling {recipe.model.pooling}" if recipe.data.auxiliary_weight > 0 else ""
    print(f"\nWritten to {folder}: export/ (a model_name_or_path for stage 2{pooling}), results.json, run.json, plots/")


def export_pretrained(model: AuxiliaryPretraining, tokenizer: PreTrainedTokenizerBase, folder: Path, card: str) -> None:
    """Write a folder that `AutoModelForMaskedLM` loads, with the fusion layers in a file of their own.

    These share the head of the masked-language model. The folder is complete or absent.
    """
    with new_model_folder(folder) as aside:
        model.masked_lm.save_pretrained(aside)
        forget_lengths(tokenizer)
        tokenizer.save_pretrained(aside)
        if model.decoder is not None:
            model.decoder.save(aside, model.pooling)
        (aside / "README.md").write_text(card, encoding="utf-8")


def pretraining_facts(record: dict[str, Any], results: dict[str, Any]) -> dict[str, Any]:
    """The facts of a pre-training for its card, by name, from the run's records."""
    fields, found = with_public_names(record)["fields"], results.get("pretraining")
    kind = fields["model_type"]
    origin = f"a new {kind}" if kind else f"`{public_name(fields['model_name_or_path'])}`"
    sources = ", ".join(f"`{public_name(source)}`" for source in split_names(fields["train_file"]))
    loss = "not measured" if found is None else (
        f"{found['mlm_loss']:.3f} (perplexity {found['perplexity']:.2f}) on {found['sequences']} held-out sequences, "
        f"{DEV_MASK_RATE:.0%} of the tokens masked"
    )  # fmt: skip
    return {
        "started from": origin,
        "text": sources,
        "sequences": f"{fields['sequences']}, at most {fields['max_seq_length']} tokens",
        "masked": f"{fields['mlm_probability']:.0%} of the {'words' if fields['whole_word_mask'] else 'tokens'}",
        "deleted before the encoder": f"{fields['deletion_rate']:.0%} of the tokens"
        if fields.get("augmentation", "none") != "none"
        else None,
        "auxiliary network": DECODERS[fields["auxiliary_decoder"]].title,
        "weight of the auxiliary network's loss": fields["auxiliary_weight"],
        "sentence vector that it reads": fields["pooling"] if fields["auxiliary_weight"] > 0 else "none",
        "steps": record["steps"],
        "tokens seen": record["tokens"],
        "development MLM loss": loss,
        "seed": record["seed"],
        "training time": f"{record['train_seconds']} s on {record['hardware']['device']}",
    }


def pretraining_card(record: dict[str, Any], results: dict[str, Any]) -> str:
    """The README.md of the export of stage 1, from the run's records."""
    fields = record["fields"]
    decoder = chosen_decoder(fields["auxiliary_decoder"], fields["auxiliary_weight"])
    exported = decoder is not None and decoder.exported
    auxiliary = (
        f" and, in `{AUXILIARY_NETWORK}`, the auxiliary network pre-trained with it (InfoCSE, Wu et al. 2022, "
        "§3.1): `model_name_or_path` of a second stage with `fusion_init: pretrained`."
    )
    values = {
        "name": record["recipe"],
        "summary": "A masked-language model (`AutoModelForMaskedLM`)" + (auxiliary if exported else "."),
        "training": bullets(pretraining_facts(record, results)),
    }
    return write_card(metadata("fill-mask"), values)
