"""What lets a round in at a URL: variables that are checked, and words that do not repeat them."""

import pytest
from refill.engines.description import EngineError
from refill.engines.documents_api import private_parts, understood
from refill.engines.native import credentials
from refill.evidence.scrub import variables_of_secrets

SETTINGS = {"api_key_env": "T_KEY", "user_env": "T_USER", "password_env": "T_PASSWORD"}


@pytest.mark.parametrize("value", ["abc\r\nX-Evil: yes", "abc ", "schlüssel"])
@pytest.mark.parametrize("name", ["T_KEY", "T_USER", "T_PASSWORD"])
def test_a_variable_that_cannot_stand_in_a_head_is_refused_unshown(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    for variable in ("T_USER", "T_PASSWORD"):
        monkeypatch.setenv(variable, "good")
    monkeypatch.setenv(name, value)
    with pytest.raises(EngineError, match=f"the variable {name} has") as error:
        credentials(SETTINGS)
    assert "Evil" not in str(error.value)


def test_what_was_sent_to_be_let_in_is_known_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("T_USER", "alice.smith")
    monkeypatch.setenv("T_PASSWORD", "se:cret")
    headers = credentials(SETTINGS)
    assert set(private_parts(headers)) > {"alice.smith", "se:cret"}
    monkeypatch.setenv("T_KEY", "k3y")
    assert private_parts(credentials(SETTINGS)) == ["k3y"]
    assert private_parts({}) == []


def test_an_answer_of_another_form_is_an_error_in_words() -> None:
    wanted = r"/_nodes: the answer is not of the form.*'nodes'"
    with pytest.raises(EngineError, match=wanted), understood("/_nodes"):
        {}["nodes"]


def test_all_variables_of_keys_and_passwords_are_known_wherever_they_stand() -> None:
    config = {
        "qdrant": {"api_key_env": "A"},
        "rounds": {"native": {"opensearch": {"password_env": "B", "user_env": "U"}}},
    }
    assert variables_of_secrets(config) == ["A", "B"]
