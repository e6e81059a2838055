"""The command adapt, from documents to its folder, on tiny models."""

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer

import cmlmcse
from cmlmcse.adaptation import arms, choice, pipeline
from cmlmcse.adaptation.choice import Change
from cmlmcse.adaptation.command import main, parse
from cmlmcse.adaptation.files import SECOND_SPLIT
from cmlmcse.adaptation.report import labelled_blocks
from cmlmcse.adaptation.results import labelled_results, load_labelled
from cmlmcse.adaptation.runs import run_folder
from cmlmcse.adaptation.text import read_text
from cmlmcse.adaptation.weights import load_start
from cmlmcse.common.errors import InputError
from cmlmcse.data.collection import hold_out, load_collection
from cmlmcse.hub.push import main as push
from cmlmcse.hub.push import parse as parse_push
from cmlmcse.hub.push import write_card
from cmlmcse.models.folders import recorded_similarity
from cmlmcse.training.build_text import build_documents
from cmlmcse.training.command import field_arguments
from cmlmcse.training.dev_set import label_free_set
from cmlmcse.training.parse import parse_recipe
from modeling_cmlmcse import CMLMCSEForSentenceEmbedding
from support.docs import files_of
from support.tiny import WORDS


@pytest.mark.slow
@pytest.mark.usefixtures("pictures")
def test_adapt(corpus, backbone, tmp_path, capsys, monkeypatch):
    """A tiny backbone learns to find documents; the folder holds what the reference promises; nothing asks the Hub."""
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
    assert sorted(arm["steps"] for arm in adapted["arms"].values()) == [40, 40, 40, 60, 60, 60]
    low, high = adapted["interval"]
    assert low <= adapted["best_candidate"] - adapted["before"] <= high
    *first, last = sorted(adapted["arms"], key=lambda name: ("search" in name, adapted["arms"][name]["score"]))
    assert re.fullmatch("title_body(.words)?, rate 0.003", first[-1])
    assert last == f"{first[-1].partition(',')[0]} then search, rate 0.0001"
    best = last
    assert adapted["arms"][best]["score"] > adapted["choose_before"] + 10
    enough = adapted["best_candidate"] - adapted["before"] >= 0.015 * adapted["before"]
    assert adapted["chosen"].startswith(best if low > 0 and enough else "start")
    begun = {name: pytest.approx(adapted["choose_before"]) for name in first}
    begun[last] = pytest.approx(adapted["arms"][first[-1]]["score"], abs=1e-3)  # it starts where the best one ended
    assert {name: arm["scores"][0] for name, arm in adapted["arms"].items()} == {
        name: [0, score] for name, score in begun.items()}  # fmt: skip
    rest, held_out = hold_out(load_collection(str(corpus)), 42)
    exported = load_start(str(run_folder(folder, best)), None, "cpu")
    score = label_free_set("auto_half", held_out, rest, 42).score(exported)
    assert score == pytest.approx(adapted["arms"][best]["score"], abs=1e-3)  # which training met, not scored again
    line = capsys.readouterr().out.strip().splitlines()[-1]
    assert f"{adapted['before']:.2f} before, {adapted['best_candidate']:.2f} after" in line

    vectors = SentenceTransformer(str(folder / "export")).encode(["w1 w2", "the cat sat"])
    loaded = load_start(str(folder / "export"), None, "cpu")(["w1 w2", "the cat sat"])
    assert np.allclose(vectors, loaded, atol=1e-5)
    assert {path.name for path in folder.iterdir()} <= files_of("The folder of adapt")
    page = (folder / "report.html").read_text()
    assert page.count("data:image/png;base64,") == 1
    assert not re.findall(r'(?:src|href)="(?!data:)', page)
    report = (folder / "report.md").read_text()
    assert report.count("(rank ") == 20
    assert "starts from the best of the others" in report
    assert list(adapted["settings"]) == [first[-1], last]
    assert adapted["averaged"] == [last]
    assert f"{adapted['bm25']:.2f}" in report
    card = (folder / "export" / "README.md").read_text()
    assert f"on {adapted['documents']['confirm']} documents that were not used to choose" in card
    assert f"BM25 has {adapted['bm25']:.2f}" in card
    assert f"teachers: none / `{run_folder(folder, first[-1]).name}`, `bm25`" in card
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


def test_a_large_text_is_drawn_from(corpus, backbone, recipe):
    """Of 150 documents 120 are read: the same ones by the scores and by an arm, from all of the file, in its order."""
    start = load_start(backbone, "avg", "cpu")
    args = parse(["model", str(corpus), "--output_dir", "new", "--max_documents", "120"])
    text = read_text(args, start, finished=False)
    assert (text.found, text.documents, text.held_out) == (150, 120, 24)
    assert text.summary().startswith("120 of 150 documents, 120 with a title")
    fields = {"train_file": str(corpus), "views": "crops", "dev_set": "auto", "max_documents": 120, "seed": args.seed}
    rest, held_out = build_documents(parse_recipe([str(recipe), *field_arguments(fields)]))
    everything = load_collection(str(corpus))["text"]
    places = [everything.index(one) for one in held_out["text"]]
    assert places == sorted(places)
    assert max(places) > 120
    assert len(rest) == 96
    asked = label_free_set("auto", held_out, rest, args.seed)
    assert asked.queries == text.criterion.queries


def write_beir(folder, corpus, asked=1):
    """A labelled set whose documents are those of the corpus: one query is a title, so many others are new."""
    (folder / "qrels").mkdir(parents=True)
    rows = [json.loads(line) for line in corpus.read_text().splitlines()]
    (folder / "corpus.jsonl").write_text(corpus.read_text())
    queries = {"known": rows[3]["title"].upper() + "?", **{f"new{i}": f"where is w{i} and w4" for i in range(asked)}}
    (folder / "queries.jsonl").write_text(
        "".join(json.dumps({"_id": name, "text": text}) + "\n" for name, text in queries.items())
    )
    judged = "".join(f"new{i}\t{4 + i}\t1\n" for i in range(asked))
    (folder / "qrels" / "test.tsv").write_text(f"query-id\tcorpus-id\tscore\nknown\t3\t1\n{judged}")


def test_labelled_data_that_the_text_knows(corpus, backbone_folders, tmp_path):
    """Queries that are titles of the text are counted, and the report says so; BM25 stands beside the scores."""
    write_beir(tmp_path / "beir" / "own", corpus)
    start = load_start(backbone_folders["bert"], "avg", "cpu")
    found = labelled_results(load_labelled(str(tmp_path)), load_collection(str(corpus)), start, start)
    assert found["retrieval"]["queries_in_text"] == 1
    (_, text), (kind, (header, table)) = labelled_blocks(found)[1:]
    assert "But 1 of the queries stand word for word in the text" in text
    assert (kind, header[-3:], len(table)) == ("table", ["95 % interval", "BM25", "after, with BM25 (0.3)"], 1)
    assert table[0][4] == "–"  # the start was kept
    with pytest.raises(InputError, match="data_dir must hold labelled data in beir or sts/stsb, found neither"):
        load_labelled(str(tmp_path / "beir"))
    own = found["retrieval"]["after"]["retrieval"]["own"]
    words = [own[search]["ndcg@10"] for search in ("bm25", "hybrid")]
    assert [float(cell) for cell in table[0][-2:]] == pytest.approx(words, abs=0.01)


def test_labelled_data_have_intervals(corpus, backbone_folders, data_dir, tmp_path):
    """Of searches and of STS-B dev: the change before → after lies in its interval, which report and card show."""
    (tmp_path / "sts").symlink_to(data_dir / "sts")
    write_beir(tmp_path / "beir" / "own", corpus, asked=15)
    start, best = (load_start(backbone_folders[name], "avg", "cpu") for name in ("bert", "roberta"))
    found = labelled_results(load_labelled(str(tmp_path)), load_collection(str(corpus)), start, best)
    before, after = (found["retrieval"][side]["retrieval"]["own"] for side in ("before", "after"))
    differences = found["retrieval"]["differences"]
    for measure, scores in (("ndcg@10", (before, after)), ("hybrid ndcg@10", (before["hybrid"], after["hybrid"]))):
        own = differences[measure]["own"]
        assert own["difference"] == pytest.approx(scores[1]["ndcg@10"] - scores[0]["ndcg@10"], abs=1e-3)
        assert own["low"] <= own["difference"] <= own["high"]
    pairs = [found["stsb_dev"][side]["stsb_dev"]["spearman"] for side in ("before", "after")]
    similar = found["stsb_dev"]["differences"]["stsb_dev"]
    assert similar["difference"] == pytest.approx(pairs[1] - pairs[0], abs=1e-3)
    assert similar["low"] < similar["high"]
    rows = {row[0]: row[4] for row in labelled_blocks(found)[2][1][1]}
    assert rows == {
        "own, nDCG@10 × 100": "{low:+.2f} to {high:+.2f}".format(**differences["ndcg@10"]["own"]),
        "stsb_dev, Spearman × 100": "{low:+.2f} to {high:+.2f}".format(**similar),
    }


def test_single_sentences(encoder, tmp_path, capsys):
    """A finished encoder learns from them by dropout and near sentences, and they ask one question. Both are said."""
    rng = np.random.default_rng(0)
    (tmp_path / "lines.txt").write_text("\n".join(" ".join(rng.choice(WORDS, 8)) for _ in range(300)))
    adapted = cmlmcse.adapt(encoder, tmp_path / "lines.txt", tmp_path / "adapted", max_steps=2)
    found = adapted.results["adapt"]
    assert found["criterion"] == "shortened"
    assert found["finished_encoder"] is True
    assert [arm["fields"]["mined_negatives"] for arm in found["arms"].values()] == [1, 1]
    enough = found["best_candidate"] - found["before"] >= 0.015 * found["before"]
    assert (found["chosen"] != "start") is (found["interval"][0] > 0 and enough)
    assert "taken for single sentences. They ask one question, an easy one" in capsys.readouterr().err


def test_what_no_question_can_confirm_is_not_trained(corpus, encoder, tmp_path, capsys):
    """A finished encoder's arms that practise all that the text can ask: one line before any time is spent, and no
    folder that a corrected command would have to avoid."""
    text = tmp_path / "text.txt"
    bodies = [json.loads(line)["text"].split()[:50] for line in corpus.read_text().splitlines()]
    text.write_text("\n".join(" ".join(words) for words in bodies) + "\n")
    with pytest.raises(InputError) as refused:
        cmlmcse.adapt(encoder, text, tmp_path / "adapted", max_steps=2, views="crops+words")
    message = "questions that it did not practise, found views (crops+words) that practise all of them"
    assert message in str(refused.value)
    assert "training to step" not in capsys.readouterr().err
    assert not (tmp_path / "adapted").exists()


def test_searching_practises_no_question(corpus, encoder, tmp_path):
    """The arm is taught by the start and by BM25, also in bf16, and judged by both questions together."""
    adapted = cmlmcse.adapt(encoder, corpus, tmp_path / "adapted", max_steps=2, views="search", learning_rate=1e-3,
                            bf16=True)  # fmt: skip
    found = adapted.results["adapt"]
    (arm,) = found["arms"].values()
    assert arm["fields"]["teacher"] == f"{encoder},bm25"
    assert found["criterion"] == "halves+words"
    assert "did not train on the questions of this score" in (adapted.folder / "report.md").read_text()
    enough = found["best_candidate"] - found["before"] >= 0.015 * found["before"]
    assert (found["chosen"] != "start") is (found["interval"][0] > 0 and enough)


GOOD = Change("halves+words", "pieces and words find", 10.0, 12.0, (1.0, 3.0))

BAD = Change("halves", "pieces are found", 10.0, 9.0, (-2.0, 0.0))


def with_dot(encoder: str, folder: Path) -> str:
    """A copy of an encoder whose embeddings are compared by their dot products."""
    copy = shutil.copytree(encoder, folder / "dot")
    (copy / "config_sentence_transformers.json").write_text('{"similarity_fn_name": "dot"}')
    return str(copy)


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
    monkeypatch.setattr(choice, "judge", lambda *given: BAD)
    views, encoder = "title_body", with_dot(encoder, tmp_path)
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
    assert f"{encoder} records the similarity dot; training compares cosines, so" in printed.err
    similarities = [recorded_similarity(str(folder)) for folder in (run.parent, adapted.folder)]
    assert similarities == ["cosine", "dot"]
    assert SentenceTransformer(str(adapted.folder / "export"), device="cpu").similarity_fn_name == "dot"
    card = (adapted.folder / "export" / "README.md").read_text()
    assert "compared by dot" in card
    assert "Rank texts by dot similarity." in card
    assert "model.similarity" not in (adapted.folder / "export" / "README.md").read_text()  # there it is no cosine
    monkeypatch.setattr("cmlmcse.hub.export.verify", lambda *_: {"SentenceTransformer": 0.0})
    push(["--export_only", str(adapted.folder), "--output_dir", str(tmp_path / "pushed")])
    assert recorded_similarity(str(tmp_path / "pushed")) == "dot"


@pytest.mark.parametrize("arms_tried", ["one", "two"])
def test_what_is_handed_back_was_trained_on_two_splits(arms_tried, corpus, encoder, tmp_path, monkeypatch):
    """The chosen arms are trained again, to the same step, with the next seed; the documents that this run does
    not see, less those of the first split, confirm as well. The mean of both splits' weights is handed back, each
    averaged with the start by the same share. Of a finished encoder the kinds title_body and search are averaged."""
    asked = []

    def judged(confirming, start, chosen):
        asked.append([part.documents for part in confirming.parts])
        return GOOD

    monkeypatch.setattr(choice, "judge", judged)
    encoder = with_dot(encoder, tmp_path)
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
        adapted.folder, adapted.folder / SECOND_SPLIT))  # fmt: skip
    for folder in again:
        fields = json.loads((folder / "run.json").read_text())["fields"]
        assert (fields["dev_set"], fields["seed"], fields["max_steps"]) == ("auto_unscored", 43, 4)

    def weights(folder):
        return load_start(str(folder), None, "cpu").model.backbone.state_dict()["embeddings.word_embeddings.weight"]

    mean = torch.stack([weights(folder) for folder in (*runs, *again)]).mean(dim=0)
    assert torch.allclose(weights(adapted.folder / "export"), torch.lerp(weights(encoder), mean, share), atol=1e-6)
    assert not torch.allclose(weights(runs[0]), weights(again[0]), atol=1e-5)
    assert recorded_similarity(str(adapted.folder)) == "cosine"  # by which it was trained
    report = (adapted.folder / "report.md").read_text()
    assert "The text was split twice" in report
    assert "export/ has the mean of the two models' weights" in report
    card = (adapted.folder / "export" / "README.md").read_text()
    assert "trained, on two splits of the text" in card
    assert ("without a contrastive loss" in card) is (arms_tried == "two")


@pytest.mark.parametrize(("size", "rate"), [(arms.SMALL, "0.0001"), (0, "3e-05")])
def test_what_is_not_better_is_not_trained_again(size, rate, corpus, encoder, tmp_path, monkeypatch):
    """Where the choice has no better score on the first split's confirming documents, the second one is spared. The
    tiny encoder is small, so it tries the larger rate first."""
    monkeypatch.setattr(choice, "judge", lambda *given: BAD)
    monkeypatch.setattr(pipeline, "SMALL", size)
    adapted = cmlmcse.adapt(encoder, corpus, tmp_path / "adapted", max_steps=2, views="title_body", bf16=False)
    found = adapted.results["adapt"]
    assert (found["chosen"], found["second_split"]) == ("start", None)
    assert not (adapted.folder / SECOND_SPLIT).exists()
    assert next(iter(found["arms"])) == f"title_body, rate {rate}"
