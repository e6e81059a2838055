"""A target on the Hub, and the files on both sides."""

from pathlib import Path

from cmlmcse.hub.publish import Target
from support.local_hub import LocalHub

TARGET = Target("owner/name")


def contents(folder: Path) -> dict[str, bytes]:
    """The files of a folder."""
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def on_hub(hub: LocalHub, revision: str = "main") -> dict[str, bytes]:
    """The files of the published repository, but the Hub's own."""
    files = hub.repos["owner/name"].files(revision)
    return {name: file.content for name, file in files.items() if name != ".gitattributes"}
