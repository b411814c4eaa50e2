"""Eq. 3 and 4, and the uniformity of the rotation."""

import numpy as np
import pytest
import torch

from fedetf import UserError, simplex_etf


@pytest.mark.parametrize(
    ("classes", "dim"), [(2, 1), (2, 2), (3, 2), (10, 9), (10, 10), (10, 64), (100, 99), (200, 512)]
)
def test_gram_matrix_is_that_of_a_simplex_etf(classes: int, dim: int) -> None:
    V = simplex_etf(classes, dim, seed=3).double().numpy()
    assert V.shape == (dim, classes)
    wanted = np.full((classes, classes), -1 / (classes - 1))  # Eq. 4
    np.fill_diagonal(wanted, 1)
    np.testing.assert_allclose(V.T @ V, wanted, atol=1e-6)
    np.testing.assert_allclose(V.sum(axis=1), 0, atol=1e-5)


@pytest.mark.parametrize("dim", [10, 17])
def test_it_is_of_the_form_of_equation_3(dim: int) -> None:
    """V = sqrt(C/(C−1)) U (I − 11ᵀ/C) for some U with UᵀU = I: take U = V·sqrt((C−1)/C) + u·1ᵀ/sqrt(C), u ⟂ V."""
    C = 10
    V = simplex_etf(C, dim, seed=1).double().numpy()
    u = np.linalg.svd(V)[0][:, C - 1]  # a unit vector outside the C−1 dimensions that V spans
    U = V * np.sqrt((C - 1) / C) + np.outer(u, np.ones(C)) / np.sqrt(C)
    np.testing.assert_allclose(U.T @ U, np.eye(C), atol=1e-6)
    np.testing.assert_allclose(np.sqrt(C / (C - 1)) * U @ (np.eye(C) - 1 / C), V, atol=1e-6)


def test_smallest_dimension_is_a_tight_frame() -> None:
    V = simplex_etf(10, 9, seed=2).double()
    torch.testing.assert_close(V @ V.T, torch.eye(9, dtype=torch.float64) * 10 / 9, atol=1e-6, rtol=0)


def test_three_classes_in_the_plane_stand_at_120_degrees() -> None:
    V = simplex_etf(3, 2, seed=5).double()
    angles = torch.atan2(V[1], V[0]).sort().values
    gaps = torch.cat([angles.diff(), angles[:1] + 2 * np.pi - angles[-1:]])
    torch.testing.assert_close(gaps, torch.full((3,), 2 * np.pi / 3, dtype=torch.float64), atol=1e-6, rtol=0)


def test_two_classes_are_opposite() -> None:
    V = simplex_etf(2, 4, seed=0)
    torch.testing.assert_close(V[:, 0], -V[:, 1])


def test_same_seed_same_frame_other_seed_other_frame() -> None:
    assert torch.equal(simplex_etf(10, 10, seed=7), simplex_etf(10, 10, seed=7))
    assert not torch.allclose(simplex_etf(10, 10, seed=7), simplex_etf(10, 10, seed=8))


def test_rotation_is_uniform() -> None:
    """Each vector is uniform on the sphere: entries have mean 0, variance 1/d, fourth moment 3/(d(d+2))."""
    d, draws = 3, 4000
    entries = torch.stack([simplex_etf(3, d, seed=s)[:, 0] for s in range(draws)]).double()
    assert entries.mean(0).abs().max() < 5 * (1 / d / draws) ** 0.5
    assert ((entries**2).mean(0) - 1 / d).abs().max() < 0.03
    assert ((entries**4).mean(0) - 3 / (d * (d + 2))).abs().max() < 0.03
    signs = (entries > 0).double().mean(0)  # a QR without sign fixing fails here
    assert (signs - 0.5).abs().max() < 0.05


@pytest.mark.parametrize(("classes", "dim"), [(10, 8), (1, 5), (0, 0)])
def test_impossible_frames_are_refused(classes: int, dim: int) -> None:
    with pytest.raises(UserError, match=r"simplex ETF"):
        simplex_etf(classes, dim)
