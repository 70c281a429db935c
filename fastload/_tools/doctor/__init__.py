"""Explains why a GPU waits.

``examine`` reads recorded runs, ``loader/`` measures a loader, ``trainer/`` inspects a training
step and ``machine`` checks the host.
"""
