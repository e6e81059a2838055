"""The sentences of a Wikipedia dump."""

import bz2
import sys
from pathlib import Path

import pytest

from cmlmcse.common.errors import InputError
from cmlmcse.data.wikipedia import is_sentence, paragraphs, split_sentences, strip_markup
from support.text import Load, put

PAGE = "<page><title>{}</title><ns>{}</ns><id>1</id>{}<revision><text>{}</text></revision></page>"
DUMP = (
    '<mediawiki xmlns="http://www.mediawiki.org/xml/export-0.10/"><siteinfo><namespaces>'
    '<namespace key="6" case="first-letter">Datei</namespace></namespaces></siteinfo>{}</mediawiki>'
)
ARTICLE = """{{Infobox|name=X|born={{birth date|1900|1|1}}}}
[[Datei:X.jpg|thumb|A picture of [[Mr X|X]] in 1920 that is a caption.]]
'''Mr X''' ({{IPA|x}}; born 1900) was a [[Painter|painter]] in the U.S. Army.{{sfn|Doe|1999}} He met J. R. Doe.
He walked {{convert|5|km|mi}} a day&lt;ref name="a"&gt;A note.&lt;/ref&gt; and 3.5 hours. It is {{val|7}} or so.

== His works ==
* A list item which is a whole sentence.
{| class="wikitable"
| A cell which is a whole sentence.
|}
The second [[paragraph]] is here (see Fig. 2. It is good) for all.
"""
SENTENCES = [
    "Mr X (born 1900) was a painter in the U.S. Army.",
    "He met J. R. Doe.",
    "He walked 5 km a day and 3.5 hours.",
    "The second paragraph is here (see Fig. 2. It is good) for all.",
]


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("name", ["dump.xml-p1p2.bz2", "dump.xml"])
def test_wikipedia_dump(tmp_path: Path, load: Load, name: str, streaming: bool) -> None:
    """Articles become sentences: no redirects, other namespaces, boxes, pictures, notes, lists, tables or holes."""
    pytest.importorskip("gensim")
    pages = [
        PAGE.format("R", 0, '<redirect title="X" />', "This is a redirect with text."),
        PAGE.format("Talk:X", 1, "", "This is a page where people talk."),
        PAGE.format("X", 0, "", ARTICLE),
        PAGE.format("Empty", 0, "", ""),
    ]
    dump = DUMP.format("".join(pages)).encode()
    path = put(tmp_path / name, bz2.compress(dump) if name.endswith("bz2") else dump)
    assert load(path, streaming=streaming) == SENTENCES


def test_wikipedia_dump_truncated(tmp_path: Path, load: Load) -> None:
    """A dump cut off in the download is an error."""
    pytest.importorskip("gensim")
    dump = bz2.compress(DUMP.format(PAGE.format("X", 0, "", ARTICLE * 50)).encode())
    with pytest.raises(InputError, match=r"d.xml.bz2: expected a whole, readable file, found it truncated"):
        load(put(tmp_path / "d.xml.bz2", dump[:-40]))


def test_wikipedia_without_gensim(tmp_path: Path, load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the extra to install."""
    monkeypatch.setitem(sys.modules, "gensim.corpora.wikicorpus", None)
    with pytest.raises(InputError, match=r'found; pip install "cmlmcse\[wiki\]"'):
        load(put(tmp_path / "d.xml", DUMP.format("")))


@pytest.mark.parametrize(
    ("paragraph", "expected"),
    [
        ("Dr. Smith paid $3.50. He left.", ["Dr. Smith paid $3.50.", "He left."]),
        ("J. F. Kennedy and W. Bush met. OK?", ["J. F. Kennedy and W. Bush met.", "OK?"]),
        ('He said "Go!" She went.', ['He said "Go!"', "She went."]),
        ("In the U.S. Army. In the U.S. The end.", ["In the U.S. Army.", "In the U.S.", "The end."]),
        ("By Doe et al. (2010) it was 4.8%. Growth fell.", ["By Doe et al. (2010) it was 4.8%.", "Growth fell."]),
        ("Er starb am 3. Oktober 1950. Sie blieb.", ["Er starb am 3. Oktober 1950.", "Sie blieb."]),
        ("Указ от 1582 г. Той поправя.", ["Указ от 1582 г.", "Той поправя."]),
        ("今日は晴れ。明日は「雨。」本当？はい", ["今日は晴れ。", "明日は「雨。」", "本当？", "はい"]),
        ("¿Qué es? ¡Es bueno! Sí.", ["¿Qué es?", "¡Es bueno!", "Sí."]),
        ("यह पहला वाक्य है। यह दूसरा है।", ["यह पहला वाक्य है।", "यह दूसरा है।"]),
    ],
)
def test_split_sentences(paragraph: str, expected: list[str]) -> None:
    """Abbreviations, initials, decimals and ordinals do not split; other scripts' full stops do."""
    assert list(split_sentences(paragraph)) == expected


def test_is_sentence_bounds() -> None:
    """4 to 128 words, or 8 to 400 characters where there are no spaces."""
    assert [is_sentence(" ".join(["Word"] * n) + ".") for n in (3, 4, 128, 129)] == [False, True, True, False]
    assert [is_sentence("字" * n + "。") for n in (6, 7, 399, 400)] == [False, True, True, False]
    bad = ["It is a fragment", "it starts in the middle.", "See {{this}} for the rest.", "An open (bracket is left."]
    assert not any(is_sentence(text) for text in bad)


def test_strip_markup_keeps_case_and_numbers() -> None:
    """Links, powers, quotation marks and comparisons stay readable."""
    pytest.importorskip("gensim")
    raw = "The [http://x.org web] is 10<sup>-3</sup> [[m]], ''p'' < 0.05 and q > 3 for [sic] H<sub>2</sub>O. [[de:X]]"
    assert list(paragraphs(strip_markup(raw))) == ["The web is 10⁻³ m, p < 0.05 and q > 3 for [sic] H2O."]
