"""Names in one field."""

import pytest

from cmlmcse.common.names import join_names, split_names


@pytest.mark.parametrize(
    ("text", "names"),
    [
        (None, []),
        (" , ", []),
        ("a", ["a"]),
        ("o/big, ./small ,bm25", ["o/big", "./small", "bm25"]),
        ('"/data/a, b/model", bm25', ["/data/a, b/model", "bm25"]),
        ('"say ""a"", b"', ['say "a", b']),
    ],
)
def test_split(text, names):
    """Commas separate, but for those in double quotes; joined names are split into the same ones."""
    assert split_names(text) == names
    assert split_names(join_names(names)) == names
