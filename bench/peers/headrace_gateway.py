"""Another version of headrace's gateway as a peer, to compare two in one interleaved run.

    python bench/gateway.py --peer "before:KEY=env PYTHONPATH=OTHER/src \\
        python bench/peers/headrace_gateway.py {engine} {port}"

KEY is what this prints when it is started with no arguments.
"""

import sys
import tempfile
from pathlib import Path

from headrace.base.clock import SystemClock
from headrace.gateway.gateway import Gateway, GatewayConfig
from headrace.gateway.pauses import shorten_pauses
from headrace.gateway.posting_process import PostingProcess
from headrace.http import server
from headrace.ledger.journal import Journal
from headrace.sim.gateway_site import add_model, fill_store, key_text, pepper
from headrace.storage import open_sqlite


def main() -> None:
    if len(sys.argv) == 1:
        print(key_text())
        return
    engine_url, port = sys.argv[1], int(sys.argv[2])
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        database = open_sqlite(directory / "headrace.db")
        fill_store(database, [(engine_url, "")], None)
        add_model(database, "fake", [(engine_url, "")], number=2)
        journal = Journal(directory / "journal")
        poster = PostingProcess(directory / "headrace.db", journal.directory)

        async def serve() -> None:
            log = (directory / "access.log").open("wb")
            with log, server.bind("127.0.0.1", port) as sock:
                async with Gateway(
                    database, journal, GatewayConfig(pepper), SystemClock(), log, poster=poster
                ) as gateway:
                    shorten_pauses()
                    await server.serve(gateway.app, sock, drain_timeout_s=1.0)

        server.run(serve())
        poster.close()
        journal.close()
        database.close()


if __name__ == "__main__":
    main()
