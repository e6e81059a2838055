"""Texts → embeddings: what :class:`CMLMCSEForSentenceEmbedding` does with texts instead of tokens."""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from threading import Lock
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from transformers import AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import logging

from .backbone import max_positions, quiet_loading
from .dropout import without_dropout_in_threads
from .families import Module
from .fast_cpu import use_fast_cpu_kernels
from .packing import Packing, pack_sequences
from .pooling import POOLINGS
from .prompts import DOCUMENT, QUERY, choose_prompt
from .read_later import read_behind, send

if TYPE_CHECKING:
    from .configuration_cmlmcse import CMLMCSEConfig

CPU_SENTENCES = 64  # in a forward pass
# A GPU waits for its host in small batches. These are some hundred short sentences, and 0.2 GB in the widest layer of
# BERT-base in fp32. Other numbers have not been tried.
GPU_TOKENS = 16_384
# The length that a fast tokenizer cuts at is its state: one call sets it, and no other may before the texts are cut.
TOKENIZING = Lock()
if hasattr(os, "register_at_fork"):  # a forked process has no thread that would let go of a lock that is held
    os.register_at_fork(after_in_child=lambda: globals().update(TOKENIZING=Lock()))
NO_TEMPLATE = (
    "pooling prompt expects the mask token of its template in every sentence, found none: use the tokenizer of an "
    "export of this model, which adds the template"
)


if TYPE_CHECKING:
    Base = PreTrainedModel
else:
    Base = object  # a mixin, whose other base is a PreTrainedModel


class Tokens(list[list[int]]):
    """The tokens of N texts, as :meth:`TextEncoding.tokenize` makes them. :meth:`TextEncoding.encode` takes them in
    place of the texts."""


class TextEncoding(Base):
    """The methods of a sentence encoder that take texts."""

    if TYPE_CHECKING:
        config: CMLMCSEConfig
        backbone: Module
        projection: Module
        pooled: Callable[[Tensor, Packing], Tensor]

    _tokenizer: PreTrainedTokenizerBase | None = None
    _tokenizer_place: tuple[str, dict[str, Any]] = ("", {})  # folder or name, and which revision of it

    @property
    def max_positions(self) -> int:
        """The most tokens a sentence may have."""
        return max_positions(self.backbone)

    @torch.no_grad()
    def encode(
        self,
        sentences: str | Iterable[str] | Tokens,
        tokenizer: PreTrainedTokenizerBase | None = None,
        batch_size: int | None = None,
        normalize: bool | None = None,
        max_length: int | None = None,
        show_progress_bar: bool = False,
        truncate_dim: int | None = None,
        batch_tokens: int | None = None,
        convert_to_tensor: bool = False,
        prompt_name: str | None = None,
        prompt: str | None = None,
        normalize_embeddings: bool | None = None,
    ) -> Any:
        """Embed sentences without padding, sorted by length, in input order.

        It computes on the model's device and in its precision: `model.to("cuda", torch.bfloat16)` first for bf16. On a
        CPU it calls :func:`use_fast_cpu_kernels` on the model.

        Args:
            sentences: N texts: a list, a numpy array, a pandas Series, a column of a dataset; or one text; or what
                :meth:`tokenize` made of them, with its `max_length` and prompt.
            tokenizer: the model's tokenizer (default: the one in the folder or repository that the model came from).
            batch_size: sentences in a forward pass (default: 64 on a CPU, 16,384 tokens on a GPU).
            normalize: scale every embedding to length 1, after `truncate_dim` (default: the configuration's).
            max_length: tokens a sentence is cut to, the special ones included (default, and limit: the most the model
                and tokenizer take).
            show_progress_bar: whether to show one.
            truncate_dim: keep the first K dimensions.
            batch_tokens: tokens in a forward pass, in place of `batch_size`; a longer sentence goes alone.
            convert_to_tensor: return a torch tensor on the model's device.
            prompt_name: name of the model's prompt to put before each text (default: its default prompt, if any).
            prompt: a text to put before each text instead; empty for none.
            normalize_embeddings: sentence-transformers' name of `normalize`.

        Returns:
            (N, H) float32 numpy array or tensor; (H,) for one text.

        Raises:
            ValueError: `truncate_dim`, `batch_size`, `batch_tokens` or `max_length` out of range; something else than
                texts; a text with half a surrogate pair, or without any token; no tokenizer; no prompt of that name.
        """
        if tokenizer is not None and not hasattr(tokenizer, "model_max_length"):
            kind = type(tokenizer).__name__
            raise ValueError(f"encode expects a tokenizer in the second place, found {kind}; write batch_size=…")
        tokenizer = self._own_tokenizer() if tokenizer is None else tokenizer
        normalize = normalize_embeddings if normalize is None else normalize
        if single := isinstance(sentences, str):
            sentences = [sentences]
        device = execution_device(self)
        if device.type == "cpu":
            use_fast_cpu_kernels(self)
        width = self._width(truncate_dim)
        limits = choose_limits(device.type, batch_size, batch_tokens)
        if not isinstance(sentences, Tokens):
            tokens = self.tokenize(sentences, tokenizer, max_length, prompt_name, prompt)
        elif given := [each for each in (max_length, prompt_name, prompt) if each is not None]:
            raise ValueError(f"encode expects no length or prompt with tokens, found {given[0]!r}; give it to tokenize")
        else:
            tokens = sentences
        shown = show_progress_bar and not single
        embeddings = self._encode_by_length(tokens, width, limits, device, convert_to_tensor, shown)
        if self.config.normalize if normalize is None else normalize:
            embeddings = nn.functional.normalize(embeddings, dim=-1)
        embeddings = embeddings[0] if single else embeddings
        return embeddings if convert_to_tensor else embeddings.numpy()

    def tokenize(
        self,
        sentences: str | Iterable[str],
        tokenizer: PreTrainedTokenizerBase | None = None,
        max_length: int | None = None,
        prompt_name: str | None = None,
        prompt: str | None = None,
    ) -> Tokens:
        """The tokens of each text behind its prompt, cut to the most that the model, the tokenizer and `max_length`
        allow. It needs no device: a thread may tokenise texts while :meth:`encode` computes others.

        Raises:
            ValueError: something else than texts; no tokenizer; `max_length` leaves no room for a word; a text has half
                a surrogate pair; a text has no token, which happens where the tokenizer adds no special ones; the
                pooling reads a mask token, and a text has none; or no prompt of that name.
        """
        tokenizer = self._own_tokenizer() if tokenizer is None else tokenizer
        before = choose_prompt(self.config.prompts, self.config.default_prompt_name, prompt_name, prompt)
        texts = [before + text for text in as_texts([sentences] if isinstance(sentences, str) else sentences)]
        most = min(self.max_positions, tokenizer.model_max_length)
        least = tokenizer.num_special_tokens_to_add() + 1  # with those of a template, which is never cut
        if max_length is not None and as_whole("max_length", max_length) < least:
            raise ValueError(f"max_length must be at least {least}, special tokens and a word, found {max_length}")
        limit = most if max_length is None else min(most, max_length)
        try:
            with TOKENIZING:
                tokens = tokenizer(texts, truncation=True, max_length=limit)["input_ids"] if texts else []
        except TypeError:
            check_characters(texts)  # a fast tokenizer refuses half a surrogate pair, and does not say where it is
            raise
        if empty := [index for index, row in enumerate(tokens) if not row]:
            raise ValueError(
                f"encode expects at least one token in each text, found none in text {empty[0]} (counted from 0), "
                f"{texts[empty[0]][:40]!r}: leave it out, or use a tokenizer that adds special tokens"
            )
        if POOLINGS[self.config.pooling].reads_mask and any(self.config.mask_token_id not in row for row in tokens):
            raise ValueError(NO_TEMPLATE)
        return Tokens(tokens)

    def encode_query(self, sentences: str | Iterable[str], *args: Any, **options: Any) -> Any:
        """:meth:`encode` with the model's prompt for queries, if it has one."""
        return self.encode(sentences, *args, **{"prompt_name": QUERY, **options})

    def encode_document(self, sentences: str | Iterable[str], *args: Any, **options: Any) -> Any:
        """:meth:`encode` with the model's prompt for documents, if it has one."""
        return self.encode(sentences, *args, **{"prompt_name": DOCUMENT, **options})

    def _own_tokenizer(self) -> PreTrainedTokenizerBase:
        """The tokenizer of the folder or repository that the model was loaded from, loaded once.

        Raises:
            ValueError: the model was not loaded from one, or there is none.
        """
        if self._tokenizer is None:
            known, place = self._tokenizer_place
            source = known or self.name_or_path
            try:
                if not source:
                    raise OSError("the model was not loaded from a folder or repository")
                with quiet_loading():  # a checkpoint's own model type is unknown to transformers
                    self._tokenizer = AutoTokenizer.from_pretrained(source, trust_remote_code=False, **place)
                if len(self._tokenizer) <= len(set(self._tokenizer.all_special_ids)):
                    self._tokenizer = None  # what transformers makes where there are no files
                    raise OSError(f"{source} has no tokenizer files")
            except (OSError, ValueError) as error:
                reason = str(error).splitlines()[0]
                raise ValueError(
                    f"encode expects a tokenizer, found none: {reason}; pass tokenizer=, or save it into the model's "
                    "folder"
                ) from error
        return self._tokenizer

    @staticmethod
    def similarity(first: Any, second: Any) -> Any:
        """(N, H) and (M, H) embeddings → (N, M) cosines. A single embedding (H,) is a row. Arrays give an array,
        tensors a tensor."""
        tensors = (
            each if isinstance(each, Tensor) else torch.as_tensor(each, device="cpu") for each in (first, second)
        )
        rows = (torch.atleast_2d(each.float()) for each in tensors)
        one, other = (nn.functional.normalize(each, dim=-1) for each in rows)
        cosines = one @ other.to(one.device).T
        return cosines if isinstance(first, Tensor) else cosines.numpy()

    def _width(self, truncate_dim: int | None) -> int:
        """How many dimensions an embedding keeps.

        Raises:
            ValueError: `truncate_dim` is out of range, or no whole number.
        """
        width = self.config.hidden_size if truncate_dim is None else as_whole("truncate_dim", truncate_dim)
        if not 1 <= width <= self.config.hidden_size:
            raise ValueError(f"truncate_dim must be from 1 to {self.config.hidden_size}, found {width}")
        return width

    def _encode_by_length(
        self,
        tokens: Tokens,
        width: int,
        limits: tuple[int | None, int | None],
        device: torch.device,
        stay_there: bool,
        show_progress_bar: bool,
    ) -> Tensor:
        """Tokens of N texts → (N, width) embeddings in their order, computed on this device in batches from the longest
        to the shortest. They stay there, or each batch is read to the host while the next one is computed."""
        order = sorted(range(len(tokens)), key=lambda i: len(tokens[i]), reverse=True)
        batches = list(split_batches([len(tokens[i]) for i in order], *limits))
        embeddings = torch.zeros(len(tokens), width, dtype=torch.float32, device=device if stay_there else "cpu")
        rows = torch.tensor(order, dtype=torch.long, device=embeddings.device)  # (N,)
        shown = logging.tqdm(batches, desc="Encoding", disable=not show_progress_bar, leave=False)
        with without_dropout_in_threads(self):
            found = (self._encode_batch([tokens[i] for i in order[each]], device)[:, :width].float() for each in shown)
            for chosen, vectors in zip(batches, found if stay_there else read_behind(found), strict=True):
                embeddings.index_copy_(0, rows[chosen], vectors)
        return embeddings

    def _encode_batch(self, sequences: list[list[int]], device: torch.device) -> Tensor:
        """Token lists of B sentences → (B, H) embeddings, computed on this device."""
        packed = pack_sequences(sequences)
        tokens, lengths = send(packed["input_ids"], device), send(packed["lengths"], device)
        pooled = self.pooled(tokens, Packing.from_lengths(lengths, len(tokens), packed["width"]))  # (B, H)
        return self.projection(pooled) if POOLINGS[self.config.pooling].keeps_head else pooled


def as_texts(given: Iterable[str]) -> list[str]:
    """The texts as a list.

    Raises:
        ValueError: a table, or something else than texts in it.
    """
    kind = type(given).__name__
    if isinstance(given, Mapping) or hasattr(given, "columns") or hasattr(given, "column_names"):
        raise ValueError(f"encode expects texts, found a {kind}; give one column of it, such as table['text']")
    try:
        texts = [given] if isinstance(given, bytes) else list(given)
    except TypeError:
        raise ValueError(f"encode expects texts, found a {kind}; give a list of str, or one str") from None
    for index, text in enumerate(texts):
        if not isinstance(text, str):
            absent = text is None or type(text).__name__ == "NAType" or (isinstance(text, float) and text != text)
            convert = "decode it" if isinstance(text, bytes) else "convert it to str"
            convert = "give texts, or all that tokenize returned" if isinstance(text, list) else convert
            advice = "leave it out, or put '' in its place" if absent else convert
            found = "nothing" if absent else f"a {type(text).__name__}"
            raise ValueError(f"encode expects texts, found {found} as text {index} (counted from 0); {advice}")
    return texts


def check_characters(texts: Iterable[str]) -> None:
    """Check that every text can be written as UTF-8.

    Raises:
        ValueError: one has half a surrogate pair.
    """
    for index, text in enumerate(texts):
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise ValueError(
                f"encode expects whole characters, found half a surrogate pair, {text[error.start]!r}, in text {index} "
                "(counted from 0); replace it, as text.encode(errors='replace').decode() does"
            ) from None


def execution_device(model: PreTrainedModel) -> torch.device:
    """The device that a model computes on: where its weights are, or where Accelerate brings offloaded ones."""
    hooks = (getattr(module, "_hf_hook", None) for module in model.modules())
    devices = (getattr(hook, "execution_device", None) for hook in hooks)
    given = next((device for device in devices if device is not None), None)
    return model.device if given is None else torch.device(given)


def choose_limits(device: str, batch_size: int | None, batch_tokens: int | None) -> tuple[int | None, int | None]:
    """The sentences and the tokens of a batch on this kind of device, of which one may be None.

    Raises:
        ValueError: below 1, or no whole number.
    """
    sizes = {"batch_size": batch_size, "batch_tokens": batch_tokens}
    if any(size is not None and as_whole(name, size) < 1 for name, size in sizes.items()):
        raise ValueError(f"expected batches of at least 1, found {batch_size} sentences, {batch_tokens} tokens")
    if batch_size is None and batch_tokens is None:
        return (CPU_SENTENCES, None) if device == "cpu" else (None, GPU_TOKENS)
    return batch_size, batch_tokens


def as_whole(name: str, value: Any) -> int:
    """An option as a whole number; numpy's whole numbers are allowed. With 2.5 sentences a batch would never be full.

    Raises:
        ValueError: the value is not a whole number.
    """
    try:
        return value.__index__()
    except AttributeError:
        raise ValueError(f"{name} must be a whole number, found {value!r}") from None


def split_batches(lengths: Sequence[int], batch_size: int | None, batch_tokens: int | None) -> Iterator[slice]:
    """Lengths of N sentences → slices of at most `batch_tokens` tokens or, without that, of `batch_size` sentences."""
    start, total = 0, 0
    for index, length in enumerate(lengths):
        full = total + length > batch_tokens if batch_tokens is not None else index - start == batch_size
        if full and index > start:
            yield slice(start, index)
            start, total = index, 0
        total += length
    if start < len(lengths):
        yield slice(start, len(lengths))
