"""Training runs: arguments, trainer, checkpoints, records."""
