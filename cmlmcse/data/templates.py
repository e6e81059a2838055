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
NEGATED = 2  # which of a batch's templates negates the sentence
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
    """The templates of the views of a batch.

    The first view has the first template and all others have the second, but for the view that negates the sentence,
    which has the third (CoT-BERT).

    Args:
        templates: two, or three.
        around: the tokens that the tokenizer puts before and after every sentence.
        denoising: what a batch has besides: the templates without the sentences, whose words keep their places
            (`position`), or with padding tokens in the sentences' places (`pad`); or nothing (`none`).
        padding: the tokenizer's padding token, for `pad`.
    """

    def __init__(
        self, templates: Sequence[Prompt], around: tuple[list[int], list[int]], denoising: str, padding: int = 0
    ) -> None:
        self.templates, self.around, self.denoising, self.padding = templates, around, denoising, padding

    @property
    def negates(self) -> bool:
        """Whether there is a template that negates the sentence."""
        return len(self.templates) > NEGATED

    def longest(self) -> int:
        """How many tokens a template adds at most."""
        return max(map(len, self.templates))

    def insert(self, tokens: list[int], template: int) -> list[int]:
        """A view's tokens with a template around the sentence, inside the special tokens."""
        prompt, (start, end) = self.templates[template], self.bounds(tokens)
        return [*tokens[:start], *prompt.before, *tokens[start:end], *prompt.after, *tokens[end:]]

    def bounds(self, tokens: list[int]) -> tuple[int, int]:
        """Where a sentence begins and ends among its tokens."""
        lead, trail = map(len, self.around)
        return lead, len(tokens) - trail

    def pack(self, sentences: Sequence[list[int]], chosen: Sequence[int]) -> dict[str, Any]:
        """Token lists of B sentences and the template of each → the packed rows with their templates.

        With denoising the rows of E templates without sentences follow, so that one pass encodes all. `slots` (S,) are
        the places of all tokens on the grid: in the following rows a token keeps its place. Sentences of one length in
        one template share a row; `template_of` (B,) says which, from 0.
        """
        chosen = [self.templates.index(self.templates[each]) for each in chosen]  # equal templates are one
        rows = [self.insert(*row) for row in zip(sentences, chosen, strict=True)]
        if self.denoising == "none":
            return pack_sequences(rows)
        kinds = list(zip(chosen, map(len, sentences), strict=True))
        places = {kind: place for place, kind in enumerate(dict.fromkeys(kinds))}
        empty = [self.without_sentence(*kind) for kind in places]
        columns = [*map(range, map(len, rows)), *(kept for _, kept in empty)]
        packed = pack_sequences([*rows, *(tokens for tokens, _ in empty)])
        packed["width"] = max(map(len, rows))
        slots = [row * packed["width"] + column for row, kept in enumerate(columns) for column in kept]
        of_rows = [places[kind] for kind in kinds]
        own = {"slots": torch.tensor(slots, device="cpu"), "template_of": torch.tensor(of_rows, device="cpu")}
        return {**packed, **own}

    def without_sentence(self, template: int, length: int) -> tuple[list[int], Sequence[int]]:
        """A template around a sentence of `length` tokens, special ones included, without the sentence: the tokens and
        their columns."""
        (lead, trail), before = self.around, self.templates[template].before
        count = length - len(lead) - len(trail)
        row = self.insert([*lead, *[self.padding] * count, *trail], template)
        start = len(lead) + len(before)
        inside = range(start, start + count) if self.denoising == "position" else ()
        kept = [column for column in range(len(row)) if column not in inside]
        return [row[column] for column in kept], kept


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
    return max(len(read_template(text, tokenizer)) for text in template_texts(config))


def template_texts(fields: Any) -> list[str]:
    """The templates that a configuration or the fields of a recipe name: of the first view, of the others, and perhaps
    the one that negates the sentence."""
    negating = fields.negative_prompt_template
    return [fields.prompt_template, fields.second_prompt_template, *([negating] if negating else [])]


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
