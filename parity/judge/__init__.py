"""Whether the runs agree: each step is judged, the first fault is looked for, and what has happened is said."""
