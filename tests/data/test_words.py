"""Words where spaces separate them, and where nothing does."""

import numpy as np
import pytest
from datasets import Dataset
from hypothesis import given
from hypothesis import strategies as st

from cmlmcse.data.collection import share_overlapping
from cmlmcse.data.searches import make_queries
from cmlmcse.data.telling_words import TellingWords
from cmlmcse.data.words import is_unspaced, join_words, overlapping_pairs, split_words
from cmlmcse.evaluation.bm25 import BM25
from support.tiny import tiny_tokenizer

SPLIT = [
    ("the cat  sat\non a mat", ["the", "cat", "sat", "on", "a", "mat"]),
    ("東京タワーに行った。", ["東京", "タワ", "ーに", "行っ", "た。"]),
    ("我用iPhone打电话", ["我用", "iPhone", "打电", "话"]),
    ("ฉันรักแมว", ["ฉั", "นร", "ัก", "แม", "ว"]),
    ("나는 고양이를 좋아한다", ["나는", "고양이를", "좋아한다"]),
    ("", []),
]


@pytest.mark.parametrize(("text", "words"), SPLIT)
def test_words(text, words):
    """Pairs of characters in Chinese, Japanese and Thai; Korean has spaces."""
    assert split_words(text) == words


@given(st.text(st.sampled_from("ab1 .東京タ。แ나é\n")))
def test_nothing_is_lost(text):
    """Words put together again are the text but for its spaces, and have the same words."""
    joined = join_words(split_words(text))
    assert "".join(joined.split()) == "".join(text.split())
    assert split_words(joined) == split_words(text) or is_unspaced(text)
    if not is_unspaced(text):
        assert joined == " ".join(text.split())


def test_an_index_does_not_know_where_words_begin():
    assert overlapping_pairs(["東京タワー", "cat", "用iphone打"]) == [
        "東京", "京タ", "タワ", "ワー", "cat", "用", "iphone", "打",
    ]  # fmt: skip
    scores = BM25(["私は東京へ行く", "京都の寺", "a cat"]).scores(["東京", "CAT", "京都"])
    assert (scores > 0).tolist() == [[True, False, False], [False, False, True], [False, True, False]]
    wanted = BM25(["私は東京へ行く", "京都の寺"], queries=["東京"]).scores(["東京"])
    assert (wanted > 0).tolist() == [[True, False]]


def test_queries_of_documents():
    """A sentence ends with 。 and needs no space after it; a few words are pairs of characters."""
    documents = Dataset.from_dict({
        "title": ["東京の電車", ""],
        "text": ["東京の電車は速い。毎朝多くの人が乗る。", "京都の寺は古い。春には桜が美しい。"],
    })  # fmt: skip
    queries = make_queries(documents, 0).texts
    sentences = {"東京の電車は速い。", "毎朝多くの人が乗る。", "京都の寺は古い。", "春には桜が美しい。", "東京の電車"}
    words = [query for query in queries if query not in sentences]
    assert set(queries) & sentences
    assert words
    assert all(len(word) == 2 for query in words for word in query.split())


def test_documents_that_repeat_each_other():
    """Thirteen pairs of characters in a row are a copy, as thirteen words are."""
    common = "".join(map(chr, range(0x4E00, 0x4E00 + 60)))
    texts = [common, common[1:41] + "。", "".join(map(chr, range(0x5000, 0x5040)))]
    held = Dataset.from_dict({"text": texts[:1]})
    assert share_overlapping(held, Dataset.from_dict({"text": [common[:40]]})) == 1
    assert share_overlapping(held, Dataset.from_dict({"text": texts[2:]})) == 0


def test_telling_words_are_tokens():
    """A token of a script without spaces is a word, of one character too, and no word goes on behind it."""
    tokenizer = tiny_tokenizer("roberta")
    tokenizer.add_tokens(["東", "京", "▁cat", "▁dog", "s", "タワー"])
    rows = [["東", "京", "▁cat", "s"], ["東", "タワー", "▁dog"], ["▁cat", "s", "京"]]
    ids = [tokenizer.convert_tokens_to_ids(row) for row in rows]
    pieces = Dataset.from_dict({"title_ids": [[]] * 3, "input_ids": ids})
    words, weights = TellingWords.count(pieces, tokenizer).of(ids[0])
    assert [tokenizer.convert_ids_to_tokens(word) for word in words] == [["東"], ["京"], ["▁cat", "s"]]
    assert np.all(weights > 0)
