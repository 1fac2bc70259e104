"""Charts as SVG, without a library: panels in a grid, of bars, stacked bars or lines."""

from __future__ import annotations

from dataclasses import dataclass, field
from xml.sax.saxutils import escape

FONT = "font-family='system-ui, sans-serif'"
INK, FAINT, GRID = "#222222", "#666666", "#dddddd"
# Okabe and Ito's colours, which the colour-blind can tell apart.
BLUE, ORANGE, GREEN, SKY, PURPLE, RED, GREY = (
    "#0072b2",
    "#e69f00",
    "#009e73",
    "#56b4e9",
    "#cc79a7",
    "#d55e00",
    "#999999",
)
PANEL_WIDTH, PANEL_HEIGHT = 300, 210
MARGIN_LEFT, MARGIN_RIGHT, MARGIN_TOP, MARGIN_BOTTOM = 46, 10, 30, 44
HEAD, LEGEND = 34, 24
TICKS = 4


@dataclass
class Bar:
    label: str
    # Stacked from below: value and colour.
    parts: list[tuple[float, str]]
    # Text above the bar; empty for none.
    text: str = ""

    @property
    def total(self) -> float:
        return sum(value for value, _ in self.parts)


@dataclass
class Line:
    values: list[float | None]
    colour: str
    dashed: bool = False


@dataclass
class Panel:
    title: str
    bars: list[Bar] = field(default_factory=list)
    lines: list[Line] = field(default_factory=list)
    # Labels below the points of lines.
    labels: list[str] = field(default_factory=list)
    # A level drawn across the whole panel.
    mark: float | None = None

    @property
    def top(self) -> float:
        values = [bar.total for bar in self.bars] + [v for line in self.lines for v in line.values if v is not None]
        return nice(max([*values, self.mark or 0.0, 1e-9]) * 1.08)


def nice(value: float) -> float:
    """Returns the next number of the form 1, 2, 3, 4, 5, 6, 8 or 10 times a power of ten."""
    power = 10.0 ** (len(f"{value:.0f}") - 1)
    while power > value:
        power /= 10
    return next((digit * power for digit in (1, 1.5, 2, 3, 4, 5, 6, 8) if digit * power >= value), 10 * power)


def chart(title: str, panels: list[Panel], legend: list[tuple[str, str]], columns: int, unit: str) -> str:
    """Returns the whole picture; `unit` is the axes' unit."""
    columns = max(1, min(columns, len(panels)))
    rows = -(-len(panels) // columns)
    width = columns * PANEL_WIDTH
    height = HEAD + LEGEND + rows * PANEL_HEIGHT
    out = [
        f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {width} {height}' width='{width}' height='{height}'>",
        f"<rect width='{width}' height='{height}' fill='white'/>",
        _text(12, 22, f"{title} ({unit})", 15, INK, weight="bold"),
    ]
    x = 12.0
    for name, colour in legend:
        out.append(f"<rect x='{x:.0f}' y='{HEAD + 2}' width='11' height='11' fill='{colour}'/>")
        out.append(_text(x + 16, HEAD + 12, name, 12, INK))
        x += 30 + 7 * len(name)
    for number, panel in enumerate(panels):
        left, top = number % columns * PANEL_WIDTH, HEAD + LEGEND + number // columns * PANEL_HEIGHT
        out.append(f"<g transform='translate({left} {top})'>")
        out += _panel(panel)
        out.append("</g>")
    return "\n".join([*out, "</svg>"]) + "\n"


def _panel(panel: Panel) -> list[str]:
    top = panel.top
    bottom, right = PANEL_HEIGHT - MARGIN_BOTTOM, PANEL_WIDTH - MARGIN_RIGHT
    height, width = bottom - MARGIN_TOP, right - MARGIN_LEFT

    def y(value: float) -> float:
        return bottom - value / top * height

    out = [_text(MARGIN_LEFT, MARGIN_TOP - 12, panel.title, 12, INK, weight="bold")]
    for tick in range(TICKS + 1):
        value = top * tick / TICKS
        at = y(value)
        out.append(f"<line x1='{MARGIN_LEFT}' y1='{at:.1f}' x2='{right}' y2='{at:.1f}' stroke='{GRID}'/>")
        out.append(_text(MARGIN_LEFT - 5, at + 4, f"{value:.3g}", 10, FAINT, anchor="end"))
    if panel.mark is not None:
        at = y(panel.mark)
        out.append(f"<line x1='{MARGIN_LEFT}' y1='{at:.1f}' x2='{right}' y2='{at:.1f}' stroke='{INK}'/>")
    labels = [bar.label for bar in panel.bars] or panel.labels
    step = width / max(1, len(labels))
    for number, label in enumerate(labels):
        middle = MARGIN_LEFT + step * (number + 0.5)
        for line, word in enumerate(label.split("\n")):
            out.append(_text(middle, bottom + 13 + 11 * line, word, 9.5, FAINT, anchor="middle"))
    for number, bar in enumerate(panel.bars):
        left, at = MARGIN_LEFT + step * (number + 0.15), bottom
        for value, colour in bar.parts:
            tall = value / top * height
            at -= tall
            out.append(
                f"<rect x='{left:.1f}' y='{at:.1f}' width='{step * 0.7:.1f}' height='{tall:.1f}' fill='{colour}'/>"
            )
        if bar.text:
            out.append(_text(left + step * 0.35, at - 3, bar.text, 9.5, INK, anchor="middle"))
    for line in panel.lines:
        points = [(MARGIN_LEFT + step * (n + 0.5), y(v)) for n, v in enumerate(line.values) if v is not None]
        path = " ".join(f"{a:.1f},{b:.1f}" for a, b in points)
        dashes = " stroke-dasharray='5 4'" if line.dashed else ""
        out.append(f"<polyline points='{path}' fill='none' stroke='{line.colour}' stroke-width='2'{dashes}/>")
        if not line.dashed:
            out += [f"<circle cx='{a:.1f}' cy='{b:.1f}' r='3' fill='{line.colour}'/>" for a, b in points]
    return out


def _text(x: float, y: float, text: str, size: float, colour: str, anchor: str = "start", weight: str = "") -> str:
    bold = f" font-weight='{weight}'" if weight else ""
    place = f"x='{x:.1f}' y='{y:.1f}' text-anchor='{anchor}'"
    return f"<text {place} {FONT} font-size='{size:g}'{bold} fill='{colour}'>{escape(text)}</text>"
