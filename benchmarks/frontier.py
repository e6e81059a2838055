"""The study of the frontier's options, with all that it needs, by one command.

    python benchmarks/frontier.py --data_dir DIR --work WORK [--study YAML] [--model FOLDER] [--workers N]
        [--field value ...]

It makes the mixed text (docs/results/mixed-text.md) and the two teachers, then calls `cmlmcse study` on
studies/frontier-bert-mini-59m.yaml, or on another study of the same text and teachers. What is there already is not
made again, so the same command goes on after an interruption. Fields are those of all runs of the study and of the
teachers, for example `--use_cpu false --bf16 true`.

The text: captions (SICK), news (MRPC), films (SUBJ, MR) and questions (TREC) of their training splits, in lower case,
each sentence once; none that stands in a set that is scored.
"""

import argparse
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from cmlmcse import train
from cmlmcse.common.arguments import Parser
from cmlmcse.common.command import command
from cmlmcse.study.command import main as study
from cmlmcse.study.plan import load_study
from cmlmcse.training.command_fields import parse_with_fields

STUDY = Path(__file__).resolve().parents[1] / "studies" / "frontier-bert-mini-59m.yaml"
SEED = 1  # of the teachers; the study has others
SOURCES = (  # files of DIR, and which columns of a line are sentences; None: the line is one
    (("sts/sickr/train.tsv",), (1, 2)),
    (("transfer/MRPC/msr_paraphrase_train.txt",), (3, 4)),
    (("transfer/SUBJ/subj.objective", "transfer/SUBJ/subj.subjective", "transfer/MR/rt-polarity.neg",
      "transfer/MR/rt-polarity.pos"), None),
    (("transfer/TREC/train_5500.label",), None),
)  # fmt: skip
SCORED = ("sts/sts1*/*.tsv", "sts/stsb/dev.tsv", "sts/stsb/test.tsv", "sts/sickr/dev.tsv", "sts/sickr/test.tsv")


@command
def main() -> None:
    """Make what is missing, and run or go on with the study."""
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False)
    parser.add_argument("--data_dir", type=Path, required=True, help="holds sts/ and transfer/")
    parser.add_argument("--work", type=Path, required=True, help="folder of the text and the teachers")
    parser.add_argument("--study", type=Path, default=STUDY, help="YAML file of the study (default: all options)")
    parser.add_argument("--model", help="the backbone (default: the study's)")
    parser.add_argument("--workers", type=int, default=1)
    args, fields = parse_with_fields(parser, None)
    data, file = args.data_dir.resolve(), args.study.resolve()
    common = load_study(file).common
    model = args.model or str(STUDY.parents[1] / common["model_name_or_path"])
    model = str(Path(model).resolve()) if Path(model).is_dir() else model
    args.work.mkdir(parents=True, exist_ok=True)
    os.chdir(args.work)
    text = Path("mixed.txt").resolve()
    if not text.exists():
        sentences = mixed_text(data)
        text.write_text("\n".join(sentences) + "\n", encoding="utf-8")
    shared = {"model_name_or_path": model, "train_file": str(text), "data_dir": str(data), **fields}
    for name, weight in (("simcse", 0), ("cmlm", 0.5)):
        folder = Path("runs") / f"teacher-{name}"
        if not (folder / "results.json").exists():
            own = {"cmlm_weight": weight, "final_evaluation": "none", "seed": SEED, "output_dir": str(folder)}
            train("cmlmcse-bert-base", **{"bf16": False, **common, **shared, **own, "resume_from_checkpoint": "auto"})
    words = [word for name, value in shared.items() for word in (f"--{name}", value)]
    study([str(file), "--workers", str(args.workers), *words])


def mixed_text(data: Path) -> list[str]:
    """The sentences of the mixed text, in order."""
    scored = {text for split in ("dev", "test") for text in columns(data / f"sts/stsb/{split}.tsv", (1, 2))}
    scored |= {text for pattern in SCORED for path in data.glob(pattern) for text in columns(path, (1, 2))}
    return [
        text
        for files, chosen in SOURCES
        for text in once(text for file in files for text in columns(data / file, chosen))
        if text not in scored
    ]


def columns(path: Path, chosen: tuple[int, ...] | None) -> Iterator[str]:
    """The sentences of a file's lines, in lower case. TREC's lines begin with a label, MRPC's file with a header, and
    lines of films end with spaces."""
    lines = path.read_text(encoding="utf-8", errors="surrogateescape").rstrip("\n").split("\n")
    if "MRPC" in path.parts:
        lines = lines[1:]
    if chosen is not None:
        rows = [line.rstrip("\r").split("\t") for line in lines]
        return (row[column].translate(LOWER) for row in rows for column in chosen)
    if "TREC" in path.parts:
        return (line.partition(" ")[2].translate(LOWER) for line in lines)
    return (line.rstrip(" ").translate(LOWER) for line in lines)


LOWER = str.maketrans("ABCDEFGHIJKLMNOPQRSTUVWXYZ", "abcdefghijklmnopqrstuvwxyz")  # as `tr A-Z a-z`


def once(texts: Iterable[str]) -> Iterator[str]:
    """Each text that is not blank, once."""
    return iter(dict.fromkeys(text for text in texts if text.strip()))


if __name__ == "__main__":
    main()
