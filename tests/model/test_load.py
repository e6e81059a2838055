"""Encoding under load: from many threads, from forked workers, and for a long time."""

import copy
import multiprocessing
import os
import pickle
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from cmlmcse.common.cpu import CACHED_KERNELS
from modeling_cmlmcse import CMLMCSEForSentenceEmbedding, text_encoding
from support import warm
from support.paths import ROOT
from support.text import random_sentences
from support.tiny import tiny_backbone, tiny_tokenizer

linux = pytest.mark.skipif(not Path("/proc/self/status").is_file(), reason="reads what Linux says of a process")


@pytest.mark.parametrize("training", (False, True))
def test_eight_threads(training, backbone_folders):
    """One model, eight threads with sentences of their own, again and again: each is given its own embeddings, without
    dropout in training mode too."""
    model = CMLMCSEForSentenceEmbedding.from_backbone(backbone_folders["bert"], cmlm_weight=0.0).train(training)
    tokenizer = tiny_tokenizer("bert")
    texts = [random_sentences(50, seed) for seed in range(8)]
    alone = [model.encode(part, tokenizer) for part in texts]
    with ThreadPoolExecutor(8) as pool:
        for _ in range(5):
            together = list(pool.map(lambda part: model.encode(part, tokenizer), texts))
            for found, expected in zip(together, alone, strict=True):
                np.testing.assert_allclose(found, expected, atol=1e-5)
    assert all(module.training == training for module in model.modules())


def test_each_thread_has_its_own_length(backbone_folders, monkeypatch):
    """A thread that cuts at another length does not cut the others' texts, even if it comes while these are at it. The
    model can still be pickled and copied."""
    model = CMLMCSEForSentenceEmbedding.from_backbone(backbone_folders["bert"], cmlm_weight=0.0).eval()
    tokenizer, texts, lengths = tiny_tokenizer("bert"), random_sentences(5, 0), (3, None, 4, 5)
    alone = [model.encode(texts, tokenizer, max_length=length) for length in lengths]
    set_length = tokenizer.set_truncation_and_padding
    monkeypatch.setattr(
        tokenizer, "set_truncation_and_padding", lambda **given: (set_length(**given), time.sleep(0.01))
    )
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(lambda length: model.encode(texts, tokenizer, max_length=length), lengths))
    for found, expected in zip(together, alone, strict=True):
        np.testing.assert_allclose(found, expected, atol=1e-5)
    for other in (pickle.loads(pickle.dumps(model)), copy.deepcopy(model)):
        np.testing.assert_allclose(other.encode(texts, tokenizer), alone[1], atol=1e-5)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_fork_while_a_thread_tokenises(backbone_folders):
    """The process that is forked has no such thread, and encodes."""
    model = CMLMCSEForSentenceEmbedding.from_backbone(backbone_folders["bert"], pooling="avg", cmlm_weight=0.0).eval()
    tokenizer = tiny_tokenizer("bert")
    with text_encoding.TOKENIZING:
        child = multiprocessing.get_context("fork").Process(target=model.tokenize, args=(["the cat"], tokenizer, None))
        child.start()
        child.join(60)
    ended = child.exitcode
    child.kill()
    assert ended == 0


FORKED = """
import multiprocessing, sys
import numpy as np
import torch
from support.text import random_sentences
from support.tiny import tiny_tokenizer
from modeling_cmlmcse import CMLMCSEForSentenceEmbedding, text_encoding

model = CMLMCSEForSentenceEmbedding.from_backbone(sys.argv[1], cmlm_weight=0.0).eval()
tokenizer = tiny_tokenizer("bert")
texts = [random_sentences(100, seed) for seed in range(4)]

def encode(part):
    return model.encode(part, tokenizer)

def together():
    with multiprocessing.get_context("fork").Pool(4) as pool:
        return pool.map(encode, texts)

loaded = together()  # each on two threads
torch.set_num_threads(1)
alone = [encode(part) for part in texts]
used = together()
for found in (loaded, used):
    for one, expected in zip(found, alone, strict=True):
        np.testing.assert_allclose(one, expected, atol=1e-5)
print("right")
"""


@pytest.mark.slow
@linux
def test_forked_workers(backbone_folders):
    """As servers do that load once and fork: four workers, each with the right answers, on two threads from a model
    that is only loaded, and on one from a model that has been used. A model that has been used on several threads
    before the fork is PyTorch's own limit: OpenMP's threads do not survive it, and the worker waits."""
    done = run(FORKED, backbone_folders["bert"], OMP_NUM_THREADS="2")
    assert done.stdout == "right\n", done.stderr[-2000:]


LONG = """
import sys
from support.text import random_sentences
from support.tiny import tiny_tokenizer
from modeling_cmlmcse import CMLMCSEForSentenceEmbedding, text_encoding

def resident():
    line = next(line for line in open("/proc/self/status") if line.startswith("RssAnon"))
    return int(line.split()[1]) / 1024

model = CMLMCSEForSentenceEmbedding.from_backbone(sys.argv[1], cmlm_weight=0.0).eval()
tokenizer = tiny_tokenizer("bert")
found = []
for step in range(50):
    model.encode(random_sentences(1000, step), tokenizer)
    found.append(resident())
print(max(found[20:]) - found[19])
"""


@pytest.mark.slow
@linux
def test_memory_stays_flat(tmp_path):
    """50,000 sentences, 1,000 at a time, with the commands' limit on oneDNN's cache of kernels, which else fills for
    longer: after the first 20,000 it no longer grows."""
    tiny_backbone("bert", num_hidden_layers=2).save_pretrained(tmp_path)
    done = run(LONG, str(tmp_path), OMP_NUM_THREADS="1", ONEDNN_PRIMITIVE_CACHE_CAPACITY=CACHED_KERNELS)
    assert float(done.stdout) < 10, done.stdout


def run(code: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """A script in a process of its own, which is killed if it hangs."""
    path = f"{ROOT}{os.pathsep}{ROOT / 'tests'}"
    return subprocess.run(
        [warm.python(), "-c", code, *arguments],
        env={**os.environ, "PYTHONPATH": path, **environment}, capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
