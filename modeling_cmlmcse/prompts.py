"""Prompts: texts put before a query or a document when it is encoded. Names and rules are sentence-transformers'."""

from collections.abc import Mapping
from typing import Any

QUERY, DOCUMENT = "query", "document"
DOCUMENT_NAMES = (
    DOCUMENT,
    "passage",
    "corpus",
)  # sentence-transformers takes the first that there is


def complete_prompts(prompts: Any, default_name: str | None) -> dict[str, str]:
    """Checked prompts by name, with those of queries and documents among them; empty if the model has none.

    Both are stated, so that every version of sentence-transformers finds the same ones. A prompt that is not given is
    empty.

    Args:
        prompts: name → text, or None.
        default_name: the prompt of texts that are neither.

    Raises:
        ValueError: something else than texts by name, or a default that is not among them.
    """
    given = {} if prompts is None else prompts
    if not isinstance(given, Mapping) or not all(isinstance(each, str) for pair in given.items() for each in pair):
        raise ValueError(f"prompts must be texts by name, as {{'query': 'query: '}}, found {prompts!r}; fix them")
    if default_name is not None and default_name not in given:
        known = ", ".join(given) or "no prompt"
        raise ValueError(f"default_prompt_name must be one of {known}, found {default_name!r}; choose one of them")
    if not any(given.values()):
        return {}
    document = next((given[name] for name in DOCUMENT_NAMES if name in given), "")
    return {**given, QUERY: given.get(QUERY, ""), DOCUMENT: document}


def choose_prompt(prompts: Mapping[str, str], default_name: str | None, name: str | None, text: str | None) -> str:
    """The text to put before a sentence: `text` if given, else the prompt of this name, else the default one.

    Queries and documents of a model without prompts have none.

    Raises:
        ValueError: the model has no prompt of this name.
    """
    if text is not None:
        return text
    name = default_name if name is None else name
    if name is None or (name in (QUERY, DOCUMENT) and name not in prompts):
        return ""
    if name not in prompts:
        known = ", ".join(prompts) or "none"
        raise ValueError(f"prompt_name must be one of the model's prompts, found {name!r}; it has: {known}")
    return prompts[name]
