"""The options of adapt: where they may stand, what they decide, and how wrong ones and a wrong text are answered."""

import json
import shlex
import time
from pathlib import Path

import datasets
import pytest
import torch
from transformers.utils import logging

import cmlmcse
from cmlmcse.adaptation import pipeline
from cmlmcse.adaptation.command import main, on_cpu, parse, run_first
from cmlmcse.adaptation.processes import run
from cmlmcse.adaptation.same_text import SameText
from cmlmcse.common import cpu
from cmlmcse.common.errors import InputError
from cmlmcse.common.progress import without_bars
from cmlmcse.evaluation.options import parse as evaluate_options
from cmlmcse.hub.export import export
from cmlmcse.training.fields import RunArguments
from modeling_cmlmcse import CMLMCSEForSentenceEmbedding
from modeling_cmlmcse.variable_length import switched_off
from support.tiny import tiny_tokenizer


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
    if launcher == "fp16":  # without a GPU it is refused
        with pytest.raises(InputError, match="mixed_precision fp16 needs a GPU"):
            run_first(parse(["model", "text", *words, "--output_dir", str(tmp_path)]), run)
        monkeypatch.setattr(RunArguments, "device", torch.device("cuda"))
    monkeypatch.setattr("cmlmcse.adaptation.command.has_fast_bf16", lambda device: faster)
    monkeypatch.setattr(pipeline, "adapt_in", lambda folder, args, bf16, *_: found.append(bf16) or {})
    run_first(parse(["model", "text", *words, "--output_dir", str(tmp_path)]), run)
    assert found == [expected]


@pytest.mark.parametrize("place", range(4))
def test_a_switch_needs_no_value(place):
    """Wherever it stands, before MODEL as well; a value after = may begin with dashes."""
    own = ["model", "text", "--output_dir", "new"]
    words = ["--temp", "0.1", "--augmentation=--", "--bf16", "false", "--dataloader-drop-last", "--fp16"]
    args = parse([*own[:place], *words, *own[place:]] if place < 3 else [*own, *words])
    assert (args.model, args.text) == ("model", "text")
    assert args.fields == {
        "fp16": "true", "temp": "0.1", "augmentation": "--", "bf16": "false", "dataloader_drop_last": "true"
    }  # fmt: skip


def test_own_options_may_have_dashes():
    """As fields may. They are not taken for fields, which would train on another text than is held out."""
    words = ["--output-dir", "new", "--max-documents=300", "--text-column", "body", "--max-seq-length", "32"]
    args = parse(["model", "text", *words])
    assert (args.output_dir.name, args.max_documents, args.text_column, args.max_seq_length) == ("new", 300, "body", 32)
    assert args.fields == {}


@pytest.mark.parametrize("words, expected", [([], None), (["--use_cpu", "yes"], "cpu"), (["--use_cpu", "no"], None)])
def test_training_on_a_cpu_scores_there_too(words, expected, tmp_path, monkeypatch):
    """So precision and length are those of the CPU."""
    found = []
    monkeypatch.setattr(pipeline, "adapt_in", lambda folder, args, bf16, *_: found.append(args.device) or {})
    args = parse(["model", "text", *words, "--output_dir", str(tmp_path), "--bf16", "false"])
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    assert on_cpu(args) is (expected == "cpu")
    monkeypatch.undo()
    monkeypatch.setattr(pipeline, "adapt_in", lambda folder, args, bf16, *_: found.append(args.device) or {})
    run_first(args, run)
    assert found == [expected]


@pytest.mark.parametrize("what", ["text", "model"])
def test_the_output_lies_outside(what, encoder, tmp_path):
    """What is written there would be read as text, or change the model."""
    (tmp_path / "a.txt").write_text("One line.\n")
    names = {"model": encoder, "text": str(tmp_path)} if what == "text" else {"model": encoder, "text": "a.txt"}
    place = Path(names[what]) / "adapted"
    with pytest.raises(InputError, match=f"output_dir must lie outside the {what}, found"):
        run_first(parse([names["model"], names["text"], "--output_dir", str(place), "--bf16", "false"]), run)
    assert not place.exists()


@pytest.mark.parametrize("words", [[], ["--variable_length_attention", "false"]])
def test_attention_pads_if_asked(words, tmp_path, monkeypatch):
    """Where this process scores too, and only until the command ends."""
    found = []
    monkeypatch.setattr(pipeline, "adapt_in", lambda *_: found.append(switched_off()) or {})
    run_first(parse(["model", "text", "--output_dir", str(tmp_path), "--bf16", "false", *words]), run)
    assert found == [bool(words)]
    assert not switched_off()


def test_bars_of_other_libraries_come_back(tmp_path, monkeypatch):
    """Adapt shows none. Afterwards, also after an error, its caller has them as before."""
    found = []

    def refuse(*_: object) -> None:
        found.append((datasets.are_progress_bars_disabled(), logging.is_progress_bar_enabled()))
        raise InputError("no text")

    monkeypatch.setattr(pipeline, "begin", refuse)
    with without_bars():
        datasets.enable_progress_bars()
        logging.enable_progress_bar()
        with pytest.raises(InputError, match="no text"):
            pipeline.adapt_in(
                tmp_path, parse(["model", "text", "--output_dir", str(tmp_path)]), False, run, SameText("text")
            )
        assert found == [(True, False)]
        assert (datasets.are_progress_bars_disabled(), logging.is_progress_bar_enabled()) == (False, True)


@pytest.mark.parametrize(
    "words, message",
    [
        (["--dev_set", "stsb"], "cmlmcse adapt sets dev_set itself"),
        (["extra"], "expects MODEL TEXT and --field value"),
        (["--temp", "1", "2"], "expects MODEL TEXT and --field value, found '2'"),
        (["--temp", "--bf16"], "expects a value after --temp, found none"),
        (["--bf61"], "found the unknown field 'bf61'; did you mean bf16?"),
        (["--bf16=perhaps"], "Truthy value expected: got perhaps"),
        (["--bf16", "perhaps"], "expects MODEL TEXT and --field value, found 'perhaps'"),
        (["--minutes", "0"], "expected a number above 0"),
        (["--learning_rat", "1"], "found the unknown field 'learning_rat'; did you mean learning_rate?"),
        (["--learning_rate", "fast"], "invalid float value: 'fast'"),
        (["--seed", "-1"], "--seed: expected a whole number from 0 to 4294967295, found '-1'"),
        (["--seed", "4294967296"], "--seed: expected a whole number from 0 to 4294967295"),
        (["--minutes", "1", "--max_steps", "9"], "--minutes expects no --max_steps, found both; drop one of them"),
        (["--save_only_model"], "cmlmcse adapt sets save_only_model itself"),
        (["--load-best-model-at-end", "false"], "cmlmcse adapt sets load_best_model_at_end itself"),
        (["--eval-steps", "10"], "cmlmcse adapt sets eval_steps itself"),
        (["--max_train_samples", "10"], "cmlmcse adapt sets max_train_samples itself"),
        (["--vocab_size", "500"], "cmlmcse adapt expects fields that training reads, found --vocab_size, which is for"),
        (["--views", "halves"], "views must be one of dropout, crops, neighbours, title_body"),
    ],
)
def test_wrong_options(words, message, tmp_path, capsys):
    text = tmp_path / "text.txt"
    text.write_text("one line\n")
    with pytest.raises(SystemExit) as stopped:
        main(["model", str(text), "--output_dir", str(tmp_path / "out"), *words])
    assert stopped.value.code == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "text, message",
    [
        ("\x80\x81" * 999, "expected UTF-8 text, found byte 0x80 at offset 0"),
        ("PK\x03\x04" + "\x80" * 999, "expected text, found a binary file; write its text to .txt, .csv or .jsonl"),
        ("a\0\x80" * 999, "expected text, found a binary file"),
        ("one line\r" * 150, "found carriage returns alone; convert them, as in `tr '\\r' '\\n'`"),
        ("one line\n" * 99, "at least 100 documents, found 99"),
        ("\none document\n\nand another one\n", "at least 100 documents, found 2"),
        ("\ufeff".encode("utf-16").decode("latin1"), "convert it, as in `iconv -f utf-16 -t utf-8`"),
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
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--cmlm_weight", "0.1", "--lexical_layers", "99"], "lexical_layers must be at most 2, the backbone's depth"),
        (["--max_seq_length", "1000"], "max_seq_length must be at most 66, the positions of the model, found 1000"),
        (["--max_seq_length", "2"], "max_seq_length must be at least 3 tokens, [CLS] word [SEP], found 2; raise it"),
    ],
)
def test_what_does_not_fit_the_model(words, message, corpus, backbone, tmp_path, capsys):
    """It is said before the folder belongs to these fields, so that the corrected command may take the same folder."""
    with pytest.raises(SystemExit) as stopped:
        main([backbone, str(corpus), "--output_dir", str(tmp_path / "out"), "--max_steps", "4", *words])
    assert stopped.value.code == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_titles_that_are_not_read_are_named(corpus, backbone, tmp_path, monkeypatch, capsys):
    """A column of several words that adapt does not read may hold titles. It is named, unless titles are read. That all
    texts end alike is said too, before the time is spent."""
    rows = [json.loads(line) for line in corpus.read_text().splitlines()]
    for row in rows:
        row["text"] += " " + " ".join(f"end{word}" for word in range(40))
    table = tmp_path / "tickets.jsonl"
    table.write_text("".join(json.dumps({"subject": row["title"], "body": row["text"]}) + "\n" for row in rows))
    said = f"{table}: the column body is read, not subject; if one has titles, --title_column subject puts each before"

    def stop(*_: object) -> None:
        raise InputError("before the scoring")

    monkeypatch.setattr("cmlmcse.adaptation.start.score_start", stop)
    for titles, words in ((0, []), (150, ["--title_column", "subject"])):
        output = ["--output_dir", str(tmp_path / "out"), "--max_steps", "4"]
        with pytest.raises(SystemExit, match="2"):
            main([backbone, str(table), *output, "--text_column", "body", *words])
        error = capsys.readouterr().err
        assert f"150 documents, {titles} with a title" in error
        assert (said in error) is (not titles)
        assert "100% of the documents that are held out have 13 words or more in a row in common" in error


def test_a_head_is_refused(corpus, backbone, tmp_path, capsys):
    """Before anything is trained: a run starts with a fresh head, and no average would fit it."""
    model = CMLMCSEForSentenceEmbedding.from_backbone(backbone, pooling="cls", cmlm_weight=0)
    folder = str(export(model, tiny_tokenizer("bert"), tmp_path / "export"))
    with pytest.raises(SystemExit) as stopped:
        main([folder, str(corpus), "--output_dir", str(tmp_path / "out")])
    assert stopped.value.code == 2
    assert "cmlmcse adapt expects a pooling without a head, found cls" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("part", "plain", "labelled", "tasks"),
    [
        ("beir", False, None, "retrieval"),
        ("beir", True, None, "retrieval"),
        ("sts/stsb", False, None, "stsb_dev"),
        ("beir", False, {"retrieval": {}}, None),
    ],
)
def test_a_finished_folder_is_scored_by_evaluate(part, plain, labelled, tasks, tmp_path):
    """Labelled data that a finished command has not seen are not passed over: the line says which command scores it."""
    data, folder = tmp_path / "my data", tmp_path / "out"
    (data / part).mkdir(parents=True)
    folder.mkdir()
    kind = {True: {"finished_encoder": False}, False: {"finished_encoder": True}}
    results = {"adapt": kind[plain]} | ({"labelled": labelled} if labelled else {})
    (folder / "results.json").write_text(json.dumps(results))
    words = ["model", "text", "--output_dir", str(folder), "--data_dir", str(data), "--bf16", "false"]
    args = parse([*words, "--resume_from_checkpoint", "auto"])
    if tasks is None:
        assert run_first(args, run).results == results
        return
    with pytest.raises(InputError) as stopped:
        run_first(args, run)
    command = shlex.split(str(stopped.value).partition("score it with ")[2])
    assert command[:2] == ["cmlmcse", "evaluate"]
    given = evaluate_options(command[2:])
    assert (given.models, given.tasks, given.data_dir) == (["model", str(folder)], tasks, str(data))
    assert given.pooling == ("avg" if plain is True else None)


def test_the_function_stays_a_function():
    """`python -m cmlmcse.adapt` has a module of that name; the package's attribute is the function."""
    assert cmlmcse.adapt is parse.__globals__["adapt"]
