"""Any message, at either end: a valid result, or one line that says why not. Nothing escapes, memory stays bounded."""

import contextlib
import copy
import json
import logging
import math
import resource
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Error, Message, MetricRecord, RecordDict
from flwr.proto.node_pb2 import NodeInfo
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.supercore.task_identity import TaskIdentity
from fuzz import examples, mutated
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from sites import SITES, Wire, make_app, no_pauses

from fedetf.core.soundness import defect
from fedetf.core.state import State, clone
from fedetf.data.fit import fit
from fedetf.data.kinds import Sums
from fedetf.engines.steps import Missing, Personal, Scored, Step, Trained
from fedetf.engines.verdict import Verdict
from fedetf.errors import RunError, UserError
from fedetf.flower.arrays import TYPES, numbers, to_arrays, to_state
from fedetf.flower.bounds import SampleBound, in_proportion
from fedetf.flower.describe import DESCRIBE, _sums, note_of, to_json
from fedetf.flower.engine import FlowerEngine
from fedetf.flower.federate import Federate
from fedetf.flower.messages import TYPES as KINDS
from fedetf.flower.messages import Order, pack_answer, to_records
from fedetf.flower.privacy import PrivacyLedger
from fedetf.flower.server import server_job
from fedetf.flower.site import site_job, site_sums
from fedetf.methods import Scope, Server, Upload
from fedetf.settings import DataSettings, Settings, TrainSettings

__all__ = ["no_pauses"]  # a fixture for every test here
pytestmark = pytest.mark.filterwarnings("ignore:Generating overly large repr")  # of an example that fails

fuzz = examples(200)
MEMORY = 400 * 2**20  # bytes that all examples of a test may add
LONGEST = 6000  # of a reason: 500 characters, and what escaping makes of them


@pytest.fixture(autouse=True)
def _bounded_memory() -> Iterator[None]:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    yield
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024 < MEMORY


@pytest.fixture(autouse=True)
def logged() -> Iterator[list[logging.LogRecord]]:
    """What goes to Flower's log: one printable line each, and no traceback."""
    found: list[logging.LogRecord] = []
    handler = logging.Handler()
    handler.emit = found.append  # type: ignore[method-assign]  # a list is all that it takes
    logger = logging.getLogger("flwr")
    logger.addHandler(handler)
    yield found
    logger.removeHandler(handler)
    for record in found:
        assert record.getMessage().isprintable()
        assert not record.exc_info


# --- what can be wrong ------------------------------------------------------------------------------------------------

ODD = st.sampled_from(["", "\x1b[2J", "a\nb", "\u202e", "../../x", "__class__", "head.bias", "classes", "x" * 5000])
names = ODD | st.text(max_size=20)
whole = st.integers(-(2**70), 2**70) | st.sampled_from([0, 1, -1, 2**31, 2**62, 2**63 - 1, -(2**63)])
floats = st.floats() | st.sampled_from([3e38, -3e38, 1e308, math.nan, math.inf])
dtypes = st.sampled_from([*TYPES, "object", "complex64", "<U9", "float128", "O", ">f4", ""])
tensors = hnp.arrays(
    st.sampled_from(list(TYPES.values())), hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=12)
)
files = tensors.map(lambda array: Array(array).data)  # .npy, whole


@st.composite
def arrays(draw: st.DrawFn) -> Array:
    """Sound ones, and such as claim what they are not."""
    array = Array(draw(tensors))
    for field in draw(st.lists(st.sampled_from(["dtype", "shape", "stype", "data", "header"]), max_size=2)):
        if field == "dtype":
            array.dtype = draw(dtypes)
        elif field == "shape":
            array.shape = tuple(draw(st.lists(st.integers(-5, 2**60), max_size=40)))
        elif field == "stype":
            array.stype = draw(names)
        elif field == "data":
            array.data = draw(st.binary(max_size=300) | files | files.map(lambda data: data[:-1]))
        else:  # a header that claims a terabyte, objects, or nonsense
            claim = draw(st.sampled_from([b"(1099511627776,)", b"()", b"'|O'", b"(" * 60]))
            array.data = array.data.replace(b"(", claim, 1)
    return array


METRICS = ["samples", "images", "loss", "accuracy", "curve", "epochs"]
ORDER = list(vars(Order("", 0, 0, 0)))
metrics = st.one_of(whole, floats, st.lists(floats, max_size=30), st.lists(whole, max_size=5))
orders = st.one_of(whole, floats, names, st.binary(max_size=9), st.booleans(), st.lists(whole, max_size=3))
of_any_kind = st.one_of(
    st.builds(ArrayRecord, st.dictionaries(names, arrays(), max_size=2)),
    st.builds(MetricRecord, st.dictionaries(st.sampled_from(METRICS) | names, metrics, max_size=4)),
    st.builds(ConfigRecord, st.dictionaries(st.sampled_from(ORDER) | names, orders, max_size=4)),
)


OTHER_KINDS = ["evaluate", "train.x", "query", "query.summarised", "system"]  # others Flower does not deliver
cuts = st.tuples(st.integers(0, 99), st.floats(0, 1), st.integers(0, 8), st.binary(max_size=8))  # of bytes


@st.composite
def spoilt(draw: st.DrawFn, sound: RecordDict, most: int = 3) -> RecordDict:
    """A message's content, changed in up to three places."""
    content = copy.deepcopy(sound)
    for _ in range(draw(st.integers(0, most))):
        name = draw(st.sampled_from([*sound]) | names)
        record = content.get(name)
        if record is None or draw(st.integers(0, 4)) == 0:
            content.pop(name, None)
            if draw(st.booleans()):
                content[name] = draw(of_any_kind)
            continue
        key = draw(st.sampled_from([*record]) if record and draw(st.integers(0, 3)) else names)
        if draw(st.integers(0, 4)) == 0:
            record.pop(key, None)
        elif isinstance(record, ArrayRecord):
            model = sound.array_records.get(name, {})
            record[key] = draw(of_the_same_form(model[key]) if key in model and draw(st.booleans()) else arrays())
        else:
            record[key] = draw(metrics if isinstance(record, MetricRecord) else orders)
    return content


def of_the_same_form(array: Array) -> st.SearchStrategy[Array]:
    """Other values in the same type and shape."""
    kind, shape = np.dtype(array.dtype), array.shape
    values = st.sampled_from([0, -1, 3e38, 1e20, 2**62, 1e-40, math.nan])

    def filled(value: float, rest: bytes) -> Array:
        with np.errstate(all="ignore"):
            made = np.full(shape, 0 if kind.kind != "f" and value != value else value).astype(kind)
        if made.size:
            made.reshape(-1)[0] = rest[0] if rest else 0
        return Array(made)

    return st.builds(filled, values, st.binary(max_size=1))


# --- the server's end -------------------------------------------------------------------------------------------------


class Post(Wire):
    """A grid whose only node answers whatever a test wants."""

    def __init__(self) -> None:
        self.reply: Callable[[Message], Message | None]

    def get_nodes(self) -> Iterable[NodeInfo]:
        return [NodeInfo(node_id=100 + k, name=name, last_activated_at="1") for k, name in enumerate(SITES)]

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        (self.request,) = messages
        self.request.metadata.__dict__["_message_id"] = "m"
        return ["m"]

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        reply = self.reply(self.request)
        return [] if reply is None else [reply]


class Desk:
    """A server of one method, as it is in its first round."""

    def __init__(self, method: str, folder: Path):
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1
        app = make_app(folder / method, method, 2, model="cnn" if method == "fedavg" else "mlp", limit=60)
        wire = Wire(app, folder / "kept", out=str(folder))
        federate = Federate.of(wire.config)
        more = {"ccvr": {"epochs": 1}}.get(method, {})
        given = federate.settings(app / "settings.toml", trust_code=False)
        given = given.model_copy(update={"method": given.method.model_copy(update=more)})
        self.job = server_job(federate, given)
        self.method = self.job.method
        self.post = Post()
        (folder / "run").mkdir(exist_ok=True)
        bound = SampleBound(folder / "run", federate.model_copy(update={"max_samples": 1000}), TrainSettings(epochs=1))
        self.engine = FlowerEngine(
            self.job, federate, self.post, PrivacyLedger(folder, self.job.settings.update), bound
        )
        net = self.job.build_net()
        state = net.state_dict()
        self.received = {**self.method.scoped(state, Scope.SHARED), **self.method.scoped(state, Scope.RECEIVED)}
        self.own = self.method.server_state(net)

    def sound(self, kind: str) -> RecordDict:
        """What an honest site sends."""
        if kind == "personalise":
            return pack_answer(Personal(0, 0.5, [], 1.0, {}))
        if kind == "test":
            return pack_answer(Scored(0, {"accuracy": 0.5}))
        if kind == "validate":
            return pack_answer({"count": torch.full((10,), 3), "correct": torch.arange(10) % 4})
        if kind == "summarise":
            return pack_answer(self.rows(self.method.summaries))
        sent = {**self.method.scoped(self.received, Scope.SHARED), **self.rows(self.method.uploads)}
        return pack_answer(Trained(Upload(0, 20, sent, 0.5, 20), {}))

    def rows(self, rows: Any) -> State:
        wide = self.engine._sizes.features
        made = {name: torch.ones(2, *[wide] * row.dimensions, dtype=row.dtype) for name, row in rows.items()}
        return {"classes": torch.tensor([1, 3]), **made} if rows else {}

    def ask(self, kind: str, reply: Callable[[Message], Message | None]) -> Any:
        self.post.reply = reply
        step = Step(kind, cost=0, client=0, round=1)  # type: ignore[arg-type]  # of this kind
        (result,) = self.engine.results([step], self.received, bool)
        return result

    def use(self, kind: str, result: Any) -> str:
        """Fold a result in beside an honest one; what is left is a sound model, or one line that says why not."""
        if isinstance(result, Missing):
            assert result.why.isprintable()
            assert 0 < len(result.why) < LONGEST
            return result.why
        server = Server(clone(self.received), 3, 0, clone(self.own))
        if isinstance(result, Trained):
            max_ratio = self.job.settings.update.max_ratio
            problem = Verdict(self.method, self.received, self.engine._sizes, max_ratio).unfit(result)
            if problem is not None:
                return problem
            assert 0 <= result.upload.samples <= 1000
            honest = Upload(1, 20, to_state(self.sound("train").array_records["upload"]), 0.5, 20)
            self.method.aggregate(server, [result.upload, honest])
        elif kind == "validate":
            assert result["count"].sum() <= 1000
            assert ((result["correct"] >= 0) & (result["correct"] <= result["count"])).all()
        elif isinstance(result, dict):
            self.method.finish(server, [result, self.rows(self.method.summaries)])
        elif isinstance(result, Scored):
            assert 0 <= (result.values.get("accuracy") or 0.0) <= 1
        else:
            assert isinstance(result, Personal)
            assert all(0 <= value <= 1 for value in [result.accuracy or 0.0, *result.curve])
            assert 0 <= result.epochs < math.inf
        assert defect(server.state, self.received) is None
        assert defect(server.own, {}) is None
        return ""


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Desk]:
    return cache(lambda method: Desk(method, tmp_path_factory.mktemp("desk")))


CASES = [("fedavg", "train"), ("fednh", "train"), ("fedproto", "train"), ("ccvr", "summarise"), ("ccvr", "personalise")]
CASES += [("fedavg", "validate"), ("fedavg", "test")]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:nobody holds the classes")
@pytest.mark.parametrize(("method", "kind"), CASES)
def test_whatever_a_site_answers(method: str, kind: str, desk: Callable[[str], Desk]) -> None:
    here = desk(method)
    sound = here.sound(kind)
    assert here.use(kind, here.ask(kind, lambda request: Message(sound, reply_to=request))) == ""

    @fuzz
    @given(spoilt(sound))
    def check(content: RecordDict) -> None:
        here.use(kind, here.ask(kind, lambda request: Message(content, reply_to=request)))

    check()


@fuzz
@given(code=st.integers(-5, 2**40), reason=names | st.none())
def test_whatever_a_site_fails_with(code: int, reason: str | None, desk: Callable[[str], Desk]) -> None:
    here = desk("fedproto")
    why = here.use("train", here.ask("train", lambda request: Message(Error(code, reason), reply_to=request)))
    assert why.startswith("failed: ")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:nobody holds the classes")
@pytest.mark.parametrize(("method", "kind"), [("fednh", "train"), ("ccvr", "summarise")])
def test_whatever_bytes_arrive(method: str, kind: str, desk: Callable[[str], Desk]) -> None:
    """Flower itself takes the bytes apart; what it cannot must not cost more than that answer."""
    here = desk(method)
    sound = here.sound(kind)

    @fuzz
    @given(st.lists(cuts, min_size=1, max_size=3))
    def check(chosen: list[tuple[int, float, int, bytes]]) -> None:
        def mutated(request: Message) -> Message:
            answer = Message(sound, reply_to=request)
            contents = {name: item.deflate() for name, item in get_all_nested_objects(answer).items()}
            for which, where, removed, inserted in chosen:
                name = list(contents)[which % len(contents)]
                start = int(where * len(contents[name]))
                contents[name] = contents[name][:start] + inserted + contents[name][start + removed :]
            inflated: Message = inflate_object_from_contents(answer.object_id, contents)
            inflated.metadata.__dict__["_reply_to_message_id"] = "m"  # that one the SuperLink knows by itself
            return inflated

        here.use(kind, here.ask(kind, mutated))

    check()


@fuzz
@given(arrays())
def test_an_array_is_read_as_numpy_reads_it_or_refused(array: Array) -> None:
    try:
        read = numbers("x", array)
    except RunError:
        return
    expected = array.numpy()  # Flower's own way, which trusts what the header claims
    assert (read.dtype, read.shape) == (expected.dtype, expected.shape)
    assert read.tobytes() == expected.tobytes()


SUMS = {
    "kind": "table",
    "rows": 20,
    "columns": [
        {"name": "age", "count": 20, "missing": 0, "total": 900.0, "squares": 400.0, "low": 20.0, "high": 80.0},
        {"name": "pain", "count": 18, "missing": 2, "categories": ["mild", "sharp"]},
    ],
}


@fuzz
@given(st.data())
def test_whatever_a_site_tells_of_its_columns(data: st.DataObject) -> None:
    """Before the first round: a note that all can use, or one line."""
    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1
    told = json.dumps(mutated(data.draw, SUMS))
    content = RecordDict({"sums": ConfigRecord({"json": told})})
    request = Message(RecordDict(), dst_node_id=100, message_type=DESCRIBE)
    honest = Sums.model_validate(SUMS)
    try:
        spoilt = _sums(Message(content, reply_to=request))
        parts, _ = in_proportion({0: honest, 1: spoilt, 2: honest, 3: honest}, 0)
        note = fit(list(parts.values()), DataSettings())
    except (RunError, UserError) as error:
        said = str(error)
        assert said
        return
    assert note_of(json.loads(to_json(note)), "the note") == note
    age = next(column for column in note.columns if column.name == "age")
    assert abs(age.mean) <= 1000 * 45 * 3  # of honest sites it is 45


# --- a site's end -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def wire(tmp_path_factory: pytest.TempPathFactory) -> Wire:
    folder = tmp_path_factory.mktemp("site")
    return Wire(make_app(folder / "app", "fedavg", 2, model="mlp", limit=60), folder / "kept", out=str(folder / "run"))


def test_whatever_a_server_says_of_inputs(tmp_path: Path) -> None:
    """Its note comes with every request, and a site reads its own table by it."""
    rows = "".join(f"{20 + i},{['mild', 'sharp'][i % 2]},{['no', 'yes'][i % 2]}\n" for i in range(40))
    (tmp_path / "site.csv").write_text(f"age,pain,label\n{rows}")
    settings = Settings.model_validate({"data": {"name": "hospitals"}, "model": {"name": "mlp"}})
    federate = Federate(sites=["a", "b"], classes=["no", "yes"], shape=None, out=str(tmp_path / "run"), test="")
    told = site_sums(federate, settings, 0, str(tmp_path / "site.csv"))
    sound = json.loads(to_json(fit([told], settings.data)))
    assert site_job(federate, settings, 0, str(tmp_path / "site.csv"), note_of(sound, "the note")).dataset.note

    @fuzz
    @given(st.data())
    def check(data: st.DataObject) -> None:
        with contextlib.suppress(RunError, UserError):
            note = note_of(mutated(data.draw, sound), "the note")
            job = site_job(federate, settings, 0, str(tmp_path / "site.csv"), note)
            assert job.dataset.train.x.shape[1:] == note.shape

    check()


@pytest.mark.slow
def test_whatever_a_server_asks(wire: Wire) -> None:
    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1
    federate = Federate.of(wire.config)
    net = server_job(federate, federate.settings(wire.app / "settings.toml", trust_code=False)).build_net().state_dict()
    sound = to_records(Order("0" * 32, 0, 1, 0), to_arrays(net))
    shapes = {name: tensor.shape for name, tensor in net.items()}
    context = Context(1, 100, wire.nodes[100], RecordDict(), wire.config)

    def answer(content: RecordDict, kind: str) -> Message:
        return wire.client(Message(content, dst_node_id=100, message_type=kind), context)

    for kind in KINDS.values():
        assert answer(sound, kind).has_content()

    @fuzz
    @given(spoilt(sound), st.sampled_from(3 * [*KINDS.values()] + OTHER_KINDS))
    def check(content: RecordDict, kind: str) -> None:
        reply = answer(content, kind)
        if reply.has_error():
            assert reply.error.reason == "the step failed; the log of the site says why"
        elif kind == "train":  # its values are what training makes of those that were sent
            sent = to_state(reply.content.array_records["upload"])
            assert {name: tensor.shape for name, tensor in sent.items()} == shapes

    check()
    kept = Path(wire.nodes[100]["keep"])
    assert {path.name for path in kept.parent.iterdir()} == {kept.name}  # and nothing was written elsewhere
    assert {path.name for path in kept.iterdir()} == {"0" * 32}
