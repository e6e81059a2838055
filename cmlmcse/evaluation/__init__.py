"""Scores of sentence encoders: each task is a module, found by name in `tasks.TASKS`."""
