"""Models as encoders: texts → vectors of length 1, on one thread, in batches of whoever waits."""

import importlib.util
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from queue import SimpleQueue
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from corpus import Corpus, Refused, on_a_space

QUERY, DOCUMENT, PLAIN = "encode_query", "encode_document", "encode"  # which of the model's prompts a text gets
BATCH = 64  # texts in one pass through the model
CORPORA = 8  # number of files whose embeddings are kept; at most 6 MB each on a Space at BERT-base size
SHOWN = 5_000  # texts from which a progress bar is shown
SAMPLE = 8  # texts that are encoded to see whether a file's embeddings are this model's
SAME = 0.99  # cosine of an embedding with its own one, in half precision too
Encode = Callable[[Sequence[str], str], NDArray[np.float32]]
"""N texts and one of the three ways to encode → (N, H) of length 1."""


class Encoder:
    """Texts → vectors of length 1. Requests of several threads are joined into one batch. A long list is split into
    batches, so a query never waits for a whole file."""

    def __init__(self, model: Encode, name: str = "") -> None:
        self.model, self.name = model, name
        self.waiting: SimpleQueue[tuple[str, Sequence[str], Future[NDArray[np.float32]]]] = SimpleQueue()
        self.corpora: OrderedDict[bytes, Future[NDArray[np.float32]]] = OrderedDict()
        self.lock = threading.Lock()
        threading.Thread(target=self.run_batches, daemon=True).start()

    def encode(self, texts: Sequence[str], way: str = PLAIN) -> NDArray[np.float32]:
        """N texts → (N, H), in the same order. Texts of similar length share a batch."""
        order = sorted(range(len(texts)), key=lambda index: len(texts[index]), reverse=True)
        parts = [order[start : start + BATCH] for start in range(0, len(order), BATCH)]
        vectors = None
        for part in progress(parts, self.name, len(texts)):
            future: Future[NDArray[np.float32]] = Future()
            self.waiting.put((way, [texts[index] for index in part], future))
            found = future.result()
            vectors = np.empty((len(texts), found.shape[1]), np.float32) if vectors is None else vectors
            vectors[part] = found
        assert vectors is not None  # nobody asks for the vectors of no text
        return vectors

    def run_batches(self) -> NoReturn:
        """Loop of the only thread that runs the model: take waiting requests, up to a batch, and answer them."""
        while True:
            requests = [self.waiting.get()]
            while not self.waiting.empty() and sum(len(texts) for _, texts, _ in requests) < BATCH:
                requests.append(self.waiting.get())
            for way, group in groupby(sorted(requests, key=itemgetter(0)), itemgetter(0)):
                self.answer(way, list(group))

    def answer(self, way: str, requests: list[tuple[str, Sequence[str], Future[NDArray[np.float32]]]]) -> None:
        """Encode the texts of all requests in one pass, and give each its own rows. If that fails, each is encoded
        alone, so that only the one at fault gets the error."""
        try:
            vectors = self.model([text for _, texts, _ in requests for text in texts], way)
            ends = np.cumsum([len(texts) for _, texts, _ in requests])
            for (_, _, future), part in zip(requests, np.split(vectors, ends[:-1]), strict=True):
                future.set_result(part)
        except Exception as error:
            if len(requests) == 1:
                requests[0][2].set_exception(error)
                return
            for request in requests:
                self.answer(way, [request])

    def encode_corpus(self, corpus: Corpus) -> NDArray[np.float32]:
        """(N, K): the file's own embeddings if they are this model's, else new ones. The same texts are encoded once,
        even if two threads ask at the same time."""
        with self.lock:
            future = self.corpora.pop(corpus.key, None)
            is_new = future is None
            self.corpora[corpus.key] = future = future or Future()  # now the most recently used
            if len(self.corpora) > CORPORA:
                self.corpora.popitem(last=False)
        if is_new:
            try:
                kept = corpus.vectors if self.made(corpus) else None
                future.set_result(self.encode(corpus.lines, DOCUMENT) if kept is None else unit(kept))
            except Exception as error:
                with self.lock:
                    self.corpora.pop(corpus.key, None)
                future.set_exception(error)
        return future.result()

    def made(self, corpus: Corpus) -> bool:
        """Whether a file's embeddings are this model's, whole or cut to their first K dimensions: those of its first
        texts are computed again."""
        if corpus.vectors is None:
            return False
        texts = list(corpus.lines[:SAMPLE])
        stored = unit(corpus.vectors[:SAMPLE])  # (S, K)
        for way in (DOCUMENT, PLAIN):
            own = self.encode(texts, way)  # (S, H)
            if own.shape[1] < stored.shape[1]:
                return False
            if float((unit(own[:, : stored.shape[1]]) * stored).sum(axis=1).min()) >= SAME:
                return True
        return False


def progress(parts: list[list[int]], name: str, count: int) -> Any:
    """The parts, with a bar on stderr if there are many texts."""
    if count < SHOWN:
        return parts
    from tqdm import tqdm

    return tqdm(parts, desc=f"{name}, batches")


def unit(vectors: NDArray[np.float32]) -> NDArray[np.float32]:
    """Vectors (N, K) scaled to length 1; a zero vector stays zero."""
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    return (vectors / np.where(lengths == 0, 1, lengths)).astype(np.float32, copy=False)


def check_embeddings(encoders: Mapping[str, Encoder], corpus: Corpus) -> None:
    """Refuse a file with embeddings that none of the models makes."""
    if corpus.vectors is not None and not any(encoder.made(corpus) for encoder in encoders.values()):
        names = " or ".join(encoders)
        raise Refused(f"Expected embeddings made by {names} in {corpus.name}, found others; encode the texts with it.")


def nearest(encoder: Encoder, query: str, corpus: Corpus, hits: int) -> list[dict[str, Any]]:
    """The `hits` texts with the largest cosine to the query, best first."""
    vectors = encoder.encode_corpus(corpus)  # (N, K)
    asked = unit(encoder.encode([query], QUERY)[:, : vectors.shape[1]])[0]  # (K,)
    blank = np.array([not line.strip() for line in corpus.lines])  # rows of an encoded file; they answer nothing
    cosines = np.where(blank, -np.inf, vectors @ asked)  # (N,)
    best = np.argsort(-cosines, kind="stable")[: min(hits, int((~blank).sum()))]
    return [{"cosine": round(float(cosines[index]), 4), "text": corpus.lines[index]} for index in best]


def similarity(encoder: Encoder, left: Sequence[str], right: Sequence[str]) -> NDArray[np.float32]:
    """The cosines (N, M) of N left and M right sentences."""
    vectors = encoder.encode([*left, *right])
    return vectors[: len(left)] @ vectors[len(left) :].T


def load_encoder(model: str, revision: str | None = None, pooling: str | None = None) -> Encode:
    """Load whatever `cmlmcse evaluate` takes, where that is installed: a run's folder, a checkpoint, an export, a Hub
    name, `package:NAME/path`, a plain backbone with a pooling. Else, and for other models, sentence-transformers.

    Raises:
        Refused: it is not a sentence encoder, or does not load.
    """
    refused = None
    if revision is None and not on_a_space() and importlib.util.find_spec("cmlmcse") is not None:
        from cmlmcse.common.errors import InputError

        try:
            return load_ours(model, pooling)
        except InputError as error:
            refused = Refused(f"MODEL {model}: {error}")
    if pooling is not None:
        raise refused or Refused("--pooling expects cmlmcse installed and no --revision, found neither; drop it.")
    try:
        return load_sentence_transformer(model, revision)
    except Refused as error:
        raise (refused or error) from None


def load_ours(model: str, pooling: str | None) -> Encode:
    """A model that `cmlmcse evaluate` takes."""
    from cmlmcse.models.encoders import Encoder as Loaded
    from cmlmcse.models.encoders import load_encoder as load
    from cmlmcse.models.folders import records_pooling

    given = None if records_pooling(model) else pooling
    loaded = load(model, given, batch_size=BATCH, show_progress_bar=False)

    def encode(texts: Sequence[str], way: str) -> NDArray[np.float32]:
        if not isinstance(loaded, Loaded):  # word vectors
            return unit(loaded(list(texts)))
        method = getattr(loaded.model, way)
        found: NDArray[np.float32] = method(list(texts), loaded.tokenizer, **{**loaded.arguments, "normalize": True})
        return found

    return encode


def load_sentence_transformer(model: str, revision: str | None) -> Encode:
    """A sentence encoder from a folder or a Hub repository, without code of its own.

    Raises:
        Refused: it is not one, or does not load.
    """
    if not os.path.isdir(model) and (os.path.exists(model) or model.count("/") != 1 or model[0] in "./~"):
        raise Refused(f"MODEL expects a folder or OWNER/NAME on the Hub, found {model}; check the path")
    if os.path.isdir(model) and not os.path.isfile(os.path.join(model, "modules.json")):
        raise Refused(f"MODEL expects a sentence encoder, found no modules.json in {model}; give an exported folder")
    from sentence_transformers import SentenceTransformer
    from transformers.utils import cached_file

    try:
        # Without this check, any backbone would pass as a sentence encoder.
        cached_file(model, "modules.json", revision=revision)
        loaded = SentenceTransformer(model, revision=revision)
        loaded[0]  # older releases also load an empty list of modules
    except Exception as error:  # many libraries can raise here
        reason = " ".join(str(error).split())[:300]
        raise Refused(f"MODEL expects a sentence encoder, found {model}, which does not load: {reason}") from error

    def encode(texts: Sequence[str], way: str) -> NDArray[np.float32]:
        options: dict[str, Any] = {"batch_size": BATCH, "normalize_embeddings": True, "show_progress_bar": False}
        found: NDArray[np.float32] = getattr(loaded, way)(list(texts), **options)
        return found

    return encode


def labels(models: Sequence[str]) -> list[str]:
    """A different short name for each model: OWNER/NAME, or the last two parts of a folder's path."""
    names = ["/".join(Path(model).resolve().parts[-2:]) if os.path.isdir(model) else model for model in models]
    return [name if names.count(name) == 1 else f"{name} ({place})" for place, name in enumerate(names, 1)]
