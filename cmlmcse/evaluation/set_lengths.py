"""`--max_seq_length N,SET=N,…`: how many tokens of a text the model reads, perhaps others in some retrieval sets."""

from argparse import ArgumentTypeError
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from cmlmcse.common.errors import InputError
from cmlmcse.common.options import positive

RETRIEVAL = "retrieval"  # the task, and with a length all of its sets


class SetLengths(NamedTuple):
    """The lengths as they are given.

    Attributes:
        default: tokens, where no other length is named; None for the model's limit.
        named: the name of a retrieval set, or `retrieval` for all of them → tokens.
    """

    default: int | None = None
    named: Mapping[str, int] = MappingProxyType({})

    def of_sets(self, data: dict[str, Any]) -> dict[str, int]:
        """Retrieval set → tokens, for the sets that have a length of their own and whose data are there.

        Args:
            data: the data of each task by its name.

        Raises:
            InputError: a set that is none of the data's.
        """
        sets: dict[str, Any] = data.get(RETRIEVAL, {})
        for name, length in self.named.items():
            if not sets:
                raise InputError(
                    f"--max_seq_length {name}={length} expects the task {RETRIEVAL} and its data, found none; add "
                    f"--tasks {RETRIEVAL}, or drop it"
                )
            if name not in (RETRIEVAL, *sets):
                raise InputError(
                    f"--max_seq_length expects names of retrieval sets, {', '.join(sets)}, or {RETRIEVAL} for all, "
                    f"found {name!r}; choose one of them"
                )
        lengths = {name: self.named.get(name, self.named.get(RETRIEVAL)) for name in sets if sets[name] is not None}
        return {name: length for name, length in lengths.items() if length is not None}


def read_lengths(text: str) -> SetLengths:
    """`128`, `scifact=256,cisi=256`, or `128,scifact=256`."""
    found: dict[str, int] = {}
    for part in text.split(","):
        name, _, length = part.strip().rpartition("=")
        name = name.strip()
        if name in found or ("=" in part and not name):
            what = f"{name} twice" if name else "two numbers or a length without a name"
            raise ArgumentTypeError(f"expected each name once, as 128,scifact=256, found {what} in {text!r}")
        found[name] = positive(length.strip())
    return SetLengths(found.pop("", None), found)
