"""The special tokens that a tokenizer puts around a text, such as [CLS] and [SEP]."""

from transformers import PreTrainedTokenizerBase

from cmlmcse.common.errors import InputError


def special_tokens(tokenizer: PreTrainedTokenizerBase) -> tuple[list[int], list[int]]:
    """The tokens that this tokenizer puts before and after a text, such as [CLS] and [SEP]."""
    word = tokenizer("a", add_special_tokens=False)["input_ids"]
    whole = tokenizer("a")["input_ids"]
    start = next(i for i in range(len(whole)) if whole[i : i + len(word)] == word)
    return whole[:start], whole[start + len(word) :]


def check_around(option: str, tokenizer: PreTrainedTokenizerBase, name: str) -> None:
    """Check that a tokenizer puts a special token before and after each text: a decoder predicts what is between them.

    Args:
        option: the option that asks for the decoder, for the message.
        tokenizer: the tokenizer that is checked.
        name: the model or folder that the tokenizer comes from, for the message.

    Raises:
        InputError: there is no special token before a text, or none after it.
    """
    before, after = map(len, special_tokens(tokenizer))
    if not (before and after):
        raise InputError(
            f"{option} expects a tokenizer that puts special tokens before and after a text, found {before} before and "
            f"{after} after in {name}; choose another backbone or another objective"
        )
