"""The rules of adapt: what is tried, how much is read, what counts as better, and what the report advises."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.models import Pooling, Transformer
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from cmlmcse.adaptation import arms
from cmlmcse.adaptation.choice import Splits, judge
from cmlmcse.adaptation.command import parse
from cmlmcse.adaptation.report import next_steps
from cmlmcse.adaptation.start import SAMPLE, begin, scoring_seconds, too_few_minutes
from cmlmcse.adaptation.text import foreign, read_text
from cmlmcse.adaptation.weights import best_average, load_start, weights_of
from cmlmcse.evaluation.criterion import Criterion
from cmlmcse.evaluation.encoding import EncodeOnce
from cmlmcse.models.encoders import Encoder
from support.paths import ROOT
from support.tiny import WORDS, tiny_tokenizer


def test_short_words_are_no_pieces():
    """A tokenizer that knows every word of a Hindi text fits it, though its words are short."""
    text = "राम और सीता के घर में एक बिल्ली है और वह दूध पीती है"
    words = Tokenizer(WordLevel({word: place for place, word in enumerate({*text.split(), "[UNK]"})}, "[UNK]"))
    words.pre_tokenizer = WhitespaceSplit()
    assert foreign([text], PreTrainedTokenizerFast(tokenizer_object=words, unk_token="[UNK]")) == ""


GERMAN = "Der schnelle Fuchs springt über den faulen Hund, während die Sonne langsam hinter den Bergen untergeht."


@pytest.mark.parametrize(
    "text, sign",
    [
        ("The quick fox jumps over the lazy dog while the sun sets slowly behind the mountains.", None),
        ("Children with diabetes received 12.5 mg of thyroxine daily; hormone levels rose in 24 cases (42 %).", None),
        (GERMAN, "into pieces of 2."),
        ("Быстрая лиса прыгает через ленивую собаку, пока солнце медленно садится.", "into pieces of 1."),
        ("快速的棕色狐狸跳过懒狗，太阳慢慢落在山后。", "of the tokens are unknown"),
        ("तेज़ भूरी लोमड़ी आलसी कुत्ते के ऊपर से कूदती है।", "of the tokens are unknown"),
    ],
)
def test_text_of_another_language(text, sign):
    """An English tokenizer shows it by unknown words, or by words in small pieces; English stays unremarked."""
    note = foreign([text], AutoTokenizer.from_pretrained(ROOT / "assets" / "bert-mini-en"))
    assert (sign in note) if sign else note == ""


@pytest.mark.parametrize(
    ("words", "takes", "device", "given", "expected"),
    [
        (300, 512, "cpu", None, 64),
        (300, 512, "cuda", None, 256),
        (100, 512, "cuda", None, 102),
        (100, 80, "cuda", None, 80),
        (20, 512, "cpu", None, 22),
        (20, 512, "cuda", None, 22),
        (10, 512, "cpu", None, 16),
        (300, 512, "cuda", 400, 400),
    ],
)
def test_how_much_of_a_text_training_reads(words, takes, device, given, expected, tmp_path):
    """The 95th percentile with the special tokens, within what the model takes: on a CPU 64 tokens at most."""
    rng = np.random.default_rng(0)
    rows = [" ".join(rng.choice(WORDS, words)) for _ in range(150)]
    (tmp_path / "text.txt").write_text("\n".join(rows))
    args = parse(["model", str(tmp_path / "text.txt"), "--output_dir", "new"])
    args.max_seq_length = given
    model = SimpleNamespace(config=SimpleNamespace(pooling="avg"), device=torch.device(device))
    start = Encoder(model, tiny_tokenizer("bert"), {"max_length": takes})
    text = read_text(args, start, finished=False)
    assert text.length == expected
    beyond = max(0, words + 2 - expected) / (words + 2)  # each document has two special tokens more
    assert text.record()["share_beyond_training"] == pytest.approx(beyond, abs=1e-6)
    assert f"({beyond:.1%} of the text comes later)" in text.summary()


def test_a_pooling_in_place_of_the_recorded_one(corpus, backbone, tmp_path):
    """A line says what changes. (Exports of ours refuse it.)"""
    transformer, encoder = Transformer(backbone), str(tmp_path / "encoder")
    pooling = Pooling(transformer.get_embedding_dimension(), "mean")
    SentenceTransformer(modules=[transformer, pooling], device="cpu").save(encoder)
    said: list[str] = []
    words = [encoder, str(corpus), "--output_dir", "new", "--device", "cpu", "--pooling", "avg_first_last"]
    start = begin(parse(words), False, said.append)
    assert start.encoder.model.config.pooling == "avg_first_last"
    assert f"{encoder} was trained with the pooling avg; --pooling avg_first_last replaces it" in said


@pytest.mark.parametrize(("views", "name"), [
    ("title_body", "halves+words"), ("search", "halves+words"), ("dropout", "halves+words"), ("crops", "words"),
    ("neighbours", "words"), ("title_body+crops", "words"), ("sentence", "words"), ("words", "halves"),
    ("title_body+words", "halves"), ("words+sentence", None),
])  # fmt: skip
def test_no_arm_confirms_itself(views, name, corpus, backbone):
    """Views that take pieces of documents are not confirmed by pieces of documents, nor words by words."""
    start = load_start(backbone, "avg", "cpu")
    args = parse(["model", str(corpus), "--output_dir", "new"])
    text = read_text(args, start, finished=True)
    found = text.confirming(views, 42)
    assert (found and found.name) == name
    assert text.judged_by.name == "halves+words"
    plain = read_text(args, start, finished=False)
    assert plain.judged_by.name == plain.confirming(views, 42).name == "parts"
    assert text._replace(together=None).judged_by.name == "parts"
    if views == "title_body":  # of a document without a title it takes pieces
        assert text._replace(titles=text.documents // 2).confirming(views, 42).name == "words"


def test_a_small_encoder_tries_the_larger_rate_first():
    """Of documents; of single sentences no small encoder was measured."""
    orders = {
        (small, sentences): list(
            dict.fromkeys(
                arm["learning_rate"] for arm in arms.default_arms("model", True, True, {}, sentences, small).values()
            )
        )
        for small in (False, True)
        for sentences in (False, True)
    }
    assert orders == {
        (False, False): [3e-5, 1e-4],
        (False, True): [3e-5, 1e-4],
        (True, False): [1e-4, 3e-5],
        (True, True): [3e-5, 1e-4],
    }
    assert "dropout, rate 0.0001" in arms.default_arms("model", True, True, {}, small=True)
    plain = arms.default_arms("model", True, False, {}, small=True).values()
    assert list(dict.fromkeys(arm["learning_rate"] for arm in plain)) == [3e-4, 1e-4]


def test_too_few_minutes_are_said_before_the_scoring(corpus, encoder, monkeypatch):
    """By what a few of the texts take: the model is scored once at the start, and four times at the end."""
    args = parse([encoder, str(corpus), "--output_dir", "new", "--device", "cpu", "--minutes", "4"])
    model = load_start(encoder, None, "cpu")
    text, calls, seconds = read_text(args, model, finished=True), [], iter((0.0, 32.0))
    asked = text.judged_by.halves(42)[0].criteria
    texts = {each for one in asked for each in (*one.queries, *one.candidates)}
    with monkeypatch.context() as patched:
        patched.setattr("cmlmcse.adaptation.start.time", SimpleNamespace(perf_counter=lambda: next(seconds)))
        found = scoring_seconds(lambda given: calls.append(given), text, 42)
    assert len(calls[-1]) <= SAMPLE < len(texts)
    assert found == pytest.approx(5 * 32.0 / len(calls[-1]) * len(texts))
    for estimate in (240.0, 241.0):
        monkeypatch.setattr("cmlmcse.adaptation.start.scoring_seconds", lambda *_, estimate=estimate: estimate)
        line = too_few_minutes(args, model, text)
        assert (line != "") is (estimate == 241.0)
    assert line.startswith("--minutes 4 is too short for this text on this machine: scoring alone takes about 4.1 min")
    said: list[str] = []
    begin(args, False, said.append)
    scored = next(place for place, each in enumerate(said) if each.startswith("score without labels"))
    assert said.index(line) < scored
    args.max_steps = 4  # a time that nobody gave
    assert too_few_minutes(args, model, text) == ""


def test_the_best_average_is_between_start_and_arm(backbone_folders):
    """The weights are (1 − share) · start + share · arm, and the share is the one with the best score."""
    start, arm = (load_start(backbone_folders["bert"], "avg", "cpu") for _ in range(2))
    with torch.no_grad():
        for weight in arm.model.backbone.parameters():
            weight.add_(1.0)
    name = "embeddings.word_embeddings.weight"
    before = start.model.backbone.state_dict()[name]

    class Half(Criterion):
        def values(self, encode):
            moved = float((encode._encode.model.backbone.state_dict()[name] - before).mean())
            return np.full(9, -abs(moved - 0.5))

    found = best_average(
        lambda: load_start(backbone_folders["bert"], "avg", "cpu"),
        EncodeOnce(start),
        weights_of(arm),
        Half("halves", "", [], [], *[np.zeros(0, int)] * 4, 0),
    )
    assert found.share == 0.5
    assert torch.allclose(found.encoder.model.backbone.state_dict()[name], before + 0.5, atol=1e-6)
    assert found.scores == pytest.approx({0.0: -0.5, 0.25: -0.25, 0.5: 0.0, 0.75: -0.25, 1.0: -0.5}, abs=1e-6)


def test_the_score_is_the_mean_over_the_documents_of_both_splits():
    """Each part is asked of its own encoder."""
    parts = []
    for count in (2, 4):
        own = Criterion("halves", "", [""] * count, [""], np.zeros(count, int), np.arange(count), np.array([-1]),
                        np.arange(count), count)  # fmt: skip
        object.__setattr__(own, "values", lambda encode, count=count: np.full(count, float(encode)))
        parts.append(own)
    splits = Splits(tuple(parts))
    assert splits.documents == 6
    assert splits.summary(splits.of_each(["1", "4"])) == (2 * 1 + 4 * 4) / 6
    change = judge(splits, "1", ["2", "2"])
    assert (change.before, change.after, change.interval) == (1.0, 2.0, (1.0, 1.0))


def test_no_change_is_not_better():
    """The start is handed back unless the interval lies above 0, and the change is 1.5 % of the score or more."""
    before = np.random.default_rng(0).uniform(0, 100, 100)
    noise = np.random.default_rng(1).normal(0, 10, 100)
    noise -= noise.mean()

    def change(after):
        values = {"before": before, "after": after}
        return judge(Splits((SimpleNamespace(values=values.get, name="", title=""),)), "before", ["after"])

    assert not change(before).better
    assert not change(before + noise).better
    assert change(before + noise + 5).better
    small, enough = change(1.014 * before), change(1.016 * before)
    assert 0 < small.interval[0] < small.after - small.before
    assert (small.better, enough.better) == (False, True)


def test_advice_to_search_by_words():
    """By both if that is best, with more weight where BM25 alone beats the model, and no word of it where the model
    alone is best."""
    text = {"share_cut_off": 0.0, "titles": 1}
    found = {
        "arms": {"crops": {"score": 1.0, "scores": [[1, 1.0]]}},
        "averaged": ["crops"],
        "chosen": "crops",
        "before": 50.0,
        "after": 52.0,
    }

    def advice(bm25, hybrid):
        steps = next_steps(Path("my runs"), found | {"bm25": bm25, "hybrid": hybrid}, text)
        assert (
            "score both models on queries of your own: `cmlmcse evaluate MODEL 'my runs/export' --tasks retrieval"
            in steps[0]
        )
        return [step for step in steps if "word" in step]

    (both,) = advice(51.0, 65.25)
    assert "--bm25`: the model and BM25 together have 65.25 by the score above, the model alone 52.00" in both
    for hybrid in (50.0, 65.25):
        (more,) = advice(60.0, hybrid)
        assert "more weight" in more
        assert "`cmlmcse search 'my runs' TEXT QUERY --bm25 1`" in more
    assert advice(40.0, 51.0) == []
    kept = next_steps(Path("out"), found | {"chosen": "start", "bm25": 40.0, "hybrid": 51.0}, text)
    assert "score the model on queries of your own" in kept[0]
    assert "keep using the model that you have" in kept[1]
