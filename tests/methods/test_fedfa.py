"""FedFA: anchors that draw features and train the classifier."""

import pytest
import torch

import fedetf
from fedetf.federation import Federation
from fedetf.methods.fedfa import first_anchors, pull

pytestmark = pytest.mark.slow

OPTIONS = {"clients": 4, "alpha": 0.3, "participation": 0.5, "rounds": 2, "epochs": 2}
SMALL = {"data.limit": 150, "personal.enabled": False}


def test_without_its_terms_it_is_fedavg_to_the_bit() -> None:
    own = {"method.lam": 0.0, "method.calibration": 0.0}
    a = fedetf.run(method="fedavg", settings=SMALL, **OPTIONS).model().state_dict()
    b = fedetf.run(method="fedfa", settings={**SMALL, **own}, **OPTIONS).model().state_dict()
    assert all(torch.equal(tensor, b[name]) for name, tensor in a.items())


@pytest.mark.parametrize(("classes", "wanted"), [(2, 1.5), (10, 0.3)])
def test_the_pull_by_hand(classes: int, wanted: float) -> None:
    """(1, 0) and (3, 0) of class 0, whose anchor is e₁: mean 2. (0, 2) of class 1, whose anchor is e₂: 1."""
    h, anchors = torch.tensor([[1.0, 0.0], [3.0, 0.0], [0.0, 2.0]]), torch.zeros(classes, 2)
    anchors[:2] = torch.eye(2)
    assert pull(h, torch.tensor([0, 0, 1]), anchors).item() == pytest.approx(wanted)


def test_mu_1_never_moves_the_anchors() -> None:
    result = fedetf.run(method="fedfa", settings={**SMALL, "method.mu": 1.0}, **OPTIONS)
    assert torch.equal(result.model().head.prototypes, result.job.build_net().head.prototypes)


def test_anchors_move_with_those_who_hold_the_class_and_others_vote_for_the_old() -> None:
    """One round of E = 2: Σ p_k (¼A + ¾m_k), where a client without the class has A for ¼A + ¾m_k."""
    job = fedetf.run(method="fedfa", settings=SMALL, **OPTIONS).job
    federation = Federation(job, [[0, 1]])
    first = federation.server.state["head.prototypes"].clone()
    sent = [result.upload for result in federation.engine.train([0, 1], 1, federation._received())]
    means = []
    for upload in sent:  # the features of the trained models, in eval mode
        net = job.build_net()
        net.load_state_dict({**net.state_dict(), **{n: t for n, t in upload.state.items() if n != "anchors"}})
        samples = job.dataset.train.x[job.partition.train[upload.client]].float() / 127.5 - 1
        y = job.dataset.train.y[job.partition.train[upload.client]]
        with torch.no_grad():
            h = net.eval().encoder(samples)
        means.append({c: h[y == c].mean(dim=0) for c in y.unique().tolist()})
    list(federation.rounds())
    anchors = federation.server.state["head.prototypes"]
    total = sum(upload.samples for upload in sent)
    for c in range(10):
        votes = [first[c] if c not in m else first[c] / 4 + 3 * m[c] / 4 for m in means]
        wanted = sum(upload.samples / total * vote for upload, vote in zip(sent, votes, strict=True))
        torch.testing.assert_close(anchors[c], wanted, atol=1e-5, rtol=1e-4)
        if not any(c in m for m in means):
            assert torch.equal(anchors[c], first[c])


@pytest.mark.parametrize(("classes", "features"), [(10, 64), (100, 64)])
def test_first_anchors(classes: int, features: int) -> None:
    anchors = first_anchors(classes, features, torch.Generator().manual_seed(1))
    torch.testing.assert_close(anchors.norm(dim=1), torch.ones(classes))
    if classes <= features:
        assert torch.equal(anchors @ anchors.T, torch.eye(classes))
