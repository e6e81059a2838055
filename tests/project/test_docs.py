"""The documentation is true: its commands are taken and run on tiny models and data, and its Python runs."""

import gzip
import importlib.util
import json
import lzma
import re
import shlex
import shutil
from collections.abc import Iterator
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from textwrap import indent
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from cmlmcse.evaluation import sts_data
from cmlmcse.evaluation.tasks import choose_tasks
from cmlmcse.study.plan import check_fields, load_study
from cmlmcse.training.parse import parse_recipe
from support import warm
from support.docs import SCRIPTS, VERBS, as_verb, blocks_of, each_once, optional_given, worth_running
from support.local_hub import LocalHub
from support.paths import ROOT
from support.processes import run_verbs
from support.records import ADAPTED, RECORD, RESULTS
from support.tiny import WORDS, tiny_backbone, tiny_tokenizer

TAKEN = each_once()
RUN = worth_running(TAKEN)


def test_there_are_commands() -> None:
    """The pages are read at all, every verb has a command in them, and so has every script."""
    assert len(TAKEN) > 50
    assert {verb[0] for _, command in TAKEN if (verb := as_verb(command))} == set(VERBS)
    for script in SCRIPTS:
        assert any(script in command.split() for _, command in TAKEN), script


@pytest.mark.parametrize(("page", "command"), TAKEN)
def test_command_is_taken(page: str, command: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Its recipe, study, file, module, make target and options exist; nothing is run."""
    monkeypatch.chdir(ROOT)
    words = shlex.split(optional_given(command).replace("$SLURM_ARRAY_TASK_ID", "0"))
    for word in words:
        if word.startswith(("configuration/", "studies/", "benchmarks/", "docs/")) and not word.endswith(".json"):
            assert (ROOT / word).exists(), word
    verb = as_verb(command)
    if verb is not None:
        parse(verb[0], [word.replace("DIR", str(tmp_path)) if word == "DIR" else word for word in verb[1]])
    elif words[0] == "make":
        assert re.search(rf"^{words[1]}:", (ROOT / "Makefile").read_text(), re.MULTILINE), words[1]
    elif "-m" in words:
        assert importlib.util.find_spec(words[words.index("-m") + 1]) is not None
    elif script := next((word for word in words if word.endswith(".py")), None):
        assert (ROOT / script).is_file(), script


def parse(verb: str, arguments: list[str]) -> None:
    """Check the arguments of a verb, and do nothing."""
    assert verb in VERBS, verb
    if arguments in ([], ["--help"]):
        return
    module = import_module(import_module("cmlmcse.cli").VERBS[verb].module)
    if verb == "train":
        parse_recipe(arguments)
    elif verb == "study":
        options, fields = module.parse(arguments)
        check_fields(load_study(options.study).with_fields(fields).runs[:1])
    elif verb == "evaluate":
        choose_tasks(module.parse(arguments).tasks)
    else:
        module.parse(arguments)


# What a page's command has in common with what can be run here: everything but the model, the text and the length.
SHORT = {
    "train": {
        "model_name_or_path": "backbone", "train_file": "my.txt", "data_dir": "DIR", "max_steps": 1, "eval_steps": 1,
        "save_steps": 1, "per_device_train_batch_size": 8, "final_evaluation": "stsb_dev", "use_cpu": True,
        "gradient_accumulation_steps": 1, "max_train_samples": 160, "disable_tqdm": True,
    },
    "adapt": {"max_steps": 3, "per_device_train_batch_size": 8},
    "study": {
        "model_name_or_path": "backbone", "train_file": "my.txt", "dev_set": "mine.tsv", "final_evaluation": "none",
        "max_steps": 1, "use_cpu": True,
    },
}  # fmt: skip

STEPS = ("--max_steps",)  # given on a page too, and yet shortened

ENCODED = ["encode", "MODEL", "sentences.txt", "--output", "out.parquet"]  # before a command that reads out.parquet


@pytest.fixture(scope="module")
def few_pairs() -> Iterator[None]:
    """STS sets of 9 pairs a subset, and STS-B dev of 60."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sts_data, "STSB_DEV", sts_data.STSB_DEV._replace(counts={"dev": 60}))
        for name, one in list(sts_data.STS_SETS.items()):
            patch.setitem(sts_data.STS_SETS, name, one._replace(counts=dict.fromkeys(one.counts, 9)))
        yield


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, few_pairs: None) -> Path:
    """A folder with everything that the pages' commands name."""
    from cmlmcse.hub.export import export
    from modeling_cmlmcse import CMLMCSEForSentenceEmbedding

    place = tmp_path_factory.mktemp("docs")
    backbone = tiny_backbone("bert", num_hidden_layers=12, max_position_embeddings=130)
    tokenizer = tiny_tokenizer("bert")
    backbone.save_pretrained(place / "backbone")
    tokenizer.save_pretrained(place / "backbone")
    write_text(place)
    write_evaluation_data(place / "DIR")
    for name in ("mine.tsv", "dev.tsv"):
        shutil.copy(place / "DIR" / "sts" / sts_data.STSB_DEV.folder / "dev.tsv", place / name)
    (place / "DIR" / "pairs").mkdir()
    shutil.copy(place / "mine.tsv", place / "DIR" / "pairs")
    (place / "studies").mkdir()
    shutil.copy(ROOT / "studies" / "cmlmcse-table5.yaml", place / "studies")
    model = CMLMCSEForSentenceEmbedding.from_backbone(str(place / "backbone")).eval()
    checkpoint = place / "runs" / "NAME" / "checkpoint-N"
    model.save_pretrained(checkpoint)
    tokenizer.save_pretrained(checkpoint)
    (checkpoint.parent / "run.json").write_text(json.dumps(RECORD))
    (checkpoint.parent / "results.json").write_text(json.dumps(RESULTS))
    runs = [f"runs/{name}/export" for name in ("NAME", "a", "b", "c", "mine", "simcse")]
    for name in ("MODEL", "A", "B", "runs/cisi", *runs):
        export(model, tokenizer, place / name)
    export(model, tokenizer, place / "adapted" / "export")
    (place / "adapted" / "arms").mkdir()
    (place / "adapted" / "results.json").write_text(json.dumps(ADAPTED))
    shutil.copytree(place / "adapted", place / "adapted-tickets")
    shutil.copy(ROOT / "cmlmcse" / "hub" / "card_template.md", place / "FILE")
    (place / "assets").symlink_to(ROOT / "assets")
    return place


def write_text(folder: Path) -> None:
    """Sentences in documents, plain and compressed."""
    rng = np.random.default_rng(0)
    lines = [" ".join(rng.choice(WORDS, size=rng.integers(3, 12))) for _ in range(200)]
    text = "".join("\n".join(lines[start : start + 20]) + "\n\n" for start in range(0, 200, 20))
    for name in ("my.txt", "sentences.txt"):
        (folder / name).write_text(text)
    documents = [{"title": " ".join(words[:3]), "text": " ".join(words)} for words in rng.choice(WORDS, (150, 30))]
    (folder / "corpus.jsonl").write_text("".join(json.dumps(document) + "\n" for document in documents))
    tickets = [f'T{number},{each["title"]},"{each["text"]}"' for number, each in enumerate(documents)]
    (folder / "tickets.csv").write_text("\n".join(["id,subject,body", *tickets]) + "\n")
    (folder / "docs_folder").mkdir()
    for number, document in enumerate(documents):
        (folder / "docs_folder" / f"{number}.md").write_text(f"# {document['title']}\n\n{document['text']}\n")
    rows = ["sentence1,sentence2,score", *(f"{one},{two},{i % 5}" for i, (one, two) in enumerate(pairwise(lines)))]
    (folder / "pairs.csv").write_text("\n".join(rows) + "\n")
    (folder / "sentences.txt.gz").write_bytes(gzip.compress(text.encode()))
    for name in ("a.txt.xz", "b.txt.xz"):
        (folder / name).write_bytes(lzma.compress(text.encode()))


def write_evaluation_data(folder: Path) -> None:
    """Every STS set, and a set to retrieve from, of a few tiny sentences."""
    rng = np.random.default_rng(0)
    pool = [" ".join(rng.choice(WORDS, size=6)) for _ in range(100)]
    for one in (*sts_data.STS_SETS.values(), sts_data.STSB_DEV):
        (folder / "sts" / one.folder).mkdir(parents=True, exist_ok=True)
        for name, count in one.counts.items():
            rows = "".join(f"{rng.uniform(0, 5):.2f}\t{a}\t{b}\n" for a, b in rng.choice(pool, size=(count - 1, 2)))
            rows += f"5.00\t{pool[0]}\t{pool[1]}\n"  # a paraphrase to look for
            (folder / "sts" / one.folder / f"{name}.tsv").write_text(rows)
    beir = folder / "beir" / "cisi"
    (beir / "qrels").mkdir(parents=True)
    for name in ("corpus", "queries"):
        rows = [{"_id": f"{name[0]}{i}", "title": pool[-i], "text": text} for i, text in enumerate(pool[:20])]
        lines = [json.dumps(row) for row in rows]
        (beir / f"{name}.jsonl").write_text("\n".join(lines) + "\n")
    (beir / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\nq0\tc1\t1\nq2\tc3\t1\n")


@pytest.mark.slow
@pytest.mark.parametrize(("page", "command"), RUN)
def test_command_runs(
    page: str,
    command: str,
    place: Path,
    hub: LocalHub,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    warm_python: None,
) -> None:
    """To its end, in this process, whatever launches it: with a tiny model, text and data of the same names. What a
    command names and is not there, or does in another way, fails."""
    for option, module in (("--onnx", "onnxscript"), ("--openvino", "openvino")):
        if option in command.split():
            pytest.importorskip(module, reason="make test-compat installs these extras and tests what they write")
    folder = tmp_path / "place"
    shutil.copytree(place, folder, symlinks=True)
    monkeypatch.chdir(folder)
    monkeypatch.setattr("cmlmcse.hub.export.verify", lambda *_: {"AutoModel": 0.0})  # tests/hub/test_push_to_hub.py
    found = as_verb(command)
    assert found is not None
    verb, arguments = found
    outputs = [arguments[index + 1] for index, word in enumerate(arguments) if word in ("--output", "--output_dir")]
    if verb in ("train", "adapt"):
        for output in outputs:  # which other commands of the pages read
            shutil.rmtree(output, ignore_errors=True)
    if (verb, arguments) == ("train", ["infocse-script-bert-base"]):  # stage 2, after stage 1
        run("train", ["infocse-script-bert-base", "--stage", "pretrain"])
        arguments += ["--model_name_or_path", "runs/infocse-pretrain-bert-base/export"]
    if "--pooling" in arguments and "MODEL" in arguments:  # for models that record none
        arguments[arguments.index("MODEL")] = "backbone"
    if verb == "study" and not {"--list", "--report", "--index"} & set(arguments):
        arguments += ["--index", "0"]  # one run of 42
    if "--create_pr" in arguments:  # published before, as the page has it
        hub.create("OWNER/NAME")
    if verb == "search" and "out.parquet" in arguments:
        assert run(*ENCODED[:1], ENCODED[1:]) == 0
    with torch.compiler.set_stance("force_eager"):  # tests/training/test_compiled.py compiles
        status, said = run(verb, arguments), capsys.readouterr().err
    absent = [line for line in said.splitlines() if line.startswith("missing: ")]
    assert status == (1 if absent else 0), said[-2000:]
    assert all("transfer" in line or "glue" in line for line in absent)  # which take minutes: tests of their own
    for output in outputs:
        assert list(Path().glob(f"{output.removesuffix('.parquet')}*")), output


def run(verb: str, arguments: list[str]) -> object:
    """A verb in this process, made short → its exit status."""
    short = {f"--{name}": str(value) for name, value in SHORT.get(verb, {}).items()}
    if "--minutes" in arguments:  # steps stand in its place
        place = arguments.index("--minutes")
        arguments = arguments[:place] + arguments[place + 2 :]
    if "--torch_compile" in arguments:  # which takes a minute, and tests/training/test_compiled.py does
        arguments[arguments.index("--torch_compile") + 1] = "false"
    if arguments[:1] in ([], ["--help"]) or {"--list", "--report"} & set(arguments):
        short = {}
    kept = {name: value for name, value in short.items() if name not in arguments or name in STEPS}
    given = [*arguments, *(word for pair in kept.items() for word in pair)]
    try:
        import_module("cmlmcse.cli").main([verb, *given])
    except SystemExit as stop:
        return stop.code or 0
    return 0


# MTEB's reads the Hub's data sets, see tests/evaluation/test_mteb.py.
BLOCKS = list(dict.fromkeys((page, block) for page, block in blocks_of("python") if "mteb" not in block))

SKETCHES = blocks_of("py")


@pytest.mark.parametrize("block", [block for _, block in BLOCKS], ids=[page for page, _ in BLOCKS])
def test_python_runs(block: str, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As it stands, with a folder for the repository."""
    from cmlmcse.models.encoders import load_encoder

    monkeypatch.chdir(place)
    names = {"FOLDER_OR_REPO": "MODEL", "my_model": SimpleNamespace(encode=load_encoder("MODEL"))}
    exec(block.replace('"OWNER/NAME", revision="COMMIT"', "FOLDER_OR_REPO"), names)
    found = names.get("embeddings")
    listed = re.search(r"encode\((\[.*?\])", block)
    count = len(json.loads(listed[1])) if listed else 2
    assert found is None or found.shape == (count, 256 if "assets/" in block else 32)
    pairs = ("first and second", "first and third", "second and third")
    said = re.search("# cosines: " + ", ".join(rf"{pair} ([\d.]+)" for pair in pairs), block)
    assert said or "assets/encoder-mini-en" not in block
    if said:
        cosines = names["model"].similarity(found, found)
        found_pairs = [float(cosines[one][other]) for one, other in ((0, 1), (0, 2), (1, 2))]
        assert found_pairs == pytest.approx([float(text) for text in said.groups()], abs=0.006)
    assert found is not None or names["results"]["avg"] is not None


@pytest.mark.parametrize("block", [block for _, block in SKETCHES], ids=[page for page, _ in SKETCHES])
def test_sketch_is_python(block: str) -> None:
    """A block that needs a network or more code around it is at least Python."""
    compile(block, "sketch", "exec")


def follow(page: str, root: Path) -> None:
    """Put a page's examples into a copy of the code: a block's first line names its file, `NAME = {…}` adds to a
    registry, and what stands before that goes before the registry."""
    for block in (block for found, block in SKETCHES if found == page and block.startswith("# ")):
        name, _, code = block.removeprefix("# ").partition("\n")
        path = root / name
        if not path.exists():
            path.write_text(code)
            continue
        before, registry, entries = re.fullmatch(r"(.*?)^(\w+) = \{\n(.*)\}\n", code, re.MULTILINE | re.DOTALL).groups()  # type: ignore[union-attr]
        found = re.search(rf"^{registry}: .*?^\}}\n", path.read_text(), re.MULTILINE | re.DOTALL)
        assert found is not None, (name, registry)
        added = before + found[0].removesuffix("}\n") + entries + "}\n"
        path.write_text(path.read_text().replace(found[0], added))


def add_weight(root: Path) -> None:
    """What the page says in words of the example objective's weight."""
    config, arguments = "modeling_cmlmcse/configuration_cmlmcse.py", "cmlmcse/training/fields.py"
    in_body = 'self.bow_weight = in_range("bow_weight", bow_weight, float, 0.0, 1e6)'
    for name, before, added in (
        (config, "        mlm_weight: float = 0.0,\n", "        bow_weight: float = 0.0,\n"),
        (config, "        mlm_weight: weight of", "        bow_weight: weight of the bag of words.\n"),
        (config, "        self.mlm_weight =", f"        {in_body}\n"),
        (arguments, "    mlm_weight: float =", '    bow_weight: float = of_config("bow_weight")\n'),
    ):
        text = (root / name).read_text()
        assert text.count(before) == 1, (name, before)
        (root / name).write_text(text.replace(before, added + before))


def add_schedule(root: Path) -> None:
    """The page's schedule of λ, where it says: the class before the function that trains, the last two lines in it, and
    the field."""
    page = (ROOT / "docs" / "how-to" / "extending.md").read_text()
    (block,) = (block for found, block in SKETCHES if found == "docs/how-to/extending.md" and "RisingWeight" in block)
    before, switch, after = block.partition("if recipe.run.lambda_rises:")
    (field,) = re.findall("`(lambda_rises: .*?)`", page)
    training, arguments = root / "cmlmcse/training/encoder_training.py", root / "cmlmcse/training/fields.py"
    place = "    measured = run.train(trainer)\n"
    text = training.read_text()
    assert text.count(place) == 1
    text = text.replace(place, indent(switch + after, "    ") + place)
    training.write_text(text.replace("def train_encoder(", before + "def train_encoder(", 1))
    head = re.search(r'class RunArguments\(.*?\n    """.*?"""\n', arguments.read_text(), re.DOTALL)
    assert head is not None
    arguments.write_text(arguments.read_text().replace(head[0], f"{head[0]}    {field}\n"))


@pytest.mark.slow
def test_extending_is_true(place: Path, tmp_path: Path) -> None:
    """The page's pooling, objective, augmentation, view, loss, schedule and task, put where it says: they train, the
    export gives the same embeddings in a fresh process with and without the code, and the task scores it."""
    for name in ("modeling_cmlmcse", "cmlmcse", "configuration"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    follow("docs/how-to/extending.md", tmp_path)
    add_weight(tmp_path)
    add_schedule(tmp_path)
    lines = (place / "my.txt").read_text().split("\n\n")[0].splitlines()
    (tmp_path / "duplicates.tsv").write_text("".join(f"{line}\t{line}\n" for line in dict.fromkeys(lines)))

    fields = {
        "model_name_or_path": place / "backbone", "train_file": place / "my.txt", "data_dir": tmp_path, "max_steps": 2,
        "eval_steps": 2, "save_steps": 2, "logging_steps": 1, "per_device_train_batch_size": 8,
        "use_cpu": True, "dev_set": "none", "pooling": "avg_top3", "augmentation": "first_half", "cmlm_weight": 1,
        "lambda_rises": True, "views": "ends", "bow_weight": 0.1, "contrastive_loss": "margin",
        "final_evaluation": "duplicates", "output_dir": "run",
    }  # fmt: skip
    calls: list[list[object]] = [
        ["train", "simcse-bert-base", *(word for name, value in fields.items() for word in (f"--{name}", value))],
        ["push", "run/checkpoint-2", "--export_only", "--output_dir", "exported"],
        ["evaluate", "exported", "--tasks", "duplicates", "--data_dir", tmp_path, "--output", "scored.json"],
    ]
    _, pushed, _ = run_verbs(warm.python(), calls, tmp_path)
    log = json.loads((tmp_path / "run" / "run.json").read_text())["log"]
    rows = [row for row in log if "loss" in row]
    lambdas = [(row["loss"] - row["contrastive_loss"] - 0.1 * row["bow_loss"]) / row["cmlm_loss"] for row in rows]
    assert lambdas == pytest.approx([0, 0.5], abs=1e-4)  # before the first and the second of two steps
    assert log[0]["bow_loss"] == pytest.approx(np.log(len(WORDS) + 5), rel=0.2)  # a fresh layer guesses
    assert "Verified in a fresh process" in pushed
    assert (tmp_path / "exported" / "bag_of_words.py").is_file()
    for results in ("run/results.json", "scored.json"):
        assert json.loads((tmp_path / results).read_text())["duplicates"] == {"r@1": 100.0}
