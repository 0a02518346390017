"""Tables of anything; no torch is needed for them."""

from __future__ import annotations

from rich.table import Table


def plain_table(*headings: str) -> Table:
    """An empty table in the house style."""
    table = Table(header_style="bold", pad_edge=False)
    for heading in headings:
        table.add_column(heading, overflow="fold")
    return table
