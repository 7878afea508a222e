"""E-mail, Slack, ntfy and a hundred others, through apprise."""
