"""How far a long piece of work is, without a terminal."""

import pytest

from cmlmcse.common import progress


def test_lines_of_a_log(monkeypatch, capsys) -> None:
    """One in 30 seconds, with the time that the rest takes at the same speed; none of short work, none at the end, none
    of a process that shows nothing."""
    now = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    for shown in (False, True):
        now[0] = 0.0
        with progress.progress(4000, "Encoding", "texts", shown) as lines:
            for _ in range(4):
                now[0] += 20
                lines.add(1000)
    assert capsys.readouterr().err == "Encoding: 2,000 of 4,000 texts, about 40 s left\n"


@pytest.mark.parametrize(("seconds", "said"), [(89, "89 s"), (90, "2 min"), (5399, "90 min"), (5400, "1.5 h")])
def test_units(seconds, said) -> None:
    assert progress.duration(seconds) == said
