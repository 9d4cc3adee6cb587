"""What was measured: medians, ratios, the table for people, the file for machines.

Not here: measuring, drawing.
"""
import json
import statistics

from spec import name_of

FORMAT = 1
FIGURES = ("rate", "p50", "p99", "p999", "proxy_ns", "nodes_ns", "enters")


def median_of(rounds):
    """The median of each figure over the rounds that have it."""
    found = {}
    for figure in FIGURES:
        values = [row[figure] for row in rounds if row.get(figure) is not None]
        found[figure] = statistics.median(values) if values else None
    return found


def spread_of(rounds, figure="rate"):
    """How far the rounds lie apart, as a share of their median: what a difference must exceed to mean something."""
    values = [row[figure] for row in rounds if row.get(figure)]
    return (max(values) - min(values)) / statistics.median(values) if values else 0.0


def ratio(value, base):
    return value / base if value is not None and base else None


def table(point, targets, baseline):
    """Lines for people. targets: name → {"median": …, "rounds": […], "calls": …}."""
    base = targets.get(baseline, {}).get("median", {})
    head = ["", "commands/s", "p50 ms", "p99 ms", "p99.9 ms", "proxy ns/cmd", "nodes ns/cmd", "calls/cmd: proxy",
            "nodes", "enters/cmd", "spread"]
    rows = [head]
    for name, told in targets.items():
        median = told["median"]
        calls = told.get("calls") or {}

        def cell(figure, digits, median=median):
            value = median.get(figure)
            if value is None:
                return "-"
            part = ratio(value, base.get(figure))
            return f"{value:,.{digits}f}" + (f" ({part:.2f})" if part is not None else "")
        rows.append([name, cell("rate", 0), cell("p50", 3), cell("p99", 3), cell("p999", 3), cell("proxy_ns", 0),
                     cell("nodes_ns", 0), number(calls.get("proxy")), number(calls.get("nodes")),
                     number(median.get("enters")), f"{spread_of(told['rounds']):.0%}"])
    widths = [max(len(row[column]) for row in rows) for column in range(len(head))]
    lines = [f"== {name_of(point)}"]
    for row in rows:
        cells = [row[0].ljust(widths[0])] + [text.rjust(width) for text, width in zip(row[1:], widths[1:])]
        lines.append("  " + "  ".join(cells).rstrip())
    return lines


def number(value):
    return "-" if value is None else f"{value:.3f}"


def document(facts, points):
    """The file for machines. points: [(Point, {target: told})]."""
    return {
        "format": FORMAT, **facts,
        "points": [{**point._asdict(), "targets": targets} for point, targets in points],
    }


def write(path, content):
    with open(path, "w") as file:
        json.dump(content, file, indent=1)
        file.write("\n")
