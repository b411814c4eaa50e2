"""Engines: where client steps run. An engine never knows which method it runs, and all give the same bits."""
