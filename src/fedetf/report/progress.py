"""What people see while a run goes on: a live bar on a terminal, plain lines elsewhere."""

import time
from collections.abc import Callable, Sequence

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from fedetf.comparison.plan import PlannedRun
from fedetf.comparison.run import RunsProgress
from fedetf.engines.steps import Personal
from fedetf.federation import Federation, Listener
from fedetf.methods import Server
from fedetf.outcome import Outcome, Round
from fedetf.report.tables import percent


class LiveProgress(Listener):
    """A progress bar with round, loss, general accuracy and time left, then one for the personal stage."""

    def __init__(self, console: Console):
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.completed:.4g}/{task.total}"),
            TextColumn("{task.fields[shown]}"),
            TimeRemainingColumn(),
            TextColumn("left"),
            console=console,
        )

    def features_done(self, done: int, total: int) -> None:
        """A bar of its own, gone when it is done."""
        if not self._progress.tasks:
            self._progress.start()
            self._task = self._progress.add_task("features", total=total, shown="")
        self._progress.update(self._task, completed=done)
        if done == total:
            self._progress.remove_task(self._task)

    def started(self, federation: Federation) -> None:
        """Show the bar."""
        self._clients, self._before = len(federation.job.partition), len(federation.personals)
        self._progress.start()
        self._task = self._progress.add_task("rounds", total=len(federation.schedule), shown="")

    def client_done(self, record: Round) -> None:
        """Move it by a client's part of a round."""
        done = record.round - 1 + record.trained / len(record.participants)
        self._progress.update(self._task, completed=done)

    def round_done(self, record: Round, server: Server) -> None:
        """Show what came of a round."""
        self._progress.update(self._task, completed=record.round, shown=describe(record))

    def personal_done(self, personal: Personal) -> None:
        """Move the second bar by a client."""
        if len(self._progress.tasks) == 1:
            done = self._before
            self._task = self._progress.add_task("personal models", total=self._clients, completed=done, shown="")
        self._progress.update(self._task, advance=1)

    def finished(self, outcome: Outcome) -> None:
        """Leave the bars as they are."""
        self.close()

    def close(self) -> None:
        """Give the terminal back."""
        self._progress.stop()


class PlainProgress(Listener):
    """One line a round, and one every few seconds where that takes long; for logs and pipes."""

    EVERY = 10.0  # seconds

    def __init__(self, console: Console):
        self._console = console
        self._said = time.monotonic()

    def features_done(self, done: int, total: int) -> None:
        """Print how far the features are, if they take long."""
        self._say_now_and_then(f"features {done}/{total}")

    def started(self, federation: Federation) -> None:
        """Remember how much there is to do."""
        self._rounds, self._clients = len(federation.schedule), len(federation.job.partition)
        self._done = len(federation.personals)
        self._before = len(federation.records)  # rounds of an earlier attempt
        self._began = self._said = time.monotonic()

    def client_done(self, record: Round) -> None:
        """Print how far a long round is."""
        if record.trained < len(record.participants):
            self._say_now_and_then(
                f"round {record.round}/{self._rounds}  {record.trained}/{len(record.participants)} clients"
            )

    def round_done(self, record: Round, server: Server) -> None:
        """Print the round."""
        left = (time.monotonic() - self._began) / (record.round - self._before) * (self._rounds - record.round)
        clock = f"{left // 3600:.0f}:{left % 3600 // 60:02.0f}:{left % 60:02.0f}"
        self._say(f"round {record.round}/{self._rounds}  {describe(record)}  {clock} of training left")

    def personal_done(self, personal: Personal) -> None:
        """Print how far the personal stage is."""
        self._done += 1
        line = f"personal models {self._done}/{self._clients}"
        if self._done == self._clients:
            self._say(line)
        else:
            self._say_now_and_then(line)

    def close(self) -> None:
        """Nothing to give back."""

    def _say_now_and_then(self, line: str) -> None:
        if time.monotonic() - self._said > self.EVERY:
            self._say(line)

    def _say(self, line: str) -> None:
        self._said = time.monotonic()
        self._write(line)

    def _write(self, line: str) -> None:
        self._console.print(line, highlight=False, soft_wrap=True)


class TrialProgress(Listener):
    """One line for each run of a trial."""

    def __init__(self, console: Console, method: str, seed: int):
        self._console, self._name = console, f"{method}, seed {seed}"

    def finished(self, outcome: Outcome) -> None:
        """Print what came of it."""
        seconds = sum(record.seconds for record in outcome.rounds)
        self._console.print(f"trial of {self._name}: general {percent(outcome.general)}, {seconds:.0f} s")


class LiveRuns(RunsProgress):
    """One view for a whole comparison: how many runs are done, and how far the current one is."""

    def __init__(self, console: Console):
        self._progress = Progress(
            TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[shown]}"), console=console
        )
        self._runs = self._progress.add_task("runs", total=None, shown="")
        self._current = self._progress.add_task("", total=1, shown="", visible=False)
        self._progress.start()

    def run_started(self, run: PlannedRun, number: int, total: int) -> Sequence[Listener]:
        """Show the run that begins."""
        self._progress.update(self._runs, total=total, completed=number - 1, shown=f"{number - 1}/{total}")
        self._progress.reset(self._current, description=run.name, visible=True, shown="")
        return [_OneRun(lambda share, text: self._progress.update(self._current, completed=share, shown=text))]

    def run_ended(self, run: PlannedRun, number: int, total: int, outcome: str) -> None:
        """Leave a line about it above the bars."""
        self._progress.update(self._runs, total=total, completed=number, shown=f"{number}/{total}")
        self._progress.console.print(f"[{number}/{total}] {run.name}: {outcome}", soft_wrap=True, markup=False)

    def close(self) -> None:
        """Give the terminal back."""
        self._progress.update(self._current, visible=False)
        self._progress.stop()


class PlainRuns(RunsProgress):
    """The same as lines, for logs and pipes."""

    def __init__(self, console: Console):
        self._console = console
        self._said = time.monotonic()

    def run_started(self, run: PlannedRun, number: int, total: int) -> Sequence[Listener]:
        """Listen to the run that begins."""
        return [_OneRun(lambda _, text: self._say_now_and_then(f"[{number}/{total}] {run.name}: {text}"))]

    def run_ended(self, run: PlannedRun, number: int, total: int, outcome: str) -> None:
        """Print how it went."""
        self._console.print(f"[{number}/{total}] {run.name}: {outcome}", soft_wrap=True, markup=False)

    def close(self) -> None:
        """Nothing to give back."""

    def _say_now_and_then(self, line: str) -> None:
        if time.monotonic() - self._said > PlainProgress.EVERY:
            self._said = time.monotonic()
            self._console.print(line, soft_wrap=True, markup=False)


class _OneRun(Listener):
    """Tells the view of several runs how far one run is: a share of the whole, and a few words."""

    def __init__(self, tell: Callable[[float, str], object]):
        self._tell = tell

    def started(self, federation: Federation) -> None:
        self._steps = len(federation.schedule) + len(federation.job.partition)
        self._done = len(federation.records) + len(federation.personals)

    def round_done(self, record: Round, server: Server) -> None:
        self._step(f"round {record.round}  {describe(record)}")

    def personal_done(self, personal: Personal) -> None:
        self._step(f"personal model {personal.client}")

    def _step(self, text: str) -> None:
        self._done += 1
        self._tell(self._done / self._steps, text)


def make_runs_progress(console: Console) -> LiveRuns | PlainRuns:
    """The kind of progress of a comparison that fits where ``console`` writes to."""
    return LiveRuns(console) if console.is_terminal else PlainRuns(console)


def make_progress(console: Console) -> LiveProgress | PlainProgress:
    """The kind of progress that fits where ``console`` writes to."""
    return LiveProgress(console) if console.is_terminal else PlainProgress(console)


def describe(record: Round) -> str:
    """A round in a few words."""
    loss = "-" if record.loss is None else f"{record.loss:.3f}"
    general = "" if record.general is None else f"  general {percent(record.general)}"
    general += "" if record.completed is None else f" ({percent(record.completed.general)} completed)"
    general += "" if record.reported.validation is None else f"  validation {percent(record.reported.validation)}"
    refused = f"  {len(record.refused)} updates refused" if record.refused else ""
    return f"loss {loss}{general}{refused}"
