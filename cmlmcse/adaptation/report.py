"""What the report of adapt says: report.md, and report.html, which is one file with its pictures inside."""

import shlex
from pathlib import Path
from typing import Any

from matplotlib.ticker import MaxNLocator

from cmlmcse.common.figures import COLOURS, GREY, plt, save, set_labels
from cmlmcse.common.tables import DASH
from cmlmcse.data.searches import SEARCH
from cmlmcse.evaluation.bm25 import WEIGHT_FOR_WEAK
from cmlmcse.evaluation.criterion import near_chance
from cmlmcse.evaluation.labelled import WITH_WORDS, labelled_rows
from cmlmcse.hub.adapted_card import few_questions, on_practice, tokens_trained_on, why_kept
from modeling_cmlmcse.pooling import POOLINGS

from .files import EXPORT, REPORT
from .pages import Block, write_pages
from .text import overlap_note

CURVE = "curves"
LAST_ARM_SAYS = (
    f" The arm with `then {SEARCH}` starts from the best of the others, and is taken whatever its score is: it did not "
    "train on the questions of this score, and most of the others did."
)
SHORT = 160  # characters of a text in a table


def write_report(folder: Path, results: dict[str, Any], neighbours: list[dict[str, Any]]) -> None:
    """Write report.md, report.html and the picture that report.md names.

    Args:
        folder: adapt's output folder.
        results: the content of results.json.
        neighbours: queries with their nearest passages before and after.
    """
    plots = folder / "plots"
    plots.mkdir(exist_ok=True)
    plot_curves(results["adapt"], plots)
    write_pages(report_blocks(folder, results, neighbours), folder, REPORT, "Adapted")


def report_blocks(folder: Path, results: dict[str, Any], neighbours: list[dict[str, Any]]) -> list[Block]:
    """The report as a list of pieces: first what a reader asks first, last how it was found."""
    found, text = results["adapt"], results["text"]
    kept = found["chosen"] == "start"
    pooling = results.get("encoder", {}).get("pooling")
    trust = ", trust_remote_code=True" if pooling in POOLINGS and POOLINGS[pooling].reads_mask else ""
    best = "best that was tried" if kept else "after"
    return [
        ("h1", "Not adapted: your own model is kept" if kept else "Adapted: better for this text"),
        ("lead", not_better(found) if kept else better(found)),
        *[("p", said) for said in (weak_start(found), text["note"]) if said],
        *on_overlap(text),
        ("table", (
            ["what is scored, nDCG × 100", "before", best, "change", "95 % interval"],
            [[found["title"], *change_cells(found)]],
        )),
        ("p", f"A query has to find its answer among up to {found['candidates']:,} passages of the same text. The "
              "score is nDCG × 100 without a cut-off: 100 / log2(1 + rank). It needs no labels. "
              f"{found['documents']['choose']} documents were used to choose the model, "
              f"{found['documents']['confirm']} others for this table. The model that was asked had not trained on "
              "them. "
              f"BM25 reaches {found['bm25']:.2f}."),
        *labelled_blocks(results.get("labelled", {})),
        ("h2", "How far to trust it"),
        ("list", limits(found)),
        ("h2", "How to load it"),
        ("code", "from sentence_transformers import SentenceTransformer\n"
                 f'model = SentenceTransformer("{(folder / EXPORT).as_posix()}"{trust})\n'
                 'vectors = model.encode(["a sentence"])'),
        ("h2", "What to try next"),
        ("list", next_steps(folder, found, text)),
        *tried_blocks(found),
        ("h2", "Ten queries"),
        ("p", "Drawn at random from the questions of the first table. The rank is that of the answer: 1 is best."
              + (" The passages after are those of the first split's model." if found.get("second_split") else "")),
        ("table", (["query", "its answer", "nearest before", f"nearest {'with the ' if kept else ''}{best}"],
                   [compared(row) for row in neighbours])),
        ("h2", "The text and the cost"),
        ("list", text_and_cost(results)),
    ]  # fmt: skip


def on_overlap(text: dict[str, Any]) -> list[Block]:
    """A warning, if much of the text that measures stands in other documents too."""
    said = overlap_note(text.get("share_overlapping", 0.0))
    return [("p", said)] if said else []


def tried_blocks(found: dict[str, Any]) -> list[Block]:
    """The arms, the averages of weights, and the picture."""
    rows = [
        [name, str(arm["steps"]), f"{arm['score']:.2f}", f"{arm['seconds']:.0f}", f"{arm['tokens']:,}"]
        for name, arm in sorted(found["arms"].items(), key=lambda item: -item[1]["score"])
    ]
    shares = ", ".join(
        f"{float(share):.0%}: {score:.2f}"
        for share, score in sorted(found["shares"].items(), key=lambda item: float(item[0]))
    )
    chosen = "The start was kept." if found["chosen"] == "start" else f"Chosen: {found['chosen']}."
    return [
        ("h2", "What was tried"),
        ("p", f"{chosen} An arm is one way to train. Its score says how well {found['choose_title']}, on the documents "
              f"used to choose. The start scores {found['choose_before']:.2f} there."
              + (LAST_ARM_SAYS if has_last_arm(found) else "")),
        ("table", (["arm", "steps", "score", "seconds", "tokens"], rows)),
        ("image", (f"plots/{CURVE}.png", "The score without labels of each arm during training, and of the start")),
        ("p", f"Then the weights of {' and '.join(found['averaged'])} were averaged with those of the start. The "
              "percentage is the trained part. By the questions of the first table, on the documents used to choose: "
              f"{shares}."),
    ]  # fmt: skip


def has_last_arm(found: dict[str, Any]) -> bool:
    """Whether an arm starts from another one."""
    return any(f" then {SEARCH}," in name for name in found["arms"])


def text_and_cost(results: dict[str, Any]) -> list[str]:
    """What was read, how much of it counts, and what it cost."""
    text = results["text"]
    return [
        f"the start: `{results['model']}`",
        f"{text['documents']:,} documents, {text['titles']:,} with a title; {text['held_out']:,} were held out",
        f"95 % have at most {text['percentile_95']:,} tokens; training read {text['training_tokens']} at a time: "
        "`title_body`, `search` and `dropout` the first ones, the others later ones too. "
        f"{text['share_beyond_training']:.1%} of all tokens come after the first ones",
        f"the model reads at most {text['model_tokens']} tokens of a document: {text['share_cut_off']:.1%} of all "
        "tokens are cut off",
        f"{results['seconds']:.0f} seconds in all, in {results['precision']}; "
        f"{tokens_trained_on(results['adapt']):,} tokens trained on",
    ]


def change_cells(scores: dict[str, Any]) -> list[str]:
    """Before, after, the change and its interval."""
    change, (low, high) = scores["best_candidate"] - scores["before"], scores["interval"]
    return [
        f"{scores['before']:.2f}",
        f"{scores['best_candidate']:.2f}",
        f"{change:+.2f}",
        f"{low:+.2f} to {high:+.2f}",
    ]


def not_better(found: dict[str, Any]) -> str:
    """Why the start is handed back."""
    return f"{why_kept(found)} So export/ is the model that it started from."


def better(found: dict[str, Any]) -> str:
    """That the trained model is handed back, and by how much it is better."""
    before, after, change, _ = change_cells(found)
    return (
        f"By the score without labels {after} points instead of {before}: {change}, more than chance. `export/` is the "
        "adapted model."
    )


def weak_start(found: dict[str, Any]) -> str:
    """That the start is near chance, and what may be the cause; else nothing."""
    return near_chance(found["before"], found["candidates"], found["finished_encoder"])


def limits(found: dict[str, Any]) -> list[str]:
    """What the first table cannot show."""
    said = ["The queries are not your users' queries: if you have real queries with answers, trust those more."]
    return [*said, on_practice(found), *filter(None, [few_questions(found), on_second_split(found)])]


def on_second_split(found: dict[str, Any]) -> str:
    """What the table is of, if the text was split twice; else nothing."""
    if found.get("second_split") is None:
        return ""
    said = (
        "The text was split twice, and what was chosen was trained on both splits. Each of the two models was asked "
        "only about documents that it had not seen; the table is of all of them."
    )
    if found["chosen"] != "start":
        said += " export/ has the mean of the two models' weights. No documents are left to score that on."
    return said


def last_line(results: dict[str, Any]) -> str:
    """Before, after, and whether the difference is more than chance, in one line."""
    found = results["adapt"]
    before, after, change, interval = change_cells(found)
    said = f"{found['title']}: {before} before, {after} after, {change} (95 % interval {interval})."
    verdict = not_better(found) if found["chosen"] == "start" else f"Better; chosen: {chosen_words(found)}"
    return " ".join(filter(None, [said, weak_start(found), few_questions(found), verdict]))


def chosen_words(found: dict[str, Any]) -> str:
    """The arms that were chosen, and how much of the weights is theirs."""
    names, share = " and ".join(found["chosen_arms"]), found["share"]
    if share == 1:
        return names
    return f"{names}. The weights in export/ are a mean: {share:.0%} trained, {1 - share:.0%} those of your own model"


def labelled_blocks(labelled: dict[str, Any]) -> list[Block]:
    """The scores on labelled data, if there are any."""
    rows = labelled_rows(labelled)
    if not rows:
        return []
    said = "These data were not used to choose the model."
    if any(row.interval != DASH for row in rows):
        said += " A change whose interval holds 0 may be chance: other queries or pairs could show none."
    if known := labelled.get("retrieval", {}).get("queries_in_text", 0):
        said += (
            f" But {known:,} of the queries stand word for word in the text that was adapted to, so their scores are "
            "too high."
        )
    return [("h2", "On labelled data"), ("p", said),
            ("table", (["data", "before", "after", "change", "95 % interval", "BM25", WITH_WORDS], rows))]  # fmt: skip


def next_steps(folder: Path, found: dict[str, Any], text: dict[str, Any]) -> list[str]:
    """What the user can do now."""
    kept = found["chosen"] == "start"
    search = f"cmlmcse search {shlex.quote(folder.as_posix())} TEXT QUERY --bm25"
    which = "the model" if kept else "both models"
    result = "" if kept else f" {shlex.quote((folder / 'export').as_posix())}"
    steps = [f"score {which} on queries of your own: `cmlmcse evaluate MODEL{result} --tasks retrieval --data_dir DIR`"]
    curves = [[score for _, score in found["arms"][name]["scores"]] for name in found["averaged"]]
    if not kept and not has_last_arm(found) and any(curve[-1] > max(curve[:-1], default=curve[-1]) for curve in curves):
        steps.append(
            "train longer, with a larger `--minutes` (or `--max_steps`) and a new `--output_dir`: what was chosen was "
            "still getting better at its last step"
        )
    if kept:
        steps.append(
            "keep using the model that you have; try more text, or a larger `--minutes` (or `--max_steps`) with a new "
            "`--output_dir`"
        )
    if found["bm25"] > found["after"]:
        steps.append(
            "search by words as well, and give them more weight, because BM25 alone finds more here than the model: "
            f"`{search} {WEIGHT_FOR_WEAK}`"
        )
    elif found["hybrid"] > found["after"]:
        steps.append(
            f"search by words as well, with `{search}`: the model and BM25 "
            f"together have {found['hybrid']:.2f} by the score above, the model alone {found['after']:.2f}"
        )
    if text["share_cut_off"] > 0.1:
        steps.append("search with `--passages`, or in a folder, which cut long documents: much of the text is cut off")
    if not text["titles"]:
        steps.append("if your documents have titles, give them in a column: titles are the best queries without labels")
    return steps


def plot_curves(found: dict[str, Any], plots: Path) -> None:
    """Draw the score of each arm by step."""
    figure, axes = plt.subplots(figsize=(6, 3.8))  # so small that its letters can be read on a phone
    for place, (name, arm) in enumerate(found["arms"].items()):
        steps, scores = zip(*arm["scores"], strict=True)
        colour = COLOURS[place % len(COLOURS)]
        axes.plot(steps, scores, color=colour, marker="o", markersize=3, label=name)
    axes.axhline(found["choose_before"], color=GREY, linestyle="--", linewidth=1, label="start")
    axes.legend(frameon=False)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    set_labels(axes, "optimizer step", "score without labels (nDCG × 100)", "")
    save(figure, plots, CURVE)


def short(text: str) -> str:
    """The start of a text, on one line."""
    line = " ".join(text.split())
    return line if len(line) <= SHORT else line[: SHORT - 1] + "…"


def compared(row: dict[str, Any]) -> list[str]:
    """A query, its answer, and the nearest passage before and after, each with the rank of the answer."""
    before, after = (nearest(row[side], row["answer"]) for side in ("before", "after"))
    if row["before"]["nearest"] == row["after"]["nearest"] != row["answer"]:
        after = f"(rank {row['after']['rank']}) the same as before"
    return [short(row["query"]), short(row["answer"]), before, after]


def nearest(side: dict[str, Any], answer: str) -> str:
    """The nearest passage, and the rank of the answer."""
    return f"(rank {side['rank']}) {'the answer' if side['nearest'] == answer else short(side['nearest'])}"
