"""GLUE with tiny models on tiny data folders, and its metrics against numbers worked out by hand."""

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from cmlmcse.common.errors import InputError
from cmlmcse.evaluation import glue as glue_module
from cmlmcse.evaluation.command import main
from cmlmcse.evaluation.glue import Collator, FineTuning, fine_tune, glue, load_classifier, score
from cmlmcse.evaluation.glue_data import GLUE_SETS, GlueData, load_glue, missing_glue, read_examples
from cmlmcse.evaluation.sts_data import MissingData
from cmlmcse.evaluation.tasks import Task
from cmlmcse.evaluation.transfer_data import TRANSFER_SETS, Examples
from cmlmcse.hub.export import export
from cmlmcse.training.final_tasks import final_results
from modeling_cmlmcse import CMLMCSEForSentenceEmbedding
from support.text import one_space
from support.tiny import tiny_tokenizer

COLUMNS = {  # of GLUE's own files; CoLA's have no header line
    "SST-2": "sentence label",
    "MRPC": "Quality|#1 ID|#2 ID|#1 String|#2 String",
    "STS-B": "index genre filename year old_index source1 source2 sentence1 sentence2 score",
    "QQP": "id qid1 qid2 question1 question2 is_duplicate",
    "MNLI": "index promptID pairID genre sentence1_binary_parse sentence2_binary_parse sentence1_parse sentence2_parse "
    "sentence1 sentence2 label1 gold_label",
    "QNLI": "index question sentence label",
    "RTE": "index sentence1 sentence2 label",
}
QUICK = FineTuning(learning_rate=2e-3, epochs=6, batch_size=8, max_seq_length=16)


def texts(count: int, classes: int) -> list[tuple[int, str]]:
    """Labels, and texts that show them in a word."""
    words = np.random.default_rng(count).integers(0, 60, (count, 3))
    return [
        (i % classes, " ".join([("cat", "dog", "mat")[i % classes], *(f"w{w}" for w in words[i])]))
        for i in range(count)
    ]


def row(name: str, label: str, text: str) -> str:
    """A line of a task's files."""
    if name == "CoLA":
        return f"gj04\t{label}\t*\t{text}"
    one = GLUE_SETS[name]
    held = {one.label: label, one.sides[0]: text, one.sides[-1]: text}
    return "\t".join(held.get(column, "0") for column in columns(name))


def columns(name: str) -> list[str]:
    """The header of a task's files."""
    return COLUMNS[name].split("|") if "|" in COLUMNS[name] else COLUMNS[name].split()


def write(path: Path, name: str, count: int) -> None:
    """A file of a task."""
    labels = GLUE_SETS[name].labels
    lines = [row(name, labels[i] if labels else f"{2.5 * i}", text) for i, text in texts(count, len(labels) or 3)]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines if name == "CoLA" else ["\t".join(columns(name)), *lines]) + "\n")


@pytest.fixture
def data_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data folder with all eight tasks, 48 examples to train on and 12 in each dev split, and counts to match."""
    for name, one in list(GLUE_SETS.items()):
        monkeypatch.setitem(GLUE_SETS, name, one._replace(dev=dict.fromkeys(one.dev, 12)))
        write(tmp_path / "data" / "glue" / name / "train.tsv", name, 48)
        for split in one.dev:
            write(tmp_path / "data" / "glue" / name / f"{split}.tsv", name, 12)
    return tmp_path / "data"


def test_reads_every_format(data_dir: Path) -> None:
    """The columns of each task's own files, its labels numbered, a score for STS-B, both splits of MNLI."""
    data = load_glue(str(data_dir))
    assert list(data) == ["CoLA", "SST-2", "MRPC", "STS-B", "QQP", "MNLI", "QNLI", "RTE"]
    for name, one in data.items():
        expected = texts(48, 2 if GLUE_SETS[name].labels and name != "MNLI" else 3)
        scale = 1 if GLUE_SETS[name].labels else 2.5
        assert one.train.labels.tolist() == [scale * label for label, _ in expected]
        assert all(side == [text for _, text in expected] for side in one.train.sides)
        assert len(one.train.sides) == (1 if name in ("CoLA", "SST-2") else 2)
        assert list(one.scored) == (["dev_matched", "dev_mismatched"] if name == "MNLI" else ["dev"])
    assert missing_glue(str(data_dir), data) == []


def test_published_counts() -> None:
    """The dev splits are GLUE's."""
    counts = [count for one in GLUE_SETS.values() for count in one.dev.values()]
    assert counts == [1043, 872, 408, 1500, 40430, 9815, 9832, 5463, 277]


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("SST-2", "sentence\tlabel\na\n", ["dev.tsv, line 2", "expected 2 columns, found 1"]),
        ("SST-2", "sentence\tlabel\na\t2\n", ["line 2", "a label of 0, 1, found '2'"]),
        ("SST-2", "text\tlabel\na\t1\n", ["line 1", "a header line with sentence, found 'text"]),
        ("SST-2", "sentence\tlabel\n", ["dev.tsv: expected rows, found none"]),
        ("SST-2", "sentence\tlabel\na\t1\n", ["dev.tsv: expected 12 rows, as published, found 1"]),
        ("CoLA", "gj04\t1\ta sentence\n", ["line 1", "expected 4 columns, found 3"]),
        ("RTE", "index\tsentence1\tsentence2\tlabel\n0\ta\tb\tneutral\n", ["entailment, not_entailment", "'neutral'"]),
        ("STS-B", "\t".join(columns("STS-B")) + "\n" + "0\t" * 9 + "nan\n", ["line 2", "number as score, found 'nan'"]),
        ("STS-B", "\t".join(columns("STS-B")) + "\n" + "0\t" * 9 + "good\n", ["found 'good'"]),
        ("SST-2", b"sentence\tlabel\n\xff\t1\n", ["dev.tsv", "expected UTF-8, found byte 0xff at offset 15"]),
    ],
)
def test_broken_file(data_dir: Path, name: str, content: str | bytes, words: list[str]) -> None:
    """A broken line, an unknown label or a wrong count names the file, what was expected and what was found."""
    content = content if isinstance(content, bytes) else content.encode()
    (data_dir / "glue" / name / "dev.tsv").write_bytes(content)
    with pytest.raises(InputError) as error:
        load_glue(str(data_dir))
    assert all(word in str(error.value) for word in words), error.value


def test_nothing_is_quoted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Quotation marks and carriage returns do not change the columns; QQP's rows that are cut short are left out."""
    path = tmp_path / "x.tsv"
    path.write_bytes('\ufeffsentence\tlabel\r\n"a\t1\r\nb" \u2028c\t0\textra\r\n'.encode())
    examples = read_examples(path, GLUE_SETS["SST-2"])
    assert (examples.labels.tolist(), examples.sides) == ([1, 0], (['"a', 'b" \u2028c'],))
    path.write_text("\t".join(columns("QQP")) + "\n1\t2\t3\ta\n4\t5\t6\ta\tb\t1\n")
    assert read_examples(path, GLUE_SETS["QQP"]).sides == (["a"], ["b"])
    assert "x.tsv: 1 rows skipped, they have too few columns" in caplog.text


def test_from_transfer(data_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without GLUE's files, SST-2 and MRPC come from SentEval's, MRPC with its test split; the rest is missing."""
    root = tmp_path / "other" / "transfer"
    for name in ("SST2", "MRPC"):
        parts = {part: {file: {"1": 1} for file in files} for part, files in TRANSFER_SETS[name].parts.items()}
        monkeypatch.setitem(TRANSFER_SETS, name, TRANSFER_SETS[name]._replace(parts=parts))
        (root / name).mkdir(parents=True)
        for file in TRANSFER_SETS[name].files:
            text = f"Quality\tx\n1\t1\t2\t{file}\tb\n" if name == "MRPC" else f"{file}\t1\n"
            (root / name / file).write_text(text)
    data = load_glue(str(tmp_path / "other"))
    assert list(data) == ["SST-2", "MRPC"]
    assert data["SST-2"].scored["dev"].sides == (["sentiment-dev"],)
    assert data["MRPC"].train.sides == (["msr_paraphrase_train.txt"], ["b"])
    assert list(data["MRPC"].scored) == ["test"]
    lines = missing_glue(str(tmp_path / "other"), data)
    assert len(lines) == 6
    assert lines[3].startswith("GLUE MNLI: no ")
    assert lines[3].count(".tsv") == 3
    (data_dir / "transfer").symlink_to(root)
    assert list(load_glue(str(data_dir))["MRPC"].scored) == ["dev"]  # GLUE's own come first
    (tmp_path / "none").mkdir()
    with pytest.raises(MissingData, match="GLUE: none of the tasks"):
        load_glue(str(tmp_path / "none"))


def test_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    """From the Hub: its columns and splits; no Hub is an input error."""
    with pytest.raises(InputError, match=r"nyu-mll/glue \(cola\) from the Hub .*with a folder that holds glue/"):
        load_glue(None)
    asked = []

    def load_dataset(name: str, part: str, split: str) -> dict[str, Any]:
        asked.append((name, part, split))
        (one,) = [one for one in GLUE_SETS.values() if one.hub == part]
        dev = one.dev.get(split.replace("validation", "dev"), 3)
        return {"label": [0] * dev, **{side: [f"{part} {side}"] * dev for side in one.hub_sides or one.sides}}

    monkeypatch.setattr("datasets.load_dataset", load_dataset)
    data = load_glue(None)
    assert ("nyu-mll/glue", "mnli", "validation_mismatched") in asked
    assert data["MNLI"].scored["dev_mismatched"].sides[1][0] == "mnli hypothesis"
    assert data["MRPC"].train.sides == (["mrpc sentence1"] * 3, ["mrpc sentence2"] * 3)
    assert missing_glue(None, data) == []


def test_metrics() -> None:
    """Each metric against a number worked out by hand."""
    labels, outputs = np.array([0, 1, 1, 1]), np.array([[1.0, 0], [0, 1], [3, 2], [-2, -1]])  # predicted 0, 1, 0, 1
    values = score(outputs, labels, ("accuracy", "f1", "matthews"))
    assert values == {"accuracy": 75.0, "f1": 80.0, "matthews": round(100 * 2 / 12**0.5, 4)}
    numbers = score(np.array([[1.0], [3], [2], [10]]), np.array([1.0, 2, 3, 4]), ("pearson", "spearman"))
    assert numbers == {"pearson": round(100 * 13 / 250**0.5, 4), "spearman": 80.0}
    assert score(np.ones((4, 1)), np.array([1.0, 2, 3, 4]), ("pearson",)) == {"pearson": None}


def test_entry(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Means over metrics and splits; the average needs all eight tasks on their dev splits."""
    data = load_glue(str(data_dir))
    seen = []

    def outputs(source: str, one: GlueData, classes: int, settings: FineTuning) -> dict[str, np.ndarray]:
        """What gives label 0 to all, or a score that falls as it should rise."""
        seen.append((source, classes))
        return {
            split: np.eye(classes)[[0] * 12] * (0 if split == "dev_mismatched" else 1) if classes
            else -examples.labels[:, None] for split, examples in one.scored.items()
        }  # fmt: skip

    monkeypatch.setattr(glue_module, "fine_tune", outputs)
    results = glue("some/name", data)
    third = round(100 / 3, 4)
    assert {name: results[name] for name in GLUE_SETS} == {
        "CoLA": 0, "SST-2": 50, "MRPC": 25, "STS-B": -100, "QQP": 25, "MNLI": third, "QNLI": 50, "RTE": 50,
    }  # fmt: skip
    assert results["avg"] == pytest.approx((0 + 50 + 25 - 100 + 25 + third + 50 + 50) / 8, abs=1e-4)
    assert [classes for _, classes in seen] == [2, 2, 2, 0, 2, 3, 2, 2]
    assert results["details"]["MRPC"] == {"trained_on": 48, "dev": {"examples": 12, "accuracy": 50, "f1": 0}}
    assert list(results["details"]["MNLI"]) == ["trained_on", "dev_matched", "dev_mismatched"]
    assert "avg" not in glue("some/name", {name: data[name] for name in data if name != "RTE"})
    on_test = {**data, "MRPC": GlueData(data["MRPC"].train, {"test": data["MRPC"].scored["dev"]})}
    assert "avg" not in glue("some/name", on_test)


def test_collator() -> None:
    """Pairs are cut to the limit and padded; classes are whole numbers and scores are not."""
    collate = Collator(tiny_tokenizer("bert"), 6)
    batch = collate([(1, "cat dog mat tree", "a b"), (0, "cat", "dog")])
    assert batch["input_ids"].shape == (2, 6)
    assert batch["attention_mask"].sum(1).tolist() == [6, 2]  # this tokenizer adds nothing to pairs
    assert batch["labels"].dtype == torch.int64
    assert collate([(2.5, "cat"), (0.0, "dog")])["labels"].dtype == torch.float32


@pytest.fixture
def only_sst2(data_dir: Path) -> dict[str, GlueData]:
    """One task whose labels show in a word."""
    return {"SST-2": load_glue(str(data_dir))["SST-2"]}


@pytest.mark.slow
def test_learns(
    only_sst2: dict[str, GlueData], backbone_folders: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What can be learned is, alike with the same seed, and nothing is left behind."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    for kind in ("bert", "roberta"):
        assert glue(backbone_folders[kind], only_sst2, QUICK)["SST-2"] == 100
    short = FineTuning(epochs=1, batch_size=8, learning_rate=1e-3)  # 128 tokens are more than the model takes
    first, again = (fine_tune(backbone_folders["bert"], only_sst2["SST-2"], 2, short)["dev"] for _ in range(2))
    other = fine_tune(backbone_folders["bert"], only_sst2["SST-2"], 2, FineTuning(1e-3, 1, 8, seed=1))["dev"]
    assert np.array_equal(first, again)
    assert not np.allclose(first, other)
    assert os.listdir() == []


@pytest.mark.slow
def test_learns_scores(data_dir: Path, backbone_folders: dict[str, str]) -> None:
    """STS-B is a regression."""
    data = {"STS-B": load_glue(str(data_dir))["STS-B"]}
    result = glue(backbone_folders["bert"], data, FineTuning(2e-3, 12, 8))
    assert result["STS-B"] > 90


@pytest.mark.parametrize(("device", "use_cpu"), [("cpu", True), ("cuda", False), (None, False)])
def test_device(device: str | None, use_cpu: bool, only_sst2, backbone_folders, monkeypatch) -> None:
    """The CPU that is asked for reaches the Trainer."""
    found: dict[str, Any] = {}

    def arguments(**fields: Any) -> None:
        found.update(fields)
        raise InterruptedError

    monkeypatch.setattr(glue_module, "TrainingArguments", arguments)
    with pytest.raises(InterruptedError):
        fine_tune(backbone_folders["bert"], only_sst2["SST-2"], 2, FineTuning(device=device))
    assert found["use_cpu"] is use_cpu


def test_device_of_a_run() -> None:
    """A run's own device reaches the final tasks that fine-tune, and these alone."""
    given: dict[str, Any] = {}

    def run(name: str) -> Any:
        return lambda source, data, **options: given.setdefault(name, (source, options)) and {}

    tasks = {
        name: (Task("", load=str, run=run(name), card_metrics=iter, fine_tunes=name == "glue"), None)
        for name in ("glue", "sts")
    }
    final_results("encoder", tasks, "folder", "cpu")
    assert given == {"glue": ("folder", {"device": "cpu"}), "sts": ("encoder", {})}


def test_loads_exports(backbone_folders: dict[str, str], tmp_path: Path) -> None:
    """An exported folder is fine-tuned on as a plain model, without its code; a checkpoint is to be exported first."""
    model = CMLMCSEForSentenceEmbedding.from_backbone(backbone_folders["bert"], cmlm_weight=0.0)
    folder = export(model, tiny_tokenizer("bert"), tmp_path / "run" / "export")
    classifier = load_classifier(str(folder), 3)
    assert type(classifier).__module__.startswith("transformers.")
    assert classifier.config.num_labels == 3
    ours, theirs = model.get_input_embeddings().weight, classifier.get_input_embeddings().weight
    assert torch.equal(ours, theirs)
    examples = Examples(np.array([0, 1]), (["a cat", "a dog"],))
    result = glue(str(tmp_path / "run"), {"SST-2": GlueData(examples, {"dev": examples})}, FineTuning(epochs=1))
    assert list(result) == ["SST-2", "details"]
    model.save_pretrained(tmp_path / "checkpoint")
    with pytest.raises(InputError, match=r"export a checkpoint with cmlmcse push --export_only"):
        load_classifier(str(tmp_path / "checkpoint"), 2)


@pytest.mark.parametrize(("pooling", "trained"), [("avg", False), ("cls", True)])
def test_no_pooler_of_zeros(pooling: str, trained: bool, backbone_folders: dict[str, str], tmp_path: Path) -> None:
    """Where an export has zeros the pooler is fresh, as a plain backbone's; the head that a pooling keeps stays."""
    model = CMLMCSEForSentenceEmbedding.from_backbone(backbone_folders["bert"], cmlm_weight=0.0, pooling=pooling)
    folder = export(model, tiny_tokenizer("bert"), tmp_path / "export")
    torch.manual_seed(1)
    dense = load_classifier(str(folder), 2).base_model.pooler.dense
    if trained:
        assert torch.equal(dense.weight, model.projection.dense.weight)
    else:
        assert dense.weight.std().item() == pytest.approx(0.02, rel=0.1)
        assert not dense.bias.any()


def test_command(data_dir: Path, tmp_path: Path, backbone_folders: dict[str, str], capsys) -> None:
    """The command fine-tunes on what is there, and says what is missing."""
    for name in GLUE_SETS:
        if name != "SST-2":
            (data_dir / "glue" / name / "train.tsv").unlink()
    arguments = [backbone_folders["bert"], "--data_dir", str(data_dir), "--pooling", "avg", "--tasks", "glue"]
    options = ["--glue_epochs", "6", "--glue_learning_rate", "2e-3", "--glue_batch_size", "8"]
    with pytest.raises(SystemExit, match="1"):
        main([*arguments, *options, "--output", str(tmp_path / "results.json")])
    captured = capsys.readouterr()
    assert json.loads((tmp_path / "results.json").read_text())["glue"] == {
        "SST-2": 100.0,
        "details": {"SST-2": {"trained_on": 48, "dev": {"examples": 12, "accuracy": 100.0}}},
    }
    assert "| glue SST-2 | 100.00 |" in one_space(captured.out)
    assert "train_runtime" not in captured.out
    assert captured.err.count("missing: GLUE ") == 7


@pytest.mark.parametrize(
    ("option", "value", "words"),
    [
        ("--glue_epochs", "0", "--glue_epochs: expected a whole number of at least 1, found '0'"),
        ("--glue_batch_size", "2.5", "at least 1, found '2.5'"),
        ("--glue_learning_rate", "nan", "--glue_learning_rate: expected a number above 0, found 'nan'"),
        ("--glue_learning_rate", "fast", "found 'fast'"),
        ("--glue_seed", "-1", "--glue_seed: expected"),
        ("--glue_seed", "4294967296", "a whole number from 0 to 4294967295, found '4294967296'"),
    ],
)
def test_wrong_options(option: str, value: str, words: str, capsys) -> None:
    """Each wrong option is one line on standard error and exit status 2."""
    with pytest.raises(SystemExit, match="2"):
        main(["model", "--tasks", "glue", f"{option}={value}"])
    line = capsys.readouterr().err.strip()
    assert words in line
    assert "\n" not in line


def test_help(capsys) -> None:
    """Each option stands in the help with its default."""
    with pytest.raises(SystemExit, match="0"):
        main(["--help"])
    printed = " ".join(capsys.readouterr().out.split())
    assert "--glue_learning_rate VALUE peak of the linear schedule, without warm-up (default: 2e-05)" in printed
    assert "--glue_seed VALUE" in printed
