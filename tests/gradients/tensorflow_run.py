"""Run as a script, prints for each program what was expected and what was found."""

from __future__ import annotations

import json
import logging
from typing import Any

import tensorflow as tf
import tensorflow_outcomes
import tensorflow_programs
from tensorflow_table import FIXES, PROGRAMS, WARNED, outcome

MODULES = [tensorflow_programs, tensorflow_outcomes]


def main() -> None:
    logging.disable(logging.WARNING)  # keras warns of some of them
    before = [tf.GradientTape.gradient, tf.stop_gradient]
    results: dict[str, Any] = {}
    for name, (expected, run) in PROGRAMS.items():
        found = outcome(run)
        results[name] = [expected, found if expected[2] else [*found[:2], []]]
    after = [tf.GradientTape.gradient, tf.stop_gradient]
    results["put back"] = [old is new for old, new in zip(before, after, strict=True)]
    results["fixes"] = FIXES
    results["warned"] = {name: told for name, told in WARNED.items() if told}
    print(json.dumps(results))


if __name__ == "__main__":
    main()
