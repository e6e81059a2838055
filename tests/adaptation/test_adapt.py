"""The command adapt, from documents to its folder, on tiny models; and how it answers wrong input."""

import json
import re
import time
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from transformers import AutoTokenizer

import cmlmcse
from cmlmcse.adaptation import arms, work
from cmlmcse.adaptation.arms import Common, Trial, default_arms, finalist_steps, further_steps, plan_steps, run_arms
from cmlmcse.adaptation.choice import Change, Verdict, best_average, judge, load_start
from cmlmcse.adaptation.command import main, parse, run_first
from cmlmcse.adaptation.crew import run
from cmlmcse.adaptation.report import labelled_blocks, next_steps
from cmlmcse.adaptation.results import labelled_results, load_labelled
from cmlmcse.adaptation.text import foreign, read_text
from cmlmcse.common import cpu
from cmlmcse.common.errors import InputError
from cmlmcse.common.names import split_names
from cmlmcse.data.collection import hold_out, load_collection
from cmlmcse.evaluation.bm25 import WEIGHT
from cmlmcse.evaluation.label_free import Criterion
from cmlmcse.evaluation.sts import EncodeOnce
from cmlmcse.hub.export import export
from cmlmcse.hub.push import parse as parse_push
from cmlmcse.hub.push import write_card
from cmlmcse.models.encoders import Encoder
from cmlmcse.training.build import build_documents
from cmlmcse.training.command import field_arguments
from cmlmcse.training.dev_set import label_free_set
from cmlmcse.training.parse import parse_recipe
from cmlmcse.training.searches import LEXICAL_SCALE
from modeling_cmlmcse import CMLMCSEForSentenceEmbedding
from modeling_cmlmcse.variable_length import switched_off
from support.paths import ROOT
from support.tiny import WORDS, tiny_tokenizer


@pytest.fixture(scope="module")
def encoder(backbone, tmp_path_factory):
    """The same model as a finished encoder, whose folder records its pooling."""
    model = CMLMCSEForSentenceEmbedding.from_backbone(backbone, pooling="avg", cmlm_weight=0)
    return str(export(model, tiny_tokenizer("bert"), tmp_path_factory.mktemp("encoder") / "export"))


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
    assert "A plain backbone has little to lose" in (folder / "report.md").read_text()
    assert adapted["documents"] == {"choose": 15, "confirm": 15}
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
    exported = load_start(str(arms.run_folder(folder, best)), None, "cpu")
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
    again = ["--output_dir", str(folder), "--max_steps", "60", "--resume_from_checkpoint", "auto"]
    main([backbone, str(corpus), *again])
    assert "is finished" in capsys.readouterr().err


@pytest.mark.parametrize(("seconds", "faster"), [((1.0, 0.5), True), ((1.0, 0.9), False), ((1.0, 3.0), False)])
def test_bf16_is_measured(seconds, faster, monkeypatch):
    """bf16 is chosen where a product takes clearly less time in it, whatever the processor says of itself."""
    clock = [0.0]

    def linear(left, right):
        clock[0] += seconds[left.dtype == torch.bfloat16]

    monkeypatch.setattr("modeling_cmlmcse.linear.linear", linear)
    monkeypatch.setattr(time, "perf_counter", lambda: clock[0])
    assert cpu.bf16_is_faster.__wrapped__() == faster


@pytest.mark.parametrize(
    ("words", "launcher", "faster", "expected"),
    [
        ([], None, True, True),
        ([], None, False, False),
        ([], "no", True, False),
        ([], "bf16", False, True),
        ([], "fp16", True, False),
        (["--bf16"], "no", False, True),
        (["--bf16", "false"], None, True, False),
        (["--bf16=true", "--dataloader_drop_last"], None, False, True),
    ],
)
def test_who_names_a_precision_gets_it(words, launcher, faster, expected, tmp_path, monkeypatch):
    """As in training: the command line, where a switch needs no value; else the launcher; else what is faster."""
    found = []
    monkeypatch.delenv("ACCELERATE_MIXED_PRECISION")
    if launcher is not None:
        monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", launcher)
    monkeypatch.setattr("cmlmcse.adaptation.command.has_fast_bf16", lambda device: faster)
    monkeypatch.setattr(work, "adapt_in", lambda folder, args, bf16, train: found.append(bf16) or {})
    run_first(parse(["model", "text", *words, "--output_dir", str(tmp_path)]), run)
    assert found == [expected]


def test_a_switch_needs_no_value():
    """Wherever it stands; a value after = may begin with dashes."""
    words = ["--fp16", "--output_dir", "new", "--temp", "0.1", "--augmentation=--", "--dataloader-drop-last"]
    assert parse(["model", "text", *words]).fields == {
        "fp16": "true", "temp": "0.1", "augmentation": "--", "dataloader_drop_last": "true"
    }  # fmt: skip


@pytest.mark.parametrize("words", [[], ["--variable_length_attention", "false"]])
def test_attention_pads_if_asked(words, tmp_path, monkeypatch):
    """Where this process scores too, and only until the command ends."""
    found = []
    monkeypatch.setattr(work, "adapt_in", lambda *_: found.append(switched_off()) or {})
    run_first(parse(["model", "text", "--output_dir", str(tmp_path), "--bf16", "false", *words]), run)
    assert found == [bool(words)]
    assert not switched_off()


def test_arms():
    """Titles give arms of their own; what the user sets holds in all arms, and equal arms run once."""
    names = list(default_arms("start", True, False, {}))
    assert names[0] == "title_body, rate 0.0003"
    assert len(names) == len(default_arms("start", True, True, {})) == 5
    assert not any("title" in name for name in default_arms("start", False, True, {}))
    crops = default_arms("start", True, True, {"views": "crops"})
    assert set(crops) == {"crops, rate 3e-05", "crops, rate 0.0001"}
    assert all(fields["backbone_dropout"] == 0 for fields in crops.values())
    assert default_arms("start", True, True, {"backbone_dropout": "0.1"}).popitem()[1]["backbone_dropout"] == "0.1"
    first = [list(default_arms("start", titles, True, {}))[:3] for titles in (False, True)]
    assert first[0] == ["search, rate 3e-05", "search, rate 0.0001", "dropout, rate 3e-05"]
    assert first[1] == ["title_body, rate 3e-05", "search, rate 3e-05", "title_body, rate 0.0001"]
    search = default_arms("start", False, True, {})["search, rate 0.0001"]
    assert (search["teacher"], search["contrastive_weight"]) == ("start,bm25", 0)
    assert search["teacher_temp"] / search["distillation_temp"] == pytest.approx(search["teacher_share"])
    share = search["teacher_share"]  # of the model; the teachers together are what `search --bm25` ranks by
    assert LEXICAL_SCALE * (1 - share) / share == pytest.approx(WEIGHT)
    quoted = default_arms("a,b", False, True, {})["search, rate 0.0001"]["teacher"]
    assert split_names(quoted) == ["a,b", "bm25"]
    assert default_arms("start", False, True, {"teacher": "other"})["search, rate 3e-05"]["teacher"] == "other"
    for own in ("cmlm_weight", "mined_negatives"):  # the user's objective is that of all arms
        assert not any("search" in name for name in default_arms("start", True, True, {own: "1"}))
    plain = default_arms("start", True, False, {"views": "search"})["search, rate 0.0003"]
    assert (plain["teacher"], plain["teacher_temp"]) == ("bm25", search["teacher_temp"])
    alike = default_arms("start", False, True, {"views": "dropout"})  # which nothing else makes two views of
    assert all("backbone_dropout" not in fields for fields in alike.values())


@pytest.mark.parametrize(
    "minutes, step, expected",
    [
        (15, 1.0, (5, 60, 200)),
        (8, 1.0, (3, 40, 120)),
        (5, 1.0, (1, 60, 180)),
        (2.5, 1.0, (1, 20, 80)),
        (1.5, 1.0, (1, 20, 20)),
        (1, 1.0, (1, 20, 20)),
        (500, 0.1, (5, 160, 480)),
    ],
)
@pytest.mark.parametrize("prepared", [0.0, 90.0])
@pytest.mark.parametrize("again", [False, True])
def test_plan(minutes, step, expected, prepared, again, monkeypatch, tmp_path):
    """More time gives more arms, then more steps, and all of them fit into it; the finalists get what is left. What the
    first arm's teachers took is paid once. So does the run on all documents, which has teachers of its own."""
    record = {"seconds_per_step": step, "prepared_seconds": prepared}
    monkeypatch.setattr(arms, "run_arm", lambda *_: Trial(tmp_path, 20, 0.0, record))
    monkeypatch.setattr(arms.time, "perf_counter", iter((0.0, 30.0 + prepared)).__next__)
    named = default_arms("start", True, True, {})
    seconds = 45 * minutes + (1 + again) * prepared
    names, first, besides = plan_steps(named, Common(tmp_path, {}, np.zeros(1), run, again=again), seconds)
    assert besides == 30 - 20 * step
    spent = 30 + prepared + len(names) * besides + (len(names) * first - 20) * step
    trials = [Trial(tmp_path, first, 0.0, record)] * min(2, len(names))
    last = finalist_steps(trials, seconds - spent - again * prepared, besides, again)
    assert again or (len(names), first, last) == expected
    count, finalists = len(names), min(2, len(names))
    taken = step * (count * first + finalists * (last - first) + again * last)
    taken += (count + 1 + finalists + again) * (30 - 20 * step)
    assert taken <= 45 * minutes or (count, first, last) == (1, 20, 20)


@pytest.mark.parametrize(
    "scores, seconds, expected",
    [
        ([10, 11, 12], 50, 80),
        ([10, 12, 11], 50, 0),
        ([10, 11, 12], 19, 40),
        ([10, 11, 12], -9, 40),
        ([1, 2], 9999, 480),
    ],
)
def test_further_steps(scores, seconds, expected, tmp_path):
    """An arm whose last score is its best goes on for as many steps as fit into the time, in blocks of 20."""
    trial = Trial(tmp_path, 40, 12.0, {"dev_scores": scores, "seconds_per_step": 1.0})
    assert further_steps(trial, seconds + 10, 10.0, False, 0.0) == expected
    twice = (
        seconds + max(expected - 40, 0) + 40 + 20 + 7
    )  # for the same steps once more, and what two runs cost besides
    assert further_steps(trial, twice, 10.0, True, 7.0) == expected


def test_the_best_arm_goes_on(monkeypatch, tmp_path):
    """After both rounds, while its score rises and time is left; a repeated call trains to the same steps again, and no
    further without time."""
    asked, now = [], [0.0]

    def run_arm(name, fields, common, steps, every):
        asked.append((name, steps))
        now[0] += 30.0 if len(asked) <= 2 else 5.0  # the finalists are faster than was planned
        scores = [0.0, *(float(min(step, 120)) for step in range(20, steps + 1, 20))]
        return Trial(tmp_path, steps, max(scores) + (name == "best"), {"seconds_per_step": 1.0, "dev_scores": scores})

    monkeypatch.setattr(arms, "run_arm", run_arm)
    monkeypatch.setattr(arms, "plan_steps", lambda *_: (["other", "best"], 20, 10.0))
    monkeypatch.setattr(arms.time, "perf_counter", lambda: now[0])
    common = Common(tmp_path, {}, np.zeros(1), run)
    found = run_arms({"other": {}, "best": {}}, common, 140.0, None)
    assert asked[2:4] == [("best", 40), ("other", 40)]  # 80 seconds are left, less 10 for each run
    assert asked[4:] == [("best", 100), ("best", 140)]  # 70 seconds are left, less 10 for the run itself; then 55
    assert found["best"].steps == 140
    again = list(asked)
    asked.clear()
    run_arms({"other": {}, "best": {}}, common, 0.0, None)
    assert asked == again


def test_the_best_average_is_between_start_and_arm(backbone_folders):
    """The weights are (1 − share) · start + share · arm, and the share is the one with the best score."""
    start, arm = (load_start(backbone_folders["bert"], "avg", "cpu") for _ in range(2))
    with torch.no_grad():
        for weight in arm.model.backbone.parameters():
            weight.add_(1.0)
    name = "embeddings.word_embeddings.weight"
    before = start.model.backbone.state_dict()[name]

    class Half(Criterion):
        def score(self, encode):
            moved = float((encode._encode.model.backbone.state_dict()[name] - before).mean())
            return -abs(moved - 0.5)

    found = best_average(
        lambda: load_start(backbone_folders["bert"], "avg", "cpu"),
        EncodeOnce(start),
        arm,
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
    assert (kind, header[-2:], len(table)) == ("table", ["BM25", "after, with BM25"], 1)
    with pytest.raises(InputError, match="data_dir must hold labelled data in beir or sts/stsb, found neither"):
        load_labelled(str(tmp_path / "beir"))
    own = found["retrieval"]["after"]["retrieval"]["own"]
    words = [own[search]["ndcg@10"] for search in ("bm25", "hybrid")]
    assert [float(cell) for cell in table[0][-2:]] == pytest.approx(words, abs=0.01)


def test_advice_to_search_by_words():
    """By both if both are best, by words alone if they are, and no word of it where the model alone is best."""
    text = {"share_cut_off": 0.0, "titles": 1}
    found = {"arms": {"crops": {"score": 1.0, "scores": [[1, 1.0]]}}, "before": 50.0, "after": 52.0}

    def advice(bm25, hybrid):
        return [step for step in next_steps(False, found | {"bm25": bm25, "hybrid": hybrid}, text) if "word" in step]

    (both,) = advice(60.0, 65.25)
    assert "--bm25: the model and BM25 together have 65.25 by the score above, the model alone 52.00" in both
    (alone,) = advice(66.0, 65.25)
    assert "a search by words alone" in alone
    assert advice(40.0, 51.0) == []


GERMAN = "Der schnelle Fuchs springt über den faulen Hund, während die Sonne langsam hinter den Bergen untergeht."


@pytest.mark.parametrize(
    "text, sign",
    [
        ("The quick fox jumps over the lazy dog while the sun sets slowly behind the mountains.", None),
        ("Children with diabetes received 12.5 mg of thyroxine daily; hormone levels rose in 24 cases (42 %).", None),
        (GERMAN, "into pieces of 2."),
        ("Быстрая лиса прыгает через ленивую собаку, пока солнце медленно садится.", "into pieces of 1."),
        ("快速的棕色狐狸跳过懒狗，太阳慢慢落在山后。", "of the tokens are unknown"),
    ],
)
def test_text_of_another_language(text, sign):
    """An English tokenizer shows it by unknown words, or by words in small pieces; English stays unremarked."""
    note = foreign([text], AutoTokenizer.from_pretrained(ROOT / "assets" / "bert-mini-en"))
    assert (sign in note) if sign else note == ""


GOOD = Change("halves+words", "pieces and words find", 10.0, 12.0, (1.0, 3.0))
BAD = Change("halves", "pieces are found", 10.0, 9.0, (-2.0, 0.0))


def test_what_the_arm_practised_proves_nothing():
    """The start is given up if questions that the arm did not practise say so beyond chance, and for nothing else."""
    assert Verdict(GOOD).better
    assert not Verdict(BAD).better
    assert not Verdict(GOOD, asked=False).better


def test_a_practised_score_alone_hands_back_the_start(corpus, encoder, tmp_path, capsys, monkeypatch):
    """A finished encoder whose arm practised all that the text can ask: the start is in export/, and the report and the
    last line say why. Where bf16 is faster, training and every score compute in it; only the card's three sentences are
    encoded in fp32."""
    in_fp32 = set()
    encode_batch = CMLMCSEForSentenceEmbedding._encode_batch

    def watched(*given):
        if not torch.is_autocast_enabled("cpu"):
            in_fp32.add(len(given[1]))
        return encode_batch(*given)

    monkeypatch.setattr(CMLMCSEForSentenceEmbedding, "_encode_batch", watched)
    monkeypatch.delenv("ACCELERATE_MIXED_PRECISION")
    monkeypatch.setattr("cmlmcse.adaptation.command.bf16_is_faster", lambda: True)
    monkeypatch.setattr(work, "judge", lambda *given: GOOD)
    views = "crops+words"
    adapted = cmlmcse.adapt(encoder, corpus, tmp_path / "adapted", max_steps=2, views=views, learning_rate=1e-3)
    assert adapted.results["precision"] == "bf16"
    assert in_fp32 == {3}
    (run,) = (adapted.folder / "arms").glob("*/run.json")
    assert json.loads(run.read_text())["fields"]["bf16"] is True
    found = adapted.results["adapt"]
    assert (found["chosen"], found["after"], found["best_candidate"]) == ("start", 10.0, 12.0)
    assert "all_documents" not in found
    printed = capsys.readouterr()
    assert "training and scoring compute in bf16" in printed.err
    line = printed.out.strip().splitlines()[-1]
    assert "pieces and words find: 10.00 before, 12.00 after, +2.00 (95 % interval +1.00 to +3.00). " in line
    why = "none is left to confirm it; try other views. So export/ is the model that it started from."
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
    assert (found["asked"], found["criterion"]) == (True, "halves+words")
    assert "did not train on the questions of this table" in (adapted.folder / "report.md").read_text()
    assert (found["chosen"] != "start") is (found["interval"][0] > 0)


def test_what_is_handed_back_knows_all_documents(corpus, encoder, tmp_path, monkeypatch):
    """The chosen arm is trained once more, to its best step, on the held-out documents too, and averaged with the start
    as before; the scores stay those of the run that did not see them. If it is no better than the start, that run's
    model is handed back."""
    monkeypatch.setattr(work, "judge", lambda *given: GOOD._replace(before=-1.0))
    given = {"max_steps": 4, "views": "title_body", "learning_rate": 1e-3, "bf16": False}
    adapted = cmlmcse.adapt(encoder, corpus, tmp_path / "adapted", **given)
    found = adapted.results["adapt"]
    (run,), again = (adapted.folder / "arms").iterdir(), adapted.folder / "all-documents"
    best = json.loads((run / "run.json").read_text())["best_checkpoint"]
    share = float(max(found["shares"], key=lambda name: (found["shares"][name], float(name)) if name != "0" else (-1,)))
    fields = json.loads((again / "run.json").read_text())["fields"]
    assert (fields["dev_set"], f"checkpoint-{fields['max_steps']}") == ("none", best)
    assert found["all_documents"]["steps"] == fields["max_steps"]
    assert found["all_documents"]["kept"]
    assert (found["after"], found["best_candidate"]) == (12.0, 12.0)
    assert "knows the held-out documents too" in (adapted.folder / "report.md").read_text()

    def weights(folder):
        return load_start(str(folder), None, "cpu").model.backbone.state_dict()["embeddings.word_embeddings.weight"]

    def mixed(folder):
        return torch.lerp(weights(encoder), weights(folder), share)

    assert torch.allclose(weights(adapted.folder / "export"), mixed(again), atol=1e-6)
    assert not torch.allclose(mixed(run), mixed(again), atol=1e-5)

    monkeypatch.setattr(work, "judge", lambda *given: GOOD._replace(before=101.0))
    worse = cmlmcse.adapt(encoder, corpus, tmp_path / "worse", **given)
    assert worse.results["adapt"]["all_documents"]["kept"] is False
    (run,) = (worse.folder / "arms").iterdir()
    assert torch.allclose(weights(worse.folder / "export"), mixed(run), atol=1e-6)
    assert "no better than the start" in (worse.folder / "report.md").read_text()


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
        asked = np.arange(100)
        own = Criterion("halves", "", [""] * 100, [""], np.zeros(100, int), asked, np.array([-1]), asked, 100)
        return judge(SimpleNamespace(values=values.get, summary=np.mean, resampled=own.resampled, name="", title=""),
                     "before", "after")  # fmt: skip

    assert not change(before).better
    assert not change(before + noise).better
    assert change(before + noise + 5).better


@pytest.mark.parametrize(
    "words, message",
    [
        (["--dev_set", "stsb"], "cmlmcse adapt sets dev_set itself"),
        (["extra"], "expects MODEL TEXT and --field value"),
        (["--temp", "1", "2"], "expects MODEL TEXT and --field value, found '2'"),
        (["--temp", "--bf16"], "expects a value after --temp, found none"),
        (["--bf61"], "found the unknown field 'bf61'; did you mean bf16?"),
        (["--bf16", "perhaps"], "Truthy value expected: got perhaps"),
        (["--minutes", "0"], "expected a number above 0"),
        (["--learning_rat", "1"], "found the unknown field 'learning_rat'; did you mean learning_rate?"),
        (["--learning_rate", "fast"], "invalid float value: 'fast'"),
        (["--eval-steps", "10"], "cmlmcse adapt sets eval_steps itself"),
        (["--max_train_samples", "10"], "cmlmcse adapt sets max_train_samples itself"),
        (["--views", "halves"], "views must be one of dropout, crops, neighbours, title_body"),
    ],
)
def test_wrong_options(words, message, tmp_path, capsys):
    with pytest.raises(SystemExit) as stopped:
        main(["model", "text.txt", "--output_dir", str(tmp_path / "out"), *words])
    assert stopped.value.code == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "text, message",
    [
        ("\x80\x81" * 999, "expected UTF-8 text, found byte 0x80 at offset 0"),
        ("one line\n" * 99, "at least 100 documents, found 99"),
        ("\none document\nof two lines\n", "at least 100 documents, found 1"),
        ("one line\n" * 150, "expects documents that differ, found 0 of 120 for training"),
        ("\n".join(f"w{row}" for row in range(150)), "expects documents of some words"),
        (None, "expected text files"),
    ],
)
def test_wrong_text(text, message, backbone_folders, tmp_path, capsys):
    path = tmp_path / "text.txt"
    path.mkdir() if text is None else path.write_text(text, encoding="latin1")
    with pytest.raises(SystemExit) as stopped:
        main([backbone_folders["bert"], str(path), "--output_dir", str(tmp_path / "out")])
    assert stopped.value.code == 2
    assert message in capsys.readouterr().err
    assert not list((tmp_path / "out").iterdir())


def test_the_function_stays_a_function():
    """`python -m cmlmcse.adapt` has a module of that name; the package's attribute is the function."""
    assert cmlmcse.adapt is parse.__globals__["adapt"]
