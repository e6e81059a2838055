"""`cmlmcse search`: exact nearest texts, of texts and of encoded files; and how it answers wrong input."""

import io
import json
import shutil
from pathlib import Path

import numpy as np
import pyarrow
import pytest
from pyarrow import parquet

from cmlmcse import encode, search
from cmlmcse.data import tables
from modeling_cmlmcse import CMLMCSEForSentenceEmbedding
from support.tiny import WORDS, tiny_tokenizer

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


def test_standard_input(place, monkeypatch, capsys) -> None:
    """A query a line, blank ones left out; each with its own results; no more of them than there are rows."""
    Path("few.txt").write_text("a red dog\nthe big tree\n")
    monkeypatch.setattr("sys.stdin", io.StringIO("the big tree\n\na red dog\n"))
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
        (["model", "no.txt", "a"], "no.txt: expected a file of texts, found none"),
        (["model", "texts.txt", " "], "QUERY must be a text, found ' '"),
        (["model", "texts.txt", "-"], "found no line on standard input"),
        (["model", "texts.txt", "a", "--top_k", "0"], "expected a whole number of at least 1"),
        (["model", "texts.txt", "a", "--output", "texts.txt"], "--output texts.txt: exists; choose another name"),
        (["model", "texts.txt", "a", "--output", "no/out.jsonl"], "expected the folder no to exist"),
        (["model", "texts.jsonl", "a"], "expected a column text, found the columns sentence, id"),
        (["model", "empty.txt", "a"], "expected texts to search, found no row"),
        (["model", "broken.parquet", "a"], "expected a Parquet file"),
        (["no/model", "texts.txt", "a"], "no/model"),
    ],
)
def test_errors(arguments, words, place, monkeypatch, capsys) -> None:
    """One line and status 2, and nothing is written."""
    Path("empty.txt").write_text("")
    Path("broken.parquet").write_bytes(b"PAR1 and no more")
    monkeypatch.setattr("sys.stdin", io.StringIO("\n"))
    before = {path: path.stat().st_mtime_ns for path in Path().iterdir()}
    capsys.readouterr()
    with pytest.raises(SystemExit, match="2"):
        search.main([*arguments, *(["--pooling", "avg"] if arguments[0] == "model" else [])])
    said = capsys.readouterr().err
    assert words in said
    assert len([line for line in said.splitlines() if line.startswith("error: ")]) == 1
    assert {path: path.stat().st_mtime_ns for path in Path().iterdir()} == before
