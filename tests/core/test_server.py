"""The server's rules and optimisers: numbers worked out by hand, identities, and torch's and SciPy's word."""

import math
from itertools import permutations

import pytest
import torch
from quadratic import quadratic, quadratic_loss, weight
from scipy.optimize import minimize

import fedetf
from fedetf.config import resolve
from fedetf.core.server import combine as rules
from fedetf.core.state import State, load_state
from fedetf.errors import RunError, UserError
from fedetf.methods import METHODS, Method, Server, Upload
from fedetf.settings import ServerSettings, UpdateSettings

ROBUST = ("median", "trimmed_mean", "krum", "multi_krum", "geometric_median", "centred_clip")


def models(values: list) -> list[State]:
    return [{"w": torch.tensor(value, dtype=torch.float64)} for value in values]


def one(state: State) -> float:
    return state["w"].item()


def server(value: list[float], **settings: object) -> Server:
    made = Server(
        {"w": torch.tensor(value), "bn.running_var": torch.ones(1)},
        clients=5,
        parameters=("w",),
        settings=ServerSettings(**settings),
    )
    made.begin()
    return made


def uploads(values: list[list[float]], samples: int = 4) -> list[Upload]:
    return [
        Upload(k, samples, {"w": torch.tensor(v), "bn.running_var": torch.tensor([1.0 + k])}, 0.0, 4)
        for k, v in enumerate(values)
    ]


def test_five_numbers() -> None:
    """1, 2, 3, 4, 100: Krum's scores with one faulty are 5, 2, 2, 5, 18625."""
    given = models([[1.0], [2.0], [3.0], [4.0], [100.0]])
    assert one(rules.mean((m, 1.0) for m in given)) == 22
    assert one(rules.median(given)) == 3
    assert one(rules.median(given[:4])) == 2.5
    assert one(rules.trimmed_mean(given, 1)) == 3
    assert one(rules.krum(given, ("w",), 1, 1)) == 2
    assert one(rules.krum(given, ("w",), 1)) == 2.5  # the mean of the two best, 2 and 3


def test_krum_sums_squared_distances() -> None:
    """Of 2, 4, 5, 8, 11, 13, 14 the scores are 130, 70, 55, 59, 58, 94, 127; with fourth powers 8 would win."""
    given = models([[x] for x in (2.0, 4.0, 5.0, 8.0, 11.0, 13.0, 14.0)])
    distances = rules.squared_distances(given, ("w",))
    assert distances.sort(dim=1).values[:, 1:5].sum(dim=1).tolist() == [130, 70, 55, 59, 58, 94, 127]
    assert one(rules.krum(given, ("w",), 1, 1)) == 5


def test_the_geometric_median_comes_near_the_exact_one(monkeypatch: pytest.MonkeyPatch) -> None:
    given = models([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0], [10.0, 10.0]])
    for steps, wanted in ((1, 1.32417), (3, 0.570095), (4, 0.522398), (8, 0.500304)):
        monkeypatch.setattr(rules, "WEISZFELD", steps)
        assert rules.geometric_median(given, ("w",))["w"].tolist() == pytest.approx([wanted] * 2, rel=1e-5)
    exact = minimize(lambda z: sum(math.dist(z, m["w"].tolist()) for m in given), [1.0, 1.0], method="Nelder-Mead")
    assert exact.x == pytest.approx([0.5, 0.5], abs=1e-3)


def test_centred_clipping_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    given = models([[0.5], [1.0], [10.0]])
    for steps, wanted in ((1, 0.833333), (2, 1.111111), (3, 1.203704)):
        monkeypatch.setattr(rules, "CLIPPINGS", steps)
        assert one(rules.centred_clip(given, ("w",), models([[0.0]])[0], 1.0)) == pytest.approx(wanted, rel=1e-5)


def test_centred_clipping_begins_where_the_last_round_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules, "CLIPPINGS", 1)
    made = server([0.0], combine="centred_clip", radius=1.0)
    for wanted in (1.0, 3.0):  # updates of 10: the centre moves by 1 to an update of 1, then of 2
        received = made.state["w"].item()
        made.move_to(made.combine(uploads([[received + 10.0]] * 3)))
        assert made.state["w"].item() == pytest.approx(wanted)


@pytest.mark.parametrize("rule", ROBUST)
def test_one_or_equal_models_and_any_order(rule: str) -> None:
    settings = {"combine": rule, "radius": 1e9, "faulty": 1 if "krum" in rule else None}
    alone = server([0.0, 0.0], combine=rule, radius=1e9, faulty=0).combine(uploads([[3.0, -1.0]]))
    assert alone["w"].tolist() == [3.0, -1.0]
    equal = server([0.0, 0.0], **settings).combine(uploads([[0.1, 0.7]] * 4))
    assert torch.equal(equal["w"], torch.tensor([0.1, 0.7]))
    values = uploads([[0.1, 0.7], [1.0, 2.0], [-3.0, 0.5], [9.0, 9.0]])
    results = {tuple(server([0.0, 0.0], **settings).combine(order)["w"].tolist()) for order in permutations(values)}
    assert len(results) == 1
    moved = uploads([[v + 5 for v in upload.state["w"].tolist()] for upload in values])
    (before,), after = results, server([5.0, 5.0], **settings).combine(moved)["w"].tolist()
    assert after == pytest.approx([v + 5 for v in before], abs=1e-5)


def test_statistics_of_the_chosen_and_the_largest_counter() -> None:
    made = server([0.0], combine="krum", faulty=1)
    made.state["n"] = torch.tensor(0)
    sent = uploads([[1.0], [2.0], [3.0], [4.0], [100.0]])
    for k, upload in enumerate(sent):
        upload.state["n"] = torch.tensor(k)
    chosen = made.combine(sent)
    assert (chosen["w"].item(), chosen["bn.running_var"].item(), chosen["n"].item()) == (2.0, 2.0, 1)


def test_too_few_updates_for_a_rule() -> None:
    with pytest.raises(RunError, match=r"needs 4 updates to tolerate 1 faulty ones and got 3"):
        server([0.0], combine="krum", faulty=1).combine(uploads([[1.0]] * 3))
    with pytest.raises(RunError, match=r"lower server.faulty"):
        server([0.0], combine="trimmed_mean", faulty=2).combine(uploads([[1.0]] * 4))


def test_robust_rules_take_nobody_for_more_than_one() -> None:
    sent = uploads([[0.0], [1.0], [2.0]])
    sent[2].samples = 10**9
    sent.append(Upload(7, 0, {"w": torch.tensor([50.0]), "bn.running_var": torch.ones(1)}, 0.0, 0))  # holds nothing
    assert server([0.0], combine="median").combine(sent)["w"].item() == 1.0
    assert server([0.0]).combine(sent[:3], uniform=True)["w"].item() == 1.0


# --- the server's optimiser -------------------------------------------------------------------------------------------


def path(optimiser: str, **settings: float) -> list[float]:
    """Where w is after each of three rounds in which the combined model is one more than it."""
    made = server([0.0], optimiser=optimiser, **settings)
    seen = []
    for _ in range(3):
        made.move_to(made.combine(uploads([[made.state["w"].item() + 1.0]])))
        seen.append(made.state["w"].item())
    return seen


@pytest.mark.parametrize(
    ("optimiser", "steps"),
    [
        ("adam", [0.990099, 1.337394, 1.563403]),
        ("yogi", [0.990099, 1.334070, 1.555638]),
        ("adagrad", [0.999001, 0.706607, 0.577017]),
        ("momentum", [1.0, 1.9, 2.71]),
    ],
)
def test_three_steps_of_each(optimiser: str, steps: list[float]) -> None:
    walked = path(optimiser, lr=1.0)
    assert [b - a for a, b in zip([0.0, *walked], walked, strict=False)] == pytest.approx(steps, rel=1e-5)


def test_adam_is_blind_to_a_common_scale() -> None:
    def walk(scale: float) -> list[float]:
        made = server([0.0], optimiser="adam", lr=0.5, eps=1e-3 * scale)
        for update in (1.0, -0.3, 0.7):
            made.move_to({"w": made.state["w"] + scale * update})
        return made.state["w"].tolist()

    assert walk(10.0) == pytest.approx(walk(1.0), rel=1e-5)


def test_statistics_are_combined_and_not_stepped() -> None:
    made = server([1.0], optimiser="adam", lr=0.0)
    made.move_to(made.combine(uploads([[5.0], [7.0]])))
    assert made.state["w"].item() == 1.0
    assert made.state["bn.running_var"].item() == 1.5


def test_no_update_is_no_step() -> None:
    made = server([1.0], optimiser="momentum")
    made.move_to(made.combine(uploads([[2.0]])))
    before = {name: tensor.clone() for name, tensor in {**made.state, **made.memory}.items()}
    made.move_to(made.combine([]))
    assert all(torch.equal(tensor, before[name]) for name, tensor in {**made.state, **made.memory}.items())


def test_a_temperature_is_left_alone_by_normalised_steps() -> None:
    made = server([1.0], optimiser="adam", lr=1.0)
    made.plain = frozenset({"w"})
    made.begin()
    made.move_to({"w": torch.tensor([1.001])})
    assert made.state["w"].tolist() == [pytest.approx(1.001)]
    assert METHODS["fedetf"].temperatures == ("head.beta",)


def test_momentum_of_the_server_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """(w − 1)²/2, rate 0.1: D = 0.1, then v = 0.9·0.1 + 0.1·(1 − 0.1) = 0.18, w = 0.28."""
    monkeypatch.setattr(Method, "loss", quadratic_loss([1.0]))
    federation = quadratic(METHODS["fedavg"], [1.0], [[0]] * 2, lr=0.1, settings={"server.optimiser": "momentum"})
    list(federation.rounds())
    assert weight(federation) == pytest.approx(0.28)


# --- whole runs -------------------------------------------------------------------------------------------------------

SMALL = {"data.limit": 150, "personal.enabled": False, "engine.name": "serial", "model.name": "mlp"}
OPTIONS = {"clients": 5, "participation": 0.8, "rounds": 3, "epochs": 1}


def final(tmp_path, method: str = "fedetf", **settings: object) -> State:
    folder = tmp_path / f"run{len(list(tmp_path.iterdir()))}"
    fedetf.run(method=method, out=folder, settings={**SMALL, **settings}, **OPTIONS)
    return load_state(folder / "model.safetensors")


def same(a: State, b: State) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


@pytest.mark.parametrize("method", ["fedetf", "feddyn", "fednh"])
def test_neutral_positions_change_no_bit(tmp_path, method: str) -> None:
    plain = final(tmp_path, method)
    neutral = {"server.optimiser": "momentum", "server.momentum": 0.0, "server.lr": 1.0, "server.combine": "mean"}
    neutral |= {"update.top_k": 1.0, "update.bits": 32, "update.noise": 0.0}
    assert same(final(tmp_path, method, **neutral), plain)
    if method == "fedetf":
        assert same(final(tmp_path, method, **{"update.clip": 1e9}), plain)
    assert not same(final(tmp_path, method, **{"server.optimiser": "adam"}), plain)
    assert not same(final(tmp_path, method, **{"server.combine": "median"}), plain)


def test_settings_that_contradict_each_other() -> None:
    for settings, said in (
        ({"update.noise": 1.0}, "set update.clip too"),
        ({"update.noise": 1.0, "update.clip": 1.0, "update.bits": 8}, "choose either"),
        ({"update.noise": 1.0, "update.clip": 1.0, "server.combine": "median"}, "choose either"),
        ({"update.bits": 3}, "1, 2, 4, 8 or 32"),
    ):
        with pytest.raises(UserError, match=said):
            resolve(None, settings)
    assert UpdateSettings().clip is None
