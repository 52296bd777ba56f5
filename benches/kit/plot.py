"""The plot: processor time a unit, a panel a scenario, a bar a peer. Readable on light and dark."""

from html import escape

from .figures import a, cost

PANELS = ("get", "new", "tlsnew", "h2", "down", "up", "ws", "sse")
COLUMNS, WIDTH, LEFT, BAR, ROW, TOP = 2, 480, 156, 16, 22, 34
STYLE = """
  text { font: 13px system-ui, sans-serif; fill: #1f2328; }
  .title { font-weight: 600; }
  .figure { font-variant-numeric: tabular-nums; }
  .other { fill: #8c959f; }
  .cube { fill: #0969da; }
  @media (prefers-color-scheme: dark) {
    text { fill: #e6edf3; }
    .other { fill: #6e7681; }
    .cube { fill: #4493f8; }
  }
"""


def panel(figures, scenario, titles, x, y):
    """One scenario; its drawing and its height."""
    found = [(peer, figures.cpu(scenario.name, peer)) for peer in titles if figures.cpu(scenario.name, peer)]
    most = max(value for _, value in found)
    title = escape(f"{scenario.title}, CPU {a(scenario.unit)}")
    parts = [f'<text class="title" x="{x}" y="{y + 16}">{title}</text>']
    for number, (peer, value) in enumerate(found):
        top = y + TOP + number * ROW
        length = max(1.0, (WIDTH - LEFT - 90) * value / most)
        kind = "cube" if peer == "cube" else "other"
        parts += [
            f'<text x="{x + LEFT - 8}" y="{top + 13}" text-anchor="end">{escape(titles[peer])}</text>',
            f'<rect class="{kind}" x="{x + LEFT}" y="{top}" width="{length:.1f}" height="{BAR}" rx="2"/>',
            f'<text class="figure" x="{x + LEFT + length + 6:.1f}" y="{top + 13}">'
            f'{escape(cost(scenario.unit, value))}</text>',
        ]
    return parts, TOP + len(found) * ROW + 18


def bars(figures, scenarios, titles):
    """The whole drawing."""
    wanted = [one for one in scenarios if one.name in PANELS and any(figures.cpu(one.name, p) for p in titles)]
    parts, y = [], 8
    for first in range(0, len(wanted), COLUMNS):
        drawn = [panel(figures, scenario, titles, 8 + column * WIDTH, y)
                 for column, scenario in enumerate(wanted[first:first + COLUMNS])]
        parts += [part for pieces, _ in drawn for part in pieces]
        y += max(height for _, height in drawn)
    size = f'width="{COLUMNS * WIDTH + 16}" height="{y}" viewBox="0 0 {COLUMNS * WIDTH + 16} {y}"'
    body = "\n".join(parts)
    return (f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" '
            f'aria-label="Processor time a unit of work, by proxy; less is better">\n'
            f"<style>{STYLE}</style>\n{body}\n</svg>\n")
