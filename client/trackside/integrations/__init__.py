"""What frameworks call trackside by. Each has a module of its own, which alone imports it."""
