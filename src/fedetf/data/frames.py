"""Tables as people have them, read into one form: named columns, and what each of them holds.

CSV and Parquet files, data frames and tables of the hub all become a :class:`Frame`. What is wrong with a file is one
line that says where.
"""

import csv
import io
import json
import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
from numpy.typing import NDArray

from fedetf.data.decode import class_name
from fedetf.errors import UserError, printable
from fedetf.files import MIB, TABLE, checked, naming, read_bytes

MISSING = frozenset({"", "na", "n/a", "nan", "null", "none", "?"})  # what stands for no value, in small letters
HUGE = 2**24  # characters of one cell
MOSTLY = 0.9  # a column with so many numbers is one of numbers; what is none in it is a slip
MOST_COLUMNS = 10_000
BATCH = 2**13  # rows of a Parquet file that are unpacked at a time
SOUNDS = (b"RIFF", b"fLaC", b"OggS", b"ID3")  # how files of sound begin


@dataclass(frozen=True)
class Frame:
    """A table as it was read."""

    table: pyarrow.Table
    where: str
    first: int = 0  # the position of its first row in the table that it is a part of
    names_files: bool = False  # a cell may say where its content is: in a folder, the hub's cache, an object in Python

    @property
    def columns(self) -> list[str]:
        """The names of the columns, in their order."""
        return list(self.table.column_names)

    def __len__(self) -> int:
        return int(self.table.num_rows)

    def row(self, number: int) -> str:
        """What a row is called in messages."""
        return f"{self.where}: row {self.first + number + 1}"

    def part(self, start: int, count: int) -> "Frame":
        """So many rows from a position on, called as they are in the whole."""
        return replace(self, table=self.table.slice(start, count), first=self.first + start)

    def take(self, rows: NDArray[np.int64]) -> "Frame":
        """The rows at these positions."""
        return replace(self, table=self.table.take(pyarrow.array(rows)))

    def values(self, column: str) -> list[Any]:
        """The content of a column; None where a value is missing."""
        self.check(column)
        try:
            cells = self.table[column].to_pylist()
        except (ValueError, OverflowError) as error:  # text that is not UTF-8, a time beyond the calendar
            reason = str(error).splitlines()[0]
            raise UserError(f"{self.where}: the column {column!r} cannot be read ({reason}); fix it") from None
        return [None if value != value else value for value in cells]

    def check(self, column: str, what: str = "column") -> str:
        """``column``, if there is one of that name."""
        if column not in self.columns:
            raise UserError(f"{self.where} has no {what} {column!r}; its columns are: {', '.join(self.columns)}")
        return column

    def check_rows(self) -> None:
        """Refuse a table without rows."""
        if not len(self):
            raise UserError(f"{self.where} has no rows; add some, or leave it out")

    @cached_property
    def holds(self) -> dict[str, str]:
        """What each column holds: "image", "sound", "classes", "signal", "number", "words" or "other"."""
        described = {name: feature.get("_type") for name, feature in self._features.items()}
        known = {"Image": "image", "Audio": "sound", "ClassLabel": "classes"}
        return {name: known.get(str(described.get(name))) or _held(self.table[name]) for name in self.columns}

    def class_names(self, column: str) -> list[str] | None:
        """The names of the classes, where a column holds their numbers and says so."""
        names = self._features.get(column, {}).get("names")
        return [str(name) for name in names] if isinstance(names, list) else None

    def named(self, column: str) -> list[str | None]:
        """A column of labels by what the classes are called; None where one is missing."""
        names, labels = self.class_names(column), self.values(column)
        if names is None:
            return [None if label is None else class_name(label) for label in labels]
        wrong = [each for each in labels if each is not None and each not in range(len(names))]
        if wrong:
            raise UserError(f"{self.where} has the label {wrong[0]!r}, but names {len(names)} classes; fix the labels")
        return [None if label is None else names[int(label)] for label in labels]

    @cached_property
    def _features(self) -> dict[str, dict[str, Any]]:
        """What Hugging Face's metadata say of the columns."""
        note = (self.table.schema.metadata or {}).get(b"huggingface", b"{}")
        try:
            features = json.loads(note)["info"]["features"]
            return {name: feature for name, feature in features.items() if isinstance(feature, dict)}
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return {}


def _held(column: pyarrow.ChunkedArray) -> str:
    """What a column holds, by its type; of encoded files by how the first one begins."""
    kind, types = column.type, pyarrow.types
    if types.is_dictionary(kind):
        kind = kind.value_type
    if types.is_boolean(kind) or types.is_integer(kind) or types.is_floating(kind) or types.is_null(kind):
        return "number"
    if types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind):
        return "words"
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        return "signal"
    encoded = types.is_struct(kind) and kind.get_field_index("bytes") >= 0
    if encoded or types.is_binary(kind) or types.is_large_binary(kind):
        first = next((value for value in (cell.as_py() for cell in column[:20]) if value), b"")
        content = first.get("bytes") if isinstance(first, dict) else first
        return "sound" if (content or b"").startswith(SOUNDS) else "image"
    return "other"


# --- files and objects ------------------------------------------------------------------------------------------------


def read_frame(path: Path) -> Frame:
    """A CSV or Parquet file."""
    return read_csv(path) if is_csv(path) else read_parquet([path], str(path))


def is_csv(path: Path) -> bool:
    """Whether a file is read as text with columns."""
    return path.suffix.lower() in (".csv", ".tsv")


def read_parquet(paths: Sequence[Path], where: str) -> Frame:
    """Parquet files with the same columns as one table."""
    try:
        return Frame(pyarrow.concat_tables([_unpacked(path) for path in paths]), where)
    except pyarrow.ArrowException as error:
        reason = str(error).splitlines()[0]
        raise UserError(f"the Parquet files of {where} have different columns ({reason}); make them agree") from None


def _unpacked(path: Path) -> pyarrow.Table:
    """A Parquet file, whose claims are not believed: a few bytes can stand for any number of rows, or for long ones."""
    from pyarrow.parquet import ParquetFile

    checked(path, TABLE, links=True)
    most = 256 * MIB + 64 * path.stat().st_size
    try:
        with ParquetFile(path) as file:
            _check_names(file.schema_arrow.names, path)
            batches, size = [], 8 * file.metadata.num_rows * (1 + file.metadata.num_columns)
            for batch in file.iter_batches(_rows_at_a_time(file.metadata)) if size <= most else ():
                batches.append(batch)
                size += batch.nbytes
                if size > most:
                    break
            if size > most:
                raise UserError(f"{path} would take over {most // MIB:,} MiB, far more than it has; is it damaged?")
            return pyarrow.Table.from_batches(batches, file.schema_arrow)
    except (pyarrow.ArrowException, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:  # the system's, not of what the file holds
            raise
        reason = str(error).splitlines()[0]
        raise UserError(f"{path} is not a whole Parquet file ({reason}); fetch it again") from None


def _rows_at_a_time(metadata: Any) -> int:
    """So many that they take a GiB at most, should each be as long as all that its part of a column holds."""
    parts = [metadata.row_group(group) for group in range(metadata.num_row_groups)]
    columns = [part.column(column) for part in parts for column in range(part.num_columns)]
    longest = max((each.total_uncompressed_size for each in columns if each.physical_type == "BYTE_ARRAY"), default=1)
    return max(1, min(BATCH, 1024 * MIB // max(1, longest)))


def from_pandas(frame: Any, where: str) -> Frame:
    """A pandas DataFrame; its index is no column."""
    frame = frame.rename(columns=str)
    try:
        return Frame(pyarrow.Table.from_pandas(frame, preserve_index=False), where, names_files=True)
    except (pyarrow.ArrowException, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise UserError(f"{where} has a column of mixed kinds ({reason}); make its values numbers or text") from None


def of_columns(columns: dict[str, Any], where: str) -> Frame:
    """Named columns, each a list or an array."""
    return Frame(pyarrow.table({name: pyarrow.array(values) for name, values in columns.items()}), where)


def joined(frames: Sequence[Frame], where: str) -> Frame:
    """The rows of several tables one after the other; a column that some lack is empty there."""
    try:
        table = pyarrow.concat_tables([frame.table for frame in frames], promote_options="permissive")
    except pyarrow.ArrowException as error:
        reason = _clash(frames) or str(error).splitlines()[0]
        raise UserError(f"the tables of {where} do not fit together ({reason}); make their columns agree") from None
    return Frame(table, where, names_files=all(frame.names_files for frame in frames))


def _clash(frames: Sequence[Frame]) -> str | None:
    """The first column that holds one thing here and another there, and in which tables."""
    for name in dict.fromkeys(name for frame in frames for name in frame.columns):
        there = [frame for frame in frames if name in frame.columns and frame.table[name].null_count < len(frame)]
        places = {frame.holds[name]: frame.where for frame in there}
        if len(places) > 1:
            shown = " and ".join(f"{what} in {where}" for what, where in places.items())
            return f"the column {printable(name, 40)!r} holds {shown}"
    return None


# --- CSV --------------------------------------------------------------------------------------------------------------


def read_csv(path: Path) -> Frame:
    """A CSV file with a header: commas, semicolons or tabs between cells; UTF-8, or UTF-16 with its mark.

    A column is one of numbers if all of its cells are, but for missing ones; else one of words. Between semicolons the
    comma of a number is the decimal one: spreadsheet programs write semicolons where it is.
    """
    text = _text(path)
    line = text[: text.find("\n")] if "\n" in text else text
    separator = max(",;\t", key=line.count)
    # The csv module has one limit for the whole process, set to more than any cell that is accepted here.
    csv.field_size_limit(max(csv.field_size_limit(), HUGE + 1))
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=separator)
    rows, lines = [], []
    try:
        header = [name.strip() for name in next(reader, [])]
        _check_header(header, path)
        for row in reader:
            if not row:
                continue  # an empty line
            if len(row) != len(header):
                why = f"line {reader.line_num} has {len(row)} cells, the header {len(header)}"
                raise UserError(f"{path}: {why}; fix the line, or put cells with a separator in them in quotes")
            rows.append(row)
            lines.append(reader.line_num)
    except csv.Error as error:
        why = f"a cell of more than {HUGE:,} characters" if "field larger" in str(error) else str(error)
        raise UserError(f"{path}: line {reader.line_num}: {why}; is a quote missing before it?") from None
    if not rows:
        raise UserError(f"{path} has no rows below its header")
    cells = zip(*rows, strict=True)
    read = decimal if separator == ";" else number
    columns = {name: _typed(values, read, lines, name, path) for name, values in zip(header, cells, strict=True)}
    return Frame(pyarrow.table(columns), str(path))


def _text(path: Path) -> str:
    content = read_bytes(path, TABLE, links=True)
    encoding = "utf-16" if content[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig"
    try:
        text = content.decode(encoding)
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        how = f"convert it: iconv -f latin1 -t utf-8 {path.name} > {path.stem}-utf8.csv"
        raise UserError(f"{path}: line {line} is not UTF-8; save the file as UTF-8, or {how}") from None
    if "\0" in text:
        raise UserError(f"{path} holds zero bytes, so it is not a CSV file; export it again as CSV in UTF-8")
    return text


def _check_header(header: Sequence[str], path: Path) -> None:
    if not any(header):
        raise UserError(f"{path} is empty; its first line must name the columns")
    empty = [number for number, name in enumerate(header, start=1) if not name]
    if empty:
        raise UserError(f"{path}: column {empty[0]} has no name in the first line; name it")
    _check_names(header, path)


def _check_names(names: Sequence[str], path: Path) -> None:
    if len(names) > MOST_COLUMNS:
        raise UserError(f"{path} has {len(names):,} columns; a table has at most {MOST_COLUMNS:,}")
    twice = next((name for name, times in Counter(names).items() if times > 1), None)
    if twice is not None:
        raise UserError(f"{path} has two columns {twice!r}; rename one of them")


def _typed(
    cells: Sequence[str], read: Callable[[str], float | None], lines: Sequence[int], name: str, path: Path
) -> pyarrow.Array:
    """A column of numbers, or of words; None where a cell stands for no value."""
    there = [(cell.strip(), line) for cell, line in zip(cells, lines, strict=True) if not is_missing(cell)]
    if not there:
        return pyarrow.nulls(len(cells))  # of no type yet: other tables may know more
    strange = [(cell, line) for cell, line in there if read(cell) is None]
    if not strange:
        values = [None if is_missing(cell) else read(cell) for cell in cells]
        return pyarrow.array(values, pyarrow.float64())
    if len(strange) < (1 - MOSTLY) * len(there):
        cell, line = strange[0]
        shown = f"{printable(cell, 40)!r} in the column {name!r}, whose other cells are numbers"
        raise UserError(f"{path}: line {line}: {shown}; fix it or leave the cell empty")
    return pyarrow.array([None if is_missing(cell) else cell.strip() for cell in cells], pyarrow.string())


def is_missing(cell: str) -> bool:
    """Whether a cell stands for no value."""
    return cell.strip().lower() in MISSING


def number(cell: str) -> float | None:
    """The number that a cell holds; None if it is none, or has no size."""
    try:
        value = float(cell)
    except ValueError:
        return None
    return value if math.isfinite(value) and "_" not in cell else None


def decimal(cell: str) -> float | None:
    """The same of a cell whose number may have a decimal comma.

    >>> decimal("2,5"), decimal("2.5"), decimal("1,234,567")
    (2.5, 2.5, None)
    """
    return number(cell.replace(",", ".")) if cell.count(",") == 1 else number(cell)


def write_csv(columns: dict[str, Sequence[Any]], file: Any) -> None:
    """Named columns as CSV to an open text file."""
    with naming(Path(getattr(file, "name", "the output"))):
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(columns)
        writer.writerows(zip(*columns.values(), strict=True))
