"""The mean of the weights of several exports of one shape, in half precision, in a copy of the first one.

    python benchmarks/mean_of_weights.py EXPORT ... [--shares 1 1 2] --output FOLDER

With --shares an export counts as often as its number says. The card of the first one is copied: write it anew.
"""

import argparse
import json
import shutil
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file


def main() -> None:
    """Write the folder."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("exports", nargs="+", type=Path, metavar="EXPORT")
    parser.add_argument("--shares", nargs="+", type=float, help="as many as exports; all alike if not given")
    parser.add_argument("--output", type=Path, required=True, help="must not exist yet")
    args = parser.parse_args()
    shares = torch.tensor(args.shares or [1.0] * len(args.exports), dtype=torch.float64)
    if len(shares) != len(args.exports) or not shares.gt(0).all():
        parser.error(f"--shares expects a number above 0 for each export, found {args.shares}")
    weights = [load_file(export / "model.safetensors") for export in args.exports]
    if any(each.keys() != weights[0].keys() for each in weights):
        parser.error("expected exports of one shape, found other names of weights in one of them")
    shutil.copytree(args.exports[0], args.output)
    mean = {
        name: torch.stack([each[name].double() for each in weights], dim=-1).matmul(shares / shares.sum()).half()
        for name in weights[0]
    }
    save_file(mean, args.output / "model.safetensors", metadata={"format": "pt"})
    sources = ", ".join(f"{export} ({share:g})" for export, share in zip(args.exports, shares, strict=True))
    print(f"{args.output}: the mean of {sources}", json.dumps({"tensors": len(mean)}))


if __name__ == "__main__":
    main()
