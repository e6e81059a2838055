"""What a model does not see of the texts that it is scored on: they are cut off beyond its limit of tokens."""

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

from cmlmcse.data.lengths import LARGE_CUT, SAMPLE, measure_lengths

from .sts_data import sentences_of

# The tasks whose texts may be long: the task's data → name → some of its texts. STS sets are single sentences, and GLUE
# has a limit of its own.
LONG_TEXTS: dict[str, Callable[[Any], dict[str, list[str]]]] = {
    "retrieval": lambda sets: {name: list(islice(each.texts(), 0, None, max(len(each.passages) // SAMPLE, 1)))
                               for name, each in sets.items() if each is not None},
    "pairs": lambda sets: {name: sentences_of([each])[:SAMPLE] for name, each in sets.items()},
    "lee50": lambda pairs: {"lee50": sentences_of([pairs])},
}  # fmt: skip


def short_sight(model: str, encoder: Any, data: dict[str, Any]) -> Iterator[str]:
    """A line for what the model does not see: positions that its tokenizer forbids, and the ends of long texts.

    Args:
        model: its name.
        encoder: the model; word vectors have no limit.
        data: the data of each task by its name.
    """
    limit = encoder.settings.get("max_seq_length")
    if limit is None or not data:
        return
    if encoder.tokenizer.model_max_length < encoder.model.max_positions:
        yield (
            f"{model}: its tokenizer allows {encoder.tokenizer.model_max_length} tokens, the model has "
            f"{encoder.model.max_positions} positions; if the model was trained on all of them, raise model_max_length "
            "in tokenizer_config.json"
        )
    for task in filter(data.__contains__, LONG_TEXTS):
        for name, texts in LONG_TEXTS[task](data[task]).items():
            if (share := measure_lengths(texts, encoder.tokenizer).cut(limit)) > LARGE_CUT:
                yield (
                    f"{name}: {model} reads the first {limit} tokens of a text, which cuts off {share:.0%} of all "
                    "tokens; choose a model that reads more, or split long texts"
                )
