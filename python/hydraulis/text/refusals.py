"""What a configuration is refused for: all of it at once, so that it is mended in one go."""

from collections.abc import Iterator
from contextlib import contextmanager

from hydraulis.errors import InvalidInputError


class Refusals:
    """Collects refusals that do not follow from each other."""

    def __init__(self) -> None:
        self._errors: list[InvalidInputError] = []

    @contextmanager
    def collected(self) -> Iterator[None]:
        """Keep what is refused within the context, and go on behind it."""
        try:
            yield
        except InvalidInputError as error:
            self._errors.append(error)

    def raise_any(self) -> None:
        """Raise what was kept, if anything was.

        Raises:
            InvalidInputError: says all of it; its code is that of the first.
        """
        if not self._errors:
            return
        error, *others = self._errors
        if not others:
            raise error
        raise InvalidInputError("; also: ".join(map(str, self._errors)), code=error.code)
