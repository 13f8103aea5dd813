"""Curve, early stop and files of :mod:`ranking.passes`, on a model of one number."""

import torch
from torch import nn

from ranking.optimiser import Optimiser
from ranking.passes import Pass, Passes


class Number(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.x = nn.Parameter(torch.zeros(1, 1))


def training(wanted=5, patience=0, file=None, **more):
    model = Number()
    optimiser = Optimiser(model, 0.1, 0.0, 0, 2 * wanted)
    passes = Passes("learn", wanted, patience, file=file, **more)
    passes.resume(model, optimiser)
    return model, optimiser, passes


def one_pass(model, optimiser, passes, ndcg=None):
    for _ in range(2):
        optimiser.step((model.x - 3).square().sum())
    passes.end(model, optimiser, float((model.x.detach() - 3).square()), ndcg)


def test_stops_after_passes_without_gain_and_takes_the_best():
    model, optimiser, passes = training(wanted=9, patience=2)
    after = []
    for ndcg in (0.1, 0.3, 0.2, 0.3):
        assert not passes.done
        one_pass(model, optimiser, passes, ndcg)
        after.append(model.x.item())
    assert passes.done
    assert [each.ndcg_at_10 for each in passes.curve] == [0.1, 0.3, 0.2, 0.3]
    passes.take_best(model)
    assert model.x.item() == after[1] != after[3]


def test_a_gain_renews_the_patience():
    model, optimiser, passes = training(wanted=9, patience=2)
    for ndcg in (0.1, 0.05, 0.2, 0.15):
        one_pass(model, optimiser, passes, ndcg)
    assert not passes.done


def test_without_patience_or_figures_all_passes_run_and_the_last_counts():
    for patience, ndcg in ((0, 0.5), (2, None)):
        model, optimiser, passes = training(wanted=4, patience=patience)
        for at in range(4):
            assert not passes.done
            one_pass(model, optimiser, passes, ndcg and ndcg / (1 + at))
        last = model.x.item()
        assert passes.done
        passes.take_best(model)
        assert model.x.item() == last


def test_goes_on_from_the_file_as_if_never_stopped(tmp_path):
    file = tmp_path / "folder" / "number.npz"
    whole, optimiser, passes = training(patience=2)
    for ndcg in (0.3, 0.2, 0.4, 0.1, 0.2):
        one_pass(whole, optimiser, passes, ndcg)
    passes.take_best(whole)
    for at, ndcg in enumerate((0.3, 0.2, 0.4, 0.1, 0.2)):
        model, optimiser, passes = training(patience=2, file=file)
        assert len(passes.curve) == at
        assert optimiser.steps_done == 2 * at
        one_pass(model, optimiser, passes, ndcg)
    model, optimiser, passes = training(patience=2, file=file)
    assert passes.done
    passes.take_best(model)
    assert model.x.item() == whole.x.item()
    assert [path.name for path in file.parent.iterdir()] == ["number.npz"]


def test_a_damaged_file_is_no_start(tmp_path):
    file = tmp_path / "number.npz"
    one_pass(*training(file=file))
    whole = file.read_bytes()
    for damaged in (b"", b"PK", b"\x80\x04", whole[: len(whole) // 2]):
        file.write_bytes(damaged)
        model, optimiser, passes = training(file=file)
        assert (passes.curve, optimiser.steps_done, model.x.item()) == ([], 0, 0.0)


def test_processes_that_only_read_write_nothing(tmp_path):
    file = tmp_path / "number.npz"
    one_pass(*training(file=file, writes=False))
    assert not file.exists()


def test_reports_say_pass_loss_and_figure():
    calls = []
    model, optimiser, passes = training(wanted=2, progress=lambda *call: calls.append(call))
    passes.step(1, 4)
    passes.step(2, 4, 6.25)
    passes.end(model, optimiser, 6.0, 0.125)
    passes.step(3, 4, 5.5)
    assert calls == [
        ("learn", 1, 4, "pass 1/2"),
        ("learn", 2, 4, "pass 1/2: loss 6.250"),
        ("learn", 2, 4, "pass 1/2: loss 6.000, NDCG@10 0.1250"),
        ("learn", 3, 4, "pass 2/2: loss 5.500; before: loss 6.000, NDCG@10 0.1250"),
    ]
    assert str(Pass(1.5, None, 0.1)) == "loss 1.500"
