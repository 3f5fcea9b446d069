"""Digits, Fashion-MNIST, CIFAR and ImageNet as batches of tensors."""
