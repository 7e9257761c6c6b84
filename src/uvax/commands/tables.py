"""Tables on a terminal."""

from rich.table import Table as RichTable

from uvax.experiments.content import Table, text_table


def rich_table(table: Table) -> RichTable:
    """The table with its title and caption."""
    header, *body = text_table(table)
    shown = RichTable(*header, title=table.title, caption=table.caption)
    for row in body:
        shown.add_row(*row)
    return shown
