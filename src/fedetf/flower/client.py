"""The ClientApp: a step arrives, the site performs it on its own data, and the method's upload goes back."""

import logging
import time
from pathlib import Path

from flwr.app import Context, Error, Message
from flwr.clientapp import ClientApp

from fedetf.flower.federate import Federate
from fedetf.flower.messages import TYPES, from_records, pack_answer
from fedetf.flower.site import Site, node_settings

FAILED = 2  # Flower's code for an error in a ClientApp
LOG = logging.getLogger("flwr")


def client_app(settings: Path) -> ClientApp:
    """The app that a site's SuperNode runs; ``settings`` is the TOML file beside the app."""
    app = ClientApp()

    def perform(message: Message, context: Context) -> Message:
        began = time.perf_counter()
        try:
            federate = Federate.of(context.run_config)
            step, order, received = from_records(message)
            node = node_settings(context.node_config)
            site = Site(federate, federate.settings(settings, node.trust_code), order.client, node)
            answer = pack_answer(site.perform(step, order, received))
        except Exception:  # its text may name patients' files: it stays in the log of the site
            LOG.exception("the step failed, and the server is told only that")
            return Message(Error(FAILED, "the step failed; the log of the site says why"), reply_to=message)
        LOG.info("%s: done in %.1f s", step, time.perf_counter() - began)
        return Message(answer, reply_to=message)

    app.train()(perform)
    for kind in ("summarise", "personalise"):
        app.query(TYPES[kind].removeprefix("query."))(perform)
    return app
