"""The trials of a method, with Optuna: what the next one tries, whether it is worth going on with, and the journal.

A trial is written to the journal by one line, when it is over. What the next one tries follows from the seed, its
number and the trials before it. So a call after a kill proposes the same again, finds the run folder of the trial that
was cut short, and goes on with it: no trial is lost, and none is run twice.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from fedetf.errors import UserError, need
from fedetf.files import RECORD, UnfitFile, append, is_file, parse_json, read_text, write_whole
from fedetf.ranges import Range
from fedetf.rng import derive
from fedetf.tuning.space import Space

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution
    from optuna.samplers import BaseSampler
    from optuna.study import Study
    from optuna.trial import FrozenTrial

RANDOM = 4  # trials before the sampler looks at what came of the others; the first of them has the method's defaults
UNPRUNED = 3  # trials that are carried out before one can be pruned
BETTER = 75.0  # percent of those must be better, for a trial to be stopped
DIGITS = 3  # of a tried value: no accuracy depends on more

State = Literal["complete", "pruned", "failed"]


@dataclass(frozen=True)
class Trial:
    """A trial that is over."""

    number: int
    values: dict[str, Any]  # what it tried, by dotted key
    state: State
    validation: float | None  # the accuracy it is judged by; of a pruned one where it stopped, None if it failed
    images: int  # that clients trained on
    curve: dict[int, float] = field(default_factory=dict)  # by round, what it would be judged by if it ended there
    reason: str = ""  # why it failed


class Trials:
    """The trials of one method, those of earlier calls included."""

    def __init__(self, journal: Path, name: str, about: str, space: Space, first: Mapping[str, Any], seed: int):
        self._space, self._first, self._seed = space, dict(first), seed
        try:
            self._study = _study(journal, name, about)
            sound = self._study.direction.name == "MAXIMIZE" and all(map(self._is_possible, self.done))
            self._known_to(None)  # whether Optuna can take them is seen here, and not in the middle
        except (UserError, OSError):
            raise
        except Exception:  # Optuna trusts its journal: what a stranger wrote there may raise anything
            sound = False
        if not sound:
            raise UnfitFile(f"{journal} is damaged; give another --out, or remove it to begin anew")

    def _is_possible(self, trial: Trial) -> bool:
        """Whether a trial tried what it could: other settings in the journal could name code, which would be run."""
        known = all(key in self._space and value in self._space[key] for key, value in trial.values.items())
        accuracies = [*trial.curve.values(), *([] if trial.validation is None else [trial.validation])]
        noted = type(trial.images) is int and trial.images >= 0 and isinstance(trial.reason, str)
        return known and noted and all(0 <= accuracy <= 1 for accuracy in accuracies)

    @property
    def done(self) -> list[Trial]:
        """Those that are over, in their order."""
        return [_from_frozen(trial) for trial in self._study.get_trials(deepcopy=False)]

    def propose(self) -> dict[str, Any]:
        """What the next trial tries, by dotted key: at first the defaults, then Optuna's proposals."""
        from optuna.samplers import TPESampler

        number = len(self._study.get_trials(deepcopy=False))
        if number == 0:
            return self._first
        with _quiet():
            sampler = TPESampler(n_startup_trials=RANDOM, seed=derive(self._seed, "tune", number) % 2**32)
            proposed = self._known_to(sampler).ask(_distributions(self._space)).params
        return {key: self._rounded(key, value) for key, value in proposed.items()}

    def is_hopeless(self, curve: Mapping[int, float], warm_up: int) -> bool:
        """Whether a trial is behind most of those that were carried out, at its last round; not in the first rounds."""
        from optuna.pruners import PercentilePruner
        from optuna.trial import TrialState, create_trial

        pruner = PercentilePruner(BETTER, n_startup_trials=UNPRUNED, n_warmup_steps=warm_up)
        return bool(pruner.prune(self._study, create_trial(state=TrialState.RUNNING, intermediate_values=dict(curve))))

    def add(self, trial: Trial) -> None:
        """Write it to the journal."""
        self._study.add_trial(self._frozen(trial))

    def _known_to(self, sampler: "BaseSampler | None") -> "Study":
        """The trials in memory, for a sampler to learn from: one that failed is as bad as can be."""
        with _quiet() as optuna:
            study: Study = optuna.create_study(direction="maximize", sampler=sampler)
            for trial in self.done:
                worst = replace(trial, state="complete", validation=0.0)
                study.add_trial(self._frozen(worst if trial.state == "failed" else trial))
        return study

    def _frozen(self, trial: Trial) -> "FrozenTrial":
        """A trial as Optuna has it, with the ranges of this space, whatever a journal says that they were."""
        from optuna.trial import TrialState, create_trial

        states = {"complete": TrialState.COMPLETE, "pruned": TrialState.PRUNED, "failed": TrialState.FAIL}
        known = {key: each for key, each in _distributions(self._space).items() if key in trial.values}
        return create_trial(
            state=states[trial.state],
            value=trial.validation if trial.state == "complete" else None,
            params=trial.values,
            distributions=known,
            user_attrs={"images": trial.images, "reason": trial.reason},
            intermediate_values=trial.curve,
        )

    def _rounded(self, key: str, value: Any) -> Any:
        values = self._space[key]
        return (
            values.clipped(float(f"{value:.{DIGITS}g}"))
            if isinstance(value, float) and isinstance(values, Range)
            else value
        )


def _study(journal: Path, name: str, about: str) -> "Study":
    """The study of that name in a journal; one that was made for something else is refused."""
    need("tune", "tuning", "optuna")
    with _quiet() as optuna:
        storage = optuna.storages.JournalStorage(_journal(journal))
        study: Study
        if name in optuna.get_all_study_names(storage):
            study = optuna.load_study(study_name=name, storage=storage)
        else:
            study = optuna.create_study(study_name=name, storage=storage, direction="maximize")
    if not study.get_trials(deepcopy=False):
        study.set_user_attr("about", about)
    elif study.user_attrs.get("about") != about:
        raise UserError(f"{journal.parent} holds trials of {name} with other settings; give another --out")
    return study


def _journal(path: Path) -> Any:
    """A file of JSON lines as Optuna's journal; a last line that was cut short is dropped."""
    from optuna.storages.journal import BaseJournalBackend

    class Lines(BaseJournalBackend):
        def read_logs(self, log_number_from: int) -> Iterable[dict[str, Any]]:
            lines = read_text(path, RECORD).splitlines() if is_file(path) else []
            return (parse_json(line, str(path)) for line in lines[log_number_from:])

        def append_logs(self, logs: list[dict[str, Any]]) -> None:
            append(path, "".join(json.dumps(log) + "\n" for log in logs).encode())

    if is_file(path):
        whole, newline, rest = read_text(path, RECORD).rpartition("\n")
        if rest:
            write_whole(path, (whole + newline).encode())
    return Lines()


def _distributions(space: Space) -> "dict[str, BaseDistribution]":
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    distributions: dict[str, BaseDistribution] = {}
    for key, values in space.items():
        if not isinstance(values, Range):
            distributions[key] = CategoricalDistribution(values.values)
        elif isinstance(values.low, int) and isinstance(values.high, int):
            distributions[key] = IntDistribution(values.low, values.high, log=values.log)
        else:
            distributions[key] = FloatDistribution(values.low, values.high, log=values.log)
    return distributions


def _from_frozen(trial: "FrozenTrial") -> Trial:
    states: dict[str, State] = {"COMPLETE": "complete", "PRUNED": "pruned", "FAIL": "failed"}
    curve = dict(sorted(trial.intermediate_values.items()))
    last = list(curve.values())[-1] if curve and trial.state.name == "PRUNED" else None
    note = trial.user_attrs
    return Trial(
        number=trial.number,
        values=dict(trial.params),
        state=states[trial.state.name],
        validation=trial.value if trial.state.name == "COMPLETE" else last,
        images=note["images"],
        curve=curve,
        reason=note["reason"],
    )


@contextmanager
def _quiet() -> Iterator[Any]:
    """Optuna without its lines on standard error: progress is shown by the report."""
    import optuna

    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        yield optuna
    finally:
        optuna.logging.set_verbosity(before)
