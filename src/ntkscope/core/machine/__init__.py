"""The machine: its environment, threads, interrupts, peak speed and arithmetic."""
