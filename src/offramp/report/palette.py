"""One colour per method, the same in every chart."""

__all__ = ["DASHES", "PALETTE", "look_of"]

# Okabe and Ito's colours, which people with colour blindness can tell apart, for a light and for
# a dark background.
PALETTE = (
    ("#7f7f7f", "#a3a8b0"),
    ("#0072b2", "#4aa5e4"),
    ("#d55e00", "#f5813d"),
    ("#e69f00", "#f3bd45"),
    ("#009e73", "#35c79c"),
    ("#cc79a7", "#e29cc3"),
    ("#56b4e9", "#93d3f7"),
    ("#000000", "#f2f2f2"),
)
DASHES = ("solid", "dash", "dot")


def look_of(number: int) -> tuple[int, str]:
    """Colour (its place in the palette) and dash of the method with this number.

    Example:
        >>> look_of(2), look_of(9)
        ((2, 'solid'), (1, 'dash'))
    """
    return number % len(PALETTE), DASHES[number // len(PALETTE) % len(DASHES)]
