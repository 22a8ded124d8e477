"""Logs of what users chose, the user's own or a made one; and the items in them, with an id for each."""

from __future__ import annotations

import csv
import os
import random
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, MutableSequence, Sequence
from contextlib import suppress
from decimal import Decimal, InvalidOperation
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from keras_transformer.core.errors import RequestError, warn
from keras_transformer.core.files import write_text
from keras_transformer.spec.options import Config
from keras_transformer.text.corpora import Corpus
from keras_transformer.text.lines import each_of, read_lines, sha256_of, string_of, strings_of
from keras_transformer.text.tokenizer import END
from keras_transformer.training.task import recipe_named

FIRST_ITEM = END + 1  # as for text, the ids before are pad, unknown, start and end
MAX_BYTES = 2**28  # the largest file of names
History = list[str]  # the items of a user, the oldest first
Time = int | Decimal  # exact: a float of nanoseconds since 1970 is a multiple of 256
# What a header may call a column, without capitals, underscores, and RecBole's type after a colon.
COLUMNS = {"user": {"user", "userid"}, "item": {"item", "itemid", "movieid"}, "time": {"time", "timestamp"}}
NOT_IN_NAMES = {"\t", "\n", "\r", "\ufeff"}  # what a line of items.txt, or of histories, could not give back
MAX_NAME = 1_000  # characters of a user's or an item's name
SERIES_RECIPE: Config = {
    "num_layers": 2,
    "hidden_dim": 64,
    "intermediate_dim": 128,
    "num_heads": 2,
    "dropout": 0.1,
    "context_length": 32,
    "token_budget": 2_048,
    "residual": "pre_norm",
    "steps": 600,
    "warmup_steps": 200,
    "learning_rate_factor": 0.3,
    "checkpoint_every": 150,
}
RECIPES = {"series": SERIES_RECIPE}
NUM_READERS, NUM_SERIES, NUM_PARTS, NUM_NOVELS = 3_000, 40, 10, 60


class Items:
    """Items and their ids, from `FIRST_ITEM` on.

    Args:
        names: the names of the items, in the order of their ids.

    Raises:
        ValueError: there are no names, or one of them is blank or is there twice.
    """

    def __init__(self, names: Sequence[str]):
        self.names = list(strings_of(names, "names"))
        self._ids = {name: id for id, name in enumerate(self.names, start=FIRST_ITEM)}
        if not self.names or not all(name.strip() for name in self.names):
            raise ValueError("expected names of items; received none, or a blank one")
        if len(self._ids) < len(self.names):
            ((name, _),) = Counter(self.names).most_common(1)
            raise ValueError(f"expected each item once; received {name!r:.60} more than once")

    def __len__(self) -> int:
        return len(self.names)

    @property
    def vocabulary_size(self) -> int:
        """The number of ids, the control ids included."""
        return FIRST_ITEM + len(self)

    @classmethod
    def of(cls, histories: Iterable[Iterable[str]], vocabulary_size: int) -> Items:
        """Counts the items of histories: the most frequent first, as many as a vocabulary of this size holds."""
        counts = Counter(item for history in each_of(histories, "histories") for item in strings_of(history, "items"))
        most = max(1, vocabulary_size - FIRST_ITEM)
        return cls(sorted(counts, key=lambda item: (-counts[item], item))[:most])

    @classmethod
    def load(cls, path: Path) -> Items:
        """Reads a file with a name a line.

        Raises:
            RequestError: the file is missing, too large, or damaged.
        """
        if path.is_file() and path.stat().st_size > MAX_BYTES:
            raise RequestError(f"{path} is damaged: it is larger than {MAX_BYTES:,} bytes")
        try:
            return cls(list(read_lines(path)))
        except RequestError:
            raise
        except ValueError as error:
            raise RequestError(f"{path} is damaged: {error}") from error

    def save(self, path: Path) -> None:
        """Writes a file with a name a line."""
        write_text(path, "".join(f"{name}\n" for name in self.names))

    def encode(self, history: Iterable[str]) -> list[int]:
        """Returns the ids of a history. Items that the vocabulary lacks are left out.

        Raises:
            RequestError: the history is no list of strings.
        """
        return [self._ids[name] for name in strings_of(history, "items") if name in self._ids]

    def id(self, name: str, unknown: int) -> int:
        """Returns the id of an item, or `unknown` if the vocabulary lacks the item."""
        return self._ids.get(string_of(name), unknown)


class Log(NamedTuple):
    """The histories of users. Users stand in the order of their first events in the file."""

    users: list[str]
    histories: list[History]


def read_log(path: str | os.PathLike[str]) -> Log:
    """Reads a log: UTF-8, plain or .gz, values divided by tabs, or by commas as in CSV; a line an event.

    A header names the columns `user`, `item` and `time` (or `user_id`, `item_id`, `movie_id`, `timestamp`, with or
    without RecBole's types, such as `user_id:token`); further columns are not read. Without a header the columns are
    user, item and time. The events of a user are sorted by time; those of one time stay in the order of the file. Times
    are compared as they are written, however many digits they have.

    Raises:
        RequestError: the file is missing, empty or unreadable, or a line has no user, item or time. A time is a finite
            number.
    """
    users: dict[str, int] = {}
    items: dict[str, int] = {}
    events: list[tuple[array[int], MutableSequence[Any]]] = []  # the events of each user: items and times
    for user, item, time in _events(path):
        number = users.setdefault(user, len(users))
        if number == len(events):
            events.append((array("i"), array("q")))
        events[number][0].append(items.setdefault(item, len(items)))
        try:
            events[number][1].append(time)
        except (TypeError, OverflowError):  # no 64-bit integer
            events[number] = events[number][0], [*events[number][1], time]
    if not users:
        raise RequestError(f"{path} holds no events; expected a line with user, item and time for each")
    names = list(items)
    histories = [
        [names[numbers[place]] for place in sorted(range(len(numbers)), key=times.__getitem__)]
        for numbers, times in events
    ]
    return Log(list(users), histories)


def _events(path: str | os.PathLike[str]) -> Iterator[tuple[str, str, Time]]:
    """(user, item, time) of each line but the header and blank lines."""
    lines = read_lines(path)
    first = next(lines, None)
    if first is None:
        raise RequestError(f"{path} is empty; expected lines of user, item and time")
    form: Config = {"delimiter": ","}
    if "\t" in first:
        form = {"delimiter": "\t", "quoting": csv.QUOTE_NONE}
    with_breaks = (f"{line}\n" for line in chain([first], lines))  # a quoted value of CSV may hold some
    reader = csv.reader(with_breaks, strict=True, **form)
    try:
        head = next(reader)
        columns = _columns(head, path)
        if columns is None:
            columns = (0, 1, 2)
            yield _event(head, columns, len(head), f"{path}, line 1")
        for row in reader:
            if row:
                yield _event(row, columns, len(head), f"{path}, line {reader.line_num}")
    except csv.Error as error:
        raise RequestError(f"{path}, line {reader.line_num}: not CSV ({error}); mend the line") from None


def _columns(head: list[str], path: str | os.PathLike[str]) -> tuple[int, ...] | None:
    """Returns the places of user, item and time in each line, if the first one is a header; None if it is an event."""
    names = [cell.partition(":")[0].strip().lower().replace("_", "") for cell in head]
    places = {column: [at for at, name in enumerate(names) if name in known] for column, known in COLUMNS.items()}
    if all(len(found) == 1 for found in places.values()):
        return tuple(at for (at,) in places.values())
    if len(head) == 3 and not any(places.values()):
        return None
    raise RequestError(
        f"{path}, line 1: expected a header that names each of the columns user, item and time once, or three columns "
        f"in this order without a header; received {', '.join(head)!r:.100}"
    )


def _event(row: list[str], columns: tuple[int, ...], width: int, place: str) -> tuple[str, str, Time]:
    if len(row) != width:
        raise RequestError(f"{place}: expected {width} columns, as in line 1; received {len(row)}")
    user, item, time = (row[column].strip() for column in columns)
    for name, value in (("user", user), ("item", item)):
        if not value or len(value) > MAX_NAME or not NOT_IN_NAMES.isdisjoint(value):
            raise RequestError(
                f"{place}: expected the name of {name} in one line, 1 to {MAX_NAME:,} characters without tabs or "
                f"byte order marks; received {value!r:.60}"
            )
    return user, item, _time(time, place)


def _time(text: str, place: str) -> Time:
    try:
        return int(text)
    except ValueError:
        with suppress(InvalidOperation):
            if (time := Decimal(text)).is_finite():
                return time
    raise RequestError(f"{place}: expected a time, a number such as seconds since 1970; received {text!r:.60}")


def log_from_file(path: str | os.PathLike[str]) -> Corpus[History]:
    """Returns the user's own log; see `read_log`. The last event of each user is held out (Kang and McAuley 2018, 4.2).

    `train` yields histories without their last events, `valid` whole ones. The event of a user with one event alone is
    trained on.

    Raises:
        RequestError: the log cannot be read, no user has two events, or training sees fewer than two items.
    """
    histories = read_log(path).histories
    if alone := sum(len(history) == 1 for history in histories):
        warn(f"{path}: {alone} user(s) have one event alone, which is trained on; nothing of them is held out")
    if alone == len(histories):
        raise RequestError(f"{path}: expected users with two events or more; received none: their last one is held out")
    corpus = _leave_one_out("files", histories)
    if len({item for history in corpus.train() for item in history}) < 2:
        raise RequestError(f"{path}: expected events with at least two items to train on; received one: add events")
    return corpus


def _leave_one_out(name: str, histories: list[History], recipe: Config | None = None) -> Corpus[History]:
    """Returns the corpus without the last event of each user who has two."""

    def train() -> Iterator[History]:
        return (history[:-1] if len(history) > 1 else history for history in histories)

    def valid() -> Iterator[History]:
        return (history for history in histories if len(history) > 1)

    identity = sha256_of("\t".join(history) for history in histories)
    return Corpus(name, None, None, train, valid, identity, recipe or {})


def named_log(name: str) -> Corpus[History]:
    """Returns a named log: `series`, in which readers follow several series of books in turns, part by part.

    Which series comes next is chance, so the item before does not tell the next one; the history does.

    Raises:
        RequestError: the name is unknown.
    """
    recipe = recipe_named(name, RECIPES, "a log is one of", "--log")
    generator = random.Random(0)
    return _leave_one_out(name, [_reader(generator) for _ in range(NUM_READERS)], recipe)


def _reader(generator: random.Random) -> History:
    """Makes up what one reader reads: the next part of one of some series, and now and then a novel."""
    to_read = generator.sample(range(NUM_SERIES), NUM_SERIES)
    reading = {to_read.pop(): generator.randint(1, 4) for _ in range(2)}
    history: History = []
    for _ in range(generator.randint(8, 24)):
        if generator.random() < 0.1:
            history.append(f"novel {min(int(generator.paretovariate(0.8)), NUM_NOVELS)}")
            continue
        series = generator.choice([*reading])
        history.append(f"series {series}, part {reading[series]}")
        reading[series] += 1
        if reading[series] > NUM_PARTS:
            del reading[series]
            reading[to_read.pop()] = 1
    return history
