"""What a model does not see of the texts that it is scored on: they are cut off beyond its limit of tokens."""

from collections.abc import Iterator, Mapping
from typing import Any

from cmlmcse.data.lengths import LARGE_CUT, measure_lengths
from cmlmcse.models.folders import recorded_max_length

from .set_lengths import RETRIEVAL
from .tasks import TASKS


def short_sight(model: str, encoder: Any, data: dict[str, Any], lengths: Mapping[str, int]) -> Iterator[str]:
    """A line for what the model does not see: positions that its tokenizer forbids, and the ends of long texts.

    Args:
        model: the model's name, for the message.
        encoder: the model; word vectors have no limit.
        data: the data of each task by its name.
        lengths: retrieval set → tokens, of those that are not cut to the encoder's own limit.
    """
    limit = encoder.settings.get("max_seq_length")
    if limit is None or not data:
        return
    declared = recorded_max_length(model) or encoder.model.max_positions  # the authors' own limit needs no warning
    if encoder.tokenizer.model_max_length < min(declared, encoder.model.max_positions):
        yield (
            f"{model}: its tokenizer allows {encoder.tokenizer.model_max_length} tokens, the model has "
            f"{encoder.model.max_positions} positions; if the model was trained on all of them, raise model_max_length "
            "in tokenizer_config.json"
        )
    for task, content in data.items():
        for name, texts in TASKS[task].long_texts(content).items():
            here = lengths.get(name, limit) if task == RETRIEVAL else limit
            if (share := measure_lengths(texts, encoder.tokenizer).cut(here)) > LARGE_CUT:
                yield (
                    f"{name}: {model} reads the first {here} tokens of a text, which cuts off {share:.0%} of all "
                    "tokens; choose a model or a --max_seq_length that reads more, or split long texts"
                )
