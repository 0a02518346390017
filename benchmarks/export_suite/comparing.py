"""Two tables as one in Markdown: models down, exporters across."""

from __future__ import annotations

from collections.abc import Sequence

from .asking import Row

OF_TORCH = {"torch.onnx-legacy": "torch.onnx, legacy", "torch.onnx": "torch.onnx", "sp.load": "sp.load"}


def markdown(before: Sequence[Row], after: Sequence[Row]) -> str:
    """A table for torch's exporters and a list for the others; bold is what was not decided before."""
    old = {(row.model, row.exporter): row for row in before}
    new = {(row.model, row.exporter): row for row in after}

    def cell(model: str, exporter: str) -> str:
        row, was = new.get((model, exporter)), old.get((model, exporter))
        if row is None:
            return ""
        said = said_of(row)
        return f"**{said}**" if row.decided and (was is None or not was.decided) else said

    of_torch = sorted({model for model, exporter in new if exporter in OF_TORCH})
    others = sorted((model, exporter) for model, exporter in new if exporter not in OF_TORCH)
    lines = [["model", *OF_TORCH.values()], *([model, *(cell(model, e) for e in OF_TORCH)] for model in of_torch)]
    rest = [["model", "exporter", "answer"], *([model, exporter, cell(model, exporter)] for model, exporter in others)]
    return f"{table(lines)}\n\n{table(rest)}"


def said_of(row: Row) -> str:
    if not row.loads:
        return "refused"
    agreement = f", {row.agree} of {row.sampled}" if row.sampled else ""
    return f"{row.method}, {row.status}, {row.seconds:.1f} s{agreement}"


def table(lines: Sequence[Sequence[str]]) -> str:
    ruler = ["---"] * len(lines[0])
    return "\n".join(f"| {' | '.join(line)} |" for line in (lines[0], ruler, *lines[1:]))
