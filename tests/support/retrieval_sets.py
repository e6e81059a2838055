"""Small sets in BEIR's format."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

HEADER = "query-id\tcorpus-id\tscore\n"


def write(
    root: Path, corpus: Iterable[Any], queries: Iterable[Any], qrels: Iterable[tuple], name: str = "tiny"
) -> Path:
    """A set in BEIR's format under the data folder `root`; passages and queries as (id, text)."""
    folder = root / "beir" / name
    (folder / "qrels").mkdir(parents=True, exist_ok=True)
    for file, rows in (("corpus.jsonl", corpus), ("queries.jsonl", queries)):
        lines = (json.dumps({"_id": found, "text": text}) + "\n" for found, text in rows)
        (folder / file).write_text("".join(lines))
    (folder / "qrels" / "test.tsv").write_text(HEADER + "".join("\t".join(map(str, row)) + "\n" for row in qrels))
    return folder
