"""Values that are read later, with a pretended GPU: what is asked of it, and in which order."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from modeling_cmlmcse import CMLMCSEForSentenceEmbedding
from modeling_cmlmcse.read_later import ReadLater, read_behind
from support.recorder import Recorder
from support.tiny import tiny_tokenizer


def test_on_a_cpu() -> None:
    """It is the tensor."""
    assert float(ReadLater(torch.tensor(2.5)).value()) == 2.5


def test_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """The copy is asked for without blocking and marked on its own GPU; only reading waits, and for that mark alone."""
    asked: list[object] = []

    class Copy:
        def copy_(self, number, non_blocking):
            asked.append(("copy", number, non_blocking))

        def __float__(self):
            asked.append("read")
            return 2.5

    class Event:
        def record(self, stream):
            asked.append(("mark", stream))

        def synchronize(self):
            asked.append("wait for the mark")

    def empty(*shape, dtype, device, pin_memory):
        assert (device, pin_memory) == ("cpu", True)
        return Copy()

    monkeypatch.setattr(torch, "empty", empty)
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: f"stream of {device.index}")
    number = SimpleNamespace(device=SimpleNamespace(type="cuda", index=1), shape=(), dtype=torch.float32)
    later = ReadLater(number)
    assert asked == [("copy", number, True), ("mark", "stream of 1")]
    assert float(later.value()) == 2.5
    assert asked[2:] == ["wait for the mark", "read"]


def test_behind():
    """Every tensor, in order; a tensor is read when the next one was asked for, and the last one at the end."""
    asked: list[int] = []

    def compute():
        for number in range(3):
            asked.append(number)
            yield torch.tensor(number)

    found = [(int(tensor), list(asked)) for tensor in read_behind(compute())]
    assert found == [(0, [0, 1]), (1, [0, 1, 2]), (2, [0, 1, 2])]
    assert list(read_behind([])) == []


def test_encode_asks_before_it_reads(backbone_folders, monkeypatch):
    """A batch is computed before the batch ahead of it is read, and nothing else is read."""
    model = CMLMCSEForSentenceEmbedding.from_backbone(backbone_folders["bert"])
    sentences = [f"w{number} the cat" for number in range(5)]
    expected = model.encode(sentences, batch_size=2)
    asked: list[str] = []
    value, compute = ReadLater.value, model._encode_batch
    monkeypatch.setattr(ReadLater, "value", lambda self: asked.append("read") or value(self))
    monkeypatch.setattr(model, "_encode_batch", lambda *args: asked.append("compute") or compute(*args))
    assert np.array_equal(model.encode(sentences, batch_size=2), expected)
    assert asked == ["compute", "compute", "read", "compute", "read", "read"]
    with Recorder("text_encoding.py:_encode_by_length", "packing.py:pack_sequences") as recorder:  # lists of the host
        model.encode(sentences, batch_size=2)
    assert recorder.waits == []


def test_tokens_in_place_of_texts(backbone_folders, sentences) -> None:
    """The same vectors; a length or a prompt is part of the tokens, so beside them it is refused."""
    model = CMLMCSEForSentenceEmbedding.from_backbone(backbone_folders["bert"], pooling="avg").eval()
    tokenizer = tiny_tokenizer("bert")
    tokens = model.tokenize(np.array(sentences), tokenizer, max_length=6, prompt="w7 ")
    assert max(map(len, tokens)) == 6
    expected = model.encode(sentences, tokenizer, max_length=6, prompt="w7 ")
    np.testing.assert_array_equal(model.encode(tokens, tokenizer), expected)
    assert model.tokenize(sentences[0], tokenizer) == model.tokenize(sentences[:1], tokenizer)
    with pytest.raises(ValueError, match="encode expects no length or prompt with tokens, found 'w7 '; give it to tok"):
        model.encode(tokens, tokenizer, prompt="w7 ")
    with pytest.raises(ValueError, match=r"found a list as text 0 .*; give texts, or all that tokenize returned"):
        model.encode(tokens[:2], tokenizer)
    with pytest.raises(ValueError, match="found a int as text 0"):
        model.tokenize([1], tokenizer)
