"""Draw every option alone and with CMLM-CSE, as points over SimCSE: docs/results/methods.png.

python docs/figures/draw_methods.py
"""

from pathlib import Path

from matplotlib import pyplot as plt

from cmlmcse.common.figures import BLUE, GREY, ORANGE, set_labels
from cmlmcse.study.plan import load_study
from cmlmcse.study.statistics import compare, table

ROOT = Path(__file__).resolve().parents[2]
OPTIONS = {  # title → the arm alone, and with CMLM-CSE
    "no option": ("simcse", "cmlm"),
    "mined negatives": ("mined", "cmlm-mined"),
    "negatives without dropout": ("off-dropout", "cmlm-off-dropout"),
    "DenoSent's decoder": ("denosent", "cmlm-denosent"),
    "ranking consistency": ("consistency", "cmlm-consistency"),
    "contrast of dimensions": ("dimensions", "cmlm-dimensions"),
    "ranking distillation": ("distillation", "cmlm-distillation"),
    "RetroMAE's decoder": ("retromae", "cmlm-retromae"),
    "RetroMAE's, mined negatives": ("retromae-mined", "cmlm-retromae-mined"),
    "CoT-BERT's template": ("cot", "cmlm-cot"),
    "a short template": ("prompt", "cmlm-prompt"),
    "600 steps": ("simcse-600", None),
    "CLEAR": ("clear", None),
    "DiffCSE": ("diffcse", None),
    "InfoCSE": ("infocse", None),
}
MEASURES = {"sts.avg": "seven STS sets", "retrieval.avg": "search, five collections"}


def main() -> None:
    """Read the record and write the picture."""
    study = load_study(ROOT / "studies" / "frontier-tests-bert-mini-208m.yaml")
    compared = compare(study, table(study))
    figure, panels = plt.subplots(1, 2, figsize=(10, 5.6), layout="constrained", sharey=True)
    for axes, (measure, title) in zip(panels, MEASURES.items(), strict=True):
        axes.axvline(0, color=GREY, linewidth=0.8)
        for place, arms in enumerate(OPTIONS.values()):
            for arm, colour, shift in zip(arms, (ORANGE, BLUE), (-0.14, 0.14), strict=True):
                if arm is None:
                    continue
                found = compared[measure][arm].difference
                if found is None:  # SimCSE itself
                    axes.plot(0, place + shift, "o", color=colour)
                    continue
                axes.plot([found.low, found.high], [place + shift] * 2, color=colour, linewidth=1.2)
                label = {"mined": "without CMLM-CSE", "cmlm-mined": "with CMLM-CSE"}.get(arm)
                axes.plot(found.mean, place + shift, "o", color=colour, label=label)
        axes.set_yticks(range(len(OPTIONS)), list(OPTIONS))
        set_labels(axes, "points over SimCSE, paired, 95 % interval", "", title)
    panels[0].invert_yaxis()
    figure.legend(*panels[0].get_legend_handles_labels(), frameon=False, loc="outside lower center", ncols=2)
    figure.savefig(ROOT / "docs" / "results" / "methods.png", dpi=130)


if __name__ == "__main__":
    main()
