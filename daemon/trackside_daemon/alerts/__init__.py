"""What fires: the book of alerts, and the rules that are set over families and keys."""
