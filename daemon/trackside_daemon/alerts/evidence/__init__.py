"""What helps to understand an alert: gathered when it begins or gets worse, by the table in `wanted`."""
