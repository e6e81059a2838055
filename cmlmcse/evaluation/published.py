"""STS scores from papers. Tables show them below the measured scores, marked as published."""

from typing import NamedTuple


class Published(NamedTuple):
    """A row of a paper's table: the seven STS sets in the papers' order, "all" setting, Spearman × 100."""

    name: str
    source: str
    scores: tuple[float, float, float, float, float, float, float]
    average: float


CMLMCSE = "CMLM-CSE Table 1"
INFOCSE = "InfoCSE Table 2"

PUBLISHED = (
    Published("GloVe (avg.)", CMLMCSE, (55.14, 70.66, 59.73, 68.25, 63.66, 58.02, 53.76), 61.32),
    Published("BERT-base first-last avg.", CMLMCSE, (39.70, 59.38, 49.67, 66.03, 66.19, 53.87, 62.06), 56.70),
    Published("BERT-base whitening", CMLMCSE, (57.83, 66.90, 60.90, 75.08, 71.31, 68.24, 63.73), 66.28),
    Published("SimCSE-BERT-base", CMLMCSE, (68.40, 82.41, 74.38, 80.91, 78.56, 76.85, 72.23), 76.25),
    Published("DiffCSE-BERT-base", CMLMCSE, (68.43, 82.73, 73.83, 81.56, 78.67, 78.76, 72.09), 76.58),
    Published("DiffCSE-BERT-base", INFOCSE, (72.28, 84.43, 76.47, 83.90, 80.54, 80.59, 71.23), 78.49),
    Published("CMLM-CSE-BERT-base", CMLMCSE, (70.52, 82.20, 74.89, 82.58, 79.06, 78.18, 70.20), 76.80),
    Published("InfoCSE-BERT-base", INFOCSE, (70.53, 84.59, 76.40, 85.10, 81.95, 82.00, 71.37), 78.85),
    Published("SimCSE-RoBERTa-base", CMLMCSE, (70.16, 81.77, 73.24, 81.36, 80.65, 80.22, 68.56), 76.57),
    Published("CMLM-CSE-RoBERTa-base", CMLMCSE, (70.65, 81.94, 74.35, 81.85, 80.54, 80.42, 68.32), 76.87),
)
