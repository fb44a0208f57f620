"""A dot plot as SVG: one line for each thing measured, one dot for each size."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from xml.sax.saxutils import escape

LEFT, WIDTH, ROW, TOP = 230, 420, 18, 48
COLOURS = ("#999", "#4878a8", "#c44e2f", "#3a7d44")
TEXT = 'font-family="sans-serif" font-size="12" fill="#444"'


def dot_plot(title: str, sizes: Sequence[str], rows: Mapping[str, Sequence[float]], *, bar: float) -> str:
    """`rows` are values by size; the dashed line is the bar."""
    most = max(bar * 1.2, *(value for values in rows.values() for value in values))
    height = TOP + ROW * len(rows) + 30
    drawn = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {LEFT + WIDTH + 30} {height}" role="img">',
        f'<rect width="100%" height="100%" fill="#fff"/><text x="10" y="18" {TEXT}>{escape(title)}</text>',
    ]
    for number, size in enumerate(sizes):
        x = LEFT + number * 110
        drawn.append(f'<circle cx="{x}" cy="32" r="4" fill="{COLOURS[number]}"/>')
        drawn.append(f'<text x="{x + 8}" y="36" {TEXT}>{escape(size)}</text>')
    for number, (name, values) in enumerate(rows.items()):
        y = TOP + ROW * number + 12
        drawn.append(f'<text x="{LEFT - 10}" y="{y + 4}" text-anchor="end" {TEXT}>{escape(name)}</text>')
        drawn.append(f'<line x1="{LEFT}" x2="{LEFT + WIDTH}" y1="{y}" y2="{y}" stroke="#ddd"/>')
        drawn += [
            f'<circle cx="{LEFT + value / most * WIDTH:.1f}" cy="{y}" r="4" fill="{COLOURS[each]}"/>'
            for each, value in enumerate(values)
        ]
    x, bottom = LEFT + bar / most * WIDTH, height - 22
    drawn.append(
        f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{TOP}" y2="{bottom}" stroke="#c44e2f" stroke-dasharray="4 3"/>'
    )
    for value in dict.fromkeys((0.0, 1.0, bar)):
        at = LEFT + value / most * WIDTH
        drawn.append(f'<text x="{at:.1f}" y="{height - 6}" text-anchor="middle" {TEXT}>{value:g}</text>')
    return "\n".join([*drawn, "</svg>", ""])
