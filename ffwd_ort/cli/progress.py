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
    with Bars(console=console, disable=quiet or not console.is_terminal, transient=True) as bars:
        tasks = {"": bars.add_task(title, total=None)}

        def report(what: str, done: int, total: int) -> None:
            bars.update(tasks[""], description=f"{title} {what}", completed=done, total=total)

        yield report
