"""`encode`, the method and the command: the same vectors however they are batched, cut in parts or interrupted."""

import csv
import gzip
import json
import shutil
import tracemalloc
from pathlib import Path

import numpy as np
import pyarrow
import pytest
import torch
import torch.distributed as dist
from pyarrow import parquet
from tokenizers.processors import TemplateProcessing
from transformers import PreTrainedTokenizerFast

from cmlmcse import encode
from cmlmcse.common.errors import InputError
from cmlmcse.data import file_parts, tables
from cmlmcse.encode import main
from modeling_cmlmcse import CMLMCSEForSentenceEmbedding
from modeling_cmlmcse.text_encoding import choose_limits, split_batches
from support.machines import on_two_machines
from support.processes import launch
from support.tiny import WORDS, tiny_tokenizer

ROWS = 83


@pytest.fixture(scope="module")
def model(backbone_folders) -> CMLMCSEForSentenceEmbedding:
    return CMLMCSEForSentenceEmbedding.from_backbone(
        backbone_folders["bert"], cmlm_weight=0.0, projection="none", pooling="avg"
    ).eval()


@pytest.fixture
def lines(tmp_path: Path) -> list[str]:
    """Sentences of 0 to 20 words, in `in.txt` with mixed line ends and a byte-order mark, and in `in.parquet`."""
    rng = np.random.default_rng(0)
    lines = [" ".join(rng.choice(WORDS, rng.integers(20))) for _ in range(ROWS)]
    lines[5], lines[6], lines[7] = "", "  ", "the\u2028cat\x0bsat 🐈"  # one line each, whatever str.splitlines thinks
    ends = ["\r\n" if index % 3 == 0 else "\n" for index in range(ROWS - 1)] + [""]
    text = "\ufeff" + "".join(line + end for line, end in zip(lines, ends, strict=True))
    (tmp_path / "in.txt").write_bytes(text.encode())
    parquet.write_table(pyarrow.table({"text": lines, "n": range(ROWS)}), tmp_path / "in.parquet")
    return lines


@pytest.fixture
def arguments(backbone_folders, tmp_path: Path) -> list[str]:
    return [
        backbone_folders["bert"],
        str(tmp_path / "in.txt"),
        "--pooling",
        "avg",
        "--output",
        str(tmp_path / "out.npy"),
    ]


def expected(model: CMLMCSEForSentenceEmbedding, lines: list[str], **options) -> np.ndarray:
    """What the method gives, a sentence at a time."""
    return np.stack([model.encode(line, tokenizer=tiny_tokenizer("bert"), **options) for line in lines])


def without_special_tokens() -> PreTrainedTokenizerFast:
    """A tokenizer that adds nothing, so that an empty text has no token."""
    tokenizer = tiny_tokenizer("bert")
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(single="$A", special_tokens=[])
    return tokenizer


@pytest.mark.parametrize("batch_size", (1, 64))
def test_a_text_without_tokens(batch_size, model) -> None:
    """It has no embedding: refused by its place, where a NaN or torch's own words came before."""
    message = r"found none in text 1 \(counted from 0\), '': leave it out, or use a tokenizer that adds special tokens"
    with pytest.raises(ValueError, match=message):
        model.encode(["the cat", "", "dog"], without_special_tokens(), batch_size=batch_size)
    assert np.isfinite(model.encode(["the cat", "dog"], without_special_tokens())).all()
    assert np.isfinite(model.encode([""], tiny_tokenizer("bert"))).all()


@pytest.mark.parametrize("length", (-3, 0, 1, 2))
def test_a_maximum_without_room_for_a_word(length, model) -> None:
    """Below [CLS] word [SEP] the tokenizer overflowed, cut nothing, or left no word."""
    with pytest.raises(ValueError, match=f"max_length must be at least 3, special tokens and a word, found {length}"):
        model.encode(["the cat sat"], tiny_tokenizer("bert"), max_length=length)


def test_the_least_maximum(model) -> None:
    """One word beside [CLS] and [SEP], and a word alone."""
    for tokenizer, length in ((tiny_tokenizer("bert"), 3), (without_special_tokens(), 1)):
        cut, whole = model.encode(["the cat sat", "the"], tokenizer, max_length=length)
        np.testing.assert_allclose(cut, whole, atol=1e-6)


def test_a_row_without_tokens(lines, arguments, backbone_folders, tmp_path, capsys) -> None:
    """The command names the file and the text in one line, and writes nothing."""
    folder = tmp_path / "model"
    shutil.copytree(backbone_folders["bert"], folder)
    without_special_tokens().save_pretrained(folder)
    with pytest.raises(SystemExit) as stop:
        main([str(folder), *arguments[1:]])
    assert stop.value.code == 2
    said = capsys.readouterr().err.splitlines()[-1]
    assert said.startswith(
        f"error: {tmp_path / 'in.txt'}, in the part from row 0 on: encode expects at least one token"
    )
    assert not (tmp_path / "out.npy").exists()


def test_method(model, lines) -> None:
    """Batches by sentences or by tokens, tensors, truncation before normalisation."""
    tokenizer = tiny_tokenizer("bert")
    whole = expected(model, lines)
    for options in ({"batch_size": 1}, {"batch_size": 7}, {"batch_tokens": 40}, {"batch_tokens": 1}):
        np.testing.assert_allclose(model.encode(lines, tokenizer, **options), whole, atol=1e-5)
    tensor = model.encode(lines, tokenizer, convert_to_tensor=True)
    assert isinstance(tensor, torch.Tensor)
    np.testing.assert_allclose(tensor.numpy(), whole, atol=1e-5)
    cut = whole[:, :5] / np.linalg.norm(whole[:, :5], axis=1, keepdims=True)
    np.testing.assert_allclose(model.encode(lines, tokenizer, normalize=True, truncate_dim=5), cut, atol=1e-5)
    assert model.encode([], tokenizer, truncate_dim=5).shape == (0, 5)
    for wrong in ({"truncate_dim": 33}, {"truncate_dim": 0}, {"batch_size": 0}, {"batch_tokens": 0}):
        with pytest.raises(ValueError, match="found"):
            model.encode(lines, tokenizer, **wrong)


def test_split_batches() -> None:
    """No batch holds more than it may, but for a sentence that alone does."""
    assert list(split_batches([9, 5, 4, 3, 1], 2, None)) == [slice(0, 2), slice(2, 4), slice(4, 5)]
    assert list(split_batches([9, 5, 4, 3, 1], 2, 8)) == [slice(0, 1), slice(1, 2), slice(2, 5)]
    assert list(split_batches([], 2, 8)) == []


def test_batches_of_a_gpu() -> None:
    """By tokens, because it waits for the host in small batches; whoever asks for sentences gets them."""
    assert choose_limits("cpu", None, None) == (64, None)
    assert choose_limits("cuda", None, None) == (None, 16_384)
    assert choose_limits("cuda", 32, None) == (32, None)
    assert choose_limits("mps", None, 4096) == (None, 4096)


@pytest.mark.parametrize("source", ["in.txt", "in.parquet", "in.txt.gz"])
@pytest.mark.parametrize("target", ["out.npy", "out.parquet"])
@pytest.mark.parametrize("part_rows", [10, 2048])
def test_command(source, target, part_rows, model, lines, arguments, tmp_path, monkeypatch, capsys) -> None:
    """A row a line in order, empty ones too, as the method has them; of parts and blocks nothing is seen."""
    monkeypatch.setattr(file_parts, "PART_ROWS", part_rows)
    monkeypatch.setattr(tables, "TABLE_ROWS", 7)
    (tmp_path / "in.txt.gz").write_bytes(gzip.compress((tmp_path / "in.txt").read_bytes()))
    output = tmp_path / target
    main([arguments[0], str(tmp_path / source), "--pooling", "avg", "--output", str(output), "--normalize"])
    assert f"{ROWS} rows × 32" in capsys.readouterr().out
    if target == "out.npy":
        found = np.load(output)
    else:
        table = parquet.read_table(output)
        assert table["embedding"].type == pyarrow.list_(pyarrow.float32(), 32)
        assert table["text"].to_pylist() == lines
        assert table.column_names == ["text", "embedding", *(["n"] if source == "in.parquet" else [])]
        assert source != "in.parquet" or table["n"].to_pylist() == list(range(ROWS))
        found = np.array(table["embedding"].to_pylist(), np.float32)
    np.testing.assert_allclose(found, expected(model, lines, normalize=True), atol=1e-5)
    assert {path.name for path in tmp_path.iterdir()} == {"in.txt", "in.parquet", "in.txt.gz", target}


@pytest.mark.parametrize("name", ["in.csv", "in.tsv.gz", "in.jsonl", "in.parquet"])
def test_tables(name, model, arguments, tmp_path, monkeypatch) -> None:
    """The text column by its name or as the only one of strings; the other columns come along, with one type in all
    parts, values that some rows lack included; no row is dropped."""
    monkeypatch.setattr(file_parts, "PART_ROWS", 2)
    monkeypatch.setattr(tables, "TABLE_ROWS", 2)
    texts = ["the cat, sat", "", 'a "big" dog', "w1\tw2" if name != "in.tsv.gz" else "w1 w2", "ran"]
    numbers = [1, 2, 3, 4, 5.5]
    rows = [{"sentence": text, "n": number} for text, number in zip(texts, numbers, strict=True)]
    if name == "in.jsonl":
        rows[1]["late"] = {"a": 1}
        (tmp_path / name).write_text("\n".join(map(json.dumps, rows)) + "\n\n")
    elif name == "in.parquet":
        parquet.write_table(pyarrow.table({"sentence": texts, "n": numbers}), tmp_path / name)
    elif name == "in.csv":
        with (tmp_path / name).open("w", newline="", encoding="utf-8-sig") as file:
            csv.writer(file).writerows([["sentence", "n"], *(row.values() for row in rows)])
    else:
        text = "".join(f"{one['sentence']}\t{one['n']}\n" for one in [{"sentence": "sentence", "n": "n"}, *rows])
        (tmp_path / name).write_bytes(gzip.compress(text.encode()))
    output = tmp_path / "out.parquet"
    command = [arguments[0], str(tmp_path / name), "--pooling", "avg", "--output", str(output)]
    main([*command, "--text_column", "sentence"] if name == "in.parquet" else command)  # else: the numbers are no texts
    table = parquet.read_table(output)
    assert table.column_names == ["text", "embedding", "n", *(["late"] if name == "in.jsonl" else [])]
    assert table["text"].to_pylist() == texts
    typed = name in ("in.jsonl", "in.parquet")
    assert table["n"].to_pylist() == (numbers if typed else list(map(str, numbers)))
    if name == "in.jsonl":
        assert table["late"].to_pylist() == [None, {"a": 1}, None, None, None]
    np.testing.assert_allclose(np.array(table["embedding"].to_pylist()), expected(model, texts), atol=1e-5)
    origin = json.loads(parquet.read_schema(output).metadata[b"cmlmcse"])
    assert (origin["model"], origin["pooling"]) == (Path(arguments[0]).name, "avg")
    if typed:  # the only column of strings
        main([*command, "--overwrite", "--no_text"])
        assert parquet.read_table(output).column_names == table.column_names[1:]


def test_long_texts_are_mentioned(arguments, tmp_path, capsys) -> None:
    """A line says how much of them the model does not read; short ones have no such line."""
    for words, mentioned in ((3, False), (300, True)):
        (tmp_path / "in.txt").write_text("cat " * words + "\n")
        output = tmp_path / f"{words}.npy"
        main([arguments[0], str(tmp_path / "in.txt"), "--pooling", "avg", "--output", str(output)])
        assert ("tokens of a text, which cuts off" in capsys.readouterr().err) == mentioned


def test_empty_objects(arguments, tmp_path, capsys) -> None:
    """BEIR's `metadata`, which Parquet cannot hold, becomes a column without values; deeper ones are refused."""
    rows = [{"_id": str(number), "text": "the cat", "metadata": {}} for number in range(3)]
    (tmp_path / "in.jsonl").write_text("\n".join(map(json.dumps, rows)))
    command = [arguments[0], str(tmp_path / "in.jsonl"), "--text_column", "text", "--pooling", "avg"]
    main([*command, "--output", str(tmp_path / "out.parquet")])
    table = parquet.read_table(tmp_path / "out.parquet")
    assert table.column_names == ["text", "embedding", "_id", "metadata"]
    assert table["metadata"].to_pylist() == [None] * 3
    (tmp_path / "in.jsonl").write_text(json.dumps({"text": "the cat", "more": {"inner": [{}]}}))
    with pytest.raises(SystemExit, match="2"):
        main([*command, "--output", str(tmp_path / "deep.parquet")])
    assert "found empty objects within the column more; leave them out" in capsys.readouterr().err
    assert not list(tmp_path.glob("deep*"))


@pytest.mark.parametrize(
    ("name", "content", "options", "words"),
    [
        ("in.csv", "text,n\nthe cat\n", [], "expected 2 fields in line 2, as in the header, found 1"),
        ("in.csv", 'text\n"the cat\n', [], "expected CSV, found line 2"),
        ("in.jsonl", '{"text": "a"}\n{"text": \n', [], "expected one JSON object per line, found line 2"),
        ("in.jsonl", '["a"]\n', [], "expected one JSON object per line, found list in line 1"),
        ("in.jsonl", '{"text": "a"}\n{"text": 1}\n', [], "expected one type of value in the column text"),
        (
            "in.jsonl",
            '{"a": "x", "b": "y"}\n',
            [],
            "expected a column text, found the columns a, b; give",
        ),
        ("in.jsonl", '{"a": "x", "b": "y"}\n', ["--text_column", "c"], "expected a column c, found the columns a, b"),
        ("in.jsonl", '{"text": 3}\n', [], "expected text in the column text, found int64"),
        ("in.jsonl", '{"a": "x", "text": "y"}\n', ["--text_column", "a"], "found another one of that name"),
        ("in.csv", b"text\ncaf\xe9\n", [], "expected UTF-8 text, found byte 0xe9"),
        ("in.csv", "text,text\na,b\n", [], "expected each column once, found 'text' twice"),
        ("notes.tsv.csv", "text\tn\nthe cat\t1\n", [], "expected commas between the columns, found '\\t'"),
        ("in.tsv", "text,n\nthe cat,1\n", [], "expected tabs between the columns, found ','"),
        ("in.csv", "text,n\n", [], "expected rows of texts, found none"),
        ("in.json", '[{"text": "a"}, 3]', [], "expected one JSON object per line, found int in row 2"),
        ("in.json", '[{"text": ', [], "expected a JSON list of objects, found"),
        ("in.jsonl", '{"text": "a", "n": 1}\n{"text": "b", "n": "x"}\n', [], "one type of value in the column n"),
        (
            "in.jsonl",
            f'{{"text": "a", "n": {2**60 + 1}}}\n' * tables.TABLE_ROWS + '{"text": "b", "n": NaN}\n',
            [],
            "one type of value in the column n, found fractions, and whole numbers above 9,007,199,254,740,992",
        ),
    ],
)
def test_wrong_tables(name, content, options, words, arguments, tmp_path, capsys) -> None:
    """One line and status 2 before the work."""
    (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    output = tmp_path / "out.parquet"
    with pytest.raises(SystemExit, match="2"):
        main([arguments[0], str(tmp_path / name), "--output", str(output), "--pooling", "avg", *options])
    assert words in capsys.readouterr().err
    assert {path.name for path in tmp_path.iterdir()} == {name}


@pytest.mark.slow
def test_shards(model, lines, arguments, tmp_path) -> None:
    """Files of so many rows, the last one shorter."""
    main([*arguments, "--rows_per_shard", "40", "--truncate_dim", "3"])
    shards = [np.load(tmp_path / f"out-0000{index}-of-00003.npy") for index in range(3)]
    assert [len(shard) for shard in shards] == [40, 40, 3]
    np.testing.assert_allclose(np.concatenate(shards), expected(model, lines)[:, :3], atol=1e-5)


def test_nothing_that_is_read_or_foreign_is_removed(lines, arguments, tmp_path, capsys) -> None:
    """An input that is called as a shard of the output; a folder of somebody's files where the parts would be."""
    table = tmp_path / "out-00000-of-00002.parquet"
    parquet.write_table(pyarrow.table({"text": ["a cat", "a dog"]}), table)
    (tmp_path / "other.npy.parts").mkdir()
    (tmp_path / "other.npy.parts" / "notes.txt").write_text("mine")
    for words, message in (
        ([arguments[0], str(table), *arguments[2:-1], str(tmp_path / "out.parquet"), "--rows_per_shard", "1",
          "--overwrite"],
         "expected another file than the input, found"),
        ([*arguments[:-1], str(tmp_path / "other.npy")], "expected a folder of parts, found other files in it"),
    ):  # fmt: skip
        with pytest.raises(SystemExit, match="2"):
            main(words)
        assert message in capsys.readouterr().err
    assert table.exists()
    assert (tmp_path / "other.npy.parts" / "notes.txt").exists()


def test_overwriting_shards_and_going_on(lines, arguments, tmp_path, monkeypatch, capsys) -> None:
    """Shards of another number go too; an interrupted --overwrite goes on without it; a folder is refused."""
    main([*arguments, "--rows_per_shard", "40"])
    with pytest.raises(SystemExit):
        main([*arguments, "--rows_per_shard", "50"])
    assert "out-00000-of-00003.npy: exists" in capsys.readouterr().err
    monkeypatch.setattr(file_parts, "PART_ROWS", 20)
    write, written = file_parts.Job.write_part, []

    def dying(self, path, block) -> None:
        if len(written) == 2:
            raise KeyboardInterrupt
        written.append(path)
        write(self, path, block)

    monkeypatch.setattr(file_parts.Job, "write_part", dying)
    again = [*arguments, "--rows_per_shard", "50", "--overwrite"]
    with pytest.raises(SystemExit, match="130"):
        main(again)
    assert "40 of 83 rows are kept; run the same command without --overwrite to resume" in capsys.readouterr().err
    monkeypatch.setattr(file_parts.Job, "write_part", write)
    main(again[:-1])
    assert "40 of 83 rows were done already" in capsys.readouterr().out
    assert sorted(path.name for path in tmp_path.glob("out-*")) == ["out-00000-of-00002.npy", "out-00001-of-00002.npy"]
    (tmp_path / "out.npy").mkdir()
    with pytest.raises(SystemExit, match="2"):
        main([*arguments, "--overwrite"])
    assert "expected a file, found a folder" in capsys.readouterr().err


@pytest.mark.slow
def test_goes_on_while_shards_get_their_names(model, lines, arguments, tmp_path, monkeypatch, capsys) -> None:
    """Killed between two renames: the next run takes the shards that have their names as done."""
    rename, renamed = Path.replace, []

    def dying(self: Path, target: Path) -> Path:
        if Path(target).name.startswith("out-"):
            renamed.append(target)
            if len(renamed) == 2:
                raise KeyboardInterrupt
        return rename(self, target)

    monkeypatch.setattr(Path, "replace", dying)
    with pytest.raises(SystemExit, match="130"):
        main([*arguments, "--rows_per_shard", "40"])
    assert "stopped: by Ctrl-C; 83 of 83 rows are kept" in capsys.readouterr().err
    monkeypatch.setattr(Path, "replace", rename)
    assert [path.name for path in tmp_path.glob("out-*")] == ["out-00000-of-00003.npy"]
    main([*arguments, "--rows_per_shard", "40"])
    found = np.concatenate([np.load(path) for path in sorted(tmp_path.glob("out-*.npy"))])
    np.testing.assert_allclose(found, expected(model, lines), atol=1e-5)
    assert not (tmp_path / "out.npy.parts").exists()
    with pytest.raises(SystemExit):
        main([*arguments, "--rows_per_shard", "40"])  # now they are somebody's results
    main([*arguments, "--rows_per_shard", "40", "--overwrite", "--truncate_dim", "2"])
    assert np.load(tmp_path / "out-00002-of-00003.npy").shape == (3, 2)


def test_bf16(model, lines, arguments, tmp_path) -> None:
    """Another precision of the model gives nearly the same, as float32."""
    main([*arguments, "--dtype", "bf16"])
    found, exact = np.load(tmp_path / "out.npy"), expected(model, lines)
    assert found.dtype == np.float32
    difference = np.abs(found - exact).max()
    assert 1e-4 < difference < 0.1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("reason", "status", "said"),
    [
        (OSError(28, "No space left on device"), 2, "No space left on device; the parts before it are kept"),
        (KeyboardInterrupt(), 130, "stopped: by Ctrl-C; 30 of 83 rows are kept; run the same command to resume\n"),
    ],
    ids=["disk", "Ctrl-C"],
)
def test_goes_on_after_an_interruption(
    reason, status, said, model, lines, arguments, tmp_path, monkeypatch, capsys
) -> None:
    """Parts that are there are not encoded again; other settings and another text are refused, or begin anew."""
    monkeypatch.setattr(file_parts, "PART_ROWS", 10)
    written: list[str] = []
    write = file_parts.write_npy

    def failing(path: Path, *rest) -> None:
        if len(written) == 3:
            raise reason
        written.append(path.name)
        write(path, *rest)

    monkeypatch.setattr(file_parts, "write_npy", failing)
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    assert stop.value.code == status
    assert said in capsys.readouterr().err
    assert written == ["0000000000.npy", "0000000010.npy", "0000000020.npy"]
    assert not (tmp_path / "out.npy").exists()
    kept = (tmp_path / "out.npy.parts" / "0000000010.npy").stat().st_mtime_ns

    monkeypatch.setattr(file_parts, "write_npy", lambda path, *rest: (written.append(path.name), write(path, *rest)))
    with pytest.raises(SystemExit):
        main([*arguments, "--normalize"])
    assert (tmp_path / "out.npy.parts" / "0000000010.npy").stat().st_mtime_ns == kept
    main(arguments)
    assert "30 of 83 rows were done already; they are kept and reused\n" in capsys.readouterr().out
    assert written[3:] == [f"00000000{start}.npy" for start in range(30, 90, 10)] + ["out.npy"]
    np.testing.assert_allclose(np.load(tmp_path / "out.npy"), expected(model, lines), atol=1e-5)
    main([*arguments, "--overwrite", "--truncate_dim", "2"])
    assert np.load(tmp_path / "out.npy").shape == (ROWS, 2)


@pytest.mark.slow
def test_two_machines(model, lines, tmp_path, arguments) -> None:
    """`accelerate launch` shares the parts out to the processes of two launchers; the file is that of one process."""
    said = on_two_machines(tmp_path, "-m", "cmlmcse.encode", *arguments, "--rows_per_shard", "10")
    assert said.count("rows ×") == 1
    found = np.concatenate([np.load(path) for path in sorted(tmp_path.glob("out-*.npy"))])
    np.testing.assert_allclose(found, expected(model, lines), atol=1e-5)


def encode_noting_the_wait(arguments: list[str]) -> None:
    """The command; each process writes for how many seconds it would wait for the others."""
    whole = encode.encode_parts

    def noting(*given) -> None:
        group = dist.distributed_c10d._get_default_group()
        seconds = group._get_backend(torch.device("cpu")).options._timeout.total_seconds()
        Path(f"wait-{dist.get_rank()}").write_text(str(seconds))
        whole(*given)

    encode.encode_parts = noting
    main(arguments)


@pytest.mark.slow
def test_processes_wait_while_the_first_one_merges(model, lines, arguments, tmp_path) -> None:
    """Merging a large file takes longer than the ten minutes of NCCL, or the half hour of gloo, after which the other
    processes would give up."""
    launch(encode_noting_the_wait, 2, tmp_path, *arguments)
    assert [float((tmp_path / f"wait-{rank}").read_text()) for rank in range(2)] == [7 * 24 * 3600.0] * 2
    np.testing.assert_allclose(np.load(tmp_path / "out.npy"), expected(model, lines), atol=1e-5)


def test_memory_does_not_grow_with_the_file(tmp_path, monkeypatch) -> None:
    """Ten times the rows, the same peak."""
    monkeypatch.setattr(file_parts, "PART_ROWS", 1000)
    monkeypatch.setattr(tables, "TABLE_ROWS", 500)
    peaks = []
    for rows in (2000, 20_000):
        text = tmp_path / f"{rows}.txt"
        text.write_text("the cat sat on the mat\n" * rows)
        job = file_parts.Job(tmp_path / f"{rows}.npy", rows, 64)
        job.claim_parts({}, overwrite=False)
        tracemalloc.start()
        encode.encode_parts(job, tables.scan(text), lambda block: np.ones((len(block), 64), np.float32), 0, 1)
        job.finalize()
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        assert np.load(job.output, mmap_mode="r").shape == (rows, 64)
    assert peaks[1] < 1.5 * peaks[0]


@pytest.mark.parametrize(("first", "then"), [({}, {"passages": True}), ({"passages": True}, {}), ({"a": 1}, {"a": 2})])
def test_parts_of_other_options_are_refused(first, then, tmp_path) -> None:
    """Also where one of the two jobs does not have the option at all."""
    job = file_parts.Job(tmp_path / "out.npy", 10, 4)
    job.claim_parts(first, overwrite=False)
    job.claim_parts(first, overwrite=False)
    (name,) = first | then
    with pytest.raises(InputError, match=rf"found others \({name} differ\); give the same arguments"):
        job.claim_parts(then, overwrite=False)
    job.claim_parts(then, overwrite=True)


def test_passages_need_a_parquet(arguments, capsys) -> None:
    """A .npy could not say which text a vector is of."""
    with pytest.raises(SystemExit, match="2"):
        main([*arguments, "--passages"])
    assert "--passages expects --output OUT.parquet, which has each passage's text, found" in capsys.readouterr().err


def test_empty_file(arguments, tmp_path) -> None:
    """No rows, a file of none."""
    (tmp_path / "in.txt").write_text("")
    main(arguments)
    assert np.load(tmp_path / "out.npy").shape == (0, 32)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (["--output", "{tmp}/out.csv"], "must end with .npy or .parquet"),
        (["--output", "{tmp}/no/out.npy"], "no to exist, found none; create it"),
        (["--output", "{tmp}/there.npy"], "there.npy: exists; choose another name, or --overwrite"),
        (["--text_column", "text"], "--text_column expects a table (.csv, .tsv, .jsonl, .parquet), found"),
        (["--truncate_dim", "33"], "must be at most 32, the model's, found 33"),
        (["--dtype", "fp8"], "invalid choice: 'fp8'"),
        (["--device", "abacus"], "--device abacus: cannot be used here"),
        (["--pooling", "mean"], "found 'mean'"),
    ],
)
def test_errors(change, words, lines, arguments, tmp_path, capsys) -> None:
    """One line and status 2, and nothing is written."""
    (tmp_path / "there.npy").write_text("")
    before = {path.name for path in tmp_path.iterdir()}
    with pytest.raises(SystemExit) as stop:
        main([*arguments, *(item.format(tmp=tmp_path) for item in change)])
    assert stop.value.code == 2
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert words in error
    assert {path.name for path in tmp_path.iterdir()} == before


def test_a_list_of_json_and_a_column_of_several_types(arguments, tmp_path) -> None:
    """A list is read as lines of objects are; vectors alone need no other column."""
    rows = [{"text": "the cat", "n": 1}, {"text": "a dog", "n": "x"}]
    written = {"in.json": json.dumps(rows, indent=1), "in.jsonl": "\n".join(map(json.dumps, rows))}
    for name, content in written.items():
        (tmp_path / name).write_text(content)
        main([arguments[0], str(tmp_path / name), "--output", str(tmp_path / f"{name}.npy"), "--pooling", "avg"])
    vectors = [np.load(tmp_path / f"{name}.npy") for name in written]
    assert vectors[0].shape == (2, 32)
    np.testing.assert_array_equal(*vectors)


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("no.txt", None, "expected a file or a folder of texts, found none"),
        ("latin.txt", "café".encode("latin-1"), "expected UTF-8 text, found byte 0xe9 at offset 3"),
        ("cut.txt.gz", gzip.compress(b"the cat " * 999, mtime=0)[:40], "truncated or corrupt"),
        ("no.parquet", b"not one", "expected a Parquet file"),
    ],
)
def test_wrong_files(name, content, words, arguments, tmp_path, capsys) -> None:
    """A fault in the text shows before the work."""
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(SystemExit) as stop:
        main([arguments[0], str(tmp_path / name), *arguments[2:]])
    assert stop.value.code == 2
    assert words in capsys.readouterr().err
    assert not (tmp_path / "out.npy").exists()
