"""What the tests here share: the exports, and the sentences that their embeddings are of."""

import os
from pathlib import Path

SENTENCES = [
    "the cat sat",
    "a big red dog ran under the small blue tree and sat on the mat",
    "w1 w2",
    "dog",
    " ".join(["the big dog sat on a red mat"] * 12),  # longer than most of the models take
]
EXPORTS = Path(os.environ.get("CMLMCSE_EXPORTS", ""))  # what make_exports.py wrote; unset: the tests are skipped
