"""The ClientApp: a step arrives, the site performs it on its own data, and the method's upload goes back."""

import logging
import time
from pathlib import Path

from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp

from fedetf.errors import RunError, StepError, UserError, printable
from fedetf.flower.describe import DESCRIBE, answer, asked_client, note_of
from fedetf.flower.federate import Federate
from fedetf.flower.messages import from_records, inputs_of, pack_answer
from fedetf.flower.site import Site, node_settings, site_sums

FAILED = 2  # Flower's code for an error in a ClientApp
LOG = logging.getLogger("flwr")


class SiteApp(ClientApp):
    """The app that a site's SuperNode runs. It takes every message itself: also one of a kind that there is not."""

    def __init__(self, settings: Path):
        super().__init__()
        self._settings = settings

    def __call__(self, message: Message, context: Context) -> Message:
        """Answer a message. Of an error the server learns only that there was one: its text may name patients."""
        try:
            return Message(self._perform(message, context), reply_to=message)
        except (UserError, RunError) as error:
            LOG.error("error: %s", printable(str(error)), exc_info=isinstance(error, StepError))
        except Exception:
            LOG.exception("the step failed, and the server is told only that")
        return Message(Error(FAILED, "the step failed; the log of the site says why"), reply_to=message)

    def _perform(self, message: Message, context: Context) -> RecordDict:
        began = time.perf_counter()
        federate = Federate.of(context.run_config)
        node = node_settings(context.node_config)
        settings = federate.settings(self._settings, node.trust_code)
        if message.metadata.message_type == DESCRIBE:
            return answer(site_sums(federate, settings, asked_client(message), node.data))
        step, order, received = from_records(message)
        told = inputs_of(message)
        note = None if told is None else note_of(told, "the server's note on inputs")
        site = Site(federate, settings, order.client, node, note)
        packed = pack_answer(site.perform(step, order, received))
        LOG.info("%s: done in %.1f s", step, time.perf_counter() - began)
        return packed


def client_app(settings: Path) -> ClientApp:
    """The app of a site; ``settings`` is the TOML file beside the app."""
    return SiteApp(settings)
