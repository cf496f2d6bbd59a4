"""What disturbed a measurement: pure judgement of two moments of the machine."""
