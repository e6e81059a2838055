"""Prompts of queries and documents: kept from start to export, and applied as sentence-transformers applies them."""

import json
from pathlib import Path

import numpy as np
import pytest
from pyarrow import parquet
from sentence_transformers import SentenceTransformer

from cmlmcse.common.errors import InputError
from cmlmcse.encode import command as encode_command
from cmlmcse.evaluation.beir_data import RetrievalSet, load_retrieval
from cmlmcse.evaluation.cache import CachedEncoder
from cmlmcse.evaluation.criterion import Criterion
from cmlmcse.evaluation.encoding import EncodeOnce, MappedEncoder
from cmlmcse.evaluation.retrieval import retrieval
from cmlmcse.evaluation.whitening import Whitening
from cmlmcse.hub.export import export
from cmlmcse.models.encoders import Encoder, load_model_encoder
from cmlmcse.search import command as search
from cmlmcse.training.build_model import build_model
from cmlmcse.training.fields import ModelArguments
from modeling_cmlmcse import CMLMCSEForSentenceEmbedding
from modeling_cmlmcse.configuration_cmlmcse import CMLMCSEConfig
from support.tiny import WORDS, tiny_tokenizer

PROMPTS = {"query": "w1 w2 ", "document": "w3 ", "topic": "w4 w5 "}
WAYS = ("encode", "encode_query", "encode_document")


def tiny_model(folder: str, **fields) -> CMLMCSEForSentenceEmbedding:
    """A model with prompts."""
    fields = {"prompts": PROMPTS, "pooling": "avg", **fields}
    return CMLMCSEForSentenceEmbedding.from_backbone(folder, cmlm_weight=0.0, **fields).eval()


@pytest.fixture
def folder(backbone_folders, tmp_path: Path) -> Path:
    """An export with prompts."""
    return export(tiny_model(backbone_folders["bert"]), tiny_tokenizer("bert"), tmp_path / "model")


@pytest.mark.parametrize(
    ("prompts", "default", "texts"),
    [
        (PROMPTS, None, ("", "w1 w2 ", "w3 ")),
        (PROMPTS, "topic", ("w4 w5 ", "w1 w2 ", "w3 ")),
        ({"query": "w1 ", "passage": "w2 "}, None, ("", "w1 ", "w2 ")),
        ({"topic": "w4 "}, "topic", ("w4 ", "", "")),
        ({"query": ""}, "query", ("", "", "")),
        (None, None, ("", "", "")),
    ],
)
def test_as_sentence_transformers(prompts, default, texts, backbone_folders, sentences, tmp_path) -> None:
    """Each way to encode puts its prompt before the text, in the model, its export and sentence-transformers."""
    model = tiny_model(backbone_folders["bert"], prompts=prompts, default_prompt_name=default)
    plain = tiny_model(backbone_folders["bert"], prompts=None)
    tokenizer = tiny_tokenizer("bert")
    other = SentenceTransformer(str(export(model, tokenizer, tmp_path / "export", trust_free=True)), device="cpu")
    for way, text in zip(WAYS, texts, strict=True):
        expected = plain.encode([text + sentence for sentence in sentences], tokenizer)
        np.testing.assert_allclose(getattr(model, way)(sentences, tokenizer), expected, atol=1e-6)
        np.testing.assert_allclose(getattr(other, way)(sentences), expected, atol=1e-5)
    own = plain.encode(["w7 " + sentences[0]], tokenizer)
    np.testing.assert_allclose(model.encode_query(sentences[:1], tokenizer, prompt="w7 "), own, atol=1e-6)


@pytest.mark.parametrize(
    ("prompts", "default", "words"),
    [
        ({"query": 3}, None, "prompts must be texts by name"),
        (["query: "], None, "prompts must be texts by name"),
        ({"query": "q"}, "topic", "default_prompt_name must be one of query, found 'topic'"),
        (None, "topic", "default_prompt_name must be one of no prompt, found 'topic'"),
    ],
)
def test_wrong_prompts(prompts, default, words) -> None:
    """Refused where the model is made."""
    with pytest.raises(ValueError, match=words):
        CMLMCSEConfig(prompts=prompts, default_prompt_name=default)


def test_unknown_name(backbone_folders) -> None:
    """Refused, with those that there are."""
    model = tiny_model(backbone_folders["bert"])
    with pytest.raises(ValueError, match="found 'title'; it has: query, document, topic"):
        model.encode(["dog"], tiny_tokenizer("bert"), prompt_name="title")


@pytest.mark.parametrize("trust_free", [False, True])
def test_kept_from_start_to_export(trust_free, folder, backbone_folders, tmp_path) -> None:
    """Of an export, and of what sentence-transformers saves; the fields of a recipe change one of them."""
    if trust_free:
        saved = SentenceTransformer(str(folder), device="cpu")
        saved.prompts["topic"], saved.default_prompt_name = "w9 ", "topic"
        folder = tmp_path / "saved"
        saved.save_pretrained(str(folder))
        expected = {**PROMPTS, "topic": "w9 "}
    else:
        expected = PROMPTS
    encoder = load_model_encoder(str(folder), device="cpu", show_progress_bar=False)
    assert encoder.model.config.prompts == expected
    assert encoder.model.config.default_prompt_name == ("topic" if trust_free else None)
    fields = {"model_name_or_path": str(folder), "pooling": "avg", "cmlm_weight": 0.0}
    trained = build_model(ModelArguments(**fields, document_prompt="w8 "), encoder.tokenizer)
    trained.save_pretrained(tmp_path / "checkpoint")
    encoder.tokenizer.save_pretrained(tmp_path / "checkpoint")
    again = load_model_encoder(str(tmp_path / "checkpoint"), device="cpu", show_progress_bar=False)
    export(again.model, again.tokenizer, tmp_path / "export", trust_free=trust_free)
    written = json.loads((tmp_path / "export" / "config_sentence_transformers.json").read_text())
    assert written["prompts"] == {**expected, "document": "w8 "}
    assert written["default_prompt_name"] == ("topic" if trust_free else None)


def test_a_folder_that_cuts_vectors_is_refused(folder) -> None:
    """SentenceTransformer(…, truncate_dim=8).save_pretrained records it, and makes shorter vectors than we would."""
    path = folder / "config_sentence_transformers.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "truncate_dim": 8}))
    with pytest.raises(InputError, match="expected whole vectors, found truncate_dim 8, which only sentence-transf"):
        load_model_encoder(str(folder))
    path.write_text(json.dumps({**json.loads(path.read_text()), "truncate_dim": 32}))  # which is all of them
    load_model_encoder(str(folder))


def test_prompts_outside_the_pooling_are_refused(folder) -> None:
    """Instructor's pooling leaves out the prompt's tokens; ours would not."""
    path = folder / "1_Pooling" / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "include_prompt": False}))
    with pytest.raises(InputError, match="found include_prompt false"):
        load_model_encoder(str(folder), device="cpu")


def test_encode_and_search(folder, sentences, tmp_path, capsys) -> None:
    """A file's texts are documents unless a prompt is named; a query is a query; another prompt is refused."""
    model, tokenizer = tiny_model(str(folder)), tiny_tokenizer("bert")
    source, out = tmp_path / "in.txt", tmp_path / "out.parquet"
    source.write_text("\n".join(sentences) + "\n")
    for options, expected in (
        (["--prompt_name", "query"], model.encode_query(sentences, tokenizer)),
        (["--prompt", "w9 "], model.encode(sentences, tokenizer, prompt="w9 ")),
        ([], model.encode_document(sentences, tokenizer)),
    ):
        encode_command.main([str(folder), str(source), "--output", str(out), "--overwrite", *options])
        found = np.stack(parquet.read_table(out)["embedding"].to_numpy())
        np.testing.assert_allclose(found, expected, atol=1e-5)
    query = model.encode_query("dog", tokenizer)
    for corpus in (source, out):
        results = tmp_path / f"{corpus.stem}.jsonl"
        search.main([str(folder), str(corpus), "dog", "--output", str(results)])
        rows = json.loads(results.read_text())["results"]
        cosines = np.sort(model.similarity(query[None], expected)[0])[::-1]
        np.testing.assert_allclose([row["score"] for row in rows], cosines, atol=1e-5)
    encode_command.main([str(folder), str(source), "--output", str(out), "--overwrite", "--prompt_name", "query"])
    capsys.readouterr()
    refused = [
        (search.main, [str(folder), str(out), "dog"], "prompt for documents, 'w3 ', found 'w1 w2 '; encode the corpus"),
        (encode_command.main, [str(folder), str(source), "--output", str(out), "--prompt_name", "title"], "'title'"),
        (encode_command.main, [str(folder), str(source), "--output", str(out)], "--overwrite"),
    ]
    for main, arguments, words in refused:
        with pytest.raises(SystemExit, match="2"):
            main(arguments)
        assert words in capsys.readouterr().err


def collection(folder: Path) -> dict[str, RetrievalSet | None]:
    """Forty passages and five queries in BEIR's format."""
    rng = np.random.default_rng(0)
    texts = [" ".join(rng.choice(WORDS, 6)) for _ in range(45)]
    place = folder / "beir" / "tiny"
    (place / "qrels").mkdir(parents=True)
    for name, part in (("corpus", texts[:40]), ("queries", texts[40:])):
        rows = [json.dumps({"_id": f"{name}{i}", "text": text}) for i, text in enumerate(part)]
        (place / f"{name}.jsonl").write_text("\n".join(rows) + "\n")
    lines = [f"queries{i}\tcorpus{7 * i}\t1" for i in range(5)]
    (place / "qrels" / "test.tsv").write_text("\n".join(["query-id\tcorpus-id\tscore", *lines]) + "\n")
    return load_retrieval(str(folder))


@pytest.mark.parametrize("wrap", ["plain", "cached", "whitened"])
@pytest.mark.parametrize("default", [None, "topic"])
def test_retrieval(default, wrap, backbone_folders, tmp_path) -> None:
    """The same scores as with the prompts given as prefixes, whatever the default prompt is; a given prefix wins."""
    data, tokenizer, count = collection(tmp_path), tiny_tokenizer("bert"), iter(range(9))

    def score(prompts: dict[str, str] | None, **affixes: str):
        name = default if prompts else None
        model = tiny_model(backbone_folders["bert"], prompts=prompts, default_prompt_name=name)
        encode = Encoder(model, tokenizer, {})
        if wrap == "cached":
            encode = CachedEncoder(encode, tmp_path / "cache", str(next(count)))
        if wrap == "whitened":
            bare = Encoder(tiny_model(backbone_folders["bert"], prompts=None), tokenizer, {})
            encode = MappedEncoder(EncodeOnce(encode), Whitening.fit(bare(WORDS)))
        return retrieval(encode, data, **affixes)["tiny"]

    found = score(PROMPTS)
    assert found == score(None, query_prefix="w1 w2 ", passage_prefix="w3 ")
    assert found["query_prefix"] == "w1 w2 "
    assert score(PROMPTS, query_prefix="", passage_prefix="") == score(None) != found


def test_label_free_criterion(backbone_folders) -> None:
    """Its queries are queries, its passages documents."""
    model, tokenizer = tiny_model(backbone_folders["bert"]), tiny_tokenizer("bert")
    numbers = np.arange(2)
    criterion = Criterion("words", "", ["dog", "w9"], ["the dog ran", "w9 w8"], *[numbers] * 4, 2)
    queries, passages = (
        model.encode_query(criterion.queries, tokenizer),
        model.encode_document(criterion.candidates, tokenizer),
    )
    found = criterion.cosines(Encoder(model, tokenizer, {}))
    np.testing.assert_allclose(found, model.similarity(queries, passages), atol=1e-6)
