"""Progress on a terminal; nothing elsewhere."""

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import Progress as Bars

from ffwd_ort.export import Progress


@contextmanager
def progress_bar(title: str, *, quiet: bool = False) -> Iterator[Progress]:
    """Give a callback that draws a bar on standard error, if that is a terminal."""
    console = Console(stderr=True)
    if quiet or not console.is_terminal:
        yield lambda what, done, total: None
        return
    with Bars(console=console, transient=True) as bars:
        task = bars.add_task(title, total=None)
        yield lambda what, done, total: bars.update(task, description=f"{title} {what}", completed=done, total=total)
