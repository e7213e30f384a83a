"""What every test shares: one thread, so that a gradient is the same bits every time."""

import signal

import pytest
import torch
from helpers import Quadratic
from hypothesis import settings

torch.set_num_threads(1)
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as in what a shell runs with `&`
    signal.signal(signal.SIGINT, signal.default_int_handler)  # commands of tests are interrupted
# The same examples every time, however busy the machine is.
settings.register_profile("regatta", deadline=None, derandomize=True)
settings.load_profile("regatta")


@pytest.fixture
def quadratic():
    return Quadratic()


@pytest.fixture(scope="session")
def tones(tmp_path_factory):
    """The folder of a run that has learnt words whose letters are tones."""
    from recognising import trained_run

    return trained_run(tmp_path_factory.mktemp("tones"))


@pytest.fixture(scope="session")
def trained(tones):
    from regatta.recognise.trained import Trained

    return Trained.open(tones)
