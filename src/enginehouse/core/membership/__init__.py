"""Which engines are in the fleet, and in what state: one table, one reducer."""
