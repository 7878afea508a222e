"""The real training that ``trackside demo`` runs beside the daemon: a small character model, on one core."""
