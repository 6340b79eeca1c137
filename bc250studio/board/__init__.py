"""The machine: sensors with their trust, the guard beside a run, heat limits, chip presets, memory fit, the doctor."""
