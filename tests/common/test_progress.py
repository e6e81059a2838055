"""How far a long piece of work is, without a terminal."""

import itertools

import datasets
import pytest
from huggingface_hub import utils as hub
from transformers.utils import logging

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


@pytest.mark.parametrize("shown", itertools.product((True, False), repeat=3))
def test_without_bars(shown) -> None:
    """No library shows any inside. Afterwards each shows them as before, though transformers switches the Hub's too."""

    def bars() -> tuple[bool, ...]:
        disabled = datasets.are_progress_bars_disabled(), hub.are_progress_bars_disabled()
        return (logging.is_progress_bar_enabled(), *(not each for each in disabled))

    with progress.without_bars():  # gives the other tests back what they had
        (logging.enable_progress_bar if shown[0] else logging.disable_progress_bar)()
        (datasets.enable_progress_bars if shown[1] else datasets.disable_progress_bars)()
        (hub.enable_progress_bars if shown[2] else hub.disable_progress_bars)()
        with progress.without_bars():
            assert bars() == (False, False, False)
        assert bars() == shown
