"""Templates around a sentence, for the pooling `prompt` (PromptBERT, Jiang et al. 2022).

In training the tokens of the templates are put around those of the views. A finished model's tokenizer adds the first
template by itself, so whoever uses it needs to know nothing of templates, and cutting a text cuts the sentence alone.
"""

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from tokenizers import Tokenizer
from tokenizers.processors import TemplateProcessing
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from cmlmcse.common.errors import InputError
from modeling_cmlmcse.configuration_cmlmcse import CMLMCSEConfig
from modeling_cmlmcse.packing import pack_sequences
from modeling_cmlmcse.pooling import POOLINGS

SENTENCE, MASK = "{sentence}", "{mask}"
PIECES = ("[LEAD]", "[BEFORE]", "$A", "[AFTER]", "[TRAIL]")  # of a tokenizer with a template


class Prompt(NamedTuple):
    """The tokens of a template on both sides of the sentence, without the tokenizer's own special tokens."""

    before: list[int]
    after: list[int]

    def __len__(self) -> int:
        """How many tokens it adds to a sentence."""
        return len(self.before) + len(self.after)


def read_template(template: str, tokenizer: PreTrainedTokenizerBase) -> Prompt:
    """The tokens of a template such as `This sentence of "{sentence}" means {mask}.`

    Raises:
        InputError: it has not one {sentence} and then a {mask}, or the tokenizer has no mask token.
    """
    before, found, after = template.partition(SENTENCE)
    if not found or SENTENCE in after or MASK in before or MASK not in after:
        raise InputError(
            f"a prompt_template must hold {SENTENCE} once and {MASK} after it, found {template!r}; write for example "
            f'This sentence of "{SENTENCE}" means {MASK}.'
        )
    if tokenizer.mask_token is None:
        raise InputError("pooling prompt expects a tokenizer with a mask token, found none; choose another backbone")
    texts = (text.replace(MASK, str(tokenizer.mask_token)) for text in (before, after))
    return Prompt(*(tokenizer(text, add_special_tokens=False)["input_ids"] for text in texts))


class Templates:
    """The templates of the views of a batch: the first view has the first template, all others have the second.

    Args:
        templates: both.
        around: the tokens that the tokenizer puts before and after every sentence.
        denoising: whether a batch also has the templates without the sentences.
    """

    def __init__(self, templates: Sequence[Prompt], around: tuple[list[int], list[int]], denoising: bool) -> None:
        self.templates, self.around, self.denoising = templates, around, denoising

    def longest(self) -> int:
        """How many tokens a template adds at most."""
        return max(map(len, self.templates))

    def insert(self, tokens: list[int], view: int) -> list[int]:
        """A view's tokens with its template around the sentence, inside the special tokens."""
        prompt, (start, end) = self.templates[min(view, 1)], self.bounds(tokens)
        return [*tokens[:start], *prompt.before, *tokens[start:end], *prompt.after, *tokens[end:]]

    def bounds(self, tokens: list[int]) -> tuple[int, int]:
        """Where a sentence begins and ends among its tokens."""
        lead, trail = map(len, self.around)
        return lead, len(tokens) - trail

    def pack(self, sentences: Sequence[list[int]], views: Sequence[int]) -> dict[str, Any]:
        """Token lists of B sentences and the view of each → the packed rows with their templates.

        With `denoising`, `template` holds the templates without the sentences, packed too. Their words stay in their
        places: `slots` leaves the sentence's columns empty. Rows of one view and length share one; `index` (B,) says
        which.
        """
        packed = pack_sequences([self.insert(*row) for row in zip(sentences, views, strict=True)])
        if not self.denoising:
            return packed
        kinds = [(min(view, 1), len(row)) for row, view in zip(sentences, views, strict=True)]
        places = {kind: place for place, kind in enumerate(dict.fromkeys(kinds))}
        template = pack_sequences([self.insert([*self.around[0], *self.around[1]], view) for view, _ in places])
        width, slots = packed["width"], []
        for row, (view, length) in enumerate(places):
            start, count = len(self.around[0]) + len(self.templates[view].before), length - sum(map(len, self.around))
            total = length + len(self.templates[view])
            slots += [row * width + column for column in range(total) if not start <= column < start + count]
        template |= {"width": width, "slots": torch.tensor(slots)}
        return {**packed, "template": {**template, "index": torch.tensor([places[kind] for kind in kinds])}}


def with_template(tokenizer: PreTrainedTokenizerBase, prompt: Prompt, around: tuple[list[int], list[int]]) -> Any:
    """A tokenizer that puts the template around every sentence, and cuts the sentence alone.

    Args:
        tokenizer: the plain one.
        prompt: the template's tokens.
        around: the tokens that the plain one puts before and after a sentence.

    Raises:
        InputError: it is none of the library tokenizers.
    """
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        raise InputError(
            f"pooling prompt expects a fast tokenizer, found {type(tokenizer).__name__}; choose another backbone"
        )
    pieces = dict(zip(("[LEAD]", "[BEFORE]", "[AFTER]", "[TRAIL]"), (around[0], *prompt, around[1]), strict=True))
    used = {name: ids for name, ids in pieces.items() if ids}
    single = " ".join(piece for piece in PIECES if piece in used or piece == "$A")
    special: list[Any] = [
        {"id": name, "ids": ids, "tokens": tokenizer.convert_ids_to_tokens(ids)} for name, ids in used.items()
    ]
    copied = Tokenizer.from_str(backend.to_str())
    copied.no_truncation()
    copied.no_padding()
    copied.post_processor = TemplateProcessing(single=single, pair=f"{single} $B", special_tokens=special)
    return rebuilt(tokenizer, copied)


def without_template(tokenizer: PreTrainedTokenizerBase) -> Any:
    """The plain tokenizer of one with a template; any other as it is."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    fields = json.loads(backend.to_str()) if backend is not None else {}
    processor = fields.get("post_processor") or {}
    if not {"[BEFORE]", "[AFTER]"} & set(processor.get("special_tokens", {})):
        return tokenizer
    for name in ("single", "pair"):
        processor[name] = [
            piece for piece in processor[name] if piece.get("SpecialToken", {}).get("id") not in ("[BEFORE]", "[AFTER]")
        ]
    return rebuilt(tokenizer, Tokenizer.from_str(json.dumps(fields)))


def longest_template(config: CMLMCSEConfig, tokenizer: PreTrainedTokenizerBase) -> int:
    """How many tokens a model's templates add to a sentence at most; 0 with another pooling."""
    if not POOLINGS[config.pooling].reads_mask:
        return 0
    return max(len(read_template(text, tokenizer)) for text in (config.prompt_template, config.second_prompt_template))


def rebuilt(tokenizer: PreTrainedTokenizerBase, backend: Tokenizer) -> PreTrainedTokenizerFast:
    """A tokenizer around `backend` with all else of another. Its class adds nothing of its own when it is loaded."""
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        model_max_length=tokenizer.model_max_length,
        model_input_names=tokenizer.model_input_names,
        padding_side=tokenizer.padding_side,
        truncation_side=tokenizer.truncation_side,
        **{name: str(token) for name, token in tokenizer.special_tokens_map.items() if isinstance(token, str)},
    )
