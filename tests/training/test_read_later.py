"""A number that is read later, with a pretended GPU: what is asked of it, and in which order."""

from types import SimpleNamespace

import pytest
import torch

from cmlmcse.common.read_later import ReadLater


def test_on_a_cpu() -> None:
    """It is the tensor's number."""
    assert ReadLater(torch.tensor(2.5)).value() == 2.5


def test_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """The copy is asked for without blocking and marked; only reading waits, and for that mark alone."""
    asked: list[object] = []

    class Copy:
        def copy_(self, number, non_blocking):
            asked.append(("copy", number, non_blocking))

        def __float__(self):
            asked.append("read")
            return 2.5

    class Event:
        def record(self):
            asked.append("mark")

        def synchronize(self):
            asked.append("wait for the mark")

    def empty(*shape, dtype, pin_memory):
        assert pin_memory
        return Copy()

    monkeypatch.setattr(torch, "empty", empty)
    monkeypatch.setattr(torch.cuda, "Event", Event)
    number = SimpleNamespace(device=SimpleNamespace(type="cuda"), shape=(), dtype=torch.float32)
    later = ReadLater(number)
    assert asked == [("copy", number, True), "mark"]
    assert later.value() == 2.5
    assert asked[2:] == ["wait for the mark", "read"]
