"""What a program means: values, parallel calls, workers, and what they do."""
