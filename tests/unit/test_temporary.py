"""Temporary folders beside results: gone at the end, and gone when the process was killed, too."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from refill.evidence.inventory import strange_hidden
from refill.processes import module_environment
from refill.temporary import folder_beside

HOLDER = """
import sys, time
from pathlib import Path
from refill.temporary import folder_beside
with folder_beside(Path(sys.argv[1])) as folder:
    (folder / "saved.tar").write_text("large")
    print(folder.name, flush=True)
    time.sleep(600)
"""


def test_what_a_killed_process_left_is_removed_and_what_a_living_one_has_is_not(
    tmp_path: Path,
) -> None:
    target = tmp_path / "results/images/gateway-old.json"
    holders = [
        subprocess.Popen(
            [sys.executable, "-c", HOLDER, str(target)],
            stdout=subprocess.PIPE,
            text=True,
            env=module_environment(),
        )
        for _ in range(2)
    ]
    try:
        names = [holder.stdout.readline().strip() for holder in holders if holder.stdout]
        holders[0].kill()
        holders[0].wait()
        assert (target.parent / names[0] / "saved.tar").exists()
        other = target.parent / ".gateway-old.json.another-thing"
        other.mkdir()
        with folder_beside(target) as folder:
            found = {path.name for path in target.parent.iterdir()}
            assert found == {names[1], other.name, folder.name}
            (folder / "file").write_text("")
        assert {path.name for path in target.parent.iterdir()} == {names[1], other.name}
    finally:
        for holder in holders:
            holder.kill()
            holder.wait()
            if holder.stdout:
                holder.stdout.close()
    with folder_beside(target):
        pass
    # Nothing that the verification would have to name.
    assert strange_hidden(tmp_path) == []
