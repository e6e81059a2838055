"""The commands in the documentation are ones that the programs take, and they run, on tiny models and data."""

import gzip
import json
import lzma
import re
import shlex
import shutil
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from cmlmcse import encode, search
from cmlmcse.cli import VERBS
from cmlmcse.evaluation import command as evaluation
from cmlmcse.evaluation.sts_data import STS_SETS, STSB_DEV
from cmlmcse.evaluation.tasks import choose_tasks
from cmlmcse.hub import push
from cmlmcse.study import command as study
from cmlmcse.study.plan import check_fields, load_study
from cmlmcse.training.arguments import parse_recipe
from support.local_hub import LocalHub
from support.paths import ROOT
from support.records import RECORD, RESULTS
from support.tiny import WORDS, tiny_backbone, tiny_tokenizer

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), ROOT / "benchmarks" / "RESULTS.md"]
# What starts a verb without naming it; `cmlmcse VERB` names it.
SCRIPTS = {"train.py": "train", "run_study.py": "study", "push_to_hub.py": "push", "cmlmcse.encode": "encode",
           "cmlmcse.evaluation.tasks": "evaluate", "cmlmcse.evaluation.command": "evaluate"}  # fmt: skip
PROGRAMS = ("train", "study", "push", "evaluate", "encode")


def split_command(words: list[str]) -> tuple[str | None, list[str]]:
    """A command's words → its verb, None for another program, and the verb's arguments."""
    for index, word in enumerate(words):
        if word == "cmlmcse" and words[index + 1 : index + 2] and words[index + 1] in VERBS:
            return words[index + 1], words[index + 2 :]
        if word in SCRIPTS:
            return SCRIPTS[word], words[index + 1 :]
    return None, []


def commands(page: Path) -> Iterator[str]:
    """The commands in a page's fenced blocks and inline code: continued lines joined, comments and prompts dropped."""
    text = page.read_text(encoding="utf-8").replace("\\\n", " ")
    blocks = re.findall(r"^```[a-z]*\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)
    lines = [line for block in blocks for line in block.splitlines()]
    lines += re.findall(r"`([^`\n]+(?:\n[^`\n]+)?)`", re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL))
    for line in lines:
        if re.match(r"\s*(srun )?(python|accelerate launch|make|cmlmcse) ", line):
            yield " ".join(re.split(r"\s+#\s", line)[0].split())


def optional_given(command: str) -> str:
    """`[--option value]` in a synopsis as if given, `[MODEL …]` as another one, A|B as the first."""
    command = command.replace("[MODEL …]", "").replace("…", "")
    return re.sub(r"[\[\]]", "", command).split(" | ")[0]


FOUND = [(page.name, command) for page in PAGES for command in commands(page)]


def test_there_are_commands() -> None:
    """The pages are read at all, and every program has a command in them."""
    assert len(FOUND) > 20
    for program in PROGRAMS:
        assert any(split_command(command.split())[0] == program for _, command in FOUND), program


@pytest.mark.parametrize(("page", "command"), FOUND)
def test_command_is_taken(page: str, command: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Its recipe, study, file and options exist; nothing is run."""
    monkeypatch.chdir(ROOT)
    words = shlex.split(optional_given(command).replace("$SLURM_ARRAY_TASK_ID", "0").replace(" DIR", f" {tmp_path}"))
    for word in words:
        if word.startswith(("configuration/", "studies/", "benchmarks/")) and not word.endswith(".json"):
            assert (ROOT / word).exists(), word
    program, arguments = split_command(words)
    if program is None:
        script = next((word for word in words if word.endswith(".py")), None)
        assert script is None or (ROOT / script).is_file(), script
        return
    if arguments in ([], ["--help"]):
        return
    if program == "train":
        parse_recipe(arguments)
    elif program == "study":
        options, fields = study.parse(arguments)
        check_fields(load_study(options.study).with_fields(fields).runs[:1])
    elif program == "encode":
        encode.parse(arguments)
    elif program == "evaluate":
        choose_tasks(evaluation.parse(arguments).tasks)
    elif program == "search":
        search.parse(arguments)
    elif program == "push":
        push.parse(arguments)


# What a page's command has in common with what can be run here: everything but the model, the text and the length.
SHORT = {
    "train": {
        "model_name_or_path": "backbone", "train_file": "my.txt", "data_dir": "DIR", "max_steps": 1, "eval_steps": 1,
        "save_steps": 1, "per_device_train_batch_size": 8, "final_evaluation": "stsb_dev", "use_cpu": True,
        "gradient_accumulation_steps": 1, "max_train_samples": 40, "disable_tqdm": True,
    },
    "study": {"model_name_or_path": "backbone", "train_file": "my.txt", "max_steps": 1, "use_cpu": True},
}  # fmt: skip
STEPS = ("--max_steps",)  # given on a page too, and yet shortened


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with everything that the pages' commands name."""
    from cmlmcse.hub.export import export
    from modeling_cmlmcse import CMLMCSEForSentenceEmbedding

    place = tmp_path_factory.mktemp("docs")
    backbone, tokenizer = (
        tiny_backbone("bert", num_hidden_layers=12, max_position_embeddings=130),
        tiny_tokenizer("bert"),
    )
    backbone.save_pretrained(place / "backbone")
    tokenizer.save_pretrained(place / "backbone")
    rng = np.random.default_rng(0)
    lines = [" ".join(rng.choice(WORDS, size=rng.integers(3, 12))) for _ in range(200)]
    text = "".join("\n".join(lines[start : start + 20]) + "\n\n" for start in range(0, 200, 20))  # documents
    for name in ("my.txt", "sentences.txt"):
        (place / name).write_text(text)
    (place / "sentences.txt.gz").write_bytes(gzip.compress(text.encode()))
    for name in ("a.txt.xz", "b.txt.xz"):
        (place / name).write_bytes(lzma.compress(text.encode()))
    write_evaluation_data(place / "DIR")
    (place / "studies").mkdir()
    shutil.copy(ROOT / "studies" / "cmlmcse-table5.yaml", place / "studies")
    model = CMLMCSEForSentenceEmbedding.from_backbone(str(place / "backbone")).eval()
    checkpoint = place / "runs" / "NAME" / "checkpoint-N"
    model.save_pretrained(checkpoint)
    tokenizer.save_pretrained(checkpoint)
    (checkpoint.parent / "run.json").write_text(json.dumps(RECORD))
    (checkpoint.parent / "results.json").write_text(json.dumps(RESULTS))
    for name in ("MODEL", "A", "B"):
        export(model, tokenizer, place / name)
    shutil.copy(ROOT / "modeling_cmlmcse" / "card_template.md", place / "FILE")
    return place


def write_evaluation_data(folder: Path) -> None:
    """Every STS set with its published number of pairs, and a set to retrieve from, of a few tiny sentences."""
    rng = np.random.default_rng(0)
    pool = [" ".join(rng.choice(WORDS, size=6)) for _ in range(100)]
    for one in (*STS_SETS.values(), STSB_DEV):
        (folder / "sts" / one.folder).mkdir(parents=True, exist_ok=True)
        for name, count in one.counts.items():
            rows = "".join(f"{rng.uniform(0, 5):.2f}\t{a}\t{b}\n" for a, b in rng.choice(pool, size=(count - 1, 2)))
            rows += f"5.00\t{pool[0]}\t{pool[1]}\n"  # a paraphrase to look for
            (folder / "sts" / one.folder / f"{name}.tsv").write_text(rows)
    beir = folder / "beir" / "tiny"
    (beir / "qrels").mkdir(parents=True)
    for name in ("corpus", "queries"):
        lines = [json.dumps({"_id": f"{name[0]}{i}", "title": "", "text": text}) for i, text in enumerate(pool[:20])]
        (beir / f"{name}.jsonl").write_text("\n".join(lines) + "\n")
    (beir / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\nq0\tc1\t1\nq2\tc3\t1\n")


RUN = [found for found in FOUND if found[0] != "RESULTS.md" and len(found[1].split()) > 3]
RUN = [found for found in RUN if split_command(found[1].split())[0]]


@pytest.mark.parametrize(("page", "command"), RUN)
def test_command_runs(
    page: str,
    command: str,
    place: Path,
    hub: LocalHub,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """To its end, in this process, whatever launches it: with a tiny model, text and data of the same names. What a
    command names and is not there, or does in another way, fails."""
    folder = tmp_path / "place"
    shutil.copytree(place, folder)
    monkeypatch.chdir(folder)
    monkeypatch.setattr("cmlmcse.hub.export.verify", lambda *_: {"AutoModel": 0.0})  # tests/hub/test_push_to_hub.py
    words = shlex.split(optional_given(command).replace("$SLURM_ARRAY_TASK_ID", "0"))
    program, arguments = split_command(words)
    assert program is not None
    if (
        command.split()[-2:] == ["train", "infocse-bert-base"] or command == "python train.py infocse-bert-base"
    ):  # the second stage, after the page's command for the first
        run(monkeypatch, "train", ["infocse-bert-base", "--stage", "pretrain"])
        arguments += ["--model_name_or_path", "runs/infocse-pretrain-bert-base/export"]
    if "--pooling" in arguments and "MODEL" in arguments:  # for models that record none
        arguments[arguments.index("MODEL")] = "backbone"
    if program == "study" and not {"--list", "--report", "--index"} & set(arguments):
        arguments += ["--index", "0"]  # one run of 42
    if "--create_pr" in arguments:  # published before, as the page has it
        hub.create("OWNER/NAME")
    status, said = run(monkeypatch, program, arguments), capsys.readouterr().err
    absent = [line for line in said.splitlines() if line.startswith("missing: ")]
    assert status == (1 if absent else 0), said[-2000:]
    assert all("transfer" in line or "glue" in line for line in absent)  # which take minutes: tests of their own
    outputs = [arguments[index + 1] for index, word in enumerate(arguments) if word in ("--output", "--output_dir")]
    for output in outputs:
        assert list(Path().glob(f"{output.removesuffix('.parquet')}*")), output


def run(monkeypatch: pytest.MonkeyPatch, program: str, arguments: list[str]) -> object:
    """A program in this process, made short → its exit status."""
    short = {f"--{name}": str(value) for name, value in SHORT.get(program, {}).items()}
    if arguments[:1] in ([], ["--help"]) or {"--list", "--report"} & set(arguments):
        short = {}
    kept = {name: value for name, value in short.items() if name not in arguments or name in STEPS}
    given = [*arguments, *(word for pair in kept.items() for word in pair)]
    monkeypatch.setattr(sys, "argv", [program, *given])
    try:
        import_module(VERBS[program].module).main()
    except SystemExit as stop:
        return stop.code or 0
    return 0


def python_blocks() -> Iterator[tuple[str, str]]:
    """The Python of each page; MTEB's reads the Hub's data sets, see tests/evaluation/test_mteb.py."""
    for page in PAGES:
        for block in re.findall(r"^```python\n(.*?)^```", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL):
            if "mteb" not in block:
                yield page.name, block


BLOCKS = list(python_blocks())


@pytest.mark.parametrize("block", [block for _, block in BLOCKS], ids=[page for page, _ in BLOCKS])
def test_python_runs(block: str, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As it stands, with a folder for the repository."""
    from cmlmcse.models.encoders import load_encoder

    monkeypatch.chdir(place)
    names = {"FOLDER_OR_REPO": "MODEL", "my_model": SimpleNamespace(encode=load_encoder("MODEL"))}
    exec(block.replace('"OWNER/NAME", revision="COMMIT"', "FOLDER_OR_REPO"), names)
    found = names.get("embeddings")
    assert found is None or found.shape == (2, 32)
    assert found is not None or names["results"]["avg"] is not None
