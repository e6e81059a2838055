"""The command `cmlmcse VERB …`: a table of verbs; the module of a verb is imported when it is asked for."""

import difflib
import sys
from importlib import import_module
from typing import NamedTuple

from cmlmcse.common.errors import InputError, command


class Verb(NamedTuple):
    """A verb of the command line: one line of help, and the module whose `main(argv)` does it."""

    help: str
    module: str


VERBS = {
    "recipes": Verb("list the recipes, with one line of what each is for", "cmlmcse.recipes"),
    "train": Verb("train a sentence encoder, or pre-train a backbone, by a recipe", "cmlmcse.training.command"),
    "evaluate": Verb("score one model or several: STS, transfer, retrieval, …", "cmlmcse.evaluation.command"),
    "encode": Verb("turn the texts of a file into embeddings (.npy or .parquet)", "cmlmcse.encode"),
    "search": Verb("find the texts of a file that are nearest to a query", "cmlmcse.search"),
    "push": Verb("export a checkpoint, verify it, and publish it on the Hub", "cmlmcse.hub.push"),
    "study": Verb("run recipes with several settings and seeds, and compare", "cmlmcse.study.command"),
}


def usage() -> str:
    """The text of `cmlmcse --help`."""
    width = max(map(len, VERBS))
    verbs = "\n".join(f"  {name:{width}}  {verb.help}" for name, verb in VERBS.items())
    return (
        "usage: cmlmcse VERB ...\n\nTrain, evaluate, use and publish sentence encoders.\n\n"
        f"{verbs}\n\ncmlmcse VERB --help tells the arguments of a verb; cmlmcse --version the version."
    )


@command
def main(argv: list[str] | None = None) -> None:
    """Hand the arguments to the verb.

    Raises:
        InputError: no verb, or an unknown one.
    """
    arguments = sys.argv[1:] if argv is None else argv
    if not arguments:
        raise InputError(f"expected VERB, one of {', '.join(VERBS)}, found none; see cmlmcse --help")
    name, *rest = arguments
    if name in ("-h", "--help"):
        print(usage())
    elif name == "--version":
        from cmlmcse import __version__

        print(__version__)
    elif name in VERBS:
        import_module(VERBS[name].module).main(rest)
    else:
        near = difflib.get_close_matches(name, VERBS, n=1)
        hint = f"did you mean {near[0]}?" if near else "see cmlmcse --help"
        raise InputError(f"VERB must be one of {', '.join(VERBS)}, found {name!r}; {hint}")
