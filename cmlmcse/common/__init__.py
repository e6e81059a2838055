"""Helpers for the whole tool: errors, files, figures, recipes, tables."""
