"""Any receiver of Alertmanager's webhook."""
