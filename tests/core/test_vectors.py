"""States as vectors: copies and views where they should be, and every number in its place."""

import torch

from fedetf.core.vectors import alike, joined, packed, parted


def state() -> dict[str, torch.Tensor]:
    kernels = torch.arange(48.0).view(2, 3, 4, 2).to(memory_format=torch.channels_last)
    return {
        "kernels": kernels.requires_grad_(),
        "count": torch.tensor(7),
        "nothing": torch.empty(0, 5),
        "bias": torch.tensor([-1.0, -2.0]),
        "mask": torch.tensor([True, False]),
        "other": torch.tensor([9, 8]),
    }


def test_a_packed_state_is_a_copy_in_the_same_order_whose_types_are_each_one_vector() -> None:
    before = state()
    copy = packed(before)
    assert list(copy) == list(before)
    for name, tensor in before.items():
        assert torch.equal(copy[name], tensor)
        assert copy[name].dtype == tensor.dtype
        assert copy[name].is_contiguous()
        assert not copy[name].requires_grad
    assert alike(copy) == [["kernels", "nothing", "bias"], ["count", "other"], ["mask"]]
    counts = joined([copy["count"], copy["other"]])
    assert counts.tolist() == [7, 9, 8]
    assert counts.data_ptr() == copy["count"].data_ptr()  # not copied
    copy["kernels"].fill_(0)
    assert before["kernels"].sum() == sum(range(48))


def test_what_does_not_lie_together_is_copied_in_its_own_order() -> None:
    vector = torch.arange(6.0)
    apart = [vector[3:], vector[:3]]
    assert joined(apart).tolist() == [3, 4, 5, 0, 1, 2]
    assert joined([vector[:2], vector[3:]]).tolist() == [0, 1, 3, 4, 5]
    assert joined([state()["kernels"]]).tolist() == list(range(48))  # row by row, however it lies in memory
    end_to_end = joined([vector[:3], vector[3:]])
    assert end_to_end.data_ptr() == vector.data_ptr()
    assert end_to_end.tolist() == vector.tolist()


def test_parts_have_their_shapes_and_are_views() -> None:
    vector = torch.arange(7.0)
    parts = parted(vector, [[2, 2], [], [0, 3], [2]])
    assert [part.tolist() for part in parts] == [[[0, 1], [2, 3]], 4, [], [5, 6]]
    parts[1].fill_(40)
    assert vector[4] == 40
