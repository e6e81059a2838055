"""What a backbone, a machine and the other fields change in the fields of a recipe."""

import contextlib
import shlex
import sys
from typing import Any

from transformers import AutoConfig
from transformers.trainer_pt_utils import AcceleratorConfig

from cmlmcse.common.errors import InputError
from cmlmcse.common.locations import resolve
from cmlmcse.models.folders import recorded_pooling, recorded_templates
from modeling_cmlmcse.configuration_cmlmcse import proportion
from modeling_cmlmcse.distributed import rank

from .fields import DataArguments, ModelArguments, Recipe, RunArguments

LAYER_COUNTS = ("lexical_layers", "fusion_layers")
BASE_DEPTH = 12  # layers of BERT-base and RoBERTa-base
GPU_SAVE_MINUTES = 5.0  # a checkpoint of 1 to 2 GiB takes seconds, as save_steps do on a GPU
GPU_WORKERS = 2  # without any, a GPU waits while each batch is collated; how many are best has not been measured


def fit_fields(recipe: Recipe, given: set[str], named: dict[str, Any]) -> None:
    """Fit the fields to the backbone, where it is not the recipe's own, to the machine and to each other, in place.

    Args:
        recipe: the recipe, whose fields are changed.
        given: fields of the command line.
        named: the fields that the recipe's file names, with its values.
    """
    if "model_name_or_path" in given and "model_sha256" not in given:
        recipe.model.model_sha256 = None  # the recipe's sha256 is that of the recipe's own model
    another = recipe.model.model_name_or_path != named.get("model_name_or_path", ModelArguments.model_name_or_path)
    if another and recipe.data.model_type is None:
        follow_depth(recipe.model, recipe.name, {name for name in LAYER_COUNTS if name in named} - given)
    if recipe.run.device.type == "cuda":
        feed_gpu(recipe.run, "dataloader_num_workers" in given | set(named))
    if another and "pooling" not in given:
        keep_pooling(recipe.model, given, set(named))
    use_one_gpu(recipe.run)
    if recipe.run.stage == "train" and recipe.data.final_evaluation is None:
        recipe.data.final_evaluation = default_evaluation(recipe.data)


def default_evaluation(data_args: DataArguments) -> str:
    """The final tasks where the user names none: `sts`, or `none` for a run that reads no other evaluation data."""
    if data_args.has_labels or data_args.data_dir is not None:
        return "sts"
    if rank() == 0:
        print(
            f"final_evaluation is none, because dev_set is {data_args.dev_set}; --final_evaluation sts scores the "
            "export on STS",
            file=sys.stderr,
        )
    return "none"


def follow_depth(model_args: ModelArguments, recipe: str, counts: set[str]) -> None:
    """Adapt layer counts that a recipe gives for its own backbone to another backbone, in place.

    A recipe named …-base counts layers out of 12. Another backbone gets the same share of its own depth. The counts
    become None, so that the model's defaults hold (8 and 3 of 12, CMLM-CSE Table 6), in three cases. The recipe has
    another name, so its depth is unknown. A pre-trained auxiliary network brings its own counts. The backbone's depth
    cannot be read; loading the model then reports the reason.

    Args:
        model_args: the fields, with the name of the other backbone.
        recipe: the recipe's name.
        counts: the fields to adapt, among `LAYER_COUNTS`.
    """
    depth = None
    if counts and recipe.endswith("-base") and model_args.fusion_init != "pretrained":
        with contextlib.suppress(OSError, ValueError):
            depth = AutoConfig.from_pretrained(resolve(model_args.model_name_or_path)).num_hidden_layers
    for name in counts:
        share = getattr(model_args, name) / BASE_DEPTH
        setattr(model_args, name, None if depth is None else proportion(depth, share))


def feed_gpu(run_args: RunArguments, workers_given: bool) -> None:
    """Keep the GPU from waiting, in place: copies that nobody waits for, processes that collate, and checkpoints at
    intervals of time, if none are given."""
    assert isinstance(run_args.accelerator_config, AcceleratorConfig)
    run_args.accelerator_config.non_blocking = True  # from pinned memory
    if not workers_given:
        run_args.dataloader_num_workers = GPU_WORKERS
    if run_args.save_minutes is None:
        run_args.save_minutes = GPU_SAVE_MINUTES


def keep_pooling(model_args: ModelArguments, given: set[str], recipe: set[str]) -> None:
    """Keep the pooling that another backbone records, in place: its vectors were trained with it. Whether it normalises
    and its templates are kept too, unless they are `given`. What the recipe names is not changed without a word.

    What cannot be read is left to the loading of the model, which reports the reason.

    Args:
        model_args: the fields.
        given: fields of the command line.
        recipe: fields that the recipe names.
    """
    with contextlib.suppress(InputError):
        recorded, normalizes = recorded_pooling(model_args.model_name_or_path)
        kept: dict[str, Any] = {} if recorded is None else {"pooling": recorded, "normalize": normalizes}
        for name, value in (kept | recorded_templates(model_args.model_name_or_path)).items():
            before = getattr(model_args, name)
            if name in given or value == before:
                continue
            if rank() == 0 and (name == "pooling" or name in recipe):
                print(
                    f"{name} is {value}, as {model_args.model_name_or_path} records, and not {before} as the recipe "
                    f"says; --{name} {shlex.quote(str(before))} changes that",
                    file=sys.stderr,
                )
            setattr(model_args, name, value)


def use_one_gpu(run_args: RunArguments) -> None:
    """Make one process train on one GPU. Trainer would split each batch over all GPUs of the machine (DataParallel),
    and the contrast would see the parts as batches."""
    if run_args.n_gpu > 1:
        print(
            f"found {run_args.n_gpu} GPUs: one process trains on one of them; accelerate launch train.py … uses them "
            "all"
        )
        run_args._n_gpu = 1
