"""Lines of MONITOR as a real server writes them."""

from __future__ import annotations

import pytest
from refill.engines.description import EngineError
from refill.proofs.monitor import read_line


def test_words_come_as_they_were_sent() -> None:
    line = b'1796098281.171359 [0 127.0.0.1:39746] "SET" "a\\n\\x00\\"" "\\xff\\\\x41" ""'
    command = read_line(line)
    assert list(command.words) == ["SET", 'a\n\0"', "\xff\\x41", ""]
    assert not command.of_script


def test_what_a_script_asks_for_is_told_apart() -> None:
    command = read_line(b'1796098281.173499 [0 lua] "set" "proof:fill:i:1" "x"')
    assert command.of_script
    assert command.name == "SET"
    assert command.of_fill


def test_a_pattern_is_no_key_and_a_second_word_is_part_of_a_name() -> None:
    scan = read_line(b'1.0 [0 10.0.0.1:1] "SCAN" "0" "MATCH" "proof:fill:*"')
    assert not scan.of_fill
    assert read_line(b'1.0 [0 [::1]:1] "script" "load" "return 1"').name == "SCRIPT LOAD"


@pytest.mark.parametrize("line", [b"OK", b"", b"1.0 [0 lua]"])
def test_what_is_no_line_is_an_error(line: bytes) -> None:
    with pytest.raises(EngineError, match="not understood"):
        read_line(line)
