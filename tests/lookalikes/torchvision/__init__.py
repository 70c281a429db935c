"""Stands for torchvision, which is not installed where these tests run: same names, same attributes, the few pixels that are needed."""
