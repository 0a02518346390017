"""Pictures of what the command shows in a terminal of 80 columns, for the documentation; needs chromium.

python tools/make_terminal.py
"""

from __future__ import annotations

import fcntl
import io
import os
import pty
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import termios
from pathlib import Path

from rich.console import Console
from rich.text import Text

from shakeproof import demo

PICTURES = Path(__file__).resolve().parents[1] / "docs" / "pictures"
COLUMNS = 80
SHOWN = {
    "terminal": "profile signs.onnx stop.png warning.png -p motion-blur:size=9,angle=90 -p box-blur:size=9",
    "demo": "demo",
}
# What moves a cursor, as progress bars do: colours end with m.
MOVES = re.compile(r"\x1b\[\??[\d;]*[A-Zhl]")


def shown(words: list[str], folder: Path) -> str:
    """What is left on a terminal of so many columns, with its colours."""
    child, terminal = pty.fork()
    if not child:
        os.chdir(folder)
        os.environ |= {"TERM": "xterm-256color", "COLUMNS": str(COLUMNS)}
        os.execv(sys.executable, [sys.executable, "-m", "shakeproof", *words])
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 50, COLUMNS, 0, 0))
    written = b""
    while some := _read(terminal):
        written += some
    os.waitpid(child, 0)
    lines = MOVES.sub("", written.decode()).replace("\r\n", "\n").split("\n")
    kept = [line.rpartition("\r")[2] for line in lines]
    return "\n".join(line for line in kept if line.strip() and "certifying" not in line)


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65536)
    except OSError:  # the other side has gone
        return b""


def draw(text: str, title: str, path: Path) -> None:
    console = Console(record=True, width=COLUMNS, file=io.StringIO())
    console.print(Text.from_ansi(text))
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder, "page.html")
        svg = console.export_svg(title=title)
        width, height = map(float, re.search(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', svg).groups())
        page.write_text(f"<style>body {{ margin: 0 }} svg {{ width: {width}px }}</style>{svg}")
        size = f"--window-size={round(width)},{round(height)}"
        options = ["--headless", "--no-sandbox", "--hide-scrollbars", size, f"--screenshot={path}"]
        subprocess.run(
            [shutil.which("chromium") or "chromium", *options, page.as_uri()], check=True, capture_output=True
        )


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        shutil.copy(demo.MODEL, Path(folder, "signs.onnx"))
        for picture, _ in demo.images():
            shutil.copy(picture, Path(folder, picture.name.replace(".1", "")))
        for name, words in SHOWN.items():
            draw(shown(words.split(), Path(folder)), f"shakeproof {words.split()[0]}", PICTURES / f"{name}.png")


if __name__ == "__main__":
    main()
