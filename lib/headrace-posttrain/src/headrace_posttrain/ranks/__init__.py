"""Which rank trains on which sequence: schedules and balance over data-parallel ranks."""
