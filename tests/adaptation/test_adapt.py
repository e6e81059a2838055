"""The command adapt, from documents to its folder, on tiny models."""

import json
import re
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from transformers import AutoTokenizer, PreTrainedTokenizerFast

import cmlmcse
from cmlmcse.adaptation import arms, second_split, work
from cmlmcse.adaptation.choice import Change, Splits, best_average, judge, load_start, weights_of
from cmlmcse.adaptation.command import main, parse
from cmlmcse.adaptation.report import labelled_blocks, next_steps
from cmlmcse.adaptation.results import labelled_results, load_labelled
from cmlmcse.adaptation.runs import run_folder
from cmlmcse.adaptation.text import foreign, read_text
from cmlmcse.common.errors import InputError
from cmlmcse.data.collection import hold_out, load_collection
from cmlmcse.evaluation.encoding import EncodeOnce
from cmlmcse.evaluation.label_free import Criterion
from cmlmcse.hub.push import parse as parse_push
from cmlmcse.hub.push import write_card
from cmlmcse.models.encoders import Encoder
from cmlmcse.training.build_text import build_documents
from cmlmcse.training.command import field_arguments
from cmlmcse.training.dev_set import label_free_set
from cmlmcse.training.parse import parse_recipe
from modeling_cmlmcse import CMLMCSEForSentenceEmbedding
from support.paths import ROOT
from support.tiny import WORDS, tiny_tokenizer


@pytest.mark.slow
@pytest.mark.usefixtures("pictures")
def test_adapt(corpus, backbone, tmp_path, capsys, monkeypatch):
    """A tiny backbone learns to find documents; the folder holds what INTERFACE promises; nothing asks the Hub."""
    monkeypatch.setattr(arms, "BACKBONE_RATES", (3e-3, 1e-9))
    folder = tmp_path / "adapted"
    found = cmlmcse.adapt(backbone, corpus, folder, max_steps=60, per_device_train_batch_size=16, bf16=False)
    results = json.loads((folder / "results.json").read_text())
    assert found.results == results
    adapted = results["adapt"]
    assert results["precision"] == "fp32"  # as asked for, whatever is faster here
    assert adapted["criterion"] == "parts"
    assert "A model that finds less than BM25 has little to lose" in (folder / "report.md").read_text()
    asked, others = adapted["documents"]["confirm"], adapted["second_split"] is not None
    assert adapted["documents"]["choose"] == 15
    assert 15 < asked <= 45 if others else asked == 15
    assert 30 < adapted["queries"] <= 150
    assert len(adapted["arms"]) == 5
    assert sorted(arm["steps"] for arm in adapted["arms"].values()) == [40, 40, 40, 60, 60]
    low, high = adapted["interval"]
    assert low <= adapted["best_candidate"] - adapted["before"] <= high
    best = max(adapted["arms"], key=lambda name: adapted["arms"][name]["score"])
    assert re.fullmatch("title_body(.words)?, rate 0.003", best)
    assert adapted["arms"][best]["score"] > adapted["choose_before"] + 10
    assert adapted["chosen"].startswith(best if low > 0 else "start")
    assert all(arm["scores"][0] == [0, pytest.approx(adapted["choose_before"])] for arm in adapted["arms"].values())
    rest, held_out = hold_out(load_collection(str(corpus)), 42)
    exported = load_start(str(run_folder(folder, best)), None, "cpu")
    score = label_free_set("auto_half", held_out, rest, 42).score(exported)
    assert score == pytest.approx(adapted["arms"][best]["score"], abs=1e-3)  # which training met, not scored again
    line = capsys.readouterr().out.strip().splitlines()[-1]
    assert f"{adapted['before']:.2f} before, {adapted['best_candidate']:.2f} after" in line

    vectors = SentenceTransformer(str(folder / "export")).encode(["w1 w2", "the cat sat"])
    loaded = load_start(str(folder / "export"), None, "cpu")(["w1 w2", "the cat sat"])
    assert np.allclose(vectors, loaded, atol=1e-5)
    page = (folder / "report.html").read_text()
    assert page.count("data:image/png;base64,") == 1
    assert not re.findall(r'(?:src|href)="(?!data:)', page)
    report = (folder / "report.md").read_text()
    assert report.count("(rank ") == 20
    assert f"{adapted['bm25']:.2f}" in report
    card = (folder / "export" / "README.md").read_text()
    assert f"on {adapted['documents']['confirm']} documents that were not used to choose" in card
    assert f"BM25 has {adapted['bm25']:.2f}" in card
    titles = [json.loads(line)["title"] for line in corpus.read_text().splitlines()]
    assert any(title in report for title in titles)
    assert not any(title in card for title in titles)  # the text may be private
    assert str(tmp_path) not in card
    push = parse_push([str(folder), "--repo_id", "me/mine", "--license", "mit"])
    pushed = write_card(folder / "export", push, "0" * 40)
    assert "license: mit" in pushed
    asks = "\n- No licence is named: ask the author before you use the weights."
    assert asks in card
    assert pushed.split("## Results")[1] == card.split("## Results")[1].replace(asks, "")
    with pytest.raises(SystemExit) as stopped:
        main([backbone, str(corpus), "--output_dir", str(folder)])
    assert stopped.value.code == 2
    again = ["--output_dir", str(folder), "--max_steps", "60", "--resume_from_checkpoint", "auto", "--bf16", "False"]
    main([backbone, str(corpus), *again, "--per_device_train_batch_size", "16"])
    assert "is finished" in capsys.readouterr().err


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


def test_labelled_data_that_the_text_knows(corpus, backbone_folders, tmp_path):
    """Queries that are titles of the text are counted, and the report says so; BM25 stands beside the scores."""
    folder = tmp_path / "beir" / "own"
    (folder / "qrels").mkdir(parents=True)
    rows = [json.loads(line) for line in corpus.read_text().splitlines()]
    (folder / "corpus.jsonl").write_text(corpus.read_text())
    queries = {"known": rows[3]["title"].upper() + "?", "new": "where is w3 and w4"}
    (folder / "queries.jsonl").write_text(
        "".join(json.dumps({"_id": name, "text": text}) + "\n" for name, text in queries.items())
    )
    (folder / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\nknown\t3\t1\nnew\t4\t1\n")
    start = load_start(backbone_folders["bert"], "avg", "cpu")
    found = labelled_results(load_labelled(str(tmp_path)), load_collection(str(corpus)), start, start)
    assert found["retrieval"]["queries_in_text"] == 1
    (_, text), (kind, (header, table)) = labelled_blocks(found)[1:]
    assert "But 1 of the queries stand word for word in the text" in text
    assert (kind, header[-2:], len(table)) == ("table", ["BM25", "after, with BM25 (0.3)"], 1)
    with pytest.raises(InputError, match="data_dir must hold labelled data in beir or sts/stsb, found neither"):
        load_labelled(str(tmp_path / "beir"))
    own = found["retrieval"]["after"]["retrieval"]["own"]
    words = [own[search]["ndcg@10"] for search in ("bm25", "hybrid")]
    assert [float(cell) for cell in table[0][-2:]] == pytest.approx(words, abs=0.01)


def test_advice_to_search_by_words():
    """By both if that is best, with more weight where BM25 alone beats the model, and no word of it where the model
    alone is best."""
    text = {"share_cut_off": 0.0, "titles": 1}
    found = {
        "arms": {"crops": {"score": 1.0, "scores": [[1, 1.0]]}},
        "settings": {"crops": {}},
        "before": 50.0,
        "after": 52.0,
    }

    def advice(bm25, hybrid):
        return [step for step in next_steps(False, found | {"bm25": bm25, "hybrid": hybrid}, text) if "word" in step]

    (both,) = advice(51.0, 65.25)
    assert "--bm25: the model and BM25 together have 65.25 by the score above, the model alone 52.00" in both
    for hybrid in (50.0, 65.25):
        (more,) = advice(60.0, hybrid)
        assert "more weight" in more
        assert "QUERY --bm25 1" in more
    assert advice(40.0, 51.0) == []


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


GOOD = Change("halves+words", "pieces and words find", 10.0, 12.0, (1.0, 3.0))
BAD = Change("halves", "pieces are found", 10.0, 9.0, (-2.0, 0.0))


@pytest.mark.parametrize(
    ("words_of_each", "views", "message"),
    [
        (50, "crops+words", "questions that it did not practise, found views (crops+words) that practise all of them"),
        (12, None, "by passages of a document, found too few documents of 16 words or more; put lines that belong"),
    ],
)
def test_what_no_question_can_confirm_is_not_trained(words_of_each, views, message, corpus, encoder, tmp_path, capsys):
    """A finished encoder's arms that practise all that the text can ask, or lines that are too short to ask: one line
    before any time is spent, and no folder that a corrected command would have to avoid."""
    text = tmp_path / "text.txt"
    bodies = [json.loads(line)["text"].split()[:words_of_each] for line in corpus.read_text().splitlines()]
    text.write_text("\n".join(" ".join(words) for words in bodies) + "\n")
    with pytest.raises(InputError) as refused:
        cmlmcse.adapt(encoder, text, tmp_path / "adapted", max_steps=2, **({"views": views} if views else {}))
    assert message in str(refused.value)
    assert "training to step" not in capsys.readouterr().err
    assert not (tmp_path / "adapted").exists()


def test_what_is_not_better_hands_back_the_start(corpus, encoder, tmp_path, capsys, monkeypatch):
    """The start is in export/, and the report and the last line say why. Where bf16 is faster, training and every score
    compute in it; only the card's three sentences are encoded in fp32."""
    in_fp32 = set()
    encode_batch = CMLMCSEForSentenceEmbedding._encode_batch

    def watched(*given):
        if not torch.is_autocast_enabled("cpu"):
            in_fp32.add(len(given[1]))
        return encode_batch(*given)

    monkeypatch.setattr(CMLMCSEForSentenceEmbedding, "_encode_batch", watched)
    monkeypatch.delenv("ACCELERATE_MIXED_PRECISION")
    monkeypatch.setattr("cmlmcse.adaptation.command.bf16_is_faster", lambda: True)
    monkeypatch.setattr(work, "judge", lambda *given: BAD)
    views = "title_body"
    adapted = cmlmcse.adapt(encoder, corpus, tmp_path / "adapted", max_steps=2, views=views, learning_rate=1e-3)
    assert adapted.results["precision"] == "bf16"
    assert in_fp32 == {3}
    (run,) = (adapted.folder / "arms").glob("*/run.json")
    assert json.loads(run.read_text())["fields"]["bf16"] is True
    found = adapted.results["adapt"]
    assert (found["chosen"], found["after"], found["best_candidate"]) == ("start", 10.0, 9.0)
    assert (found["chosen_arms"], found["share"], found["second_split"]) == ([], 0.0, None)
    printed = capsys.readouterr()
    assert "training and scoring compute in bf16" in printed.err
    line = printed.out.strip().splitlines()[-1]
    assert "pieces are found: 10.00 before, 9.00 after, -1.00 (95 % interval -2.00 to +0.00). " in line
    why = "Nothing was better than the start beyond chance. So export/ is the model that it started from."
    assert line.endswith(why)
    assert why in (adapted.folder / "report.md").read_text()
    text = ["w1 w2 w3"]
    assert np.allclose(
        load_start(encoder, None, "cpu")(text), load_start(str(adapted.folder / "export"), None, "cpu")(text)
    )


def test_searching_practises_no_question(corpus, encoder, tmp_path):
    """The arm is taught by the start and by BM25, also in bf16, and judged by both questions together."""
    adapted = cmlmcse.adapt(encoder, corpus, tmp_path / "adapted", max_steps=2, views="search", learning_rate=1e-3,
                            bf16=True)  # fmt: skip
    found = adapted.results["adapt"]
    (arm,) = found["arms"].values()
    assert arm["fields"]["teacher"] == f"{encoder},bm25"
    assert found["criterion"] == "halves+words"
    assert "did not train on the questions of this score" in (adapted.folder / "report.md").read_text()
    assert (found["chosen"] != "start") is (found["interval"][0] > 0)


@pytest.mark.parametrize("arms_tried", ["one", "two"])
def test_what_is_handed_back_was_trained_on_two_splits(arms_tried, corpus, encoder, tmp_path, monkeypatch):
    """The chosen arms are trained again, to the same step, with the next seed; the documents that this run does
    not see, less those of the first split, confirm as well. The mean of both splits' weights is handed back, each
    averaged with the start by the same share. Of a finished encoder the kinds title_body and search are averaged."""
    asked = []

    def judged(confirming, start, chosen):
        asked.append([part.documents for part in confirming.parts])
        return GOOD

    monkeypatch.setattr(work, "judge", judged)
    own = {"views": "title_body", "early_stopping_patience": 9} if arms_tried == "one" else {}
    adapted = cmlmcse.adapt(encoder, corpus, tmp_path / "adapted", max_steps=4, learning_rate=1e-3, bf16=False, **own)
    found = adapted.results["adapt"]
    names = ["title_body, rate 0.001", "search, rate 0.001"][: 1 + (arms_tried == "two")]
    shares = {float(share): score for share, score in found["shares"].items() if share != "0"}
    share = max(shares, key=lambda share: (shares[share], share))
    part = (
        "" if share == 1 else f", averaged with the start ({share:.0%} of {'the arm' if len(names) == 1 else 'them'})"
    )
    assert found["chosen"] == " and ".join(names) + part
    assert list(found["settings"]) == list(found["second_split"]["steps"]) == names
    held_out = hold_out(load_collection(str(corpus)), 43)[1]
    first = {row["text"] for row in hold_out(load_collection(str(corpus)), 42)[1]}
    fresh = [row for row in held_out if row["text"] not in first]
    assert asked == [[15], [15, len(fresh)]]
    assert found["documents"] == {"choose": 15, "confirm": 15 + len(fresh)}
    runs, again = ([run_folder(folder, name) for name in names] for folder in (
        adapted.folder, adapted.folder / second_split.FOLDER))  # fmt: skip
    for folder in again:
        fields = json.loads((folder / "run.json").read_text())["fields"]
        assert (fields["dev_set"], fields["seed"], fields["max_steps"]) == ("auto_unscored", 43, 4)

    def weights(folder):
        return load_start(str(folder), None, "cpu").model.backbone.state_dict()["embeddings.word_embeddings.weight"]

    mean = torch.stack([weights(folder) for folder in (*runs, *again)]).mean(dim=0)
    assert torch.allclose(weights(adapted.folder / "export"), torch.lerp(weights(encoder), mean, share), atol=1e-6)
    assert not torch.allclose(weights(runs[0]), weights(again[0]), atol=1e-5)
    report = (adapted.folder / "report.md").read_text()
    assert "The text was split twice" in report
    assert "export/ has the mean of the two models' weights" in report
    card = (adapted.folder / "export" / "README.md").read_text()
    assert "trained, on two splits of the text" in card
    assert ("without a contrastive loss" in card) is (arms_tried == "two")


@pytest.mark.parametrize(
    ("sure", "in_time", "again"), [(False, True, True), (False, False, False), (True, True, False)]
)
def test_a_weak_encoder_is_asked_again(sure, in_time, again, corpus, encoder, tmp_path, monkeypatch):
    """It learns as a plain backbone, on one split; on another one only if the first cannot tell its change from chance,
    and if time is left."""
    monkeypatch.setattr(work, "WEAK", 2.0)
    verdicts = [GOOD] if sure else [GOOD._replace(interval=(-0.5, 3.0)), GOOD][: 1 + in_time]
    monkeypatch.setattr(work, "judge", lambda *given: verdicts.pop(0))
    if not in_time:
        monkeypatch.setattr(work, "seconds_of", lambda trials: float("nan"))  # not at most any time
    adapted = cmlmcse.adapt(encoder, corpus, tmp_path / "adapted", max_steps=2, bf16=False)
    found = adapted.results["adapt"]
    assert found["weak_encoder"]
    assert (found["second_split"] is not None) is again
    assert (adapted.folder / second_split.FOLDER).exists() is again
    assert (found["chosen"] == "start") is (not sure and not again)
    assert not verdicts


def test_what_is_not_better_is_not_trained_again(corpus, encoder, tmp_path, monkeypatch):
    """Where the choice has no better score on the first split's confirming documents, the second one is spared."""
    monkeypatch.setattr(work, "judge", lambda *given: BAD)
    adapted = cmlmcse.adapt(encoder, corpus, tmp_path / "adapted", max_steps=2, views="title_body", bf16=False)
    found = adapted.results["adapt"]
    assert (found["chosen"], found["second_split"]) == ("start", None)
    assert not (adapted.folder / second_split.FOLDER).exists()


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


@pytest.mark.parametrize(("weak", "finished"), [(work.WEAK, False), (0.0, True)])
def test_a_weak_encoder_learns_as_a_backbone(weak, finished, corpus, encoder, monkeypatch):
    """One that finds less than BM25, as the tiny one does: its questions are a backbone's, and so are its rates. It
    keeps its pooling."""
    monkeypatch.setattr(work, "WEAK", weak)
    said: list[str] = []
    start = work.begin(parse([encoder, str(corpus), "--output_dir", "new", "--device", "cpu"]), False, said.append)
    assert start.text.finished == finished
    assert start.choosing.name == ("halves+words" if finished else "parts")
    assert start.encoder.model.config.pooling == "avg"
    assert start.text.weak is not finished
    assert ("this finished encoder finds clearly less than BM25" in "".join(said)) is not finished
    tried = arms.default_arms(encoder, start.text.titles_ask, start.text.finished, {})
    rates = {arm["learning_rate"] for arm in tried.values()}
    assert rates == set(arms.ENCODER_RATES if finished else arms.BACKBONE_RATES)


@pytest.mark.parametrize(("given", "earlier", "finished"), [
    ([], None, False), ([], True, True), (["--views", "crops"], None, True), (["--views", "crops"], False, False),
])  # fmt: skip
def test_who_decides_how_an_encoder_learns(given, earlier, finished, corpus, encoder, monkeypatch):
    """An earlier call, else the user's views, else the score."""
    monkeypatch.setattr(work, "WEAK", 0.9)
    args = parse([encoder, str(corpus), "--output_dir", "new", "--device", "cpu", *given])
    assert work.begin(args, False, lambda _: None, earlier).text.finished == finished


def test_single_sentences_are_still_refused(encoder, tmp_path, monkeypatch, capsys):
    """They can ask nothing that tells a finished encoder from a better one, so no score says that it is weak."""
    monkeypatch.setattr(work, "WEAK", 2.0)
    rng = np.random.default_rng(0)
    (tmp_path / "lines.txt").write_text("\n".join(" ".join(rng.choice(WORDS, 8)) for _ in range(300)))
    with pytest.raises(SystemExit, match="2"):
        main([encoder, str(tmp_path / "lines.txt"), "--output_dir", str(tmp_path / "out"), "--max_steps", "2"])
    assert "judges a finished encoder by passages of a document" in capsys.readouterr().err


def test_a_large_text_is_drawn_from(corpus, backbone, recipe):
    """Of 150 documents 120 are read: the same ones by the scores and by an arm, from all of the file, in its order."""
    start = load_start(backbone, "avg", "cpu")
    args = parse(["model", str(corpus), "--output_dir", "new", "--max_documents", "120"])
    text = read_text(args, start, finished=False)
    assert (text.found, text.documents, text.held_out) == (150, 120, 24)
    assert text.summary().startswith("120 of 150 documents, 120 with a title")
    fields = {"train_file": str(corpus), "views": "crops", "dev_set": "auto", "max_documents": 120, "seed": args.seed}
    data, run_args = parse_recipe([str(recipe), *field_arguments(fields)])[2:]
    rest, held_out = build_documents(data, run_args)
    everything = load_collection(str(corpus))["text"]
    places = [everything.index(one) for one in held_out["text"]]
    assert places == sorted(places)
    assert max(places) > 120
    assert len(rest) == 96
    asked = label_free_set("auto", held_out, rest, args.seed)
    assert asked.queries == text.criterion.queries


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
    start = Encoder(model, tiny_tokenizer("bert"), {}, {"max_seq_length": takes})
    assert read_text(args, start, finished=False).length == expected


def test_no_change_is_not_better():
    """The start is handed back unless the interval lies above 0."""
    before = np.random.default_rng(0).uniform(0, 100, 100)
    noise = np.random.default_rng(1).normal(0, 10, 100)
    noise -= noise.mean()

    def change(after):
        values = {"before": before, "after": after}
        return judge(Splits((SimpleNamespace(values=values.get, name="", title=""),)), "before", ["after"])

    assert not change(before).better
    assert not change(before + noise).better
    assert change(before + noise + 5).better
