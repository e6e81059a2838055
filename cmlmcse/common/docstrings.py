"""Read argument descriptions from docstrings, so that a help text is written only once."""

import re


def argument_texts(docstring: str) -> dict[str, str]:
    """Argument → its description in the `Args:` section of a Google-style docstring, each as one line."""
    section = re.search(r"^ *Args:\n(.*?)(?=^ *\w+:\n|\Z)", docstring, re.MULTILINE | re.DOTALL)
    if section is None:
        return {}
    entries = re.findall(r"^ {8}(\w+): (.*?)(?=^ {8}\w|\Z)", section.group(1), re.MULTILINE | re.DOTALL)
    return {name: " ".join(text.split()) for name, text in entries}
