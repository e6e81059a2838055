"""The start of `cmlmcse adapt`: the model and the text are read, and the model is scored."""

import argparse
import math
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from cmlmcse.common.errors import InputError
from cmlmcse.common.locations import resolve
from cmlmcse.data.collection import MIN_DOCUMENTS, few_files, load_collection
from cmlmcse.data.folder import unread_files
from cmlmcse.data.row_blocks import TEXT
from cmlmcse.data.titles import unread_titles
from cmlmcse.evaluation.combined import CombinedCriterion
from cmlmcse.evaluation.criterion import near_chance
from cmlmcse.evaluation.encoding import EncodeOnce
from cmlmcse.evaluation.questions import QUERY_WORDS
from cmlmcse.models.encoders import Encoder
from cmlmcse.models.folders import recorded_pooling
from modeling_cmlmcse.pooling import POOLINGS

from .recipe_fields import PLAIN_POOLING
from .text import Text, overlap_note, read_text
from .weights import load_start

# What averages, confirmation, export and report take, in times of scoring the start by the questions that choose, and
# by those that confirm. A finished encoder scores two averages by the first ones, one result by the second ones, which
# have few new texts, and on the second split, where nearly all texts are new, the start and another result. With 4 of
# both, SciFact ended after 13 of 15 minutes (benchmarks/records/adapting-words.json).
SCORES_AT_THE_END, ENCODER_SCORES_AT_THE_END = (4, 4), (4, 3)
SENTENCES = (
    f"few documents have {QUERY_WORDS} words or more, so the text is taken for single sentences. They ask one "
    "question, an easy one; pairs of your own with scores tell more (cmlmcse evaluate --tasks pairs)"
)
SAMPLE = 64  # texts that are encoded to see how long scoring will take; a batch on a CPU

Say = Callable[[str], None]


class Start(NamedTuple):
    """The model that is adapted, what it scores, and the text.

    Attributes:
        load: loads the model anew.
        encoder: the model.
        once: the model, remembering the texts that it has encoded.
        text: the user's text.
        choosing: the questions that choose.
        values: (N,) the model's values for these questions.
        seconds: how long scoring it took, by these questions, and by those that confirm.
    """

    load: Callable[[], Encoder]
    encoder: Encoder
    once: EncodeOnce
    text: Text
    choosing: CombinedCriterion
    values: NDArray[np.float64]
    seconds: tuple[float, float]

    def seconds_at_the_end(self) -> float:
        """About how long everything takes after the arms."""
        scores = ENCODER_SCORES_AT_THE_END if self.text.finished else SCORES_AT_THE_END
        return sum(count * each for count, each in zip(scores, self.seconds, strict=True))


def begin(args: argparse.Namespace, bf16: bool, say: Say) -> Start:
    """Load the model, read the text, and score the model on it.

    Args:
        args: the command's.
        bf16: whether to compute in bf16.
        say: prints a line.

    Raises:
        InputError: the text or the model cannot be used.
    """
    recorded, _ = recorded_pooling(args.model)
    # A wrong column is said before the model is loaded. `read_text` gets the documents from the cache.
    load_collection(args.text, args.text_column, args.title_column)
    pooling = args.pooling or (PLAIN_POOLING if recorded is None else None)

    def load() -> Encoder:
        return load_start(args.model, pooling, args.device, bf16=bf16)

    encoder = load()
    if args.pooling and recorded not in (None, args.pooling):
        say(f"{args.model} was trained with the pooling {recorded}; --pooling {args.pooling} replaces it")
    if POOLINGS[encoder.model.config.pooling].keeps_head:
        raise InputError(
            f"cmlmcse adapt expects a pooling without a head, found {encoder.model.config.pooling} in {args.model}; "
            "choose a model that pools otherwise, or use cmlmcse train"
        )
    if unread := unread_files(args.text):
        say(unread)
    if few := few_files(args.text):
        say(f"{args.text}: fewer than {MIN_DOCUMENTS} text files, {few}, so each passage counts as a document")
    text = read_text(args, encoder, finished=recorded is not None)
    in_bf16 = "training and scoring compute in bf16; --bf16 false keeps fp32" if bf16 else ""
    sentences = SENTENCES if text.sentences else ""
    lines = (text.summary(), titles_left(args, text), sentences, text.note, overlap_note(text.overlap), in_bf16)
    for line in filter(None, (*lines, too_few_minutes(args, encoder, text))):
        say(line)
    return score_start(load, encoder, text, args.seed, say)


def too_few_minutes(args: argparse.Namespace, encoder: Encoder, text: Text) -> str:
    """A sentence that says so, if scoring alone takes longer than the minutes; empty if it does not."""
    if args.max_steps is not None or (seconds := scoring_seconds(encoder, text, args.seed)) <= 60 * args.minutes:
        return ""
    return (
        f"--minutes {args.minutes:g} is too short for this text on this machine: scoring alone takes about "
        f"{math.ceil(seconds / 6) / 10:g} min or more; give more, or lower --max_documents"
    )


def scoring_seconds(encoder: Encoder, text: Text, seed: int) -> float:
    """At least about so long does scoring take, of the start and at the end, by the time that a few texts take. The
    documents that confirm are not counted: most of their texts are the same, except on a second split."""
    criteria = text.judged_by.halves(seed)[0].criteria
    texts = list(dict.fromkeys(each for one in criteria for each in (*one.queries, *one.candidates)))
    sample = texts[:: math.ceil(len(texts) / SAMPLE)]
    encoder(sample[:1])  # the first call takes longer
    began = time.perf_counter()
    encoder(sample)
    each = (time.perf_counter() - began) / len(sample)
    scores, _ = ENCODER_SCORES_AT_THE_END if text.finished else SCORES_AT_THE_END
    return each * len(texts) * (1 + scores)


def titles_left(args: argparse.Namespace, text: Text) -> str:
    """A sentence that names the columns of a table that may have titles, if none is read; empty if there is none."""
    path = Path(resolve(args.text))
    if text.titles or args.title_column is not None or not path.is_file():
        return ""
    said = unread_titles(path, args.text_column or TEXT)
    return f"{said}; titles help much" if said else ""


def score_start(load: Callable[[], Encoder], encoder: Encoder, text: Text, seed: int, say: Say) -> Start:
    """Score the model by the questions of the text, and print a line that says its scores."""
    once, choosing = EncodeOnce(encoder), text.judged_by.halves(seed)[0]
    began = time.perf_counter()
    values = choosing.values(once)
    chosen = time.perf_counter()
    confirming = text.confirming("", seed) or choosing
    before, bm25 = confirming.score(once), confirming.bm25().mean()
    seconds = chosen - began, time.perf_counter() - chosen
    scores = (
        f"score without labels ({confirming.name}): the start has {before:.2f}, BM25 {bm25:.2f}; on the documents that "
        f"choose between settings, whose scores follow, the start has {choosing.summary(values):.2f}"
    )
    if weak := near_chance(before, confirming.passages, text.finished):
        scores += f". {weak}"
    say(scores)
    return Start(load, encoder, once, text, choosing, values, seconds)


def timed_printer(started: float) -> Say:
    """A function that prints a line on stderr, after the minutes since `started`."""

    def say(line: str) -> None:
        print(f"[{(time.perf_counter() - started) / 60:4.1f} min] {line}", file=sys.stderr, flush=True)

    return say
