"""Where pushes arrive: the socket, the sessions on it, and what they are answered."""
