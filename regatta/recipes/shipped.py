"""The recipes that come with Regatta."""

from regatta.config import Checkpointing, Evaluation, Run, Stop
from regatta.learn.optimisers import Sgd
from regatta.tasks.teacher import Teacher
from regatta.tasks.vectors import Vectors


def teacher() -> Run:
    """Learn the labels of a hidden random network: seconds a run, real learning."""
    return Run(
        task=Teacher(),
        optimiser=Sgd(lr=0.3),
        minibatch=256,
        stop=Stop(epochs=12, target=0.86),
        evaluation=Evaluation(every=0.5),
    )


def vectors() -> Run:
    """Random vectors through a DNN of 1.4 million parameters: throughput only."""
    return Run(
        task=Vectors(),
        optimiser=Sgd(lr=0.01),
        minibatch=256,
        stop=Stop(epochs=2),
        evaluation=Evaluation(every=1.0),
        checkpointing=Checkpointing(),
    )
