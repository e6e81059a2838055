"""The command `cmlmcse`: its verbs, help without heavy imports, Ctrl-C, and the functions that Python calls."""

import errno
import inspect
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import transformers
import yaml
from safetensors import SafetensorError

import cmlmcse
from cmlmcse import cli
from cmlmcse.adaptation.command import main as adapt_command
from cmlmcse.common.arguments import Parser
from cmlmcse.common.command import command
from cmlmcse.common.recipes import recipe_folder, recipe_names, summary
from cmlmcse.common.signals import interruptible
from cmlmcse.encode.command import main as encode_command
from cmlmcse.training import build_model, build_text
from cmlmcse.training.command import main as train_command
from cmlmcse.training.command import train
from cmlmcse.training.field_table import field_table
from cmlmcse.training.help import FIELDS, OTHER_FIELDS, help_text
from cmlmcse.training.parse import parse_recipe
from support.paths import ROOT
from support.tiny import tiny_backbone, tiny_tokenizer

HEAVY = ("torch", "transformers", "accelerate", "datasets", "pandas", "sklearn", "scipy", "matplotlib")


def run_light(*arguments: str, heavy: tuple[str, ...] = HEAVY) -> subprocess.CompletedProcess[str]:
    """`python -m cmlmcse …` in a fresh process, which fails if it imports what takes seconds."""
    code = (
        f"import sys, runpy\nsys.argv = ['cmlmcse', *{list(arguments)!r}]\n"
        "try:\n    runpy.run_module('cmlmcse', run_name='__main__')\n"
        f"finally:\n    assert not (found := set(sys.modules) & set({heavy!r})), found"
    )
    return subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False, timeout=60
    )


@pytest.mark.parametrize("verb", ["", *cli.VERBS])
def test_help_is_light(verb: str) -> None:
    """No help waits for PyTorch."""
    done = run_light(*([verb] if verb else []), "--help")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"usage: cmlmcse {verb}".strip())
    assert not done.stderr
    if not verb:
        for name, entry in cli.VERBS.items():
            assert f"  {name} " in done.stdout
            assert entry.help in done.stdout


@pytest.mark.parametrize(("words", "said"), [
    (["search", "MODEL", "TABLE", "x"], "expected a column text, found the columns a, b"),
    (["encode", "MODEL", "TABLE", "--output", "out.npy"], "expected a column text, found the columns a, b"),
    (["adapt", "MODEL", "missing.csv", "--output_dir", "out"], "missing.csv: expected a file or a Hub dataset id"),
])  # fmt: skip
def test_a_wrong_text_is_said_early(words: list[str], said: str, tmp_path: Path) -> None:
    """Before PyTorch is imported, which takes seconds. Arrow and `datasets`, which read text, import pandas."""
    table = tmp_path / "table.csv"
    table.write_text("a,b\nthe cat,the dog\n")
    given = (str(table) if word == "TABLE" else word for word in words)
    done = run_light(*given, heavy=("torch", "transformers", "accelerate"))
    assert done.returncode == 2, done.stderr
    assert said in done.stderr


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_reader_that_has_gone(unbuffered: str) -> None:
    """`cmlmcse recipes | head -1` ends without a traceback, whether the output was written at once or at the end."""
    reading, writing = os.pipe()
    os.close(reading)
    environment = os.environ | {"PYTHONUNBUFFERED": unbuffered}
    words = [sys.executable, "-m", "cmlmcse", "recipes"]
    done = subprocess.run(
        words, cwd=ROOT, env=environment, stdout=writing, stderr=subprocess.PIPE, text=True, check=False, timeout=60
    )
    os.close(writing)
    assert (done.returncode, done.stderr) == (141, "")


@pytest.mark.parametrize("closed", [">&-", "2>&-"])
def test_a_closed_stream(closed: str) -> None:
    """Python then has None for it. What would be written there is dropped."""
    words = f'exec "$0" -m cmlmcse recipes {closed}'
    done = subprocess.run(
        ["sh", "-c", words, sys.executable], cwd=ROOT, capture_output=True, text=True, check=False, timeout=60
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("closed", ["2>&-", "<&- 2>&-", "<&- >&- 2>&-"])
def test_what_c_code_prints_where_a_stream_is_closed(closed: str, tmp_path: Path) -> None:
    """It is not in a file that is opened next."""
    code = (
        "import os\nfrom cmlmcse.common.command import command\n"
        "@command\ndef main():\n    with open('file', 'w') as file:\n        os.write(2, b'noise')\n"
        "        file.write('text')\nmain()"
    )
    words, environment = f'exec "$0" -c "$1" {closed}', os.environ | {"PYTHONPATH": str(ROOT)}
    subprocess.run(["sh", "-c", words, sys.executable, code], cwd=tmp_path, env=environment, check=True, timeout=60)
    assert (tmp_path / "file").read_text() == "text"


def test_another_broken_pipe_is_an_error() -> None:
    """Standard output is whole, so the traceback says what went wrong."""
    code = (
        "from cmlmcse.common.command import command\n"
        "@command\ndef main():\n    raise BrokenPipeError('a worker')\nmain()"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr.splitlines()[-1]) == (1, "BrokenPipeError: a worker")


@pytest.mark.parametrize(
    ("error", "file"),
    [
        (OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "out/weights"), "out/weights"),
        (SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)"), "a file"),
    ],
)
def test_a_full_disk(error, file, capsys) -> None:
    """One line and status 2, also where a library gives the system's error as text."""

    @command
    def write() -> None:
        raise error

    with pytest.raises(SystemExit, match="2"):
        write()
    line = f"error: {file} cannot be written: No space left on device; free space and repeat"
    assert capsys.readouterr().err.splitlines() == [line]


@pytest.mark.parametrize("number", [errno.EACCES, errno.EPERM, errno.EROFS])
def test_a_refused_place(number: int, capsys: pytest.CaptureFixture[str]) -> None:
    """As where the cache of Hugging Face's libraries belongs to another user: one line and status 2."""

    @command
    def write() -> None:
        raise OSError(number, os.strerror(number), "/home/other/.cache/huggingface/datasets")

    with pytest.raises(SystemExit, match="2"):
        write()
    line = (
        "error: /home/other/.cache/huggingface/datasets: expected a place that this user may read and write, found: "
        f"{os.strerror(number)}; change its permissions, or set HF_HOME to another folder if it is a cache"
    )
    assert capsys.readouterr().err.splitlines() == [line]


@pytest.mark.parametrize(("variable", "met", "number"), [
    ("file/home", "file/home", errno.ENOTDIR), ("file", "file/datasets", errno.ENOTDIR), ("file", "file", errno.EEXIST),
    ("gone/a/b", "gone/a", errno.ENOENT), ("gone", "gone/datasets", errno.ENOENT),
])  # fmt: skip
def test_a_cache_that_cannot_be_made(variable, met, number, tmp_path, monkeypatch, capsys) -> None:
    """One line and status 2, which names the variable; of a file elsewhere, and where no variable is set, the error
    keeps its traceback."""
    (tmp_path / "file").touch()
    (tmp_path / "gone").symlink_to(tmp_path / "of a disk that is not there")
    monkeypatch.setenv("HF_HOME", str(tmp_path / variable))

    @command
    def write(path: str | Path) -> None:
        raise OSError(number, os.strerror(number), str(path))

    monkeypatch.chdir(tmp_path)
    for place in (tmp_path / met, met):
        with pytest.raises(SystemExit, match="2"):
            write(place)
        expected = f"expected a folder that can be made, found: {os.strerror(number)}; set it to another folder"
        assert capsys.readouterr().err.splitlines() == [f"error: HF_HOME={tmp_path / variable}: {expected}"]
    with pytest.raises(OSError, match="elsewhere"):
        write(tmp_path / "elsewhere")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "new" / "home"))
    with pytest.raises(OSError, match="new"):  # it can be made, so it is not the cause
        write(tmp_path / "new")
    monkeypatch.delenv("HF_HOME")
    with pytest.raises(OSError, match=os.devnull):
        write(f"{os.devnull}/out")


def test_a_path_that_begins_with_a_dash(tmp_path, monkeypatch, capsys) -> None:
    """Each command says what to write instead, wherever the path stands."""
    monkeypatch.chdir(tmp_path)
    Path("-text.txt").touch()
    for main, words in (
        (adapt_command, ["model", "-text.txt", "--output_dir", "out"]),
        (adapt_command, ["model", "text", "--output_dir", "-text.txt"]),
        (encode_command, ["model", "-text.txt", "--output", "out.npy"]),
        (train_command, ["quickstart", "--train_file", "-text.txt"]),
    ):
        with pytest.raises(SystemExit, match="2"):
            main(words)
        line = "error: expected a path that does not begin with a dash, found -text.txt; write ./-text.txt; see cmlmcse"
        assert capsys.readouterr().err.startswith(line)


def test_what_argparse_takes_for_a_value(tmp_path, monkeypatch) -> None:
    """A word with a space and a number are values also where a file is called so."""
    monkeypatch.chdir(tmp_path)
    parser = Parser()
    parser.add_argument("text")
    parser.add_argument("--seed", type=int)
    for name in ("-my text.txt", "-1"):
        Path(name).touch()
    found = parser.parse_args(["-my text.txt", "--seed", "-1"])
    assert (found.text, found.seed) == ("-my text.txt", -1)


@pytest.mark.parametrize(
    "error", [OSError(errno.EIO, os.strerror(errno.EIO)), SafetensorError("I/O error: Input/output error (os error 5)")]
)
def test_another_error_of_files(error) -> None:
    """It keeps its traceback."""

    @command
    def write() -> None:
        raise error

    with pytest.raises(type(error), match="Input/output"):
        write()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "expected VERB, one of recipes, train"),
        (["trian"], "VERB must be one of recipes, train, adapt, evaluate, encode, search, push, study, found 'trian'; "
                    "did you mean train?"),
        (["xyzzy"], "found 'xyzzy'; see cmlmcse --help"),
        (["train"], "expected RECIPE, one of adapt, clear-bert-base, cmlmcse-bert-base"),
        (["train", "cmlmcse-bert-bse"], "did you mean cmlmcse-bert-base?"),
        (["train", "--temp", "0.1"], "expected RECIPE first, found '--temp'"),
        (["recipes", "all"], "unrecognized arguments: all; see cmlmcse recipes --help"),
        (["evaluate"], "the following arguments are required: MODEL; see cmlmcse evaluate --help"),
        (["push"], "the following arguments are required: CHECKPOINT; see cmlmcse push --help"),
        (["study"], "the following arguments are required: STUDY.yaml; see cmlmcse study --help"),
    ],
)  # fmt: skip
def test_usage_errors(arguments: list[str], words: str) -> None:
    """One line, status 2, and at once."""
    done = run_light(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1
    assert words in done.stderr


def test_recipes() -> None:
    """Every recipe that comes with the tool has a line of its own, which says what it is for."""
    done = run_light("recipes")
    lines = done.stdout.split("\n\n")[0].splitlines()
    assert [line.split()[0] for line in lines] == recipe_names() == sorted(recipe_names())
    said = [line.split(maxsplit=1)[1] for line in lines]
    assert len(set(said)) == len(said) == len(list((ROOT / "configuration").glob("*.yaml")))


@pytest.mark.parametrize("name", recipe_names())
def test_summary_of_a_recipe(name: str) -> None:
    """Its first line is a whole sentence of at most 100 characters."""
    line = summary(recipe_folder() / f"{name}.yaml")
    assert 20 < len(line) <= 100
    assert line.endswith(".")
    assert line[0].isupper()


def test_help_of_train_is_the_fields_help() -> None:
    """The table that the help prints is that of the dataclasses; of TrainingArguments in the version it was made with.
    After a change: python -m cmlmcse.training.field_table"""
    kept, found = json.loads(FIELDS.read_text(encoding="utf-8")), field_table()
    if kept["transformers"] != transformers.__version__:
        assert f"transformers {transformers.__version__} is installed" in help_text()
        for table in (kept, found):
            del table["groups"][OTHER_FIELDS]
    assert kept["groups"] == found["groups"]
    text = help_text()
    for group in found["groups"].values():
        for row in group:
            assert f"  --{row['name']} {row['kind'].upper()}  (default: {row['default']})\n" in text
            assert row["help"], row["name"]


def test_version() -> None:
    """It stands in one place."""
    assert run_light("--version").stdout == f"{cmlmcse.__version__}\n"
    assert "version = attr: cmlmcse.__version__" in (ROOT / "setup.cfg").read_text()


@pytest.mark.slow
def test_functions_are_lazy_and_documented() -> None:
    """`import cmlmcse` imports nothing heavy; its functions have a docstring and types."""
    code = f"import sys, cmlmcse\nassert not set(sys.modules) & set({HEAVY!r})\nassert 'train' in dir(cmlmcse)"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)
    for name in ("train", "evaluate"):
        function = getattr(cmlmcse, name)
        assert {"Args:", "Returns:", "Raises:"} <= {line.strip() for line in inspect.getdoc(function).splitlines()}
        assert all(one.annotation is not one.empty for one in inspect.signature(function).parameters.values())
    with pytest.raises(AttributeError, match="no attribute 'adopt'"):
        cmlmcse.adopt  # noqa: B018


@pytest.mark.slow
def test_train_and_evaluate_from_python(recipe: Path, data_dir: Path, tmp_path: Path) -> None:
    """The functions return what the commands write, and take fields of every kind."""
    trained = cmlmcse.train(recipe, max_steps=2, eval_steps=1, save_steps=1, use_cpu=True, output_dir=tmp_path / "new",
                            final_evaluation="stsb_dev", lr_scheduler_kwargs={}, temp=None)  # fmt: skip
    assert trained.folder == tmp_path / "new"
    assert trained.results == json.loads((tmp_path / "new" / "results.json").read_text())
    assert json.loads((tmp_path / "new" / "run.json").read_text())["steps"] == 2
    results = cmlmcse.evaluate(tmp_path / "new", tasks=["stsb_dev", "geometry"], data_dir=data_dir)
    cli.main(["evaluate", str(tmp_path / "new"), "--tasks", "stsb_dev,geometry", "--data_dir", str(data_dir),
              "--output", str(tmp_path / "results.json")])  # fmt: skip
    assert results == json.loads((tmp_path / "results.json").read_text())
    assert results["stsb_dev"]["spearman"] == pytest.approx(trained.results["stsb_dev"]["spearman"], abs=0.01)
    with pytest.raises(ValueError, match="did you mean temp"):
        train(recipe, tempp=1)
    with pytest.raises(ValueError, match="sts"):  # as without the argument; the folder holds no data
        cmlmcse.evaluate(tmp_path / "new", tasks=None, data_dir=tmp_path)


def test_ctrl_c(recipe: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys) -> None:
    """Status 130 and one line, which names the newest checkpoint if there is one."""

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(build_text, "build_sentences", interrupted)
    for folder, words in (
        ("run", "no checkpoint was written yet; the same command starts again"),
        ("more", f"{tmp_path}/more/checkpoint-12 is kept; go on with --resume_from_checkpoint auto"),
    ):
        if folder == "more":
            monkeypatch.setattr("cmlmcse.training.both_stages.claim_output_dir", lambda *_, **__: tmp_path / "more")
            for step in (6, 12, 18):
                checkpoint = tmp_path / "more" / f"checkpoint-{step}"
                checkpoint.mkdir(parents=True)
                if step < 18:  # which holds weights alone
                    (checkpoint / "trainer_state.json").touch()
                    (checkpoint / "rng_state.pth").touch()
        with pytest.raises(SystemExit, match="130"):
            cli.main(["train", str(recipe), "--output_dir", str(tmp_path / folder)])
        said = [line for line in capsys.readouterr().err.splitlines() if "stopped" in line]
        assert said == [f"stopped: by Ctrl-C; {words}"]


def test_ctrl_c_anywhere(capsys: pytest.CaptureFixture[str]) -> None:
    """A command that says nothing of its own has a line too; an inner block's words come before an outer one's."""

    @command
    def plain() -> None:
        raise KeyboardInterrupt

    @command
    def nested() -> None:
        with interruptible(lambda: "outer"), interruptible(lambda: "inner"):
            raise KeyboardInterrupt

    for main, words in ((plain, "what was finished before is kept"), (nested, "inner")):
        with pytest.raises(SystemExit, match="130"):
            main()
        assert capsys.readouterr().err == f"stopped: by Ctrl-C; {words}\n"


@pytest.mark.parametrize(
    ("name", "own", "given", "expected"),
    [
        ("cmlmcse-bert-base", {}, [], (3, 1)),  # 8 and 3 of 12, of 4 layers
        ("cmlmcse-bert-base", {}, ["--lexical_layers", "2"], (2, 1)),
        ("infocse-without-pretraining-bert-base", {}, [], (2, 1)),  # 6 and 2 of 12
        ("mine", {"lexical_layers": 3, "fusion_layers": 2}, [], (None, None)),  # of an unknown depth: the paper's share
        ("mine", {"lexical_layers": 3}, ["--lexical-layers=4"], (4, None)),
        ("mine", {"model_name_or_path": "small", "lexical_layers": 1, "fusion_layers": 2}, [], (1, 2)),  # its own model
        ("infocse-bert-base", {}, [], (None, None)),  # the pre-trained network's own
    ],
)
def test_layer_counts_follow_the_depth(name, own, given, expected, tmp_path, monkeypatch) -> None:
    """Counts of a recipe for its own backbone become the same share of another's; those that are given stay."""
    monkeypatch.chdir(tmp_path)
    tiny_backbone("bert", num_hidden_layers=4).save_pretrained("small")
    tiny_tokenizer("bert").save_pretrained("small")
    if own:
        Path(f"{name}.yaml").write_text(yaml.safe_dump({"model_name_or_path": "large", **own}))
        name = f"{name}.yaml"
    _, model, _, _ = parse_recipe([name, "--model_name_or_path", "small", "--use_cpu", "true", *given])
    assert (model.lexical_layers, model.fusion_layers) == expected
    if model.fusion_init != "pretrained":
        built = build_model.build_model(model, build_model.build_tokenizer(model)).config
        assert (built.lexical_layers, built.fusion_layers) == tuple(
            count or share for count, share in zip(expected, (3, 1), strict=True)
        )


@pytest.mark.slow
def test_a_model_in_a_package(backbone_folders, data_dir, tmp_path, monkeypatch) -> None:
    """`package:NAME/path` is a model's name to every verb that takes one."""
    import shutil

    (tmp_path / "a_package").mkdir()
    (tmp_path / "a_package" / "__init__.py").write_text("")
    shutil.copytree(backbone_folders["bert"], tmp_path / "a_package" / "model")
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "in.txt").write_text("the cat\na dog\n")
    name = "package:a_package/model"
    results = cmlmcse.evaluate(name, "stsb_dev", data_dir, pooling="avg", cache=tmp_path / "cache")
    assert (
        results["stsb_dev"]
        == cmlmcse.evaluate(backbone_folders["bert"], "stsb_dev", data_dir, pooling="avg")["stsb_dev"]
    )
    cli.main(["encode", name, str(tmp_path / "in.txt"), "--output", str(tmp_path / "out.parquet"), "--pooling", "avg"])
    cli.main(["search", name, str(tmp_path / "out.parquet"), "a cat", "--pooling", "avg"])
    with pytest.raises(ValueError, match="expects nothing in the package a_package, found none"):
        cmlmcse.evaluate("package:a_package/nothing", "stsb_dev", data_dir, pooling="avg")
