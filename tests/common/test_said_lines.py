"""The one line that a command ends with."""

import re

from tqdm import tqdm

from cmlmcse.common.command import say


def test_a_line_stands_by_itself_beside_a_progress_bar(capsys):
    with tqdm(total=2, mininterval=0) as bar:
        bar.update()
        say("stopped: by Ctrl-C")
    assert "stopped: by Ctrl-C" in re.split(r"[\r\n]", capsys.readouterr().err)
