"""Scores of sentence encoders. Each task is a module; `tasks.TASKS` finds it by its name."""
