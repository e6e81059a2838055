"""Where the checkout and the data sets are."""

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DATA = Path(os.environ.get("CMLMCSE_DATA", ROOT / ".." / "shared" / "data"))
