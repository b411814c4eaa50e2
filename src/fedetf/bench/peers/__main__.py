"""A peer as a program of its own: ``python -m fedetf.bench.peers NAME plain|tuned SCALE ROUNDS``."""

import importlib
import sys

from fedetf.bench.peers.work import Turns, Work

if __name__ == "__main__":
    name, how, scale, rounds = sys.argv[1:]
    turns = Turns()
    peer = importlib.import_module(f"fedetf.bench.peers.{name}")
    peer.play(turns, Work.make(float(scale), how == "tuned"), int(rounds))
