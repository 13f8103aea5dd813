"""Training that is killed, and training in several real processes."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch
from training_worlds import learn, weights

from features.errors import ConfigError, TrainingError
from ranking.processes import Group, Hardware, hardware, run

TWO = Hardware("cpu", 2)


def killed_in_pass_three(file: Path, processes: int) -> list[psutil.Process]:
    """Train in a process, kill it with SIGKILL, return the processes it had started."""
    script = Path(__file__).with_name("training_worlds.py")
    environment = os.environ | {"PYTHONPATH": str(script.parent.parent)}
    command = [sys.executable, str(script), str(file), str(processes)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"in pass three\n"
        children = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
    return children


def test_killed_training_goes_on_and_ends_bit_equal(tmp_path):
    file = tmp_path / "towers.npz"
    assert killed_in_pass_three(file, processes=1) == []
    calls = []
    model, curve = learn(file, progress=lambda *call: calls.append(call))
    assert calls[0][3].startswith("pass 3/4")
    whole, whole_curve = learn()
    assert weights(model) == weights(whole)
    assert [(each.loss, each.ndcg_at_10) for each in curve] == [
        (each.loss, each.ndcg_at_10) for each in whole_curve
    ]
    assert curve[-1].ndcg_at_10 > 0.5


def test_validation_changes_nothing_and_patience_takes_the_best_pass():
    whole, curve = learn(epochs=6, learning_rate=0.05)
    short, shorter = learn(epochs=6, learning_rate=0.05, patience=1)
    figures = [each.ndcg_at_10 for each in curve]
    first_fall = next(at for at in range(1, 6) if figures[at] <= figures[at - 1])
    assert len(shorter) == first_fall + 1
    assert [each.ndcg_at_10 for each in shorter] == figures[: first_fall + 1]
    assert weights(short) != weights(whole)


def test_two_processes_learn_what_one_learns(tmp_path):
    one, curve_of_one = learn(dropout=0.0, epochs=2)
    two, curve_of_two = learn(tmp_path / "two.npz", TWO, dropout=0.0, epochs=2)
    for name, values in one.state_dict().items():
        torch.testing.assert_close(two.state_dict()[name], values, rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(
        [each.loss for each in curve_of_two], [each.loss for each in curve_of_one], rtol=1e-4
    )
    assert len(curve_of_two) == 2
    assert all(each.ndcg_at_10 is not None for each in curve_of_two)


def test_two_killed_processes_end_and_go_on(tmp_path):
    file = tmp_path / "towers.npz"
    children = killed_in_pass_three(file, processes=2)
    _, alive = psutil.wait_procs(children, timeout=30)
    assert len(children) >= 2
    assert alive == []
    model, _ = learn(file, TWO)
    whole, _ = learn(None, TWO)
    assert weights(model) == weights(whole)


def fail_in_second(how: str, group: Group, _progress: object) -> int:
    """Work of one process; the first waits in vain for the sum of all."""
    if group.rank == 1:
        if how == "raises":
            raise ValueError("no such weather")
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "hangs":
        time.sleep(600)
    return int(group.total(torch.ones(1)))


@pytest.mark.parametrize(
    ("how", "why"),
    [
        ("raises", "ValueError: no such weather"),
        ("is killed", "exit code -9"),
        ("hangs", "exit code -9"),
    ],
)
def test_a_process_that_fails_is_one_error_and_leaves_none_behind(how, why):
    with pytest.raises(TrainingError, match=f"(?s)process . of 2 failed.*{why}.*shortlist train"):
        run(fail_in_second, how, TWO)
    left = [" ".join(each.cmdline()) for each in psutil.Process().children(recursive=True)]
    assert not [command for command in left if "spawn_main" in command]


def test_devices():
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    assert hardware("cpu", 3) == Hardware("cpu", 3)
    assert hardware("auto", 1) == Hardware("cuda" if gpus else "cpu", 1)
    with pytest.raises(ConfigError, match=f"'cuda' with training.processes = {gpus + 1}"):
        hardware("cuda", gpus + 1)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no GPU")
def test_a_gpu_learns_what_the_cpu_learns():
    one, _ = learn(dropout=0.0, epochs=1)
    other, curve = learn(on=Hardware("cuda"), dropout=0.0, epochs=1)
    for name, values in one.state_dict().items():
        torch.testing.assert_close(other.state_dict()[name], values, rtol=1e-2, atol=1e-3)
    assert np.isfinite(curve[-1].loss)
