import torch

from fedetf.rng import derive, global_stream, numpy_stream, torch_stream


def test_streams_are_functions_of_their_keys() -> None:
    assert derive(7, "batches", 1, 2) == derive(7, "batches", 1, 2)
    keys = [(7, "batches", 1, 2), (8, "batches", 1, 2), (7, "split", 1, 2), (7, "batches", 2, 1), (7, "batches", 12)]
    assert len({derive(*key) for key in keys}) == len(keys)
    assert torch.rand(1, generator=torch_stream(7, "a")) == torch.rand(1, generator=torch_stream(7, "a"))
    assert numpy_stream(7, "a", 1).random() != numpy_stream(7, "a", 2).random()


def test_global_stream_puts_the_global_generator_back() -> None:
    torch.manual_seed(0)
    wanted = torch.rand(2)
    torch.manual_seed(0)
    first = torch.rand(1)
    with global_stream(7, "noise"):
        inside = torch.rand(1)
    assert torch.equal(torch.cat([first, torch.rand(1)]), wanted)
    with global_stream(7, "noise"):
        assert torch.equal(torch.rand(1), inside)
