"""Train a sentence encoder: python train.py RECIPE [--field value …], or accelerate launch train.py RECIPE …"""

import sys

from cmlmcse.common.errors import command


@command
def main() -> None:
    """From a recipe to a folder with checkpoints, export/, results.json, run.json and plots/."""
    from cmlmcse.training.arguments import parse_recipe

    recipe, model_args, data_args, run_args = parse_recipe(sys.argv[1:])

    # Imports that take seconds come after a wrong argument has been answered.
    if run_args.stage == "pretrain":
        from cmlmcse.training.pretraining import pretrain

        pretrain(recipe.stem, model_args, data_args, run_args)
        return

    from transformers import set_seed

    from cmlmcse.training.build import build_collator, build_model, build_sentences, build_tokenizer
    from cmlmcse.training.checkpoints import find_checkpoint
    from cmlmcse.training.contrastive_trainer import ContrastiveTrainer
    from cmlmcse.training.dev_set import load_dev_set
    from cmlmcse.training.finalize import finalize_run, load_final_tasks
    from cmlmcse.training.records import claim_output_dir, git_commit

    resume = run_args.resume_from_checkpoint
    folder = claim_output_dir(run_args.output_dir, resume=resume is not None)
    checkpoint = find_checkpoint(folder, resume)
    dev_set = load_dev_set(data_args.dev_set, data_args.data_dir)
    final_tasks = load_final_tasks(data_args)
    if dev_set is None:
        run_args.without_dev_set()

    set_seed(run_args.seed)  # the head and a random fusion start from the seed
    tokenizer = build_tokenizer(model_args, data_args.augmentation)
    model = build_model(model_args, tokenizer)
    sentences = build_sentences(data_args, run_args, tokenizer)
    trainer = ContrastiveTrainer(
        model=model,
        args=run_args,
        train_dataset=sentences,
        data_collator=build_collator(model, tokenizer, data_args, run_args),
        processing_class=tokenizer,
        dev_score=dev_set.score if dev_set else None,
    )
    commit = git_commit()
    trainer.train(resume_from_checkpoint=checkpoint)
    measured = {"git_commit": commit, "train_seconds": trainer.seconds_trained()}
    finalize_run(folder, recipe.stem, model_args, data_args, run_args, trainer, dev_set, final_tasks, measured)


if __name__ == "__main__":
    main()
