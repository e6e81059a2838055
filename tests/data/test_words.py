"""Words where spaces separate them, and where nothing does."""

import numpy as np
import pytest
from datasets import Dataset
from hypothesis import given
from hypothesis import strategies as st

from cmlmcse.data.collection import share_overlapping
from cmlmcse.data.searches import asking_words, make_queries
from cmlmcse.data.telling_words import TellingWords
from cmlmcse.data.words import is_unspaced, join_words, overlapping_pairs, split_words
from cmlmcse.evaluation.bm25 import BM25
from cmlmcse.evaluation.questions import WordCounts
from support.tiny import tiny_tokenizer

SPLIT = [
    ("the cat  sat\non a mat", ["the ", "cat ", "sat ", "on ", "a ", "mat"]),
    ("東京タワーに行った。", ["東京", "タワ", "ーに", "行っ", "た", "。"]),
    ("我用iPhone打 电话", ["我用", "iPhone", "打 ", "电话"]),
    ("나는 고양이를 좋아한다", ["나는 ", "고양이를 ", "좋아한다"]),
    ("ฉันรักแมว", ["ฉันรักแมว"]),
    ("", []),
]


@pytest.mark.parametrize(("text", "words"), SPLIT)
def test_words(text, words):
    """Pairs of characters in Chinese and Japanese; Korean has spaces, and Thai is not known."""
    assert split_words(text) == words


@given(st.text(st.sampled_from("ab1 .東京タ。แé\n")))
def test_words_put_together_are_the_text(text):
    """But for white space, which is one space then; and in other scripts they are what stands between white space."""
    words = split_words(text)
    assert join_words(words) == " ".join(text.split())
    assert split_words(join_words(words)) == words
    if not is_unspaced(text):
        assert [word.strip() for word in words] == text.split()


def test_an_index_does_not_know_where_words_begin():
    """Every character with the next one; a query of one character finds it, and one of two needs both in a row."""
    mixed = ["東京タワー", "cat", "用iphone打"]
    assert overlapping_pairs(mixed) == ["東京", "京タ", "タワ", "ワー", "cat", "用", "iphone", "打"]
    assert overlapping_pairs(["東京", "cat"], single=True) == ["東京", "東", "京", "cat"]
    passages = ["私は東京へ行く", "京都の寺", "a cat"]
    queries = ["東京", "CAT", "京都", "京", "寺"]
    expected = [[1, 0, 0], [0, 0, 1], [0, 1, 0], [1, 1, 0], [0, 1, 0]]
    assert (BM25(passages).scores(queries) > 0).astype(int).tolist() == expected
    assert (BM25(passages, queries).scores(queries) > 0).astype(int).tolist() == expected
    assert BM25(passages).scores(queries) == pytest.approx(BM25(passages, queries).scores(queries))


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


def test_words_of_a_query():
    """Foreign words of three letters, and every pair of characters; no punctuation."""
    found = asking_words("我用BERT模型，ai技术。北京 上海。私は「東京」へiPhone15を")
    assert found == ["我用", "bert", "模型", "技术", "北京", "上海", "私は", "東京", "iphone15"]
    counts = WordCounts.of(Dataset.from_dict({"text": ["駅は「大きい」。"] * 2 + ["遠い。"] * 30}))
    assert not set("「」。") & set("".join(counts.telling(split_words("駅は「大きい」。"))))


def test_documents_that_repeat_each_other():
    """26 characters in a row are a copy, wherever they begin."""
    common = "".join(map(chr, range(0x4E00, 0x4E00 + 60)))
    held = Dataset.from_dict({"text": [common]})
    for start in range(4):
        assert share_overlapping(held, Dataset.from_dict({"text": ["新" + common[start : start + 40] + "。"]})) == 1
    assert share_overlapping(held, Dataset.from_dict({"text": ["".join(map(chr, range(0x5000, 0x5040)))]})) == 0
    assert share_overlapping(held, Dataset.from_dict({"text": [common[:20] + "新" + common[20:40]]})) == 0


def test_telling_words_are_tokens():
    """A token of Chinese or Japanese is a word, of one character too, and no word goes on behind it."""
    tokenizer = tiny_tokenizer("roberta")
    tokenizer.add_tokens(["東", "京", "▁cat", "▁dog", "s", "タワー", "phone"])
    rows = [["東", "京", "phone", "s", "▁cat", "s"], ["東", "タワー", "▁dog"], ["▁cat", "s", "京", "phone", "s"]]
    ids = [tokenizer.convert_tokens_to_ids(row) for row in rows]
    pieces = Dataset.from_dict({"title_ids": [[]] * 3, "input_ids": ids})
    words, weights = TellingWords.count(pieces, tokenizer).of(ids[0])
    assert [tokenizer.convert_ids_to_tokens(word) for word in words] == [["東"], ["京"], ["phone", "s"], ["▁cat", "s"]]
    assert np.all(weights > 0)
