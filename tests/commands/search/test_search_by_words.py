"""`cmlmcse search --bm25`: by the cosine and the words."""

import io
import json
import math
import re
import shutil
from pathlib import Path

import numpy as np
import pytest

from cmlmcse.encode import command as encode
from cmlmcse.search import command as search
from modeling_cmlmcse import CMLMCSEForSentenceEmbedding
from support.search import QUERY, cosines
from support.tiny import tiny_tokenizer


def test_the_words_of_a_whole_file(place, capsys) -> None:
    """With --bm25 a passage whose file has the query's other words too comes before an equal one of another file."""
    Path("pages").mkdir()
    Path("pages/a.md").write_text("# x\n\nthe dog\n\n# y\n\nthe bird\n")
    Path("pages/b.md").write_text("# x\n\nthe dog\n\n# y\n\nthe cat\n")
    encode.main(["model", "pages", "--pooling", "avg", "--output", "pages.parquet"])
    for corpus in ("pages", "pages.parquet"):
        output = f"{corpus}.out"
        search.main(["model", corpus, "dog cat", "--pooling", "avg", "--output", output, "--bm25", "9"])
        results = json.loads(Path(output).read_text())["results"]
        found = {(one["columns"]["file"], one["columns"]["text"]): one for one in results}
        mine, other = found["b.md", "the dog"], found["a.md", "the dog"]
        assert mine["cosine"] == other["cosine"]
        assert mine["bm25"] > other["bm25"] > 0
        assert found["b.md", "the cat"]["bm25"] == 1
        assert found["a.md", "the bird"]["bm25"] == 0  # its file has a dog, it has no word of the query


@pytest.mark.parametrize(
    ("results", "weight"),
    [
        ({"adapt": {"bm25": 40.0, "after": 30.0}}, 1.0),
        ({"adapt": {"bm25": 30.0, "after": 40.0}}, 0.3),
        ({"sts": {}}, 0.3),
        (None, 0.3),
    ],
)
def test_the_weight_that_adapt_found(results, weight, place, capsys) -> None:
    """A folder of adapt knows whether BM25 alone finds more than its model; a given weight counts more than that."""
    shutil.copytree("model", "adapted/export")
    if results is not None:
        Path("adapted/results.json").write_text(json.dumps(results))
    for name, options in (("own", []), ("given", ["0.5"])):
        search.main(["adapted/export" if results is None else "adapted", "texts.txt", QUERY, "--pooling", "avg",
                     "--output", f"{name}.out", "--bm25", *options])  # fmt: skip
        one = json.loads(Path(f"{name}.out").read_text())["results"][0]
        expected = float(options[0]) if options else weight
        assert one["score"] == pytest.approx(one["cosine"] + expected * one["bm25"], abs=3e-6)
    assert ("so BM25 has the weight 1; --bm25 WEIGHT sets another" in capsys.readouterr().err) == (weight == 1.0)


def shares_by_hand(query: str, texts: list[str]) -> np.ndarray:
    """BM25 of a query of short words with each text, by the formula, over the best; "on" and "the" find nothing."""
    bags = [re.findall(r"\w+", text.lower()) for text in texts]
    mean, scores = sum(map(len, bags)) / len(bags), np.zeros(len(bags))
    for word in set(re.findall(r"\w+", query.lower())) - {"on", "the"}:
        found = sum(word in bag for bag in bags)
        weight = math.log(1 + (len(bags) - found + 0.5) / (found + 0.5))
        for row, bag in enumerate(bags):
            scores[row] += weight * bag.count(word) / (bag.count(word) + 0.9 * (0.6 + 0.4 * len(bag) / mean))
    return scores / scores.max()


@pytest.mark.parametrize(("option", "weight"), [(["--bm25"], 0.3), (["--bm25", "3"], 3.0)])
def test_by_cosine_and_words(option, weight, place) -> None:
    """Each score is the cosine and the weight of BM25 over the query's best in the whole corpus, in blocks of 7 rows;
    the order is that of sorting all; texts and the encoded file say the same, but for the last bits of a cosine."""
    texts = Path("texts.txt").read_text().splitlines()
    texts[3] = "The DOG, and THE mat!"  # upper case and marks are no words; the encoder sees them
    texts[5], texts[8] = "cat cat mat w1", "sat sat sat w2"
    Path("texts.txt").write_text("\n".join(texts) + "\n")
    encode.main(["model", "texts.txt", "--pooling", "avg", "--output", "words.parquet"])
    exact, shares = cosines(texts), shares_by_hand(QUERY, texts)
    assert len({share for share in shares if share}) > 10
    ranked = []
    for corpus in ("texts.txt", "words.parquet"):
        search.main(["model", corpus, QUERY, "--pooling", "avg", "--top_k", "60", "--output", f"{corpus}.out", *option])
        results = json.loads(Path(f"{corpus}.out").read_text())["results"]
        rows = [one["row"] for one in results]
        assert sorted(rows) == list(range(50))
        assert rows[:2] == [11, 30]
        assert rows == sorted(rows, key=lambda row: (-results[rows.index(row)]["score"], row))
        for one in results:
            assert list(one) == ["rank", "row", "score", "cosine", "bm25", "columns"]
            assert one["cosine"] == pytest.approx(exact[one["row"]], abs=1e-5)
            assert one["bm25"] == pytest.approx(shares[one["row"]], abs=1e-6)
            assert one["score"] == pytest.approx(one["cosine"] + weight * one["bm25"], abs=1e-6 * (1 + weight))
        ranked.append([row for row in rows if row != 30])
    assert ranked[0] == ranked[1]
    by_sum = exact + weight * shares
    assert ranked[0] == [row for row in np.argsort(-np.round(by_sum, 6), kind="stable") if row != 30]
    assert ranked[0] != [row for row in np.argsort(-exact, kind="stable") if row != 30]


def test_words_without_prompts_and_without_a_match(place, monkeypatch) -> None:
    """Prompts are for the encoder alone, an empty text is counted and not found, and a query without a known word keeps
    its cosines."""
    prompts = {"query": "dog dog ", "document": "cat "}
    model = CMLMCSEForSentenceEmbedding.from_backbone("model", pooling="avg", cmlm_weight=0.0, prompts=prompts).eval()
    model.save_pretrained("prompted")
    tiny_tokenizer("bert").save_pretrained("prompted")
    Path("few.jsonl").write_text('{"text": "the cat"}\n{"text": null}\n{"text": "a big tree and a cat"}\n')
    encode.main(["prompted", "few.jsonl", "--output", "few.parquet"])
    for corpus in ("few.jsonl", "few.parquet"):
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"the cat\nunheard\n")))
        search.main(["prompted", corpus, "-", "--bm25", "--output", f"{corpus}.out"])
        known, unknown = (json.loads(line)["results"] for line in Path(f"{corpus}.out").read_text().splitlines())
        shares = shares_by_hand("the cat", ["the cat", "", "a big tree and a cat"])
        found = {one["row"]: one["bm25"] for one in known}
        assert found == {0: 1.0, 2: pytest.approx(shares[2], abs=1e-6)}
        assert all((one["bm25"], one["score"]) == (0.0, one["cosine"]) for one in unknown)
