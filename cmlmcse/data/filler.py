"""Filler: sentences of no meaning at the end of a packed batch, which round its number of tokens up.

Packed batches nearly always differ in length, so that whatever is prepared for one shape (CUDA graphs, compiled code,
kernels of oneDNN) is prepared again and again. Rounded up, few shapes remain. The filler lies in rows of its own, so
that attention keeps it apart, and no loss reads these rows. It costs what as many real tokens cost.
"""

from typing import Any

import torch


def fill_up(packed: dict[str, Any], multiple: int, token: int) -> dict[str, Any]:
    """A packed batch (:func:`pack_sequences`) with rows of filler behind its own, so that the number of its tokens is a
    multiple of `multiple`.

    Every row has a token at least and at most as many as the longest sentence, and how many rows there are depends on
    that length and on `multiple` alone. So the shape of the result depends on the number of tokens, on the number of
    sentences and on `width`.

    Args:
        packed: `input_ids` (S,), `lengths` (B,), `width`, and perhaps `slots` (S,).
        multiple: what the number of tokens becomes a multiple of, at least 2.
        token: the filler. Of the pooling `prompt` it must be the mask token, which is looked for in every row.

    Returns:
        The longer batch, with the numbers `filler_rows` and `filler_tokens`.
    """
    width, size, total = max(packed["width"], 2), len(packed["lengths"]), len(packed["input_ids"])
    rows = -(-(multiple - 1) // (width - 1))  # room for one token each and up to multiple - 1 more
    tokens = rows + -(total + rows) % multiple
    lengths = [tokens // rows + (row < tokens % rows) for row in range(rows)]
    filled = {
        "input_ids": torch.nn.functional.pad(packed["input_ids"], (0, tokens), value=token),
        "lengths": torch.cat([packed["lengths"], torch.tensor(lengths, device="cpu")]),
    }
    if "slots" in packed:
        places = [(size + row) * width + column for row, length in enumerate(lengths) for column in range(length)]
        filled["slots"] = torch.cat([packed["slots"], torch.tensor(places, device="cpu")])
    return packed | filled | {"width": width, "filler_rows": rows, "filler_tokens": tokens}
