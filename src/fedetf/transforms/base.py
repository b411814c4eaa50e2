"""What a transform of updates is: a client half and a server half."""

from typing import Protocol, runtime_checkable

from fedetf.core.state import State

Shapes = dict[str, tuple[int, ...]]


@runtime_checkable
class Transform(Protocol):
    """Makes an update smaller to send. Both halves get states whose tensors are floating, but for what others made.

    ``encode`` gives what travels; ``decode`` gives back, from that and the shapes that it was made from, tensors of
    those names and shapes. What the two lose between them is sent later, see :class:`Compression`.
    """

    def encode(self, update: State) -> State:
        """The client's half."""

    def decode(self, sent: State, shapes: Shapes) -> State:
        """The server's half; raises RunError if ``sent`` cannot have come from the client's."""

    def shapes(self, shapes: Shapes) -> Shapes:
        """The names and shapes of the floating tensors that ``encode`` gives, from those that it gets."""
