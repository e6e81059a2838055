"""`cmlmcse search`: exact nearest texts, of texts and of encoded files."""

import io
import json
import shutil
from pathlib import Path

import numpy as np
import pyarrow
import pytest
import torch
from pyarrow import parquet

from cmlmcse.data.special_tokens import special_tokens
from cmlmcse.data.templates import read_template, with_template
from cmlmcse.encode import command as encode
from cmlmcse.search import command as search
from cmlmcse.search import nearest
from modeling_cmlmcse import CMLMCSEForSentenceEmbedding
from support.search import QUERY, cosines
from support.tiny import load_reference, tiny_tokenizer


@pytest.mark.parametrize("corpus", ["texts.txt", "texts.jsonl", "texts.parquet"])
def test_nearest(corpus, place, capsys) -> None:
    """The rows of the highest cosines, with their columns, whether they are encoded now or were before."""
    texts = Path("texts.txt").read_text().splitlines()
    options = ["--text_column", "sentence"] if corpus == "texts.jsonl" else []
    search.main(["model", corpus, QUERY, "--pooling", "avg", "--top_k", "5", "--output", "out.jsonl", *options])
    exact = cosines(texts)
    (line,) = map(json.loads, Path("out.jsonl").read_text().splitlines())
    assert line["query"] == QUERY
    assert [one["row"] for one in line["results"]][:2] == [11, 30]
    assert [one["rank"] for one in line["results"]] == [1, 2, 3, 4, 5]
    np.testing.assert_allclose([one["score"] for one in line["results"]], np.sort(exact)[::-1][:5], atol=1e-5)
    for one in line["results"]:
        assert one["score"] == pytest.approx(exact[one["row"]], abs=1e-5)
        column = "sentence" if corpus == "texts.jsonl" else "text"
        assert one["columns"][column] == texts[one["row"]]
        assert corpus == "texts.txt" or one["columns"]["id"] == f"d{one['row']}"
        assert "embedding" not in one["columns"]
    printed = capsys.readouterr().out.splitlines()[-5:]
    assert printed[0] == f"1.0000  row 11 (and 1 more)  {QUERY}"  # row 30
    scores = [f"{one['score']:.4f}" for one in line["results"] if one["row"] != 30]
    assert [row.split("  ")[0] for row in printed][:4] == scores
    assert len(set(printed)) == 5


@pytest.mark.parametrize("bm25", [[], ["--bm25", "9"]])
def test_a_text_with_copies_is_shown_once(bm25, place, capsys) -> None:
    """As often as there are others, in whatever block they are: 5 copies of one text, 3 of another, white space aside;
    the same text with another title is another one. The file of results has the nearest rows."""
    texts = ["the dog"] * 3 + ["the  dog ", "the cat", "a bird", "the cat", "the dog", " the cat", "the dog"]
    titles = [""] * 8 + [" ", "a"]
    rows = [{"title": title, "text": text} for title, text in zip(titles, texts, strict=True)]
    Path("copies.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    options = ["--title_column", "title", "--pooling", "avg", "--top_k", "3", *bm25]
    search.main(["model", "copies.jsonl", "the dog", "--output", "copies.out", *options])
    printed = [line.split("  ")[1:] for line in capsys.readouterr().out.splitlines()]
    assert printed[0] == ["row 0 (and 4 more)", "the dog"]
    assert len(printed) == 3
    assert {tuple(line) for line in printed[1:]} < {
        ("row 4 (and 2 more)", "the cat"), ("row 5", "a bird"), ("row 9", "a | the dog")
    }  # fmt: skip
    results = json.loads(Path("copies.out").read_text())["results"]
    assert [(one["rank"], one["row"]) for one in results] == [(1, 0), (2, 1), (3, 2)]
    assert "copies" not in results[0]


def test_the_best_rows_and_texts_block_by_block() -> None:
    """Those of all rows at once, also where copies have several scores, as with the words of their files."""
    rng = np.random.default_rng(0)
    texts, scores = rng.integers(0, 12, 90), rng.integers(0, 20, (4, 90)) / 20
    scores[:, ::7] = -np.inf
    for top_k in (1, 3, 30):
        best = nearest.BestRows(4, top_k, [])
        for start in range(0, 90, 7):
            part = slice(start, start + 7)
            table = pyarrow.table({"text": texts[part]})
            best.add(start, table, texts[part], {"score": scores[:, part]})
        for row, found in zip(scores, best.nearest(), strict=True):
            order = [place for place in np.argsort(-row, kind="stable").tolist() if row[place] >= 0]
            firsts = list({texts[place]: place for place in reversed(order)}.values())
            firsts.sort(key=order.index)
            assert [one["row"] for one in found.rows] == order[:top_k]
            assert [one["row"] for one in found.texts] == firsts[:top_k]
            assert [one["copies"] for one in found.texts] == [(texts == texts[one]).sum() - 1 for one in firsts[:top_k]]
            assert all(one["columns"]["text"] == texts[one["row"]] for one in (*found.rows, *found.texts))


def test_a_model_with_a_template(place, monkeypatch) -> None:
    """Query and texts are read in the model's template, as `encode` of the model reads them: the vector is what
    transformers' own encoder has at the template's mask."""
    fields = {"cmlm_weight": 0.0, "pooling": "prompt", "prompt_template": "w1 {sentence} w2 {mask}"}
    model = CMLMCSEForSentenceEmbedding.from_backbone("model", **fields).eval()
    tokenizer, plain = tiny_tokenizer("bert"), load_reference("bert", "model")
    read = read_template(fields["prompt_template"], tokenizer)
    prompted = with_template(tokenizer, read, special_tokens(tokenizer))
    model.save_pretrained("prompted")
    prompted.save_pretrained("prompted")
    texts, vectors = Path("texts.txt").read_text().splitlines(), []
    with torch.no_grad():
        for text in (QUERY, *texts):
            tokens = tokenizer(f"w1 {text} w2 [MASK]", return_tensors="pt")
            states, mask = plain(**tokens).last_hidden_state, tokens["input_ids"] == tokenizer.mask_token_id
            vectors.append(states[mask][0].numpy())
    searched: list[np.ndarray] = []
    find = nearest.nearest_rows
    monkeypatch.setattr(nearest, "nearest_rows", lambda *given: searched.append(given[0]) or find(*given))
    search.main(["prompted", "texts.txt", QUERY, "--top_k", "5", "--output", "out.jsonl"])
    np.testing.assert_allclose(searched[0], model.encode([QUERY], prompted), atol=1e-6)
    query, *rows = (vector / np.linalg.norm(vector) for vector in vectors)
    np.testing.assert_allclose(searched[0][0] / np.linalg.norm(searched[0]), query, atol=1e-5)
    exact = np.array(rows) @ query
    results = json.loads(Path("out.jsonl").read_text())["results"]
    assert [one["row"] for one in results] == np.argsort(-exact.round(6), kind="stable")[:5].tolist()
    np.testing.assert_allclose([one["score"] for one in results], np.sort(exact)[::-1][:5], atol=1e-5)


def test_blank_rows_are_never_found(place, capsys) -> None:
    """Neither of a file of texts nor of an encoded one; rows keep their numbers."""
    Path("gaps.txt").write_text("the dog\n\n   \nthe cat\n")
    encode.main(["model", "gaps.txt", "--pooling", "avg", "--output", "gaps.parquet"])
    for corpus in ("gaps.txt", "gaps.parquet"):
        search.main(["model", corpus, "a", "--pooling", "avg", "--output", f"{corpus}.out", "--bm25"])
        results = json.loads(Path(f"{corpus}.out").read_text())["results"]
        assert {one["row"] for one in results} == {0, 3}


@pytest.mark.parametrize("options", [[], ["--passages", "--bm25"]])
def test_values_of_several_types(options, place) -> None:
    """--output has them as they are, in whatever block of rows they come."""
    others = [{"id": 7, "more": {"a": 1}}, {"id": "A12", "more": [1.5, None]}, {"id": None}, {"id": 2**70, "title": 5}]
    rows = [{"text": f"the dog {number}", "title": "a dog", **other} for number, other in enumerate(others * 3)]
    Path("mixed.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    search.main(["model", "mixed.jsonl", "dog", "--pooling", "avg", "--top_k", "12", "--output", "out", *options])
    found = {one["row"]: one["columns"] for one in json.loads(Path("out").read_text())["results"]}
    for number, row in enumerate(rows):
        expected = {"more": None, **row, **({"document": number} if options else {})}
        assert found[number] == expected


def test_numbers_that_json_has_not_and_signs_of_a_terminal(place, capsys) -> None:
    """NaN and infinity of a row are null in --output; a text cannot colour the screen. A vector that is no number is
    the file's fault, not the model's."""
    Path("odd.jsonl").write_text(
        '{"text": "the dog", "p": NaN}\n{"text": "the \\u001b[31mcat 👩\u200d🔬", "p": 1e999}\n'
    )
    search.main(["model", "odd.jsonl", "dog", "--pooling", "avg", "--output", "odd.out"])
    assert "the ?[31mcat 👩\u200d🔬" in capsys.readouterr().out
    results = json.loads(Path("odd.out").read_text(), parse_constant=pytest.fail)["results"]
    assert [one["columns"]["p"] for one in results] == [None, None]
    table = parquet.read_table("texts.parquet")
    maps = pyarrow.array([[("a", float("nan"))]] * len(table), pyarrow.map_(pyarrow.string(), pyarrow.float64()))
    parquet.write_table(table.append_column("map", maps), "map.parquet")
    search.main(["model", "map.parquet", "dog", "--pooling", "avg", "--output", "map.out"])
    assert json.loads(Path("map.out").read_text())["results"][0]["columns"]["map"] == [["a", None]]
    vectors = table["embedding"].to_pylist()
    vectors[3][0] = float("nan")
    place_of = table.schema.names.index("embedding")
    column = pyarrow.array(vectors, table.schema.field("embedding").type)
    parquet.write_table(table.set_column(place_of, table.schema.field("embedding"), column), "nan.parquet")
    with pytest.raises(SystemExit, match="2"):
        search.main(["model", "nan.parquet", "dog", "--pooling", "avg"])
    assert "error: nan.parquet: expected finite embeddings" in capsys.readouterr().err


def test_titles_are_read_where_they_are_asked_for(place, capsys) -> None:
    """A title goes before its text, joined as in BEIR, for the vectors and for the words; from a table and from an
    encoded file alike. Without the option one line says that titles are there."""
    rows = [("the cat", "sat on a tree"), (None, "the cat"), ("a dog", None), ("", "a big mat")]
    joined = ["the cat sat on a tree", "the cat", "a dog", "a big mat"]
    Path("titled.jsonl").write_text("".join(json.dumps({"title": one, "text": two}) + "\n" for one, two in rows))
    Path("joined.txt").write_text("\n".join(joined) + "\n")
    read = ["--title_column", "title"]
    encode.main(["model", "titled.jsonl", "--pooling", "avg", "--output", "titled.parquet", *read])
    encode.main(["model", "titled.jsonl", "--pooling", "avg", "--output", "titled.npy", *read])
    encode.main(["model", "joined.txt", "--pooling", "avg", "--output", "joined.npy"])
    np.testing.assert_allclose(np.load("titled.npy"), np.load("joined.npy"), atol=1e-6)
    stored = parquet.read_table("titled.parquet")
    assert stored["text"].to_pylist() == ["sat on a tree", "the cat", "", "a big mat"]
    assert stored["title"].to_pylist() == ["the cat", None, "a dog", ""]
    found = []
    for corpus, options in (
        ("joined.txt", []),
        ("titled.jsonl", read),
        ("titled.parquet", []),
        ("titled.parquet", read),
    ):
        capsys.readouterr()
        search.main(["model", corpus, "the cat", "--bm25", "--pooling", "avg", "--output", "out.jsonl", *options])
        said = capsys.readouterr()
        assert "is not read" not in said.err
        (line,) = map(json.loads, Path("out.jsonl").read_text().splitlines())
        found.append(([(one["row"], one["score"], one["bm25"]) for one in line["results"]], said.out))
        Path("out.jsonl").unlink()
    for scores, shown in found[1:]:
        np.testing.assert_allclose(scores, found[0][0], atol=2e-6)
        assert shown.replace(" | ", " ") == found[0][1]
        assert "the cat | sat on a tree\n" in shown
    search.main(["model", "titled.jsonl", "the cat", "--pooling", "avg"])
    said = capsys.readouterr()
    assert "titled.jsonl: the column title is not read; --title_column title puts each title before" in said.err
    assert "the cat sat" not in said.out
    subjects = [{"id": "a b"[:row], "subject": one, "text": two} for row, (one, two) in enumerate(rows)]
    Path("subjects.jsonl").write_text("".join(json.dumps(row) + "\n" for row in subjects))
    said = "subjects.jsonl: the column text is read, not subject; if one has titles, --title_column subject puts each"
    for options in ([], ["--title_column", "subject"]):
        search.main(["model", "subjects.jsonl", "the cat", "--pooling", "avg", *options])
        assert (said in capsys.readouterr().err) is (not options)
    encode.main(["model", "titled.jsonl", "--pooling", "avg", "--output", "bare.parquet"])
    with pytest.raises(SystemExit, match="2"):
        search.main(["model", "bare.parquet", "the cat", "--pooling", "avg", *read])
    assert "with these titles, found none; encode the corpus again with --title_column" in capsys.readouterr().err


def test_standard_input(place, monkeypatch, capsys) -> None:
    """A query a line, blank ones left out; each with its own results; no more of them than there are rows."""
    Path("few.txt").write_text("a red dog\nthe big tree\n")
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"the big tree\n\na red dog\n")))
    search.main(["model", "few.txt", "-", "--pooling", "avg"])
    printed = capsys.readouterr().out.splitlines()
    assert (len(printed), printed[0], printed[3]) == (6, "the big tree", "a red dog")
    assert (printed[1], printed[4]) == ("  1.0000  row 1  the big tree", "  1.0000  row 0  a red dog")


def test_cut_embeddings_and_no_text(place, capsys) -> None:
    """The query is cut to as many dimensions as the file's embeddings were; without texts the row is named."""
    command = ["model", "texts.txt", "--pooling", "avg", "--truncate_dim", "5", "--no_text", "--output", "cut.parquet"]
    encode.main(command)
    search.main(["model", "cut.parquet", QUERY, "--pooling", "avg", "--top_k", "2"])
    assert capsys.readouterr().out.splitlines()[-2:] == ["1.0000  row 11", "1.0000  row 30"]
    with pytest.raises(SystemExit, match="2"):
        search.main(["model", "cut.parquet", QUERY, "--pooling", "avg", "--bm25"])
    assert capsys.readouterr().err.splitlines()[-1] == (
        "error: cut.parquet: --bm25 expects the texts in the column text, found columns of text: none; encode the "
        "corpus again without --no_text, or give --text_column"
    )


def test_another_model(place, backbone_folders, capsys) -> None:
    """Embeddings of another model, of another pooling, or of another size are refused; a copied model is the same.
    The exports of two runs are called by their runs."""
    shutil.copytree("model", "copy")
    search.main(["copy", "texts.parquet", QUERY, "--pooling", "avg"])
    other = CMLMCSEForSentenceEmbedding.from_backbone(backbone_folders["roberta"], pooling="avg").eval()
    other.save_pretrained("other")
    tiny_tokenizer("roberta").save_pretrained("other")
    parquet.write_table(pyarrow.table({"embedding": [[1.0, 2.0]], "text": ["a"]}), "two.parquet")
    ragged = pyarrow.table({"embedding": [[1.0] * 32, [1.0]], "text": ["a", "b"]})
    parquet.write_table(ragged, "ragged.parquet")
    shutil.copytree("model", "runs/first/export")
    shutil.copytree("other", "runs/second/export")
    for name, output in (("runs/first", "first.parquet"), ("runs/first/export", "own.parquet")):
        encode.main([name, "texts.txt", "--pooling", "avg", "--output", output])
    capsys.readouterr()
    for arguments, words in (
        (["runs/second", "first.parquet"], "of MODEL, runs/second with the pooling avg, found those of first with avg"),
        (["runs/second/export", "own.parquet"], "second/export with the pooling avg, found those of first with avg"),
        (["other", "texts.parquet"], "of MODEL, other with the pooling avg, found those of model with avg; encode"),
        (
            ["model", "texts.parquet", "--pooling", "cls_before_pooler"],
            "found those of model with avg; encode the corpus again with MODEL, or give",
        ),
        (["model", "two.parquet", "--pooling", "avg"], "expected embeddings of 32 dimensions, as model makes"),
        (["model", "ragged.parquet", "--pooling", "avg"], "expected embeddings of one size in every row"),
    ):
        with pytest.raises(SystemExit, match="2"):
            search.main([*arguments[:2], QUERY, *arguments[2:]])
        said = capsys.readouterr()
        assert words in said.err
        assert not said.out
