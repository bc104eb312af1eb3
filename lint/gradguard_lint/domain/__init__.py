"""The engine's vocabulary: values, conditions, states, effects. No libraries, no syntax rules."""
