"""What holds for any input (hypothesis): packing, masking, augmentations, poolings, encoding, readers and writers."""

import csv
import io
import json
from functools import partial

import numpy as np
import pyarrow
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from pyarrow import parquet

from cmlmcse.data.augmentation import AUGMENTATIONS
from cmlmcse.data.file_parts import write_npy, write_parquet
from cmlmcse.data.lines import read_documents, read_lines
from cmlmcse.data.masking import Masking, mask_tokens, mask_words
from cmlmcse.data.special_tokens import special_tokens
from cmlmcse.data.templates import read_template, with_template
from cmlmcse.encode.columns import output_table
from cmlmcse.evaluation.beir_data import from_folder
from cmlmcse.evaluation.sts_data import read_pairs
from cmlmcse.evaluation.tables import csv_table, format_table, latex_table
from cmlmcse.hub.export import write_json
from modeling_cmlmcse import CMLMCSEForSentenceEmbedding
from modeling_cmlmcse.packing import Packing, pack_sequences
from modeling_cmlmcse.pooling import POOLINGS
from support.tiny import WORDS, tiny_tokenizer

slow_machines = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]  # and fixtures that may be shared
settings.register_profile("the same everywhere", deadline=None, derandomize=True, suppress_health_check=slow_machines)
settings.load_profile("the same everywhere")

SPECIAL, MASK, DELETED, VOCABULARY = 3, 4, 5, 90  # ids below 3 are special too
seeds = st.integers(0, 2**32 - 1)
sentences_of_ids = st.lists(st.integers(6, VOCABULARY - 1), min_size=1, max_size=60)
grids = arrays.arrays(bool, st.tuples(st.integers(1, 6), st.integers(1, 12))).map(
    lambda mask: mask | (~mask.any(axis=1, keepdims=True) & (np.arange(mask.shape[1]) == 0))  # a token in every row
)
texts = st.lists(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\r\n"), max_size=40), max_size=12)
in_a_folder = settings(max_examples=60)
cells = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\t\r\n"), max_size=40)
names = st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=12)
numbers = st.one_of(st.integers(-(10**9), 10**9), st.floats(allow_nan=False, allow_infinity=False))


@given(grids, seeds)
def test_packing_and_unpacking(mask, seed):
    """Any mask, holes and left padding included: each undoes the other, and tokens keep their order."""
    packing = Packing.from_mask(torch.from_numpy(mask).long())
    grid = torch.randn(*mask.shape, 3, generator=torch.Generator().manual_seed(seed))
    kept = grid * torch.from_numpy(mask)[..., None]
    tokens = packing.pack(grid)
    assert len(tokens) == mask.sum()
    assert torch.equal(tokens, grid[torch.from_numpy(mask)])
    assert torch.equal(packing.unpack(tokens), kept)
    assert torch.equal(packing.pack(packing.unpack(tokens)), tokens)
    assert torch.equal(packing.mask, torch.from_numpy(mask))
    assert packing.bounds.tolist() == [0, *np.cumsum(mask.sum(axis=1))]
    torch.testing.assert_close(packing.mean(tokens), kept.sum(1) / torch.from_numpy(mask).sum(1, keepdim=True))


@given(st.lists(sentences_of_ids, min_size=1, max_size=6))
def test_packed_sequences(sequences):
    """The host's form holds every token once, and its layout is that of the padded grid's mask."""
    packed = pack_sequences(sequences)
    assert packed["input_ids"].tolist() == [token for sequence in sequences for token in sequence]
    packing = Packing.from_lengths(packed["lengths"], len(packed["input_ids"]), packed["width"])
    mask = torch.arange(packed["width"]) < packed["lengths"][:, None]
    assert torch.equal(packing.slots, Packing.from_mask(mask.long()).slots)
    for row, start, sequence in zip(packing.unpack(packed["input_ids"]), packing.starts, sequences, strict=True):
        assert row[: len(sequence)].tolist() == sequence
        assert packed["input_ids"][start] == sequence[0]


@given(st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=60), st.floats(0.01, 0.99), seeds, st.booleans())
def test_masking(tokens, probability, seed, whole_words):
    """Labels are the tokens that stood there, all else is untouched, special tokens are never chosen, a seed decides;
    with whole words, all ordinary tokens of a word or none."""
    tokens = np.array(tokens, np.int64)
    masking = Masking(probability, MASK, VOCABULARY, frozenset(range(SPECIAL + 1)))
    continuing = np.arange(VOCABULARY) % 3 == 0
    mask = partial(mask_words, continuing=continuing) if whole_words else mask_tokens
    found = mask(tokens, masking, rng=np.random.default_rng(seed))
    again = mask(tokens, masking, rng=np.random.default_rng(seed))
    assert all(np.array_equal(one, other) for one, other in zip(found, again, strict=True))
    assert np.array_equal(found.labels, tokens[found.positions])
    assert (found.labels > SPECIAL).all()
    assert (np.diff(found.positions) > 0).all()
    rest = np.delete(np.arange(len(tokens)), found.positions)
    assert np.array_equal(found.tokens[rest], tokens[rest])
    assert ((found.tokens >= 0) & (found.tokens < VOCABULARY)).all()
    if whole_words:
        chosen = np.isin(np.arange(len(tokens)), found.positions)
        for place in range(1, len(tokens)):
            joined = continuing[tokens[place]] and (tokens[place - 1 : place + 1] > SPECIAL).all()
            assert not joined or chosen[place] == chosen[place - 1]


@given(sentences_of_ids, seeds)
@pytest.mark.parametrize("name", [name for name, unit in AUGMENTATIONS.items() if unit.needs != "synonyms"])
def test_augmentations(name, tokens, seed):
    """At least one token, none that was not there but [DEL], no two [DEL] side by side, a seed decides; and what each
    promises of the length and the order."""
    unit, tokens = AUGMENTATIONS[name], np.array(tokens, np.int32)
    augment = partial(unit.augment, **({"deleted": DELETED} if unit.needs == "deleted" else {}))
    before = tokens.copy()
    found = augment(tokens, np.random.default_rng(seed))
    assert np.array_equal(found, augment(tokens, np.random.default_rng(seed)))
    assert np.array_equal(tokens, before)
    assert found.dtype == tokens.dtype
    words = found[found != DELETED]
    assert len(words) >= 1
    assert set(words.tolist()) <= set(tokens.tolist())
    assert not ((found[1:] == DELETED) & (found[:-1] == DELETED)).any()
    length, kept = len(tokens), len(words)
    assert (
        kept
        == {
            "none": length,
            "repeat_tokens": length + int(0.32 * length),
            "delete_tokens": kept,
            "drop_one_token": max(length - 1, 1),
            "del_word": length - length * 70 // 100,
            "del_span": kept,
            "reorder": length,
        }[name]
    )
    if name == "reorder":
        assert sorted(found.tolist()) == sorted(tokens.tolist())


@pytest.mark.slow
@given(st.lists(st.lists(st.sampled_from(WORDS), max_size=20).map(" ".join), min_size=1, max_size=8), st.data())
@settings(max_examples=40)
@pytest.mark.parametrize("pooling", POOLINGS)
def test_embedding_does_not_depend_on_its_batch(pooling, models, sentences, data):
    """Alone, in any order, in batches of any size: to 1e-5."""
    model, tokenizer = models[pooling], tiny_tokenizer("bert")
    if POOLINGS[pooling].reads_mask:
        prompt = read_template("the {sentence} sat on {mask}", tokenizer)
        tokenizer = with_template(tokenizer, prompt, special_tokens(tokenizer))
    together = model.encode(sentences, tokenizer)
    order = data.draw(st.permutations(range(len(sentences))))
    size = data.draw(st.integers(1, len(sentences)))
    shuffled = model.encode([sentences[index] for index in order], tokenizer, batch_size=size)
    np.testing.assert_allclose(shuffled, together[order], atol=1e-5)
    np.testing.assert_allclose(model.encode(sentences[:1], tokenizer), together[:1], atol=1e-5)


@pytest.fixture(scope="module")
def models(backbone_folders) -> dict[str, CMLMCSEForSentenceEmbedding]:
    """A tiny model for each pooling."""
    build = partial(CMLMCSEForSentenceEmbedding.from_backbone, backbone_folders["bert"], cmlm_weight=0.0)
    return {pooling: build(pooling=pooling).eval() for pooling in POOLINGS}


@given(texts)
@in_a_folder
def test_lines_that_are_written_are_read(tmp_path, lines):
    """Any text but line ends, control characters and other scripts included; lines of blanks are left out, and part
    documents."""
    path = tmp_path / "text.txt"
    path.write_text("\n".join(lines), encoding="utf-8", newline="")
    kept = [line.removeprefix("\ufeff") if index == 0 else line for index, line in enumerate(lines)]
    expected = [line.strip() for line in kept if line.strip()]
    assert [line.strip() for line in read_lines(str(path))] == expected
    documents = list(read_documents(str(path)))
    assert [line.strip() for document in documents for line in document] == expected
    assert all(documents)


@given(
    arrays.arrays(
        np.float32, st.tuples(st.integers(1, 30), st.integers(1, 8)), elements=st.floats(-1e6, 1e6, width=32)
    ),
    st.integers(1, 30),
)
@in_a_folder
def test_vectors_that_are_written_are_read(tmp_path, vectors, size):
    """In blocks of any size, as .npy and as Parquet: the same bits, and no other file is left."""
    blocks = [vectors[start : start + size] for start in range(0, len(vectors), size)]
    write_npy(tmp_path / "out.npy", iter(blocks), *vectors.shape)
    assert np.array_equal(np.load(tmp_path / "out.npy"), vectors)
    schema = pyarrow.schema([("embedding", pyarrow.list_(pyarrow.float32(), vectors.shape[1]))])
    write_parquet(tmp_path / "out.parquet", (output_table(schema, None, [], block) for block in blocks), schema)
    column = parquet.read_table(tmp_path / "out.parquet")["embedding"]
    assert np.array_equal(np.array(column.to_pylist(), np.float32), vectors)
    assert {path.name for path in tmp_path.iterdir()} == {"out.npy", "out.parquet"}


@given(st.lists(st.tuples(st.floats(-1e9, 1e9), cells, cells), max_size=12), st.booleans(), st.booleans())
@in_a_folder
def test_pairs_that_are_written_are_read(tmp_path, rows, windows, last):
    """Scored pairs with any text in them, quotes, blanks and line separators of Unicode included; with either line end,
    the last one there or not."""
    end = "\r\n" if windows else "\n"
    text = end.join("\t".join((repr(score), *sides)) for score, *sides in rows)
    (tmp_path / "pairs.tsv").write_text(text + end * (last and bool(rows)), encoding="utf-8", newline="")
    found = read_pairs(tmp_path / "pairs.tsv")
    assert list(zip(found.scores, found.first, found.second, strict=True)) == rows


@given(st.dictionaries(names, st.tuples(cells, cells), min_size=1, max_size=6), st.data())
@in_a_folder
def test_retrieval_sets_that_are_written_are_read(tmp_path, passages, data):
    """Any ids and any text, and judgments of any of them."""
    passages = {name.strip() or "id": text for name, text in passages.items()}
    judged = data.draw(st.dictionaries(st.sampled_from(sorted(passages)), st.integers(0, 3), min_size=1))
    judged[max(judged)] = 1  # a query without a relevant passage is left out
    corpus = [{"_id": name, "title": title, "text": text} for name, (title, text) in passages.items()]
    (tmp_path / "corpus.jsonl").write_text("\n".join(map(json.dumps, corpus)))
    (tmp_path / "queries.jsonl").write_text(json.dumps({"_id": "q", "text": "a question"}) + "\n")
    (tmp_path / "qrels").mkdir(exist_ok=True)
    lines = ["query-id\tcorpus-id\tscore", *(f"q\t{name}\t{score}" for name, score in judged.items())]
    (tmp_path / "qrels" / "test.tsv").write_text("\n".join(lines), encoding="utf-8")
    found = from_folder(tmp_path)
    assert list(found.passages.items()) == [(name, place) for place, name in enumerate(passages)]
    assert list(found.texts()) == [f"{title} {text}".strip() for title, text in passages.values()]
    assert found.qrels == {"q": judged}


@given(
    st.recursive(
        st.none() | st.booleans() | numbers | cells, lambda values: st.lists(values) | st.dictionaries(cells, values)
    )
)
@in_a_folder
def test_json_that_is_written_is_read(tmp_path, content):
    """Results and records: numbers to their last digit."""
    write_json(tmp_path / "results.json", content)
    assert json.loads((tmp_path / "results.json").read_text(encoding="utf-8")) == content


@given(st.dictionaries(names, st.dictionaries(names, numbers, min_size=1, max_size=3), min_size=1, max_size=4))
def test_tables_hold_their_results(tasks):
    """Whatever models and measures are called: every number is in the CSV to its last digit, and each row of the
    Markdown and of the LaTeX table has as many cells as its head."""
    results = {model: {"a task": values} for model, values in tasks.items()}
    rows = list(csv.DictReader(io.StringIO(csv_table(results))))
    found = {(row["model"], row["measure"]): float(row["value"]) for row in rows}
    assert found == {(model, f"a task {name}"): value for model in tasks for name, value in tasks[model].items()}
    markdown = format_table(results).replace(r"\|", "").splitlines()
    assert {line.count("|") for line in markdown} == {10}
    assert len(markdown) == 2 + len(tasks)
    body = latex_table(results).split("\\midrule\n")[1].splitlines()[: len(tasks)]
    assert [line.replace(r"\&", "").count("&") for line in body] == [8] * len(tasks)
