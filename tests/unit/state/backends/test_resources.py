"""Resources that all backends of a process share."""

from __future__ import annotations

import os

from penstock.state.backends.resources import process_pools


def test_a_forked_process_has_other_pools() -> None:
    """None of the threads of the process that it was forked from is there."""
    pools = process_pools()
    assert [pool.submit(lambda: 7).result(10) for pool in (pools.maintenance, pools.transfers)] == [7, 7]
    assert process_pools() is pools
    child = os.fork()
    if child == 0:
        status = 1
        try:
            own = process_pools()
            found = [pool.submit(lambda: 7).result(10) for pool in (own.maintenance, own.transfers)]
            status = int(own is pools or found != [7, 7])
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
