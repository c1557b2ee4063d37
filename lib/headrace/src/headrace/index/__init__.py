"""The order: pure index maps, schedules and plans. numpy only, no I/O."""
