"""`cmlmcse search`: exact nearest texts, of texts and of encoded files; and how it answers wrong input."""

import io
import json
import math
import re
import shutil
from pathlib import Path

import numpy as np
import pyarrow
import pytest
import torch
from pyarrow import parquet
from safetensors.torch import load_file, save_file

from cmlmcse.data import tables
from cmlmcse.data.special_tokens import special_tokens
from cmlmcse.data.templates import read_template, with_template
from cmlmcse.encode import command as encode
from cmlmcse.search import command as search
from cmlmcse.search import nearest
from modeling_cmlmcse import CMLMCSEForSentenceEmbedding
from support.tiny import WORDS, load_reference, tiny_tokenizer

QUERY = "the cat sat on the mat"


@pytest.fixture
def place(backbone_folders, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model, 50 texts as lines and as a table, and the table encoded; small blocks."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tables, "TABLE_ROWS", 7)
    shutil.copytree(backbone_folders["bert"], "model")
    rng = np.random.default_rng(0)
    texts = [" ".join(rng.choice(WORDS, rng.integers(2, 9))) for _ in range(50)]
    texts[11] = texts[30] = QUERY  # the same score: the earlier row is first
    Path("texts.txt").write_text("\n".join(texts) + "\n")
    with Path("texts.jsonl").open("w") as file:
        file.writelines(json.dumps({"sentence": text, "id": f"d{row}"}) + "\n" for row, text in enumerate(texts))
    encode.main(["model", "texts.jsonl", "--text_column", "sentence", "--pooling", "avg", "--output", "texts.parquet"])
    return tmp_path


def cosines(texts: list[str]) -> np.ndarray:
    """Of the query with each text, by a model that encodes each by itself."""
    model = CMLMCSEForSentenceEmbedding.from_backbone(
        "model", cmlm_weight=0.0, projection="none", pooling="avg", backbone_dropout=0.0
    ).eval()
    query, *vectors = (model.encode(text, tokenizer=tiny_tokenizer("bert")) for text in [QUERY, *texts])
    return np.array([query @ v / np.linalg.norm(query) / np.linalg.norm(v) for v in vectors])


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
    assert printed[0] == f"1.0000  {QUERY}"
    assert [row.split("  ")[0] for row in printed] == [f"{one['score']:.4f}" for one in line["results"]]


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


def test_a_folder_of_files(place, capsys) -> None:
    """Its passages, each with its file and title, whether they are encoded now or were before."""
    Path("pages").mkdir()
    Path("pages/one.md").write_text(f"# the red dog\n\n{QUERY}\n\n## park\n\nrunning fast\n")
    Path("pages/two.txt").write_text("a blue bird\n")
    encode.main(["model", "pages", "--pooling", "avg", "--output", "pages.parquet"])
    said = []
    for corpus in ("pages", "pages.parquet"):
        search.main(["model", corpus, f"the red dog {QUERY}", "--pooling", "avg", "--output", f"{corpus}.out"])
        results = json.loads(Path(f"{corpus}.out").read_text())["results"]
        assert results[0]["columns"] == {"file": "one.md", "title": "the red dog", "text": QUERY}
        assert {one["columns"]["title"] for one in results} == {"the red dog", "the red dog: park", ""}
        said.append(capsys.readouterr().out.splitlines()[-3:])
    assert said[0] == said[1]
    assert said[0][0] == f"1.0000  one.md  the red dog | {QUERY}"
    Path("pages/two.txt").write_text("a blue bird and a cat\n")  # a finished file is not taken for the new text's
    with pytest.raises(SystemExit, match="2"):
        encode.main(["model", "pages", "--pooling", "avg", "--output", "pages.parquet"])


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


def test_the_passages_of_a_table(place, capsys) -> None:
    """Encoded now or before: a result says which row it is from, and with --bm25 the words of the whole row count."""
    long = " ".join(["the"] * 100)
    texts = [f"the dog {long}", f"the dog {long} the cat", QUERY]
    Path("long.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    encode.main(["model", "long.jsonl", "--passages", "--pooling", "avg", "--output", "long.parquet"])
    said = []
    for corpus, options in (("long.jsonl", ["--passages"]), ("long.parquet", [])):
        output = f"{corpus}.out"
        search.main(["model", corpus, "dog cat", "--pooling", "avg", "--output", output, "--bm25", "9", *options])
        results = json.loads(Path(output).read_text())["results"]
        assert sorted(one["columns"]["document"] for one in results) == [0, 0, 1, 1, 2]
        dogs = {one["columns"]["document"]: one for one in results if "dog" in one["columns"]["text"]}
        assert dogs[1]["bm25"] > dogs[0]["bm25"] > 0
        said.append(capsys.readouterr().out.splitlines()[-5:])
    assert said[0] == said[1]
    assert said[0][0].split("  ")[1] == "document 1"
    with pytest.raises(SystemExit, match="2"):
        encode.main(["model", "long.jsonl", "--pooling", "avg", "--output", "long.parquet"])  # other rows
    with pytest.raises(SystemExit, match="2"):
        search.main(["model", "long.parquet", "dog", "--pooling", "avg", "--passages"])
    assert "--passages expects texts, found embeddings in long.parquet; encode" in capsys.readouterr().err


def test_a_stored_file_without_its_column_of_files(place, capsys) -> None:
    """Another program may drop the column; the passages are then searched as those of no file."""
    Path("pages").mkdir()
    Path("pages/a.md").write_text("the dog\n\n# y\n\nthe bird\n")
    encode.main(["model", "pages", "--pooling", "avg", "--output", "pages.parquet"])
    table = parquet.read_table("pages.parquet")
    parquet.write_table(table.drop_columns(["file"]), "dropped.parquet")
    search.main(["model", "dropped.parquet", "the dog", "--pooling", "avg", "--bm25"])
    assert "the dog" in capsys.readouterr().out.splitlines()[-2]


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


def test_blank_rows_are_never_found(place, capsys) -> None:
    """Neither of a file of texts nor of an encoded one; rows keep their numbers."""
    Path("gaps.txt").write_text("the dog\n\n   \nthe cat\n")
    encode.main(["model", "gaps.txt", "--pooling", "avg", "--output", "gaps.parquet"])
    for corpus in ("gaps.txt", "gaps.parquet"):
        search.main(["model", corpus, "a", "--pooling", "avg", "--output", f"{corpus}.out", "--bm25"])
        results = json.loads(Path(f"{corpus}.out").read_text())["results"]
        assert {one["row"] for one in results} == {0, 3}


def test_embeddings_that_are_no_numbers(place, capsys) -> None:
    """Neither searched nor written."""
    weights = load_file("model/model.safetensors")
    name = next(name for name in weights if name.endswith("LayerNorm.weight"))
    weights[name] = weights[name] * float("nan")
    shutil.copytree("model", "broken")
    save_file(weights, "broken/model.safetensors", metadata={"format": "pt"})
    for command in (["broken", "texts.txt", "a"], ["broken", "texts.txt", "--output", "nan.npy"]):
        with pytest.raises(SystemExit, match="2"):
            (encode if "--output" in command else search).main([*command, "--pooling", "avg"])
        assert "expected finite embeddings, found NaN or infinity" in capsys.readouterr().err
    assert not Path("nan.npy").exists()


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


def test_a_file_that_does_not_name_its_model(place, backbone_folders, capsys) -> None:
    """Its first texts are encoded again. If that gives other embeddings, or there are no texts, the user is told. Two
    columns of one name are no fault."""
    table = parquet.read_table("texts.parquet").replace_schema_metadata(None)
    parquet.write_table(table, "anonymous.parquet")
    search.main(["model", "anonymous.parquet", QUERY, "--pooling", "avg"])
    assert "warning" not in capsys.readouterr().err
    search.main([backbone_folders["roberta"], "anonymous.parquet", QUERY, "--pooling", "avg"])
    said = capsys.readouterr().err
    assert (
        "anonymous.parquet does not say which model made its embeddings; those of its first texts have cosines" in said
    )
    parquet.write_table(table.append_column("text", table["text"]), "twice.parquet")
    search.main(["model", "twice.parquet", QUERY, "--pooling", "avg"])
    assert "warning" not in capsys.readouterr().err
    parquet.write_table(table.select(["embedding"]), "bare.parquet")
    search.main(["model", "bare.parquet", QUERY, "--pooling", "avg"])
    assert "warning: bare.parquet does not say which model made its embeddings" in capsys.readouterr().err


def test_a_file_that_was_changed(place, capsys) -> None:
    """The column of titles may be gone; a second column of embeddings and a damaged record are named."""
    Path("titled.jsonl").write_text('{"title": "Pets", "text": "the dog"}\n{"title": "", "text": "the tree"}\n')
    encode.main(["model", "titled.jsonl", "--pooling", "avg", "--title_column", "title", "--output", "titled.parquet"])
    table = parquet.read_table("titled.parquet")
    parquet.write_table(table.select(["text", "embedding"]), "untitled.parquet")
    search.main(["model", "untitled.parquet", "dog", "--pooling", "avg", "--bm25"])
    assert "the dog" in capsys.readouterr().out
    Path("only.jsonl").write_text('{"title": "Pets", "text": ""}\n{"title": "Trees", "text": "the tree"}\n')
    encode.main(["model", "only.jsonl", "--pooling", "avg", "--title_column", "title", "--output", "only.parquet"])
    parquet.write_table(parquet.read_table("only.parquet").select(["text", "embedding"]), "rest.parquet")
    search.main(["model", "rest.parquet", "dog", "--pooling", "avg", "--output", "rest.out"])
    assert len(json.loads(Path("rest.out").read_text())["results"]) == 2  # the empty text had a title
    parquet.write_table(table.append_column("embedding", table["embedding"]), "twice.parquet")
    parquet.write_table(table.replace_schema_metadata({b"cmlmcse": b"[1]"}), "damaged.parquet")
    for name, words in (("twice", "expected one column embedding"), ("damaged", "expected the record of cmlmcse")):
        with pytest.raises(SystemExit, match="2"):
            search.main(["model", f"{name}.parquet", "dog", "--pooling", "avg"])
        assert words in capsys.readouterr().err


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
    assert (printed[1], printed[4]) == ("  1.0000  the big tree", "  1.0000  a red dog")


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
    """Embeddings of another model, of another pooling, or of another size are refused; a copied model is the same."""
    shutil.copytree("model", "copy")
    search.main(["copy", "texts.parquet", QUERY, "--pooling", "avg"])
    other = CMLMCSEForSentenceEmbedding.from_backbone(backbone_folders["roberta"], pooling="avg").eval()
    other.save_pretrained("other")
    tiny_tokenizer("roberta").save_pretrained("other")
    parquet.write_table(pyarrow.table({"embedding": [[1.0, 2.0]], "text": ["a"]}), "two.parquet")
    ragged = pyarrow.table({"embedding": [[1.0] * 32, [1.0]], "text": ["a", "b"]})
    parquet.write_table(ragged, "ragged.parquet")
    capsys.readouterr()
    for arguments, words in (
        (["other", "texts.parquet"], "hold embeddings of MODEL, other with the pooling avg, found model with avg"),
        (["model", "texts.parquet", "--pooling", "cls_before_pooler"], "found model with avg in it; give that model"),
        (["model", "two.parquet", "--pooling", "avg"], "expected embeddings of 32 dimensions, as model makes"),
        (["model", "ragged.parquet", "--pooling", "avg"], "expected embeddings of one size in every row"),
    ):
        with pytest.raises(SystemExit, match="2"):
            search.main([*arguments[:2], QUERY, *arguments[2:]])
        said = capsys.readouterr()
        assert words in said.err
        assert not said.out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["model", "no.txt", "a"], "no.txt: expected a file or a folder of texts, found none"),
        (["model", "texts.txt", " "], "QUERY must be a text, found ' '"),
        (["model", "texts.txt", "-"], "found no line on standard input"),
        (["model", "texts.txt", "a", "--top_k", "0"], "expected a whole number of at least 1"),
        (["model", "texts.txt", "a", "--bm25", "-1"], "--bm25: expected a number above 0, found '-1'"),
        (["model", "texts.txt", "a", "--bm25", "nan"], "--bm25: expected a number above 0, found 'nan'"),
        (["model", "texts.txt", "--bm25", "a query"], "--bm25: expected a number above 0, found 'a query'"),
        (["model", "empty.txt", "a", "--bm25"], "expected texts to search, found no row"),
        (["model", "texts.txt", "a", "--output", "texts.txt"], "--output texts.txt: exists; choose another name"),
        (["model", "texts.txt", "a", "--output", "no/out.jsonl"], "expected the folder no to exist"),
        (["model", "texts.jsonl", "a"], "expected a column text, found the columns sentence, id"),
        (
            ["model", "texts.parquet", "a", "--text_column", "none"],
            "expected a column none, found the columns text",
        ),
        (
            ["model", "texts.jsonl", "a", "--text_column", "sentence", "--title_column", "sentence"],
            "--title_column expects another column than that of the texts, found sentence",
        ),
        (
            ["model", "texts.jsonl", "a", "--text_column", "sentence", "--title_column", "head"],
            "expected a column head, found the columns sentence, id; see --title_column",
        ),
        (["model", "texts.txt", "a", "--title_column", "title"], "--title_column expects a table"),
        (["model", "empty.txt", "a"], "expected texts to search, found no row"),
        (["model", "broken.parquet", "a"], "expected a Parquet file"),
        (["no/model", "texts.txt", "a"], "no/model"),
    ],
)
def test_errors(arguments, words, place, monkeypatch, capsys) -> None:
    """One line and status 2, and nothing is written."""
    Path("empty.txt").write_text("")
    Path("broken.parquet").write_bytes(b"PAR1 and no more")
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"\n")))
    before = {path: path.stat().st_mtime_ns for path in Path().iterdir()}
    capsys.readouterr()
    with pytest.raises(SystemExit, match="2"):
        search.main([*arguments, *(["--pooling", "avg"] if arguments[0] == "model" else [])])
    said = capsys.readouterr().err
    assert words in said
    assert len([line for line in said.splitlines() if line.startswith("error: ")]) == 1
    assert {path: path.stat().st_mtime_ns for path in Path().iterdir()} == before


def test_a_query_without_quotes(place, capsys) -> None:
    """Says that quotes are missing; another option is still unknown."""
    for words, said in (
        (["people", "who", "sing"], "QUERY must be one word of the command line, found 3; put quotes round it"),
        (["people", "--query", "x"], "unrecognized arguments: --query x"),
    ):
        with pytest.raises(SystemExit, match="2"):
            search.main(["model", "texts.txt", *words])
        assert said in capsys.readouterr().err


def test_queries_in_another_encoding(place, monkeypatch, capsys) -> None:
    """One line, and no traceback; a byte-order mark is no part of a query."""
    command = ["model", "texts.txt", "-", "--pooling", "avg"]
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"caf\xe9\n")))
    with pytest.raises(SystemExit, match="2"):
        search.main(command)
    assert "error: QUERY must be UTF-8 text, found something else" in capsys.readouterr().err
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"\xef\xbb\xbfthe cat\nthe dog\n")))
    search.main(command)
    assert capsys.readouterr().out.startswith("the cat\n")
