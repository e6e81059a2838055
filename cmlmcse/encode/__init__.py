"""Embed the texts of a file: the options, what is written, the parts, and the command."""
