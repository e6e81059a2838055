"""Sentences of prose from a MediaWiki dump in any language. gensim reads the dump; this module cleans and splits."""

import re
from collections.abc import Iterator
from typing import Any, BinaryIO

from cmlmcse.common.errors import InputError

VERSION = 1  # raise it when the output changes: it is part of the cache key
WORDS = range(4, 129)  # words in a sentence; the range in wiki1m, a corpus like SimCSE's
CHARACTERS = range(8, 401)  # characters in a sentence, for scripts without spaces between words


def _words(text: str) -> frozenset[str]:
    """Return the words of a text as a set."""
    return frozenset(text.split())


PLACEHOLDER = "\ue000"  # stands for content that cannot be shown as text; its sentence is dropped
LESS_THAN = "\ue001"  # stands for a "<" that does not open a tag
_SUPERSCRIPT = str.maketrans("0123456789+-−n", "⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻⁻ⁿ")
_BLOCKS = "gallery|timeline|syntaxhighlight|source|pre|poem|score|imagemap|table|ol|ul|dl|div|references"
_COMMENT = re.compile(r"(?s)<!--.*?(?:-->|\Z)")
_FOOTNOTE = re.compile(r"(?is)<ref\b[^<>]*/>|<ref\b[^<>]*>.*?</ref\s*>")
_BLOCK = re.compile(rf"(?is)<({_BLOCKS})\b[^<>]*(?<!/)>.*?</\1\s*>")
_INLINE = re.compile(r"(?is)<(math|chem|ce|code|tt|hiero)\b[^<>]*(?<!/)>.*?</\1\s*>")
_POWER = re.compile(r"(?i)<sup\b[^<>]*>([^<>]*)</sup\s*>")
_NOT_A_TAG = re.compile(r"(?:<|&lt;)(?![a-zA-Z/!])")
_TABLE = re.compile(r"(?s)(?<!\{)\{\|(?:(?!\{\|).)*?\n\s*\|\}(?!\})")
_TEMPLATE = re.compile(r"(?P<before>^|.?)\{\{(?P<body>[^{}]*)\}\}", re.S | re.M)
_WEB_LINK = re.compile(r"\[(?:[a-z]+:)?//[^\s\]]+(?:\s+([^\[\]]*(?:\[\[[^\[\]]*\]\][^\[\]]*)*))?\]")
_LINK = re.compile(r"\[\[([^\[\]]*)\]\]")
_LANGUAGE = re.compile(r"[a-z]{2,3}(?:-[a-z-]+)?|simple")
_NAMESPACE = re.compile(r'<namespace key="(?:-2|6|14)"[^>]*>([^<]+)<')

# Templates that show only their last argument, templates that show a fixed text, and footnotes or editors' remarks.
_SHOW_LAST_ARGUMENT = _words("lang transl transliteration nowrap nobr small smaller big em strong vanchor")
_FIXED_TEXT = {
    "'s": "'s",
    "'": "'",
    "nbsp": " ",
    "spaces": " ",
    "ndash": "–",
    "mdash": "—",
    "snd": " – ",
    "spnd": " – ",
}
_REMARK = re.compile(
    r"(?i)(sfn|rp|efn|refn?|r|cite|citation|cn|fact|harv|clarify|dubious|disputed|verify|failed|page needed|"
    r"better|full|specify|who|whom|when|where|which|why|how|by whom|according|vague|update|anchor|dead link|"
    r"original research|or|unreliable|pov|weasel|peacock|expand|refimprove|main|see also|further|clear|toc)\b"
)
_UNITS = {
    **{"mi": "miles", "ft": "feet", "in": "inches", "lb": "pounds", "acre": "acres", "ha": "hectares"},
    **{"sqmi": "square miles", "sqft": "square feet", "km2": "square kilometres", "m2": "square metres"},
    **{"C": "°C", "F": "°F"},
    **{unit: unit for unit in _words("m km cm mm kg g t L mph knots acres metres km/h kW MW")},
}
_RANGES = {"-": "–", "–": "–", "to": " to ", "and": " and ", "or": " or ", "by": " by ", "x": " × "}


def _arguments(body: str) -> tuple[str, list[str]]:
    """Return a template's name in lower case and its unnamed arguments."""
    name, *arguments = body.split("|")
    return name.strip().lower().replace("_", " "), [a.strip() for a in arguments if "=" not in a]


def _converted(arguments: list[str]) -> str:
    """Return the first part of what {{convert}} shows ("5 miles", "5 to 7 miles"), or PLACEHOLDER for a rare unit."""
    value, rest = arguments[0], arguments[1:]
    if len(rest) > 2 and rest[0] in _RANGES:
        value, rest = value + _RANGES[rest[0]] + rest[1], rest[2:]
    return f"{value} {_UNITS[rest[0]]}" if rest and rest[0] in _UNITS else PLACEHOLDER


def _template(match: re.Match[str]) -> str:
    """Return the text that a template shows if it is known, nothing for a remark, and else PLACEHOLDER."""
    before, (name, arguments) = match["before"], _arguments(match["body"])
    if name in _FIXED_TEXT:
        return before + _FIXED_TEXT[name]
    if arguments and (name in _SHOW_LAST_ARGUMENT or name.startswith("lang-")):
        return before + arguments[-1]
    if name in ("convert", "cvt") and arguments:
        return before + _converted(arguments)
    if name == "as of" and len(arguments) == 1:
        return f"{before}{'as' if 'lc=' in match['body'] else 'As'} of {arguments[0]}"
    if _REMARK.match(name) or not before or before == "\n":
        return before  # at the start of a line: a box, a note, or next to a heading
    quoted = before in "\"'" and match.string[max(match.start() - 1, 0) : match.start()] in (
        "",
        " ",
        "\n",
        "'",
        "(",
    )
    note = not (before.isspace() or before in "(–—-/" or quoted)  # directly after a word or a full stop: a footnote
    return before if note else before + PLACEHOLDER


def _drop_nested(pattern: re.Pattern[str], replacement: Any, text: str) -> str:
    """Replace matches from the innermost outwards, at most 12 levels."""
    for _ in range(12):
        text, count = pattern.subn(replacement, text)
        if not count:
            break
    return text


def strip_markup(raw: str, dropped: frozenset[str] = frozenset({"file", "image", "category", "media"})) -> str:
    """Return an article's text without boxes, tables, notes, markup, and links to the `dropped` namespaces."""
    from gensim.corpora.wikicorpus import filter_wiki

    def link(match: re.Match[str]) -> str:
        target, _, shown = match[1].partition("|")
        space = target.partition(":")[0].strip().lower() if ":" in target else ""
        if space in dropped or _LANGUAGE.fullmatch(space):
            return ""
        return shown.rpartition("|")[2] if shown else target.lstrip(":")

    text = _FOOTNOTE.sub("", _COMMENT.sub("", raw.replace(PLACEHOLDER, "").replace(LESS_THAN, "")))
    text = _INLINE.sub(PLACEHOLDER, _drop_nested(_BLOCK, "\n", text))
    text = _POWER.sub(lambda match: match[1].translate(_SUPERSCRIPT), text)
    text = _drop_nested(_TEMPLATE, _template, text)
    text = _drop_nested(_TABLE, "\n", text)
    text = _WEB_LINK.sub(lambda match: match[1] or "", text)
    text = _drop_nested(_LINK, link, text)
    text = re.sub(r"(?i)<br\s*/?>", " ", _NOT_A_TAG.sub(LESS_THAN, text))
    return filter_wiki(text, promote_remaining=False).replace(LESS_THAN, "<")


_SPACE = re.compile(r"[^\S\n]+")
_QUOTES = re.compile(r"'{2,}")
_EMPTY_BRACKETS = re.compile(r" ?[(\[（][\s,;:.–—/-]*[)\]）]")
_INCOMPLETE_BRACKETS = re.compile(rf" ?\(([^()]*{PLACEHOLDER}[^()]*)\)")
_OPENING = re.compile(r"(?<=[(\[])[\s,;:]+")
_CLOSING = re.compile(r"[\s,;:]+(?=[)\]])")
_BEFORE_STOP = re.compile(r" +(?=[,.;:?!](?:\s|$))")
_NOT_PROSE = re.compile(r"[=*#:;|!{}]|-{4}|\s*$")
_MAGIC = re.compile(r"__[A-Z]+__")


def _joined(match: re.Match[str]) -> str:
    """Join a hard-wrapped line with the next one if that starts in lower case."""
    return " " if match.string[match.end()].islower() else "\n"


def _without_placeholders(match: re.Match[str]) -> str:
    """Keep the parts of a bracket (separated by semicolons) that have no placeholder."""
    parts = [part.strip() for part in match[1].split(";") if PLACEHOLDER not in part]
    return f" ({'; '.join(parts)})" if parts else ""


def paragraphs(text: str) -> Iterator[str]:
    """Yield the lines of prose of an article without markup: no headings, list items, indented lines or table rows."""
    for line in re.sub(r"(?<=[^\W\d_])\n(?=[^\W\d_])|(?<=,)\n(?=\w)", _joined, text).split("\n"):
        if _NOT_PROSE.match(line):
            continue
        line = _QUOTES.sub("", _MAGIC.sub("", line))
        line = _EMPTY_BRACKETS.sub("", _INCOMPLETE_BRACKETS.sub(_without_placeholders, line))
        line = _CLOSING.sub("", _OPENING.sub("", line))
        line = _BEFORE_STOP.sub("", _SPACE.sub(" ", line)).strip()
        if line and not _NOT_PROSE.match(line):
            yield line


# A full stop after _NEVER_LAST never ends a sentence. After _SOMETIMES_LAST it does if a common first word follows.
_NEVER_LAST = _words(
    "mr mrs ms dr prof st ste gen col capt cpt lt sgt maj cmdr adm rev hon gov sen rep pres fr mme mlle messrs "
    "supt vs cf viz ca fl approx no nos nr vol vols pp ed eds ch sec fig figs art op ibid trans mt ft bros dept "
    "jan feb mar apr jun jul aug sep sept oct nov dec lat long bzw vgl sog geb gest sr sra dña ул им св род тыс"
)
_SOMETIMES_LAST = _words("inc ltd co corp jr etc al est usw др пр гг вв млн")
_COMMON_FIRST = _words(
    "the a an in on at it its he she they this that these those there we i as by for from to with when while "
    "after before although however but and if since during his her their many most some several one two under "
    "according both each such other another no not all also because until upon despite among"
)
_STOP = re.compile(r"""([.!?…؟۔।։።]+)['"”’»)\]]*\s+|[。！？]+[」』”’）)]*\s*""")
_LAST_WORD = re.compile(r"[^\s(\[\"'“‘«„/–—]*$")
_FIRST_WORD = re.compile(r"[\"'“‘«„(\[¿¡]*([^\W_]*)")


def _is_end(head: str, stop: str, tail: str) -> bool:
    """Tell whether `stop`, which stands between `head` and `tail`, ends a sentence."""
    found = _FIRST_WORD.match(tail)
    following = found[1] if found else ""
    if not tail or following[:1].islower() or head.count("(") > head.count(")"):
        return False
    if stop != ".":
        return True
    word = _LAST_WORD.search(head)[0].lower()  # type: ignore[index]
    common = following.lower() in _COMMON_FIRST
    if len(word) == 1 and word.isalpha():  # an initial, or "1582 г."
        return head[-1:].islower() and head[-3:-2].isdigit()
    if word in _NEVER_LAST:
        return False
    if re.fullmatch(r"\d{1,2}", word):  # "am 3. Oktober"
        return common or following[:1].isdigit()
    if word in _SOMETIMES_LAST or ("." in word and re.sub(r"[.-]", "", word).isalpha()):  # U.S., a.m.
        return common
    return True


def split_sentences(paragraph: str) -> Iterator[str]:
    """Yield the sentences of a paragraph. It is not split at abbreviations, initials and ordinals, or in brackets."""
    start = 0
    for match in _STOP.finditer(paragraph):
        if match[1] is None or _is_end(paragraph[start : match.start()], match[1], paragraph[match.end() :][:40]):
            yield paragraph[start : match.end()].strip()
            start = match.end()
    if rest := paragraph[start:].strip():
        yield rest


_NO_SPACES = re.compile(r"[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff]")
_THAI = re.compile(r"[\u0e00-\u0eff]")
_FINAL = re.compile(r"""[.!?…؟۔।։።。！？][\])'"”’»」』）]*$""")
_MARKUP = re.compile(
    rf"[{PLACEHOLDER}{{}}|\\\t]|\[\[|\]\]|==|://|www\.|\bISBN\b|&\w+;|</?\w+>|\.(?:jpe?g|png|svg|gif)\b"
)
_SYMBOL = re.compile(r"[0-9!-/:-@\[-`{-~]")
_GAP = re.compile(r"[(\[]\s*[)\]]|,\s*[,.](?!\.)|\(\s*,|\b(?:the|an|\d to) ?[,.;)](?=\s|$)")


def is_sentence(text: str) -> bool:
    """Tell whether a piece of a paragraph is a whole sentence of prose, with a length that is useful for training."""
    unspaced = len(_NO_SPACES.findall(text)) * 2 > len(text)
    if len(text) not in CHARACTERS if unspaced else len(text.split()) not in WORDS:
        return False
    if text[0].islower() or not (text[0].isalnum() or text[0] in "\"'“‘«„([¿¡「『（《"):
        return False
    if _MARKUP.search(text) or _GAP.search(text) or not (_FINAL.search(text) or (unspaced and _THAI.search(text))):
        return False
    if text.count("(") != text.count(")") or text.count("[") != text.count("]") or text.count('"') % 2:
        return False
    return len(_SYMBOL.findall(text)) <= 0.3 * len(text.replace(" ", ""))


def article_sentences(raw: str, dropped: frozenset[str]) -> Iterator[str]:
    """Yield the sentences of one article's wiki text."""
    for paragraph in paragraphs(strip_markup(raw, dropped)):
        thai = len(_THAI.findall(paragraph)) * 2 > len(paragraph)
        for sentence in paragraph.split() if thai else split_sentences(paragraph):  # Thai: spaces separate clauses
            if is_sentence(sentence):
                yield sentence


def read_articles(file: BinaryIO) -> Iterator[list[str]]:
    """Yield the sentences of each article of a MediaWiki dump, in order (main namespace, no redirects).

    Raises:
        InputError: gensim is not installed.
    """
    try:
        from gensim.corpora.wikicorpus import extract_pages
    except ImportError:
        raise InputError(
            'a Wikipedia dump is read with gensim, which was not found; pip install "cmlmcse[wiki]"'
        ) from None
    head = file.read(1 << 16).decode("utf-8", errors="ignore")
    file.seek(0)
    # The names of the namespaces File, Category and Media in the dump's language.
    local = {name.strip().lower() for name in _NAMESPACE.findall(head)}
    dropped = frozenset(local | {"file", "image", "category", "media"})

    def is_article(element: Any, namespace: str, **_: object) -> bool:
        space = element.find(f"{{{namespace}}}ns")
        return element.find(f"{{{namespace}}}redirect") is None and (space is None or space.text == "0")

    for _title, raw, _page in extract_pages(file, filter_articles=is_article):
        if raw:
            yield list(article_sentences(raw, dropped))
