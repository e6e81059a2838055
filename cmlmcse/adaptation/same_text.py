"""The user's text while adapt works. It is read for the questions once, and by every run again, so a run that reads
another text would train on documents that are held out."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from cmlmcse.common.errors import InputError, Stopped
from cmlmcse.common.locations import resolve
from cmlmcse.data.text import fingerprint_text
from cmlmcse.data.unchanged import InputChanged, Version, check_unchanged, version_of

ADVICE = (
    "start again with another --output_dir when nothing writes to it, or put the text back and go on with "
    "--resume_from_checkpoint auto"
)


class SameText:
    """A text that must stay as it is when this object is made.

    Args:
        name: a file, a folder or `package:NAME/path`. What is not on this machine, as a dataset of the Hub, is not
            watched.
    """

    def __init__(self, name: str) -> None:
        self.path = Path(resolve(name))
        self.version: Version | None = None
        with suppress(OSError):
            self.version = version_of(self.path)
            self.content = fingerprint_text(str(self.path))

    def check(self) -> None:
        """Check that the text is as it was. What was only written again, with the same content, is.

        Raises:
            InputChanged: it is another one, or gone.
        """
        if self.version is None:
            return
        try:
            check_unchanged(self.path, self.version, ADVICE)
        except InputChanged:
            with suppress(OSError, InputError):
                now = version_of(self.path)
                if fingerprint_text(str(self.path)) == self.content:
                    self.version = now
                    return
            raise

    @contextmanager
    def around(self, run: Path) -> Iterator[None]:
        """Train a run inside the block. If the text changed meanwhile, the run's folder is removed, so that a later
        call cannot take it for a run on the first text. If training fails then, the change is the error.

        A stopped run is left as it is: its checkpoints know the text that they were started with.

        Raises:
            InputChanged: the text is another one, or gone.
        """
        self.check()
        try:
            yield
        except Stopped:
            raise
        except Exception:
            self._check_after(run)
            raise
        self._check_after(run)

    def _check_after(self, run: Path) -> None:
        """Check after a run, and remove its folder if the text changed."""
        try:
            self.check()
        except InputChanged:
            shutil.rmtree(run, ignore_errors=True)
            raise
