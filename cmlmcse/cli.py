"""The command `cmlmcse VERB …`: the table of verbs. Only the module of the verb in use is imported."""

import difflib
import sys
from importlib import import_module
from typing import NamedTuple

from cmlmcse.common.command import command
from cmlmcse.common.errors import InputError


class Verb(NamedTuple):
    """A verb of the command line: one line of help, and the module whose `main(argv)` runs it."""

    help: str
    module: str


VERBS = {
    "recipes": Verb("list the recipes and what each is for", "cmlmcse.recipes"),
    "train": Verb("train a sentence encoder, or pre-train a backbone, with a recipe", "cmlmcse.training.command"),
    "adapt": Verb("adapt a sentence encoder to your own unlabelled text", "cmlmcse.adaptation.command"),
    "evaluate": Verb("score one or several models: STS, transfer, retrieval, …", "cmlmcse.evaluation.command"),
    "encode": Verb("turn the texts of a file into embeddings (.npy or .parquet)", "cmlmcse.encode.command"),
    "search": Verb("find the texts of a file that are nearest to a query", "cmlmcse.search.command"),
    "push": Verb("export a checkpoint, verify it, and publish it on the Hub", "cmlmcse.hub.push"),
    "study": Verb("run recipes with several settings and seeds, and compare", "cmlmcse.study.command"),
}


def usage() -> str:
    """The text of `cmlmcse --help`."""
    width = max(map(len, VERBS))
    verbs = "\n".join(f"  {name:{width}}  {verb.help}" for name, verb in VERBS.items())
    return (
        "usage: cmlmcse VERB ...\n\nTrain, evaluate, use and publish sentence encoders.\n\n"
        f"{verbs}\n\ncmlmcse VERB --help shows the arguments of a verb; cmlmcse --version shows the version."
    )


@command
def main(argv: list[str] | None = None) -> None:
    """Run the verb that the first argument names.

    Raises:
        InputError: no verb is given, or an unknown one.
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
