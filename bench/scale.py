"""How much is too much? What grows with history, and what a flood, many calls and many writers cost.

Run `.venv/bin/python bench/scale.py` (`--quick` for a smoke run, `--only PART` for one part, `--database` for
the growth on one database, `--json FILE` to keep the numbers, `--docs` to write the page and its plots). Each
part is a module of `bench/scale_parts`. Exits with 1 when a bar is not met.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[0] = str(ROOT)  # or this file's neighbours would hide packages that have their names

from bench.scale_parts import flood, growth, waiting_calls, writers  # noqa: E402
from bench.scale_parts.part import Section  # noqa: E402

PAGE = ROOT / "docs" / "develop" / "bench-scale.md"
IMAGES = ROOT / "docs" / "images"
HEAD = "# Scale\n\nWritten by `bench/scale.py --docs`. Each bar is held against numbers of one run.\n"
PARTS: dict[str, Callable[..., Section]] = {
    "growth": growth.run,
    "flood": flood.run,
    "waiting_calls": waiting_calls.run,
    "writers": writers.run,
}


def write_page(found: dict[str, Section]) -> None:
    """Replace the parts that were run; the others stay as they are."""
    old = PAGE.read_text() if PAGE.exists() else ""
    text = HEAD
    for name in PARTS:
        if name in found:
            text += f"\n<!-- {name} -->\n{found[name].markdown('../images')}\n<!-- end of {name} -->\n"
        elif kept := re.search(rf"\n<!-- {name} -->.*<!-- end of {name} -->\n", old, re.DOTALL):
            text += kept[0]
    for section in found.values():
        for file, image in section.plots.items():
            (IMAGES / file).write_text(image)
    PAGE.write_text(text)


def main() -> int:
    parser = argparse.ArgumentParser(description="What grows, and what many of something cost.")
    parser.add_argument("--quick", action="store_true", help="little of everything: shows that it runs")
    parser.add_argument("--only", choices=PARTS, action="append", help="this part; may be given again")
    parser.add_argument("--database", choices=growth.DATABASES, help="measure the growth on this one alone")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the numbers to FILE")
    parser.add_argument("--docs", action="store_true", help=f"also write {PAGE.relative_to(ROOT)}")
    options = parser.parse_args()
    parts = PARTS | {"growth": partial(growth.run, database=options.database)}
    found: dict[str, Section] = {}
    for name in options.only or parts:
        with tempfile.TemporaryDirectory(prefix=f"scale-{name}-") as directory:
            found[name] = parts[name](quick=options.quick, directory=Path(directory))
        print(found[name].markdown(str(IMAGES.relative_to(ROOT))), flush=True)
    bars = [bar for section in found.values() for bar in section.bars]
    print(f"{sum(bar.is_met for bar in bars)} of {len(bars)} bars met")
    if options.json:
        options.json.write_text(json.dumps({name: each.numbers for name, each in found.items()}, indent=2))
    if options.docs:
        write_page(found)
    return 0 if options.quick or all(bar.is_met for bar in bars) else 1


if __name__ == "__main__":
    sys.exit(main())
