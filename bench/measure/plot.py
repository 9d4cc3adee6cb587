"""The plot: throughput and p99 against the number of clients and the depth of pipelines, as SVG by hand.

One row for each load and kind of command; a line for each target. Not here: anything that is not in the JSON file.
"""
import math
from xml.sax.saxutils import escape

# Okabe and Ito's colours: told apart also by the colour-blind; the marks differ too.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")
MARKS = ("circle", "square", "diamond", "triangle")
PANEL_W, PANEL_H = 300, 190
LEFT, TOP, GAP_X, GAP_Y, BOTTOM = 64, 112, 74, 84, 56
INK, FAINT = "#222222", "#dddddd"


def picture(content):
    """The whole SVG text of one run."""
    names = [target["name"] for target in content["targets"]]
    rows = rows_of(content["points"])
    columns = max((len(panels) for _, panels in rows), default=1)
    width = LEFT + columns * PANEL_W + (columns - 1) * GAP_X + 24
    height = TOP + len(rows) * PANEL_H + max(0, len(rows) - 1) * GAP_Y + BOTTOM
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
           f'height="{height}" font-family="sans-serif" font-size="11" fill="{INK}">',
           f'<rect width="{width}" height="{height}" fill="#ffffff"/>']
    out += headline(content, names)
    for index, (title, panels) in enumerate(rows):
        y = TOP + index * (PANEL_H + GAP_Y)
        out.append(text(LEFT, y - 20, title, weight="bold", size=12))
        for column, panel in enumerate(panels):
            out += draw_panel(LEFT + column * (PANEL_W + GAP_X), y, panel, names)
    out.append("</svg>")
    return "\n".join(out) + "\n"


def headline(content, names):
    machine = content["machine"]
    said = (f"{content['date'][:10]}, commit {content['commit']}: {machine['cpu']}, {machine['cpus']} CPUs, "
            f"Linux {machine['kernel']}")
    out = [text(LEFT, 22, "Throughput and p99 latency", weight="bold", size=15), text(LEFT, 40, said)]
    x = LEFT
    for index, name in enumerate(names):
        out.append(f'<line x1="{x}" y1="56" x2="{x + 22}" y2="56" stroke="{colour(index)}" stroke-width="2"/>')
        out.append(mark(index, x + 11, 56))
        out.append(text(x + 28, 60, name))
        x += 52 + 7 * len(name)
    return out


def rows_of(points):
    """[(title, [panel])]: a panel is title, label of x, unit, logarithmic, {target: [(x, y)]}."""
    groups = {}
    for point in points:
        groups.setdefault((point["load"], point["op"]), []).append(point)
    rows = []
    for (load, op), group in groups.items():
        if load == "open_loop":
            curves = [("rate", group, "commands a second, asked for")]
        else:
            flat = [point for point in group if point["pipeline"] == 1]
            # Where the two sweeps meet: the number of clients that the deep pipelines have.
            middle = next((point["clients"] for point in group if point["pipeline"] > 1), None)
            deep = [point for point in group if point["clients"] == middle]
            curves = [("clients", flat, "clients, unpipelined")]
            if middle is not None:
                curves.append(("pipeline", deep, f"pipeline depth, {middle} clients"))
        panels = []
        for key, chosen, label in curves:
            panels.append(("commands a second", label, False, lines_of(chosen, key, "rate")))
            panels.append(("p99, milliseconds (logarithmic)", label, True, lines_of(chosen, key, "p99")))
        rows.append((f"{load}: {op}", panels))
    return rows


def lines_of(points, key, figure):
    lines = {}
    for point in sorted(points, key=lambda point: point[key]):
        for name, told in point["targets"].items():
            value = told["median"].get(figure)
            if value is not None:
                lines.setdefault(name, []).append((point[key], value))
    return lines


def draw_panel(left, top, panel, names):
    title, label, logarithmic, lines = panel
    places = sorted({x for line in lines.values() for x, _ in line})
    values = [y for line in lines.values() for _, y in line]
    if not values:
        return []
    ticks = log_ticks(min(values), max(values)) if logarithmic else ticks_to(max(values))

    def at_x(value):
        # Even steps: 1, 50, 200 and 1,000 clients are cases, no scale.
        share = (places.index(value) + 0.5) / len(places)
        return left + share * PANEL_W

    def at_y(value):
        if logarithmic:
            low, high = math.log(ticks[0]), math.log(ticks[-1])
            share = (math.log(value) - low) / (high - low)
        else:
            share = value / ticks[-1]
        return top + PANEL_H * (1 - share)

    out = [text(left, top - 5, title, size=10)]
    for tick in ticks:
        y = at_y(tick)
        out.append(f'<line x1="{left}" y1="{y:.1f}" x2="{left + PANEL_W}" y2="{y:.1f}" stroke="{FAINT}"/>')
        out.append(text(left - 6, y + 4, short(tick), anchor="end", size=10))
    for place in places:
        out.append(text(at_x(place), top + PANEL_H + 15, short(place), anchor="middle", size=10))
    out.append(text(left + PANEL_W / 2, top + PANEL_H + 31, label, anchor="middle", size=10))
    for index, name in enumerate(names):
        line = lines.get(name, [])
        if len(line) > 1:
            path = " ".join(f"{at_x(x):.1f},{at_y(y):.1f}" for x, y in line)
            out.append(f'<polyline points="{path}" fill="none" stroke="{colour(index)}" stroke-width="2"/>')
        for x, y in line:
            out.append(mark(index, at_x(x), at_y(y), f"{name}: {short(y)}"))
    return out


def ticks_to(most):
    """Round steps from 0 to at least `most`."""
    step = 1.0
    while step * 5 < most:
        step *= 10
    while step * 2 >= most and step > 1e-9:
        step /= 10
    for factor in (1, 2, 5, 10):
        if step * factor * 6 >= most:
            step *= factor
            break
    ticks = [0.0]
    while ticks[-1] < most:
        ticks.append(ticks[-1] + step)
    return ticks


def log_ticks(least, most):
    """1, 2, 5, 10 and so on around the values; at least two of them."""
    series = [digit * 10.0 ** power for power in range(-4, 7) for digit in (1, 2, 5)]
    low = max((value for value in series if value <= least), default=series[0])
    high = min((value for value in series if value >= most), default=series[-1])
    if low == high:
        high = series[series.index(high) + 1]
    return [value for value in series if low <= value <= high]


def short(value):
    if value >= 1_000_000:
        return f"{value / 1_000_000:g}M"
    if value >= 10_000:
        return f"{value / 1000:.4g}k"
    if value >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def colour(index):
    return COLOURS[index % len(COLOURS)]


def mark(index, x, y, told=None):
    fill = f'fill="{colour(index)}" stroke="#ffffff"'
    title = f"<title>{escape(told)}</title>" if told else ""
    shape = MARKS[index % len(MARKS)]
    if shape == "circle":
        return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4.5" {fill}>{title}</circle>'
    if shape == "square":
        return f'<rect x="{x - 4:.1f}" y="{y - 4:.1f}" width="8" height="8" {fill}>{title}</rect>'
    corners = {"diamond": ((0, -5.5), (5.5, 0), (0, 5.5), (-5.5, 0)), "triangle": ((0, -5.5), (5, 4), (-5, 4))}[shape]
    path = " ".join(f"{x + dx:.1f},{y + dy:.1f}" for dx, dy in corners)
    return f'<polygon points="{path}" {fill}>{title}</polygon>'


def text(x, y, words, anchor="start", size=11, weight="normal"):
    return (f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}" font-weight="{weight}">'
            f'{escape(words)}</text>')
