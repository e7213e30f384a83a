"""Images to learn from.

source.py    a folder of images, recognised by what it holds
idx.py       MNIST's files
cifar.py     CIFAR-10's files, binary or Python's
folders.py   JPEG and PNG files, a folder a class
decoding.py  one file to pixels
packed.py    all of them in Arrow files, made once
augment.py   random crops and flips
"""
