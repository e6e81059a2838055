"""The commands in the documentation are ones that the programs take."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import ROOT

from modeling_cmlmcse import encode
from modeling_cmlmcse.evaluation import __main__ as evaluation
from modeling_cmlmcse.evaluation import choose_tasks
from modeling_cmlmcse.study import __main__ as study
from modeling_cmlmcse.study.plan import check_fields, load_study
from modeling_cmlmcse.training.arguments import parse_recipe

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), ROOT / "benchmarks" / "RESULTS.md"]
PROGRAMS = ("train.py", "run_study.py", "push_to_hub.py", "modeling_cmlmcse.evaluation", "modeling_cmlmcse.encode")


def commands(page: Path) -> Iterator[str]:
    """The commands in a page's fenced blocks and inline code: continued lines joined, comments and prompts dropped."""
    text = page.read_text(encoding="utf-8").replace("\\\n", " ")
    blocks = re.findall(r"^```[a-z]*\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)
    lines = [line for block in blocks for line in block.splitlines()]
    lines += re.findall(r"`([^`\n]+(?:\n[^`\n]+)?)`", re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL))
    for line in lines:
        if re.match(r"\s*(srun )?(python|accelerate launch|make) ", line):
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
        assert any(program in command for _, command in FOUND), program


@pytest.mark.parametrize(("page", "command"), FOUND)
def test_command_is_taken(page: str, command: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Its recipe, study, file and options exist; nothing is run."""
    monkeypatch.chdir(ROOT)
    words = shlex.split(optional_given(command).replace("$SLURM_ARRAY_TASK_ID", "0").replace(" DIR", f" {tmp_path}"))
    for word in words:
        if word.startswith(("configuration/", "studies/", "benchmarks/")) and not word.endswith(".json"):
            assert (ROOT / word).exists(), word
    program = next((name for name in PROGRAMS if name in words), None)
    if program is None:
        script = next((word for word in words if word.endswith(".py")), None)
        assert script is None or (ROOT / script).is_file(), script
        return
    arguments = words[words.index(program) + 1 :]
    if arguments in ([], ["--help"]):
        return
    if program == "train.py":
        parse_recipe(arguments)
    elif program == "run_study.py":
        options, fields = study.parse(arguments)
        check_fields(load_study(options.study).with_fields(fields).runs[:1])
    elif program == "modeling_cmlmcse.encode":
        encode.parse(arguments)
    elif program == "modeling_cmlmcse.evaluation":
        choose_tasks(evaluation.parse(arguments).tasks)
    else:
        import push_to_hub

        monkeypatch.setattr("sys.argv", ["push_to_hub.py", *arguments])
        push_to_hub.parse()
