"""How commands show text, sizes and shares: on a terminal in colour, elsewhere with plain marks."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

_BAR = 32
TRAINED, NOT_TRAINED, BOUNDARY = "bold bright_green", "dim", "reverse magenta"
OPEN, CLOSE = "\u27e6", "\u27e7"


def coloured(console: Console) -> bool:
    """Whether colours show; if not, plain marks stand for them."""
    return console.color_system is not None and not console.no_color


def marked(runs: list[tuple[str, bool]], console: Console) -> Text:
    """Text of which some is trained on: in colour, or between ``\u27e6`` and ``\u27e7``."""
    text = Text()
    for piece, trained in runs:
        shown = printable(piece)
        if coloured(console):
            text.append(shown, TRAINED if trained else NOT_TRAINED)
        else:
            text.append(f"{OPEN}{shown}{CLOSE}" if trained else shown)
    return text


def legend(console: Console) -> Text:
    """What the marks of :func:`marked` mean."""
    trained = Text("trained on", TRAINED) if coloured(console) else Text(f"{OPEN}trained on{CLOSE}")
    return Text.assemble(trained, ", ", ("not trained on", NOT_TRAINED))


def printable(text: str) -> str:
    r"""Text without the characters that would act on a terminal: a document is data, it must not move the cursor.

    Example:
        >>> printable("a\tb\x1b[2J\x9b")
        'a\tb␛[2J�'
    """
    return "".join(c if c in "\n\t" or not _acts(c) else _picture(c) for c in text)


def one_line(text: str, width: int) -> str:
    r"""The text as one line of at most ``width`` cells of a terminal, line ends shown.

    Example:
        >>> one_line("a\nb\tc" + "x" * 20, 10), one_line("漢字漢字", 5)
        ('a⏎b cxxxx…', '漢字…')
    """
    line = Text(printable(text[: width + 1].replace("\t", " ").replace("\n", "⏎")))
    line.truncate(width, overflow="ellipsis")
    return line.plain


def bar(share: float) -> str:
    """A bar of up to 32 characters; anything above 0 shows.

    Example:
        >>> len(bar(1.0)), bar(0.001), bar(0)
        (32, '▏', '')
    """
    eighths = round(share * _BAR * 8)
    full, rest = divmod(max(eighths, 1) if share > 0 else 0, 8)
    return "█" * full + (" ▏▎▍▌▋▊▉"[rest] if rest else "")


def in_bytes(count: int) -> str:
    """A size in the unit that gives one to three digits.

    Example:
        >>> in_bytes(999), in_bytes(1_500_000)
        ('999 B', '1.5 MB')
    """
    units = ("B", "kB", "MB", "GB", "TB")
    power = min(len(units) - 1, (len(str(count)) - 1) // 3)
    return f"{count / 1000**power:.{min(power, 1)}f} {units[power]}"


def _acts(c: str) -> bool:
    return c < " " or "\x7f" <= c < "\xa0" or c in "\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"


def _picture(c: str) -> str:
    return chr(0x2400 + ord(c)) if c < " " else "\ufffd"
