"""Cranfield, LISA and TIME in BEIR's format, from the files that the University of Glasgow gave out for research.

    python benchmarks/glasgow.py --source FOLDER --data_dir DIR

FOLDER holds cran/{cran.all.1400,cran.qry,cranqrel}, lisa/{LISA0.001,…,LISA.QUE,LISA.REL} and time/{TIME.ALL,TIME.QUE,
TIME.REL}. A judgement counts as 1. Cranfield's -1 ("no interest") is left out. Its texts repeat the title at their
start, which is removed. A query without a judged document that is there is left out.
"""

import argparse
import json
import re
from collections.abc import Iterator
from pathlib import Path

Document = dict[str, str]
Pair = tuple[str, str]


def main() -> None:
    """Write every collection whose folder is there."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--source", type=Path, required=True)
    parser.add_argument("--data_dir", type=Path, required=True)
    args = parser.parse_args()
    for folder, name, read in (("cran", "cranfield", cranfield), ("lisa", "lisa", lisa), ("time", "time", times)):
        if (args.source / folder).is_dir():
            write(args.data_dir / "beir" / name, *read(args.source / folder))


def cranfield(folder: Path) -> tuple[list[Document], list[Pair], list[Pair]]:
    """1,400 abstracts on aerodynamics, 225 questions. The numbers of the queries are their places."""
    documents = []
    for part in re.split(r"^\.I ", read(folder / "cran.all.1400"), flags=re.MULTILINE)[1:]:
        number, _, rest = part.partition("\n")
        fields = re.split(r"^\.([TABW])\s*\n", rest, flags=re.MULTILINE)[1:]
        found: dict[str, str] = {}
        for name, text in zip(fields[::2], fields[1::2], strict=True):
            found[name] = found.get(name, "") + text
        title, text = one_line(found.get("T", "")), one_line(found.get("W", ""))
        documents.append({"_id": number.strip(), "title": title, "text": text.removeprefix(title).strip()})
    texts = re.findall(r"^\.W\n(.*?)(?=^\.I|\Z)", read(folder / "cran.qry"), re.DOTALL | re.MULTILINE)
    rows = [line.split() for line in read(folder / "cranqrel").splitlines() if line.strip()]
    judged = [(row[0], row[1]) for row in rows if row[2] != "-1"]
    return documents, [(str(place), one_line(text)) for place, text in enumerate(texts, 1)], sorted(set(judged))


def lisa(folder: Path) -> tuple[list[Document], list[Pair], list[Pair]]:
    """6,004 abstracts on libraries, 35 questions. A blank line stands between title and abstract."""
    documents: dict[str, Document] = {}
    for path in sorted(folder.glob("LISA[0-9].[0-9][0-9][0-9]*")):
        parts = re.findall(r"^Document +(\d+)[^\n]*\n(.*?)(?=^\*{20}|^Document +\d|\Z)", read(path), re.DOTALL | re.M)
        for number, part in parts:
            title, _, text = re.sub(r"\n[ \t]+\n", "\n\n", part.strip()).partition("\n\n")
            documents.setdefault(number, {"_id": number, "title": one_line(title), "text": one_line(text)})
    queries = re.findall(r"^\s*(\d+)\s*\n(.*?)#", read(folder / "LISA.QUE"), re.DOTALL | re.MULTILINE)
    found = re.findall(r"Query (\d+)\s+\d+ Relevant Refs:\s*(.*?)-1", read(folder / "LISA.REL"), re.DOTALL)
    judged = [(query, document) for query, numbers in found for document in numbers.split()]
    return list(documents.values()), [(number, one_line(text)) for number, text in queries], judged


def times(folder: Path) -> tuple[list[Document], list[Pair], list[Pair]]:
    """423 articles of a news magazine, 83 questions. The judgements count the articles by their places."""
    texts = re.findall(r"^\*TEXT[^\n]*\n(.*?)(?=^\*TEXT|^\*STOP|\Z)", read(folder / "TIME.ALL"), re.DOTALL | re.M)
    documents = [{"_id": str(place), "title": "", "text": one_line(text)} for place, text in enumerate(texts, 1)]
    queries = re.findall(
        r"^\*FIND\s+(\d+)\s*\n(.*?)(?=^\*FIND|^\*STOP|\Z)", read(folder / "TIME.QUE"), re.DOTALL | re.M
    )
    rows = [line.split() for line in read(folder / "TIME.REL").splitlines() if line.strip()]
    judged = [(row[0], document) for row in rows for document in row[1:]]
    return documents, [(number, one_line(text)) for number, text in queries], judged


def write(folder: Path, documents: list[Document], queries: list[Pair], judged: list[Pair]) -> None:
    """Write corpus.jsonl, queries.jsonl and qrels/test.tsv, and print the counts."""
    known = {document["_id"] for document in documents}
    judged = [pair for pair in judged if pair[1] in known]
    asked = {query for query, _ in judged}
    kept = [{"_id": number, "text": text} for number, text in queries if number in asked]
    (folder / "qrels").mkdir(parents=True, exist_ok=True)
    (folder / "corpus.jsonl").write_text("".join(lines(documents)), encoding="utf-8")
    (folder / "queries.jsonl").write_text("".join(lines(kept)), encoding="utf-8")
    rows = "".join(f"{query}\t{document}\t1\n" for query, document in judged)
    (folder / "qrels" / "test.tsv").write_text(f"query-id\tcorpus-id\tscore\n{rows}", encoding="utf-8")
    print(f"{folder.name}: {len(documents)} documents, {len(kept)} queries, {len(judged)} judgements")


def lines(rows: list[dict[str, str]]) -> Iterator[str]:
    """One JSON object a line."""
    for row in rows:
        yield json.dumps(row) + "\n"


def read(path: Path) -> str:
    """A file with line feeds alone."""
    return path.read_text(encoding="latin-1").replace("\r", "")


def one_line(text: str) -> str:
    """A text without line breaks and repeated spaces."""
    return " ".join(text.split())


if __name__ == "__main__":
    main()
