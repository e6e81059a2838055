"""The command `cmlmcse recipes`: list every recipe and what it is for."""

from cmlmcse.common.arguments import Parser
from cmlmcse.common.command import command
from cmlmcse.common.recipes import recipe_folder, recipe_names, summary


@command
def main(argv: list[str] | None = None) -> None:
    """Print one line per recipe, then the folders of the files."""
    parser = Parser(prog="cmlmcse recipes", description="List the recipes that `cmlmcse train` knows by name.")
    parser.parse_args(argv)
    names, folder = recipe_names(), recipe_folder()
    width = max(map(len, names))
    for name in names:
        print(f"{name:{width}}  {summary(folder / f'{name}.yaml')}")
    print(f"\nTheir files: {folder}")
    print(f"Configurations for accelerate launch: {folder / 'accelerate'}")
