"""The pages of the documentation, and the commands and code in them."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

from support.combinations import ALL
from support.paths import ROOT

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")), ROOT / "benchmarks" / "RESULTS.md"]
VERBS = ("recipes", "train", "adapt", "evaluate", "encode", "search", "push", "study")
SCRIPTS = {"train.py": "train", "push_to_hub.py": "push", "cmlmcse.encode": "encode"}  # other ways to a verb


def name_of(page: Path) -> str:
    """A page as a test's name."""
    return str(page.relative_to(ROOT))


def commands(page: Path) -> Iterator[str]:
    """The commands in a page's fenced blocks and inline code: continued lines joined, comments and prompts dropped."""
    text = page.read_text(encoding="utf-8").replace("\\\n", " ")
    blocks = re.findall(r"^```[a-z]*\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)
    lines = [line for block in blocks for line in block.splitlines()]
    lines += re.findall(r"`([^`\n]+(?:\n[^`\n]+)?)`", re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL))
    for line in lines:
        if re.match(r"\s*(srun )?(cmlmcse|python|accelerate launch|make) ", line):
            yield " ".join(re.split(r"\s+#\s", line)[0].split())


def files_of(heading: str) -> set[str]:
    """The files that the page of file formats names in the table below a heading; `checkpoint-N` stands for all."""
    text = (ROOT / "docs" / "reference" / "file-formats.md").read_text(encoding="utf-8")
    section = text.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    cells = re.findall(r"^\| (`[^|]*) \|", section, flags=re.MULTILINE)
    return {name.rstrip("/") for cell in cells for name in re.findall(r"`([^`]+)`", cell)}


def blocks_of(language: str) -> list[tuple[str, str]]:
    """The fenced blocks of a language, with their pages."""
    pattern = re.compile(rf"^```{language}\n(.*?)^```", re.MULTILINE | re.DOTALL)
    return [(name_of(page), block) for page in PAGES for block in pattern.findall(page.read_text(encoding="utf-8"))]


def optional_given(command: str) -> str:
    """`[--option value]` in a synopsis as if given, `[MODEL …]` as another one, A|B as the first."""
    command = command.replace("[MODEL …]", "").replace("[--field value ...]", "").replace("…", "")
    return re.sub(r"[\[\]]", "", command).split(" | ")[0]


def as_verb(command: str) -> tuple[str, list[str]] | None:
    """The verb of `cmlmcse` that a command is another name for, and its arguments; None for another program."""
    words = shlex.split(optional_given(command).replace("$SLURM_ARRAY_TASK_ID", "0"))
    for place, word in enumerate(words):
        if word in SCRIPTS:
            return SCRIPTS[word], words[place + 1 :]
        if word == "cmlmcse" and words[place + 1 :] and words[place + 1] not in ("VERB", "--help", "…"):
            return words[place + 1], words[place + 2 :]
    return None


RUN_ALWAYS = ("README.md", "docs/tutorials/", "docs/reference/")
SAME = {
    "study": ("--workers", "--index"),  # the tests do one run of a study, by its index
    "adapt": ("--minutes", "--output_dir", "--title_column", "--text_column"),
    "train": ("--max_steps", "--output_dir", "--data_dir"),
}


def alike(verb: str, arguments: list[str]) -> tuple[str, ...]:
    """What tells two commands apart well enough to run both: the verb, a recipe, and the names of the options, without
    those that the tests replace (`run`) and those that only name a place."""
    recipe = arguments[:1] if verb == "train" else []
    same = SAME.get(verb, ())
    return (verb, *recipe, *sorted(word for word in arguments if word.startswith("--") and word not in same))


def each_once() -> list[tuple[str, str]]:
    """Every distinct command with the first page that has it; synopses without real arguments are left out."""
    found = {command: name_of(page) for page in reversed(PAGES) for command in commands(page)}
    synopses = {"RECIPE", "VERB", "CHECKPOINT", "STUDY.yaml", "TEXT"}
    return [(page, command) for command, page in found.items() if not synopses & set(command.split())]


def worth_running(found: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """Of the commands that are alike the first one; a verb that a text only mentions is none. Those of the README,
    the tutorials and the reference run; under `make test-combinations` all."""
    chosen: dict[tuple[str, ...], tuple[str, str]] = {}
    for page, command in found:
        verb, arguments = as_verb(command) or ("", [])
        if (arguments or verb == "recipes") and (ALL or page.startswith(RUN_ALWAYS)):
            chosen.setdefault(alike(verb, arguments), (page, command))
    return list(chosen.values())
