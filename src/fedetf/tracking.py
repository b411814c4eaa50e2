"""TensorBoard events of a run."""

from pathlib import Path

from fedetf.federation import Federation, Listener, Outcome, Round
from fedetf.methods import Server


class TensorBoard(Listener):
    """Writes loss and accuracies as TensorBoard scalars."""

    def __init__(self, folder: Path):
        self._folder = folder

    def started(self, federation: Federation) -> None:
        """Open the event file."""
        from torch.utils.tensorboard import SummaryWriter  # a quarter of a second that other users need not wait

        done = len(federation.records)
        self._writer = SummaryWriter(str(self._folder), purge_step=done + 1 if done else None)

    def round_done(self, record: Round, server: Server) -> None:
        """Log one round."""
        for name, value in {"loss": record.loss, "general": record.general, **record.measures}.items():
            if value is not None:
                self._writer.add_scalar(name, value, record.round)
        self._writer.flush()

    def finished(self, outcome: Outcome) -> None:
        """Log the personal accuracy and close the file."""
        if outcome.personal_mean is not None:
            self._writer.add_scalar("personal", outcome.personal_mean, len(outcome.rounds))
        self._writer.close()
