"""How much is too much? What grows with history, and what a flood, many calls and many writers cost.

Run `.venv/bin/python bench/scale.py` (`--quick` for a smoke run, `--only PART` for one part, `--json FILE` to
keep the numbers, `--docs` to write docs/develop/bench-scale.md and its plots). Each part is a module of
`bench/scale_parts`. Bars are ratios within the run. Exits with 1 when one is missed.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[0] = str(ROOT)  # or this file's neighbours would hide packages that have their names

from bench.scale_parts import growth  # noqa: E402
from bench.scale_parts.part import Section  # noqa: E402

PARTS: dict[str, Callable[..., Section]] = {"growth": growth.run}
PAGE = ROOT / "docs" / "develop" / "bench-scale.md"
HEAD = "# Scale\n\nWritten by `bench/scale.py --docs`. Each bar is a ratio or a difference within one run.\n"


def write_page(found: dict[str, Section]) -> None:
    """Replaces the parts that were run and leaves the others as they are."""
    text = PAGE.read_text() if PAGE.exists() else HEAD
    for name, section in found.items():
        text = re.sub(rf"\n<!-- {name} -->.*<!-- end of {name} -->\n", "", text, flags=re.DOTALL)
        text += f"\n<!-- {name} -->\n{section.markdown('../images')}\n<!-- end of {name} -->\n"
        for file, image in section.plots.items():
            (PAGE.parent.parent / "images" / file).write_text(image)
    PAGE.write_text(text)


def main() -> int:
    parser = argparse.ArgumentParser(description="What grows, and what many of something cost.")
    parser.add_argument("--quick", action="store_true", help="a few rows only: shows that it runs")
    parser.add_argument("--only", choices=PARTS, action="append", help="this part; may be given again")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the numbers to FILE")
    parser.add_argument("--docs", action="store_true", help="also write docs/develop/bench-scale.md")
    options = parser.parse_args()
    found: dict[str, Section] = {}
    for name in options.only or PARTS:
        with tempfile.TemporaryDirectory(prefix=f"scale-{name}-") as directory:
            found[name] = PARTS[name](quick=options.quick, directory=Path(directory))
        print(found[name].markdown("docs/images"))
    if options.json:
        options.json.write_text(json.dumps({name: each.numbers for name, each in found.items()}, indent=2))
    if options.docs:
        write_page(found)
    return 0 if options.quick or all(bar.is_met for each in found.values() for bar in each.bars) else 1


if __name__ == "__main__":
    sys.exit(main())
