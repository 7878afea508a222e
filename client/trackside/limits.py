"""Limits of what a client sends, to which the daemon holds every program on its socket. No other file repeats them."""

ROWS_WAITING = 32_768  # rows of a queue: a tight loop can push faster than the sender thread drains
BATCH_ROWS = 512  # rows of a batch
BATCH_MESSAGES = 64  # events and alerts of a batch
TEXT_LENGTH = 4096  # characters of an alert's text, and of an event's kind and fields together
IN_FLIGHT = 64  # unacknowledged messages of a session

SESSION_PHASES = 64  # distinct phases of a session; the time of further ones counts as that of one more
PHASE_LENGTH = 128  # characters of a phase's name; a longer one counts as a further one

PROFILE_SECONDS = 120.0  # duration of a profile
PROFILE_STEPS = 1000  # steps of a profile: more would make its summary too large
CAPTURE_RANKS = 4096  # ranks of a request for a capture, and members of a process group in the flight recorder's answer
FLIGHT_GROUPS = 64  # process groups of that answer
FLIGHT_ENTRIES = 100  # newest calls of each group

MEDIA_KEY_LENGTH = 256  # characters of the key of an image, a text, a table or a histogram
MEDIA_BYTES = {"image": 1024 * 1024, "text": 320 * 1024, "table": 320 * 1024, "histogram": 64 * 1024}
IMAGE_SIDE = 4096  # pixels of the longest side of an image
IMAGE_PIXELS = 4 * 1024 * 1024  # all pixels of an image: a decoder needs 4 to 8 bytes for each
ARRAY_SIDE = 1024  # pixels of an image that a client makes of an array: of a larger one it leaves out rows and columns
MEDIA_TEXT_LENGTH = 65_536  # characters of a text
CODE_KEY = "trackside/code"  # name of the text that has the code of a run

BATCH_SAMPLES = 4096  # samples of all batches in its answer
BATCH_NAMES = 32  # samples of a batch that are named
SAMPLE_LENGTH = 200  # characters of a sample's name, and of its id
