"""The recipes that come with Regatta."""

from regatta.config import Checkpointing, Evaluation, Run, Stop
from regatta.data.images.augment import Augmentation
from regatta.data.labels import Labelling
from regatta.learn.optimisers import AdaDelta, Adam, RmsProp, Sgd
from regatta.learn.schedules import Hold
from regatta.models.recogniser import PAPER
from regatta.tasks.frames import Frames
from regatta.tasks.images import Images, Network
from regatta.tasks.speech import Speech
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


def frames() -> Run:
    """Phones of speech made on the spot, frame by frame, by a small bottleneck DNN: minutes."""
    return Run(
        task=Frames(),
        optimiser=Sgd(lr=0.1),
        minibatch=256,
        stop=Stop(epochs=10),
        evaluation=Evaluation(every=0.5),
    )


def frames_paper() -> Run:
    """The network of Hu et al., 680-2048-2048-60-2048-2048-16765, on senones: a day and more."""
    return Run(
        task=Frames(
            minutes=432.0,
            dev_minutes=20.0,
            hidden=(2048, 2048, 60, 2048, 2048),
            labels=Labelling(states=3, senones=16_765),
        ),
        optimiser=Sgd(lr=0.01),
        minibatch=256,
        stop=Stop(epochs=10),
        evaluation=Evaluation(every=1.0),
        checkpointing=Checkpointing(every=1.0),
    )


def speech() -> Run:
    """Letters of speech made on the spot, by a small recogniser: minutes on two cores."""
    return Run(
        task=Speech(),
        optimiser=Adam(lr=2e-3),
        schedule=Hold(until=0.6),
        minibatch=16,
        stop=Stop(epochs=12),
        evaluation=Evaluation(every=1.0),
        checkpointing=Checkpointing(batches=250),
    )


def speech_paper() -> Run:
    """The recogniser of Baunsgaard et al., 25.6 million parameters: days on graphics processors."""
    return Run(
        task=Speech(minutes=6000.0, dev_minutes=300.0, network=PAPER),
        optimiser=AdaDelta(),
        minibatch=24,
        stop=Stop(epochs=30),
        evaluation=Evaluation(every=1.0),
        checkpointing=Checkpointing(batches=250),
    )


def images() -> Run:
    """Handwritten digits, or one's own small images, by a small residual network: seconds."""
    return Run(
        task=Images(augmentation=Augmentation(margin=1)),
        optimiser=Sgd(lr=0.1, momentum=0.9),
        minibatch=32,
        stop=Stop(epochs=12),
        evaluation=Evaluation(every=1.0),
    )


def images_paper() -> Run:
    """ResNet-50 as Campos et al. trained it, on a folder of images: days on graphics processors."""
    return Run(
        task=Images(
            train="images",
            crop=224,
            network=Network("resnet-50"),
            augmentation=Augmentation(flip=True),
        ),
        optimiser=RmsProp(),
        minibatch=32,
        stop=Stop(epochs=30),
        evaluation=Evaluation(every=1.0),
        checkpointing=Checkpointing(every=1.0),
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
