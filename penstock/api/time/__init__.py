"""Event time: watermarks, windows, triggers, timers, and the aggregates of windows."""
