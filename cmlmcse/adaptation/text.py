"""The user's text as adapt reads it: documents, how long they are, and the label-free criterion on some of them."""

import argparse
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from datasets import Dataset
from transformers import PreTrainedTokenizerBase

from cmlmcse.data.collection import (
    SAME_WORDS,
    draw_documents,
    hold_out,
    letters,
    load_collection,
    next_seed,
    share_overlapping,
)
from cmlmcse.data.lengths import measure_lengths, sample_rows
from cmlmcse.data.tables import with_titles
from cmlmcse.data.templates import longest_template, without_template
from cmlmcse.data.views import WINDOW
from cmlmcse.data.words import is_letter
from cmlmcse.evaluation.choose_criterion import MORE_QUESTIONS, build_criterion, choose_criterion, enough_ask
from cmlmcse.evaluation.combined import CombinedCriterion, asked_together
from cmlmcse.evaluation.criterion import Criterion
from cmlmcse.evaluation.encoding import Encode
from cmlmcse.models.encoders import Encoder

LONGEST_ON_CPU = 64  # tokens of a training text, so that a laptop takes enough steps in a quarter of an hour
LONGEST = WINDOW  # and elsewhere, as in Contriever; of 8,192, which some models take, a batch had a million tokens
SHORTEST = 16  # tokens; a special token at each end and some words
UNKNOWN = 0.05  # share of unknown tokens above which a text is foreign; five English sets have 0.0011 at most
LETTERS = 3.0  # letters of a token below which it is; those five have 4.1 to 5.1, a German text has 2.6
PIECES = 1.5  # of a word, up to which it is whole: some languages write short words
LETTERS_READ = 2000  # of each text; 2,000 texts of them are 4 MB
FIRST_SYLLABLE = 0x2E80  # from here on Unicode has the scripts of East Asia
PRACTISE = {  # criteria that a finished encoder is judged by, and the views that practise their questions
    "halves": {"crops", "neighbours", "sentence"},
    "words": {"words"},
}
SENTENCES_ASK = "shortened"  # what single sentences ask; training with dropout does not practise it
TITLED = 0.9  # share of the documents with a title, below which `title_body` trains on crops of many others
# Share of the held-out documents that repeat other documents, from which adapt warns. What it does to the scores was
# not measured.
OVERLAPS = 0.1
EXAMPLES = 10  # questions whose neighbours the report shows


class Text(NamedTuple):
    """What adapt knows of the text.

    Attributes:
        found: how many documents there are.
        documents: how many of them are read.
        titles: how many of these have a title.
        held_out: how many training never sees.
        length: tokens that training texts are cut to, from the 95th percentile of the documents.
        percentile: that percentile, in tokens.
        beyond: share of the text's tokens that come after the first `length` of their document.
        cut: share of the text's tokens that encoding cuts off, because the model takes no more.
        limit: tokens that the model takes.
        titles_ask: whether enough documents have a title that is a good query.
        criterion: what a plain backbone, or a finished encoder of single sentences, is judged by.
        finished: whether the model is a finished encoder, and not a plain backbone.
        together: the criteria that a finished encoder is judged by, if enough documents can ask them.
        parts: the documents that training sees, and those that are held out.
        other_split: the same with the next seed.
        note: a sentence on text that the model's tokenizer was not made for; empty if it seems to be.
        overlap: share of the held-out documents that repeat a run of words of a document that training sees.
    """

    found: int
    documents: int
    titles: int
    held_out: int
    length: int
    percentile: int
    beyond: float
    cut: float
    limit: int
    titles_ask: bool
    criterion: Criterion
    finished: bool
    together: CombinedCriterion | None
    parts: tuple[Dataset, Dataset]
    other_split: Callable[[], tuple[Dataset, Dataset]]
    note: str
    overlap: float

    def summary(self) -> str:
        """One line for the screen."""
        drawn = f" of {self.found:,}" if self.found > self.documents else ""
        return (
            f"{self.documents:,}{drawn} documents, {self.titles:,} with a title; 95 % have at most {self.percentile} "
            f"tokens, and training reads {self.length} at a time ({self.beyond:.1%} of the text comes later); encoding "
            f"cuts off {self.cut:.1%} of the text, beyond {self.limit} tokens; {self.held_out:,} documents are held out"
        )

    def record(self) -> dict[str, Any]:
        """The facts for results.json."""
        return {
            "documents": self.documents,
            "documents_found": self.found,
            "titles": self.titles,
            "held_out": self.held_out,
            "training_tokens": self.length,
            "percentile_95": self.percentile,
            "model_tokens": self.limit,
            "share_beyond_training": round(self.beyond, 6),
            "share_cut_off": round(self.cut, 6),
            "note": self.note,
            "share_overlapping": round(self.overlap, 4),
        }

    @property
    def sentences(self) -> bool:
        """Whether the text of a finished encoder is single sentences, which can ask one easy question alone."""
        return self.finished and self.together is None

    @property
    def asks_little(self) -> bool:
        """Whether the text has no documents with two pieces."""
        return self.criterion.name == SENTENCES_ASK

    @property
    def judged_by(self) -> CombinedCriterion:
        """What chooses and confirms, with all its documents."""
        return self.together or CombinedCriterion((self.criterion,))

    def confirming(self, views: str, seed: int) -> CombinedCriterion | None:
        """The questions that confirm a choice: of the documents that chose nothing, and more for each of them.

        A finished encoder is asked what its arms did not practise; None if the text can ask nothing else.

        Args:
            views: those of the arms, with a plus between them.
            seed: of the questions.
        """
        asked = self._asking(*self.parts, views, seed)
        return None if asked is None else asked.halves(seed)[1]

    def confirming_again(self, views: str, seed: int) -> CombinedCriterion | None:
        """The same of the documents that training with the next seed does not see. Those of the first split are left
        out, so that what chose confirms nothing and no document confirms twice.

        None if too few are left, and for a plain backbone: its change is so large that a split is enough to see it, and
        the time is better spent on a longer run (docs/results/adapting-history.md)."""
        if not self.finished:
            return None
        others, held_out = self.other_split()
        known = {letters(text) for text in self.parts[1]["text"]}
        rows = []
        for row, text in enumerate(map(letters, held_out["text"])):
            if text not in known:
                known.add(text)
                rows.append(row)
        return self._asking(others, held_out.select(rows), views, seed + 1) if rows else None

    def _asking(self, others: Dataset, held_out: Dataset, views: str, seed: int) -> CombinedCriterion | None:
        """What held-out documents can ask to confirm a choice."""
        if self.together is None:
            criterion = build_criterion(self.criterion.name, held_out, others, seed, MORE_QUESTIONS)
            return None if criterion is None else CombinedCriterion((criterion,))
        together = asked_together(held_out, others, seed, MORE_QUESTIONS)
        return None if together is None else self.unpractised(together, views)

    def unpractised(self, asked: CombinedCriterion, views: str) -> CombinedCriterion | None:
        """What training with these views does not practise of some questions; None if that is nothing.

        Pieces of one document are what `crops`, `neighbours` and `sentence` train on, so that `halves` rises with them
        in any case; and so does `title_body`, where a document has no title.
        """
        trained = set(views.split("+"))
        if "title_body" in trained and self.titles < TITLED * self.documents:
            trained.add("crops")
        practised = {name for name, by in PRACTISE.items() if by & trained}
        kept = tuple(criterion for criterion in asked.criteria if criterion.name not in practised)
        return CombinedCriterion(kept) if kept else None

    def neighbours(self, queries: CombinedCriterion, before: Encode, after: Encode, seed: int) -> list[dict[str, Any]]:
        """Some queries, drawn at random, with the nearest passage before and after.

        Args:
            queries: the questions to draw from; of several kinds, each gives its part.
            before, after: the encoders.
            seed: the seed of the draw.
        """
        parts = np.array_split(np.arange(EXAMPLES), len(queries.criteria))
        return [
            row
            for criterion, part in zip(queries.criteria, parts, strict=True)
            for row in nearest_of(criterion, before, after, seed, len(part))
        ]


def nearest_of(queries: Criterion, before: Encode, after: Encode, seed: int, count: int) -> list[dict[str, Any]]:
    """So many queries of a criterion, each of another document, with the nearest passages."""
    drawn = np.random.default_rng([seed, 4]).permutation(queries.documents)[:count]
    few = queries.only(np.sort(drawn))
    found = []
    for encode in (before, after):
        scores = few.without_siblings(few.cosines(encode))
        found.append((scores.argmax(axis=1), few.ranks(scores)))
    firsts = np.unique(few.asked, return_index=True)[1]  # a question of each document
    return [
        {
            "query": few.queries[place],
            "answer": few.candidates[few.answers[place]],
            **{
                name: {"nearest": few.candidates[nearest[place]], "rank": int(ranks[place])}
                for name, (nearest, ranks) in zip(("before", "after"), found, strict=True)
            },
        }
        for place in firsts
    ]


def read_text(args: argparse.Namespace, start: Encoder, finished: bool) -> Text:
    """Read the documents, measure their lengths, and build the criterion.

    Args:
        args: `text`, `text_column`, `title_column`, `max_seq_length`, `max_documents` and `seed` of the command.
        start: the model that is adapted.
        finished: whether it is a finished encoder, and not a plain backbone.

    Raises:
        InputError: the text cannot be read, or has too few documents.
    """
    everything = load_collection(args.text, args.text_column, args.title_column)
    documents = draw_documents(everything, args.max_documents, args.seed)
    rest, held_out = hold_out(documents, args.seed)
    criterion = choose_criterion(held_out, rest, args.seed)
    sampled = sample_rows(documents, args.seed)
    texts = with_titles(sampled["title"], sampled["text"])
    sizes = measure_lengths(texts, without_template(start.tokenizer))
    limit = start.max_seq_length - longest_template(start.model.config, start.tokenizer)
    titles = sum(1 for title in documents["title"] if title)
    longest = LONGEST_ON_CPU if start.model.device.type == "cpu" else LONGEST
    length = args.max_seq_length or int(np.clip(sizes.percentile, SHORTEST, min(limit, longest)))
    cut = sizes.cut(limit)
    titles_ask = enough_ask(build_criterion("title_body", held_out, rest, args.seed), held_out)
    together = asked_together(held_out, rest, args.seed) if finished else None
    if finished and together is None:
        criterion = build_criterion(SENTENCES_ASK, held_out, rest, args.seed) or criterion

    def other_split() -> tuple[Dataset, Dataset]:
        seed = next_seed(args.seed)
        return hold_out(draw_documents(everything, args.max_documents, seed), seed)

    return Text(
        found=len(everything),
        documents=len(documents),
        titles=titles,
        held_out=len(held_out),
        length=length,
        percentile=sizes.percentile,
        beyond=sizes.cut(length),
        cut=cut,
        limit=limit,
        titles_ask=titles_ask,
        criterion=criterion,
        finished=finished,
        together=together,
        parts=(rest, held_out),
        other_split=other_split,
        note=foreign(texts, start.tokenizer),
        overlap=share_overlapping(held_out, rest),
    )


def overlap_note(share: float) -> str:
    """A warning, if this share of the documents that measure have text of other documents; empty if it is small."""
    if share < OVERLAPS:
        return ""
    return (
        f"{share:.0%} of the documents that are held out have {SAME_WORDS} words or more in a row in common with a "
        "document for training. So the scores without labels may be too good. Copies of pages, and passages cut with "
        "an overlap, do that: give each text once."
    )


def foreign(texts: list[str], tokenizer: PreTrainedTokenizerBase) -> str:
    """A sentence that says so if the tokenizer does not know the text's words, because they are of another language.

    Nobody can know from unlabelled text alone whether the model understands it. Unknown words, and words in pieces of
    one or two letters, are the signs that can be counted. Scripts that have a sign for each syllable or word are left
    out of the second.
    """
    texts = [text[:LETTERS_READ] for text in texts]
    ids = [token for row in tokenizer(texts, add_special_tokens=False, verbose=False)["input_ids"] for token in row]
    unknown = sum(token == tokenizer.unk_token_id for token in ids) / max(len(ids), 1)
    written = sum(is_letter(sign) for text in texts for sign in text)
    syllables = sum(is_letter(sign) and ord(sign) >= FIRST_SYLLABLE for text in texts for sign in text)
    spelt = sum(any(map(is_letter, token)) for token in tokenizer.convert_ids_to_tokens(ids))
    pieces = written / max(spelt, 1)
    words = sum(any(map(is_letter, word)) for text in texts for word in text.split())
    if unknown > UNKNOWN:
        sign = f"{unknown:.0%} of the tokens are unknown to it"
    elif pieces < LETTERS and spelt > PIECES * words and syllables < written / 2:
        sign = f"it cuts the words into pieces of {pieces:.1f} letters"
    else:
        return ""
    return (
        f"The model's tokenizer may not fit this text: {sign}. The model was perhaps made for another language, or for "
        "text without code and tables. The scores cannot show whether it is useful here; try it on queries of your own."
    )
