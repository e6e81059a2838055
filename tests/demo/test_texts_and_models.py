"""The demo's texts, models and tables, without a page."""

import html
import json
import re
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet
import pytest

from cmlmcse.hub.export import export
from modeling_cmlmcse import CMLMCSEForSentenceEmbedding
from support.demo import HOSTILE, LINES, Counting, write
from support.tiny import WORDS, tiny_tokenizer

import app  # isort: skip
import corpus  # isort: skip
import encoding  # isort: skip
import tables  # isort: skip
from corpus import SPACE, Corpus, Refused, read_corpus  # isort: skip
from encoding import DOCUMENT, PLAIN, QUERY, Encoder  # isort: skip


def test_reads_lines(tmp_path) -> None:
    """A text a line whatever the line ends, without empty lines and a byte-order mark."""
    path = write(tmp_path / "a.txt", "\ufeffone\r\n\r\n  two \rthe\u2028cat\x0bsat 🐈\n \n".encode())
    assert read_corpus(path).lines == ["one", "two", "the\u2028cat\x0bsat 🐈"]
    assert read_corpus(path).name == "a.txt"
    lines = write(tmp_path / "b.txt", b"a\n" * SPACE.lines)
    assert len(read_corpus(lines, SPACE).lines) == SPACE.lines
    assert read_corpus(write(tmp_path / "c.txt", b"a" * SPACE.characters), SPACE).lines == ["a" * SPACE.characters]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "found an empty file"),
        (b"\xef\xbb\xbf \r\n\n", "found an empty file"),
        (b"a" * (SPACE.size + 1), "at most 1,048,576 bytes, found 1,048,577"),
        ("Müller".encode("latin-1"), "UTF-8 text, found something else at byte 1;"),
        ("a b".encode("utf-16"), "UTF-8"),
        (b"a\n" * (SPACE.lines + 1), "at most 2,000 lines, found 2,001"),
        (b"ok\n" + b"a" * (SPACE.characters + 1), "at most 1,000 characters a line, found 1,001 in line 2"),
    ],
)
def test_refuses_files(content: bytes, message: str, tmp_path) -> None:
    """The message names the limit and what was found."""
    with pytest.raises(Refused, match=message):
        read_corpus(write(tmp_path / "a.txt", content), SPACE)


def test_limits_on_a_space_only(tmp_path, monkeypatch) -> None:
    """On one's own machine a file may be of any size; the uploads too."""
    large = write(tmp_path / "large.txt", (b"a" * (SPACE.characters + 1) + b"\n") * (SPACE.lines + 1))
    assert len(read_corpus(large).lines) == SPACE.lines + 1
    assert app.launch_options()["max_file_size"] is None
    monkeypatch.setenv("SPACE_ID", "owner/space")
    with pytest.raises(Refused, match="at most 1,048,576 bytes"):
        read_corpus(large)
    assert app.launch_options()["max_file_size"] == SPACE.size


def test_reads_a_table(tmp_path, monkeypatch) -> None:
    """A column of texts, as `cmlmcse encode` reads it; a Space has no cmlmcse, and says what to do."""
    table = write(tmp_path / "a.jsonl", b'{"text": "one", "title": "x"}\n{"text": " two "}\n{"text": ""}\n')
    assert read_corpus(table).lines == ["one", "two"]
    two = write(tmp_path / "two.csv", b"x,y\n1,2\n")
    with pytest.raises(Refused, match="expected a column text, found the columns x, y; give --text_column"):
        read_corpus(two)
    assert read_corpus(two, column="y").lines == ["2"]
    monkeypatch.setitem(sys.modules, "cmlmcse.data.tables", None)
    with pytest.raises(Refused, match=r"Expected a .txt file, found a table"):
        read_corpus(table)


def encoded(path: Path, vectors: Any, texts: list[str] | None = None, name: str = "embedding") -> Path:
    """A .parquet as `cmlmcse encode` writes it."""
    columns = {"text": texts or LINES, name: vectors if isinstance(vectors, list) else list(vectors)}
    pyarrow.parquet.write_table(pyarrow.table(columns), path)
    return path


def test_embeddings_of_a_file(tmp_path) -> None:
    """They are used as they are, whole or cut, if they are the model's; another model encodes the texts itself."""
    vectors = Counting()(LINES)
    for width in (7, 4):
        model, other = Counting(), Counting(letters="sdtgw")
        found = read_corpus(encoded(tmp_path / f"{width}.parquet", 3 * vectors[:, :width]))
        np.testing.assert_allclose(found.vectors, 3 * vectors[:, :width], rtol=1e-6)
        encoding.check_embeddings({"mine": Encoder(model), "other": Encoder(other)}, found)
        np.testing.assert_allclose(Encoder(model).encode_corpus(found), encoding.unit(vectors[:, :width]), atol=1e-6)
        assert max(map(len, model.batches)) == encoding.SAMPLE < len(LINES)
        np.testing.assert_allclose(Encoder(other).encode_corpus(found), other(LINES), atol=1e-6)
        query = encoding.unit(Counting()(["a tree"])[:, :width])[0]
        cosines = encoding.unit(vectors[:, :width]) @ query
        hits = encoding.nearest(Encoder(model), "a tree", found, 3)
        np.testing.assert_allclose([hit["cosine"] for hit in hits], np.sort(cosines)[::-1][:3], atol=5e-5)
        with pytest.raises(Refused, match=r"Expected embeddings made by x in \d.parquet, found others"):
            encoding.check_embeddings({"x": Encoder(other)}, found)
    assert read_corpus(encoded(tmp_path / "texts.parquet", vectors, name="other")).vectors is None


def test_titles_of_an_encoded_file(tmp_path) -> None:
    """The texts are those that were encoded: behind their titles, if the file says so."""
    titled = [f"red {line}" for line in LINES]
    table = pyarrow.table({"text": LINES, "t": ["red"] * len(LINES), "embedding": list(Counting()(titled))})
    table = table.replace_schema_metadata({b"cmlmcse": json.dumps({"title_column": "t"})})
    pyarrow.parquet.write_table(table, tmp_path / "titled.parquet")
    found = read_corpus(tmp_path / "titled.parquet")
    assert found.lines == titled
    encoding.check_embeddings({"mine": Encoder(Counting())}, found)


@pytest.mark.parametrize(
    ("vectors", "message"),
    [
        ([[1.0], [1.0, 2.0]], "one embedding of the same size"),
        ([[1.0], None], "one embedding of the same size"),
        ([[1.0], [float("nan")]], "one embedding of the same size"),
        ([[], []], "one embedding of the same size"),
        ([[1.0, 0.0, 0.0], [1.0]], "one embedding of the same size"),  # as many numbers as two rows of two
        ([1.0, 2.0], "one embedding of the same size"),
        ([["a"], ["b"]], "one embedding of the same size"),
        ([[[1.0]], [[2.0]]], "one embedding of the same size"),
    ],
)
def test_wrong_embeddings(vectors, message, tmp_path) -> None:
    """One line for each; a file that is no Parquet, or has no texts."""
    with pytest.raises(Refused, match=message):
        read_corpus(encoded(tmp_path / "a.parquet", vectors, ["a", "b"]))
    with pytest.raises(Refused, match="Expected a Parquet file, found one that cannot be read"):
        read_corpus(write(tmp_path / "b.parquet", b"PAR1"))
    pyarrow.parquet.write_table(pyarrow.table({"embedding": [[1.0]]}), tmp_path / "c.parquet")
    with pytest.raises(Refused, match="Expected texts in a column 'text'"):
        read_corpus(tmp_path / "c.parquet")
    pyarrow.parquet.write_table(pyarrow.table({"text": [1], "embedding": [[1.0]]}), tmp_path / "d.parquet")
    with pytest.raises(Refused, match="Expected texts in the column 'text', found int64"):
        read_corpus(tmp_path / "d.parquet")
    long = encoded(tmp_path / "e.parquet", [[1.0], [2.0]], ["a", "b" * 2_000])
    with pytest.raises(Refused, match="at most 1,000 characters a line, found 2,000 in line 2"):
        read_corpus(long, SPACE)


@pytest.mark.parametrize(("name", "kind"), [("faq.csv.txt", ".txt"), ("NEWS.CSV", ".csv"), ("a.jsonl.gz", ".jsonl")])
def test_what_a_file_is(name, kind) -> None:
    """Its last suffix says so, in any case, before that of a compression; a lone surrogate in a text is no error."""
    assert corpus.kind_of(Path(name)) == kind
    assert Corpus("a", ["\ud800"]).key != Corpus("a", ["b"]).key
    assert Corpus("a", ["b\nc"]).key != Corpus("a", ["b", "c"]).key


def test_checks_queries_and_sentences() -> None:
    """Blanks are no query; a box holds 1 to 20 sentences."""
    assert corpus.check_query("  the cat \n sat ") == "the cat sat"
    assert corpus.check_sentences("a\n\n b ", "the first box") == ["a", "b"]
    for query in (None, "", " \n\t"):
        with pytest.raises(Refused, match="Expected a query, found none"):
            corpus.check_query(query)
    with pytest.raises(Refused, match="found half a character in line 1"):
        corpus.check_query("\ud800")
    with pytest.raises(Refused, match="at most 1,000 characters"):
        corpus.check_query("a" * 1001)
    for text, found in ((None, 0), (" \n", 0), ("a\n" * 21, 21)):
        with pytest.raises(Refused, match=f"1 to 20 sentences in the second box, one a line, found {found}"):
            corpus.check_sentences(text, "the second box")


def test_one_broken_request_fails_alone() -> None:
    """Those that wait with it get their vectors."""

    class Breaks(Counting):
        def __call__(self, texts, way=encoding.PLAIN):
            if "broken" in texts:
                raise ValueError("broken")
            return super().__call__(texts, way)

    encoder = Encoder(Breaks(seconds=0.05))
    with ThreadPoolExecutor(20) as pool:
        answers = [pool.submit(encoder.encode, ["broken" if index == 7 else f"a {index}"]) for index in range(20)]
        failed = [index for index, answer in enumerate(answers) if answer.exception() is not None]
    assert failed == [7]


def test_blank_rows_answer_nothing() -> None:
    """An encoded file keeps them, so that its rows keep their places."""
    lines = [LINES[0], "", LINES[1]]
    found = encoding.nearest(Encoder(Counting()), "a tree", Corpus("lines", lines), 3)
    assert sorted(hit["text"] for hit in found) == sorted(LINES[:2])


def test_nearest_and_similarity() -> None:
    """The cosines of plain vectors, best first, as many as asked for or there are; queries and texts by the model's own
    ways."""
    model = Counting()
    encoder = Encoder(model)
    vectors, query = Counting()(LINES), Counting()(["a tree"])
    cosines = vectors @ query[0]
    hits = encoding.nearest(encoder, "a tree", Corpus("lines", LINES), 4)
    assert [hit["text"] for hit in hits] == [LINES[index] for index in np.argsort(-cosines, kind="stable")[:4]]
    np.testing.assert_allclose([hit["cosine"] for hit in hits], np.sort(cosines)[::-1][:4], atol=5e-5)
    assert model.ways == {QUERY, DOCUMENT}
    assert len(encoding.nearest(encoder, "a tree", Corpus("lines", LINES[:3]), 20)) == 3
    found = encoding.similarity(encoder, LINES[:2], LINES[:5])
    np.testing.assert_allclose(found, vectors[:2] @ vectors[:5].T, atol=1e-6)


def test_models_side_by_side() -> None:
    """Each model answers for itself; what one of them alone found is marked, and no text is markup."""
    models = {"a/before": Counting(), "<b>after": Counting(letters="sdtgw")}
    own = Corpus("lines", [*LINES, HOSTILE[0]])
    answers = app.Answers({name: Encoder(model) for name, model in models.items()}, own)
    table, data = answers.search("a tree", 3, None)
    assert list(data) == list(models)
    alone = set()
    for name, model in models.items():
        cosines = model(own.lines) @ model(["a tree"])[0]
        best = [own.lines[index] for index in np.argsort(-cosines, kind="stable")[:3]]
        assert [hit["text"] for hit in data[name]] == best
        alone ^= set(best)
    assert 0 < len(alone) < 6
    assert set(re.findall(r'<td dir="auto" class="alone">([^<]*)</td>', table)) == {html.escape(text) for text in alone}
    assert "<b>" not in table
    table, data = answers.compare("the cat", "the dog\na tree")
    assert {name: np.shape(cosines) for name, cosines in data.items()} == dict.fromkeys(models, (1, 2))
    assert table.count('class="number"') == 4


def test_batches_what_waits() -> None:
    """One thread runs the model; requests that wait are one batch, and each gets its own rows."""
    model = Counting(seconds=0.05)
    encoder = Encoder(model)
    texts = [WORDS[index % len(WORDS)] * (1 + index % 3) for index in range(100)]
    with ThreadPoolExecutor(50) as pool:
        found = list(pool.map(lambda index: encoder.encode(texts[index : index + 2]), range(50)))
    for index, rows in enumerate(found):
        np.testing.assert_allclose(rows, Counting()(texts[index : index + 2]))
    assert sum(map(len, model.batches)) == 100
    assert len(model.batches) < 10
    assert len(model.threads) == 1


def test_a_query_does_not_wait_for_a_file() -> None:
    """It is answered after the part of the file that is under way."""
    model = Counting(seconds=0.02)
    encoder = Encoder(model)
    file = threading.Thread(target=encoder.encode_corpus, args=(Corpus("a", ["the cat"] * (30 * encoding.BATCH)),))
    file.start()
    while not model.batches:
        time.sleep(0.001)
    encoder.encode(["a dog"])
    assert file.is_alive()
    assert len(model.batches) < 10
    file.join()


def test_encodes_a_corpus_once(monkeypatch) -> None:
    """Also when several ask at the same time; the oldest of too many is forgotten, a failed one is tried again."""
    monkeypatch.setattr(encoding, "CORPORA", 2)
    model = Counting(seconds=0.01)
    encoder = Encoder(model)
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda _: encoder.encode_corpus(Corpus("1", ["cat", "a"])), range(8)))
    assert model.batches == [["cat", "a"]]
    assert all(rows is found[0] for rows in found)
    for lines in (["b"], ["cat", "a"], ["c"], ["cat", "a"], ["b"]):
        encoder.encode_corpus(Corpus("2", lines))
    assert model.batches[1:] == [["b"], ["c"], ["b"]]
    for _ in range(2):
        with pytest.raises(RuntimeError, match="no memory"):
            encoder.encode_corpus(Corpus("3", ["fail"]))
    assert model.batches[-2:] == [["fail"], ["fail"]]
    assert encoder.encode(["a"]).shape == (1, 7)  # the thread lives on


def test_order_of_a_long_list() -> None:
    """Texts of similar length share a batch; the rows come back in the order of the texts."""
    model, texts = Counting(), [WORDS[index % 40] * (1 + 7 * index % 11) for index in range(3 * encoding.BATCH)]
    np.testing.assert_allclose(Encoder(model).encode(texts), Counting()(texts))
    assert [max(map(len, batch)) for batch in model.batches] == sorted(
        (max(map(len, batch)) for batch in model.batches), reverse=True
    )


def test_tables_show_text_literally() -> None:
    """Nothing of a text is markup."""
    cosines = np.array([[0.5, -0.001]] * len(HOSTILE))
    found = (
        tables.hits_table([{"cosine": 0.5, "text": text} for text in HOSTILE]),
        tables.similarity_table(HOSTILE, HOSTILE[:2], cosines),
    )
    for table in found:
        assert set(re.findall(r"</?(\w+)", table)) <= {"div", "table", "thead", "tbody", "tr", "th", "td"}
        assert html.escape(HOSTILE[0]) in table
    assert "-0.00" not in found[1]
    assert len(tables.shown("x" * 999)) == tables.SHOWN
    assert "0.50" in tables.similarity_table(["a"], ["b"], np.array([[0.5]]))


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("./missing", "MODEL expects a folder or OWNER/NAME on the Hub, found ./missing"),
        ("missing", "MODEL expects a folder or OWNER/NAME on the Hub, found missing"),
        ("BACKBONE", "MODEL expects a sentence encoder, found no modules.json in "),
        ("BROKEN", "which does not load: "),
        ("owner/name", "MODEL expects a sentence encoder, found owner/name, which does not load: "),
    ],
)
def test_wrong_model_on_a_space(model, message, backbone_folders, tmp_path, monkeypatch) -> None:
    """There sentence-transformers loads it, and nothing else."""
    write(tmp_path / "modules.json", b"[]")
    monkeypatch.setenv("SPACE_ID", "owner/space")
    with pytest.raises(Refused, match=re.escape(message)):
        encoding.load_encoder({"BACKBONE": backbone_folders["bert"], "BROKEN": str(tmp_path)}.get(model, model))


def test_what_evaluation_takes(backbone_folders, tmp_path, monkeypatch) -> None:
    """A run's folder, a checkpoint, an export and a plain backbone, with prompts; the same as sentence-transformers."""
    prompts = {"query": "w1 w2 ", "document": ""}
    model = CMLMCSEForSentenceEmbedding.from_backbone(
        backbone_folders["bert"], cmlm_weight=0.0, projection="none", pooling="avg", prompts=prompts
    ).eval()
    run = tmp_path / "runs" / "mine"
    export(model, tiny_tokenizer("bert"), run / "export")
    model.save_pretrained(run / "checkpoint-3")
    tiny_tokenizer("bert").save_pretrained(run / "checkpoint-3")
    texts = ["the cat", "a big dog"]
    expected = {way: encoding.unit(getattr(model, way)(texts, tiny_tokenizer("bert"))) for way in (QUERY, DOCUMENT)}
    assert np.abs(expected[QUERY] - expected[DOCUMENT]).max() > 0.01
    for folder in (run, run / "export", run / "checkpoint-3"):
        encode = encoding.load_encoder(str(folder), pooling="cls_before_pooler")  # which they do not need
        for way, vectors in expected.items():
            np.testing.assert_allclose(encode(texts, way), vectors, atol=1e-5)
    plain = encoding.load_encoder(backbone_folders["bert"], pooling="avg")
    np.testing.assert_allclose(plain(texts, PLAIN), expected[DOCUMENT], atol=1e-5)
    monkeypatch.setenv("SPACE_ID", "owner/space")
    encode = encoding.load_encoder(str(run / "export"))
    for way, vectors in expected.items():
        np.testing.assert_allclose(encode(texts, way), vectors, atol=1e-5)


def test_names_of_models(tmp_path, monkeypatch) -> None:
    """Short, and different from one another."""
    for name in ("runs/mine", "other/runs/mine"):
        (tmp_path / name).mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert encoding.labels(["runs/mine", "owner/name"]) == ["runs/mine", "owner/name"]
    assert encoding.labels(["runs/mine", "other/runs/mine"]) == ["runs/mine (1)", "runs/mine (2)"]
