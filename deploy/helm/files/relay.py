"""Copy bytes between a Unix socket that root alone may open and a new one that all may open: ``relay.py FROM NEW``."""

import asyncio
import os
import signal
import sys


async def copy(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    """Copy until the source ends."""
    try:
        while data := await source.read(65536):
            target.write(data)
            await target.drain()
    except OSError:
        pass
    finally:
        target.close()


async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Serve one client; its connection ends at once if the other socket is not there."""
    try:
        answers, requests = await asyncio.open_unix_connection(sys.argv[1])
    except OSError:
        writer.close()
        return
    await asyncio.gather(copy(reader, requests), copy(answers, writer))


async def main() -> None:
    """Serve the new socket."""
    server = await asyncio.start_unix_server(relay, sys.argv[2])
    await server.serve_forever()


signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
os.umask(0o111)  # the new socket has mode 0666
asyncio.run(main())
