"""Callbacks for the training loops of other libraries: one module a library, which it needs.

``from pytest_gradguard.callbacks.lightning import WatchGradients``
``from pytest_gradguard.callbacks.transformers import WatchGradients``
"""
