"""Fields of a recipe on the command line of a command that has options of its own: `cmlmcse adapt`, `cmlmcse study`."""

import argparse
import json
import sys

from cmlmcse.common.arguments import Parser
from cmlmcse.common.errors import InputError

from .help import FIELDS

TRUE = frozenset({"true", "yes", "t", "y", "1"})
TRUTHS = TRUE | {"false", "no", "f", "n", "0"}


def parse_with_fields(
    parser: Parser, argv: list[str] | None, expects: str = ""
) -> tuple[argparse.Namespace, dict[str, str]]:
    """The command line → the command's own arguments, and the fields: `--name value`, `--name=value`, or `--name` alone
    for a field that is true or false. A field may stand before the command's own arguments.

    Args:
        parser: the parser of the command's own arguments.
        argv: the words (default: those of this process).
        expects: what the command takes, for the message about a wrong word.

    Raises:
        InputError: a word of another form, or an argument that the parser refuses.
    """
    own, fields = fields_apart(sys.argv[1:] if argv is None else argv, set(parser._option_string_actions))
    args, others = parser.parse_known_args(own)
    given: list[tuple[str, str | None]] = []
    for word in [*others, *fields]:
        if word.startswith("--"):
            name, separator, after = word.removeprefix("--").partition("=")
            given.append((name.replace("-", "_"), after if separator else None))
        elif given and given[-1][1] is None:
            given[-1] = given[-1][0], word
        else:
            raise InputError(f"{parser.prog} expects {expects}--field value, found {word!r}; see {parser.prog} --help")
    for name, value in given:
        if value is None:
            check_switch(name, parser.prog)
    return args, {name: "true" if value is None else value for name, value in given}


def fields_apart(words: list[str], options: set[str]) -> tuple[list[str], list[str]]:
    """The words of a command and those of fields.

    A switch takes the next word only if that says true or false.

    Args:
        words: the words of the command line.
        options: the names of the command's own options.
    """
    groups = json.loads(FIELDS.read_text(encoding="utf-8"))["groups"].values()
    switches = {row["name"] for group in groups for row in group if row["kind"] == "bool"}
    left, own, fields = list(reversed(words)), [], []
    while left:
        word = left.pop()
        name, equals, value = word.partition("=")
        option = "--" + name.removeprefix("--").replace("-", "_")  # as fields, options may be written with dashes
        if not name.startswith("--") or name == "--":
            own.append(word)
            continue
        if option in options:
            own.append(option + equals + value)
            continue
        fields.append(word)
        complete = "=" in word or not left or left[-1].startswith("--")
        switch = option.removeprefix("--") in switches
        if not complete and (not switch or left[-1].lower() in TRUTHS):
            fields.append(left.pop())
    return own, fields


def check_switch(name: str, command: str) -> None:
    """Check that a field of the recipe may stand without a value, which then is true.

    Raises:
        InputError: it is not one that is true or false, or there is no such field.
    """
    from .parse import recipe_parser

    parser = recipe_parser()
    nargs = {action.dest: action.nargs for action in parser._actions}
    if name not in nargs:
        parser.suggest(name, "the command line")
    if nargs[name] != "?":
        raise InputError(f"{command} expects a value after --{name}, found none; see cmlmcse train --help")
