"""The options of `cmlmcse encode`."""

import argparse
from pathlib import Path

from cmlmcse.common.arguments import Parser

DTYPES = ("fp32", "bf16", "fp16")


def parse(argv: list[str] | None) -> argparse.Namespace:
    """Parse the command line.

    Raises:
        InputError: an argument is invalid.
    """
    from cmlmcse.common.options import add_encoder_options, add_model, positive
    from cmlmcse.data.options import add_text_options

    parser = Parser(
        prog="cmlmcse encode",
        description="Turn the texts of a file into embeddings, one row per text, in the same order. To resume an "
        "interrupted job, run the same command again. `accelerate launch -m cmlmcse.encode ...` shares the "
        "work between processes.",
        allow_abbrev=False,
    )
    add_model(parser)
    parser.add_argument("input", metavar="IN", type=Path, help="a table with a column of texts (.csv, .tsv, .jsonl, "
                        ".parquet), or one text per line; all but .parquet may be compressed as .gz, .bz2, .xz or "
                        ".zst; every row is kept, empty ones too; or a folder of .txt and .md files, which are cut "
                        "into passages")  # fmt: skip
    parser.add_argument("--output", type=Path, required=True, metavar="OUT", help="OUT.npy, rows x H float32; or "
                        "OUT.parquet with the columns `text`, `embedding` and every other column of IN")  # fmt: skip
    add_text_options(
        parser,
        titles="those of a folder, none of a table",
        passages=": a row each, with the columns of their row, and its number as `document`",
    )
    parser.add_argument("--no_text", action="store_true", help="leave the texts out of OUT.parquet")
    parser.add_argument("--rows_per_shard", type=positive, metavar="N", help="write several files of N rows, "
                        "OUT-00000-of-00010.npy and so on (default: one file)")  # fmt: skip
    parser.add_argument("--overwrite", action="store_true", help="replace OUT, and start again from the first row")
    parser.add_argument("--prompt_name", metavar="NAME", help="the model's prompt to put before each text: query, "
                        "document, … (default: document, if the model has prompts)")  # fmt: skip
    parser.add_argument("--prompt", metavar="TEXT", help="a text to put before each text instead; '' for none")
    parser.add_argument("--normalize", action="store_true", help="scale every embedding to length 1")
    parser.add_argument("--truncate_dim", type=positive, metavar="K", help="keep the first K dimensions")
    parser.add_argument("--dtype", choices=DTYPES, default="fp32", help="precision of the model (default: fp32)")
    add_encoder_options(parser, device="the process's own GPU if there is one")
    args = parser.parse_args(argv)
    if args.output.suffix not in (".npy", ".parquet"):
        parser.error(f"--output must end with .npy or .parquet, found {args.output}")
    if not args.output.parent.is_dir():
        parser.error(
            f"--output {args.output}: expected the folder {args.output.parent} to exist, found none; create it"
        )
    if args.no_text and args.output.suffix != ".parquet":
        parser.error(f"--no_text expects --output OUT.parquet, found {args.output}; drop it")
    if args.passages and args.output.suffix != ".parquet" and not args.input.is_dir():
        parser.error(
            f"--passages expects --output OUT.parquet, which has each passage's text, found {args.output}; rename it"
        )
    if args.prompt is not None and args.prompt_name is not None:
        parser.error("--prompt expects no --prompt_name, found both; drop one of them")
    return args
