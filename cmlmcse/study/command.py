"""The command `cmlmcse study STUDY.yaml`: runs several settings with several seeds, and writes the report."""

import argparse
import sys
from pathlib import Path

from cmlmcse.common.arguments import Parser
from cmlmcse.common.command import command
from cmlmcse.common.errors import InputError
from cmlmcse.common.signals import interruptible, terminable
from cmlmcse.training.command_fields import parse_with_fields


def parse(argv: list[str] | None) -> tuple[argparse.Namespace, dict[str, str]]:
    """The command line → its options, and the recipe fields for all runs."""
    parser = Parser(
        prog="cmlmcse study",
        usage="cmlmcse study STUDY.yaml [options] [--field value ...]",
        description="Do the remaining runs of a study, then report on all finished runs.",
        epilog="Any recipe field can be set for all runs, for example --data_dir DIR",
        allow_abbrev=False,
    )
    parser.add_argument("study", metavar="STUDY.yaml", type=Path)
    parser.add_argument(
        "--workers", type=int, default=1, metavar="N", help="number of runs at the same time (default: 1)"
    )
    parser.add_argument("--only", action="append", metavar="ARM", help="do only the runs of this arm; may be repeated")
    parser.add_argument(
        "--index", type=int, metavar="I", help="do only run number I (the first is 0), without a report"
    )
    parser.add_argument("--list", action="store_true", help="list the runs and their states; do no run")
    parser.add_argument("--report", action="store_true", help="report on the runs that are done; do no run")
    args, fields = parse_with_fields(parser, argv, "STUDY.yaml and ")
    if args.workers < 1:
        parser.error(f"--workers must be at least 1, found {args.workers}")
    return args, fields


@command
def main(argv: list[str] | None = None) -> None:
    """Do the runs of a study and report; exit status 1 if a run failed."""
    args, fields = parse(argv)
    # These imports take seconds, so they come after the arguments are checked.
    from .plan import check_fields, load_study
    from .report import write_report
    from .runner import RunPool, check_unchanged, is_done, state

    study = load_study(args.study).with_fields(fields)
    runs = study.runs
    if args.only:
        if unknown := [arm for arm in args.only if arm not in study.arms]:
            raise InputError(f"--only must be one of {', '.join(study.arms)}, found {unknown[0]!r}; choose one of them")
        runs = [run for run in runs if run.arm in args.only]
    if args.report:
        check_unchanged(study.runs, study.arms)  # else old scores would stand beside new fields
        print(write_report(study), end="")
        return
    if args.index is not None:
        if not 0 <= args.index < len(study.runs):
            raise InputError(f"--index must be from 0 to {len(study.runs) - 1}, found {args.index}; see --list")
        runs = [run for run in runs if run.index == args.index]
        if not runs:
            raise InputError(f"--index {args.index} expects a run of --only, found {study.runs[args.index]}; drop one")
    gpus = check_fields(study.runs)
    if args.list:
        for run in runs:
            print(f"{run.index:4d}  {run}: {state(run)}")
        return
    check_unchanged(study.runs)
    pool = RunPool(study, args.workers, gpus)

    def kept() -> str:
        return f"finished runs are kept in {study.folder}; the same command continues"

    with terminable(kept), interruptible(kept):
        pool.run_all(runs)
    if args.index is None:
        print(f"\n{write_report(study)}", end="")
    for run in runs:
        if run.index not in pool.failed and not is_done(run):
            print(f"skipped: another process is doing {run}", file=sys.stderr)
    for line in pool.failed.values():
        print(f"failed: {line}", file=sys.stderr)
    if pool.failed:
        sys.exit(1)
